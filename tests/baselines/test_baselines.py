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
from ttamer.fitting.replay import Setting
from ttamer.trace.trace import Trace

EVEN = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 0]]
SEEN = {
    # At 0.1 the first exit always answers; at 0.7 rows 0 and 1 stop there and row 2 at b; row 3
    # goes to the end. 0.8 and 0.9 cost more and fix nothing.
    "a threshold stops at the first exit that is sure enough": (
        "threshold",
        make(SURE, RIGHT, kind="exits"),
        [(1.0, 0.5), ((1 + 1 + 3 + 6) / 4, 0.0)],
        ["a", "a", "ab", "abc"],
        "aabc",
        {"threshold": 0.7},
    ),
    "a threshold asks separate models from the cheapest on": (
        "threshold",
        make([[0.1, 0.9], [0.1, 0.2]], [[1, 1], [1, 0]], costs=[5, 1]),
        [(1.0, 0.5), (3.5, 0.0)],
        ["b", "ab"],
        "ba",
        {"threshold": 0.9},
    ),
    "never stopping is a setting too, and is written as none": (
        "threshold",
        make([[0.9, 0.9], [0.8, 0.1]], [[0, 1], [0, 1]]),
        [(1.0, 1.0), (3.0, 0.0)],
        ["ab", "ab"],
        "bb",
        {"threshold": None},
    ),
    # a can be trusted from 0.3 on, b only at 0.9; one threshold for both asks once more.
    "one threshold per exit does what one for all cannot": (
        "threshold-per-exit",
        make(
            [[0.3, 0.8, 1.0], [0.2, 0.8, 1.0], [0.2, 0.9, 1.0], [0.3, 0.1, 1.0]],
            [[1, 0, 1], [0, 0, 1], [0, 1, 1], [1, 0, 1]],
            kind="exits",
            costs=[1, 1, 1],
        ),
        [(1.0, 0.5), ((1 + 3 + 2 + 1) / 4, 0.0)],
        ["a", "abc", "ab", "a"],
        "acba",
        None,
    ),
    # a speaks in hundreds, b in hundredths; each is right in its upper half.
    "calibration makes one threshold fair to scales that differ": (
        "calibrated",
        make(
            [[100, 0.01, 0], [200, 0.01, 0], [100, 0.02, 0], [200, 0.02, 0]],
            [[0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]],
            kind="exits",
            costs=[1, 1, 1],
        ),
        [(1.0, 0.5), (7 / 4, 0.0)],
        ["abc", "a", "ab", "a"],
        "caba",
        {"threshold": 1.0},
    ),
    "patience stops where the same answer came twice in a row": (
        "patience",
        make(
            np.ones((3, 3)),
            prediction=[list("xyy"), list("yyx"), list("xyx")],
            label=list("yyx"),
            kind="exits",
        ),
        [(1.0, 1 / 3), ((6 + 3 + 6) / 3, 0.0)],
        ["abc", "ab", "abc"],
        "cbc",
        {"patience": 2},
    ),
    "a chain leaves out a model that does not help": (
        "chain",
        make([[0.9, 0.5, 0.5]] * 2 + [[0.1, 0.5, 0.5]] * 2, [[1, 0, 1]] * 2 + [[0, 0, 1]] * 2),
        [(1.0, 0.5), ((1 + 1 + 4 + 4) / 4, 0.0)],
        ["a", "a", "ac", "ac"],
        "aacc",
        None,
    ),
    "the oracle takes the cheapest right answer": (
        "oracle",
        make(
            np.ones((4, 3)),
            [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]],
            kind="exits",
            costs=[3, 2, 1],
        ),
        [((3 + 5 + 6 + 3) / 4, 0.25)],
        ["a", "ab", "abc", "a"],
        "abca",
        {},
    ),
    "of separate models the oracle takes the cheapest that is right": (
        "oracle",
        make(np.ones((4, 3)), [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], costs=[3, 2, 1]),
        [(1.0, 0.25)],
        ["c"] * 4,
        "cccc",
        {},
    ),
    "the oracle sees the cost of each row": (
        "oracle",
        make(np.ones((2, 2)), np.ones((2, 2)), cost=np.array([[1.0, 2.0], [4.0, 3.0]])),
        [(2.0, 0.0)],
        ["a", "b"],
        "ab",
        {},
    ),
    "first is meant as the nodes stand": (
        "always-first",
        make(SURE, RIGHT, costs=[3, 2, 1]),
        [(3.0, 0.5)],
        ["a"] * 4,
        "aaaa",
        {"node": "a"},
    ),
    "last is meant as the nodes stand": (
        "always-last",
        make(SURE, RIGHT, costs=[3, 2, 1]),
        [(1.0, 0.0)],
        ["c"] * 4,
        "cccc",
        {"node": "c"},
    ),
    "the last exit is paid for with those on the way": (
        "always-last",
        make(SURE, RIGHT, kind="exits"),
        [(6.0, 0.0)],
        ["abc"] * 4,
        "cccc",
        {"node": "c"},
    ),
    "the best model is the one of least error": (
        "always-best",
        make(SURE, RIGHT),
        [(3.0, 0.0)],
        ["c"] * 4,
        "cccc",
        {"node": "c"},
    ),
    "of equals the best is the cheapest": (
        "always-best",
        make(SURE, EVEN, costs=[3, 2, 1]),
        [(1.0, 0.25)],
        ["c"] * 4,
        "cccc",
        {"node": "c"},
    ),
    "of equal exits the earliest is the cheapest, whatever its own cost": (
        "always-best",
        make(SURE, EVEN, costs=[3, 2, 1], kind="exits"),
        [(3.0, 0.25)],
        ["a"] * 4,
        "aaaa",
        {"node": "a"},
    ),
}


