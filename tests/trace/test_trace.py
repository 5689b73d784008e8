from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.losses import complete_losses
from ttamer.trace.schema import ClassCodes
from ttamer.trace.trace import Trace

PAIR = CascadeSpec.of({"a": 1.0, "b": 4.0})


def pair(**fields) -> Trace:
    return Trace.from_arrays(
        PAIR,
        [[0.9, 0.8], [0.4, 0.7], [0.1, 0.2]],
        prediction=[["x", "x"], ["y", "x"], [None, "y"]],
        label=["x", "y", "z"],
        **fields,
    )


def test_arrays_are_as_described():
    trace = pair(inputs={"length": [1, 2, 3]})
    assert (len(trace), trace.names) == (3, ("a", "b"))
    assert trace.confidence.dtype == np.float64
    assert trace.prediction.dtype == trace.label.dtype == np.int32
    assert trace.classes == ("x", "y", "z")
    assert trace.prediction.tolist() == [[0, 0], [1, 0], [-1, 1]]
    assert trace.cost is None
    assert trace.costs.shape == (3, 2)
    assert trace.inputs["length"].dtype == np.float64
    for array in (trace.confidence, trace.prediction, trace.label, trace.costs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_big_arrays_are_not_copied():
    confidence = np.zeros((5, 2))
    assert np.shares_memory(Trace(PAIR, confidence).confidence, confidence)
    assert confidence.flags.writeable


def test_which_answers_are_wrong():
    assert pair().loss.tolist() == [[False, False], [False, True], [True, True]]
    correct = np.array([[True, False], [True, False], [True, False]])
    assert (pair(correct=correct).loss == ~correct).all()  # it goes before the label
    last = dataclasses.replace(PAIR, target="last")
    assert pair().with_spec(last).loss.tolist() == [[0, 0], [1, 0], [1, 0]]
    none = Trace.from_arrays(last, [[0, 0]], prediction=[[None, None]])
    assert none.loss.tolist() == [[1, 0]]
    trace = Trace.from_arrays(last, [[0, 0]], prediction=[["x", "y"]], label=["x"])
    assert trace.loss.tolist() == [[True, False]]
    assert complete_losses(trace, "label").tolist() == [[0, 1]]


def test_with_mistakes_a_last_node_without_an_answer_makes_every_answer_the_worst():
    spec = CascadeSpec.of({"a": 1.0, "b": 4.0}, target="last", mistakes={"x": {"*": 20.0}})
    answers = [["x", "y"], ["y", "x"], ["x", None], ["y", None], [None, None]]
    trace = Trace.from_arrays(spec, np.zeros((5, 2)), prediction=answers)
    assert (trace.loss * trace.unit)[:, 0].tolist() == [1.0, 20.0, 20.0, 20.0, 20.0]
    assert not (trace.loss * trace.unit)[:, 1].any()


@pytest.mark.parametrize(
    ("fields", "target", "says"),
    [
        ({}, "label", "no prediction and label: add columns <node>.correct, or"),
        ({"prediction": [["x", "x"]]}, "label", 'no label: .* or set target = "last"'),
        ({"label": ["x"]}, "label", "no prediction"),
        (
            {"prediction": [["x", "x"]], "label": [None]},
            "label",
            "row 0 .* the loss of 'a' is not known .no label",
        ),
        ({}, "last", "add columns <node>.prediction$"),
        ({"correct": np.array([[True, True]])}, "last", 'agreement .* set target = "label"'),
        ({}, "first", "target is 'first'"),
    ],
)
def test_what_is_needed_to_judge_is_reported(fields, target, says):
    with pytest.raises((TraceError, ArgumentError), match=says):
        complete_losses(Trace.from_arrays(PAIR, [[0.5, 0.5]], **fields), target)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"confidence": [[0.1]]}, r"shape \(1, 1\), and \(1, 2\)"),
        ({"confidence": [0.1, 0.2]}, r"shape \(2,\)"),
        ({"confidence": 0.5}, "shape"),
        ({"confidence": [["a", "b"]]}, "must be numbers"),
        (
            {"confidence": [[0.1, np.nan]], "correct": [[True, True]]},
            "'b.confidence': row 0 .* is missing, and b.correct has a value there: a node that was",
        ),
        (
            {"confidence": [[0.1, np.nan]], "margin": [[0.1, 0.2]]},
            "and b.margin has a value there",
        ),
        ({"confidence": [[np.inf, 0.1]]}, "'a.confidence': row 0 .* is missing, NaN or infinite"),
        ({"cost": [1.0, 5.0]}, r"cost: has shape \(2,\), and"),
        ({"cost": [[1.0, -5.0]]}, "'b.cost': row 0 .* is negative, and a cost is not"),
        ({"cost": [[1.0, np.nan]]}, "'b.cost': row 0 .* is missing"),
        ({"prediction": [[0, 1]]}, "codes from 0 to 1"),
        ({"prediction": [[-2, 0]], "classes": ("x",)}, "codes from -2 to 0"),
        ({"prediction": [[0.5, 0.5]]}, "must be numbers, not float64"),
        ({"label": [[0, 0]]}, "label: has shape"),
        ({"label": np.array([2**32])}, "codes"),
        ({"correct": [[1, -1]]}, r"correct: row 0 .* is -1; right is 1 or true"),
        ({"correct": [[1.0, 0.5]]}, r"correct: row 0 .* is 0.5; right is 1 or true, wrong is 0"),
        ({"chance": [[0.5, 1.5]]}, "'b.chance': row 0 .* is above 1, and a chance is from 0 to 1"),
        ({"raw_loss": [[0.5, -1]]}, "'b.loss': row 0 .* is negative, and a loss is not"),
        ({"prompt": [3]}, "prompt: row 0 .* holds 3; text is needed"),
        ({"prompt": ["x", "y"]}, "prompt: has shape"),
        ({"group": [0]}, "group: codes run from -1"),
        (
            {"correct": [["yes", "no"]]},
            'truth values, not <U3; compare it, as with values == "yes"',
        ),
        ({"inputs": {"": [1.0]}}, "input ''"),
        ({"inputs": {"s": [np.nan]}}, "'input.s': row 0 .* is missing, NaN"),
        ({"inputs": {"s": [1.0, 2.0]}}, "input.s: has shape"),
        ({"margin": [[np.inf, 1.0]]}, "'a.margin': row 0"),
    ],
)
def test_arrays_that_do_not_fit(fields, says):
    with pytest.raises(TraceError, match=says):
        Trace(**{"spec": PAIR, "confidence": [[0.1, 0.2]], **fields})


