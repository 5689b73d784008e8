"""Operating points of a fitted ladder: unit-free tradeoffs, mistake costs, the default policy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support.traces import answering_trace, chain_trace
from ttamer import datasets
from ttamer._numbers import number
from ttamer.errors import ArgumentError
from ttamer.fitted.mixture import Rungs
from ttamer.policy.session import LastAnswerSession


def in_unit(trace, unit):
    """The same rows with all costs multiplied."""
    nodes = tuple(dataclasses.replace(node, cost=unit * node.cost) for node in trace.spec.nodes)
    spec = dataclasses.replace(trace.spec, nodes=nodes)
    return dataclasses.replace(trace, spec=spec, cost=unit * trace.cost)


def five_models(part, rows):
    return datasets.load("langid", part).take(slice(rows))


@pytest.mark.parametrize(
    ("trace", "test", "options"),
    [
        (five_models("fit", 400), five_models("test", 400), {}),
        (answering_trace(450), answering_trace(400, seed=1), {}),
        (answering_trace(450), answering_trace(400, seed=1), {"belief": "calibrated", "states": 6}),
        (answering_trace(450), answering_trace(400, seed=1), {"belief": "none"}),
    ],
    ids=["five models", "full", "calibrated", "none"],
)
def test_decisions_do_not_depend_on_the_unit_of_cost(trace, test, options):
    small, large = (tt.fit(in_unit(trace, unit), **options) for unit in (0.001, 1000.0))
    assert small.tradeoffs == large.tradeoffs
    for tradeoff in (0.1, 0.5, 0.9, 0.99, 1.0):
        one, other = small.at(tradeoff), large.at(tradeoff)
        played, again = one.play(in_unit(test, 0.001)), other.play(in_unit(test, 1000.0))
        np.testing.assert_array_equal(played.answer, again.answer)
        np.testing.assert_array_equal(played.asked, again.asked)
        assert other.cost == pytest.approx(1e6 * one.cost)
        assert other.error == one.error


def test_the_default_tradeoffs_print_apart():
    ladder = tt.fit(chain_trace(300), belief="calibrated", states=3)
    shown = [f"{tradeoff:.4f}" for tradeoff in ladder.tradeoffs]
    assert len(set(shown)) == len(shown)


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(answering_trace(2000))


def test_a_mistake_cost_is_a_tradeoff_without_units(ladder):
    trace = answering_trace(2000)
    full = ladder.fitted.full_cost
    assert full == pytest.approx(max(trace.spec.costs))
    for mistake in (0.3 * full, full, 20 * full):
        policy = ladder.for_mistake_cost(mistake)
        assert policy.tradeoff == pytest.approx(mistake / (mistake + full), abs=0.05)
    objective = [mistake * policy.error + policy.cost for policy in ladder]
    assert mistake * policy.error + policy.cost <= min(objective) + 0.02 * full
    assert ladder.for_mistake_cost(1e9).tradeoff < 1
    assert ladder.for_mistake_cost(1e-9).tradeoff > 0
    for bad in (0, -1, float("nan"), float("inf"), "5", True):
        with pytest.raises(ArgumentError, match="must be a finite number above 0"):
            ladder.for_mistake_cost(bad)
        with pytest.raises(ArgumentError, match=r"price is .* above 0"):
            ladder.for_mistake_cost(full, price=bad)
    with pytest.raises(ArgumentError, match="cost is '5'; it must be a number"):
        ladder.for_budget("5")
    with pytest.raises(ArgumentError, match="p95 is '5'; it must be a number"):
        ladder.for_latency(p95="5")
    with pytest.raises(ArgumentError, match=r"evaluate one of them, such as ladder.default\(\)"):
        tt.evaluate(ladder, trace)


def test_an_input_that_costs_more_has_the_policy_of_a_cheaper_mistake():
    ladder = tt.fit(answering_trace(300), tradeoffs=[0.2, 0.5, 0.8])
    full = ladder.fitted.full_cost
    for price, tradeoff in ((4.0, 0.2), (1.0, 0.5), (0.25, 0.8)):
        assert ladder.for_mistake_cost(full, price=price).tradeoff == tradeoff


def test_a_mistake_cost_chooses_between_the_two_ends_where_a_ladder_has_no_more():
    ladder = tt.fit(answering_trace(300), tradeoffs=[0.0, 1.0])
    full = ladder.fitted.full_cost
    assert ladder.for_mistake_cost(0.5 * full).tradeoff == 0.0
    assert ladder.for_mistake_cost(2.0 * full).tradeoff == 1.0


def test_a_budget_of_the_only_corner_s_cost_is_met_up_to_rounding():
    rungs = Rungs(np.array([0.2, 0.3]), np.array([1.0, 2.0]))
    assert rungs.for_budget(1.0 - 1e-12) == rungs.for_budget(1.0) == (0, 0, 1.0)
    two = Rungs(np.array([0.3, 0.2]), np.array([1.0, 2.0]))
    assert two.for_budget(1.0 - 1e-12) == (0, 1, 0.0)


def test_the_default_policy_is_as_accurate_as_the_best_node_at_less_cost():
    trace = datasets.load("langid", "fit").take(slice(1000))
    ladder = tt.fit(trace)
    policy = ladder.default()
    best = float(trace.wrong().mean(axis=0).min())
    assert policy.error <= best + 1e-12
    assert policy.cost < 0.5 * ladder.fitted.full_cost
    assert policy.single_node is None


def test_without_a_policy_as_accurate_the_default_is_the_most_accurate():
    rungs = Rungs(np.array([0.3, 0.2, 0.25]), np.array([1.0, 2.0, 9.0]))
    assert rungs.for_error(0.1) == (1, 1, 1.0)
    assert rungs.for_error(0.5) == (0, 0, 1.0)


def test_a_node_that_no_mixture_beats_is_the_default(tmp_path):
    """The second node is always right and costs little more: nothing is to be gained before it."""
    trace = answering_trace(400)
    spec = tt.CascadeSpec.of({"weak": 0.9, "svm": 1.0, "large": 3.0})
    predictions = np.column_stack([trace.prediction[:, 0], trace.label, trace.prediction[:, 0]])
    rows = tt.Trace.from_arrays(
        spec, trace.confidence[:, [0, 1, 0]], prediction=predictions, label=trace.label
    )
    ladder = tt.fit(rows)
    one = ladder.alone("svm")
    assert (one.single_node, one.error, one.cost) == ("svm", 0.0, 1.0)
    chosen = ladder.default()
    assert chosen.single_node == "svm"
    assert (chosen.error, chosen.cost) == (0.0, 1.0)
    tt.save(chosen, tmp_path / "one.ttamer")
    back = tt.load(tmp_path / "one.ttamer")
    assert (back.play(rows).answer == 1).all()
    assert (back.play(rows).asked == [False, True, False]).all()
    turn = back.session()
    turn.fail()
    turn.observe(confidence=0.5)  # where it fails, the others are asked
    assert turn.answer == "weak"
    with pytest.raises(ArgumentError, match="no node"):
        ladder.alone("none")


def test_where_a_node_alone_fails_the_most_accurate_of_the_others_is_asked():
    ladder = tt.fit(answering_trace(400, order="any"))
    errors = dict(zip(ladder.spec.names, ladder.rungs.node_errors, strict=True))
    turn = ladder.alone("large").session()
    order = []
    while turn.next is not None:
        order.append(turn.next)
        turn.fail()
    assert order == ["large", *sorted({*errors} - {"large"}, key=errors.__getitem__)]
    assert order[1] == "middle"


@pytest.fixture(scope="module")
def several():
    return tt.fit(answering_trace(600, order="any"))


def without_large(policy, trace, row):
    """The nodes asked for a row while the large one is down, the answer, and the last reason."""
    turn = policy.session()
    while turn.next is not None:
        node = trace.names.index(turn.next)
        if turn.next == "large":
            turn.fail()
            why = turn.explain().why
        else:
            prediction = trace.classes[trace.prediction[row, node]]
            turn.observe(confidence=trace.confidence[row, node], prediction=prediction)
    return turn, why if "large" in turn.asked else ""


def test_where_a_node_fails_another_is_asked_if_that_gains(several):
    trace = answering_trace(200, seed=1, order="any")
    policy, wrong, reasons = several.at(0.98), [], []
    for row in range(len(trace)):
        turn, why = without_large(policy, trace, row)
        assert "middle" in turn.asked
        wrong.append(trace.wrong()[row, trace.names.index(turn.answer)])
        reasons.append(why)
    assert np.mean(wrong) <= trace.wrong()[:, 1].mean() + 0.02
    saved = [why for why in reasons if why.endswith("ask 'middle'")]
    assert len(saved) > 20
    assert all("asking on saves" in why for why in saved)


def test_where_a_node_fails_and_no_other_gains_the_session_stops(several, monkeypatch):
    gains = LastAnswerSession.gains
    monkeypatch.setattr(LastAnswerSession, "gains", lambda *at: dict.fromkeys(gains(*at), -1.0))
    trace = answering_trace(40, seed=1, order="any")
    turns = [without_large(several.at(0.98), trace, row)[0] for row in range(len(trace))]
    assert ("small", "large") in {turn.asked for turn in turns}
    assert all(turn.answer is not None for turn in turns)


def test_an_exit_alone_is_reached_through_those_before_it():
    trace = datasets.load("minilm-imdb").take(slice(300))
    ladder = tt.fit(trace, belief="calibrated", states=4)
    one = ladder.alone("layer3")
    played = one.play(trace)
    assert (played.answer == 2).all()
    assert (played.asked == [True, True, True, False, False, False]).all()
    assert one.error == pytest.approx(trace.wrong()[:, 2].mean())
    assert one.cost == pytest.approx(trace.spec.answer_costs()[2])


def test_a_policy_that_never_asks_a_second_node_is_named(ladder):
    trace = answering_trace(2000, seed=5)
    assert ladder[0].single_node == "small"
    assert ladder[-1].single_node is None
    for policy in ladder:
        asked = policy.play(trace).asked
        if policy.single_node is not None:
            assert (asked.sum(axis=1) == 1).all()
            assert asked[:, policy.spec.index_of(policy.single_node)].all()
    assert ladder.for_budget(ladder[0].cost).single_node == "small"


def test_every_policy_has_its_error_and_cost_and_rungs_iterate():
    ladder = tt.fit(chain_trace(300), belief="calibrated", states=3)
    assert len(ladder.rungs) == len(ladder) == len(list(ladder.rungs))
    for policy, (error, cost) in zip(ladder, ladder.rungs, strict=True):
        assert (policy.error, policy.cost) == (error, cost)
        assert f"{error:.2%}" in repr(policy)
    mixture = ladder.for_budget(np.mean([rung.cost for rung in ladder.rungs]))
    assert f"{mixture.error:.2%}" in repr(mixture)


@pytest.mark.parametrize("options", [{}, {"belief": "calibrated", "states": 4}])
def test_fitted_policies_are_policies_and_their_sessions_sessions(options):
    ladder = tt.fit(answering_trace(400), **options)
    policy = ladder.at(0.9)
    assert isinstance(ladder, tt.Ladder)
    assert isinstance(policy, tt.Policy)
    for turn in (policy.session(), policy.session(max_cost=1e6), ladder.default().session()):
        assert isinstance(turn, tt.Session)
    assert policy.expected_cost >= 0
    assert policy.batch(3).running
    assert policy.choice().shape[0] == 1


def test_a_mixture_is_saved_with_its_promise(tmp_path):
    trace = answering_trace(3000)
    ladder = tt.fit(trace, hold_out=0.3)
    for mixture in (ladder.for_error(0.3), ladder.for_budget(4.0, seed=3), ladder.default()):
        tt.save(mixture, tmp_path / "mixture.ttamer")
        back = tt.load(tmp_path / "mixture.ttamer")
        assert isinstance(back, tt.Mixture)
        assert (back.share, back.seed) == (mixture.share, mixture.seed)
        assert back.error == pytest.approx(mixture.error)
        assert back.cost == pytest.approx(mixture.cost)
        np.testing.assert_array_equal(back.play(trace).answer, mixture.play(trace).answer)
        assert str(back.promise) == str(mixture.promise)
        facts = tt.inspect(tmp_path / "mixture.ttamer")
        assert facts["kind"] == "mixture"
        assert facts["mixture"]["share"] == mixture.share


def test_a_saved_policy_keeps_its_error_and_cost(ladder, tmp_path):
    policy = ladder.at(0.9)
    tt.save(policy, tmp_path / "policy.ttamer")
    back = tt.load(tmp_path / "policy.ttamer")
    assert (back.error, back.cost, back.tradeoff) == (policy.error, policy.cost, policy.tradeoff)


def test_a_drop_is_measured_from_any_node_on_the_rows_held_out(tmp_path):
    ladder = tt.fit(datasets.load("langid", "fit").take(slice(4000)), hold_out=0.3)
    best = ladder.for_drop(0.01, against="best")
    errors = ladder.rungs.node_errors
    name = ladder.spec.names[int(errors.argmin())]
    assert best.promise.against == name
    assert best.promise.certified
    tt.save(ladder, tmp_path / "ladder.ttamer")
    loaded = tt.load(tmp_path / "ladder.ttamer")
    for node in ladder.spec.names:
        promise = ladder.for_drop(0.02, against=node).promise
        assert promise.against == node
        assert loaded.for_drop(0.02, against=node).promise == promise
    assert ladder.for_drop(0.02).promise.against == ladder.spec.names[-1]
    with pytest.raises(ArgumentError, match="'last', 'best' or one of"):
        ladder.for_drop(0.02, against="nothing")


def test_an_explanation_is_in_the_units_of_the_cascade():
    trace = tt.datasets.load("langid", "fit").take(slice(1500))
    ladder = tt.fit(trace, belief="calibrated", states=8, order="fixed")
    texts = []
    for policy in (ladder.at(0.0), ladder.for_mistake_cost(2000.0), ladder.at(1.0)):
        turn = policy.session()
        while turn.next is not None:
            turn.observe(confidence=0.4, prediction="fr")
            texts.append(turn.explain().why)
    assert texts[0] == "mistakes count for nothing: stop"
    mistake = ladder.for_mistake_cost(2000.0).tradeoff
    worth = number(mistake / (1 - mistake) * ladder.fitted.full_cost)
    assert f"where a mistake costs {worth}, asking on saves " in texts[1]
    assert any(" points on average: ask " in text for text in texts)
    index = tt.fit(trace, belief="calibrated", states=8, order="any").at(0.9).session()
    index.observe(confidence=0.4, prediction="fr")
    assert "and asking on pays while that is above" in index.explain().why
