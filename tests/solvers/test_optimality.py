"""The solvers against enumeration, on every topology."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.oracles import assert_play_is_as_stated, best_value, solved
from support.strategies import TOPOLOGIES, joint_problems, problems, tradeoffs

CLOSE = 1e-12


@pytest.mark.parametrize("varied", [False, True], ids=["fixed costs", "varied costs"])
@pytest.mark.parametrize("topology", [*TOPOLOGIES, "several parents"])
def test_value_and_play_equal_enumeration_over_full_histories(topology, varied):
    made = joint_problems() if topology == "several parents" else problems(topology, varied=varied)

    @examples(100)
    @given(made, tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff)
        if policy is not None:
            assert policy.value == pytest.approx(best_value(problem, tradeoff), abs=CLOSE)
            assert_play_is_as_stated(policy)

    check()


@pytest.mark.parametrize("varied", [False, True], ids=["fixed costs", "varied costs"])
@pytest.mark.parametrize("topology", ["line", "skip", "dag"])
def test_without_recall_too(topology, varied):
    @examples(100)
    @given(problems(topology, varied=varied), tradeoffs)
    def check(problem, tradeoff):
        policy = solved(problem, tradeoff, recall=False)
        if policy is not None:
            best = best_value(problem, tradeoff, recall=False)
            assert policy.value == pytest.approx(best, abs=CLOSE)
            assert_play_is_as_stated(policy)

    check()


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


@examples(100)
@given(problems(), tradeoffs)
def test_value_at_infinite_fallback_is_the_start_of_phi(problem, tradeoff):
    policy = solved(problem, tradeoff)
    if policy is not None:
        assert policy.equivalent_loss(None)[0, -1] == pytest.approx(policy.value, abs=CLOSE)
        assert not policy.if_stop(None)[0, -1]
        assert np.isfinite(policy.value)


def test_rounding_of_the_smallest_losses_is_a_tie():
    tiny = 2.225073858507e-311
    chances = [0.006993006993006993, 0.006993006993006993, 0.986013986013986]
    line = tt.Problem.line([[tiny] * 3, [tiny]], [0.0, 0.0], [chances, [[1.0]] * 3])
    policy = tt.solve(line, 0.4375)
    assert policy.if_stop("m1")[:, 0].all()
    assert policy.if_stop(None)[0, 0]
