"""Few rows: the default fit against every baseline, the best of them known afterwards.

    python experiments/few_rows/compare.py [FOLDER] --rows 300 --draws 4

From every trace (those of the package, and those of a folder as ``ttamer bench`` reads it) a few
rows are drawn and fitted to; up to 6,000 others are measured on. What is printed is the area under
our lower envelope over the least area of any baseline, less one: that baseline is chosen by the
rows measured on, so it could not have been chosen beforehand.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ttamer import datasets
from ttamer.datasets.facts import is_network, names
from ttamer.evaluation.benchmark import find_traces
from ttamer.evaluation.frontiers import frontier
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

MEASURED = 6000
OURS = ("ttamer", "oracle")


def main() -> None:
    """Print one line for each trace, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="more traces, each with its cascade")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--traces", nargs="+", help="only these")
    args = parser.parse_args()
    means = []
    print(f"{'trace':22} {'mean':>7} {'worst':>7}  each draw, and its best baseline")
    for name, trace in traces(args.folder):
        if args.traces and name not in args.traces:
            continue
        gaps = [gap(trace, args.rows, draw) for draw in range(args.draws)]
        values = [value for value, _ in gaps]
        means.append(float(np.mean(values)))
        each = ", ".join(f"{value:+.1%} {best}" for value, best in gaps)
        print(f"{name:22} {means[-1]:+7.1%} {max(values):+7.1%}  {each}", flush=True)
    print(f"{'all':22} {np.mean(means):+7.1%} {max(means):+7.1%}")


def traces(folder: Path | None) -> Iterator[tuple[str, Trace]]:
    """Yield every trace by its name."""
    for name in names():
        if is_network(name):
            yield name, datasets.load(name)
        else:
            yield name, Trace.concat([datasets.load(name, part) for part in ("fit", "test")])
    if folder is not None:
        for path, cascade in find_traces(folder):
            yield path.stem, Trace.read(path, cascade)


def gap(trace: Trace, rows: int, draw: int) -> tuple[float, str]:
    """Return by how much our area is above the best baseline's, and which that is."""
    order = np.random.default_rng(draw).permutation(len(trace))
    fit, test = trace.take(order[:rows]), trace.take(order[rows : rows + MEASURED])
    found = frontier(fit, test, resamples=0)
    areas = {family: found.area(family) for family in found.families}
    rivals = [family for family in areas if family not in OURS]
    best = min(rivals, key=areas.__getitem__)
    return areas["ttamer"] / areas[best] - 1, best


if __name__ == "__main__":
    main()
