"""A belief: how likely each answer is wrong, given any subset of answers and what the input says.

An answer that was not asked for, one that failed, and a gap of a log are the same: NaN. For answers
a, b of a set S, with z the log-odds of errors that the input says (``bar`` is their mean)::

    o[a]    = curve[a](confidence[a])                        log-odds that a is wrong
    off[a]  = offset[a](class[a])                            what the predicted class adds
    o[a]    = head . (1, o[a] + off[a], z[a], bar) - off[a]  where inputs are used
    odds[a] = w . (1, o[a], off[a], bar)                     w by (S, a)
            + sum over b of w . (same, same o[b], diff o[b], diff off[b], pair[a, b](classes))
    x[S]    = least of the means of odds over answers that agree; its owner's answer is returned
    s[S]    = x[S] + shift[S](class of the owner)            where going on is decided, for exits
    q[S, m] = chance(v . (1, z[m], bar, x, x z[m], |S| = 2, |S| = 3))    m not asked; v by m

``same`` is whether the answers agree and ``diff`` whether they do not. Classes that few rows
predict count as one class in offsets and pairs, and so does a class that the fit has not met. Where
S has no regression of its own, the masked one of a, fitted with random answers left out, takes its
place. The exits of a network of many classes are judged by their margins in place of confidences:
of two inputs of equal confidence, a later exit corrects the one more often whose second class is
close; and it corrects some classes more often than others, which is what the shifts say.

Every number is a multiple of ``2**-12`` of limited size: products and sums of such numbers are
exact in double precision, in any order. So a session in Python, a batch in NumPy and a kernel on a
GPU compute the same x and decide alike. Chances are rounded to multiples of ``2**-16``; no x on the
grid has a chance near the middle of two of them, so any library's exponential gives the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
Number = TypeVar("Number", float, Floats)
Step = tuple[int, ...]
"""A set of nodes, in increasing order."""

GRID = 4096.0  # evidence, weights and log-odds are multiples of 1 / GRID
CHANCES = 65536.0  # chances are multiples of 1 / CHANCES
MAX_WEIGHT = 64.0  # no weight is larger
MAX_ODDS = 8.0  # nor any log-odds of an answer in hand
NOTHING = MAX_ODDS  # x where there is no answer: the least certain one
HEAD = 4  # weights of (1, o, off, bar)
PEER = 5  # weights of each answer beside it


def on_grid(values: Floats, limit: float = MAX_WEIGHT) -> Floats:
    """Round to multiples of ``2**-12`` within a limit.

    >>> on_grid(np.array([0.3, -1000.0])).tolist()
    [0.300048828125, -64.0]
    """
    return np.clip(np.rint(np.asarray(values, np.float64) * GRID) / GRID, -limit, limit)


def bar_of(prior: Floats) -> Floats:
    """Return the mean log-odds over nodes, the last axis."""
    return on_grid(prior.mean(axis=-1), MAX_ODDS)


def chance(odds: Floats) -> Floats:
    """Return the chances of log-odds, as multiples of ``2**-16``.

    >>> (chance(np.array([0.0, 2.0])) * 65536).tolist()
    [32768.0, 57724.0]
    """
    return np.asarray(np.rint(CHANCES / (1 + np.exp(-odds))) / CHANCES)


def chance_of(odds: float) -> float:
    """Return the chance of one number of log-odds: as :func:`chance`, bit for bit."""
    # Odds are at most 8 but for indices, which may be infinite.
    return round(CHANCES / (1 + math.exp(min(-odds, 99.0)))) / CHANCES


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen of T inputs by n nodes.

    >>> Seen(np.array([[0.9, np.nan]])).answered.tolist()
    [[True, False]]
    """

    confidence: Floats
    """Shape (T, n): the confidence of each answer, or its margin where ``Belief.reads`` says so;
    NaN where there is none. An answer without a confidence has the lowest one, ``-inf``."""
    codes: Ints | None = None
    """Shape (T, n): the class that each answer predicts, as a number of ``Belief.classes`` or a
    larger one; -1 for none, which agrees with nothing."""
    prior: Floats | None = None
    """Shape (T, n): the log-odds that each node errs, by the input alone."""

    def __len__(self) -> int:
        return len(self.confidence)

    @cached_property
    def answered(self) -> Bools:
        """Shape (T, n): which answers there are."""
        return ~np.isnan(self.confidence)

    def take(self, rows: Ints | slice) -> Seen:
        """Return some of the inputs.

        Args:
            rows: Their numbers.

        Returns:
            What was seen of these.
        """
        codes = None if self.codes is None else self.codes[rows]
        return Seen(self.confidence[rows], codes, None if self.prior is None else self.prior[rows])


