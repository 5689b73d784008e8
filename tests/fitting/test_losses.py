"""Fits to losses: right and wrong as losses, units of loss, known optima, files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support.traces import FIRST, ROWS, answering_trace, chain_trace
from ttamer.baselines import FAMILIES
from ttamer.errors import ArgumentError, TraceError
from ttamer.evaluation import frontier
from ttamer.fitted.promise import MAX_HELD_LOSSES
from ttamer.fitting import fit_batches
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

LEVELS = np.array([12.0, 5.0, 1.0])
"""The mean loss in each state of a simulated node."""


def graded_chain(rows: int, *, seed: int = 0, unit: float = 1.0) -> Trace:
    """Exits whose states follow a known chain, with exponential losses of known means."""
    plain = chain_trace(rows, seed=seed)
    means = LEVELS[np.rint((plain.confidence - 0.3) / 0.3).astype(int)]
    noise = np.random.default_rng([seed, 7]).exponential(size=means.shape).clip(0, 8)
    return Trace(plain.spec, plain.confidence, raw_loss=unit * means * noise)


def with_losses(trace: Trace, losses) -> Trace:
    return dataclasses.replace(trace, correct=None, label=None, raw_loss=losses)


@pytest.fixture(scope="module")
def graded() -> Trace:
    return graded_chain(6000)


@pytest.mark.parametrize("belief", ["full", "calibrated", "none"])
def test_right_and_wrong_as_losses_give_the_same_policies(belief):
    trace = answering_trace(1200)
    losses = with_losses(trace, trace.wrong().astype(float))
    one, two = (tt.fit(each, belief=belief, order="fixed") for each in (trace, losses))
    assert two.fitted.loss_scale == 1
    for first, second in zip(one.play_all(trace), two.play_all(losses), strict=True):
        assert (first.answer == second.answer).all()
        assert (first.asked == second.asked).all()
    assert two.rungs.errors == pytest.approx(one.rungs.errors, abs=1e-12)


@pytest.mark.parametrize("belief", ["full", "calibrated"])
def test_decisions_do_not_depend_on_the_unit_of_loss(belief):
    one, two = (graded_chain(3000, unit=unit) for unit in (1.0, 1024.0))
    small, large = (tt.fit(trace, belief=belief, states=8) for trace in (one, two))
    assert large.fitted.loss_scale == 1024 * small.fitted.loss_scale
    costs = (0.05, 0.2, 0.5, 2.0)
    assert len({small.for_mistake_cost(cost).tradeoff for cost in costs}) == len(costs)
    for mistake_cost in costs:
        first = small.for_mistake_cost(mistake_cost).play(one)
        second = large.for_mistake_cost(mistake_cost / 1024).play(two)
        assert (first.answer == second.answer).all()
        assert (first.asked == second.asked).all()
    assert large.rungs.errors == pytest.approx(1024 * small.rungs.errors)
    assert large.rungs.node_errors == pytest.approx(1024 * small.rungs.node_errors)


@pytest.mark.parametrize("belief", ["full", "calibrated"])
def test_on_a_known_chain_the_policies_are_near_the_exact_optimum(graded, belief):
    clipped = 1 - np.exp(-8.0)  # the mean of the noise, which is cut at 8
    costs = [1 / 6, 2 / 6, 3 / 6]
    test = graded_chain(40_000, seed=1)
    ladder = tt.fit(graded, belief=belief, states=None if belief == "full" else 3)
    full, unit = ladder.fitted.full_cost, ladder.fitted.loss_unit
    exact = tt.Problem.line(LEVELS * clipped / unit, costs, [FIRST, ROWS, ROWS])
    for mistake_cost in (0.1, 0.3, 1.0, 3.0):
        policy = ladder.for_mistake_cost(mistake_cost)
        weight = policy.tradeoff
        best = tt.solve(exact, weight).value
        result = tt.evaluate(policy, test, resamples=0)
        got = weight * result.error / unit + (1 - weight) * result.cost / full
        assert result.measure == "mean loss"
        assert best * 0.97 < got < best * 1.05


def test_estimates_on_new_rows_are_the_mean_losses_found_there(graded):
    test = graded_chain(40_000, seed=2)
    ladder = tt.fit(graded)
    for policy in (ladder.at(0.6), ladder.at(0.9), ladder.at(0.99)):
        result = tt.evaluate(policy, test, resamples=0)
        assert policy.error == pytest.approx(result.error, rel=0.08)
        assert policy.cost == pytest.approx(result.cost, rel=0.05)


def test_batches_give_the_losses_of_the_whole(graded):
    parts = [graded.take(slice(0, 2500)), graded.take(slice(2500, 6000))]
    options = {"belief": "calibrated", "states": 3}
    whole = tt.fit(graded, **options)
    streamed = fit_batches(lambda: parts, **options)
    for one, two in zip(whole.problem.nodes, streamed.problem.nodes, strict=True):
        assert two.losses == pytest.approx(one.losses)
    assert streamed.fitted.loss_scale == graded.loss_scale


def test_the_file_of_a_fit_keeps_the_unit_of_loss(graded, tmp_path):
    for belief in ("full", "calibrated"):
        ladder = tt.fit(graded, belief=belief, states=4)
        tt.save(ladder, tmp_path / "fit.ttamer")
        again = tt.load(tmp_path / "fit.ttamer")
        assert again.fitted.loss_scale == graded.loss_scale
        assert again.for_mistake_cost(0.3).tradeoff == ladder.for_mistake_cost(0.3).tradeoff != 0.5


@pytest.mark.parametrize("belief", ["full", "calibrated"])
@pytest.mark.parametrize(
    "losses", [{"mistakes": {"c0": {"c1": 30.0, "*": 2.0}, "*": {"c1": 0.5}}}, {"max_loss": 7.0}]
)
def test_a_file_keeps_what_answers_lose(belief, losses, tmp_path):
    """So that rows read by it are evaluated and promised in mean loss, not in right and wrong."""
    trace, held = answering_trace(120, classes=3), answering_trace(100, seed=1, classes=3)
    spec = CascadeSpec.of(dict(zip(trace.names, trace.spec.costs, strict=True)), **losses)
    if "max_loss" in losses:
        trace, held = (
            dataclasses.replace(each, raw_loss=5.0 * each.wrong()) for each in (trace, held)
        )
    ladder = tt.fit(trace.with_spec(spec), belief=belief, states=4, tradeoffs=[0.0, 0.5, 1.0])
    tt.save(ladder, tmp_path / "fit.ttamer")
    again = tt.load(tmp_path / "fit.ttamer")
    kept = again.fitted.spec
    assert (kept.mistakes, kept.max_loss) == (spec.mistakes, spec.max_loss)
    rows = held.with_spec(kept)
    assert tt.evaluate(again.at(0.5), rows, resamples=0).error == pytest.approx(
        rows.losses()[np.arange(100), again.at(0.5).play(rows).answer].mean()
    )
    assert again.for_error(0.9 * spec.loss_bound, on=rows).promise.certified
    plain = dataclasses.replace(held, raw_loss=None).with_spec(trace.spec)
    with pytest.raises(ArgumentError, match="fitted to the mean loss"):
        again.for_error(0.5, on=plain)


def test_a_file_keeps_the_mistakes_of_many_classes(tmp_path):
    """A header has one list for each pair of classes."""
    classes = [f"c{k}" for k in range(20)]
    mistakes = {one: {two: 2.0 for two in classes if two != one} for one in classes}
    trace = answering_trace(60, classes=3)
    spec = CascadeSpec.of(dict(zip(trace.names, trace.spec.costs, strict=True)), mistakes=mistakes)
    ladder = tt.fit(trace.with_spec(spec), belief="calibrated", states=3, tradeoffs=[0.5])
    tt.save(ladder, tmp_path / "fit.ttamer")
    assert tt.load(tmp_path / "fit.ttamer").fitted.spec.mistakes == mistakes


def test_of_many_rows_a_promise_is_about_all_and_not_about_the_first():
    spec = CascadeSpec.of({"only": 1.0}, max_loss=1.0)
    loss = np.repeat([0.1, 0.9], MAX_HELD_LOSSES)[:, np.newaxis]  # the first rows are the easy ones
    later = Trace(spec, np.zeros_like(loss), raw_loss=loss)
    ladder = tt.fit(later.take(slice(None, None, 100)), belief="calibrated", states=1)
    promise = ladder.for_error(0.3, on=later).promise
    assert not promise.certified
    assert promise.rows == MAX_HELD_LOSSES
    assert promise.observed == pytest.approx(0.5, abs=0.02)


def test_rows_are_not_held_out_for_promises_that_cannot_be_made(graded):
    endless = graded.with_spec(dataclasses.replace(graded.spec, max_loss=None))
    begun = []
    with pytest.raises(ArgumentError, match="max_loss"):
        tt.fit(endless, hold_out=0.2, progress=begun.append)
    assert not begun


def test_target_last_counts_what_is_lost_beyond_the_last_node(graded):
    spec = dataclasses.replace(graded.spec, target="last")
    trace = graded.with_spec(spec)
    more = np.maximum(graded.raw_loss - graded.raw_loss[:, -1:], 0)
    assert (trace.losses() == more).all()
    ladder = tt.fit(trace)
    assert ladder.rungs.node_errors[-1] == 0
    assert tt.evaluate(ladder.at(1.0), trace, resamples=0).error == pytest.approx(0, abs=1e-9)


def test_every_baseline_is_measured_in_mean_loss():
    trace = answering_trace(600)
    losses = np.where(trace.wrong(), np.random.default_rng(0).uniform(1, 9, (600, 3)), 0.0)
    fitted, test = with_losses(trace, losses).split(0.5, 0)
    found = frontier(fitted, test, families=[*FAMILIES], resamples=20)
    assert {"chain", "threshold", "oracle", "frugalml", "routing"} <= set(found.families)
    for point in found.points:
        low, high = point.result.error_interval
        assert low <= point.result.error <= high
        assert point.result.measure == "mean loss"
    oracle = min(found.curve("oracle")[1])
    assert oracle == pytest.approx(test.raw_loss.min(axis=1).mean())


def test_unequal_mistakes_change_what_is_asked():
    trace = answering_trace(3000, classes=2)
    mistakes = {"c0": {"c1": 30.0}}
    spec = CascadeSpec.of(dict(zip(trace.names, trace.spec.costs, strict=True)), mistakes=mistakes)
    unequal = trace.with_spec(spec)
    assert unequal.loss_scale == 30
    equal_cost, fair = tt.fit(trace), tt.fit(unequal)
    budget = 6.0
    lost = [
        tt.evaluate(each.for_budget(budget), unequal, resamples=0) for each in (equal_cost, fair)
    ]
    assert lost[1].error < 0.9 * lost[0].error
    assert lost[1].cost <= 1.03 * lost[0].cost


def test_losses_that_cannot_be_are_refused():
    spec = CascadeSpec.of({"a": 1.0, "b": 2.0}, max_loss=3.0)
    with pytest.raises(TraceError, match="a loss is not negative"):
        Trace(spec, [[0.1, 0.2]], raw_loss=[[0.0, -1.0]])
    with pytest.raises(TraceError, match="max_loss = 3"):
        Trace(spec, [[0.1, 0.2]], raw_loss=[[0.0, 4.0]])
    with pytest.raises(TraceError, match="not both"):
        Trace.from_arrays(spec, [[0.1, 0.2]], loss=[[0.0, 4.0]], score=[[1, 1]])


def test_rare_large_losses_leave_room_for_policies_between(graded):
    """The tradeoffs span what a usual loss is worth, not only what the largest one is."""
    generator = np.random.default_rng(3)
    heavy = graded.raw_loss * np.where(generator.random(graded.raw_loss.shape) < 0.0005, 200.0, 1.0)
    ladder = tt.fit(with_losses(graded, heavy), belief="calibrated", states=3)
    full, unit = ladder.fitted.full_cost, ladder.fitted.loss_unit
    assert unit > 50 * heavy.mean()
    for usual_losses in (0.3, 1.0, 3.0, 30.0):  # that the full model's cost is worth
        wanted = full / (usual_losses * heavy.mean())
        tradeoff = ladder.for_mistake_cost(wanted).tradeoff
        assert tradeoff / (1 - tradeoff) * full / unit == pytest.approx(wanted, rel=0.15)
    assert len(ladder.rungs.corners) > 5


def test_the_default_compares_mean_losses_in_any_unit():
    rows = answering_trace(300)
    lost = rows.wrong() * np.random.default_rng(0).lognormal(sigma=0.3, size=rows.confidence.shape)
    for unit in (1e-12, 1.0):
        ladder = tt.fit(with_losses(rows, unit * lost))
        best = ladder.rungs.node_errors.min()
        errors = np.full(len(ladder), 1.5 * best)  # nowhere as good as the best model alone
        worse = ladder.with_rungs(dataclasses.replace(ladder.rungs, errors=errors))
        assert worse.default().single_node == "large"
