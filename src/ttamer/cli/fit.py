"""``ttamer fit`` and ``inspect``: from a log to a policy file, and what a file holds."""

import math
from typing import Any

import click
import msgspec

from ttamer._checks import counted, number
from ttamer.artefact import open_artefact
from ttamer.artefact.file import save
from ttamer.cli import warn
from ttamer.cli.options import (
    POLICY,
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
from ttamer.policy import Ladder
from ttamer.show import table


@command("fit")
@click.argument("trace")
@reading_options
@output_option("policy.ttamer", text="Where to write the policies.", kind=POLICY)
@click.option(
    "--belief",
    type=click.Choice(["answers", "markov", "threshold"]),
    default="answers",
    help="What all answers and the input say (default); markov: the "
    "paper as written; threshold: one for all nodes, certified on all rows.",
)
@option("--without", "NODE", "Leave out a node.", multiple=True)
@option("--rename", "OLD=NEW", "Give a node another name.", multiple=True)
@option(
    "--max-nodes",
    "N",
    "Ask at most N models about one input: 1 is a router, 2 the best pairs (default 4).",
    type=int,
)
@option(
    "--hold-out",
    "SHARE",
    "Hold out this share of the rows, for certificates.",
    type=float,
    default=0.0,
)
@option(
    "--mistake-cost",
    "M",
    "Show the policy of least total cost if a wrong answer costs M, in the cascade's unit.",
    type=float,
)
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
    pairs = [text.partition("=")[::2] for text in rename]
    if not all(old and new for old, new in pairs):
        raise ArgumentError(f"--rename takes OLD=NEW, not {' '.join(rename)}")
    progress = progress_line(quiet=as_json)
    options |= {"rename": dict(pairs), "progress": progress}
    if not stream:
        ladder = fit(reading.read(trace), **options)
    else:
        if reading.prices:
            raise ArgumentError("--prices is not for --stream: leave one of them out")
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
        chosen, reason = ladder.default(), f"As accurate as {best.single_node}"
        if ladder.allowed_drop:
            points = 100 * ladder.allowed_drop
            reason = f"At most {points:g} point worse than {best.single_node}"
    else:
        chosen, reason = ladder.for_mistake_cost(mistake_cost), f"At {mistake_cost:g} per mistake"
    if as_json:
        policies = [{"tradeoff": p.tradeoff, "error": p.error, "cost": p.cost} for p in ladder]
        print(
            to_json(
                {
                    "output": output,
                    "rows": ladder.record.rows,
                    "held_out": held,
                    "record": msgspec.to_builtins(ladder.record),
                    "policies": policies,
                    "chosen": {
                        "error": chosen.error,
                        "cost": chosen.cost,
                        "single_node": chosen.single_node,
                    },
                }
            )
        )
        return
    print("\n\n".join(_paragraphs(ladder, held)))
    share = f", {chosen.cost / best.cost:.1%} of its cost" if best.cost and chosen.cost else ""
    print(f"\nBest single model, {best.single_node}: {best.described}")
    print(f"{reason}: {chosen.described}{share}{' (the default of serving)' * (not mistake_cost)}")
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
    bound = "--drop 0.01 --against best" if ladder.fitted.measure == "error" else "--error LOSS"
    print("\nThen:")
    print(f"  ttamer evaluate {output} TRACE     measure on held-out rows")
    print(f"  ttamer certify {output}{'' if ladder.held else ' TRACE'} {bound}")
    print(f"written to {output}")


def _paragraphs(ladder: FittedLadder, held: int | None) -> list[str]:
    """Return what was fitted, and the policies of the frontier."""
    record = ladder.record
    more = f" ({held} more held out)" if held else ""
    nodes = counted(len(ladder.spec), "node")
    inputs = f"Beside answers it reads {', '.join(record.inputs)} of the input."
    rows = "What to expect on new rows, by cross-fitting"
    if ladder.fitted.thresholds:
        rows = "As measured on these rows"
    return [
        f"{counted(record.rows, 'row')}{more}, {nodes}: belief {record.belief}",
        *[record.on_gaps] * bool(record.on_gaps),
        *[f"{record.markov}."] * (record.markov is not None),
        *[inputs] * bool(record.inputs),
        ladder.table(),
        f"{rows}; of full: as a share of the full model's\ncost, or of the most expensive model's.",
    ]


@command("inspect")
@click.argument("file")
@json_option
def inspect_command(file: str, as_json: bool) -> None:
    """Check a .ttamer FILE completely, and print what it holds."""
    artefact = open_artefact(file)
    if as_json:
        print(to_json(artefact.facts))
        return
    facts, policy, rows = dict(artefact.facts), artefact.policy, ""
    if isinstance(policy, FittedLadder | FittedPolicy | Mixture):
        # Facts about the problem that a fit may have solved, over its own states; --json has them.
        solved = {"moves", "recall", "nodes", "states", "edges", "tradeoffs", "values", "points"}
        facts = {name: value for name, value in facts.items() if name not in solved}
        facts["cascade"] = {node.name: number(node.cost) for node in policy.spec.nodes}
    if isinstance(policy, FittedLadder):
        record = msgspec.to_builtins(policy.record)
        record["trace_digest"] = record["trace_digest"][:12]
        facts["cascade"] = {name: policy.alone(name).described for name in policy.spec.names}
        facts["policies"], facts["default"] = len(policy), policy.default().described
        facts["fit"] = {key: value for key, value in record.items() if value}
        rows = f"Expected on new rows:\n\n{policy.table()}"
        policy = policy.default()
    parts = [policy.cheap, policy.expensive] if isinstance(policy, Mixture) else [policy]
    for part in dict.fromkeys(parts):
        if isinstance(part, FittedPolicy) and part.indices:
            rows += f"\n\nDynamic indices of {part.setting}:\n\n{part.table()}"
    if isinstance(policy, Ladder):
        numbers = [(p.tradeoff, p.expected_cost, p.expected_loss) for p in policy]
        head = ["tradeoff", "expected cost", "expected loss"]
        rows = table(head, [[number(value) for value in line] for line in numbers])
    width = max(map(len, facts))
    print(f"{file}: OK\n")
    for name, value in facts.items():
        print(f"  {name.replace('_', ' ').ljust(width)}  {_cell(value)}")
    if rows:
        print(f"\n{rows.strip()}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{_cell(key)}: {_cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        shown = [_cell(item) for item in value[:6]]
        shown += [f"... ({len(value)} in all)"] * (len(value) > 6)
        return ", ".join(shown) or "-"
    # Names and notes may come from strangers: control characters are escaped.
    text = "-" if value in (None, "") else str(value)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
