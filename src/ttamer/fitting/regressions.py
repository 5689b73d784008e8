"""Fitting a belief: one logistic regression for each step and answer.

The model is described in :mod:`ttamer.fitted.belief`. Weights are shrunk towards those of a node by
itself, the more the fewer rows there are.

Where answers have losses, the outcome is the loss as a share of the largest one, from 0 to 1:
logistic regression then estimates the expected share (Papke and Wooldridge, 1996). Such shares
spread less than right and wrong do, by a factor called the dispersion; penalties are multiplied by
it, which is the same as weighing rows by what they tell.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import (
    EXCLUDED_LOGIT,
    MAX_CONTEXT,
    Belief,
    Evidence,
    Extras,
    Step,
    context_of,
    signal_values,
)
from ttamer.fitted.quantiser import Quantiser, edges_of
from ttamer.fitting.class_shifts import fit_class_shifts
from ttamer.fitting.offsets import (
    NEWTON_ROUNDS,
    OFFSET_RIDGE,
    dispersion,
    is_clear,
    limited_step,
    offsets_by_code,
    ridge_of,
    rounded,
    scores_of,
)
from ttamer.fitting.signals import MAX_SIGNAL_BINS, fit_offsets, fit_shifts, useful_signals
from ttamer.fitting.threads import on_threads
from ttamer.stats.isotonic import falling, rising
from ttamer.stats.logistic import CLASS_RIDGE, fit_by_class, fit_logistic, logit, sigmoid
from ttamer.trace.trace import BELIEF_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Losses, Trace

__all__ = [
    "VERY_FEW_ROWS",
    "Shrinkage",
    "by_column",
    "classes_of",
    "fit_belief",
    "has_class_terms",
    "predictions_of",
    "sampled",
    "useful_extras",
]

CONFIDENCE_BINS = 128
"""Confidences are cut into at most this many bins."""
KNOTS = 10
"""The log-odds of being wrong are piecewise linear in the rank of confidence: the knots."""
STIFFNESS = 3.0
"""The penalty on the squared bend at each knot."""
RIDGE = 0.1
"""The penalty on the squared distance from the node's own error rate."""
POOLED_RIDGE = 1.0
"""The penalty on the squared distance from what all exits of one network have at a confidence."""
REVERSAL_NATS = 6.0
"""Errors may grow with confidence only if that makes the rows likelier by this many nats."""
FEW_ROWS = 2000
"""With at most this many rows of one network's exits, the regressions use a short memory."""
SHORT_MEMORY = 2
"""How many of the last exits asked the regressions use where the memory is short."""
VERY_FEW_ROWS = 350
"""With at most this many rows of one network's exits, the regressions use the last exit alone, its
class shifts the log-odds less, and the thresholds of the exits are pooled (row_policy.py)."""
FEW_OFFSET_RIDGE = 20.0
"""The penalty on the squared offset of each predicted class where rows are very few."""
MIN_ROWS_FOR_CLASSES = 200
"""With fewer rows a belief has no class terms."""
MAX_CLASSES = 64
"""With more classes a belief has no class terms."""
MAX_ROWS = 100_000
"""Regressions are fitted to at most this many rows: a uniform sample of more."""
MIN_ROWS_PER_CLASS = 5
"""With more classes than that, and fewer rows per class than this, classes have no offsets."""
EXTRA_ERRORS = 4.0
"""An extra column of a node is used if its statistic is above its mean by this many standard
deviations: there are many, and most repeat the confidence."""
MIN_EXTRA_BINS = 4
"""With few rows an extra column is cut into this many bins: fewer are tested with more power."""
ROWS_PER_BIN = 100
"""An extra column has a bin more for each of these rows, up to ``MAX_SIGNAL_BINS``."""
EXTRA_RIDGE = 1.0
"""The penalty on how far columns change the weight of the confidence."""
NO_OFFSET = {0: 0.0}
"""The offsets of a node whose predictions are compared only: one of zero marks that they are."""


