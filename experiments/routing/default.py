"""default(): how much more it errs than the best model, and at which share of its cost.

    python experiments/routing/default.py DATA --splits 8 --rows 1000 2000
    python experiments/routing/default.py --show

Six sets of services and three pools of scikit-learn models, beside a chain written by hand: the
cheapest threshold, common to all models, that errs no more on the fit rows. Excess is in points,
on all rows that were not fitted to. Each split is a line of ``results/default.jsonl``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
from sets import SERVICES, load, mean_and_error, numbers, read_lines, write_line
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import ttamer as tt

RESULTS = Path(__file__).resolve().parent / "results"
POOLS = {
    "pool-8-classes": {"n_classes": 8, "n_informative": 10, "flip_y": 0.05},
    "pool-noisy": {"n_classes": 4, "n_informative": 6, "flip_y": 0.2},
    "pool-unbalanced": {"n_classes": 3, "n_informative": 6, "weights": [0.8, 0.15]},
}
MODELS = {
    "bayes": (1.0, GaussianNB()),
    "tree": (2.0, DecisionTreeClassifier(max_depth=8, random_state=0)),
    "logistic": (4.0, LogisticRegression(max_iter=200)),
    "neighbours": (12.0, KNeighborsClassifier(15)),
    "trees": (30.0, ExtraTreesClassifier(60, random_state=0)),
    "forest": (50.0, RandomForestClassifier(100, random_state=0)),
}
TRAINED, ROWS = 2000, 12000


@cache
def pool(name: str) -> tt.Trace:
    """Train models on simulated rows, and log what they say of others."""
    rows, labels = make_classification(
        TRAINED + ROWS, 20, n_redundant=0, random_state=len(name), **POOLS[name]
    )
    chances = [
        model.fit(rows[:TRAINED], labels[:TRAINED]).predict_proba(rows[TRAINED:])
        for _, model in MODELS.values()
    ]
    return tt.Trace.from_arrays(
        {model: cost for model, (cost, _) in MODELS.items()},
        np.stack([chance.max(axis=1) for chance in chances], axis=1),
        prediction=np.stack([chance.argmax(axis=1) for chance in chances], axis=1),
        label=labels[TRAINED:],
    )


def by_hand(fit: tt.Trace, test: tt.Trace, best: int) -> tuple[float, float]:
    """Return error and cost of the chain by hand: in order of cost, up to the best model."""
    cost = fit.costs.mean(axis=0)
    order = [v for v in np.argsort(cost) if cost[v] < cost[best]] + [best]
    curves = [
        IsotonicRegression(increasing=False, out_of_bounds="clip").fit(
            fit.confidence[:, node], fit.loss[:, node]
        )
        for node in order
    ]

    def play(trace: tt.Trace, cut: float) -> tuple[float, float]:
        left, lost, paid = np.ones(len(trace), bool), 0.0, 0.0
        for node, curve in zip(order, curves, strict=True):
            paid += trace.costs[left, node].sum()
            stops = left & ((curve.predict(trace.confidence[:, node]) <= cut) | (node == best))
            lost += trace.loss[stops, node].sum()
            left &= ~stops
        return float(lost / len(trace)), float(paid / len(trace))

    most = fit.loss[:, best].mean()
    cuts = [(play(fit, cut), cut) for cut in np.linspace(0, 0.6, 121)]
    able = [(paid, cut) for (lost, paid), cut in cuts if lost <= most and paid <= cost[best]]
    if not able:
        return float(test.loss[:, best].mean()), float(test.costs[:, best].mean())
    return play(test, min(able)[1])


def by_fit(fit: tt.Trace, test: tt.Trace) -> tuple[float, float]:
    """Return error and cost of the default policy."""
    played = tt.fit(fit).default().play(test)
    lost = test.loss[np.arange(len(test)), played.answer]
    return float(lost.mean()), float((played.asked * test.costs).sum(axis=1).mean())


def run(args: argparse.Namespace) -> None:
    """Measure what is not measured yet."""
    args.results.mkdir(exist_ok=True)
    path = args.results / "default.jsonl"
    done = {(line["set"], line["rows"], line["seed"]) for line in read_lines(path)}
    todo = [
        (rows, seed, name)
        for rows in args.rows
        for seed in numbers(args.splits)
        for name in args.sets
    ]
    for rows, seed, name in todo:
        trace = pool(name) if name in POOLS else load(name, args.data)
        if (name, rows, seed) in done or rows > len(trace) // 2:
            continue
        order = np.random.default_rng(seed).permutation(len(trace))
        fit, test = trace.take(order[:rows]), trace.take(order[rows:])
        best = int(fit.loss.mean(axis=0).argmin())
        error, cost = test.loss[:, best].mean(), test.costs[:, best].mean()
        begun = time.process_time()
        results = {"default": by_fit(fit, test)}
        took = round(time.process_time() - begun, 1)
        results["chain"] = by_hand(fit, test, best)
        points = {
            family: [round(float(100 * (e - error)), 4), round(float(c / cost), 4)]
            for family, (e, c) in results.items()
        }
        print(name, rows, seed, points, f"{took} s", flush=True)
        write_line(path, set=name, rows=rows, seed=seed, cpu=took, **points)


def show(folder: Path) -> None:
    """Print the table: points @ share of cost."""
    lines = read_lines(folder / "default.jsonl")
    for rows in sorted({line["rows"] for line in lines}):
        print(f"\n| {rows} rows (splits) | default() | chain by hand |\n|---|---|---|")
        means: dict[str, list[tuple[float, float]]] = {"default": [], "chain": []}
        for name in dict.fromkeys(line["set"] for line in lines):
            own = [line for line in lines if (line["set"], line["rows"]) == (name, rows)]
            if not own:
                continue
            cells = []
            for family, points in means.items():
                excess, error = mean_and_error(line[family][0] for line in own)
                share = fmean(line[family][1] for line in own)
                points.append((excess, share))
                cells.append(f"{excess:+.2f} ± {error:.2f} @ {share:.2f}")
            print(f"| {name} ({len(own)}) | {' | '.join(cells)} |")
        shown = [
            f"{fmean(e for e, _ in p):+.2f} @ {fmean(c for _, c in p):.3f}" for p in means.values()
        ]
        print(f"| *mean* | {' | '.join(shown)} |")


def main() -> None:
    """Run, then show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--splits", default="8", help="how many, or from:to")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 2000])
    parser.add_argument("--sets", nargs="+", default=[*POOLS, *SERVICES])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="only print the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.show:
        run(args)
    show(args.results)


if __name__ == "__main__":
    main()
