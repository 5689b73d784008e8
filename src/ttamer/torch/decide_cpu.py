"""Decisions on the CPU, with NumPy: for a few rows it is faster than PyTorch's operations.

:class:`CpuDecider` decides as :class:`ttamer.torch.decide.Decider` does, on the same tables and
in the same memory, and reads only the rows that are due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer.torch.decide import NO_ANSWER, STOP, Carry, Decider, confidence_of, scores_of
from ttamer.torch.tables import BeliefTables, Tables

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CpuDecider(Decider):
    """Decides by the same tables, on the CPU."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        super().__init__(tables, device)
        self._places = np.array([*tables.exit_of, STOP])  # the last entry: stopped
        self._arrays: dict[str, NDArray[Any]] = {
            name: part.numpy() for name, part in vars(self.tables).items() if hasattr(part, "numpy")
        }

    def observe(
        self,
        carry: Carry,
        exit_: int,
        rows: Tensor,
        logits: Tensor,
        *,
        awaited: bool = True,  # noqa: ARG002 - nothing is waited for on a CPU
        first: bool = False,  # noqa: ARG002 - a batch starts with new memory
    ) -> None:
        """Record the logits of one exit for some rows, and update the rows that were due."""
        carry.logits[exit_].index_copy_(0, rows, logits.to(carry.logits.dtype))
        reads = isinstance(self.tables, BeliefTables) and self.tables.reads_columns
        found = (scores_of if reads else confidence_of)(logits)
        confidence, prediction, *columns = (part.numpy() for part in found)
        places, owners, row = carry.place.numpy(), carry.owner.numpy(), rows.numpy()
        due = self._places[places[row]] == exit_
        if not due.all():
            row, confidence, prediction = row[due], confidence[due], prediction[due]
            columns = [values[due] for values in columns]
        carry.confidence.numpy()[row, exit_] = confidence
        carry.prediction.numpy()[row, exit_] = prediction
        carry.asked.numpy()[row] |= np.int64(1) << np.int64(exit_)
        tables = self._arrays
        bins = np.searchsorted(tables["bounds"][exit_], confidence.astype(np.float64), "right")
        bins[np.isnan(confidence)] = 0
        if isinstance(self.tables, BeliefTables):
            odds = tables["levels"][exit_, bins]
            for k, values in enumerate(columns):
                at = np.searchsorted(tables["term_bounds"][exit_, k], values.astype(float), "right")
                at[np.isnan(confidence)] = -1
                odds += tables["terms"][exit_, k, at]
            owners[row], places[row] = self._belief(carry, exit_, row, odds, prediction)
            return
        own, best = tables["own"][exit_, bins], carry.best.numpy()
        before = best[row]
        owners[row] = np.where(own < before, exit_, owners[row])
        best[row] = before = np.minimum(own, before)
        places[row] = tables["onward"][exit_, bins, before]

    def _belief(
        self,
        carry: Carry,
        exit_: int,
        row: NDArray[np.int64],
        own_odds: NDArray[np.float64],
        prediction: NDArray[np.int32],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the owner and the next place of rows, by the belief at each row's step."""
        tables = self._arrays
        every_odds, every_lean = carry.odds.numpy(), carry.lean.numpy()
        every_odds[row, exit_] = own_odds
        lean = tables["leans"][exit_, prediction]  # of no answer the last, which is not used
        every_lean[row, exit_] = np.where(prediction == NO_ANSWER, 0.0, lean)
        step = carry.place.numpy()[row]
        context = tables["context"][step]
        line = row[:, np.newaxis]
        odds, lean = every_odds[line, context], every_lean[line, context]
        predicted = carry.prediction.numpy()[line, context]
        own, others = tables["own"][step], tables["others"][step]
        # Exact in any order: see ttamer.fitted.belief.
        totals = own[:, :, 0] + own[:, :, 1] * odds + own[:, :, 2] * lean
        if context.shape[1] > 1:
            odds, lean = odds[:, np.newaxis], lean[:, np.newaxis]
            agreed = others[..., 0] + others[..., 1] * odds
            differed = others[..., 2] * odds + others[..., 3] * lean
            same = predicted[:, :, np.newaxis] == predicted[:, np.newaxis]
            totals += np.where(same, agreed, differed).sum(axis=2)
        best = totals.argmin(axis=1)  # among equals the first
        every = np.arange(len(row))
        answer = predicted[every, best]
        shift = np.where(answer == NO_ANSWER, 0.0, tables["shifts"][step, answer])
        state = (tables["edges"][step] <= (totals[every, best] + shift)[:, np.newaxis]).sum(axis=1)
        return context[every, best], tables["onward"][step, state]

    def going(self, carry: Carry, rows: Tensor) -> tuple[int, int]:
        """Return how many rows continue, and the exit some ask next."""
        where = self._places[carry.place.numpy()[rows.numpy()]]
        left = where[where != STOP]
        return len(left), int(left.min(initial=self.tables.exits))
