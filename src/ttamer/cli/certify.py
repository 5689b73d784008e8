"""``ttamer certify``: promise an error or a drop, check a promise again, or bound the gap."""

from __future__ import annotations

import argparse
from typing import Any

from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.promise import Promise
from ttamer.trace.trace import Trace

# How certain a promise must be, unless another number is given.
DEFAULT_CONFIDENCE = 0.95
# The exit code where a promise is not certified, or is broken.
UNCERTAIN = 1


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "certify",
        help="promise an error or a drop with a stated confidence, or check a promise again",
        description="Find the cheapest policy whose error (or whose drop against a node) is at "
        "most a given number, tested on rows it was not fitted to. With --gap, bound how far a "
        "policy is from the best of its class. Without --error, --drop or --gap, check the "
        "promises in the file on new rows. Exit code 1: not certified, or broken.",
        allow_abbrev=False,
    )
    parser.add_argument("policy", help="a .ttamer file made by ttamer fit")
    parser.add_argument("trace", nargs="?",
                        help="rows that the fit has not used (default: those it held "
                        "out)")  # fmt: skip
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--error", type=float, metavar="E", help="promise an error of at most E")
    asked.add_argument("--drop", type=float, metavar="D",
                       help="promise an error at most D above that of --against")  # fmt: skip
    asked.add_argument("--gap", action="store_true",
                       help="bound how far a policy is from the best of its class")  # fmt: skip
    parser.add_argument("--tradeoff", type=float, metavar="T",
                        help="with --gap: the tradeoff of the policy (default: the default "
                        "policy)")  # fmt: skip
    parser.add_argument("--against", metavar="NODE", help="what a drop is measured from: a node, "
                        "last (the default) or best")  # fmt: skip
    parser.add_argument("--confidence", type=float, metavar="C",
                        help="the confidence of the promise (default 0.95)")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="write the policies with the promise in them")  # fmt: skip
    parser.add_argument("--skip-bad", action="store_true",
                        help="skip rows that cannot be used, and count them")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify or check, print, and return by the exit code whether the promise holds."""
    from ttamer.artefact.files import load, save
    from ttamer.cli.output import as_json
    from ttamer.cli.traces import read, refuse_trace
    from ttamer.errors import ArgumentError
    from ttamer.fitted.ladder import FittedLadder

    _check_options(args)
    refuse_trace(args.policy, "certify POLICY TRACE")
    ladder = load(args.policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{args.policy} is no ladder made by ttamer fit: nothing to promise")
    args.cascade = ladder.fitted.spec
    trace = read(args.trace, args) if args.trace else None
    if args.gap:
        return _gap(ladder, trace, args)
    if args.error is None and args.drop is None:
        promises = _checked(ladder, trace, args.policy)
    else:
        ladder, promises = _promised(ladder, trace, args)
    if args.output:
        save(ladder, args.output)
    if args.json:
        print(as_json({"promises": [each.to_dict() for each in promises], "output": args.output}))
    else:
        for each in promises:
            _show(ladder, each)
        if args.output:
            print(f"  written to {args.output}")
        elif (args.error is not None or args.drop is not None) and promises[0].certified:
            print("  -o FILE writes the policies with this promise")
    return 0 if all(each.certified for each in promises) else UNCERTAIN


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing, and fill in defaults."""
    from ttamer.errors import ArgumentError

    if args.tradeoff is not None and not args.gap:
        raise ArgumentError("--tradeoff is for --gap: leave it out")
    if args.against is not None and args.drop is None:
        raise ArgumentError("--against is for --drop: leave it out, or give --drop in its place")
    if args.confidence is not None and args.error is None and args.drop is None and not args.gap:
        raise ArgumentError(
            "a promise in the file has its own confidence: leave out --confidence, or make a new "
            "promise with --error or --drop"
        )
    if args.output and args.error is None and args.drop is None:
        raise ArgumentError("-o is for a new promise: leave it out, or give --error or --drop")
    args.against = args.against or "last"
    args.confidence = DEFAULT_CONFIDENCE if args.confidence is None else args.confidence


def _gap(ladder: FittedLadder, trace: Trace | None, args: argparse.Namespace) -> int:
    """Bound how far a policy is from the best of its class, and print it."""
    from ttamer.cli.output import as_json
    from ttamer.errors import ArgumentError

    if trace is None:
        raise ArgumentError("--gap needs rows: give a trace that the ladder was not fitted to")
    gap = ladder.gap(confidence=args.confidence, tradeoff=args.tradeoff, on=trace)
    if args.json:
        print(as_json(gap.to_dict()))
    else:
        print(gap)
        print(f"  {gap.advice}")
        print(f"  no policy that asks these nodes is below {gap.any_policy:.4f}, whatever it uses")
    return 0


def _promised(
    ladder: FittedLadder, trace: Trace | None, args: argparse.Namespace
) -> tuple[FittedLadder, list[Promise]]:
    if args.error is not None:
        policy = ladder.for_error(args.error, confidence=args.confidence, on=trace)
    else:
        policy = ladder.for_drop(
            args.drop, against=args.against, confidence=args.confidence, on=trace
        )
    assert policy.promise is not None  # noqa: S101 - for_error and for_drop make one
    if trace is not None:
        ladder = ladder.with_holdout(trace)
    return ladder.with_promise(policy), [policy.promise]


def _checked(ladder: FittedLadder, trace: Trace | None, name: str) -> list[Promise]:
    from ttamer.errors import ArgumentError
    from ttamer.fitted.promise import HeldOut, check_promise

    if not ladder.promises:
        raise ArgumentError(f"{name} holds no promise: make one with --error or --drop, and -o")
    if trace is None:
        return list(ladder.promises)
    if any(each.trace_digest == trace.digest for each in ladder.promises):
        raise ArgumentError(
            f"these are the rows that a promise in {name} was made with: they show nothing new; "
            "give rows recorded since"
        )
    ladder.fitted.warn_of(trace)
    return [
        check_promise(each, HeldOut.of(ladder, trace, against=each.against))
        for each in ladder.promises
    ]


def _show(ladder: FittedLadder, promise: Promise) -> None:
    print(promise)
    print(f"  its policy, as the fit expects: {ladder.mixture_for(promise).described}")
