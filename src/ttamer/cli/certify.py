"""``ttamer certify``: promise an error or a drop, or check the promises in a file again."""

import click

from ttamer.artefact.file import load, save
from ttamer.cli.options import Reading, at_most_one, json_option, output_option, refuse_trace
from ttamer.cli.tables import as_json as to_json
from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedLadder
from ttamer.fitting.promises import Promise, check_promise
from ttamer.trace.trace import Trace


@click.command("certify")
@click.argument("policy")
@click.argument("trace", required=False)
@click.option("--error", type=float, metavar="E", help="Promise an error of at most E.")
@click.option("--drop", type=float, metavar="D",
              help="Promise an error at most D above that of --against.")  # fmt: skip
@click.option("--against", metavar="NODE",
              help="What a drop is measured from: a node, last (the default) or best.")  # fmt: skip
@click.option("--confidence", type=float, metavar="C",
              help="The confidence of the promise (default 0.95).")  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be used, and count them.")
@output_option(text="Write the policies with the promise in them.")
@json_option
def certify_command(
    policy: str,
    trace: str | None,
    error: float | None,
    drop: float | None,
    against: str | None,
    confidence: float | None,
    skip_bad: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Promise an error, or a drop against a node, with a stated confidence.

    The cheapest such policy of POLICY is found on rows that it was not fitted to: those of TRACE,
    or those that the fit held out. Without --error or --drop, the promises in the file are checked
    on new rows. Exit code 1: not certified, or broken.
    """
    at_most_one(error=error, drop=drop)
    is_new = error is not None or drop is not None
    if against is not None and drop is None:
        raise ArgumentError("--against is for --drop: leave it out, or give --drop in its place")
    if confidence is not None and not is_new:
        raise ArgumentError(
            "a promise in the file has its own confidence: leave out --confidence, or make a new "
            "promise with --error or --drop"
        )
    if output and not is_new:
        raise ArgumentError("-o is for a new promise: leave it out, or give --error or --drop")
    refuse_trace(policy, "certify POLICY TRACE")
    ladder = load(policy)
    if not isinstance(ladder, FittedLadder):
        raise ArgumentError(f"{policy} is no ladder made by ttamer fit: nothing to promise")
    rows = Reading(skip_bad=skip_bad).read(trace, ladder.spec) if trace else None
    if is_new:
        level = 0.95 if confidence is None else confidence
        promised = (
            ladder.for_error(error, confidence=level, on=rows)
            if error is not None
            else ladder.for_drop(drop or 0.0, against=against or "last", confidence=level, on=rows)
        )
        assert promised.promise is not None  # noqa: S101 - for_error and for_drop make one
        ladder = (ladder if rows is None else ladder.with_holdout(rows)).with_promise(promised)
        promises = [promised.promise]
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
            print("  -o FILE writes the policies with this promise")
    return 0 if all(promise.certified for promise in promises) else 1


def _checked(ladder: FittedLadder, trace: Trace | None, name: str) -> list[Promise]:
    """Return the promises of a ladder, checked on new rows where there are some."""
    if not ladder.promises:
        raise ArgumentError(f"{name} holds no promise: make one with --error or --drop, and -o")
    if trace is None:
        return list(ladder.promises)
    if any(promise.trace_digest == trace.digest for promise in ladder.promises):
        raise ArgumentError(
            f"these are the rows that a promise in {name} was made with: they show nothing new; "
            "give rows recorded since"
        )
    held = ladder.held_rows(trace)
    return [
        check_promise(promise, held, len(ladder), ladder.spec.names) for promise in ladder.promises
    ]
