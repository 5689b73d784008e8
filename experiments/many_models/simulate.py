"""Many simulated models: how honest a ladder's estimates are, and the default order against others.

    python experiments/many_models/simulate.py --seeds 30 --orders 8    # six minutes on 16 cores

Models of growing skill and cost share the difficulty of an input, so they err together; in the
world ``families`` they come in two families with a difficulty of their own as well, wrong answers
are often the same one, and some models are dominated.

The first table compares what the default ladder expects of a budget (5%, 20% and 50% of the most
expensive model's cost) with the same mixture on 20,000 new rows: error expected less true error, in
points, as a mean over seeds with its standard error, and cost expected over true cost. The rows
fitted to are by chance easier or harder than new ones; what that does to each model's own error is
known, so its part is taken off: the errors of models on the rows fitted to less those on new ones,
weighted by how often each answers, on average over the other seeds. That has mean zero, and makes
the standard error smaller. In brackets: the standard deviation of one estimate, chance included.

The second table compares the area under the envelope of the default with those of the orders fixed,
skip and (up to four models, where it is another fit) any, on the first ``--orders`` seeds.

Seeds begin at 100: what the fit has as constants was chosen on lower ones.
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
from ttamer.cascade import CascadeSpec
from ttamer.fitting.replay import paid
from ttamer.stats.envelope import area_under
from ttamer.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import add_options, mean, run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.fitting.ladder import FittedLadder

NEW_ROWS = 20_000
SHARES = (0.05, 0.2, 0.5)
WORLDS = ("shared", "families")
ORDERS = ("default", "fixed", "skip", "any")
NEW_SEED = 10_000
"""New rows of a seed are drawn with the seed plus this."""

Group = tuple[str, int, int]


def main() -> None:
    """Run the jobs and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--orders", type=int, default=8, help="seeds with which orders compare")
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 2000, 5000])
    parser.add_argument("--models", type=int, nargs="+", default=[4, 8, 10])
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["shared"])
    add_options(parser)
    args = parser.parse_args()
    seeds = range(args.seeds)  # they come first: a cut run has some of everything
    every = itertools.product(seeds, args.worlds, args.models, sorted(args.rows, reverse=True))
    jobs = [(args.first + seed, *job, seed < args.orders) for seed, *job in every]
    groups: dict[Group, list[dict[str, Any]]] = {}
    for (_, *group, _), result in run(measured, jobs, args).items():
        groups.setdefault(tuple(group), []).append(result)
    print_estimates(groups)
    print_orders(groups)


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
        CascadeSpec.of({f"m{node}": float(cost) for node, cost in enumerate(costs)}),
        np.abs(margin) + 0.5 * generator.normal(size=margin.shape),
        prediction=prediction.astype(str),
        label=label[:, 0].astype(str),
    )


def measured(seed: int, world: str, models: int, rows: int, compare: bool) -> dict[str, Any]:
    """Do one job: fit the default ladder, and with ``compare`` those of other orders."""
    trace = simulated(rows, models, world, seed)
    new = simulated(NEW_ROWS, models, world, seed + NEW_SEED)
    begun = time.process_time()
    ladder = fit(trace)
    seconds = time.process_time() - begun
    errors, costs, answers = played(ladder, new)
    found = estimates(ladder, trace, errors, costs, answers)
    found["luck"] = (trace.loss.mean(axis=0) - new.loss.mean(axis=0)).tolist()
    found["areas"] = {"default": area(new, errors, costs)}
    for order in ORDERS[1:] if compare else ():
        if order != "any" or models <= 4:  # what the default searches among five or more models
            others = played(fit(trace, order=order), new)
            found["areas"][order] = area(new, others[0], others[1])
    return {**found, "seconds": seconds}


