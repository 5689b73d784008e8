"""A hard cap on the cost of every input, against enumeration over full histories."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import (
    assert_play_is_as_stated,
    available,
    cost_of,
    outcomes,
    path_cost,
    stop_loss,
    weighed,
)
from support.strategies import joint_problems, problems
from ttamer import ArgumentError, ProblemError
from ttamer.solvers import joint

SLACK = 1 + 1e-12


def best_within(problem, tradeoff, cap, history=(), paid=0.0, *, recall=True):
    """The least expected loss and cost of all policies whose every course costs at most the cap."""
    best = weighed(stop_loss(problem, history, recall=recall), tradeoff)
    for edge, law in available(problem, history):
        target = problem.ends[edge][1]
        paths = [(y, p, cost_of(problem, edge, history, y)) for y, p in enumerate(law) if p > 0]
        if paid + max(cost for _, _, cost in paths) > cap * SLACK:
            continue
        value = 0.0
        for y, p, cost in paths:
            after = (*history, (target, y))
            onward = best_within(problem, tradeoff, cap, after, paid + cost, recall=recall)
            value += p * ((1 - tradeoff) * cost + onward)
        best = min(best, value)
    return best


@pytest.mark.parametrize("topology", ["line", "skip", "dag", "forest", "tree", "joint"])
@pytest.mark.parametrize("varied", [False, True])
def test_the_value_under_a_cap_is_that_of_enumeration(topology, varied):
    made = problems(topology, varied=varied) if topology != "joint" else joint_problems()

    @examples(40)
    @given(made, st.floats(0.1, 0.9), st.sampled_from([0.1, 0.3, 0.5, 0.75, 1.1]))
    def check(problem, tradeoff, cap):
        least = best_within(problem, tradeoff, cap)
        if math.isinf(least):
            with pytest.raises(ProblemError):
                tt.solve(problem, tradeoff, max_cost=cap)
            return
        policy = tt.solve(problem, tradeoff, max_cost=cap)
        assert policy.value == pytest.approx(least, abs=1e-12)
        assert policy.ratio == 1.0
        assert_play_is_as_stated(policy)
        assert all(path_cost(problem, way) <= cap * SLACK for _, way, _ in outcomes(policy))

    check()


@examples(40)
@given(problems("dag", informers=False), st.floats(0.1, 0.9), st.sampled_from([0.3, 0.8]))
def test_without_recall_too(problem, tradeoff, cap):
    least = best_within(problem, tradeoff, cap, recall=False)
    if math.isfinite(least):
        policy = tt.solve(problem, tradeoff, recall=False, max_cost=cap)
        assert policy.value == pytest.approx(least, abs=1e-12)


@examples(60)
@given(st.data(), problems(varied=True), st.floats(0.1, 0.9), st.sampled_from([0.3, 0.5, 1.0]))
def test_no_course_of_answers_and_failures_costs_more_than_the_cap(data, problem, tradeoff, cap):
    try:
        policy = tt.solve(problem, tradeoff, max_cost=cap)
    except ProblemError:
        return
    turn, most, states = policy.session(), 0.0, {}
    while turn.next is not None:
        node, last = turn.number, -1 if not turn.asked else problem.number[turn.asked[-1]]
        [number] = [
            e
            for e in problem.incoming[node]
            if problem.moves == "precedence" or problem.ends[e][0] == last
        ]
        source = problem.ends[number][0]
        possible = np.flatnonzero(turn._chances())
        rows = [0] if source < 0 else states[source]
        table = problem.edges[number].cost_table
        if data.draw(st.booleans()):
            turn.fail()
            states[node] = possible.tolist()  # the states that it may have been in
            used = problem.edges[number].probabilities > 0
            most += max(table[r, y] for r in rows for y in possible if used[r, y])
        else:
            state = int(data.draw(st.sampled_from(possible.tolist())))
            used = [r for r in rows if problem.edges[number].probabilities[r, state] > 0]
            turn.observe(state)
            states[node] = [state]
            most += max((table[r, state] for r in used), default=0.0)
    if len(problem.nodes) < 3 or problem.moves == "walk" or problem.has_fixed_costs:
        assert most <= cap * SLACK


def test_too_many_sums_are_rounded_up_and_the_bound_says_what_that_may_cost(monkeypatch):
    generator = np.random.default_rng(3)
    rows = {
        (u, v): generator.dirichlet(np.ones(3), size=1 if u is None else 3)
        for v in range(6)
        for u in (None, *range(v))
    }
    skip = tt.Problem.skip(np.linspace(0, 1, 3), generator.random(6) * 0.2, rows)
    exact = tt.solve(skip, 0.8, max_cost=0.4)
    monkeypatch.setattr(joint, "MAX_STATES", 90)
    monkeypatch.setattr(joint, "GRIDS", (512, 8))
    rounded = tt.solve(skip, 0.8, max_cost=0.4)
    assert rounded.cap.grid == 0.4 / 8
    assert rounded.bound <= exact.value <= rounded.value < rounded.bound * 1.5
    assert rounded.ratio == pytest.approx(rounded.value / rounded.bound)
    assert max(path_cost(skip, history) for _, history, _ in outcomes(rounded)) <= 0.4
    monkeypatch.setattr(joint, "MAX_STATES", 5)
    with pytest.raises(ProblemError, match="more than 5 states"):
        tt.solve(skip, 0.8, max_cost=0.4)


def test_a_cap_below_every_node_names_itself():
    line = tt.Problem.line([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    with pytest.raises(ProblemError, match=r"max_cost = 0\.05"):
        tt.solve(line, 0.5, max_cost=0.05)
    for wrong in (0, -1.0, "1", math.nan, True):
        with pytest.raises(ArgumentError, match="max_cost is"):
            tt.solve_ladder(line, [0.5], max_cost=wrong)
    ladder = tt.solve_ladder(line, [0.5, 0.9], max_cost=0.25)
    assert [policy.asked["m2"] for policy in ladder] == [0.0, 0.0]


def test_answers_unseen_under_a_cap_are_for_lines_and_walks():
    edges = [
        tt.Edge(None, name, cost=0.1, verify_cost=0.1, probabilities=[[0.5, 0.5]]) for name in "ab"
    ]
    nodes = [tt.Node(name, [0.0, 1.0]) for name in "ab"]
    with pytest.raises(ProblemError, match="verify_cost is not solved under a cap"):
        tt.solve(tt.Problem("precedence", nodes, edges), 0.9, max_cost=1.0)
    walk = tt.solve(tt.Problem("walk", nodes, edges), 0.9, max_cost=0.15)
    assert walk.session().next == "a (unseen)"
