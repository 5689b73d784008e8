"""Extra columns: a margin or an entropy is read where it says more than the confidence."""

from __future__ import annotations

import asyncio
import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest

import ttamer as tt
from support import experiment_traces
from support.traces import answering_trace
from ttamer.errors import ArtefactDamaged, ObservationError, TraceWarning
from ttamer.evaluation.results import measure
from ttamer.fitted.belief import WEIGHT_RESOLUTION
from ttamer.fitting import beliefs
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.cross_fit import CrossFit
from ttamer.fitting.regressions import useful_extras
from ttamer.runtime import Cascade, batched
from ttamer.stats.logistic import sigmoid

TRADEOFFS = [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0]
CLASSES = ("w", "x", "y", "z")
MAY_LACK = pytest.mark.filterwarnings("ignore:the policy reads:ttamer.errors.TraceWarning")


def rounded_trace(rows: int, *, seed: int = 0, order: str = "any", noise: bool = False) -> tt.Trace:
    """Three models whose confidences are rounded, with margins that are not.

    The entropies are noise, and with ``noise`` the margins too.
    """
    generator = np.random.default_rng(seed)
    skill = 0.7 * generator.normal(size=(rows, 1)) + 0.8 * generator.normal(size=(rows, 3))
    skill += [0.2, 1.0, 2.0]
    wrong = generator.random((rows, 3)) < sigmoid(-2.5 * skill)
    label = generator.integers(0, 4, rows)
    other = (label[:, np.newaxis] + generator.integers(1, 4, (rows, 3))) % 4
    margin = skill + 0.5 * generator.normal(size=skill.shape)
    return tt.Trace(
        tt.CascadeSpec.of({"small": 1.0, "medium": 4.0, "large": 20.0}, order=order),
        np.round(sigmoid(skill + 0.6 * generator.normal(size=skill.shape)), 1),
        prediction=np.where(wrong, other, label[:, np.newaxis]).astype(np.int32),
        label=label.astype(np.int32),
        classes=CLASSES,
        margin=generator.normal(size=skill.shape) if noise else margin,
        entropy=generator.normal(size=skill.shape),
    )


def without_columns(trace: tt.Trace) -> tt.Trace:
    return dataclasses.replace(trace, margin=None, entropy=None, latency=None)


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(rounded_trace(2000), tradeoffs=TRADEOFFS)


@pytest.fixture(scope="module")
def new():
    return rounded_trace(3000, seed=1)


def area(ladder: tt.fitted.FittedLadder, trace: tt.Trace) -> float:
    """The mean over budgets of the least error within them."""
    found = [measure(played, trace) for played in ladder.play_all(trace)]
    budgets = np.linspace(2, 24, 40)
    return float(np.mean([min(o.error for o in found if o.cost <= most) for most in budgets]))


def test_an_informative_margin_is_read_and_noise_is_not(ladder):
    assert ladder.fitted.reads == {
        "small": ("margin",), "medium": ("margin",), "large": ("margin",),
    }  # fmt: skip
    for own in ladder.fitted.belief.extras.values():
        for numbers in (own.levels, *own.terms):
            assert (numbers % WEIGHT_RESOLUTION == 0).all()


def test_an_informative_margin_lowers_the_error_on_new_rows(ladder, new):
    without = tt.fit(without_columns(rounded_trace(2000)), tradeoffs=TRADEOFFS)
    assert area(ladder, new) < 0.96 * area(without, new)


def test_noise_changes_nothing(new):
    trace = rounded_trace(2000, noise=True)
    fits = [tt.fit(each, tradeoffs=TRADEOFFS) for each in (trace, without_columns(trace))]
    assert fits[0].fitted.reads == {}
    for one, two in zip(*(each.play_all(new) for each in fits), strict=True):
        np.testing.assert_array_equal(one.asked, two.asked)
        np.testing.assert_array_equal(one.answer, two.answer)