def estimates(
    ladder: FittedLadder,
    trace: Trace,
    errors: NDArray[np.float64],
    costs: NDArray[np.float64],
    answers: NDArray[np.float64],
) -> dict[str, Any]:
    """Return, for each budget and for all policies, expected and true numbers and who answers."""
    rungs = ladder.require_rungs()
    budgets = {}
    for share in SHARES:
        mix = rungs.for_budget(share * float(trace.costs.mean(axis=0).max()))
        error, cost, answer = (
            (1 - mix.share) * own[mix.cheap] + mix.share * own[mix.expensive]
            for own in (errors, costs, answers)
        )
        numbers = [rungs.error_of(mix), error, rungs.cost_of(mix), cost]
        budgets[str(share)] = [*map(float, numbers), answer.tolist()]
    means = [rungs.errors, errors, rungs.costs, costs]
    everything = [*(float(own.mean()) for own in means), answers.mean(axis=0).tolist()]
    return {"budgets": {**budgets, "all": everything}}


def area(new: Trace, errors: NDArray[np.float64], costs: NDArray[np.float64]) -> float:
    """Return the area under the envelope on new rows; the cheapest model may be mixed in."""
    means = new.costs.mean(axis=0)
    cheapest = float(new.loss[:, means.argmin()].mean())
    return area_under([*costs, means.min()], [*errors, cheapest], means.min(), means.max())


def played(
    ladder: FittedLadder, trace: Trace
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the error and the mean cost of every policy, and the shares in which nodes answer."""
    wrong, rows = trace.loss > 0, np.arange(len(trace))
    each = list(ladder.play_all(trace))
    errors = [wrong[rows, own.answer].mean() for own in each]
    answers = [np.bincount(own.answer, minlength=len(trace.names)) / len(rows) for own in each]
    costs = [paid(own.asked, trace).mean() for own in each]
    return np.array(errors), np.array(costs), np.array(answers)


def print_estimates(groups: dict[Group, list[dict[str, Any]]]) -> None:
    """Print how far estimates are from the truth, in points of error, and ratios of costs."""
    each = " | ".join(f"at {share:.0%} of the cost | cost" for share in SHARES)
    print(f"| world | models | rows | seeds | {each} | all policies | fit, CPU s |")
    print("|---" * (2 * len(SHARES) + 6) + "|")
    for (world, models, rows), some in sorted(groups.items()):
        cells = [world, str(models), f"{rows:,}", str(len(some))]
        for key in (*map(str, SHARES), "all"):
            error, true, cost, true_cost, answers = zip(
                *(own["budgets"][key] for own in some), strict=True
            )
            gap = 100 * np.subtract(error, true)
            rest = gap - 100 * chance(np.array(answers), np.array([own["luck"] for own in some]))
            cells.append(f"{mean(rest, '+.2f')} ({gap.std():.1f})")
            if key != "all":
                cells.append(f"{np.divide(cost, true_cost).mean():.3f}")
        cells.append(f"{np.mean([own['seconds'] for own in some]):.1f}")
        print("|", " | ".join(cells), "|")
    print()


def chance(answers: NDArray[np.float64], luck: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, shape (seeds,), the error that chance adds, by shares of answers of other seeds."""
    others = max(len(answers) - 1, 1)
    weights = (answers.sum(axis=0) - answers) / others
    return np.asarray((weights * luck).sum(axis=1))


def print_orders(groups: dict[Group, list[dict[str, Any]]]) -> None:
    """Print the default's area over those of other orders."""
    over = "default over fixed | over skip | over any | over the best of these, by means"
    print(f"| world | models | rows | seeds | {over} |")
    print("|---" * 8 + "|")
    for (world, models, rows), every in sorted(groups.items()):
        some = [own["areas"] for own in every if len(own["areas"]) > 1]
        if not some:
            continue
        areas = {order: np.array([own.get(order, np.nan) for own in some]) for order in ORDERS}
        cells = [world, str(models), f"{rows:,}", str(len(some))]
        cells += [mean(areas["default"] / areas[order]) for order in ORDERS[1:]]
        best = np.nanmin([areas[order].mean() for order in ORDERS[1:]])
        print("|", " | ".join(cells), f"| {areas['default'].mean() / best:.3f} |")


if __name__ == "__main__":
    main()
