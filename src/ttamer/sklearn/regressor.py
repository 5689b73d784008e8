"""A cascade of regressors as one regressor.

A regressor gives no confidence, so a small model learns how far each regressor is off: a tree over
the features and the prediction, fitted to errors on rows that the regressor did not learn from.
Less expected error is more confidence. What an answer loses is its absolute or squared error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack, issparse
from sklearn.base import RegressorMixin
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, check_cv
from sklearn.preprocessing import OrdinalEncoder
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from ttamer.errors import ArgumentError
from ttamer.runtime.batching import BatchOutcome
from ttamer.sklearn.base import CascadeEstimator, Learning, Replies, Rows

LOSSES = ("absolute_error", "squared_error")


class CascadeRegressor(RegressorMixin, CascadeEstimator):
    """Several regressors as one: each row is answered at the cost that it needs.

    Args:
        models: The regressors, as ``(name, regressor)``.
        costs: As for :class:`CascadeClassifier`.
        batch: As for :class:`CascadeClassifier`.
        loss: What an answer loses: ``"absolute_error"`` or ``"squared_error"``.
        mistake_cost: What a loss of 1 costs, in the unit of ``costs``. Without it and ``budget``
            the choice is ``ladder_.default()``.
        budget: The mean cost of a row, at most.
        cv: The number of folds, stratified by target, or a splitter of scikit-learn.
        prefit: Whether the models are fitted already; the rows given to ``fit`` must then be rows
            that they did not learn from.
        fit_options: Options of :func:`ttamer.fit` by name.

    After ``fit``: ``models_``, ``error_models_`` (what predicts the error of each), ``costs_``,
    ``timings_``, ``trace_``, ``ladder_`` and ``policy_``, as for :class:`CascadeClassifier`.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> x, y = load_diabetes(return_X_y=True)
    >>> cascade = CascadeRegressor(
    ...     [("near", KNeighborsRegressor()), ("line", LinearRegression())],
    ...     costs={"near": 1.0, "line": 9.0},
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
        batch: int = 256,
        loss: str = "absolute_error",
        mistake_cost: float | None = None,
        budget: float | None = None,
        cv: Any = 5,
        prefit: bool = False,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            models, costs=costs, batch=batch, mistake_cost=mistake_cost, budget=budget, cv=cv,
            prefit=prefit, fit_options=fit_options,
        )  # fmt: skip
        self.loss = loss

    def fit(
        self,
        X: Rows,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        certify_on: tuple[Rows, Any] | None = None,
    ) -> CascadeRegressor:
        """Fit the regressors, what predicts their errors, and the policy.

        Args:
            X: The rows, as the regressors take them: numbers, or a frame with text, too.
            y: Shape (rows,): the target.
            sample_weight: As for :meth:`CascadeClassifier.fit`.
            groups: As for :meth:`CascadeClassifier.fit`.
            certify_on: As for :meth:`CascadeClassifier.fit`.

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
            raise ArgumentError(
                f"loss is {self.loss!r}; it must be one of {', '.join(LOSSES)}", param="loss"
            )
        if len(target) < 2:
            raise ValueError("there is 1 sample; cross-fitting needs at least 2 samples")
        self.error_models_ = {}
        self._columns = _Columns(rows)
        if certify_on is not None:
            held = self._checked(certify_on[0], reset=False)
            certify_on = held, column_or_1d(certify_on[1], dtype=np.float64)
        self._fit(Learning.of(rows, target, sample_weight, groups), certify_on)
        return self

    def predict(self, X: Rows) -> NDArray[np.float64]:  # noqa: N803
        """Return the prediction for each row.

        Args:
            X: The rows, as the regressors take them.

        Returns:
            Shape (rows,): the predictions.
        """
        return np.asarray(self._decide(X).replies.answer, np.float64)

    def run_batch(self, X: Rows) -> BatchOutcome:  # noqa: N803
        """Return for each row the prediction, the model that gave it, those asked and the cost.

        Args:
            X: The rows, as the regressors take them.

        Returns:
            The outcome; ``answers`` and ``predictions`` are numbers.
        """
        return self._outcome(X, lambda replies: replies.answer)

    def _replies(self, name: str, model: Any, rows: Rows) -> Replies:
        """Return predictions, with confidences once the model of errors is fitted."""
        answer = np.asarray(model.predict(rows), np.float64).reshape(-1)
        errors = self.error_models_.get(name)
        sure = np.zeros(len(answer))
        if errors is not None:
            sure = -errors.predict(self._columns.joined(rows, answer))
        return Replies(np.full(len(answer), -1), sure, answer)

    def _judged(
        self, name: str, replies: Replies, rows: Rows, target: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Fit the model of errors, and return confidences that it gives on rows kept from it."""
        features = self._columns.joined(rows, replies.answer)
        off = np.abs(replies.answer - target)
        sure = np.empty(len(off))
        # Leaves of ten rows, or a fiftieth of all, are as fine as so noisy a target allows.
        tree = DecisionTreeRegressor(min_samples_leaf=max(10, len(off) // 50), random_state=0)
        for learnt, answered in KFold(min(5, len(off)), shuffle=True, random_state=0).split(off):
            tree.fit(features[learnt], off[learnt])
            sure[answered] = -tree.predict(features[answered])
        self.error_models_[name] = tree.fit(features, off)
        return sure

    def _folds(self, learning: Learning) -> Iterable[tuple[Any, Any]]:
        target, splitter = learning.target, self.cv
        if isinstance(splitter, int) and learning.groups is None:
            # In rows sorted by their target, plain folds would have each model extrapolate: they
            # are stratified by up to ten groups of equal size of the target.
            count = max(2, min(splitter, len(target)))
            strata = max(1, min(10, len(target) // count))
            ranks = np.argsort(np.argsort(target, kind="stable"))
            stratum = ranks * strata // len(target)
            return list(StratifiedKFold(count).split(stratum, stratum))
        if isinstance(splitter, int):
            splitter = GroupKFold(splitter)
        return list(check_cv(splitter, target).split(target, target, learning.groups))

    def _traced(self, replies: Sequence[Replies], target: NDArray[Any]) -> dict[str, Any]:
        off = np.abs(np.stack([reply.answer for reply in replies], axis=1) - target[:, np.newaxis])
        return {"raw_loss": off if self.loss == "absolute_error" else off**2}


class _Columns:
    """The features that errors are predicted from: numbers as they are, text as codes."""

    def __init__(self, rows: Rows) -> None:
        self._encoder: OrdinalEncoder | None = None
        self._numbers: list[Any] = []
        if not hasattr(rows, "columns"):
            return
        names = list(rows.columns)
        self._numbers = [name for name in names if _is_number(rows[name])]
        self._texts = [name for name in names if name not in self._numbers]
        if self._texts:
            # Rare and new texts have one code.
            self._encoder = OrdinalEncoder(
                handle_unknown="use_encoded_value", unknown_value=-1, max_categories=64,
            ).fit(self._text(rows))  # fmt: skip

    def _text(self, rows: Rows) -> NDArray[Any]:
        return np.array([list(map(str, rows[name])) for name in self._texts], object).T

    def joined(self, rows: Rows, prediction: NDArray[np.float64]) -> Any:
        """Return the features of rows, and the prediction as one more."""
        added = prediction[:, np.newaxis]
        if issparse(rows):
            return hstack([rows, csr_matrix(added)], format="csr")
        if isinstance(rows, list) and isinstance(rows[0], str):  # texts: their prediction alone
            return added
        if not hasattr(rows, "columns"):
            return np.column_stack([np.asarray(rows, np.float64), added])
        parts = [np.asarray(rows[name], np.float64)[:, np.newaxis] for name in self._numbers]
        if self._encoder is not None:
            parts.append(self._encoder.transform(self._text(rows)))
        return np.hstack([*parts, added])


def _is_number(column: Any) -> bool:
    """Whether a column of a frame holds numbers."""
    return np.asarray(column[:0]).dtype.kind in "biuf"