@pytest.mark.parametrize("case", SEEN)
def test_what_a_family_does_can_be_seen(case):
    family, trace, ends, whom, whose, knob = SEEN[case]
    settings = fit(family, trace)
    assert points(settings, trace) == pytest.approx(np.array(ends))
    assert (asked(settings[-1], trace), answers(settings[-1], trace)) == (whom, whose)
    assert knob is None or settings[-1].knob == knob


def test_knobs_name_nodes():
    _, trace, *_ = SEEN["one threshold per exit does what one for all cannot"]
    assert fit("threshold-per-exit", trace)[-1].knob["thresholds"] == {"a": 0.3, "b": 0.9}
    assert points(fit("threshold", trace), trace)[-1] == ((3 + 3 + 2 + 3) / 4, 0.0)
    _, trace, *_ = SEEN["a chain leaves out a model that does not help"]
    knob = fit("chain", trace)[-1].knob
    assert (knob["nodes"], knob["thresholds"]) == (["a", "c"], [1.0])


def test_many_confidences_are_swept_by_quantiles():
    rng = np.random.default_rng(0)
    said = rng.random((500, 2))
    trace = make(said, np.column_stack([rng.random(500) < said[:, 0], np.ones(500)]))
    settings = fit("threshold", trace)
    assert 10 < len(settings) <= 60
    cost, error = np.array(points(settings, trace)).T
    assert (cost[0], error[-1]) == (1.0, 0.0)


def test_entropy_stops_when_it_is_low_and_margin_when_it_is_high():
    values, exits = np.array(SURE), make(SURE, RIGHT, kind="exits")
    columns = {"entropy": 1 - values, "margin": values}
    trace = dataclasses.replace(exits, confidence=np.ones((4, 3)), **columns)
    for name in columns:
        settings = fit(name, trace)
        assert points(settings, trace) == points(fit("threshold", exits), exits)
    assert fit("entropy", trace)[1].knob["threshold"] == pytest.approx(0.3)
    rule = fit("margin", trace)[1].rule
    assert fit("margin", trace)[1].knob["threshold"] == 0.7
    with pytest.raises(Unsuitable, match="margin"):
        rule.play(exits)


def test_a_node_that_never_reports_its_margin_is_passed():
    values = np.array(SURE)
    values[:, 0] = np.nan
    trace = dataclasses.replace(make(SURE, RIGHT, kind="exits"), margin=values)
    assert asked(fit("margin", trace)[0], trace) == ["ab"] * 4


# In the last three, a descent from never stopping alone ends in a worse place.
@pytest.mark.parametrize("seed", [*range(6), 18, 25, 52])
def test_thresholds_per_exit_are_no_worse_than_one_for_all(seed):
    trace = random_trace(seed, nodes=4, rows=30, kind="exits")
    mine, common = (points(fit(f, trace), trace) for f in ("threshold-per-exit", "threshold"))
    for price in PRICES:
        assert best_at(mine, price) <= best_at(common, price) + 1e-9


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (1, ["a", "a", "a", "ab"]),
        (2, ["ab", "abc", "abcd", "abcd"]),
        (3, ["abcd", "abcd", "abcd", "abcd"]),
    ],
)
def test_patience_counts_equal_answers_in_a_row(times, expected):
    said = [list("xxyx"), list("xyyy"), list("xyxy"), [None, "x", None, "x"]]
    trace = make(np.ones((4, 4)), prediction=said, label=list("xyyx"), kind="exits")
    rule = dataclasses.replace(fit("patience", trace)[0].rule, thresholds=np.full(3, times))
    assert asked(Setting({}, rule), trace) == expected


