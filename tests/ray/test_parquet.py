"""Blocks are the batches of a local reading, each readable by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from support.traces import answering_trace, chain_trace
from ttamer.errors import ArgumentError, TraceError
from ttamer.ray.parquet import files_of, spec_of, stretches
from ttamer.trace.files import read_batches
from ttamer.trace.spec import CascadeSpec

SPEC = CascadeSpec.of({"a": 1.0, "b": 2.0})
ROWS = 600


def write(path, *, group, text, as_dictionary=(), seed=0, **options):
    """A log with predictions and labels as text, stored in one of many ways."""
    rng = np.random.default_rng(seed)
    names = np.array([f"class {i}" for i in range(7)])
    columns = {"a.confidence": rng.random(ROWS), "b.confidence": rng.random(ROWS)}
    for name in ("a.prediction", "b.prediction", "label"):
        codes = rng.integers(0, 7, ROWS)
        values = pa.array(names[codes]) if text else pa.array(codes)
        columns[name] = values.dictionary_encode() if name in as_dictionary else values
    pq.write_table(pa.table(columns), path, row_group_size=group, **options)


def blocks_of(path, rows, blocks=1, spec=SPEC):
    return [t for s in stretches([path], spec, rows=rows, blocks=blocks) for t in s.read()]


@given(
    group=st.integers(1, 700),
    rows=st.integers(1, 700),
    blocks=st.integers(1, 5),
    text=st.booleans(),
    as_dictionary=st.sets(st.sampled_from(["a.prediction", "label"])),
    use_dictionary=st.sampled_from([True, False, ["label"]]),
)
def test_blocks_are_the_batches_of_a_local_reading(
    tmp_path_factory, group, rows, blocks, text, as_dictionary, use_dictionary
):
    group, rows = max(group, 20), max(rows, 20)
    path = tmp_path_factory.getbasetemp() / "log.parquet"
    write(path, group=group, text=text, as_dictionary=as_dictionary, use_dictionary=use_dictionary)
    local = [batch.digest for batch in read_batches(path, SPEC, rows=rows)]
    assert [block.digest for block in blocks_of(path, rows, blocks)] == local


def test_a_text_column_whose_dictionary_grew_too_long(tmp_path):
    path = tmp_path / "log.parquet"
    write(path, group=150, text=True, dictionary_pagesize_limit=40, data_page_size=50)
    local = [batch.digest for batch in read_batches(path, SPEC, rows=128)]
    assert [block.digest for block in blocks_of(path, 128)] == local


def test_only_the_blocks_wanted_are_read(tmp_path):
    path = tmp_path / "log.parquet"
    write(path, group=70, text=True)
    (stretch,) = stretches([path], SPEC, rows=100, blocks=100)
    every = [block.digest for block in stretch.read()]
    wanted = [number % 3 != 1 for number in range(len(every))]
    some = [block.digest for block in stretch.read(wanted)]
    assert some == [digest for digest, want in zip(every, wanted, strict=True) if want]
    assert 0 < len(some) < len(every)


def test_row_groups_are_not_shared_by_many_tasks(tmp_path):
    path = tmp_path / "log.parquet"
    write(path, group=300, text=False)
    found = stretches([path], SPEC, rows=100, blocks=1)
    assert [stretch.cuts for stretch in found] == [(0, 100, 200, 300), (300, 400, 500, 600)]


def test_rows_are_numbered_over_all_files(tmp_path):
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    for path in paths:
        write(path, group=600, text=False)
    found = stretches(files_of(tmp_path), SPEC, rows=400, blocks=2)
    assert [(s.file, s.first, s.cuts) for s in found] == [
        (0, 0, (0, 400, 600)),
        (1, 600, (0, 400, 600)),
    ]


def test_a_file_that_changes_is_noticed(tmp_path):
    trace = chain_trace(100)
    trace.write(tmp_path / "log.parquet")
    (stretch,) = stretches([tmp_path / "log.parquet"], trace.spec, rows=200, blocks=1)
    trace.take(slice(0, 60)).write(tmp_path / "log.parquet")
    with pytest.raises(TraceError, match="had 100 rows and now has 60: the file has changed"):
        list(stretch.read())


def test_files_that_cannot_be_read_in_parts_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"only Parquet files are read in parts"):
        files_of("log.csv")
    with pytest.raises(TraceError, match=r"is a folder without \*.parquet files"):
        files_of(tmp_path)
    with pytest.raises(ArgumentError, match="there are no files"):
        files_of([])
    for wrong in (None, ["log.parquet", 3]):
        with pytest.raises(ArgumentError, match="paths must be a file, a folder, or a list"):
            files_of(wrong)
    with pytest.raises(TraceError, match="cannot be read"):
        stretches(files_of(tmp_path / "none.parquet"), SPEC, rows=10, blocks=1)


def test_the_cascade_is_the_one_given_or_the_one_in_the_file(tmp_path):
    trace = answering_trace(50)
    trace.write(tmp_path / "log.parquet")
    trace.spec.to_file(tmp_path / "cascade.toml")
    assert spec_of(trace.spec, tmp_path) is trace.spec
    assert spec_of(tmp_path / "cascade.toml", tmp_path) == trace.spec
    assert spec_of(None, tmp_path / "log.parquet") == trace.spec
    write(tmp_path / "plain.parquet", group=100, text=False)
    with pytest.raises(ArgumentError, match=r"has no cascade inside; give a cascade.toml"):
        spec_of(None, tmp_path / "plain.parquet")
