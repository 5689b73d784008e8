from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.errors import ArgumentError
from ttamer.fitted.quantiser import METHODS, Quantiser, edges_of

values = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-5, 5)), min_size=1, max_size=60
).map(np.array)


@given(values, st.integers(1, 12), st.sampled_from(METHODS))
def test_edges_increase_and_leave_no_state_empty(column, states, method):
    edges = edges_of(column, states=states, method=method)
    assert len(edges) < states
    assert (np.diff(edges) > 0).all()
    found = np.searchsorted(edges, column, side="right")
    assert set(found.tolist()) == set(range(len(edges) + 1))


@given(values, st.integers(1, 12), st.sampled_from(METHODS), st.lists(st.floats(-6, 6), max_size=9))
def test_many_states_at_once_equal_one_by_one(column, states, method, others):
    quantiser = Quantiser((edges_of(column, states=states, method=method),))
    everything = np.concatenate([column, others, quantiser.edges[0], [np.inf, -np.inf, np.nan]])
    together = quantiser.states(everything[:, np.newaxis])[:, 0].tolist()
    assert together == [quantiser.state(0, value) for value in everything.tolist()]


def test_many_states_at_once_equal_one_by_one_over_several_chunks():
    generator = np.random.default_rng(0)
    confidence = generator.beta(5, 1, (40_000, 2))
    quantiser = Quantiser.fit(confidence, states=32, method="quantile")
    states = quantiser.states(confidence)
    for node, edges in enumerate(quantiser.edges):
        want = np.searchsorted(edges, confidence[:, node], side="right")
        np.testing.assert_array_equal(states[:, node], want)


def test_a_confidence_that_is_no_number_is_the_least_sure_state():
    quantiser = Quantiser((np.array([0.5]),))
    assert quantiser.state(0, float("nan")) == 0
    assert quantiser.states(np.array([[np.nan], [0.9]]))[:, 0].tolist() == [0, 1]


def test_quantile_states_hold_equal_shares():
    column = np.random.default_rng(1).random(10_000) ** 4
    edges = edges_of(column, states=10, method="quantile")
    shares = np.bincount(np.searchsorted(edges, column, side="right")) / len(column)
    assert shares == pytest.approx([0.1] * 10, abs=2e-3)


def test_uniform_states_are_equally_wide():
    column = np.linspace(0, 1, 10_001)
    assert edges_of(column, states=4, method="uniform") == pytest.approx(
        [0.25, 0.5, 0.75], abs=1e-3
    )


@given(st.lists(st.integers(0, 30), min_size=2, max_size=9, unique=True), st.integers(2, 5))
def test_kmeans_is_optimal(numbers, states):
    column = np.sort(np.array(numbers, float))

    def spread(cuts):
        parts = np.split(column, cuts)
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts)

    best = min(
        spread(list(cuts))
        for count in range(min(states, len(column)))
        for cuts in itertools.combinations(range(1, len(column)), count)
    )
    edges = edges_of(column, states=states, method="kmeans")
    got = spread(list(np.searchsorted(column, edges)))
    assert got == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e160, 1e-170])
@pytest.mark.parametrize("shift", [0.0, 1e8])
def test_kmeans_does_not_depend_on_the_scale(scale, shift):
    column = np.repeat([0.0, 0.3, 1.0, 1.2], 5) + np.tile(np.arange(5) / 100, 4)
    edges = edges_of(scale * (column + shift), states=4, method="kmeans") / scale - shift
    np.testing.assert_array_equal(np.searchsorted(edges, column), np.repeat(range(4), 5))


@pytest.mark.parametrize("states", [0, 257])
def test_a_silly_number_of_states_is_refused(states):
    with pytest.raises(ArgumentError, match="1 to 256"):
        Quantiser.fit(np.zeros((3, 1)), states=states, method="quantile")


def test_an_unknown_method_is_refused():
    with pytest.raises(ArgumentError, match="uniform, quantile, kmeans"):
        Quantiser.fit(np.zeros((3, 1)), states=2, method="magic")


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_confidences_there_are_overflow_nowhere(method):
    column = np.finfo(float).max * np.linspace(-1, 1, 50)
    quantiser = Quantiser.fit(column[:, np.newaxis], states=4, method=method)
    assert quantiser.counts == (4,)
    assert quantiser.rescaled(column[:, np.newaxis]) == []
