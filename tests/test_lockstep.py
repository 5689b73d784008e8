from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ttamer as tt
from strategies import problems, tradeoffs
from ttamer.lockstep import BLOCK, Lockstep


@settings(max_examples=80)
@given(problems("line"), tradeoffs, st.integers(0, 2**32 - 1))
def test_lockstep_decides_as_the_batch_does(problem, tradeoff, seed):
    try:
        policy = tt.solve(problem, tradeoff)
    except tt.ProblemError:
        return
    generator = np.random.default_rng(seed)
    size = 40
    batch, best = policy.batch(size), Lockstep.start(size)
    running = np.arange(size)
    for number in problem.order:
        states = generator.integers(0, len(problem.nodes[number].losses), size).astype(np.uint8)
        batch.observe(states)
        stop = Lockstep(policy, problem.names[number])(states[running], best)
        np.testing.assert_array_equal(stop, batch.next[running] < 0)
        running, best = running[~stop], best[~stop]


def test_more_inputs_than_a_block_and_given_space():
    losses = [0.9, 0.1, 0.5]  # not in order
    line = tt.Problem.line(losses, [0.1, 0.2], [[0.2, 0.3, 0.5], [[0.3, 0.3, 0.4]] * 3])
    policy = tt.solve(line, 0.7)
    step = Lockstep(policy, "m1")
    states = np.random.default_rng(0).integers(0, 3, 2 * BLOCK + 7).astype(np.uint8)
    best, stop = Lockstep.start(len(states)), np.empty(len(states), bool)
    assert step(states, best, stop) is stop
    batch = policy.batch(len(states))
    batch.observe(states)
    np.testing.assert_array_equal(stop, batch.next < 0)


def test_what_cannot_be_done_in_lockstep_is_refused():
    line = tt.Problem.line([0.1, 0.5], [1, 1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    with pytest.raises(tt.ArgumentError, match="line with recall"):
        Lockstep(tt.solve(line, 0.5, recall=False), "m1")
    with pytest.raises(tt.ArgumentError, match="line with recall"):
        Lockstep(tt.solve(tt.Problem.skip_of(line), 0.5), "m1")
    wide = np.linspace(0, 1, 300)
    many = tt.Problem.line(wide, [1], [np.full(300, 1 / 300)])
    with pytest.raises(tt.ArgumentError, match="255"):
        Lockstep(tt.solve(many, 0.5), "m1")
    with pytest.raises(tt.ArgumentError, match="no node"):
        Lockstep(tt.solve(line, 0.5), "m9")
