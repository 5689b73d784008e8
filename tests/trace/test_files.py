from __future__ import annotations

import itertools
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, strategies as st

from support.examples import examples
from support.traces import read_batches
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, MissingExtra, TraceError
from ttamer.trace.io import arrow, sampled
from ttamer.trace.schema import SCHEMA
from ttamer.trace.trace import Trace

SUFFIXES = ("parquet", "csv", "csv.gz", "jsonl")
AB = CascadeSpec.of({"a": 1.0, "b": 2.0})
NAMES = (
    "a",
    "a.b",
    "a.confidence",
    "input",
    "input.x",
    "prompt",
    "label",
    'ümlaut, "quoted"',
    "x/y",
    "..",
)

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)


@st.composite
def traces(draw) -> Trace:
    """A trace of any make, in which some label is predicted by someone."""
    rows = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    target = draw(st.sampled_from(["label", "last"]))
    spec = CascadeSpec.of({name: draw(st.floats(0, 1e9)) for name in names}, target=target)

    def grid(values):
        return [[draw(values) for _ in names] for _ in range(rows)]

    def maybe(build):
        return build() if draw(st.booleans()) else None

    # Some answers are absent, and then nothing of them is there; others are not known.
    gap = np.array(grid(st.booleans())) if draw(st.booleans()) else np.zeros((rows, len(names)))
    gap = gap.astype(bool)

    def of_answers(values, missing, *, partly):
        table = np.array(grid(values), object)
        table[gap] = missing
        if partly:
            table[np.array(grid(st.booleans()))] = missing
        return table

    unknown = draw(st.booleans())
    numbers = st.floats(0, 1e300)
    classes = draw(st.lists(texts, min_size=1, max_size=3))
    fields = {
        "correct": maybe(lambda: of_answers(st.booleans(), None, partly=unknown)),
        "prediction": maybe(
            lambda: of_answers(st.sampled_from([*classes, None]), None, partly=False)
        ),
        "label": maybe(lambda: [draw(st.sampled_from([*classes, None])) for _ in range(rows)]),
        "loss": maybe(lambda: of_answers(numbers, np.nan, partly=unknown).astype(float)),
        "cost": maybe(lambda: of_answers(numbers, np.nan, partly=False).astype(float)),
        "chance": maybe(lambda: of_answers(st.floats(0, 1), np.nan, partly=unknown).astype(float)),
        "latency": maybe(lambda: of_answers(numbers, np.nan, partly=False).astype(float)),
        "group": maybe(lambda: [draw(texts | st.none()) for _ in range(rows)]),
        "prompt": maybe(lambda: [draw(texts | st.none()) for _ in range(rows)]),
    }
    if fields["prediction"] is not None and fields["label"] is not None:
        gap[0, 0] = False
        for name in ("correct", "loss", "cost", "latency"):
            if fields[name] is not None and fields[name][0, 0] in (None, np.nan):
                fields[name] = None
        fields["prediction"][0][0] = fields["label"][0] = classes[0]
    for name in ("cost", "latency"):  # where an answer is, they are there
        if fields[name] is not None:
            fields[name][~gap & np.isnan(fields[name])] = 1.0
    inputs = {}
    if draw(st.booleans()):
        inputs["of.length, x"] = [draw(finite) for _ in range(rows)]
    if draw(st.booleans()):  # CSV has no types: text that is no number
        word = texts.map(lambda text: f"w{text}") | st.none()
        inputs["word"] = ["w", *(draw(word) for _ in range(rows - 1))]
    if draw(st.booleans()):
        inputs["embedding"] = [[draw(finite), draw(finite)] for _ in range(rows)]
    if draw(st.booleans()):
        margin = of_answers(finite, np.nan, partly=False).astype(float)
        margin[:, draw(st.integers(0, len(names) - 1))] = np.nan
        if not np.isnan(margin).all():
            fields["margin"] = margin
    confidence = of_answers(finite, np.nan, partly=False).astype(float)
    confidence[~gap & np.isnan(confidence)] = 0.5
    return Trace.from_arrays(spec, confidence, **fields, inputs=inputs)


