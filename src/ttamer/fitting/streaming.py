"""Fitting a trace that is larger than memory.

The rows are read a batch at a time. The first reading keeps a uniform sample, from which the plan
is chosen as for a trace in memory. A full belief is fitted to the sample, which is as large as
what a fit in memory uses of a long trace. Else a second reading adds up the counts of all rows.
Memory is bounded by the sample and one batch, whatever the length of the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting.counts import Counts
from ttamer.fitting.options import FitOptions
from ttamer.fitting.plans import (
    MAX_BELIEF_ROWS,
    build,
    build_from,
    choose_plan,
    columns_of,
    fitted_to,
    held_out,
    pairs_of,
    with_latencies,
    with_latency_price,
    with_rungs,
)
from ttamer.trace.trace import OnBad, Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedLadder
    from ttamer.fitting.counts import Pair
    from ttamer.fitting.options import FitKeywords
    from ttamer.fitting.plans import FoldResults, Plan
    from ttamer.trace.spec import CascadeSpec

__all__ = [
    "BATCH_ROWS",
    "SAMPLE_ROWS",
    "Planned",
    "fit_batches",
    "fit_file",
    "sample_size",
    "streamed",
]

BATCH_ROWS = 131_072
"""A file is read this many rows at a time."""
SAMPLE_ROWS = 50_000
"""The plan and the states are chosen from this many rows."""


def fit_file(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None = None,
    *,
    on_bad: OnBad = "refuse",
    **options: Unpack[FitKeywords],
) -> FittedLadder:
    """Fit a trace file of any length, reading it in batches.

    Args:
        path: A Parquet, CSV or NPZ file.
        cascade: The cascade, the path of a ``cascade.toml``, or the cost of each node by name; by
            default the one kept in the file.
        on_bad: As for :meth:`ttamer.Trace.read`.
        **options: The fields of :class:`~ttamer.fitting.FitOptions`, but ``hold_out``.

    Returns:
        A ladder as :func:`ttamer.fit` returns.

    Raises:
        ArgumentError: An option is out of range.
        TraceError: The file cannot be read, or changes while it is read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import datasets
    >>> trace = datasets.load("minilm-imdb").take(slice(400))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace.write(Path(folder, "trace.npz"))
    ...     ladder = fit_file(
    ...         Path(folder, "trace.npz"), trace.spec, belief="calibrated", states=4
    ...     )
    >>> ladder.fitted.rows
    400
    """
    from ttamer.trace.files import read_batches

    def batches() -> Iterable[Trace]:
        return read_batches(path, cascade, rows=BATCH_ROWS, on_bad=on_bad)

    return fit_batches(batches, **options)


def fit_batches(
    batches: Callable[[], Iterable[Trace]],
    *,
    sample_rows: int | None = None,
    **options: Unpack[FitKeywords],
) -> FittedLadder:
    """Fit batches of rows, in one reading for a full belief, else in two.

    With no more rows than ``sample_rows`` the result is that of a fit in memory.

    Args:
        batches: Called once or twice; it must yield the same rows both times.
        sample_rows: How many rows the plan is chosen from; by default 400,000 for a full belief,
            which is fitted to them, and 50,000 otherwise.
        **options: The fields of :class:`~ttamer.fitting.FitOptions`, but ``hold_out``.

    Returns:
        A ladder as :func:`ttamer.fit` returns.

    Raises:
        ArgumentError: An option is out of range.
        TraceError: There are no rows, or the second reading gives others.

    >>> from ttamer import datasets
    >>> trace = datasets.load("minilm-imdb").take(slice(400))
    >>> parts = [trace.take(slice(0, 200)), trace.take(slice(200, 400))]
    >>> fit_batches(lambda: parts, states=4).fitted.rows
    400
    """
    if not callable(batches):
        raise ArgumentError(
            f"fit_batches takes a function that returns traces, not {type(batches).__name__}: "
            "write lambda: traces, or call fit(trace)"
        )
    chosen = streamed(options)

    def parts() -> Iterable[Trace]:
        return (batch.with_verification() for batch in batches())

    sample, rows, digest = _sample(parts(), sample_size(sample_rows, chosen), chosen)
    planned = Planned.of(sample, chosen)
    if planned.plan.belief == "full":
        return planned.belief_ladder(rows, digest)
    counts: Counts | None = None
    for batch in parts():
        more = Counts.of(with_latency_price(batch, chosen), planned.quantiser, planned.pairs)
        counts = more if counts is None else counts + more
        chosen.report(f"counted {int(counts.rows)} of {rows} rows")
    if counts is None or counts.rows != rows:
        raise TraceError("the second reading gave other rows than the first: the file has changed")
    return planned.ladder(counts, digest)


def streamed(given: FitKeywords) -> FitOptions:
    """Return the options of a fit in two readings."""
    options = FitOptions.of(given)
    if options.belief == "threshold":
        raise ArgumentError(
            'belief="threshold" needs the rows in memory: use ttamer.fit (no --stream), '
            "on a part of the rows where they are too many"
        )
    if options.hold_out:
        raise ArgumentError(
            "hold_out needs the rows in memory: keep rows in a file of their own, and give them to "
            "ladder.with_holdout (ttamer certify)"
        )
    return options


def sample_size(given: int | None, options: FitOptions) -> int:
    """Return how many rows a plan is chosen from."""
    if given is not None:
        return given
    return MAX_BELIEF_ROWS if options.belief == "full" else SAMPLE_ROWS


@dataclass(frozen=True, eq=False)
class Planned:
    """What a sample decides: how rows are counted, and what is made of the counts."""

    sample: Trace
    plan: Plan
    tradeoffs: NDArray[np.float64]
    held: FoldResults | None
    quantiser: Quantiser
    options: FitOptions
    as_read: Trace
    """The sample at its own costs, without what latency is worth."""

    @classmethod
    def of(cls, sample: Trace, options: FitOptions) -> Planned:
        """Choose a plan and the states from a sample."""
        as_read, sample = sample, with_latency_price(sample, options)
        plan, tradeoffs, held = choose_plan(sample, options)
        if held is None and plan.belief != "full":
            held = held_out(sample, plan, tradeoffs, options)
        states = 1 if plan.belief == "full" else plan.states  # a belief counts nothing
        quantiser = Quantiser.fit(sample.confidence, states=states, method=plan.quantise)
        return cls(sample, plan, tradeoffs, held, quantiser, options, as_read)

    @property
    def pairs(self) -> list[Pair]:
        """Which pairs of nodes to count transitions of."""
        if self.plan.belief == "full":
            return [(-1, 0)]
        return pairs_of(self.sample.spec, columns_of(self.sample, self.plan), self.plan)

    def belief_ladder(self, rows: int, digest: str) -> FittedLadder:
        """Fit a full belief to the sample of this many rows."""
        ladder = build(self.sample, self.plan, self.tradeoffs, progress=self.options.report)
        if self.held is not None:
            ladder = with_rungs(ladder, self.held, self.sample)
        return fitted_to(with_latencies(ladder, self.as_read), rows, digest)

    def ladder(self, counts: Counts, digest: str) -> FittedLadder:
        """Fit from the counts of all rows."""
        if self.held is None or self.plan.belief == "full":
            return self.belief_ladder(int(counts.rows), digest)
        columns = columns_of(self.sample, self.plan)
        ladder = build_from(
            counts,
            self.quantiser,
            self.sample.spec,
            columns,
            self.plan,
            self.tradeoffs,
            trace_digest=digest,
        )
        ladder = with_rungs(ladder, self.held, self.sample)
        return fitted_to(with_latencies(ladder, self.as_read), int(counts.rows), digest)


def _sample(batches: Iterable[Trace], most: int, options: FitOptions) -> tuple[Trace, int, str]:
    """Return a uniform sample in the order of the rows, how many there were, and their digest."""
    generator = np.random.default_rng([options.seed, 1])  # a stream of its own
    kept: Trace | None = None
    keys = np.empty(0)
    rows, digest = 0, hashlib.sha256()
    for batch in batches:
        rows += len(batch)
        digest.update(batch.digest.encode())
        kept = batch if kept is None else Trace.concat([kept, batch])
        keys = np.concatenate([keys, generator.random(len(batch))])
        if len(keys) > most:  # the rows of the smallest keys are a uniform sample
            inside = np.sort(np.argpartition(keys, most)[:most])
            kept, keys = kept.take(inside), keys[inside]
        options.report(f"read {counted(rows, 'row')}")
    if kept is None:
        raise TraceError("there are no rows to fit")
    return kept, rows, f"batches:{digest.hexdigest()}"
