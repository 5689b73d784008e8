"""``ttamer serve``, ``drift`` and ``forget``: a policy server, and jobs on its decision log."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer._checks import counted
from ttamer.cli import warn
from ttamer.drift import LoopSettings, watch
from ttamer.drift.audits import forget_rows
from ttamer.errors import ArgumentError


@cli.command("serve")
@click.argument("cascade")
@cli.policy_argument(default="")
@cli.option("--host", "NAME", "The address to listen on.", default="127.0.0.1")
@cli.option("--port", "N", "The port to listen on; 0 for any.", default=8080)
@cli.option("--lame-duck", "SECONDS", "After SIGTERM: how long /ready is 503.", default=5.0)
@cli.option("--drain", "SECONDS", "How long requests may take after that.", default=30.0)
@cli.flag("--check", help="Check both files and exit.")
@cli.flag("--force", help="Serve a policy that was fitted for another cascade.")
def serve_command(cascade: str, policy: str, check: bool, force: bool, **listening: Any) -> None:
    """Serve CASCADE, a cascade.toml with an upstream for each node, by POLICY, of ttamer fit.

    It has OpenAI's chat completions. SIGTERM lets requests in progress finish; SIGHUP, or a changed
    file, reloads the policy. In shadow mode there is no POLICY.
    """
    from ttamer.serve.app import make_app  # with the server's libraries
    from ttamer.serve.server import serve
    from ttamer.serve.settings import read_settings

    if cascade.endswith(".ttamer"):
        raise ArgumentError(
            f"{cascade} is a policy, and the cascade comes first: ttamer serve CASCADE POLICY"
        )
    settings = read_settings(cascade)
    is_shadow = settings.serve.mode == "shadow"
    if is_shadow == bool(policy):
        raise ArgumentError(
            "in shadow mode the incumbent answers; leave out the policy"
            if is_shadow
            else "a policy is needed: ttamer serve CASCADE POLICY; make one with ttamer fit"
        )
    app = make_app(settings, policy, force=force)
    active = app.service.policies.active
    # Facts are one line of JSON each, for what starts servers and reads their output.
    facts: dict[str, Any] = {"nodes": list(settings.spec.names)}
    facts |= {"policy": active.version, "warnings": active.warnings()}
    for warning in facts["warnings"]:
        warn(warning)
    if check:
        text = f"{cascade} and {policy or 'shadow mode'} can be served"
        cli.show(facts, text, indent=None)
        return

    def started(url: str) -> None:
        text = f"serving {', '.join(facts['nodes'])} at {url}/v1 with the policy {active.version}"
        cli.show({"url": url, **facts}, text, indent=None)

    serve(app, started=started, **listening)


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
