"""The solvers against enumeration, on every topology."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.oracles import best_value, outcomes, path_cost, stop_loss, weighed
from support.strategies import TOPOLOGIES, problems, tradeoffs

CLOSE = 1e-12


def solved(problem, tradeoff, *, recall=True):
    """The policy, or None where no policy is sure of an answer (enumeration must agree)."""
    try:
        return tt.solve(problem, tradeoff, recall=recall)
    except tt.ProblemError as error:
        assert "no policy is sure" in str(error)
        assert best_value(problem, tradeoff, recall=recall) == math.inf
        return None


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_value_equals_enumeration_over_full_histories(topology):
    @examples(150)
    @given(problems(topology), tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff)
        if policy is not None:
            assert policy.value == pytest.approx(best_value(problem, tradeoff), abs=CLOSE)

    check()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_expected_loss_and_cost_are_those_of_the_session_itself(topology):
    @examples(100)
    @given(problems(topology), tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff)
        if policy is None:
            return
        loss = cost = total = 0.0
        asked = dict.fromkeys(problem.names, 0.0)
        for chance, history, answer in outcomes(policy):
            mine = stop_loss(problem, history, recall=True)
            node, state = next((n, s) for n, s in history if problem.names[n] == answer)
            assert problem.nodes[node].losses[state] == mine
            total += chance
            loss += chance * mine
            cost += chance * path_cost(problem, history)
            for number, _ in history:
                asked[problem.names[number]] += chance
        assert total == pytest.approx(1, abs=CLOSE)
        assert policy.expected_loss == pytest.approx(loss, abs=CLOSE)
        assert policy.expected_cost == pytest.approx(cost, abs=CLOSE)
        assert policy.asked == pytest.approx(asked, abs=CLOSE)
        assert tradeoff * loss + (1 - tradeoff) * cost == pytest.approx(policy.value, abs=1e-11)

    check()


@examples(200)
@given(problems("line"), tradeoffs)
def test_line_without_recall_equals_enumeration(problem, tradeoff):
    policy = solved(problem, tradeoff, recall=False)
    if policy is not None:
        assert policy.value == pytest.approx(best_value(problem, tradeoff, recall=False), abs=CLOSE)


@examples(200)
@given(problems("dag"), tradeoffs)
def test_walk_without_recall_equals_enumeration(problem, tradeoff):
    policy = solved(problem, tradeoff, recall=False)
    if policy is not None:
        loss = cost = 0.0
        for chance, history, answer in outcomes(policy):
            assert problem.names[history[-1][0]] == answer
            loss += chance * stop_loss(problem, history, recall=False)
            cost += chance * path_cost(problem, history)
        assert policy.value == pytest.approx(best_value(problem, tradeoff, recall=False), abs=CLOSE)
        assert policy.expected_loss == pytest.approx(loss, abs=CLOSE)
        assert policy.expected_cost == pytest.approx(cost, abs=CLOSE)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_equivalent_loss_equals_enumeration_from_every_state(topology):
    @examples(60)
    @given(problems(topology, most=3), tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff)
        if policy is None:
            return
        table = policy.equivalent_loss(None)
        for column, fallback in enumerate(problem.grid.values.tolist()):
            want = best_value(problem, tradeoff, fallback=fallback)
            assert table[0, column] == pytest.approx(want, abs=CLOSE)
        if problem.moves == "precedence" and not problem.is_line:
            return  # below a node of a forest: see test_theory
        problem = problem.with_moves("walk")  # a history may then begin in the middle
        for number, name in enumerate(problem.names):
            table = policy.equivalent_loss(name)
            for state, own in enumerate(problem.nodes[number].losses.tolist()):
                for column, fallback in enumerate(problem.grid.values.tolist()):
                    if fallback > own:
                        continue
                    want = best_value(
                        problem, tradeoff, history=((number, state),), fallback=fallback
                    )
                    assert table[state, column] == pytest.approx(want, abs=CLOSE)

    check()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_future_is_the_law_of_playing_on(topology):
    @examples(80)
    @given(problems(topology), tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff)
        if policy is None:
            return
        law: dict[tuple[float, float], float] = {}
        for chance, history, _ in outcomes(policy):
            key = (stop_loss(problem, history, recall=True), round(path_cost(problem, history), 9))
            law[key] = law.get(key, 0.0) + chance
        future = policy.future()
        got: dict[tuple[float, float], float] = {}
        for loss, cost, p in zip(future.losses, future.costs, future.probabilities, strict=True):
            key = (float(loss), round(float(cost), 9))
            got[key] = got.get(key, 0.0) + float(p)
        assert got == pytest.approx(law, abs=CLOSE)

    check()


@examples(100)
@given(problems(), tradeoffs)
def test_value_at_infinite_fallback_is_the_start_of_phi(problem, tradeoff):
    policy = solved(problem, tradeoff)
    if policy is not None:
        assert policy.equivalent_loss(None)[0, -1] == pytest.approx(policy.value, abs=CLOSE)
        assert not policy.if_stop(None)[0, -1]
        assert np.isfinite(weighed(policy.value, tradeoff))


def test_rounding_of_the_smallest_losses_is_a_tie():
    tiny = 2.225073858507e-311
    chances = [0.006993006993006993, 0.006993006993006993, 0.986013986013986]
    line = tt.Problem.line([[tiny] * 3, [tiny]], [0.0, 0.0], [chances, [[1.0]] * 3])
    policy = tt.solve(line, 0.4375)
    assert policy.if_stop("m1")[:, 0].all()
    assert policy.if_stop(None)[0, 0]