def test_a_column_that_repeats_the_confidence_is_not_read():
    trace = answering_trace(2000)
    repeated = {"margin": trace.confidence**3, "entropy": -np.log(trace.confidence + 0.1)}
    assert (
        useful_extras(
            dataclasses.replace(
                trace, **{"margin": None, "entropy": None, "latency": None} | repeated
            ),
            trace.wrong(),
        )
        == {}
    )


def test_latencies_and_columns_of_nodes_without_them_are_not_read():
    trace = rounded_trace(2000)
    margin = trace.extras["margin"].copy()
    margin[:, 1] = np.nan
    partly = dataclasses.replace(
        trace,
        **{"margin": None, "entropy": None, "latency": None}
        | {"margin": margin, "latency": -margin[:, [0, 0, 2]]},
    )
    assert useful_extras(partly, trace.wrong()) == {0: ("margin",), 2: ("margin",)}


def test_a_session_decides_as_a_replay(ladder, new):
    few = new.take(slice(60))
    for policy in ladder:
        played = policy.play(few)
        for row in range(len(few)):
            turn = policy.session()
            while turn.next is not None:
                v = few.names.index(turn.next)
                assert turn.reads == ("margin",)
                turn.observe(
                    confidence=few.confidence[row, v],
                    prediction=CLASSES[few.prediction[row, v]],
                    margin=few.extras["margin"][row, v],
                )
            assert few.names[played.answer[row]] == turn.answer
            assert set(turn.asked) == {few.names[v] for v in np.flatnonzero(played.asked[row])}
            assert turn.unclear == 0
            assert turn.reads == ()


@MAY_LACK
def test_a_margin_that_is_missing_leaves_the_confidence_alone(ladder, new):
    few = without_columns(new.take(slice(60)))
    unknown = {"margin": np.full(few.confidence.shape, np.nan)}
    policy = ladder.at(0.9)
    played = policy.play(few)
    np.testing.assert_array_equal(
        played.asked,
        policy.play(
            dataclasses.replace(few, **{"margin": None, "entropy": None, "latency": None} | unknown)
        ).asked,
    )
    for row in range(len(few)):
        turn = policy.session(max_cost=1000.0)
        while turn.next is not None:
            v = few.names.index(turn.next)
            turn.observe(
                confidence=few.confidence[row, v], prediction=CLASSES[few.prediction[row, v]]
            )
        assert few.names[played.answer[row]] == turn.answer
        assert turn.unclear == len(turn.asked)


def test_a_measurement_on_rows_without_the_columns_warns(ladder, new):
    bare, partly = without_columns(new), new.extras["margin"].copy()
    partly[:, 1] = np.nan
    with pytest.warns(TraceWarning, match=r"reads small\.margin, medium\.margin, large"):
        tt.evaluate(ladder.for_budget(6.0), bare, resamples=0)
    with pytest.warns(TraceWarning, match=r"the policy reads medium\.margin, and the trace lacks"):
        ladder.with_holdout(
            dataclasses.replace(
                new, **{"margin": None, "entropy": None, "latency": None} | {"margin": partly}
            )
        )
    tt.evaluate(ladder.at(0.9), new, resamples=0)  # warnings are errors here


def test_a_margin_that_is_no_number_is_refused(ladder):
    turn = ladder.at(0.9).session()
    with pytest.raises(ObservationError, match="margin must be a number, not 'wide'"):
        turn.observe(confidence=0.5, prediction="w", margin="wide")
    turn.observe(confidence=0.5, prediction="w", margin=1.0, entropy="not read")
    assert len(turn.asked) == 1


def test_a_larger_margin_raises_the_belief_in_an_answer(ladder):
    policy, chances = ladder.at(0.9), []
    for margin in (-2.0, 1.0, 4.0):
        turn = policy.session()
        turn.observe(confidence=0.6, prediction="w", margin=margin)
        chances.append(turn.explain().beliefs[turn.asked[0]])
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 2 * chances[2]


