"""Many simulated models: how honest a ladder's estimates are, and the default order against others.

    python experiments/many_models/simulate.py estimates --seeds 50      # ten minutes on 16 cores
    python experiments/many_models/simulate.py orders --seeds 20         # five minutes on 16 cores

Models of growing skill and cost share the difficulty of an input, so they err together; in the
world ``families`` they come in two families with a difficulty of their own as well, wrong answers
are often the same one, and some models are dominated.

``estimates`` fits the default ladder and compares what it expects of a budget (5%, 20% and 50% of
the most expensive model's cost) with the same mixture on 20,000 new rows: error expected less true
error, in points, as mean, standard error and standard deviation over seeds, and cost expected over
true cost. ``orders`` compares the area under the envelope of the default with those of the orders
fixed, skip and (up to four models, where it is another fit) any.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer import fit
from ttamer.fitted.replay import paid
from ttamer.stats.envelope import area_under
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import add_options, mean, run

if TYPE_CHECKING:
    from over_splits import Job

    from ttamer.fitted import FittedLadder

NEW_ROWS = 20_000
SHARES = (0.05, 0.2, 0.5)
WORLDS = ("shared", "families")
ORDERS = ("default", "fixed", "skip", "any")
ROWS = {"estimates": (300, 1000, 2000, 5000), "orders": (300, 1000, 1999, 2000, 5000)}
NEW_SEED = 10_000
"""New rows of a seed are drawn with the seed plus this."""


def main() -> None:
    """Run the jobs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--models", type=int, nargs="+", default=[8, 10])
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["shared"])
    add_options(parser)
    args = parser.parse_args()
    rows = sorted(args.rows or ROWS[args.what], reverse=True)
    seeds = range(args.seeds)  # they come first: a cut run has some of everything
    every = itertools.product(seeds, args.worlds, args.models, rows)
    show(args.what, run(measured, [(args.what, *job) for job in every], args))


def simulated(rows: int, models: int, world: str, seed: int) -> Trace:
    """Return rows of a world; models are ordered by cost."""
    generator = np.random.default_rng([seed, models, WORLDS.index(world)])
    difficulty, label = generator.normal(size=(rows, 1)), generator.integers(0, 4, (rows, 1))
    skill, noise = np.linspace(-0.2, 2.0, models), generator.normal(size=(rows, models))
    wrong_by = generator.integers(1, 4, (rows, models))
    if world == "families":
        skill = skill + 0.4 * np.random.default_rng([9, models]).normal(size=models)
        own = generator.normal(size=(rows, 2))[:, np.arange(models) % 2]
        noise = 0.7 * (noise - own)
        alike = generator.random((rows, models)) < 0.5
        wrong_by = np.where(alike, generator.integers(1, 4, (rows, 1)), wrong_by)
    margin = skill - difficulty + noise
    prediction = np.where(margin > 0, label, (label + wrong_by) % 4)
    costs = np.geomspace(1, 50, models)
    return Trace.from_arrays(
        CascadeSpec.of({f"m{node}": float(cost) for node, cost in enumerate(costs)}, order="auto"),
        np.abs(margin) + 0.5 * generator.normal(size=margin.shape),
        prediction=prediction.astype(str),
        label=label[:, 0].astype(str),
    )


def measured(what: str, seed: int, world: str, models: int, rows: int) -> dict[str, Any]:
    """Do one job: a fit for ``estimates``, one for each order for ``orders``."""
    trace = simulated(rows, models, world, seed)
    new = simulated(NEW_ROWS, models, world, seed + NEW_SEED)
    return estimates(trace, new) if what == "estimates" else orders(trace, new)


def estimates(trace: Trace, new: Trace) -> dict[str, Any]:
    """Return errors and costs, expected and true, of each budget and each policy."""
    begun = time.process_time()
    ladder = fit(trace)
    seconds = time.process_time() - begun
    rungs = ladder.require_rungs()
    errors, costs = played(ladder, new)
    budgets = {}
    for share in SHARES:
        budget = share * float(trace.costs.mean(axis=0).max())
        mix = rungs.for_budget(budget)
        true = [(1 - mix.share) * own[mix.cheap] + mix.share * own[mix.expensive]
                for own in (errors, costs)]  # fmt: skip
        budgets[str(share)] = [rungs.error_of(mix), true[0], rungs.cost_of(mix), true[1]]
    policies = float(np.mean(rungs.errors - errors))
    return {"budgets": budgets, "policies": policies, "seconds": seconds}


def orders(trace: Trace, new: Trace) -> dict[str, Any]:
    """Return the area under the envelope of each order, on new rows."""
    means = new.costs.mean(axis=0)
    cheapest = float(new.wrong()[:, means.argmin()].mean())
    areas = {}
    for order in ORDERS:
        if order == "any" and len(trace.names) > 4:
            continue  # what the default searches among five or more models
        ladder = fit(trace) if order == "default" else fit(trace, order=order)
        errors, costs = played(ladder, new)
        areas[order] = area_under(
            [*costs, means.min()], [*errors, cheapest], means.min(), means.max()
        )
    return {"areas": areas}


def played(ladder: FittedLadder, trace: Trace) -> tuple[list[float], list[float]]:
    """Return the error and the mean cost of every policy on a trace."""
    wrong, rows = trace.wrong(), np.arange(len(trace))
    each = list(ladder.play_all(trace))
    errors = [float(wrong[rows, own.answer].mean()) for own in each]
    return errors, [float(paid(own.asked, trace).mean()) for own in each]


def show(what: str, found: dict[Job, Any]) -> None:
    """Print a table."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for (_, _, *group), result in found.items():
        groups.setdefault(tuple(group), []).append(result)
    if what == "estimates":
        each = " | ".join(f"at {share:.0%} of the cost | sd | cost" for share in SHARES)
        head = f"{each} | all policies | fit, CPU s"
    else:
        head = "default over fixed | over skip | over any | over the best of these, by means"
    print(f"| world | models | rows | seeds | {head} |")
    print("|---" * (head.count("|") + 5) + "|")
    for (world, models, rows), some in sorted(groups.items()):
        cells = [world, str(models), f"{rows:,}", str(len(some))]
        cells += shown_estimates(some) if what == "estimates" else shown_orders(some)
        print("|", " | ".join(cells), "|")


def shown_estimates(some: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a group: differences in points of error, ratios of costs."""
    cells = []
    for share in SHARES:
        error, true, cost, true_cost = np.array([own["budgets"][str(share)] for own in some]).T
        gap = 100 * (error - true)
        cells += [mean(gap, "+.2f"), f"{gap.std():.2f}", f"{(cost / true_cost).mean():.3f}"]
    every = mean([100 * own["policies"] for own in some], "+.2f")
    return [*cells, every, f"{np.mean([own['seconds'] for own in some]):.1f}"]


def shown_orders(some: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a group: the default's area over each order's."""
    areas = {order: np.array([own["areas"].get(order, np.nan) for own in some]) for order in ORDERS}
    cells = [mean(areas["default"] / areas[order]) for order in ORDERS[1:]]
    best = np.nanmin([areas[order].mean() for order in ORDERS[1:]])
    return [*cells, f"{areas['default'].mean() / best:.3f}"]


if __name__ == "__main__":
    main()
