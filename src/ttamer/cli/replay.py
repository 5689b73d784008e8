"""``ttamer replay``: the drift loop over a recorded stream, beside what it is compared with."""

from __future__ import annotations

import argparse
from typing import Any

from ttamer._numbers import counted
from ttamer.drift import CertifiedServing, LoopSettings, ReplayResult
from ttamer.trace.trace import Trace

# The column heads of the policies compared.
HEADS = {
    "adapted": "with loop",
    "fixed": "without",
    "retuned": "re-tuned",
    "fallback": "last node",
}


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="run the drift loop over a recorded stream: error and cost over time",
        description="Serve a recorded stream row by row, audit a share of it, test for change, "
        "re-fit, certify and swap as the gateway does; print error and cost over time with and "
        "without the loop, and with thresholds re-tuned on recent rows.",
        allow_abbrev=False,
    )
    parser.add_argument("stream", nargs="?",
                        help="the rows in order of time: a Parquet, CSV or NPZ file")  # fmt: skip
    parser.add_argument("--example", metavar="NAME",
                        help="a stream that comes with the package (list: print the "
                        "names)")  # fmt: skip
    parser.add_argument("--fit", metavar="FILE", help="earlier rows, to fit and to certify on")
    parser.add_argument("--policy", metavar="FILE", help="a .ttamer file instead of a fit")
    parser.add_argument("--reference", metavar="FILE",
                        help="with --policy: rows it was not fitted to")  # fmt: skip
    parser.add_argument("--cascade", metavar="FILE", help="the cascade.toml of the traces")
    parser.add_argument("--skip-bad", action="store_true",
                        help="skip rows that cannot be used, and count them")  # fmt: skip
    parser.add_argument("--target", choices=("label", "last"),
                        help="which answer is right (default: the cascade's, or last)")  # fmt: skip
    promised = parser.add_mutually_exclusive_group()
    promised.add_argument("--error", type=float, metavar="E",
                          help="promise an error of at most E (default 0.05)")  # fmt: skip
    promised.add_argument("--drop", type=float, metavar="D",
                          help="promise an error at most D above that of --against")  # fmt: skip
    parser.add_argument("--against", metavar="NODE", help="the node of --drop (default: the last)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C",
                        help="the confidence of every promise (default 0.95)")  # fmt: skip
    parser.add_argument("--false-alarms", type=float, default=0.05, metavar="A",
                        help="the probability of ever raising a false alarm (default "
                        "0.05)")  # fmt: skip
    parser.add_argument("--audit", type=float, default=0.2, metavar="S",
                        help="the share of rows that is audited (default 0.2)")  # fmt: skip
    parser.add_argument("--refit-rows", type=int, default=400, metavar="N",
                        help="audited rows after a change before a re-fit (default "
                        "400)")  # fmt: skip
    parser.add_argument("--shadow-rows", type=int, default=50, metavar="N",
                        help="audited rows that a new policy decides before it serves (default "
                        "50)")  # fmt: skip
    parser.add_argument("--block", type=int, default=500, metavar="N",
                        help="rows per line of the output (default 500)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0,
                        help="the seed of the split and of the audits (default 0)")  # fmt: skip
    parser.add_argument("--events", metavar="FILE", help="write the events as JSON lines")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw error and cost over time, as PNG and SVG"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay and print."""
    from pathlib import Path

    from ttamer.cli.output import as_json, progress_line
    from ttamer.datasets.streams import names
    from ttamer.drift import replay_stream
    from ttamer.errors import ArgumentError

    if args.example == "list":
        print("\n".join(names()))
        return
    if args.block < 1:
        raise ArgumentError(f"--block is {args.block}; it must be at least 1")
    if args.plot:
        from ttamer.reporting.style import require_matplotlib

        require_matplotlib()
    settings = _settings(args)
    serving, stream, shift, before = _opened(args, settings)
    progress = progress_line(quiet=args.json)
    within = before is not None and 0 <= before.confidence.min() <= before.confidence.max() <= 1
    replayed = replay_stream(
        serving,
        stream,
        settings,
        share=args.audit,
        seed=args.seed,
        thresholds_from=before if within else None,
        progress=progress,
    )
    progress("")
    if args.events:
        lines = "".join(f"{event.to_line()}\n" for event in replayed.events)
        Path(args.events).write_text(lines, "utf-8")
    if args.plot:
        from ttamer.drift import draw_replay
        from ttamer.reporting import save_figure

        title = args.example or Path(args.stream).name
        save_figure(draw_replay(replayed, shift=shift, title=title), args.plot)
    if args.json:
        promise = serving.promise.to_dict()
        print(as_json({"shift": shift, "promise": promise, **replayed.to_dict(args.block)}))
        return
    print(f"at first: {serving.promise}")
    _show(replayed, shift, args.block)


