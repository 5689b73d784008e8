"""Logistic regression: the weights are the optimum, and nothing runs away."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from ttamer.stats.logistic import EDGE, fit_by_class, fit_logistic, logit, sigmoid


def drawn(rows=400, width=4, seed=0, scale=1.0):
    generator = np.random.default_rng(seed)
    features = np.column_stack([np.ones(rows), scale * generator.standard_normal((rows, width))])
    weights = generator.standard_normal(width + 1) / np.array([1.0, *[scale] * width])
    return features, generator.random(rows) < sigmoid(features @ weights)


def objective(weights, features, outcomes, ridge):
    """What the docstring promises to minimise, and its slope; written without the library."""
    penalty = ridge * features.std(axis=0) ** 2
    penalty[0] = 0
    penalty += 1e-9 * len(features)
    odds = features @ weights
    signs = np.where(outcomes, 1.0, -1.0)
    loss = np.logaddexp(0, -signs * odds).sum() + 0.5 * penalty @ weights**2
    slope = features.T @ (-signs * np.exp(-np.logaddexp(0, signs * odds))) + penalty * weights
    return loss, slope


def optimum(features, outcomes, ridge):
    found = minimize(
        objective,
        np.zeros(features.shape[1]),
        (features, outcomes, ridge),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-8},
    )
    return found.x


@pytest.mark.parametrize("ridge", [0.0, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_another_optimiser(seed, ridge):
    features, outcomes = drawn(seed=seed)
    got = fit_logistic(features, outcomes, ridge=ridge)
    np.testing.assert_allclose(got, optimum(features, outcomes, ridge), atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_flat_at_the_weights(seed):
    features, outcomes = drawn(seed=seed)
    _, slope = objective(fit_logistic(features, outcomes, ridge=2.0), features, outcomes, 2.0)
    assert np.abs(slope).max() < 1e-2  # of 400 rows: 2.5e-5 of a row each


def test_the_mean_chance_is_the_share_of_outcomes():
    features, outcomes = drawn(2000)
    chances = sigmoid(features @ fit_logistic(features, outcomes, ridge=2.0))
    assert chances.mean() == pytest.approx(outcomes.mean(), abs=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_chances_do_not_depend_on_the_scale_of_a_feature(scale):
    features, outcomes = drawn()
    scaled = features * np.array([1.0, *[scale] * 4])
    one = sigmoid(features @ fit_logistic(features, outcomes, ridge=2.0))
    two = sigmoid(scaled @ fit_logistic(scaled, outcomes, ridge=2.0))
    # Far below 1 the small penalty of a column without spread begins to show.
    np.testing.assert_allclose(one, two, atol=1e-2 if scale < 1 else 1e-5)


@pytest.mark.parametrize("rows", [2, 10, 1000])
def test_separable_outcomes_stay_finite_by_the_ridge(rows):
    values = np.linspace(-1, 1, rows)
    features = np.column_stack([np.ones(rows), values])
    got = fit_logistic(features, values > 0, ridge=2.0)
    assert np.isfinite(got).all()
    assert 0 < got[1] < 100
    np.testing.assert_allclose(got, optimum(features, values > 0, 2.0), rtol=1e-2, atol=1e-2)


def test_columns_without_spread_do_no_harm():
    features, outcomes = drawn()
    rows = len(features)
    dull = np.column_stack([features, np.zeros(rows), np.full(rows, 3.0), features[:, 1]])
    got = fit_logistic(dull, outcomes, ridge=2.0)
    assert np.isfinite(got).all()
    assert got[5] == 0  # nothing pulls at a column of zeros
    assert got[1] == pytest.approx(got[7], abs=1e-4)  # two equal columns share their weight
    np.testing.assert_allclose(
        sigmoid(dull @ got),
        sigmoid(features @ fit_logistic(features, outcomes, ridge=2.0)),
        atol=0.02,  # the penalty of a shared weight is half as large
    )


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("rows", [1, 10, 5000])
def test_outcomes_all_alike_are_near_certain_and_finite(rows, value):
    features, _ = drawn(rows)
    got = fit_logistic(features, np.full(rows, value), ridge=2.0)
    assert np.isfinite(got).all()
    chances = sigmoid(features @ got)
    assert (np.abs(chances - value) < 0.05).all()


@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_start_does_not_matter(seed, size):
    features, outcomes = drawn(seed=seed)
    start = size * np.random.default_rng(seed + 100).standard_normal(5)
    kept = start.copy()
    got = fit_logistic(features, outcomes, ridge=2.0, start=start)
    np.testing.assert_allclose(got, fit_logistic(features, outcomes, ridge=2.0), atol=2e-4)
    np.testing.assert_array_equal(start, kept)


def test_starting_at_the_optimum_stays_there():
    features, outcomes = drawn()
    best = fit_logistic(features, outcomes, ridge=2.0)
    np.testing.assert_allclose(
        fit_logistic(features, outcomes, ridge=2.0, start=best), best, atol=1e-5
    )


def test_sigmoid_at_the_extremes():
    with np.errstate(all="raise"):
        got = sigmoid(np.array([-np.inf, -1e308, -745.0, 0.0, 745.0, 1e308, np.inf]))
    assert got.tolist() == [0, 0, 0, 0.5, 1, 1, 1]
    values = np.linspace(-20, 20, 101)
    np.testing.assert_allclose(sigmoid(values), 1 / (1 + np.exp(-values)), atol=1e-15)
    assert (np.diff(sigmoid(values)) > 0).all()


def test_logit_at_the_extremes_and_between():
    with np.errstate(all="raise"):
        ends = logit(np.array([0.0, 1.0, -1.0, 2.0]))
    most = np.log((1 - EDGE) / EDGE)
    np.testing.assert_allclose(ends, [-most, most, -most, most])
    chances = np.linspace(0.001, 0.999, 99)
    np.testing.assert_allclose(sigmoid(logit(chances)), chances, atol=1e-12)


def test_weights_are_shrunk_towards_the_prior():
    features, outcomes = drawn()
    prior = np.array([0.0, 1.0, -2.0, 0.5, 0.0])
    near = fit_logistic(features, outcomes, ridge=1e9, prior=prior)
    np.testing.assert_allclose(near[1:], prior[1:], atol=1e-4)
    free = fit_logistic(features, outcomes, ridge=0.0)
    np.testing.assert_allclose(
        fit_logistic(features, outcomes, ridge=0.0, prior=prior), free, atol=1e-4
    )
    half = fit_logistic(features, outcomes, ridge=50.0, prior=prior)
    assert ((half - free)[1:] * (prior - free)[1:] > 0).all()


@pytest.mark.parametrize("odds", [-9.0, -13.0, 13.0])
def test_a_prior_that_is_certain_and_wrong_is_left(odds):
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(80), odds + rng.normal(size=80)])
    outcomes = rng.random(80) < (0.9 if odds < 0 else 0.1)
    prior = np.array([0.0, 1.0])
    weights = fit_logistic(features, outcomes, ridge=20.0, prior=prior)
    assert sigmoid(features @ weights).mean() == pytest.approx(outcomes.mean(), abs=1e-4)
    codes = np.repeat([0, 1], 40).astype(np.int32)
    weights, terms = fit_by_class(features, codes, outcomes, classes=2, ridge=20.0, prior=prior)
    assert sigmoid(features @ weights + terms[codes]).mean() == pytest.approx(
        outcomes.mean(), abs=1e-4
    )
