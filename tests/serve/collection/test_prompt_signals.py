"""Signals of prompts: the same when collecting and when serving; the first node is chosen."""

from __future__ import annotations

import httpx2 as httpx
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.changing import Traffic
from support.running_gateway import running
from ttamer.drift.audit_log import read_log
from ttamer.errors import ArtefactError, CascadeError
from ttamer.fitted.belief import BOOKKEEPING
from ttamer.llm.prompts import SIGNALS, Prompt, embedding_signals, prompt_signals
from ttamer.serve.collection.collecting import collect_upstreams
from ttamer.serve.config import read_settings, settings_from
from ttamer.serve.gateway import Gateway
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace


def chat(*texts):
    return {"messages": [{"role": "user", "content": text} for text in texts]}


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_every_prompt_has_finite_signals(texts):
    found = prompt_signals(chat(*texts))
    assert tuple(found) == SIGNALS
    assert all(abs(value) < 1e6 for value in found.values())


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Who wrote it?", "prompt_question", 1.0),
        ("How many are there?", "prompt_question", 2.0),
        ("Why is it so?", "prompt_question", 3.0),
        ("Tell a story.", "prompt_question", 0.0),
        ("Which?\nA) one\nB) two", "prompt_choices", 2.0),
        ("\u041a\u0442\u043e \u044d\u0442\u043e?", "prompt_script", 1.0),
        ("f(x)", "prompt_code", 0.5),
        ("1 a", "prompt_digits", 1 / 3),
    ],
)
def test_signals_tell_kinds_of_prompts_apart(text, name, value):
    assert prompt_signals(chat(text))[name] == pytest.approx(value)
    assert prompt_signals({"prompt": text})[name] == pytest.approx(value)


def test_the_last_message_counts_apart_from_the_whole_and_parts_are_read():
    found = prompt_signals({"messages": [
        {"role": "system", "content": "x" * 500},
        {"role": "user", "content": [{"type": "text", "text": "How?"}]},
    ]})  # fmt: skip
    assert found["prompt_turns"] == 2
    assert found["prompt_last_length"] < 2 < 6 < found["prompt_length"]


def test_near_embeddings_have_near_signals():
    first, near, far = (
        list(embedding_signals(vector, 4).values())
        for vector in ([1.0, 0.0, 0.2], [2.0, 0.0, 0.41], [-1.0, 1.0, 0.0])
    )
    assert first == pytest.approx(near, abs=0.02)
    assert first != pytest.approx(far, abs=0.2)


EASY = [f"What is thing {number}?" for number in range(120)]
HARD = [f"Why does rule {number} hold, and how is it derived?" for number in range(120)]


def answers(skilled):
    """From a prompt to an answer whose confidence says nothing about it."""

    def answer(prompt, sample):
        del sample
        right = skilled or prompt.startswith("What")
        return ("A" if right else "B"), 0.8

    return answer


def ask(gateway, text):
    body = {"model": "ttamer", **chat(text)}
    response = httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30)
    assert response.status_code == 200
    return response.headers["x-ttamer-path"]


def test_equal_prompts_are_embedded_once(make_served, start_upstream):
    embeddings = start_upstream("embeddings")
    table = {"upstream": embeddings.url, "signals": 3}
    served = make_served(serve={"signals": True, "embeddings": table})
    for upstream in served.upstreams.values():
        upstream.answer = lambda *_: ("A", 0.9)
    prompts = [Prompt(chat("What is it?"), "A")] * 3
    collect_upstreams(read_settings(served.cascade), prompts, served.cascade.with_name("journal"))
    assert [body["input"] for body in embeddings.requests] == [["What is it?"]]


