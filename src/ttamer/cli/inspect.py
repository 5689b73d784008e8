"""``ttamer inspect``: what a .ttamer file holds."""

from typing import Any

import click

from ttamer._numbers import number
from ttamer.artefact import open_artefact
from ttamer.cli.options import json_option
from ttamer.cli.tables import as_json as to_json, sparkline, table
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture
from ttamer.policy import Ladder
from ttamer.stats import lower_envelope

# Facts about the problem that a fit solves, over states of its own; --json has them.
INNER = ("moves", "recall", "nodes", "states", "edges", "tradeoffs", "values", "points")
# The most policies in the table of a frontier.
MAX_ROWS = 9


@click.command("inspect")
@click.argument("file")
@json_option
def inspect_command(file: str, as_json: bool) -> None:
    """Check a .ttamer FILE completely, and print what it holds."""
    artefact = open_artefact(file)
    facts = artefact.facts
    if as_json:
        print(to_json(facts))
        return
    facts = {**_fitted(artefact.policy), **facts}
    rows = [
        [name.replace("_", " "), _cell(value) or "-"]
        for name, value in facts.items()
        if not ("cascade" in facts and name in INNER)
    ]
    width = max(len(name) for name, _ in rows)
    print(f"{file}: OK\n")
    print("\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows))
    print(_frontier(artefact.policy), end="")


def _fitted(policy: Any) -> dict[str, Any]:
    """Return what a fit is for: its nodes with their costs, and what serves by default."""
    if not isinstance(policy, FittedLadder | FittedPolicy | Mixture):
        return {}
    alone = {node.name: number(node.cost) for node in policy.spec.nodes}
    facts: dict[str, Any] = {"cascade": alone}
    if not isinstance(policy, FittedLadder):
        return facts
    facts["policies"] = len(policy)
    facts["default"] = policy.default().described
    facts["cascade"] = {name: policy.alone(name).described for name in alone}
    return facts


def _frontier(policy: Any) -> str:
    """Return the frontier of a ladder: a sparkline, and a table of some of its policies."""
    loss, shown, unit = "loss", "{:.4g}", "best if a loss of 1 costs"
    if isinstance(policy, FittedLadder):
        costs, errors = ([getattr(each, name) for each in policy] for name in ("cost", "error"))
        loss, full = str(policy.fitted.measure), policy.fitted.full_cost / policy.fitted.unit
        if loss == "error":
            shown, unit = "{:.2%}", "best if a mistake costs"
        if policy.fitted.thresholds:
            unit = "threshold"
        head = f"Expected on new rows, as the cost grows from {{}} to {{}} per input: {loss}"
        corners = lower_envelope(costs, errors).tolist()  # as ttamer fit prints them
    elif isinstance(policy, Ladder):
        costs, errors = [p.expected_cost for p in policy], [p.expected_loss for p in policy]
        full = 1.0
        head = f"As the expected cost grows from {{}} to {{}}: {loss}"
        corners = lower_envelope(costs, errors).tolist()
    else:
        return ""
    last = len(corners) - 1
    some = corners
    if last >= MAX_ROWS:
        some = [corners[round(k * last / (MAX_ROWS - 1))] for k in range(MAX_ROWS)]
    rows = []
    for rung in some:
        tradeoff = policy[rung].tradeoff
        if unit == "threshold":
            best = policy[rung].setting
        else:
            best = number(full * tradeoff / (1 - tradeoff)) if tradeoff < 1 else "more"
        rows.append([number(costs[rung]), shown.format(errors[rung]), best])
    ends = head.format(number(costs[corners[0]]), number(costs[corners[-1]]))
    return (
        f"\n{ends} {sparkline([errors[rung] for rung in corners])}\n\n"
        f"{table(['cost', loss, unit], rows)}\n"
    )


def _cell(value: Any) -> str:

    if value is None:
        return "-"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{_cell(key)}: {_cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        shown = [_cell(item) for item in value[:6]]
        return ", ".join(shown) + (f", ... ({len(value)} in all)" if len(value) > 6 else "")
    # Names and notes may come from strangers: control characters are escaped.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
