"""Policies found on rows: the best thresholds there are, by trying them all."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from support.traces import answering_trace
from ttamer import datasets
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.row_policy import Pooling, smoother, solve_rows, width_of
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.stats.isotonic import rising, rising_columns
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

TRADEOFFS = np.array([0.0, 0.3, 0.6, 0.8, 0.95, 1.0])


def rows_of(nodes, *, rows=40, states=6, seed=0):
    """States of nodes on a line, what stopping loses on each row, and the problem."""
    rng = np.random.default_rng(seed)
    hard = rng.random(rows)
    found = np.empty((rows, nodes), np.intp)
    lost = np.empty((rows, nodes))
    for k in range(nodes):
        seen = hard + 0.3 * rng.standard_normal(rows)
        found[np.argsort(seen), k] = np.arange(rows) * states // rows
        lost[:, k] = np.clip(hard * (1 - k / nodes) + 0.1 * rng.standard_normal(rows), 0, 1)
    return found, lost, line_of(found, lost)


def line_of(found, lost, cost=0.1):
    nodes, edges = [], []
    for k in range(found.shape[1]):
        counts = np.bincount(found[:, k])
        losses = rising(np.bincount(found[:, k], lost[:, k]) / counts, counts.astype(float))
        nodes.append(Node(f"n{k}", losses))
        before = 1 if k == 0 else len(nodes[k - 1].losses)
        table = np.full((before, len(counts)), 1 / len(counts))
        edges.append(Edge(None if k == 0 else f"n{k - 1}", f"n{k}", cost=cost, probabilities=table))
    return Problem("walk", tuple(nodes), tuple(edges))


def followed(found, lost, cuts, tradeoff, begin, cost=0.1):
    """What comes of each row from a step on that goes on from these states up."""
    value = np.zeros(len(found))
    for row in range(len(found)):
        step = begin
        while step < len(cuts) and found[row, step] >= cuts[step]:
            value[row] += (1 - tradeoff) * cost
            step += 1
        value[row] += tradeoff * lost[row, step]
    return value


@pytest.mark.parametrize("seed", range(6))
def test_one_threshold_is_the_best_of_all(seed):
    found, lost, problem = rows_of(2, seed=seed)
    for policy in solve_rows(problem, found, lost, TRADEOFFS, width=0.0):
        values = [followed(found, lost, [cut], policy.tradeoff, 0).mean() for cut in range(7)]
        expected = min(values) + (1 - policy.tradeoff) * 0.1
        assert policy.value == pytest.approx(expected, abs=1e-9)
        cut = int((policy.choices[0][:, 0] < 0).sum())
        assert values[cut] == pytest.approx(min(values), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_each_threshold_is_the_best_given_those_after_it(seed):
    found, lost, problem = rows_of(4, seed=seed)
    for policy in solve_rows(problem, found, lost, TRADEOFFS, width=0.0):
        cuts = [int((table[:, 0] < 0).sum()) for table in policy.choices[:3]]
        for step in range(3):
            own = followed(found, lost, cuts, policy.tradeoff, step).mean()
            for cut in range(7):
                other = [*cuts[:step], cut, *cuts[step + 1 :]]
                assert own <= followed(found, lost, other, policy.tradeoff, step).mean() + 1e-9
        expected = followed(found, lost, cuts, policy.tradeoff, 0).mean()
        assert policy.value == pytest.approx(expected + (1 - policy.tradeoff) * 0.1)


@pytest.mark.parametrize("seed", range(4))
def test_nowhere_worse_than_stopping_always_at_the_same_step(seed):
    found, lost, problem = rows_of(4, seed=seed)
    for policy in solve_rows(problem, found, lost, TRADEOFFS, width=0.0):
        for step in range(4):
            always = policy.tradeoff * lost[:, step].mean()
            assert policy.value <= always + (1 - policy.tradeoff) * 0.1 * (step + 1) + 1e-9


@pytest.mark.parametrize("width", [0.0, 0.05, 0.5])
def test_stop_regions_of_a_line_are_thresholds(width):
    found, lost, problem = rows_of(5, rows=300, states=30)
    for policy in solve_rows(problem, found, lost, np.linspace(0, 1, 21), width=width):
        for k, table in enumerate(policy.choices[:-1]):
            goes_on = table[:, 0] >= 0
            assert (np.diff(goes_on.astype(int)) >= 0).all()
            assert set(np.unique(table[goes_on, 0]).tolist()) <= {k + 1}


def test_the_ends_of_the_ladder():
    found, lost, problem = rows_of(3)
    cheapest, best = solve_rows(problem, found, lost, [0.0, 1.0], width=0.0)
    assert all((table < 0).all() for table in cheapest.choices[:-1])
    assert cheapest.value == pytest.approx(0.1)
    least = min(followed(found, lost, cuts, 1.0, 0).mean() for cuts in product(range(7), repeat=2))
    assert least - 1e-9 <= best.value <= lost.mean(axis=0).min()


def test_phi_is_what_the_choice_is_made_by():
    found, lost, problem = rows_of(4, rows=200, states=20)
    for policy in solve_rows(problem, found, lost, TRADEOFFS, width=0.05):
        for node, choice, phi in zip(problem.nodes, policy.choices, policy.phi, strict=False):
            stop = policy.tradeoff * node.losses
            goes_on = choice[:, 0] >= 0
            assert (phi[goes_on, 0] < stop[goes_on]).all()
            assert (phi[~goes_on, 0] == stop[~goes_on]).all()


def test_where_nothing_is_lost_no_row_goes_on():
    found, lost, _ = rows_of(3)
    lost[:, 1] = 0.0
    problem = line_of(found, lost)
    for policy in solve_rows(problem, found, lost, TRADEOFFS, width=0.2):
        assert (policy.choices[1] < 0).all()
        assert (policy.phi[1] == 0).all()


def test_few_tradeoffs_at_a_time_come_to_the_same(monkeypatch):
    found, lost, problem = rows_of(4)
    whole = solve_rows(problem, found, lost, TRADEOFFS, width=0.05)
    monkeypatch.setattr("ttamer.fitting.row_policy.MAX_CELLS", 2 * lost.size)
    for one, two in zip(
        whole, solve_rows(problem, found, lost, TRADEOFFS, width=0.05), strict=True
    ):
        assert one.value == pytest.approx(two.value)
        for mine, theirs in zip(one.choices, two.choices, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_the_better_of_two_ways_is_taken_state_by_state():
    """Two experts, each right on its own half: the first node's state says whose half it is."""
    rng = np.random.default_rng(0)
    half = rng.integers(0, 2, 400)
    right = np.stack([np.zeros(400), half == 0, half == 1, np.ones(400)], axis=1)
    names = ["look", "one", "two", "both"]
    found = np.zeros((400, 4), np.intp)
    found[:, 0] = half
    nodes = [Node(name, 1 - right[:, k : k + 1].mean(axis=0)) for k, name in enumerate(names)]
    nodes[0] = Node("look", np.ones(2))
    one = np.ones((2, 1))
    edges = (
        Edge(None, "look", cost=0.01, probabilities=np.array([[0.5, 0.5]])),
        Edge("look", "one", cost=0.1, probabilities=one),
        Edge("look", "two", cost=0.1, probabilities=one),
        Edge("one", "both", cost=0.9, probabilities=np.ones((1, 1))),
        Edge("two", "both", cost=0.9, probabilities=np.ones((1, 1))),
    )
    problem = Problem("walk", tuple(nodes), edges)
    [policy] = solve_rows(problem, found, 1 - right, [0.5], width=0.0)
    assert policy.choices[0][:, 0].tolist() == [1, 2]
    assert policy.value == pytest.approx(0.5 * 0.11)


