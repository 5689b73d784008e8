"""A belief: how wrong each available answer is, given everything seen so far.

After the nodes of a *step* have been asked (a set of nodes), each of their answers has a chance to
be wrong: a logistic regression on

- the node's own confidence, as the log-odds of being wrong that this confidence had on the rows
  fitted to (so no scale of confidence is assumed), and the class it predicts;
- for every other node of the step, whether it agrees, and how sure it is of that.

X, the least of these, is what the answer in hand loses; its owner is whose answer to return. Recall
is inside X.

X is kept as log-odds, and all that goes into it are multiples of ``GRAIN`` of modest size: products
and sums of such numbers are exact in double precision, whatever their order. So a server in
Python, a batch in NumPy and a kernel on a GPU come to the same X, and decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.isotonic import falling
from ttamer.logistic import fit_logistic, logit
from ttamer.quantiser import Quantiser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace import Trace

__all__ = ["Belief", "Evidence", "Step", "believe", "context_of", "predictions_of"]

Step = tuple[int, ...]
"""The nodes asked: on a line in the order of asking, else in increasing order."""

MOST_CONTEXT = 6
"""Of a longer step only the last so many nodes asked are looked at."""
LEVELS = 32
BINS = 128
"""Confidences are told apart in at most so many bins."""
GRAIN = 2.0**-12
MOST_WEIGHT = 256.0
SURE = -64.0
"""The log-odds of an answer that is right by definition."""
SHRINKAGE = 4.0
CLASS_SHRINKAGE = 20.0
RIDGE = 2.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the regressions see of T rows, shape (T, n) each."""

    odds: NDArray[np.float64]
    """The log-odds that each node is wrong, by its confidence alone."""
    lean: NDArray[np.float64]
    """How much the class it predicts adds to that; 0 where nothing is known."""
    said: NDArray[np.int32] | None
    """What it predicts."""


