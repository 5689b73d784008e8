"""The command line: parse, call, print.

An error is one line on stderr and exit code 2, never a traceback (``TTAMER_TRACEBACK=1`` shows
it). Commands are imported when they are used, so that ``--help`` is immediate.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import click

from ttamer import __version__
from ttamer.errors import MissingExtra, TraceWarning, TTamerError

# By name: the module, and what --help says; the command is its attribute NAME_command.
COMMANDS = {
    "demo": ("compare", "fit, compare and report on a real trace, in under a minute"),
    "collect": ("data", "ask language models about prompts, and log their answers as a trace"),
    "label": ("data", "decide on a local page which answers of a log are right"),
    "import": ("data", "make a trace from files in other formats"),
    "fit": ("fit", "fit policies to a trace, and save them"),
    "evaluate": ("evaluate", "measure a saved policy on other rows"),
    "certify": ("evaluate", "certify an error, a drop or a budget, with a stated confidence"),
    "frontier": ("compare", "compare ttamer with other rules, and recommend one"),
    "report": ("compare", "write the comparison as one page with figures"),
    "serve": ("serve", "serve a cascade behind one URL"),
    "drift": ("serve", "test the policy in service on a decision log, and replace it"),
    "forget": ("serve", "delete requests from a decision log, by their ids"),
    "torch": ("torch", "time the parts of an early-exit network on this machine"),
    "inspect": ("fit", "check a .ttamer file, and show what it holds"),
    "solve": ("solve", "solve a problem.json exactly"),
    "theory": ("solve", "run the paper's demonstrations"),
}
# The extras, and the libraries that each installs.
EXTRAS = {
    "serve": ("aiohttp", "starlette", "uvicorn", "h11", "granian", "prometheus_client"),
    "report": ("matplotlib", "jinja2"),
    "io": ("pyarrow",),
    "frames": ("pandas",),
    "torch": ("torch",),
}


class _Commands(click.Group):
    """Commands by name; a module is imported when its command is used."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"ttamer.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):  # without importing any
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    "ttamer",
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="To begin: ttamer demo. With your own log: ttamer frontier LOG --cascade cascade.toml. "
    'Completion in bash: eval "$(_TTAMER_COMPLETE=bash_source ttamer)"',
)
@click.version_option(__version__, message="ttamer %(version)s")
def app() -> None:
    """Decide, per input, which model to ask, when to stop, and whose answer to return."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        0 if all is well, 1 if a certificate fails, 2 after an error.

    >>> main(["theory", "no-recall", "--alpha", "0.5"])
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every code page has bars, or all names
        sys.stdout.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    if not words and "_TTAMER_COMPLETE" not in os.environ:
        with redirect_stdout(sys.stderr):
            app.main(["--help"], prog_name="ttamer", standalone_mode=False)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning(warnings.showwarning)
            code = app.main(words, prog_name="ttamer", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, click.Abort):
        print(cleared(), end="", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.UsageError as error:
        path = "ttamer" if error.ctx is None else error.ctx.command_path
        text = error.format_message().rstrip(".")
        return _failed(f"{path}: error:", f"{text} (see {path} --help)")
    except Exception as error:
        if os.environ.get("TTAMER_TRACEBACK"):
            raise
        return _failed("ttamer: error:", _one_line(error))


def _failed(head: str, text: str) -> int:
    """Print an error as one line, and return the exit code."""
    line = " ".join(text.split())
    print(f"{cleared()}{head} {line}", file=sys.stderr)
    return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, TTamerError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    library = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return str(MissingExtra(library, extra))
    return (
        f"unexpected {type(error).__name__}: {error}; this is a bug, please report it with the "
        "output of the same command under TTAMER_TRACEBACK=1"
    )


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return what prints a warning of the library once as one line, others as ``otherwise``."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if not issubclass(category, TraceWarning):
            otherwise(message, category, *where, **more)
        elif text not in shown:
            shown.add(text)
            warn(text)

    return show


def warn(text: str) -> None:
    """Print a warning as one line on stderr."""
    print(f"{cleared()}Warning: {text}", file=sys.stderr)


def cleared() -> str:
    """Return what removes a line of progress from a terminal."""
    return "\r\x1b[K" if sys.stderr.isatty() else ""
