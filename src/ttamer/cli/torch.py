"""``ttamer torch``: what the parts of an early-exit network cost on this machine."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = commands.add_parser(
        "torch",
        help="time the parts of an early-exit network on this machine",
        description="Early-exit networks in PyTorch (extra [torch]).",
        allow_abbrev=False,
    )
    which = parser.add_subparsers(title="commands", metavar="NAME", required=True)
    profile = which.add_parser(
        "profile",
        help="time every segment of a network, and what each exit adds",
        description="Time every segment of a network, what asking each exit adds (its ramp, the "
        "decision, and the wait for it), and what a call with exits adds once. The cascade written "
        "with --cascade has the costs of segments and exits, so that a policy fitted to it asks an "
        "exit only where that pays on this machine.",
        allow_abbrev=False,
    )
    profile.add_argument(
        "network",
        metavar="MODULE:FUNCTION",
        help="a function of yours that returns (network, example inputs)",
    )
    profile.add_argument("--batch", type=int, nargs="+", default=[1, 32], metavar="N",
                         help="batch sizes (default 1 32)")  # fmt: skip
    profile.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: a GPU if there is one)")
    profile.add_argument("--precision", default="fp32", choices=("fp32", "bf16"),
                         help="the precision of the network (default fp32)")  # fmt: skip
    profile.add_argument("--graphs", action="store_true", help="run parts as CUDA graphs")
    profile.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: PyTorch's)"
    )
    profile.add_argument("-o", "--output", metavar="FILE", help="write the profile as JSON")
    profile.add_argument("--cascade", metavar="FILE",
                         help="write cascade.toml with the costs at the largest batch")  # fmt: skip
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.set_defaults(run=run_profile)


def run_profile(args: argparse.Namespace) -> None:
    """Measure and print."""
    from dataclasses import asdict

    from ttamer.cli.output import as_json, progress_line
    from ttamer.errors import ArgumentError, MissingExtra

    try:
        import torch
    except ModuleNotFoundError:
        raise MissingExtra("torch", "torch") from None
    from ttamer.torch.profiling import profile

    if args.threads is not None:
        if args.threads < 1:
            raise ArgumentError(f"--threads is {args.threads}; at least 1 is needed")
        torch.set_num_threads(args.threads)
    try:
        device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # no such device
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ArgumentError(f"--device {args.device}: cannot be used: {first}") from None
    network, example = _network(args.network)
    network = network.to(device)
    progress = progress_line(quiet=args.json)
    measured = profile(
        network,
        example,
        sizes=args.batch,
        precision=args.precision,
        graphs=args.graphs,
        progress=progress,
    )
    progress("")
    if args.output:
        measured.save(args.output)
    if args.cascade:
        measured.costs(max(measured.sizes)).spec(skip=True).to_file(args.cascade)
    print(as_json(asdict(measured)) if args.json else _text(args.network, measured))


def _text(name: str, measured: Any) -> str:
    from ttamer._checks import number
    from ttamer.cli.output import table

    head = ["milliseconds"]
    for size in measured.sizes:
        head += [f"reach, {size}", f"ask, {size}"]
    rows = []
    groups = [measured.groups.index(size) for size in measured.sizes]
    for exit_, reach, ask in zip(measured.names, measured.segments, measured.asking, strict=True):
        cells = [exit_]
        for k, group in enumerate(groups):
            cells += [number(1e3 * reach[group]), number(1e3 * ask[k])]
        rows.append(cells)
    total, once = ["the network, no ramps"], ["once per call with exits"]
    for size, seconds in zip(measured.sizes, measured.per_call, strict=True):
        total += [number(1e3 * size * measured.costs(size).full), ""]
        once += ["", number(1e3 * seconds)]
    how = f"{measured.device}, {measured.precision}{', CUDA graphs' if measured.graphs else ''}"
    return (
        f"{name} on {how}\n"
        "reach: from the exit before; ask: ramp, decision and wait; for each batch size\n\n"
        + table(head, [*rows, total, once])
    )


def _network(name: str) -> tuple[Any, Any]:
    """Return what a function of the user's returns: a network, and an example of its inputs."""
    from ttamer.cli.modules import load_function
    from ttamer.errors import ArgumentError
    from ttamer.torch import EarlyExit

    if ":" not in name:
        raise ArgumentError(
            f"there is no network {name!r}; name a function of yours as MODULE:FUNCTION, which "
            "returns (network, example inputs)"
        )
    pair = load_function(name)()
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], EarlyExit):
        raise ArgumentError(
            f"{name} returned {type(pair).__name__}; it must return an EarlyExit and an example "
            "of its inputs"
        )
    return pair
