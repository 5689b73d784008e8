"""What to expect from how many labels: the default fit, a threshold, and the best single model.

    python experiments/llm/curve.py small-models --splits 16      # nine LLMs take far longer

For each split, 50 to 800 rows are drawn to fit to, and all others are there to measure on. Every
system is fitted to the same rows for the same aim: the least total cost, where a mistake costs 2,
5, 15 or 50 calls of the most expensive model. Printed is the total cost on the test rows, error
plus cost over the cost of a mistake, as a mean over these; means over splits with standard errors.
The traces are those of the package with nine LLMs, and ``small-models``: what ``serve_real.py``
collected, as numbers. ``small-models-mean`` has the mean probability of tokens as confidence
(``confidence = "logprobs"``) instead of the probability of the whole answer (``"product"``).
``best baseline`` is the best of all families of baselines on the test rows, each with its knobs
chosen on the rows fitted to; ``chosen baseline`` is the one with the least total cost on the rows
fitted to, which a user could have chosen.

``--each`` prints right answers and cost for every cost of a mistake, at one number of rows, and
where the last model gains over the one before. Further traces can be given as files. Results are
appended to ``--log`` split by split, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import defaultdict
from multiprocessing import Pool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

import ttamer as tt
from ttamer.baselines import FAMILIES, fit_families

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

HERE = Path(__file__).parent
TRACES = ("small-models", "llm-triviaqa", "llm-mmlu")
LABELS = (50, 100, 200, 400, 800)
MISTAKES = (2, 5, 15, 50)
BASELINES = [name for name in FAMILIES if name != "oracle"]
COLUMNS = ("best single model", "threshold", "chosen baseline", "best baseline", "ttamer")


def trace_of(name: str) -> tt.Trace:
    """Return a trace of the package, of this folder, or of a file."""
    if name in traces.names():
        return traces.load(name)
    beside = HERE / f"{name}.parquet"
    return tt.Trace.read(beside if beside.exists() else name)


def points(trace: tt.Trace, rules: Sequence[Any]) -> np.ndarray:
    """Return, shape (rules, 2), the error and the cost of each rule on a trace."""
    rows, wrong = np.arange(len(trace)), trace.loss
    played = [rule.play(trace) for rule in rules]
    return np.array(
        [
            (wrong[rows, each.answer].mean(), (each.asked * trace.costs).sum(axis=1).mean())
            for each in played
        ]
    )


def one_split(job: tuple[str, int, int]) -> dict[str, Any]:
    """Return, by system, the error and the cost on the test rows for each cost of a mistake."""
    name, labels, split = job
    warnings.simplefilter("ignore")
    trace = trace_of(name)
    order = np.random.default_rng(split).permutation(len(trace))
    train, test = trace.take(order[:labels]), trace.take(order[labels:])
    full = float(trace.costs.mean(axis=0).max())
    mistakes = np.array(MISTAKES) * full
    on_train = np.stack([train.loss.mean(axis=0), train.costs.mean(axis=0)], axis=1)
    on_test = np.stack([test.loss.mean(axis=0), test.costs.mean(axis=0)], axis=1)
    singles = [on_test[chosen(on_train, m)].tolist() for m in mistakes]
    families = {}
    for family, settings in fit_families(train, BASELINES)[0].items():
        rules = [each.rule for each in settings]
        known, found = points(train, rules), points(test, rules)
        places = [chosen(known, m) for m in mistakes]
        families[family] = (known[places], found[places])
    prices = mistakes.tolist()
    by_fit = [
        min(families.values(), key=lambda f, k=k, m=m: total(f[0][k], m))[1][k].tolist()
        for k, m in enumerate(prices)
    ]
    best = min(families, key=lambda f: sum(map(total, families[f][1], prices)))
    ladder = tt.fit(train)
    ours = points(test, [ladder.for_mistake_cost(m) for m in prices])
    systems = {
        "best single model": singles,
        "threshold": families["threshold"][1].tolist(),
        "chosen baseline": by_fit,
        "best baseline": families[best][1].tolist(),
        "ttamer": ours.tolist(),
    }
    return {
        "trace": Path(name).stem,
        "labels": labels,
        "split": split,
        "full": full,
        "best": best,
        **systems,
    }


def total(point: Sequence[float], mistake: float) -> float:
    """Return error plus cost, in mistakes."""
    return float(point[0] + point[1] / mistake)


def chosen(found: np.ndarray, mistake: float) -> int:
    """Return the place of the least total cost."""
    return int((found[:, 0] + found[:, 1] / mistake).argmin())


def main() -> None:
    """Print one table for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", default=list(TRACES), help="names or files")
    parser.add_argument("--splits", type=int, default=16)
    parser.add_argument("--labels", type=int, nargs="+", default=list(LABELS))
    parser.add_argument("--each", type=int, metavar="ROWS", help="print every cost of a mistake")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--log", type=Path, default=Path("curve.jsonl"))
    args = parser.parse_args()
    sizes = args.labels if args.each is None else [args.each]
    wanted = [(t, n, s) for s in range(args.splits) for t in args.traces for n in sizes]
    args.log.touch()
    with args.log.open("r+") as log, Pool(args.processes) as pool:
        found = {key(row): row for row in map(json.loads, log)}
        missing = [job for job in wanted if (Path(job[0]).stem, *job[1:]) not in found]
        for row in pool.imap_unordered(one_split, missing):
            print(json.dumps(row), file=log, flush=True)
            found[key(row)] = row
    for trace in args.traces:
        rows = [found[Path(job[0]).stem, *job[1:]] for job in wanted if job[0] == trace]
        print(f"\n{Path(trace).stem}, {args.splits} splits\n{alone(trace_of(trace))}\n")
        if args.each is None:
            curve(rows)
        else:
            each_mistake(rows)
            fifths(trace_of(trace))


