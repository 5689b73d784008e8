"""Exits of one network that may be passed without being asked, where passing costs something.

Costs are counted here in plain loops, from what ``passing`` means: between two nodes asked, every
node that is left out is paid for.
"""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from support.examples import examples
from support.oracles import available, stop_loss, weighed
from support.small_traces import fit as fit_family, points
from support.traces import passing_trace, small_traces
from ttamer.baselines import FAMILIES, fit_families
from ttamer.baselines.selection import RuleScorer
from ttamer.errors import ArgumentError, TraceError
from ttamer.evaluation.frontiers import Resampled, frontier
from ttamer.evaluation.results import measure
from ttamer.fitted.replay import Played, full_cost, paid
from ttamer.fitting.plans import fit
from ttamer.fitting.streaming import fit_batches
from ttamer.reporting.recommendation import recommend
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

exits = small_traces(passing=True)


def way_cost(spec: CascadeSpec, cost, nodes) -> float:
    """What a row pays that asks these nodes, in order, at these costs of asking."""
    total, here = 0.0, -1
    for node in nodes:
        for between in range(here + 1, node):
            total += spec.nodes[between].passing or 0.0
        total += cost[node]
        here = node
    return total


def network(costs, passing, correct, confidence=None, **fields) -> Trace:
    names = [f"e{i + 1}" for i in range(len(costs))]
    spec = CascadeSpec.of(
        dict(zip(names, costs, strict=True)),
        order="skip",
        passing=dict(zip(names, passing, strict=False)),
    )
    said = np.full(np.shape(correct), 0.5) if confidence is None else np.array(confidence, float)
    return Trace(spec, said, correct=np.array(correct, bool), **fields)


# What is paid


def test_rows_by_hand():
    trace = network([3, 2, 4], [2.5, 1], [[1, 1, 1]] * 7)
    ways = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]
    asked = np.array([[node in way for node in range(3)] for way in ways])
    last = np.array([way[-1] for way in ways])
    want = [3, 2.5 + 2, 2.5 + 1 + 4, 5, 3 + 1 + 4, 2.5 + 2 + 4, 9]
    assert paid(asked, trace).tolist() == want
    result = measure(Played(last, asked, last), trace, resamples=0)
    assert result.cost == pytest.approx(np.mean(want))
    assert full_cost(trace.spec, trace) == 7.5
    assert result.relative_cost == pytest.approx(np.mean(want) / 7.5)


def test_with_a_cost_per_row_passing_stays_the_cascades():
    cost = [[1.0, 5.0], [2.0, 7.0]]
    trace = network([3, 2], [2.5], [[1, 1]] * 2, cost=np.array(cost))
    assert paid(np.array([[False, True]] * 2), trace).tolist() == [7.5, 9.5]
    assert paid(np.array([[True, True]] * 2), trace).tolist() == [6.0, 9.0]
    assert full_cost(trace.spec, trace) == 8.5


@given(exits, st.integers(0, 99))
def test_what_is_paid_equals_a_plain_loop(trace, seed):
    asked = np.random.default_rng(seed).random(trace.confidence.shape) < 0.5
    asked[~asked.any(axis=1), -1] = True
    want = [
        way_cost(trace.spec, cost, np.flatnonzero(row))
        for row, cost in zip(asked, trace.costs, strict=True)
    ]
    np.testing.assert_allclose(paid(asked, trace), want, atol=1e-12)


# Fitting


def best_value(problem, spec, tradeoff, history=()):
    """The oracles' enumeration over histories, with costs from the cascade and not from edges."""
    best = weighed(stop_loss(problem, history, recall=True), tradeoff)
    way = [spec.names.index(problem.names[node]) for node, _ in history]
    for edge, law in available(problem, history):
        target = problem.ends[edge][1]
        onward = [*way, spec.names.index(problem.names[target])]
        value = way_cost(spec, spec.costs, onward) - way_cost(spec, spec.costs, way)
        value *= (1 - tradeoff) / spec.full_cost(spec.costs)
        for state, chance in enumerate(law):
            if chance > 0:
                seen = (*history, (target, state))
                value += chance * best_value(problem, spec, tradeoff, seen)
        best = min(best, value)
    return best


@examples(40)
@given(exits, st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95, 1.0]))
def test_a_fit_is_worth_what_enumerating_all_ways_finds(trace, tradeoff):
    trace = dataclasses.replace(trace, cost=None)
    (policy,) = fit(trace, belief="calibrated", states=2, tradeoffs=[tradeoff])
    problem = policy.policy.problem
    assert problem.names == trace.names
    assert len(problem.edges) == len(trace.spec) * (len(trace.spec) + 1) // 2
    want = best_value(problem, trace.spec, tradeoff)
    assert policy.policy.value == pytest.approx(want, rel=1e-9, abs=1e-12)


