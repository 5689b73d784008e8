"""``ttamer label``: a person decides on a local page which answers are right."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ttamer._checks import counted

if TYPE_CHECKING:  # not loaded for --help
    from ttamer.llm.labelling import Labelling


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "label",
        help="label the answers of a trace by hand, on a local page",
        description="Show prompts and answers on a local page, keep which answers are right, and "
        "write a trace for a fit. Rows on which nodes differ come first. Labels are saved one by "
        "one: the same command continues where it was left.",
        allow_abbrev=False,
    )
    parser.add_argument("trace", help="a trace from ttamer collect, with its TRACE.answers.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="the labelled trace (default: TRACE with .labelled before its "
                        "suffix)")  # fmt: skip
    parser.add_argument("--within", type=float, default=0.02, metavar="X",
                        help="label until differences in error are known to X (default "
                        "0.02)")  # fmt: skip
    parser.add_argument("--uniform", action="store_true",
                        help="all rows are equally likely to come next, as a certificate "
                        "needs")  # fmt: skip
    parser.add_argument("--port", type=int, default=0, metavar="N",
                        help="the local port of the page (default: any free one)")  # fmt: skip
    parser.add_argument("--no-page", action="store_true",
                        help="do not open the page: write the trace from the labels so "
                        "far")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Serve the page until the person is done, and write the trace."""
    from pathlib import Path

    from ttamer.cli.output import as_json
    from ttamer.errors import ArgumentError
    from ttamer.llm.labelling import Labelling, LabelPlan, read_answers
    from ttamer.trace.files import beside, suffix_of
    from ttamer.trace.trace import Trace

    source = Path(args.trace)
    target = Path(args.output or beside(source, f".labelled{suffix_of(source)}"))
    cascade = beside(target, ".toml")
    if target.resolve() == source.resolve():
        raise ArgumentError(f"--output is {args.output!r}, the trace itself; choose another file")
    needed, kept = "", None
    if suffix_of(source) in (".csv", ".csv.gz"):  # which keeps no cascade inside
        needed, kept = f" --cascade {cascade}", beside(source, ".toml")
        if source.exists() and not kept.exists():
            raise ArgumentError(
                f"{source}: keeps no cascade, and {kept}, which ttamer collect writes beside it, "
                "is missing; run ttamer collect again, which asks no model again"
            )
    plan = LabelPlan(Trace.read(source, kept), within=args.within, uniform=args.uniform)
    rows = read_answers(f"{source}.answers.jsonl", plan.trace.names)
    labels = Path(f"{source}.labels.jsonl")
    with Labelling(plan, rows, labels) as labelling:
        if not args.no_page:
            _serve(labelling, args.port, quiet=args.json)
        estimate = plan.estimate(labelling.right)
        facts = {"labels": len(labelling.right), "skipped": len(labelling.skipped),
                 "more": estimate.more, "unknown": labelling.unknown}  # fmt: skip
        written = [str(labels)]
        notes: tuple[str, ...] = ()
        if labelling.right:
            trace = labelling.trace()
            trace.write(target)
            trace.spec.to_file(cascade)
            written = [str(target), str(cascade), *written]
            notes = trace.notes[-1:]
    if args.json:
        print(as_json({**facts, "notes": list(notes), "written": written}))
        return
    print(estimate)
    for note in notes:
        print(f"\n  {note}")
    if labelling.unknown:
        print(f"\n  {counted(labelling.unknown, 'label')} of other prompts or answers: not counted")
    print(f"\n  written to {' and '.join(written)}")
    if labelling.right:
        print(f"\nNext: ttamer fit {target}{needed}")
        if plan.trace.spec.target == "last":
            print('  and remove target = "last" from the cascade.toml that serves it')


def _serve(labelling: Labelling, port: int, *, quiet: bool) -> None:
    """Serve the page until the person is done, or the command is interrupted."""
    import sys
    import threading
    from contextlib import suppress

    from ttamer.errors import ArgumentError
    from ttamer.llm.labelling import LabelServer

    try:
        server = LabelServer(labelling, port)
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"--port is {port}, which cannot be used: {error}") from None
    with server:
        stream = sys.stderr if quiet else sys.stdout
        print(f"open {server.url}\n(Ctrl-C or the page's Finish ends it)", file=stream, flush=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with suppress(KeyboardInterrupt):
            server.is_done.wait()
        server.shutdown()
        thread.join()
