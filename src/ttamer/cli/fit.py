"""``ttamer fit``: from a trace to a ladder of policies."""

import math
from typing import Any

import click

from ttamer._numbers import counted, number
from ttamer.artefact.files import save
from ttamer.cli import warn
from ttamer.cli.options import Reading, json_option, output_option, reading_options, require_costs
from ttamer.cli.tables import as_json as to_json, progress_line, table
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import described, shown_error
from ttamer.fitting.plans import fit
from ttamer.fitting.streaming import fit_file


@click.command("fit")
@click.argument("trace")
@reading_options
@output_option("policy.ttamer", text="Where to write the policies.")
@click.option("--belief", type=click.Choice(["full", "calibrated", "none", "threshold"]),
              default="full", help="How losses are estimated (default full); none: the paper as "
              "written; threshold: one for all nodes, certified on all rows.")  # fmt: skip
@click.option("--order", type=click.Choice(["fixed", "skip", "any", "auto"]),
              help="The order in which nodes may be asked (default: the cascade's).")  # fmt: skip
@click.option("--states", type=int, metavar="N",
              help="States per node (default: by cross-validation).")  # fmt: skip
@click.option("--quantise", type=click.Choice(["quantile", "uniform", "kmeans"]),
              default="quantile", help="How confidences become states.")  # fmt: skip
@click.option("--hold-out", type=float, default=0.0, metavar="SHARE",
              help="Hold out this share of the rows, for promises.")  # fmt: skip
@click.option("--latency-weight", type=float, metavar="W",
              help="What a unit of latency is worth, in the cascade's unit of cost: policies weigh "
              "both (default: the cascade's).")  # fmt: skip
@click.option("--mistake-cost", type=float, metavar="M",
              help="Show the policy of least total cost if a wrong answer costs M, in the "
              "cascade's unit.")  # fmt: skip
@click.option("--stream", is_flag=True, help="Read in batches, for files larger than memory.")
@click.option("--seed", type=int, default=0, help="The seed of the cross-validation.")
@json_option
def fit_command(
    trace: str,
    reading: Reading,
    output: str,
    mistake_cost: float | None,
    stream: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a ladder of policies to TRACE (Parquet, CSV, NPZ), and save it."""
    if mistake_cost is not None and not 0 < mistake_cost < math.inf:
        raise ArgumentError(f"--mistake-cost is {mistake_cost:g}; it must be above 0")
    progress = progress_line(quiet=as_json)
    options["progress"] = progress
    if not stream:
        ladder = fit(reading.read(trace), **options)
    elif options["hold_out"]:
        raise ArgumentError(
            "--hold-out does not work with --stream: keep rows in a file of their own, and give "
            "them to ttamer certify"
        )
    else:
        if reading.spec is None:
            require_costs(trace)
        on_bad: Any = "skip" if reading.skip_bad else "refuse"
        ladder = fit_file(trace, reading.spec, on_bad=on_bad, **options)
    progress("")
    save(ladder, output)
    if as_json:
        print(to_json(_facts(ladder, output, mistake_cost)))
    else:
        _show(ladder, output, mistake_cost)


def _chosen(ladder: FittedLadder, mistake_cost: float | None) -> Any:
    return ladder.default() if mistake_cost is None else ladder.for_mistake_cost(mistake_cost)


def _held(ladder: FittedLadder) -> int | None:
    return None if ladder.held is None or ladder.fitted.has_thresholds else ladder.held.rows


def _facts(ladder: FittedLadder, output: str, mistake_cost: float | None) -> dict[str, Any]:
    rungs, chosen = ladder.require_rungs(), _chosen(ladder, mistake_cost)
    policies = zip(ladder, rungs.errors.tolist(), rungs.costs.tolist(), strict=True)
    return {
        "output": output,
        "rows": ladder.fitted.rows,
        "held_out": _held(ladder),
        "plan": dict(ladder.fitted.plan),
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


def _show(ladder: FittedLadder, output: str, mistake_cost: float | None) -> None:
    """Print the fit: its policies, the best single model, the policy chosen, and what is next."""
    fitted, rungs, chosen = ladder.fitted, ladder.require_rungs(), _chosen(ladder, mistake_cost)
    plan, held, measure = fitted.plan, _held(ladder), fitted.measure
    names = fitted.spec.names
    more = f" ({held} more held out)" if held else ""
    print(f"{counted(fitted.rows, 'row')}{more}, {counted(len(names), 'node')}: order "
          f"{plan['order']}, {counted(plan['states'], 'state')} per node, belief "
          f"{plan['belief']}\n")  # fmt: skip
    if fitted.reads:
        print(f"Beside confidences it reads {', '.join(fitted.columns_read)}.\n")
    print(policy_table(ladder))
    what = "What to expect on new rows, by cross-fitting"
    if fitted.has_thresholds:
        what = "As measured on these rows"
    print(f"\n{what}; of full: as a share of the full model's")
    print("cost, or of the most expensive model's.")
    best, price = "the best single model", 0.0
    if rungs.node_errors is not None and rungs.node_costs is not None:
        node = int(rungs.node_errors.argmin())
        best, price = names[node], float(rungs.node_costs[node])
        alone = described(price, float(rungs.node_errors[node]), measure)
        print(f"Best single model, {best}: {alone}")
        if not rungs.node_costs.any():
            warn(
                "every node costs 0, so that there is nothing to save: write what a call costs "
                "into the cascade, or into columns <node>.cost"
            )
    if mistake_cost is None:
        share = f", {chosen.cost / price:.1%} of its cost" if price and chosen.cost else ""
        print(f"As accurate as {best}: {chosen.described}{share} (the default of serving)")
    else:
        print(f"At {mistake_cost:g} per mistake: {chosen.described}")
    if chosen.single_node is not None and len(names) > 1:
        warn(
            f"this policy only ever asks {chosen.single_node!r}; other policies of the table ask a "
            "second model: choose one by --mistake-cost, or by a budget"
        )
    print("Then:")
    print(f"  ttamer evaluate {output} TRACE     measure on held-out rows")
    certify = f"ttamer certify {output}{'' if ladder.held else ' TRACE'}"
    if measure == "error":
        print(
            f"  {certify} --drop 0.01 --against best     at most a point worse than the best model"
        )
    elif (bound := fitted.spec.loss_bound) is None:
        print("  to certify, set max_loss in [cascade], the largest loss there is, and fit again")
    else:
        loss = max(1.2 * (chosen.error or 0.0), bound / 20)
        print(f"  {certify} --error {loss:.2g}     certify a mean loss on held-out rows")
    print(f"written to {output}")


def policy_table(ladder: FittedLadder) -> str:
    """Return the corners of the frontier as a table."""
    rungs, fitted = ladder.require_rungs(), ladder.fitted
    times, full = rungs.latencies, fitted.full_cost
    if times is not None and rungs.node_costs is not None:  # the fit's may hold a price of latency
        full = float(rungs.node_costs.max()) or 1.0
    latency = [] if times is None else ["latency", "95% within"]
    return table(["cost", "of full", fitted.measure, *latency, fitted.setting], [
        [number(rungs.costs[rung]), f"{rungs.costs[rung] / full:.1%}",
         shown_error(float(rungs.errors[rung]), fitted.measure),
         *(() if times is None else map(number, times[rung, :2].tolist())),
         ladder[rung].setting]
        for rung in rungs.corners
    ])  # fmt: skip