def test_smoothing_keeps_means_and_is_wider_with_fewer_rows():
    counts = np.array([3, 1, 5, 2])
    for width in (0.0, 0.1, 10.0):
        np.testing.assert_allclose(smoother(counts, width).sum(axis=1), 1)
    np.testing.assert_allclose(smoother(counts, 1e9)[0], counts / counts.sum())
    assert width_of(100) > width_of(10_000) > 0


@pytest.mark.parametrize("order", ["fixed", "any"])
@pytest.mark.parametrize("target", ["label", "last"])
def test_what_an_explanation_compares_leads_to_the_decision(order, target):
    trace = answering_trace(600, order=order)
    spec = CascadeSpec.of(
        dict(zip(trace.names, trace.spec.costs.tolist(), strict=True)), order=order, target=target
    )
    trace = Trace(
        spec,
        trace.confidence,
        prediction=trace.prediction,
        label=trace.label,
        classes=trace.classes,
    )
    asked = 0
    for policy in build_belief(trace, TRADEOFFS):
        for row in range(0, 600, 20):
            turn = policy.session()
            while turn.next is not None:
                node = trace.names.index(turn.next)
                said = trace.classes[trace.prediction[row, node]]
                turn.observe(confidence=trace.confidence[row, node], prediction=said)
                why = turn.explain()
                assert (why.best > why.index) == (turn.next is not None)
                asked += turn.next is not None
    assert asked > 20