def assert_same(one: Trace, other: Trace) -> None:
    assert one.digest == other.digest
    assert one.spec == other.spec
    for column in SCHEMA:
        values, others = getattr(one, column.field), getattr(other, column.field)
        assert (values is None) == (others is None), column.name
    assert {name: (v.dtype, v.shape) for name, v in one.inputs.items()} == {
        name: (v.dtype, v.shape) for name, v in other.inputs.items()
    }


@pytest.mark.filterwarnings("ignore:.*count as two classes")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(), rows=st.integers(1, 4))
def test_what_is_written_reads_back_whole_and_in_batches(tmp_path, trace, rows):
    for suffix in SUFFIXES:
        path = tmp_path / f"trace.{suffix}"
        trace.write(path)
        assert_same(Trace.read(path, cascade=trace.spec), trace)
        parts = list(read_batches(path, trace.spec, rows=rows))
        assert max(map(len, parts)) <= rows
        assert_same(Trace.concat(parts), trace)
        for before, after in itertools.pairwise(parts):
            assert after.classes[: len(before.classes)] == before.classes
        if suffix == "parquet":
            assert_same(Trace.read(path), trace)
    assert {path.name for path in tmp_path.iterdir()} == {f"trace.{s}" for s in SUFFIXES}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scores_are_read_as_losses(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    write(path, {"a.confidence": [0.5, 0.5], "a.score": [1.0, 0.25]})
    trace = Trace.read(path)
    assert trace.raw_loss.tolist() == trace.loss.tolist() == [[0.0], [0.75]]
    assert (trace.unit, trace.spec.max_loss) == (1, 1)


def big_trace(rows: int) -> Trace:
    random = np.random.default_rng(3)
    return Trace.from_arrays(
        AB,
        random.random((rows, 2)),
        prediction=random.integers(0, 5, (rows, 2)),
        label=random.integers(0, 5, rows),
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_of_a_longer_file(tmp_path, suffix):
    trace = big_trace(300_000)
    trace.write(tmp_path / f"t.{suffix}")
    for rows in (1 << 14, 1 << 18):
        parts = list(read_batches(tmp_path / f"t.{suffix}", AB, rows=rows))
        assert max(map(len, parts)) <= rows
        assert Trace.concat(parts).digest == trace.digest
    assert Trace.read(tmp_path / f"t.{suffix}", AB).digest == trace.digest


@pytest.mark.parametrize("size", [300, 4000, 9000])
def test_a_file_larger_than_memory_is_read_as_a_uniform_sample(size):
    rows = big_trace(9000)
    parts = (rows.take(slice(at, at + 500)) for at in range(0, 9000, 500))
    part = sampled((replace(part, left_out={"gap": 1}) for part in parts), size)
    assert part.left_out == {"gap": 18}
    assert part.notes == (() if size == 9000 else (f"a uniform sample of {size:,} of 9,000 rows",))
    places = np.searchsorted(order := np.sort(rows.confidence[:, 0]), part.confidence[:, 0])
    assert (order[places] == part.confidence[:, 0]).all()
    assert len(part) == len(set(places)) == size
    assert size < 9000 or part.digest == rows.digest
    places = np.flatnonzero(np.isin(rows.confidence[:, 0], part.confidence[:, 0]))
    assert (rows.confidence[places] == part.confidence).all()  # in their order
    assert abs(places.mean() / 4500 - 1) < 4 / np.sqrt(size)


def test_columns_lie_in_one_piece(tmp_path):
    big_trace(100).write(tmp_path / "t.parquet")
    assert Trace.read(tmp_path / "t.parquet").confidence[:, 1].flags.c_contiguous


def write(path, columns: dict) -> None:
    """Write columns as they are, by another hand than ours."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    else:
        with pa.output_stream(path) as file:  # compressed by the suffix
            pyarrow.csv.write_csv(table, file)


GOOD = {
    "a.confidence": [0.1, 0.2, 0.3],
    "a.prediction": [1, 2, 3],
    "b.confidence": [0.4, 0.5, 0.6],
    "b.prediction": [1, 1, 1],
    "label": [1, 2, 2],
}
FORMATS = ("parquet", "csv")


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_by_another_hand(tmp_path, suffix):
    write(tmp_path / f"t.{suffix}", GOOD)
    trace = Trace.read(tmp_path / f"t.{suffix}", AB)
    assert trace.loss.tolist() == [[False, False], [False, True], [True, True]]
    assert set(trace.classes) == {"1", "2", "3"}
    assert (trace.left_out, trace.notes) == ({}, ())
    write(tmp_path / "u.parquet", GOOD)
    assert trace.digest == Trace.read(tmp_path / "u.parquet", AB).digest


@pytest.mark.parametrize("suffix", FORMATS)
def test_without_a_cascade_the_columns_make_one_and_it_is_reported(tmp_path, suffix):
    write(tmp_path / f"t.{suffix}", GOOD | {"b.cost": [1.0, 2.0, 6.0], "id": [7, 8, 9]})
    for trace in (
        Trace.read(tmp_path / f"t.{suffix}"),
        next(read_batches(tmp_path / f"t.{suffix}", rows=3)),
    ):
        assert (trace.names, trace.spec.kind) == (("a", "b"), "models")
        assert trace.spec.costs.tolist() == [1.0, 3.0]
        assert trace.cost.tolist() == [[1, 1], [1, 2], [1, 6]]
        assert trace.notes == (
            "no cascade was given: the nodes are 'a', 'b', each at the mean of its cost column, "
            "or at cost 1",
            "columns not used: 'id'",
            "no cost column for 'a': the cascade's cost is used on every row",
        )


def test_costs_by_name_are_a_cascade(tmp_path):
    write(tmp_path / "t.csv", GOOD)
    costs = {"a": 1.0, "b": 2.0}
    for trace in (
        Trace.read(tmp_path / "t.csv", costs),
        next(read_batches(tmp_path / "t.csv", costs)),
    ):
        assert trace.spec == CascadeSpec.of(costs)


def test_a_cascade_given_goes_before_the_one_in_the_file(tmp_path):
    big_trace(5).write(tmp_path / "t.parquet")
    AB.with_costs({"a": 9.0}).to_file(tmp_path / "cascade.toml")
    trace = Trace.read(tmp_path / "t.parquet", cascade=tmp_path / "cascade.toml")
    assert trace.spec.costs.tolist() == [9.0, 2.0]


def test_a_cascade_in_the_file_that_cannot_be_used_is_reported(tmp_path):
    table = pa.table(GOOD).replace_schema_metadata({"ttamer.cascade": "[[nod"})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="cascade kept in the file cannot be used"):
        Trace.read(tmp_path / "t.parquet")
    assert Trace.read(tmp_path / "t.parquet", AB).names == ("a", "b")


def test_a_node_may_be_called_signal_if_the_cascade_has_it(tmp_path):
    write(tmp_path / "t.parquet", {"input.confidence": [0.5], "input.length": [3.0]})
    trace = Trace.read(tmp_path / "t.parquet", CascadeSpec.of({"input": 1.0}))
    assert (trace.names, list(trace.inputs)) == (("input",), ["length"])
    with pytest.raises(TraceError, match=r"no column <node>.confidence"):
        Trace.read(tmp_path / "t.parquet")


def test_names_split_at_the_last_dot(tmp_path):
    write(tmp_path / "t.csv", {"gpt-4.1.mini.confidence": [0.5], "gpt-4.1.mini.margin": [0.1]})
    trace = Trace.read(tmp_path / "t.csv")
    assert trace.names == ("gpt-4.1.mini",)
    assert trace.margin.tolist() == [[0.1]]


def test_the_same_class_in_other_types(tmp_path):
    columns = GOOD | {
        "a.prediction": ["1", "2", "3"],
        "b.prediction": [1.0, None, 1.0],
        "label": pa.array(["1", "2", "2"]).dictionary_encode(),
    }
    write(tmp_path / "t.parquet", columns)
    trace = Trace.read(tmp_path / "t.parquet", AB)
    assert trace.loss.tolist() == [[False, False], [False, True], [True, True]]
    assert trace.prediction[1, 1] == -1


def test_truth_values_in_any_dress(tmp_path):
    for number, values in enumerate(([True, False, True], [1, 0, 1], [1.0, 0.0, 1.0])):
        for suffix in FORMATS:
            path = tmp_path / f"{number}.{suffix}"
            write(path, {"a.confidence": [0.5] * 3, "a.correct": values})
            assert Trace.read(path).correct[:, 0].tolist() == [True, False, True]
    (tmp_path / "t.csv").write_text("a.confidence,a.correct\n0.5,True\n0.5,0\n0.5,TRUE\n")
    assert Trace.read(tmp_path / "t.csv").correct[:, 0].tolist() == [True, False, True]


def test_text_that_csv_readers_like_to_lose(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\ufeffa.confidence,a.prediction,label\n1,NA,NA\n2,,null\n3,"",""\n', "utf-8")
    trace = Trace.read(path)
    assert trace.prediction[:, 0].tolist() == [trace.classes.index("NA"), -1, trace.label[2]]
    assert set(trace.classes) == {"NA", "null", ""}


def test_an_empty_line_is_a_gap_only_in_a_file_of_one_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a.confidence,label\n0.5,x\n\n0.7,y\n\n")
    assert len(Trace.read(path)) == 2
    path.write_text("a.confidence\n0.5\n\n0.7\n")
    assert Trace.read(path).answered[:, 0].tolist() == [True, False, True]


def test_numbers_of_every_kind(tmp_path):
    kinds = [np.array([1, 2, 3], kind) for kind in ("f2", "f4", "i1", "u8")]
    for values in (*kinds, pa.array([1, 2, 3]).cast(pa.decimal128(25, 2))):
        write(tmp_path / "t.parquet", {"a.confidence": pa.array(values)})
        assert Trace.read(tmp_path / "t.parquet").confidence[:, 0].tolist() == [1, 2, 3]
    dictionary = pa.array([1.5, 2.5, 1.5]).dictionary_encode()
    write(tmp_path / "t.parquet", {"a.confidence": dictionary})
    assert Trace.read(tmp_path / "t.parquet").confidence[:, 0].tolist() == [1.5, 2.5, 1.5]


NAN, INF = float("nan"), float("inf")
EVERY = FORMATS
CORRECT = {"a.correct": [True] * 3, "b.correct": [True] * 3}


def without(*names: str) -> dict:
    return {name: values for name, values in GOOD.items() if name not in names}


@pytest.mark.parametrize(
    ("suffixes", "columns", "says"),
    [
        (EVERY, {"a.confidence": [0.1, NAN, NAN]}, "'a.confidence': row 1 .* 1 more of 3 are miss"),
        (EVERY, {"b.confidence": [0.1, 0.2, INF]}, "'b.confidence': row 2 .* is missing, NaN or"),
        (EVERY, {"b.confidence": [-INF, 0.2, 0.3]}, "'b.confidence': row 0 .* is missing, NaN or"),
        (EVERY, {"a.confidence": [0.1, None, 0.2]}, "'a.confidence': row 1 .* is missing"),
        (["parquet"], {"a.confidence": [None] * 3}, "'a.confidence': row 0 .* 2 more"),
        (EVERY, {"a.confidence": ["x", "y", "z"]}, "'a.confidence'"),
        (["parquet"], {"a.confidence": [True] * 3}, "holds bool, and numbers are needed"),
        (EVERY, {"c.confidence": [0.1] * 3}, "not in the cascade: 'c.confidence'"),
        (EVERY, {"c.cost": [0.1] * 3}, "not in the cascade: 'c.cost'"),
        (EVERY, {"a.cost": [1.0, -1.0, 1.0]}, "'a.cost': row 1 .* is negative"),
        (EVERY, {"a.loss": [1.0, -1.0, 1.0]}, "'a.loss': row 1 .* is negative"),
        (EVERY, {"a.loss": [1.0, 1.0, INF]}, "'a.loss': row 2 .* is missing, NaN or infinite"),
        (EVERY, {"a.chance": [0.5, 1.5, 1.0]}, "'a.chance': row 1 .* is above 1, and a chance"),
        (EVERY, {"a.score": [0.5, 1.5, 1.0]}, "'a.score': row 1 .*; give other grades as <node>.l"),
        (EVERY, {"a.score": [1.0] * 3, "a.loss": [0.0] * 3}, "columns of losses and of scores"),
        (EVERY, {"a.cost": [1.0, NAN, 1.0]}, "'a.cost': row 1 .* is missing, NaN"),
        (EVERY, {"input.s": [1.0, 1.0, NAN]}, "'input.s': row 2"),
        (EVERY, {"a.margin": [1.0, 1.0, NAN]}, "'a.margin': row 2"),
        (EVERY, CORRECT | {"a.correct": [1, 0, 2]}, "'a.correct': row 2 "),
        (EVERY, CORRECT | {"a.correct": ["yes", "no", "no"]}, "'a.correct'"),
        (EVERY, {"label": ["x", "y", "z"]}, "no label is ever predicted .* 'x', 'y', 'z', pred"),
        (["parquet"], {"label": [[1], [2], [3]]}, "'label': holds list"),
        (["parquet"], {"label": ["a\0", "b", "c"]}, "'label': the class .*NUL"),
    ],
)
def test_bad_values_are_refused_by_name(tmp_path, suffixes, columns, says):
    for suffix in suffixes:
        path = tmp_path / f"t.{suffix}"
        write(path, GOOD | columns)
        with pytest.raises(TraceError, match=says) as error:
            Trace.read(path, AB)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
        with pytest.raises(TraceError, match=says.split(" and ")[0]):
            list(read_batches(path, AB, rows=10))


@pytest.mark.parametrize("suffix", FORMATS)
def test_missing_columns(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    write(path, without("b.confidence") | {"b.confidance": [0.1] * 3})
    with pytest.raises(TraceError, match=r"'b.confidence' is missing: rename 'b.confidance'"):
        Trace.read(path, AB)
    write(path, without("b.confidence") | {"sure": [0.1] * 3})
    with pytest.raises(TraceError, match=r"'b.confidence' is missing; .* understood: 'sure'"):
        Trace.read(path, AB)
    write(path, without("b.prediction"))
    with pytest.raises(
        TraceError, match=r"'b.prediction' is missing, and prediction is needed for"
    ):
        Trace.read(path, AB)
    write(path, {"x": [1]})
    with pytest.raises(TraceError, match=r"there is no column <node>.confidence; there are 'x'"):
        Trace.read(path)
    write(path, {"a.confidence;b.confidence": ["0.1;0.2"]})
    for cascade in (AB, None):
        with pytest.raises(TraceError, match=r"one column, .* separated by ';'; separate"):
            Trace.read(path, cascade)
    write(path, {".confidence": [1]})
    with pytest.raises(TraceError, match=r"no column <node>.confidence"):
        Trace.read(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_rows(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    write(path, {"a.confidence": np.array([], float)})
    with pytest.raises(TraceError, match="no rows"):
        Trace.read(path)
    with pytest.raises(TraceError, match="no rows"):
        list(read_batches(path))
    with pytest.raises(TraceError, match="no rows is not written"):
        big_trace(3).take([]).write(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_are_no_traces(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        Trace.read(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="is empty"):
        Trace.read(path)
    path.write_bytes(b"\x00\xff\xfenot a trace at all\n" * 30)
    with pytest.raises(TraceError, match=str(path)):
        Trace.read(path, AB)
    path.unlink()
    path.mkdir()
    with pytest.raises(TraceError, match="is a folder"):
        Trace.read(path)


@pytest.mark.parametrize("suffix", ["parquet", "csv.gz"])
def test_files_cut_short_or_altered(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    big_trace(1000).write(path)
    whole = path.read_bytes()
    for size in (1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError) as error:
            Trace.read(path, AB)
        assert "\n" not in str(error.value)
    random = np.random.default_rng(0)
    for _ in range(60):  # altered files may still hold a trace, or be refused: nothing else
        altered = bytearray(whole)
        for place in random.integers(0, len(whole), 20):
            altered[place] = random.integers(256)
        path.write_bytes(altered)
        with suppress(TraceError):
            Trace.read(path, AB)
        with suppress(TraceError):
            list(read_batches(path, AB, rows=100))


def test_duplicate_columns(tmp_path):
    table = pa.table([pa.array([0.5]), pa.array([0.6])], names=["a.confidence", "a.confidence"])
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a.confidence,a.confidence\n0.5,0.6\n")
    for suffix in FORMATS:
        for cascade in (None, CascadeSpec.of({"a": 1.0})):
            with pytest.raises(TraceError, match=r"'a.confidence' appears 2 times"):
                Trace.read(tmp_path / f"t.{suffix}", cascade)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.confidence\n0.5\nx\n", r"'a.confidence': row 1 \(counting from 0\) holds 'x'"),
        ("a.confidence\n0.5\nNA\n", "row 1 .* holds 'NA'.*; leave a cell without a value empty"),
        ("a.confidence\n91.5%\n", "row 0 .* holds '91.5%'.*; leave out the \"%\""),
        ('a.confidence\n"0,9"\n', "row 0 .* holds '0,9'.*; write decimals with a point"),
        ("a.confidence\n0.5\n1_0\n", "row 1 .* holds '1_0'"),
        ("a.confidence,label\n0.5,x\n0.5\n", "line 3 has 1 cells, and the header has 2"),
        ("a.confidence,label\n0.5,x\n0.5,y,z\n", "line 3 has 3 cells, and the header has 2"),
        ("a.confidence,a.correct\n0.5,1\n0.5,maybe\n", "row 1 .* 'maybe', .* write true or false"),
        ("a.confidence", "no rows"),
    ],
)
def test_csv_that_does_not_parse(tmp_path, text, says):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        Trace.read(path)
    with pytest.raises(TraceError, match=says):
        list(read_batches(path))


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_left_out_are_counted_once(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    columns = GOOD | {
        "a.confidence": [NAN, 0.2, INF],
        "b.confidence": [NAN, 0.5, 0.6],
        "input.s": [1.0, 2.0, 3.0],
        "a.cost": [1.0, 2.0, 3.0],
        "a.margin": [1.0, 2.0, 3.0],
    }
    write(path, columns)
    trace = Trace.read(path, AB, on_bad="skip")
    assert trace.left_out == {"a.confidence is missing, NaN or infinite": 2}
    assert trace.confidence.tolist() == [[0.2, 0.5]]
    assert trace.inputs["s"].tolist() == [2.0]
    assert trace.cost.tolist() == [[2.0, 2.0]]
    parts = list(read_batches(path, AB, rows=1, on_bad="skip"))
    assert [len(part) for part in parts] == [0, 1, 0]
    assert Trace.concat(parts).left_out == trace.left_out
    assert Trace.concat(parts).digest == trace.digest


def test_rows_left_out_for_several_reasons(tmp_path):
    columns = GOOD | {
        "b.confidence": [None, 0.5, 0.6],
        "label": [None, None, 3],
    }
    write(tmp_path / "t.parquet", columns)
    trace = Trace.read(tmp_path / "t.parquet", AB, on_bad="skip")
    assert trace.left_out == {"b.confidence is missing, NaN or infinite": 1}
    assert trace.label[0] == -1


def test_all_rows_left_out(tmp_path):
    write(tmp_path / "t.csv", {"a.confidence": [-INF, INF]})
    for read in (Trace.read, lambda *a, **k: list(read_batches(*a, **k))):
        with pytest.raises(TraceError, match=r"every row was left out \(2 in all"):
            read(tmp_path / "t.csv", on_bad="skip")


def test_where_a_bad_row_of_a_later_batch_stands(tmp_path):
    write(tmp_path / "t.parquet", {"a.confidence": [0.5] * 7 + [INF]})
    with pytest.raises(TraceError, match="row 7 "):
        list(read_batches(tmp_path / "t.parquet", rows=3))


def test_arguments(tmp_path):
    write(tmp_path / "t.csv", {"a.confidence": [0.5]})
    with pytest.raises(ArgumentError, match="on_bad is 'drop'"):
        Trace.read(tmp_path / "t.csv", on_bad="drop")
    with pytest.raises(ArgumentError, match="sample is 0; it must be a whole number from 1 on"):
        Trace.read(tmp_path / "t.csv", sample=0)
    for name in ("log.json", "t.txt"):
        with pytest.raises(TraceError, match=r"suffix must be one of .parquet, .* as with pandas"):
            Trace.read(tmp_path / name)
        with pytest.raises(TraceError, match="suffix must be one of"):
            big_trace(2).write(tmp_path / name)
    with pytest.raises(TraceError, match=rf"cannot be written: there is no folder {tmp_path}/no$"):
        big_trace(2).write(tmp_path / "no" / "t.csv")
    with pytest.raises(CascadeError, match=r"none.toml: cannot be read"):
        Trace.read(tmp_path / "t.csv", tmp_path / "none.toml")


def test_a_failed_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    big_trace(3).write(path)
    before = path.read_bytes()
    monkeypatch.setattr("pyarrow.parquet.write_table", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        big_trace(5).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    trace = big_trace(3)
    for suffix in FORMATS:
        trace.write(tmp_path / f"t.{suffix}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    for suffix in FORMATS:
        with pytest.raises(MissingExtra, match=r"ttamer\[io\]"):
            Trace.read(tmp_path / f"t.{suffix}")
        with pytest.raises(MissingExtra, match=r"ttamer\[io\]"):
            trace.write(tmp_path / f"v.{suffix}")


def test_a_package_that_is_installed_and_broken_is_not_reported_as_missing(monkeypatch):
    """As where a file of the user's shadows a module that the package imports."""

    def broken(name, *_):
        raise ImportError(f"cannot import name 'x' from {name!r}")

    monkeypatch.setattr("ttamer._checks.import_module", broken)
    with pytest.raises(ImportError, match="cannot import name 'x'") as caught:
        arrow()
    assert not isinstance(caught.value, MissingExtra)


def test_parquet_takes_little_room_for_numbers_that_were_single_precision(tmp_path):
    single = np.random.default_rng(0).random((4000, 2)).astype(np.float32)
    trace = Trace(AB, single.astype(np.float64))
    trace.write(tmp_path / "t.parquet")
    file = pq.ParquetFile(tmp_path / "t.parquet")
    assert file.schema_arrow.field("a.confidence").type == pa.float64()
    assert "BYTE_STREAM_SPLIT" in file.metadata.row_group(0).column(0).encodings
    assert (tmp_path / "t.parquet").stat().st_size < single.nbytes
    np.testing.assert_array_equal(Trace.read(tmp_path / "t.parquet").confidence, single)


SPACED = "a.confidence,input.n,input.v\n" + 20_000 * '0.5,1,"[1, 2]"\n' + "0x,3,\n"


def test_cells_that_arrow_cannot_read_leave_the_types_of_inputs(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(SPACED.replace("0x", "Infinity").replace("0.5", "1e5", 1))
    trace = Trace.read(path, on_bad="skip")
    assert trace.left_out == {"a.confidence is missing, NaN or infinite": 1}
    path.write_text(SPACED.replace("0x", "\u0665"))  # a digit for Python, and not for Arrow
    with pytest.raises(TraceError, match=r"'input.v': row 20000 .* is missing"):
        Trace.read(path)
    trace = Trace.read(path, on_bad="skip")
    assert trace.left_out == {"input.v is missing, NaN or infinite": 1}
    assert (trace.inputs["n"].dtype, trace.inputs["v"].shape) == (np.float64, (20_000, 2))
    path.write_text(SPACED)
    with pytest.raises(TraceError, match=r"row 20000 .* holds '0x', which is not a number"):
        Trace.read(path)


def test_inputs_of_a_csv_that_are_numbers_at_first_are_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a.confidence,input.zip\n" + 200_000 * "0.5,10115\n" + '0.5,"[1]"\n')
    values = Trace.read(path).inputs["zip"]
    assert (values[0], values[-1]) == ("10115", "[1]")


def test_csv_that_stops_being_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a.confidence,label\n0.5,x\n" * 1 + b"0.5,x\n" * 20_000 + b"0.5,\xff\n")
    with pytest.raises(TraceError, match=r"is damaged after row .* invalid UTF8 data"):
        Trace.read(path)


def test_the_cascade_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "trace.md").read_text("utf-8")
    spec = CascadeSpec.from_toml(text.split("```toml\n")[1].split("```")[0])
    assert spec.parents == ((), (0,))
    assert spec.nodes[0].options == {"upstream": "http://..."}
