"""What docs/serving.md tells people to type and to write is what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.commands import parse
from ttamer.llm.prompts import read_prompts
from ttamer.serve.config import NodeSettings, settings_from
from ttamer.trace.spec import CascadeSpec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^ *```{kind}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)


COMMANDS = [
    line.strip()
    for block in blocks("sh")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip().startswith("ttamer ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_there_is(command):
    assert parse(shlex.split(command, comments=True)[1:])


def test_there_are_commands_to_check():
    assert {command.split()[1] for command in COMMANDS} >= {"collect", "fit", "serve", "frontier"}


@pytest.mark.parametrize("text", [b for b in blocks("toml") if "upstream" in b])
def test_a_cascade_can_be_served(text):
    assert settings_from(CascadeSpec.from_toml(text)).nodes


@pytest.mark.parametrize("path", re.findall(r"examples/serving/[\w/.]+\w", PAGE))
def test_a_file_named_is_there(path):
    assert (ROOT / path).exists()


def test_the_prompts_can_be_read():
    path = ROOT / "examples" / "serving" / "capitals.jsonl"
    prompts = read_prompts(path, endpoint="completions")
    assert len(prompts) == 60
    assert all(prompt.label for prompt in prompts)


def test_defaults_are_those_of_the_settings():
    part = PAGE.partition("### The settings of a node")[2].partition("\n## ")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| ([\w .']+?) \|", part, re.MULTILINE))
    node = NodeSettings("n", 1.0, "http://x", "n")
    assert {key: table[key] for key in ("timeout", "retries", "concurrency", "max_response")} == {
        "timeout": f"{node.timeout:g}",
        "retries": str(node.retries),
        "concurrency": str(node.concurrency),
        "max_response": f"{node.max_response // 2**20} MiB",
    }