def _settings(args: argparse.Namespace) -> LoopSettings:
    from ttamer.drift import LoopSettings
    from ttamer.errors import ArgumentError

    drop = args.drop is not None
    if args.against is not None and not drop:
        raise ArgumentError("--against is for --drop: leave it out, or give --drop")
    return LoopSettings(
        at_most=args.drop if drop else 0.05 if args.error is None else args.error,
        kind="drop" if drop else "error",
        against=args.against,
        confidence=args.confidence,
        false_alarms=args.false_alarms,
        refit_rows=args.refit_rows,
        shadow_rows=args.shadow_rows,
        window=max(LoopSettings.window, args.refit_rows),
        seed=args.seed,
    )


def _opened(
    args: argparse.Namespace, settings: LoopSettings
) -> tuple[CertifiedServing, Trace, int | None, Trace | None]:
    """Return the first policy, the stream, its shift where known, and earlier rows."""
    import dataclasses

    from ttamer.artefact.files import load
    from ttamer.cli.traces import read, refuse_trace
    from ttamer.datasets import streams
    from ttamer.drift import serving_of
    from ttamer.errors import ArgumentError
    from ttamer.fitted.ladder import FittedLadder
    from ttamer.fitting.plans import fit

    if (args.example is None) == (args.stream is None):
        raise ArgumentError("give a stream to replay, or --example NAME")
    if args.example is not None:
        if args.fit or args.policy or args.reference or args.cascade:
            raise ArgumentError(
                "an --example has its own rows to fit: remove --fit, --policy, --reference and "
                "--cascade"
            )
        stream = streams.load(args.example, target=args.target or "last")
        fitted, held = stream.fit.split(0.6, args.seed)
        return serving_of(fit(fitted), held, settings), stream.rows, stream.shift, stream.fit

    def opened(path: str) -> Trace:
        trace = read(path, args)
        if args.target is None:
            return trace
        return dataclasses.replace(trace, spec=dataclasses.replace(trace.spec, target=args.target))

    if args.fit is not None and (args.policy is not None or args.reference is not None):
        raise ArgumentError("give --fit, or --policy and --reference, not both")
    if args.policy is not None:
        refuse_trace(args.policy, "replay STREAM --policy POLICY --reference TRACE")
        if args.cascade is not None:
            raise ArgumentError("--policy has its own cascade: remove --cascade")
        ladder = load(args.policy)
        if not isinstance(ladder, FittedLadder):
            raise ArgumentError(f"{args.policy} holds no fitted ladder; make one with ttamer fit")
        if args.reference is None:
            raise ArgumentError(
                "--policy needs --reference: earlier rows that it was not fitted to"
            )
        args.cascade = ladder.fitted.spec
        if args.target not in (None, args.cascade.target):
            raise ArgumentError(
                f"--target is {args.target!r}, and {args.policy} was fitted for "
                f"{args.cascade.target!r}; the loop needs the same target"
            )
        reference = opened(args.reference)
        return serving_of(ladder, reference, settings), opened(args.stream), None, reference
    if args.fit is None:
        raise ArgumentError("give --fit, earlier rows to fit, or --policy and --reference")
    before = opened(args.fit)
    fitted, held = before.split(0.6, args.seed)
    return serving_of(fit(fitted), held, settings), opened(args.stream), None, before


def _show(replayed: ReplayResult, shift: int | None, block: int) -> None:
    from ttamer._numbers import number
    from ttamer.cli.output import table
    from ttamer.fitted.mixture import shown_error

    settings, measure = replayed.settings, replayed.measure
    arms = list(replayed.arms)
    kind = settings.kind
    noun = measure if kind == "error" else kind
    shown = f"promised {noun} at most {shown_error(settings.at_most, measure)}"
    print(
        f"{counted(len(replayed), 'row')}, {int(replayed.audited.sum())} audited at "
        f"{number(replayed.audit_cost)} per row of the stream; {shown}"
        + ("" if shift is None else f"; the stream changes at row {shift}")
    )
    for what, title in ((kind, noun), ("cost", "cost")):
        print(f"\n{title}")
        rows = [
            [f"{each['begin']} to {each['end']}"]
            + [
                shown_error(each[arm][what], measure) if what == kind else number(each[arm][what])
                for arm in arms
            ]
            for each in [*replayed.blocks(block), replayed.between(0, len(replayed))]
        ]
        print(table(["rows", *(HEADS[arm] for arm in arms)], rows))
    print("\nphases of the loop")
    rows = [
        [f"{each['begin']} to {each['end']}", each["serving"], str(each["audited"]),
         shown_error(each["adapted"][kind], measure), number(each["adapted"]["cost"])]
        for each in replayed.phases()
    ]  # fmt: skip
    print(table(["rows", "served by", "audited", noun, "cost"], rows))
    print("\nevents")
    for event in replayed.events:
        print(f"  {event}")
    if not replayed.events:
        print("  none")