@dataclass(frozen=True, eq=False)
class Belief:
    """Fitted regressions, one for each step and answer."""

    bounds: tuple[NDArray[np.float64], ...]
    """Per node, increasing confidences that part it into bins: a bin holds what reaches its lower
    bound; what is no number is in the first ..."""
    levels: tuple[NDArray[np.float64], ...]
    """... and the log-odds of being wrong in each, one more than bounds."""
    leans: tuple[Mapping[int, float], ...]
    """Per node, what each predicted class adds."""
    weights: Mapping[tuple[Step, int], NDArray[np.float64]]
    sure_last: bool
    """Whether the last node is right by definition."""

    @property
    def knows_predictions(self) -> bool:
        """Whether it was fitted to rows with predictions."""
        return any(self.leans)

    def evidence(self, confidence: NDArray[np.float64], said: NDArray[np.int32] | None) -> Evidence:
        """Return what the regressions see of rows, shape (T, n) each; -1 is no answer."""
        columns = []
        for v, bounds in enumerate(self.bounds):
            level = np.searchsorted(bounds, confidence[:, v], side="right")
            level[np.isnan(confidence[:, v])] = 0
            columns.append(self.levels[v][level])
        odds = np.stack(columns, axis=1)
        lean = np.zeros(odds.shape)
        if said is not None and said.size:
            for v, leans in enumerate(self.leans):
                known = max(leans, default=-1)
                table = np.zeros(max(known, int(said.max())) + 2)  # the last is for no answer
                for code, value in leans.items():
                    table[code] = value
                lean[:, v] = table[said[:, v]]
        return Evidence(odds, lean, said)

    def least(self, seen: Evidence, step: Step) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return X, as log-odds, and whose answer it is, shape (T,) each, after a step."""
        context = context_of(step)
        odds = np.stack([self._odds(seen, step, answer) for answer in context], axis=1)
        best = odds.argmin(axis=1)  # of equals, the first asked
        return odds[np.arange(len(best)), best], np.array(context)[best]

    def _odds(self, seen: Evidence, step: Step, answer: int) -> NDArray[np.float64]:
        if self.sure_last and answer == len(self.bounds) - 1:
            return np.full(len(seen.odds), SURE)
        return features_of(seen, step, answer) @ self.weights[step, answer]


def believe(
    trace: Trace,
    wrong: NDArray[np.bool_],
    steps: Sequence[Step],
    *,
    like: Belief | None = None,
) -> Belief:
    """Fit a belief to a trace; ``like`` is one to start the regressions from."""
    nodes = wrong.shape[1]
    sure_last = trace.spec.target == "last"
    quantiser = Quantiser.fit(trace.confidence, states=LEVELS, method="quantile")
    states = quantiser.states(trace.confidence)
    fine = Quantiser.fit(trace.confidence, states=BINS, method="quantile")
    bins = fine.states(trace.confidence)
    levels, leans = [], []
    for v in range(nodes):
        size = quantiser.counts[v]
        weight = np.bincount(states[:, v], minlength=size).astype(np.float64)
        share = wrong[:, v].mean()
        raw = np.bincount(states[:, v], wrong[:, v], minlength=size) + SHRINKAGE * share
        knots = _means(trace.confidence[:, v], states[:, v], size)
        odds = logit(falling(raw / (weight + SHRINKAGE), weight + SHRINKAGE))
        places = _means(trace.confidence[:, v], bins[:, v], fine.counts[v])
        levels.append(_grained(np.interp(places, knots, odds)))
        leans.append(_leans(trace, wrong, v))
    rough = Belief(fine.edges, tuple(levels), tuple(leans), {}, sure_last)
    seen = rough.evidence(trace.confidence, predictions_of(trace))
    weights = {}
    for step in steps:
        for answer in context_of(step):
            if sure_last and answer == nodes - 1:
                continue
            key = (step, answer)
            start = None if like is None else like.weights[key]
            features = features_of(seen, step, answer)
            found = fit_logistic(features, wrong[:, answer], ridge=RIDGE, start=start)
            weights[key] = _grained(np.clip(found, -MOST_WEIGHT, MOST_WEIGHT))
    return Belief(rough.bounds, rough.levels, rough.leans, weights, sure_last)


def context_of(step: Step) -> Step:
    """Return the nodes of a step that are looked at."""
    return step[-MOST_CONTEXT:]


def features_of(seen: Evidence, step: Step, answer: int) -> NDArray[np.float64]:
    """Return the features of one answer, shape (T, d); the first is 1."""
    odds, lean, said = seen.odds, seen.lean, seen.said
    columns = [np.ones(len(odds)), odds[:, answer], lean[:, answer]]
    for other in context_of(step):
        if other == answer:
            continue
        if said is None:
            columns.append(odds[:, other])
            continue
        same = (said[:, other] == said[:, answer]).astype(float)
        own = odds[:, other]
        columns += [same, same * own, (1 - same) * own, (1 - same) * lean[:, other]]
    return np.stack(columns, axis=1)


def predictions_of(trace: Trace) -> NDArray[np.int32] | None:
    """Return what was predicted, or None where nobody ever predicted anything."""
    said = trace.prediction
    return None if said is None or said.max(initial=-1) < 0 else said


def _leans(trace: Trace, wrong: NDArray[np.bool_], node: int) -> dict[int, float]:
    said = predictions_of(trace)
    if said is None:
        return {}
    codes = said[:, node]
    known = codes >= 0
    count = np.bincount(codes[known], minlength=len(trace.classes))
    bad = np.bincount(codes[known], wrong[known, node], minlength=len(trace.classes))
    share = float(np.clip(wrong[:, node].mean(), 1e-6, 1 - 1e-6))
    shrunk = (bad + CLASS_SHRINKAGE * share) / (count + CLASS_SHRINKAGE)
    lean = _grained(logit(shrunk) - logit(np.array(share)))
    return {int(code): float(lean[code]) for code in np.flatnonzero(count)}


def _means(
    values: NDArray[np.float64], groups: NDArray[np.uint8], count: int
) -> NDArray[np.float64]:
    """Return the mean of the values in each group, none of them empty."""
    scale = float(np.abs(values).max()) or 1.0  # sums must not overflow
    sums = np.bincount(groups, values / scale, minlength=count)
    return np.asarray(sums / np.bincount(groups, minlength=count) * scale)


def _grained(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to multiples of the grain."""
    return np.asarray(np.rint(values / GRAIN) * GRAIN)
