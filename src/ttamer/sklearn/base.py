"""What cascades of scikit-learn models share: parameters, cross-fitting, costs and decisions.

A model is never judged on rows it learnt from. Each model is fitted on all folds but one and
answers on that one; the answers form the trace that the policy is fitted to. Then each model is
fitted again on all rows. Certificates need rows that these final models answer.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import check_cv
from sklearn.utils import get_tags
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from ttamer._checks import percent, require_whole
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import MIN_ROWS, fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy
from ttamer.runtime.calling import rows_at
from ttamer.runtime.cascade import BatchOutcome, groups_to_ask
from ttamer.trace.trace import Trace

Table = Any  # an array, a sparse matrix, a frame, or a list of texts
Column = NDArray[Any] | None
Folds = list[tuple[NDArray[np.intp], NDArray[np.intp]]]  # rows to learn from, and to answer


class Replies(NamedTuple):
    """The replies of one model to some rows."""

    code: NDArray[np.intp]  # (rows,): the class, by its number; -1 of a regressor
    confidence: NDArray[np.float64]  # (rows,)
    answer: NDArray[Any]  # (rows, ...): what the estimator returns

    def at(self, rows: NDArray[Any]) -> Replies:
        """Return the replies to some of the rows."""
        return Replies(*(column[rows] for column in self))


class Decided(NamedTuple):
    """What a cascade did on some rows."""

    replies: Replies  # those that are returned
    by: NDArray[np.intp]  # (rows,): the model whose answer that is
    asked: NDArray[np.bool_]  # (rows, models)
    cost: NDArray[np.float64]  # (rows,)


class Learning(NamedTuple):
    """What models and the policy learn from."""

    rows: Table
    target: NDArray[Any]
    groups: Column  # (rows,): rows of one group are never split
    weight: Column  # (rows,): how much a row counts
    training: Column  # for models that take weights: its class counts, too
    splitter: Any  # into folds

    def counted(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those rows whose weight is not zero."""
        return rows if self.weight is None else rows[self.weight[rows] > 0]

    def fitted(self, model: Any, rows: NDArray[np.intp]) -> Any:
        """Return a clone of a model that was fitted to some rows."""
        rows, options = self.counted(rows), {}
        if self.training is not None and has_fit_parameter(model, "sample_weight"):
            options["sample_weight"] = self.training[rows]
        return clone(model).fit(rows_at(self.rows, rows), self.target[rows], **options)


class CallTiming(NamedTuple):
    """The time of a call, in microseconds: so much per call, and so much per row.

    >>> CallTiming(100.0, 2.0).of(32)
    164.0
    """

    # What a call takes, however many rows it has
    per_call: float
    per_row: float

    def of(self, rows: int) -> float:
        """Return the time of a call with some rows."""
        return self.per_call + self.per_row * rows

    @classmethod
    def through(cls, times: Mapping[int, float]) -> CallTiming:
        """Return the line of least relative error through times of calls by their rows.

        >>> [round(number, 3) for number in CallTiming.through({1: 12.0, 8: 26.0, 64: 138.0})]
        [10.0, 2.0]
        """
        rows, seconds = np.array([*times], float), np.array([*times.values()])
        columns = np.stack([1 / seconds, rows / seconds], axis=1)
        # Whatever the noise, neither is negative.
        return cls(*nnls(columns, np.ones(len(rows)))[0].tolist())


def clock(
    works: Mapping[str, Callable[..., object]], samples: Mapping[int, Sequence[tuple[Any, ...]]]
) -> dict[str, dict[int, float]]:
    """Return the microseconds of each work, by the rows of batches, which are its arguments."""
    results: dict[str, dict[int, float]] = {name: {} for name in works}
    for size, batches in samples.items():
        times = np.full((len(works), len(batches)), np.inf)
        start, turns = time.perf_counter(), 0
        # The machine's speed changes: works take turns, and of at least five turns the fastest is
        # the least disturbed. The first one warms caches up and does not count.
        while turns < 6 or (time.perf_counter() - start < 0.1 and turns < 50):
            for column, batch in enumerate(batches):
                for row, work in enumerate(works.values()):
                    before = time.perf_counter()
                    work(*batch)
                    if turns:
                        times[row, column] = min(times[row, column], time.perf_counter() - before)
            turns += 1
        for name, seconds in zip(works, times.mean(axis=1).tolist(), strict=True):
            results[name][size] = 1e6 * seconds
    return results


