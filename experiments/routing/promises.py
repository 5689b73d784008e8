"""Promises: how often they are broken, over draws of the rows that they are tested on.

    python experiments/routing/promises.py DATA --draws 500 --sets yelp ferplus mmlu langid

Half of the rows are fitted to, once. The others are the population: what each policy does there is
known. 500 times, 1,000 rows are drawn from it with replacement and promises are made on them, with
confidence 95%. Broken: certified, and more is lost in the population than was promised. Each line
is one of ``results/promises.jsonl``.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path

import numpy as np
from sets import EMBEDDER, load, read_lines, split, write_line

import ttamer as tt
from ttamer import datasets

RESULTS = Path(__file__).resolve().parent / "results"
TESTED = 1000
MORE = (0.01, 0.02)  # than the best model's error


def run(name: str, args: argparse.Namespace) -> None:
    """Measure the promises of one set."""
    if name in datasets.names():
        fit, test = datasets.load(name, "fit"), datasets.load(name, "test")
    else:
        fit, test = split(load(name, args.data), 0, 0)
    ladder = tt.fit(fit, embedders=EMBEDDER if fit.inputs else None)
    best = ladder.points.best
    held = ladder.held_rows(test)
    truth = held.alone_lost.mean(axis=0)
    lost = dict(zip(held.policies, held.lost.mean(axis=1).tolist(), strict=True))
    lost |= {ladder.points.alone(node): float(loss) for node, loss in enumerate(truth)}
    cost = dict(zip(held.policies, held.paid.mean(axis=1).tolist(), strict=True))
    cost |= {ladder.points.alone(n): float(c) for n, c in enumerate(held.alone_paid.mean(axis=0))}
    outcomes: dict[tuple[str, float], list[tuple[bool, bool, float]]] = {}
    for draw in range(args.draws):
        rows = np.random.default_rng([draw, 4]).integers(len(held.alone_lost), size=TESTED)
        drawn = dataclasses.replace(
            ladder,
            held=dataclasses.replace(
                held,
                lost=held.lost[:, rows],
                paid=held.paid[:, rows],
                alone_lost=held.alone_lost[rows],
                alone_paid=held.alone_paid[rows],
            ),
        )
        for more in MORE:
            most = {"error": float(truth[best]) + more, "drop": more}
            made = {
                "error": drawn.for_error(most["error"]),
                "drop": drawn.for_drop(more, against="best"),
            }
            for kind, mixture in made.items():
                one, two, share = mixture.mix
                error = (1 - share) * lost[one] + share * lost[two]
                paid = (1 - share) * cost[one] + share * cost[two]
                over = error - (truth[best] if kind == "drop" else 0.0) > most[kind] + 1e-12
                certified = bool(mixture.promise and mixture.promise.certified)
                outcome = (
                    certified and bool(over),
                    certified,
                    paid / cost[ladder.points.alone(best)],
                )
                outcomes.setdefault((kind, more), []).append(outcome)
    for (kind, more), results in outcomes.items():
        broken, certified, share = np.array(results, float).mean(axis=0).tolist()
        line = {
            "set": name,
            "kind": kind,
            "more": more,
            "draws": args.draws,
            "broken": broken,
            "certified": certified,
            "cost": share,
        }
        print(line, flush=True)
        write_line(args.results / "promises.jsonl", **line)


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--sets", nargs="+", default=["yelp", "ferplus", "mmlu", "langid"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.results.mkdir(exist_ok=True)
    done = {line["set"] for line in read_lines(args.results / "promises.jsonl")}
    for name in args.sets:
        if name not in done:
            run(name, args)


if __name__ == "__main__":
    main()
