"""Bench: every family over many traces, with wins and losses.

For each trace half of the rows are fitted to and the other half measured on, chosen by
``numpy.random.default_rng(0).permutation``. Families are compared by the area under their lower
convex envelope; whether a difference is real is judged by resampling the test rows, the same
resample for all families.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._arguments import require_path
from ttamer.errors import ArgumentError, TraceError
from ttamer.evaluation.bootstrap import RowBootstrap, check_resampling, interval
from ttamer.evaluation.families import family_names, uses_labels
from ttamer.evaluation.frontiers import Frontier, frontier
from ttamer.fitted.replay import paid
from ttamer.stats.envelope import area_under
from ttamer.trace.checks import require_trace
from ttamer.trace.files import SUFFIXES, beside
from ttamer.trace.trace import Trace

# Areas that differ by less are equal.
ROUNDING = 1e-12


@dataclass(frozen=True)
class PairwiseComparison:
    """How much smaller the first family's area is than a rival's, as a share of the rival's."""

    rival: str
    gain: float
    interval: tuple[float, float]

    @property
    def verdict(self) -> str:
        """``"win"`` or ``"loss"`` where the interval excludes 0, else ``"tie"``."""
        low, high = self.interval
        return "win" if low > 0 else "loss" if high < 0 else "tie"


