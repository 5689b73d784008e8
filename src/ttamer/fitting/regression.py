"""How a belief is fitted: small logistic regressions, drawn towards what is already known.

Curve: log-odds of being wrong by confidence. Tents on the log-odds of its rank, bends penalised,
then monotone, in the direction that fits better, and a step function of at most ``Curve.bins``.

Class offsets, and pair tables by two classes: :func:`ttamer.stats.logistic.class_offsets`.

A set S and answer a: wrong[a] on the columns of :class:`~ttamer.fitting.belief.View`, drawn to the
answer's own log-odds, with ridge ``4 + 5000 / rows``. A set of few rows has the masked regression
of a, which is fitted once, on rows with random answers left out. (As what the others are drawn to
it lost 3% and 6% of area on splits of two logs of nine LLMs.) Every regression takes the rows where
what it needs is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ttamer.fitting.belief import (
    HEAD,
    PEER,
    Belief,
    Floats,
    Ints,
    PairTable,
    Seen,
    Step,
    View,
    on_grid,
)
from ttamer.stats.envelope import rising
from ttamer.stats.logistic import class_offsets, log_odds, logistic, sigmoid


@dataclass(frozen=True, eq=False)
class Curve:
    """Log-odds of being wrong by confidence: a monotone step function."""

    bounds: Floats  # rising confidences: a bin begins at its lower bound
    levels: Floats  # (bounds + 1,): the log-odds of each bin, multiples of 2**-12

    bins = 256
    knots = 10
    bend = 3.0  # the penalty of bends, per row
    size = 0.1  # and of the tents themselves
    limit = 7.0
    switch = 6.0  # a curve falls with confidence unless rising fits better by this much log-loss

    def __call__(self, confidence: Floats) -> Floats:
        """Return the log-odds of confidences."""
        return self.levels[np.searchsorted(self.bounds, confidence, side="right")]

    @classmethod
    def fit(
        cls, confidence: Floats, losses: Floats, *, base: Curve | None = None, size: float = size
    ) -> Curve:
        """Fit a curve to confidences, ``-inf`` for an answer without one, and losses in [0, 1].

        It is drawn to the curve ``base``, or to the mean loss, by a penalty of this size.
        """
        mean = log_odds((losses.sum() + 0.5) / (len(losses) + 1))
        edges = np.unique(
            np.quantile(confidence, np.linspace(0, 1, cls.bins + 1)[1:-1], method="higher")
            if len(confidence)
            else np.empty(0)
        )
        edges = edges[np.isfinite(edges)]
        number = np.searchsorted(edges, confidence, side="right")
        rows = np.bincount(number, minlength=len(edges) + 1).astype(float)
        full = rows > 0
        start = np.full(len(rows), mean) if base is None else base(np.append(-np.inf, edges))
        if full.sum() < 2:
            return cls(edges, on_grid(start, cls.limit))
        bad = np.bincount(number, losses, len(rows))[full]
        rows, offset = rows[full], start[full]
        # By rank: the scale of a confidence does not matter. Log-odds give the tails room.
        rank = log_odds((np.cumsum(rows) - rows / 2) / rows.sum())
        at = np.linspace(rank[0], rank[-1], min(cls.knots, len(rank)))
        tents = np.stack([np.interp(rank, at, tent) for tent in np.eye(len(at))], axis=1)
        bend = np.diff(np.eye(len(at)), 2, axis=0)
        penalty = cls.bend * bend.T @ bend + size * np.eye(len(at))
        h = np.zeros(len(at))
        for _ in range(12):
            p = sigmoid(offset + tents @ h)
            v = rows * p * (1 - p) + 1e-9
            gradient = tents.T @ (rows * p - bad) + penalty @ h
            h -= np.clip(np.linalg.solve((tents * v[:, None]).T @ tents + penalty, gradient), -2, 2)
        free = offset + tents @ h
        # Some services report doubt, not confidence: the direction is the one that fits.
        falls, rises = -rising(-free, rows), rising(free, rows)
        loss = [rows @ np.logaddexp(0, odds) - bad @ odds for odds in (falls, rises)]
        best = rises if loss[0] - loss[1] > cls.switch else falls
        # An empty bin takes the level of the one below it.
        return cls(edges, on_grid(best[np.maximum(np.cumsum(full) - 1, 0)], cls.limit))


@dataclass(frozen=True)
class BeliefOptions:
    """How a belief is fitted."""

    memory: int = 99  # how many of the last answers count; few for the exits of one network
    # Whether curves are drawn to one curve of all nodes: for the exits of one network
    pooled: bool = False
    pairs: bool = True  # whether pairs of classes add something
    seed: int = 0


class BeliefFit(View):
    """A belief fitted to rows, and their view: each row's offsets are those without the row.

    Losses (T, n) are in [0, 1], NaN where not known. Each of the ``sets`` has regressions of its
    own, in which rows have a ``weight``. ``classes`` are the texts of the first codes.
    """

    min_rows = 20  # with fewer rows a regression is what it is drawn to
    min_corrected = 20  # with fewer errors that later exits correct there are no shifts
    nearness = 0.7  # of later exits each counts this many times as much as the one before it

    def __init__(
        self,
        answers: Seen,
        losses: Floats,
        sets: Sequence[Step],
        classes: tuple[str, ...],
        weight: Floats | None,
        options: BeliefOptions,
    ) -> None:
        self.losses, self.labelled = losses, answers.answered & ~np.isnan(losses)
        self.sets, self.weight, self.options = sets, weight, options
        self.rng = np.random.default_rng(options.seed)
        self._without_row, pairs = np.zeros(losses.shape), dict[tuple[int, int], Floats]()
        belief = self._curves(answers, classes)
        if answers.codes is not None:
            belief, pairs = self._class_offsets(belief, answers, answers.codes)
        super().__init__(belief, answers)
        self._pair = pairs
        if answers.prior is not None:
            self._fit_head()
        self._fit_masked()
        self._fit_sets()
        if self.options.pooled and answers.codes is not None and len(classes) > 2:
            self._fit_shifts(answers.codes)
        if answers.prior is not None:
            self._fit_not_asked()

    def _offsets(self) -> Floats:
        return self._without_row

    def _curves(self, answers: Seen, classes: tuple[str, ...]) -> Belief:
        """Fit a curve to each node."""
        nodes, base, size = self.losses.shape[1], None, Curve.size
        if self.options.pooled:
            on = self.labelled
            # Exits of one network rate their answers alike: each curve is drawn to one of all.
            base, size = Curve.fit(answers.confidence[on], self.losses[on]), 1.0
        curves = [
            Curve.fit(answers.confidence[on, v], self.losses[on, v], base=base, size=size)
            for v, on in enumerate(self.labelled.T)
        ]
        return Belief(
            classes=classes,
            bounds=tuple(curve.bounds for curve in curves),
            levels=tuple(curve.levels for curve in curves),
            offsets=(np.empty(0),) * nodes,
            pairs={},
            weights={},
            masked=np.zeros((nodes, HEAD + PEER * nodes)),
            memory=self.options.memory,
        )

    def _class_offsets(
        self, belief: Belief, answers: Seen, codes: Ints
    ) -> tuple[Belief, dict[tuple[int, int], Floats]]:
        """Fit class offsets and pair tables; return those of each row without the row, too."""
        tables: list[Floats] = []
        odds, count = belief.curve_odds(answers.confidence), len(belief.classes) + 1
        for v, on in enumerate(self.labelled.T):
            classes = belief.common(codes[on, v])
            table, row = class_offsets(classes, count, odds[on, v], self.losses[on, v])
            tables.append(on_grid(table))
            self._without_row[on, v] = on_grid(row)
        odds = odds + self._without_row
        pairs: dict[tuple[int, int], PairTable] = {}
        rows: dict[tuple[int, int], Floats] = {}
        for a, b in permutations(range(len(tables)), 2) if self.options.pairs else ():
            keys = belief.pair_keys(codes, a, b)
            on = self.labelled[:, a] & answers.answered[:, b] & (keys >= 0)
            if on.sum() < self.min_rows:
                continue
            cells, number = np.unique(keys[on], return_inverse=True)
            table, row = class_offsets(number, len(cells), odds[on, a], self.losses[on, a])
            values = on_grid(table)
            pairs[a, b] = PairTable(cells[values != 0], values[values != 0])
            rows[a, b] = np.zeros(len(answers))
            rows[a, b][on] = on_grid(row)
        return replace(belief, offsets=tuple(tables), pairs=pairs), rows

    def _fit_head(self) -> None:
        """Fit how an answer's evidence and the input go together; drawn to the evidence."""
        ridge, centre = np.array([0, 4.0, 8.0, 8.0]), np.array([0, 1.0, 0, 0])
        heads = np.tile(centre, (self.belief.count, 1))
        for v, on in enumerate(self.labelled.T):
            columns = self._of_input(v, self.curve[:, v] + self.offset[:, v])[on]
            if on.sum() >= self.min_rows:
                heads[v] = logistic(columns, self.losses[on, v], ridge, centre)
        self.belief = replace(self.belief, head=on_grid(heads))
        self._draw_to_prior()

    def _of_input(self, node: int, *evidence: Floats) -> Floats:
        """Return columns: a constant, evidence, what the input says of a node and on the mean."""
        assert self.answers.prior is not None and self.bar is not None  # noqa: S101, PT018 - checked
        constant = np.ones(len(self.bar))
        return np.stack([constant, *evidence, self.answers.prior[:, node], self.bar], axis=1)

    def _drawn(self, columns: Floats, node: int, rows: Ints) -> Floats:
        """Return the regression of a node's loss on its evidence and peers, on some rows."""
        centre = np.zeros(columns.shape[1])
        centre[1:3] = 1  # its own curve and offset
        ridge = 4.0 + 5000.0 / max(len(rows), 50)
        weight = None if self.weight is None else self.weight[rows]
        losses = self.losses[rows, node]
        return on_grid(logistic(columns, losses, ridge, centre, weight, tolerance=1e-5))

    def _fit_masked(self) -> None:
        """Fit one regression per answer, on rows with random other answers left out."""
        nodes = self.belief.count
        masked = np.zeros((nodes, HEAD + PEER * nodes))
        masked[:, 1:3] = 1
        members = sorted({v for step in self.sets for v in step})
        most_peers = min(max(map(len, self.sets)), self.options.memory) - 1
        for a in members if len(members) > 1 else ():
            on = np.flatnonzero(self.labelled[:, a])
            if len(on) < self.min_rows:
                continue
            peers = [b for b in members if b != a]
            # The first so many of a random order; those that never came are left out besides.
            order = self.rng.random((len(on), len(peers))).argsort(axis=1).argsort(axis=1)
            shown = order < self.rng.integers(0, most_peers + 1, size=(len(on), 1))
            shown &= self.answers.answered[on][:, peers]
            columns = self.columns(tuple(members), a)[on]
            columns[:, HEAD:] *= np.repeat(shown, PEER, axis=1)
            cells = HEAD + PEER * np.array(peers)[:, None] + np.arange(PEER)
            masked[a, [*range(HEAD), *cells.ravel()]] = self._drawn(columns, a, on)
        self.belief = replace(self.belief, masked=masked)

    def _fit_sets(self) -> None:
        """Fit one regression per set and answer, drawn to its own log-odds."""
        weights: dict[tuple[Step, int], Floats] = {}
        for context in dict.fromkeys(map(self.belief.context, self.sets)):
            answered = self.answers.answered[:, list(context)].all(axis=1)
            for a in context if len(context) > 1 else ():
                on = np.flatnonzero(answered & self.labelled[:, a])
                if len(on) >= self.min_rows:
                    weights[context, a] = self._drawn(self.columns(context, a)[on], a, on)
        self.belief = replace(self.belief, weights=weights)

    def _fit_shifts(self, codes: Ints) -> None:
        """Fit what the class of the best answer says of the errors that later exits correct."""
        shifts = dict[Step, Floats]()
        rows = np.flatnonzero(self.labelled.all(axis=1))
        for step in self.sets:
            later = self.losses[rows, max(step) + 1 :]
            near = self.nearness ** np.arange(later.shape[1])
            x, owner = self.best(step)
            x, owner = x[rows], owner[rows]
            if not near.size:
                continue
            lost = self.losses[rows, owner]
            corrected = np.maximum(lost - later @ near / near.sum(), 0.0)
            if corrected.sum() < self.min_corrected:
                continue
            columns = np.column_stack([np.ones(len(rows)), x])
            weights = logistic(columns, corrected, 1.0, np.array([0.0, 1.0]))
            classes, count = self.belief.common(codes[rows, owner]), len(self.belief.classes) + 1
            table, _ = class_offsets(classes, count, columns @ weights, corrected)
            shifts[step] = on_grid(table / max(weights[1], 0.1), 4.0)
        self.belief = replace(self.belief, shifts=shifts)

    def _fit_not_asked(self) -> None:
        """Fit, for each node, the chance that it errs before it is asked: at the start, later."""
        nodes, largest = self.belief.count, max(map(len, self.sets))
        first, later = np.zeros((nodes, 3)), np.zeros((nodes, 7))
        first[:, 1] = later[:, 1] = 1
        for m, on in enumerate(self.labelled.T):
            if on.sum() >= self.min_rows:
                columns = self._of_input(m)[on]
                first[m] = logistic(columns, self.losses[on, m], 4.0, first[m])
            before = [step for step in self.sets if m not in step and len(step) < largest]
            parts, targets = [], []
            for step in before:
                rows = np.flatnonzero(on & self.answers.answered[:, list(step)].all(axis=1))
                # Enough rows for seven weights; more would only cost time.
                rows = self.rng.permutation(rows)[: max(200, 6000 // len(before))]
                columns, x = self._of_input(m)[rows], self.best(step)[0][rows]
                product = 0.3 * x * columns[:, 1]  # scaled: products vary more
                sizes = np.ones((len(rows), 2)) * [len(step) == 2, len(step) == 3]
                parts.append(np.column_stack([columns, x, product, sizes]))
                targets.append(self.losses[rows, m])
            if sum(map(len, targets)) >= self.min_rows:
                later[m] = logistic(np.concatenate(parts), np.concatenate(targets), 8.0, later[m])
                later[m, 4] *= 0.3
        self.belief = replace(self.belief, first=on_grid(first), later=on_grid(later))
