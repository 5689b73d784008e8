"""A cascade of regressors is a regressor of scikit-learn, fitted to graded losses."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_friedman1
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator

import ttamer as tt
from ttamer.sklearn import CascadeRegressor, base

COSTS = {"line": 1.0, "forest": 50.0}


@pytest.fixture(scope="module")
def numbers():
    """Rows that a line gets right where a switch is off, and a forest everywhere."""
    x, y = make_friedman1(1600, noise=0.3, random_state=0)
    x[:, 5] = np.random.default_rng(0).random(1600) < 0.3
    return x, np.where(x[:, 5] > 0.5, y, 10 * x[:, 3] + 5 * x[:, 4])


@pytest.fixture(scope="module")
def fitted(numbers):
    x, y = numbers
    models = [("line", LinearRegression()), ("forest", RandomForestRegressor(20, random_state=0))]
    cascade = CascadeRegressor(models, costs=COSTS, cv=3, budget=25.0)
    return cascade.fit(x[:800], y[:800])


@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
@pytest.mark.filterwarnings("ignore:.*of the rows repeat others")
def test_it_passes_the_checks_of_scikit_learn(monkeypatch):
    models = [("ridge", Ridge()), ("tree", DecisionTreeRegressor(random_state=0))]
    costs = {"ridge": 1.0, "tree": 5.0}
    # Twice as fast to fit, some 80 times.
    monkeypatch.setattr(base, "fit", partial(tt.fit, belief="threshold"))
    check_estimator(CascadeRegressor(models, costs=costs, cv=2))


def test_it_keeps_to_a_budget_and_is_better_than_a_random_mix(numbers, fitted):
    x, y = numbers
    done = fitted.run_batch(x[800:])
    off = [np.abs(model.predict(x[800:]) - y[800:]).mean() for _, model in fitted.models_]
    share = done.asked[:, 1].mean()
    assert 0.05 < share < 0.6
    assert done.cost.mean() < 28.0
    mixed = share * off[1] + (1 - share) * off[0]
    assert np.abs(np.array(done.answers) - y[800:]).mean() < 0.95 * mixed
    assert done.predictions == done.answers
    assert fitted.predict(x[800:]) == pytest.approx(done.answers)


def test_the_trace_has_errors_on_rows_kept_from_the_models(numbers, fitted):
    x, y = numbers
    assert fitted.trace_.is_graded
    assert fitted.trace_.raw_loss.mean(axis=0)[0] > 0.5
    one = {"models": [("line", LinearRegression())], "costs": {"line": 1.0}, "cv": 2}
    plain = CascadeRegressor(**one).fit(x[:200], y[:200])
    squared = CascadeRegressor(**one, loss="squared_error")
    squared.fit(x[:200], y[:200])
    assert squared.trace_.raw_loss == pytest.approx(plain.trace_.raw_loss**2)


def test_models_are_judged_alike_on_sorted_rows(numbers, fitted):
    x, y = (part[:800] for part in numbers)
    order = np.argsort(y)
    models = [("line", LinearRegression()), ("forest", RandomForestRegressor(20, random_state=0))]
    cascade = CascadeRegressor(models, costs=COSTS, cv=3)
    cascade.fit(x[order], y[order])
    assert cascade.best_model_ == fitted.best_model_ == "forest"
    losses = cascade.trace_.raw_loss.mean(axis=0)
    assert losses == pytest.approx(fitted.trace_.raw_loss.mean(axis=0), rel=0.1)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_may_have_text_and_categories(library, numbers):
    frames = pytest.importorskip(library)
    x, y = (part[:400] for part in numbers)
    words = np.where(x[:, 5] > 0.5, "on", "off").astype(object)
    frame = frames.DataFrame({"a": x[:, 3], "b": x[:, 4], "switch": words, "c": x[:, 0]})

    def model(regressor):
        columns = [(OneHotEncoder(handle_unknown="ignore"), ["switch"])]
        return make_pipeline(
            make_column_transformer(*columns, ("passthrough", ["a", "b", "c"])), regressor
        )

    models = [("line", model(LinearRegression())), ("tree", model(DecisionTreeRegressor()))]
    cascade = CascadeRegressor(models, costs={"line": 1.0, "tree": 5.0}, cv=2).fit(frame, y)
    assert cascade.predict(frame[:5]).shape == (5,)
    columns = {key: [1.0, 2.0] for key in "abc"} | {"switch": ["new", "on"]}
    unknown = frames.DataFrame(columns)
    unknown = unknown[list(frame.columns)]
    assert np.isfinite(cascade.predict(unknown)).all()


def test_an_unknown_loss_is_refused(numbers):
    with pytest.raises(tt.ArgumentError, match="loss is 'cubic'; it must be one of absolute_error"):
        CascadeRegressor([("line", LinearRegression())], loss="cubic").fit(*numbers)


def test_a_certificate_of_errors_without_a_bound_is_refused(numbers):
    cascade = CascadeRegressor([("line", LinearRegression())], costs={"line": 1.0})
    with pytest.raises(tt.ArgumentError, match="certify_on needs a largest loss"):
        cascade.fit(*numbers, certify_on=numbers)


def test_without_scikit_learn_the_extra_is_named():
    blocked = "import sys; sys.modules |= dict.fromkeys(('scipy', 'sklearn'))"
    code = f"{blocked}; from ttamer.sklearn import CascadeRegressor"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(
        "this needs sklearn, which is not installed: pip install 'ttamer[sklearn]'\n"
    )
