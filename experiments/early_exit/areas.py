"""Areas under error over latency on exits, which several experiments compare.

    python experiments/early_exit/areas.py TRACE ... [--folder FOLDER] --splits 8

Printed: the area of ttamer over that of the best threshold, which is chosen on the test rows, over
random halves of the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.baselines import FAMILIES, Unsuitable
from ttamer.fitting.replay import full_cost
from ttamer.stats.envelope import area_under

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import add_options, load, mean, run, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ttamer.trace import Trace

TARGETS = {"label": "label", "backbone": "last"}
THRESHOLDS = ("threshold", "threshold-per-exit", "margin", "entropy")


class ExitAreas:
    """Areas on some rows, from the cost of the first exit to that of the network."""

    def __init__(self, test: Trace) -> None:
        self.test, self.full = test, full_cost(test)
        self._ends = (np.cumsum(test.costs, axis=1) / self.full).mean(axis=0)[[0, -1]]

    def of_points(self, costs: Sequence[float], errors: Sequence[float]) -> float:
        """Return the area of points, costs being shares of the network's."""
        return area_under(costs, errors, *self._ends)

    def of(self, rules: Iterable) -> float:
        """Return the area of policies or rules."""
        results = [tt.evaluate(rule, self.test, resamples=0) for rule in rules]
        return self.of_points(
            [each.cost / self.full for each in results], [each.error for each in results]
        )

    def best_threshold(self, known: Trace) -> float:
        """Return the least area of the kinds of threshold, each fitted to some rows."""
        areas = []
        for family in THRESHOLDS:
            with suppress(Unsuitable):  # no margins or entropies in this trace
                areas.append(self.of(setting.rule for setting in FAMILIES[family].fit(known)))
        return min(areas)


def main() -> None:
    """Print one line for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--folder", type=Path, help="of traces that are not the package's")
    parser.add_argument("--splits", type=int, default=8, help="random halves of each trace")
    parser.add_argument("--first", type=int, default=0, help="the number of the first split")
    add_options(parser)
    args = parser.parse_args()
    folder = None if args.folder is None else str(args.folder)
    cases = product(range(args.first, args.first + args.splits), args.traces, TARGETS)
    found = run(compared, [(name, target, k, folder) for k, name, target in cases], args)
    print(f"| ttamer / best threshold | {' | '.join(TARGETS)} |\n|---|{'---|' * len(TARGETS)}")
    for name in args.traces:
        each = [
            [own for job, own in found.items() if job[:2] == (name, target)] for target in TARGETS
        ]
        print(f"| {name} | {' | '.join(mean(np.array(some)) for some in each)} |")


def compared(name: str, target: str, number: int, folder: str | None = None) -> float:
    """Return the area of ttamer over that of the best threshold."""
    trace = load(name, None if folder is None else Path(folder))
    trace = trace.with_spec(dataclasses.replace(trace.spec, target=TARGETS[target]))
    known, test = split(trace, number)
    found = ExitAreas(test)
    return found.of(tt.fit(known)) / found.best_threshold(known)


if __name__ == "__main__":
    main()