def test_parents_are_asked_first():
    nodes = (CascadeNode("a", 1.0), CascadeNode("b", 1.0, "a"), CascadeNode("c", 0.1, "b"))
    rng = np.random.default_rng(5)
    right = np.column_stack([rng.random((40, 2)) < 0.5, np.ones(40, bool)])
    trace = Trace(CascadeSpec(nodes), rng.random((40, 3)), correct=right)
    for family in ("chain", "pairwise"):
        for setting in fit(family, trace):
            assert set(asked(setting, trace)) <= {"a", "ab", "abc"}


def test_the_router_reads_the_input_and_is_a_policy_that_can_be_saved(tmp_path):
    rng = np.random.default_rng(0)
    hard = rng.random(1200) < 0.5
    trace = Trace.from_arrays(
        {"a": 1.0, "b": 10.0},
        np.zeros((1200, 2)),
        correct=np.stack([~hard, np.ones(1200, bool)], axis=1),
        inputs={"hard": hard.astype(float)},
    )
    settings = fit("router", trace)
    rule = settings[len(settings) // 2].rule
    played = rule.play(trace)
    assert (played.asked.sum(axis=1) == 1).all()
    save(rule, tmp_path / "router.ttamer")
    again = load(tmp_path / "router.ttamer").play(trace)
    assert np.array_equal(again.answer, played.answer)


def test_the_families_have_their_names_in_a_stable_order():
    assert list(FAMILIES) == [
        *("always-first", "always-last", "always-best", "threshold", "threshold-per-exit"),
        *("entropy", "margin", "patience", "calibrated", "chain", "pairwise"),
        *("frugalml", "router", "oracle"),
    ]
    assert all(family.name == name for name, family in FAMILIES.items())


def test_families_that_cannot_be_used_are_left_out_with_the_reason():
    settings, left_out = fit_families(make(SURE, RIGHT, kind="exits"))
    reasons = {
        "entropy": "entropy",
        "margin": "margin",
        "patience": "predictions",
        "chain": "separate",
        "pairwise": "separate",
        "frugalml": "separate",
        "router": "separate",
    }
    assert list(left_out) == list(reasons)
    assert all(word in left_out[name] for name, word in reasons.items())
    assert list(settings) == [name for name in FAMILIES if name not in left_out]


def tree_with_predictions() -> Trace:
    nodes = (CascadeNode("a", 1.0), CascadeNode("b", 1.0, "a"))
    return Trace.from_arrays(CascadeSpec(nodes), [[1, 1]], prediction=[["x", "x"]], label=["x"])


@pytest.mark.parametrize(
    ("name", "trace", "reason"),
    [
        ("chain", make(np.ones((3, 11)), np.ones((3, 11))), "at most 10 nodes, and there are 11"),
        ("frugalml", make(SURE, RIGHT), "the trace has none"),
        ("frugalml", tree_with_predictions(), "come after"),
        ("router", make(SURE, RIGHT), "no inputs"),
    ],
)
def test_a_trace_that_does_not_suit_is_refused_with_the_reason(name, trace, reason):
    with pytest.raises(Unsuitable, match=reason) as caught:
        fit(name, trace)
    assert isinstance(caught.value, TTamerError)


def test_pairs_are_found_among_many_models():
    rng = np.random.default_rng(0)
    names = [f"m{number}" for number in range(24)]
    right = rng.random((200, 24)) < 0.5
    right[:, 20] = True
    sure = np.where(right, 0.9, 0.1)
    costs = dict(zip(names, [*range(1, 20), 90.0, 80.0, 95.0, 96.0, 97.0], strict=True))
    trace = Trace(CascadeSpec.of(costs), sure, correct=right)
    cheapest, *_, best = fit("pairwise", trace)
    assert (cheapest.knob["nodes"], best.knob["nodes"]) == (["m0"], ["m0", "m20"])


def test_an_unknown_family_is_refused_with_the_names_there_are():
    with pytest.raises(ArgumentError, match="no family 'treshold'; there are always-first"):
        fit_families(make(SURE, RIGHT), ["treshold"])


def test_a_trace_without_correctness_is_refused_not_left_out():
    with pytest.raises(TraceError, match="answers to compare"):
        fit_families(make(SURE))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_trace_without_rows_is_refused(name):
    with pytest.raises((TraceError, Unsuitable)):
        fit(name, make(SURE, RIGHT).take([]))


def test_a_node_right_by_definition_is_never_left_for_another():
    said = [list("xy"), list("yy"), list("xx")]
    trace = make(np.ones((3, 2)), prediction=said, target="last", kind="exits")
    for name in ("threshold", "calibrated", "oracle"):
        assert points(fit(name, trace), trace)[-1][1] == 0.0
