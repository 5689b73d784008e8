"""The command line as a parser: what words a command takes."""

from collections.abc import Sequence
from typing import Any

import click

from ttamer.cli import app


def command_of(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the first words name, and the other words."""
    command = app.get_command(click.Context(app), words[0])
    if command is None:
        raise click.UsageError(f"no command {words[0]}")
    rest = list(words[1:])
    if isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), rest[0])
        assert inner is not None, words
        command, rest = inner, rest[1:]
    return command, rest


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's options; a usage error where there is no such command."""
    command, rest = command_of(words)
    return command.make_context(words[0], rest).params


def options_of(name: str) -> set[str]:
    """Return every option of a command and of those below it."""
    command = app.get_command(click.Context(app), name)
    assert command is not None, name
    inner = command.commands.values() if isinstance(command, click.Group) else []
    return {option for each in [command, *inner] for param in each.params for option in param.opts}
