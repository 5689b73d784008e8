"""What cascades of scikit-learn models share: parameters, cross-fitting, costs and decisions.

A model is never judged on rows it learnt from. Each model is fitted on all folds but one and
answers on that one; the answers form the trace that the policy is fitted to. Then each model is
fitted again on all rows.
"""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.utils import _safe_indexing as rows_at, assert_all_finite, get_tags
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import MIN_ROWS, fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy
from ttamer.runtime.batching import BatchOutcome
from ttamer.runtime.calling import batched
from ttamer.runtime.cascade import Cascade
from ttamer.trace.trace import Trace

# Models fitted before answer in this many parts: the fastest part gives the cost by time.
PREFIT_PARTS = 5
# Costs by time are in microseconds per row.
MICROSECONDS = 1e6


@dataclasses.dataclass(frozen=True)
class Replies:
    """The replies of one model to some rows."""

    prediction: NDArray[Any]
    """Shape (rows,): what is compared with the other models' replies."""
    confidence: NDArray[np.float64]
    """Shape (rows,)."""
    answer: NDArray[Any]
    """Shape (rows, ...): what the estimator returns."""


class CascadeEstimator(_BaseComposition):
    """A cascade of models, fitted by cross-fitting; the kind of answer is left to subclasses."""

    def __init__(
        self,
        models: Any,
        *,
        costs: str | Mapping[str, float] = "time",
        mistake_cost: float | None = None,
        budget: float | None = None,
        cv: Any = 5,
        prefit: bool = False,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = models
        self.costs = costs
        self.mistake_cost = mistake_cost
        self.budget = budget
        self.cv = cv
        self.prefit = prefit
        self.fit_options = fit_options

    models_: list[tuple[str, Any]]
    costs_: dict[str, float]
    trace_: Trace | None
    ladder_: FittedLadder | None
    policy_: FittedPolicy | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with those of the models as ``<name>__<parameter>``.

        Args:
            deep: Whether to include the models and their parameters.

        Returns:
            The parameters by name.
        """
        found: dict[str, Any] = self._get_params("models", deep=deep)
        return found

    def set_params(self, **params: Any) -> CascadeEstimator:
        """Set parameters, those of the models as ``<name>__<parameter>``.

        Args:
            **params: The new values by name.

        Returns:
            The estimator itself.
        """
        self._set_params("models", **params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not _are_named(self.models):  # refused by fit
            return tags
        inner = [get_tags(model).input_tags for _, model in self.models]
        tags.input_tags.sparse = all(each.sparse for each in inner)
        tags.input_tags.allow_nan = all(each.allow_nan for each in inner)
        return tags

    @abstractmethod
    def _replies(self, name: str, model: Any, rows: Any) -> Replies:
        """Return the replies of a model."""

    def _with_confidence(
        self, name: str, replies: Replies, rows: Any, target: NDArray[Any], order: NDArray[np.intp]
    ) -> Replies:
        """Return replies to rows in this order with their confidences; a hook for subclasses."""
        del name, rows, target, order
        return replies

    @abstractmethod
    def _folds(self, rows: Any, target: NDArray[Any]) -> Iterable[tuple[Any, Any]]:
        """Return the rows to learn from and those to answer, for each fold."""

    @abstractmethod
    def _trace(
        self, spec: CascadeSpec, replies: list[Replies], target: NDArray[Any]
    ) -> tuple[Trace, NDArray[np.float64]]:
        """Return the trace of the replies, and the mean loss of each model."""

    def _checked(self, rows: Any, target: Any = None, *, reset: bool) -> Any:
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
        elif not (hasattr(rows, "iloc") or isinstance(rows, list) or _is_polars(rows)):
            rows = np.asarray(rows)
        if getattr(getattr(rows, "dtype", None), "kind", "") == "f":
            tags = get_tags(self).input_tags
            assert_all_finite(rows, allow_nan=tags.allow_nan, input_name="X")
        return rows

    def _fit(self, rows: Any, target: NDArray[Any]) -> None:
        """Fit the models and the policy."""
        names = self._check_parameters()
        folds = self._parts(rows, target)
        order = np.concatenate([left for _, left in folds])
        replies, seconds = [], {}
        self.models_ = []
        for name, model in self.models:
            found, fastest = self._answers(name, model, rows, target, folds)
            found = self._with_confidence(name, found, rows, target, order)
            replies.append(found)
            seconds[name] = fastest * MICROSECONDS
            fitted = model if self.prefit else clone(model).fit(rows, target)
            self.models_.append((name, fitted))
        self.costs_ = (
            seconds
            if isinstance(self.costs, str)
            else {name: float(self.costs[name]) for name in names}
        )
        spec = CascadeSpec.of(self.costs_)
        trace, losses = self._trace(spec, replies, target[order])
        self.trace_ = self.ladder_ = self.policy_ = None
        self.best_model_ = names[int(np.argmin(losses))]
        if len(trace) >= MIN_ROWS:
            self.trace_ = trace
            self.ladder_ = fit(trace, **dict(self.fit_options or {}))
            self.policy_ = self._operating_point(self.ladder_, trace)

    def _operating_point(self, ladder: FittedLadder, trace: Trace) -> FittedPolicy:
        """Return one policy: a mixture of two would answer a row by its place in the batch."""
        if self.mistake_cost is not None:
            return ladder.for_mistake_cost(self.mistake_cost)
        if self.budget is not None:
            return ladder.for_budget(self.budget).cheap
        return _within_one_standard_error(ladder, trace)

    def _parts(self, rows: Any, target: NDArray[Any]) -> list[tuple[Any, Any]]:
        """Return the rows to learn from and those to answer, the same for all models.

        A splitter that shuffles gives other folds each time it is asked.
        """
        if not self.prefit:
            return list(self._folds(rows, target))
        parts = np.array_split(np.arange(len(target)), PREFIT_PARTS)
        return [(None, part) for part in parts if len(part)]

    def _answers(
        self,
        name: str,
        model: Any,
        rows: Any,
        target: NDArray[Any],
        folds: list[tuple[Any, Any]],
    ) -> tuple[Replies, float]:
        """Return a model's replies to rows it did not learn from, and the seconds per row."""
        found, fastest = [], np.inf
        for learnt, left in folds:
            fold = model
            if learnt is not None:
                fold = clone(model).fit(rows_at(rows, learnt), target[learnt])
            part = rows_at(rows, left)
            start = time.perf_counter()
            found.append(self._replies(name, fold, part))
            fastest = min(fastest, (time.perf_counter() - start) / len(left))
        joined = Replies(
            *(
                np.concatenate([getattr(each, field.name) for each in found])
                for field in dataclasses.fields(Replies)
            )
        )
        return joined, fastest

    def _check_parameters(self) -> list[str]:
        """Return the names of the models; refuse parameters that cannot be used."""
        models = self.models
        if not _are_named(models):
            raise ArgumentError(
                "models must be a list of (name, model), cheapest first, such as "
                f'[("small", clf1), ("large", clf2)]; got {models!r}'
            )
        names = [name for name, _ in models]
        self._validate_names(names)
        if not isinstance(self.costs, Mapping):
            if self.costs != "time":
                raise ArgumentError(f'costs is {self.costs!r}; it must be "time" or a mapping')
        elif set(self.costs) != set(names):
            raise ArgumentError(
                f"costs has the names {', '.join(map(repr, self.costs))}; they must be those of "
                f"the models: {', '.join(map(repr, names))}"
            )
        if isinstance(self.cv, int) and self.cv < 2:
            raise ArgumentError(
                f"cv is {self.cv!r}; it must be at least 2, or a splitter of scikit-learn"
            )
        if self.mistake_cost is not None and self.budget is not None:
            raise ArgumentError("mistake_cost and budget are both given; give one of them")
        return names

    def _decide(self, rows: Any) -> BatchOutcome:
        """Ask the models that the policy chooses; an exception of a model is raised as it is."""
        check_is_fitted(self, "models_")
        rows = self._checked(rows, reset=False)
        if self.policy_ is None:
            return self._ask_best(rows)
        raised: list[Exception] = []

        def node(name: str, model: Any) -> Any:
            def answer(part: Any) -> Any:
                try:
                    return vars(self._replies(name, model, part))
                except Exception as error:
                    raised.append(error)
                    raise

            return batched(answer, size=None)

        nodes = {name: node(name, model) for name, model in self.models_}
        done = Cascade(self.policy_, nodes).run_batch(rows)
        if raised:
            raise raised[0]
        return done

    def _ask_best(self, rows: Any) -> BatchOutcome:
        """Ask the best model alone, where there are too few rows for a policy."""
        names = [name for name, _ in self.models_]
        place = names.index(self.best_model_)
        start = time.monotonic()
        replies = self._replies(*self.models_[place], rows)
        count = len(replies.confidence)
        asked = np.zeros((count, len(names)), bool)
        asked[:, place] = True
        return BatchOutcome(
            answers=list(replies.answer),
            predictions=replies.prediction.tolist(),
            by=[self.best_model_] * count,
            asked=asked,
            cost=np.full(count, self.costs_[self.best_model_]),
            seconds=time.monotonic() - start,
            errors={},
        )


def _within_one_standard_error(ladder: FittedLadder, trace: Trace) -> FittedPolicy:
    """Return the cheapest policy that is within one standard error of the best model."""
    points, losses = ladder.points, np.asarray(trace.loss)
    best = points.best
    allowed = losses[:, best].mean() + losses[:, best].std() / len(losses) ** 0.5
    good = [point for point in points.corners if points.errors[point] <= allowed]
    return ladder.point(good[0] if good else int(points.errors.argmin()))


def _is_polars(rows: Any) -> bool:
    """Whether rows are a frame of polars, whose columns models may select by name."""
    return type(rows).__module__.startswith("polars.") and hasattr(rows, "columns")


def _are_named(models: Any) -> bool:
    """Whether these are pairs of a name and a model, at least one."""
    return (
        isinstance(models, list | tuple)
        and len(models) > 0
        and all(isinstance(each, tuple) and len(each) == 2 for each in models)
    )
