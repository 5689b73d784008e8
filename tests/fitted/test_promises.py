"""Budgets and promises: what is asked for in one's own terms is what is got."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.traces import answering_trace, chain_trace
from ttamer.errors import ArgumentError
from ttamer.evaluation.results import measure
from ttamer.fitted.mixture import Mix, Rungs
from ttamer.fitted.promise import (
    MAX_HELD_LOSSES,
    HeldOut,
    check_promise,
    make_promise,
    pairs_of_corners,
    were_fitted_to,
)
from ttamer.trace.spec import CascadeSpec


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(answering_trace(4000), hold_out=0.25)


@pytest.fixture(scope="module")
def new_rows():
    return answering_trace(6000, seed=1)


# Rungs and budgets.


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.5, 20)), min_size=1, max_size=12, unique=True),
    st.floats(0, 1),
)
def test_a_budget_is_met_exactly_on_the_envelope(points, place):
    rungs = Rungs(*np.array(points).T)
    corners = list(rungs.corners)
    low, high = rungs.costs[corners[0]], rungs.costs[corners[-1]]
    cost = low + place * (high - low)
    mix = rungs.for_budget(cost)
    assert rungs.cost_of(mix) == pytest.approx(cost)
    assert 0 <= mix.share <= 1
    envelope = np.interp(cost, rungs.costs[corners], rungs.errors[corners])
    assert rungs.error_of(mix) == pytest.approx(envelope)
    assert (
        mix.cheap == mix.expensive or corners.index(mix.expensive) == corners.index(mix.cheap) + 1
    )


def test_rungs_say_what_new_rows_show(ladder, new_rows):
    for rung in ladder.rungs.corners:
        result = measure(ladder[rung].play(new_rows), new_rows, resamples=0)
        assert ladder.rungs.errors[rung] == pytest.approx(result.error, abs=0.03)
        assert ladder.rungs.costs[rung] == pytest.approx(result.cost, rel=0.06)


@pytest.mark.parametrize("belief", ["none", "calibrated", "full"])
@pytest.mark.parametrize("rows", [200, 2500])
def test_every_fit_has_its_rungs(belief, rows):
    fitted = tt.fit(chain_trace(rows), belief=belief, tradeoffs=[0.5, 0.9, 0.99])
    assert fitted.rungs.errors.shape == fitted.rungs.costs.shape == (3,)
    new = chain_trace(20_000, seed=5)
    for rung, policy in enumerate(fitted):
        result = measure(policy.play(new), new, resamples=0)
        assert fitted.rungs.errors[rung] == pytest.approx(
            result.error, abs=0.12 if rows < 999 else 0.04
        )


def test_cross_fitting_is_not_flattered_by_noise():
    """Confidences that say nothing: on its own rows a fit looks better than it is."""
    generator = np.random.default_rng(0)
    trace = answering_trace(300)
    noise = tt.Trace(
        trace.spec,
        generator.random((300, 3)),
        prediction=generator.integers(0, 4, (300, 3)).astype(np.int32),
        label=generator.integers(0, 4, 300).astype(np.int32),
        classes=trace.classes,
    )
    fitted = tt.fit(noise, tradeoffs=[1.0])
    assert fitted.rungs.errors[0] > 0.68


@pytest.mark.parametrize("share", [0.1, 0.35, 0.8])
def test_a_budget_is_kept_on_new_rows(ladder, new_rows, share):
    low, high = ladder.rungs.costs.min(), ladder.rungs.costs[ladder.rungs.corners[-1]]
    budget = low + share * (high - low)
    policy = ladder.for_budget(budget)
    assert policy.cost == pytest.approx(budget)
    spent = measure(policy.play(new_rows), new_rows, resamples=0).cost
    assert spent == pytest.approx(budget, rel=0.05)


def test_a_budget_above_all_is_the_most_expensive_corner_and_below_all_is_refused(ladder):
    top = ladder.for_budget(1e9)
    assert top.cost == pytest.approx(ladder.rungs.costs[ladder.rungs.corners[-1]])
    assert f"cost {top.cost:.4g} per input" in repr(top)
    with pytest.raises(ArgumentError, match="the cheapest costs"):
        ladder.for_budget(0.5)
    with pytest.raises(ArgumentError, match="cost is nan; it must be a number"):
        ladder.for_budget(float("nan"))


# Mixtures.


def test_the_same_key_is_decided_alike_and_shares_come_out(ladder):
    policy = ladder.for_budget(5.0)
    assert 0.02 < policy.share < 0.98
    other = ladder.for_budget(5.0, seed=1)
    keys = [f"request-{i}" for i in range(4000)]
    drawn = [policy.drawn(key).tradeoff for key in keys]
    assert drawn == [ladder.for_budget(5.0).drawn(key).tradeoff for key in keys]
    assert drawn != [other.drawn(key).tradeoff for key in keys]
    expensive = np.mean([tradeoff == policy.expensive.tradeoff for tradeoff in drawn])
    assert expensive == pytest.approx(policy.share, abs=4 * (0.25 / 4000) ** 0.5)


def test_keys_that_are_large_numbers_are_shared_too(ladder):
    policy = ladder.for_budget(5.0)
    first = 1_750_000_000_000_000_000  # nanoseconds since 1970
    drawn = [policy.drawn(first + i) is policy.expensive for i in range(4000)]
    assert np.mean(drawn) == pytest.approx(policy.share, abs=4 * (0.25 / 4000) ** 0.5)
    assert policy.drawn(10**400) in (policy.cheap, policy.expensive)
    for key in range(20):  # as the same number of another kind
        assert policy.drawn(np.int64(key)) is policy.drawn(key)


def test_numbered_inputs_are_shared_evenly_and_as_a_trace_is(ladder, new_rows):
    policy = ladder.for_budget(5.0)
    draws = policy.draws(1000)
    assert draws.mean() == pytest.approx(policy.share, abs=0.005)
    assert [policy.drawn(row) is policy.expensive for row in range(1000)] == draws.tolist()
    played = policy.play(new_rows)
    for row in range(0, 300, 7):
        turn = policy.session(key=row)
        while (node := turn.next) is not None:
            column = new_rows.spec.index_of(node)
            said = new_rows.classes[new_rows.prediction[row, column]]
            turn.observe(confidence=new_rows.confidence[row, column], prediction=said)
        assert turn.answer == new_rows.names[played.answer[row]]
        asked = [name for name, was in zip(new_rows.names, played.asked[row], strict=True) if was]
        assert set(turn.asked) == set(asked)
    assert policy.session().next == policy.drawn(0).session().next  # numbered as they come
    assert policy.session(max_cost=1.5, key="x").next == "small"


# Promises.


def held(rows, law, pairs=((0, 1), (1, 2))):
    counts = np.random.default_rng(0).multinomial(rows, law, size=len(pairs))
    return HeldOut(rows, "digest", "last", pairs, counts.reshape(-1, 2, 2, 2))


def test_mixes_run_from_the_safest_to_the_cheapest():
    mixes = held(10, np.full(8, 1 / 8)).mixes(2)
    assert mixes == [Mix(1, 2, 1.0), Mix(1, 2, 0.5), Mix(1, 2, 0.0), Mix(0, 1, 0.5), Mix(0, 1, 0.0)]
    assert pairs_of_corners((4,)) == ((4, 4),)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_only_moves_rows_to_the_more_expensive_policy(one, two):
    rows = held(500, np.array([4, 1, 1, 1, 3, 1, 1, 2]) / 14)
    low, high = sorted([one, two])
    first, second = (rows.outcomes(Mix(0, 1, share)) for share in (low, high))
    assert first.sum() == second.sum() == 500
    assert first.sum(axis=0).tolist() == second.sum(axis=0).tolist()  # the last node is what it is
    table = rows.counts[0]
    assert rows.outcomes(Mix(0, 1, 0.0)).tolist() == table.sum(axis=1).tolist()
    assert rows.outcomes(Mix(0, 1, 1.0)).tolist() == table.sum(axis=0).tolist()


@pytest.mark.parametrize("kind", ["error", "drop"])
def test_promises_are_broken_no_more_often_than_they_say(kind):
    """Over many draws of held-out rows from a known law."""
    generator = np.random.default_rng(3)
    errors = np.array([0.4, 0.3, 0.22, 0.2])  # of corners, the cheapest first
    alpha, rows, at_most = 0.1, 400, 0.26 if kind == "error" else 0.05
    times = 1000 if kind == "error" else 150  # tests/stats/test_paired.py enumerates all draws
    last = 0.2
    broken = 0
    pairs = ((0, 1), (1, 2), (2, 3))
    for number in range(times):
        hard = generator.random(rows)  # the same rows are hard for all
        wrong = hard[:, np.newaxis] < errors
        theirs = np.roll(hard, 1) < last  # and others for the last node
        counts = [
            np.bincount(4 * wrong[:, i] + 2 * wrong[:, i + 1] + theirs, minlength=8)
            for i in range(3)
        ]
        drawn = HeldOut(rows, str(number), "last", pairs, np.reshape(counts, (3, 2, 2, 2)))
        made = make_promise(drawn, kind, at_most, 1 - alpha)
        cheap, expensive, share = made.mix
        truth = (1 - share) * errors[cheap] + share * errors[expensive]
        broken += made.certified and truth - (last if kind == "drop" else 0) > at_most
    assert broken / times <= alpha + 3 * (alpha * (1 - alpha) / times) ** 0.5
    if kind == "error":
        assert broken  # it is a test of something: the promise is used up


def test_a_promise_that_holds_is_certified_and_cheaper_the_more_it_allows(ladder, new_rows):
    costs = []
    for at_most in (0.25, 0.35, 0.5):
        policy = ladder.for_error(at_most)
        assert policy.promise.certified
        assert policy.promise.bound <= at_most
        assert policy.promise.rows == 1000
        assert policy.promise.against == "large"
        assert "certified (" in str(policy.promise)
        assert measure(policy.play(new_rows), new_rows, resamples=0).error <= at_most
        costs.append(policy.cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]


def test_what_cannot_be_certified_is_reported_and_the_lowest_error_returned(ladder):
    safest = ladder.rungs.corners[-1]
    hopeless = ladder.for_error(0.01)
    assert not hopeless.promise.certified
    assert hopeless.promise.rows_needed is None
    assert "more rows would not help" in str(hopeless.promise)
    assert hopeless.promise.mix.expensive == safest
    assert hopeless.promise.mix.share == 1
    close = ladder.for_error(hopeless.promise.observed + 0.002)
    assert not close.promise.certified
    assert close.promise.rows_needed > 1000
    assert f"about {close.promise.rows_needed} rows would do" in str(close.promise)
    drop = ladder.for_drop(ladder.for_drop(0.5).promise.observed + 1e-4)
    assert drop.promise.rows_needed is None or drop.promise.rows_needed > 1000


def test_so_many_rows_as_needed_do():
    rows = held(200, [0.9, 0, 0, 0, 0, 0, 0, 0.1], pairs=((0, 0),))
    made = make_promise(rows, "error", 0.13, 0.95)
    assert not made.certified
    many = HeldOut(
        made.rows_needed + 5,
        "d",
        "last",
        ((0, 0),),
        np.rint(rows.counts * (made.rows_needed + 5) / 200).astype(int),
    )
    assert make_promise(many, "error", 0.13, 0.95).certified


def test_a_drop_against_a_node_needs_rows_compared_with_it(ladder, new_rows):
    assert ladder.for_drop(0.05).promise.certified
    assert ladder.for_drop(0.05, against="large").promise == ladder.for_drop(0.05).promise
    assert ladder.for_drop(0.05, against="middle").promise.against == "middle"
    old = dataclasses.replace(ladder, held=dataclasses.replace(ladder.held, by_node={}))
    with pytest.raises(ArgumentError, match="compared with 'large'"):
        old.for_drop(0.05, against="middle")
    made = ladder.for_drop(0.05, against="middle", on=new_rows).promise
    assert made.against == "middle"
    assert made.certified
    assert made.observed <= 0.05
    with pytest.raises(ArgumentError, match="nobody"):
        ladder.for_drop(0.05, against="nobody", on=new_rows)


def test_a_promise_is_checked_again_on_other_rows(ladder, new_rows):
    made = ladder.for_error(0.35).promise
    again = check_promise(made, HeldOut.of(ladder, new_rows))
    assert again.certified
    assert not again.refuted
    assert again.rows == 6000
    assert again.mix == made.mix
    hard = answering_trace(6000, seed=2)
    worse = tt.Trace(
        hard.spec,
        hard.confidence,
        prediction=np.random.default_rng(0).permuted(hard.prediction, axis=0),
        label=hard.label,
        classes=hard.classes,
    )
    broken = check_promise(ladder.for_error(0.35).promise, HeldOut.of(ladder, worse))
    assert not broken.certified
    assert broken.refuted
    assert "broken" in str(broken)
    few = check_promise(ladder.for_error(0.3).promise, HeldOut.of(ladder, new_rows.take(range(20))))
    assert not few.certified
    assert not few.refuted


def test_a_refuted_drop():
    ladder = tt.fit(answering_trace(3000), tradeoffs=[0.0, 0.1], hold_out=0.3)  # small alone
    made = ladder.for_drop(0.9).promise
    tight = type(made)(**{**vars(made), "at_most": 0.01})
    assert check_promise(tight, ladder.held).refuted
    assert check_promise(made, ladder.held).refuted is False


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ladder: ladder.for_error(0.0), "above 0 and below 1"),
        (lambda ladder: ladder.for_error(1.0), "above 0 and below 1"),
        (lambda ladder: ladder.for_drop(-1.0), "above -1 and below 1"),
        (lambda ladder: ladder.for_error(float("nan")), "above 0 and below 1"),
        (lambda ladder: ladder.for_error(0.1, confidence=1.0), "from 0.5 to below 1"),
        (lambda ladder: ladder.with_promise(ladder.for_budget(5.0)), "has no promise"),
    ],
)
def test_bad_wishes(ladder, call, says):
    with pytest.raises(ArgumentError, match=says):
        call(ladder)


def test_no_promise_on_the_rows_fitted_to():
    trace = answering_trace(500)
    ladder = tt.fit(trace, tradeoffs=[0.9])
    with pytest.raises(ArgumentError, match=r"hold_out=0\.2"):
        ladder.for_error(0.4)
    with pytest.raises(ArgumentError, match="the rows the ladder was fitted to"):
        ladder.for_error(0.4, on=trace)
    held_out = tt.fit(trace, tradeoffs=[0.9], hold_out=0.2)
    with pytest.raises(ArgumentError, match="fitted to 400 of these 500 rows: a promise needs"):
        held_out.for_error(0.4, on=trace)
    with pytest.raises(ArgumentError, match="fitted to 400 of these 500 rows: a gap needs"):
        held_out.gap(tradeoff=0.9, on=trace)
    assert held_out.for_error(0.9, on=answering_trace(500, seed=1)).promise.certified
    with pytest.raises(ArgumentError, match="no rows"):
        ladder.with_holdout(trace.take([]))
    with pytest.raises(ArgumentError, match=r"from 0 to 0\.9"):
        tt.fit(trace, hold_out=0.95)


def test_rows_held_out_by_another_seed_are_known_as_part_of_the_log(tmp_path):
    trace = answering_trace(500)
    ladder = tt.fit(trace, tradeoffs=[0.9], hold_out=0.2, seed=5)
    tt.save(ladder, tmp_path / "ladder.ttamer")
    for each in (ladder, tt.load(tmp_path / "ladder.ttamer")):
        with pytest.raises(ArgumentError, match="fitted to 400 of these 500 rows: a promise needs"):
            each.for_error(0.4, on=trace)
    model = dataclasses.replace(ladder.fitted, plan={"seed": "no number"})
    assert not were_fitted_to(model, ladder.held, trace)


def test_a_log_with_many_losses_is_known_too():
    spec = CascadeSpec.of({"only": 1.0}, max_loss=1.0)
    rows = np.random.default_rng(0).random((2 * MAX_HELD_LOSSES, 1))
    trace = tt.Trace(spec, rows, raw_loss=rows)
    ladder = tt.fit(trace, belief="calibrated", states=1, tradeoffs=[0.9], hold_out=0.9)
    assert ladder.held.rows == MAX_HELD_LOSSES < 0.9 * len(trace)
    with pytest.raises(ArgumentError, match="a promise needs"):
        ladder.for_error(0.9, on=trace)


def test_a_ladder_without_estimates_is_reported():
    from ttamer.fitting.beliefs import build_belief

    built = build_belief(answering_trace(60), np.array([0.9]), states=3)
    bare = type(built)(built.policies)
    with pytest.raises(ArgumentError, match="fit it again"):
        bare.for_budget(3.0)


def test_the_record_travels_with_the_ladder(ladder, new_rows, tmp_path):
    made = ladder.for_error(0.35)
    tight = ladder.for_drop(0.0001)
    tt.save(ladder.with_promise(made).with_promise(tight), tmp_path / "p.ttamer")
    loaded = tt.load(tmp_path / "p.ttamer")
    assert loaded.promises == (made.promise, tight.promise)
    np.testing.assert_array_equal(loaded.rungs.errors, ladder.rungs.errors)
    assert loaded.for_error(0.35).promise == made.promise
    kept = loaded.mixture_for(loaded.promises[0])
    assert (kept.share, kept.cost, kept.error) == (made.share, made.cost, made.error)
    np.testing.assert_array_equal(kept.play(new_rows).answer, made.play(new_rows).answer)
    facts = tt.inspect(tmp_path / "p.ttamer")
    assert facts["held_out"]["rows"] == 1000
    assert facts["promises"] == [str(made.promise), str(tight.promise)]
    tt.save(made, tmp_path / "mixture.ttamer")
    mixture = tt.load(tmp_path / "mixture.ttamer")
    kept = dataclasses.replace(mixture.promise, mix=made.promise.mix)  # a file of two policies
    assert (kept, mixture.share) == (made.promise, made.share)
    np.testing.assert_array_equal(mixture.play(new_rows).answer, made.play(new_rows).answer)
    assert made.promise.to_dict()["alpha"] == pytest.approx(0.05)


def graded_rows(rows: int, seed: int) -> tt.Trace:
    """Return rows of a small and a large node with losses from 0 to 4, lower where sure."""
    generator = np.random.default_rng(seed)
    hard = generator.random(rows)
    loss = 4 * np.stack([hard, 0.25 * hard], axis=1) * generator.random((rows, 2))
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 8.0}, order="fixed", max_loss=4.0)
    return tt.Trace(spec, np.stack([1 - hard, 1 - hard], axis=1), raw_loss=loss)


@pytest.fixture(scope="module")
def graded_ladder():
    return tt.fit(graded_rows(1500, 0), belief="calibrated", states=8)


def test_a_promise_about_losses_holds_on_new_rows(graded_ladder, tmp_path):
    new = graded_rows(40_000, 2)
    ladder = graded_ladder.with_holdout(graded_rows(1500, 1))
    kept = ladder.for_error(0.5)
    assert kept.promise.certified
    assert kept.promise.measure == "mean loss"
    assert kept.promise.observed < kept.promise.bound <= 0.5
    assert "mean loss at most 0.5 " in str(kept.promise)
    assert "mean loss" in kept.described
    assert tt.evaluate(kept, new, resamples=0).error < 0.5
    drop = ladder.for_drop(0.25)
    assert drop.promise.certified
    last = new.losses()[:, -1].mean()
    assert tt.evaluate(drop, new, resamples=0).error < last + 0.25
    assert not ladder.for_error(0.01).promise.certified
    tt.save(ladder.with_promise(kept), tmp_path / "promised.ttamer")
    again = tt.load(tmp_path / "promised.ttamer")
    assert str(again.promises[0]) == str(kept.promise)
    assert again.for_drop(0.25).promise == drop.promise
    assert not check_promise(kept.promise, HeldOut.of(ladder, new)).refuted
    worse = dataclasses.replace(new, raw_loss=np.minimum(3 * new.raw_loss, 4.0))
    assert check_promise(kept.promise, HeldOut.of(ladder, worse)).refuted


def test_promises_about_losses_are_kept_as_often_as_stated(graded_ladder):
    """Among draws of the rows held out, at most a share alpha breaks the promise."""
    new, rungs = graded_rows(60_000, 3), {}
    losses, states = new.losses(), graded_ladder.fitted.states(new)
    broken, draws = 0, 60
    for seed in range(draws):
        ladder = graded_ladder.with_holdout(graded_rows(300, 100 + seed))
        mix = ladder.for_error(0.6, confidence=0.8).promise
        if not mix.certified:
            continue
        for rung in mix.mix[:2]:
            if rung not in rungs:
                answer = states.play(ladder[rung].policy).answer
                rungs[rung] = losses[np.arange(len(new)), answer].mean()
        cheap, expensive, share = mix.mix
        broken += (1 - share) * rungs[cheap] + share * rungs[expensive] > 0.6
    assert broken <= 0.2 * draws


def test_without_a_largest_loss_nothing_is_promised(graded_ladder):
    rows = graded_rows(200, 5)
    spec = dataclasses.replace(rows.spec, max_loss=None)
    with pytest.raises(ArgumentError, match="max_loss"):
        graded_ladder.with_holdout(rows.with_spec(spec))
