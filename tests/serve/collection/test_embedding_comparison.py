"""Answers compared by embeddings: when collecting, when serving, in audits, and in Python."""

from __future__ import annotations

import asyncio
import json

import httpx2 as httpx
import pytest

from support.changing import Traffic
from support.running_gateway import running
from ttamer.cli import main
from ttamer.drift.audit_log import read_log
from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.llm.labelling import KeptRow
from ttamer.llm.prompts import Prompt
from ttamer.serve.collection.collecting import collect_upstreams
from ttamer.serve.collection.comparing import Likeness
from ttamer.serve.config import read_settings
from ttamer.serve.formats import openai
from ttamer.serve.gateway import Gateway
from ttamer.serve.request import RequestContext
from ttamer.serve.upstreams.node import NodeAnswer
from ttamer.serve.upstreams.probing import probe

LABEL = "alpha beta gamma"
RIGHT, WRONG = "alpha beta gamma zeta", "alpha delta epsilon"  # cosines 0.87 and 0.33
PROMPTS = [Prompt({"messages": [{"role": "user", "content": f"{n}?"}]}, LABEL) for n in range(16)]
THRESHOLD = {"kind": "embedding", "threshold": 0.6}


def is_right(name, prompt):
    return name == "large" or int(prompt.removesuffix("?")) % 2 == 0


@pytest.fixture
def served(make_served, start_upstream):
    """A cascade whose answers are compared by embeddings; ``served(compare)``."""

    def make(compare="embedding", **serve):
        upstream = start_upstream("embeddings")
        table = {"upstream": upstream.url, "cost": 0.25}
        found = make_served(2, serve={"compare": compare, "embeddings": table} | serve)
        for name, each in found.upstreams.items():
            each.answer = lambda prompt, _, name=name: (
                RIGHT if is_right(name, prompt) else WRONG, 0.9 if name == "large" else 0.3
            )  # fmt: skip
        found.upstreams["embeddings"] = upstream
        return found

    return make


def collected(served, **options):
    return collect_upstreams(
        read_settings(served.cascade), PROMPTS, served.cascade.with_name("journal"), **options
    )


def counts(served):
    return [upstream.count for upstream in served.upstreams.values()]


def check(trace):
    """The right answers are the right ones, and equal ones are one prediction."""
    expected = [[is_right(name, f"{n}?") for name in trace.names] for n in range(16)]
    assert trace.correct.tolist() == expected
    equal = trace.prediction[:, 0] == trace.prediction[:, 1]
    assert equal.tolist() == [row[0] for row in expected]


def test_a_threshold_is_fitted_to_another_rule_on_the_labels(served):
    found = served()
    trace = collected(found, likeness=Likeness(like="contains"))
    check(trace)
    compare = trace.spec.serve["compare"]
    assert compare == {"kind": "embedding", "threshold": pytest.approx(0.6, abs=0.01)}
    assert (
        "agrees with the labels on 24 of 24 pairs (100%, 95% interval 86% to 100%)"
        in (trace.notes[0])
    )
    assert "threshold = " in trace.notes[1]
    assert trace.notes[2] == "3 likenesses by embeddings, which cost 0.25"
    assert counts(found) == [16, 16, 1]
    # Another threshold needs no further call of any upstream.
    text = found.cascade.read_text()
    found.cascade.write_text(text.replace('"embedding"', "{kind = 'embedding', threshold = 0.95}"))
    with pytest.raises(TraceError, match="no answer equals any label"):
        collected(found)
    assert counts(found) == [16, 16, 1]