def key(row: dict[str, Any]) -> tuple[str, int, int]:
    """Return what a line of the log is for."""
    return row["trace"], row["labels"], row["split"]


def alone(trace: tt.Trace) -> str:
    """Return what each model does alone, on all rows."""
    right, costs = (trace.loss == 0), trace.costs.mean(axis=0)
    return "\n".join(
        f"{name}: right {right[:, v].mean():.3f}, cost {costs[v]:.4g}, area under the ROC curve of "
        f"its confidence {area(trace.confidence[:, v], right[:, v]):.3f}"
        for v, name in enumerate(trace.names)
    )


def area(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the chance that a right answer has a higher score than a wrong one."""
    ranks = rankdata(scores)[right]
    count = len(ranks)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


def curve(rows: list[dict[str, Any]]) -> None:
    """Print the total cost by the number of labels."""
    differences = ("threshold", "chosen baseline", "best baseline")
    print(f"| labels | {' | '.join(COLUMNS)} | {' | '.join(f'less {d}' for d in differences)} |")
    print("|---" * (1 + len(COLUMNS) + len(differences)) + "|")
    sizes = defaultdict(list)
    for row in rows:
        prices = [m * row["full"] for m in MISTAKES]
        sizes[row["labels"]].append([np.mean(list(map(total, row[c], prices))) for c in COLUMNS])
    for labels, values in sorted(sizes.items()):
        table = np.array(values)
        ours = table[:, COLUMNS.index("ttamer")]
        pairs = [ours - table[:, COLUMNS.index(d)] for d in differences]
        cells = [shown(column) for column in (*table.T, *pairs)]
        print(f"| {labels} | {' | '.join(cells)} |")


def each_mistake(rows: list[dict[str, Any]]) -> None:
    """Print the share of right answers, the cost and the total cost for every cost of a mistake."""
    print("| a mistake costs | | right | cost | total cost | less threshold |")
    print("|---|---|---|---|---|---|")
    for k, calls in enumerate(MISTAKES):
        prices = [calls * row["full"] for row in rows]
        for column in COLUMNS:
            values = np.array([row[column][k] for row in rows])
            totals = [total(v, m) for v, m in zip(values, prices, strict=True)]
            rival = [total(r["threshold"][k], m) for r, m in zip(rows, prices, strict=True)]
            cells = [1 - values[:, 0], values[:, 1], np.array(totals), np.subtract(totals, rival)]
            print(f"| {calls} calls | {column} | {' | '.join(map(shown, cells))} |")


def fifths(trace: tt.Trace) -> None:
    """Print how often each model is right, by the confidence of the model before the last."""
    right, name = (trace.loss == 0), trace.names[-2]
    order = np.argsort(-trace.confidence[:, -2], kind="stable")
    print(f"\n| rows by the confidence of {name} | {' | '.join(trace.names)} |")
    print("|---" * (1 + len(trace.names)) + "|")
    for place, rows in enumerate(np.array_split(order, 5), start=1):
        cells = " | ".join(f"{share:.3f}" for share in right[rows].mean(axis=0))
        print(f"| fifth {place} | {cells} |")


def shown(values: np.ndarray) -> str:
    """Return a mean with its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():.4f} ({error:.4f})"


if __name__ == "__main__":
    main()
