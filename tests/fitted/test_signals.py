"""Signals: what is known before anybody is asked decides who is, and what answers are worth."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

import ttamer as tt
from ttamer.errors import ArgumentError, ArtefactDamaged, ObservationError
from ttamer.evaluation.results import measure
from ttamer.fitting.cross_fit import ROUTER
from ttamer.fitting.signals import useful_signals

TRADEOFFS = [0.0, 0.09, 0.47, 0.91, 1.0]


def expert_trace(rows: int, *, seed: int = 0, order: str = "any") -> tt.Trace:
    """A cheap model that fails on long inputs, an expensive one that does not; neither knows it."""
    generator = np.random.default_rng(seed)
    length, other = generator.uniform(0, 100, rows), generator.uniform(0, 1, rows)
    label = generator.integers(0, 3, rows)
    chance = np.stack([np.where(length < 50, 0.95, 0.35), np.full(rows, 0.9)], axis=1)
    right = generator.random((rows, 2)) < chance
    wrong = (label[:, np.newaxis] + generator.integers(1, 3, (rows, 2))) % 3
    return tt.Trace(
        tt.CascadeSpec.of({"small": 1.0, "large": 10.0}, order=order),
        generator.random((rows, 2)),
        prediction=np.where(right, label[:, np.newaxis], wrong).astype(np.int32),
        label=label.astype(np.int32),
        classes=("a", "b", "c"),
        inputs={"length": length, "noise": other},
    )


def deaf(trace: tt.Trace) -> tt.Trace:
    return dataclasses.replace(trace, inputs={})


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(expert_trace(3000))


def test_the_router_begins_with_another_model_on_another_input(ladder):
    assert ladder.fitted.steps[0] == ROUTER
    assert np.isinf(ladder.problem.nodes[0].losses).all()
    policy = ladder.at(0.76)
    short = policy.session(signals={"length": 10.0, "noise": 0.5})
    long = policy.session(signals={"length": 90.0, "noise": 0.5})
    assert (short.next, long.next) == ("small", "large")
    assert short.starts == {"small": 1.0, "large": 10.0}


def test_signals_pay_on_new_rows(ladder):
    new = expert_trace(4000, seed=1)
    without = tt.fit(deaf(expert_trace(3000)))

    def least_objective(fitted, trace, weight):
        results = [measure(played, trace, resamples=0) for played in fitted.play_all(trace)]
        return min(weight * r.error + (1 - weight) * r.cost for r in results)

    for weight in (0.96, 0.97, 0.98):
        least = least_objective(without, deaf(new), weight)
        assert least_objective(ladder, new, weight) < 0.93 * least


@pytest.mark.parametrize("order", ["any", "skip", "fixed"])
def test_sessions_decide_as_traces_do_and_files_keep_it(order, tmp_path):
    trace = expert_trace(800, order=order)
    fitted = tt.fit(trace, tradeoffs=TRADEOFFS)
    tt.save(fitted, tmp_path / "p.ttamer")
    loaded = tt.load(tmp_path / "p.ttamer")
    new = expert_trace(60, seed=2, order=order)
    for policy, again in zip(fitted, loaded, strict=True):
        played, replayed = policy.play(new), again.play(new)
        np.testing.assert_array_equal(played.asked, replayed.asked)
        for row in range(len(new)):
            known = {name: float(values[row]) for name, values in new.signals.items()}
            turn = again.session(signals=known)
            while (node := turn.next) is not None:
                column = new.spec.index_of(node)
                said = new.classes[new.prediction[row, column]]
                turn.observe(confidence=float(new.confidence[row, column]), prediction=said)
            assert turn.answer == new.names[played.answer[row]]
            asked = {name for name, was in zip(new.names, played.asked[row], strict=True) if was}
            assert set(turn.asked) == asked


def test_a_line_has_no_router_but_hears_signals():
    fitted = tt.fit(expert_trace(2000, order="fixed"), tradeoffs=TRADEOFFS).fitted
    assert ROUTER not in fitted.steps
    assert fitted.belief.signals.names == ("length",)


def test_what_signals_tell_is_in_the_leans(ladder):
    signals = ladder.fitted.belief.signals
    (length,) = signals.offsets
    assert length[0, 0] < -0.5 < 0.5 < length[-1, 0]  # short is right, long is wrong, for small
    assert np.abs(length[:, 1]).max() < 0.6
    assert signals.router_logits[0][0] < signals.router_logits[0][-1]


def test_signals_that_are_missing_tell_nothing_and_are_counted(ladder):
    policy = ladder[-1]
    nothing, some = policy.session(), policy.session(signals={"length": 1.0, "more": 1.0})
    assert (nothing.unclear, some.unclear) == (1, 0)
    assert nothing.next is not None
    assert policy.session(signals={"length": float("nan"), "noise": 0.0}).unclear == 1
    with pytest.raises(ObservationError, match="signal 'length' must be a number, not 'long'"):
        policy.session(signals={"length": "long", "noise": 0.0})
    with pytest.raises(ArgumentError, match=r"lacks signal\.length:"):
        policy.play(deaf(expert_trace(5)))


def test_caps_failures_and_mixtures_with_signals(ladder):
    known = {"length": 90.0, "noise": 0.5}
    turn = ladder.at(0.76).session(signals=known, max_cost=2.0)
    assert turn.next == "small"
    assert turn.capped
    turn = ladder.at(0.76).session(signals=known)
    turn.fail()
    assert turn.next == "small"
    mixed = ladder.for_budget(5.0)
    assert mixed.session(key="x", signals=known).next in ("small", "large")


def test_a_cascade_that_runs_takes_signals(ladder):
    nodes = {"small": lambda _: ("a", 0.5), "large": lambda _: ("b", 0.5)}
    cascade = tt.Cascade(ladder.at(0.76), nodes)
    short, long = ({"length": value, "noise": 0.5} for value in (10.0, 90.0))
    assert cascade.run("x", signals=short).path[0] == "small"
    assert cascade.run("x", signals=long).path[0] == "large"

    async def both():
        return [(await cascade.arun("x", signals=each)).path[0] for each in (short, long)]

    assert asyncio.run(both()) == ["small", "large"]


def test_policies_on_confidence_alone_pass_signals_over():
    trace = expert_trace(300)
    policy = tt.fit(trace, belief="calibrated", tradeoffs=[0.9])[0]
    one, two = policy.session(), policy.session(signals={"length": 3.0})
    assert one.next == two.next


def test_without_signals_nothing_changes():
    fitted = tt.fit(deaf(expert_trace(2000)), tradeoffs=TRADEOFFS)
    assert fitted.fitted.belief.signals is None
    assert ROUTER not in fitted.fitted.steps


def test_a_network_run_in_torch_refuses_signals():
    from ttamer.torch.deciding import tables_of

    fitted = tt.fit(expert_trace(2000, order="fixed"), tradeoffs=[0.9])
    with pytest.raises(ArgumentError, match="has no signals"):
        tables_of(fitted[0], ["small", "large"], 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h, a: h["belief"].update(signals=["length", "length"]), "name each signal once"),
        (lambda h, a: h["belief"].update(signal_bins=[8, 8]), "name each signal once"),
        (lambda h, a: h["belief"].update(signal_bins=[7]), "of shape"),
        (lambda h, a: a["belief_signal_leans"].__setitem__((0, 0), 0.3), "multiples of"),
        (lambda h, a: a["belief_signal_doubts"].__setitem__(0, np.nan), "finite"),
        (lambda h, a: a["belief_signal_shifts"].__setitem__(0, 0.3), "multiples of"),
        (lambda h, a: a["belief_signal_bounds"].__setitem__(-1, 1.0), "end with 0"),
        (lambda h, a: a["belief_signal_bounds"].__setitem__(0, 1e9), "must increase"),
    ],
)
def test_forged_signals_are_refused(ladder, change, says):
    from ttamer.artefact.files import _checked, _describe

    header, arrays = _describe(ladder, {})
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    with pytest.raises(ArtefactDamaged, match=says):
        _checked(header, arrays)


def test_what_a_log_of_audits_keeps_beside_its_rows_is_no_signal():
    trace = expert_trace(600)
    columns = {f"audit_{name}": np.arange(600.0) for name in ("number", "time", "chance")}
    logged = dataclasses.replace(trace, inputs=trace.signals | columns)
    with_it, without = (tt.fit(each, tradeoffs=TRADEOFFS) for each in (logged, trace))
    assert with_it.fitted.belief.signals.names == ("length",)
    new = expert_trace(300, seed=1)
    for one, two in zip(with_it.play_all(new), without.play_all(new), strict=True):
        assert (one.asked == two.asked).all()
    only_columns = tt.fit(dataclasses.replace(trace, inputs=columns), tradeoffs=TRADEOFFS)
    assert only_columns.fitted.steps[0] != ROUTER
    assert only_columns.fitted.belief.signals is None


def test_signals_that_say_nothing_are_left_out():
    kept = 0
    for seed in range(20):
        trace = expert_trace(400, seed=seed)
        noise = np.random.default_rng([seed, 1]).normal(size=(7, 400))
        useless = {f"noise{k}": own for k, own in enumerate(noise)}
        names = useful_signals(dataclasses.replace(trace, inputs=useless), trace.wrong())
        kept += len(names)
        assert "length" in useful_signals(trace, trace.wrong())
    assert kept <= 10  # of 140


def test_useless_signals_change_no_decision():
    trace, new = expert_trace(600), expert_trace(400, seed=1)

    def with_signals(rows, seed):
        noise = np.random.default_rng(seed).normal(size=(7, len(rows)))
        return dataclasses.replace(rows, inputs={f"n{k}": own for k, own in enumerate(noise)})

    fitted = tt.fit(with_signals(trace, 0), tradeoffs=TRADEOFFS)
    without = tt.fit(deaf(trace), tradeoffs=TRADEOFFS)
    for one, two in zip(fitted.play_all(with_signals(new, 1)), without.play_all(new), strict=True):
        np.testing.assert_array_equal(one.asked, two.asked)
