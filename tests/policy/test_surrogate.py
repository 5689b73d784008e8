"""The algebra of surrogate losses against plain enumeration of discrete laws.

A law is written as a list of (value, chance); infinity is a value like any other. Two laws are
the same when ``E[min(x, W)]`` is, for every x.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.testing import assert_equal

import ttamer as tt
from support.examples import examples
from support.strategies import costs, losses, problems, rows, tradeoffs
from ttamer.policy.surrogate import Surrogate, sweep
from ttamer.problem.checks import weigh_losses

CLOSE = 1e-12
INF = math.inf
XS = [0.0, 0.05, 0.1, 0.22, 0.5, 0.75, 1.0, 1.5, 7.0, INF]
values = st.one_of(losses, st.just(INF))


@st.composite
def laws(draw, states=2):
    """One law per state, as a surrogate and as lists of (value, chance)."""
    support = draw(st.lists(values, min_size=1, max_size=4))
    chances = draw(rows(states, len(support)))
    surrogate = Surrogate.of_losses(np.array(support)).mixed(chances)
    return surrogate, [list(zip(support, row, strict=True)) for row in chances.tolist()]


def mean(law, worth):
    """Average a function of the number; what has no chance does not count."""
    return sum(chance * worth(value) for value, chance in law if chance > 0)


def assert_same(surrogate, expected):
    got = surrogate.expected_minimum(np.array(XS))
    assert got.shape == (len(expected), len(XS))
    for row, law in zip(got.tolist(), expected, strict=True):
        assert row == pytest.approx([mean(law, lambda w, x=x: min(w, x)) for x in XS], abs=CLOSE)


@given(st.lists(values, min_size=1, max_size=4))
def test_a_nodes_own_loss_is_certain_given_its_state(support):
    surrogate = Surrogate.of_losses(np.array(support))
    assert_same(surrogate, [[(loss, 1.0)] for loss in support])
    assert surrogate.sure.tolist() == [loss < INF for loss in support]


@settings(deadline=None)
@given(laws())
def test_the_mean_of_the_lesser_of_it_and_a_fallback(pair):
    surrogate, expected = pair
    assert_same(surrogate, expected)
    sure = [all(value < INF for value, chance in law if chance > 0) for law in expected]
    assert surrogate.sure.tolist() == sure


@settings(deadline=None)
@given(laws(), laws())
def test_the_least_of_two_independent_numbers(one, two):
    expected = [
        [(min(v, w), p * q) for (v, p), (w, q) in product(law_a, law_b)]
        for law_a, law_b in zip(one[1], two[1], strict=True)
    ]
    least = one[0].minimum_with(two[0])
    assert_same(least, expected)
    assert (least.sure >= (one[0].sure | two[0].sure)).all()


@settings(deadline=None)
@given(laws(states=3), rows(2, 3))
def test_a_mixture_over_the_states(pair, table):
    surrogate, given_state = pair
    expected = [
        [(value, p * q) for q, law in zip(row, given_state, strict=True) for value, p in law]
        for row in table.tolist()
    ]
    assert_same(surrogate.mixed(table), expected)


@examples(300)
@given(laws(), costs)
def test_the_index_is_the_largest_number_whose_expected_gain_is_the_cost(pair, cost):
    surrogate, expected = pair
    for sigma, law in zip(surrogate.index(cost).tolist(), expected, strict=True):
        if all(value == INF for value, chance in law if chance > 0):
            assert sigma == INF
        else:
            assert mean(law, lambda w, x=sigma: max(x - w, 0)) == pytest.approx(cost, abs=CLOSE)
            more = sigma + 1e-3
            assert mean(law, lambda w, x=more: max(x - w, 0)) > cost


def test_at_no_cost_the_index_is_the_least_value_that_has_a_chance():
    surrogate = Surrogate.of_losses(np.array([0.1, 0.3, 0.7])).mixed(np.array([[0, 0.5, 0.5]]))
    assert surrogate.index(0.0).tolist() == [0.3]


@given(laws(), costs)
def test_later_by_a_delay_every_value_is_greater_by_it(pair, delay):
    surrogate, expected = pair
    shifted = [[(value + delay, chance) for value, chance in law] for law in expected]
    assert_same(surrogate.mixed_later(np.eye(2), np.full((2, 2), delay)), shifted)


@settings(deadline=None)
@given(laws(), st.lists(values, min_size=2, max_size=2))
def test_raised_to_an_index_no_value_below_it_is_left(pair, sigma):
    surrogate, expected = pair
    for state, law in enumerate(expected):
        if all(value == INF for value, chance in law if chance > 0):
            sigma[state] = INF  # an index is infinite exactly where nothing is finite
        elif sigma[state] == INF:
            sigma[state] = 2.0
    raised = [
        [(max(least, value), chance) for value, chance in law]
        for least, law in zip(sigma, expected, strict=True)
    ]
    assert_same(surrogate.raised(np.array(sigma)), raised)


def test_nothing_finite_leaves_the_fallback_and_an_infinite_index():
    nothing = Surrogate.of_losses(np.array([INF, INF]))
    assert nothing.index(0.5).tolist() == [INF, INF]
    assert nothing.expected_minimum(np.array([0.2, INF])).tolist() == [[0.2, INF]] * 2
    assert not nothing.sure.any()


def test_the_least_chance_of_no_answer_makes_the_whole_mean_infinite():
    chances = np.array([[1 - 1e-12, 1e-12], [1.0, 0.0]])
    surrogate = Surrogate.of_losses(np.array([0.5, INF])).mixed(chances)
    assert surrogate.expected_minimum(np.array([INF]))[:, 0].tolist() == [INF, 0.5]


@settings(deadline=None)
@given(laws(), laws())
def test_a_trimmed_law_has_the_same_means(one, two):
    least = one[0].minimum_with(two[0])
    for _ in range(6):
        least = least.minimum_with(one[0])
    assert_equal(
        least.trimmed().expected_minimum(np.array(XS)), least.expected_minimum(np.array(XS))
    )


def test_an_upper_tail_below_rounding_is_dropped_and_no_other():
    points, tiny = np.array([0.5, 1.0, 2.0]), np.array([1e-20, 1e-10])
    law = Surrogate(points, *(np.array([[0.5, 1.0, 1.0]] * 2) for _ in "ab"), np.array([True] * 2))
    law = replace(law, above=np.stack([np.full(2, 0.5), tiny, np.zeros(2)], axis=1))
    assert law.trimmed() is law
    law = replace(law, above=np.stack([np.full(2, 0.5), tiny[[0, 0]], np.zeros(2)], axis=1))
    assert law.trimmed().points.tolist() == [0.5, 1.0]
    assert law.trimmed().above.tolist() == [[0.5, 0.0]] * 2
    assert replace(law, sure=np.array([True, False])).trimmed().points.tolist() == [0.5, 1.0, 2.0]


# The sweep over a forest.


@examples(100)
@given(problems("forest"), tradeoffs)
def test_a_leafs_index_pays_for_itself_and_a_subtree_means_what_it_loses(problem, tradeoff):
    sigma, whole = sweep(problem, tradeoff)
    policy = tt.IndexPolicy(problem=problem, tradeoff=tradeoff, value=whole.mean, sigma=sigma)
    again = policy._law_below(-1)
    assert_equal(again.points, whole.points)
    assert_equal(again.below, whole.below)
    for node in range(len(problem.nodes)):
        below = policy._law_below(node)
        if problem.outgoing[node]:
            continue
        assert not below.points.size
        own = weigh_losses(problem.nodes[node].losses, tradeoff).tolist()
        edge = problem.parent_edge(node)
        for index, row in zip(sigma[node].tolist(), edge.probabilities.tolist(), strict=True):
            law = list(zip(own, row, strict=True))
            gain = mean(law, lambda w, x=index: max(x - w, 0) if w < INF else 0)
            assert index == INF or gain == pytest.approx((1 - tradeoff) * edge.cost, abs=CLOSE)


@pytest.mark.parametrize(
    ("low", "tie", "chance", "cost"),
    [(0.1, 0.3, 0.5, 0.1), (0.0, 0.2, 0.1, 0.02)],
    ids=["rounded up", "rounded down"],
)
def test_a_loss_that_equals_an_index_but_for_rounding_is_not_above_it(low, tie, chance, cost):
    supports, coin = [[low, 0.9], [tie]], [chance, 1 - chance]
    problem = tt.Problem.forest(supports, [cost, 0.0], [coin, [1.0]], [None, None])
    law = Surrogate.of_losses(0.5 * np.array(supports[0])).mixed(np.array([coin]))
    assert law.index(0.5 * cost)[0] != 0.5 * tie  # 0.15000000000000002, 0.09999999999999999
    assert 0.5 * tie <= sweep(problem, 0.5)[0][0][0] < 0.5 * tie + 1e-12