@examples(40)
@given(exits, st.sampled_from(["skip", "fixed"]))
def test_a_session_costs_what_evaluation_counts(trace, order):
    trace = dataclasses.replace(trace, cost=None)
    ladder = fit(trace, belief="calibrated", order=order, states=3, tradeoffs=[0.2, 0.7, 0.95])
    for policy, played in zip(ladder, ladder.play_all(trace), strict=True):
        counted = paid(played.asked, trace)
        for row in range(len(trace)):
            turn = policy.session()
            while turn.next is not None:
                turn.observe(confidence=trace.confidence[row, trace.spec.index_of(turn.next)])
            assert turn.cost == pytest.approx(counted[row], rel=1e-12, abs=1e-12)
            numbers = [trace.spec.index_of(name) for name in turn.asked]
            assert turn.cost == pytest.approx(way_cost(trace.spec, trace.cost, numbers))


def test_the_replayed_cost_is_what_the_policy_expects():
    # The chain is Markov and confidence is calibrated, so model and replay must agree.
    fitted, test = passing_trace(60_000, seed=1), passing_trace(60_000, seed=2)
    tradeoffs = [0.7, 0.9, 0.95, 0.99]
    ladder = fit(fitted, belief="none", states=3, tradeoffs=tradeoffs)
    passed = []
    for policy in ladder:
        played = policy.play(test)
        cost = measure(played, test, resamples=0).cost
        expected = policy.expected_cost * policy.fitted.full_cost
        assert cost == pytest.approx(expected, rel=0.02)
        passed.append((played.asked.sum(axis=1) <= played.last).mean())
    assert max(passed) > 0.2  # else nothing was tested


def test_passing_that_costs_more_than_asking_is_not_done():
    trace = passing_trace(2000)
    expensive = CascadeSpec.of(
        dict(zip(trace.names, trace.spec.costs, strict=True)),
        order="skip",
        passing=dict(zip(trace.names, trace.spec.costs + 1, strict=True)),
    )
    trace = dataclasses.replace(trace, spec=expensive, cost=None)
    for played in fit(trace, belief="calibrated", states=3).play_all(trace):
        assert (played.asked.sum(axis=1) == played.last + 1).all()


def test_which_orders_exits_that_may_be_passed_allow():
    trace = passing_trace(300)
    with pytest.raises(ArgumentError, match=r'exits of one network.*use "skip"'):
        fit(trace, order="any")
    lines: list[str] = []
    fit(trace, belief="calibrated", order="auto", states=3, progress=lines.append)
    assert [line for line in lines if "tried" in line] == [
        "tried 1 of 2: calibrated, fixed, 3 states",
        "tried 2 of 2: calibrated, skip, 3 states",
    ]


def test_batches_are_fitted_as_the_whole():
    trace = passing_trace(400)
    options = {"belief": "calibrated", "states": 3, "tradeoffs": [0.5, 0.9]}
    parts = [trace.take(slice(0, 150)), trace.take(slice(150, 400))]
    one, two = fit_batches(lambda: parts, **options), fit(trace, **options)
    assert one.fitted.columns == two.fitted.columns == (0, 1, 2)
    want = [edge.cost for edge in two.problem.edges]
    assert [edge.cost for edge in one.problem.edges] == pytest.approx(want)
    costs = np.array([3, 1.5 + 2, 1.5 + 0.25 + 4, 2, 0.25 + 4, 4])
    assert want == pytest.approx(costs / full_cost(trace.spec, trace))


# Baselines


def test_what_one_answer_alone_costs():
    trace = network([3, 2, 4], [2.5, 1], [[0, 1, 1], [0, 1, 1]])
    assert trace.spec.answer_costs().tolist() == [3, 4.5, 7.5]
    assert points(fit_family("always-first", trace), trace) == [(3, 1.0)]
    assert points(fit_family("always-last", trace), trace) == [(7.5, 0.0)]
    # Of equals the cheapest: by cost alone it would be the last of these.
    even = network([3, 2, 1], [2.5, 1], [[0, 1, 1], [0, 1, 1]])
    assert fit_family("always-best", even)[0].knob == {"node": "e2"}
    assert points(fit_family("always-best", even), even) == [(4.5, 0.0)]


@given(exits)
def test_the_oracle_pays_the_least_that_any_way_to_a_right_answer_costs(trace):
    (setting,) = FAMILIES["oracle"].fit(trace)
    played = setting.rule.play(trace)
    wrong, count = trace.wrong(), len(trace.spec)
    ways = [np.flatnonzero(way) for way in product([False, True], repeat=count) if any(way)]
    costs = paid(played.asked, trace)
    for row in range(len(trace)):
        right = [way for way in ways if not wrong[row, way].all()] or ways
        least = min(way_cost(trace.spec, trace.costs[row], way) for way in right)
        assert costs[row] == pytest.approx(least, abs=1e-12)
        assert wrong[row, played.answer[row]] == wrong[row].all()