def test_an_input_cannot_take_a_nodes_column():
    spec = CascadeSpec.of({"input": 1.0})
    with pytest.raises(TraceError, match="taken by a node"):
        Trace(spec, [[0.5]], inputs={"confidence": [1.0]})


def test_a_node_without_an_extra_is_all_nan():
    trace = Trace(PAIR, [[0.1, 0.2]], margin=[[0.5, np.nan]])
    assert np.isnan(trace.margin[0, 1])


def test_take():
    trace = pair(
        cost=np.arange(6.0).reshape(3, 2),
        inputs={"s": [1, 2, 3]},
        entropy=[[1, np.nan], [2, np.nan], [3, np.nan]],
        left_out={"gap": 4},
        notes=("said",),
    )
    for rows in ([2, 0], np.array([2, 0]), [-1, 0], np.array([True, False, True])):
        part = trace.take(rows)
        index = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        assert (part.confidence == trace.confidence[index]).all()
        assert (part.cost == trace.cost[index]).all()
        assert (part.label == trace.label[index]).all()
        assert (part.inputs["s"] == trace.inputs["s"][index]).all()
        assert (part.entropy[:, 0] == trace.entropy[index, 0]).all()
        assert not part.confidence.flags.writeable
        assert (part.left_out, part.notes, part.classes) == ({}, ("said",), trace.classes)
    assert trace.take(slice(1, None)).digest == trace.take([1, 2]).digest
    assert len(trace.take([])) == 0
    assert len(trace.take([]).loss) == 0


@pytest.mark.parametrize("rows", [[3], [-4], [True], [0.5], [[0]], "a"])
def test_rows_that_are_not_there(rows):
    with pytest.raises(ArgumentError, match="row"):
        pair().take(rows)


