"""A cascade of classifiers is a classifier of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import ttamer as tt
from ttamer.errors import ArgumentError
from ttamer.sklearn import CascadeClassifier

QUICK = {"belief": "calibrated", "order": "any", "states": 4, "folds": 2, "tradeoffs": [0.3, 0.9]}
MODELS = [
    ("linear", LinearDiscriminantAnalysis()),
    ("near", KNeighborsClassifier()),
]
COSTS = {"linear": 1.0, "near": 20.0}


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:1200], y[:1200], x[1200:], y[1200:]


@pytest.fixture(scope="module")
def fitted(digits):
    return CascadeClassifier(MODELS, costs=COSTS, cv=3, fit_options={"order": "any"}).fit(
        *digits[:2]
    )


@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
def test_it_passes_the_checks_of_scikit_learn():
    models = [("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(random_state=0))]
    check_estimator(
        CascadeClassifier(models, costs={"bayes": 1.0, "tree": 5.0}, cv=2, fit_options=QUICK)
    )


def test_it_is_as_accurate_as_its_best_model_and_costs_less(digits, fitted):
    *_, x, y = digits
    best = max(model.score(x, y) for _, model in fitted.models_)
    done = fitted.run_batch(x)
    assert fitted.score(x, y) >= best - 0.02
    assert done.cost.mean() < 10.0
    assert (np.array(done.answers) == fitted.predict(x)).all()
    assert set(done.by) <= {"linear", "near"}
    assert done.cost == pytest.approx(done.asked @ [1.0, 20.0])


def test_probabilities_are_those_of_the_model_that_answers(digits, fitted):
    x = digits[2][:50]
    by, models = fitted.run_batch(x).by, dict(fitted.models_)
    shown = fitted.predict_proba(x)
    for row, name in enumerate(by):
        assert shown[row] == pytest.approx(models[name].predict_proba(x[row : row + 1])[0])


def test_a_model_is_judged_on_rows_it_did_not_learn_from(digits):
    x, y, *_ = digits
    deep = DecisionTreeClassifier(random_state=0)  # it knows the rows it learnt from by heart
    assert deep.fit(x, y).score(x, y) == 1.0
    cascade = CascadeClassifier([("deep", deep)], costs={"deep": 1.0}, cv=3, fit_options=QUICK)
    assert cascade.fit(x, y).trace_.wrong().mean() > 0.1


@pytest.mark.parametrize("kind", ["shuffled", "generator"])
def test_all_models_answer_the_same_rows_in_the_same_order(digits, kind):
    """A splitter that shuffles gives other folds each time; a generator gives them once."""
    x, y = digits[0][:300], digits[1][:300]
    folds = KFold(3, shuffle=True)
    cv = folds if kind == "shuffled" else folds.split(x)
    cascade = CascadeClassifier(MODELS, costs=COSTS, cv=cv, fit_options=QUICK).fit(x, y)
    assert cascade.trace_.wrong().mean(axis=0).max() < 0.3


def test_a_rare_class_does_not_change_the_number_of_folds(digits):
    x, y, *_ = digits
    rows = []

    class Counts(GaussianNB):
        def fit(self, x, y):
            rows.append(len(x))
            return super().fit(x, y)

    rare = np.where(np.arange(200) == 7, 99, y[:200] % 3)
    cascade = CascadeClassifier([("bayes", Counts())], costs={"bayes": 1.0}, fit_options=QUICK)
    cascade.fit(x[:200], rare)
    assert rows == [160] * 5 + [200]


def test_models_fitted_before_are_used_as_they_are(digits):
    x, y, *_ = digits
    models = [(name, clone(model).fit(x[:600], y[:600])) for name, model in MODELS]
    cascade = CascadeClassifier(models, costs=COSTS, prefit=True, fit_options=QUICK)
    cascade.fit(x[600:], y[600:])
    assert [model for _, model in cascade.models_] == [model for _, model in models]
    assert len(cascade.trace_) == 600
    assert cascade.trace_.wrong()[:, 1].mean() == pytest.approx(
        1 - models[1][1].score(x[600:], y[600:])
    )


def test_models_that_are_not_fitted_are_named(digits):
    x, y, *_ = digits
    names = ", ".join(repr(name) for name, _ in MODELS)
    with pytest.raises(ArgumentError, match=f"prefit is True, and {names} is not fitted"):
        CascadeClassifier(MODELS, costs=COSTS, prefit=True).fit(x, y)


def test_costs_that_are_no_mapping_are_refused(digits):
    x, y, *_ = digits
    with pytest.raises(ArgumentError, match=r'costs is \[1, 2\]; it must be "time" or a mapping'):
        CascadeClassifier(MODELS, costs=[1, 2]).fit(x, y)


def test_costs_by_time_are_measured(digits):
    x, y, *_ = digits
    cascade = CascadeClassifier(MODELS, cv=2, fit_options=QUICK).fit(x[:300], y[:300])
    assert all(cost > 0 for cost in cascade.costs_.values())
    assert cascade.trace_.spec.costs.tolist() == list(cascade.costs_.values())


def test_an_operating_point_can_be_chosen(digits, fitted):
    x, y, held, _ = digits
    poor = clone(fitted).set_params(budget=5.0, fit_options=QUICK | {"tradeoffs": None}).fit(x, y)
    assert poor.policy_.cost <= 5.0
    rich = clone(fitted).set_params(mistake_cost=1e5, fit_options=QUICK | {"tradeoffs": None})
    assert rich.fit(x, y).run_batch(held).cost.mean() > poor.run_batch(held).cost.mean()


def test_margins_text_and_frames_will_do(digits):
    pandas = pytest.importorskip("pandas")
    x, y, held, right = digits
    models = [("ridge", RidgeClassifier()), ("near", KNeighborsClassifier())]
    cascade = CascadeClassifier(models, costs={"ridge": 1.0, "near": 9.0}, cv=2, fit_options=QUICK)
    names = np.array(["zero", *"123456789"])
    frame = pandas.DataFrame(x, columns=[f"p{i}" for i in range(64)])
    cascade.fit(frame, names[y])
    assert not hasattr(cascade, "predict_proba")
    assert cascade.score(frame.set_axis(frame.columns, axis=1), names[y]) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        cascade.predict(frame.rename(columns={"p0": "other"}))
    del held, right


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_models_may_select_the_columns_of_a_frame_by_name(library, digits):
    frames = pytest.importorskip(library)
    x, y, _, _ = digits
    frame = frames.DataFrame({"edge": x[:, 2], "word": [f"w{c % 3}" for c in y], "mid": x[:, 36]})

    def model(tree):
        return make_pipeline(
            make_column_transformer((OneHotEncoder(), ["word"]), ("passthrough", ["mid"])), tree
        )

    models = [(f"{n}", model(DecisionTreeClassifier(max_depth=n))) for n in (1, 6)]
    cascade = CascadeClassifier(models, costs={"1": 1.0, "6": 9.0}, cv=2, fit_options=QUICK)
    assert cascade.fit(frame, y % 3).score(frame, y % 3) == 1.0
    assert cascade.predict(frame[:5]).shape == (5,)


def test_parameters_of_the_models_are_reached_by_name():
    models = [("line", make_pipeline(StandardScaler(), LogisticRegression())), *MODELS[1:]]
    cascade = CascadeClassifier(models).set_params(line__logisticregression__C=3.0)
    assert cascade.get_params()["line__logisticregression__C"] == 3.0
    assert clone(cascade).get_params()["line__logisticregression__C"] == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": KNeighborsClassifier()}, "list of .name, model."),
        ({"models": []}, "list of .name, model."),
        ({"costs": "money"}, "it must be \"time\" or a mapping"),
        ({"costs": {"linear": 1.0}}, "they must be those of the models: 'linear', 'near'"),
        ({"budget": 1.0, "mistake_cost": 1.0}, "give one of them"),
        ({"cv": 1}, "cv is 1; it must be at least 2"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_used_are_refused(digits, change, message):
    arguments = {"models": MODELS, "costs": COSTS} | change
    with pytest.raises(tt.ArgumentError, match=message):
        CascadeClassifier(**arguments).fit(*digits[:2])


def test_a_model_without_a_confidence_is_refused(digits):
    class Silent(KNeighborsClassifier):
        predict_proba = property()

    cascade = CascadeClassifier([("silent", Silent())], costs={"silent": 1.0}, cv=2)
    with pytest.raises(tt.ArgumentError, match="'silent' has neither predict_proba nor decision"):
        cascade.fit(*digits[:2])


def test_a_regressor_is_refused(digits):
    rows, labels = digits[0][:60], digits[1][:60]
    with pytest.raises(
        tt.ArgumentError, match=r"model .line. is no classifier .* CascadeRegressor"
    ):
        CascadeClassifier([("line", LinearRegression())], costs={"line": 1.0}).fit(rows, labels)


def test_an_exception_of_a_model_is_raised_as_it_is(digits):
    class Breaks(KNeighborsClassifier):
        def predict_proba(self, X):  # noqa: N803
            if len(X) == 7:
                raise RuntimeError("no memory")
            return super().predict_proba(X)

    x, y, *_ = digits
    cascade = CascadeClassifier(
        [("breaks", Breaks())], costs={"breaks": 1.0}, cv=2, fit_options=QUICK
    )
    cascade.fit(x, y)
    with pytest.raises(RuntimeError, match="no memory"):
        cascade.predict(x[:7])
