"""``ttamer evaluate``: how a saved policy does on other rows, alone or against another."""

from typing import Any

import click

from ttamer._checks import counted, number
from ttamer.artefact.file import load
from ttamer.cascade import Target
from ttamer.cli import warn
from ttamer.cli.options import Reading, at_most_one, json_option, refuse_trace
from ttamer.cli.tables import as_json as to_json, table
from ttamer.errors import ArgumentError
from ttamer.evaluation.results import Difference, Result, compare, evaluate, known_losses
from ttamer.fitting.ladder import (
    FittedLadder,
    FittedPolicy,
    Mixture,
    shown_error,
    were_fitted_to,
)
from ttamer.trace.trace import Trace

Loaded = FittedLadder | FittedPolicy | Mixture


@click.command("evaluate")
@click.argument("policy")
@click.argument("trace")
@click.option("--tradeoff", type=float, metavar="L", help="One policy of the ladder (default: "
              "those that ttamer fit prints, and the default of serving).")  # fmt: skip
@click.option("--budget", type=float, metavar="C",
              help="The mixture that costs C per input in expectation.")  # fmt: skip
@click.option("--mistake-cost", type=float, metavar="M",
              help="The policy of least total cost if a mistake costs M.")  # fmt: skip
@click.option("--p95", type=float, metavar="T", help="The policy of least error that answers 95% "
              "of inputs within T, in the unit of <node>.latency.")  # fmt: skip
@click.option("--against", metavar="FILE", help="Another policy file: on what share of rows the "
              "two differ, and what that changes.")  # fmt: skip
@click.option("--target", type=click.Choice(["label", "last"]),
              help="Which answers are right (default: the cascade's).")  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be used, and count them.")
@json_option
def evaluate_command(
    policy: str,
    trace: str,
    against: str | None,
    target: Target | None,
    skip_bad: bool,
    as_json: bool,
    **point: float | None,
) -> None:
    """Replay a fitted policy on TRACE.

    Prints error and cost with intervals, which nodes answered, and what each node does alone.
    """
    at_most_one(**point)
    loaded = _loaded(policy, "evaluate POLICY TRACE")
    chosen = _point(loaded, policy, **point)
    rows = Reading(skip_bad=skip_bad).read(trace, loaded.spec)
    _warn_of_same_rows(loaded, rows)
    if against is not None:
        other = _loaded(against, "evaluate POLICY TRACE --against POLICY")
        mine, theirs = _one(loaded, chosen), _one(other, _point(other, against, **point))
        print(_compared(compare(mine, theirs, rows, target=target), as_json))
        return
    policies = _every(loaded, as_json) if chosen is None else [chosen]
    default = None
    if chosen is None and isinstance(loaded, FittedLadder):
        default = loaded.default()
    results = [evaluate(rule, rows, target=target) for rule in policies]
    usual = None if default is None else evaluate(default, rows, target=target)
    alone = _alone(rows, target)
    if as_json:
        pairs = zip(policies, results, strict=True)
        facts: dict[str, Any] = {
            "rows": len(rows),
            "policies": [{**_named(rule), **result.to_dict()} for rule, result in pairs],
        }
        if default is not None and usual is not None:
            facts["default"] = {**_named(default), **usual.to_dict()}
        print(to_json({**facts, "alone": alone}))
        return
    _show(policies, results, alone)
    if default is not None and usual is not None:
        low, high = (shown_error(end, usual.measure) for end in usual.error_interval)
        print(
            f"\nThe default of serving: cost {number(usual.cost)} per input, {usual.measure} "
            f"{shown_error(usual.error, usual.measure)} ({low} to {high}); expected: "
            f"{default.described}"
        )


def _loaded(path: str, usage: str) -> Loaded:
    refuse_trace(path, usage)
    loaded = load(path)
    if not isinstance(loaded, Loaded):
        raise ArgumentError(
            f"{path} was solved from a problem.json and has no states for confidences: make one "
            "from a trace with ttamer fit"
        )
    return loaded


def _point(
    loaded: Loaded,
    path: str,
    *,
    tradeoff: float | None,
    budget: float | None,
    mistake_cost: float | None,
    p95: float | None,
) -> FittedPolicy | Mixture | None:
    """Return the policy that the options choose; ``None`` for all of a ladder."""
    if not isinstance(loaded, FittedLadder):
        if {tradeoff, budget, mistake_cost, p95} != {None}:
            raise ArgumentError(
                f"{path} holds one policy, so that there is nothing to choose: remove --tradeoff, "
                "--budget, --mistake-cost and --p95"
            )
        return loaded
    if mistake_cost is not None:
        return loaded.for_mistake_cost(mistake_cost)
    if p95 is not None:
        return loaded.for_latency(p95=p95)
    if budget is not None:
        return loaded.for_budget(budget)
    return None if tradeoff is None else loaded.at(tradeoff)


def _one(loaded: Loaded, chosen: FittedPolicy | Mixture | None) -> FittedPolicy | Mixture:
    if chosen is not None:
        return chosen
    return loaded.default() if isinstance(loaded, FittedLadder) else loaded


def _every(loaded: Loaded, as_json: bool) -> list[FittedPolicy | Mixture]:
    """Return the policies of a ladder: those on its frontier, or all for programs."""
    assert isinstance(loaded, FittedLadder)  # noqa: S101 - the others are one policy
    if as_json:
        return list(loaded)
    return [loaded.point(number) for number in loaded.points.corners]


def _compared(difference: Difference, as_json: bool) -> str:
    return to_json(difference.to_dict()) if as_json else str(difference)


def _show(
    policies: list[FittedPolicy | Mixture],
    results: list[Result],
    alone: dict[str, dict[str, float]],
) -> None:
    print(f"{counted(results[0].rows, 'row')}\n")
    timed = ["latency", "95% within"] if results[0].latency is not None else []
    measure = results[0].measure
    head = ["cost", "of full", *timed, measure, "95%", "recalled", "helped", "hurt"]
    rows = [_cells(rule, result) for rule, result in zip(policies, results, strict=True)]
    unlike = {tuple(row[:-1]): row for row in rows}  # several policies may decide alike
    print(table([*head, "policy"], list(unlike.values())))
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.")
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
    errors = known_losses(trace, target).mean(axis=0).tolist()
    return {
        name: {"cost": float(cost), "error": error}
        for name, cost, error in zip(trace.names, costs, errors, strict=True)
    }


def _warn_of_same_rows(loaded: Loaded, trace: Trace) -> None:
    """Print a warning where the policy was fitted to these rows, or to some of them."""
    rows = loaded.record.rows
    if not loaded.fitted.thresholds and were_fitted_to(loaded.record, trace):
        which = "these rows" if rows == len(trace) else f"{rows} of these rows"
        warn(
            f"the policy was fitted to {which}, so that errors are too low; measure it on others, "
            "or take the estimates of ttamer fit, which are cross-fitted"
        )


def _named(policy: FittedPolicy | Mixture) -> dict[str, Any]:
    """Return which policy it is, in plain values."""
    if not isinstance(policy, Mixture):
        return {"tradeoff": policy.tradeoff}
    mixed = (policy.cheap.tradeoff, policy.expensive.tradeoff)
    return {"mixed": mixed, "share": policy.share, "expected_cost": policy.cost}


def _short(policy: FittedPolicy | Mixture) -> str:
    if not isinstance(policy, Mixture):
        return policy.setting
    low, high = policy.cheap.setting, policy.expensive.setting
    return high if low == high else f"{low} or {high} ({policy.share:.0%})"
