"""A cascade of classifiers as one classifier."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import assert_all_finite, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ttamer._checks import percent, shown
from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedLadder, FittedPolicy
from ttamer.sklearn.base import CascadeEstimator, Learning, Replies, Table
from ttamer.trace.schema import class_text
from ttamer.trace.trace import Trace


class CascadeClassifier(ClassifierMixin, CascadeEstimator):
    """Several classifiers as one: each row is answered at the cost that it needs.

    Args:
        models: The classifiers, as ``(name, classifier)``; each needs ``predict_proba``. One that
            is fitted already goes in a ``FrozenEstimator`` of scikit-learn; ``fit`` must then get
            rows that it did not learn from.
        costs: ``"time"``, measured while fitting, in microseconds: what a call of each model takes,
            and what each row adds; or the cost of each model by name. With ``"time"`` two fits to
            the same rows may decide differently, and batches on which the best model alone is as
            fast as the cascade are answered by it.
        batch: With ``"time"``: the number of rows of a batch that is planned for.
        mistake_cost: What one wrong answer costs, in the unit of ``costs``. Without it and
            ``budget`` the choice is ``ladder_.default()``: the cheapest that errs no more than the
            best model.
        budget: The mean cost of a row, at most.
        mistakes: What a mistake costs, by class and predicted class; ``"*"`` is any other.
        class_weight: ``"balanced"``, or a weight by class: what a mistake on it costs, and how much
            its rows count for models that take weights.
        scoring: A scorer of predictions: the cheapest policy that scores no less than the best
            model is taken.
        cv: The number of folds, stratified by class, or a splitter of scikit-learn.

    After ``fit``: ``classes_``, ``models_`` (the fitted classifiers by name), ``costs_``,
    ``timings_``, ``trace_`` (their answers on rows they did not learn from), ``ladder_`` and
    ``policy_``, which may be set to another policy of the ladder. With fewer than 10 rows there is
    no policy, and ``best_model_`` answers alone.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> cascade = CascadeClassifier(
    ...     [("stump", DecisionTreeClassifier(max_depth=1)), ("near", KNeighborsClassifier())],
    ...     costs={"stump": 1.0, "near": 50.0},
    ... ).fit(x, y)
    >>> bool(cascade.score(x, y) > 0.9)
    True
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        models: Any,
        *,
        costs: str | Mapping[str, float] = "time",
        batch: int = 256,
        mistake_cost: float | None = None,
        budget: float | None = None,
        mistakes: Mapping[Any, Mapping[Any, float]] | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        scoring: Any = None,
        cv: Any = 5,
    ) -> None:
        self.models, self.costs, self.batch = models, costs, batch
        self.mistake_cost, self.budget, self.cv = mistake_cost, budget, cv
        self.mistakes, self.class_weight, self.scoring = mistakes, class_weight, scoring

    def _check_parameters(self, certify_on: Any) -> None:
        super()._check_parameters(certify_on)
        if self.mistakes is not None and self.class_weight is not None:
            raise ArgumentError("mistakes and class_weight are both given; give one of them")
        if self.scoring is not None and {self.mistake_cost, self.budget} != {None}:
            raise ArgumentError("scoring chooses the policy, and so does mistake_cost or budget")

    def _target(self, y: Any) -> NDArray[Any]:
        target: NDArray[Any] = column_or_1d(y, warn=True)
        assert_all_finite(target, input_name="y")
        check_classification_targets(target)
        return target

    def _prepared(self, learning: Learning) -> Learning:
        # A model that is fitted already may have further classes.
        frozen = [m.classes_ for _, m in self.models if isinstance(m, FrozenEstimator)]
        self.classes_ = np.unique(np.concatenate([learning.target, *frozen]))
        if len(self.classes_) < 2:
            raise ValueError("y has 1 class; a classifier needs at least 2 classes")
        table = self._class_costs = self.mistakes or {}
        rows = [*table.values()] if isinstance(table, Mapping) else [None]
        is_table = all(isinstance(row, Mapping) for row in rows)
        named = {name for names in (table, *rows) for name in names} if is_table else {str(table)}
        if unknown := named - {*self.classes_.tolist(), "*"}:
            raise ArgumentError(
                f"mistakes has {unknown.pop()!r}; it must be the cost of each mistake by class and "
                'predicted class, such as {"fraud": {"*": 30.0}}, and classes of y: '
                f"{shown(self.classes_.tolist())}",
                param="mistakes",
            )
        target, classes = learning.target, self.classes_
        if isinstance(self.cv, int):
            # A single rare class must not leave each model half of the rows to learn from.
            largest = int(np.unique(target, return_counts=True)[1].max())
            kind = StratifiedKFold if learning.groups is None else StratifiedGroupKFold
            learning = learning._replace(splitter=kind(max(2, min(self.cv, largest))))
        if self.class_weight is None:
            return learning
        worth = compute_class_weight(self.class_weight, classes=classes, y=target)
        self._class_costs = {
            label: {"*": cost} for label, cost in zip(classes.tolist(), worth.tolist(), strict=True)
        }
        weight = 1.0 if learning.weight is None else learning.weight
        training = weight * worth[np.searchsorted(classes, target)]
        return learning._replace(training=training)

    def predict_proba(self, X: Table) -> NDArray[np.float64]:  # noqa: N803
        """Return the probabilities of the classifier that answers each row.

        Args:
            X: The rows, as the classifiers take them.

        Returns:
            Shape (rows, classes), in the order of ``classes_``.
        """
        return np.asarray(self._decide(X).replies.answer, np.float64)

    def _replies(self, name: str, model: Any, rows: Table) -> Replies:
        """Return codes of classes, the confidence in them, and the probabilities."""
        if not hasattr(model, "classes_"):
            raise ArgumentError(
                f"model {name!r} is no classifier ({type(model).__name__} has no classes_ after "
                "its fit): give a classifier, or use CascadeRegressor"
            )
        if not hasattr(model, "predict_proba"):
            raise ArgumentError(
                f"model {name!r} has no predict_proba; a cascade needs to know how certain a model "
                "is: wrap it in CalibratedClassifierCV"
            )
        part = model.predict_proba(rows)
        share = np.zeros((len(part), len(self.classes_)))
        share[:, np.searchsorted(self.classes_, model.classes_)] = part
        return Replies(share.argmax(axis=1), share.max(axis=1), share)

    def _columns(self, replies: Sequence[Replies], target: NDArray[Any]) -> dict[str, Any]:
        if unknown := set(target.tolist()) - set(self.classes_.tolist()):
            raise ValueError(f"certify_on has the class {unknown.pop()!r}, which y has not")
        return {
            "prediction": np.stack([reply.code for reply in replies], axis=1).astype(np.int32),
            "label": np.searchsorted(self.classes_, target).astype(np.int32),
            "classes": tuple(map(_text, self.classes_)),
            "mistakes": {
                _text(label): {_text(answer): cost for answer, cost in costs.items()}
                for label, costs in self._class_costs.items()
            },
        }

    def _returned(self, replies: Replies) -> NDArray[Any]:
        return np.asarray(self.classes_[replies.code])

    def _operating_point(
        self, ladder: FittedLadder, trace: Trace, target: NDArray[Any]
    ) -> FittedPolicy:
        """Return the policy asked for, or the cheapest by a scorer; warn of classes not found."""
        assert trace.prediction is not None  # noqa: S101 - classifiers predict
        predicted, rows = trace.prediction, np.arange(len(trace))
        policy = super()._operating_point(ladder, trace, target)
        if self.scoring is not None:
            scorer = get_scorer(self.scoring)
            single = [ladder.point(len(ladder) + node) for node in range(len(trace.spec))]

            def score(candidate: FittedPolicy) -> float:
                codes = predicted[rows, candidate.play(trace).answer]
                return float(scorer(_Answered(self.classes_, codes), rows, target))

            wanted = max(map(score, single))
            good = [candidate for candidate in (*ladder, *single) if score(candidate) >= wanted]
            policy = min(good, key=lambda candidate: candidate.cost or 0.0)
        codes = np.searchsorted(self.classes_, target)
        count = np.bincount(codes, minlength=len(self.classes_))
        answers = [predicted[rows, policy.play(trace).answer], *predicted.T]
        recall, *by_model = (
            np.bincount(codes, answer == codes, len(count)) / np.maximum(count, 1)
            for answer in answers
        )
        best = np.max(by_model, axis=0)
        for k in np.flatnonzero((recall == 0) & (best > 0)):
            warnings.warn(
                f"class {trace.classes[k]!r}, {percent(count[k] / len(trace))} of the rows, is "
                f"never predicted, and one of the models finds {percent(float(best[k]))} of it: "
                'say what its mistakes cost with mistakes= or class_weight="balanced", or choose '
                'by scoring="balanced_accuracy"',
                UserWarning,
                stacklevel=3,
            )
        return policy


class _Answered(ClassifierMixin, BaseEstimator):
    """Answers that are there already, as scorers take them."""

    def __init__(self, classes: NDArray[Any], codes: NDArray[Any]) -> None:
        self.classes, self.codes = classes, codes
        self.classes_ = classes

    def predict(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return the classes of rows by their numbers."""
        return np.asarray(self.classes[self.codes[rows]])


def _text(value: Any) -> str:
    """Return the name of a class, as ladders have it."""
    return str(class_text(value))