class RiskModel(Protocol):
    """What a belief has to say; a researcher's own model needs this only."""

    def risks(self, answers: Seen) -> Floats:
        """Return how likely each answer is wrong, shape (T, n); NaN where there is none.

        Args:
            answers: To T inputs.

        Returns:
            The chances.
        """
        ...


class PairTable(NamedTuple):
    """A sparse table: what pairs of classes add to log-odds; 0 where there is no cell."""

    keys: Ints  # increasing: own class * (number of classes + 1) + the other's class
    values: Floats

    def __call__(self, keys: Ints) -> Floats:
        """Return the values of keys."""
        if not len(self.keys):
            return np.zeros(keys.shape)
        cell = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[cell] == keys, self.values[cell], 0.0)


@dataclass(frozen=True, eq=False)
class Belief:
    """Fitted regressions, one for each set of answers and answer."""

    # The predictions that enough rows had to say something; larger codes count as one class
    classes: tuple[str, ...]
    # Per node, increasing confidences that separate its bins. A bin begins at its lower bound.
    bounds: tuple[Floats, ...]
    # Per node, the log-odds of being wrong in each bin: one more than there are bounds
    levels: tuple[Floats, ...]
    # Per node, what each class adds, and last any other; empty where there are no predictions
    offsets: tuple[Floats, ...]
    # By nodes (a, b), what the classes of both add to the log-odds of a
    pairs: Mapping[tuple[int, int], PairTable]
    # By set and answer: HEAD weights, and PEER for each answer beside it
    weights: Mapping[tuple[Step, int], Floats]
    masked: Floats  # (n, HEAD + PEER n): the weights of each answer in any set
    # (n, 4): weights of (1, o + off, z, bar); None where inputs are not used
    head: Floats | None = None
    first: Floats | None = None  # (n, 3): q before any answer, weights of (1, z, bar)
    later: Floats | None = None  # (n, 7): q after some answers
    memory: int = 99  # only so many of the last answers in hand count: for the exits of one network
    # By set, what each class of the best answer, and last any other, adds to x to make s
    shifts: Mapping[Step, Floats] = field(default_factory=dict)
    reads: Literal["confidence", "margin"] = "confidence"  # what curves are of
    # Whether answers that predict the same lose the same. If not, predictions are not read.
    agree: bool = True

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.levels)

    def curve_odds(self, confidence: Floats) -> Floats:
        """Return the log-odds of answers by their confidences, shape (T, n)."""
        bins = [np.searchsorted(b, confidence[:, v], "right") for v, b in enumerate(self.bounds)]
        return np.stack([levels[k] for levels, k in zip(self.levels, bins, strict=True)], axis=1)

    def common(self, codes: Ints) -> Ints:
        """Return codes with one code for all classes that are not listed."""
        return np.minimum(codes, len(self.classes))

    def pair_keys(self, codes: Ints, a: int, b: int) -> Ints:
        """Return the cells of two answers, shape (T,); -1 where one of them predicts nothing."""
        code, peer = self.common(codes[:, a]), self.common(codes[:, b])
        return np.where((code < 0) | (peer < 0), -1, code * (len(self.classes) + 1) + peer)

    def context(self, step: Step) -> Step:
        """Return the answers of a set that count."""
        return step[-self.memory :]

    def weights_of(self, step: Step, answer: int) -> Floats:
        """Return the weights of an answer in a set."""
        if (step, answer) in self.weights:
            return self.weights[step, answer]
        masked = self.masked[answer]
        peers = [masked[HEAD + PEER * b : HEAD + PEER * (b + 1)] for b in step if b != answer]
        return np.concatenate([masked[:HEAD], *peers])

    def view(self, answers: Seen) -> View:
        """Return x, its owner, and q of inputs, each computed when it is first needed."""
        return View(self, answers)

    def risks(self, answers: Seen) -> Floats:
        """Return the chance that each answer is wrong, shape (T, n); NaN where there is none."""
        view, risks = self.view(answers), np.full(answers.confidence.shape, np.nan)
        for step, rows in by_pattern(answers.answered):
            context = self.context(step)
            if context:
                risks[rows[:, None], list(context)] = chance(view.odds(context)[rows])
        return risks

    def not_asked(self, size: int, node: int, z: Floats, bar: Floats, x: Floats) -> Floats:
        """Return the chance that a node errs that is not among the ``size`` asked."""
        if self.first is None or self.later is None:
            return np.zeros(len(x))
        odds = q_odds(self.first[node], self.later[node], size, z, bar, x)
        return chance(on_grid(odds, MAX_ODDS))

    @cached_property
    def code_of(self) -> Mapping[str, int]:
        """The number of each class."""
        return {text: code for code, text in enumerate(self.classes)}

    @cached_property
    def scorer(self) -> Scorer:
        """The same for one input, in plain Python."""
        return Scorer(self)


