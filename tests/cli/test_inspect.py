"""``ttamer inspect`` on a stranger's file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import ttamer as tt
from ttamer.cli.fit import _cell

NAMES = ["\x1b[2J\x1b]0;owned\x07", "a\nb\r\x00\x7f", "left\u202eright\x9b31m"]
NOTES = {"\x1b[31mkey": "text\x1b[0m\x08\x08", "plain": "größe 模型"}


@pytest.fixture
def hostile(tmp_path):
    line = tt.Problem.line(
        [0.1, 0.5], [0.1] * 3, [[0.5, 0.5], *[[[0.5, 0.5]] * 2] * 2], names=NAMES
    )
    tt.save(tt.solve(line, 0.5), tmp_path / "p.ttamer", notes=NOTES)
    return tmp_path / "p.ttamer"


def printed(*arguments):
    command = [sys.executable, "-X", "utf8", "-m", "ttamer", "inspect", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode("utf-8")


def test_names_and_notes_cannot_steer_the_terminal(hostile):
    shown = printed(hostile)
    lines = shown.splitlines()
    assert all(line.isprintable() for line in lines)
    assert shown == "\n".join(lines) + "\n"  # no other ends of lines
    assert len(lines) == 2 + len(tt.inspect(hostile))
    assert r"\x1b[2J\x1b]0;owned\x07, a\nb\r\x00\x7f, left\u202eright\x9b31m" in shown
    assert r"\x1b[31mkey: text\x1b[0m\x08\x08" in shown
    assert "plain: größe 模型" in shown


def test_programs_get_them_as_they_are(hostile):
    text = printed(hostile, "--json")
    assert text.replace("\x7f", "").isascii()
    assert "\x1b" not in text
    facts = json.loads(text)
    assert facts["nodes"] == NAMES
    assert facts["notes"] == NOTES


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\x1b", r"\x1b"),
        ({"\n": ["\t", 0.123456]}, r"\n: \t, 0.1235"),
        ({}, "-"),
        (True, "True"),
        (list(range(8)), "0, 1, 2, 3, 4, 5, ... (8 in all)"),
    ],
)
def test_cells(value, shown):
    assert _cell(value) == shown
