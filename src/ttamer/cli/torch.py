"""``ttamer torch``: what the parts of an early-exit network cost on this machine."""

import sys
from dataclasses import asdict
from importlib import import_module
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer._checks import require
from ttamer.errors import ArgumentError


def _sizes(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of batch sizes, such as 1,32") from None


@click.group("torch", no_args_is_help=False)
def torch_command() -> None:
    """Early-exit networks in PyTorch (extra [torch])."""


@torch_command.command("profile", cls=cli.Command)
@click.argument("network", metavar="MODULE:FUNCTION")
@cli.option("--batch", "N,M", "Batch sizes.", default="1,32", callback=_sizes)
@cli.option("--device", "NAME", "cpu, cuda, cuda:1 ... (default: a GPU if there is one).")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32")
@cli.flag("--graphs", help="Run parts as CUDA graphs.")
@cli.option("--threads", "N", "CPU threads (default: PyTorch's).", type=click.IntRange(1))
@cli.option("--cascade", "FILE", "Write a cascade.toml for the largest batch.", type=cli.Output())
def profile_command(
    network: str,
    batch: tuple[int, ...],
    device: str | None,
    threads: int | None,
    cascade: str | None,
    **how: Any,
) -> None:
    """Time the segments of a network, and what asking its exits adds.

    MODULE:FUNCTION is a function of yours that returns (network, example inputs). An exit adds its
    ramp, the decision, and the wait for it; a call with exits adds something once. The cascade has
    the costs of segments and exits, so that a policy fitted to it asks an exit only where that pays
    on this machine.
    """
    torch = require("torch", "torch")
    from ttamer.torch.profiling import profile

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:  # no such device
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ArgumentError(f"--device {device}: cannot be used: {reason}") from None
    model, example = _network(network)
    progress = cli.progress_line()
    measured = profile(model.to(target), example, sizes=batch, progress=progress, **how)
    if cascade:
        measured.costs(max(measured.sizes)).spec().to_file(cascade)
    cli.show(asdict(measured), _text(network, measured))


def _text(name: str, measured: Any) -> str:
    """Return the times as a table: a row for each exit, two columns for each batch size."""
    ends: list[dict[str, Any]] = [{"milliseconds": exit_} for exit_ in measured.names]
    ends += [
        {"milliseconds": "the network, no ramps"},
        {"milliseconds": "once per call with exits"},
    ]
    for k, size in enumerate(measured.sizes):
        reach, group = measured.segments, measured.groups.index(size)
        columns = [times[group] for times in reach], [times[k] for times in measured.asking]
        total = [*columns[0], size * measured.costs(size).full, None]
        once = [*columns[1], None, measured.per_call[k]]
        for end, *times in zip(ends, total, once, strict=True):
            for kind, seconds in zip(("reach", "ask"), times, strict=True):
                end[f"{kind}, {size}"] = None if seconds is None else 1e3 * seconds
    how = f"{measured.device}, {measured.precision}{', CUDA graphs' if measured.graphs else ''}"
    return (
        f"{name} on {how}\n"
        "reach: from the exit before; ask: ramp, decision and wait; for each batch size\n\n"
        + cli.records(ends)
    )


def _network(reference: str) -> tuple[Any, Any]:
    """Return what a function of the user's returns: a network, and an example of its inputs."""
    from ttamer.torch import EarlyExit

    module, _, name = reference.partition(":")
    if not module or not name:
        raise ArgumentError(
            f"there is no network {reference!r}; name a function of yours as MODULE:FUNCTION, "
            "which returns (network, example inputs)"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the current folder count
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{reference} cannot be imported: {error}") from None
    pair = function()
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], EarlyExit):
        raise ArgumentError(
            f"{reference} returned {type(pair).__name__}; it must return an EarlyExit and an "
            "example of its inputs"
        )
    return pair
