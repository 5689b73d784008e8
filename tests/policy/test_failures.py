"""A node that failed has a state that nobody knows: what comes next is the best on average."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import best_value
from support.strategies import problems
from ttamer.policy.surrogate import Surrogate


@pytest.mark.parametrize("moves", ["walk", "precedence"])
def test_what_may_answer_is_asked_after_a_failure(moves):
    # In its worst state the first node would rule the second one out.
    line = tt.Problem.line(
        [[0.3, 0.4], [0.1, math.inf]], [0.1, 0.1], [[0.9, 0.1], np.eye(2)], moves=moves
    )
    turn = tt.solve(line, 0.9).session()
    turn.fail()
    assert turn.next == "m2"
    assert turn.explain().why == "there is no answer yet: ask 'm2'"


def unknown(problem, node):
    """The problem after a root has failed, whose state is not known: what it leads to alone."""
    [number] = problem.incoming[node]
    chances = problem.edges[number].probabilities[0]
    nodes = [n for v, n in enumerate(problem.nodes) if v != node]
    edges = []
    for k, edge in enumerate(problem.edges):
        if k == number:
            continue
        if problem.ends[k][0] == node:
            cost = float(chances @ edge.expected_costs)
            edge = tt.Edge(None, edge.target, cost=cost, probabilities=chances @ edge.probabilities)
        edges.append(edge)
    return tt.Problem(problem.moves, nodes, edges)


@pytest.mark.parametrize("moves", ["walk", "precedence"])
def test_on_a_line_the_rest_is_played_optimally_on_average(moves):
    @examples(80)
    @given(problems("line", varied=True), st.floats(0.1, 0.9))
    def check(problem, tradeoff):
        if len(problem.nodes) < 2:
            return
        try:
            policy = tt.solve(problem.with_moves(moves), tradeoff)
        except tt.ProblemError:
            return
        first = problem.order[0]
        rest = unknown(problem, first)
        least = best_value(rest, tradeoff)
        if math.isinf(least):
            return

        def played(states):
            turn = policy.session()
            turn.fail()
            before = turn.cost
            for state in states:
                turn.observe(state)
            if turn.next is None:
                losses = [problem.nodes[problem.number[n]].losses for n in turn.asked[1:]]
                best = min((x[s] for x, s in zip(losses, states, strict=True)), default=math.inf)
                assert (best < math.inf) == (turn.answer is not None)
                return tradeoff * best + (1 - tradeoff) * (turn.cost - before)
            row = turn._chances()
            return sum(p * played((*states, y)) for y, p in enumerate(row) if p > 0)

        # What was asked is paid at what it costs, given all that was seen: on average the same.
        assert played(()) == pytest.approx(least, abs=1e-9)

    check()


def test_what_a_failure_costs_is_what_it_costs_on_average():
    line = tt.Problem.line(
        [[0.3, 0.4], [0.1, 0.2]],
        [[[0.0, 1.0]], [0.2, 0.6]],
        [[0.75, 0.25], [[0.5, 0.5], [0.5, 0.5]]],
    )
    turn = tt.solve(line, 0.9999).session()
    turn.fail()
    assert turn.cost == pytest.approx(0.25)
    assert turn.price == pytest.approx(0.75 * 0.2 + 0.25 * 0.6)
    turn.fail()
    assert turn.cost == pytest.approx(0.25 + 0.3)
    with pytest.raises(tt.ObservationError, match="has stopped"):
        turn.fail()


def test_several_parents_of_which_one_failed():
    sizes = (2, 2)
    rows = np.zeros((*sizes, 2))
    rows[..., 0] = [[0.9, 0.5], [0.5, 0.1]]
    rows[..., 1] = 1 - rows[..., 0]
    half = [[0.5, 0.5]]
    problem = tt.Problem(
        "precedence",
        [tt.Node("a", [0.4, 0.9]), tt.Node("b", [0.5, 0.8]), tt.Node("judge", [0.0, 1.0])],
        [
            tt.Edge(None, "a", cost=0.01, probabilities=half),
            tt.Edge(None, "b", cost=0.01, probabilities=half),
            tt.Edge(("a", "b"), "judge", cost=0.01, probabilities=rows),
        ],
    )
    policy = tt.solve(problem, 0.9)
    turn = policy.session()
    failed = turn.next
    turn.fail()
    assert turn.next == ({"a", "b"} - {failed}).pop()
    turn.observe(1)
    # The judge is worth asking where its answer is good in half of the cases.
    assert turn.next == "judge"
    assert turn._law.sum() == pytest.approx(1)
    turn.observe(0)
    assert (turn.next, turn.answer) == (None, "judge")


CHAIN = tt.Problem.line(
    [[0.9, 0.8], [0.5, math.inf], [0.0, 0.3]],
    [[[0.1, 0.3]], 0.1, 0.1],
    [[0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5]] * 2],
)


@pytest.mark.parametrize("recall", [True, False])
def test_under_a_cap_a_failure_costs_the_most_and_answers_after_it_count(recall):
    turn = tt.solve(CHAIN, 0.9, recall=recall, max_cost=0.45).session()
    turn.fail()
    assert turn.next == "m2"
    turn.observe(0)
    # 0.3 may have been paid, so a third node would be above the cap.
    assert (turn.next, turn.answer) == (None, "m2")
    turn = tt.solve(CHAIN, 0.9, recall=recall, max_cost=0.55).session()
    turn.fail()
    turn.observe(1)
    assert (turn.next, turn.answer) == ("m3", None)
    turn.observe(0)
    assert turn.answer == "m3"


def test_a_state_of_chance_0_may_be_observed_after_a_failure():
    policy = tt.solve(CHAIN.with_moves("walk"), 0.9, max_cost=5.0)
    sure = tt.Problem.line(
        [[0.9], [0.5, 0.4], [0.0, 0.3]],
        [0.1] * 3,
        [[1.0], [[1.0, 0.0]], [[0.5, 0.5]] * 2],
    )
    turn = tt.solve(sure, 0.99, max_cost=5.0).session()
    turn.fail()
    turn.observe(1)
    assert turn.answer == "m2"
    assert policy.ratio == 1.0


def test_a_law_of_too_many_costs_is_refused_before_the_work():
    even = np.full((32, 32), 1 / 32)
    parents = [None, *((node - 1) // 2 for node in range(1, 30))]
    costs = np.random.default_rng(0).random(30) * 0.01
    tree = tt.Problem.forest(np.linspace(0, 1, 32), costs, [even[0]] + [even] * 29, parents)
    with pytest.raises(tt.ArgumentError, match="products"):
        tt.solve(tree, 0.9).future()


def test_a_law_that_is_never_finite_is_cut_at_the_mean():
    never = Surrogate.of_losses(np.array([math.inf]))
    assert never.reaching(np.array([0.3])).tolist() == [0.3]
