"""A node: what it sends, and what it reads in a response."""

import asyncio
import math

import pytest
from hypothesis import given, strategies as st

from ttamer import CascadeSpec
from ttamer.cascade import from_tables, split_nodes
from ttamer.errors import CascadeError
from ttamer.llm.client import Response, UpstreamFailed
from ttamer.llm.compare import Comparison
from ttamer.llm.node import ModelNode, Work, ineligible, open_nodes
from ttamer.llm.settings import NodeSettings, TokenCost, comparison_of, read_nodes

USAGE = {"prompt_tokens": 10, "completion_tokens": 4}


def completion(text="4", logprob=-0.5, **more):
    entry = {"token": text, "logprob": logprob}
    entry["top_logprobs"] = [entry | {}, {"token": "5", "logprob": -2.0}]
    choice = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": [entry]}}
    return {"choices": [choice], "usage": USAGE, **more}


class Fake:
    """An upstream that returns prepared responses, and keeps the requests."""

    def __init__(self, *responses):
        self.responses, self.bodies = list(responses), []

    async def complete(self, body, deadline=None, *, headers=None):
        del deadline, headers
        self.bodies.append(dict(body))
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response if isinstance(response, Response) else Response(response)


def settings(**options):
    return NodeSettings(name="small", **{"cost": 1.0, "upstream": "http://h/v1", **options})


def ask(fake, compare=None, body=None, work=None, **options):
    node = ModelNode(settings(**options), fake, compare)
    work = work or Work(body or {"messages": [{"role": "user", "content": "2 + 2?"}]})
    return asyncio.run(node.ask(work)), work


@pytest.mark.parametrize(
    ("options", "sent", "confidence"),
    [
        ({}, {"logprobs": True}, math.exp(-0.5)),
        ({"confidence": "product"}, {"logprobs": True}, math.exp(-0.5)),
        ({"confidence": "none"}, {}, 0.0),
    ],
)
def test_each_source_of_confidence_sends_what_it_needs_and_reads_it(options, sent, confidence):
    fake = Fake(completion())
    reply, _ = ask(fake, **options)
    assert {name: fake.bodies[0][name] for name in sent} == sent
    assert ("logprobs" in fake.bodies[0]) == bool(sent)
    assert reply.prediction == "4"
    assert reply.confidence == pytest.approx(confidence)


def test_log_probabilities_that_the_client_did_not_ask_for_are_not_shown():
    reply, _ = ask(Fake(completion()))
    assert reply.answer.response["choices"][0]["logprobs"] is None
    body = {"messages": [], "logprobs": True}
    reply, _ = ask(Fake(completion()), body=body)
    assert reply.answer.response == completion()


def test_a_self_report_is_a_second_call_and_never_costs_the_answer():
    report = completion("85")
    reply, work = ask(Fake(completion(), report), confidence="self-report")
    assert (reply.confidence, reply.cost, work.usage.prompt) == (0.85, 2.0, 20)
    assert reply.answer.confidence_cost == 1.0
    lost = UpstreamFailed("small", "timeout", "late")
    reply, _ = ask(Fake(completion(), lost), confidence="self-report")
    assert (reply.confidence, reply.cost) == (0.0, 2.0)


def test_several_answers_agree_and_all_are_paid_but_those_that_never_were_made():
    responses = [
        completion("4"),
        UpstreamFailed("small", "busy", "no"),
        completion("5"),
        completion("4"),
    ]
    fake = Fake(*responses)
    body = {"messages": [], "seed": 7}
    reply, _ = ask(fake, body=body, confidence="agreement", samples=4)
    assert (reply.prediction, reply.confidence, reply.cost) == ("4", 0.5, 3.0)
    assert [(sent["seed"], sent["temperature"]) for sent in fake.bodies] == [
        (7, 0.7),
        (8, 0.7),
        (9, 0.7),
        (10, 0.7),
    ]


