"""A node that is asked after several others: a judge that reads two answers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from ttamer import ArgumentError, Cascade, CascadeSpec, evaluate, fit
from ttamer.trace import CascadeNode

TOML = """
[[node]]
name = "a"
cost = 1.0

[[node]]
name = "b"
cost = 2.0

[[node]]
name = "judge"
cost = 4.0
after = ["a", "b"]
"""
SPEC = CascadeSpec.from_toml(TOML)
TRADEOFF = 0.9
LOSSES = ([0.05, 0.3, 0.6], [0.1, 0.25, 0.5], [0.02, 0.4])
PROBLEM = tt.Problem.from_dict(
    {
        "moves": "precedence",
        "nodes": [
            {"name": name, "losses": losses}
            for name, losses in zip(SPEC.names, LOSSES, strict=True)
        ],
        "edges": [
            {"from": None, "to": "a", "cost": 0.25, "probabilities": [[0.4, 0.3, 0.3]]},
            {"from": None, "to": "b", "cost": 0.5, "probabilities": [[0.3, 0.4, 0.3]]},
            {
                "from": ["a", "b"],
                "to": "judge",
                "cost": 1.0,
                "probabilities": [
                    [[0.99, 0.01], [0.9, 0.1], [0.6, 0.4]],
                    [[0.95, 0.05], [0.5, 0.5], [0.3, 0.7]],
                    [[0.8, 0.2], [0.4, 0.6], [0.98, 0.02]],
                ],
            },
        ],
    }
)


def judged_trace(rows, seed=0):
    """Rows drawn from the problem: a confidence says the state, and errors are independent."""
    rng = np.random.default_rng(seed)
    tables = [edge.probabilities for edge in PROBLEM.edges]
    a, b = rng.choice(3, rows, p=tables[0][0]), rng.choice(3, rows, p=tables[1][0])
    judge = (rng.random(rows) > tables[2][a, b, 0]).astype(int)
    wrong = np.stack([np.array(own)[s] for own, s in zip(LOSSES, (a, b, judge), strict=True)], 1)
    sure = 1 - np.stack([a / 4, b / 4, judge / 2], 1)
    return tt.Trace(SPEC, sure, correct=rng.random((rows, 3)) >= wrong)


@pytest.fixture(scope="module")
def ladder():
    return fit(judged_trace(20_000), tradeoffs=[0.2, TRADEOFF, 0.95, 1.0])


def test_the_file_reads_back():
    assert SPEC.nodes[2].after == ("a", "b")
    assert SPEC.parents == ((), (), (0, 1))
    assert SPEC.has_joint_nodes
    assert CascadeSpec.from_toml(SPEC.to_toml()) == SPEC
    assert SPEC.required.tolist() == [[True, False, False], [False, True, False], [True] * 3]
    assert SPEC.cheapest_first() == (0, 1, 2)
    assert SPEC.answer_costs().tolist() == [1.0, 2.0, 7.0]
    one = dataclasses.replace(SPEC.nodes[2], after=("a",))
    assert CascadeSpec((*SPEC.nodes[:2], one)).nodes[2].after == "a"


def test_the_fit_plays_as_well_as_the_exact_policy(ladder):
    exact = tt.solve(PROBLEM, TRADEOFF)
    assert 0.1 < exact.asked["judge"] < 0.9  # the judge is asked on some inputs only
    assert ladder.fitted.steps == ((0,), (1,), (0, 1), (0, 1, 2))
    new = judged_trace(40_000, seed=1)
    played = evaluate(ladder.at(TRADEOFF), new, resamples=0)
    value = TRADEOFF * played.error + (1 - TRADEOFF) * played.cost / 4.0
    best_without = tt.solve(
        tt.Problem("precedence", PROBLEM.nodes[:2], PROBLEM.edges[:2]), TRADEOFF
    ).value
    assert exact.value < best_without - 0.02
    assert value == pytest.approx(exact.value, abs=0.004)


def test_sessions_cascades_and_batches_decide_alike(ladder, tmp_path):
    tt.save(ladder, tmp_path / "judge.ttamer")
    loaded = tt.load(tmp_path / "judge.ttamer")
    assert loaded.spec == ladder.spec
    new = judged_trace(300, seed=2)
    for policy, same in zip(ladder, loaded, strict=True):
        played = policy.play(new)
        np.testing.assert_array_equal(played.answer, same.play(new).answer)
        assert not (played.asked[:, 2] & ~played.asked[:, :2].all(axis=1)).any()
    policy = loaded.at(0.95)
    played = policy.play(new)
    assert 0 < played.asked[:, 2].mean() < 1
    models = {
        name: lambda row, k=k: (None, new.confidence[row, k]) for k, name in enumerate(new.names)
    }
    cascade = Cascade(policy, models)
    rows = list(range(100))
    outcomes, together = [cascade.run(row) for row in rows], cascade.run_batch(rows)
    np.testing.assert_array_equal(together.asked, played.asked[rows])
    for row, outcome in zip(rows, outcomes, strict=True):
        assert sorted(outcome.path) == [new.names[v] for v in np.flatnonzero(played.asked[row])]
        assert outcome.by == together.by[row] == new.names[played.answer[row]]


def test_a_judge_whose_parents_fail_is_still_asked_last(ladder):
    turn = ladder.at(1.0).session()
    first = turn.next
    assert first in ("a", "b")
    turn.fail()
    second = turn.next
    assert {first, second} == {"a", "b"}
    turn.fail()
    assert turn.next == "judge"


def test_what_cannot_be_fitted_is_refused():
    few = judged_trace(100)
    assert fit(few, tradeoffs=[0.5]).fitted.plan["belief"] == "full"
    with pytest.raises(ArgumentError, match=r"'judge' is asked after 'a' and 'b'.*\"full\""):
        fit(few, belief="calibrated")
    models = [CascadeNode(f"m{k}", 1.0) for k in range(8)]
    spec = CascadeSpec((*models, CascadeNode("judge", 1.0, after=("m0", "m1"))))
    with pytest.raises(ArgumentError, match=r"at most 8 nodes, and this one has 9"):
        fit(tt.Trace(spec, np.zeros((50, 9)), correct=np.ones((50, 9), bool)))
    with pytest.raises(ArgumentError, match="'judge' comes after 'b'"):
        few.restrict(["a", "judge"])


def test_families_that_need_pairs_are_left_out_by_name():
    found = tt.frontier(judged_trace(2500), judged_trace(500, seed=1), resamples=0)
    assert "asked after" in found.left_out["paper"]
    assert {"ttamer", "oracle", "routing"} <= set(found.families)
