"""``ttamer evaluate`` and ``certify``: what a saved policy does on other rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer._checks import counted, in_unit, number
from ttamer.artefact.file import load, save
from ttamer.cli import warn
from ttamer.errors import ArgumentError
from ttamer.evaluation.results import Result, compare, evaluate, known_losses, measure
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture, shown_error
from ttamer.fitting.promises import Promise, check_promise, were_fitted_to
from ttamer.trace.trace import Trace

Choice = FittedPolicy | Mixture
# What the options choose from a ladder.
POINTS: dict[str, Callable[[FittedLadder, float], Choice]] = {
    "tradeoff": FittedLadder.at,
    "budget": FittedLadder.for_budget,
    "mistake_cost": FittedLadder.for_mistake_cost,
}


@cli.command("evaluate")
@cli.policy_argument()
@click.argument("trace")
@cli.number("--tradeoff", "L", "One policy of the ladder (default: its frontier, and its default).")
@cli.number("--budget", "C", "The mixture that costs C per input in expectation.")
@cli.number("--mistake-cost", "M", "The policy of least total cost if a mistake costs M.")
@cli.option("--against", "FILE", "Another policy: on how many rows they differ, and what changes.")
@cli.skip_option
def evaluate_command(
    policy: str, trace: str, against: str | None, skip_bad: bool, **point: float | None
) -> None:
    """Replay POLICY, a file of ttamer fit, on TRACE.

    Prints error and cost with intervals, which nodes answered, and what each node does alone.
    """
    stated = cli.at_most_one(**point)
    loaded, chosen = _chosen(policy, stated)
    rows = cli.read_for_policy(trace, loaded.spec, skip_bad=skip_bad)
    # Thresholds were set before any row was seen: no rows are too good for them.
    if not loaded.fitted.thresholds and were_fitted_to(loaded.record, rows):
        count = loaded.record.rows
        which = "these rows" if count == len(rows) else f"{count} of these rows"
        warn(
            f"the policy was fitted to {which}, so that errors are too low; measure it on others, "
            "or take the estimates of ttamer fit, which are cross-fitted"
        )
    rows = cli.measurable(rows, skip_bad=skip_bad)
    if against is not None:
        difference = compare(chosen, _chosen(against, stated, is_other=True)[1], rows)
        cli.show(difference.to_dict(), difference)
        return
    result, measured = evaluate(chosen, rows), []
    facts: dict[str, Any] = {"policy": chosen.setting, **result.to_dict()}
    if isinstance(loaded, FittedLadder) and not stated:
        progress, name = cli.progress_line(), "the default of serving"
        for count, played in enumerate(loaded.play_all(rows), start=1):
            progress(f"measuring {count} of {len(loaded)} policies")
            measured.append(measure(played, rows))
        pairs = zip(loaded, measured, strict=True)
        policies = [{"policy": policy.setting, **part.to_dict()} for policy, part in pairs]
        facts = {"policies": policies, "default": facts}
        corners = [k for k in loaded.points.corners if k < len(loaded)]
        shown = {loaded[k].setting: measured[k] for k in corners}
    else:
        facts, shown, name = {"policies": [facts]}, {}, chosen.setting
    costs = rows.spec.answer_costs(rows.costs.mean(axis=0)).tolist()
    errors = known_losses(rows).mean(axis=0).tolist()
    nodes = {
        node: {"cost": cost, "error": error}
        for node, cost, error in zip(rows.names, costs, errors, strict=True)
    }
    table = [
        {
            "node": node,
            "asked": f"{result.asked[node]:.1%}",
            "returned": f"{result.answered[node]:.1%}",
            in_unit("cost", result.unit): alone["cost"],
            result.measure: shown_error(alone["error"], result.measure),
        }
        for node, alone in nodes.items()
    ]
    cli.show(
        {"rows": len(rows), **facts, "alone": nodes},
        f"{counted(len(rows), 'row')}\n\n{_results_table({**shown, name: result})}\n\n"
        "of full: as a share of the full model's cost, or of the most expensive model's;\n"
        "recalled: an earlier answer than the last was returned.\n\n"
        f"How often {name} asks and returns each node, and what that node does alone:\n\n"
        f"{cli.records(table)}",
    )


def _results_table(results: dict[str, Result]) -> str:
    """Return the numbers of policies by name; several that decide alike are one line."""
    rows = {}
    for name, result in results.items():
        error, *ends = (
            shown_error(value, result.measure) for value in (result.error, *result.error_interval)
        )
        cells = {in_unit("cost", result.unit): number(result.cost)}
        cells["of full"] = f"{result.relative_cost:.1%}"
        if result.latency is not None and result.latency_p95 is not None:
            cells["latency"] = number(result.latency)
            cells["95% within"] = number(result.latency_p95)
        cells |= {result.measure: error, "95%": " to ".join(ends)}
        cells["recalled"] = f"{result.recalled:.1%}"
        rows[tuple(cells.values())] = {**cells, "policy": name}
    return cli.records([*rows.values()])


def _chosen(
    path: str, stated: dict[str, float], *, is_other: bool = False
) -> tuple[FittedLadder | Choice, Choice]:
    """Return what a file holds, and the policy of it that the options choose, or its default."""
    loaded = load(path)
    if isinstance(loaded, Choice):
        if stated and not is_other:  # of two files, the options choose where there is a choice
            raise ArgumentError(
                f"{path} holds one policy, so that there is nothing to choose: remove --tradeoff, "
                "--budget and --mistake-cost"
            )
        return loaded, loaded
    if not isinstance(loaded, FittedLadder):
        raise ArgumentError(
            f"{path} was solved from a problem.json and has no states for confidences: make one "
            "from a trace with ttamer fit"
        )
    for name, value in stated.items():
        return loaded, POINTS[name](loaded, value)
    return loaded, loaded.default()


@cli.command("certify")
@cli.policy_argument()
@click.argument("trace", required=False)
@cli.number("--error", "E", "Certify an error of at most E.")
@cli.number("--drop", "D", "Certify an error at most D above that of --against.")
@cli.option("--against", "NODE", "For --drop: a node, last (the default) or best.")
@cli.number("--budget", "C", "Certify that few inputs cost more than C.")
@cli.number("--exceeded-at-most", "P", "For --budget: the share of inputs (default 0.05).")
@cli.number("--confidence", "C", "The confidence of the certificate (default 0.95).")
@cli.skip_option
@cli.output_option("Write the policies with the certificate in them.", cli.POLICY)
def certify_command(
    policy: str, trace: str | None, skip_bad: bool, output: str | None, **options: Any
) -> int:
    """Certify an error, a drop against a node, or a budget, with a stated confidence.

    The cheapest such policy of POLICY is chosen on rows that it was not fitted to: those of TRACE,
    or those that the fit held out. Without --error, --drop or --budget, the certificates in the
    file are checked on new rows. Exit code 1: not certified, or broken.
    """
    stated = {name: value for name, value in options.items() if value is not None}
    kinds_of = ("error", "drop", "budget")
    kind = next(iter(cli.at_most_one(**{name: options[name] for name in kinds_of})), None)
    # An option that does nothing would look as if it had been promised.
    for name in (*stated, *["output"] * bool(output)):
        readers = {"against": ["drop"], "exceeded_at_most": ["budget"]}.get(name, [*kinds_of])
        if kind not in readers:
            flags = " or ".join(f"--{reader}" for reader in readers)
            raise ArgumentError(
                f"--{name.replace('_', '-')} is for a new certificate with {flags}: state that "
                "too, or leave it out"
            )
    ladder = load(policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{policy} is no ladder made by ttamer fit: nothing to certify")
    rows = cli.read_for_policy(trace, ladder.spec, skip_bad=skip_bad) if trace else None
    if kind is None:
        promises = _checked(ladder, rows, policy)
    else:
        cli.progress_line()("testing the policies")  # against every node it takes seconds
        choose: dict[str, Any] = {
            "error": ladder.for_error,
            "drop": ladder.for_drop,
            "budget": partial(ladder.for_budget, exceeded_at_most=0.05),
        }
        certified = choose[kind](stated.pop(kind), on=rows, **stated)
        ladder = (ladder if rows is None else ladder.with_holdout(rows)).with_promise(certified)
        promises = [certified.promise]
    lines = []
    for promise in promises:
        expected = ladder.mixed(promise.mix).described
        lines += [str(promise), f"  its policy, as the fit expects: {expected}"]
    if output:
        save(ladder, output)
        lines.append(f"  written to {output}")
    elif kind and promises[0].certified:
        lines.append("  -o FILE writes the policies with this certificate")
    facts = {"promises": [promise.to_dict() for promise in promises], "output": output}
    cli.show(facts, "\n".join(lines))
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
    return [check_promise(promise, held) for promise in ladder.promises]
