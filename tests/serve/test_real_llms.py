"""Real language models behind a real server: what they say can be read, collected and fitted."""

from __future__ import annotations

import asyncio
import json
import os
import time

import openai
import pytest

import ttamer as tt
from support import real_llms as module
from support.running_gateway import running
from ttamer.cli import main
from ttamer.serve.config import read_settings
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.node import open_nodes

QUESTIONS = [
    ("What is the capital of France?", "Berlin", "Paris", "B"),
    ("What color is the sky on a clear day?", "Blue", "Green", "A"),
    ("How many legs does a dog have?", "Four", "Nine", "A"),
    ("Which animal says meow?", "The cow", "The cat", "B"),
    ("What is 2 + 2?", "Four", "Eleven", "A"),
    ("What do bees make?", "Milk", "Honey", "B"),
    ("Which is hot?", "Fire", "Ice", "A"),
    ("What is the opposite of up?", "Left", "Down", "B"),
    ("Which planet do we live on?", "Earth", "Mars", "A"),
    ("What do you drink?", "Stone", "Water", "B"),
    ("Which is a fruit?", "Apple", "Hammer", "A"),
    ("Which comes after Monday?", "Sunday", "Tuesday", "B"),
]


def prompt(question, first, second):
    return (
        f"{question}\nA) {first}\nB) {second}\nReply with the letter of the right answer, A or B."
    )


def ask(cascade, name, text, path="/chat/completions", **more):
    request = {"messages": [{"role": "user", "content": text}]}
    if path == "/completions":
        request = {"prompt": text}

    async def go():
        async with HttpClient() as session:
            node = open_nodes(read_settings(cascade), session)[name]
            return await node.ask(path, {**request, "temperature": 0, "max_tokens": 8, **more})

    return asyncio.run(go())


@pytest.mark.parametrize("name", ["small", "large"])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_confidence_is_a_probability_and_the_same_twice(real_cascade, name, path):
    text = prompt(*QUESTIONS[0][:3]) if "chat" in path else "The capital of France is"
    said = ask(real_cascade, name, text, path)
    assert 0 < said.confidence < 1
    assert said.text
    again = ask(real_cascade, name, text, path)
    assert (again.text, again.confidence) == (said.text, said.confidence)


def test_the_models_are_different_ones(real_cascade):
    text = prompt(*QUESTIONS[0][:3])
    small, large = (ask(real_cascade, name, text) for name in ("small", "large"))
    assert small.confidence != large.confidence


def test_a_real_server_counts_tokens(real_cascade):
    text = real_cascade.read_text("utf-8")
    real_cascade.write_text(
        text.replace("cost = 1.0", "cost = 1.0\ncost_per_token = {input = 0.01, output = 0.1}"),
        "utf-8",
    )
    said = ask(real_cascade, "small", "Say yes.")
    usage = said.response["usage"]
    expected = 1 + 0.01 * usage["prompt_tokens"] + 0.1 * usage["completion_tokens"]
    assert said.cost == pytest.approx(expected)
    assert usage["completion_tokens"] >= 1


def test_a_real_verifier_gives_a_probability(real_cascade):
    text = real_cascade.read_text("utf-8")
    real_cascade.write_text(
        text.replace("cost = 1.0", 'cost = 1.0\nconfidence = "verifier"\nverifier = "large"'),
        "utf-8",
    )
    said = ask(real_cascade, "small", prompt(*QUESTIONS[0][:3]))
    assert 0 < said.confidence < 1
    assert ask(real_cascade, "small", prompt(*QUESTIONS[0][:3])).confidence == said.confidence


def test_real_samples_agree_more_or_less(real_cascade):
    text = real_cascade.read_text("utf-8")
    real_cascade.write_text(
        text.replace("cost = 1.0", 'cost = 1.0\nconfidence = "agreement"\nsamples = 3'), "utf-8"
    )
    said = ask(real_cascade, "small", prompt(*QUESTIONS[1][:3]), seed=1)
    assert round(said.confidence * 3, 6) in (0, 1, 2, 3)
    assert said.cost == 3.0