def sampled(rows: int, count: int) -> NDArray[np.intp]:
    """Return the numbers of a uniform sample of rows, in increasing order; always the same ones.

    >>> sampled(5, 3).shape
    (3,)
    """
    chosen = np.random.default_rng([rows, 4]).choice(rows, count, replace=False, shuffle=False)
    return np.sort(chosen)


def _enough_rows(trace: Trace, wrong: Losses) -> tuple[Trace, Losses]:
    """Return at most ``MAX_ROWS`` rows: more change nothing but the time."""
    if len(trace) <= MAX_ROWS:
        return trace, wrong
    rows = sampled(len(trace), MAX_ROWS)
    return trace.take(rows), wrong[rows]


def has_class_terms(trace: Trace) -> bool:
    """Return whether a belief has class terms: for separate models, given enough rows."""
    separate = not trace.spec.is_network and trace.spec.order != "skip"
    known = predictions_of(trace) is not None and len(trace.classes) <= MAX_CLASSES
    return separate and known and len(trace) >= MIN_ROWS_FOR_CLASSES


def has_class_shifts(trace: Trace, rows: int) -> bool:
    """Return whether the class of X's answer shifts X as a state: for exits, given enough rows.

    Of two classes each is as likely to be corrected, and shifts are noise.
    """
    known = predictions_of(trace) is not None and 2 < len(trace.classes) <= MAX_CLASSES
    return trace.spec.is_network and known and rows > VERY_FEW_ROWS


def has_class_offsets(trace: Trace) -> bool:
    """Return whether the class a node predicts shifts its log-odds: not where classes are rare.

    Answers in free text are such classes: few of them occur twice.
    """
    classes = len(trace.classes)
    return classes <= MAX_CLASSES or classes * MIN_ROWS_PER_CLASS <= len(trace)


def classes_of(trace: Trace, belief: Belief) -> tuple[str, ...]:
    """Return the classes that a belief needs to know, in the order of its codes."""
    if any(value for own in belief.offsets for value in own.values()):
        return trace.classes
    if belief.by_class or belief.shifts:
        return trace.classes
    return trace.classes[: max((code + 1 for own in belief.offsets for code in own), default=0)]