@MAY_LACK
def test_a_cascade_reads_the_margins_that_its_nodes_return(ladder, new):
    few, policy = new.take(slice(40)), ladder.at(0.9)

    def node(v):
        def reply(row):
            return {
                "prediction": CLASSES[few.prediction[row, v]],
                "confidence": few.confidence[row, v],
                "margin": few.extras["margin"][row, v],
            }

        return reply

    def many_at_once(v):
        def reply(rows):
            return {
                "prediction": np.array(CLASSES)[few.prediction[rows, v]],
                "confidence": few.confidence[rows, v],
                "margin": few.extras["margin"][rows, v],
            }

        return batched(reply)

    played = policy.play(few)
    wanted = [few.names[v] for v in played.answer]
    assert wanted != [few.names[v] for v in policy.play(without_columns(few)).answer]
    one = Cascade(policy, {name: node(v) for v, name in enumerate(few.names)})
    assert [one.run(row).by for row in range(len(few))] == wanted
    assert asyncio.run(one.arun(0)).by == wanted[0]
    many = Cascade(policy, {name: many_at_once(v) for v, name in enumerate(few.names)})
    for cascade in (one, many):
        outcome = cascade.run_batch(np.arange(len(few)))
        assert list(outcome.by) == wanted
        np.testing.assert_array_equal(outcome.asked, played.asked)


def test_cross_fitting_reads_the_columns():
    trace = rounded_trace(1000)
    read = useful_extras(trace, trace.wrong())
    losses = []
    for extras in (read, {}):
        least = CrossFit(trace, [(0,)], 0, extras=extras).estimates().least
        losses.append(np.logaddexp(0, least[:, 0]) - trace.wrong()[:, 0] * least[:, 0])
    assert losses[0].mean() < losses[1].mean() - 0.02


def test_many_models_read_columns_too():
    trace = rounded_trace(1500)
    names = {f"m{k}": 1.0 + k for k in range(5)}
    places = [0, 1, 2, 0, 1]
    wide = tt.Trace(
        tt.CascadeSpec.of(names),
        trace.confidence[:, places],
        correct=~trace.wrong()[:, places],
        margin=trace.extras["margin"][:, places],
    )
    assert set(tt.fit(wide, tradeoffs=[0.5, 0.9]).fitted.reads) == set(names)


def test_a_policy_with_columns_comes_back_from_its_file(ladder, new, tmp_path):
    tt.save(ladder, tmp_path / "policy.ttamer")
    columns = ["small.margin", "medium.margin", "large.margin"]
    assert tt.inspect(tmp_path / "policy.ttamer")["fit"]["reads"] == columns
    loaded = tt.load(tmp_path / "policy.ttamer")
    assert loaded.fitted.reads == ladder.fitted.reads
    for one, two in zip(ladder.play_all(new), loaded.play_all(new), strict=True):
        np.testing.assert_array_equal(one.asked, two.asked)
        np.testing.assert_array_equal(one.answer, two.answer)
    tt.save(loaded, tmp_path / "again.ttamer")
    assert (tmp_path / "again.ttamer").read_bytes() == (tmp_path / "policy.ttamer").read_bytes()


@MAY_LACK
def test_the_reader_in_the_specification_has_columns(ladder, new, tmp_path):
    text = Path(__file__).parents[2].joinpath("docs", "format.md").read_text("utf-8")
    (tmp_path / "reader.py").write_text(text.split("```python\n", 1)[1].split("```", 1)[0], "utf-8")
    reader = runpy.run_path(str(tmp_path / "reader.py"))
    tt.save(ladder, tmp_path / "p.ttamer")
    header, arrays = reader["read"](tmp_path / "p.ttamer")
    few = new.take(slice(40))
    for rung, played in enumerate(ladder.play_all(few)):
        alone = ladder[rung].play(without_columns(few))
        for row in range(len(few)):
            answers = [CLASSES[code] for code in few.prediction[row]]
            given = (header, arrays, rung, few.confidence[row].tolist(), answers)
            margins = {"margin": few.extras["margin"][row].tolist()}
            asked, answer = reader["fitted"](*given, margins)
            assert (answer, asked[-1]) == (played.answer[row], played.last[row])
            assert reader["fitted"](*given)[1] == alone.answer[row]


