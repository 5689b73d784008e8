"""Data frames in and out: pandas, polars, Arrow, and the protocols behind them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ttamer import ArgumentError, CascadeSpec, Trace, TraceError, TraceWarning, fit, frontier
from ttamer.errors import CascadeError

COSTS = {"small": 1.0, "large.v2": 10.0}
COLUMNS = {
    "small.confidence": [0.9, 0.4, 0.7],
    "small.prediction": ["cat", "dog", None],
    "large.v2.confidence": [0.8, 0.7, 0.6],
    "large.v2.prediction": ["cat", "cat", "dog"],
    "label": ["cat", "cat", "dog"],
    "input.length": [3.0, 4.0, 5.0],
    "id": [7, 8, 9],
}


class OnlyStream:
    """A frame that has an Arrow stream and nothing else."""

    def __init__(self, frame):
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self._frame.__arrow_c_stream__(requested_schema)


MAKERS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "a stream": lambda columns: OnlyStream(pa.table(columns)),
    "polars categories": lambda columns: pl.DataFrame(columns).with_columns(
        pl.col("label").cast(pl.Categorical)
    ),
    "unsigned categories": lambda columns: (
        pl.DataFrame(columns)
        .with_columns(pl.col("label", "small.prediction").cast(pl.Categorical))
        .to_arrow()
    ),
    "pandas categories": lambda columns: pd.DataFrame(columns).astype({"label": "category"}),
    "an index": lambda columns: pd.DataFrame(columns, index=["x", "y", "z"]),
}


@pytest.fixture(scope="module")
def expected() -> Trace:
    return Trace.from_arrays(
        CascadeSpec.of(COSTS),
        np.column_stack([COLUMNS["small.confidence"], COLUMNS["large.v2.confidence"]]),
        prediction=np.column_stack([COLUMNS["small.prediction"], COLUMNS["large.v2.prediction"]]),
        label=COLUMNS["label"],
        inputs={"length": COLUMNS["input.length"]},
    )


@pytest.mark.parametrize("kind", MAKERS)
def test_a_frame_is_the_same_trace_whatever_library_made_it(kind, expected):
    frame = MAKERS[kind](COLUMNS)
    trace = Trace.from_frame(frame, COSTS)
    assert trace.digest == expected.digest
    assert trace.spec == expected.spec
    assert "'id'" in trace.notes[0]


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 1]])  # the first answer may be missing
def test_to_frame_and_back(expected, rows):
    trace = expected.take(rows)
    frame = trace.to_frame()
    assert list(frame.columns) == [name for name in COLUMNS if name != "id"]
    for other in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        assert Trace.from_frame(other, trace.spec).digest == trace.digest


def test_a_fit_warns_where_no_costs_were_given():
    frame = pd.DataFrame({"a.confidence": np.arange(200) / 200, "a.correct": [True, False] * 100})
    frame = frame.assign(**{"b.confidence": frame["a.confidence"], "b.correct": True})
    with pytest.warns(TraceWarning, match="no costs were given, so that nodes"):
        fit(Trace.from_frame(frame), states=2, belief="markov")
    fit(Trace.from_frame(frame, {"a": 1.0, "b": 2.0}), states=2, belief="markov")


@pytest.mark.parametrize("table", [{"Cat": {"*": 20.0}, "*": {"dog": 2.0}}, {"2": {"Cat": 9.0}}])
def test_a_fit_warns_of_mistakes_on_classes_that_no_row_has(table):
    frame = pd.DataFrame({name: values * 40 for name, values in COLUMNS.items()})
    trace = Trace.from_frame(frame, CascadeSpec.of(COSTS, mistakes=table))
    with pytest.warns(TraceWarning, match="table of mistakes has .*'Cat', which no row has"):
        fit(trace, belief="markov", states=2)
    more = CascadeSpec.of(COSTS, mistakes={"cat": {"bird": 3.0}})  # no row is of a bird
    fit(dataclasses.replace(trace, spec=more), belief="markov", states=2)


@pytest.mark.parametrize("table", [{1: {"*": 20.0}}, {"0": {1: 20.0}}])
def test_classes_of_mistakes_that_are_numbers_are_refused_with_what_to_write(table):
    with pytest.raises(CascadeError, match="1 must be text, such as '1'"):
        CascadeSpec.of(COSTS, mistakes=table)


def test_the_index_of_pandas_is_not_a_column(tmp_path):
    frame = pd.DataFrame(COLUMNS).drop(columns="id").iloc[::-1]
    frame.to_csv(tmp_path / "log.csv")
    frame.to_parquet(tmp_path / "log.parquet")
    frame.index = pd.date_range("2026", periods=3)
    assert Trace.from_frame(frame, COSTS).notes == ()
    for name in ("log.csv", "log.parquet"):
        assert Trace.read(tmp_path / name, COSTS).notes == ()


def test_columns_of_one_name_are_refused():
    frame = pd.DataFrame(COLUMNS)
    with pytest.raises(TraceError, match="the column 'label' appears 2 times; keep one"):
        Trace.from_frame(pd.concat([frame, frame["label"]], axis=1), COSTS)


def test_a_cascade_file_is_taken_too(tmp_path, expected):
    expected.spec.to_file(tmp_path / "cascade.toml")
    trace = Trace.from_frame(pd.DataFrame(COLUMNS), tmp_path / "cascade.toml")
    assert trace.digest == expected.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"small.confidence": [0.9, None, 0.7]},
            "column 'small.confidence': row 1 .* is missing, and small.prediction has",
        ),
        (
            {"small.confidence": ["a", "b", "c"]},
            "the frame: column 'small.conf.*row 0 .* holds 'a', which is not a number; correct",
        ),
        ({"label": ["bird"] * 3}, "the frame: no label is ever predicted"),
        (
            {"other.confidence": [1.0] * 3},
            r"columns of nodes that are not in the cascade.* an entry in costs",
        ),
        (
            {"small.correct": ["yes"] * 3, "large.v2.correct": ["no"] * 3},
            "column 'small.correct': row 0 .* holds 'yes', which is not a truth value; write true",
        ),
    ],
)
@pytest.mark.parametrize("maker", [pd.DataFrame, pl.DataFrame])
def test_what_cannot_be_used_is_named(maker, change, message):
    with pytest.raises(TraceError, match=message):
        Trace.from_frame(maker({**COLUMNS, **change}), COSTS)


def test_costs_that_are_no_mapping_are_refused():
    with pytest.raises(ArgumentError, match=r"costs must be a mapping .* not list"):
        Trace.from_frame(pd.DataFrame(COLUMNS), [1.0, 2.0])


@pytest.mark.parametrize("spell", [lambda c: c.replace(".", "_"), str.title, " {}".format])
def test_columns_that_differ_in_marks_spaces_or_capitals_are_to_be_renamed(spell):
    frame = pd.DataFrame(COLUMNS).rename(columns=spell)
    first = spell("small.confidence")
    with pytest.raises(TraceError, match=f"rename '{first}' to 'small.confidence', .* more alike"):
        Trace.from_frame(frame, COSTS)


def test_a_label_of_another_name_is_named():
    frame = pd.DataFrame(COLUMNS).rename(columns={"label": "truth"})
    with pytest.raises(TraceError, match=r"has no label: .* \(columns not used: 'truth', 'id'\)"):
        _ = Trace.from_frame(frame, COSTS).loss


def test_columns_of_mixed_types_are_refused_in_plain_words():
    frame = pd.DataFrame({**COLUMNS, "label": pd.Series(["cat", 1, None], dtype=object)})
    with pytest.raises(TraceError, match="give each column one type"):
        Trace.from_frame(frame, COSTS)


def test_a_frame_in_the_wrong_place_reports_what_to_call():
    frame = pd.DataFrame(COLUMNS)
    for function in (Trace.read, fit):
        with pytest.raises(ArgumentError, match=r"Trace.from_frame\(frame, \{...\}\)"):
            function(frame)
    with pytest.raises(ArgumentError, match=r"needs a data frame .* not dict"):
        Trace.from_frame(COLUMNS)
    for column in (frame["label"], pl.DataFrame(COLUMNS)["label"]):
        with pytest.raises(ArgumentError, match="a Series is one column: give the frame with"):
            Trace.from_frame(column)
    with pytest.raises(ArgumentError, match=r"not LazyFrame; give frame.collect\(\)"):
        Trace.from_frame(pl.DataFrame(COLUMNS).lazy())


def test_a_frontier_of_data_frames_names_what_to_call():
    frame = pd.DataFrame({"a.confidence": [0.5]})
    with pytest.raises(ArgumentError, match=r"a frontier needs a Trace, not DataFrame.*from_frame"):
        frontier(frame, frame)
