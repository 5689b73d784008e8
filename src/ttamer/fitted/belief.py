"""A belief: how wrong each available answer is, given everything seen so far.

After the nodes of a *step* have been asked (a set of nodes), each of their answers has a chance to
be wrong: a logistic regression on

- the node's own confidence, as the log-odds of being wrong that this confidence had on the rows
  fitted to (so no scale of confidence is assumed), and the class it predicts;
- for every other node of the step, whether it agrees, and how sure it is of that;
- signals known before anybody is asked (signals.py), with the class.

With rows enough there is also a term for each class the answer may be (belief_classes.py).

X, the least of these, is what the answer in hand loses; its owner is whose answer to return. Recall
is inside X. The least of several noisy estimates is too low, the more so the more there are; so
without terms for classes an answer given by several nodes is judged once, by the one of them that
errs least: the others carry a weight that lifts them out of reach wherever it agrees.

X is kept as log-odds, and all that goes into it are multiples of ``GRAIN`` of modest size: products
and sums of such numbers are exact in double precision, whatever their order. So a server in
Python, a batch in NumPy and a kernel on a GPU come to the same X, and decide alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief_classes import LEAST_ROWS, MOST_CLASSES, fit_by_class
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitted.signals import MOST_BINS, Signals, signal_names, signal_values
from ttamer.stats.isotonic import falling, rising
from ttamer.stats.logistic import fit_logistic, logit, sigmoid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = [
    "Belief",
    "Evidence",
    "Shrinkage",
    "Step",
    "believe",
    "context_of",
    "has_class_terms",
    "predictions_of",
]

Step = tuple[int, ...]
"""The nodes asked: on a line in the order of asking, else in increasing order."""

MOST_CONTEXT = 6
"""Of a longer step only the last so many nodes asked are looked at."""
ALL = slice(None)
BLOCK = 8192
"""Rows believed together: their numbers stay in the cache."""
BINS = 128
"""Confidences are told apart in at most so many bins."""
KNOTS = 10
"""The log-odds of being wrong bend at most so often over the ranks of confidence ..."""
STIFFNESS = 3.0
"""... and so much against bending, ..."""
CALM = 0.1
"""... and against leaving the node's own share of wrong answers, ..."""
POOLED_CALM = 1.0
"""... or, for exits of one network, what all exits together have at that confidence."""
CONTRARY = 6.0
"""Nats by which rows must be likelier if being wrong grew with confidence, to believe that."""
GRAIN = 2.0**-12
MOST_WEIGHT = 256.0
SURE = -64.0
"""The log-odds of an answer that is right by definition."""
LIFT = 128.0
"""The log-odds added to an answer that a better node gives too."""
CLASS_RIDGE = 2.0
FEW_ROWS = 2000
"""Up to so many rows, of exits of one network, ..."""
SHORT_MEMORY = 2
"""... only the last so many asked count."""
ROUNDS = 25


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
    signals: Signals | None = None
    """What is known before anybody is asked, where the trace had signals."""
    by_class: Mapping[tuple[Step, int], NDArray[np.float64]] = field(default_factory=dict)
    """What the class of an answer adds after a step, by its code; empty, or for all weights."""

    @property
    def knows_predictions(self) -> bool:
        """Whether it was fitted to rows with predictions."""
        return any(self.leans)

    @cached_property
    def _quantiser(self) -> Quantiser:
        return Quantiser(self.bounds)

    def evidence(
        self,
        confidence: NDArray[np.float64],
        said: NDArray[np.int32] | None,
        signals: NDArray[np.float64] | None = None,
    ) -> Evidence:
        """Return what the regressions see of rows, shape (T, n) each; -1 is no answer.

        Signals have shape (T, k), in the order of ``self.signals.names``.
        """
        bins = self._quantiser.states(confidence)
        odds = np.empty(confidence.shape, order="F")  # a node's numbers lie side by side
        lean = np.zeros(confidence.shape, order="F")
        for v, levels in enumerate(self.levels):
            np.take(levels, bins[:, v], out=odds[:, v])
        if said is not None and said.size:
            said = np.asfortranarray(said)
            for v, leans in enumerate(self.leans):
                known = max(leans, default=-1)
                table = np.zeros(max(known, int(said.max())) + 2)  # the last is for no answer
                for code, value in leans.items():
                    table[code] = value
                lean[:, v] = table[said[:, v]]
        if self.signals is not None and signals is not None:
            lean += self.signals.lean(signals)
        return Evidence(odds, lean, said)

    def least(self, seen: Evidence, step: Step) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return X, as log-odds, and whose answer it is, shape (T,) each, after a step."""
        rows = len(seen.odds)
        least, owner = np.empty(rows), np.empty(rows, np.intp)
        for start in range(0, rows, BLOCK):
            block = slice(start, start + BLOCK)
            best, best_owner = least[block], owner[block]
            best.fill(np.inf)
            best_owner.fill(-1)
            for answer in context_of(step):
                odds = self._odds(seen, step, answer, block)
                np.copyto(best_owner, answer, where=odds < best)  # of equals, the first asked
                np.minimum(best, odds, out=best)
        return least, owner

    def _odds(
        self, seen: Evidence, step: Step, answer: int, block: slice = ALL
    ) -> NDArray[np.float64]:
        """Return features times weights (features_of), node by node."""
        odds, lean, said = seen.odds[block], seen.lean[block], seen.said
        if self.sure_last and answer == len(self.bounds) - 1:
            return np.full(len(odds), SURE)
        one, own, own_lean, *rest = self.weights[step, answer].tolist()
        total = one + own * odds[:, answer]
        if own_lean:
            total += own_lean * lean[:, answer]
        if self.by_class and said is not None:
            terms = np.append(self.by_class[step, answer], 0.0)  # the last is for no such class
            own_said = said[block, answer]
            known = (own_said >= 0) & (own_said < len(terms) - 1)
            total += terms[np.where(known, own_said, -1)]
        others = [node for node in context_of(step) if node != answer]
        width = len(rest) // max(1, len(others))
        for place, other in enumerate(others):
            weights = rest[width * place : width * (place + 1)]
            if not any(weights):
                continue
            if said is None:
                total += weights[0] * odds[:, other]
                continue
            differ = weights[2] * odds[:, other]
            if weights[3]:
                differ += weights[3] * lean[:, other]
            same = said[block, other] == said[block, answer]
            total += np.where(same, weights[0] + weights[1] * odds[:, other], differ)
        return np.asarray(total)


def has_class_terms(trace: Trace) -> bool:
    """Whether a belief fitted to a trace has terms for classes: of separate models, with rows."""
    separate = not trace.spec.is_network and trace.spec.order != "skip"
    known = predictions_of(trace) is not None and len(trace.classes) <= MOST_CLASSES
    return separate and known and len(trace) >= LEAST_ROWS


def believe(
    trace: Trace,
    wrong: NDArray[np.bool_],
    steps: Sequence[Step],
    *,
    class_terms: bool | None = None,
) -> Belief:
    """Fit a belief to a trace; with terms for classes if it suits, or as said."""
    nodes = wrong.shape[1]
    sure_last = trace.spec.target == "last"
    said = predictions_of(trace)
    quantiser = Quantiser.fit(trace.confidence, states=BINS, method="quantile")
    bins = quantiser.states(trace.confidence)
    levels, leans = [], []
    network = trace.spec.is_network
    pooled = _pooled(trace.confidence, wrong, bins) if network else None
    for v in range(nodes):
        levels.append(_levels(bins[:, v], wrong[:, v], None if pooled is None else pooled[v]))
        own = levels[v][bins[:, v]]
        leans.append({} if said is None else _leans(said[:, v], own, wrong[:, v]))
    rough = Belief(quantiser.edges, tuple(levels), tuple(leans), {}, sure_last)
    names = signal_names(trace)
    values = signal_values(trace, names) if names else None
    if values is not None:
        before = rough.evidence(trace.confidence, said)
        signals = _signals(names, values, before.odds + before.lean, wrong)
        rough = dataclasses.replace(rough, signals=signals)
    seen = rough.evidence(trace.confidence, said, values)
    errors = wrong.mean(axis=0)
    weights, by_class = {}, {}
    shrinkage = Shrinkage.of(len(trace), network=network)
    if class_terms is None:
        class_terms = has_class_terms(trace)
    for step in steps:
        for answer in context_of(step):
            if sure_last and answer == nodes - 1:
                continue
            features = features_of(seen, step, answer)
            if said is not None and class_terms:
                found, terms = fit_by_class(
                    features,
                    said[:, answer],
                    wrong[:, answer],
                    classes=len(trace.classes),
                    ridge=shrinkage.ridge,
                    prior=_alone(features.shape[1]),
                )
                weights[step, answer] = _grained(np.clip(found, -LIFT, LIFT))
                by_class[step, answer] = _grained(np.clip(terms, -LIFT, LIFT))
                continue
            recent = context_of(step)[-shrinkage.memory :]
            if answer not in recent:
                weights[step, answer] = _never(features.shape[1])
                continue
            ranked = sorted(recent, key=errors.__getitem__)  # of equals, the first asked
            others = [node for node in context_of(step) if node != answer]
            better = [node in ranked[: ranked.index(answer)] for node in others]
            width = (features.shape[1] - 3) // max(1, len(others))
            kept = np.repeat([node in recent for node in others], width)
            features[:, 3:] *= kept
            weights[step, answer] = _weights(
                features,
                wrong[:, answer],
                np.flatnonzero(better) if said is not None else [],
                shrinkage,
            )
    return dataclasses.replace(rough, weights=weights, by_class=by_class)


def _signals(
    names: tuple[str, ...],
    values: NDArray[np.float64],
    odds: NDArray[np.float64],
    wrong: NDArray[np.bool_],
) -> Signals:
    """Fit what signals tell, one after the other: each what those before left untold."""
    quantiser = Quantiser.fit(values, states=MOST_BINS, method="quantile")
    bins = quantiser.states(values).astype(np.int32)
    nodes = wrong.shape[1]
    told, guess = odds.copy(), np.tile(logit(wrong.mean(axis=0)), (len(wrong), 1))
    leans, doubts = [], []
    for k, bounds in enumerate(quantiser.edges):
        own = bins[:, k]
        lean = np.zeros((len(bounds) + 1, nodes))
        for v in range(nodes):
            for code, value in _leans(own, told[:, v], wrong[:, v]).items():
                lean[code, v] = value
        doubt = np.zeros(len(bounds) + 1)
        every = np.repeat(own, nodes)
        for code, value in _leans(every, guess.ravel(), wrong.ravel()).items():
            doubt[code] = value
        told += lean[own]
        guess += doubt[own][:, np.newaxis]
        leans.append(lean)
        doubts.append(doubt)
    return Signals(names, quantiser.edges, tuple(leans), tuple(doubts))


@dataclass(frozen=True)
class Shrinkage:
    """How far weights are drawn towards what a node knows by itself: further with fewer rows."""

    ridge: float
    alone: float
    """Where better nodes contradict an answer: such rows are few."""
    memory: int
    """Of a step, so many of the last nodes asked have a weight."""

    @classmethod
    def of(cls, rows: int, *, network: bool) -> Shrinkage:
        """Return what suits so many rows. Exits of one network differ less, and are shrunk more."""
        more = 3.0 if network else 1.0
        memory = SHORT_MEMORY if network and rows <= FEW_ROWS else MOST_CONTEXT
        return cls(4.0 + more * 5000 / rows, 20.0 + more * 6000 / rows, memory)


def _never(width: int) -> NDArray[np.float64]:
    """Return the weights of an answer that is not to be had."""
    weights = np.zeros(width)
    weights[0] = LIFT
    return weights


def _alone(width: int) -> NDArray[np.float64]:
    """Return the weights of what a node knows by itself."""
    weights = np.zeros(width)
    weights[1:3] = 1.0
    return weights


def _weights(
    features: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    better: Iterable[int],
    shrinkage: Shrinkage,
) -> NDArray[np.float64]:
    """Return the weights of an answer; ``better`` are the other nodes that err less, by place.

    They are shrunk towards what the node knows by itself.
    """
    prior = _alone(features.shape[1])
    agree = [3 + 4 * place for place in better]
    ridge = shrinkage.alone if agree else shrinkage.ridge
    alone = ~features[:, agree].any(axis=1)
    found = prior
    if alone.any():
        found = fit_logistic(features[alone], wrong[alone], ridge=ridge, prior=prior)
    found = np.clip(found, -LIFT, LIFT)
    for place in agree:
        found[place : place + 2] = LIFT, 0.0
    return _grained(found)


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


def _pooled(
    confidence: NDArray[np.float64], wrong: NDArray[np.bool_], bins: NDArray[np.uint8]
) -> list[NDArray[np.float64]]:
    """Return, per node and bin, the log-odds that all nodes together have at its confidences."""
    every = confidence.reshape(-1, 1)
    own = Quantiser.fit(every, states=BINS, method="quantile").states(every)[:, 0]
    odds = _levels(own, wrong.ravel())[own].reshape(confidence.shape)
    return [
        np.bincount(bins[:, v], odds[:, v]) / np.bincount(bins[:, v]) for v in range(bins.shape[1])
    ]


def _levels(
    bins: NDArray[np.uint8], wrong: NDArray[np.bool_], pooled: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the log-odds of being wrong in each bin of confidence, never rising.

    They are shrunk towards the node's own share of wrong answers, or towards ``pooled``. Where the
    rows leave no doubt that a node is surer when it is wrong, they never fall: what it calls
    confidence is the opposite.

    They are piecewise linear in the log-odds of the rank, by penalised logistic regression: steps
    would lose the order of confidences within them.
    """
    rows = np.bincount(bins).astype(np.float64)
    bad = np.bincount(bins, wrong).astype(np.float64)
    rank = (np.cumsum(rows) - rows / 2) / rows.sum()
    place = np.log(rank) - np.log1p(-rank)
    knots = np.linspace(place[0], place[-1], min(KNOTS, len(place)))
    tents = np.stack([np.interp(place, knots, tent) for tent in np.eye(len(knots))], axis=1)
    bends = np.diff(np.eye(len(knots)), 2, axis=0)
    calm = CALM if pooled is None else POOLED_CALM
    penalty = STIFFNESS * bends.T @ bends + calm * np.eye(len(knots))
    share = logit((bad.sum() + 0.5) / (rows.sum() + 1)) if pooled is None else pooled
    height = np.zeros(len(knots))
    for _ in range(ROUNDS):
        chance = sigmoid(share + tents @ height)
        slope = tents.T @ (rows * chance - bad) + penalty @ height
        bend = (tents * (rows * chance * (1 - chance))[:, np.newaxis]).T @ tents + penalty
        height -= _modest(np.linalg.solve(bend, slope))
    free = share + tents @ height
    one_way = falling(free, rows)
    if pooled is None:
        other_way = rising(free, rows)
        if _surprise(one_way, rows, bad) - _surprise(other_way, rows, bad) > CONTRARY:
            one_way = other_way
    most = float(logit(np.array(1.0)))
    return _grained(np.clip(one_way, -most, most))


def _surprise(
    odds: NDArray[np.float64], rows: NDArray[np.float64], bad: NDArray[np.float64]
) -> float:
    """Return minus the log-likelihood of so many wrong ones of the rows in each bin."""
    return float(rows @ np.logaddexp(0, odds) - bad @ odds)


def _leans(
    codes: NDArray[np.int32], odds: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> dict[int, float]:
    """Return what each predicted class adds to the log-odds that confidence gives."""
    count = np.bincount(codes + 1)  # the first is no answer
    lean = np.zeros(len(count))
    for _ in range(ROUNDS):
        chance = sigmoid(odds + lean[codes + 1])
        slope = np.bincount(codes + 1, chance - wrong) + CLASS_RIDGE * lean
        bend = np.bincount(codes + 1, chance * (1 - chance)) + CLASS_RIDGE
        lean -= _modest(slope / bend)
    lean = _grained(lean)
    return {int(code): float(lean[code + 1]) for code in np.flatnonzero(count[1:])}


def _modest(step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a step of Newton's, cut so that it cannot run away."""
    return np.clip(step, -2.0, 2.0)


def _grained(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to multiples of the grain."""
    return np.asarray(np.rint(values / GRAIN) * GRAIN)
