"""Which rows of a trace a person labels first, and how many more labels are worth it.

Where all nodes return the same answer, every policy has the same loss: the label of such a row
says nothing about which node to ask. So most labels go to rows on which nodes differ, and one in
:data:`AGREED_EVERY` to rows on which all agree, to estimate how often they are all wrong. Within
both groups the order is random, so that the labelled rows of a group represent it.

The trace for a fit holds both groups in the shares that they have among all rows: rows on which
nodes agree are added without a label of their own, wrong as often as the labelled ones are. They
make a fit right about how often nodes agree; a certificate needs rows that are labelled one by
one in random order (``uniform``).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["LabelEstimate", "LabelPlan"]

AGREED_EVERY = 5
"""One label in this many is of a row on which all nodes agree."""
Z = 1.96
"""The standard errors of a 95% interval."""
MIN_LABELS = 10
"""The labels of rows that differ below which nothing is estimated."""


@dataclass(frozen=True)
class LabelEstimate:
    """What the labels so far say, and how many more are worth it."""

    labels: int
    half_width: float | None
    """Half of the 95% interval for the difference in error between the best node and the node whose
    difference is known least; ``None`` for too few labels."""
    more: int | None
    """How many more labels bring it down to the width wanted."""

    def __str__(self) -> str:
        count = f"{self.labels} label{'' if self.labels == 1 else 's'}"
        if self.half_width is None or self.more is None:
            return f"{count}: too few for an estimate"
        known = f"{count}: differences in error are known to {self.half_width:.1%}"
        if self.more <= 0:
            return f"{known}; more labels change little"
        return f"{known}; {self.more} more are worth it"


@dataclass(frozen=True)
class LabelPlan:
    """The order in which the rows of a trace are labelled.

    >>> from ttamer.trace import CascadeSpec, Trace
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> answers = [["a", "a"], ["a", "b"], ["c", "c"], ["b", "c"]]
    >>> trace = Trace.from_arrays(spec, [[0.5, 0.6]] * 4, prediction=answers)
    >>> sorted(next(LabelPlan(trace).rows([row])) for row in (1, 3))
    [1, 3]

    Args:
        trace: The rows, with predictions.
        within: Half of the width wanted of the interval for a difference in error.
        uniform: Whether all rows are equally likely to come next, as a certificate needs.
        seed: Of the order.

    Raises:
        TraceError: If the trace has no predictions.
    """

    trace: Trace
    within: float = 0.02
    uniform: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trace.prediction is None:
            raise TraceError("the trace has no predictions, so that no rows can be chosen")
        if not 0 < self.within < 1:
            raise ArgumentError(f"within is {self.within!r}; it must be between 0 and 1")

    @cached_property
    def agreed(self) -> NDArray[np.bool_]:
        """Shape (T,): whether all nodes return the same answer."""
        found = self.trace.prediction
        assert found is not None  # noqa: S101 - checked above
        return np.asarray((found == found[:, :1]).all(axis=1) & (found[:, 0] >= 0))

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.random.default_rng(self.seed).permutation(len(self.trace))

    def rows(self, done: Sequence[int]) -> Iterator[int]:
        """Yield the rows that are not done, in the order in which they are labelled.

        Args:
            done: The rows that have a label, or were skipped.

        Returns:
            The other rows.
        """
        skip, agreed = set(done), self.agreed
        left = [row for row in self._order.tolist() if row not in skip]
        if self.uniform:
            yield from left
            return
        same = iter([row for row in left if agreed[row]])
        other = iter([row for row in left if not agreed[row]])
        asked, of_same = len(skip), sum(bool(agreed[row]) for row in skip)
        while True:
            is_due = of_same * AGREED_EVERY < asked + 1 - (AGREED_EVERY - 1)
            row = next(same if is_due else other, None)
            if row is None:
                row = next(other if is_due else same, None)
            if row is None:
                return
            asked, of_same = asked + 1, of_same + bool(agreed[row])
            yield row

    def estimate(self, right: Mapping[int, Sequence[bool]]) -> LabelEstimate:
        """Return how well labels determine the differences in error between nodes.

        Args:
            right: By row, whether each node's answer is right.

        Returns:
            The width of the interval, and how many more labels are worth it.
        """
        rows = [row for row in right if not self.agreed[row]]
        if len(rows) < MIN_LABELS or len(self.trace.names) < 2:
            return LabelEstimate(len(right), None, None)
        wrong = ~np.array([right[row] for row in rows], bool)
        best = int(wrong.mean(axis=0).argmin())
        # Nodes that agree differ in nothing: the variance is that of the rows on which they differ.
        spread = (wrong.astype(float) - wrong[:, [best]]).var(axis=0, ddof=1).max()
        total = int((~self.agreed).sum())
        share = total / len(self.trace)
        left = max(0.0, 1 - len(rows) / total)
        half = Z * share * math.sqrt(spread / len(rows) * left)
        unlimited = spread * (Z * share / self.within) ** 2
        wanted = unlimited / (1 + unlimited / total)  # rows are labelled once each
        more = max(0, math.ceil(wanted) - len(rows))
        each = share if self.uniform else 1 - 1 / AGREED_EVERY
        return LabelEstimate(len(right), half, math.ceil(more / each))

    def labelled(self, right: Mapping[int, Sequence[bool]]) -> Trace:
        """Return the trace that a fit takes, with what is right by the labels.

        Args:
            right: By row, whether each node's answer is right.

        Returns:
            The labelled rows, and without ``uniform`` further rows on which all nodes agree, so
            that both kinds have their shares; ``notes`` has the counts.

        Raises:
            TraceError: If there are no labels.
        """
        if not right:
            raise TraceError("no row is labelled; label some first")
        rows = sorted(right)
        correct = [list(right[row]) for row in rows]
        note = f"{counted(len(rows), 'row')} labelled by a person, in random order"
        if not self.uniform:
            added, wrong = self._agreed_rows(right)
            rows += added
            correct += [[not each] * len(self.trace.names) for each in wrong]
            note = (
                f"{counted(len(right), 'row')} labelled by a person, most where nodes differ; "
                f"{counted(len(added), 'row')} on which all nodes agree added without a label, so "
                "do not certify on this trace: label with --uniform for that"
            )
        taken = self.trace.take(np.array(rows))
        spec = dataclasses.replace(self.trace.spec, target="label")
        return dataclasses.replace(
            taken, spec=spec, correct=np.array(correct, bool), label=None,
            notes=(*taken.notes, note),
        )  # fmt: skip

    def _agreed_rows(self, right: Mapping[int, Sequence[bool]]) -> tuple[list[int], list[bool]]:
        """Return rows on which all nodes agree to add, and whether each counts as wrong."""
        agreed = self.agreed
        have = [row for row in right if agreed[row]]
        differ = int((~agreed).sum())
        same = len(agreed) - differ
        wanted = round((len(right) - len(have)) * same / differ) if differ else 0
        free = [row for row in self._order.tolist() if agreed[row] and row not in right]
        added = free[: max(0, wanted - len(have))]
        share = (sum(not right[row][0] for row in have) + 0.5) / (len(have) + 1)
        confidence = self.trace.confidence
        ranks = confidence.argsort(axis=0).argsort(axis=0).mean(axis=1) / max(1, len(agreed) - 1)
        drawn = np.random.default_rng(self.seed).random(len(added))
        wrong = drawn < np.minimum(1.0, 2 * share * (1 - ranks[added]))
        return added, wrong.tolist()
