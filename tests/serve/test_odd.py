"""Requests, responses of models and chunks of any form: a refusal or an answer, never an error."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from hypothesis import example, given, settings, strategies as st

FEW = settings(max_examples=25, deadline=None)
KEYS = (
    "messages role content model stream n ttamer choices message delta logprobs token logprob "
    "top_logprobs tool_calls finish_reason usage prompt_tokens completion_tokens cost index"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)
    ),
    max_leaves=10,
)


def table(**fields):
    """Any JSON, or a table with some of these fields."""
    return JSON | st.fixed_dictionaries({}, optional=fields)


TOKEN = table(token=JSON, logprob=st.floats(-9, 1) | JSON, top_logprobs=JSON)
MESSAGE = table(role=JSON, content=st.text(max_size=9) | JSON, tool_calls=JSON)
COMMON = {
    "logprobs": table(content=st.lists(TOKEN, max_size=3)),
    "finish_reason": JSON,
    "index": JSON,
}
USAGE = table(prompt_tokens=JSON, completion_tokens=JSON, cost=JSON, prompt_tokens_details=JSON)
RESPONSE = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(table(message=MESSAGE, **COMMON), max_size=2) | JSON,
        "usage": USAGE,
    },
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(table(delta=MESSAGE, **COMMON), max_size=2)}, optional={"usage": USAGE}
)
WORST_BODIES = [
    b"\xff\xfe{",
    b'{"messages": [{"content": "\xe9"}]}',
    b"[" * 100_000,
    b'"\\ud800"',
    b'{"messages": [{"content": "\\ud800"}]}',
    b'{"messages": [{"content": null}], "n": 1e999}',
]


def test_no_body_is_an_error_of_the_server(serve):
    served = serve(serve={"allow": ["tradeoff"]})

    @FEW
    @example(WORST_BODIES)
    @given(
        st.lists(st.binary(max_size=40) | JSON.map(lambda b: json.dumps(b).encode()), max_size=8)
    )
    def check(bodies):
        async def scenario(client):
            for path in ("/chat/completions", "/decide", "/feedback"):
                for body in bodies:
                    status = (await client.post(path, content=body)).status_code
                    assert status in (200, 400, 404, 409)

        served.run(scenario)

    check()


@pytest.mark.parametrize("confidence", ["logprobs", "none"])
def test_no_response_of_a_model_is_an_error_of_the_server(serve, confidence):
    node = {"small": {"confidence": confidence}}
    served = serve(serve={"tradeoff": 0.0}, node=node, force=True)
    model = served.models["small"]
    model.stream = None

    @FEW
    @given(st.lists(RESPONSE, max_size=8))
    def check(responses):
        async def scenario(client):
            for number, response in enumerate(responses):
                model.plan = [response]
                answer = await client.chat(stream=bool(number % 2), ttamer={"explain": True})
                assert answer.status_code in (200, 502)
                assert "internal_error" not in answer.text
            assert served.app.gate.inside == 0

        served.run(scenario)

    check()


def test_no_chunk_of_a_model_is_an_error_of_the_server(serve, tmp_path):
    log = str(tmp_path / "decisions.jsonl")
    served = serve(serve={"tradeoff": 0.0, "stream": "last", "log": log}, force=True)

    @asynccontextmanager
    async def stream(body, deadline=None, headers=None):
        del body, deadline, headers

        async def chunks():
            for chunk in planned:
                yield chunk

        yield chunks()

    planned, served.models["small"].stream = [], stream

    @FEW
    @example([[{"choices": [{"delta": {"content": "\x85"}}]}]])  # no end of a line
    @given(st.lists(st.lists(CHUNK, max_size=4), max_size=8))
    def check(streams):
        async def scenario(client):
            for chunks in streams:
                planned[:] = chunks
                answer = await client.chat(stream=True)
                assert answer.status_code == 200
                assert answer.text.endswith("data: [DONE]\n\n")
                lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
                # What is a choice is passed on, in its order; nothing else is.
                sent = [c for line in lines for c in json.loads(line[6:])["choices"]]
                assert len(sent) == sum(isinstance(c, dict) for k in chunks for c in k["choices"])
            assert served.app.gate.inside == 0

        served.run(scenario)

    check()


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_that_can_be_read_but_not_written_is_refused(serve, stream):
    """The parser and the writer have the depth of the stack where they are called."""
    served = serve(node={"small": {"context": 10_000}})

    async def scenario(client):
        statuses = set()
        for depth in range(900, 1000, 3):
            nested = b'"tools": ' + b"[" * depth + b"]" * depth
            start = b'{"messages": [{"role": "user", "content": "x"}], '
            start += b'"stream": true, ' if stream else b""
            response = await client.post("/chat/completions", content=start + nested + b"}")
            statuses.add(response.status_code)
        return statuses

    assert served.run(scenario) == {200, 400}
