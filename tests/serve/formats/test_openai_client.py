"""OpenAI's own client works unchanged: sync and async, streaming and not, errors included."""

from __future__ import annotations

import asyncio

import openai
import pytest

from support.faulty_upstream import truth

KEY = "a-key-of-the-tests-0001"
ASK = [{"role": "user", "content": "Which letter?"}]


def client(gateway, **options) -> openai.OpenAI:
    options = {"api_key": KEY, "max_retries": 0, "timeout": 30.0, **options}
    return openai.OpenAI(base_url=gateway.url, **options)


@pytest.fixture(params=[1, 2, 3])
def gateway(request, run_gateway):
    return run_gateway(request.param, serve={"tradeoff": 1.0})


def letters(gateway, prompt="Which letter?") -> set[str]:
    """What the upstreams say."""
    return {upstream.answer(prompt, 0)[0] for upstream in gateway.served.upstreams.values()}


def test_chat(gateway):
    with client(gateway) as openai_client:
        raw = openai_client.chat.completions.with_raw_response.create(model="ttamer", messages=ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content in letters(gateway)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.object == "chat.completion"
    asked = raw.headers["x-ttamer-path"].count(",") + 1
    if asked > 1:
        assert len(answer.model_extra["ttamer"]["nodes"]) == asked
    assert answer.usage.completion_tokens == asked
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + asked
    assert raw.headers["x-ttamer-answered-by"] == answer.model
    assert answer.model in raw.headers["x-ttamer-path"].split(",")
    assert float(raw.headers["x-ttamer-cost"]) > 0
    assert raw.headers["x-ttamer-policy"] == gateway.gateway.policies.current.version[:16]
    if len(gateway.served.upstreams) > 1:  # one node's own bytes are handed on
        assert answer.id == f"chatcmpl-{raw.headers['x-request-id']}"


def test_chat_that_streams(gateway):
    for upstream in gateway.served.upstreams.values():
        upstream.answer = lambda prompt, sample: ("A " + "long answer " * 20, 0.99)
    with (
        client(gateway) as openai_client,
        openai_client.chat.completions.create(model="ttamer", messages=ASK, stream=True) as stream,
    ):
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "A " + "long answer " * 20
    assert len(chunks) > 4
    assert {chunk.object for chunk in chunks} <= {"chat.completion.chunk", "chat.completion"}


def test_the_decided_answer_streams_as_openai_streams(run_gateway):
    gateway = run_gateway(2)
    with (
        client(gateway) as openai_client,
        openai_client.chat.completions.create(
            model="ttamer", messages=ASK, stream=True, stream_options={"include_usage": True}
        ) as stream,
    ):
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(chunks[-1].model_extra["ttamer"]["nodes"])
    assert len({chunk.id for chunk in chunks}) == 1


def test_text_completion_with_and_without_streaming(gateway):
    with client(gateway) as openai_client:
        whole = openai_client.completions.create(model="ttamer", prompt="Which letter?")
        parts = list(
            openai_client.completions.create(model="ttamer", prompt="Which letter?", stream=True)
        )
    assert whole.object == "text_completion"
    assert whole.choices[0].text in letters(gateway)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_the_async_client(gateway):
    async def ask():
        async with openai.AsyncOpenAI(
            base_url=gateway.url, api_key=KEY, max_retries=0, timeout=30.0
        ) as several:
            create = several.chat.completions.create
            texts = [f"question {i}" for i in range(20)]
            asks = [
                create(model="ttamer", messages=[{"role": "user", "content": t}]) for t in texts
            ]
            whole = await asyncio.gather(*asks)
            stream = await create(model="ttamer", messages=ASK, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return texts, whole, "".join(parts)

    texts, whole, streamed = asyncio.run(ask())
    for text, answer in zip(texts, whole, strict=True):
        assert answer.choices[0].message.content in letters(gateway, text)
    assert streamed in letters(gateway)


def test_most_answers_are_right(run_gateway):
    gateway = run_gateway(3, serve={"tradeoff": 1.0})
    texts = [f"question {i}" for i in range(60)]
    with client(gateway) as openai_client:
        found = [
            openai_client.chat.completions.create(
                model="ttamer", messages=[{"role": "user", "content": text}]
            ).choices[0].message.content
            for text in texts
        ]  # fmt: skip
    right = sum(answer == truth(text) for answer, text in zip(found, texts, strict=True))
    assert right >= 48  # the best node alone: 57 expected


def test_models(run_gateway):
    gateway = run_gateway(2, serve={"direct": True})
    with client(gateway) as openai_client:
        assert [model.id for model in openai_client.models.list()] == ["ttamer", "small", "large"]
        for name in ("small", "large"):
            answer = openai_client.chat.completions.create(model=name, messages=ASK)
            assert answer.model == name


def test_log_probabilities_are_given_where_they_are_asked_for(run_gateway):
    gateway = run_gateway(2)
    with client(gateway) as openai_client:
        answer = openai_client.chat.completions.create(model="ttamer", messages=ASK, logprobs=True)
    assert answer.choices[0].logprobs.content[0].token == answer.choices[0].message.content


ERRORS = {
    "unknown model": (openai.NotFoundError, {"model": "gpt-5"}, "model_not_found"),
    "no messages": (openai.BadRequestError, {"messages": []}, "bad_field"),
    "many answers": (openai.BadRequestError, {"n": 9}, "bad_field"),
    "a choice": (
        openai.BadRequestError,
        {"extra_body": {"ttamer": {"tradeoff": 0.1}}},
        "choice_not_allowed",
    ),
}


@pytest.mark.parametrize(("kind", "fields", "code"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(run_gateway, kind, fields, code, stream):
    gateway = run_gateway(2)
    with client(gateway) as openai_client, pytest.raises(kind) as caught:
        openai_client.chat.completions.create(
            **{"model": "ttamer", "messages": ASK, "stream": stream, **fields}
        )
    assert caught.value.code == code


def test_a_wrong_key_is_an_authentication_error(run_gateway, monkeypatch):
    monkeypatch.setenv("TEST_KEYS", KEY)
    gateway = run_gateway(2, serve={"keys_env": "TEST_KEYS"})
    stranger = client(gateway, api_key="not-that-key-at-all-1")
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="ttamer", messages=ASK)
    with client(gateway) as friend:
        assert friend.chat.completions.create(model="ttamer", messages=ASK).choices


@pytest.mark.parametrize("stream", [False, True])
def test_nodes_that_all_fail_are_an_internal_server_error(gateway, stream):
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "error"
    with client(gateway) as openai_client, pytest.raises(openai.InternalServerError) as caught:
        openai_client.chat.completions.create(model="ttamer", messages=ASK, stream=stream)
    assert caught.value.status_code == 502
    assert "sk-secret" not in str(caught.value)


def test_a_stream_that_breaks_is_an_error_and_not_an_end(run_gateway):
    gateway = run_gateway(1)
    upstream = gateway.served.upstreams["small"]
    upstream.answer = lambda prompt, sample: ("a long answer " * 20, 0.9)
    upstream.mode = "truncated"
    with (
        client(gateway) as openai_client,
        openai_client.chat.completions.create(model="ttamer", messages=ASK, stream=True) as stream,
        pytest.raises(openai.APIError),
    ):
        list(stream)
    assert gateway.metric("ttamer_failed_total") == 1
