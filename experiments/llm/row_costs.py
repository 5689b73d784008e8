"""What costs by row are worth: nine LLMs, fitted with the cost of each row and with mean costs.

    python experiments/llm/row_costs.py --splits 16 --jobs 2        # a quarter of an hour

For each trace of the package (llm-mmlu, llm-triviaqa) and split, one part of the rows is fitted
twice and both fits are measured on the other rows, at what those rows really cost. Costs by row
enter a policy as the expected cost given the state. Printed is the area under the lower envelope
of the one fit over that of the other, as a mean over splits with its standard error; below 1,
costs by row gain. Two orders are compared: the default, and ``fixed``, from cheap to expensive.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

import ttamer as tt
from ttamer import datasets
from ttamer.evaluation.results import measure
from ttamer.stats.envelope import area_under
from ttamer.trace import Trace

TRACES = ("llm-mmlu", "llm-triviaqa")
ORDERS = ("auto", "fixed")


def main() -> None:
    """Print one line for each trace, number of rows and order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=16, help="random splits of each trace")
    parser.add_argument("--rows", type=int, default=300, help="how many rows are few")
    parser.add_argument("--folder", default="", help="the same traces as NPZ files")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = list(product(TRACES, (0, args.rows), ORDERS))
    splits = range(args.splits)
    jobs = [(*case, split, args.folder) for case in cases for split in splits]
    with ProcessPoolExecutor(args.jobs) as pool:
        results = list(pool.map(compared, *zip(*jobs, strict=True)))
    print("| trace | rows to fit | order | area, costs by row over mean costs |")
    print("|---|---|---|---|")
    for case in cases:
        found = [each for job, each in zip(jobs, results, strict=True) if job[:3] == case]
        ratios = np.array(found)
        error = ratios.std(ddof=1) / len(ratios) ** 0.5
        rows = case[1] or "half"
        print(f"| {case[0]} | {rows} | {case[2]} | {ratios.mean():.4f} ± {error:.4f} |", flush=True)


def compared(name: str, rows: int, order: str, split: int, folder: str) -> float:
    """Return the area of a fit with costs by row over that of one with mean costs."""
    trace = Trace.read(f"{folder}/{name}.npz") if folder else datasets.load(name)
    mixed = np.random.default_rng(split).permutation(len(trace))
    count = rows or len(trace) // 2
    fitted, test = trace.take(mixed[:count]), trace.take(mixed[count:])
    means = fitted.costs.mean(axis=0)
    flat = dataclasses.replace(fitted, cost=np.tile(means, (count, 1)))
    prices, alone = test.costs.mean(axis=0), test.wrong().mean(axis=0)
    areas = []
    for part in (fitted, flat):
        ladder = tt.fit(part, order=order)
        results = [measure(each, test, resamples=0) for each in ladder.play_all(test)]
        costs = [prices.min(), *(result.cost for result in results)]
        errors = [alone[prices.argmin()], *(result.error for result in results)]
        areas.append(area_under(costs, errors, prices.min(), prices.max()))
    return areas[0] / areas[1]


if __name__ == "__main__":
    main()