PRICE = TokenCost(input=1.0, output=4.0, cached=0.5, reasoning=2.0)
DETAILED = USAGE | {
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


@pytest.mark.parametrize(
    ("price", "usage", "stated", "cost", "is_measured"),
    [
        (None, USAGE, None, 1.0, True),
        (TokenCost(input=1.0, output=4.0), USAGE, None, 27.0, True),
        (PRICE, DETAILED, None, 1 + 4 + 3 + 4 + 6, True),
        (PRICE, DETAILED, 0.125, 0.125, True),
        (PRICE, None, None, 1.0, False),
        (PRICE, {"prompt_tokens": -1, "completion_tokens": 1}, None, 1.0, False),
        (PRICE, {"prompt_tokens": "many"}, None, 1.0, False),
        (None, {"prompt_tokens": 10**30, "completion_tokens": 1}, None, 1.0, True),
    ],
)
def test_a_call_costs_what_its_server_says_or_its_tokens(price, usage, stated, cost, is_measured):
    response = Response(completion(usage=usage), stated)
    reply, work = ask(Fake(response), cost_per_token=price)
    assert reply.cost == pytest.approx(cost)
    assert work.is_measured == is_measured


KEYS = ["choices", "message", "content", "logprobs", "usage", "token", "logprob", "top_logprobs"]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_whatever_a_response_holds_it_is_a_reply_or_a_failure(value):
    response = {"choices": [value], "usage": value} if not isinstance(value, dict) else value
    for source in ("logprobs", "product", "none"):
        try:
            reply, work = ask(Fake(response), confidence=source)
        except UpstreamFailed as error:
            assert error.kind == "garbage"
        else:
            assert not math.isnan(reply.confidence)
            assert work.usage.prompt >= 0


def test_predictions_that_are_equal_within_a_tolerance_become_the_first():
    compare = Comparison("numeric", tolerance=0.5)
    work = Work({"messages": []})
    first = ModelNode(settings(), Fake(completion("1.2")), compare)
    second = ModelNode(
        NodeSettings(name="big", cost=1, upstream="http://h/v1"), Fake(completion("1.5")), compare
    )

    async def run():
        return [(await one.ask(work)).prediction for one in (first, second)]

    assert asyncio.run(run()) == ["1.2", "1.2"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("options", "body", "reason"),
    [
        ({"context": 100}, {"messages": [{"content": "x" * 200}]}, ""),
        ({"context": 100}, {"messages": [{"content": "x" * 400}]}, "has a context of 100 tokens"),
        (
            {"context": 100},
            {"messages": [{"content": "x" * 200}], "max_tokens": 50},
            "has a context",
        ),
        ({"context": 100}, {"messages": [{"content": "\u6f22" * 101}]}, "has a context"),
        ({"context": 100}, {"messages": [{"content": [IMAGE]}]}, "has a context"),
        ({"accepts": ()}, {"messages": [{"content": [IMAGE]}]}, "does not take images"),
        ({"context": 100}, {"tools": [{"function": {"name": "x" * 300}}]}, "has a context"),
        ({"context": 100}, {"messages": [{"tool_calls": ["x" * 300]}]}, "has a context"),
        ({"accepts": ()}, {"tools": [{}]}, "does not take tools"),
        (
            {"accepts": ()},
            {"response_format": {"type": "json_schema"}},
            "does not take a JSON schema",
        ),
        ({"accepts": ()}, {"response_format": {"type": "json_object"}, "messages": "odd"}, ""),
        ({}, {"messages": [{"content": [IMAGE]}], "tools": [{}]}, ""),
    ],
)
def test_a_request_that_a_node_cannot_take_is_known_before_it_is_asked(options, body, reason):
    said = ineligible(settings(**options), body)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)
    if reason:
        fake = Fake()
        with pytest.raises(UpstreamFailed) as error:
            ask(fake, body=body, **options)
        assert (error.value.kind, error.value.paid, fake.bodies) == ("ineligible", False, [])


TOML = """
[serve]
compare = {{kind = "numeric", tolerance = 0.5}}
[[node]]
name = "small"
cost = 1
upstream = "http://127.0.0.1:8081/v1/"
{}
[[node]]
name = "big"
cost = 9
upstream = "http://127.0.0.1:8082/v1"
"""