def _lines(times: Mapping[str, Mapping[int, float]]) -> dict[str, CallTiming]:
    return {name: CallTiming.through(of_sizes) for name, of_sizes in times.items()}


class CascadeEstimator(BaseEstimator):
    """A cascade of models, fitted by cross-fitting; the kind of answer is left to subclasses."""

    models: Any
    models_: list[tuple[str, Any]]
    costs_: dict[str, float]
    timings_: dict[str, CallTiming]
    trace_: Trace | None
    ladder_: FittedLadder | None
    policy_: FittedPolicy | None
    best_model_: str
    # The policy that was timed, and by the size of batches whether the best model was as fast.
    _timed_policy: FittedPolicy | None
    _alone_at: dict[int, bool]

    @abstractmethod
    def _target(self, y: Any) -> NDArray[Any]:
        """Return the target as the models take it."""

    @abstractmethod
    def _prepared(self, learning: Learning) -> Learning:
        """Note what replies need, and return rows with a splitter, and weights for models."""

    @abstractmethod
    def _replies(self, name: str, model: Any, rows: Table) -> Replies:
        """Return the replies of a model."""

    @abstractmethod
    def _columns(self, replies: Sequence[Replies], target: NDArray[Any]) -> dict[str, Any]:
        """Return the columns of a trace of replies: predictions and labels, or losses."""

    @abstractmethod
    def _returned(self, replies: Replies) -> NDArray[Any]:
        """Return what ``predict`` returns of replies."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with those of the models as ``<name>__<parameter>``.

        Args:
            deep: Whether to include the models and their parameters.

        Returns:
            The parameters by name.
        """
        params: dict[str, Any] = super().get_params(deep=False)
        if deep and _are_named(self.models):
            for name, model in self.models:
                inner = model.get_params().items()
                params |= {name: model, **{f"{name}__{key}": value for key, value in inner}}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, those of the models as ``<name>__<parameter>``.

        Args:
            **params: The new values by name.

        Returns:
            The estimator itself.
        """
        self.models = params.pop("models", self.models)  # before what is in them
        if _are_named(self.models) and not params.keys().isdisjoint(dict(self.models)):
            self.models = [(name, params.pop(name, model)) for name, model in self.models]
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if _are_named(self.models):  # fit refuses others
            inner = [get_tags(model).input_tags for _, model in self.models]
            tags.input_tags.sparse = all(tag.sparse for tag in inner)
            tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        return tags

    def fit(
        self,
        X: Table,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        certify_on: tuple[Any, ...] | None = None,
    ) -> Self:
        """Fit the models, and the policy to their answers on rows kept from them.

        Args:
            X: The rows, as the models take them.
            y: Shape (rows,): the classes, or the target.
            sample_weight: Shape (rows,): how much each row counts, for the policy and for models
                that take weights.
            groups: Shape (rows,): what rows have in common, such as a user; folds split no group.
            certify_on: Further rows ``(X, y)``, or ``(X, y, groups)``, kept from models and policy:
                ``ladder_.for_error`` and ``ladder_.for_drop`` are certified on them, and without
                them refused.

        Returns:
            The estimator itself.

        Raises:
            ArgumentError: A parameter cannot be used.
            ValueError: The rows cannot be used, or have a single class.
        """
        rows, target = self._checked(X, reset=True), self._target(y)
        self._check_parameters(certify_on)
        if len(target) < 2:
            raise ValueError("there is 1 sample; cross-fitting needs at least 2 samples")
        groups = None if groups is None else np.asarray(groups)
        check_consistent_length(rows, target, groups)
        weight = _weights(sample_weight, target)
        learning = self._prepared(Learning(rows, target, groups, weight, weight, self.cv))
        folds = _folds(learning)
        order = np.concatenate([answered for _, answered in folds])
        replies = [self._cross_fitted(name, model, learning, folds) for name, model in self.models]
        everything = np.arange(len(target))
        self.models_ = [(name, learning.fitted(model, everything)) for name, model in self.models]
        self.timings_, samples = {}, {}
        if isinstance(self.costs, Mapping):
            self.costs_ = {name: float(self.costs[name]) for name, _ in self.models_}
        else:
            samples = _samples(rows, order, replies, self.batch)

            def asking(name: str, model: Any) -> Callable[..., Replies]:
                return lambda rows, _: self._replies(name, model, rows)

            works = {name: asking(name, model) for name, model in self.models_}
            self.timings_ = _lines(clock(works, samples))
            self.costs_ = {n: line.of(self.batch) / self.batch for n, line in self.timings_.items()}
        target = target[order]
        groups, weight = (None if c is None else c[order] for c in (groups, weight))
        trace = self._trace(replies, target, groups, weight)
        losses = np.average(np.asarray(trace.loss), axis=0, weights=weight)
        self.best_model_ = trace.names[int(np.argmin(losses))]
        self.trace_ = self.ladder_ = self.policy_ = self._timed_policy = None
        if len(trace) < MIN_ROWS:
            return self
        # The trace is of other models, those of the folds.
        ladder = dataclasses.replace(fit(trace), held=None)
        if certify_on is not None:
            held, labels, *of_held = certify_on
            held, labels = self._checked(held, reset=False), self._target(labels)
            answers = [self._replies(name, model, held) for name, model in self.models_]
            groups = np.asarray(of_held[0]) if of_held else None
            check_consistent_length(held, labels, groups)
            ladder = ladder.with_holdout(self._trace(answers, labels, groups))
        if samples:  # a call for one row costs as much as one for a whole batch
            lines, played = [*self.timings_.values()], ladder.play_all(trace)
            costs = [_time(rows.asked, lines, self.batch) for rows in played]
            points = dataclasses.replace(ladder.points, cost=np.array(costs))
            ladder = dataclasses.replace(ladder, points=points)
        self.trace_, self.ladder_ = trace, ladder
        self.policy_ = self._operating_point(ladder, trace, target)
        if samples:
            best, alone = dict(self.models_)[self.best_model_], f"{self.best_model_} alone"
            times = clock(
                {"cascade": self._decide, alone: lambda rows, _: best.predict(rows)}, samples
            )
            self.timings_ |= _lines(times)
            # Less than a tenth is noise, and the model alone is never slower than itself.
            slow, fast = times["cascade"], times[alone]
            self._alone_at = {size: slow[size] > 0.9 * fast[size] for size in samples}
            self._timed_policy = self.policy_
        return self

    def predict(self, X: Table) -> NDArray[Any]:  # noqa: N803
        """Return the class of each row, or the prediction.

        Args:
            X: The rows, as the models take them.

        Returns:
            Shape (rows,): the classes, or the predictions.
        """
        if hasattr(self, "models_") and self._is_as_fast_alone(_count(X)):
            return np.ravel(dict(self.models_)[self.best_model_].predict(X))  # it checks the rows
        return self._returned(self._decide(X).replies)

    def _is_as_fast_alone(self, rows: int) -> bool:
        """Return whether the best model answers so many rows as fast as the policy."""
        if self._timed_policy is None or self.policy_ is not self._timed_policy:
            return False  # not timed, or another was chosen since
        # Beyond the largest size, what was measured there counts.
        return self._alone_at[min((s for s in self._alone_at if s >= rows), default=self.batch)]

    def run_batch(self, X: Table) -> BatchOutcome:  # noqa: N803
        """Return for each row the answer, the model that gave it, the models asked and the cost.

        Args:
            X: The rows, as the models take them.

        Returns:
            The outcome; ``answers`` and ``predictions`` are what ``predict`` returns.
        """
        start = time.monotonic()
        done = self._decide(X)
        answers = self._returned(done.replies).tolist()
        by = [self.models_[node][0] for node in done.by.tolist()]
        seconds = time.monotonic() - start
        return BatchOutcome(answers, answers, by, done.asked, done.cost, seconds, errors={})

    def _checked(self, rows: Table, *, reset: bool) -> Table:
        """Return rows that can be taken by position; what models refuse is refused at once.

        A policy may not ask the model that would refuse a row, so the checks are made here. Frames
        and texts are for the models to read.
        """
        if not (hasattr(rows, "shape") or isinstance(rows, list)):
            rows = np.asarray(rows)
        options: dict[str, Any] = {"skip_check_array": True}
        if getattr(getattr(rows, "dtype", None), "kind", "O") not in "OUS":
            finite = "allow-nan" if get_tags(self).input_tags.allow_nan else True
            options = {"accept_sparse": "csr", "dtype": None, "allow_nd": True}
            options["ensure_all_finite"] = finite
        rows = validate_data(self, rows, reset=reset, **options)
        if not _count(rows):
            raise ValueError("Found array with 0 sample(s): a minimum of 1 is required")
        return rows

    def _check_parameters(self, certify_on: Any) -> None:
        """Refuse parameters that cannot be used."""
        if not _are_named(self.models):
            raise ArgumentError(
                "models must be a list of (name, model), cheapest first, such as "
                f'[("small", clf1), ("large", clf2)]; got {self.models!r}',
                param="models",
            )
        names = [name for name, _ in self.models]
        reserved = {*super().get_params(deep=False), "cascade"}  # the latter in timings_
        for name in names:
            if names.count(name) > 1 or name in reserved or "__" in name:
                raise ArgumentError(
                    f"the name {name!r} cannot be used: each model needs one of its own, without "
                    '"__", other than "cascade" and the parameters of the cascade',
                    param="models",
                )
        is_priced = isinstance(self.costs, str) and self.costs == "time"
        if not (set(self.costs) == set(names) if isinstance(self.costs, Mapping) else is_priced):
            raise ArgumentError(
                f'costs is {self.costs!r}; it must be "time" or a mapping with a cost for each of '
                f"the models: {', '.join(map(repr, names))}",
                param="costs",
            )
        require_whole(self.batch, "batch", least=1)
        if isinstance(self.cv, int):
            require_whole(self.cv, "cv", least=2)
        if self.mistake_cost is not None and self.budget is not None:
            raise ArgumentError("mistake_cost and budget are both given; give one of them")
        if certify_on is not None and not (
            isinstance(certify_on, tuple) and len(certify_on) in (2, 3)
        ):
            raise ArgumentError(
                f"certify_on is a {type(certify_on).__name__}; it must be (X, y) or (X, y, groups)",
                param="certify_on",
            )

    def _cross_fitted(self, name: str, model: Any, learning: Learning, folds: Folds) -> Replies:
        """Return a model's replies to rows that it did not learn from."""
        parts = [
            self._replies(name, learning.fitted(model, learnt), rows_at(learning.rows, answered))
            for learnt, answered in folds
        ]
        return Replies(*map(np.concatenate, zip(*parts, strict=True)))

    def _trace(
        self, replies: Sequence[Replies], target: Any, groups: Column, weight: Column = None
    ) -> Trace:
        """Return the trace of replies; a call's time is shared by the rows of a stated batch."""
        nodes = [
            CascadeNode(name, line.per_row, cost_per_call=line.per_call)
            if (line := self.timings_.get(name))
            else CascadeNode(name, cost)
            for name, cost in self.costs_.items()
        ]
        columns = self._columns(replies, target)
        unit = "µs" if self.timings_ else ""
        spec = CascadeSpec(tuple(nodes), unit=unit, mistakes=columns.pop("mistakes", {}))
        if groups is not None:
            names, codes = np.unique(groups, return_inverse=True)
            columns |= {"group": codes.astype(np.int32), "groups": tuple(map(str, names))}
        if weight is not None:  # a fit weighs rows by how seldom they are drawn
            columns["chance"] = np.tile((weight.min() / weight)[:, np.newaxis], len(nodes))
        sure = np.stack([reply.confidence for reply in replies], axis=1)
        return Trace(spec, sure, cost=np.tile([*self.costs_.values()], (len(sure), 1)), **columns)

    def _operating_point(
        self, ladder: FittedLadder, trace: Trace, target: NDArray[Any]
    ) -> FittedPolicy:
        """Return one policy: a mixture of two would answer a row by its place in the batch."""
        del trace, target
        if self.mistake_cost is not None:
            return ladder.for_mistake_cost(self.mistake_cost)
        if self.budget is not None:
            return ladder.for_budget(self.budget).cheap
        return ladder.default().expensive

    def _decide(self, rows: Table, known: Sequence[Replies] | None = None) -> Decided:
        """Ask the models that the policy chooses, for all rows of a round at once.

        ``known``: decide by these replies of the models, in place of those that they give now. An
        exception of a model is raised as it is.
        """
        check_is_fitted(self, "models_")
        rows = self._checked(rows, reset=False)
        count, policy, names = _count(rows), self.policy_, [name for name, _ in self.models_]
        asked, cost = np.zeros((count, len(names)), bool), np.zeros(count)
        parts: list[tuple[int, NDArray[np.intp], Replies]] = []

        def ask(node: int, group: NDArray[np.intp]) -> Replies:
            part = rows if len(group) == count else rows_at(rows, group)
            replies = self._replies(*self.models_[node], part)
            replies = replies if known is None else known[node].at(group)
            parts.append((node, group, replies))
            asked[group, node] = True
            timing = self.timings_.get(names[node])
            price = timing.of(len(group)) / len(group) if timing else self.costs_[names[node]]
            cost[group] += price
            return replies

        alone = policy.single_node if policy else self.best_model_
        if self._is_as_fast_alone(count):
            alone = self.best_model_
        if policy is None or alone is not None:
            by = np.full(count, names.index(alone or self.best_model_))
            return Decided(ask(int(by[0]), np.arange(count)), by, asked, cost)
        batch: Any = policy.batch(count)
        belief = policy.rule.tables.belief  # type: ignore[union-attr]  # steps decide
        number_of: Mapping[str, int] = belief.code_of
        classes = () if self.trace_ is None else self.trace_.classes
        numbers = (number_of.get(name, len(number_of) + k) for k, name in enumerate(classes))
        codes = np.array([*numbers, -1])
        for node, group in groups_to_ask(batch):
            replies = ask(node, group)
            sure = np.where(np.isnan(replies.confidence), -np.inf, replies.confidence)
            batch.observe_codes(group, sure, codes[replies.code])
        chosen = []
        for node, group, replies in parts:
            returned = batch.answer[group] == node
            chosen.append((group[returned], *replies.at(returned)))
        at, *columns = map(np.concatenate, zip(*chosen, strict=True))
        return Decided(Replies(*columns).at(np.argsort(at)), batch.answer, asked, cost)


