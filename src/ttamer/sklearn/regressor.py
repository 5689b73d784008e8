"""A cascade of regressors as one regressor.

A regressor gives no confidence, so a small model learns how far each regressor is off: a tree over
the features and the prediction, fitted to errors on rows that the regressor did not learn from.
Less expected error is more confidence. What an answer loses is its absolute or squared error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack, issparse
from sklearn.base import RegressorMixin
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import _safe_indexing as rows_at, assert_all_finite
from sklearn.utils.validation import column_or_1d

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.runtime.batching import BatchOutcome
from ttamer.sklearn.base import CascadeEstimator, Replies
from ttamer.trace.trace import Trace

# What an answer may lose.
LOSSES = ("absolute_error", "squared_error")
# A leaf of the tree that predicts errors has at least this many rows, or a fiftieth of all.
MIN_LEAF = 10
# Folds are stratified by at most this many groups of equal size of the target.
MAX_STRATA = 10


class CascadeRegressor(RegressorMixin, CascadeEstimator):
    """Several regressors as one: each row is answered at the cost that it needs.

    Args:
        models: The regressors, as ``(name, regressor)``. Their rows must be numbers.
        costs: As for :class:`CascadeClassifier`.
        loss: What an answer loses: ``"absolute_error"`` or ``"squared_error"``.
        mistake_cost: What a loss of 1 costs, in the unit of ``costs``. Without it and ``budget`` it
            is the cheapest policy whose expected loss is within one standard error of the best
            model's.
        budget: The mean cost of a row, at most.
        cv: The number of folds, stratified by target, or a splitter of scikit-learn.
        prefit: Whether the models are fitted already; the rows given to ``fit`` must then be rows
            that they did not learn from.
        fit_options: Options of :func:`ttamer.fit` by name.

    After ``fit``: ``models_``, ``error_models_`` (what predicts the error of each), ``costs_``,
    ``trace_``, ``ladder_`` and ``policy_``, as for :class:`CascadeClassifier`.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> x, y = load_diabetes(return_X_y=True)
    >>> cascade = CascadeRegressor(
    ...     [("near", KNeighborsRegressor()), ("line", LinearRegression())],
    ...     costs={"near": 1.0, "line": 9.0},
    ...     fit_options={"belief": "calibrated", "states": 8},
    ... ).fit(x, y)
    >>> cascade.predict(x[:3]).shape
    (3,)
    """

    error_models_: dict[str, DecisionTreeRegressor]

    def __init__(
        self,
        models: Any,
        *,
        costs: str | Mapping[str, float] = "time",
        loss: str = "absolute_error",
        mistake_cost: float | None = None,
        budget: float | None = None,
        cv: Any = 5,
        prefit: bool = False,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            models,
            costs=costs,
            mistake_cost=mistake_cost,
            budget=budget,
            cv=cv,
            prefit=prefit,
            fit_options=fit_options,
        )
        self.loss = loss

    def fit(self, X: Any, y: Any) -> CascadeRegressor:  # noqa: N803
        """Fit the regressors, what predicts their errors, and the policy.

        Args:
            X: The rows, as numbers.
            y: Shape (rows,): the target.

        Returns:
            The estimator itself.

        Raises:
            ArgumentError: A parameter cannot be used.
            ValueError: The rows cannot be used.
        """
        rows = self._checked(X, y, reset=True)
        target = column_or_1d(y, warn=True, dtype=np.float64)
        assert_all_finite(target, input_name="y")
        if self.loss not in LOSSES:
            raise ArgumentError(f"loss is {self.loss!r}; it must be one of {', '.join(LOSSES)}")
        if len(target) < 2:
            raise ValueError("there is 1 sample; cross-fitting needs at least 2 samples")
        self.error_models_ = {}
        self._fit(rows, target)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the prediction for each row.

        Args:
            X: The rows, as numbers.

        Returns:
            Shape (rows,): the predictions.
        """
        return np.array(self._decide(X).answers, np.float64)

    def run_batch(self, X: Any) -> BatchOutcome:  # noqa: N803
        """Return for each row the prediction, the model that gave it, those asked and the cost.

        Args:
            X: The rows, as numbers.

        Returns:
            The outcome; ``answers`` and ``predictions`` are numbers.
        """
        done = self._decide(X)
        return dataclasses.replace(done, predictions=done.answers)

    def _replies(self, name: str, model: Any, rows: Any) -> Replies:
        """Return predictions, with confidences once the model of errors is fitted."""
        found = np.asarray(model.predict(rows), np.float64).reshape(-1)
        errors = self.error_models_.get(name)
        sure = np.zeros(len(found)) if errors is None else -errors.predict(_joined(rows, found))
        return Replies(np.zeros(len(found), np.int8), sure, found)

    def _with_confidence(
        self, name: str, replies: Replies, rows: Any, target: NDArray[Any], order: NDArray[np.intp]
    ) -> Replies:
        """Fit the model of errors, and return confidences that it gives on rows kept from it."""
        seen = _joined(rows_at(rows, order), replies.answer)
        off = np.abs(replies.answer - target[order])
        sure = np.empty(len(off))
        leaf = max(MIN_LEAF, len(off) // 50)
        for learnt, left in KFold(min(5, len(off)), shuffle=True, random_state=0).split(off):
            tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0)
            sure[left] = -tree.fit(seen[learnt], off[learnt]).predict(seen[left])
        whole = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0)
        self.error_models_[name] = whole.fit(seen, off)
        return dataclasses.replace(replies, confidence=sure)

    def _folds(self, rows: Any, target: NDArray[Any]) -> Iterable[tuple[Any, Any]]:
        splitter = self.cv
        if isinstance(splitter, int):
            # In rows sorted by their target, plain folds would have each model extrapolate.
            count = max(2, min(splitter, len(target)))
            groups = max(1, min(MAX_STRATA, len(target) // count))
            ranks = np.argsort(np.argsort(target, kind="stable"))
            strata = ranks * groups // len(target)
            splitter = StratifiedKFold(count).split(strata, strata)
        del rows
        found: Iterable[tuple[Any, Any]] = check_cv(splitter, target).split(target)
        return found

    def _trace(
        self, spec: CascadeSpec, replies: list[Replies], target: NDArray[Any]
    ) -> tuple[Trace, NDArray[np.float64]]:
        off = np.abs(np.stack([each.answer for each in replies], axis=1) - target[:, np.newaxis])
        lost = off if self.loss == "absolute_error" else off**2
        confidence = np.stack([each.confidence for each in replies], axis=1)
        return Trace(spec, confidence, raw_loss=lost), lost.mean(axis=0)


def _joined(rows: Any, prediction: NDArray[np.float64]) -> Any:
    """Return the features with the prediction as one more."""
    if issparse(rows):
        return hstack([rows, csr_matrix(prediction[:, np.newaxis])], format="csr")
    return np.column_stack([np.asarray(rows, np.float64), prediction])
