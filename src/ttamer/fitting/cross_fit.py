"""Cross-fitting: what beliefs are on rows that their regressions were not fitted to.

The rows are cut into parts. X of a row is estimated by regressions fitted to the other parts. To
estimate what a search among policies does on new rows, a part is left out of both the search and
the beliefs it compares policies by: X of a row searched is then estimated by regressions fitted to
neither its own part nor the one left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer.fitted.belief import signal_values
from ttamer.fitting.regressions import fit_belief, has_class_terms, predictions_of
from ttamer.solvers.blas import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Step
    from ttamer.trace.trace import Trace

__all__ = ["FOLDS", "ROUTER", "CrossFit", "Estimates", "LeftOut"]

FOLDS = 3
"""How many parts of the rows are held out in turn."""
ROUTER: Step = ()
"""The step before any node is asked, where signals are known."""


class Estimates(NamedTuple):
    """X of some rows after each step."""

    least: NDArray[np.float64]
    """Shape (rows, steps): X, in log-odds."""
    owner: NDArray[np.intp]
    """Shape (rows, steps): the node whose answer X is of."""
    state: NDArray[np.float64]
    """Shape (rows, steps): what is cut into states, X and what signals and classes add to it."""

    @classmethod
    def empty(cls, rows: int, steps: int) -> Estimates:
        """Return estimates to be filled in."""
        shape = (rows, steps)
        return cls(np.empty(shape), np.empty(shape, np.intp), np.empty(shape))

    def at(self, rows: NDArray[np.intp]) -> Estimates:
        """Return the estimates of some of the rows."""
        return Estimates(self.least[rows], self.owner[rows], self.state[rows])


class LeftOut(NamedTuple):
    """A part of the rows, the other rows, and X of the others without that part."""

    part: NDArray[np.intp]
    rest: NDArray[np.intp]
    estimates: Estimates


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Regressions fitted to some rows of a trace and applied to others."""

    trace: Trace
    steps: Sequence[Step]
    seed: int
    signals: tuple[str, ...] = ()
    scored_once: bool = False
    extras: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    weigh_signals: bool = True

    @property
    def parts(self) -> list[NDArray[np.intp]]:
        """The rows of each part."""
        rows = np.random.default_rng([self.seed, 2]).permutation(len(self.trace))
        return np.array_split(rows, FOLDS)

    def estimates(self, say: Callable[[str], object] = str) -> Estimates:
        """Return X of every row by regressions that were not fitted to it."""
        found = Estimates.empty(len(self.trace), len(self.steps))
        for part in self.parts:
            say(f"fitting beliefs after {len(self.steps)} steps")
            for every, own in zip(found, self._on(self._without(part), part), strict=True):
                every[part] = own
        return found

    def left_out(self) -> Iterator[LeftOut]:
        """Leave out each part in turn."""
        parts = self.parts
        without: dict[tuple[int, int], Estimates] = {}  # X of one part, without another
        for one, two in combinations(range(len(parts)), 2):
            belief = self._without(np.concatenate([parts[one], parts[two]]))
            without[one, two] = self._on(belief, parts[one])
            without[two, one] = self._on(belief, parts[two])
        for k, part in enumerate(parts):
            others = [other for other in range(len(parts)) if other != k]
            each = zip(*(without[other, k] for other in others), strict=True)
            rest = np.concatenate([parts[other] for other in others])
            yield LeftOut(part, rest, Estimates(*map(np.concatenate, each)))

    def _without(self, part: NDArray[np.intp]) -> Belief:
        """Fit a belief to the rows outside a part, with the terms of a fit to all rows."""
        rest = np.setdiff1d(np.arange(len(self.trace)), part)
        wrong = self.trace.loss_shares()
        with one_thread():
            return fit_belief(
                self.trace.take(rest), wrong[rest], self.steps,
                class_terms=has_class_terms(self.trace), signals=self.signals, extras=self.extras,
                scored_once=self.scored_once, weigh_signals=self.weigh_signals,
                part_of=len(self.trace),
            )  # fmt: skip

    def _on(self, belief: Belief, part: NDArray[np.intp]) -> Estimates:
        """Return X of a part of the rows by a belief."""
        # Of few predictions, all may be outside the rows that the belief was fitted to.
        predictions = predictions_of(self.trace) if belief.has_predictions else None
        known = signal_values(self.trace.take(part), self.signals) if self.signals else None
        seen = belief.evidence(
            self.trace.confidence[part],
            None if predictions is None else predictions[part],
            known,
            {name: self.trace.extras[name][part] for name in belief.columns},
        )
        found = Estimates.empty(len(part), len(self.steps))
        for k, step in enumerate(self.steps):
            if step != ROUTER:
                found.least[:, k], found.owner[:, k] = belief.least(seen, step)
                found.state[:, k] = belief.state(seen, step, found.least[:, k], found.owner[:, k])
            elif belief.signals is not None and known is not None:
                found.least[:, k], found.owner[:, k] = 0.0, 0  # it has no answer
                found.state[:, k] = belief.signals.router_logit(known)
        return found
