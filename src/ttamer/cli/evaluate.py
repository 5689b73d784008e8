"""``ttamer evaluate`` and ``certify``: what a saved policy does on other rows."""

from functools import partial
from typing import Any

import click

from ttamer._checks import counted, in_unit, number
from ttamer.artefact.file import load, save
from ttamer.cascade import Target
from ttamer.cli import warn
from ttamer.cli.options import (
    POLICY,
    at_most_one,
    command,
    json_option,
    measurable,
    option,
    output_option,
    progress_line,
    read_for_policy,
    refuse_trace,
    skip_option,
    to_json,
)
from ttamer.errors import ArgumentError
from ttamer.evaluation.results import Result, compare, evaluate, known_losses, measure
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture, shown_error
from ttamer.fitting.promises import Promise, check_promise, were_fitted_to
from ttamer.show import table
from ttamer.trace.trace import Trace

Choice = FittedPolicy | Mixture


@command("evaluate")
@click.argument("policy")
@click.argument("trace")
@option(
    "--tradeoff",
    "L",
    "One policy of the ladder (default: those that ttamer fit prints, and the default of serving).",
    type=float,
)
@option("--budget", "C", "The mixture that costs C per input in expectation.", type=float)
@option("--mistake-cost", "M", "The policy of least total cost if a mistake costs M.", type=float)
@option(
    "--p95",
    "T",
    "The policy of least error that answers 95% of inputs within T, in the unit of <node>.latency.",
    type=float,
)
@option(
    "--against",
    "FILE",
    "Another policy file: on what share of rows the two differ, and what that changes.",
)
@click.option(
    "--target",
    type=click.Choice(["label", "last"]),
    help="Which answers are right (default: the cascade's).",
)
@skip_option
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
    """Replay POLICY, a file of ttamer fit, on TRACE.

    Prints error and cost with intervals, which nodes answered, and what each node does alone.
    """
    at_most_one(**point)
    loaded, chosen = _chosen(policy, point)
    rows = read_for_policy(trace, loaded.spec, skip_bad=skip_bad)
    if not loaded.fitted.thresholds and were_fitted_to(loaded.record, rows):
        count = loaded.record.rows
        which = "these rows" if count == len(rows) else f"{count} of these rows"
        warn(
            f"the policy was fitted to {which}, so that errors are too low; measure it on others, "
            "or take the estimates of ttamer fit, which are cross-fitted"
        )
    rows = measurable(rows, skip_bad=skip_bad)
    if against is not None:
        difference = compare(chosen, _chosen(against, point)[1], rows, target=target)
        print(to_json(difference.to_dict()) if as_json else difference)
        return
    measured: list[tuple[Choice, Result]] = []
    if isinstance(loaded, FittedLadder) and set(point.values()) == {None}:
        corners = (loaded.point(k) for k in loaded.points.corners)
        policies = list(loaded if as_json else corners)
        progress = progress_line(quiet=as_json)
        progress(f"measuring {len(policies)} policies")
        believed = loaded.fitted.read(rows)  # once for all of them
        plays = (believed.play(policy.rule) for policy in policies)
        results = [measure(played, rows, target=target) for played in plays]
        measured = list(zip(policies, results, strict=True))
        progress("")
    result = evaluate(chosen, rows, target=target)
    costs = rows.spec.answer_costs(rows.costs.mean(axis=0)).tolist()
    errors = known_losses(rows, target).mean(axis=0).tolist()
    alone = list(zip(rows.names, costs, errors, strict=True))
    if as_json:
        facts = [{"policy": p.setting, **r.to_dict()} for p, r in (*measured, (chosen, result))]
        default = {"default": facts.pop()} if measured else {}
        nodes = {name: {"cost": cost, "error": error} for name, cost, error in alone}
        print(to_json({"rows": len(rows), "policies": facts, **default, "alone": nodes}))
        return
    # Several policies may decide alike, which is one line.
    lines = {tuple(_cells(r)): [*_cells(r), p.setting] for p, r in measured}
    name = "the default of serving" if measured else chosen.setting
    latency = [] if result.latency is None else ["latency", "95% within"]
    cost, measure_ = in_unit("cost", result.unit), result.measure
    head = [cost, "of full", *latency, measure_, "95%", "recalled", "helped", "hurt", "policy"]
    print(
        f"{counted(len(rows), 'row')}\n\n{table(head, [*lines.values(), [*_cells(result), name]])}"
    )
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.")
    print(f"\nHow often {name} asks and returns each node, and what that node does alone:\n")
    nodes_lines = [
        [
            node,
            f"{result.asked[node]:.1%}",
            f"{result.answered[node]:.1%}",
            number(price),
            shown_error(error, measure_),
        ]
        for node, price, error in alone
    ]
    print(table(["node", "asked", "returned", cost, measure_], nodes_lines))


