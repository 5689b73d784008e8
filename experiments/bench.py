"""Every family on every trace of a folder, with wins and losses.

    python experiments/bench.py FOLDER [--families ttamer,threshold,chain] [--json FILE]

Each trace has its cascade beside it: ``yelp.toml`` or else ``cascade.toml`` for ``yelp.parquet``.
Half of the rows are fitted to and the other half measured on, chosen by
``numpy.random.default_rng(0).permutation``. Families are compared by the area under their lower
convex envelope; whether a difference is real is judged by resampling the test rows, the same
resample for all families.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import ttamer as tt
from ttamer.evaluation.frontiers import Resampled
from ttamer.evaluation.results import interval
from ttamer.stats import area_under

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".npz")


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
    """All families on one trace; the first against every other, the hardest rival first."""

    name: str
    frontier: tt.Frontier
    comparisons: tuple[PairwiseComparison, ...]


def find_traces(folder: Path) -> list[tuple[Path, Path]]:
    """Return the traces of a folder, each with its cascade file."""
    paths = []
    for path in sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIXES)):
        stem = path.name.removesuffix(".gz").rpartition(".")[0]
        beside = path.with_name(f"{stem}.toml")
        paths.append((path, beside if beside.exists() else folder / "cascade.toml"))
    return paths


def bench_trace(
    name: str,
    trace: tt.Trace,
    *,
    families: Iterable[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
) -> TraceBench:
    """Run all families on one trace, half to fit and half to test."""
    order = np.random.default_rng(0).permutation(len(trace))
    half = len(trace) // 2
    fit_trace, test_trace = trace.take(order[:half]), trace.take(order[half:])
    result = tt.frontier(fit_trace, test_trace, families=families, resamples=0)
    names = [family for family in result.families if family != "oracle"]
    drawn = Resampled.of(result, names, resamples=max(resamples, 1), seed=seed)
    areas = {}
    for family in names:
        cheap, error = result.cheapest
        low, high = result.cost_range
        areas[family] = np.array([
            area_under([*costs, cheap], [*errors, error], low, high) / (high - low)
            for costs, errors in zip(*drawn.families[family], strict=True)
        ])  # fmt: skip
    first, *rivals = names
    comparisons = []
    for rival in rivals:
        gain = float(_gain(result.area(first), result.area(rival)))
        spread = _gain(areas[first], areas[rival])
        # No mean of two infinite gains, where a rival errs on no row of a resample.
        low, high = interval(spread, method="linear" if np.isfinite(spread).all() else "nearest")
        comparisons.append(PairwiseComparison(rival, gain, (float(low), float(high))))
    return TraceBench(name, result, tuple(sorted(comparisons, key=lambda each: each.gain)))


def _gain(mine: ArrayLike, theirs: ArrayLike) -> np.ndarray:
    """Return how much smaller areas are, as shares of the others; 0 where they are equal."""
    one, other = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    share = np.divide(one, other, out=np.full(one.shape, np.inf), where=other > 0)
    return 1 - np.where(np.isclose(one, other, rtol=0.0, atol=1e-12), 1.0, share)


def shown(done: TraceBench) -> str:
    """Return one trace's numbers as a table."""
    result, best = done.frontier, done.frontier.reference
    lines = [
        f"{done.name}: {result.fit_rows} rows to fit, {result.test_rows} to test; "
        f"{best.node} alone: {result.measure} {best.error:.4f}, cost {best.cost:.4g}",
        "| family | saving | error at its price | area | gain | 95% | |",
        "|---|---|---|---|---|---|---|",
    ]
    comparisons = {each.rival: each for each in done.comparisons}
    for family in result.families:
        cost, error = result.cost_at(family), result.error_at(family, best.cost)
        saving = "-" if cost is None else f"{1 - cost / best.cost:.1%}"
        cells = [family, saving, "-" if error is None else f"{error:.4f}",
                 f"{result.area(family):.4f}"]  # fmt: skip
        if family in comparisons:
            each = comparisons[family]
            low, high = each.interval
            cells += [f"{each.gain:+.1%}", f"{low:+.1%} to {high:+.1%}", each.verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run and print one table for each trace, and the wins."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--families", type=lambda text: text.split(","))
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    facts: list[dict[str, Any]] = []
    verdicts: list[str] = []
    for path, cascade in find_traces(args.folder):
        trace = tt.Trace.read(path, cascade)
        done = bench_trace(path.stem, trace, families=args.families, resamples=args.resamples)
        print(f"{shown(done)}\n", flush=True)
        verdicts += [each.verdict for each in done.comparisons]
        duels = [{**vars(each), "verdict": each.verdict} for each in done.comparisons]
        facts.append({"trace": done.name, **done.frontier.to_dict(), "duels": duels})
    print(", ".join(f"{verdicts.count(word)} {word}" for word in ("win", "tie", "loss")))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