def test_collect_over_real_models_gives_a_trace_that_fits(real_cascade, tmp_path, capsys):
    rows = [{"prompt": prompt(q, a, b), "label": right} for q, a, b, right in QUESTIONS]
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.parquet"
    prompts.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    command = ["collect", str(real_cascade), "--prompts", str(prompts), "--max-tokens", "4"]
    assert main([*command, "-o", str(trace), "--json"]) == 0
    found = tt.Trace.read(trace)
    assert len(found) == len(QUESTIONS)
    assert ((found.confidence > 0) & (found.confidence < 1)).all()
    assert set(found.classes) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    policy = tmp_path / "policy.ttamer"
    assert (
        main(["fit", str(trace), "--cascade", str(real_cascade), "-o", str(policy), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out.partition("\n}\n")[2])["rows"] == len(QUESTIONS)
    assert tt.load(policy).at(0.9).session().next in ("small", "large")


def test_the_models_are_processes_of_their_own(real_llms):
    for llm in real_llms.values():
        os.kill(llm.pid, 0)
        assert llm.pid != os.getpid()
        assert llm.url.startswith("http://127.0.0.1:")


def test_a_part_that_is_missing_is_named_with_what_to_install(monkeypatch):
    def gone(name):
        raise module.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(module.importlib.metadata, "version", gone)
    with pytest.raises(module.MissingPart, match="need xllamacpp: pip install"):
        module.check_parts()


@pytest.fixture(scope="module")
def real_gateway(real_llms, tmp_path_factory):
    """A gateway over both models, whose policy was fitted to made-up rows."""
    folder = tmp_path_factory.mktemp("gateway")
    text = '[cascade]\norder = "any"\n\n[serve]\ncompare = "choice"\ndirect = true\ntimeout = 120\n'
    for name, cost in (("small", 1.0), ("large", 3.0)):
        text += f'\n[[node]]\nname = "{name}"\ncost = {cost}\nupstream = "{real_llms[name].url}"\n'
        text += "timeout = 60\n"
    text += f'\n[serve.audit]\nshare = 1.0\nlog_answers = true\nlog = "{folder / "audits"}"\n'
    (folder / "cascade.toml").write_text(text, "utf-8")
    rows = [[0.9, 0.9], [0.2, 0.9]] * 40
    said = [["A", "A"], ["B", "A"]] * 40
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 3.0}, order="any")
    trace = tt.Trace.from_arrays(spec, rows, prediction=said, label=["A"] * 80)
    tt.save(tt.fit(trace), folder / "policy.ttamer")
    with running(folder / "cascade.toml", folder / "policy.ttamer") as gateway:
        yield gateway


@pytest.fixture
def client(real_gateway):
    with openai.OpenAI(
        base_url=real_gateway.url, api_key="none", max_retries=0, timeout=120.0
    ) as found:
        yield found


def chat(client, model, **more):
    messages = [{"role": "user", "content": prompt(*QUESTIONS[0][:3])}]
    return client.chat.completions.with_raw_response.create(
        model=model, messages=messages, temperature=0, max_tokens=8, **more
    )


def test_the_real_client_is_answered_by_one_of_the_real_models(client):
    raw = chat(client, "ttamer")
    by, path = raw.headers["x-ttamer-answered-by"], raw.headers["x-ttamer-path"].split(",")
    assert by in path
    assert set(path) <= {"small", "large"}
    assert float(raw.headers["x-ttamer-cost"]) == sum({"small": 1, "large": 3}[n] for n in path)
    answer = raw.parse()
    assert answer.model == by
    assert answer.usage.completion_tokens >= 1
    alone = chat(client, by).parse()
    assert answer.choices[0].message.content == alone.choices[0].message.content != ""


def test_a_request_is_audited_over_both_real_models(client, real_gateway, real_cascade):
    auditor = real_gateway.gateway.audits._auditor
    before = auditor.audited
    chat(client, "ttamer")
    until = time.monotonic() + 120
    while auditor.written <= before and time.monotonic() < until:
        time.sleep(0.05)
    row = auditor.log._waiting[-1]
    for name, cost in (("small", 1.0), ("large", 3.0)):
        alone = ask(real_cascade, name, prompt(*QUESTIONS[0][:3]))
        assert row.answers[name].prediction == alone.prediction
        assert row.answers[name].confidence == pytest.approx(alone.confidence, abs=1e-6)
        assert row.answers[name].cost == cost


@pytest.mark.parametrize("model", ["ttamer", "small"])
def test_the_real_client_reads_a_stream(client, model):
    whole = chat(client, model)
    raw = chat(client, model, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in raw.parse() if chunk.choices]
    assert raw.headers["x-ttamer-answered-by"] == whole.headers["x-ttamer-answered-by"]
    assert raw.headers["x-ttamer-cost"] == whole.headers["x-ttamer-cost"]
    assert "".join(pieces) == whole.parse().choices[0].message.content
