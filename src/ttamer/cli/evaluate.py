"""``ttamer evaluate``: how a saved policy does on a trace."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ttamer._numbers import counted
from ttamer.evaluation.results import Result
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.trace.spec import Target
from ttamer.trace.trace import Trace


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a saved policy on a trace",
        description="Replay a fitted policy on a trace: error and cost with intervals, which "
        "nodes answered, and what each node does alone.",
        allow_abbrev=False,
    )
    parser.add_argument("policy", help="a .ttamer file made by ttamer fit")
    parser.add_argument("trace", help="rows to measure on: a Parquet, CSV or NPZ file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tradeoff", type=float, metavar="L",
                       help="one policy of the ladder (default: those that ttamer fit "
                       "prints, and the default of serving)")  # fmt: skip
    which.add_argument("--budget", type=float, metavar="C",
                       help="the mixture that costs C per input in expectation")  # fmt: skip
    which.add_argument("--mistake-cost", type=float, metavar="M",
                       help="the policy of least total cost if a mistake costs M")  # fmt: skip
    which.add_argument("--p95", type=float, metavar="T",
                       help="the policy of least error that answers 95%% of inputs within T, in "
                       "the unit of <node>.latency")  # fmt: skip
    parser.add_argument(
        "--target",
        choices=("label", "last"),
        help="which answers are right (default: the cascade's)",
    )
    parser.add_argument("--skip-bad", action="store_true",
                        help="skip rows that cannot be used, and count them")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay and print."""
    from ttamer._numbers import number
    from ttamer.artefact.files import load
    from ttamer.cli.output import as_json, table
    from ttamer.cli.traces import read, refuse_trace
    from ttamer.errors import ArgumentError
    from ttamer.evaluation.results import evaluate
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.mixture import Mixture, shown_error

    refuse_trace(args.policy, "evaluate POLICY TRACE")
    loaded = load(args.policy)
    if not isinstance(loaded, FittedLadder | FittedPolicy | Mixture):
        raise ArgumentError(
            f"{args.policy} was solved from a problem.json and has no states for confidences: "
            "make one from a trace with ttamer fit"
        )
    args.cascade = loaded.spec
    trace = read(args.trace, args)
    default = None
    policies: list[FittedPolicy | Mixture]
    if isinstance(loaded, FittedPolicy | Mixture):
        if {args.tradeoff, args.budget, args.mistake_cost, args.p95} != {None}:
            raise ArgumentError(
                f"{args.policy} holds one policy, so that there is nothing to choose: remove "
                "--tradeoff, --budget, --mistake-cost and --p95"
            )
        policies = [loaded]
    elif args.mistake_cost is not None:
        policies = [loaded.for_mistake_cost(args.mistake_cost)]
    elif args.p95 is not None:
        policies = [loaded.for_latency(p95=args.p95)]
    elif args.budget is not None:
        policies = [loaded.for_budget(args.budget)]
    elif args.tradeoff is not None:
        policies = [loaded.at(args.tradeoff)]
    else:
        policies = list(loaded)
        if loaded.rungs is not None and loaded.rungs.node_errors is not None:
            default = loaded.default()
        if loaded.rungs is not None and not args.json:
            policies = [loaded[rung] for rung in loaded.rungs.corners]
    _warn_of_same_rows(loaded, trace)
    results = [evaluate(policy, trace, target=args.target) for policy in policies]
    usual = None if default is None else evaluate(default, trace, target=args.target)
    alone = _alone(trace, args.target)
    if args.json:
        facts: dict[str, Any] = {
            "rows": len(trace),
            "policies": [
                {**_named(policy), **result.to_dict()}
                for policy, result in zip(policies, results, strict=True)
            ],
        }
        if default is not None and usual is not None:
            facts["default"] = {**_named(default), **usual.to_dict()}
        print(as_json({**facts, "alone": alone}))
        return
    print(f"{counted(len(trace), 'row')}\n")
    rows = [_cells(p, r) for p, r in zip(policies, results, strict=True)]
    timed = ["latency", "95% within"] if results[0].latency is not None else []
    measure = results[0].measure
    last = loaded.fitted.setting
    head = ["cost", "of full", *timed, measure, "95%", "recalled", "helped", "hurt", last]
    print(table(head, list({tuple(row[:-1]): row for row in rows}.values())))
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.")
    if default is not None and usual is not None:
        low, high = (shown_error(end, measure) for end in usual.error_interval)
        print(
            f"\nThe default of serving: cost {number(usual.cost)} per input, {measure} "
            f"{shown_error(usual.error, measure)} ({low} to {high}); expected: {default.described}"
        )
    shares = results[0] if len(results) == 1 else None
    print("\nEach node, and its answers alone:\n" if shares else "\nEach node alone:\n")
    print(table(["node", *(["asked", "answered"] if shares else []), "cost", measure], [
        [name,
         *([f"{shares.asked[name]:.1%}", f"{shares.answered[name]:.1%}"] if shares else []),
         number(facts["cost"]), shown_error(facts["error"], measure)]
        for name, facts in alone.items()
    ]))  # fmt: skip


def _cells(policy: FittedPolicy | Mixture, result: Result) -> list[str]:
    """Return the row of a policy in the table."""
    from ttamer._numbers import number
    from ttamer.fitted.mixture import shown_error

    return [
        number(result.cost),
        f"{result.relative_cost:.1%}",
        *(number(t) for t in (result.latency, result.latency_p95) if t is not None),
        shown_error(result.error, result.measure),
        " to ".join(shown_error(end, result.measure) for end in result.error_interval),
        f"{result.recalled:.1%}",
        f"{result.recall_helped:.1%}",
        f"{result.recall_hurt:.1%}",
        _short(policy),
    ]


def _alone(trace: Trace, target: Target | None) -> dict[str, dict[str, float]]:
    """Return what each node's answer costs by itself, and its error."""
    costs = trace.spec.answer_costs(trace.costs.mean(axis=0))
    errors = trace.losses(target).mean(axis=0).tolist()
    return {
        name: {"cost": float(cost), "error": error}
        for name, cost, error in zip(trace.names, costs, errors, strict=True)
    }


def _warn_of_same_rows(loaded: FittedLadder | FittedPolicy | Mixture, trace: Trace) -> None:
    """Print a warning where the policy was fitted to these rows, or to some of them."""
    from ttamer.fitted.ladder import FittedLadder
    from ttamer.fitted.promise import were_fitted_to

    fitted = loaded.fitted
    held = loaded.held if isinstance(loaded, FittedLadder) else None
    if not fitted.has_thresholds and were_fitted_to(fitted, held, trace):
        which = "these rows" if fitted.rows == len(trace) else f"{fitted.rows} of these rows"
        print(
            f"Warning: the policy was fitted to {which}, so that errors are too low; measure it "
            "on others, or take the estimates of ttamer fit, which are cross-fitted",
            file=sys.stderr,
        )


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
        return policy.setting
    low, high = policy.cheap.setting, policy.expensive.setting
    return high if low == high else f"{low} or {high} ({policy.share:.0%})"