def by_pattern(pattern: Bools) -> list[tuple[Step, Ints]]:
    """Return the sets of nodes that are true in some row, each with its rows."""
    if not len(pattern):
        return []
    if pattern.all():  # the usual case, without a sort of all rows
        return [(tuple(range(pattern.shape[1])), np.arange(len(pattern)))]
    # Numbers in place of rows: sorting them takes a tenth of the time.
    places = 1 << np.arange(pattern.shape[1], dtype=object if pattern.shape[1] > 62 else int)[::-1]
    _, first, number = np.unique(pattern @ places, return_index=True, return_inverse=True)
    return [
        (tuple(np.flatnonzero(pattern[row]).tolist()), np.flatnonzero(number == k))
        for k, row in enumerate(first)
    ]


def q_odds(
    first: Sequence[float], later: Sequence[float], size: int, z: Number, bar: Number, x: Number
) -> Number:
    """Return the log-odds that a node errs, before it is asked and after ``size`` answers."""
    if not size:
        return first[0] + first[1] * z + first[2] * bar
    odds = later[0] + later[1] * z + later[2] * bar + later[3] * x + later[4] * (x * z)
    return odds + (later[5] * (size == 2) + later[6] * (size == 3))


class View:
    """What a belief says of T inputs."""

    def __init__(self, belief: Belief, answers: Seen) -> None:
        self.belief = belief
        if not belief.agree:
            answers = Seen(answers.confidence, None, answers.prior)
        self.answers = answers
        self.curve = belief.curve_odds(answers.confidence)
        self.offset = self._offsets()
        self.bar = None if answers.prior is None else bar_of(answers.prior)
        self._draw_to_prior()
        self._best: dict[Step, tuple[Floats, Ints]] = {}
        self._chances: dict[tuple[Step, int], Floats] = {}
        self._states: dict[Step, Floats] = {}
        self._pair: dict[tuple[int, int], Floats] = {}

    def _offsets(self) -> Floats:
        """Return what the class of each answer adds, shape (T, n)."""
        codes, offset = self.answers.codes, np.zeros(self.answers.confidence.shape)
        for v, table in enumerate(self.belief.offsets):
            if codes is not None and len(table):
                code = self.belief.common(codes[:, v])
                offset[:, v] = np.where(code < 0, 0.0, table[code])
        return offset

    def _draw_to_prior(self) -> None:
        """Draw the log-odds of each answer to what the input says, where inputs are used."""
        prior, head, bar = self.answers.prior, self.belief.head, self.bar
        if head is None or prior is None or bar is None:
            return
        constant, w_total, w_prior, w_bar = head.T
        total = self.curve + self.offset
        logit = constant + w_total * total + w_prior * prior + w_bar * bar[:, None]
        # Less the offset, so that curve and offset add up to what the head says.
        self.curve = on_grid(logit, MAX_ODDS) - self.offset

    def columns(self, step: Step, answer: int) -> Floats:
        """Return the columns of a regression, shape (T, HEAD + PEER (|S| - 1))."""
        rows, codes = len(self.answers), self.answers.codes
        columns = np.zeros((rows, HEAD + PEER * (len(step) - 1)))
        columns[:, 0] = 1
        columns[:, 1], columns[:, 2] = self.curve[:, answer], self.offset[:, answer]
        if self.bar is not None:
            columns[:, 3] = self.bar
        at = HEAD
        for b in step:
            if b == answer:
                continue
            if codes is None:
                columns[:, at + 2] = self.curve[:, b]
            else:
                same = (codes[:, answer] == codes[:, b]) & (codes[:, b] >= 0)
                columns[:, at] = same
                columns[:, at + 1] = same * self.curve[:, b]
                columns[:, at + 2] = ~same * self.curve[:, b]
                columns[:, at + 3] = ~same * self.offset[:, b]
                if (answer, b) in self.belief.pairs:
                    columns[:, at + 4] = self.pair(answer, b)
            at += PEER
        return columns

    def pair(self, a: int, b: int) -> Floats:
        """Return what the classes of both add to the log-odds of a."""
        if (a, b) not in self._pair:
            codes = self.answers.codes
            assert codes is not None  # noqa: S101 - there are pairs only with codes
            keys = self.belief.pair_keys(codes, a, b)
            self._pair[a, b] = self.belief.pairs[a, b](keys)
        return self._pair[a, b]

    def odds(self, step: Step) -> Floats:
        """Return the log-odds of each answer of a set, shape (T, |S|)."""
        if len(step) == 1:
            v = step[0]
            return np.clip(self.curve[:, [v]] + self.offset[:, [v]], -MAX_ODDS, MAX_ODDS)
        # Each answer by its own regression: what a peer says of it depends on both.
        odds = np.stack(
            [self.columns(step, a) @ self.belief.weights_of(step, a) for a in step], axis=1
        )
        if self.answers.codes is not None:
            codes = self.answers.codes[:, list(step)]
            same = (codes[:, :, None] == codes[:, None, :]) & (codes >= 0)[:, :, None]
            same |= np.eye(len(step), dtype=bool)
            odds = (same @ odds[:, :, None])[:, :, 0] / same.sum(axis=2)
        return on_grid(odds, MAX_ODDS)

    def best(self, step: Step) -> tuple[Floats, Ints]:
        """Return x and its owner, of equals the first, shape (T,) each; -1 before any answer."""
        if not step:
            return np.full(len(self.answers), NOTHING), np.full(len(self.answers), -1)
        if step not in self._best:
            context = self.belief.context(step)
            odds = self.odds(context)
            column = odds.argmin(axis=1)
            self._best[step] = odds[np.arange(len(odds)), column], np.array(context)[column]
        return self._best[step]

    def state(self, step: Step) -> Floats:
        """Return s, by which going on is decided, shape (T,)."""
        if step not in self._states:
            x, owner = self.best(step)
            shift, codes = self.belief.shifts.get(step), self.answers.codes
            if shift is not None and codes is not None:
                code = self.belief.common(codes[np.arange(len(x)), owner])
                x = np.clip(x + np.where(code < 0, 0.0, shift[code]), -MAX_ODDS, MAX_ODDS)
            self._states[step] = x
        return self._states[step]

    def q(self, step: Step, node: int) -> Floats:
        """Return the chance that a node not asked errs, shape (T,); 0 where inputs are not used."""
        if (step, node) not in self._chances:
            prior, bar, q = self.answers.prior, self.bar, np.zeros(len(self.answers))
            if prior is not None and bar is not None:
                x = self.best(step)[0] if step else bar
                q = self.belief.not_asked(len(step), node, prior[:, node], bar, x)
            self._chances[step, node] = q
        return self._chances[step, node]

    @cached_property
    def typical(self) -> Floats:
        """The chance of the mean log-odds that the input says, shape (T,); 0 without inputs."""
        return np.zeros(len(self.answers)) if self.bar is None else chance(self.bar)