def test_split_is_the_permutation_it_returns():
    trace = Trace(CascadeSpec.of({"a": 1.0}), np.arange(10.0)[:, None])
    fit, test = trace.split(0.3, seed=7)
    order = np.random.default_rng(7).permutation(10)
    assert fit.confidence[:, 0].tolist() == order[:3].tolist()
    assert test.confidence[:, 0].tolist() == order[3:].tolist()
    assert trace.split(0.3, seed=7)[0].digest == fit.digest


def test_a_split_leaves_both_parts_something():
    with pytest.raises(ArgumentError, match="seed is -1; it must be a whole number"):
        pair().split(0.5, -1)
    for fraction in (0.001, 0.999):
        fit, test = pair().split(fraction, seed=0)
        assert len(fit) >= 1
        assert len(test) >= 1
    for fraction in (0, 1, -0.5, float("nan")):
        with pytest.raises(ArgumentError, match="fraction"):
            pair().split(fraction, seed=0)
    with pytest.raises(TraceError, match="1 row, and a split needs at least 2"):
        pair().take([0]).split(0.5, seed=0)


def test_concat_is_the_inverse_of_taking_apart():
    trace = pair(inputs={"s": [1, 2, 3]}, cost=np.ones((3, 2)))
    parts = [trace.take([0]), trace.take([]), trace.take([1, 2])]
    assert Trace.concat(parts).digest == trace.digest
    assert Trace.concat([trace]) is trace


def test_concat_makes_one_list_of_classes():
    one = Trace.from_arrays(PAIR, [[0, 0]], prediction=[["x", "y"]], label=["y"])
    two = Trace.from_arrays(PAIR, [[0, 0]], prediction=[["z", None]], label=["z"])
    both = Trace.concat([one, two])
    said = [[None if c < 0 else both.classes[c] for c in row] for row in both.prediction]
    assert said == [["x", "y"], ["z", None]]
    assert [both.classes[c] for c in both.label] == ["y", "z"]


def test_concat_of_other_costs_keeps_them_by_row():
    other = Trace(PAIR.with_costs({"b": 9.0}), [[0.5, 0.5]], left_out={"gap": 2}, notes=("n",))
    both = Trace.concat([Trace(PAIR, [[0.5, 0.5]], left_out={"gap": 1}), other])
    assert both.cost.tolist() == [[1, 4], [1, 9]]
    assert (both.left_out, both.notes) == ({"gap": 3}, ("n",))


def test_concat_refuses_what_does_not_belong_together():
    with pytest.raises(TraceError, match="no traces"):
        Trace.concat([])
    with pytest.raises(TraceError, match="trace 1 has the nodes c, and trace 0 has a, b"):
        Trace.concat([pair(), Trace(CascadeSpec.of({"c": 1.0}), [[0.5]])])
    with pytest.raises(TraceError, match="trace 1 has the columns confidence, and trace 0 has c"):
        Trace.concat([pair(), Trace(PAIR, [[0.5, 0.5]])])
    exits = [CascadeSpec.of({"a": 2, "b": 3}, kind="exits", reach={"a": cost}) for cost in (1, 1.5)]
    with pytest.raises(
        TraceError, match=r"trace 1 has the costs of passing \(reach\) 1.5, 0.0, and"
    ):
        Trace.concat([Trace(spec, [[0.5, 0.5]]) for spec in exits])


def test_the_digest_is_of_the_content():
    trace = pair()
    codes = ClassCodes(["unused", "z", "y", "x"])
    recoded = Trace(
        PAIR,
        np.ascontiguousarray(trace.confidence),
        prediction=codes.encode([["x", "x"], ["y", "x"], [None, "y"]]),
        label=codes.encode(["x", "y", "z"]),
        classes=codes.classes,
        notes=("how it was read",),
    )
    assert recoded.digest == trace.digest
    assert len(trace.digest) == 64
    negative_zero = Trace(PAIR, [[0.0, 1.0]]).digest == Trace(PAIR, [[-0.0, 1.0]]).digest
    assert negative_zero


