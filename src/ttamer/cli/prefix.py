"""``ttamer prefix``: from how many likely tokens on a stream is relayed early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "prefix",
        help="fit when a stream may be relayed after its first tokens",
        description="Fit, for each node, how likely its first tokens must be for its stream to be "
        "relayed before the answer is complete, and show how often the policy would have decided "
        "otherwise.",
        allow_abbrev=False,
    )
    parser.add_argument("artefact", help="the policy that is served")
    parser.add_argument("trace", help="a trace from ttamer collect, with its TRACE.answers.jsonl")
    parser.add_argument("--tradeoff", type=float, metavar="T",
                        help="the tradeoff of the policy (default: the default "
                        "policy)")  # fmt: skip
    parser.add_argument("--max-changed", type=float, default=0.02, metavar="SHARE",
                        help="the share of early streams on which the policy may decide otherwise "
                        "(default 0.02)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Fit the thresholds, and print them."""
    from dataclasses import asdict

    from ttamer.artefact.files import load
    from ttamer.cli.output import as_json, table
    from ttamer.cli.traces import refuse_trace
    from ttamer.errors import ArgumentError
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.mixture import Mixture
    from ttamer.serve.collection.prefixes import fit_prefixes, read_first_logprobs, recalled_answers
    from ttamer.trace.trace import Trace

    refuse_trace(args.artefact, "prefix POLICY TRACE")
    policy: Any = load(args.artefact)
    if isinstance(policy, FittedLadder):
        policy = policy.default() if args.tradeoff is None else policy.at(args.tradeoff)
    elif args.tradeoff is not None:
        raise ArgumentError(f"--tradeoff chooses from a ladder, and {args.artefact} is none")
    if not isinstance(policy, FittedPolicy | Mixture):
        raise ArgumentError(f"{args.artefact} is no policy for confidences: make one by ttamer fit")
    trace = Trace.read(args.trace)
    first = read_first_logprobs(f"{args.trace}.answers.jsonl", trace.names)
    found = fit_prefixes(policy, trace, first, max_changed=args.max_changed)
    recalled = recalled_answers(policy, trace)
    if args.json:
        nodes = [{**asdict(each), "bound": each.bound} for each in found]
        print(as_json({"nodes": nodes, "recalled": {**asdict(recalled), "bound": recalled.bound}}))
        return
    print(f'{recalled}; with stream = "last" a stream does not\n')
    if not found:
        print("no node has a threshold: too few rows, or first tokens that do not decide")
        return
    rows = [
        [each.node, str(each), f"{each.early} of {each.rows}", f"{each.tokens:.1f}",
         f"{each.changed} (at most {each.bound:.1%})"]
        for each in found
    ]  # fmt: skip
    print(table(["node", "for [[node]]", "early", "after tokens", "decided otherwise"], rows))
    print("\n  counted on the half of the rows that the thresholds were not fitted to")
