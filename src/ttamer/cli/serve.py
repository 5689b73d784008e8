"""``ttamer serve``: a policy server with OpenAI's API in front of a cascade."""

from typing import Any

import click

import ttamer.cli.options as cli
from ttamer.cli import warn
from ttamer.errors import ArgumentError
from ttamer.serve.app import make_app
from ttamer.serve.server import serve
from ttamer.serve.settings import read_settings


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
