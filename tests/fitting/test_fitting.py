"""From traces to ladders: counts, known chains, and the paper's claims on the modelled loss."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.traces import FIRST, ROWS, answering_trace, chain_trace, small_traces
from ttamer.errors import ArgumentError, TraceError
from ttamer.evaluation.results import evaluate, measure
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitted.replay import play_states
from ttamer.fitting.counts import Counts
from ttamer.fitting.plans import FoldResults, Plan, build, fit, problem_of
from ttamer.stats.isotonic import falling, rising
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

LINE = [(-1, 0), (0, 1), (1, 2)]


def counted(trace, pairs=LINE, states=3):
    quantiser = Quantiser.fit(trace.confidence, states=states, method="quantile")
    return Counts.of(trace, quantiser, pairs)


def test_a_known_chain_is_recovered_within_statistical_bounds():
    rows = 60_000
    counts = counted(chain_trace(rows))
    for pair in LINE[1:]:
        got = counts.transition(pair, smoothing=0)
        seen = counts.pairs[pair].sum(axis=1, keepdims=True)
        bound = 5 * np.sqrt(ROWS * (1 - ROWS) / seen)  # five standard deviations of a share
        assert (np.abs(got - ROWS) <= bound).all()
    first = counts.transition((-1, 0), smoothing=0)[0]
    assert (np.abs(first - FIRST) <= 5 * np.sqrt(FIRST * (1 - FIRST) / rows)).all()


def test_calibrated_losses_are_the_error_rates_of_the_states():
    trace = chain_trace(60_000)
    ladder = fit(trace, belief="calibrated", states=3)
    for node in ladder.problem.nodes:
        assert node.losses == pytest.approx([0.7, 0.4, 0.1], abs=0.02)


def test_the_value_of_a_fitted_chain_is_the_value_of_the_true_one():
    trace = chain_trace(60_000)
    costs = [1 / 6, 2 / 6, 3 / 6]  # in shares of what all three cost
    true = tt.Problem.line([0.7, 0.4, 0.1], costs, [FIRST, ROWS, ROWS])
    for policy in fit(trace, belief="calibrated", states=3, tradeoffs=[0.5, 0.9, 0.95]):
        want = tt.solve(true, policy.tradeoff).value
        assert policy.policy.value == pytest.approx(want, rel=0.02)


def test_replayed_error_and_cost_are_what_the_policy_expects():
    # The chain is Markov and confidence is calibrated, so model and replay must agree.
    fitted, test = chain_trace(60_000, seed=1), chain_trace(60_000, seed=2)
    for policy in fit(fitted, belief="none", states=3, tradeoffs=[0.7, 0.9, 0.95, 0.99]):
        result = evaluate(policy, test, resamples=0)
        assert result.error == pytest.approx(policy.policy.expected_loss, abs=0.01)
        expected = policy.expected_cost * policy.fitted.full_cost
        assert result.cost == pytest.approx(expected, rel=0.02)


@examples(40)
@given(small_traces())
def test_merged_counts_equal_one_pass(trace):
    quantiser = Quantiser.fit(trace.confidence, states=4, method="quantile")
    pairs = [(-1, 0), *((u, u + 1) for u in range(len(trace.names) - 1))]
    whole = Counts.of(trace, quantiser, pairs)
    half = len(trace) // 2
    parts = [np.arange(half), np.arange(half, len(trace))]
    merged = Counts.of(trace.take(parts[0]), quantiser, pairs)
    merged = merged + Counts.of(trace.take(parts[1]), quantiser, pairs)
    assert merged.rows == whole.rows
    for pair in pairs:
        np.testing.assert_array_equal(merged.pairs[pair], whole.pairs[pair])
    for one, two in zip(merged.wrong, whole.wrong, strict=True):
        np.testing.assert_array_equal(one, two)
    for one, two in zip(merged.confidence, whole.confidence, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)
    np.testing.assert_allclose(merged.cost, whole.cost)


def test_old_rows_can_weigh_less():
    old, new = counted(chain_trace(1000, seed=1)), counted(chain_trace(1000, seed=2))
    aged = old.scaled(0.25) + new
    assert aged.rows == 1250
    pair = (0, 1)
    np.testing.assert_allclose(aged.pairs[pair], 0.25 * old.pairs[pair] + new.pairs[pair])
    for weight in (-1, np.nan, np.inf):
        with pytest.raises(ArgumentError, match="weight"):
            old.scaled(weight)


def test_counts_of_different_states_do_not_add_up():
    trace = chain_trace(300)
    with pytest.raises(ArgumentError, match="same quantiser"):
        counted(trace, states=3) + counted(trace, states=2)


def test_a_state_never_seen_gets_the_law_of_the_target():
    trace = chain_trace(500)
    counts = counted(trace)
    table = counts.pairs[0, 1].copy()
    table[1] = 0
    unseen = Counts(counts.rows, {(0, 1): table}, counts.wrong, counts.confidence, counts.cost)
    for smoothing in (0.0, 1.0):
        rows = unseen.transition((0, 1), smoothing=smoothing)
        law = table.sum(axis=0) / table.sum()
        np.testing.assert_allclose(rows[1], law)
        np.testing.assert_allclose(rows.sum(axis=1), 1)


def test_smoothing_pulls_rows_towards_the_law_of_the_target():
    counts = counted(chain_trace(500))
    law = counts.pairs[0, 1].sum(axis=0) / 500
    near = counts.transition((0, 1), smoothing=1e9)
    np.testing.assert_allclose(near, np.tile(law, (3, 1)), atol=1e-4)


def test_the_paper_mode_loses_one_minus_confidence():
    trace = chain_trace(2000)
    ladder = fit(trace, belief="none", states=3)
    for node in ladder.problem.nodes:
        assert node.losses == pytest.approx([0.7, 0.4, 0.1])


def test_the_last_node_is_right_by_definition_when_it_is_the_target():
    trace = answering_trace(400)
    spec = CascadeSpec.of({n.name: n.cost for n in trace.spec.nodes}, order="fixed", target="last")
    fixed = Trace(spec, trace.confidence, prediction=trace.prediction, classes=trace.classes)
    problem = fit(fixed).problem
    assert problem.nodes[-1].losses.max() == 0
    assert problem.nodes[0].losses.max() > 0


@pytest.mark.parametrize("belief", ["none", "calibrated"])
@pytest.mark.parametrize("order", ["fixed", "skip", "any"])
def test_on_the_modelled_loss_the_frontier_is_monotone_and_recall_never_worse(belief, order):
    ladder = fit(answering_trace(800, order=order), belief=belief, states=5)
    costs = [policy.policy.expected_cost for policy in ladder]
    losses = [policy.policy.expected_loss for policy in ladder]
    assert (np.diff(costs[1:-1]) >= -1e-9).all()
    assert (np.diff(losses[1:-1]) <= 1e-9).all()
    problem = ladder.problem
    if problem.moves == "walk":
        for policy in ladder:
            without = tt.solve(problem, policy.tradeoff, recall=False).value
            assert policy.value <= without + 1e-12


@examples(10)
@given(small_traces())
def test_replay_equals_a_plain_loop_over_sessions(trace):
    ladder = fit(trace, states=3, tradeoffs=[0.0, 0.4, 0.8, 1.0])
    for policy, played in zip(ladder, ladder.play_all(trace), strict=True):
        for row in range(len(trace)):
            turn = policy.session()
            while turn.next is not None:
                column = trace.names.index(turn.next)
                said = trace.classes[trace.prediction[row, column]]
                turn.observe(confidence=trace.confidence[row, column], prediction=said)
            assert trace.names[played.answer[row]] == turn.answer
            assert trace.names[played.last[row]] == turn.asked[-1]
            asked = {trace.names[v] for v in np.flatnonzero(played.asked[row])}
            assert asked == set(turn.asked)


def test_the_fast_line_replay_equals_the_general_one():
    trace = chain_trace(3000, nodes=4)
    ladder = fit(trace, belief="calibrated", states=8, quantise="uniform")
    states = ladder.fitted.states(trace).found
    for policy in ladder:
        answer, asked, last = play_states(policy, states)
        batch = policy.batch(len(trace))
        while batch.running:
            at = np.maximum(batch.next, 0)
            batch.observe(states[np.arange(len(trace)), at].astype(int))
        np.testing.assert_array_equal(answer, batch.answer)
        np.testing.assert_array_equal(asked.sum(axis=1), batch.steps)
        np.testing.assert_array_equal(last, batch.steps - 1)


@pytest.mark.parametrize("quantise", ["uniform", "quantile", "kmeans"])
def test_every_way_to_quantise_fits(quantise):
    ladder = fit(answering_trace(500), belief="calibrated", quantise=quantise)
    assert len(ladder) == 48
    assert ladder.fitted.plan["quantise"] == quantise


def test_states_and_order_are_chosen_by_cross_validation_and_reported():
    lines: list[str] = []
    ladder = fit(answering_trace(600), belief="calibrated", progress=lines.append)
    assert ladder.fitted.plan["states"] in (4, 8, 16, 32)
    assert ladder.fitted.plan["order"] in ("fixed", "skip", "any")
    assert len(lines) == 3 * 4 + 1


def test_a_tree_is_fitted_as_a_tree():
    trace = answering_trace(500)
    nodes = {"small": (1.0, None), "middle": (4.0, "small"), "large": (20.0, "small")}
    text = "[cascade]\n" + "".join(
        f'[[node]]\nname = "{name}"\ncost = {cost}\n' + (f'after = "{after}"\n' if after else "")
        for name, (cost, after) in nodes.items()
    )
    spec = CascadeSpec.from_dict(tomllib.loads(text))
    tree = dataclasses.replace(trace, spec=spec, cost=None)
    problem = fit(tree, belief="calibrated", states=4).problem
    assert problem.moves == "precedence"
    assert {edge.target: edge.source for edge in problem.edges} == {
        "small": None, "middle": "small", "large": "small",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"belief": "faith"}, "belief"),
        ({"order": "random"}, "order"),
        ({"states": 0}, "states"),
        ({"smoothing": -1}, "smoothing"),
        ({"folds": 1}, "folds is 1; it must be a whole number from 2"),
        ({"folds": 2.5}, "folds is 2.5"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ({"tradeoffs": []}, "tradeoffs"),
        ({"tradeoffs": [2]}, "tradeoff"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        fit(chain_trace(100), **options)


def test_numbers_of_numpy_are_options(tmp_path):
    ladder = fit(chain_trace(100), states=np.int64(2), seed=np.int64(3))
    tt.save(ladder, tmp_path / "policies.ttamer")
    assert np.array_equal(tt.load(tmp_path / "policies.ttamer").tradeoffs, ladder.tradeoffs)


def test_too_short_a_trace_is_refused():
    with pytest.raises(TraceError, match="10"):
        fit(chain_trace(9))


def test_a_policy_for_other_nodes_is_refused():
    policy = fit(chain_trace(100), states=3)[0]
    with pytest.raises(ArgumentError, match=r"same cascade\.toml"):
        evaluate(policy, answering_trace(50))


def test_an_unclear_confidence_counts_as_the_least_sure():
    policy = fit(chain_trace(500), states=3).at(0.99)
    unclear, unsure = policy.session(), policy.session()
    unclear.observe(confidence=float("nan"))
    unsure.observe(confidence=0.0)
    assert unclear.unclear == 1
    assert unclear.next == unsure.next
    with pytest.raises(tt.ObservationError, match="number"):
        policy.session().observe(confidence="high")


@given(small_traces(least=10, most=20))
@examples(20)
def test_any_small_trace_gives_a_working_policy(trace):
    for policy in fit(trace, tradeoffs=[0.2, 0.9]):
        result = evaluate(policy, trace, resamples=20)
        assert 0 <= result.error <= 1
        assert result.cost >= 0


def test_isotonic_regression_is_the_nearest_monotone_sequence():
    generator = np.random.default_rng(3)
    for _ in range(50):
        values, weights = generator.random(6), generator.random(6) + 0.1
        best = rising(values, weights)
        assert (np.diff(best) >= 0).all()
        loss = weights @ (best - values) ** 2
        for _ in range(50):
            other = np.sort(best + 0.1 * generator.standard_normal(6))
            assert loss <= weights @ (other - values) ** 2 + 1e-12
        np.testing.assert_allclose(falling(-values, weights), -best)


def test_measure_counts_error_cost_and_recall_by_hand():
    from ttamer.fitted.replay import Played

    spec = CascadeSpec.of({"a": 1.0, "b": 2.0}, order="fixed")
    correct = np.array([[True, False], [True, True], [False, True], [False, False]])
    trace = Trace(spec, np.zeros((4, 2)), correct=correct)
    asked = np.array([[True, True], [True, False], [True, True], [True, True]])
    played = Played(np.array([0, 0, 1, 0]), asked, np.array([1, 0, 1, 1]))
    result = measure(played, trace, resamples=0)
    assert result.error == 0.25
    assert result.cost == (3 + 1 + 3 + 3) / 4
    assert result.relative_cost == result.cost / 3
    assert result.answered == {"a": 0.75, "b": 0.25}
    assert result.asked == {"a": 1.0, "b": 0.75}
    assert result.recalled == 0.5
    assert result.recall_helped == 0.25
    assert result.recall_hurt == 0.0
    assert result.error_interval == (0.25, 0.25)


def test_an_answer_of_a_node_not_asked_is_refused():
    from ttamer.fitted.replay import Played

    with pytest.raises(ArgumentError, match="row 1"):
        Played(np.array([0, 1]), np.array([[True, False], [True, False]]), np.array([0, 0]))


def test_bootstrap_intervals_cover_the_truth_about_as_often_as_they_say():
    truth = chain_trace(1, nodes=3).spec
    hits = 0
    for seed in range(200):
        trace = chain_trace(400, seed=seed, nodes=1)
        policy = build(trace, Plan("none", "fixed", 3, "quantile", 1.0), np.array([0.5]))[0]
        low, high = evaluate(policy, trace, seed=seed).error_interval
        hits += low <= 1 - FIRST @ [0.3, 0.6, 0.9] <= high
    assert 180 <= hits <= 199  # 95% of 200, give or take 3 standard deviations
    assert truth.names == ("exit1", "exit2", "exit3")


def test_intervals_with_a_cost_of_its_own_on_every_row():
    generator = np.random.default_rng(0)
    trace = chain_trace(20_000, nodes=2)
    own = Trace(
        trace.spec, trace.confidence, correct=trace.correct, cost=generator.random((20_000, 2))
    )
    policy = fit(own, states=3, tradeoffs=[0.9])[0]
    result = evaluate(policy, own)
    cost = (policy.play(own).asked * own.cost).sum(axis=1)
    error = 1.96 * cost.std() / np.sqrt(len(cost))
    assert result.cost_interval == pytest.approx(
        (cost.mean() - error, cost.mean() + error), abs=error / 4
    )


def test_intervals_of_rare_losses_are_as_wide_as_their_standard_error_says():
    generator = np.random.default_rng(0)
    lost = generator.random((20_000, 1)) < 0.1
    loss = np.where(lost, np.exp(generator.normal(size=lost.shape)), 0.0)
    trace = Trace(CascadeSpec.of({"only": 1.0}), np.zeros(lost.shape), raw_loss=loss)
    low, high = evaluate(fit(trace, states=1, tradeoffs=[0.5])[0], trace).error_interval
    assert high - low == pytest.approx(2 * 1.96 * loss.std() / np.sqrt(len(loss)), rel=0.1)


def test_intervals_of_heavy_tailed_costs_are_as_wide_as_their_standard_error_says():
    generator = np.random.default_rng(0)
    cost = generator.lognormal(sigma=2.5, size=(20_000, 1))
    right = generator.random(cost.shape) < 0.9
    trace = Trace(CascadeSpec.of({"only": 1.0}), np.zeros(cost.shape), correct=right, cost=cost)
    low, high = evaluate(fit(trace, states=1, tradeoffs=[0.5])[0], trace).cost_interval
    assert high - low == pytest.approx(2 * 1.96 * cost.std() / np.sqrt(len(cost)), rel=0.1)


@pytest.mark.parametrize("belief", ["full", "calibrated"])
def test_in_a_fixed_order_every_exit_is_asked_on_the_way_also_with_parents(belief):
    plain = chain_trace(300)
    first, *others = plain.spec.nodes
    nodes = (first, *(dataclasses.replace(node, after=first.name) for node in others))
    trace = plain.with_spec(dataclasses.replace(plain.spec, nodes=nodes))
    asked = [policy.play(trace).asked for policy in fit(trace, belief=belief, states=3)]
    assert all((np.diff(each.astype(int), axis=1) <= 0).all() for each in asked)
    assert (
        fit(trace, belief=belief, states=3).fitted.steps
        == fit(plain, belief=belief, states=3).fitted.steps
    )


def test_an_empty_trace_cannot_be_evaluated():
    policy = fit(chain_trace(100), states=3)[0]
    with pytest.raises(ArgumentError, match="no rows"):
        evaluate(policy, chain_trace(100).take(np.array([], int)))
    with pytest.raises(ArgumentError, match="resamples is -1"):
        evaluate(policy, chain_trace(100), resamples=-1)
    with pytest.raises(ArgumentError, match="an evaluation needs a Trace, not list"):
        evaluate(policy, [0.5])


def test_problem_of_names_nodes_in_the_order_of_asking():
    trace = answering_trace(300)
    counts = counted(trace, [(-1, 2), (2, 0), (0, 1)])
    plan = Plan("calibrated", "fixed", 3, "quantile", 1.0)
    problem = problem_of(counts, trace.spec, [2, 0, 1], plan, full_cost=1.0)
    assert problem.names == ("large", "small", "middle")


def test_long_traces_are_fitted_to_a_sample(monkeypatch):
    trace = answering_trace(3000, order="fixed")
    monkeypatch.setattr("ttamer.fitting.plans.MAX_BELIEF_ROWS", 2400)
    monkeypatch.setattr("ttamer.fitting.regressions.MAX_ROWS", 1200)
    ladder = fit(trace, tradeoffs=[0.5, 0.9])
    assert ladder.fitted.rows == 3000
    assert ladder.fitted.trace_digest == trace.digest
    assert ladder.fitted.plan["sampled"] == 2400
    again = fit(trace, tradeoffs=[0.5, 0.9])
    held = answering_trace(1500, order="fixed", seed=9)
    monkeypatch.undo()
    whole = fit(trace, tradeoffs=[0.5, 0.9])
    assert "sampled" not in whole.fitted.plan
    for one, two, all_rows in zip(ladder, again, whole, strict=True):
        np.testing.assert_array_equal(one.play(held).answer, two.play(held).answer)
        mine, theirs = (evaluate(each, held, resamples=0) for each in (one, all_rows))
        assert one.error == pytest.approx(mine.error, abs=0.05)
        assert mine.error == pytest.approx(theirs.error, abs=0.05)


def test_folds_are_compared_at_equal_cost():
    """For one tradeoff one fold asks the cheap node and another the expensive one."""
    cheap, expensive = 0.6, 0.2
    errors = np.array([[cheap, cheap, expensive], [cheap, expensive, expensive]])
    costs = np.where(errors == cheap, 1.0, 5.0)
    held = FoldResults(np.array([30, 10]), errors, costs, 5.0, np.zeros(40))
    found = held.errors_at(np.array([1.0, 5.0, 3.0, 9.0]))
    assert found == pytest.approx([cheap, expensive, (cheap + expensive) / 2, expensive])


def test_a_policy_that_asks_one_node_alone_is_expected_to_err_as_that_node():
    trace = answering_trace(150)
    ladder = fit(trace, order="any", belief="calibrated", states=4, folds=5)
    rungs, alone, seen = ladder.require_rungs(), trace.wrong().mean(axis=0), set()
    for error, played in zip(rungs.errors, ladder.play_all(trace), strict=True):
        if (played.asked.sum(axis=1) == 1).all() and np.ptp(played.answer) == 0:
            seen.add(int(played.answer[0]))
            assert error == pytest.approx(alone[played.answer[0]], abs=0.02)
    assert len(seen) > 1