def test_a_threshold_is_fitted_to_given_pairs_and_must_agree(served, tmp_path):
    found, file = served(), tmp_path / "pairs.jsonl"
    pairs = [(LABEL, RIGHT, True), (LABEL, WRONG, False)] * 12
    lines = [json.dumps({"one": a, "two": b, "equal": equal}) for a, b, equal in pairs]
    file.write_text("\n".join(lines))
    check(collected(found, likeness=Likeness(pairs=file)))
    lines = [line.replace("true", "false" if n % 4 else "true") for n, line in enumerate(lines)]
    file.write_text("\n".join([*lines, *lines[:1]]))
    with pytest.raises(TraceError, match=r"threshold .* and at least 99% is needed"):
        collected(found, likeness=Likeness(pairs=file, min_agreement=0.99))
    file.write_text("{}")
    with pytest.raises(TraceError, match="line 1 is not a labelled pair"):
        collected(found, likeness=Likeness(pairs=file))
    file.write_text(json.dumps({"one": "a", "two": "b", "equal": True}))
    with pytest.raises(TraceError, match="at least 20 labelled pairs"):
        collected(found, likeness=Likeness(pairs=file))


def test_a_threshold_is_fitted_to_the_labels_of_a_person(served, tmp_path):
    found, file = served(), tmp_path / "labels.jsonl"
    lines = []
    for n in range(16):
        texts = {name: RIGHT if is_right(name, f"{n}?") else WRONG for name in ("small", "large")}
        names = [name for name in texts if is_right(name, f"{n}?")]
        lines.append({"key": KeptRow(f"{n}?", None, texts).key, "right": names})
    more = [{"one": LABEL, "two": RIGHT, "equal": True}] * 8  # both kinds in one file
    file.write_text("\n".join(map(json.dumps, [*lines, *more, {"key": "other", "right": []}])))
    trace = collected(found, likeness=Likeness(pairs=file))
    check(trace)
    assert "24 of 24 pairs" in trace.notes[0]


def test_of_several_aliases_the_nearest_one_counts(served):
    found = served(THRESHOLD)
    prompts = [Prompt(each.body, (LABEL, "omega psi")) for each in PROMPTS]
    trace = collect_upstreams(
        read_settings(found.cascade), prompts, found.cascade.with_name("journal"),
        likeness=Likeness(like="contains"),
    )  # fmt: skip
    check(trace)
    assert "24 of 24 pairs" in trace.notes[0]  # one for each answer, not for each alias


def test_a_threshold_that_is_given_is_measured(served):
    trace = collected(served(THRESHOLD), likeness=Likeness(like="contains"))
    assert trace.notes[0].endswith("as it is given; 16 of them are equal")
    assert "24 of 24" in trace.notes[0]


def test_a_local_model_embeds_texts(served):
    found = served()
    settings = read_settings(found.cascade)
    asked = []

    def embed(texts):
        asked.extend(texts)
        return [[float(text.count("m")), float(text.count("d")), 1e-3] for text in texts]

    trace = collect_upstreams(
        settings, PROMPTS, found.cascade.with_name("local"),
        likeness=Likeness(like="contains", embed=embed),
    )  # fmt: skip
    check(trace)
    assert sorted(asked) == sorted([LABEL, RIGHT, WRONG])
    assert counts(found)[2] == 0
    with pytest.raises(TraceError, match="raised"):
        collect_upstreams(
            settings, PROMPTS, found.cascade.with_name("local"),
            likeness=Likeness(like="contains", embed=lambda texts: 1 / 0),
        )  # fmt: skip


def test_what_is_missing_is_refused_before_anything_is_asked(served, capsys):
    found = served()
    with pytest.raises(ArgumentError, match="has no threshold"):
        collected(found)
    with pytest.raises(ArgumentError, match="another rule"):
        Likeness(like="embedding")
    plain = served("normalised")
    with pytest.raises(ArgumentError, match="are for compare"):
        collected(plain, likeness=Likeness(like="contains"))
    assert counts(plain) == [0, 0, 0]
    found = served()
    with pytest.raises(CascadeError, match="ttamer collect fits one"):
        Gateway(read_settings(found.cascade), found.artefact)
    assert main(["serve", str(found.cascade), str(found.artefact), "--check"]) == 2
    assert "has no threshold" in capsys.readouterr().err


