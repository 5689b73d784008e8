"""Decision logs: what cannot be read is named by line, what can be is a trace with gaps."""

from __future__ import annotations

import json

import pytest

from ttamer import Trace, TraceError

HEAD = {"v": 1, "cascade": "node = [{name = 'small', cost = 1}, {name = 'large', cost = 5}]"}
ANSWER = {"chance": 1.0, "confidence": 0.9, "prediction": "B", "cost": 1.0}


def row(*, small=ANSWER, **more):
    return {"v": 1, "request": "r1", "by": "small", "cost": 1.0, "nodes": {"small": small}, **more}


def read(tmp_path, *lines, end=""):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
    return Trace.read(path)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([HEAD, row(small=ANSWER | {"confidence": "high"})], r"line 2: .*got `str`.*confidence"),
        ([HEAD, row(small=5)], r"line 2: .*got `int`"),
        ([HEAD, row(small=ANSWER | {"prediction": ["x"]})], r"line 2: .*got `array`.*prediction"),
        ([HEAD, row(small=ANSWER | {"chance": 2})], r"'small.chance': row 0 .* is above 1"),
        ([HEAD, row(small=ANSWER | {"cost": -1})], r"'small.cost': row 0 .* is negative"),
        ([HEAD, row(score="good")], r"line 2: .*got `str`.*score"),
        ([HEAD, row(inputs={"language": "de"})], r"line 2: .*got `str`.*inputs"),
        ([HEAD, row(label={"a": 1})], r"line 2: .*got `object`.*label"),
        ([HEAD, row(time="now")], r"line 2: .*got `str`.*time"),
        ([HEAD, row(), {"feedback": "r1", "scores": [1]}], r"line 3: .*got `array`.*scores"),
        ([HEAD, row(), {"feedback": "r1", "score": 7}], "'small.score': row 0 .* is above 1"),
        ([HEAD, [1]], r"line 2: .*got `array`"),
        ([HEAD], "has no requests"),
        ([{"v": 1, "nodes": {"small": ANSWER}}], "no cascade in its first line"),
        ([{"v": 1, "cascade": "x ="}, row()], "cascade kept in the file cannot be used"),
        ([HEAD, row(nodes={"other": ANSWER})], "has the node 'other', and the cascade small, larg"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path, lines, says):
    with pytest.raises(TraceError, match=says) as error:
        read(tmp_path, *lines)
    assert str(error.value).startswith(str(tmp_path))


def test_feedback_says_what_is_right_and_a_line_cut_short_is_counted(tmp_path):
    both = {"small": ANSWER, "large": ANSWER | {"confidence": 0.8, "prediction": "A"}}
    trace = read(
        tmp_path,
        HEAD,
        row(),
        row(request="r2", nodes=both),
        {"v": 1, "feedback": "r1", "score": 1},
        {"v": 1, "feedback": "r2", "label": "A"},
        {"v": 1, "feedback": "gone", "label": "A"},
        end='{"v": 1, "nodes"',
    )
    assert trace.answered.tolist() == [[True, False], [True, True]]
    assert trace.correct.tolist() == [[1, -1], [0, 1]]
    assert trace.left_out == {"lines that are not JSON": 1}
    assert trace.notes == ("a decision log of 2 requests",)