def _chosen(path: str, point: dict[str, float | None]) -> tuple[FittedLadder | Choice, Choice]:
    """Return what a file holds, and the policy of it that the options choose, or its default."""
    refuse_trace(path, "evaluate POLICY TRACE")
    loaded = load(path)
    stated = {name: value for name, value in point.items() if value is not None}
    if isinstance(loaded, Choice) and stated:
        raise ArgumentError(
            f"{path} holds one policy, so that there is nothing to choose: remove --tradeoff, "
            "--budget, --mistake-cost and --p95"
        )
    if isinstance(loaded, Choice):
        return loaded, loaded
    if not isinstance(loaded, FittedLadder):
        raise ArgumentError(
            f"{path} was solved from a problem.json and has no states for confidences: make one "
            "from a trace with ttamer fit"
        )
    choose: dict[str, Any] = {
        "tradeoff": loaded.at,
        "budget": loaded.for_budget,
        "mistake_cost": loaded.for_mistake_cost,
        "p95": lambda time: loaded.for_latency(p95=time),
    }
    for name, value in stated.items():
        return loaded, choose[name](value)
    return loaded, loaded.default()


def _cells(result: Result) -> list[str]:
    """Return the numbers of a policy, as a table has them."""
    error, low, high = (
        shown_error(value, result.measure) for value in (result.error, *result.error_interval)
    )
    times = [number(time) for time in (result.latency, result.latency_p95) if time is not None]
    shares = (result.recalled, result.recall_helped, result.recall_hurt)
    return [
        number(result.cost),
        f"{result.relative_cost:.1%}",
        *times,
        error,
        f"{low} to {high}",
        *(f"{share:.1%}" for share in shares),
    ]


@command("certify")
@click.argument("policy")
@click.argument("trace", required=False)
@option("--error", "E", "Certify an error of at most E.", type=float)
@option("--drop", "D", "Certify an error at most D above that of --against.", type=float)
@option("--against", "NODE", "What a drop is measured from: a node, last (the default) or best.")
@option("--budget", "C", "Certify that few inputs cost more than C.", type=float)
@option(
    "--exceeded-at-most",
    "P",
    "With --budget: the share of inputs that may (default 0.05).",
    type=float,
)
@option("--confidence", "C", "The confidence of the certificate (default 0.95).", type=float)
@skip_option
@output_option(text="Write the policies with the certificate in them.", kind=POLICY)
@json_option
def certify_command(
    policy: str,
    trace: str | None,
    skip_bad: bool,
    output: str | None,
    as_json: bool,
    **options: float | str | None,
) -> int:
    """Certify an error, a drop against a node, or a budget, with a stated confidence.

    The cheapest such policy of POLICY is found on rows that it was not fitted to: those of TRACE,
    or those that the fit held out. Without --error, --drop or --budget, the certificates in the
    file are checked on new rows. Exit code 1: not certified, or broken.
    """
    stated = {name: value for name, value in options.items() if value is not None}
    kinds = {name: stated.get(name) for name in ("error", "drop", "budget")}
    at_most_one(**kinds)
    kind = next((name for name in kinds if name in stated), None)
    _refuse_idle(kind, [*stated, *["output"] * bool(output)])
    refuse_trace(policy, "certify POLICY TRACE")
    ladder = load(policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{policy} is no ladder made by ttamer fit: nothing to certify")
    rows = read_for_policy(trace, ladder.spec, skip_bad=skip_bad) if trace else None
    if kind is None:
        promises = _checked(ladder, rows, policy)
    else:
        progress = progress_line(quiet=as_json)
        progress("testing the policies")
        choose: dict[str, Any] = {
            "error": ladder.for_error,
            "drop": ladder.for_drop,
            "budget": partial(ladder.for_budget, exceeded_at_most=0.05),
        }
        certified = choose[kind](stated.pop(kind), on=rows, **stated)
        progress("")
        ladder = (ladder if rows is None else ladder.with_holdout(rows)).with_promise(certified)
        promises = [certified.promise]
    if output:
        save(ladder, output)
    if as_json:
        print(to_json({"promises": [promise.to_dict() for promise in promises], "output": output}))
    else:
        for promise in promises:
            expected = ladder.mixture_for(promise).described
            print(f"{promise}\n  its policy, as the fit expects: {expected}")
        if output:
            print(f"  written to {output}")
        elif kind and promises[0].certified:
            print("  -o FILE writes the policies with this certificate")
    return 0 if all(promise.certified for promise in promises) else 1


def _refuse_idle(kind: str | None, stated: list[str]) -> None:
    """Refuse options that a certificate of this kind, or one of the file, does not read."""
    kinds: tuple[str, ...] = ("error", "drop", "budget")
    readers: dict[str, tuple[str, ...]] = {"against": ("drop",), "exceeded_at_most": ("budget",)}
    for name in stated:
        if kind not in readers.get(name, kinds):
            flag = f"--{name.replace('_', '-')}"
            needed = " or ".join(f"--{reader}" for reader in readers.get(name, kinds))
            raise ArgumentError(
                f"{flag} is for a new certificate with {needed}: state that too, or leave it out"
            )


def _checked(ladder: FittedLadder, trace: Trace | None, name: str) -> list[Promise]:
    """Return the certificates of a ladder, checked on new rows where there are some."""
    if not ladder.promises:
        raise ArgumentError(
            f"{name} holds no certificate: make one with --error, --drop or --budget, and -o"
        )
    if trace is None:
        return list(ladder.promises)
    if any(promise.trace_digest == trace.digest for promise in ladder.promises):
        raise ArgumentError(
            f"these are the rows that a certificate in {name} was made with: they show nothing "
            "new; give rows recorded since"
        )
    held, names = ladder.held_rows(trace), ladder.spec.names
    return [check_promise(promise, held, len(ladder), names) for promise in ladder.promises]
