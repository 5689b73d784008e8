"""The commands of docs/llm.md, in their order, over simulated upstreams."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np

import ttamer as tt
from support.faulty_upstream import truth
from ttamer.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "llm.md").read_text("utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_commands_lead_from_a_key_to_a_policy_that_can_be_served(
    start_upstream, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_KEY", "secret")
    cascade = blocks("toml")[0]
    for name, skill in (("small", 0.6), ("large", 0.95)):
        upstream = start_upstream(name, skill=skill)
        cascade = cascade.replace("https://api.example.com/v1", upstream.url, 1)
    Path("cascade.toml").write_text(cascade, "utf-8")
    rows = [{"prompt": f"Question {k}?", "label": truth(f"Question {k}?")} for k in range(40)]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    done = []
    for line in lines:
        command = shlex.split(line)[1:]
        if command[0] == "report":  # tests/reporting has it
            continue
        check = ["--check"] if command[0] == "serve" and "--check" not in command else []
        assert main([*command, *check]) == 0, line
        done.append(command[0])
    assert done == ["serve", "collect", "fit", "serve"]
    assert "lacks nothing" in capsys.readouterr().out
    trace = tt.Trace.read("trace.parquet")
    assert trace.names == ("small", "large")
    np.testing.assert_array_less(trace.wrong().mean(axis=0)[1], trace.wrong().mean(axis=0)[0])
