"""Certificates on real traces: how often they are broken, and what the certified policies cost.

    python experiments/promises/draws.py [--traces NAME ...] [--draws 500] [--fit-rows 2000]

Policies are fitted once, to the rows to fit on. The test rows (5,000 at most) are the population:
what each policy does there is the truth. Many times, 1,000 rows (--rows) are drawn from it with
replacement and certificates made on them, with confidence 95%. One is broken where it passed and
the population exceeds the bound.

- *error*: at most that of the best node plus 1 or 2 points;
- *drop*: at most 1 or 2 points against the best node;
- *budget*: at most 5% or 10% of inputs cost more than half of what the best node costs.

The rival is learn then test (Angelopoulos et al., 2021) on one threshold on the confidence for all
nodes, ``belief="threshold"``, by the same tests on the same rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ttamer as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

BOUNDS = {"error": (0.01, 0.02), "drop": (0.01, 0.02), "budget": (0.05, 0.1)}


def drawn(held: Any, rows: np.ndarray) -> Any:
    """Return held-out rows drawn again."""
    return dataclasses.replace(
        held,
        lost=held.lost[:, rows],
        paid=held.paid[:, rows],
        alone_lost=held.alone_lost[rows],
        alone_paid=held.alone_paid[rows],
        trace_digest=f"{rows[:8]}",  # draws of mixtures are fixed by it
    )


def measure(ladder: tt.FittedLadder, population: Any, args: argparse.Namespace) -> dict:
    """Return by kind and bound whether each draw's certificate passed and broke, and its cost."""
    count, best = len(ladder), int(population.alone_lost.mean(axis=0).argmin())
    errors = population.alone_lost.mean(axis=0)
    budget = 0.5 * float(population.alone_paid[:, best].mean())
    lost = dict(zip(population.policies, population.lost, strict=True))
    paid = dict(zip(population.policies, population.paid, strict=True))
    lost |= {count + node: column for node, column in enumerate(population.alone_lost.T)}
    paid |= {count + node: column for node, column in enumerate(population.alone_paid.T)}
    outcomes: dict[tuple[str, float], list[tuple[bool, bool, float]]] = {}
    for draw in range(args.draws):
        rows = np.random.default_rng([draw, 4]).integers(len(population), size=args.rows)
        sample = dataclasses.replace(ladder, held=drawn(population, rows))
        for kind, bounds in BOUNDS.items():
            for bound in bounds:
                at_most = bound + (float(errors[best]) if kind == "error" else 0.0)
                if kind == "error":
                    mixture = sample.for_error(at_most)
                elif kind == "drop":
                    mixture = sample.for_drop(at_most, against=ladder.spec.names[best])
                else:
                    try:
                        mixture = sample.for_budget(budget, exceeded_at_most=at_most)
                    except tt.ArgumentError:  # no node is as cheap
                        continue
                truth, cost = 0.0, 0.0
                for point, share in (
                    (mixture.mix.cheap, 1 - mixture.mix.share),
                    (mixture.mix.expensive, mixture.mix.share),
                ):
                    values = paid[point] > budget if kind == "budget" else lost[point]
                    truth += share * float(values.mean())
                    cost += share * float(paid[point].mean())
                truth -= float(errors[best]) if kind == "drop" else 0.0
                passed = mixture.promise.certified
                share_of_best = cost / float(population.alone_paid[:, best].mean())
                outcome = (passed, passed and truth > at_most + 1e-12, share_of_best)
                outcomes.setdefault((kind, bound), []).append(outcome)
    return outcomes


def main() -> None:
    """Measure each trace, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--traces", nargs="+", metavar="NAME", default=["langid", "minilm-imdb", "vgg16-cifar10"]
    )
    parser.add_argument("--draws", type=int, default=500, help="how often rows are drawn")
    parser.add_argument("--rows", type=int, default=1000, help="how many rows are drawn")
    parser.add_argument("--fit-rows", type=int, default=2000, help="how many rows are fitted to")
    args = parser.parse_args()
    head = ("trace", "belief", "certificate", "bound", "passed", "broken", "cost")
    print(*(f"{title:12}" for title in head))
    for name in args.traces:
        fit, test = traces.load(name, "fit"), traces.load(name, "test")
        fit, test = fit.take(slice(args.fit_rows)), test.take(slice(5000))
        beliefs = ["answers"] + (["threshold"] if fit.spec.kind == "exits" else [])
        for belief in beliefs:
            ladder = tt.fit(fit, belief=belief)
            outcomes = measure(ladder, ladder.held_rows(test), args)
            for (kind, bound), results in outcomes.items():
                passed, broken, cost = np.array(results, float).mean(axis=0)
                error = np.array(results, float)[:, 2].std() / len(results) ** 0.5
                cells = [
                    f"{bound:.0%}",
                    f"{passed:.1%}",
                    f"{broken:.1%}",
                    f"{cost:.1%} +- {error:.1%}",
                ]
                print(*(f"{cell:12}" for cell in (name, belief, kind, *cells)), flush=True)


if __name__ == "__main__":
    main()
