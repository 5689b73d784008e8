"""``ttamer inspect``: what a .ttamer file holds."""

from typing import Any

import click
import msgspec

from ttamer._checks import number
from ttamer.artefact import open_artefact
from ttamer.cli.options import command, json_option, to_json
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture
from ttamer.policy import Ladder
from ttamer.show import table


@command("inspect")
@click.argument("file")
@json_option
def inspect_command(file: str, as_json: bool) -> None:
    """Check a .ttamer FILE completely, and print what it holds."""
    artefact = open_artefact(file)
    if as_json:
        print(to_json(artefact.facts))
        return
    facts, policy = dict(artefact.facts), artefact.policy
    if isinstance(policy, FittedLadder | FittedPolicy | Mixture):
        # Facts about the problem that a fit may have solved, over its own states; --json has them.
        for name in (
            "moves",
            "recall",
            "nodes",
            "states",
            "edges",
            "tradeoffs",
            "values",
            "points",
        ):
            facts.pop(name, None)
        facts["cascade"] = {node.name: number(node.cost) for node in policy.spec.nodes}
    if isinstance(policy, FittedLadder):
        record = msgspec.to_builtins(policy.record)
        record["trace_digest"] = policy.record.trace_digest[:12]
        facts["cascade"] = {name: policy.alone(name).described for name in policy.spec.names}
        facts["policies"], facts["default"] = len(policy), policy.default().described
        facts["fit"] = {key: value for key, value in record.items() if value}
    width = max(map(len, facts))
    print(f"{file}: OK\n")
    for name, value in facts.items():
        print(f"  {name.replace('_', ' ').ljust(width)}  {_cell(value) or '-'}")
    if isinstance(policy, FittedLadder):
        print(f"\nExpected on new rows:\n\n{policy.table()}")
    elif isinstance(policy, Ladder):
        rows = [
            [f"{p.tradeoff:.4g}", number(p.expected_cost), number(p.expected_loss)] for p in policy
        ]
        print(f"\n{table(['tradeoff', 'expected cost', 'expected loss'], rows)}")


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