def test_without_recall_passing_is_weighed_against_asking():
    right = [[0, 1]] * 2 + [[1, 1]] * 18
    cheap = network([3, 0.5], [2], right)  # the second exit alone costs 2.5: less than the first
    assert points(fit_family("no-recall", cheap), cheap) == [(2.5, 0.0)]
    expensive = network([1, 0.5], [3], right)  # alone it costs 3.5: more than both
    assert points(fit_family("no-recall", expensive), expensive) == [(1.0, 0.1), (1.5, 0.0)]


@given(exits)
def test_rules_that_walk_pass_no_node_and_the_scorer_agrees_with_evaluation(trace):
    found, _ = fit_families(trace)
    for name in ("threshold", "threshold-per-exit", "calibrated", "patience"):
        for setting in found[name]:
            played = setting.rule.play(trace)
            assert (played.asked == (np.arange(len(trace.spec)) <= played.last[:, None])).all()
    for choices in found.values():
        for setting in choices:
            result = measure(setting.rule.play(trace), trace, resamples=0)
            assert RuleScorer.of(trace).score(setting.rule) == (result.cost, result.error)


def test_rules_for_separate_models_are_left_out():
    reason = "it takes nodes for separate models, and these are exits of one network"
    _, left_out = fit_families(passing_trace(40), ["chain", "frugalml", "routing", "oracle"])
    assert left_out == dict.fromkeys(["chain", "frugalml", "routing"], reason)


# Frontiers


def test_a_frontier_is_compared_with_the_bare_network():
    fitted, test = passing_trace(600, seed=1), passing_trace(600, seed=2)
    result = frontier(fitted, test, families=["paper", "no-recall", "threshold"], resamples=0)
    assert result.reference.node == "exit3"
    assert result.reference.cost == result.full_cost == 5.75
    assert result.cheapest == (3.0, test.wrong()[:, 0].mean())
    draws = Resampled.of(result, ["paper"], resamples=20)
    np.testing.assert_allclose(draws.cost, 5.75)
    advice = recommend(result, family="paper", resamples=20)
    assert advice.against == "the full network"
    assert advice.cheapest == "exit1"


def test_a_cheap_exit_behind_expensive_blocks_is_not_the_cheapest():
    trace = network([3, 1], [2.5], [[0, 1], [1, 1]] * 10, [[0.2, 0.9], [0.9, 0.8]] * 10)
    result = frontier(trace, trace, families=["threshold"], resamples=0)
    assert result.cheapest == (3.0, 0.5)
    assert recommend(result, family="threshold", resamples=5).cheapest == "e1"


def test_the_network_is_its_last_exit_even_where_an_earlier_one_errs_less():
    trace = network([3, 2], [2.5], [[1, 0], [1, 1]] * 10)
    result = frontier(trace, trace, families=["threshold"], resamples=0)
    assert (result.reference.node, result.reference.cost) == ("e2", 4.5)
    assert result.reference.error == 0.5


# Traces


def test_files_keep_what_passing_costs(tmp_path):
    trace = passing_trace(20)
    for suffix in ("npz", "parquet"):
        trace.write(tmp_path / f"log.{suffix}")
        back = Trace.read(tmp_path / f"log.{suffix}")
        assert back.spec == trace.spec
        assert back.digest == trace.digest
    trace.write(tmp_path / "log.csv")
    trace.spec.to_file(tmp_path / "cascade.toml")
    assert Trace.read(tmp_path / "log.csv", tmp_path / "cascade.toml").digest == trace.digest


def test_other_costs_of_passing_are_another_trace():
    one, two = network([3, 2], [2.5], [[1, 1]]), network([3, 2], [2.0], [[1, 1]])
    free = Trace(CascadeSpec.of({"e1": 3, "e2": 2}, order="skip"), one.confidence)
    assert len({one.digest, two.digest, dataclasses.replace(free, correct=one.correct).digest}) == 3
    with pytest.raises(TraceError, match="trace 1 passes its nodes at other costs"):
        Trace.concat([one, two])
    assert Trace.concat([one, one]).spec == one.spec


@given(exits, st.data())
def test_an_exit_left_out_of_a_trace_is_passed_for_good(trace, data):
    count = len(trace.spec)
    kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    if trace.spec.target == "last":
        kept = sorted({*kept, count - 1})
    fewer = trace.restrict([trace.names[node] for node in kept])
    assert fewer.spec.has_passing
    for way in product([False, True], repeat=len(kept)):
        if any(way):
            asked = np.zeros(count, bool)
            asked[kept] = way
            theirs = np.tile(np.array(way), (len(trace), 1))
            np.testing.assert_allclose(
                paid(theirs, fewer), paid(np.tile(asked, (len(trace), 1)), trace), atol=1e-12
            )
