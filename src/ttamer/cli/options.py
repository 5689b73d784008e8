"""What commands share: options, outputs checked before the work, reading logs, printing."""

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np

from ttamer._checks import counted, number as printed
from ttamer.cascade import CascadeSpec, join_verified
from ttamer.cli import cleared
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.show import ProgressReport, table
from ttamer.trace.io import SUFFIXES, beside, open_source
from ttamer.trace.schema import infer_spec, is_long, located
from ttamer.trace.trace import OnBad, Trace

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


def option(name: str, metavar: str, text: str, **more: Any) -> Decorator:
    """Return an option with a value."""
    return click.option(name, metavar=metavar, help=text, **more)


number = functools.partial(option, type=float)
# A type is stated where there is no default that click could take it from.
flag = functools.partial(click.option, is_flag=True)
skip_option = flag("--skip-bad", help="Skip rows that cannot be used, and count them.")


def _policy(_: click.Context, __: click.Parameter, path: str) -> str:
    if path.lower().endswith(SUFFIXES):
        raise click.BadParameter(f"{path} is a trace; ttamer fit makes a policy from it")
    return path


policy_argument = functools.partial(click.argument, "policy", callback=_policy)


class Output(click.ParamType[str]):
    """A path to write to: a file, of one suffix where the suffix says what it is, or a folder."""

    def __init__(self, suffix: str = "", *, name: str = "file", makes_folders: bool = False):
        self.suffix = suffix
        self.name = name
        self.makes_folders = makes_folders

    def check(self, flag: str, output: str, reads: list[Any]) -> None:
        """Refuse what cannot be written, or what the command reads: one of ``reads``."""
        path, reason, remedy = Path(output), "", "choose another"
        folder, is_folder = path.parent, self.name == "folder"
        while self.makes_folders and not folder.exists():
            folder = folder.parent
        files = [value for value in reads if isinstance(value, str) and Path(value).is_file()]
        if not folder.is_dir():
            reason = f"there is no folder {folder}"
        elif path.exists() and path.is_dir() != is_folder:
            reason = "it is a file, and a folder is written" if is_folder else "it is a folder"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            reason = "it is not writable"
        elif path.is_file() and any(path.samefile(file) for file in files):
            reason = "the command reads it, and would replace it"
        elif not output.endswith(self.suffix):
            reason, remedy = f"a {self.suffix} file is written", f"end the name in {self.suffix}"
        if reason:
            raise ArgumentError(f"{flag} {output}: {reason}; {remedy}")


# A policy that is written.
POLICY = Output(".ttamer")


def output_option(text: str, kind: Output | None = None, **more: Any) -> Decorator:
    """Return ``-o``."""
    kind = kind or Output()
    metavar = kind.name.upper()
    return click.option("-o", "--output", type=kind, metavar=metavar, help=text, **more)


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta["json"] = value


