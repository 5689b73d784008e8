"""Options that commands share, what they write, and how they read a trace."""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ttamer._checks import counted
from ttamer.cascade import CascadeSpec, join_verified
from ttamer.cli import warn
from ttamer.errors import ArgumentError
from ttamer.trace.columns import infer_spec
from ttamer.trace.files import SUFFIXES, open_source, suffix_of
from ttamer.trace.trace import Trace

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def output_option(
    default: str | None = None,
    *,
    text: str,
    makes_folders: bool = False,
    writes_folder: bool = False,
) -> Callable[[Command], Command]:
    """Return ``-o``; a file that cannot be written is refused before the work."""
    option = click.option(
        "-o",
        "--output",
        metavar="FOLDER" if writes_folder else "FILE",
        default=default,
        show_default=default is not None,
        help=text,
    )

    def decorate(command: Command) -> Command:
        @option
        @functools.wraps(command)
        def checked(*args: Any, output: str | None, **options: Any) -> Any:
            if output:
                params = click.get_current_context().params
                reads = [v for name, v in params.items() if name not in ("output", "policy")]
                check_output(
                    "-o", output, reads, makes_folders=makes_folders, writes_folder=writes_folder
                )
            return command(*args, output=output, **options)

        return checked

    return decorate


def check_output(
    flag: str,
    output: str,
    values: Iterable[Any] = (),
    *,
    makes_folders: bool = False,
    writes_folder: bool = False,
) -> None:
    """Refuse an output that cannot be written, or that is read: one of ``values``."""
    path = Path(output)
    folder, reason = path.parent, None
    while makes_folders and not folder.exists():
        folder = folder.parent
    files = [value for value in values if isinstance(value, str) and Path(value).is_file()]
    if not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif path.exists() and path.is_dir() != writes_folder:
        reason = "it is a file, and a folder is written" if writes_folder else "it is a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "it is not writable"
    elif path.is_file() and any(path.samefile(file) for file in files):
        reason = "the command reads it, and would replace it"
    if reason:
        raise ArgumentError(f"{flag} {output}: {reason}; choose another")


@dataclass(frozen=True)
class Reading:
    """How the options say that traces are read."""

    cascade: str | None = None
    costs: tuple[tuple[str, float], ...] = ()
    prices: bool = False
    skip_bad: bool = False

    @property
    def spec(self) -> CascadeSpec | str | None:
        """The cascade that is given, if one is."""
        if self.costs and self.cascade:
            raise ArgumentError("--cost is in place of --cascade: give one of them")
        return CascadeSpec.of(dict(self.costs)) if self.costs else self.cascade

    @property
    def words(self) -> str:
        """The options again, for a command to type next."""
        costs = "".join(f" --cost {name}={cost:g}" for name, cost in self.costs)
        return costs + (f" --cascade {self.cascade}" if self.cascade else "")

    def read(self, path: str, cascade: CascadeSpec | None = None) -> Trace:
        """Read a trace; print on stderr what was left out or decided.

        ``cascade`` is a policy's own: its log has one column per node.
        """
        spec = self.spec if cascade is None else join_verified(cascade)
        if spec is None:
            require_costs(path)
        trace = Trace.read(path, spec, on_bad="skip" if self.skip_bad else "refuse")
        for reason, count in trace.left_out.items():
            print(f"{path}: {counted(count, 'row')} left out: {reason}", file=sys.stderr)
        for note in trace.notes:
            print(f"{Path(path).name}: {note}", file=sys.stderr)
        if self.prices:
            if spec is None:
                raise ArgumentError("--prices takes the costs of --cascade or --cost: give one")
            trace = replace(trace, cost=trace.spec.costs)
        elif self.spec is not None:
            _warn_of_prices(trace)
        return trace.with_verification()


def _warn_of_prices(trace: Trace) -> None:
    """Warn where the cascade and the log's cost columns differ."""
    if trace.cost.ndim == 1:
        return
    logged = dict(zip(trace.names, trace.costs.mean(axis=0).tolist(), strict=True))
    for name, stated in zip(trace.names, trace.spec.costs.tolist(), strict=True):
        low, high = sorted((stated, logged[name]))
        if high > 1.25 * low:
            warn(
                f"the cascade says that {name} costs {stated:g}, and the log {logged[name]:.4g} in "
                "the mean: the log is used; --prices uses the cascade"
            )


def _cost(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read NAME=COST."""
    costs = {}
    for text in values:
        name, equals, number = text.rpartition("=")
        try:
            costs[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=COST, such as small=1")
    return tuple(costs.items())


def reading_options(command: Command) -> Command:
    """Add the options for reading a trace, as ``reading``."""

    @click.option("--cascade", metavar="FILE", help="The cascade.toml that names the nodes and "
                  "their costs (default: the one kept in a Parquet or NPZ file).")  # fmt: skip
    @click.option("--cost", "costs", metavar="NAME=COST", multiple=True, callback=_cost,
                  help="What a call of a node costs, for each node, in place of "
                  "--cascade.")  # fmt: skip
    @click.option("--prices", is_flag=True, help="Use these costs, not those in the log.")
    @click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be used, and count them "
                  "(default: refuse the trace).")  # fmt: skip
    @functools.wraps(command)
    def read(
        *args: Any, cascade: str | None, costs: Any, prices: bool, skip_bad: bool, **options: Any
    ) -> Any:
        return command(*args, reading=Reading(cascade, costs, prices, skip_bad), **options)

    return read


def at_most_one(**options: object) -> None:
    """Refuse options that exclude one another."""
    stated = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if len(stated) > 1:
        raise click.UsageError(f"{stated[1]} cannot be used with {stated[0]}: give one of them")


def refuse_trace(path: str, usage: str) -> None:
    """Refuse a trace that is given in the place of a policy."""
    if path.lower().endswith(SUFFIXES):
        raise ArgumentError(
            f"{path} is a trace, and a policy is needed in its place, which ttamer fit makes: "
            f"ttamer {usage}"
        )


def require_costs(path: str) -> None:
    """Refuse a file without a cascade, unless it is a Parquet or NPZ file with all costs."""
    source = open_source(path)
    if source.cascade is not None:
        return
    names = infer_spec(source.columns, {}, path)[0].names
    is_priced = all(f"{name}.cost" in source.columns for name in names)
    if suffix_of(path) in (".csv", ".csv.gz") or not is_priced:
        beside = Path(path).with_name("cascade.toml")
        if beside.is_file():
            raise ArgumentError(f"{path}: keeps no cascade: give --cascade {beside}")
        costs = " ".join(f"--cost {name}=1.0" for name in names)
        raise ArgumentError(
            f"{path}: keeps no cascade: give what a call of each node costs ({costs}), or "
            "--cascade FILE, a cascade.toml"
        )