def _time(asked: NDArray[np.bool_], lines: Sequence[CallTiming], batch: int) -> float:
    """Return the mean time of a row in batches of some size, given which models are asked."""
    share = asked.mean(axis=0)
    calls = 1 - (1 - share) ** batch  # the chance that some row of a batch asks
    per_call, per_row = np.array(lines).T
    return float(share @ per_row + calls @ per_call / batch)


def _folds(learning: Learning) -> Folds:
    """Return the rows to learn from and those to answer, the same for all models.

    A splitter that shuffles gives other folds each time it is asked.
    """
    target, groups = learning.target, learning.groups
    if groups is None and (share := _repeated(learning.rows)) > 0.05:
        warnings.warn(
            f"{percent(share)} of the rows repeat others, so that models are judged on rows "
            "they learnt from: leave repetitions out, or give groups= to keep them together",
            UserWarning,
            stacklevel=3,
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class in y", UserWarning)
        splitter = check_cv(learning.splitter, target)
        folds = list(splitter.split(np.zeros(len(target)), target, groups))
    return [(learnt, learning.counted(answered)) for learnt, answered in folds]


def _samples(
    rows: Table, order: NDArray[np.intp], replies: Sequence[Replies], batch: int
) -> dict[int, list[tuple[Table, list[Replies]]]]:
    """Return batches to time, by their size: rows, and the cross-fitted replies to them.

    Models are surer of rows that they have learnt from, and would be asked less often.
    """
    samples, draw = {}, np.random.default_rng(0).integers
    for size in sorted({1, max(8, batch // 8), batch}):
        # Several, and of small ones many, for rows ask different models.
        drawn = draw(len(order), size=(min(16, max(4, 64 // size)), size))
        samples[size] = [
            (rows_at(rows, order[part]), [reply.at(part) for reply in replies]) for part in drawn
        ]
    return samples


def _count(rows: Table) -> int:
    """Return the number of rows; a sparse matrix has no length."""
    rows = rows if hasattr(rows, "shape") or isinstance(rows, list) else np.asarray(rows)
    return len(rows) if isinstance(rows, list) else int(rows.shape[0])


def _weights(sample_weight: Any, target: NDArray[Any]) -> Column:
    """Return weights of rows; refuse others."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, np.float64)
    if weight.shape != target.shape or not ((weight >= 0).all() and weight.any()):
        raise ValueError(
            "sample_weight must be one number from 0 on for each row, and not all zero"
        )
    return weight


def _repeated(rows: Table) -> float:
    """Return the share of rows that repeat another; 0 where that may be chance.

    Texts and fractions seldom repeat by chance; whole numbers and categories do.
    """
    if isinstance(rows, list):
        return 1 - len(set(map(str, rows))) / len(rows)
    if hasattr(rows, "duplicated"):
        numbers = rows.select_dtypes("floating").to_numpy()
        return float(rows.duplicated().mean()) if (numbers % 1 != 0).any() else 0.0
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f" or not (rows % 1 != 0).any():
        return 0.0
    return 1 - len(np.unique(rows, axis=0)) / len(rows)


def _are_named(models: Any) -> bool:
    """Whether these are pairs of a name and a model, at least one."""
    pairs = models if isinstance(models, list | tuple) else [None]
    return len(pairs) > 0 and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    )
