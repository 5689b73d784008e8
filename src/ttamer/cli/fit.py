"""``ttamer fit``: from a trace to a ladder of policies."""

import math
from typing import Any

import click
import msgspec

from ttamer._checks import counted, number
from ttamer.artefact.file import save
from ttamer.cli import warn
from ttamer.cli.options import Reading, json_option, output_option, reading_options, require_costs
from ttamer.cli.tables import as_json as to_json, progress_line, table
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, shown_error
from ttamer.fitting.stream import fit_file


@click.command("fit")
@click.argument("trace")
@reading_options
@output_option("policy.ttamer", text="Where to write the policies.")
@click.option("--belief", type=click.Choice(["answers", "markov", "threshold"]),
              default="answers", help="What all answers and the input say (default); markov: the "
              "paper as written; threshold: one for all nodes, certified on all rows.")  # fmt: skip
@click.option("--without", multiple=True, metavar="NODE", help="Leave out a node.")
@click.option("--states", type=int, metavar="N",
              help="With markov: states per node (default: by the number of rows).")  # fmt: skip
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
    return None if ladder.held is None or ladder.fitted.thresholds else ladder.held.rows


def _facts(ladder: FittedLadder, output: str, mistake_cost: float | None) -> dict[str, Any]:
    chosen = _chosen(ladder, mistake_cost)
    return {
        "output": output,
        "rows": ladder.record.rows,
        "held_out": _held(ladder),
        "record": msgspec.to_builtins(ladder.record),
        "policies": [
            {"tradeoff": policy.tradeoff, "error": policy.error, "cost": policy.cost}
            for policy in ladder
        ],
        "chosen": {
            "error": chosen.error,
            "cost": chosen.cost,
            "single_node": chosen.single_node,
        },
    }


def _show(ladder: FittedLadder, output: str, mistake_cost: float | None) -> None:
    """Print the fit: its policies, the best single model, the policy chosen, and what is next."""
    fitted, points, chosen = ladder.fitted, ladder.points, _chosen(ladder, mistake_cost)
    record, held, measure = ladder.record, _held(ladder), fitted.measure
    names = fitted.spec.names
    more = f" ({held} more held out)" if held else ""
    print(f"{counted(record.rows, 'row')}{more}, {counted(len(names), 'node')}: belief "
          f"{record.belief}\n")  # fmt: skip
    if record.weighting != "none":
        how = {
            "raked": "weighted to look like all rows; that they differ in nothing else is assumed",
            "chance": "weighted by the chances in the log",
        }[record.weighting]
        print(f"{record.complete} rows are complete: policies are found on them, {how}.\n")
    if record.markov is not None:
        print(f"{record.markov}.\n")
    if record.inputs:
        print(f"Beside answers it reads {', '.join(record.inputs)} of the input.\n")
    print(policy_table(ladder))
    what = "What to expect on new rows, by cross-fitting"
    if fitted.thresholds:
        what = "As measured on these rows"
    print(f"\n{what}; of full: as a share of the full model's")
    print("cost, or of the most expensive model's.")
    best, price = names[points.best], float(points.alone_cost[points.best])
    print(f"Best single model, {best}: {ladder.alone(best).described}")
    if not points.alone_cost.any():
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
    points, fitted = ladder.points, ladder.fitted
    times, full = points.latency, fitted.full_cost
    latency = [] if times is None else ["latency", "95% within"]
    return table(["cost", "of full", fitted.measure, *latency, "policy"], [
        [number(points.costs[k]), f"{points.costs[k] / full:.1%}",
         shown_error(fitted.unit * float(points.errors[k]), fitted.measure),
         *(() if times is None else map(number, times[k, :2].tolist())),
         ladder.point(k).setting]
        for k in points.corners
    ])  # fmt: skip
