"""The lower convex envelope of settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.errors import ArgumentError
from ttamer.stats.envelope import area_under, cost_at_error, error_at_cost, lower_envelope

points = st.lists(
    st.tuples(st.integers(0, 12).map(lambda k: k / 4), st.integers(0, 16).map(lambda k: k / 16)),
    min_size=1,
    max_size=12,
)


def least_error(cost: np.ndarray, error: np.ndarray, at: float) -> float:
    """The least error at most this cost over all mixtures of two points, by brute force."""
    best = np.inf
    for i in range(len(cost)):
        for j in range(len(cost)):
            if cost[i] <= at:
                best = min(best, error[i])
            if cost[i] < at < cost[j]:
                share = (at - cost[i]) / (cost[j] - cost[i])
                best = min(best, error[i] + share * (error[j] - error[i]))
    return best


@given(points)
def test_the_envelope_is_what_mixtures_of_two_points_reach(drawn):
    cost, error = np.array(drawn).T
    for at in np.arange(0, 3.5, 0.125):
        found = error_at_cost(cost, error, at)
        expected = least_error(cost, error, at)
        assert (np.inf if found is None else found) == pytest.approx(expected)


@given(points)
def test_cost_at_error_is_the_least_cost_that_reaches_it(drawn):
    cost, error = np.array(drawn).T
    for wanted in np.arange(0, 1.01, 0.05):
        found = cost_at_error(cost, error, wanted)
        if found is None:
            assert wanted < error.min()
        else:
            assert least_error(cost, error, found + 1e-9) <= wanted + 1e-6
            assert found <= cost.min() or least_error(cost, error, found - 1e-6) > wanted


@given(points)
def test_each_step_costs_more_errs_less_and_buys_less_than_the_one_before(drawn):
    cost, error = np.array(drawn).T
    kept = lower_envelope(cost, error)
    across, down = np.diff(cost[kept]), -np.diff(error[kept])
    assert (across > 0).all()
    assert (down > 0).all()
    assert (np.diff(down / across) < 0).all()
    assert lower_envelope(cost[kept], error[kept]).tolist() == list(range(len(kept)))
    assert cost[kept[0]] == cost.min()
    assert error[kept[-1]] == error.min()


@given(points, st.integers(0, 10), st.integers(1, 10))
def test_the_area_is_the_integral_of_the_least_error(drawn, start, width):
    cost, error = np.array(drawn).T
    low, high = start / 4, (start + width) / 4
    steps = 400
    middles = low + (np.arange(steps) + 0.5) * (high - low) / steps
    heights = [error_at_cost(cost, error, at) for at in middles]
    total = sum(1.0 if h is None else h for h in heights) * (high - low) / steps
    assert area_under(cost, error, low, high) == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    ("costs", "errors", "corners"),
    [
        ([1, 1, 2, 2], [0.5, 0.5, 0.2, 0.2], [0, 2]),  # of equal points the first
        ([1, 2, 3], [0.5, 0.2, 0.2], [0, 1]),  # an expensive point that is no better
        ([1, 2, 3], [0.5, 0.375, 0.25], [0, 2]),  # a point inside an edge
    ],
)
def test_points_that_add_nothing_are_left_out(costs, errors, corners):
    assert lower_envelope(costs, errors).tolist() == corners


def test_an_error_above_the_cheapest_points_costs_what_the_cheapest_point_does():
    assert cost_at_error([2.0, 3.0], [0.5, 0.1], 0.9) == 2.0


def test_no_answer_counts_as_wrong_below_the_cheapest_point_unless_set_otherwise():
    assert area_under([2.0], [0.5], 0.0, 4.0) == 2.0 + 1.0
    assert area_under([2.0], [0.5], 0.0, 4.0, unreached=0.5) == 2.0
    assert area_under([2.0], [0.5], 0.0, 1.0) == 1.0


def test_a_family_without_a_cheap_setting_gains_nothing_by_it():
    assert area_under([1.0, 2.0], [0.9, 0.1], 1.0, 2.0) < area_under([2.0], [0.1], 1.0, 2.0)


def test_rounding_in_a_mean_does_not_put_a_point_out_of_reach():
    cost = float(np.full(3, 0.1).sum() / 3)  # a little more than 0.1
    assert cost > 0.1
    assert error_at_cost([cost], [0.25], 0.1) == 0.25
    assert cost_at_error([1.0], [0.1 + 1e-16], 0.1) == 1.0


@pytest.mark.parametrize(
    ("costs", "errors"),
    [([], []), ([1.0], [0.1, 0.2]), ([np.nan], [0.1]), ([1.0], [np.inf]), ([[1.0]], [[0.1]])],
)
def test_points_that_are_none_are_refused(costs, errors):
    with pytest.raises(ArgumentError, match="an envelope needs"):
        lower_envelope(costs, errors)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf)])
def test_an_area_needs_a_range(low, high):
    with pytest.raises(ArgumentError, match="low must be below high"):
        area_under([1.0], [0.1], low, high)


def test_a_target_is_met_up_to_rounding_in_any_unit_of_loss():
    for unit in (1e-12, 1.0, 1e12):
        errors = [0.5 * unit, 0.1 * unit]
        assert cost_at_error([1.0, 3.0], errors, 0.1 * unit * (1 - 1e-12)) == pytest.approx(3.0)
        assert cost_at_error([1.0, 3.0], errors, 0.09 * unit) is None
