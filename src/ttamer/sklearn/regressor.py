"""A cascade of regressors as one regressor.

A regressor gives no confidence, so a small model learns how far each regressor is off: a tree over
the features and the prediction, fitted to errors on rows that the regressor did not learn from.
Less expected error, beside the spread of the target, is more confidence. What an answer loses is
its absolute or squared error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack, issparse
from sklearn.base import RegressorMixin
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from ttamer.errors import ArgumentError
from ttamer.runtime.calling import rows_at
from ttamer.sklearn.base import CascadeEstimator, Folds, Learning, Replies, Table


class CascadeRegressor(RegressorMixin, CascadeEstimator):
    """Several regressors as one: each row is answered at the cost that it needs.

    Args:
        models: The regressors, as ``(name, regressor)``. They may take frames with text.
        costs: As for :class:`CascadeClassifier`.
        batch: As for :class:`CascadeClassifier`.
        loss: What an answer loses: ``"absolute_error"`` or ``"squared_error"``.
        mistake_cost: What a loss of 1 costs, in the unit of ``costs``. Without it and ``budget``
            the choice is ``ladder_.default()``.
        budget: The mean cost of a row, at most.
        cv: The number of folds, or a splitter of scikit-learn.

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
    ) -> None:
        self.models, self.costs, self.batch, self.loss = models, costs, batch, loss
        self.mistake_cost, self.budget, self.cv = mistake_cost, budget, cv

    def _check_parameters(self, certify_on: Any) -> None:
        if certify_on is not None:
            raise ArgumentError(
                "certify_on needs a largest loss, which errors of numbers have not: certify the "
                "ladder that ttamer.fit returns for a trace whose cascade has max_loss",
                param="certify_on",
            )
        losses = ("absolute_error", "squared_error")
        if self.loss not in losses:
            raise ArgumentError(
                f"loss is {self.loss!r}; it must be one of {', '.join(losses)}", param="loss"
            )
        super()._check_parameters(certify_on)

    def _target(self, y: Any) -> NDArray[np.float64]:
        target: NDArray[np.float64] = column_or_1d(y, warn=True, dtype=np.float64)
        assert_all_finite(target, input_name="y")
        return target

    def _prepared(self, learning: Learning) -> Learning:
        self.error_models_ = {}
        self._spread = float(np.abs(learning.target - np.median(learning.target)).mean()) or 1.0
        if not isinstance(self.cv, int):
            return learning
        # Shuffled: models of sorted rows would extrapolate.
        kind = KFold if learning.groups is None else GroupKFold
        folds = kind(min(self.cv, len(learning.target)), shuffle=True, random_state=0)
        return learning._replace(splitter=folds)

    def _replies(self, name: str, model: Any, rows: Table) -> Replies:
        """Return predictions, with confidences once the model of errors is fitted."""
        answer = np.asarray(model.predict(rows), np.float64).reshape(-1)
        off = np.zeros(len(answer))
        if name in self.error_models_:
            off = self.error_models_[name].predict(_features(rows, answer))
        return Replies(np.full(len(answer), -1), self._confidence(off), answer)

    def _confidence(self, off: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return confidences, from 0 to 1, in answers that are so far off by expectation."""
        return 1 / (1 + off / self._spread)

    def _cross_fitted(self, name: str, model: Any, learning: Learning, folds: Folds) -> Replies:
        """Fit the model of errors, too: confidences are those on rows kept from it."""
        replies = super()._cross_fitted(name, model, learning, folds)
        order = np.concatenate([answered for _, answered in folds])
        features = _features(rows_at(learning.rows, order), replies.answer)
        off = np.abs(replies.answer - learning.target[order])
        # Leaves of ten rows, or a fiftieth of all, are as fine as so noisy a target allows.
        tree = DecisionTreeRegressor(min_samples_leaf=max(10, len(off) // 50), random_state=0)
        parts = KFold(min(5, len(off)), shuffle=True, random_state=0)
        expected = cross_val_predict(tree, features, off, cv=parts)
        self.error_models_[name] = tree.fit(features, off)
        return replies._replace(confidence=self._confidence(expected))

    def _columns(self, replies: Sequence[Replies], target: NDArray[Any]) -> dict[str, Any]:
        off = np.abs(np.stack([reply.answer for reply in replies], axis=1) - target[:, np.newaxis])
        return {"raw_loss": off if self.loss == "absolute_error" else off**2}

    def _returned(self, replies: Replies) -> NDArray[np.float64]:
        return replies.answer


def _features(rows: Table, prediction: NDArray[np.float64]) -> Any:
    """Return what errors are predicted from: numbers, texts by hash, and the prediction."""
    added = prediction[:, np.newaxis]
    if issparse(rows):
        return hstack([rows, csr_matrix(added)], format="csr")
    if isinstance(rows, list) and isinstance(rows[0], str):  # texts: their prediction alone
        return added
    if not hasattr(rows, "columns"):
        return np.column_stack([np.asarray(rows, np.float64), added])
    columns = [np.asarray(rows[name]) for name in rows.columns]
    numbers = [
        column.astype(np.float64)
        if column.dtype.kind in "biuf"
        else [crc32(str(text).encode()) % 1009 for text in column]  # a tree splits any order
        for column in columns
    ]
    return np.column_stack([*numbers, added])