def test_rising_columns_are_what_rising_gives():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 32):
        values = rng.normal(size=(count, 5)).round(1)  # with ties
        weights = np.where(rng.random(count) < 0.3, 1e-9, rng.random(count))
        each = np.stack([rising(own, weights) for own in values.T], axis=1)
        np.testing.assert_allclose(rising_columns(values, weights), each, atol=1e-12)


def pooled_line(share, *, states=6, nodes=4, seed=0):
    """A line of exits with the same X in each state, and its policies with pooled thresholds."""
    found, lost, problem = rows_of(nodes, states=states, seed=seed)
    bounds = [np.arange(states + 1.0)] * nodes
    ladder = solve_rows(problem, found, lost, TRADEOFFS, width=0.0, pooling=Pooling(share, bounds))
    return found, lost, problem, ladder


def cuts_of(policy):
    return [int((table[:, 0] < 0).sum()) for table in policy.choices[:-2]]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_pooled_thresholds_are_drawn_towards_their_mean(share):
    found, lost, problem, ladder = pooled_line(share)
    apart = 0
    for policy, alone in zip(
        ladder, solve_rows(problem, found, lost, TRADEOFFS, width=0.0), strict=True
    ):
        own = np.array(cuts_of(alone), float)
        expected = own + share * (own.mean() - own)
        if own[0] == 6:
            expected[0] = 6
        assert np.abs(np.array(cuts_of(policy)) - expected).max() <= 0.5
        apart += int(np.ptp(own) > 0)
    assert apart


def test_pooled_policies_are_valued_as_they_are():
    found, lost, _, ladder = pooled_line(0.5)
    for policy in ladder:
        expected = followed(found, lost, cuts_of(policy), policy.tradeoff, 0).mean()
        assert policy.value == pytest.approx(expected + (1 - policy.tradeoff) * 0.1)


def test_a_first_exit_that_always_stops_is_not_pooled():
    """There it answers alone, as where only cost counts; another exit is pooled all the same."""
    cuts = [[4, 1], [0, 4], [0, 0]]  # states that stop, by exit and tradeoff
    choices = [
        np.where(np.arange(4)[:, np.newaxis] < own, -1, place + 1).astype(np.int32)
        for place, own in enumerate(cuts)
    ]
    pooled = Pooling(1.0, [np.arange(5.0)] * 4)([*choices, np.full((4, 2), -1)], range(4))
    assert [(own < 0).sum(axis=0).tolist() for own in pooled[:3]] == [[4, 2], [1, 2], [1, 2]]


@pytest.fixture(scope="module")
def few_rows():
    return datasets.load("minilm-imdb").take(slice(300))


def test_few_rows_of_a_network_have_pooled_thresholds(few_rows, monkeypatch):
    """They are closer together than those found at each exit by itself."""
    pooled = build_belief(few_rows, TRADEOFFS)
    monkeypatch.setattr("ttamer.fitting.beliefs.VERY_FEW_ROWS", 299)
    apart = build_belief(few_rows, TRADEOFFS)
    edges = apart.fitted.edges[:-1]

    def spread(ladder):
        """Return the mean range of the thresholds, as log-odds."""
        heights = [
            [own[min(cut, len(own) - 1)] for cut, own in zip(cuts_of(each), edges, strict=True)]
            for each in (policy.policy for policy in ladder[2:])
        ]
        return np.ptp(heights, axis=1).mean()

    assert spread(pooled) < 0.8 * spread(apart)


@pytest.mark.parametrize("change", ["target", "costs"])
def test_other_thresholds_are_not_pooled(few_rows, monkeypatch, change):
    """Neither where the last exit is right by definition, nor where one exit costs far more."""
    spec = few_rows.spec
    if change == "target":
        spec = dataclasses.replace(spec, target="last")
    else:
        spec = spec.with_costs({few_rows.names[-1]: 1.0})
    trace = few_rows.with_spec(spec)
    before = build_belief(trace, TRADEOFFS)
    monkeypatch.setattr("ttamer.fitting.beliefs.VERY_FEW_ROWS", 0)
    for one, two in zip(before, build_belief(trace, TRADEOFFS), strict=True):
        assert cuts_of(one.policy) == cuts_of(two.policy)


def test_explanations_agree_with_pooled_thresholds(few_rows):
    asked = 0
    for policy in build_belief(few_rows, TRADEOFFS):
        for row in range(0, 300, 15):
            turn = policy.session()
            while turn.next is not None:
                node = few_rows.names.index(turn.next)
                said = few_rows.classes[few_rows.prediction[row, node]]
                turn.observe(confidence=few_rows.confidence[row, node], prediction=said)
                why = turn.explain()
                assert (why.best > why.index) == (turn.next is not None)
                asked += turn.next is not None
    assert asked > 20
