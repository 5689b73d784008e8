"""Decisions for a whole batch, where the network runs: table lookups on tensors.

A :class:`Carry` holds the state of every input of a batch, in the caller's order. After an exit has
run for some rows, :meth:`Decider.observe` updates the rows that were due there, without waiting for
the device. :meth:`Decider.going` waits: it returns how many rows continue, and the next exit.

Confidence is the softmax probability of the predicted class, in single precision whatever the
network computes in. Logits with a NaN give no answer: the prediction is ``NO_ANSWER`` and the
confidence NaN, which every policy treats as the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ttamer.errors import ArgumentError
from ttamer.torch.asking import Asking
from ttamer.torch.tables import BeliefTables, Tables

if TYPE_CHECKING:
    from torch import Tensor


# The prediction of an exit whose logits have a NaN.
NO_ANSWER = -1
# The place of a row that has stopped.
STOP = -1
# The exits asked are bits of a 64-bit integer, so there are at most 64.
MAX_EXITS = 64


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


class Decider:
    """Decides by a policy's tables, with PyTorch's operations, on any device."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        if tables.exits > MAX_EXITS:
            raise ArgumentError(
                f"there are {tables.exits} exits, and at most {MAX_EXITS} are supported: build the "
                "network with fewer ramps"
            )
        self.tables = tables.to(device)
        self._device = device
        self._exit_of = torch.tensor([*tables.exit_of, STOP], device=device)  # the last: stopped

    def asking(self) -> Asking | None:
        """Return how exits are asked with few launches, where this decider can be captured."""
        return None

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> Carry:
        """Return the state before any exit is asked."""
        self._check(classes)
        exits, device = self.tables.exits, self._device

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

    def _check(self, classes: int) -> None:
        """Refuse logits for another number of classes than the tables are for."""
        if isinstance(self.tables, BeliefTables) and self.tables.leans.shape[1] != classes:
            raise ArgumentError(
                f"the policy's tables are for {self.tables.leans.shape[1]} classes, and the "
                f"network's logits are for {classes}: name all classes with classes="
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
        tables = self.tables
        reads = isinstance(tables, BeliefTables) and tables.reads_columns
        confidence, prediction, *columns = (scores_of if reads else confidence_of)(logits)
        carry.logits[exit_].index_copy_(0, rows, logits.to(carry.logits.dtype))
        carry.confidence[rows, exit_] = confidence.where(due, carry.confidence[rows, exit_])
        carry.prediction[rows, exit_] = prediction.where(due, carry.prediction[rows, exit_])
        carry.asked[rows] |= due.long() << exit_
        bins = torch.searchsorted(tables.bounds[exit_], confidence.double(), right=True)
        bins = bins.where(~torch.isnan(confidence), 0)
        if isinstance(tables, BeliefTables):
            carry.odds[rows, exit_] = tables.levels[exit_][bins]
            for bounds, terms, values in zip(
                tables.term_bounds[exit_], tables.terms[exit_], columns, strict=True
            ):
                place = torch.searchsorted(bounds, values.double(), right=True)
                place = place.where(~torch.isnan(confidence), len(terms) - 1)
                carry.odds[rows, exit_] += terms[place]
            place, owner = self._believe(carry, exit_, rows, prediction, tables)
        else:
            own = tables.own[exit_][bins].long()
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
        tables: BeliefTables,
    ) -> tuple[Tensor, Tensor]:
        """Return the next place and the owner, by the belief at each row's step."""
        lean = tables.leans[exit_][prediction.clamp_min(0).long()]
        carry.lean[rows, exit_] = lean.where(prediction != NO_ANSWER, 0.0)
        step = carry.place[rows].clamp_min(0)
        context = tables.context[step]  # (m, width)
        at = context.clamp_min(0)
        odds, lean, predicted = (
            part[rows].gather(1, at) for part in (carry.odds, carry.lean, carry.prediction)
        )
        own, others = tables.own[step], tables.others[step]
        same = predicted[:, :, None] == predicted[:, None, :]  # (m, answer, other)
        agreed = others[..., 0] + others[..., 1] * odds[:, None, :]
        differed = others[..., 2] * odds[:, None, :] + others[..., 3] * lean[:, None, :]
        # Exact in any order: see ttamer.fitted.belief.
        totals = own[..., 0] + own[..., 1] * odds + own[..., 2] * lean
        totals = totals + torch.where(same, agreed, differed).sum(dim=2)
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
        following = torch.where(where != STOP, where, self.tables.exits).amin()
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


def confidence_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence and the prediction of logits, as :func:`scores_of` does."""
    best, prediction = torch.log_softmax(logits.float(), dim=-1).exp().max(dim=-1)
    return best, torch.where(torch.isnan(best), NO_ANSWER, prediction).to(torch.int32)


class Scores(NamedTuple):
    """Scores of logits, each of shape (batch,), in single precision."""

    confidence: Tensor
    """The softmax probability of the predicted class."""
    prediction: Tensor
    """The predicted class, or ``NO_ANSWER``."""
    margin: Tensor
    """The difference between the two largest probabilities; with one class, its probability."""
    entropy: Tensor
    """The entropy of the softmax, in nats."""


def scores_of(logits: Tensor) -> Scores:
    """Return the scores of logits of shape (batch, classes).

    >>> scores = scores_of(torch.tensor([[0.0, 0.0, -1e9], [float("nan"), 1.0, 2.0]]))
    >>> scores.confidence.tolist(), scores.prediction.tolist(), scores.margin.tolist()
    ([0.5, nan], [0, -1], [0.0, nan])
    """
    logs = torch.log_softmax(logits.float(), dim=-1)
    chances = logs.exp()
    best, prediction = chances.max(dim=-1)
    margin = best
    if chances.shape[-1] > 1:
        two = chances.topk(2, dim=-1).values
        margin = two[..., 0] - two[..., 1]
    entropy = -(chances * logs.clamp_min(-1e30)).sum(dim=-1)
    prediction = torch.where(torch.isnan(best), NO_ANSWER, prediction)
    return Scores(best, prediction.to(torch.int32), margin, entropy)
