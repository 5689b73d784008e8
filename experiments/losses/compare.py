"""Fitting to losses against fitting to right and wrong, measured in mean loss.

    python experiments/losses/make_traces.py FOLDER --frugalml FOLDER
    python experiments/losses/compare.py FOLDER --splits 20      # minutes

For each trace and split, half of the rows are fitted and the others measured: once with the losses,
once with answers that are right or wrong. With labels an answer is wrong where it differs; without
them, where its loss is above the median loss of the most expensive node. Printed, as means over
splits with standard errors: the mean loss of both at a quarter and at half of the cost of the most
expensive node, and the area under the mean loss of the one over that of the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from itertools import product
from pathlib import Path

import numpy as np

import ttamer as tt
from ttamer.evaluation.results import measure
from ttamer.stats.envelope import area_under, error_at_cost
from ttamer.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import add_options, mean, run, split

SHARES = (0.25, 0.5)
"""The costs at which mean losses are compared, in shares of the most expensive node's."""


def main() -> None:
    """Print one line for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="traces that make_traces.py wrote")
    parser.add_argument("--splits", type=int, default=20, help="random halves of each trace")
    add_options(parser)
    args = parser.parse_args()
    paths = [str(path) for path in sorted(args.folder.glob("*.npz"))]
    jobs = [(path, number) for number, path in product(range(args.splits), paths)]
    found = run(compared, jobs, args)
    heads = [f"at {share:.0%}: losses | right or wrong | lower by" for share in SHARES]
    print(f"| trace | {' | '.join(heads)} | area, lower by |")
    print("|---" * (3 * len(SHARES) + 2) + "|")
    for path in paths:
        rows = np.array([result for (of, _), result in found.items() if of == path])
        if not rows.size:
            continue
        cells = []
        for k in range(len(SHARES)):
            ours, theirs = rows[:, 2 * k], rows[:, 2 * k + 1]
            cells += [mean(ours, ".3g"), mean(theirs, ".3g"), mean(1 - ours / theirs, ".1%")]
        cells.append(mean(1 - rows[:, -1], ".1%"))
        print(f"| {Path(path).stem} | {' | '.join(cells)} |")


def compared(path: str, number: int) -> list[float]:
    """Return mean losses at each cost, of losses and of right or wrong, and the ratio of areas."""
    fitted, test = split(Trace.read(path), number)
    prices, alone = test.costs.mean(axis=0), (test.loss * test.unit).mean(axis=0)
    low, high = prices.min(), prices.max()
    curves = []
    for rows in (fitted, right_or_wrong(fitted)):
        results = [measure(each, test, resamples=0) for each in tt.fit(rows).play_all(test)]
        costs = [low, *(result.cost for result in results)]  # the cheapest node may be mixed in
        curves.append((costs, [alone[prices.argmin()], *(result.error for result in results)]))
    found = [error_at_cost(*curve, share * high) for share in SHARES for curve in curves]
    areas = [area_under(*curve, low, high) for curve in curves]
    return [np.nan if value is None else value for value in found] + [areas[0] / areas[1]]


def right_or_wrong(trace: Trace) -> Trace:
    """Return the same rows with answers that are right or wrong."""
    spec = dataclasses.replace(trace.spec, mistakes={}, max_loss=None)
    plain = dataclasses.replace(trace, spec=spec, raw_loss=None)
    if trace.label is not None:
        return plain
    losses = trace.loss * trace.unit
    most = int(trace.costs.mean(axis=0).argmax())
    return dataclasses.replace(plain, correct=losses <= np.median(losses[:, most]))


if __name__ == "__main__":
    main()
