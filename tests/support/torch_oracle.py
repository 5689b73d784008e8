"""Decisions by PyTorch's operations on tensors: what kernels and NumPy are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ttamer.torch.deciding import (
    NO_ANSWER,
    STOP,
    BeliefTables,
    Tables,
    confidence_of,
)


@dataclass(eq=False)
class OracleCarry:
    """The state of a batch of B inputs, as :class:`ttamer.torch.deciding.Carry`, in tensors."""

    stage: Tensor
    owner: Tensor
    best: Tensor
    confidence: Tensor
    prediction: Tensor
    odds: Tensor
    offset: Tensor
    asked: Tensor
    logits: Tensor


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

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> OracleCarry:
        exits, device = len(self.tables.bounds), self._device

        def full(value: float, kind: torch.dtype, *shape: int) -> Tensor:
            return torch.full(shape, value, dtype=kind, device=device)

        return OracleCarry(
            stage=full(self.tables.first, torch.int64, rows),
            owner=full(STOP, torch.int64, rows),
            best=full(2**31 - 1, torch.int64, rows),
            confidence=full(float("nan"), torch.float32, rows, exits),
            prediction=full(NO_ANSWER, torch.int32, rows, exits),
            odds=full(0.0, torch.float64, rows, exits),
            offset=full(0.0, torch.float64, rows, exits),
            asked=full(0, torch.int64, rows),
            logits=torch.empty((exits, rows, classes), dtype=dtype, device=device),
        )

    def observe(
        self,
        carry: OracleCarry,
        exit_: int,
        rows: Tensor,
        logits: Tensor,
        *,
        awaited: bool = True,
        first: bool = False,
    ) -> None:
        del awaited, first
        tables, due = self.t, self._exit_of[carry.stage[rows]] == exit_
        confidence, prediction = confidence_of(logits, by_margin=self.tables.by_margin)
        carry.logits[exit_].index_copy_(0, rows, logits.to(carry.logits.dtype))
        carry.confidence[rows, exit_] = confidence.where(due, carry.confidence[rows, exit_])
        carry.prediction[rows, exit_] = prediction.where(due, carry.prediction[rows, exit_])
        carry.asked[rows] |= due.long() << exit_
        bins = torch.searchsorted(tables.bounds[exit_], confidence.double(), right=True)
        bins = bins.where(~torch.isnan(confidence), 0)
        if isinstance(self.tables, BeliefTables):
            carry.odds[rows, exit_] = tables.levels[exit_][bins]
            offset = tables.offsets[exit_][prediction.clamp_min(0).long()]
            carry.offset[rows, exit_] = offset.where(prediction != NO_ANSWER, 0.0)
            stage, owner = self._believe(carry, rows)
        else:
            loss, before = tables.loss[exit_][bins].long(), carry.best[rows]
            owner = torch.where(loss < before, exit_, carry.owner[rows])
            best = torch.minimum(loss, before)
            carry.best[rows] = best.where(due, before)
            width = tables.onward.shape[2]
            stage = tables.onward[exit_].flatten()[bins * width + best.clamp_max(width - 1)].long()
        carry.stage[rows] = stage.where(due, carry.stage[rows])
        carry.owner[rows] = owner.where(due, carry.owner[rows])

    def _believe(self, carry: OracleCarry, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next stage and the owner, by the belief at each row's stage."""
        tables = self.t
        step = carry.stage[rows].clamp_min(0)
        context = tables.context[step]  # (m, width)
        at = context.clamp_min(0)
        odds, offset, predicted = (
            part[rows].gather(1, at) for part in (carry.odds, carry.offset, carry.prediction)
        )
        own, peers = tables.weights[step], tables.peers[step]
        answers, beside = predicted[:, :, None].long(), predicted[:, None, :].long()
        same = (answers == beside) & (answers >= 0)  # (m, answer, peer)
        agreed = peers[..., 0] + peers[..., 1] * odds[:, None, :]
        differed = peers[..., 2] * odds[:, None, :] + peers[..., 3] * offset[:, None, :]
        # Exact in any order: all numbers are on a grid.
        totals = own[..., 0] + own[..., 1] * odds + own[..., 2] * offset
        totals = totals + torch.where(same, agreed, differed).sum(dim=2)
        if len(tables.pairs) > 1:
            added = tables.pairs[
                tables.pair_of[step].long(), answers.clamp_min(0), beside.clamp_min(0)
            ]
            added = added.where((answers >= 0) & (beside >= 0), 0.0)
            totals = totals + (peers[..., 4] * added).sum(dim=2)
        same = (same | torch.eye(totals.shape[1], dtype=bool)) & (context >= 0)[:, None, :]
        sums = torch.where(same, totals[:, None, :], 0.0).sum(dim=2)
        totals = (sums / same.sum(dim=2).clamp_min(1) * 4096).round() / 4096
        totals = totals.clamp(-8, 8).where(context >= 0, float("inf"))
        least, column = totals[:, 0], torch.zeros_like(step)
        for k in range(1, totals.shape[1]):  # argmin does not guarantee the first among equals
            better = totals[:, k] < least
            least, column = least.where(~better, totals[:, k]), column.where(~better, k)
        owner_class = predicted.gather(1, column[:, None])[:, 0].long()
        shift = tables.shifts[step, owner_class.clamp_min(0)].where(owner_class >= 0, 0.0)
        least = (least + shift).clamp(-8, 8)
        state = (tables.edges[step] <= least[:, None]).sum(dim=1)
        states = tables.onward.shape[1]
        stage = tables.onward.flatten()[step * states + state].long()
        return stage, context.gather(1, column[:, None])[:, 0]

    def going(self, carry: OracleCarry, rows: Tensor) -> tuple[int, int]:
        exits = self._exit_of[carry.stage[rows]]
        following = torch.where(exits != STOP, exits, len(self.tables.bounds)).amin()
        return int((exits != STOP).sum()), int(following)

    def answers(self, carry: OracleCarry) -> Tensor:
        rows = torch.arange(len(carry.owner), device=self._device)
        return carry.logits[carry.owner.clamp_min(0), rows]

    def collect(self, carry: OracleCarry) -> tuple[Tensor, ...]:
        return (
            self.answers(carry),
            carry.owner,
            carry.asked,
            carry.confidence,
            carry.prediction,
        )

    def regroup(self, carry: OracleCarry, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
        stopped = (carry.stage[rows] == STOP).to(torch.uint8)
        positions = stopped.argsort(stable=True)[:size]
        return positions, rows[positions]
