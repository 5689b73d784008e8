"""Baselines on traces small enough to see the right answer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.small_traces import (
    PRICES,
    RIGHT,
    SURE,
    answers,
    asked,
    best_at,
    fit,
    make,
    points,
    random_trace,
)
from ttamer.artefact.file import load, save
from ttamer.baselines import FAMILIES, Unsuitable, fit_families
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.evaluation.results import measure
from ttamer.fitting.replay import Setting
from ttamer.trace.trace import Trace

# One node for everything


@pytest.mark.parametrize(("kind", "first", "last"), [("exits", "a", "abc"), ("models", "a", "c")])
def test_always_first_and_last_pay_for_the_exits_on_the_way(kind, first, last):
    trace = make(SURE, RIGHT, kind=kind)
    assert asked(*fit("always-first", trace), trace) == [first] * 4
    assert asked(*fit("always-last", trace), trace) == [last] * 4


def test_first_and_last_are_meant_as_the_nodes_stand():
    trace = make(SURE, RIGHT, costs=[3, 2, 1])
    assert fit("always-first", trace)[0].knob == {"node": "a"}
    assert fit("always-last", trace)[0].knob == {"node": "c"}


def test_always_best_is_the_node_of_least_error_and_of_equals_the_cheapest():
    assert fit("always-best", make(SURE, RIGHT))[0].knob == {"node": "c"}
    even = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 0]]
    assert fit("always-best", make(SURE, even, costs=[3, 2, 1]))[0].knob == {"node": "c"}
    # As exits of one network, the earliest is the cheapest whatever its own cost.
    assert fit("always-best", make(SURE, even, costs=[3, 2, 1], kind="exits"))[0].knob == {
        "node": "a"
    }


# Thresholds


def test_threshold_stops_at_the_first_exit_that_is_sure_enough():
    trace = make(SURE, RIGHT, kind="exits")
    settings = fit("threshold", trace)
    # At 0.1 the first exit always answers; at 0.7 rows 0 and 1 stop there and row 2 at b; row 3
    # goes to the end. 0.8 and 0.9 cost more and fix nothing.
    assert [s.knob for s in settings] == [{"threshold": 0.1}, {"threshold": 0.7}]
    assert asked(settings[1], trace) == ["a", "a", "ab", "abc"]
    assert answers(settings[1], trace) == "aabc"
    assert points(settings, trace) == [(1.0, 0.5), ((1 + 1 + 3 + 6) / 4, 0.0)]


def test_threshold_asks_separate_models_from_the_cheapest_on():
    trace = make([[0.1, 0.9], [0.1, 0.2]], [[1, 1], [1, 0]], costs=[5, 1])
    settings = fit("threshold", trace)
    assert [s.knob for s in settings] == [{"threshold": 0.2}, {"threshold": 0.9}]
    assert asked(settings[1], trace) == ["b", "ab"]
    assert answers(settings[1], trace) == "ba"
    assert points(settings, trace) == [(1.0, 0.5), (3.5, 0.0)]


def test_never_stopping_is_a_setting_too_and_is_written_as_none():
    trace = make([[0.9, 0.9], [0.8, 0.1]], [[0, 1], [0, 1]])
    assert [s.knob for s in fit("threshold", trace)] == [{"threshold": 0.8}, {"threshold": None}]


def test_many_confidences_are_swept_by_quantiles():
    rng = np.random.default_rng(0)
    said = rng.random((500, 2))
    trace = make(said, np.column_stack([rng.random(500) < said[:, 0], np.ones(500)]))
    settings = fit("threshold", trace)
    assert 10 < len(settings) <= 60
    cost, error = np.array(points(settings, trace)).T
    assert cost[0] == 1.0
    assert error[-1] == 0.0


def test_one_threshold_per_exit_does_what_one_for_all_cannot():
    # Exit a can be trusted from 0.3 on, exit b only at 0.9.
    said = [[0.3, 0.8, 1.0], [0.2, 0.8, 1.0], [0.2, 0.9, 1.0], [0.3, 0.1, 1.0]]
    right = [[1, 0, 1], [0, 0, 1], [0, 1, 1], [1, 0, 1]]
    trace = make(said, right, kind="exits", costs=[1, 1, 1])
    tuned = fit("threshold-per-exit", trace)
    assert tuned[-1].knob["thresholds"] == {"a": 0.3, "b": 0.9}
    assert points(tuned, trace)[-1] == ((1 + 3 + 2 + 1) / 4, 0.0)
    assert points(fit("threshold", trace), trace)[-1] == ((3 + 3 + 2 + 3) / 4, 0.0)


def test_entropy_stops_when_it_is_low_and_margin_when_it_is_high():
    values = np.array(SURE)
    trace = make(np.ones((4, 3)), RIGHT, kind="exits")
    trace = dataclasses.replace(
        trace,
        **{"margin": None, "entropy": None, "latency": None}
        | {"entropy": 1 - values, "margin": values},
    )
    plain = fit("threshold", make(SURE, RIGHT, kind="exits"))
    for name in ("entropy", "margin"):
        settings = fit(name, trace)
        assert points(settings, trace) == points(plain, make(SURE, RIGHT, kind="exits"))
    assert fit("entropy", trace)[1].knob["threshold"] == pytest.approx(0.3)
    assert fit("margin", trace)[1].knob["threshold"] == 0.7


def test_a_node_that_never_reports_its_margin_is_passed():
    values = np.array(SURE)
    values[:, 0] = np.nan
    trace = dataclasses.replace(make(SURE, RIGHT, kind="exits"), margin=values)
    assert asked(fit("margin", trace)[0], trace) == ["ab"] * 4


def test_a_rule_on_what_a_trace_does_not_say_is_refused_there_too():
    trace = dataclasses.replace(make(SURE, RIGHT), margin=np.array(SURE))
    rule = fit("margin", trace)[0].rule
    with pytest.raises(Unsuitable, match="margin"):
        rule.play(make(SURE, RIGHT))


def test_calibration_makes_one_threshold_fair_to_scales_that_differ():
    # a speaks in hundreds, b in hundredths; each is right in its upper half.
    said = [[100, 0.01, 0], [200, 0.01, 0], [100, 0.02, 0], [200, 0.02, 0]]
    right = [[0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]
    trace = make(said, right, kind="exits", costs=[1, 1, 1])
    settings = fit("calibrated", trace)
    assert [s.knob for s in settings] == [{"threshold": 0.0}, {"threshold": 1.0}]
    assert asked(settings[1], trace) == ["abc", "a", "ab", "a"]
    assert points(settings, trace)[1] == (7 / 4, 0.0)
    assert points(fit("threshold", trace), trace)[1][0] > 7 / 4


# In the last three, a descent from never stopping alone ends in a worse place.
@pytest.mark.parametrize("seed", [*range(6), 18, 25, 52])
def test_thresholds_per_exit_are_no_worse_than_one_for_all(seed):
    trace = random_trace(seed, nodes=4, rows=30, kind="exits")
    mine, one = (points(fit(f, trace), trace) for f in ("threshold-per-exit", "threshold"))
    for price in PRICES:
        assert best_at(mine, price) <= best_at(one, price) + 1e-9


# Patience


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (1, ["a", "a", "a", "ab"]),
        (2, ["ab", "abc", "abcd", "abcd"]),
        (3, ["abcd", "abcd", "abcd", "abcd"]),
    ],
)
def test_patience_stops_once_the_same_answer_came_k_times_in_a_row(times, expected):
    said = [list("xxyx"), list("xyyy"), list("xyxy"), [None, "x", None, "x"]]
    trace = make(np.ones((4, 4)), prediction=said, label=list("xyyx"), kind="exits")
    rule = fit("patience", trace)[0].rule
    assert asked(Setting({}, dataclasses.replace(rule, times=times)), trace) == expected


def test_patience_returns_the_answer_of_the_exit_where_it_stops():
    said = [list("xyy"), list("yyx"), list("xyx")]
    trace = make(np.ones((3, 3)), prediction=said, label=list("yyx"), kind="exits")
    settings = fit("patience", trace)
    assert [s.knob for s in settings] == [{"patience": 1}, {"patience": 2}]
    assert answers(settings[1], trace) == "cbc"


# Without recall


def test_no_recall_goes_on_only_from_states_where_it_pays():
    said = [[0.9, 0.5]] * 10 + [[0.1, 0.5]] * 10
    right = [[1, 1]] * 10 + [[0, 1]] * 10
    trace = make(said, right, kind="exits", costs=[1, 1])
    settings = fit("no-recall", trace)
    assert points(settings, trace) == [(1.0, 0.5), (1.5, 0.0)]
    assert asked(settings[1], trace) == ["a"] * 10 + ["ab"] * 10


def test_no_recall_looks_further_than_one_step():
    # b never mends anything, but c is always right: it pays to pass b.
    said = [[0.9, 0.5, 0.5]] * 10 + [[0.1, 0.5, 0.5]] * 10
    right = [[1, 0, 1]] * 10 + [[0, 0, 1]] * 10
    trace = make(said, right, kind="exits", costs=[1, 1, 1])
    assert points(fit("no-recall", trace), trace) == [(1.0, 0.5), (2.0, 0.0)]


def test_no_recall_leaves_out_a_separate_model_that_does_not_help():
    said = [[0.9, 0.5, 0.5]] * 10 + [[0.1, 0.5, 0.5]] * 10
    right = [[1, 0, 1]] * 10 + [[0, 0, 1]] * 10
    trace = make(said, right, costs=[1, 2, 3])
    settings = fit("no-recall", trace)
    assert points(settings, trace) == [(1.0, 0.5), ((10 * 1 + 10 * 4) / 20, 0.0)]
    assert set(asked(settings[-1], trace)) == {"a", "ac"}


# Routing


def test_routing_goes_where_the_first_answer_points():
    # a is sure on the first ten rows; where it is not, b is right and c is wrong.
    said = [[0.9, 0.5, 0.5]] * 10 + [[0.1, 0.9, 0.5]] * 10
    right = [[1, 0, 0]] * 10 + [[0, 1, 0]] * 10
    said = [[*s[:1], 0.1 if i < 10 else 0.9, s[2]] for i, s in enumerate(said)]
    trace = make(said, right, costs=[1, 2, 1.5])
    settings = fit("routing", trace)
    assert points(settings, trace) == [(1.0, 0.5), ((10 * 1 + 10 * 3) / 20, 0.0)]
    assert asked(settings[-1], trace) == ["a"] * 10 + ["ab"] * 10
    assert settings[-1].knob["start"] == "a"


def test_routing_returns_the_surest_answer_even_if_it_is_an_earlier_one():
    # Where a says 0.4 it is right half the time. b is always right at 0.9 and never at 0.1.
    said = [[0.4, 0.9]] * 10 + [[0.4, 0.1]] * 10
    right = [[0, 1]] * 10 + [[1, 0]] * 10
    trace = make(said, right, kind="exits", costs=[1, 1])
    setting = fit("routing", trace)[-1]
    assert answers(setting, trace) == "b" * 10 + "a" * 10
    assert measure(setting.rule.play(trace), trace, resamples=0).recall_helped == 0.5


def test_routing_keeps_the_earlier_of_two_answers_as_sure_as_each_other():
    # At 0.4 both are right half the time; b is asked for the rows where it says 0.9.
    said = [[0.4, 0.9]] * 10 + [[0.4, 0.4]] * 20
    right = [[1, 1]] * 5 + [[0, 1]] * 5 + [[1, 0], [0, 1]] * 10
    trace = make(said, right, kind="exits", costs=[1, 1])
    assert answers(fit("routing", trace)[-1], trace) == "b" * 10 + "a" * 20


def test_routing_passes_parents_first():
    nodes = (CascadeNode("a", 1.0), CascadeNode("b", 1.0, "a"), CascadeNode("c", 0.1, "b"))
    rng = np.random.default_rng(5)
    right = np.column_stack([rng.random((40, 2)) < 0.5, np.ones(40, bool)])
    trace = Trace(CascadeSpec(nodes), rng.random((40, 3)), correct=right)
    for setting in fit("routing", trace):
        assert set(asked(setting, trace)) <= {"a", "ab", "abc"}


# The router


def test_the_router_reads_the_input_and_is_a_policy_that_can_be_saved(tmp_path):
    rng = np.random.default_rng(0)
    hard = rng.random(1200) < 0.5
    trace = Trace.from_arrays(
        {"a": 1.0, "b": 10.0},
        np.zeros((1200, 2)),
        correct=np.stack([~hard, np.ones(1200, bool)], axis=1),
        inputs={"hard": hard.astype(float)},
    )
    settings = FAMILIES["router"].fit(trace)
    rule = settings[len(settings) // 2].rule
    played = rule.play(trace)
    assert (played.asked.sum(axis=1) == 1).all()
    save(rule, tmp_path / "router.ttamer")
    loaded = load(tmp_path / "router.ttamer")
    assert np.array_equal(loaded.play(trace).answer, played.answer)
    with pytest.raises(Unsuitable, match="no inputs"):
        fit("router", make(SURE, RIGHT))


# The oracle


def test_the_oracle_takes_the_cheapest_right_answer_and_the_cheapest_where_none_is_right():
    right = [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    exits = make(np.ones((4, 3)), right, kind="exits", costs=[3, 2, 1])
    apart = make(np.ones((4, 3)), right, costs=[3, 2, 1])
    assert asked(*fit("oracle", exits), exits) == ["a", "ab", "abc", "a"]
    assert asked(*fit("oracle", apart), apart) == ["c", "c", "c", "c"]
    assert points(fit("oracle", apart), apart) == [(1.0, 0.25)]


def test_the_oracle_sees_the_cost_of_each_row():
    trace = make(np.ones((2, 2)), np.ones((2, 2)), cost=np.array([[1.0, 2.0], [4.0, 3.0]]))
    assert answers(*fit("oracle", trace), trace) == "ab"


# The list of families


def test_the_families_have_their_names_in_a_stable_order():
    assert list(FAMILIES) == [
        "always-first",
        "always-last",
        "always-best",
        "threshold",
        "threshold-per-exit",
        "entropy",
        "margin",
        "patience",
        "calibrated",
        "chain",
        "pairwise",
        "no-recall",
        "frugalml",
        "routing",
        "router",
        "oracle",
    ]
    assert all(family.name == name for name, family in FAMILIES.items())


def test_families_that_cannot_be_used_are_left_out_with_the_reason():
    settings, left_out = fit_families(make(SURE, RIGHT, kind="exits"))
    assert list(left_out) == [
        "entropy",
        "margin",
        "patience",
        "chain",
        "pairwise",
        "frugalml",
        "router",
    ]
    assert "entropy" in left_out["entropy"]
    assert "predictions" in left_out["patience"]
    assert "calibrated" in left_out["chain"]
    assert "separate" in left_out["frugalml"]
    assert list(settings) == [name for name in FAMILIES if name not in left_out]


def test_chain_is_left_out_where_the_subsets_are_too_many():
    trace = make(np.ones((3, 11)), np.ones((3, 11)))
    with pytest.raises(Unsuitable, match="at most 10; there are 11"):
        fit("chain", trace)
    assert issubclass(Unsuitable, TTamerError)


def test_frugalml_needs_predictions_and_models_that_can_be_asked_alone():
    with pytest.raises(Unsuitable, match="the trace has none"):
        fit("frugalml", make(SURE, RIGHT))
    nodes = (CascadeNode("a", 1.0), CascadeNode("b", 1.0, "a"))
    tree = Trace.from_arrays(CascadeSpec(nodes), [[1, 1]], prediction=[["x", "x"]], label=["x"])
    with pytest.raises(Unsuitable, match="come after"):
        fit("frugalml", tree)


def test_an_unknown_family_is_refused_with_the_names_there_are():
    with pytest.raises(ArgumentError, match="no family 'treshold'; there are always-first"):
        fit_families(make(SURE, RIGHT), ["treshold"])


def test_a_trace_without_correctness_is_refused_not_left_out():
    with pytest.raises(TraceError, match="which answers are right"):
        fit_families(make(SURE))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_trace_without_rows_is_refused(name):
    trace = make(SURE, RIGHT).take([])
    with pytest.raises((TraceError, Unsuitable)):
        fit(name, trace)


def test_a_node_right_by_definition_is_never_left_for_another():
    said = [list("xy"), list("yy"), list("xx")]
    trace = make(np.ones((3, 2)), prediction=said, target="last", kind="exits")
    for name in ("threshold", "calibrated", "no-recall", "routing", "oracle"):
        assert points(fit(name, trace), trace)[-1][1] == 0.0