def read(more=""):
    return read_nodes(CascadeSpec.from_toml(TOML.format(more)))


def test_nodes_are_read_from_a_cascade():
    small, big = read('params = {reasoning_effort = "low"}\nreplicas = 2').values()
    assert (small.upstream, small.model, small.cost) == ("http://127.0.0.1:8081/v1", "small", 1.0)
    assert small.params == {"reasoning_effort": "low"}
    assert big.needs_logprobs
    assert comparison_of(CascadeSpec.from_toml(TOML.format(""))).tolerance == 0.5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("timout = 3", r"\[\[node\]\] 1 \('small'\): has an unknown key 'timout'; did you mean"),
        ("timeout = -1", "timeout is -1; it must be a number above 0$"),
        ("timeout = true", "timeout is True; it must be a number"),
        ('confidence = "sure"', "confidence is 'sure'; it must be 'a"),
        ('upstream2 = "x"', "unknown key 'upstream2'; did you mean 'upstream'"),
        ("samples = 3", 'applies to confidence = "agreement" only'),
        ("verifier = 'big'", 'verifier is no setting any more: write confidence = "self-report"'),
        ("field = 'score'", "field is no setting any more: for servers of another format"),
        ('confidence = "field"', "confidence is 'field'; it must be 'agreement'"),
        ("params = {logprobs = false}", "params remove logprobs"),
        ("verify_cost = 1", "comes with the answer"),
        ("cost_per_token = {input = 1}", r"cost_per_token is .*; it lacks output"),
        ('api = "anthropic"', "api is no setting any more: nodes speak OpenAI's"),
        ("max_rate = 3", "max_rate is no setting any more"),
        ("breaker = 3", "breaker is no setting any more"),
        ('accepts = ["sound"]', "it must be 'images' or"),
        ("retries = 99", "retries is 99; it must be a whole number at most 10"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_what_is_allowed(more, message):
    with pytest.raises(CascadeError, match=message) as error:
        read(more)
    assert "`" not in str(error.value)


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        ("'judge'", "with ttamer label --judge NODE"),
        ("'embedding'", "with ttamer label --judge NODE"),
        ("'vibes'", "kind is 'vibes'; it must be 'choice' or"),
        ("3", "is 3; it must be a kind or a table"),
        ("{kind = 'json', feilds = ['x']}", "unknown key 'feilds'; did you mean 'fields'"),
        ("{kind = 'json', fields = 'a'}", "fields is 'a'; it must be a list"),
        ("{kind = 'numeric', tolerance = -1}", "tolerance is -1.0; it must be finite"),
        ("{tolerance = 1}", 'tolerance applies to compare = "numeric" only'),
    ],
)
def test_a_comparison_that_cannot_be_is_named_with_what_is_allowed(compare, message):
    spec = CascadeSpec.from_toml(f"serve = {{compare = {compare}}}\nnode = [{{name='a', cost=1}}]")
    with pytest.raises(CascadeError, match=rf"\[serve\]: compare.* {message}"):
        comparison_of(spec)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://h", 3])
def test_an_upstream_is_a_url(url):
    spec = from_tables({"node": [{"name": "a", "cost": 1, "upstream": url}]})
    with pytest.raises(CascadeError, match=r"upstream is .*; it must be"):
        read_nodes(spec)


def test_a_verified_answer_is_a_node_of_its_own():
    spec = CascadeSpec.from_toml(TOML.format('confidence = "self-report"\nverify_cost = 2'))
    fake = Fake(completion("4"), completion("90"))
    nodes = open_nodes(spec, read_nodes(spec), lambda _: fake, Comparison())
    assert tuple(nodes) == split_nodes(spec)[0].names
    work = Work({"messages": []})

    async def run():
        plain = await nodes["small"].ask(work)
        return plain, await nodes["small (verified)"].ask(work)

    plain, sure = asyncio.run(run())
    assert (plain.confidence, plain.cost) == (0.0, 1.0)
    assert (sure.prediction, sure.confidence, sure.cost) == ("4", 0.9, 2.0)
