"""``ttamer evaluate`` and ``certify``: what a saved policy does on other rows."""

from collections.abc import Sequence
from typing import Any

import click

from ttamer._checks import counted, number
from ttamer.artefact.file import load, save
from ttamer.cascade import Target
from ttamer.cli import warn
from ttamer.cli.options import (
    Reading,
    at_most_one,
    command,
    json_option,
    output_option,
    refuse_trace,
    skip_option,
)
from ttamer.cli.printing import progress_line, to_json
from ttamer.errors import ArgumentError
from ttamer.evaluation.results import Result, compare, evaluate, known_losses
from ttamer.fitting.ladder import (
    FittedLadder,
    FittedPolicy,
    Mixture,
    shown_error,
)
from ttamer.fitting.promises import Promise, check_promise, were_fitted_to
from ttamer.show.tables import table
from ttamer.trace.trace import Trace

Loaded = FittedLadder | FittedPolicy | Mixture
Choice = FittedPolicy | Mixture


@command("evaluate")
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
    rows = Reading(skip_bad=skip_bad).read(trace, loaded.spec)
    _warn_of_same_rows(loaded, rows)
    if against is not None:
        rival = _loaded(against, "evaluate POLICY TRACE --against POLICY")
        baseline = _chosen(rival, against, **point) or _default(rival)
        difference = compare(chosen or _default(loaded), baseline, rows, target=target)
        print(to_json(difference.to_dict()) if as_json else difference)
        return
    policies: Sequence[Choice] = [chosen] if chosen is not None else []
    usual: Choice | None = None
    if chosen is None and isinstance(loaded, FittedLadder):
        usual, points = loaded.default(), loaded.points
        policies = list(loaded) if as_json else [loaded.point(k) for k in points.corners]
    progress, results = progress_line(quiet=as_json or len(policies) == 1), []
    for count, choice in enumerate(policies, start=1):
        progress(f"measuring policy {count} of {len(policies)}")
        results.append(evaluate(choice, rows, target=target))
    progress("")
    by_default = None if usual is None else evaluate(usual, rows, target=target)
    costs = rows.spec.answer_costs(rows.costs.mean(axis=0)).tolist()
    errors = known_losses(rows, target).mean(axis=0).tolist()
    alone = dict(zip(rows.names, zip(costs, errors, strict=True), strict=True))
    if as_json:
        pairs = zip(policies, results, strict=True)
        facts: dict[str, Any] = {
            "rows": len(rows),
            "policies": [
                {"policy": choice.setting, **result.to_dict()} for choice, result in pairs
            ],
        }
        if usual is not None and by_default is not None:
            facts["default"] = {"policy": usual.setting, **by_default.to_dict()}
        facts["alone"] = {name: {"cost": c, "error": e} for name, (c, e) in alone.items()}
        print(to_json(facts))
        return
    print(f"{counted(len(rows), 'row')}\n\n{_results_table(policies, results)}")
    print("\nof full: as a share of the full model's cost, or of the most expensive model's;")
    print("recalled: an earlier answer was returned; helped, hurt: that was better, worse.\n")
    print(_nodes_table(alone, results))
    if usual is not None and by_default is not None:
        low, high = (shown_error(end, by_default.measure) for end in by_default.error_interval)
        error = shown_error(by_default.error, by_default.measure)
        print(
            f"\nThe default of serving: cost {number(by_default.cost)} per input, "
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


def _chosen(
    loaded: Loaded,
    path: str,
    *,
    tradeoff: float | None,
    budget: float | None,
    mistake_cost: float | None,
    p95: float | None,
) -> Choice | None:
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


def _results_table(policies: Sequence[Choice], results: Sequence[Result]) -> str:
    """Return a row for each policy; several policies may decide alike, which is one row."""
    measure, timed = results[0].measure, results[0].latency is not None
    rows = {}
    for policy, result in zip(policies, results, strict=True):
        ends = [shown_error(end, measure) for end in result.error_interval]
        times = [number(t) for t in (result.latency, result.latency_p95) if t is not None]
        shares = (result.recalled, result.recall_helped, result.recall_hurt)
        cells = [
            number(result.cost),
            f"{result.relative_cost:.1%}",
            *times,
            shown_error(result.error, measure),
            " to ".join(ends),
            *(f"{share:.1%}" for share in shares),
        ]
        rows[tuple(cells)] = [*cells, policy.setting]
    latency = ["latency", "95% within"] if timed else []
    head = ["cost", "of full", *latency, measure, "95%", "recalled", "helped", "hurt", "policy"]
    return table(head, list(rows.values()))


def _nodes_table(alone: dict[str, tuple[float, float]], results: Sequence[Result]) -> str:
    """Return what each node does alone, and of one policy how often it was asked and answered."""
    measure = results[0].measure
    cells = {
        name: [number(cost), shown_error(error, measure)] for name, (cost, error) in alone.items()
    }
    if len(results) > 1:
        rows = [[name, *numbers] for name, numbers in cells.items()]
        return "Each node alone:\n\n" + table(["node", "cost", measure], rows)
    rows = [
        [name, f"{results[0].asked[name]:.1%}", f"{results[0].answered[name]:.1%}", *numbers]
        for name, numbers in cells.items()
    ]
    head = ["node", "asked", "answered", "cost", measure]
    return "Each node, and its answers alone:\n\n" + table(head, rows)


def _warn_of_same_rows(loaded: Loaded, trace: Trace) -> None:
    """Print a warning where the policy was fitted to these rows, or to some of them."""
    rows = loaded.record.rows
    if not loaded.fitted.thresholds and were_fitted_to(loaded.record, trace):
        which = "these rows" if rows == len(trace) else f"{rows} of these rows"
        warn(
            f"the policy was fitted to {which}, so that errors are too low; measure it on others, "
            "or take the estimates of ttamer fit, which are cross-fitted"
        )


@command("certify")
@click.argument("policy")
@click.argument("trace", required=False)
@click.option("--error", type=float, metavar="E", help="Certify an error of at most E.")
@click.option("--drop", type=float, metavar="D",
              help="Certify an error at most D above that of --against.")  # fmt: skip
@click.option("--against", metavar="NODE",
              help="What a drop is measured from: a node, last (the default) or best.")  # fmt: skip
@click.option("--budget", type=float, metavar="C",
              help="Certify that few inputs cost more than C.")  # fmt: skip
@click.option("--exceeded-at-most", type=float, metavar="P",
              help="With --budget: the share of inputs that may (default 0.05).")  # fmt: skip
@click.option("--confidence", type=float, metavar="C",
              help="The confidence of the certificate (default 0.95).")  # fmt: skip
@skip_option
@output_option(text="Write the policies with the certificate in them.")
@json_option
def certify_command(
    policy: str,
    trace: str | None,
    error: float | None,
    drop: float | None,
    against: str | None,
    budget: float | None,
    exceeded_at_most: float | None,
    confidence: float | None,
    skip_bad: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Certify an error, a drop against a node, or a budget, with a stated confidence.

    The cheapest such policy of POLICY is found on rows that it was not fitted to: those of TRACE,
    or those that the fit held out. Without --error, --drop or --budget, the certificates in the
    file are checked on new rows. Exit code 1: not certified, or broken.
    """
    at_most_one(error=error, drop=drop, budget=budget)
    is_new = (error, drop, budget) != (None, None, None)
    if against is not None and drop is None:
        raise ArgumentError("--against is for --drop: leave it out, or give --drop in its place")
    if exceeded_at_most is not None and budget is None:
        raise ArgumentError("--exceeded-at-most is for --budget: give --budget C, or leave it out")
    if confidence is not None and not is_new:
        raise ArgumentError(
            "a certificate in the file has its own confidence: leave out --confidence, or make a "
            "new one with --error, --drop or --budget"
        )
    if output and not is_new:
        raise ArgumentError(
            "-o is for a new certificate: leave it out, or give --error, --drop or --budget"
        )
    refuse_trace(policy, "certify POLICY TRACE")
    ladder = load(policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{policy} is no ladder made by ttamer fit: nothing to certify")
    rows = Reading(skip_bad=skip_bad).read(trace, ladder.spec) if trace else None
    if is_new:
        level: dict[str, Any] = {"on": rows}
        level["confidence"] = 0.95 if confidence is None else confidence
        if error is not None:
            certified = ladder.for_error(error, **level)
        elif budget is not None:
            share = 0.05 if exceeded_at_most is None else exceeded_at_most
            certified = ladder.for_budget(budget, exceeded_at_most=share, **level)
        else:
            certified = ladder.for_drop(drop or 0.0, against=against or "last", **level)
        assert certified.promise is not None  # noqa: S101 - each of them makes one
        ladder = (ladder if rows is None else ladder.with_holdout(rows)).with_promise(certified)
        promises = [certified.promise]
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
