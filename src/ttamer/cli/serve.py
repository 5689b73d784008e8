"""``ttamer serve``: an OpenAI-compatible gateway in front of a cascade."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ttamer.serve.config import Settings


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="serve a cascade over HTTP, with OpenAI's API",
        description="Serve a cascade over HTTP: OpenAI's chat and text completions, and "
        "/v1/classify. SIGTERM lets requests in progress finish; SIGHUP reloads the policy, "
        "servers, limits and keys.",
        allow_abbrev=False,
    )
    parser.add_argument("cascade", help="a cascade.toml with an upstream for each node")
    parser.add_argument("policy", nargs="?",
                        help="a .ttamer file made by ttamer fit (not needed for --check "
                        "--probe)")  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="the port to listen on; 0 for any (default 8080)"
    )
    parser.add_argument("--open", action="store_true",
                        help="serve other machines even without API keys")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="check both files and exit")  # fmt: skip
    parser.add_argument("--probe", nargs="?", const="chat", metavar="ENDPOINT",
                        choices=("chat", "completions", "classify"),
                        help="with --check: ask every upstream once, at chat (the default), "
                        "completions or classify, and print what it lacks")  # fmt: skip
    parser.add_argument("--force", action="store_true",
                        help="serve a policy that was fitted for other costs, another target, "
                        "comparison or confidence")  # fmt: skip
    parser.add_argument("--fd", type=int, metavar="N",
                        help="serve on an inherited listening socket, instead of --host and "
                        "--port")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, metavar="N",
                        help="serve with N processes on one socket (default 1)")  # fmt: skip
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--tls-cert", metavar="FILE",
                        help="serve https with this certificate, a PEM file")  # fmt: skip
    parser.add_argument("--tls-key", metavar="FILE",
                        help="the key of the certificate, if it is not in the same "
                        "file")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check, listen, and serve until stopped."""
    from ttamer.serve.hangups import hangups_kept

    with hangups_kept():
        _run(args)


def _run(args: argparse.Namespace) -> None:
    from functools import partial

    from ttamer.cli.traces import refuse_trace
    from ttamer.errors import ArgumentError
    from ttamer.serve.config import read_settings
    from ttamer.serve.gateway import Gateway
    from ttamer.serve.observability.logging import JsonLog
    from ttamer.serve.processes.workers import WorkerPlace, check_workers, supervise
    from ttamer.serve.server import (
        check_exposure,
        inherit,
        listen,
        load_certificate,
        run as serve,
        run_owner,
    )

    if args.probe is not None and not args.check:
        raise ArgumentError("--probe belongs to --check; add --check")
    certificate = None
    if args.tls_cert is not None:
        certificate = (args.tls_cert, args.tls_key)
        load_certificate(*certificate)  # refuses one that cannot be used
    elif args.tls_key is not None:
        raise ArgumentError("--tls-key needs --tls-cert; add it")
    if args.cascade.endswith(".ttamer"):
        raise ArgumentError(
            f"{args.cascade} is a policy, and the cascade comes first: ttamer serve CASCADE POLICY"
        )
    place = None if args.worker is None else WorkerPlace.parse(args.worker)
    read = read_settings if place is None else place.accepted.settings
    settings = read(args.cascade)
    if args.policy is None:
        if args.probe is None:
            raise ArgumentError(
                "a policy is needed: ttamer serve CASCADE POLICY; make one with ttamer fit"
            )
        _probe(args, settings, {"nodes": list(settings.spec.names)}, "")
        return
    refuse_trace(args.policy, "serve CASCADE POLICY")
    check_workers(args.workers)
    reread = partial(read_settings, args.cascade)
    log = JsonLog(worker=None if place is None else place.name)
    gateway = Gateway(settings, args.policy, log=log, force=args.force, reread=reread, place=place)
    check = partial(check_exposure, has_keys=gateway.keys is not None, is_open=args.open)
    check(args.host)
    gateway.load()
    names = settings.spec.names
    policies = gateway.policies.current.policies
    facts: dict[str, Any] = {
        "nodes": list(names),
        "policy": policies.described,
        "warnings": policies.warnings,
    }
    for warning in () if args.json else policies.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    if args.check:
        text = f"{args.cascade} and {args.policy} can be served; {policies.described}"
        _probe(args, settings, facts, text)
        return
    if place is not None and place.is_owner:
        run_owner(gateway, partial(_print, args, facts, ""))
        return
    with inherit(args.fd) if args.fd is not None else listen(args.host, args.port) as listener:
        host, port = listener.getsockname()[:2]
        check(host)  # of an inherited socket only its address tells
        scheme = "http" if certificate is None else "https"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        text = f"serving {', '.join(names)} at {url}/v1, status at {url}/status"
        text += f"\n{policies.described}"
        started = partial(_print, args, {"url": url, **facts}, text)
        if args.workers > 1:
            has_owner = settings.serve.audit is not None
            command = _worker_command(args)
            supervise(command, args.workers, listener, started, log, has_owner=has_owner)
        else:
            serve(gateway, listener, started, certificate)


def _probe(args: argparse.Namespace, settings: Settings, facts: dict[str, Any], text: str) -> None:
    """Ask every upstream once if that is wanted, and print what was found."""
    import asyncio

    from ttamer.errors import ArgumentError
    from ttamer.serve.upstreams.probing import probe

    probes = [] if args.probe is None else asyncio.run(probe(settings, args.probe))
    if probes:
        facts["probe"] = [each.to_dict() for each in probes]
    _print(args, facts, "\n".join(part for part in (*map(str, probes), text) if part))
    if not all(each.ok for each in probes):
        raise ArgumentError("an upstream failed, or lacks what the settings need; see above")


def _worker_command(args: argparse.Namespace) -> list[str]:
    """Return the arguments of one worker."""
    command = ["serve", args.cascade, args.policy, "--json"]
    command += [flag for flag, is_set in (("--open", args.open), ("--force", args.force)) if is_set]
    for flag, value in (("--tls-cert", args.tls_cert), ("--tls-key", args.tls_key)):
        command += [] if value is None else [flag, value]
    return command


def _print(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    import json

    print(json.dumps(facts) if args.json else text, flush=True)