class Command(click.Command):
    """A command with ``--json``; its outputs are checked first, and its errors name its flags."""

    # Arguments of the library whose flags have other names: the first of them that is stated.
    flags: ClassVar = {"at_most": ("error", "drop", "exceeded_at_most"), "cost": ("budget",)}
    # What the library says to do, and what to do on the command line.
    remedies: ClassVar = {
        'on_bad="skip"': "--skip-bad",
        "on_bad='skip'": "--skip-bad",
        "an entry in costs": "a --cost",
        "leave the others out": "--skip-bad leaves the others out",
    }

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
        # It is not a parameter of the command's function: show() and progress_line() read it.
        hidden: Any = {"is_flag": True, "expose_value": False, "callback": _set_json}
        self.params.append(click.Option(["--json"], help="Print JSON.", **hidden))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options."""
        with self._naming_flags(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        outputs = [param for param in self.params if isinstance(param.type, Output)]
        # A policy may be written to the file that it was read from.
        written = {"policy", *(param.name for param in outputs)}
        reads = [value for name, value in ctx.params.items() if name not in written]
        with self._naming_flags(ctx):
            for param in outputs:  # before the work: a fit that cannot be written is lost
                path = ctx.params[param.name or ""]
                if path and isinstance(param.type, Output):
                    param.type.check(param.opts[0], path, reads)
            return super().invoke(ctx)

    @contextmanager
    def _naming_flags(self, ctx: click.Context) -> Iterator[None]:
        try:
            yield
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not say whose option it is
            raise
        except TTamerError as error:
            raise click.ClickException(self._with_flag(error, ctx.params)) from error

    def _with_flag(self, error: TTamerError, stated: Mapping[str, Any]) -> str:
        """Return an error of the library with the flag in place of a Python argument."""
        text, param = str(error), error.param or ""
        for python, here in self.remedies.items():
            text = text.replace(python, here)
        names = [name for name in self.flags.get(param, ()) if stated.get(name) is not None]
        options = [option for option in self.params if isinstance(option, click.Option)]
        flag = next((o.opts[-1] for o in options if o.name in (names[:1] or [param])), "")
        if not flag or flag in text:
            return text
        if text.startswith(f"{param} "):
            return flag + text.removeprefix(param)
        return f"{flag}: {text}"


command = functools.partial(click.command, cls=Command)


def progress_line() -> Callable[[str], None]:
    """Return what shows on stderr what is being done; nothing where JSON is printed."""
    is_quiet = click.get_current_context().meta["json"]
    return (lambda _: None) if is_quiet else ProgressReport()


def show(facts: Any, text: object, *, indent: int | None = 1) -> None:
    """Print a result, in the place of the progress: its facts as JSON, or its text."""
    print(cleared(), end="", file=sys.stderr)
    # Flushed, as a server goes on after it, and a reader of a pipe waits for the line.
    is_json = click.get_current_context().meta["json"]
    print(to_json(facts, indent=indent) if is_json else text, flush=True)


def records(rows: list[dict[str, Any]]) -> str:
    """Return a table of records: names, numbers, and None where one is not defined."""
    head = [key.replace("_", " ") for key in rows[0]]
    cells = [
        ["-" if x is None else x if isinstance(x, str) else printed(x) for x in row.values()]
        for row in rows
    ]
    return table(head, cells)


def to_json(data: Any, *, indent: int | None = 1) -> str:
    """Return JSON; infinities as ``"inf"`` and ``"-inf"``, as in problem.json, and NaN as null.

    >>> print(to_json({"losses": [0.5, float("inf"), float("nan")]}))
    {
     "losses": [
      0.5,
      "inf",
      null
     ]
    }
    """
    return json.dumps(_plain(data), indent=indent, allow_nan=False)


def _plain(item: Any) -> Any:
    """Return plain values that JSON can hold."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if hasattr(item, "tolist"):
        return _plain(item.tolist())
    if isinstance(item, float) and not math.isfinite(item):
        return None if math.isnan(item) else "inf" if item > 0 else "-inf"
    return item


def at_most_one(**options: object) -> dict[str, Any]:
    """Return the option that is stated, if any; refuse two that exclude one another."""
    stated = {name: value for name, value in options.items() if value is not None}
    if len(stated) > 1:
        first, second, *_ = (f"--{name.replace('_', '-')}" for name in stated)
        raise click.UsageError(f"{second} cannot be used with {first}: give one of them")
    return stated


@dataclass(frozen=True)
class Reading:
    """How the options say that logs are read."""

    cascade: str | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    prices: bool = False
    skip_bad: bool = False

    @property
    def on_bad(self) -> OnBad:
        """What is done with rows that cannot be used."""
        return "skip" if self.skip_bad else "refuse"

    @property
    def words(self) -> str:
        """The options again, for a command to type next."""
        costs = "".join(f" --cost {name}={cost:g}" for name, cost in self.costs.items())
        cascade = f" --cascade {self.cascade}" if self.cascade else ""
        return costs + cascade + " --prices" * self.prices

    @property
    def spec(self) -> CascadeSpec | str | None:
        """The cascade of the options, or its file, if there is one."""
        if self.costs and self.cascade:
            raise ArgumentError("--cost is in place of --cascade: give one of them")
        return CascadeSpec.of(self.costs) if self.costs else self.cascade

    def spec_for(self, path: str) -> CascadeSpec | str | None:
        """Return the cascade of the options; None where the log keeps it, or has all costs."""
        if self.spec is None:
            _require_costs(path)
            if self.prices:
                raise ArgumentError("--prices takes the costs of --cascade or --cost: give one")
        return self.spec

    def read(self, path: str, sample: int | None = None) -> Trace:
        """Read a log, and print on stderr what was left out or decided."""
        spec = self.spec_for(path)
        trace = Trace.read(path, spec, on_bad=self.on_bad, sample=sample)
        print_notes(trace, path)
        if self.prices:
            trace = replace(trace, cost=None)
        return trace.with_verification()


