"""What the commands that read traces share: options, reading, and notes on stderr."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ttamer._numbers import counted
from ttamer.trace.trace import Trace


def add_reading_options(parser: Any) -> None:
    """Add the options for reading a trace."""
    parser.add_argument(
        "--cascade",
        metavar="FILE",
        help="the cascade.toml that names the nodes and their costs (default: the one kept in "
        "a Parquet or NPZ file)",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="skip rows that cannot be used, and count them (default: refuse the trace)",
    )


def read(path: str, args: argparse.Namespace) -> Trace:
    """Read a trace by the options; print on stderr what was left out or decided."""
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

    if args.cascade is None:
        require_costs(path)
    cascade = args.cascade
    if isinstance(cascade, CascadeSpec):  # a policy's own: its log has one column per node
        cascade = cascade.join_verified()
    trace = Trace.read(path, cascade, on_bad="skip" if args.skip_bad else "refuse")
    for reason, count in trace.left_out.items():
        print(f"{path}: {counted(count, 'row')} left out: {reason}", file=sys.stderr)
    for note in trace.notes:
        print(f"{Path(path).name}: {note}", file=sys.stderr)
    return trace.with_verification()


def refuse_trace(path: str, usage: str) -> None:
    """Refuse a trace that is given in the place of a policy."""
    from ttamer.errors import ArgumentError
    from ttamer.trace.files import SUFFIXES

    if path.lower().endswith(SUFFIXES):
        raise ArgumentError(
            f"{path} is a trace, and a policy is needed in its place, which ttamer fit makes: "
            f"ttamer {usage}"
        )


def require_costs(path: str) -> None:
    """Refuse a file without a cascade, unless it is a Parquet or NPZ file with all costs."""
    from ttamer.errors import ArgumentError
    from ttamer.trace.columns import infer_spec
    from ttamer.trace.files import open_source, suffix_of

    source = open_source(path)
    if source.cascade is not None:
        return
    names = infer_spec(source.columns, {}, path)[0].names
    is_priced = all(f"{name}.cost" in source.columns for name in names)
    if suffix_of(path) in (".csv", ".csv.gz") or not is_priced:
        beside = Path(path).with_name("cascade.toml")
        if beside.is_file():
            raise ArgumentError(f"{path}: keeps no cascade: give --cascade {beside}")
        raise ArgumentError(
            f"{path}: keeps no cascade: give --cascade FILE, a cascade.toml that has for "
            f"each of {', '.join(names)} the lines [[node]], name = {names[0]!r} and cost = 1.0"
        )


def errors_of(trace: Trace) -> dict[str, float]:
    """Return the error of each node, where it is known which answers are right."""
    from ttamer.errors import TraceError

    try:
        errors = trace.losses().mean(axis=0)
    except TraceError:
        return {}
    return dict(zip(trace.names, errors.tolist(), strict=True))


def node_table(trace: Trace) -> str:
    """Return the mean cost of each node, and its error where that is known."""
    from ttamer._numbers import number
    from ttamer.cli.output import table
    from ttamer.fitted.mixture import shown_error

    errors, costs = errors_of(trace), trace.costs.mean(axis=0).tolist()
    head = ["node", "mean cost", *([trace.measure] if errors else [])]
    text = table(head, [
        [name, number(cost), *([shown_error(errors[name], trace.measure)] if errors else [])]
        for name, cost in zip(trace.names, costs, strict=True)
    ])  # fmt: skip
    if errors and trace.spec.target == "last":
        text += f"\n\n  {trace.measure}: against {trace.names[-1]}, which is right by definition"
    return text
