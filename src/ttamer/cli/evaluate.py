"""``ttamer evaluate``: how a saved policy does on a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.fitted.mixture import Mixture

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="how a saved policy does on a trace",
        description="Replay a fitted policy on a trace: error and cost with intervals, and "
        "which nodes answered.",
        allow_abbrev=False,
    )
    parser.add_argument("policy", help="a .ttamer file made by ttamer fit")
    parser.add_argument("trace", help="rows to measure on: a Parquet, CSV or NPZ file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tradeoff", type=float, metavar="L",
                       help="one policy of the ladder (default: all of them)")  # fmt: skip
    which.add_argument("--budget", type=float, metavar="C",
                       help="the mixture that costs C per input in expectation")  # fmt: skip
    which.add_argument("--mistake-cost", type=float, metavar="M",
                       help="the policy of least cost where a mistake costs M")  # fmt: skip
    which.add_argument("--p95", type=float, metavar="T",
                       help="the policy of least error that answers 95%% of inputs within T, in "
                       "the unit of <node>.latency")  # fmt: skip
    parser.add_argument("--target", choices=("label", "last"), help="overrides the cascade's")
    parser.add_argument("--skip-bad", action="store_true",
                        help="skip rows that cannot be used, and count them")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay and print."""
    from ttamer.artefact.files import load
    from ttamer.cli.output import as_json, number, table
    from ttamer.cli.traces import read
    from ttamer.errors import ArgumentError
    from ttamer.evaluation.results import evaluate
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.mixture import Mixture

    loaded = load(args.policy)
    if not isinstance(loaded, FittedLadder | FittedPolicy | Mixture):
        raise ArgumentError(
            f"{args.policy} was solved from a problem.json and has no states for confidences: "
            "make one from a trace with ttamer fit"
        )
    args.cascade = loaded.spec
    trace = read(args.trace, args)
    policies: list[FittedPolicy | Mixture]
    if isinstance(loaded, FittedPolicy | Mixture):
        policies = [loaded]
    elif args.mistake_cost is not None:
        policies = [loaded.for_mistake_cost(args.mistake_cost)]
    elif args.p95 is not None:
        policies = [loaded.for_latency(p95=args.p95)]
    elif args.budget is not None:
        policies = [loaded.for_budget(args.budget)]
    else:
        policies = list(loaded) if args.tradeoff is None else [loaded.at(args.tradeoff)]
    from ttamer.fitted.mixture import shown_error

    results = [evaluate(policy, trace, target=args.target) for policy in policies]
    if args.json:
        facts = [
            {**_named(policy), **result.to_dict()}
            for policy, result in zip(policies, results, strict=True)
        ]
        print(as_json({"rows": len(trace), "policies": facts}))
        return
    rows = [
        [number(r.cost), f"{r.relative_cost:.1%}",
         *(number(t) for t in (r.latency, r.latency_p95) if t is not None),
         shown_error(r.error, r.measure),
         " to ".join(shown_error(end, r.measure) for end in r.error_interval),
         f"{r.recalled:.1%}", f"{r.recall_helped:.1%}",
         f"{r.recall_hurt:.1%}", _short(policy)]
        for policy, r in zip(policies, results, strict=True)
    ]  # fmt: skip
    print(f"{len(trace)} rows\n")
    measure = results[0].measure
    timed = results[0].latency is not None
    head = [
        "cost",
        "of full",
        *(["latency", "95% within"] if timed else []),
        measure,
        "95%",
        "recalled",
        "helped",
        "hurt",
        "tradeoff",
    ]
    print(table(head, list({tuple(row[:-1]): row for row in rows}.values())))
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.")
    if len(results) == 1:
        shares = results[0]
        print()
        print(table(["node", "asked", "answered"], [
            [name, f"{shares.asked[name]:.1%}", f"{shares.answered[name]:.1%}"]
            for name in trace.names
        ]))  # fmt: skip


def _named(policy: FittedPolicy | Mixture) -> dict[str, Any]:
    """Return which policy it is, in plain values."""
    from ttamer.fitted.mixture import Mixture

    if not isinstance(policy, Mixture):
        return {"tradeoff": policy.tradeoff}
    mixed = (policy.cheap.tradeoff, policy.expensive.tradeoff)
    return {"mixed": mixed, "share": policy.share, "expected_cost": policy.cost}


def _short(policy: FittedPolicy | Mixture) -> str:
    from ttamer.fitted.mixture import Mixture

    if not isinstance(policy, Mixture):
        return f"{policy.tradeoff:.3g}"
    low, high = f"{policy.cheap.tradeoff:.3g}", f"{policy.expensive.tradeoff:.3g}"
    return high if low == high else f"{low} or {high} ({policy.share:.0%})"