def test_the_first_node_is_chosen_by_the_prompt(make_served, start_upstream):
    embeddings = start_upstream("embeddings")
    table = {"upstream": embeddings.url, "signals": 3}
    served = make_served(
        serve={"signals": True, "embeddings": table, "tradeoff": 0.8}, node={"small": {"cost": 6.0}}
    )
    for name, upstream in served.upstreams.items():
        upstream.answer = answers(name == "large")
    prompts = [Prompt(chat(text), "A") for text in [*EASY, *HARD]]
    settings, journal = read_settings(served.cascade), served.cascade.with_name("journal")
    trace = collect_upstreams(settings, prompts, journal)
    assert set(trace.signals) == {*SIGNALS, *(f"prompt_embedding_{k}" for k in range(3))}
    assert embeddings.count == 4  # 240 prompts, 64 in a call
    tt.save(tt.fit(trace), served.artefact)
    again = collect_upstreams(settings, prompts, journal)
    assert embeddings.count == 4
    assert again.signals["prompt_embedding_0"].tolist() == (
        trace.signals["prompt_embedding_0"].tolist()
    )
    with running(served.cascade, served.artefact) as gateway:
        assert ask(gateway, "What is thing 500?") == "small"
        assert ask(gateway, "Why does rule 500 hold, and how is it derived?") == "large"
        assert embeddings.count == 6
        embeddings.mode = "error"
        assert ask(gateway, "What is thing 501?")  # answered without its embedding
        assert [line["event"] for line in gateway.log].count("embedding") == 1


def test_audited_rows_hold_the_signals_and_the_loop_decides_by_them(make_served, start_upstream):
    embeddings = start_upstream("embeddings")
    served = make_served(
        serve={
            "signals": True,
            "embeddings": {"upstream": embeddings.url, "signals": 2},
            "audit": {"share": 1.0, "log": "LOG", "reference": "REFERENCE", "error": 0.1},
        },
        node={"small": {"cost": 6.0}},
    )
    for name, upstream in served.upstreams.items():
        upstream.answer = answers(name == "large")
    folder = served.cascade.parent
    text = served.cascade.read_text().replace("LOG", str(folder / "audits"))
    text = text.replace('"any"', '"any"\ntarget = "last"')
    served.cascade.write_text(text.replace("REFERENCE", str(folder / "held.parquet")))
    settings = read_settings(served.cascade)
    prompts = [Prompt(chat(text)) for text in [*EASY, *HARD]]
    trace = collect_upstreams(settings, prompts, folder / "journal")
    trace.take(slice(0, 200)).write(folder / "held.parquet")
    tt.save(tt.fit(trace.take(slice(40, None))), served.artefact)
    with running(served.cascade, served.artefact) as gateway, Traffic(gateway) as traffic:
        for text in (HARD[0], HARD[1], EASY[0]):
            ask(gateway, text)
        assert traffic.settle()["seen"] == 3
        (first, *_) = rows = list(gateway.gateway.drift.loop._rows)
        assert tuple(first.signals) == settings.serve.signal_names
        embeddings.mode = "error"  # without all signals there is no row
        ask(gateway, "What is thing 501?")
        status = traffic.settle()
        assert (status["seen"], status["failed"]) == (3, 1)
    refitted = tt.fit(Trace.concat([*rows * 60]))  # as the loop fits its rows
    assert refitted.fitted.belief.signals is not None
    log = read_log(folder / "audits")
    assert set(log.signals) == {*settings.serve.signal_names, *BOOKKEEPING}
    assert log.signals["prompt_question"].tolist() == [3.0, 3.0, 1.0]
    # What was fitted with signals is not served without them.
    text = served.cascade.read_text().replace("signals = true", "signals = false")
    served.cascade.write_text(text.replace("signals = 2", "signals = 0"))
    with pytest.raises(ArtefactError, match=r"signals prompt_.*not computed"):
        Gateway(read_settings(served.cascade), served.artefact).load()


def test_signals_are_refused_where_they_would_be_missing():
    text = "[[node]]\nname = 'a'\ncost = 1\nupstream = 'http://127.0.0.1:1/v1'\n"
    alone = "[serve.embeddings]\nupstream = 'http://127.0.0.1:1/v1'\nsignals = 2\n"
    with pytest.raises(CascadeError, match="need signals = true"):
        settings_from(CascadeSpec.from_toml(alone + text))
    with pytest.raises(CascadeError, match="lacks upstream"):
        settings_from(CascadeSpec.from_toml("[serve.embeddings]\nsignals = 2\n" + text))
