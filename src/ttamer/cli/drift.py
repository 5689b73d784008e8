"""``ttamer drift`` and ``forget``: jobs on the decision log of a server."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer._checks import counted
from ttamer.drift import LoopSettings, watch
from ttamer.drift.audits import forget_rows
from ttamer.errors import ArgumentError


@cli.command("drift")
@click.argument("log")
@cli.option("--policy", "FILE", "The .ttamer file that is served.", required=True)
@cli.number("--error", "E", "The promise: an error of at most E.")
@cli.number("--drop", "D", "The promise: an error at most D above that of --against.")
@cli.option("--against", "NODE", "For --drop: the node (default: the last).")
@cli.option("--confidence", "C", "Of every promise.", default=0.95)
@cli.option("--false-alarms", "A", "The chance of any alarm without a change.", default=0.05)
@cli.option("--refit-rows", "N", "The audited rows that a new policy waits for.", default=400)
@cli.option("--reference", "TRACE", "Other rows than the fit's (default: the first audited ones).")
@cli.flag("--replace", help="Write the policy that should serve to --policy.")
def drift_command(
    log: str,
    policy: str,
    error: float | None,
    drop: float | None,
    reference: str | None,
    replace: bool,
    **options: Any,
) -> int:
    """Test the policy in service on the audited requests of LOG; run it now and then, as by cron.

    After an alarm the last node serves; a policy is fitted to what came since, certified, compared
    with it, and put into service. FILE.drift keeps what earlier runs have read. Exit code 1: the
    policy in the file is not the one that should serve.
    """
    stated = cli.at_most_one(error=error, drop=drop)
    if not stated:
        raise ArgumentError("a promise is needed: give --error or --drop")
    [(kind, at_most)] = stated.items()
    settings = LoopSettings(at_most, kind=kind, **options)  # type: ignore[arg-type]
    outcome = watch(log, policy, settings, reference=reference, replace=replace)
    cli.show(asdict(outcome), outcome)
    return 0 if outcome.is_current else 1


@cli.command("forget")
@click.argument("log")
@click.argument("requests", nargs=-1, required=True, metavar="REQUEST...")
@cli.option("--audits", "FILE", "What ttamer drift keeps too: POLICY.drift.", multiple=True)
def forget_command(log: str, requests: tuple[str, ...], audits: tuple[str, ...]) -> None:
    """Delete all that a decision LOG keeps of requests, by their ids (x-request-id).

    A server may go on writing the log.
    """
    from ttamer.serve.records import forget  # with the server's libraries

    if not Path(log).is_file():  # or a lock would be made beside it
        raise ArgumentError(f"{log}: there is no such file")
    rows = sum(forget_rows(file, requests) for file in audits)
    lines = forget(log, requests)
    text = f"deleted {counted(lines, 'line')} and {counted(rows, 'audited row')}"
    cli.show({"lines": lines, "audited_rows": rows}, text)
