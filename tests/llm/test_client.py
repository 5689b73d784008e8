"""The client of one server, against servers that do all that servers do."""

import asyncio
import contextlib
import itertools
import json
import time
from contextlib import asynccontextmanager
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings, strategies as st

from ttamer.errors import CascadeError
from ttamer.llm.client import Breaker, Client, Deadline, TimeLimit, UpstreamFailed, open_session
from ttamer.llm.settings import EnvName, NodeSettings

pytestmark = pytest.mark.server

GOOD = {"choices": [{"message": {"content": "4"}}], "usage": {"prompt_tokens": 3}}
BODY = {"messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 5, "stream": True}


def node(**options):
    return NodeSettings(
        name="small", cost=1.0, **{"upstream": "http://h/v1", "model": "m", **options}
    )


@asynccontextmanager
async def served(answer, **options):
    """Give a client of a server whose requests are answered by ``answer(request, number)``."""
    seen = []

    async def handle(request):
        seen.append((request, await request.json()))
        return await answer(request, len(seen))

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", handle)
    async with TestServer(app) as server, open_session() as session:
        client = Client(node(upstream=str(server.make_url("/v1")), **options), session)
        yield client, seen


@asynccontextmanager
async def raw(payload, *, close=True):
    """Give a client of a server that sends bytes."""

    async def handle(reader, writer):
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                for part in payload if isinstance(payload, list) else [payload]:
                    writer.write(part)
                    await writer.drain()
                if not close:
                    await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_session() as session:
        yield Client(node(upstream=f"http://127.0.0.1:{port}/v1", retries=0, timeout=2.0), session)


async def ok(request, number):
    del request, number
    return web.json_response(GOOD)


def test_a_request_has_the_nodes_model_parameters_names_and_key(monkeypatch):
    monkeypatch.setenv("KEY", "s3cret")
    options = {
        "key_env": "KEY",
        "headers": {"x-org": "us", "x-key": EnvName("KEY")},
        "params": {"reasoning_effort": "low", "temperature": False},
        "rename": {"max_tokens": "max_completion_tokens"},
    }

    async def run():
        async with served(ok, **options) as (client, seen):
            await client.complete(
                {**BODY, "temperature": 1, "top_p": 0.5}, headers={"x-request-id": "r"}
            )
            return seen[0]

    request, body = asyncio.run(run())
    assert body == {
        "messages": BODY["messages"],
        "max_completion_tokens": 5,
        "model": "m",
        "reasoning_effort": "low",
        "top_p": 0.5,
    }
    sent = request.headers
    assert sent["authorization"] == "Bearer s3cret"
    assert (sent["x-org"], sent["x-key"], sent["x-request-id"]) == ("us", "s3cret", "r")


def test_a_key_that_is_not_set_is_an_error_before_any_call():
    with pytest.raises(CascadeError, match="NO_SUCH_KEY is not set"):
        Client(node(key_env="NO_SUCH_KEY"), mock.Mock())


def test_the_cost_that_a_litellm_proxy_states_is_taken():
    async def answer(request, number):
        del request
        return web.json_response(
            GOOD, headers={"x-litellm-response-cost": ["0.25", "-1"][number - 1]}
        )

    async def run():
        async with served(answer) as (client, _):
            return [(await client.complete(BODY)).cost for _ in range(2)]

    assert asyncio.run(run()) == [0.25, None]


@pytest.mark.parametrize(
    ("data", "vector"),
    [
        ([{"embedding": [1, 2]}], [1.0, 2.0]),
        ([{"embedding": [1.0]}, {"embedding": [1.0]}], None),
        ([{"embedding": []}], None),
        ([{"embedding": ["x"]}], None),
        ([], None),
        (None, None),
    ],
)
def test_an_embedding_is_the_vector_of_the_end_of_a_text(data, vector):
    async def answer(request, number):
        del request, number
        return web.json_response({"data": data})

    async def run():
        async with served(answer) as (client, seen):
            try:
                result = await client.embed("x" * 100_000 + "end")
            except UpstreamFailed as error:
                result = error.kind
            return result, seen[0][1]["input"]

    result, texts = asyncio.run(run())
    assert result == (vector or "garbage")
    assert [len(text) for text in texts] == [Client.max_text]
    assert texts[0].endswith("end")


@pytest.mark.parametrize(
    ("status", "kind", "paid", "calls"),
    [
        (500, "error", False, 3),
        (503, "busy", False, 3),
        (429, "busy", False, 3),
        (400, "refused", False, 1),
        (401, "refused", False, 1),
        (302, "refused", False, 1),
    ],
)
def test_a_status_is_a_failure_of_a_kind_and_some_are_tried_again(status, kind, paid, calls):
    async def answer(request, number):
        del request, number
        return web.Response(status=status, text="secret", headers={"location": "/v1/elsewhere"})

    async def run():
        async with served(answer, retries=2) as (client, seen):
            with pytest.raises(UpstreamFailed) as error:
                await client.complete(BODY)
            return error.value, len(seen)

    error, count = asyncio.run(run())
    assert (error.kind, error.paid, error.status, count) == (kind, paid, status, calls)
    assert "secret" not in str(error)


def test_retry_after_is_waited_for_unless_the_deadline_comes_first():
    async def answer(request, number):
        if number == 1:
            return web.Response(status=503, headers={"retry-after": "1"})
        return await ok(request, number)

    async def run(seconds):
        async with served(answer) as (client, seen):
            start = time.monotonic()
            with contextlib.suppress(UpstreamFailed):
                await client.complete(BODY, Deadline.after(seconds))
            return time.monotonic() - start, len(seen)

    took, calls = asyncio.run(run(5))
    assert took >= 1
    assert calls == 2
    took, calls = asyncio.run(run(0.5))
    assert took < 0.5
    assert calls == 1


def test_the_deadline_ends_a_call_and_the_connection():
    async def answer(request, number):
        del request, number
        await asyncio.sleep(5)

    async def run():
        async with served(answer, retries=3) as (client, seen):
            start = time.monotonic()
            with pytest.raises(UpstreamFailed, match="did not answer in time") as error:
                await client.complete(BODY, Deadline.after(0.2))
            return error.value, time.monotonic() - start, len(seen), client.breaker.is_open

    error, took, calls, is_open = asyncio.run(run())
    assert (error.kind, error.paid, calls, is_open) == ("timeout", True, 1, False)
    assert took < 1


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


RESPONSES = {
    "nothing": (b"", "connect"),
    "no-http": (b"not http\r\n\r\n", "cut"),
    "short": (HEAD + b"content-length: 100\r\n\r\n{", "cut"),
    "list": (HEAD + b"content-length: 2\r\n\r\n[]", "garbage"),
    "latin-1": (HEAD + b'content-length: 5\r\n\r\n"\xff\xfe\xfd"', "garbage"),
    "deep": (HEAD + b"content-length: 200000\r\n\r\n" + b"[" * 200_000, "garbage"),
    "header": (HEAD + b"x-long: " + b"y" * 100_000 + b"\r\n\r\n{}", "cut"),
    "chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "cut"),
    "big": ([HEAD + b"\r\n", *[b"x" * 2**20] * 12], "too_large"),
    "zip": (HEAD + b"content-encoding: gzip\r\ncontent-length: 5\r\n\r\nplain", "garbage"),
    "stated": (HEAD + b"content-length: 9000000\r\n\r\n", "too_large"),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_whatever_a_server_sends_is_a_failure_of_a_kind(name):
    payload, kind = RESPONSES[name]

    async def run():
        async with raw(payload) as client:
            with pytest.raises(UpstreamFailed) as error:
                await client.complete(BODY)
            return error.value

    error = asyncio.run(run())
    words = {"connect": "could not be reached (", "cut": "broke off its answer ("}
    assert error.kind == kind
    assert words.get(kind, "returned") in str(error)


def events(*chunks, end=b"data: [DONE]\n\n"):
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + end


CHUNK = {"choices": [{"delta": {"content": "4"}}]}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b": a comment\n\nevent: x\n\n" + events(CHUNK, CHUNK), "2 chunks"),
        (events(CHUNK, end=b""), "cut"),
        (b"data: nothing\n\n", "garbage"),
        (b"data: {}\n\n", "garbage"),
        (b"data: " + b"x" * 5_000_000 + b"\n", "cut"),
        (events(*[CHUNK] * 300_000), "too_large"),
    ],
    ids=["good", "cut", "garbage", "no-chunk", "long-line", "endless"],
)
def test_a_stream_is_its_chunks_or_a_failure(content, kind):
    async def run():
        async with raw(HEAD + b"\r\n" + content) as client:
            count = 0
            try:
                async with client.stream(BODY) as chunks:
                    async for _ in chunks:
                        count += 1
            except UpstreamFailed as error:
                return error.kind
            return f"{count} chunks"

    assert asyncio.run(run()) == kind


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=12), newline=st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_is_the_same_however_it_is_cut(cuts, newline):
    content = events(CHUNK, {"choices": []}, CHUNK).replace(b"\n", newline)
    ends = sorted({0, *(cut for cut in cuts if cut < len(content)), len(content)})
    parts = [content[a:b] for a, b in itertools.pairwise(ends)]

    async def run():
        chunked = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
        head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
        async with raw([head, *chunked, b"0\r\n\r\n"]) as client, client.stream(BODY) as chunks:
            return [chunk async for chunk in chunks]

    assert asyncio.run(run()) == [CHUNK, {"choices": []}, CHUNK]