@dataclass(frozen=True, eq=False)
class TraceBench:
    """All families on one trace."""

    name: str
    frontier: Frontier
    comparisons: tuple[PairwiseComparison, ...]
    """The first family against every other, the hardest rival first."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        facts = self.frontier.to_dict()
        del facts["points"]
        comparisons = [{**vars(each), "verdict": each.verdict} for each in self.comparisons]
        return {"trace": self.name, **facts, "duels": comparisons}


def bench(
    folder: str | os.PathLike[str],
    *,
    families: Iterable[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[TraceBench]:
    """Run all families over every trace of a folder; each has its cascade beside it.

    The cascade of ``yelp.parquet`` is ``yelp.toml``, or else ``cascade.toml``.

    Args:
        folder: The folder of the traces: files ending in ``.parquet``, ``.csv``, ``.csv.gz`` or
            ``.npz``.
        families: The names of the families; by default the fits of this package and all
            baselines. The first is compared with each of the others; families that use the labels
            are not compared.
        resamples: Bootstrap resamples for the intervals; 0 gives intervals of no width.
        seed: The seed of the resamples.
        progress: Called with a line of text as the work proceeds.

    Returns:
        One result per trace, in the order of the file names.

    Raises:
        ArgumentError: If the folder does not exist or holds no traces, or a family is unknown.
        TraceError: If a trace cannot be read or has no cascade beside it.

    >>> import tempfile
    >>> from ttamer import datasets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = datasets.export("langid", folder)
    ...     results = bench(folder, families=["threshold", "always-best"], resamples=10)
    >>> [result.name for result in results]
    ['fit', 'test']
    """
    done = []
    check_resampling(resamples, seed)
    names = None if families is None else family_names(families)
    found = find_traces(folder)
    for path, cascade in found:  # a file that cannot be used is found before the work
        Trace.read(path, cascade)
    for number, (path, cascade) in enumerate(found, start=1):
        place = f"{path.name} ({number} of {len(found)})"
        tell = (lambda text, place=place: progress(f"{place}: {text}")) if progress else None
        trace = Trace.read(path, cascade)
        done.append(
            bench_trace(
                beside(path, "").name,
                trace,
                families=names,
                resamples=resamples,
                seed=seed,
                progress=tell,
            )
        )
    return done


def find_traces(folder: str | os.PathLike[str]) -> list[tuple[Path, Path]]:
    """Return the traces of a folder, each with its cascade file."""
    require_path(folder, "bench", "give a folder of traces")
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(f"{place} is not a folder: give one that holds traces")
    found = []
    for path in sorted(p for p in place.iterdir() if p.name.lower().endswith(SUFFIXES)):
        own, shared = beside(path, ".toml"), place / "cascade.toml"
        cascade = own if own.exists() else shared
        if not cascade.exists():
            raise TraceError(f"{path}: has no cascade beside it: write {own.name} or cascade.toml")
        found.append((path, cascade))
    if not found:
        raise ArgumentError(f"{place} holds no traces: none ends in {', '.join(SUFFIXES)}")
    return found


def bench_trace(
    name: str,
    trace: Trace,
    *,
    families: Iterable[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> TraceBench:
    """Run all families on one trace, half to fit and half to test.

    Args:
        name: The name under which the result is listed.
        trace: The rows; they are halved at random, always in the same way.
        families: The names of the families; by default the fits of this package and all
            baselines. The first is compared with each of the others; families that use the labels
            are not compared.
        resamples: Bootstrap resamples for the intervals; 0 gives intervals of no width.
        seed: The seed of the resamples.
        progress: Called with a line of text as the work proceeds.

    Returns:
        The frontier of all families, and the comparisons with the first.

    Raises:
        ArgumentError: If a family is unknown, or none can be fitted.

    >>> from ttamer import datasets
    >>> trace = datasets.load("langid", "test")
    >>> result = bench_trace("langid", trace, families=["threshold", "always-best"], resamples=10)
    >>> [each.rival for each in result.comparisons]
    ['always-best']
    """
    require_trace(trace, "bench_trace")
    trace = trace.with_verification()
    order = np.random.default_rng(0).permutation(len(trace))
    half = len(trace) // 2
    fit_trace, test_trace = trace.take(order[:half]), trace.take(order[half:])
    check_resampling(resamples, seed)
    result = frontier(fit_trace, test_trace, families=families, resamples=0, progress=progress)
    return TraceBench(name, result, _compare(result, test_trace, resamples=resamples, seed=seed))


def _compare(
    result: Frontier, trace: Trace, *, resamples: int, seed: int
) -> tuple[PairwiseComparison, ...]:
    """Compare the first family with each other one, on the same resamples of the test rows."""
    deployable = [family for family in result.families if not uses_labels(family)]
    if not deployable:
        raise ArgumentError(
            f"a bench compares families that can be deployed, and {', '.join(result.families)} "
            "uses the labels: name another one too"
        )
    first, *rivals = deployable
    rows = RowBootstrap.of(len(trace), resamples=resamples, seed=seed)
    sums = {family: _row_tables(result, trace, family) for family in (first, *rivals)}
    areas = {family: _areas(tables, rows) for family, tables in sums.items()}
    comparisons = []
    for rival in rivals:
        gain = float(_gain(result.area(first), result.area(rival)))
        spread = _gain(areas[first], areas[rival])
        # No mean of two infinite gains, where a rival errs on no row of a resample.
        method = "linear" if np.isfinite(spread).all() else "nearest"
        low, high = interval(spread, method=method) if resamples else (gain, gain)
        comparisons.append(PairwiseComparison(rival, gain, (float(low), float(high))))
    return tuple(sorted(comparisons, key=lambda each: each.gain))


def _gain(mine: ArrayLike, theirs: ArrayLike) -> NDArray[np.float64]:
    """Return how much smaller areas are, as shares of the others; 0 where they are equal.

    >>> _gain([1e-17, 0.1, 0.1], [0.0, 0.2, 0.0]).tolist()
    [0.0, 0.5, -inf]
    """
    one, other = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    share = np.divide(one, other, out=np.full(one.shape, np.inf), where=other > 0)
    return 1 - np.where(np.isclose(one, other, rtol=0.0, atol=ROUNDING), 1.0, share)


def _row_tables(
    result: Frontier, trace: Trace, family: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, float]]:
    """Return cost and wrongness, shape (T, settings) each, and the range of costs compared."""
    wrong, rows = trace.losses(), np.arange(len(trace))
    played = result.played[family]
    costs = np.stack([paid(done.asked, trace) for done in played], axis=1)
    errors = np.stack([wrong[rows, done.answer] for done in played], axis=1).astype(float)
    cheap, bad = result.cheapest
    costs = np.column_stack([costs, np.full(len(rows), cheap)])
    errors = np.column_stack([errors, np.full(len(rows), bad)])
    return costs, errors, result.cost_range


def _areas(
    tables: tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, float]],
    rows: RowBootstrap,
) -> NDArray[np.float64]:
    costs, errors, (low, high) = tables
    means: Sequence[Any] = list(
        zip(rows.column_means(costs.T), rows.column_means(errors.T), strict=True)
    )
    return np.array([area_under(cost, error, low, high) / (high - low) for cost, error in means])
