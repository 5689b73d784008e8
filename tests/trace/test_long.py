"""Logs with one line per call."""

from __future__ import annotations

import json

import pytest

from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.trace.trace import Trace

AB = CascadeSpec.of({"a": 1.0, "b": 2.0})
LINES = [
    {"id": "x", "node": "b", "confidence": 0.8, "prediction": "cat", "cost": 3, "label": "cat"},
    {"id": "x", "node": "a", "confidence": 0.9, "prediction": "cat", "cost": 1, "prompt": "hello"},
    {"id": "y", "node": "a", "confidence": 0.2, "prediction": "dog", "cost": 2, "chance": 0.5},
    {
        "id": "z",
        "node": "b",
        "confidence": 0.1,
        "prediction": "dog",
        "cost": 5,
        "group": "u",
        "label": "cat",
        "input.length": 3,
    },
]


def log(tmp_path, lines, name="log.jsonl"):
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        columns = list(dict.fromkeys(key for line in lines for key in line))
        rows = [",".join(str(line.get(key, "")) for key in columns) for line in lines]
        path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
def test_calls_become_rows_with_gaps(tmp_path, name):
    lines = list(LINES)
    lines[1] = lines[1] | {"input.length": 1}
    lines[2] = lines[2] | {"input.length": 2}
    trace = Trace.read(log(tmp_path, lines, name), AB)
    assert trace.answered.tolist() == [[True, True], [True, False], [False, True]]
    assert trace.cost.tolist()[0] == [1.0, 3.0]
    assert trace.loss[[0, 0, 2], [0, 1, 1]].tolist() == [0.0, 0.0, 1.0]
    assert trace.chance[1, 0] == 0.5
    assert trace.prompt.tolist() == ["hello", None, None]
    assert [trace.groups[code] if code >= 0 else None for code in trace.group] == [None, None, "u"]
    assert trace.inputs["length"].tolist() == [1.0, 2.0, 3.0]
    assert trace.coverage.startswith("3 rows; 'a' answered on 2 (67%); 'b' answered on 2 (67%)")
    again = Trace.read(log(tmp_path, lines, name))
    assert again.names == ("b", "a")
    assert again.spec.costs.tolist() == [4.0, 1.5]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (LINES[:2] + LINES[:1], "id 'x' has two lines for node 'b'; keep one"),
        ([LINES[0], LINES[1] | {"a.cost": 3}], "column 'a.cost' is named 'cost' with one line per"),
        ([*LINES[:2], LINES[0] | {"id": "y", "node": "c"}], "not in the cascade: 'c.confidence'"),
        (LINES[1:3], "one row per input.: the column 'b.confidence' is missing"),
        ([*LINES[:2], {"id": "y", "confidence": 0.5}], "column 'node': row 2 .* is empty"),
        ([*LINES[:2], {"node": "a", "confidence": 0.5}], "column 'id': row 2 .* is empty"),
        ([LINES[0], LINES[1] | {"label": "dog"}], "column 'label': id 'x' has two values"),
        ([{"id": 1, "node": "a"}], "the column 'confidence' is missing"),
        ([LINES[0] | {"id": [1]}, LINES[1] | {"id": [2]}], "column 'id': holds list"),
        ([LINES[0], LINES[1] | {"cost": -1}], "'a.cost': row 0 .* is negative"),
        ([LINES[0], LINES[1] | {"confidence": "high"}], "'confidence': holds values of several"),
    ],
)
def test_calls_that_cannot_be_read_are_named(tmp_path, lines, says):
    with pytest.raises(TraceError, match=says) as error:
        Trace.read(log(tmp_path, lines), AB)
    assert str(error.value).startswith(str(tmp_path))


def test_vectors_stand_on_one_of_the_lines(tmp_path):
    lines = [{"id": 1, "node": node, "confidence": 0.5} for node in "ab"]
    lines[1]["input.v"] = [1, 2]
    path = log(tmp_path, lines)
    assert Trace.read(path, AB).inputs["v"].tolist() == [[1.0, 2.0]]
    lines[1]["input.v"] = [1, None]  # which is a missing one, and no second value
    both = log(tmp_path, [*lines, {"id": 1, "node": "c", "confidence": 0.5, "input.v": [1, 2]}])
    assert Trace.read(both).inputs["v"].tolist() == [[1.0, 2.0]]
    lines[1]["input.v"] = [1, 2]
    both = log(tmp_path, [*lines, {"id": 2, "node": "a", "confidence": 0.5}])
    trace = Trace.read(both, AB, on_bad="skip")
    assert (len(trace), trace.left_out) == (1, {"input.v is missing, NaN or infinite": 1})


def test_a_sample_is_of_inputs(tmp_path):
    lines = [{key: line[key] for key in ("id", "node", "confidence")} for line in LINES]
    trace = Trace.read(log(tmp_path, lines), AB, sample=2)
    assert (len(trace), trace.notes[-1]) == (2, "a uniform sample of 2 of 3 rows")


def test_a_line_that_is_no_object_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"a.confidence": 0.5}\n[1]\n')
    with pytest.raises(TraceError, match="line 2 is not a JSON object"):
        Trace.read(path)
