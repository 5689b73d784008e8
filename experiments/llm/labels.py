"""What labels are worth: rows chosen by ``ttamer label`` against rows in random order.

    python experiments/llm/labels.py --splits 8 --jobs 8        # about four minutes on 8 cores

Three models of the traces llm-triviaqa and llm-mmlu. For each split, half of the rows are there to
be labelled and the others to measure on. A ladder is fitted to 60, 120 and 240 labels, and to all.
Printed is the total cost on the test rows, error plus cost over the cost of a mistake, as a mean
over mistakes that cost 2, 5, 15 and 50 calls of the most expensive model; means over splits with
standard errors, and paired differences to random order. ``half width`` is what the labelling page
shows for differences in error, ``miss`` how far these were off.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from itertools import islice, product
from pathlib import Path

import numpy as np

import ttamer as tt
from ttamer.llm.labelling import LabelPlan

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

NODES = ("llama3.1-8b", "gpt-4o-mini", "gpt-4o")
LABELS = (60, 120, 240)
MISTAKES = (2, 5, 15, 50)


def total_cost(ladder: tt.FittedLadder, test: tt.Trace, full: float) -> float:
    """Return error plus cost, in mistakes, as a mean over what a mistake costs."""
    found = []
    for calls in MISTAKES:
        result = tt.evaluate(ladder.for_mistake_cost(calls * full), test)
        found.append(result.error + result.cost / (calls * full))
    return float(np.mean(found))


def one_split(name: str, number: int) -> list[tuple[str, str, int, int, float]]:
    """Return (trace, what, labels, number, value) for one split."""
    warnings.simplefilter("ignore")
    trace = load(name).restrict(NODES)
    full = float(trace.costs.mean(axis=0).max())
    pool, test = split(trace, number)
    right, found = (pool.loss == 0), []
    errors = pool.loss.mean(axis=0)
    best = int(errors.argmin())
    for labels in LABELS:
        for what, plan in (("random order", LabelPlan(pool, uniform=True, seed=number)),
                           ("ttamer label", LabelPlan(pool, seed=number))):  # fmt: skip
            rows = list(islice(plan.rows([]), labels))
            given = {row: right[row].tolist() for row in rows}
            score = total_cost(tt.fit(plan.labelled(given)), test, full)
            found.append((name, what, labels, number, score))
        differ = ~right[[row for row in rows if not plan.agreed[row]]]
        guess = (differ.mean(axis=0) - differ.mean(axis=0)[best]) * (~plan.agreed).mean()
        miss = float(np.abs(guess - (errors - errors[best])).max())
        found += [(name, "half width", labels, number, plan.estimate(given).half_width or np.nan),
                  (name, "miss", labels, number, miss)]  # fmt: skip
    found.append((name, "all labels", len(pool), number, total_cost(tt.fit(pool), test, full)))
    return found


def main() -> None:
    """Print one line for each number of labels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=8)
    add_options(parser)
    args = parser.parse_args()
    found = run(one_split, product(LLMS, range(args.splits)), args)
    groups: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for name, what, labels, number, value in (row for part in found.values() for row in part):
        groups[name, what, labels][number] = value
    for (name, what, labels), values in sorted(groups.items()):
        line = f"{name} | {what} | {labels} | {mean([values[k] for k in sorted(values)], '.4f')}"
        if what == "ttamer label":
            other = groups[name, "random order", labels]
            pairs = [values[k] - other[k] for k in sorted(values)]
            line += f" | minus random order {mean(pairs, '.4f')}"
        print(line)


if __name__ == "__main__":
    main()
