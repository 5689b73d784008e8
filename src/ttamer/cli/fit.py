"""``ttamer fit``: from a trace to a ladder of policies."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

from ttamer._numbers import counted
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.fitting.options import FitKeywords
from ttamer.trace.trace import OnBad


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.cli.traces import add_reading_options

    parser = commands.add_parser(
        "fit",
        help="fit policies to a trace, and save them",
        description="Fit a ladder of policies to a trace (Parquet, CSV, NPZ) and save it.",
        allow_abbrev=False,
    )
    parser.add_argument("trace", help="the answers of every node: a Parquet, CSV or NPZ file")
    add_reading_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", default="policy.ttamer",
                        help="where to write the policies (default policy.ttamer)")  # fmt: skip
    add_fit_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_fit_options(parser: Any) -> None:
    """Add what can be chosen about a fit."""
    parser.add_argument("--belief", choices=("full", "calibrated", "none", "threshold"),
                        default="full", help="how losses are estimated (default full); none: the "
                        "paper as written; threshold: one for all nodes, certified on all "
                        "rows")  # fmt: skip
    parser.add_argument("--order", choices=("fixed", "skip", "any", "auto"),
                        help="the order in which nodes may be asked (default: the "
                        "cascade's)")  # fmt: skip
    parser.add_argument("--states", type=int, metavar="N",
                        help="states per node (default: by cross-validation)")  # fmt: skip
    parser.add_argument("--quantise", choices=("quantile", "uniform", "kmeans"),
                        default="quantile", help="how confidences become states (default "
                        "quantile)")  # fmt: skip
    parser.add_argument("--hold-out", type=float, default=0.0, metavar="SHARE",
                        help="hold out this share of the rows, for promises")  # fmt: skip
    parser.add_argument("--latency-weight", type=float, metavar="W",
                        help="what a unit of latency is worth, in the cascade's unit of cost: "
                        "policies weigh both (default: the cascade's)")  # fmt: skip
    parser.add_argument("--mistake-cost", type=float, metavar="M",
                        help="show the policy of least total cost if a wrong answer costs M, in "
                        "the cascade's unit")  # fmt: skip
    parser.add_argument("--stream", action="store_true",
                        help="read in batches, for files larger than memory")  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of the cross-validation (default 0)"
    )


def fit_options(args: argparse.Namespace, progress: Callable[[str], None]) -> FitKeywords:
    """Return the options of a fit as keywords."""
    return {
        "belief": args.belief,
        "order": args.order,
        "states": args.states,
        "quantise": args.quantise,
        "seed": args.seed,
        "hold_out": args.hold_out,
        "latency_weight": args.latency_weight,
        "progress": progress,
    }


def run(args: argparse.Namespace) -> None:
    """Fit, save, and print what was fitted."""
    from ttamer.artefact.files import save
    from ttamer.cli.output import as_json, progress_line
    from ttamer.errors import ArgumentError

    if args.mistake_cost is not None and not 0 < args.mistake_cost < math.inf:
        raise ArgumentError(f"--mistake-cost is {args.mistake_cost:g}; it must be above 0")
    progress = progress_line(quiet=args.json)
    ladder = _fitted(args, progress)
    progress("")
    save(ladder, args.output)
    rungs = ladder.require_rungs()
    plan, rows, held = ladder.fitted.plan, ladder.fitted.rows, ladder.held
    kept = None if held is None or ladder.fitted.has_thresholds else held.rows
    chosen: FittedPolicy | Mixture = ladder.default()
    if args.mistake_cost is not None:
        chosen = ladder.for_mistake_cost(args.mistake_cost)
    if args.json:
        policies = zip(ladder, rungs.errors.tolist(), rungs.costs.tolist(), strict=True)
        facts = {
            "output": args.output,
            "rows": rows,
            "held_out": kept,
            "plan": dict(plan),
            "policies": [
                {"tradeoff": policy.tradeoff, "error": error, "cost": cost}
                for policy, error, cost in policies
            ],
            "chosen": {
                "error": chosen.error,
                "cost": chosen.cost,
                "single_node": chosen.single_node,
            },
        }
        print(as_json(facts))
        return
    nodes = len(ladder.fitted.spec.names)
    more = f" ({kept} more held out)" if kept else ""
    print(f"{counted(rows, 'row')}{more}, {counted(nodes, 'node')}: order {plan['order']}, "
          f"{counted(plan['states'], 'state')} per node, belief {plan['belief']}\n")  # fmt: skip
    if ladder.fitted.reads:
        print(f"Beside confidences it reads {', '.join(ladder.fitted.columns_read)}.\n")
    _show(ladder)
    found = "What to expect on new rows, by cross-fitting"
    if ladder.fitted.has_thresholds:
        found = "As measured on these rows"
    print(f"\n{found}; of full: as a share of the full model's")
    print("cost, or of the most expensive model's.")
    best = _show_best_node(ladder)
    if args.mistake_cost is None:
        name, cost = best or ("the best single model", 0.0)
        share = "" if not cost or chosen.cost is None else f", {chosen.cost / cost:.1%} of its cost"
        print(f"As accurate as {name}: {chosen.described}{share} (the default of serving)")
    else:
        print(f"At {args.mistake_cost:g} per mistake: {chosen.described}")
    if chosen.single_node is not None and nodes > 1:
        print(
            f"Warning: this policy only ever asks {chosen.single_node!r}; other policies of the "
            "table ask a second model: choose one by --mistake-cost, or by a budget",
            file=sys.stderr,
        )
    print("Then:")
    print(f"  ttamer evaluate {args.output} TRACE     measure on held-out rows")
    certify = f"ttamer certify {args.output}{'' if held else ' TRACE'}"
    if ladder.fitted.measure == "error":
        print(
            f"  {certify} --drop 0.01 --against best     at most a point worse than the best model"
        )
    elif (bound := ladder.fitted.spec.loss_bound) is None:
        print("  to certify, set max_loss in [cascade], the largest loss there is, and fit again")
    else:
        loss = max(1.2 * (chosen.error or 0.0), bound / 20)
        print(f"  {certify} --error {loss:.2g}     certify a mean loss on held-out rows")
    print(f"written to {args.output}")


def _fitted(args: argparse.Namespace, progress: Callable[[str], None]) -> FittedLadder:
    from ttamer.cli.traces import read, require_costs
    from ttamer.errors import ArgumentError
    from ttamer.fitting.plans import fit
    from ttamer.fitting.streaming import fit_file

    options = fit_options(args, progress)
    if not args.stream:
        return fit(read(args.trace, args), **options)
    if args.hold_out:
        raise ArgumentError(
            "--hold-out does not work with --stream: keep rows in a file of their own, "
            "and give them to ttamer certify"
        )
    if args.cascade is None:
        require_costs(args.trace)
    on_bad: OnBad = "skip" if args.skip_bad else "refuse"
    return fit_file(args.trace, args.cascade, on_bad=on_bad, **options)


def _show_best_node(ladder: FittedLadder) -> tuple[str, float] | None:
    """Print which node is the most accurate, and a warning where all are free.

    Returns:
        The name and the cost of that node, where they are known.
    """
    from ttamer.fitted.mixture import described

    rungs, measure = ladder.require_rungs(), ladder.fitted.measure
    if rungs.node_errors is None or rungs.node_costs is None:
        return None
    best = int(rungs.node_errors.argmin())
    name = ladder.spec.names[best]
    cost, error = float(rungs.node_costs[best]), float(rungs.node_errors[best])
    print(f"Best single model, {name}: {described(cost, error, measure)}")
    if not rungs.node_costs.any():
        print(
            "Warning: every node costs 0, so that there is nothing to save: write what a call "
            "costs into the cascade, or into columns <node>.cost",
            file=sys.stderr,
        )
    return name, cost


def _show(ladder: FittedLadder) -> None:
    """Print the corners of the frontier."""
    from ttamer._numbers import number
    from ttamer.cli.output import table
    from ttamer.fitted.mixture import shown_error

    rungs = ladder.require_rungs()
    measure, times, full = ladder.fitted.measure, rungs.latencies, ladder.fitted.full_cost
    if times is not None and rungs.node_costs is not None:  # the fit's may hold a price of latency
        full = float(rungs.node_costs.max()) or 1.0
    latency = [] if times is None else ["latency", "95% within"]
    print(table(["cost", "of full", measure, *latency, ladder.fitted.setting], [
        [number(rungs.costs[rung]), f"{rungs.costs[rung] / full:.1%}",
         shown_error(float(rungs.errors[rung]), measure),
         *(() if times is None else map(number, times[rung, :2].tolist())),
         ladder[rung].setting]
        for rung in rungs.corners
    ]))  # fmt: skip
