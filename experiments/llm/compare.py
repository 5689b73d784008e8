"""Nine LLMs: the default fit against every baseline, the best of them chosen on the test rows.

    python experiments/llm/compare.py [FOLDER] --half 16 --few 4       # about six minutes

Without a folder the traces of the package (llm-mmlu, llm-triviaqa) are used; a folder holds traces
with a cascade beside each, as ``ttamer bench`` reads it. Each split is drawn by
``numpy.random.default_rng(split).permutation``: half of the rows to fit on and the others to
measure on, or ``--rows`` rows to fit on. Printed is the area under the lower envelope over the
least area of any baseline, as a mean over splits with its standard error, and the time to fit.
``--mean-costs`` replaces the costs of each row by their means in the fit, which shows what costs
by row are worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ttamer import datasets
from ttamer.baselines import FAMILIES
from ttamer.evaluation.benchmark import find_traces
from ttamer.evaluation.frontiers import frontier
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = ("llm-mmlu", "llm-triviaqa")


def main() -> None:
    """Print one line for each trace and number of rows, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="traces, each with its cascade")
    parser.add_argument("--half", type=int, default=7, help="splits with half of the rows")
    parser.add_argument("--few", type=int, default=4, help="splits with few rows")
    parser.add_argument("--rows", type=int, default=300, help="how many are few")
    parser.add_argument("--mean-costs", action="store_true", help="fit to mean costs")
    args = parser.parse_args()
    found = list(traces(args.folder))
    print("| trace | rows to fit | area over the best baseline's | best baseline | fit, s |")
    print("|---|---|---|---|---|")
    for splits, few in ((args.half, None), (args.few, args.rows)):
        if not splits:
            continue
        means = []
        for name, trace in found:
            rows = len(trace) // 2 if few is None else few
            each = [ratio(trace, rows, k, mean_costs=args.mean_costs) for k in range(splits)]
            values = np.array([value for value, _, _ in each])
            best = sorted({rival for _, rival, _ in each})
            seconds = np.mean([spent for _, _, spent in each])
            means.append(values.mean())
            print(f"| {name} | {rows} | {shown(values)} | {', '.join(best)} | {seconds:.1f} |",
                  flush=True)  # fmt: skip
        if means:
            print(f"| all | {'half' if few is None else few} | {np.mean(means):.4f} | | |")


def traces(folder: Path | None) -> Iterator[tuple[str, Trace]]:
    """Yield every trace by its name."""
    if folder is None:
        yield from ((name, datasets.load(name)) for name in TRACES)
    else:
        for path, cascade in find_traces(folder):
            yield path.stem, Trace.read(path, cascade)


def ratio(trace: Trace, rows: int, split: int, *, mean_costs: bool) -> tuple[float, str, float]:
    """Return our area over the best baseline's, which that is, and the seconds of the fit."""
    order = np.random.default_rng(split).permutation(len(trace))
    fit, test = trace.take(order[:rows]), trace.take(order[rows:])
    rivals = frontier(fit, test, families=[f for f in FAMILIES if f != "oracle"], resamples=0)
    areas = {family: rivals.area(family) for family in rivals.families}
    best = min(areas, key=areas.__getitem__)
    if mean_costs:
        fit = dataclasses.replace(fit, cost=np.tile(fit.costs.mean(axis=0), (len(fit), 1)))
    begun = time.perf_counter()
    ours = frontier(fit, test, families=["ttamer"], resamples=0)
    return ours.area("ttamer") / areas[best], best, time.perf_counter() - begun


def shown(values: np.ndarray) -> str:
    """Return a mean and its standard error."""
    if len(values) < 2:
        return f"{values.mean():.3f}"
    return f"{values.mean():.3f} +- {values.std(ddof=1) / len(values) ** 0.5:.3f}"


if __name__ == "__main__":
    main()
