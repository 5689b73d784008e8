"""Counts: all that a fit needs to know of a trace, in tables that add up.

Counts of parts of a trace add up to the counts of the whole, so a fit can be computed in parts
and on several machines, updated with new rows, and weighted by age.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.quantiser import Quantiser
    from ttamer.trace.trace import Losses, Trace

__all__ = ["Counts", "Pair"]

CHUNK = 65_536
"""Rows at a time: what they need stays in the cache."""
ROWS_FOR_A_THREAD = 500_000

Pair = tuple[int, int]
"""(source, target) node numbers; the start is -1."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Weighted counts of states, pairs and wrong answers; sums of confidence, loss and cost."""

    rows: float
    """The weight of all rows."""
    pairs: Mapping[Pair, NDArray[np.float64]]
    """Shape (states of source, states of target) each; one row from the start."""
    wrong: tuple[NDArray[np.float64], ...]
    """Per node, shape (states,): the weight of wrong answers given in each state, or the sum of
    their losses."""
    confidence: tuple[NDArray[np.float64], ...]
    """Per node, shape (states,): the sum of confidences in each state."""
    cost: NDArray[np.float64]
    """Shape (nodes,): the sum of costs."""
    largest_loss: float | None = None
    """The largest loss there can be, or that the rows have; ``None`` for right and wrong."""

    @property
    def loss_unit(self) -> float:
        """The unit of loss of a fit: 1 where answers are right or wrong."""
        return 1.0 if self.largest_loss is None else self.largest_loss

    @classmethod
    def of(cls, trace: Trace, quantiser: Quantiser, pairs: Sequence[Pair]) -> Counts:
        """Count a trace, on as many threads as there are cores where it is long."""
        wrong = trace.losses()
        parts = min(os.cpu_count() or 1, len(trace) // ROWS_FOR_A_THREAD) or 1
        cuts = np.linspace(0, len(trace), parts + 1).astype(int).tolist()

        def count(ends: tuple[int, int]) -> Counts:
            return cls._of_rows(trace, wrong, quantiser, pairs, *ends)

        if parts == 1:
            return count((0, len(trace)))
        with ThreadPoolExecutor(parts) as threads:
            first, *others = threads.map(count, pairwise(cuts))
        return sum(others, first)

    @classmethod
    def _of_rows(
        cls,
        trace: Trace,
        wrong: Losses,
        quantiser: Quantiser,
        pairs: Sequence[Pair],
        start: int,
        stop: int,
    ) -> Counts:
        """Count a stretch of rows, a piece at a time that stays in the cache."""
        sizes, nodes = quantiser.counts, len(quantiser.counts)
        # Whether the target was wrong is a last bit of the code of a pair of states.
        tables = {
            (u, v): np.zeros((1 if u < 0 else sizes[u]) * sizes[v] * 2, np.intp) for u, v in pairs
        }
        sums, lost = ([np.zeros(size) for size in sizes] for _ in range(2))
        graded = wrong.dtype != np.bool_
        for at in range(start, stop, CHUNK):
            part = slice(at, min(at + CHUNK, stop))
            confidence = trace.confidence[part]
            states = quantiser.states(confidence)
            ends = [states[:, v].astype(np.uint32) for v in range(nodes)]
            bad = np.ascontiguousarray(wrong[part].T)
            flags = np.zeros(bad.shape, np.uint8) if graded else bad.view(np.uint8)
            for (source, target), table in tables.items():
                code = ends[target] if source < 0 else ends[source] * np.uint32(sizes[target])
                code = (code + ends[target] if source >= 0 else code) * np.uint32(2)
                code += flags[target]
                table += np.bincount(code.astype(np.intp), minlength=len(table))
            for v in range(nodes):
                own = ends[v].astype(np.intp)
                sums[v] += np.bincount(own, confidence[:, v], minlength=sizes[v])
                if graded:
                    lost[v] += np.bincount(own, bad[v], minlength=sizes[v])
        split = {
            (u, v): table.reshape(-1, sizes[v], 2).astype(float) for (u, v), table in tables.items()
        }
        entering = {v: pair for pair in pairs for v in pair[1:]}
        rows = stop - start
        return cls(
            rows=float(rows),
            pairs={pair: table.sum(axis=2) for pair, table in split.items()},
            wrong=tuple(lost)
            if graded
            else tuple(split[entering[v]][:, :, 1].sum(axis=0) for v in range(nodes)),
            confidence=tuple(sums),
            cost=rows * trace.cost if trace.cost.ndim == 1 else trace.cost[start:stop].sum(axis=0),
            largest_loss=trace.loss_scale if graded else None,
        )

    def __add__(self, other: Counts) -> Counts:
        if self.pairs.keys() != other.pairs.keys() or any(
            table.shape != other.pairs[pair].shape for pair, table in self.pairs.items()
        ):
            raise ArgumentError(
                "counts add up only over the same nodes, pairs and states: count both with the "
                "same quantiser"
            )
        return Counts(
            rows=self.rows + other.rows,
            pairs={pair: table + other.pairs[pair] for pair, table in self.pairs.items()},
            wrong=tuple(map(np.add, self.wrong, other.wrong)),
            confidence=tuple(map(np.add, self.confidence, other.confidence)),
            cost=self.cost + other.cost,
            largest_loss=None
            if self.largest_loss is None or other.largest_loss is None
            else max(self.largest_loss, other.largest_loss),
        )

    def scaled(self, weight: float) -> Counts:
        """Return the counts with every row weighing ``weight`` times as much, as age makes it."""
        if not 0 <= weight < np.inf:
            raise ArgumentError(f"a weight must be finite and not negative, not {weight!r}")
        return Counts(
            rows=weight * self.rows,
            pairs={pair: weight * table for pair, table in self.pairs.items()},
            wrong=tuple(weight * table for table in self.wrong),
            confidence=tuple(weight * table for table in self.confidence),
            cost=weight * self.cost,
            largest_loss=self.largest_loss,
        )

    def seen(self, node: int) -> NDArray[np.float64]:
        """Return the weight of each state of a node."""
        into = next(table for (_, target), table in self.pairs.items() if target == node)
        return np.asarray(into.sum(axis=0))

    def transition(self, pair: Pair, *, smoothing: float) -> NDArray[np.float64]:
        """Return the rows of a pair: counts, plus ``smoothing`` rows of the target's own law.

        A source state that was never seen gets the target's law: what is known without it.
        """
        table = self.pairs[pair]
        law = table.sum(axis=0)
        law = law / law.sum()
        filled = table + smoothing * law
        weight = filled.sum(axis=1, keepdims=True)
        rows = np.where(weight > 0, filled / np.where(weight > 0, weight, 1.0), law)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))