def test_a_stream_in_single_bytes_is_read_in_linear_time():
    content = events(*[CHUNK] * 400)

    async def run():
        parts = [HEAD + b"\r\n", *[bytes([byte]) for byte in content]]
        async with raw(parts) as client, client.stream(BODY) as chunks:
            return [chunk async for chunk in chunks]

    start = time.process_time()
    assert len(asyncio.run(run())) == 400
    assert time.process_time() - start < 5


def test_a_stream_that_stops_fails_after_the_time_limit():
    async def run():
        async with raw(HEAD + b"\r\n" + events(CHUNK, end=b""), close=False) as client:
            client.settings = node(upstream=client.settings.upstream, timeout=0.2)
            try:
                async with client.stream(BODY) as chunks:
                    return [chunk async for chunk in chunks]
            except UpstreamFailed as error:
                return error.kind

    assert asyncio.run(run()) == "timeout"


def test_a_reader_that_is_slow_is_no_failure_of_the_server():
    """Else clients that read slowly could open the breaker of a server that works."""

    async def run():
        content = events(*[CHUNK] * 3)
        async with raw(HEAD + b"\r\n" + content) as client:
            client.settings = node(upstream=client.settings.upstream, timeout=0.2)
            async with client.stream(BODY) as chunks:
                async for _ in chunks:
                    await asyncio.sleep(0.3)

    asyncio.run(run())