_Regression = tuple[int, list[float], list[tuple[Any, ...]]]
"""Of an answer: its number, the first weights, and those of each answer beside it."""


class Scorer:
    """What a belief says of one input, in plain Python: the same as ``View``, bit for bit."""

    def __init__(self, belief: Belief) -> None:
        self.belief = belief
        self.bounds = [bounds.tolist() for bounds in belief.bounds]
        self.levels = [levels.tolist() for levels in belief.levels]
        self.offsets = [offsets.tolist() for offsets in belief.offsets]
        self.pairs = {
            pair: dict(zip(cells.keys.tolist(), cells.values.tolist(), strict=True))
            for pair, cells in belief.pairs.items()
        }
        self.width = len(belief.classes) + 1
        self.head = None if belief.head is None else belief.head.tolist()
        self.first = None if belief.first is None else belief.first.tolist()
        self.later = None if belief.later is None else belief.later.tolist()
        self.weights: dict[Step, list[_Regression]] = {}
        self.shifts: dict[Step, list[float]] = {
            step: shift.tolist() for step, shift in belief.shifts.items()
        }

    def state(self, step: Step, x: float, code: int) -> float:
        """Return s, given x and the class of its owner."""
        shift = self.shifts.get(step)
        if shift is None or code < 0:
            return x
        return min(max(x + shift[min(code, self.width - 1)], -MAX_ODDS), MAX_ODDS)

    def evidence(
        self, node: int, confidence: float, code: int, prior: Sequence[float] | None, bar: float
    ) -> tuple[float, float]:
        """Return the curve's log-odds of an answer, and what its class adds."""
        curve = self.levels[node][bisect_right(self.bounds[node], confidence)]
        table = self.offsets[node]
        offset = table[min(code, len(table) - 1)] if table and code >= 0 else 0.0
        if self.head is None or prior is None:
            return curve, offset
        a, b, c, d = self.head[node]
        logit = round((a + b * (curve + offset) + c * prior[node] + d * bar) * GRID) / GRID
        return min(max(logit, -MAX_ODDS), MAX_ODDS) - offset, offset

    def odds(
        self,
        step: Step,
        curve: Sequence[float],
        offset: Sequence[float],
        codes: Sequence[int],
        bar: float,
    ) -> list[float]:
        """Return the log-odds of each answer of a set."""
        if len(step) == 1:
            v = step[0]
            return [min(max(curve[v] + offset[v], -MAX_ODDS), MAX_ODDS)]
        totals, width = [], self.width
        for a, (constant, w_curve, w_offset, w_bar), peers in self._regressions(step):
            code = codes[a]
            total = constant + w_curve * curve[a] + w_offset * offset[a] + w_bar * bar
            for b, same, same_curve, diff_curve, diff_offset, pair, table in peers:
                peer = codes[b]
                if code == peer and code >= 0:
                    total += same + same_curve * curve[b]
                else:
                    total += diff_curve * curve[b] + diff_offset * offset[b]
                if table is not None and code >= 0 and peer >= 0:
                    key = min(code, width - 1) * width + min(peer, width - 1)
                    total += pair * table.get(key, 0.0)
            totals.append(total)
        classes = [codes[v] for v in step if codes[v] >= 0]
        if len({*classes}) < len(classes):
            shared = []
            for a in step:
                alike = [b == a or codes[b] == codes[a] >= 0 for b in step]
                shared.append(sum(compress(totals, alike)) / sum(alike))
            totals = shared
        return [min(max(round(t * GRID) / GRID, -MAX_ODDS), MAX_ODDS) for t in totals]

    def _regressions(self, step: Step) -> list[_Regression]:
        if step not in self.weights:
            self.weights[step] = regressions = list[_Regression]()
            for a in step:
                weights = self.belief.weights_of(step, a).tolist()
                peers = [b for b in step if b != a]
                parts = [weights[HEAD + PEER * k :][:PEER] for k in range(len(peers))]
                listed = [
                    (b, *part, self.pairs.get((a, b))) for b, part in zip(peers, parts, strict=True)
                ]
                regressions.append((a, weights[:HEAD], listed))
        return self.weights[step]

    def q(
        self, step: Step, node: int, x: float, prior: Sequence[float] | None, bar: float
    ) -> float:
        """Return the chance that a node not asked errs; 0 where inputs are not used."""
        if self.first is None or self.later is None or prior is None:
            return 0.0
        odds = q_odds(self.first[node], self.later[node], len(step), prior[node], bar, x)
        return chance_of(min(max(round(odds * GRID) / GRID, -MAX_ODDS), MAX_ODDS))