@pytest.mark.parametrize(
    "other",
    [
        pair().take([1, 0, 2]),
        pair().take([0, 1]),
        pair(inputs={"s": [1, 2, 3]}),
        pair(correct=np.ones((3, 2), bool)),
        pair(cost=np.ones((3, 2))),
        pair(margin=np.ones((3, 2))),
        Trace.from_arrays(PAIR, pair().confidence),
        Trace.from_arrays(PAIR.with_costs({"a": 2}), pair().confidence),
    ],
)
def test_the_digest_differs_between_traces(other):
    assert other.digest != pair().digest


@given(st.lists(st.integers(-(2**70), 2**70) | st.text("ab\n", max_size=2) | st.none()))
def test_codes_stand_for_their_values(values):
    codes = ClassCodes()
    said = [None if code < 0 else codes.classes[code] for code in codes.encode(values)]
    assert said == [None if value is None else str(value) for value in values]


@given(
    st.sampled_from([np.int8, np.uint8, np.int64, np.uint64, np.float64, np.float32, np.bool_]),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 9), max_size=20),
)
def test_arrays_of_numbers_have_the_codes_of_their_numbers(kind, values):
    with np.errstate(all="ignore"):
        array = np.array([v % 2**64 for v in values], np.uint64).astype(kind)
    fast, slow = ClassCodes(), ClassCodes()
    table, plain = fast.encode(array), slow.encode(array.tolist())
    assert [fast.classes[c] for c in table] == [slow.classes[c] for c in plain]
    assert table.dtype == np.int32


@pytest.mark.parametrize(
    ("score", "says"),
    [("x", "score: must be numbers"), (1.5, "'b.score': row 0 .* is above 1, .* <node>.loss")],
)
def test_scores_that_are_none(score, says):
    with pytest.raises(TraceError, match=says):
        Trace.from_arrays(PAIR, [[0.1, 0.2]], score=[[0.5, score]])


def test_a_missing_value_of_pandas_is_no_answer():
    pandas = pytest.importorskip("pandas")
    codes = ClassCodes().encode(pandas.Series([3, None], dtype="Int64"))
    assert codes.tolist() == [0, -1]
    assert ClassCodes().code(pandas.NaT) == -1


def test_values_that_are_no_class():
    with pytest.raises(TraceError, match="list"):
        ClassCodes().code([1])
    with pytest.raises(TraceError, match="NUL"):
        ClassCodes().code("a\0")
    with pytest.raises(TraceError, match="surrogate"):
        ClassCodes().code("\ud800")


def test_repr_is_one_short_line_with_the_coverage():
    trace = pair(cost=np.ones((3, 2)), inputs={"s": [1, 2, 3]}, correct=np.ones((3, 2), bool))
    assert repr(trace) == (
        "Trace(2 nodes, prediction, correct, cost, label, input.s; 3 rows, each with an "
        "answer of every node; a label on all; the loss of every answer is known)"
    )
    gaps = np.full((4, 30), np.nan)
    gaps[0] = 0.5
    wide = Trace(
        CascadeSpec.of({f"node {k}": 1.0 for k in range(30)}),
        gaps,
        inputs={f"i{k}": range(4) for k in range(30)},
    )
    assert len(repr(wide)) < 400
    assert "22 more columns" in repr(wide)
    assert "24 more nodes have gaps" in wide.coverage


def test_rows_of_one_group_are_never_split():
    groups = [f"user {row % 7}" for row in range(69)] + [None]
    trace = Trace.from_arrays({"a": 1.0}, np.arange(70.0)[:, None], group=groups)
    for seed in range(5):
        fit, test = trace.split(0.5, seed)
        assert len(fit) + len(test) == 70
        assert 20 <= len(fit) <= 50
        assert not set(fit.group[fit.group >= 0]) & set(test.group[test.group >= 0])
    assert "; 8 groups" in trace.coverage  # a row without one is one by itself
    assert "; 9 groups" in Trace.concat([trace, trace.take([69])]).coverage
    with pytest.raises(TraceError, match="all rows are of one group"):
        Trace.from_arrays({"a": 1.0}, np.ones((9, 1)), group=["u"] * 9).split(0.5, 0)
