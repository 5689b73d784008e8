"""Every name, command and setting of 0.2.0 is there, or the changelog says what to use instead."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import click
import msgspec
import pytest

from support.public import names_of
from ttamer.serve import settings

ROOT = Path(__file__).parents[1]
FORMER = json.loads((ROOT / "tests/support/names_0_2.json").read_text("utf-8"))
CHANGES = (ROOT / "CHANGELOG.md").read_text("utf-8")
REMOVED = CHANGES[CHANGES.index("### Removed") : CHANGES.index("## 0.2.0")]
WORDS = set(re.findall(r"[\w*-]+", REMOVED))


def is_listed(name: str) -> bool:
    """Whether the list of what is gone has a name, or a pattern such as ``speculate*``."""
    patterns = [word for word in WORDS if "*" in word and len(word) > 3]
    return name in WORDS or any(re.fullmatch(p.replace("*", r"\w*"), name) for p in patterns)


def names_now(package: str) -> set[str]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError:
        return set()
    return set(names_of(package)) | {name for name in vars(module) if name[0] != "_"}


@pytest.mark.parametrize("package", FORMER["names"])
def test_every_former_name_is_there_or_listed(package):
    gone = set(FORMER["names"][package]) - names_now(package)
    if not names_now(package):
        assert package in REMOVED
        gone -= (
            names_now("ttamer.fitting") | names_now("ttamer") | names_now("ttamer.fitting.replay")
        )
    assert not [name for name in sorted(gone) if not is_listed(name)]


@pytest.mark.parametrize("table", ["node", "serve", "serve.audit"])
def test_every_former_setting_is_there_or_listed(table):
    structs = {"node": "NodeSettings", "serve": "ServeSettings", "serve.audit": "AuditSettings"}
    struct = getattr(settings, structs[table])
    now = {field.name for field in msgspec.structs.fields(struct)}
    gone = set(FORMER["settings"][table]) - now - set(struct.removed)
    assert not [name for name in sorted(gone) if not is_listed(name)]


def test_every_former_command_is_there_or_listed():
    from ttamer import cli

    group = next(value for value in vars(cli).values() if isinstance(value, click.Group))
    commands = set(group.list_commands(click.Context(group)))
    former = {name.split()[1] for name in FORMER["commands"] if name.count(" ")}
    assert not [name for name in sorted(former - commands) if f"ttamer {name}" not in REMOVED]


def test_a_name_that_is_not_listed_would_be_noticed():
    assert is_listed("combine_exits")
    assert is_listed("speculate_budget")
    assert not is_listed("nonsense_of_0_2")
