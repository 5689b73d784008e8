"""The experiment with real models, over simulated ones: every step, and resuming."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import ttamer as tt
from support.faulty_upstream import truth

SCRIPT = Path(__file__).parents[2] / "experiments" / "llm" / "serve_real.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("serve_real", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_system_asks_every_question_once_and_never_the_same_in_a_row(script):
    ways = ("a", "b", "c")
    found = list(script.turns(20, ways))
    assert sorted(found) == sorted((row, way) for row in range(20) for way in ways)
    assert all(first[0] != second[0] for first, second in itertools.pairwise(found))


def test_every_step_runs_and_resumes(script, start_upstream, tmp_path, monkeypatch, capsys):
    upstreams = {"small": start_upstream("small", skill=0.6), "large": start_upstream("large")}
    ports = [urlsplit(each.url).port for each in upstreams.values()]
    models = {"small": ("", 1.0, ports[0]), "large": ("", 3.0, ports[1])}

    def questions(_, count):
        for number in range(count):
            prompt = f"Question {number}?"
            yield {"prompt": prompt, "label": [truth(prompt), "none"], "stop": ["\n"]}

    def counts():
        return [each.count for each in upstreams.values()]

    for name, value in (("MODELS", models), ("LARGEST", "large"), ("questions", questions),
                        ("served", lambda *_: contextlib.nullcontext())):  # fmt: skip
        monkeypatch.setattr(script, name, value)
    command = ["serve_real.py", str(tmp_path), "--models", str(tmp_path), "--questions", "48",
               "--judged", "12", "--measure", "4"]  # fmt: skip
    monkeypatch.setattr("sys.argv", command)
    script.main()
    first, asked = capsys.readouterr().out, counts()
    assert "agrees with the labels on" in first
    assert "4 questions through the gateway" in first
    numbers, trace = (tt.Trace.read(tmp_path / f) for f in ("small-models.npz", "trace.parquet"))
    np.testing.assert_array_equal(numbers.wrong(), trace.wrong())
    np.testing.assert_allclose(numbers.confidence, trace.confidence, atol=1e-6)
    assert all(name.startswith("answer ") for name in numbers.classes)
    log = tmp_path / "measured.jsonl"
    lines = log.read_text("utf-8").splitlines()
    assert len(lines) == 4 * (2 + len(models))
    prices = {each["way"]: each["cost"] for each in map(json.loads, lines)}
    assert (prices["small"], prices["large"]) == (1.0, 3.0)

    monkeypatch.setattr("sys.argv", [*command, "--steps", "collect", "measure"])
    script.main()
    assert counts() == asked
    printed = [text.partition("\nmeasure")[2] for text in (first, capsys.readouterr().out)]
    assert printed[0] == printed[1]

    log.write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    script.main()
    again = log.read_text("utf-8").splitlines()
    assert again[:-1] == lines[:-1]
    assert [json.loads(line)["row"] for line in again] == [json.loads(x)["row"] for x in lines]
