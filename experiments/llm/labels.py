"""What labels are worth: rows chosen by ``ttamer label`` against rows in random order.

    python experiments/llm/labels.py --splits 8 --processes 8        # about four minutes on 8 cores

Three models of the traces llm-triviaqa and llm-mmlu. For each split, half of the rows are there to
be labelled and the others to measure on. A ladder is fitted to 60, 120 and 240 labels, and to all.
Printed is the total cost on the test rows, error plus cost over the cost of a mistake, as a mean
over mistakes that cost 2, 5, 15 and 50 calls of the most expensive model; means over splits with
standard errors, and paired differences to random order. ``half width`` is what the labelling page
shows for differences in error, ``miss`` how far these were off.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import defaultdict
from itertools import islice
from multiprocessing import Pool

import numpy as np

import ttamer as tt
from ttamer import datasets
from ttamer.serve.label_choice import LabelPlan

TRACES = ("llm-triviaqa", "llm-mmlu")
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


def one_split(job: tuple[str, int]) -> list[tuple[str, str, int, int, float]]:
    """Return (trace, what, labels, split, number) for one split."""
    name, split = job
    warnings.simplefilter("ignore")
    trace = datasets.load(name).restrict(NODES)
    full = float(trace.costs.mean(axis=0).max())
    order = np.random.default_rng(split).permutation(len(trace))
    pool, test = trace.take(order[: len(trace) // 2]), trace.take(order[len(trace) // 2 :])
    right, found = ~pool.wrong(), []
    errors = pool.wrong().mean(axis=0)
    best = int(errors.argmin())
    for labels in LABELS:
        for what, plan in (("random order", LabelPlan(pool, uniform=True, seed=split)),
                           ("ttamer label", LabelPlan(pool, seed=split))):  # fmt: skip
            rows = list(islice(plan.rows([]), labels))
            given = {row: right[row].tolist() for row in rows}
            score = total_cost(tt.fit(plan.labelled(given)), test, full)
            found.append((name, what, labels, split, score))
        differ = ~right[[row for row in rows if not plan.agreed[row]]]
        guess = (differ.mean(axis=0) - differ.mean(axis=0)[best]) * (~plan.agreed).mean()
        miss = float(np.abs(guess - (errors - errors[best])).max())
        found += [(name, "half width", labels, split, plan.estimate(given).half_width or np.nan),
                  (name, "miss", labels, split, miss)]  # fmt: skip
    found.append((name, "all labels", len(pool), split, total_cost(tt.fit(pool), test, full)))
    return found


def main() -> None:
    """Print one line for each number of labels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    jobs = [(name, split) for split in range(args.splits) for name in TRACES]
    with Pool(args.processes) as pool:
        rows = [row for part in pool.imap_unordered(one_split, jobs) for row in part]
    groups: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for name, what, labels, split, number in rows:
        groups[name, what, labels][split] = number
    for (name, what, labels), values in sorted(groups.items()):
        numbers = np.array([values[split] for split in sorted(values)])
        line = f"{name} | {what} | {labels} | {shown(numbers)}"
        if what == "ttamer label":
            other = groups[name, "random order", labels]
            pairs = np.array([values[split] - other[split] for split in sorted(values)])
            line += f" | minus random order {shown(pairs)}"
        print(line)


def shown(values: np.ndarray) -> str:
    """Return a mean with its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():.4f} ({error:.4f})"


if __name__ == "__main__":
    main()
