"""Thresholds certified on all rows: how often such promises are broken, and what they cost.

    python experiments/promises/thresholds.py [--traces NAME ...] [--draws 2000] [--rows 1000]

All rows of a trace are the population, on which the error of every threshold is known. From it rows
are drawn with replacement, many times, and ``for_drop`` promises on them, with
``belief="threshold"``, an error of at most one point above the last exit's, with confidence 95%. A
promise is broken where it was certified and the population errs more.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from ttamer.fitted.promise import HeldOut, count_pairs, make_promise, pairs_of_corners

import ttamer as tt
from ttamer.show.tables import table
from ttamer.stats.bounds import binomial_upper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

TRACES = ("minilm-imdb", "minilm-amazon", "mpnet-imdb", "mpnet-amazon", "smollm2-imdb",
          "smollm2-amazon", "vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10")  # fmt: skip
DROP = 0.01
CONFIDENCE = 0.95


def main() -> None:
    """Measure each trace, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", nargs="+", default=TRACES, metavar="NAME")
    parser.add_argument("--draws", type=int, default=2000, help="how often rows are drawn")
    parser.add_argument("--rows", type=int, default=1000, help="how many rows are drawn")
    args = parser.parse_args()
    rows, broken_in_all = [], 0
    for name in args.traces:
        broken, certified, cost = measured(name, args.draws, args.rows)
        broken_in_all += broken
        most = binomial_upper(broken, args.draws, 1 - CONFIDENCE)
        rows.append([name, f"{broken / args.draws:.1%}", f"{most:.1%}",
                     f"{certified / args.draws:.1%}", f"{cost.mean():.1%}"])  # fmt: skip
    print(
        f"{args.draws} draws of {args.rows} rows; a drop of {DROP:.0%}, confidence {CONFIDENCE}\n"
    )
    print(table(["trace", "broken", "at most", "certified", "cost"], rows))
    print(f"\nbroken in all: {broken_in_all / (args.draws * len(rows)):.1%}")


def measured(name: str, draws: int, count: int) -> tuple[int, int, np.ndarray]:
    """Return how many promises are broken, how many are certified, and the cost of each draw."""
    population = traces.load(name)
    ladder, every = tt.fit(population, belief="threshold"), np.arange(len(population))
    wrong = population.wrong()
    mine = [wrong[every, played.answer] for played in ladder.play_all(population)]
    last, pairs = wrong[:, -1], pairs_of_corners(ladder.tested)
    errors, costs = np.array([each.mean() for each in mine]), ladder.rungs.costs
    broken, certified, spent = 0, 0, np.empty(draws)
    for draw in range(draws):
        drawn = np.random.default_rng([draw, 11]).integers(0, len(population), count)
        counts = count_pairs([each[drawn] for each in mine], last[drawn])
        held = HeldOut(count, f"{name} {draw}", population.names[-1], pairs, counts)
        made = make_promise(held, "drop", DROP, CONFIDENCE)
        cheap, expensive, share = made.mix
        drop = (1 - share) * errors[cheap] + share * errors[expensive] - last.mean()
        broken += made.certified and drop > DROP
        certified += made.certified
        spent[draw] = (1 - share) * costs[cheap] + share * costs[expensive]
    return broken, certified, spent / ladder.fitted.full_cost


if __name__ == "__main__":
    main()
