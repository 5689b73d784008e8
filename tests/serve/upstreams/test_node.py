from __future__ import annotations

import asyncio
import math

import pytest

from support.faulty_upstream import truth
from ttamer.errors import CascadeError
from ttamer.llm.confidence import Unreadable
from ttamer.serve.config import NodeSettings, TokenCost, settings_from
from ttamer.serve.upstreams import upstream as upstream_module
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.node import call_cost, open_nodes
from ttamer.serve.upstreams.upstream import NO_REQUEST, CallContext, UpstreamFailed
from ttamer.trace.spec import CascadeSpec, toml_text

CHAT = "/chat/completions"


def body(text="Which?", **more):
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def small(start_upstream):
    return start_upstream("small", skill=1.0)


def node_asked(tables, path, request, *, name="small", compare="choice", context=NO_REQUEST):
    text = "[serve]\n" + toml_text({"compare": compare})
    for each, table in tables.items():
        text += "[[node]]\n" + toml_text({"name": each, "cost": 2.0} | table)
    settings = settings_from(CascadeSpec.from_toml(text))

    async def go():
        async with HttpClient() as session:
            return await open_nodes(settings, session)[name].ask(path, request, context)

    return asyncio.run(go())


def asked(upstream, path=CHAT, request=None, **table):
    tables = {"small": {"upstream": upstream.url} | table}
    return node_asked(tables, path, request or body())


def test_a_letter_is_as_sure_as_its_probability(small):
    said = asked(small)
    assert said.prediction == said.text == truth("Which?")
    text, sure = small.answer("Which?", 0)
    assert (text, pytest.approx(said.confidence)) == (said.prediction, sure)
    assert (said.cost, small.count) == (2.0, 1)


def test_log_probabilities_are_asked_for_and_only_shown_on_request(small):
    said = asked(small)
    assert small.requests[0]["logprobs"] is True
    assert said.response["choices"][0]["logprobs"] is None
    said = asked(small, request=body(logprobs=True))
    assert said.response["choices"][0]["logprobs"]["content"]


def test_completions_have_log_probabilities_too(small):
    said = asked(small, "/completions", {"prompt": "Which?"})
    assert small.requests[0]["logprobs"] == 1
    assert said.prediction == truth("Which?")
    assert 0 < said.confidence < 1


def test_answers_are_compared_by_the_rule_of_the_cascade(small):
    small.answer = lambda prompt, sample: ("The Moon.", 0.5)
    tables = {"small": {"upstream": small.url}}
    said = node_asked(tables, CHAT, body(), compare="normalised")
    assert (said.prediction, said.text) == ("the moon", "The Moon.")
    assert said.confidence == pytest.approx(0.5)
    assert node_asked(tables, CHAT, body(), compare="choice").prediction is None


def test_agreement_asks_several_times_and_returns_the_modal_answer(small):
    small.answer = lambda prompt, sample: ("ABB"[sample % 3], 0.9)
    said = asked(small, confidence="agreement", samples=3)
    assert (said.prediction, said.text) == ("B", "B")
    assert said.response["choices"][0]["message"]["content"] == "B"
    assert said.confidence == pytest.approx(2 / 3)
    assert (said.cost, small.count) == (6.0, 3)
    assert {request["temperature"] for request in small.requests} == {0.7}


def test_samples_keep_the_requests_temperature_and_differ_in_seed(small):
    request = body(temperature=1.2, seed=5)
    asked(small, request=request, confidence="agreement", samples=2, temperature=0.3)
    assert sorted(r["seed"] for r in small.requests) == [5, 6]
    assert {r["temperature"] for r in small.requests} == {1.2}
    asked(small, request=body(temperature=0), confidence="agreement", samples=2, temperature=0.3)
    assert {r["temperature"] for r in small.requests[2:]} == {0.3}


def test_a_sample_that_fails_agrees_with_no_other_and_is_paid(small):
    small.answer = lambda prompt, sample: ("B", 0.9)
    small.plan = ["garbage"]
    said = asked(small, confidence="agreement", samples=4)
    assert said.confidence == pytest.approx(3 / 4)
    assert said.cost == 8.0


def test_a_sample_that_the_upstream_refuses_costs_nothing(small):
    small.answer = lambda prompt, sample: ("B", 0.9)
    small.plan, small.status = ["error"], 503
    said = asked(small, confidence="agreement", samples=4)
    assert said.confidence == pytest.approx(3 / 4)
    assert said.cost == 6.0


def test_no_sample_is_no_answer(small):
    small.mode = "garbage"
    with pytest.raises(UpstreamFailed, match="not JSON"):
        asked(small, confidence="agreement", samples=3)


def test_a_verifier_judges_the_answer(small, start_upstream):
    judge = start_upstream("judge")
    judge.yes = lambda prompt: 0.8 if "Which?" in prompt and truth("Which?") in prompt else 0.1
    tables = {
        "small": {"upstream": small.url, "confidence": "verifier", "verifier": "judge"},
        "judge": {"upstream": judge.url, "cost": 0.5, "model": "judging"},
    }
    said = node_asked(tables, CHAT, body())
    assert said.confidence == pytest.approx(0.8)
    assert (said.prediction, said.cost) == (truth("Which?"), 2.5)
    assert judge.requests[0]["model"] == "judging"
    assert "logprobs" not in small.requests[0]
    answer, small.answer = small.answer, lambda *_: (" ", 0.9)
    empty = node_asked(tables, CHAT, body())
    assert (empty.confidence, empty.cost, judge.count) == (0.0, 2.0, 1)  # without a call
    small.answer = answer
    judge.mode = "error"
    with pytest.raises(UpstreamFailed, match="'small': its verifier failed") as caught:
        node_asked(tables, CHAT, body())
    assert caught.value.kind == "error"


