"""A cascade of classifiers as one classifier."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import assert_all_finite
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.runtime.batching import BatchOutcome
from ttamer.sklearn.base import CascadeEstimator, Replies
from ttamer.trace.trace import Trace


def _all_have_probabilities(cascade: Any) -> bool:
    return all(hasattr(model, "predict_proba") for _, model in cascade.models)


class CascadeClassifier(ClassifierMixin, CascadeEstimator):
    """Several classifiers as one: each row is answered at the cost that it needs.

    Args:
        models: The classifiers, as ``(name, classifier)``. A classifier needs ``predict_proba`` or
            ``decision_function``.
        costs: ``"time"``, what each model takes for one row of a batch in microseconds, measured
            while fitting, so that two fits to the same rows may decide differently; or the cost of
            each model by name.
        mistake_cost: What one wrong answer costs, in the unit of ``costs``. Without it and
            ``budget`` it is the cheapest policy whose expected error is within one standard error
            of the best model's.
        budget: The mean cost of a row, at most.
        cv: The number of folds, stratified by class, or a splitter of scikit-learn.
        prefit: Whether the models are fitted already; the rows given to ``fit`` must then be rows
            that they did not learn from.
        fit_options: Options of :func:`ttamer.fit` by name.

    After ``fit``: ``classes_``, ``models_`` (the fitted classifiers by name), ``costs_``,
    ``trace_`` (their answers on rows they did not learn from), ``ladder_`` and ``policy_``. With
    fewer than 10 rows there is no policy, and ``best_model_`` answers alone.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> cascade = CascadeClassifier(
    ...     [("stump", DecisionTreeClassifier(max_depth=1)), ("near", KNeighborsClassifier())],
    ...     costs={"stump": 1.0, "near": 50.0},
    ...     fit_options={"belief": "calibrated", "states": 8},
    ... ).fit(x, y)
    >>> bool(cascade.score(x, y) > 0.9)
    True
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any) -> CascadeClassifier:  # noqa: N803
        """Fit the classifiers, and the policy to their answers on rows kept from them.

        Args:
            X: The rows, as the classifiers take them.
            y: Shape (rows,): the classes.

        Returns:
            The estimator itself.

        Raises:
            ArgumentError: A parameter cannot be used.
            ValueError: The rows cannot be used, or have a single class.
        """
        rows = self._checked(X, y, reset=True)
        target = column_or_1d(y, warn=True)
        assert_all_finite(target, input_name="y")
        check_classification_targets(target)
        self._check_parameters()
        if unfitted := [
            name for name, model in self.models if self.prefit and not hasattr(model, "classes_")
        ]:
            raise ArgumentError(
                f"prefit is True, and {', '.join(map(repr, unfitted))} is not fitted: fit it "
                "first, or leave prefit out"
            )
        known = [model.classes_ for _, model in self.models] if self.prefit else []
        self.classes_ = np.unique(np.concatenate([target, *known]))
        if len(self.classes_) < 2:
            raise ValueError("y has 1 class; a classifier needs at least 2 classes")
        self._fit(rows, target)
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the class of each row.

        Args:
            X: The rows, as the classifiers take them.

        Returns:
            Shape (rows,): the classes.
        """
        done = self._decide(X)
        return np.asarray(self.classes_[self._codes(done)])

    @available_if(_all_have_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probabilities of the classifier that answers each row.

        Args:
            X: The rows, as the classifiers take them.

        Returns:
            Shape (rows, classes), in the order of ``classes_``.
        """
        done = self._decide(X)
        return np.array(done.answers, np.float64).reshape(len(done), len(self.classes_))

    def run_batch(self, X: Any) -> BatchOutcome:  # noqa: N803
        """Return for each row the class, the model that gave it, the models asked and the cost.

        Args:
            X: The rows, as the classifiers take them.

        Returns:
            The outcome; ``answers`` and ``predictions`` are classes.
        """
        done = self._decide(X)
        found = self.classes_[self._codes(done)].tolist()
        return dataclasses.replace(done, answers=found, predictions=found)

    def _codes(self, done: BatchOutcome) -> NDArray[np.intp]:
        return np.array(done.predictions, np.intp)

    def _replies(self, name: str, model: Any, rows: Any) -> Replies:
        """Return codes of classes, the confidence in them, and the probabilities where known."""
        if not hasattr(model, "classes_"):
            raise ArgumentError(
                f"model {name!r} is no classifier ({type(model).__name__} has no classes_ after "
                "its fit): give a classifier, or use CascadeRegressor"
            )
        columns = np.searchsorted(self.classes_, model.classes_)
        if hasattr(model, "predict_proba"):
            own = model.predict_proba(rows)
            share = np.zeros((len(own), len(self.classes_)))
            share[:, columns] = own
            return Replies(share.argmax(axis=1), share.max(axis=1), share)
        if not hasattr(model, "decision_function"):
            raise ArgumentError(
                f"model {name!r} has neither predict_proba nor decision_function; a cascade needs "
                "to know how certain a model is: give another, or wrap it in CalibratedClassifierCV"
            )
        score = model.decision_function(rows)
        if score.ndim == 1:
            code = columns[(score > 0).astype(np.intp)]
            return Replies(code, np.abs(score), code)
        ranked = np.sort(score, axis=1)
        code = columns[score.argmax(axis=1)]
        return Replies(code, ranked[:, -1] - ranked[:, -2], code)

    def _folds(self, rows: Any, target: NDArray[Any]) -> Iterable[tuple[Any, Any]]:
        del rows
        splitter = self.cv
        if isinstance(splitter, int):
            # A single rare class must not leave each model half of the rows to learn from.
            largest = int(np.unique(target, return_counts=True)[1].max())
            splitter = StratifiedKFold(max(2, min(splitter, largest)))
        folds = check_cv(splitter, target, classifier=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class in y", UserWarning)
            return list(folds.split(np.zeros(len(target)), target))

    def _trace(
        self, spec: CascadeSpec, replies: list[Replies], target: NDArray[Any]
    ) -> tuple[Trace, NDArray[np.float64]]:
        codes = np.stack([each.prediction for each in replies], axis=1).astype(np.int32)
        label = np.searchsorted(self.classes_, target).astype(np.int32)
        trace = Trace(
            spec,
            np.stack([each.confidence for each in replies], axis=1),
            prediction=codes,
            label=label,
            classes=tuple(map(str, range(len(self.classes_)))),
        )
        return trace, trace.wrong().mean(axis=0)
