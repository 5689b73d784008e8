"""Commands that argparse still parses, as commands of click."""

import argparse
from typing import Any, NoReturn

import click

from ttamer.cli.options import check_output


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of click."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        for action in self._actions:  # an optional file behind options
            if not action.option_strings and action.nargs == "?" and rest:
                if rest[0].startswith("-"):
                    break
                if getattr(found, action.dest) is action.default:
                    setattr(found, action.dest, rest.pop(0))
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        raise click.UsageError(f"{self.prog.removeprefix('ttamer ')}: {message}")


def parser_of(module: Any) -> argparse.ArgumentParser:
    """Return the parser with the commands of one module."""
    parser = _Parser(prog="ttamer", allow_abbrev=False)
    module.add_to(parser.add_subparsers(required=True, parser_class=_Parser))
    return parser


def adapted(name: str, module: Any, text: str) -> click.Command:
    """Return a module's command as a command of click."""

    def run(words: tuple[str, ...]) -> Any:
        try:
            args = parser_of(module).parse_args([name, *words])
        except SystemExit as end:
            raise click.exceptions.Exit(int(end.code or 0)) from None
        for output, flag in (("output", "-o"), ("draw", "--draw")):
            path = getattr(args, output, None)
            if path:
                reads = [v for k, v in vars(args).items() if isinstance(v, str) and k != output]
                check_output(flag, path, reads, makes_folders=getattr(args, "makes_folders", False))
        return args.run(args)

    return click.Command(
        name,
        callback=run,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=text,
    )
