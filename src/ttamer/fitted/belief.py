"""A belief: how likely each available answer is wrong, given everything observed so far.

After the nodes of a *step* have been asked (a set of nodes), each of their answers has a chance to
be wrong, given by a logistic regression on

- the node's own confidence, as the log-odds of being wrong that this confidence had on the rows
  fitted to (so no scale of confidence is assumed), and the class it predicts;
- where it says more than the confidence does, the margin or the entropy of the node's answer;
- for every other node of the step, whether it agrees, and how confident it is;
- signals known before any node is asked.

With enough rows there is also a term for each class of the answer. The regressions are fitted in
:mod:`ttamer.fitting.regressions`.

X, the least of these chances, is the loss of the best answer so far, and the node that gave that
answer is its *owner*. Recall is inside X. The least of several noisy estimates is too low, the more
so the more there are; so without class terms an answer given by several nodes is scored once, by
the one of them with the lowest error: the others carry a weight that excludes them where it agrees.

As the state of a policy X is shifted, so that it is in the order of what there is to gain: by
signals, and on the exits of a network by the class that its answer predicts.

X is kept as log-odds, and everything it is computed from is a multiple of ``WEIGHT_RESOLUTION`` of
limited size: products and sums of such numbers are exact in double precision, in any order. So a
session in Python, a batch in NumPy and a kernel on a GPU compute the same X and decide alike.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer._numbers import as_float
from ttamer.errors import ArgumentError, ObservationError
from ttamer.fitted.quantiser import Quantiser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = [
    "BOOKKEEPING",
    "CERTAIN_LOGIT",
    "EXCLUDED_LOGIT",
    "MAX_WEIGHT",
    "WEIGHT_RESOLUTION",
    "Belief",
    "Evidence",
    "Extras",
    "Scorer",
    "Signals",
    "Step",
    "context_of",
    "signal_names",
    "signal_values",
]

Step = tuple[int, ...]
"""The nodes asked: on a line in the order of asking, else in increasing order."""

MAX_CONTEXT = 6
"""The regressions use at most this many nodes of a step: the last ones asked."""
ALL = slice(None)
BLOCK = 8192
"""X is computed for this many rows at a time, so that their numbers stay in the cache."""
WEIGHT_RESOLUTION = 2.0**-12
"""Every weight, level and offset of a belief is a multiple of this."""
MAX_WEIGHT = 256.0
"""No weight, level or offset of a belief is larger than this in absolute value."""
CERTAIN_LOGIT = -64.0
"""The log-odds of an answer that is right by definition."""
EXCLUDED_LOGIT = 128.0
"""The log-odds added to an answer that a node with a lower error also gives."""
BOOKKEEPING = ("audit_number", "audit_time", "audit_chance")
"""Columns that an audit log keeps beside each row; they describe the audit and not the input."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The inputs of the regressions for T rows, shape (T, n) each."""

    odds: NDArray[np.float64]
    """The log-odds that each node is wrong, by its confidence and its extra columns."""
    offset: NDArray[np.float64]
    """How much the class it predicts adds to that; 0 where nothing is known."""
    predictions: NDArray[np.int32] | None
    """What it predicts."""
    shift: NDArray[np.float64] | float = 0.0
    """Shape (T,): what signals add to X where it is the state of a policy."""


