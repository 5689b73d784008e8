"""``ttamer fit``: from a trace to a ladder of policies."""

import math
from typing import Any

import click
import msgspec

from ttamer._checks import counted
from ttamer.artefact.file import save
from ttamer.cli import warn
from ttamer.cli.options import (
    Reading,
    command,
    json_option,
    option,
    output_option,
    progress_line,
    reading_options,
    require_costs,
    to_json,
)
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit, fit_file
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture


@command("fit")
@click.argument("trace")
@reading_options
@output_option("policy.ttamer", text="Where to write the policies.")
@click.option("--belief", type=click.Choice(["answers", "markov", "threshold"]),
              default="answers", help="What all answers and the input say (default); markov: the "
              "paper as written; threshold: one for all nodes, certified on all rows.")  # fmt: skip
@option("--without", "NODE", "Leave out a node.", multiple=True)
@option("--rename", "OLD=NEW", "Give a node another name.", multiple=True)
@option("--max-nodes", "N", "Ask at most N models about one input: 1 is a router, 2 the best pairs "
        "(default 4).", type=int)  # fmt: skip
@option("--hold-out", "SHARE", "Hold out this share of the rows, for certificates.", type=float,
        default=0.0)  # fmt: skip
@option("--mistake-cost", "M", "Show the policy of least total cost if a wrong answer costs M, in "
        "the cascade's unit.", type=float)  # fmt: skip
@click.option("--stream", is_flag=True, help="Read in batches, for files larger than memory.")
@json_option
def fit_command(
    trace: str,
    reading: Reading,
    output: str,
    mistake_cost: float | None,
    stream: bool,
    as_json: bool,
    rename: tuple[str, ...],
    **options: Any,
) -> None:
    """Fit a ladder of policies to TRACE (Parquet, CSV, NPZ), and save it."""
    if mistake_cost is not None and not 0 < mistake_cost < math.inf:
        raise ArgumentError(f"--mistake-cost is {mistake_cost:g}; it must be above 0")
    options["progress"] = progress = progress_line(quiet=as_json)
    pairs = [text.partition("=")[::2] for text in rename]
    if not all(old and new for old, new in pairs):
        raise ArgumentError(f"--rename takes OLD=NEW, not {' '.join(rename)}")
    options["rename"] = dict(pairs)
    if not stream:
        ladder = fit(reading.read(trace), **options)
    else:
        if reading.spec is None:
            require_costs(trace)
        on_bad: Any = "skip" if reading.skip_bad else "refuse"
        ladder = fit_file(trace, reading.spec, on_bad=on_bad, **options)
    progress("")
    save(ladder, output)
    held = None if ladder.held is None or ladder.fitted.thresholds else ladder.held.rows
    best = ladder.alone(ladder.spec.names[ladder.points.best])
    chosen: FittedPolicy | Mixture
    if mistake_cost is None:
        chosen, reason, share = ladder.default(), f"As accurate as {best.single_node}", ""
        if ladder.allowed_drop:
            points = 100 * ladder.allowed_drop
            reason = f"At most {points:g} point worse than {best.single_node}"
        if best.cost and chosen.cost:
            share = f", {chosen.cost / best.cost:.1%} of its cost"
        share += " (the default of serving)"
    else:
        chosen, share = ladder.for_mistake_cost(mistake_cost), ""
        reason = f"At {mistake_cost:g} per mistake"
    if as_json:
        keys = ("error", "cost", "single_node")
        facts = {
            "output": output,
            "rows": ladder.record.rows,
            "held_out": held,
            "record": msgspec.to_builtins(ladder.record),
            "policies": [
                {"tradeoff": policy.tradeoff, "error": policy.error, "cost": policy.cost}
                for policy in ladder
            ],
            "chosen": {key: getattr(chosen, key) for key in keys},
        }
        print(to_json(facts))
        return
    _show(ladder, held)
    print(f"\nBest single model, {best.single_node}: {best.described}")
    print(f"{reason}: {chosen.described}{share}")
    if not ladder.points.alone_cost.any():
        warn(
            "every node costs 0, so that there is nothing to save: write what a call costs "
            "into the cascade, or into columns <node>.cost"
        )
    if chosen.single_node is not None and len(ladder.spec) > 1:
        warn(
            f"this policy only ever asks {chosen.single_node!r}; other policies of the table ask a "
            "second model: choose one by --mistake-cost, or by a budget"
        )
    print("\nThen:")
    print(f"  ttamer evaluate {output} TRACE     measure on held-out rows")
    print(f"  {_certify(ladder, output, chosen)}")
    print(f"written to {output}")


def _show(ladder: FittedLadder, held: int | None) -> None:
    """Print what was fitted: the policies of the frontier, and the best single model."""
    record = ladder.record
    more = f" ({held} more held out)" if held else ""
    nodes = counted(len(ladder.spec), "node")
    print(f"{counted(record.rows, 'row')}{more}, {nodes}: belief {record.belief}\n")
    if record.on_gaps:
        print(f"{record.on_gaps}\n")
    if record.markov is not None:
        print(f"{record.markov}.\n")
    if record.inputs:
        print(f"Beside answers it reads {', '.join(record.inputs)} of the input.\n")
    print(ladder.table())
    rows = "As measured on these rows" if ladder.fitted.thresholds else (
        "What to expect on new rows, by cross-fitting"
    )  # fmt: skip
    print(f"\n{rows}; of full: as a share of the full model's")
    print("cost, or of the most expensive model's.")


def _certify(ladder: FittedLadder, output: str, chosen: FittedPolicy | Mixture) -> str:
    """Return the command that certifies one of the policies, or what it lacks."""
    certify = f"ttamer certify {output}{'' if ladder.held else ' TRACE'}"
    if ladder.fitted.measure == "error":
        return f"{certify} --drop 0.01 --against best     at most a point worse than the best model"
    bound = ladder.spec.loss_bound
    if bound is None:
        return "to certify, set max_loss in [cascade], the largest loss there is, and fit again"
    loss = max(1.2 * (chosen.error or 0.0), bound / 20)
    return f"{certify} --error {loss:.2g}     certify a mean loss on held-out rows"