def test_the_command_prints_the_threshold(served, tmp_path, capsys):
    found = served()
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{n}?", "label": LABEL} for n in range(16)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = ["collect", str(found.cascade), "--prompts", str(prompts), "--like", "contains",
               "-o", str(tmp_path / "trace.parquet")]  # fmt: skip
    assert main([*command, "--min-agreement", "0.5"]) == 0
    assert "24 of 24 pairs" in capsys.readouterr().out
    assert "threshold = 0." in (tmp_path / "trace.toml").read_text()


def test_a_probe_asks_the_embeddings_upstream(served):
    found = served(THRESHOLD)
    *_, last = asyncio.run(probe(read_settings(found.cascade)))
    assert (last.node, last.ok) == ("embeddings", True)
    found.upstreams["embeddings"].mode = "error"
    *_, last = asyncio.run(probe(read_settings(found.cascade)))
    assert not last.ok
    assert "out of order" in last.error


def ask(gateway, text):
    body = {"model": "ttamer", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30.0)


def test_the_gateway_compares_by_embeddings_and_books_them(served, monkeypatch):
    found = served(THRESHOLD, tradeoff=1.0)
    found.upstreams["small"].answer = lambda *_: (LABEL, 0.3)
    with running(found.cascade, found.artefact) as gateway:
        seen = []
        real = type(gateway.gateway).answer

        async def answer(self, request, policy):
            outcome = await real(self, request, policy)
            seen.append([call.prediction for call in outcome.asked])
            return outcome

        monkeypatch.setattr(type(gateway.gateway), "answer", answer)
        response = ask(gateway, "2?")
        assert seen[0] == [LABEL, LABEL]
        assert response.headers["x-ttamer-cost"] == "13.75"  # two nodes and one embedding
        assert ask(gateway, "4?").headers["x-ttamer-cost"] == "13.5"  # the texts are known
        found.upstreams["embeddings"].mode = "error"
        found.upstreams["large"].answer = lambda *_: ("new text", 0.9)
        assert ask(gateway, "6?").status_code == 200  # each is an answer of its own
        assert len(set(seen[2])) == 2


def test_the_gateway_takes_a_local_model(served):
    found = served(THRESHOLD)
    asked = []

    async def embed(texts):
        asked.extend(texts)
        return [[1.0, float("z" in text)] for text in texts]

    async def go():
        gateway = Gateway(read_settings(found.cascade), found.artefact, embed=embed)
        async with gateway:
            body = {"model": "ttamer", "messages": [{"role": "user", "content": "q"}]}
            request = RequestContext.parse(body, openai.CHAT_COMPLETIONS)
            answers = [NodeAnswer(text, 0.5, text, {}, 1.0) for text in (LABEL, RIGHT, WRONG)]
            return [(await gateway.taken(request, "small", each)).prediction for each in answers]

    assert asyncio.run(go()) == [LABEL, LABEL, LABEL]  # cosines of 0.71 and 1
    assert set(asked) == {LABEL, RIGHT, WRONG}
    assert counts(found)[2] == 0


def test_a_label_is_compared_with_audited_answers_by_embeddings(served, tmp_path):
    log = tmp_path / "audits"
    audit = {"share": 1.0, "log": str(log), "log_answers": True}
    found = served(THRESHOLD, audit=audit)
    with running(found.cascade, found.artefact) as gateway, Traffic(gateway) as traffic:
        body = {"model": "ttamer", "messages": [{"role": "user", "content": "2?"}]}
        response = traffic.client.post("/v1/chat/completions", json=body)
        label = {"request": response.headers["x-request-id"], "label": LABEL}
        assert traffic.client.post("/v1/labels", json=label).json()["audited"]
        metrics = gateway.gateway.metrics
    assert "ttamer_audit_cost_total 0.25" in metrics.text().decode().splitlines()
    rows = read_log(log, labelled=True)
    assert rows.classes[rows.label[0]] == RIGHT
    assert (rows.prediction[0] == rows.label[0]).all()