@dataclass(frozen=True, eq=False)
class Belief:
    """Fitted regressions, one for each step and answer."""

    bounds: tuple[NDArray[np.float64], ...]
    """Per node, increasing confidences that separate its bins. A bin holds the confidences from its
    lower bound up; NaN is in the first bin."""
    levels: tuple[NDArray[np.float64], ...]
    """Per node, the log-odds of being wrong in each bin: one more than there are bounds."""
    offsets: tuple[Mapping[int, float], ...]
    """Per node, what each predicted class adds to the log-odds."""
    weights: Mapping[tuple[Step, int], NDArray[np.float64]]
    """The weights of each regression, by step and answer."""
    certain_last: bool
    """Whether the last node is right by definition."""
    signals: Signals | None = None
    """What is known before any node is asked, where the trace has signals."""
    by_class: Mapping[tuple[Step, int], NDArray[np.float64]] = field(default_factory=dict)
    """What the class of an answer adds after a step, by class code; empty, or for all weights."""
    extras: Mapping[int, Extras] = field(default_factory=dict)
    """What the extra columns of a node say, by node; none for a node judged without them."""
    shifts: Mapping[Step, NDArray[np.float64]] = field(default_factory=dict)
    """What the class of X's answer adds to X where it is the state of a policy, by step and class
    code; none after a step that is not there."""

    @property
    def columns(self) -> set[str]:
        """The extra columns that it reads of some node."""
        return {name for own in self.extras.values() for name in own.names}

    @property
    def has_predictions(self) -> bool:
        """Whether it was fitted to rows with predictions."""
        return any(self.offsets)

    @cached_property
    def quantiser(self) -> Quantiser:
        """The bounds, to find the bins of confidences."""
        return Quantiser(self.bounds)

    def evidence(
        self,
        confidence: NDArray[np.float64],
        predictions: NDArray[np.int32] | None,
        signals: NDArray[np.float64] | None = None,
        extras: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> Evidence:
        """Return the inputs of the regressions for rows, shape (T, n) each; -1 is no answer.

        Signals have shape (T, k), in the order of ``self.signals.names``; extra columns (T, n)
        each, by name.
        """
        bins = self.quantiser.states(confidence)
        odds = np.empty(confidence.shape, order="F")  # a node's numbers lie side by side
        offset = np.zeros(confidence.shape, order="F")
        for v, levels in enumerate(self.levels):
            np.take(levels, bins[:, v], out=odds[:, v])
        for v, own in self.extras.items():
            own.judge(odds[:, v], bins[:, v], v, extras or {})
        if predictions is not None and predictions.size:
            predictions = np.asfortranarray(predictions)
            for v, offsets in enumerate(self.offsets):
                known = max(offsets, default=-1)
                table = np.zeros(
                    max(known, int(predictions.max())) + 2
                )  # the last is for no answer
                for code, value in offsets.items():
                    table[code] = value
                offset[:, v] = table[predictions[:, v]]
        if self.signals is not None and signals is not None:
            offset += self.signals.offset(signals)
            return Evidence(odds, offset, predictions, self.signals.shift(signals))
        return Evidence(odds, offset, predictions)

    def least(self, seen: Evidence, step: Step) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return X as log-odds, and its owner, shape (T,) each, after a step."""
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

    def state(
        self, seen: Evidence, step: Step, least: NDArray[np.float64], owner: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return X as the state of a policy: with what signals and the class of its answer add."""
        total = least + seen.shift
        if step in self.shifts and seen.predictions is not None:
            answers = seen.predictions[np.arange(len(least)), owner]
            total += _by_code(self.shifts[step], answers)
        return np.asarray(total)

    def _odds(
        self, seen: Evidence, step: Step, answer: int, block: slice = ALL
    ) -> NDArray[np.float64]:
        """Return features times weights (features_of), node by node."""
        odds, offset, predictions = seen.odds[block], seen.offset[block], seen.predictions
        if self.certain_last and answer == len(self.bounds) - 1:
            return np.full(len(odds), CERTAIN_LOGIT)
        one, own, own_offset, *rest = self.weights[step, answer].tolist()
        total = one + own * odds[:, answer]
        if own_offset:
            total += own_offset * offset[:, answer]
        if self.by_class and predictions is not None:
            total += _by_code(self.by_class[step, answer], predictions[block, answer])
        others = [node for node in context_of(step) if node != answer]
        width = len(rest) // max(1, len(others))
        for place, other in enumerate(others):
            weights = rest[width * place : width * (place + 1)]
            if not any(weights):
                continue
            if predictions is None:
                total += weights[0] * odds[:, other]
                continue
            differ = weights[2] * odds[:, other]
            if weights[3]:
                differ += weights[3] * offset[:, other]
            same = predictions[block, other] == predictions[block, answer]
            total += np.where(same, weights[0] + weights[1] * odds[:, other], differ)
        return np.asarray(total)


@dataclass(frozen=True, eq=False)
class Extras:
    """Extra columns of one node, cut into bins, and what each bin adds to its log-odds.

    They count where all of them are given; else the confidence alone does. The levels differ from
    those of the confidence alone, which stands for a part of what the columns say.
    """

    names: tuple[str, ...]
    """Some of ``BELIEF_FIELDS``."""
    levels: NDArray[np.float64]
    """Per bin of confidence, its part of the log-odds of being wrong, where columns are given."""
    bounds: tuple[NDArray[np.float64], ...]
    """Per column, increasing numbers that separate its bins."""
    terms: tuple[NDArray[np.float64], ...]
    """Per column, what each bin adds to the log-odds of being wrong."""

    def judge(
        self,
        odds: NDArray[np.float64],
        bins: NDArray[np.uint8],
        node: int,
        extras: Mapping[str, NDArray[np.float64]],
    ) -> None:
        """Replace the log-odds of a node, shape (T,), on the rows where its columns are given."""
        if not all(name in extras for name in self.names):
            return
        values = [extras[name][:, node] for name in self.names]
        given = np.isfinite(values).all(axis=0)
        total = self.levels[bins]
        for bounds, terms, own in zip(self.bounds, self.terms, values, strict=True):
            total += terms[np.searchsorted(bounds, own, side="right")]
        np.copyto(odds, total, where=given)


def _by_code(terms: NDArray[np.float64], codes: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the term of each class code; 0 for a class that is not known, or no answer."""
    known = (codes >= 0) & (codes < len(terms))
    return np.asarray(np.append(terms, 0.0)[np.where(known, codes, -1)])


def context_of(step: Step) -> Step:
    """Return the nodes of a step that the regressions use."""
    return step[-MAX_CONTEXT:]


class Contribution(NamedTuple):
    """What the signals of one input add."""

    offset: list[float]
    """To the log-odds that each node is wrong."""
    router_logit: float
    """To the state of the router."""
    shift: float
    """To X as a state."""
    unknown: int
    """How many signals are missing."""


@dataclass(frozen=True, eq=False)
class Signals:
    """Numbers known before any node is asked, cut into bins, and what each bin adds to the belief.

    The offsets enter beliefs. The sum of router logits is the state of a *router*: a node that
    costs nothing, cannot answer (its loss is infinite) and comes before all others, so that the
    policy may start with one node on one input and with another on the next.

    Shifts make X a better state for a policy. A signal of difficulty raises the chance that an
    answer is wrong, but also that every other one is: there X is high and asking on gains little.
    X plus the shift is in the order of what there is to gain.
    """

    names: tuple[str, ...]
    bounds: tuple[NDArray[np.float64], ...]
    """Per signal, increasing numbers that separate its bins."""
    offsets: tuple[NDArray[np.float64], ...]
    """Per signal, shape (bins, nodes): what each bin adds to the log-odds that a node is wrong,
    given the node's confidence and the class it predicts."""
    router_logits: tuple[NDArray[np.float64], ...]
    """Per signal, shape (bins,): what each bin adds to the log-odds that a node is wrong, given
    nothing else."""
    shifts: tuple[NDArray[np.float64], ...]
    """Per signal, shape (bins,): what each bin adds to X where it is the state of a policy."""

    def offset(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, shape (T, nodes), what signals of shape (T, k) add to each node's log-odds."""
        bins = self._quantiser.states(values)
        total: NDArray[np.float64] = sum(
            (own[bins[:, k]] for k, own in enumerate(self.offsets)),
            start=np.zeros((len(values), self.offsets[0].shape[1])),
        )
        return total

    def router_logit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, shape (T,), the state of the router before it is quantised."""
        return self._sum(self.router_logits, values)

    def shift(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, shape (T,), what signals of shape (T, k) add to X as a state."""
        return self._sum(self.shifts, values)

    def _sum(
        self, tables: Sequence[NDArray[np.float64]], values: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        bins = self._quantiser.states(values)
        total: NDArray[np.float64] = sum(
            (own[bins[:, k]] for k, own in enumerate(tables)), start=np.zeros(len(values))
        )
        return total

    def contribution(self, given: Mapping[str, float]) -> Contribution:
        """Return what one input's signals add; a signal that is missing or NaN adds nothing."""
        offset, router_logit, shift = np.zeros(self.offsets[0].shape[1]), 0.0, 0.0
        unknown = 0
        for k, name in enumerate(self.names):
            value = _number(name, given.get(name, np.nan))
            if value != value:
                unknown += 1
                continue
            place = int(np.searchsorted(self.bounds[k], value, side="right"))
            offset += self.offsets[k][place]
            router_logit += float(self.router_logits[k][place])
            shift += float(self.shifts[k][place])
        return Contribution(offset.tolist(), router_logit, shift, unknown)

    @cached_property
    def _quantiser(self) -> Quantiser:
        return Quantiser(self.bounds)


def _number(name: str, value: object) -> float:
    try:
        return as_float(value)
    except TypeError:
        raise ObservationError(f"signal {name!r} must be a number, not {value!r}") from None


def signal_names(trace: Trace) -> tuple[str, ...]:
    """Return the signals of a trace that describe the input."""
    return tuple(name for name in trace.signals if name not in BOOKKEEPING)


def signal_values(trace: Trace, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the signals of a trace, shape (T, k); an error names those it lacks."""
    missing = [name for name in names if name not in trace.signals]
    if missing:
        raise ArgumentError(
            "the policy was fitted with signals, and the trace lacks "
            f"{', '.join(f'signal.{name}' for name in missing)}: add them, or fit without"
        )
    return np.stack([trace.signals[name] for name in names], axis=1)


Terms = tuple[int, list[float], list[tuple[int, list[float]]], list[float]]
"""An answer, its own weights, the weights of each other node's answer, and its class terms."""


class Scorer:
    """A belief laid out as plain lists, to compute X and its owner for one input at a time."""

    __slots__ = ("_bounds", "_edges", "_extras", "_has_predictions", "_levels", "_shifts",
                 "_terms", "offsets")  # fmt: skip

    def __init__(
        self, belief: Belief, steps: Sequence[Step], edges: Sequence[NDArray[np.float64]]
    ) -> None:
        self._bounds = [bounds.tolist() for bounds in belief.bounds]
        self._levels = [levels.tolist() for levels in belief.levels]
        self._edges = [own.tolist() for own in edges]
        self._shifts = [
            belief.shifts[step].tolist() if step in belief.shifts else [] for step in steps
        ]
        self._has_predictions = belief.has_predictions
        self._extras = {
            node: (
                own.levels.tolist(),
                [(bounds.tolist(), terms.tolist())
                 for bounds, terms in zip(own.bounds, own.terms, strict=True)],
            )
            for node, own in belief.extras.items()
        }  # fmt: skip
        self.offsets: tuple[Mapping[int, float], ...] = belief.offsets
        self._terms = [[_terms(belief, step, a) for a in context_of(step)] for step in steps]

    def odds(self, node: int, confidence: float, extras: Sequence[float] = ()) -> float:
        """Return the log-odds of being wrong, by the confidence and the node's extra columns.

        Columns are in the order of the belief's; with none, the confidence alone counts.
        """
        place = 0 if confidence != confidence else bisect_right(self._bounds[node], confidence)
        if not extras:
            return float(self._levels[node][place])
        levels, columns = self._extras[node]
        total = float(levels[place])
        for (bounds, terms), value in zip(columns, extras, strict=True):
            total += terms[bisect_right(bounds, value)]
        return total

    def range_of(self, node: int) -> tuple[float, float]:
        """Return the lowest and the highest log-odds that :meth:`odds` returns for a node."""
        ends = [min(self._levels[node]), max(self._levels[node])]
        if node in self._extras:
            levels, columns = self._extras[node]
            ends += [end(levels) + sum(end(terms) for _, terms in columns) for end in (min, max)]
        return min(ends), max(ends)

    def state(self, step: int, least: float, prediction: int = -1) -> int:
        """Return the state of X, given what its answer predicts."""
        shifts = self._shifts[step]
        if 0 <= prediction < len(shifts):
            least += shifts[prediction]
        return bisect_right(self._edges[step], least)

    def least(
        self,
        step: int,
        odds: list[float],
        offset: list[float],
        predictions: list[int],
        failed: tuple[int, ...] = (),
    ) -> tuple[float, int]:
        """Return X as log-odds, and its owner; nodes that failed have no answer."""
        best, owner = float("inf"), -1
        for terms in self._terms[step]:
            if terms[0] in failed:
                continue
            total = self._odds_of(terms, odds, offset, predictions)
            if total < best:
                best, owner = total, terms[0]
        return best, owner

    def every(
        self,
        step: int,
        odds: list[float],
        offset: list[float],
        predictions: list[int],
        failed: tuple[int, ...] = (),
    ) -> dict[int, float]:
        """Return the log-odds that each answer is wrong."""
        answers = (terms for terms in self._terms[step] if terms[0] not in failed)
        return {terms[0]: self._odds_of(terms, odds, offset, predictions) for terms in answers}

    def _odds_of(
        self, terms: Terms, odds: list[float], offset: list[float], predictions: list[int]
    ) -> float:
        answer, own, others, by_class = terms
        if not own:
            return CERTAIN_LOGIT
        total = own[0] + own[1] * odds[answer] + own[2] * offset[answer]
        if 0 <= predictions[answer] < len(by_class):
            total += by_class[predictions[answer]]
        for other, weights in others:
            if not self._has_predictions:
                total += weights[0] * odds[other]
            elif predictions[other] == predictions[answer]:
                total += weights[0] + weights[1] * odds[other]
            else:
                total += weights[2] * odds[other] + weights[3] * offset[other]
        return total


def _terms(belief: Belief, step: Step, answer: int) -> Terms:
    if belief.certain_last and answer == len(belief.bounds) - 1:
        return answer, [], [], []
    weights = belief.weights[step, answer].tolist()
    width = 4 if belief.has_predictions else 1
    others = [node for node in context_of(step) if node != answer]
    parts = [weights[3 + width * k : 3 + width * (k + 1)] for k in range(len(others))]
    by_class = belief.by_class[step, answer].tolist() if belief.by_class else []
    return answer, weights[:3], list(zip(others, parts, strict=True)), by_class
