"""Margins and entropies: collected, fitted, and read by the gateway as by a replay of the trace."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import httpx2 as httpx
import numpy as np
import pytest

import ttamer as tt
from support.faulty_upstream import FaultyUpstream, truth, uniform
from support.running_gateway import running
from support.waiting import until
from ttamer.cli import main
from ttamer.drift.audit_log import read_log
from ttamer.errors import TraceWarning
from ttamer.llm.collecting import collect_prompts
from ttamer.llm.prompts import Prompt
from ttamer.serve.processes.workers import OWNER, WorkerPlace

QUESTIONS = [f"Question {number}?" for number in range(400)]
SERVED = QUESTIONS[:40]
SKILLS = {"small": 0.6, "large": 0.9}
CASCADE = """
[cascade]
order = "any"

[serve]
compare = "choice"
tradeoff = 0.9
{serve}
[[node]]
name = "small"
cost = 1.0
upstream = "{small}"
{small_extras}

[[node]]
name = "large"
cost = 10.0
upstream = "{large}"
"""


def body(question):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0}


def rival(prompt):
    """The next best token is far behind where small is right, and its confidence says nothing."""
    noise = uniform("rival", prompt)
    is_right = uniform("small", prompt, "0") < SKILLS["small"]
    return (0.05 if is_right else 0.3) + 0.15 * noise


@pytest.fixture(scope="module")
def upstreams():
    with contextlib.ExitStack() as stack:
        found = {name: stack.enter_context(FaultyUpstream(name, skill=skill))
                 for name, skill in SKILLS.items()}  # fmt: skip
        small = found["small"]
        by_skill = small.answer
        small.answer = lambda prompt, sample: (by_skill(prompt, sample)[0], 0.5)
        small.next_best = rival
        yield found


@pytest.fixture
def write(tmp_path, upstreams):
    """Write the cascade, with or without the margin of small."""

    def write(serve="", extras='extras = ["margin"]'):
        path = tmp_path / "cascade.toml"
        urls = {name: each.url for name, each in upstreams.items()}
        path.write_text(CASCADE.format(serve=serve, small_extras=extras, **urls), "utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def fitted(upstreams, tmp_path_factory):
    """The trace that is collected, and the ladder that is fitted to it."""
    folder = tmp_path_factory.mktemp("fitted")
    cascade = folder / "cascade.toml"
    urls = {name: each.url for name, each in upstreams.items()}
    cascade.write_text(
        CASCADE.format(serve="", small_extras='extras = ["margin"]', **urls), "utf-8"
    )
    prompts = [Prompt(body(question), truth(question)) for question in QUESTIONS]
    trace = collect_prompts(cascade, prompts, folder / "paid")
    ladder = tt.fit(trace, tradeoffs=[0.5, 0.9], belief="full", order="any")
    tt.save(ladder, folder / "policy.ttamer")
    return trace, ladder, folder / "policy.ttamer"


def paths(gateway, **more):
    """Return the nodes asked and the one that answered, for each question."""
    found = []
    with httpx.Client(timeout=30) as client:
        for question in SERVED:
            response = client.post(
                f"{gateway.url}/chat/completions",
                json={"model": "ttamer", **body(question), **more},
            )
            assert response.status_code == 200
            headers = response.headers
            found.append((headers["x-ttamer-path"], headers["x-ttamer-answered-by"]))
    return found


def replayed(policy, trace):
    played = policy.play(trace.take(slice(len(SERVED))))
    names = trace.names
    return [
        ([names[k] for k in range(len(names)) if played.asked[row, k]], names[played.answer[row]])
        for row in range(len(SERVED))
    ]


def replayed_alone(policy, trace):
    """A replay without the margins, which warns."""
    with pytest.warns(TraceWarning, match=r"the policy reads small\.margin"):
        return replayed(policy, dataclasses.replace(trace, margin=None, entropy=None, latency=None))


def test_served_decisions_are_those_of_a_replay(fitted, write):
    trace, ladder, artefact = fitted
    assert ladder.fitted.reads == {"small": ("margin",)}
    with running(write(), artefact) as gateway:
        assert not [line for line in gateway.log if line["event"] == "warning"]
        served = [(sorted(path.split(",")), by) for path, by in paths(gateway)]
    expected = [(sorted(asked), by) for asked, by in replayed(ladder.at(0.9), trace)]
    assert served == expected
    assert len({by for _, by in served}) == 2
    # Small's confidence is always 0.5: without the margin all are decided alike.
    assert replayed_alone(ladder.at(0.9), trace) != replayed(ladder.at(0.9), trace)


def test_streams_decide_alike(fitted, write):
    trace, ladder, artefact = fitted
    with running(write('stream = "whole"'), artefact) as gateway:
        served = [(sorted(path.split(",")), by) for path, by in paths(gateway, stream=True)]
    assert served == [(sorted(asked), by) for asked, by in replayed(ladder.at(0.9), trace)]


def test_a_stream_that_waits_for_more_than_its_prefix_reads_the_margin(fitted, write):
    trace, ladder, artefact = fitted
    extras = 'extras = ["margin"]\nprefix = {tokens = 1, confidence = 0.99}'
    with running(write('stream = "last"', extras), artefact) as gateway:
        served = [path for path, _ in paths(gateway, stream=True)]
    expected = [sorted(asked) for asked, _ in replayed(ladder.at(0.9), trace)]
    assert [sorted(path.split(",")) for path in served] == expected


def test_without_the_setting_a_check_warns_and_the_confidence_alone_decides(fitted, write, capsys):
    trace, ladder, artefact = fitted
    cascade = write(extras="")
    assert main(["serve", str(cascade), str(artefact), "--check"]) == 0
    warned = capsys.readouterr().err
    assert "reads margin of small" in warned
    assert 'extras = ["margin"]' in warned
    assert main(["serve", str(cascade), str(artefact), "--check", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1
    with running(cascade, artefact) as gateway:
        assert [line for line in gateway.log if line["event"] == "warning"]
        served = [(sorted(path.split(",")), by) for path, by in paths(gateway)]
    expected = replayed_alone(ladder.at(0.9), trace)
    assert served == [(sorted(asked), by) for asked, by in expected]


def test_a_policy_that_is_reloaded_warns_too(fitted, write, tmp_path):
    trace, _, reading = fitted
    artefact = tmp_path / "policy.ttamer"
    plain = dataclasses.replace(trace, margin=None, entropy=None, latency=None)
    tt.save(tt.fit(plain, tradeoffs=[0.5, 0.9], belief="full", order="any"), artefact)
    with running(write("watch = 0", extras=""), artefact) as gateway:
        warned = [line for line in gateway.log if "reads margin" in str(line)]
        assert not warned
        artefact.write_bytes(reading.read_bytes())
        assert gateway.do(gateway.gateway.reload()).changed
        (line,) = [line for line in gateway.log if "reads margin" in str(line)]
        assert line["event"] == "warning"


@pytest.mark.parametrize("has_workers", [False, True])
def test_audited_rows_hold_what_the_policy_reads(fitted, write, tmp_path, has_workers):
    trace, ladder, artefact = fitted
    log, private = tmp_path / "audits", tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "secret").write_bytes(bytes(32))
    cascade = write(f'signals = true\n[serve.audit]\nshare = 1.0\nlog = "{log}"\n')
    with contextlib.ExitStack() as stack:
        if has_workers:
            owner = stack.enter_context(running(cascade, artefact, WorkerPlace(OWNER, 1, private)))
            gateway = stack.enter_context(running(cascade, artefact, WorkerPlace(0, 1, private)))
            until(lambda: gateway.gateway.audits._line._writer)
        else:
            owner = gateway = stack.enter_context(running(cascade, artefact))
        served = paths(gateway)
        until(lambda: owner.gateway.audits.status()["written"] == len(SERVED))
    rows = read_log(log)
    order = np.argsort(rows.signals["audit_number"])
    kept = rows.take(order)
    np.testing.assert_array_equal(
        kept.extras["margin"][:, 0], trace.extras["margin"][: len(SERVED), 0]
    )
    assert "prompt_length" in kept.signals
    asked = [sorted(path.split(",")) for path, _ in served]
    assert [sorted(path) for path, _ in replayed(ladder.at(0.9), kept)] == asked


def test_a_row_of_the_trace_log_has_the_margin(fitted, write, tmp_path):
    log = tmp_path / "seen.jsonl"
    with running(write(f'trace_log = "{log}"'), fitted[2]) as gateway:
        paths(gateway)
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    (margins,) = {tuple(sorted(call)) for row in rows for call in row["asked"]
                  if call["node"] == "small"}  # fmt: skip
    assert "margin" in margins
