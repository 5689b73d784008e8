"""What costs by row are worth: by the state, and by a price that is known beforehand.

    python experiments/llm/row_costs.py --splits 16        # two minutes on 16 cores

For each trace and split, some rows are fitted and measured on the others, at what those rows really
cost. Compared with a fit to mean costs, by the area under the lower envelope:

- *by state*: a fit to the cost of each row, which enters a policy as the expected cost given the
  state;
- *by price*: the fit to mean costs, with a policy for each row: where an input costs f times the
  mean, as its tokens show before anything is asked, the policy of a mistake that costs 1/f as much.

The traces are nine LLMs (llm-mmlu, llm-triviaqa), and four simulated models of which a row costs a
factor more or less: ``long-is-hard``, where hard inputs have long answers, as with models that
reason; ``long-prompts``, where the length of prompts says nothing about how hard they are; and
``both``. Printed besides: the spread of log costs, and how much of it a state explains, which is
the least belief after the cheapest model in ten equal groups.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.fitting.replay import paid
from ttamer.stats.envelope import area_under
from ttamer.trace import CascadeSpec, Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIMULATED = {"long-is-hard": (1.0, 0.0), "long-prompts": (0.0, 1.0), "both": (0.7, 0.7)}
"""By how much the log cost of a row grows with its difficulty, and the spread of the rest."""
GROUPS = 10
"""The number of states in which the spread of costs is explained."""


def main() -> None:
    """Print one line for each trace and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=16, help="random splits of each trace")
    parser.add_argument("--rows", type=int, default=300, help="how many rows are few")
    parser.add_argument("--traces", nargs="+", default=[*LLMS, *SIMULATED])
    add_options(parser)
    args = parser.parse_args()
    cases = list(product(args.traces, (0, args.rows)))
    jobs = [(*case, number) for number in range(args.splits) for case in cases]
    found = run(compared, jobs, args)
    print("| trace | rows to fit | spread of log costs | explained by the state | by state "
          "| by price |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for name, rows in cases:
        each = np.array([result for job, result in found.items() if job[:2] == (name, rows)])
        spread, explained, state, price = each.T if each.size else [[]] * 4
        cells = [mean(spread, ".2f"), mean(explained, ".0%"), mean(state), mean(price)]
        print(f"| {name} | {rows or 'half'} | {' | '.join(cells)} |")


def compared(name: str, rows: int, number: int) -> list[float]:
    """Return the spread of costs, its explained share, and two areas over that of mean costs."""
    warnings.simplefilter("ignore")
    trace = simulated(name, number) if name in SIMULATED else load(name)
    fitted, test = split(trace, number, rows)
    means = fitted.costs.mean(axis=0)
    flat = dataclasses.replace(fitted, cost=np.tile(means, (len(fitted), 1)))
    by_state, by_mean = tt.fit(fitted), tt.fit(flat)
    cheapest = int(means.argmin())
    factor = test.costs[:, cheapest] / means[cheapest]
    cost, wrong = by_row(by_mean, test)
    base = area(test, cost.mean(axis=1), wrong.mean(axis=1))
    state = area(test, *(each.mean(axis=1) for each in by_row(by_state, test)))
    tradeoffs = np.array([policy.tradeoff for policy in by_mean])
    chosen = priced(tradeoffs, factor)
    each = np.arange(len(test))
    price = area(test, cost[chosen, each].mean(axis=1), wrong[chosen, each].mean(axis=1))
    spread, explained = explained_spread(trace, cheapest)
    return [spread, explained, state / base, price / base]


def by_row(ladder: tt.FittedLadder, test: Trace) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return what each policy costs and whether it is wrong, shape (policies, T)."""
    rows, wrong = np.arange(len(test)), test.loss
    played = list(ladder.play_all(test))
    return (
        np.stack([paid(each.asked, test) for each in played]),
        np.stack([wrong[rows, each.answer] for each in played]),
    )


def area(test: Trace, costs: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """Return the area under the lower envelope; the cheapest model may be mixed in."""
    prices, alone = test.costs.mean(axis=0), test.loss.mean(axis=0)
    low, high = float(prices.min()), float(prices.max())
    return area_under([low, *costs], [alone[prices.argmin()], *errors], low, high)


def priced(tradeoffs: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return which policy serves each row, shape (policies, T), where rows cost a factor more."""
    inside = np.flatnonzero((tradeoffs > 0) & (tradeoffs < 1))
    odds = np.log(tradeoffs[inside] / (1 - tradeoffs[inside]))
    chosen = np.tile(np.arange(len(tradeoffs))[:, np.newaxis], (1, len(factor)))
    for k, own in zip(inside, odds, strict=True):
        wanted = own - np.log(factor)
        chosen[k] = inside[np.abs(odds[:, np.newaxis] - wanted).argmin(axis=0)]
    return chosen


def explained_spread(trace: Trace, cheapest: int) -> tuple[float, float]:
    """Return the spread of log costs of the most expensive model, and the share states explain."""
    costs = np.log(trace.costs[:, int(trace.costs.mean(axis=0).argmax())])
    order = np.argsort(np.argsort(trace.confidence[:, cheapest], kind="stable"))
    group = order * GROUPS // len(trace)
    within = np.array([costs[group == k].var() for k in range(GROUPS)])
    return float(costs.std()), float(1 - within.mean() / costs.var())


def simulated(name: str, seed: int) -> Trace:
    """Return four models of growing skill and cost that share the difficulty of an input."""
    hard, rest = SIMULATED[name]
    rng = np.random.default_rng([seed, 5])
    count, nodes = 2000, 4
    difficulty, label = rng.normal(size=count), rng.integers(0, 4, count)
    margin = np.linspace(0.0, 1.8, nodes) - difficulty[:, np.newaxis]
    margin = margin + 0.7 * rng.normal(size=(count, nodes))
    other = (label[:, np.newaxis] + rng.integers(1, 4, (count, nodes))) % 4
    prices = np.array([1.0, 4.0, 15.0, 60.0])
    factor = np.exp(hard * difficulty + rest * rng.normal(size=count))
    return Trace.from_arrays(
        CascadeSpec.of({f"m{k}": price for k, price in enumerate(prices.tolist())}),
        margin + 0.5 * rng.normal(size=(count, nodes)),
        prediction=np.where(margin > 0, label[:, np.newaxis], other).astype(str),
        label=label.astype(str),
        cost=factor[:, np.newaxis] * prices,
    )


if __name__ == "__main__":
    main()
