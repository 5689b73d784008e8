"""Infinite losses: what is asked while there is no answer, in every topology."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.oracles import available, solved
from support.strategies import TOPOLOGIES, problems, tradeoffs


def with_infinite_states(problem, generator):
    """Put infinite losses at some states of some nodes, and leave one that always answers."""
    sure = generator.integers(len(problem.nodes))
    nodes = []
    for number, node in enumerate(problem.nodes):
        losses = np.where(np.isfinite(node.losses), node.losses, 0.5)
        if number != sure:
            losses[generator.random(len(losses)) < 0.4] = math.inf
        nodes.append(tt.Node(node.name, losses))
    return tt.Problem(problem.moves, tuple(nodes), problem.edges)


def can_answer(problem, history):
    """Whether some course of events after this history leads to a node with an answer."""
    for edge, law in available(problem, history):
        target = problem.ends[edge][1]
        for state, chance in enumerate(law):
            if chance > 0 and (
                math.isfinite(problem.nodes[target].losses[state])
                or can_answer(problem, (*history, (target, state)))
            ):
                return True
    return False


def test_after_a_failure_the_node_that_is_left_is_asked():
    problem = tt.Problem.line(
        losses=[[0.5], [0.0, math.inf]],
        costs=[0.01, 0.1],
        probabilities=[[1.0], [[0.9, 0.1]]],
        names=["small", "large"],
    )
    policy = tt.solve(problem, 0.5)
    turn = policy.session()
    turn.fail()
    assert turn.next == "large"
    assert turn.explain().why == "there is no answer yet: ask 'large'"
    index = tt.solve(problem.with_moves("precedence"), 0.5)
    assert policy.threshold("small").tolist() == [0.0]
    assert policy.threshold("small") <= index.index("large") < 0.25
    assert policy.if_stop("small").tolist() == index.if_stop("small").tolist()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_with_infinite_losses_stopping_is_monotone_and_ends_at_the_threshold(topology):
    @examples(60)
    @given(problems(topology), tradeoffs)
    def check(problem, tradeoff):
        problem = with_infinite_states(problem, np.random.default_rng(len(problem.edges)))
        policy = solved(problem, tradeoff)
        if policy is None:
            return
        for after in (None, *problem.names):
            stops = policy.if_stop(after)
            assert (np.diff(stops.astype(int), axis=1) <= 0).all()
            ends = policy.threshold(after)[:, np.newaxis]
            assert (stops == (policy.fallbacks <= ends)).all()

    check()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_while_there_is_no_answer_a_node_is_asked_as_long_as_one_may_answer(topology):
    @examples(60)
    @given(problems(topology), tradeoffs)
    def check(problem, tradeoff):
        problem = with_infinite_states(problem, np.random.default_rng(len(problem.edges)))
        policy = solved(problem, tradeoff)
        if policy is None:
            return
        turn, history = policy.session(), ()
        while turn.next is not None:
            losses = np.where(turn._chances() > 0, problem.nodes[turn.number].losses, -1.0)
            history = (*history, (turn.number, int(losses.argmax())))
            turn.fail()
            if turn.next is None:
                assert not can_answer(problem, history)
        assert turn.answer is None

    check()


def test_without_recall_a_node_that_failed_has_no_loss_in_the_reason():
    line = tt.Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    turn = tt.solve(line, 0.5, recall=False).session()
    turn.fail()
    found = turn.explain()
    assert (found.best, found.why) == (math.inf, "there is no answer yet: ask 'm2'")