# Exits of one network, judged by their margins


@pytest.fixture(scope="module")
def exits():
    return experiment_traces.load("vgg11-cifar10", "fit").take(slice(500)).restrict(
        ["conv1", "conv4", "full"]
    )  # fmt: skip


def test_exits_are_judged_by_their_margins_where_that_gives_a_better_frontier(exits):
    ladder = build_belief(exits, np.array(TRADEOFFS))
    assert ladder.fitted.reads == dict.fromkeys(exits.names, ("margin",))
    by_margin = dataclasses.replace(
        exits, confidence=exits.extras["margin"], margin=None, entropy=None, latency=None
    )
    same = build_belief(by_margin, np.array(TRADEOFFS))
    test = experiment_traces.load("vgg11-cifar10", "test").take(slice(500)).restrict(exits.names)
    shown = dataclasses.replace(
        test, confidence=test.extras["margin"], margin=None, entropy=None, latency=None
    )
    for one, two in zip(ladder.play_all(test), same.play_all(shown), strict=True):
        np.testing.assert_array_equal(one.asked, two.asked)
        np.testing.assert_array_equal(one.answer, two.answer)


def test_margins_that_repeat_the_confidence_do_not_replace_it(exits):
    repeated = dataclasses.replace(
        exits,
        **{"margin": None, "entropy": None, "latency": None} | {"margin": 2 * exits.confidence - 1},
    )
    fits = [build_belief(each, np.array(TRADEOFFS)) for each in (repeated, without_columns(exits))]
    assert fits[0].fitted.reads == {}
    for one, two in zip(*(each.play_all(exits) for each in fits), strict=True):
        np.testing.assert_array_equal(one.asked, two.asked)


def test_margins_are_compared_on_a_sample_of_many_rows(exits, monkeypatch):
    monkeypatch.setattr(beliefs, "MAX_ROWS_COMPARED", 300)
    ladder = build_belief(exits, np.array([0.5, 0.9]))
    assert ladder.fitted.rows == len(exits)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h, a: h["belief"].update(extras=[["margin"]] * 2), "columns of each node"),
        (lambda h, a: h["belief"].update(extras=[["width"]] * 3), "some of"),
        (lambda h, a: h["belief"].update(extras=[["margin", "margin"]] * 3), "some of"),
        (lambda h, a: h["belief"].update(extras=["margin"] * 3), "some of"),
        (lambda h, a: h["belief"].update(extras=[[], [], []], extra_bins=[]), "number of bins"),
        (lambda h, a: h["belief"].update(extra_bins=[8, 8]), "number of bins"),
        (lambda h, a: h["belief"].update(extra_bins=[8, 8, 7]), "of shape"),
        (lambda h, a: h["belief"].update(extra_bins=[0, 8, 8]), "the bins of columns"),
        (lambda h, a: h["belief"].pop("extra_bins"), "extra_bins"),
        (lambda h, a: [h["belief"].pop(key) for key in ("extras", "extra_bins")], "names none"),
        (lambda h, a: a.pop("belief_extra_leans"), "of shape"),
        (lambda h, a: a["belief_extra_leans"].__setitem__(0, 0.3), "multiples of"),
        (lambda h, a: a["belief_extra_levels"].__setitem__(0, 512.0), "multiples of"),
        (lambda h, a: a["belief_extra_levels"].__setitem__(0, np.nan), "finite"),
        (lambda h, a: a["belief_extra_bounds"].__setitem__(-1, 1.0), "end with 0"),
        (lambda h, a: a["belief_extra_bounds"].__setitem__(0, 1e9), "must increase"),
    ],
)
def test_forged_columns_are_refused(ladder, change, reason):
    from ttamer.artefact.files import _checked, _describe

    header, arrays = _describe(ladder, {})
    arrays = {name: array.copy() for name, array in arrays.items()}
    _checked(header, arrays)
    change(header, arrays)
    with pytest.raises(ArtefactDamaged, match=reason):
        _checked(header, arrays)
