"""One threshold for all nodes: decisions, promises on all rows, files, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.traces import answering_trace, chain_trace, passing_trace
from ttamer import datasets
from ttamer.cli import main
from ttamer.errors import ArgumentError
from ttamer.fitting import fit_batches


def first_to_reach(confidence, order, threshold):
    """Return the node of each row that stops: the first to reach a threshold, else the last."""
    reached = confidence[:, order] >= threshold
    reached[:, -1] = True
    return np.asarray(order)[reached.argmax(axis=1)]


@pytest.fixture(scope="module")
def trace():
    return datasets.load("minilm-imdb").take(slice(3000))


@pytest.fixture(scope="module")
def ladder(trace):
    return tt.fit(trace, belief="threshold")


@pytest.mark.parametrize("make", [chain_trace, answering_trace, passing_trace])
def test_the_first_node_that_reaches_the_threshold_answers(make):
    trace = make(300)
    rising = np.argsort(trace.spec.costs)
    order = range(3) if trace.spec.is_network else rising.tolist()
    tried = [0.0, 0.3, 0.35, 0.6, 0.75, 0.9, 0.95, 1.0]
    for policy in tt.fit(trace, belief="threshold", tradeoffs=tried):
        level = policy.tradeoff if policy.tradeoff < 1 else np.inf
        stops = first_to_reach(trace.confidence, list(order), level)
        played = policy.play(trace)
        assert played.answer.tolist() == stops.tolist()
        place = np.argsort(list(order))[stops]
        assert played.asked.sum(axis=1).tolist() == (place + 1).tolist()


@given(st.integers(0, 63), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_a_session_decides_as_a_replay(ladder, trace, rung, confidences):
    policy = ladder[rung]
    row = dataclasses.replace(
        trace.take(slice(1)),
        confidence=np.array([confidences]),
        margin=None,
        entropy=None,
        latency=None,
    )
    turn = policy.session()
    for confidence in confidences:
        if turn.next is None:
            break
        turn.observe(confidence=confidence)
    played = policy.play(row)
    assert turn.next is None
    assert turn.answer == trace.names[played.answer[0]]
    assert turn.asked == tuple(np.array(trace.names)[played.asked[0]])


def test_the_thresholds_do_not_depend_on_the_rows(ladder):
    other = tt.fit(answering_trace(200, seed=7), belief="threshold")
    assert other.tradeoffs == ladder.tradeoffs
    assert (ladder.tradeoffs[0], ladder.tradeoffs[-1]) == (0.0, 1.0)
    assert ladder.tested == tuple(range(len(ladder)))


def test_errors_and_costs_are_those_of_the_rows(ladder, trace):
    for rung in (0, 20, 63):
        found = tt.evaluate(ladder[rung], trace, resamples=0)
        assert ladder[rung].error == pytest.approx(found.error)
        assert ladder[rung].cost == pytest.approx(found.cost)
    assert (np.diff(ladder.rungs.costs) >= 0).all()


def test_a_promise_is_tested_on_all_rows_and_kept_in_a_file(ladder, trace, tmp_path):
    policy = ladder.for_drop(0.02)
    assert policy.promise.certified
    assert policy.promise.rows == len(trace)
    assert policy.cost < 0.5
    tt.save(ladder.with_promise(policy), tmp_path / "ladder.ttamer")
    again = tt.load(tmp_path / "ladder.ttamer")
    assert again.promises == (policy.promise,)
    assert again.for_drop(0.02).promise == policy.promise
    assert (
        again.for_error(0.2, confidence=0.9).promise
        == ladder.for_error(0.2, confidence=0.9).promise
    )
    tt.save(policy, tmp_path / "policy.ttamer")
    mixture = tt.load(tmp_path / "policy.ttamer")
    for before, after in ((policy.cheap, mixture.cheap), (policy.expensive, mixture.expensive)):
        assert before.play(trace).answer.tolist() == after.play(trace).answer.tolist()


def test_a_promise_with_less_rows_is_weaker(trace, ladder):
    few = tt.fit(trace.take(slice(500)), belief="threshold").for_drop(0.02)
    assert few.promise.certified
    assert few.cost > ladder.for_drop(0.02).cost


def test_promises_on_all_rows_are_broken_no_more_often_than_they_say():
    """The rows that promises are tested on are all that the ladder has seen."""
    population = datasets.load("minilm-imdb")
    wrong = population.wrong()
    last = wrong[:, -1].mean()
    alpha, at_most, times, broken = 0.1, 0.02, 60, 0
    errors = {}
    for seed in range(times):
        rows = np.random.default_rng(seed).integers(0, len(population), 400)
        ladder = tt.fit(population.take(rows), belief="threshold")
        made = ladder.for_drop(at_most, confidence=1 - alpha).promise
        for rung in made.mix[:2]:
            if rung not in errors:
                answer = ladder[rung].play(population).answer
                errors[rung] = wrong[np.arange(len(population)), answer].mean()
        cheap, expensive, share = made.mix
        drop = (1 - share) * errors[cheap] + share * errors[expensive] - last
        broken += made.certified and drop > at_most
    assert broken <= times * alpha + 3 * (times * alpha * (1 - alpha)) ** 0.5


def test_the_least_cost_with_a_price_of_mistakes(ladder):
    for cost in (0.1, 2.0, 50.0):
        policy = ladder.for_mistake_cost(cost)
        totals = cost * ladder.rungs.errors + ladder.rungs.costs
        assert cost * policy.error + policy.cost == pytest.approx(totals.min())
    dear = ladder.for_mistake_cost(2.0, price=10.0)
    assert dear.cost < ladder.for_mistake_cost(2.0).cost


def test_the_reason_names_the_threshold(ladder):
    turn = ladder.at(0.9).session()
    threshold = f"{ladder.at(0.9).tradeoff:.6g}"
    turn.observe(confidence=0.6)
    below = f"the confidence of 'layer1' is below the threshold {threshold}: ask 'layer2'"
    assert turn.explain().why == below
    turn.observe(confidence=0.99)
    reached = f"the confidence of 'layer2' reaches the threshold {threshold}: stop"
    assert turn.explain().why == reached
    turn = ladder.at(1.0).session()
    turn.observe(confidence=1.0)
    assert turn.explain().why == "the policy asks every node: ask 'layer2'"


def test_losses_need_a_bound_only_for_promises():
    generator = np.random.default_rng(0)
    hard = generator.random(400)
    loss = 4 * np.stack([hard, 0.25 * hard], axis=1) * generator.random((400, 2))
    confidence = np.stack([1 - hard, 1 - hard], axis=1)
    costs = {"small": 1.0, "large": 8.0}
    bounded = tt.CascadeSpec.of(costs, order="fixed", max_loss=4.0)
    rows = tt.Trace(bounded, confidence, raw_loss=loss)
    promise = tt.fit(rows, belief="threshold").for_error(1.2).promise
    assert promise.certified
    assert promise.measure == "mean loss"
    unbounded = tt.fit(
        rows.with_spec(dataclasses.replace(bounded, max_loss=None)), belief="threshold"
    )
    assert unbounded.default().error == pytest.approx(loss[:, 1].mean())
    with pytest.raises(ArgumentError, match="needs rows"):
        unbounded.for_error(1.2)


def test_what_does_not_go_with_thresholds(trace, ladder):
    with pytest.raises(ArgumentError, match="leave hold_out"):
        tt.fit(trace, belief="threshold", hold_out=0.2)
    with pytest.raises(ArgumentError, match="one order"):
        tt.fit(trace, belief="threshold", order="any")
    percent = dataclasses.replace(trace, confidence=100 * trace.confidence)
    with pytest.raises(ArgumentError, match="'layer1' are not: rescale"):
        tt.fit(percent, belief="threshold")
    with pytest.raises(ArgumentError, match="rows in memory"):
        fit_batches(lambda: [trace], belief="threshold")
    with pytest.raises(ArgumentError, match="thresholds have none"):
        ladder.gap(on=trace)


def test_commands_name_the_threshold_and_take_the_same_rows(trace, tmp_path, capsys):
    log, policy = str(tmp_path / "log.npz"), str(tmp_path / "policy.ttamer")
    trace.take(slice(500)).write(log)
    assert main(["fit", log, "--belief", "threshold", "-o", policy]) == 0
    assert "As measured on these rows" in capsys.readouterr().out
    for command in (["evaluate", policy, log], ["inspect", policy]):
        assert main(command) == 0
        shown = capsys.readouterr()
        assert "threshold" in shown.out
        assert "fitted to" not in shown.err  # nothing was
    assert main(["certify", policy, "--drop", "0.05"]) == 0
    assert "certified (" in capsys.readouterr().out