def fit_belief(
    trace: Trace,
    wrong: Losses,
    steps: Sequence[Step],
    *,
    class_terms: bool | None = None,
    signals: tuple[str, ...] | None = None,
    extras: Mapping[int, tuple[str, ...]] | None = None,
    scored_once: bool = False,
    weigh_signals: bool = True,
    part_of: int | None = None,
) -> Belief:
    """Fit a belief to a trace.

    Args:
        trace: The rows to fit to.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.
        steps: The steps to fit regressions for.
        class_terms: Whether there are class terms; by default where ``has_class_terms``.
        signals: The signals to use; by default those of ``useful_signals``.
        extras: The extra columns to use of each node; by default those of ``useful_extras``.
        scored_once: Whether an answer given by several nodes is scored once also with class terms.
            The least of several estimates is too low, the more so the more nodes there are.
        weigh_signals: Whether regressions weigh the offsets of signals, each node's own and those
            of nodes that disagree. Else they are fitted without signals, and offsets are added.
        part_of: Of how many rows these are a part; by that number rows are very few or not.

    Returns:
        The belief.
    """
    whole = len(trace) if part_of is None else part_of
    trace, wrong = _enough_rows(trace, wrong)
    nodes = wrong.shape[1]
    predictions = predictions_of(trace)
    if class_terms is None:
        class_terms = has_class_terms(trace)
    spread = dispersion(wrong)
    shrinkage = Shrinkage.of(
        len(trace), network=trace.spec.is_network, dispersion=spread,
        very_few=whole <= VERY_FEW_ROWS,
    )  # fmt: skip
    rough = _nodes_alone(trace, wrong, shrinkage, by_class=not (class_terms and scored_once))
    certain_last = rough.certain_last
    if extras is None:
        extras = useful_extras(trace, wrong)
    if extras:
        fitted_extras = _extras(rough, trace, wrong, extras, tested=False)
        rough = dataclasses.replace(rough, extras=fitted_extras)
    names = useful_signals(trace, wrong) if signals is None else signals
    values = signal_values(trace, names) if names else None
    if values is not None:
        before = rough.evidence(trace.confidence, predictions, extras=trace.extras)
        fitted = fit_offsets(names, values, before.odds + before.offset, wrong)
        rough = dataclasses.replace(rough, signals=fitted)
    weighed = values if weigh_signals else None
    seen = rough.evidence(trace.confidence, predictions, weighed, trace.extras)
    errors = wrong.mean(axis=0)

    def regression(key: tuple[Step, int]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return the weights of an answer after a step, and its class terms."""
        step, answer = key
        features = features_of(seen, step, answer)
        if predictions is not None and class_terms and not scored_once:
            found, terms = fit_by_class(
                features,
                predictions[:, answer],
                wrong[:, answer],
                classes=len(trace.classes),
                ridge=shrinkage.ridge,
                class_ridge=shrinkage.by_class,
                prior=_alone(features.shape[1]),
            )
            limited = np.clip(terms, -EXCLUDED_LOGIT, EXCLUDED_LOGIT)
            return rounded(bounded(found, features)), rounded(limited)
        recent = context_of(step)[-shrinkage.memory :]
        if answer not in recent:
            return _never(features.shape[1]), None
        ranked = sorted(recent, key=errors.__getitem__)  # of equals, the first asked
        others = [node for node in context_of(step) if node != answer]
        better = [node in ranked[: ranked.index(answer)] for node in others]
        width = (features.shape[1] - 3) // max(1, len(others))
        kept = np.repeat([node in recent for node in others], width)
        features[:, 3:] *= kept
        codes = predictions[:, answer] if predictions is not None and class_terms else None
        weights, terms = _weights(
            features,
            wrong[:, answer],
            np.flatnonzero(better) if predictions is not None else [],
            shrinkage,
            codes,
            len(trace.classes),
        )
        return weights, None if codes is None else terms

    keys = [
        (step, answer)
        for step in steps
        for answer in context_of(step)
        if not (certain_last and answer == nodes - 1)
    ]
    fitted_keys = list(zip(keys, on_threads(regression, keys, rows=len(trace)), strict=True))
    belief = dataclasses.replace(
        rough,
        weights={key: weights for key, (weights, _) in fitted_keys},
        by_class={key: terms for key, (_, terms) in fitted_keys if terms is not None},
    )
    if values is not None:
        seen = rough.evidence(trace.confidence, predictions, values, trace.extras)
        belief = fit_shifts(belief, seen, values, wrong, steps, weighed=weigh_signals)
    if not has_class_shifts(trace, whole):
        return belief
    seen = belief.evidence(trace.confidence, predictions, values, trace.extras)
    return fit_class_shifts(belief, seen, wrong, steps, len(trace.classes))


def _nodes_alone(trace: Trace, wrong: Losses, shrinkage: Shrinkage, *, by_class: bool) -> Belief:
    """Return a belief without regressions: each node's confidence, and the class it predicts."""
    predictions = predictions_of(trace)
    quantiser = Quantiser.fit(trace.confidence, states=CONFIDENCE_BINS, method="quantile")
    bins = quantiser.states(trace.confidence)
    levels: list[NDArray[np.float64]] = []
    offsets: list[dict[int, float]] = []
    by_offset = by_class and has_class_offsets(trace)
    spread = dispersion(wrong)
    network = trace.spec.is_network
    pooled = _pooled(trace.confidence, wrong, bins, spread) if network else None
    for v in range(wrong.shape[1]):
        given = None if pooled is None else pooled[v]
        levels.append(_levels(bins[:, v], wrong[:, v], given, spread))
        own = levels[v][bins[:, v]]
        if predictions is None:
            offsets.append({})
        elif by_offset:
            offsets.append(offsets_by_code(predictions[:, v], own, wrong[:, v], shrinkage.offset))
        else:
            offsets.append(dict(NO_OFFSET))
    certain_last = trace.spec.target == "last"
    return Belief(quantiser.edges, tuple(levels), tuple(offsets), {}, certain_last)


def useful_extras(trace: Trace, wrong: Losses) -> dict[int, tuple[str, ...]]:
    """Return the extra columns of each node that clearly say more than its confidence and class.

    For each column, the errors of the node in its bins are compared with those that its confidence,
    its class and its columns before lead to expect, by a chi-squared statistic.

    Args:
        trace: The rows to fit to.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.

    Returns:
        Names by node, in the order of ``BELIEF_FIELDS``; nothing for a node without such columns.
    """
    if not any(name in trace.extras for name in BELIEF_FIELDS):
        return {}
    trace, wrong = _enough_rows(trace, wrong)
    shrinkage = Shrinkage.of(
        len(trace), network=trace.spec.is_network, dispersion=dispersion(wrong),
        very_few=len(trace) <= VERY_FEW_ROWS,
    )  # fmt: skip
    alone = _nodes_alone(trace, wrong, shrinkage, by_class=True)
    nodes = range(wrong.shape[1] - alone.certain_last)
    known = {
        v: tuple(
            name
            for name in BELIEF_FIELDS
            if name in trace.extras and np.isfinite(trace.extras[name][:, v]).all()
        )
        for v in nodes
    }
    found = _extras(alone, trace, wrong, known, tested=True)
    return {v: own.names for v, own in found.items()}


def _extras(
    alone: Belief,
    trace: Trace,
    wrong: Losses,
    names: Mapping[int, tuple[str, ...]],
    *,
    tested: bool,
) -> dict[int, Extras]:
    """Fit extra columns of nodes, each to what the confidence, the class and those before leave.

    A column repeats a part of what the confidence says, so the weight of that is fitted with it.
    Of ``tested`` columns, only those are kept that clearly say something.
    """
    bins = Quantiser(alone.bounds).states(trace.confidence)
    by_class = alone.evidence(trace.confidence, predictions_of(trace)).offset
    spread = dispersion(wrong)
    found = {}
    for v, columns in names.items():
        own = Extras((), alone.levels[v], (), ())
        for name in columns:
            values = trace.extras[name][:, v]
            states = int(np.clip(len(values) // ROWS_PER_BIN, MIN_EXTRA_BINS, MAX_SIGNAL_BINS))
            bounds = edges_of(_coarse(values), states=states, method="quantile")
            codes = np.searchsorted(bounds, values, side="right").astype(np.int32)
            odds = np.empty(len(trace))
            own.judge(odds, bins[:, v], v, trace.extras)
            given, bad = (odds + by_class[:, v])[:, np.newaxis], wrong[:, [v]]
            if tested and not is_clear(*scores_of(codes, given, bad), spread, EXTRA_ERRORS):
                continue
            weights, terms = fit_by_class(
                np.stack([np.ones(len(odds)), odds, by_class[:, v]], axis=1),
                codes,
                wrong[:, v],
                classes=len(bounds) + 1,
                ridge=spread * EXTRA_RIDGE,
                prior=np.array([0.0, 1.0, 1.0]),
                class_ridge=ridge_of(codes, given, bad, spread),
            )
            shift, weight = np.clip(weights[:2], -EXCLUDED_LOGIT, EXCLUDED_LOGIT)
            own = Extras(
                (*own.names, name),
                _limited_logit(shift + weight * own.levels),
                (*own.bounds, bounds),
                tuple(map(_limited_logit, (*(weight * each for each in own.terms), terms))),
            )
        if own.names:
            found[v] = own
    return found


def _coarse(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to 20 bits: numbers that differ by the rounding of a device have no bound between."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(fraction * 2.0**20), exponent - 20))


def by_column(belief: Belief, trace: Trace, name: str) -> Belief:
    """Return a belief whose confidences were an extra column, as one that reads this column.

    Args:
        belief: A belief fitted to the column in place of the confidences.
        trace: The rows fitted to, with their confidences: these count where the column is missing.
        name: The column.

    Returns:
        A belief with the same log-odds wherever the column is given.
    """
    trace, wrong = _enough_rows(trace, trace.loss_shares())
    shrinkage = Shrinkage.of(len(trace), network=trace.spec.is_network)
    alone = _nodes_alone(trace, wrong, shrinkage, by_class=False)
    extras = {
        v: Extras((name,), np.zeros_like(own), (belief.bounds[v],), (belief.levels[v],))
        for v, own in enumerate(alone.levels)
    }
    return dataclasses.replace(belief, bounds=alone.bounds, levels=alone.levels, extras=extras)


@dataclass(frozen=True)
class Shrinkage:
    """How strongly weights are shrunk towards those of a node by itself: more with fewer rows."""

    ridge: float
    alone: float
    """The ridge where nodes with a lower error disagree with the answer: such rows are few."""
    memory: int
    """How many of the last nodes asked have a weight."""
    by_class: float = CLASS_RIDGE
    """The ridge of class terms."""
    offset: float = OFFSET_RIDGE
    """The ridge of what the predicted class adds."""

    @classmethod
    def of(
        cls, rows: int, *, network: bool, dispersion: float = 1.0, very_few: bool = False
    ) -> Shrinkage:
        """Return what suits a number of rows; exits of one network are shrunk more."""
        more = 3.0 if network else 1.0
        memory = SHORT_MEMORY if network and rows <= FEW_ROWS else MAX_CONTEXT
        ridge, alone, offset = 4.0 + more * 5000 / rows, 20.0 + more * 6000 / rows, OFFSET_RIDGE
        if network and very_few:
            memory, offset = 1, FEW_OFFSET_RIDGE
        penalties = (dispersion * each for each in (CLASS_RIDGE, offset))
        return cls(dispersion * ridge, dispersion * alone, memory, *penalties)


def _never(width: int) -> NDArray[np.float64]:
    """Return the weights of an answer that is never returned."""
    weights = np.zeros(width)
    weights[0] = EXCLUDED_LOGIT
    return weights


def _alone(width: int) -> NDArray[np.float64]:
    """Return the weights of a node by itself."""
    weights = np.zeros(width)
    weights[1:3] = 1.0
    return weights


def _weights(
    features: NDArray[np.float64],
    wrong: Losses,
    better: Iterable[int],
    shrinkage: Shrinkage,
    codes: NDArray[np.int32] | None = None,
    classes: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of an answer, and its class terms where ``codes`` are given.

    ``better`` are the other nodes that err less, by place. Weights are shrunk towards those of the
    node by itself.
    """
    prior = _alone(features.shape[1])
    agree = [3 + 4 * place for place in better]
    ridge = shrinkage.alone if agree else shrinkage.ridge
    alone = ~features[:, agree].any(axis=1)
    found, terms = prior, np.zeros(classes)
    if alone.any() and codes is not None:
        found, terms = fit_by_class(
            features[alone], codes[alone], wrong[alone], classes=classes, ridge=ridge, prior=prior,
            class_ridge=shrinkage.by_class,
        )  # fmt: skip
    elif alone.any():
        found = fit_logistic(features[alone], wrong[alone], ridge=ridge, prior=prior)
    found = bounded(found, features[alone]) if alone.any() else found
    for place in agree:
        found[place : place + 2] = EXCLUDED_LOGIT, 0.0
    return rounded(found), rounded(np.clip(terms, -EXCLUDED_LOGIT, EXCLUDED_LOGIT))


def bounded(weights: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights that a file can hold, with the same mean log-odds on the rows fitted to.

    Where a feature hardly varies, its weight may be large and be made up for by the first one.

    >>> bounded(np.array([-90.0, 200.0]), np.array([[1.0, 0.45], [1.0, 0.45]])).tolist()
    [-57.6, 128.0]
    """
    kept = np.clip(weights, -EXCLUDED_LOGIT, EXCLUDED_LOGIT)
    kept[0] = weights[0] + (weights - kept)[1:] @ features[:, 1:].mean(axis=0)
    kept[0] = np.clip(kept[0], -EXCLUDED_LOGIT, EXCLUDED_LOGIT)
    return kept


def features_of(seen: Evidence, step: Step, answer: int) -> NDArray[np.float64]:
    """Return the features of one answer, shape (T, d); the first is 1."""
    odds, offset, predictions = seen.odds, seen.offset, seen.predictions
    columns = [np.ones(len(odds)), odds[:, answer], offset[:, answer]]
    for other in context_of(step):
        if other == answer:
            continue
        if predictions is None:
            columns.append(odds[:, other])
            continue
        same = (predictions[:, other] == predictions[:, answer]).astype(float)
        own = odds[:, other]
        columns += [same, same * own, (1 - same) * own, (1 - same) * offset[:, other]]
    return np.stack(columns, axis=1)


def predictions_of(trace: Trace) -> NDArray[np.int32] | None:
    """Return the predictions, or None where there are none."""
    predictions = trace.prediction
    return None if predictions is None or predictions.max(initial=-1) < 0 else predictions


def _pooled(
    confidence: NDArray[np.float64],
    wrong: Losses,
    bins: NDArray[np.uint8],
    spread: float,
) -> list[NDArray[np.float64]]:
    """Return, per node and bin, the log-odds that all nodes together have at its confidences."""
    every = confidence.reshape(-1, 1)
    own = Quantiser.fit(every, states=CONFIDENCE_BINS, method="quantile").states(every)[:, 0]
    odds = _levels(own, wrong.ravel(), None, spread)[own].reshape(confidence.shape)
    return [
        np.bincount(bins[:, v], odds[:, v]) / np.bincount(bins[:, v]) for v in range(bins.shape[1])
    ]


def _levels(
    bins: NDArray[np.uint8],
    wrong: Losses,
    pooled: NDArray[np.float64] | None,
    spread: float,
) -> NDArray[np.float64]:
    """Return the log-odds of being wrong in each bin of confidence, never rising.

    They are shrunk towards the node's own share of wrong answers, or towards ``pooled``. Where the
    rows show clearly that a node is more confident when it is wrong, they never fall instead.

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
    ridge = RIDGE if pooled is None else POOLED_RIDGE
    penalty = spread * (STIFFNESS * bends.T @ bends + ridge * np.eye(len(knots)))
    share = logit((bad.sum() + 0.5) / (rows.sum() + 1)) if pooled is None else pooled
    height = np.zeros(len(knots))
    for _ in range(NEWTON_ROUNDS):
        chance = sigmoid(share + tents @ height)
        slope = tents.T @ (rows * chance - bad) + penalty @ height
        bend = (tents * (rows * chance * (1 - chance))[:, np.newaxis]).T @ tents + penalty
        height -= limited_step(np.linalg.solve(bend, slope))
    free = share + tents @ height
    one_way = falling(free, rows)
    if pooled is None:
        other_way = rising(free, rows)
        gain = _deviance(one_way, rows, bad) - _deviance(other_way, rows, bad)
        if gain > spread * REVERSAL_NATS:
            one_way = other_way
    return _limited_logit(one_way)


def _limited_logit(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-odds no larger than those of a chance, rounded."""
    most = float(logit(np.array(1.0)))
    return rounded(np.clip(odds, -most, most))


def _deviance(
    odds: NDArray[np.float64], rows: NDArray[np.float64], bad: NDArray[np.float64]
) -> float:
    """Return minus the log-likelihood of the wrong answers among the rows of each bin."""
    return float(rows @ np.logaddexp(0, odds) - bad @ odds)
