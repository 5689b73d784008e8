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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils import assert_all_finite, get_tags
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
from ttamer.runtime.batching import BatchOutcome
from ttamer.sklearn.timing import Timing, clock, timings
from ttamer.trace.trace import Trace

Rows = Any


class Replies(NamedTuple):
    """The replies of one model to some rows."""

    code: NDArray[np.intp]
    """Shape (rows,): the class, by its number; -1 of a regressor."""
    confidence: NDArray[np.float64]
    """Shape (rows,)."""
    answer: NDArray[Any]
    """Shape (rows, ...): what the estimator returns."""


class Decided(NamedTuple):
    """What a cascade did on some rows."""

    replies: Replies
    """Those that are returned."""
    by: NDArray[np.intp]
    """Shape (rows,): the model whose answer that is."""
    asked: NDArray[np.bool_]
    """Shape (rows, models)."""
    cost: NDArray[np.float64]
    """Shape (rows,)."""


class Learning(NamedTuple):
    """What models and the policy learn from."""

    rows: Rows
    target: NDArray[Any]
    groups: NDArray[Any] | None
    """Shape (rows,): rows of one group are never split."""
    weight: NDArray[np.float64] | None
    """Shape (rows,): how much a row counts."""
    worth: NDArray[np.float64] | None = None
    """Shape (rows,): how much its class counts for models; the policy has costs of mistakes."""

    @classmethod
    def of(cls, rows: Rows, target: NDArray[Any], weight: Any, groups: Any) -> Learning:
        """Return rows with weights and groups that are checked."""
        groups = None if groups is None else np.asarray(groups)
        check_consistent_length(target, groups)
        if weight is None:
            return cls(rows, target, groups, None)
        weight = np.asarray(weight, np.float64)
        if weight.shape != target.shape or not (weight >= 0).all():
            raise ValueError("sample_weight must be one number from 0 on for each row")
        if not weight.any():
            raise ValueError("sample_weight is zero on every row")
        return cls(rows, target, groups, weight)

    def counted(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those rows whose weight is not zero."""
        rows = np.asarray(rows)
        if self.weight is None:
            return rows
        return rows[self.weight[rows] > 0]

    def fitted(self, model: Any, chosen: NDArray[np.intp] | None = None) -> Any:
        """Return a clone of a model that was fitted to some rows, or all."""
        if chosen is None:
            chosen = np.arange(len(self.target))
        chosen = self.counted(chosen)
        weights = [weight for weight in (self.weight, self.worth) if weight is not None]
        options = {}
        if weights and has_fit_parameter(model, "sample_weight"):
            options["sample_weight"] = np.prod(weights, axis=0)[chosen]
        return clone(model).fit(rows_at(self.rows, chosen), self.target[chosen], **options)


class CascadeEstimator(BaseEstimator):
    """A cascade of models, fitted by cross-fitting; the kind of answer is left to subclasses."""

    def __init__(
        self,
        models: Any,
        *,
        costs: str | Mapping[str, float] = "time",
        batch: int = 256,
        mistake_cost: float | None = None,
        budget: float | None = None,
        cv: Any = 5,
        prefit: bool = False,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = models
        self.costs = costs
        self.batch = batch
        self.mistake_cost = mistake_cost
        self.budget = budget
        self.cv = cv
        self.prefit = prefit
        self.fit_options = fit_options

    models_: list[tuple[str, Any]]
    costs_: dict[str, float]
    timings_: dict[str, Timing]
    trace_: Trace | None
    ladder_: FittedLadder | None
    policy_: FittedPolicy | None
    best_model_: str
    _plain_below: tuple[FittedPolicy | None, float] | None
    """A policy, and the largest batch on which the best model alone is as fast."""

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
                params[name] = model
                inner = model.get_params(deep=True).items()
                params |= {f"{name}__{key}": value for key, value in inner}
        return params

    def set_params(self, **params: Any) -> CascadeEstimator:
        """Set parameters, those of the models as ``<name>__<parameter>``.

        Args:
            **params: The new values by name.

        Returns:
            The estimator itself.
        """
        if "models" in params:  # before what is in them
            self.models = params.pop("models")
        named = dict(self.models) if _are_named(self.models) else {}
        replaced = {name: params.pop(name) for name in named if name in params}
        if replaced:
            self.models = [(name, replaced.get(name, model)) for name, model in self.models]
            named |= replaced
        for key in [key for key in params if key.partition("__")[0] in named]:
            name, _, inner = key.partition("__")
            named[name].set_params(**{inner: params.pop(key)})
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if _are_named(self.models):  # fit refuses others
            inner = [get_tags(model).input_tags for _, model in self.models]
            tags.input_tags.sparse = all(tag.sparse for tag in inner)
            tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        return tags

    @abstractmethod
    def _replies(self, name: str, model: Any, rows: Rows) -> Replies:
        """Return the replies of a model."""

    def _judged(
        self, name: str, replies: Replies, rows: Rows, target: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the confidences of replies to rows kept from the model; a hook."""
        del name, rows, target
        return replies.confidence

    @abstractmethod
    def _folds(self, learning: Learning) -> Iterable[tuple[Any, Any]]:
        """Return the rows to learn from and those to answer, for each fold."""

    @abstractmethod
    def _traced(self, replies: Sequence[Replies], target: NDArray[Any]) -> dict[str, Any]:
        """Return the columns of a trace of replies: predictions and labels, or losses."""

    def _choice(self, ladder: FittedLadder, trace: Trace, target: NDArray[Any]) -> FittedPolicy:
        """Return the operating point where none is asked for; a hook."""
        del trace, target
        return ladder.default().expensive

    def _checked(self, rows: Rows, target: Any = None, *, reset: bool) -> Rows:
        """Return rows that can be taken by position; what models refuse is refused at once.

        A policy may not ask the model that would refuse a row, so the checks are made here.
        """
        if not reset and hasattr(self, "n_features_in_") and getattr(rows, "ndim", 2) == 1:
            raise ValueError(
                f"Expected 2D array, got 1D array instead. Reshape your data: {self.n_features_in_}"
                " features are expected in each row"
            )
        if reset:
            validate_data(self, rows, target, skip_check_array=True)
            check_consistent_length(rows, target)
        else:
            validate_data(self, rows, reset=False, skip_check_array=True)
        if issparse(rows):
            rows = rows.tocsr()
        elif not (_is_frame(rows) or isinstance(rows, list)):
            rows = np.asarray(rows)
        if getattr(getattr(rows, "dtype", None), "kind", "") == "f":
            tags = get_tags(self).input_tags
            assert_all_finite(rows, allow_nan=tags.allow_nan, input_name="X")
        return rows

    def _fit(self, learning: Learning, certify_on: tuple[Rows, NDArray[Any]] | None) -> None:
        """Fit the models and the policy."""
        names, options = self._check_parameters(), dict(self.fit_options or {})
        folds = self._parts(learning)
        order = np.concatenate([answered for _, answered in folds])
        asked, target = rows_at(learning.rows, order), learning.target[order]
        replies, self.models_ = [], []
        for name, model in self.models:
            answers = self._cross_fitted(name, model, learning, folds)
            sure = self._judged(name, answers, asked, target)
            replies.append(answers._replace(confidence=sure))
            self.models_.append((name, model if self.prefit else learning.fitted(model)))
        sample = [rows_at(learning.rows, np.arange(size) % len(learning.target))
                  for size in self._sizes]  # fmt: skip
        self.timings_ = self._timed(sample)
        trace = self._trace(replies, target, None if learning.groups is None
                            else learning.groups[order])  # fmt: skip
        weight = None if learning.weight is None else learning.weight[order]
        if weight is not None:  # a fit weighs rows by how seldom they are drawn
            chance = np.tile((weight.min() / weight)[:, np.newaxis], len(names))
            trace = dataclasses.replace(trace, chance=chance)
        losses = np.average(np.asarray(trace.loss), axis=0, weights=weight)
        self.costs_ = dict(zip(names, trace.costs.mean(axis=0).tolist(), strict=True))
        self.trace_ = self.ladder_ = self.policy_ = self._plain_below = None
        self.best_model_ = names[int(np.argmin(losses))]
        if len(trace) < MIN_ROWS:
            return
        ladder = fit(trace, **options)
        if not self.prefit:  # other models than those of the folds will answer
            ladder = dataclasses.replace(ladder, held=None)
        if certify_on is not None:
            rows, labels = certify_on
            held = [self._replies(name, model, rows) for name, model in self.models_]
            ladder = ladder.with_holdout(self._trace(held, labels, None))
        self.trace_, self.ladder_ = trace, ladder
        self.policy_ = self._operating_point(ladder, trace, target)
        if self.costs == "time":
            self._compare_with_plain(sample)

    @property
    def _sizes(self) -> list[int]:
        """The sizes of the batches that are timed; the stated one is the last."""
        return sorted({1, max(1, self.batch // 8), self.batch})

    def _timed(self, sample: Sequence[Rows]) -> dict[str, Timing]:
        """Return what the replies of each model take, where that is the cost."""
        if self.costs != "time":
            return {}
        works = [lambda rows, name=name, model=model: self._replies(name, model, rows)
                 for name, model in self.models_]  # fmt: skip
        timed = timings(works, sample, self._sizes)
        return dict(zip((name for name, _ in self.models_), timed, strict=True))

    def _trace(
        self, replies: Sequence[Replies], target: NDArray[Any], groups: NDArray[Any] | None
    ) -> Trace:
        """Return the trace of replies; a call's time is shared by the rows of a stated batch."""
        nodes, booked = [], []
        for name, _ in self.models_:
            if self.costs == "time":
                timing = self.timings_[name]
                per_call = timing.per_call
                nodes.append(CascadeNode(name, timing.per_row, cost_per_call=per_call))
                booked.append(timing.of(self.batch) / self.batch)
            else:
                booked.append(float(self.costs[name]))  # type: ignore[index]  # it is a mapping
                nodes.append(CascadeNode(name, booked[-1]))
        unit = "µs" if self.costs == "time" else ""
        columns = self._traced(replies, target)
        spec = CascadeSpec(tuple(nodes), unit=unit, mistakes=columns.pop("mistakes", {}))
        if groups is not None:
            known, codes = np.unique(groups, return_inverse=True)
            columns |= {"group": codes.astype(np.int32), "groups": tuple(map(str, known))}
        sure = np.stack([reply.confidence for reply in replies], axis=1)
        return Trace(spec, sure, cost=np.tile(booked, (len(sure), 1)), **columns)

    def _operating_point(
        self, ladder: FittedLadder, trace: Trace, target: NDArray[Any]
    ) -> FittedPolicy:
        """Return one policy: a mixture of two would answer a row by its place in the batch."""
        if self.mistake_cost is not None:
            return ladder.for_mistake_cost(self.mistake_cost)
        if self.budget is not None:
            return ladder.for_budget(self.budget).cheap
        return self._choice(ladder, trace, target)

    def _compare_with_plain(self, sample: Sequence[Rows]) -> None:
        """Time the cascade beside its best model: below some size of batch that is as fast."""
        model = dict(self.models_)[self.best_model_]
        works = [self._answered, model.predict]
        times = [clock(works, rows) for rows in sample]
        columns = np.array(times).T.tolist()
        cascade, plain = (Timing.through(self._sizes, column) for column in columns)
        self.timings_ |= {"cascade": cascade, f"{self.best_model_} alone": plain}
        slower = [size for size, (ours, its) in zip(self._sizes, times, strict=True) if ours >= its]
        if slower:  # beyond the stated size counts what was measured there
            largest = np.inf if slower[-1] == self.batch else slower[-1]
            self._plain_below = self.policy_, largest

    def _plain(self, count: int) -> Any:
        """Return the best model where it answers a batch of this size itself, or ``None``."""
        known = getattr(self, "_plain_below", None)
        if self.policy_ is None or (
            known is not None and known[0] is self.policy_ and count <= known[1]
        ):
            return dict(self.models_)[self.best_model_]
        return None

    def _parts(self, learning: Learning) -> list[tuple[Any, Any]]:
        """Return the rows to learn from and those to answer, the same for all models.

        A splitter that shuffles gives other folds each time it is asked.
        """
        if self.prefit:
            return [(None, learning.counted(np.arange(len(learning.target))))]
        if learning.groups is None and (share := _repeated(learning.rows)) > 0.05:
            warnings.warn(
                f"{percent(share)} of the rows repeat others, so that models are judged on rows "
                "they learnt from: leave repetitions out, or give groups= to keep them together",
                UserWarning,
                stacklevel=5,
            )
        return [(learnt, learning.counted(answered)) for learnt, answered in self._folds(learning)]

    def _cross_fitted(
        self, name: str, model: Any, learning: Learning, folds: list[tuple[Any, Any]]
    ) -> Replies:
        """Return a model's replies to rows that it did not learn from."""
        parts = [
            self._replies(
                name,
                model if learnt is None else learning.fitted(model, learnt),
                rows_at(learning.rows, answered),
            )
            for learnt, answered in folds
        ]
        return Replies(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _check_parameters(self) -> list[str]:
        """Return the names of the models; refuse parameters that cannot be used."""
        models = self.models
        if not _are_named(models):
            raise ArgumentError(
                "models must be a list of (name, model), cheapest first, such as "
                f'[("small", clf1), ("large", clf2)]; got {models!r}',
                param="models",
            )
        names = [name for name, _ in models]
        taken = set(super().get_params(deep=False))
        bad = [name for name, count in Counter(names).items()
               if count > 1 or name in taken or "__" in name]  # fmt: skip
        if bad:
            raise ArgumentError(
                f"the name {bad[0]!r} cannot be used: each model needs one of its own, without "
                '"__", that is no parameter of the cascade',
                param="models",
            )
        if not isinstance(self.costs, Mapping):
            if self.costs != "time":
                raise ArgumentError(
                    f'costs is {self.costs!r}; it must be "time" or a mapping', param="costs"
                )
        elif set(self.costs) != set(names):
            raise ArgumentError(
                f"costs has the names {', '.join(map(repr, self.costs))}; they must be those of "
                f"the models: {', '.join(map(repr, names))}",
                param="costs",
            )
        require_whole(self.batch, "batch", least=1)
        if isinstance(self.cv, int) and self.cv < 2:
            raise ArgumentError(
                f"cv is {self.cv!r}; it must be at least 2, or a splitter of scikit-learn",
                param="cv",
            )
        if self.mistake_cost is not None and self.budget is not None:
            raise ArgumentError("mistake_cost and budget are both given; give one of them")
        options = dict(self.fit_options or {})
        if options.get("hold_out") and not self.prefit:
            raise ArgumentError(
                "hold_out keeps rows that the models of the folds answered, and others are "
                "deployed: certificates would not hold for these; give fit(..., "
                "certify_on=(X, y)), rows kept from all models",
                param="fit_options",
            )
        if options.get("belief") == "markov":
            raise ArgumentError(
                'belief="markov" decides one row at a time; use "answers" or "threshold" here',
                param="fit_options",
            )
        return names

    def _decide(self, rows: Rows) -> Decided:
        """Ask the models that the policy chooses; an exception of a model is raised as it is."""
        check_is_fitted(self, "models_")
        rows = self._checked(rows, reset=False)
        count = rows.shape[0] if hasattr(rows, "shape") else len(rows)
        if (model := self._plain(count)) is not None:
            names = [name for name, _ in self.models_]
            return self._alone(names.index(self.best_model_), model, rows, count)
        return self._answered(rows)

    def _alone(self, node: int, model: Any, rows: Rows, count: int) -> Decided:
        """Ask one model alone."""
        asked = np.zeros((count, len(self.models_)), bool)
        asked[:, node] = True
        name = self.models_[node][0]
        cost = np.full(count, self.costs_[name])
        return Decided(self._replies(name, model, rows), np.full(count, node), asked, cost)

    def _answered(self, rows: Rows) -> Decided:
        """Decide by the policy, for all rows of a round at once."""
        assert self.policy_ is not None  # noqa: S101 - else the best model answers alone
        count = rows.shape[0] if hasattr(rows, "shape") else len(rows)
        batch = self.policy_.batch(count)
        if batch is None:  # the policy is one model by itself
            name = self.policy_.single_node
            node = [name for name, _ in self.models_].index(name or self.best_model_)
            return self._alone(node, self.models_[node][1], rows, count)
        parts: list[list[tuple[NDArray[np.intp], Replies]]] = [[] for _ in self.models_]
        codes = self._policy_codes()
        while (waiting := np.flatnonzero(batch.next >= 0)).size:
            nodes = batch.next[waiting]
            for node in np.unique(nodes).tolist():
                group = waiting[nodes == node]
                name, model = self.models_[node]
                replies = self._replies(name, model, rows_at(rows, group))
                sure = np.where(np.isnan(replies.confidence), -np.inf, replies.confidence)
                batch.observe_codes(group, sure, codes[replies.code])
                parts[node].append((group, replies))
        return self._collected(batch, parts)

    def _policy_codes(self) -> NDArray[np.intp]:
        """Return the policy's number of each class; the last entry is of no class; a hook."""
        return np.array([-1], np.intp)

    def _collected(self, batch: Any, parts: Sequence[Sequence[tuple[Any, Replies]]]) -> Decided:
        """Return the replies that the policy chose."""
        chosen: list[tuple[Any, Replies]] = []
        for node, asked in enumerate(parts):
            for group, replies in asked:
                its = np.flatnonzero(batch.answer[group] == node)
                parts_: Any = (part[its] for part in replies)
                chosen.append((group[its], Replies(*parts_)))
        if not chosen:
            raise ValueError("Found array with 0 sample(s): a minimum of 1 is required")
        order = np.argsort(np.concatenate([group for group, _ in chosen]))
        columns = zip(*(replies for _, replies in chosen), strict=True)
        joined: Any = [np.concatenate(column)[order] for column in columns]
        replies = Replies(*joined)
        return Decided(replies, batch.answer, batch.asked, (batch.asked * batch.costs).sum(axis=1))

    def _outcome(self, rows: Rows, answers: Any) -> BatchOutcome:
        """Return what a batch did, with the answers that a function makes of its replies."""
        start = time.monotonic()
        done = self._decide(rows)
        made = answers(done.replies).tolist()
        names = [name for name, _ in self.models_]
        return BatchOutcome(
            answers=made,
            predictions=made,
            by=[names[node] for node in done.by.tolist()],
            asked=done.asked,
            cost=done.cost,
            seconds=time.monotonic() - start,
            errors={},
        )


def rows_at(rows: Rows, positions: NDArray[np.intp]) -> Rows:
    """Return some rows: of an array, a matrix, a frame or a list."""
    if hasattr(rows, "iloc"):
        return rows.iloc[positions]
    if isinstance(rows, list):
        return [rows[position] for position in positions]
    return rows[positions]


def _repeated(rows: Rows) -> float:
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


def _is_frame(rows: Rows) -> bool:
    """Whether rows are a frame, whose columns models may select by name."""
    return hasattr(rows, "iloc") or (
        type(rows).__module__.startswith("polars.") and hasattr(rows, "columns")
    )


def _are_named(models: Any) -> bool:
    """Whether these are pairs of a name and a model, at least one."""
    return (
        isinstance(models, list | tuple)
        and len(models) > 0
        and all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in models
        )
    )
