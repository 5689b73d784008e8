"""The command line: parse, call, print.

An error is one line on stderr and exit code 2, never a traceback (``TTAMER_TRACEBACK=1`` shows
it). Commands load what they need only when they run, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ttamer import __version__
from ttamer.cli import (
    certify,
    collect,
    demo,
    evaluate,
    fit,
    frontier,
    import_trace,
    inspect,
    label,
    report,
    serve,
    solve,
    theory,
    torch,
)
from ttamer.cli.output import check_output, paint


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which keeps the options of the chosen command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if not hasattr(found, "options"):  # the innermost parser, the command's own, comes first
            found.options = {
                action.dest: action.option_strings[-1]
                for action in self._actions
                if action.option_strings
            }
            rest = self._filled(found, rest)
            if rest:
                hint = ""
                if "cascade" in found.options and rest[0].endswith(".toml"):
                    hint = f"; a cascade is given by --cascade {rest[0]}"
                self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return found, rest

    def _filled(self, found: argparse.Namespace, rest: list[str]) -> list[str]:
        """Give a file that stands behind options to the argument that may be left out.

        Before Python 3.13 such an argument counts as left out once an option comes before it.
        """
        for action in self._actions:
            optional = not action.option_strings and action.nargs == "?"
            if optional and rest and getattr(found, action.dest) is action.default:
                if rest[0].startswith("-"):
                    break
                setattr(found, action.dest, rest.pop(0))
        return rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every command."""
    parser = _Parser(
        prog="ttamer",
        description="Decide, per input, which model to ask, when to stop, and whose answer to "
        "return.",
        epilog="To begin: ttamer demo. With your own log: ttamer frontier LOG --cascade "
        "cascade.toml",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ttamer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        demo,
        collect,
        label,
        import_trace,
        fit,
        evaluate,
        certify,
        frontier,
        report,
        serve,
        torch,
        inspect,
        solve,
        theory,
    ):
        command.add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        0 if all is well, 1 if a promise is not certified, 2 after an error.

    >>> main(["theory", "no-recall", "--alpha", "0.5"])
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every code page has bars, or all names
        sys.stdout.reconfigure(errors="replace")
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(argv)
    try:
        check_output(args)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning(warnings.showwarning)
            code = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(_cleared(), end="", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("TTAMER_TRACEBACK"):
            raise
        text = _with_flags(_one_line(error), args)
        print(f"{_cleared()}{paint('ttamer: error:', 'red', sys.stderr)} {text}", file=sys.stderr)
        return 2
    return int(code or 0)


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return what prints a warning of the library once as one line, others as ``otherwise``."""
    from ttamer.errors import TraceWarning

    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: object, **where: Any) -> None:
        if not issubclass(category, TraceWarning):
            otherwise(message, category, *place, **where)
            return
        text = " ".join(str(message).split())
        if text in shown:
            return
        shown.add(text)
        print(f"{_cleared()}{paint('Warning:', 'bold', sys.stderr)} {text}", file=sys.stderr)

    return show


def _cleared() -> str:
    """Return what removes a line of progress from a terminal."""
    return "\r\x1b[K" if sys.stderr.isatty() else ""


def _one_line(error: Exception) -> str:
    from ttamer.errors import TTamerError

    text = " ".join(str(error).split())
    if isinstance(error, TTamerError):
        return text
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return (
        f"unexpected {type(error).__name__}: {text}; this is a bug, please report it with the "
        "output of the same command under TTAMER_TRACEBACK=1"
    )


def _with_flags(text: str, args: argparse.Namespace) -> str:
    """Return an error of the library with flags of the command in place of Python arguments."""
    flags = {**args.options, "on_bad": "--skip-bad", "on_error": "--skip-bad"}
    if "drop" in flags and "error" in flags:
        flags["at_most"] = "--drop" if args.drop is not None else "--error"

    def keyword(found: re.Match[str]) -> str:
        flag = flags.get(found["name"])
        if flag is None:
            return found[0]
        value = found["value"].strip("\"'")
        return flag if flag == "--skip-bad" or value == "True" else f"{flag} {value}"

    text = re.sub(r"\b(?P<name>[a-z_]+)=(?P<value>\"[^\"]*\"|'[^']*'|[\w.]+)", keyword, text)
    first = re.match(r"(?P<name>[a-z_]+)(?= (?:is|must be|has|needs) )", text)
    flag = None if first is None else flags.get(first["name"])
    return text if first is None or flag is None else f"{flag}{text[first.end() :]}"