def test_calls_at_once_are_limited_and_wait_until_their_deadline():
    running = peak = 0

    async def answer(request, number):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.1)
        running -= 1
        return await ok(request, number)

    async def run():
        async with served(answer, max_concurrent=2) as (client, _):
            calls = [client.complete(BODY, Deadline.after(0.25)) for _ in range(8)]
            return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(run())
    kinds = [getattr(result, "kind", "ok") for result in results]
    assert peak == 2
    assert kinds.count("ok") >= 4
    assert "queue" in kinds


class TestTimeLimit:
    def test_it_is_the_ceiling_until_enough_calls_were_seen(self):
        limit = TimeLimit(30.0)
        for _ in range(TimeLimit.min_calls - 1):
            limit.took(0.1)
        assert limit.seconds == 30.0

    def test_it_follows_a_server_that_becomes_slower(self):
        limit = TimeLimit(30.0)
        for _ in range(64):
            limit.took(0.1)
        assert limit.seconds == 1.5
        limit.grow()
        limit.grow()
        assert limit.seconds == 6.0
        for _ in range(8):
            limit.took(4.0)
        assert limit.seconds >= 20.0

    def test_growth_ends_with_calls_as_quick_as_before(self):
        limit = TimeLimit(30.0)
        for _ in range(20):
            limit.took(0.1)
        limit.grow()
        for _ in range(3):
            limit.took(0.1)
        assert limit.seconds == 1.5


