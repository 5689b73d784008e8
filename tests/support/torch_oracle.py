"""Decisions by PyTorch's operations on tensors: what kernels and NumPy are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ttamer.torch.deciding import NO_ANSWER, STOP, BeliefTables, Tables, confidence_of, scores_of


@dataclass(eq=False)
class Carry:
    """The state of a batch of B inputs, one row each."""

    place: Tensor
    """Shape (B,): the place where the input is due next, or -1 once it has stopped. int64."""
    owner: Tensor
    """Shape (B,): the exit whose answer is the best so far. int64."""
    best: Tensor
    """Shape (B,): the column of its loss, for plain policies. int64."""
    confidence: Tensor
    """Shape (B, exits): the confidence of each exit; NaN where it was not asked, or has none."""
    prediction: Tensor
    """Shape (B, exits): the class each exit predicts; ``NO_ANSWER`` where none. int32."""
    odds: Tensor
    """Shape (B, exits): the log-odds of each exit's answer, for beliefs."""
    lean: Tensor
    """Shape (B, exits): the offset of each predicted class, for beliefs."""
    asked: Tensor
    """Shape (B,): a bit for every exit that was asked. int64."""
    logits: Tensor
    """Shape (exits, B, classes): the logits of each exit; not written where it was not asked."""


class Oracle:
    """Decides by a policy's tables, with PyTorch's operations, on any device."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        self.tables = tables
        arrays = {name: part for name, part in vars(tables).items() if isinstance(part, np.ndarray)}
        self.t = SimpleNamespace(
            **{name: torch.from_numpy(part).to(device) for name, part in arrays.items()}
        )
        self._device = device
        self._exit_of = torch.tensor([*tables.exit_of, STOP], device=device)  # the last: stopped

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> Carry:
        """Return the state before any exit is asked."""
        exits, device = len(self.tables.bounds), self._device

        def full(value: float, kind: torch.dtype, *shape: int) -> Tensor:
            return torch.full(shape, value, dtype=kind, device=device)

        return Carry(
            place=full(self.tables.first, torch.int64, rows),
            owner=full(STOP, torch.int64, rows),
            best=full(2**31 - 1, torch.int64, rows),
            confidence=full(float("nan"), torch.float32, rows, exits),
            prediction=full(NO_ANSWER, torch.int32, rows, exits),
            odds=full(0.0, torch.float64, rows, exits),
            lean=full(0.0, torch.float64, rows, exits),
            asked=full(0, torch.int64, rows),
            logits=torch.empty((exits, rows, classes), dtype=dtype, device=device),
        )

    def observe(
        self,
        carry: Carry,
        exit_: int,
        rows: Tensor,
        logits: Tensor,
        *,
        awaited: bool = True,  # noqa: ARG002 - for a decider that reports to the host
        first: bool = False,  # noqa: ARG002 - for a decider that keeps its memory
    ) -> None:
        """Record the logits of one exit for some rows, and update the rows that were due there.

        ``rows`` has shape (m,), their positions in the batch; ``logits`` has shape (m, classes).
        ``awaited``: :meth:`going` follows. ``first``: no exit was asked before.
        """
        due = self._exit_of[carry.place[rows]] == exit_
        tables = self.t
        believes = isinstance(self.tables, BeliefTables)
        reads = believes and self.tables.reads_columns
        confidence, prediction, *columns = (scores_of if reads else confidence_of)(logits)
        carry.logits[exit_].index_copy_(0, rows, logits.to(carry.logits.dtype))
        carry.confidence[rows, exit_] = confidence.where(due, carry.confidence[rows, exit_])
        carry.prediction[rows, exit_] = prediction.where(due, carry.prediction[rows, exit_])
        carry.asked[rows] |= due.long() << exit_
        bins = torch.searchsorted(tables.bounds[exit_], confidence.double(), right=True)
        bins = bins.where(~torch.isnan(confidence), 0)
        if believes:
            carry.odds[rows, exit_] = tables.levels[exit_][bins]
            for bounds, terms, values in zip(
                tables.term_bounds[exit_], tables.terms[exit_], columns, strict=True
            ):
                place = torch.searchsorted(bounds, values.double(), right=True)
                place = place.where(~torch.isnan(confidence), len(terms) - 1)
                carry.odds[rows, exit_] += terms[place]
            place, owner = self._believe(carry, exit_, rows, prediction)
        else:
            own = tables.loss[exit_][bins].long()
            before = carry.best[rows]
            owner = torch.where(own < before, exit_, carry.owner[rows])
            best = torch.minimum(own, before)
            carry.best[rows] = best.where(due, before)
            width = tables.onward.shape[2]
            place = tables.onward[exit_].flatten()[bins * width + best].long()
        carry.place[rows] = place.where(due, carry.place[rows])
        carry.owner[rows] = owner.where(due, carry.owner[rows])

    def _believe(
        self,
        carry: Carry,
        exit_: int,
        rows: Tensor,
        prediction: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the next place and the owner, by the belief at each row's step."""
        tables = self.t
        lean = tables.leans[exit_][prediction.clamp_min(0).long()]
        carry.lean[rows, exit_] = lean.where(prediction != NO_ANSWER, 0.0)
        step = carry.place[rows].clamp_min(0)
        context = tables.context[step]  # (m, width)
        at = context.clamp_min(0)
        odds, lean, predicted = (
            part[rows].gather(1, at) for part in (carry.odds, carry.lean, carry.prediction)
        )
        own, others = tables.own[step], tables.peers[step]
        same = predicted[:, :, None] == predicted[:, None, :]  # (m, answer, other)
        agreed = others[..., 0] + others[..., 1] * odds[:, None, :]
        differed = others[..., 2] * odds[:, None, :] + others[..., 3] * lean[:, None, :]
        # Exact in any order: see ttamer.fitted.belief.
        totals = own[..., 0] + own[..., 1] * odds + own[..., 2] * lean
        if self.tables.shared:
            same = same & (predicted >= 0)[:, :, None]
        totals = totals + torch.where(same, agreed, differed).sum(dim=2)
        if len(tables.pairs) > 1:
            ours, theirs = predicted[:, :, None].long(), predicted[:, None, :].long()
            added = tables.pairs[
                tables.pair_of[step].long(), ours.clamp_min(0), theirs.clamp_min(0)
            ]
            added = added.where((ours >= 0) & (theirs >= 0), 0.0)
            totals = totals + (others[..., 4] * added).sum(dim=2)
        if self.tables.shared:
            same = (same | torch.eye(totals.shape[1], dtype=bool)) & (context >= 0)[:, None, :]
            sums = torch.where(same, totals[:, None, :], 0.0).sum(dim=2)
            totals = (sums / same.sum(dim=2).clamp_min(1) * 4096).round() / 4096
            totals = totals.clamp(-8, 8).where(context >= 0, float("inf"))
        least, place = totals[:, 0], torch.zeros_like(step)
        for k in range(1, totals.shape[1]):  # argmin does not guarantee the first among equals
            better = totals[:, k] < least
            least, place = least.where(~better, totals[:, k]), place.where(~better, k)
        owner = context.gather(1, place[:, None])[:, 0]
        answer = predicted.gather(1, place[:, None])[:, 0]
        shift = tables.shifts[step, answer.clamp_min(0).long()]
        least = least + shift.where(answer != NO_ANSWER, 0.0)
        state = (tables.edges[step] <= least[:, None]).sum(dim=1)
        states = tables.onward.shape[1]
        return tables.onward.flatten()[step * states + state].long(), owner

    def going(self, carry: Carry, rows: Tensor) -> tuple[int, int]:
        """Wait for the device; return how many rows continue, and the exit some ask next."""
        where = self._exit_of[carry.place[rows]]
        left = (where != STOP).sum()
        following = torch.where(where != STOP, where, len(self.tables.bounds)).amin()
        alive, due = torch.stack((left, following)).tolist()
        return alive, due

    def answers(self, carry: Carry) -> Tensor:
        """Return the logits of the owners, shape (B, classes)."""
        every = torch.arange(len(carry.owner), device=self._device)
        return carry.logits[carry.owner.clamp_min(0), every]

    def collect(self, carry: Carry) -> tuple[Tensor, ...]:
        """Return what answers are made of: logits, owners, exits asked, confidences, classes."""
        return (
            self.answers(carry), carry.owner, carry.asked, carry.confidence, carry.prediction,
        )  # fmt: skip

    def regroup(self, carry: Carry, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the positions that form a smaller group, and its rows, without waiting.

        Rows that continue come first, in order; the group is padded with rows that have stopped.
        """
        stopped = (carry.place[rows] == STOP).to(torch.uint8)
        positions = stopped.argsort(stable=True)[:size]
        return positions, rows[positions]
