"""``ttamer serve``: an OpenAI-compatible gateway in front of a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="serve a cascade over HTTP, as OpenAI's API",
        description="Serve a cascade over HTTP: OpenAI's chat and text completions, and "
        "/v1/classify. SIGTERM lets requests in progress finish; SIGHUP reloads the policy.",
        allow_abbrev=False,
    )
    parser.add_argument("cascade", help="a cascade.toml with an upstream for each node")
    parser.add_argument("policy", help="a .ttamer file made by ttamer fit")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="the port to listen on; 0 for any (default 8080)"
    )
    parser.add_argument("--open", action="store_true",
                        help="serve other machines although no API keys are set")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="check both files, and exit")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check, listen, and serve until stopped."""
    from ttamer.serve.config import read_settings
    from ttamer.serve.gateway import Gateway
    from ttamer.serve.server import check_exposure, listen
    from ttamer.serve.server import run as serve

    settings = read_settings(args.cascade)
    gateway = Gateway(settings, args.policy)
    check_exposure(args.host, has_keys=gateway.keys is not None, is_open=args.open)
    gateway.load()
    names = settings.spec.names
    if args.check:
        _print(args, {"nodes": list(names)}, f"{args.cascade} and {args.policy} can be served")
        return
    with listen(args.host, args.port) as listener:
        host = f"[{args.host}]" if ":" in args.host else args.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        text = f"serving {', '.join(names)} at {url}/v1, status at {url}/status"
        serve(gateway, listener, lambda: _print(args, {"url": url, "nodes": list(names)}, text))


def _print(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    import json

    print(json.dumps(facts) if args.json else text, flush=True)
