"""``ttamer import``: other logs as a trace and its cascade.toml."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ttamer._checks import counted
from ttamer.trace.trace import Trace

FORMATS = {
    "answers": "answers in free text: <node>.answer, label, costs or tokens (JSON lines, CSV)",
    "calls": "one line per call: id, node, confidence and more (JSON lines, CSV, Parquet)",
}


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = commands.add_parser(
        "import",
        help="convert free-text answers, or a log with one line per call, to a trace",
        description="Write a log of answers in free text, or with one line per call, as a trace, "
        "and its cascade.toml beside it.",
        allow_abbrev=False,
    )
    which = parser.add_subparsers(title="formats", metavar="FORMAT", required=True)
    for name, text in FORMATS.items():
        one = which.add_parser(name, help=text, description=f"Import {text}.", allow_abbrev=False)
        one.add_argument("log", metavar="FILE", help="the log")
        one.add_argument("-o", "--output", required=True, metavar="FILE",
                         help="the trace to write (.parquet, .csv or .npz)")  # fmt: skip
        if name == "answers":
            one.add_argument("--cascade", metavar="FILE", required=True,
                             help="a cascade.toml: names and costs of the nodes, and under [serve] "
                             "how answers are compared")  # fmt: skip
        else:
            one.add_argument("--cascade", metavar="FILE",
                             help="a cascade.toml: names and costs of the exits")  # fmt: skip
        one.add_argument("--test-share", type=float, default=0.0, metavar="X",
                         help="write this share of the rows to a second file "
                         "(trace.test.parquet)")  # fmt: skip
        one.add_argument("--seed", type=int, default=0, help="the seed of the split (default 0)")
        one.add_argument("--skip-bad", action="store_true",
                         help="skip rows that cannot be used, and count them")  # fmt: skip
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(run=run, format=name)


def run(args: argparse.Namespace) -> None:
    """Import, split, write, and print the commands that come next."""
    from ttamer.cli.output import as_json
    from ttamer.cli.traces import errors_of, node_table
    from ttamer.errors import ArgumentError
    from ttamer.trace.files import beside, suffix_of

    if not 0 <= args.test_share < 1:
        raise ArgumentError(f"--test-share must be from 0 to below 1, not {args.test_share:g}")
    output = Path(args.output)
    suffix = suffix_of(output)  # checked before the log is read
    trace = _read(args)
    parts = {output: trace}
    if args.test_share:
        fit, test = trace.split(1 - args.test_share, seed=args.seed)
        parts = {output: fit, beside(output, f".test{suffix}"): test}
    for path, part in parts.items():
        part.write(path)
    cascade = beside(output, ".toml")
    given = getattr(args, "cascade", None)
    if given is None or cascade.resolve() != Path(given).resolve():
        trace.spec.to_file(cascade)
    if args.json:
        rows = {str(path): len(part) for path, part in parts.items()}
        print(as_json({"rows": rows, "cascade": str(cascade), "notes": list(trace.notes)}))
        return
    is_text = args.format == "answers"
    if is_text:
        print(f"{node_table(trace)}\n")
    for path, part in parts.items():
        print(f"  {path}: {counted(len(part), 'row')} of {', '.join(trace.names)}")
    print(f"  {cascade}: names and costs; edit the costs where the log has none")
    # A trace of answers has its costs, and keeps the cascade with them inside unless it is CSV.
    is_whole = is_text and suffix not in (".csv", ".csv.gz")
    needed = "" if is_whole else f" --cascade {cascade}"
    if is_text and not errors_of(trace):
        print(
            "\nNo answer is known to be right, which a fit needs: add a label to every row, or "
            f'write target = "last" under [cascade] in {args.cascade}, and import again'
        )
    elif args.test_share:
        fit_path, test_path = parts
        print(f"\nNext: ttamer frontier --fit {fit_path} --test {test_path}{needed}")
    else:
        print(f"\nNext: ttamer fit {output}{needed}")


def _read(args: argparse.Namespace) -> Trace:
    on_bad: Any = "skip" if args.skip_bad else "refuse"
    if args.format == "answers":
        from ttamer.llm.importing import import_answers

        trace = import_answers(
            args.log, args.cascade, on_bad=on_bad, answers=f"{args.output}.answers.jsonl"
        )
    else:
        trace = Trace.read(args.log, args.cascade, on_bad=on_bad)
    for reason, count in trace.left_out.items():
        print(f"{args.log}: {counted(count, 'row')} left out: {reason}", file=sys.stderr)
    for note in trace.notes:
        print(f"{Path(args.log).name}: {note}", file=sys.stderr)
    return trace
