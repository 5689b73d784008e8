"""Fitting a trace that is larger than memory: to a uniform sample of its rows.

The rows are read once, a batch at a time. Memory is bounded by the sample and one batch, whatever
the length of the file. Policies of a sample this large differ from those of all rows by less than
their own standard errors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from ttamer._checks import counted, require_whole
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitting.fits import MAX_ROWS, fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.trace import OnBad, Trace

BATCH_ROWS = 131_072  # a file is read so many rows at a time


def fit_file(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None = None,
    *,
    on_bad: OnBad = "refuse",
    **options: Any,
) -> FittedLadder:
    """Fit a trace file of any length, reading it in batches.

    Args:
        path: A Parquet, CSV or NPZ file.
        cascade: The cascade, the path of a ``cascade.toml``, or the cost of each node by name; by
            default the one kept in the file.
        on_bad: As for :meth:`ttamer.Trace.read`.
        **options: As for :func:`ttamer.fit`.

    Returns:
        A ladder as :func:`ttamer.fit` returns.

    Raises:
        ArgumentError: An option is out of range.
        TraceError: The file cannot be read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import datasets
    >>> trace = datasets.load("minilm-imdb").take(slice(400))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace.write(Path(folder, "trace.npz"))
    ...     ladder = fit_file(Path(folder, "trace.npz"), trace.spec, belief="threshold")
    >>> ladder.record.rows
    400
    """
    from ttamer.trace.io import read_batches  # it imports pyarrow for some formats

    def batches() -> Iterable[Trace]:
        return read_batches(path, cascade, rows=BATCH_ROWS, on_bad=on_bad)

    return fit_batches(batches, **options)


def fit_batches(
    batches: Callable[[], Iterable[Trace]], *, sample_rows: int = MAX_ROWS, **options: Any
) -> FittedLadder:
    """Fit batches of rows, in one reading.

    With no more rows than ``sample_rows`` the result is that of a fit in memory.

    Args:
        batches: A function that returns them.
        sample_rows: How many rows the ladder is fitted to, a uniform sample of more.
        **options: As for :func:`ttamer.fit`.

    Returns:
        A ladder as :func:`ttamer.fit` returns.

    Raises:
        ArgumentError: An option is out of range.
        TraceError: There are no rows.

    >>> from ttamer import datasets
    >>> trace = datasets.load("minilm-imdb").take(slice(400))
    >>> parts = [trace.take(slice(0, 200)), trace.take(slice(200, 400))]
    >>> fit_batches(lambda: parts, belief="threshold").record.rows
    400
    """
    if not callable(batches):
        raise ArgumentError(
            f"fit_batches takes a function that returns traces, not {type(batches).__name__}: "
            "write lambda: traces, or call fit(trace)"
        )
    require_whole(sample_rows, "sample_rows", least=1)
    report = options.get("progress")
    generator = np.random.default_rng([options.get("seed", 0), 1])  # a stream of its own
    sample: Trace | None = None
    keys, rows, digest = np.empty(0), 0, hashlib.sha256()
    for batch in batches():
        rows += len(batch)
        digest.update(batch.digest.encode())
        sample = batch if sample is None else Trace.concat([sample, batch])
        keys = np.concatenate([keys, generator.random(len(batch))])
        if len(keys) > sample_rows:  # the rows of the smallest keys are a uniform sample
            inside = np.sort(np.argpartition(keys, sample_rows)[:sample_rows])
            sample, keys = sample.take(inside), keys[inside]
        if callable(report):
            report(f"read {counted(rows, 'row')}")
    if sample is None:
        raise TraceError("there are no rows to fit")
    ladder = fit(sample, **options)
    if rows == len(sample):
        return ladder
    record = msgspec.structs.replace(
        ladder.record,
        rows=rows,
        sampled=len(sample),
        trace_digest=f"batches:{digest.hexdigest()}",
    )
    return dataclasses.replace(ladder, fitted=dataclasses.replace(ladder.fitted, record=record))
