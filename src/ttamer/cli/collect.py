"""``ttamer collect``: a trace from Python callables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "collect",
        help="make a trace by asking Python callables",
        description="Ask every model about every input, measure the time each call takes, and "
        "write the trace and its cascade.",
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="+", metavar="NAME=MODULE:FUNCTION",
                        help="a callable: input -> (prediction, confidence)")  # fmt: skip
    parser.add_argument("--inputs", required=True, metavar="FILE", help="text, one input a line")
    parser.add_argument("--labels", metavar="FILE", help="text, one right answer a line")
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="calls per input; the median time counts (default 1)")  # fmt: skip
    parser.add_argument("-o", "--output", default="trace.parquet", metavar="FILE",
                        help="Parquet, CSV or NPZ; its cascade goes beside it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Ask, write, and say what was found."""
    import sys
    from pathlib import Path

    from ttamer.cli.progress import teller
    from ttamer.cli.show import as_json, number, table
    from ttamer.collecting import collect

    sys.path.insert(0, "")  # a module beside the user
    models = dict(_model(text) for text in args.models)
    inputs = Path(args.inputs).read_text("utf-8").splitlines()
    labels = Path(args.labels).read_text("utf-8").splitlines() if args.labels else None
    tell = teller(quiet=args.json)
    trace = collect(
        inputs,
        models,
        labels=labels,
        repeat=args.repeat,
        progress=lambda done, total: tell(f"asked about {done} of {total} inputs"),
    )
    tell("")
    trace.write(args.output)
    cascade = Path(args.output).with_suffix(".toml")
    trace.spec.to_file(cascade)
    costs = dict(zip(trace.names, trace.spec.costs.tolist(), strict=True))
    if args.json:
        print(as_json({"rows": len(trace), "costs": costs, "written": [args.output, str(cascade)]}))
        return
    print(f"{len(trace)} rows\n")
    print(table(["node", "mean cost"], [[name, number(cost)] for name, cost in costs.items()]))
    print(f"\n  written to {args.output} and {cascade}")


def _model(text: str) -> tuple[str, Callable[[Any], Any]]:
    from importlib import import_module

    from ttamer.errors import ArgumentError

    name, _, place = text.partition("=")
    module, _, function = place.partition(":")
    if not (name and module and function):
        raise ArgumentError(f"a model is written NAME=MODULE:FUNCTION, not {text!r}")
    try:
        found: Callable[[Any], Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{text}: cannot be had: {error}") from None
    return name, found
