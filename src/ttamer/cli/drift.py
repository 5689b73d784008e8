"""``ttamer drift`` and ``forget``: jobs on the decision log of a server."""

from dataclasses import asdict
from typing import Any

import click

from ttamer._checks import counted
from ttamer.cli.options import at_most_one, command, json_option, option, to_json
from ttamer.drift import LoopSettings, watch
from ttamer.drift.audits import forget_rows
from ttamer.errors import ArgumentError


@command("drift")
@click.argument("log")
@option("--policy", "FILE", "The .ttamer file that is served.", required=True)
@option("--error", "E", "The promise: an error of at most E.", type=float)
@option("--drop", "D", "The promise: an error at most D above that of --against.", type=float)
@option("--against", "NODE", "For --drop: the node (default: the last).")
@option("--confidence", "C", "Of every promise.", type=float, default=0.95)
@option(
    "--false-alarms",
    "A",
    "The chance that there is ever an alarm without a change.",
    type=float,
    default=0.05,
)
@option("--refit-rows", "N", "The audited rows that a new policy waits for.", type=int, default=400)
@option(
    "--reference",
    "TRACE",
    "Rows that the policy was not fitted to (default: its first audited rows).",
)
@click.option("--replace", is_flag=True, help="Write the policy that should serve to --policy.")
@json_option
def drift_command(
    log: str,
    policy: str,
    error: float | None,
    drop: float | None,
    against: str | None,
    reference: str | None,
    replace: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Test the policy in service on the audited requests of LOG; run it now and then, as by cron.

    After an alarm the last node serves; a policy is fitted to what came since, certified, compared
    with it, and put into service. FILE.drift keeps what earlier runs have read. Exit code 1: the
    policy in the file is not the one that should serve.
    """
    at_most_one(error=error, drop=drop)
    if error is None and drop is None:
        raise ArgumentError("a promise is needed: give --error or --drop")
    at_most, kind = (error, "error") if drop is None else (drop, "drop")
    settings = LoopSettings(at_most, kind=kind, against=against, **options)  # type: ignore[arg-type]
    outcome = watch(log, policy, settings, reference=reference, replace=replace)
    print(to_json(asdict(outcome)) if as_json else outcome)
    return 0 if outcome.is_current else 1


@command("forget")
@click.argument("log")
@click.argument("requests", nargs=-1, required=True, metavar="REQUEST...")
@option(
    "--audits", "FILE", "What ttamer drift keeps too: POLICY.drift; may be repeated.", multiple=True
)
@json_option
def forget_command(
    log: str, requests: tuple[str, ...], audits: tuple[str, ...], as_json: bool
) -> None:
    """Delete all that a decision LOG keeps of requests, by their ids (x-request-id).

    A server may go on writing the log.
    """
    from ttamer.serve.records import forget  # needs the server's libraries

    rows = sum(forget_rows(file, requests) for file in audits)
    lines = forget(log, requests)
    text = f"deleted {counted(lines, 'line')} and {counted(rows, 'audited row')}"
    print(to_json({"lines": lines, "audited_rows": rows}) if as_json else text)
