"""Fitting a trace that is larger than memory.

The rows are read twice, a batch at a time. The first reading keeps a uniform sample, from which the
plan and the states are chosen as for a trace in memory; the second adds up the counts of all
rows. Memory is bounded by the sample and one batch, whatever the length of the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import TraceError
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting.counts import Counts
from ttamer.fitting.plans import (
    build_from,
    choose_plan,
    columns_of,
    held_out_rungs,
    pairs_of,
    with_rungs,
)
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedLadder
    from ttamer.fitted.mixture import Rungs
    from ttamer.fitting.counts import Pair
    from ttamer.fitting.plans import Plan
    from ttamer.trace.spec import CascadeSpec

__all__ = ["BATCH_ROWS", "SAMPLE_ROWS", "Planned", "fit_batches", "fit_file", "options_of"]

BATCH_ROWS = 131_072
SAMPLE_ROWS = 50_000

DEFAULTS: dict[str, Any] = {
    "belief": "calibrated",
    "order": None,
    "states": None,
    "quantise": "quantile",
    "smoothing": 1.0,
    "tradeoffs": None,
    "folds": 5,
    "seed": 0,
    "progress": None,
}


def fit_file(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | str | os.PathLike[str],
    **options: Any,
) -> FittedLadder:
    """Fit a trace file of any length; options as for :func:`ttamer.fit`."""
    from ttamer.trace.files import read_batches

    return fit_batches(lambda: read_batches(path, cascade, rows=BATCH_ROWS), **options)


def fit_batches(
    batches: Callable[[], Iterable[Trace]], *, sample_rows: int = SAMPLE_ROWS, **options: Any
) -> FittedLadder:
    """Fit what ``batches()`` yields; it is called twice and must yield the same rows.

    Options as for :func:`ttamer.fit`. With no more rows than ``sample_rows`` the result is that of
    a fit in memory.
    """
    chosen = options_of(options)
    say = chosen["progress"] or (lambda _: None)
    sample, rows, digest = _sample(batches(), sample_rows, chosen["seed"], say)
    planned = Planned.of(sample, chosen)
    counts: Counts | None = None
    for batch in batches():
        more = Counts.of(batch, planned.quantiser, planned.pairs)
        counts = more if counts is None else counts + more
        say(f"counted {int(counts.rows)} of {rows} rows")
    if counts is None or counts.rows != rows:
        raise TraceError("the second reading gave other rows than the first: the file has changed")
    return planned.ladder(counts, digest)


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fit in two readings: defaults, and what is given."""
    chosen = {**DEFAULTS, **given}
    if chosen["belief"] == "full":  # its counts need more than one pass: the sample must do
        chosen["belief"] = "calibrated"
    return chosen


@dataclass(frozen=True, eq=False)
class Planned:
    """What a sample decides: how rows are counted, and what is made of the counts."""

    sample: Trace
    plan: Plan
    tradeoffs: NDArray[np.float64]
    rungs: Rungs
    quantiser: Quantiser

    @classmethod
    def of(cls, sample: Trace, options: Mapping[str, Any]) -> Planned:
        """Choose a plan and the states from a sample."""
        plan, tradeoffs, rungs = choose_plan(sample, **options)
        if rungs is None:
            folds, seed = options["folds"], options["seed"]
            rungs = held_out_rungs(sample, plan, tradeoffs, folds=folds, seed=seed)
        quantiser = Quantiser.fit(sample.confidence, states=plan.states, method=plan.quantise)
        return cls(sample, plan, tradeoffs, rungs, quantiser)

    @property
    def pairs(self) -> list[Pair]:
        """Which pairs of nodes to count transitions of."""
        return pairs_of(self.sample.spec, columns_of(self.sample, self.plan), self.plan)

    def ladder(self, counts: Counts, digest: str) -> FittedLadder:
        """Fit from the counts of all rows."""
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
        return with_rungs(ladder, self.rungs.errors, self.sample)


def _sample(
    batches: Iterable[Trace], most: int, seed: int, say: Callable[[str], None]
) -> tuple[Trace, int, str]:
    """Return a uniform sample in the order of the rows, how many there were, and their digest."""
    generator = np.random.default_rng([seed, 1])  # a stream that nobody else draws from
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
        say(f"read {rows} rows")
    if kept is None:
        raise TraceError("there are no rows to fit")
    return kept, rows, f"batches:{digest.hexdigest()}"
