"""Counts: all that a fit needs to know of a trace, in tables that add up.

Counts of parts of a trace add up to the counts of the whole, so a fit can be computed in parts
and on several machines, updated with new rows, and weighted by age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.quantiser import Quantiser
    from ttamer.trace import Trace

__all__ = ["Counts", "Pair"]

CHUNK = 65_536
"""Rows at a time: what they need stays in the cache."""

Pair = tuple[int, int]
"""(source, target) node numbers; the start is -1."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Weighted counts of states, pairs and wrong answers; sums of confidence and cost."""

    rows: float
    """The weight of all rows."""
    pairs: Mapping[Pair, NDArray[np.float64]]
    """Shape (states of source, states of target) each; one row from the start."""
    wrong: tuple[NDArray[np.float64], ...]
    """Per node, shape (states,): the weight of wrong answers given in each state."""
    confidence: tuple[NDArray[np.float64], ...]
    """Per node, shape (states,): the sum of confidences in each state."""
    cost: NDArray[np.float64]
    """Shape (nodes,): the sum of costs."""

    @classmethod
    def of(cls, trace: Trace, quantiser: Quantiser, pairs: Sequence[Pair]) -> Counts:
        """Count a trace."""
        return cls.of_states(
            trace, quantiser.states(trace.confidence), quantiser.counts, pairs, trace.wrong()
        )

    @classmethod
    def of_states(
        cls,
        trace: Trace,
        states: NDArray[np.uint8],
        sizes: Sequence[int],
        pairs: Sequence[Pair],
        wrong: NDArray[np.bool_],
    ) -> Counts:
        """Count a trace whose states, of shape (T, n), and wrong answers are known."""
        rows, nodes = states.shape
        tables = {
            (u, v): np.zeros((1 if u < 0 else sizes[u]) * sizes[v], np.intp) for u, v in pairs
        }
        wrongs = [np.zeros(size) for size in sizes]
        sums = [np.zeros(size) for size in sizes]
        for at in range(0, rows, CHUNK):
            part = slice(at, at + CHUNK)
            narrow = [np.ascontiguousarray(states[part, v]) for v in range(nodes)]
            wide = [column.astype(np.intp) for column in narrow]
            for (source, target), table in tables.items():
                code = wide[target]
                if source >= 0:
                    pair = narrow[source].astype(np.uint16)
                    pair *= np.uint16(sizes[target])
                    pair += narrow[target]
                    code = pair.astype(np.intp)
                table += np.bincount(code, minlength=len(table))
            for v in range(nodes):
                wrongs[v] += np.bincount(wide[v], wrong[part, v], minlength=sizes[v])
                sums[v] += np.bincount(wide[v], trace.confidence[part, v], minlength=sizes[v])
        return cls(
            rows=float(rows),
            pairs={
                (u, v): table.reshape(-1, sizes[v]).astype(float)
                for (u, v), table in tables.items()
            },
            wrong=tuple(wrongs),
            confidence=tuple(sums),
            cost=rows * trace.cost if trace.cost.ndim == 1 else trace.cost.sum(axis=0),
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
