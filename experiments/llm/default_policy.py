"""Nine LLMs: what the default policy costs, and how often it errs, on rows it was not fitted to.

    python experiments/llm/default_policy.py --splits 16        # a minute on 16 cores

For each split of llm-mmlu and llm-triviaqa, ``tt.fit(rows).default()`` is replayed on the other
rows beside the model that errs least on the rows fitted to. Printed are the cost as a share of that
model's, and the difference of the errors in points: means over splits with standard errors.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np

import ttamer as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split


def main() -> None:
    """Print one line for each trace and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=16, help="random splits of each trace")
    parser.add_argument("--rows", type=int, nargs="+", default=[0, 300], help="to fit; 0: half")
    add_options(parser)
    args = parser.parse_args()
    cases = list(product(LLMS, args.rows))
    jobs = [(*case, number) for case in cases for number in range(args.splits)]
    found = run(compared, jobs, args)
    print("| trace | rows to fit | cost, % of the best model's | error, points above its |")
    print("|---|---|---|---|")
    for name, rows in cases:
        each = np.array([result for job, result in found.items() if job[:2] == (name, rows)])
        share, above = each.T if each.size else [[]] * 2
        print(f"| {name} | {rows or 'half'} | {mean(share, '.1f')} | {mean(above, '+.2f')} |")


def compared(name: str, rows: int, number: int) -> list[float]:
    """Return the cost in percent of the best model's, and the error in points above its."""
    fitted, test = split(load(name), number, rows)
    best = int(fitted.loss.mean(axis=0).argmin())
    found = tt.evaluate(tt.fit(fitted).default(), test, resamples=0)
    share = found.cost / test.costs[:, best].mean()
    return [100 * float(share), 100 * float(found.error - test.loss[:, best].mean())]


if __name__ == "__main__":
    main()