def test_a_field_of_a_classifiers_response(small):
    said = asked(
        small, "/classify", {"input": "Which?"}, confidence="field", field="score", answer="label"
    )
    assert said.prediction == truth("Which?")
    assert said.confidence == pytest.approx(small.answer("Which?", 0)[1])


def test_tokens_are_priced_by_the_usage(small):
    request = body("one two three")
    said = asked(small, request=request, cost_per_token={"input": 0.5, "output": 10.0})
    assert said.cost == 2.0 + 3 * 0.5 + 1 * 10.0


@pytest.mark.parametrize("count", [None, -1, 1.5, 2**60, "3"])
def test_tokens_that_cannot_be_counted_are_not_priced(count):
    node = NodeSettings("n", 1.0, "http://x/v1", "n", cost_per_token=TokenCost(1.0, 1.0))
    with pytest.raises(Unreadable, match="usage"):
        call_cost(node, {"usage": {"prompt_tokens": 1, "completion_tokens": count}})


@pytest.mark.parametrize("lacking", ["choices", "usage"])
def test_a_response_that_lacks_a_part_is_garbage(small, monkeypatch, lacking):
    parsed = upstream_module.Upstream._parsed
    monkeypatch.setattr(
        upstream_module.Upstream,
        "_parsed",
        lambda self, content: {k: v for k, v in parsed(self, content).items() if k != lacking},
    )
    with pytest.raises(UpstreamFailed, match=lacking) as caught:
        asked(small, cost_per_token={"input": 1})
    assert (caught.value.kind, caught.value.node) == ("garbage", "small")


def test_the_time_is_for_all_calls_of_a_node(small, start_upstream, monkeypatch):
    given = {}
    call = upstream_module.Upstream.call

    async def noted(self, path, body, context, **options):
        given[self.settings.name] = context.deadline
        return await call(self, path, body, context, **options)

    monkeypatch.setattr(upstream_module.Upstream, "call", noted)
    tables = {
        "small": {"upstream": small.url, "confidence": "verifier", "verifier": "judge"},
        "judge": {"upstream": start_upstream("judge").url},
    }
    context = CallContext.within(20.0)
    node_asked(tables, CHAT, body(), context=context)
    assert given == {"small": context.deadline, "judge": context.deadline}


def answering(upstream, **message):
    """Let an upstream answer with a message, and without log-probabilities."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}}
    upstream._completion = lambda *_: {"choices": [choice], "object": "chat.completion"}


@pytest.mark.parametrize(
    ("message", "prediction"),
    [
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
         'arguments": {}, "name": "f'),
        ({"refusal": "I cannot."}, "i cannot"),
        ({"content": ""}, None),
        ({"content": None, "reasoning_content": "Hm"}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", ["logprobs", "product", "min", "margin", "entropy", "none"])
def test_answers_that_are_not_text_have_the_lowest_confidence(small, message, prediction, source):
    answering(small, **message)
    tables = {"small": {"upstream": small.url, "confidence": source}}
    found = node_asked(tables, CHAT, body(), compare="normalised")
    lowest = -math.log(6) if source == "entropy" else 0.0
    assert (found.prediction, found.confidence) == (prediction, pytest.approx(lowest))
    found = asked(small, confidence=source, extras=["margin", "entropy"])
    assert (found.margin, found.entropy) == (0.0, pytest.approx(math.log(6)))


def test_a_text_without_log_probabilities_is_a_failure_unless_none_are_needed(small):
    answering(small, content="Paris")
    with pytest.raises(UpstreamFailed, match=r'another confidence .*"none"'):
        asked(small)
    found = asked(small, confidence="none")
    assert (found.text, found.confidence) == ("Paris", 0.0)


@pytest.mark.parametrize(
    ("source", "confidence"),
    [("min", 0.5), ("product", 0.25), ("margin", 0.5), ("entropy", -math.log(2))],
)
def test_confidence_from_tokens(small, source, confidence):
    small.answer = lambda *_: ("B it" if source == "product" else "B", 0.5)
    found = asked(small, confidence=source)
    assert found.confidence == pytest.approx(confidence)
    assert found.response["choices"][0]["logprobs"] is None
    assert small.requests[0].get("top_logprobs") == (5 if source in ("margin", "entropy") else None)


def test_several_measures_at_once_and_no_more_shown_than_asked_for(small):
    small.answer = lambda *_: ("B", 0.5)
    found = asked(small, request=body(logprobs=True), extras=["margin", "entropy"])
    assert found.margin == pytest.approx(0.5)
    assert found.entropy == pytest.approx(math.log(2))
    (token,) = found.response["choices"][0]["logprobs"]["content"]
    assert token["top_logprobs"] == []
    assert asked(small).margin is None


def test_request_fields_are_renamed_and_dropped(small):
    params = {"max_tokens": "max_completion_tokens", "temperature": False}
    asked(small, request=body(max_tokens=7, temperature=0, top_p=1), params=params)
    sent = small.requests[0]
    assert sent["max_completion_tokens"] == 7
    assert sent["top_p"] == 1
    assert not {"max_tokens", "temperature"} & set(sent)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"params": {"logprobs": False}}, "params drop logprobs"),
        ({"params": {"max_tokens": True}}, "a table like"),
        ({"params": ["max_tokens"]}, "a table like"),
        ({"extras": ["mood"]}, "a list of"),
        ({"extras": ["margin"], "confidence": "agreement", "samples": 3}, "extras are of one"),
        ({"tokens": "last"}, '"all", "first"'),
    ],
)
def test_settings_that_do_not_fit_are_refused(small, table, text):
    with pytest.raises(CascadeError, match=text):
        asked(small, **table)
