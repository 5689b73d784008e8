"""Many simulated models: how honest a ladder's estimates are, and the default order against others.

    python experiments/many_models/simulate.py estimates --seeds 50 --processes 16
    python experiments/many_models/simulate.py orders --seeds 20 --processes 16

Models of growing skill and cost share the difficulty of an input, so they err together; in the
world ``families`` they come in two families with a difficulty of their own as well, wrong answers
are often the same one, and some models are dominated.

``estimates`` fits the default ladder and compares what it expects of a budget (5%, 20% and 50% of
the most expensive model's cost) with the same mixture on 20,000 new rows: error expected less true
error, in points, as mean, standard error and standard deviation over seeds, and cost expected over
true cost. ``orders`` compares the area under the envelope of the default with those of the orders
fixed, skip and any. Each job appends a line to ``--log``; ``--read`` prints the tables of such a
file without fitting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from ttamer import fit
from ttamer.fitted.replay import paid
from ttamer.stats.envelope import area_under
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

NEW_ROWS = 20_000
SHARES = (0.05, 0.2, 0.5)
WORLDS = ("shared", "families")
ORDERS = ("default", "fixed", "skip", "any")
ROWS = {"estimates": (300, 1000, 2000, 5000), "orders": (300, 1000, 1999, 2000, 5000)}
NEW_SEED = 10_000
"""New rows of a seed are drawn with the seed plus this."""

Job = tuple[str, str, int, int, int]
"""(what, world, models, rows, seed)"""


def main() -> None:
    """Run the jobs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--models", type=int, nargs="+", default=[8, 10])
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["shared"])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", type=Path, help="a line of JSON is appended for each job")
    parser.add_argument("--read", type=Path, help="print the tables of such a file")
    args = parser.parse_args()
    if args.read is not None:
        found = [json.loads(line) for line in args.read.read_text().splitlines()]
        show(args.what, [own for own in found if own["what"] == args.what])
        return
    seeds = range(args.first, args.first + args.seeds)
    rows = args.rows or ROWS[args.what]
    jobs: list[Job] = [  # a cut run has some seeds of everything
        (args.what, world, models, count, seed)
        for seed, world, models, count in itertools.product(
            seeds, args.worlds, args.models, sorted(rows, reverse=True)
        )
    ]
    found = []
    with Pool(args.processes) as pool:
        for result in pool.imap_unordered(run, jobs):
            found.append(result)
            if args.log is not None:
                with args.log.open("a") as log:
                    log.write(json.dumps(result) + "\n")
    show(args.what, found)


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


def run(job: Job) -> dict[str, Any]:
    """Run one job: a fit for ``estimates``, one for each order for ``orders``."""
    what, world, models, rows, seed = job
    trace = simulated(rows, models, world, seed)
    new = simulated(NEW_ROWS, models, world, seed + NEW_SEED)
    begun = time.process_time()
    measure = estimates if what == "estimates" else orders
    result = {"what": what, "world": world, "models": models, "rows": rows, "seed": seed}
    result |= measure(trace, new)
    return result | {"seconds": time.process_time() - begun}


def estimates(trace: Trace, new: Trace) -> dict[str, Any]:
    """Return errors and costs, expected and true, of each budget and each policy."""
    ladder = fit(trace)
    rungs = ladder.require_rungs()
    errors, costs = measured(ladder, new)
    budgets = {}
    for share in SHARES:
        budget = share * float(trace.costs.mean(axis=0).max())
        low, high, part = rungs.for_budget(budget)
        budgets[str(share)] = [
            rungs.error_of(rungs.for_budget(budget)),
            (1 - part) * errors[low] + part * errors[high],
            rungs.cost_of(rungs.for_budget(budget)),
            (1 - part) * costs[low] + part * costs[high],
        ]
    return {
        "budgets": budgets,
        "policies": [rungs.errors.tolist(), errors, rungs.costs.tolist(), costs],
    }


def orders(trace: Trace, new: Trace) -> dict[str, Any]:
    """Return the area under the envelope of each order, on new rows."""
    means = new.costs.mean(axis=0)
    cheapest = float(new.wrong()[:, means.argmin()].mean())
    areas = {}
    for order in ORDERS:
        if order == "any" and len(trace.names) > 4:
            continue  # what the default searches among five or more models
        ladder = fit(trace) if order == "default" else fit(trace, order=order)
        errors, costs = measured(ladder, new)
        areas[order] = area_under(
            [*costs, means.min()], [*errors, cheapest], means.min(), means.max()
        )
    return {"areas": areas}


def measured(ladder: Any, trace: Trace) -> tuple[list[float], list[float]]:
    """Return the error and the mean cost of every policy on a trace."""
    wrong, rows = trace.wrong(), np.arange(len(trace))
    played = list(ladder.play_all(trace))
    errors = [float(wrong[rows, own.answer].mean()) for own in played]
    return errors, [float(paid(own.asked, trace).mean()) for own in played]


def show(what: str, found: list[dict[str, Any]]) -> None:
    """Print a table."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for own in found:
        groups.setdefault((own["world"], own["models"], own["rows"]), []).append(own)
    if what == "estimates":
        each = " | ".join(f"at {share:.0%} of the cost | sd | cost" for share in SHARES)
        print(f"| world | models | rows | seeds | {each} | all policies | fit, s |")
    else:
        print("| world | models | rows | seeds | default over fixed | over skip | over any | over "
              "the best of the means |")  # fmt: skip
    for (world, models, rows), some in sorted(groups.items()):
        cells = [world, str(models), str(rows), str(len(some))]
        cells += shown_estimates(some) if what == "estimates" else shown_orders(some)
        print("|", " | ".join(cells), "|")


def shown_estimates(some: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a group: differences in points of error, ratios of costs."""
    cells = []
    for share in SHARES:
        expected, true, cost, true_cost = np.array([own["budgets"][str(share)] for own in some]).T
        gap = 100 * (expected - true)
        cells += [shown(gap, "+.2f"), f"{gap.std():.2f}", f"{(cost / true_cost).mean():.3f}"]
    every = 100 * np.array([np.subtract(*own["policies"][:2]).mean() for own in some])
    return [*cells, shown(every, "+.2f"), f"{np.mean([own['seconds'] for own in some]):.1f}"]


def shown_orders(some: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a group: the default's area over each order's."""
    areas = {order: np.array([own["areas"].get(order, np.nan) for own in some]) for order in ORDERS}
    cells = [
        "-" if np.isnan(areas[order]).any() else shown(areas["default"] / areas[order], ".3f")
        for order in ORDERS[1:]
    ]
    best = np.nanmin([areas[order].mean() for order in ORDERS[1:]])
    return [*cells, f"{areas['default'].mean() / best:.3f}"]


def shown(values: np.ndarray, form: str) -> str:
    """Return a mean and its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():{form}} ± {error:{form.lstrip('+')}}"


if __name__ == "__main__":
    main()
