"""``ttamer inspect``: what a .ttamer file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "inspect",
        help="what a .ttamer file holds",
        description="Check a .ttamer file from end to end and print what it holds.",
        allow_abbrev=False,
    )
    parser.add_argument("file", help="a .ttamer file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check and print."""
    from ttamer import inspect
    from ttamer.cli.output import as_json

    facts = inspect(args.file)
    if args.json:
        print(as_json(facts))
    else:
        rows = [[name.replace("_", " "), _cell(value)] for name, value in facts.items()]
        width = max(len(name) for name, _ in rows)
        print(f"{args.file}: OK\n")
        print("\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows))


def _cell(value: Any) -> str:
    from ttamer.cli.output import number

    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{_cell(key)}: {_cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        shown = [_cell(item) for item in value[:6]]
        return ", ".join(shown) + (f", ... ({len(value)} in all)" if len(value) > 6 else "")
    # Names and notes may come from strangers: control characters are escaped.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
