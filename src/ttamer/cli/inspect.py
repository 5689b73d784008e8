"""``ttamer inspect``: what a .ttamer file holds."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from ttamer._checks import number
from ttamer.artefact import open_artefact
from ttamer.cli.options import command, json_option, to_json
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture
from ttamer.policy import Ladder
from ttamer.show.tables import table
from ttamer.stats import lower_envelope

# Facts about the problem that a fit solves, over its own states; --json has them.
INNER = ("moves", "recall", "nodes", "states", "edges", "tradeoffs", "values", "points")
# The most policies in the table of a frontier.
MAX_ROWS = 9


@command("inspect")
@click.argument("file")
@json_option
def inspect_command(file: str, as_json: bool) -> None:
    """Check a .ttamer FILE completely, and print what it holds."""
    artefact = open_artefact(file)
    if as_json:
        print(to_json(artefact.facts))
        return
    facts = {**artefact.facts, **_fitted(artefact.policy)}
    rows = {
        name.replace("_", " "): _cell(value) or "-"
        for name, value in facts.items()
        if not ("cascade" in facts and name in INNER)
    }
    width = max(map(len, rows))
    print(f"{file}: OK\n")
    print("\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows.items()))
    print(_frontier(artefact.policy), end="")


def _fitted(policy: Any) -> dict[str, Any]:
    """Return what a fit is for: its nodes with their costs, and what serves by default."""
    if isinstance(policy, FittedLadder):
        nodes = {name: policy.alone(name).described for name in policy.spec.names}
        record = msgspec.to_builtins(policy.record)
        record["trace_digest"] = policy.record.trace_digest[:12]
        return {
            "cascade": nodes,
            "policies": len(policy),
            "default": policy.default().described,
            "fit": {key: value for key, value in record.items() if value not in (None, 0, "", [])},
        }
    if isinstance(policy, FittedPolicy | Mixture):
        return {"cascade": {node.name: number(node.cost) for node in policy.spec.nodes}}
    return {}


def _frontier(policy: Any) -> str:
    """Return the frontier of a ladder: a sparkline, and a table of some of its policies."""
    if isinstance(policy, FittedLadder):
        points, loss = policy.points, str(policy.fitted.measure)
        costs, errors = points.costs.tolist(), (policy.fitted.unit * points.errors).tolist()
        form = "{:.2%}" if loss == "error" else "{:.4g}"
        head = f"Expected on new rows, as the cost grows from {{}} to {{}} per input: {loss}"
        corners = list(points.corners)  # as ttamer fit prints them
        settings = [policy.point(corner).setting for corner in corners]
    elif isinstance(policy, Ladder):
        costs, errors = [p.expected_cost for p in policy], [p.expected_loss for p in policy]
        loss, form = "loss", "{:.4g}"
        head = f"As the expected cost grows from {{}} to {{}}: {loss}"
        corners = lower_envelope(costs, errors).tolist()
        settings = [f"tradeoff {policy[corner].tradeoff:.4g}" for corner in corners]
    else:
        return ""
    last = len(corners) - 1
    shown = range(len(corners))
    if last >= MAX_ROWS:
        shown = [round(k * last / (MAX_ROWS - 1)) for k in range(MAX_ROWS)]  # type: ignore[assignment]
    rows = [
        [number(costs[corners[k]]), form.format(errors[corners[k]]), settings[k]] for k in shown
    ]
    ends = head.format(number(costs[corners[0]]), number(costs[corners[-1]]))
    return (
        f"\n{ends} {sparkline([errors[corner] for corner in corners])}\n\n"
        f"{table(['cost', loss, 'policy'], rows)}\n"
    )


def sparkline(values: Sequence[float]) -> str:
    """Return a line of bars, the largest value the highest.

    >>> sparkline([0.3, 0.1, 0.05, 0.0])
    '█▃▂▁'
    >>> sparkline([1.0, 1.0])
    '▁▁'
    """
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(values), max(values)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in values)


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