def _require_costs(path: str) -> None:
    """Refuse a file that keeps no cascade and not all costs, or whose cascade lies beside it."""
    # A cascade beside it may have other costs than the columns: the user says which count.
    source = open_source(path)
    if source.cascade is not None:
        return
    has_calls, pair = is_long(source.columns), beside(path, ".toml")
    with located(path):
        names = () if has_calls else infer_spec(source.columns)[0].names
    priced = {"cost"} if has_calls else {f"{name}.cost" for name in names}
    if priced <= set(source.columns) and not pair.is_file():
        return
    costs = " ".join(f"--cost {name}=1.0" for name in names or ("NODE",))
    remedy = f"what a call of each node costs ({costs}), or --cascade FILE, a cascade.toml"
    for file in (pair, Path(path).with_name("cascade.toml")):
        if file.is_file():
            remedy = f"--cascade {file}"
            break
    raise ArgumentError(f"{path}: keeps no cascade: give {remedy}")


def read_for_policy(path: str, spec: CascadeSpec, *, skip_bad: bool) -> Trace:
    """Read a log of a policy's cascade; nodes that the policy lacks are left out."""
    joined, extra = join_verified(spec), []
    columns = open_source(path).columns
    # Exits are steps of one network: without one of them it is another network.
    if (
        spec.kind == "models"
        and not is_long(columns)
        and any(column.endswith(".confidence") for column in columns)
    ):
        with located(path):
            nodes = infer_spec(columns)[0].nodes
        extra = [node for node in nodes if node.name not in spec.names]
    # The policy's last node stays the last, which may say what is right.
    spec = replace(spec, nodes=(*extra, *joined.nodes))
    rows = Trace.read(path, spec, on_bad=Reading(skip_bad=skip_bad).on_bad)
    print_notes(rows, path)
    if extra:
        names = ", ".join(node.name for node in extra)
        print(f"{Path(path).name}: the policy has no node {names}: left out", file=sys.stderr)
        rows = rows.restrict(joined.names)
    return rows.with_verification()


def measurable(trace: Trace, *, skip_bad: bool) -> Trace:
    """Leave out rows that no policy can be measured on, if they are to be skipped."""
    with suppress(TraceError):  # nothing says what is right: the measuring names what is missing
        has_gap = np.isnan(trace.loss).any(axis=1)
        if skip_bad and has_gap.any() and not has_gap.all():
            rows = f"{counted(int(has_gap.sum()), 'row')} of {len(trace)}"
            why = "they lack the answer of a node, or whether it is right"
            print(f"{rows} left out of what is measured: {why}", file=sys.stderr)
            return trace.take(~has_gap)
    return trace


def print_notes(trace: Trace, path: str) -> None:
    """Print on stderr what was left out of a log, or decided, when it was read."""
    for reason, count in trace.left_out.items():
        print(f"{path}: {counted(count, 'row')} left out: {reason}", file=sys.stderr)
    for note in trace.notes:
        print(f"{Path(path).name}: {note}", file=sys.stderr)


def _costs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read NAME=COST."""
    costs: dict[str, float] = {}
    for text in values:
        name, _equals, cost = text.rpartition("=")
        try:
            is_cost = 0 <= float(cost) < math.inf
        except ValueError:
            is_cost = False
        if not name or not is_cost:
            raise click.BadParameter(f"{text!r} is not NAME=COST, such as small=1")
        if name in costs:
            raise click.BadParameter(f"{name!r} has two costs; give one")
        costs[name] = float(cost)
    return costs


COSTS: Any = {"multiple": True, "callback": _costs}


def reading_options(function: Function) -> Function:
    """Add the options for reading a log, as ``reading``."""

    @option("--cascade", "FILE", "The cascade.toml (default: the one that the log keeps).")
    @option(
        "--cost", "NAME=COST", "In place of --cascade: what a call of each node costs.", **COSTS
    )
    @flag("--prices", help="Use these costs, not those in the log.")
    @skip_option
    @functools.wraps(function)
    def read(*, cascade: Any, cost: Any, prices: bool, skip_bad: bool, **options: Any) -> Any:
        return function(reading=Reading(cascade, cost, prices, skip_bad), **options)

    return read
