"""Answers returned unseen: the gateway calls a verifier only where the policy asks for it."""

from __future__ import annotations

import asyncio
import json

import httpx2 as httpx
import pytest

import ttamer as tt
from support.running_gateway import running
from ttamer.errors import CascadeError
from ttamer.llm.collecting import collect_prompts
from ttamer.llm.prompts import Prompt
from ttamer.serve.config import read_settings, settings_from
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.node import CHAT, open_nodes
from ttamer.serve.upstreams.upstream import CallContext
from ttamer.trace.spec import CascadeSpec, toml_text
from ttamer.trace.verification import SUFFIX

SURE = "How likely is it that the answer is right?"


def is_easy(prompt):
    return "easy" in prompt


def number(prompt):
    return int(prompt.split()[-1])


def letter(prompt, shift=0):
    return "ABCD"[(number(prompt) // 2 + shift) % 4]


@pytest.fixture
def served(tmp_path, start_upstream):
    """A cascade whose confidences cost by themselves: its file, its artefact and its upstreams."""
    small, large, judge = (start_upstream(name) for name in ("small", "large", "judge"))
    judge.yes = lambda prompt: 0.97 if is_easy(prompt) else 0.1

    def answer(prompt, _):
        if SURE in prompt:
            return ("97" if is_easy(prompt) else "10"), 0.5
        return letter(prompt, 0 if is_easy(prompt) or number(prompt) % 7 == 0 else 1), 0.5

    small.answer, large.answer = answer, lambda prompt, _: (letter(prompt), 0.5)

    def make(small_table, **serve):
        tables = [
            {"name": "small", "cost": 1.0, "verify_cost": 0.5, "upstream": small.url} | small_table,
            {"name": "large", "cost": 10.0, "verify_cost": 5.0, "upstream": large.url,
             "confidence": "verifier", "verifier": "judge"},
            {"name": "judge", "cost": 100.0, "upstream": judge.url, "confidence": "none"},
        ]  # fmt: skip
        text = "[serve]\n" + toml_text({"compare": "choice", "tradeoff": 0.5} | serve)
        text += "".join("\n[[node]]\n" + toml_text(table) for table in tables)
        path = tmp_path / "cascade.toml"
        path.write_text(text, "utf-8")
        return path

    return make, {"small": small, "large": large, "judge": judge}


def test_a_node_and_its_self_report_have_one_limit_of_calls(served):
    """An answer is under way, so that a report of another one is not asked for."""
    make, upstreams = served
    table = {"confidence": "self-report", "max_concurrent": 1, "max_wait": 0.0}
    settings = read_settings(make(table)).split_verified()
    small, body = upstreams["small"], {"messages": [{"role": "user", "content": "easy 1"}]}

    async def go():
        async with HttpClient() as client:
            nodes = open_nodes(settings, client)
            answer = await nodes["small"].ask(CHAT, body)
            small.mode = "slow"
            running = asyncio.create_task(nodes["small"].ask(CHAT, body))
            await asyncio.to_thread(small.wait_for, 2)
            context = CallContext.within(3600.0)
            verified = await nodes["small" + SUFFIX].verify(answer, body, context)
            small.release()
            await running
            return verified

    assert asyncio.run(go()).confidence == 0.0
    assert (small.count, small.most_open) == (2, 1)


def prompt(count):
    return f"{'easy' if count % 2 else 'hard'} {count}"


def ask(gateway, text, **more):
    body = {"model": "ttamer", "messages": [{"role": "user", "content": text}], **more}
    return httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30.0)


EARLY = {"extras": ["margin"], "prefix": {"tokens": 1, "confidence": 1.0}}
"""Streams are read token by token, and never relayed early."""


@pytest.mark.parametrize(("source", "more"), [("verifier", {}), ("self-report", {})])
def test_a_confidence_is_asked_for_where_the_policy_does(served, tmp_path, source, more):
    make, upstreams = served
    table = {"confidence": source} | ({"verifier": "judge"} if source == "verifier" else {})
    cascade = make(table | more)
    settings = read_settings(cascade)
    prompts = [
        Prompt({"messages": [{"role": "user", "content": prompt(n)}]}, letter(prompt(n)))
        for n in range(200)
    ]
    trace = collect_prompts(settings.spec, prompts, tmp_path / "paid")
    assert trace.cost.tolist() == [1.0, 10.0, 100.0]  # without the verifications
    artefact = tmp_path / "policy.ttamer"
    tt.save(tt.fit(trace, tradeoffs=[0.4, 0.5]), artefact)
    counts = {name: upstream.count for name, upstream in upstreams.items()}
    with running(cascade, artefact) as gateway:
        easy, hard = ask(gateway, "easy 1001"), ask(gateway, "hard 1000")
        assert easy.headers["x-ttamer-path"] == "small,small%20%28verified%29"
        assert easy.headers["x-ttamer-answered-by"] == easy.json()["model"] == "small"
        assert hard.headers["x-ttamer-path"] == "small,small%20%28verified%29,large"
        assert (hard.json()["model"], hard.json()["choices"][0]["message"]["content"]) == (
            "large", letter("hard 1000"),
        )  # fmt: skip
        # The verifier is another node with a price of its own; a self-report costs verify_cost.
        price = 100.0 if source == "verifier" else 0.5
        assert float(easy.headers["x-ttamer-cost"]) == 1.0 + price
        assert float(hard.headers["x-ttamer-cost"]) == 11.0 + price
        with httpx.stream(
            "POST", f"{gateway.url}/chat/completions", timeout=30.0,
            json={"model": "ttamer", "stream": True,
                  "messages": [{"role": "user", "content": "hard 1000"}]},
        ) as response:  # fmt: skip
            assert response.headers["x-ttamer-answered-by"] == "large"
            assert response.headers["x-ttamer-path"] == hard.headers["x-ttamer-path"]
            lines = [json.loads(x[6:]) for x in response.iter_lines() if x.startswith("data: {")]
        assert "".join(c["delta"].get("content") or "" for x in lines for c in x["choices"]) == (
            letter("hard 1000")
        )
        assert "failed" not in gateway.log[-1]
        upstreams["judge" if source == "verifier" else "small"].plan = (
            ["error"] if source == "verifier" else ["ok", "error"]
        )
        assert ask(gateway, "hard 1000").status_code == 200  # a verifier that fails costs no answer
        verified = gateway.gateway.metrics.text().decode()
        assert 'ttamer_asked_total{node="small (verified)"}' in verified
    own = upstreams["judge"].count - counts["judge"]
    assert own == (4 if source == "verifier" else 0)  # large's answers are returned unseen


def test_nodes_that_verify_are_no_models(served):
    make, _ = served
    settings = read_settings(make({"confidence": "self-report"}, direct=True)).split_verified()
    assert settings.spec.names == ("small", "small (verified)", "large", "large (verified)",
                                   "judge")  # fmt: skip
    assert settings.models == ("small", "large", "judge")
    assert settings.nodes["small"].confidence == "none"
    assert settings.nodes["small (verified)"].cost == 0.5


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ('confidence = "logprobs"', "comes with the answer"),
        ('confidence = "agreement"\nsamples = 3', "comes with the answer"),
        ('confidence = "self-report"\n[serve.audit]\nshare = 0.5\nlog = "x"', "every node's conf"),
    ],
)
def test_what_cannot_be_asked_for_by_itself_is_refused(extra, said):
    node = "[[node]]\nname = 'b'\ncost = 1\nupstream = 'http://127.0.0.1:1/v1'\n"
    text = f"{node}[[node]]\nname = 'a'\ncost = 1\nupstream = 'http://127.0.0.1:1/v1'\n"
    settings = settings_from(CascadeSpec.from_toml(f"{text}verify_cost = 1\n{extra}"))
    with pytest.raises(CascadeError, match=said):
        settings.split_verified()
