"""The command line as a parser: what words a command takes."""

from collections.abc import Sequence
from typing import Any

import click

from ttamer.cli import COMMANDS, app


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's options; a usage error where there is no such command."""
    command = app.get_command(click.Context(app), words[0])
    if command is None:
        raise click.UsageError(f"no command {words[0]}")
    rest = list(words[1:])
    if isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), rest[0])
        assert inner is not None, words
        command, rest = inner, rest[1:]
    if [param.name for param in command.params] == ["words"]:  # parsed by argparse
        from importlib import import_module

        from ttamer.cli._argparse import parser_of

        module = import_module(f"ttamer.cli.{COMMANDS[words[0]][0]}")
        return vars(parser_of(module).parse_args(list(words)))
    return command.make_context(words[0], rest).params


def options_of(name: str) -> set[str]:
    """Return every option of a command and of those below it."""
    command = app.get_command(click.Context(app), name)
    assert command is not None, name
    if [param.name for param in command.params] == ["words"]:
        from importlib import import_module

        from ttamer.cli._argparse import parser_of

        return _of_parser(parser_of(import_module(f"ttamer.cli.{COMMANDS[name][0]}")))
    inner = command.commands.values() if isinstance(command, click.Group) else []
    return {option for each in [command, *inner] for param in each.params for option in param.opts}


def _of_parser(parser: Any) -> set[str]:
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for each in action.choices.values():
                found |= _of_parser(each)
    return found
