"""``ttamer fit`` and ``inspect``: from a log to a policy file, and what a file holds."""

from typing import Any

import click
import msgspec

import ttamer.cli.options as cli
from ttamer._checks import counted, number
from ttamer.artefact import open_artefact
from ttamer.artefact.file import save
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture
from ttamer.policy import Ladder

BELIEFS = click.Choice(["answers", "markov", "threshold"])


@cli.command("fit")
@click.argument("trace")
@cli.reading_options
@cli.output_option("Where to write the policies.", cli.POLICY, default="policy.ttamer")
@click.option(
    "--belief",
    type=BELIEFS,
    default="answers",
    help="What all answers and the input say; markov: the paper as written; threshold: one for "
    "all nodes, certified on all rows.",
)
@cli.option("--without", "NODE", "Leave out a node.", multiple=True)
@cli.option("--rename", "OLD=NEW", "Give a node another name.", multiple=True)
@cli.option("--max-nodes", "N", "Ask at most N models: 1 is a router (default 4).", type=int)
@cli.option("--hold-out", "SHARE", "Hold out this share of rows, for certificates.", default=0.0)
@cli.option("--sample", "N", "Fit to at most N rows, of a log larger than memory.", type=int)
def fit_command(
    trace: str,
    reading: cli.Reading,
    output: str,
    sample: int | None,
    rename: tuple[str, ...],
    **options: Any,
) -> None:
    """Fit a ladder of policies to TRACE (Parquet, CSV, JSON lines), and save it."""
    pairs = [text.partition("=")[::2] for text in rename]
    if not all(old and new for old, new in pairs):
        raise ArgumentError(f"--rename takes OLD=NEW, not {' '.join(rename)}")
    options |= {"rename": dict(pairs), "progress": cli.progress_line()}
    ladder = fit(reading.read(trace, sample), **options)
    save(ladder, output)  # before anything is printed: a reader of a pipe may leave
    chosen = ladder.default()
    facts = {
        "output": output,
        "rows": ladder.record.rows,
        "held_out": ladder.record.held_out or None,
        "record": msgspec.to_builtins(ladder.record),
        "policies": [{"tradeoff": p.tradeoff, "error": p.error, "cost": p.cost} for p in ladder],
        "chosen": {key: getattr(chosen, key) for key in ("error", "cost", "single_node")},
    }
    cli.show(facts, _fitted(ladder, output))


def _fitted(ladder: FittedLadder, output: str) -> str:
    """Return what was fitted, the policies of the frontier, the default, and what comes next."""
    record, chosen, best = ladder.record, ladder.default(), ladder.spec.names[ladder.points.best]
    alone, rows = ladder.alone(best), "What to expect on new rows, by cross-fitting"
    if ladder.fitted.thresholds:
        rows = "As measured on these rows"
    reason = f"As accurate as {best}"
    if ladder.allowed_drop:
        reason = f"At most {100 * ladder.allowed_drop:g} point worse than {best}"
    share = f", {chosen.cost / alone.cost:.1%} of its cost" if alone.cost and chosen.cost else ""
    held = f" ({record.held_out} more held out)" if record.held_out else ""
    bound = "--drop 0.01 --against best" if ladder.fitted.measure == "error" else "--error LOSS"
    paragraphs = [
        f"{counted(record.rows, 'row')}{held}, {counted(len(ladder.spec), 'node')}: "
        f"belief {record.belief}",
        record.on_gaps,
        "" if record.markov is None else f"{record.markov}.",
        f"Beside answers it reads {', '.join(record.inputs)} of the input."
        if record.inputs
        else "",
        ladder.table(),
        f"{rows}; of full: as a share of the full model's\ncost, or of the most expensive model's.",
        f"Best single model, {best}: {alone.described}\n"
        f"{reason}: {chosen.described}{share} (the default of serving)",
        ""
        if ladder.points.alone_cost.any()
        else "Every node costs 0, so that there is nothing to save: write what a call costs\n"
        "into the cascade, or into columns <node>.cost.",
        f"Then:\n  ttamer evaluate {output} TRACE     measure on held-out rows\n"
        f"  ttamer certify {output}{'' if ladder.held else ' TRACE'} {bound}\nwritten to {output}",
    ]
    return "\n\n".join(filter(None, paragraphs))


@cli.command("inspect")
@click.argument("file")
def inspect_command(file: str) -> None:
    """Check a .ttamer FILE completely, and print what it holds."""
    artefact = open_artefact(file)
    facts, policy, tables = dict(artefact.facts), artefact.policy, []
    if isinstance(policy, FittedLadder | FittedPolicy | Mixture):
        # Facts about the problem that a fit may have solved, over its own states; --json has them.
        solved = {"moves", "recall", "nodes", "states", "edges", "tradeoffs", "values", "points"}
        facts = {name: value for name, value in facts.items() if name not in solved}
        facts["cascade"] = {node.name: number(node.cost) for node in policy.spec.nodes}
    if isinstance(policy, FittedLadder):
        facts["cascade"] = {name: policy.alone(name).described for name in policy.spec.names}
        facts |= {"policies": len(policy), "default": policy.default().described}
        facts["fit"] = {key: value for key, value in facts["fit"].items() if value}
        tables.append(f"Expected on new rows:\n\n{policy.table()}")
        policy = policy.default()
    # A mixture may have one policy twice.
    parts = [policy.cheap, policy.expensive] if isinstance(policy, Mixture) else [policy]
    tables += [
        f"Dynamic indices of {part.setting}:\n\n{part.table()}"
        for part in dict.fromkeys(parts)
        if isinstance(part, FittedPolicy) and part.indices
    ]
    if isinstance(policy, Ladder):
        keys = ("tradeoff", "expected_cost", "expected_loss")
        tables.append(cli.records([{key: getattr(p, key) for key in keys} for p in policy]))
    width = max(map(len, facts))
    lines = [f"  {name.replace('_', ' ').ljust(width)}  {_cell(facts[name])}" for name in facts]
    cli.show(artefact.facts, "\n\n".join([f"{file}: OK", "\n".join(lines), *tables]))


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
