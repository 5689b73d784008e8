"""``ttamer serve``: a policy server with OpenAI's API in front of a cascade."""

import argparse
import json
import sys
from typing import Any

from ttamer.errors import ArgumentError


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="serve a cascade over HTTP, with OpenAI's API",
        description="Serve a cascade over HTTP, with OpenAI's chat completions. SIGTERM lets "
        "requests in progress finish; SIGHUP, or a changed file, reloads the policy.",
        allow_abbrev=False,
    )
    parser.add_argument("cascade", help="a cascade.toml with an upstream for each node")
    parser.add_argument("policy", nargs="?", default="",
                        help="a .ttamer file made by ttamer fit; none in shadow mode")  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="the port to listen on; 0 for any (default 8080)"
    )
    parser.add_argument("--server", choices=("uvicorn", "granian"), default="uvicorn",
                        help="the ASGI server (default uvicorn)")  # fmt: skip
    parser.add_argument("--lame-duck", type=float, default=5.0, metavar="SECONDS",
                        help="how long connections are accepted after SIGTERM, with /ready 503 "
                        "(default 5)")  # fmt: skip
    parser.add_argument("--drain", type=float, default=30.0, metavar="SECONDS",
                        help="how long requests may take after that (default 30)")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="check both files and exit")  # fmt: skip
    parser.add_argument("--probe", action="store_true",
                        help="with --check: ask every node once")  # fmt: skip
    parser.add_argument("--force", action="store_true",
                        help="serve a policy that was fitted for other costs, another target, "
                        "comparison or confidence")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check, listen, and serve until stopped."""
    from ttamer.cli.traces import refuse_trace
    from ttamer.serve.app import make_app
    from ttamer.serve.probing import probe
    from ttamer.serve.server import serve, serve_with_granian
    from ttamer.serve.settings import read_settings

    if args.probe and not args.check:
        raise ArgumentError("--probe belongs to --check; add --check")
    if args.cascade.endswith(".ttamer"):
        raise ArgumentError(
            f"{args.cascade} is a policy, and the cascade comes first: ttamer serve CASCADE POLICY"
        )
    settings = read_settings(args.cascade)
    is_shadow = settings.serve.mode == "shadow"
    if is_shadow and args.policy:
        raise ArgumentError("in shadow mode the incumbent answers; leave out the policy")
    if not (is_shadow or args.policy or args.probe):
        raise ArgumentError(
            "a policy is needed: ttamer serve CASCADE POLICY; make one with ttamer fit"
        )
    facts: dict[str, Any] = {"nodes": list(settings.spec.names)}
    probes = probe(settings) if args.probe else []
    if probes:
        facts["probe"] = [{**each._asdict(), "ok": each.is_good} for each in probes]
    lines = [str(each) for each in probes]
    if args.policy or is_shadow:
        if args.policy:
            refuse_trace(args.policy, "serve CASCADE POLICY")
        app = make_app(settings, args.policy, force=args.force)
        active = app.state.service.policies.active
        facts |= {"policy": active.version, "warnings": active.warnings()}
        for warning in () if args.json else facts["warnings"]:
            print(f"Warning: {warning}", file=sys.stderr)
        if args.check:
            lines.append(f"{args.cascade} and {args.policy or 'shadow mode'} can be served")
    if args.check:
        _print(args, facts, "\n".join(lines))
        if not all(each.is_good for each in probes):
            raise ArgumentError("a node failed, or lacks what its settings need; see above")
        return

    def started(url: str) -> None:
        names = ", ".join(settings.spec.names)
        text = f"serving {names} at {url}/v1 with the policy {active.version}"
        _print(args, {"url": url, **facts}, text)

    if args.server == "granian":
        started(f"http://{args.host}:{args.port}")
        has_token = bool(settings.serve.token_env)
        serve_with_granian(
            args.cascade, args.policy, host=args.host, port=args.port, has_token=has_token
        )
        return
    serve(app, host=args.host, port=args.port, lame_duck=args.lame_duck, drain=args.drain,
          started=started)  # fmt: skip


def _print(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts) if args.json else text, flush=True)
