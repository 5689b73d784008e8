"""``ttamer evaluate`` and ``certify``: what a saved policy does on other rows."""

from collections.abc import Sequence
from typing import Any

import click

from ttamer._checks import counted, in_unit, number, priced
from ttamer.artefact.file import load, save
from ttamer.cascade import Target
from ttamer.cli import warn
from ttamer.cli.options import (
    Reading,
    at_most_one,
    command,
    json_option,
    measurable,
    option,
    output_option,
    progress_line,
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

Loaded = FittedLadder | FittedPolicy | Mixture
Choice = FittedPolicy | Mixture


@command("evaluate")
@click.argument("policy")
@click.argument("trace")
@option("--tradeoff", "L", "One policy of the ladder (default: those that ttamer fit prints, and "
        "the default of serving).", type=float)  # fmt: skip
@option("--budget", "C", "The mixture that costs C per input in expectation.", type=float)
@option("--mistake-cost", "M", "The policy of least total cost if a mistake costs M.", type=float)
@option("--p95", "T", "The policy of least error that answers 95% of inputs within T, in the unit "
        "of <node>.latency.", type=float)  # fmt: skip
@option("--against", "FILE", "Another policy file: on what share of rows the two differ, and what "
        "that changes.")  # fmt: skip
@click.option("--target", type=click.Choice(["label", "last"]),
              help="Which answers are right (default: the cascade's).")  # fmt: skip
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
    loaded = _loaded(policy, "evaluate POLICY TRACE")
    chosen = _chosen(loaded, policy, **point)
    reading = Reading(skip_bad=skip_bad)
    rows = reading.read(trace, loaded.spec)
    if not loaded.fitted.thresholds and were_fitted_to(loaded.record, rows):
        count = loaded.record.rows
        which = "these rows" if count == len(rows) else f"{count} of these rows"
        warn(
            f"the policy was fitted to {which}, so that errors are too low; measure it on others, "
            "or take the estimates of ttamer fit, which are cross-fitted"
        )
    rows = measurable(rows, reading)
    if against is not None:
        rival = _loaded(against, "evaluate POLICY TRACE --against POLICY")
        baseline = _chosen(rival, against, **point) or _default(rival)
        difference = compare(chosen or _default(loaded), baseline, rows, target=target)
        print(to_json(difference.to_dict()) if as_json else difference)
        return
    if chosen is not None:
        policies: Sequence[Choice] = [chosen]
        results = [evaluate(chosen, rows, target=target)]
    else:
        assert isinstance(loaded, FittedLadder)  # noqa: S101 - one policy is chosen
        corners = [loaded.point(k) for k in loaded.points.corners]
        policies = shown = list(loaded) if as_json else corners
        progress = progress_line(quiet=as_json)
        progress(f"measuring {len(policies)} policies")
        believed = loaded.fitted.read(rows)  # once for all of them
        played = (believed.play(choice.rule) for choice in shown)
        results = [measure(play, rows, target=target) for play in played]
        progress("")
    costs = rows.spec.answer_costs(rows.costs.mean(axis=0)).tolist()
    errors = known_losses(rows, target).mean(axis=0).tolist()
    alone = dict(zip(rows.names, zip(costs, errors, strict=True), strict=True))
    usual = None if chosen is not None else _default(loaded)
    by_default = None if usual is None else evaluate(usual, rows, target=target)
    if as_json:
        facts: dict[str, Any] = {
            "rows": len(rows),
            "policies": [
                {"policy": choice.setting, **result.to_dict()}
                for choice, result in zip(policies, results, strict=True)
            ],
        }
        if usual is not None and by_default is not None:
            facts["default"] = {"policy": usual.setting, **by_default.to_dict()}
        facts["alone"] = {name: {"cost": c, "error": e} for name, (c, e) in alone.items()}
        print(to_json(facts))
        return
    print(f"{counted(len(rows), 'row')}\n\n{_results_table(policies, results)}")
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.")
    print(f"\nEach node{', and its answers' if len(results) == 1 else ''} alone:\n")
    print(_nodes_table(alone, results))
    if usual is not None and by_default is not None:
        low, high = (shown_error(end, by_default.measure) for end in by_default.error_interval)
        error = shown_error(by_default.error, by_default.measure)
        print(
            f"\nThe default of serving: cost {priced(by_default.cost, by_default.unit)} per input, "
            f"{by_default.measure} {error} ({low} to {high}); expected: {usual.described}"
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


def _default(loaded: Loaded) -> Choice:
    return loaded.default() if isinstance(loaded, FittedLadder) else loaded


def _chosen(loaded: Loaded, path: str, **point: float | None) -> Choice | None:
    """Return the policy of a file that the options choose; none of them: all of a ladder."""
    if not isinstance(loaded, FittedLadder):
        if set(point.values()) != {None}:
            raise ArgumentError(
                f"{path} holds one policy, so that there is nothing to choose: remove --tradeoff, "
                "--budget, --mistake-cost and --p95"
            )
        return loaded
    match next(((name, value) for name, value in point.items() if value is not None), None):
        case ("mistake_cost", cost):
            return loaded.for_mistake_cost(cost)
        case ("p95", time):
            return loaded.for_latency(p95=time)
        case ("budget", cost):
            return loaded.for_budget(cost)
        case ("tradeoff", tradeoff):
            return loaded.at(tradeoff)
    return None


def _results_table(policies: Sequence[Choice], results: Sequence[Result]) -> str:
    """Return a row for each policy; several policies may decide alike, which is one row."""
    measured, timed = results[0].measure, results[0].latency is not None
    rows = {}
    for policy, result in zip(policies, results, strict=True):
        ends = [shown_error(end, measured) for end in result.error_interval]
        times = [number(t) for t in (result.latency, result.latency_p95) if t is not None]
        shares = (result.recalled, result.recall_helped, result.recall_hurt)
        cells = [number(result.cost), f"{result.relative_cost:.1%}", *times,
                 shown_error(result.error, measured), " to ".join(ends),
                 *(f"{share:.1%}" for share in shares)]  # fmt: skip
        rows[tuple(cells)] = [*cells, policy.setting]
    latency = ["latency", "95% within"] if timed else []
    cost = in_unit("cost", results[0].unit)
    head = [cost, "of full", *latency, measured, "95%", "recalled", "helped", "hurt", "policy"]
    return table(head, list(rows.values()))


def _nodes_table(alone: dict[str, tuple[float, float]], results: Sequence[Result]) -> str:
    """Return what each node does alone, and of one policy how often it was asked and answered."""
    result, is_one = results[0], len(results) == 1
    shares = {name: [f"{result.asked[name]:.1%}", f"{result.answered[name]:.1%}"] for name in alone}
    rows = [
        [name, *shares[name] * is_one, number(cost), shown_error(error, result.measure)]
        for name, (cost, error) in alone.items()
    ]
    cost = in_unit("cost", result.unit)
    return table(["node", *["asked", "answered"] * is_one, cost, result.measure], rows)


@command("certify")
@click.argument("policy")
@click.argument("trace", required=False)
@option("--error", "E", "Certify an error of at most E.", type=float)
@option("--drop", "D", "Certify an error at most D above that of --against.", type=float)
@option("--against", "NODE", "What a drop is measured from: a node, last (the default) or best.")
@option("--budget", "C", "Certify that few inputs cost more than C.", type=float)
@option("--exceeded-at-most", "P", "With --budget: the share of inputs that may (default 0.05).",
        type=float)  # fmt: skip
@option("--confidence", "C", "The confidence of the certificate (default 0.95).", type=float)
@skip_option
@output_option(text="Write the policies with the certificate in them.")
@json_option
def certify_command(
    policy: str,
    trace: str | None,
    skip_bad: bool,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Certify an error, a drop against a node, or a budget, with a stated confidence.

    The cheapest such policy of POLICY is found on rows that it was not fitted to: those of TRACE,
    or those that the fit held out. Without --error, --drop or --budget, the certificates in the
    file are checked on new rows. Exit code 1: not certified, or broken.
    """
    bounds = {name: options[name] for name in ("error", "drop", "budget")}
    at_most_one(**bounds)
    is_new = set(bounds.values()) != {None}
    for flag, value, needed, remedy in (
        ("--against", options["against"], bounds["drop"], "--drop D"),
        ("--exceeded-at-most", options["exceeded_at_most"], bounds["budget"], "--budget C"),
        ("-o", output, is_new or None, "--error, --drop or --budget"),
    ):
        if value is not None and needed is None:
            what = "a new certificate" if flag == "-o" else remedy.split()[0]
            raise ArgumentError(f"{flag} is for {what}: give {remedy}, or leave it out")
    if options["confidence"] is not None and not is_new:
        raise ArgumentError(
            "a certificate in the file has its own confidence: leave out --confidence, or make a "
            "new one with --error, --drop or --budget"
        )
    refuse_trace(policy, "certify POLICY TRACE")
    ladder = load(policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{policy} is no ladder made by ttamer fit: nothing to certify")
    rows = Reading(skip_bad=skip_bad).read(trace, ladder.spec) if trace else None
    if is_new:
        progress = progress_line(quiet=as_json)
        progress("testing the policies")
        certified = _certified(ladder, rows, **options)
        progress("")
        ladder = (ladder if rows is None else ladder.with_holdout(rows)).with_promise(certified)
        promises = [] if certified.promise is None else [certified.promise]
    else:
        promises = _checked(ladder, rows, policy)
    if output:
        save(ladder, output)
    if as_json:
        print(to_json({"promises": [promise.to_dict() for promise in promises], "output": output}))
    else:
        for promise in promises:
            print(promise)
            expected = ladder.mixture_for(promise).described
            print(f"  its policy, as the fit expects: {expected}")
        if output:
            print(f"  written to {output}")
        elif is_new and promises[0].certified:
            print("  -o FILE writes the policies with this certificate")
    return 0 if all(promise.certified for promise in promises) else 1


def _certified(
    ladder: FittedLadder,
    rows: Trace | None,
    *,
    error: float | None,
    drop: float | None,
    against: str | None,
    budget: float | None,
    exceeded_at_most: float | None,
    confidence: float | None,
) -> Mixture:
    level: Any = {"on": rows, "confidence": 0.95 if confidence is None else confidence}
    if error is not None:
        return ladder.for_error(error, **level)
    if budget is None:
        return ladder.for_drop(drop or 0.0, against=against or "last", **level)
    share = 0.05 if exceeded_at_most is None else exceeded_at_most
    return ladder.for_budget(budget, exceeded_at_most=share, **level)


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
    held = ladder.held_rows(trace)
    return [
        check_promise(promise, held, len(ladder), ladder.spec.names) for promise in ladder.promises
    ]