class TestBreaker:
    def test_it_opens_on_the_share_of_recent_calls_and_not_on_a_few_of_many(self):
        breaker = Breaker()
        for number in range(30):
            breaker.record(failed=number % 4 == 0)
        assert breaker.allows()
        for _ in range(5):
            breaker.record(failed=True)
        assert not breaker.allows()

    def test_one_call_tests_the_server_and_closes_or_doubles_the_pause(self):
        with mock.patch("ttamer.llm.client.time.monotonic") as clock:
            clock.return_value = 100.0
            breaker = Breaker()
            for _ in range(50):  # those that end after it opened do not lengthen the pause
                breaker.record(failed=True)
            assert breaker.seconds_left == 2.0
            clock.return_value = 102.0
            assert [breaker.allows(), breaker.allows()] == [True, False]
            breaker.record(failed=True)
            assert breaker.seconds_left == 4.0
            clock.return_value = 106.0
            assert breaker.allows()
            breaker.record(failed=False)
            assert breaker.allows()
            assert not breaker.is_open

    def test_old_failures_do_not_count(self):
        with mock.patch("ttamer.llm.client.time.monotonic") as clock:
            clock.return_value = 100.0
            breaker = Breaker()
            for _ in range(4):
                breaker.record(failed=True)
            clock.return_value = 140.0
            breaker.record(failed=True)
            assert breaker.allows()


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_hangs_costs_little_once_its_latency_is_known(stream):
    """Many calls end at once; the one that tests it, and a first stream, wait little longer."""
    is_hung = False

    async def answer(request, number):
        if is_hung:
            await asyncio.sleep(20)
        return await ok(request, number)

    async def timed(client):
        start = time.monotonic()
        with contextlib.suppress(UpstreamFailed):
            if not stream:
                await client.complete(BODY)
            else:
                async with client.stream(BODY) as chunks:
                    [chunk async for chunk in chunks]
        return time.monotonic() - start

    async def run():
        nonlocal is_hung
        async with served(answer) as (client, _):
            for _ in range(20):
                await client.complete(BODY)
            is_hung = True
            times = await asyncio.gather(*(timed(client) for _ in range(20)))
            times += [await timed(client) for _ in range(20)]
            assert client.breaker.is_open
            await asyncio.sleep(client.breaker.seconds_left)
            return sorted(times), await timed(client)

    with mock.patch.object(TimeLimit, "floor", 0.2), mock.patch.object(Breaker, "first_pause", 0.5):
        times, test = asyncio.run(run())
    assert times[19] < 0.1  # the breaker is open
    assert times[-1] < 1.0
    assert 0.1 < test < 1.0


@pytest.mark.parametrize(
    ("status", "text", "hint"),
    [
        (400, "Unsupported parameter: 'max_tokens'", 'rename = {max_tokens = "max_completion'),
        (422, "temperature: extra fields not permitted", "params = {temperature = false}"),
        (404, "no such model", "most base URLs end in /v1"),
        (500, "logprobs broke", ""),
    ],
)
def test_an_operator_reads_what_helps(status, text, hint):
    async def answer(request, number):
        del request, number
        return web.Response(status=status, text=text)

    async def run():
        async with served(answer, retries=0) as (client, _):
            client._read_errors = True
            with pytest.raises(UpstreamFailed, match=text) as error:
                await client.complete(BODY)
            return str(error.value)

    said = asyncio.run(run())
    assert hint in said
    assert bool(hint) == ("(" in said)
