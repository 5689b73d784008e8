"""``ttamer serve``: a policy server with OpenAI's API in front of a cascade."""

import asyncio
import json
from typing import Any

import click

from ttamer.cli import warn
from ttamer.cli.options import command, json_option, option, refuse_trace
from ttamer.errors import ArgumentError
from ttamer.serve.app import make_app
from ttamer.serve.server import probe, serve
from ttamer.serve.settings import read_settings


@command("serve")
@click.argument("cascade")
@click.argument("policy", default="")
@option("--host", "NAME", "The address to listen on.", default="127.0.0.1")
@option("--port", "N", "The port to listen on; 0 for any.", type=int, default=8080)
@option(
    "--lame-duck",
    "SECONDS",
    "How long connections are accepted after SIGTERM, with /ready 503.",
    type=float,
    default=5.0,
)
@option("--drain", "SECONDS", "How long requests may take after that.", type=float, default=30.0)
@click.option("--check", is_flag=True, help="Check both files and exit.")
@click.option("--probe", "asks_once", is_flag=True, help="With --check: ask every node once.")
@click.option(
    "--force",
    is_flag=True,
    help="Serve a policy that was fitted for other costs, "
    "another target, comparison or confidence.",
)
@json_option
def serve_command(
    cascade: str,
    policy: str,
    check: bool,
    asks_once: bool,
    force: bool,
    as_json: bool,
    **listening: Any,
) -> None:
    """Serve CASCADE, a cascade.toml with an upstream for each node, by POLICY, of ttamer fit.

    It has OpenAI's chat completions. SIGTERM lets requests in progress finish; SIGHUP, or a changed
    file, reloads the policy. In shadow mode there is no POLICY.
    """
    if asks_once and not check:
        raise ArgumentError("--probe belongs to --check; add --check")
    if cascade.endswith(".ttamer"):
        raise ArgumentError(
            f"{cascade} is a policy, and the cascade comes first: ttamer serve CASCADE POLICY"
        )
    settings = read_settings(cascade)
    is_shadow = settings.serve.mode == "shadow"
    if is_shadow and policy:
        raise ArgumentError("in shadow mode the incumbent answers; leave out the policy")
    if not (is_shadow or policy or asks_once):
        raise ArgumentError(
            "a policy is needed: ttamer serve CASCADE POLICY; make one with ttamer fit"
        )
    facts: dict[str, Any] = {"nodes": list(settings.spec.names)}
    probes = asyncio.run(probe(settings)) if asks_once else []
    if probes:
        facts["probe"] = [{**result._asdict(), "ok": not result.problem} for result in probes]
    lines = [str(result) for result in probes]
    if policy or is_shadow:
        refuse_trace(policy, "serve CASCADE POLICY")
        app = make_app(settings, policy, force=force)
        active = app.state.service.policies.active
        facts |= {"policy": active.version, "warnings": active.warnings()}
        for warning in () if as_json else facts["warnings"]:
            warn(warning)
        lines.append(f"{cascade} and {policy or 'shadow mode'} can be served")
    if check:
        _print(facts, "\n".join(lines), as_json=as_json)
        if any(result.problem for result in probes):
            raise ArgumentError("a node failed, or lacks what its settings need; see above")
        return

    def started(url: str) -> None:
        names = ", ".join(settings.spec.names)
        text = f"serving {names} at {url}/v1 with the policy {active.version}"
        _print({"url": url, **facts}, text, as_json=as_json)

    serve(app, started=started, **listening)


def _print(facts: dict[str, Any], text: str, *, as_json: bool) -> None:
    print(json.dumps(facts) if as_json else text, flush=True)
