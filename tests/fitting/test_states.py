"""The paper's learner: the Markov test in its record, and caps that are solved for."""

from __future__ import annotations

import numpy as np
import pytest

import ttamer as tt
from ttamer.errors import ArgumentError
from ttamer.fitting.markov import transitions

COSTS = {"a": 0.2, "b": 0.3, "c": 0.5}


def trace_of(seed, rows=400):
    generator = np.random.default_rng(seed)
    ability = generator.random(rows)[:, np.newaxis]
    confidence = np.clip(ability + generator.normal(0, 0.25, (rows, 3)), 0, 1)
    correct = generator.random((rows, 3)) < confidence
    return tt.Trace(tt.CascadeSpec.of(COSTS), confidence, correct=correct)


def test_the_record_says_whether_the_chain_is_markov_and_a_file_keeps_it(tmp_path):
    ladder = tt.fit(trace_of(0), belief="markov", states=3)
    record = ladder.record.markov
    # Every node shares the ability of the row, so the last but one does not hide the first.
    assert record.p_value < 0.05
    assert abs(record.cost) < 0.05
    tt.save(ladder, tmp_path / "ladder.ttamer")
    assert tt.load(tmp_path / "ladder.ttamer").record == ladder.record
    assert "not those of a Markov chain" in str(record)


@pytest.mark.parametrize("cap", [0.25, 0.55, 0.8])
def test_under_a_cap_the_policy_is_the_best_within_it(cap):
    ladder = tt.fit(trace_of(1), belief="markov", states=3)
    for number in range(0, len(ladder), 8):
        rule, solved = ladder[number].rule, ladder[number].rule.solved
        capped = rule.capped(cap)
        unit = COSTS["a"] / solved.problem.edges[0].cost
        assert capped.value == tt.solve(solved.problem, solved.tradeoff, max_cost=cap / unit).value
        assert capped.value >= solved.value * (1 - 1e-12)
        assert rule.capped(cap) is capped


@pytest.mark.parametrize("cap", [0.25, 0.55, 0.8])
def test_no_input_costs_more_than_the_cap_failures_included(cap):
    generator, rows = np.random.default_rng(2), trace_of(3, 60)
    ladder, caps = tt.fit(trace_of(1), belief="markov", states=3), 0
    for policy in list(ladder)[::12]:
        free = policy.play(rows)
        for row in range(len(rows)):
            turn, failing = policy.session(max_cost=cap), policy.session(max_cost=cap)
            while turn.next is not None:
                turn.observe(confidence=float(rows.confidence[row, "abc".index(turn.next)]))
            assert turn.cost <= cap + 1e-9
            caps += turn.capped
            if not turn.capped:
                assert "abc".index(turn.answer) == free.answer[row]
            while failing.next is not None:
                if generator.random() < 0.5:
                    failing.fail()
                else:
                    failing.observe(confidence=0.5)
            assert failing.cost <= cap + 1e-9
    assert caps


def test_a_cap_below_every_start_is_refused():
    policy = tt.fit(trace_of(1), belief="markov", states=3).at(0.5)
    with pytest.raises(ArgumentError, match=r"max_cost = 0\.1: the cheapest to start with, 'a'"):
        policy.session(max_cost=0.1)


def test_transitions_are_shares_shrunk_by_one_row_to_the_targets_own():
    table = transitions(np.array([0, 0, 0, 2]), np.array([1, 1, 0, 0]), (3, 2))
    assert table[0] == pytest.approx([1.5 / 4, 2.5 / 4])
    assert table[1] == pytest.approx([0.5, 0.5])  # a state never seen
    assert table[2] == pytest.approx([1.5 / 2, 0.5 / 2])
