from __future__ import annotations

import asyncio
import math
import time
from email.utils import formatdate

import pytest

from support.waiting import Clock
from ttamer.serve.bill import Bill
from ttamer.serve.config import HeaderFromEnv, NodeSettings
from ttamer.serve.upstreams import breaker as breaker_module, upstream as module
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.limits import NodeLimitReached, RateLimit
from ttamer.serve.upstreams.upstream import CallContext, Upstream, UpstreamFailed

# The test's own server, ended in mid-answer, may leave a socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


BODY = {"messages": [{"role": "user", "content": "Which?"}]}
CHAT = "/chat/completions"


def settings(url, **options) -> NodeSettings:
    return NodeSettings(**({"name": "small", "cost": 1.0, "upstream": url, "model": "m"} | options))


def ask(node: NodeSettings, timeout=math.inf, headers=None):
    async def go():
        async with HttpClient() as session:
            context = CallContext.within(timeout, headers)
            return await Upstream(node, session).call(CHAT, BODY, context)

    return asyncio.run(go())


def failure(node: NodeSettings, **options) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as caught:
        ask(node, **options)
    return caught.value


@pytest.fixture
def small(start_upstream):
    return start_upstream("small")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)


def test_an_answer_is_the_json_that_came(small):
    reply = ask(settings(small.url))
    assert reply.body["choices"][0]["message"]["content"] in "ABCD"
    assert small.requests == [{**BODY, "model": "m"}]


def test_an_answer_is_asked_for_whole(small):
    async def go():
        async with HttpClient() as session:
            body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
            return await Upstream(settings(small.url), session).call(CHAT, body)

    assert asyncio.run(go()).body["choices"]
    assert small.requests == [{**BODY, "model": "m"}]


def test_the_key_comes_from_the_environment_and_no_header_replaces_it(small, monkeypatch):
    monkeypatch.setenv("SMALL_KEY", "sk-1")
    ask(
        settings(small.url, key_env="SMALL_KEY"),
        headers={"x-request-id": "r7", "Authorization": "Bearer theirs"},
    )
    sent = small.request_headers[0]
    assert sent["authorization"] == "Bearer sk-1"
    assert sent["x-request-id"] == "r7"


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_the_callers_key_is_never_passed_on(small, name):
    ask(settings(small.url), headers={name: "Bearer theirs"})
    assert "authorization" not in small.request_headers[0]


@pytest.mark.parametrize("value", [None, "", "a\nb"])
def test_a_key_that_is_not_there_is_reported_at_once(value, monkeypatch):
    monkeypatch.delenv("SMALL_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SMALL_KEY", value)
    with pytest.raises(module.CascadeError, match="key_env names SMALL_KEY"):
        Upstream(settings("http://x/v1", key_env="SMALL_KEY"), None)


@pytest.mark.parametrize(
    "options", [{"key_env": "SMALL_KEY"}, {"headers": (("x-team", HeaderFromEnv("SMALL_KEY")),)}]
)
def test_a_key_that_no_header_can_hold_is_reported_at_once(options, monkeypatch):
    """Every call of the node would fail. A password of a proxy is encoded, and may be any text."""
    monkeypatch.setenv("SMALL_KEY", "\u201csk-1\u201d")
    with pytest.raises(module.CascadeError, match="not ASCII, such as curly quotes"):
        Upstream(settings("http://x/v1", **options), None)
    proxy = {"proxy": "http://proxy:3128", "proxy_auth_env": "SMALL_KEY"}
    Upstream(settings("http://x/v1", **proxy), None)


@pytest.mark.parametrize(
    ("mode", "kind", "paid"),
    [
        ("error", "error", True),
        ("garbage", "garbage", True),
        ("truncated", "cut", True),
        ("reset", "cut", True),
        ("refuse", "connect", False),
    ],
)
def test_each_fault_has_its_name(small, mode, kind, paid):
    small.mode = mode
    failed = failure(settings(small.url))
    assert (failed.kind, failed.node, failed.paid) == (kind, "small", paid)
    assert "'small'" in str(failed)
    assert "sk-secret" not in str(failed)
    small.mode, before = "ok", small.count
    ask(settings(small.url))
    assert small.count == before + 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "refused"), (404, "refused"), (401, "refused"), (408, "error"), (302, "error"),
     (429, "busy"), (503, "busy"), (502, "error"), (204, "error")],
)  # fmt: skip
def test_a_status_reports_whose_fault_it_is(small, status, kind):
    small.mode, small.status = "error", status
    failed = failure(settings(small.url))
    assert (failed.kind, failed.status) == (kind, status)


def test_a_redirect_is_not_followed(small, start_upstream):
    other = start_upstream("other")
    small.mode, small.status = "error", 307
    small.headers = {"location": f"{other.url}{CHAT}"}
    assert failure(settings(small.url)).kind == "error"
    assert other.count == 0


def test_a_slow_node_is_left_after_its_time(small):
    small.mode = "slow"
    failed = failure(settings(small.url, timeout=0.3, retries=3))
    assert failed.kind == "timeout"
    assert small.count <= 1  # a timeout is not tried again on the same server
    small.release()


def test_the_time_of_the_request_comes_before_the_nodes(small):
    small.mode = "slow"
    assert failure(settings(small.url, timeout=60.0), timeout=0.05).kind == "timeout"
    small.release()


def test_no_time_is_a_timeout(small):
    assert failure(settings(small.url), timeout=0.0).kind == "timeout"


@pytest.mark.parametrize("mode", ["error", "reset", "truncated"])
def test_what_may_pass_is_tried_again(small, mode):
    small.plan = [mode, mode]
    ask(settings(small.url, retries=2))
    assert (small.count, small.answered) == (3, 1)


def test_there_are_only_so_many_tries(small):
    small.mode = "error"
    assert failure(settings(small.url, retries=2)).status == 500
    assert small.count == 3


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_not_sent_again_nor_elsewhere(small, start_upstream, status):
    other = start_upstream("other")
    small.mode, small.status = "error", status
    failure(settings(small.url, retries=2, fallback=other.url))
    assert (small.count, other.count) == (1, 0)


def test_a_retry_waits_as_long_as_retry_after_asks(small, start_upstream, monkeypatch):
    other = start_upstream("other")
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    small.plan, small.status, small.headers = ["error", "error"], 429, {"retry-after": "7"}
    ask(settings(small.url, retries=2))
    assert waited == [7.0, 7.0]
    small.plan = ["error"]
    assert failure(settings(small.url, retries=2), timeout=5.0).kind == "busy"
    assert waited == [7.0, 7.0]  # there was no time left for it
    small.plan = ["error"]
    ask(settings(small.url, retries=2, fallback=other.url), timeout=5.0)
    assert (small.count, other.answered) == (5, 1)
    assert waited == [7.0, 7.0]


def test_a_request_does_not_wait_for_a_server_that_is_busy_for_long(
    small, start_upstream, monkeypatch
):
    """A call without a deadline, as of a collection, tries again after the longest pause."""
    other = start_upstream("other")
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    small.plan, small.status, small.headers = ["error"], 429, {"retry-after": "3600"}
    ask(settings(small.url, retries=2, fallback=other.url), timeout=60.0)
    assert (small.count, other.count, waited) == (1, 1, [])
    small.plan = ["error"]
    ask(settings(small.url, retries=2, fallback=other.url))
    assert (small.count, other.count, waited) == (3, 1, [module.MAX_PAUSE])


@pytest.mark.parametrize("mode", ["error", "garbage", "truncated", "reset", "refuse", "slow"])
def test_the_fallback_answers_for_a_node_that_fails(small, start_upstream, mode):
    other = start_upstream("other")
    small.mode = mode
    ask(settings(small.url, fallback=other.url, timeout=1.0 if mode == "slow" else 30.0))
    assert other.answered == 1
    small.release()


def test_both_may_fail(small, dead_url):
    small.mode = "garbage"
    assert failure(settings(small.url, fallback=dead_url)).kind == "connect"


def test_a_response_too_large_is_not_kept(small):
    assert failure(settings(small.url, max_response=100)).kind == "too_large"


@pytest.mark.parametrize(
    "content", [b"[]", b"1", b"null", b"[" * 100_000, b'{"a": NaN}', b"[-Infinity]"]
)
def test_only_a_json_object_is_an_answer(content):
    node = Upstream(settings("http://127.0.0.1:1/v1"), None)
    with pytest.raises(UpstreamFailed, match="JSON") as caught:
        node._parsed(content)
    assert caught.value.kind == "garbage"


def test_loss_is_made_good_by_retries(start_upstream):
    lossy = start_upstream("lossy", seed=3)
    lossy.mode = "loss"
    node = settings(lossy.url, retries=10)

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(node, session)
            return await asyncio.gather(*(upstream.call(CHAT, BODY) for _ in range(40)))

    replies = asyncio.run(go())
    assert len(replies) == lossy.answered == 40
    assert lossy.count > 40


def relay(node: NodeSettings, body: dict, timeout=math.inf):
    async def go():
        async with HttpClient() as session:
            seen, context = [], CallContext.within(timeout)
            async with Upstream(node, session).relay(CHAT, body, context) as relayed:
                seen += [part async for part in relayed.chunks]
            return relayed.status, relayed.content_type, b"".join(seen)

    return asyncio.run(go())


STREAM = {**BODY, "stream": True}


def test_a_stream_is_relayed_as_it_is(small):
    small.answer = lambda prompt, sample: ("a longer answer", 0.9)
    status, kind, content = relay(settings(small.url), STREAM)
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    assert content.startswith(b"data: ")
    assert content.endswith(b"data: [DONE]\n\n")
    assert small.requests[0]["stream"] is True


def test_an_error_is_not_relayed_but_named(small):
    small.mode, small.status = "error", 422
    with pytest.raises(UpstreamFailed) as caught:
        relay(settings(small.url), STREAM)
    assert (caught.value.kind, caught.value.status) == ("refused", 422)


def test_a_relay_is_tried_again_until_it_has_begun(small, start_upstream):
    other = start_upstream("other")
    small.plan = ["error", "reset"]
    assert relay(settings(small.url, retries=2), STREAM)[0] == 200
    assert small.count == 3
    small.mode = "error"
    assert relay(settings(small.url, fallback=other.url), STREAM)[0] == 200
    assert other.answered == 1
    small.mode = "truncated"
    with pytest.raises(UpstreamFailed):
        relay(settings(small.url, retries=2, fallback=other.url), STREAM)
    assert (small.count, other.answered) == (5, 1)


def test_a_stream_that_breaks_is_a_failure(small):
    small.mode = "truncated"
    with pytest.raises(UpstreamFailed) as caught:
        relay(settings(small.url), STREAM)
    assert caught.value.kind == "cut"


def test_a_relay_goes_to_the_fallback_where_the_connection_fails(small, dead_url):
    status, *_ = relay(settings(dead_url, fallback=small.url), STREAM)
    assert (status, small.answered) == (200, 1)
    with pytest.raises(UpstreamFailed, match="connection failed"):
        relay(settings(dead_url), STREAM)


def test_a_relay_has_its_time(small):
    small.mode = "slow"
    with pytest.raises(UpstreamFailed, match="in time"):
        relay(settings(small.url, timeout=0.05), STREAM)
    with pytest.raises(UpstreamFailed, match="in time"):
        relay(settings(small.url), STREAM, timeout=0.05)
    small.release()


def test_a_reply_cannot_be_altered():
    with pytest.raises(AttributeError):
        module.Reply({}, 0.0).seconds = 1.0


def test_a_compressed_response_is_refused(small):
    small.headers = {"content-encoding": "gzip"}
    failed = failure(settings(small.url))
    assert failed.kind == "garbage"
    assert "compressed" in str(failed)
    assert small.request_headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_fallback_is_called_where_a_server_lacks_the_model_or_the_key(
    small, start_upstream, status
):
    other = start_upstream("other")
    small.mode, small.status = "error", status
    ask(settings(small.url, fallback=other.url))
    assert (small.count, other.answered) == (1, 1)


def test_the_fallback_is_not_called_where_the_request_is_malformed(small, start_upstream):
    small.mode, small.status = "error", 400
    other = start_upstream("other")
    assert failure(settings(small.url, fallback=other.url)).kind == "refused"
    assert other.count == 0


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("7", 7, 7),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ("soon", 0, 0),
        (None, 0, 0),
        ("-1", 0, 0),
    ],
)
def test_retry_after(header, low, high):
    assert low <= module._seconds(header) <= high


def test_retry_after_may_be_a_date():
    date = formatdate(time.time() + 100, usegmt=True)
    assert 50 < module._seconds(date) <= 100


# The circuit breaker


def test_one_call_at_a_time_tests_a_server_whatever_is_cancelled(small, monkeypatch):
    """An old call and the probe are cancelled; each time at most one call is made."""
    monkeypatch.setattr(breaker_module, "MIN_OUTAGE", 0.0)

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(settings(small.url, breaker=1), session)
            (breaker,) = upstream._breakers.values()
            clock = breaker._clock = Clock()

            def call():
                return asyncio.create_task(upstream.call(CHAT, BODY))

            async def cancel(task):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

            old = call()
            await asyncio.to_thread(small.wait_for, 1)
            breaker.failed("connect")  # a timeout would end the old call
            clock.now = 10.0
            probe = call()
            await asyncio.to_thread(small.wait_for, 2)
            await cancel(old)
            with pytest.raises(UpstreamFailed, match="is not called"):
                await upstream.call(CHAT, BODY)
            await cancel(probe)
            small.mode = "ok"
            await upstream.call(CHAT, BODY)
            return breaker.is_open

    small.mode = "slow"
    assert not asyncio.run(go())
    assert small.count == 3
    small.release()


@pytest.mark.parametrize("is_stream", [False, True])
def test_requests_without_time_left_do_not_open_a_breaker(small, is_stream):
    """They do not call the server, so that they show nothing about it."""

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(settings(small.url, breaker=1), session)
            bill, late = Bill(), time.monotonic()
            context = CallContext(late, bill=bill)
            stream = upstream.relay(CHAT, BODY, context)
            call = stream.__aenter__() if is_stream else upstream.call(CHAT, BODY, context)
            with pytest.raises(UpstreamFailed, match="no time for a call") as caught:
                await call
            assert (caught.value.kind, bill.is_empty) == ("timeout", True)
            assert not upstream.is_open

    asyncio.run(go())
    assert small.count == 0


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("timeout", "whole", "opens"),
    [
        (30.0, 60.0, False),  # the request had little time left
        (0.1, 60.0, True),  # the call had all of the node's time
        (30.0, 0.1, True),  # the call had all of the request's time
    ],
)
def test_a_call_cut_short_by_its_request_does_not_open_a_breaker(
    small, timeout, whole, opens, is_stream
):
    """A slow node before this one leaves little time; that shows nothing about this one."""
    small.mode = "hang"

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(settings(small.url, breaker=1, timeout=timeout), session)
            deadline = time.monotonic() + (60.0 if timeout < 1 else 0.1)
            context = CallContext(deadline, seconds=whole)
            stream = upstream.relay(CHAT, BODY, context)
            call = stream.__aenter__() if is_stream else upstream.call(CHAT, BODY, context)
            with pytest.raises(UpstreamFailed) as caught:
                await call
            assert caught.value.kind == "timeout"
            return upstream.is_open

    assert asyncio.run(go()) is opens
    assert small.count == 1


def test_a_server_that_fails_is_not_called_for_a_while(small, monkeypatch):
    monkeypatch.setattr(breaker_module, "MIN_OUTAGE", 0.0)

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(settings(small.url, breaker=3), session)
            kinds = []
            for _ in range(5):
                with pytest.raises(UpstreamFailed) as caught:
                    await upstream.call(CHAT, BODY)
                kinds.append(caught.value.kind)
            return kinds, caught.value.paid

    small.mode = "error"
    kinds, paid = asyncio.run(go())
    assert kinds == ["error"] * 3 + ["open"] * 2
    assert not paid
    assert small.count == 3


def test_calls_that_wait_end_when_the_breaker_opens(small):
    """One call is late; the others, which wait for the same server, need not time out too."""

    async def go():
        async with HttpClient() as session:
            upstream = Upstream(settings(small.url, breaker=1, timeout=3600.0), session)
            calls = [asyncio.create_task(upstream.call(CHAT, BODY)) for _ in range(20)]
            await asyncio.to_thread(small.wait_for, 20)
            late = asyncio.create_task(upstream.call(CHAT, BODY, CallContext.within(0.05)))
            done = await asyncio.gather(late, *calls, return_exceptions=True)
            return [error.kind for error in done]

    small.mode = "slow"
    assert asyncio.run(go()) == ["timeout"] * 21
    small.release()


def test_azure_wants_the_key_in_its_own_header_and_a_query(small, monkeypatch):
    monkeypatch.setenv("AZURE_KEY", "secret")
    monkeypatch.setenv("TOKEN", "hidden")
    node = settings(
        small.url,
        key_env="AZURE_KEY",
        key_header="api-key",
        query=(("api-version", "2024-10-21"),),
        headers=(("x-team", "search"), ("x-token", HeaderFromEnv("TOKEN"))),
    )
    ask(node, headers={"api-key": "theirs", "X-Team": "theirs", "x-request-id": "r1"})
    sent = small.request_headers[0]
    assert (sent["api-key"], sent["x-team"], sent["x-token"]) == ("secret", "search", "hidden")
    assert sent["x-request-id"] == "r1"
    assert "authorization" not in sent
    assert small.queries == ["api-version=2024-10-21"]


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_certificates_that_cannot_be_read_are_reported_at_once(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(module.CascadeError, match="ca_file is"):
        Upstream(settings("https://x/v1", ca_file=str(path)), None)


def calls(node: NodeSettings, count: int, timeout=math.inf) -> list:
    """Call one upstream several times at once; return answers and failures."""

    async def go():
        async with HttpClient() as client:
            upstream = Upstream(node, client)
            context = CallContext.within(timeout)
            some = [upstream.call(CHAT, BODY, context) for _ in range(count)]
            return await asyncio.gather(*some, return_exceptions=True)

    return asyncio.run(go())


def test_calls_are_spread_over_several_servers(start_upstream):
    servers = [start_upstream(name) for name in "abc"]
    node = settings(tuple(server.url for server in servers))
    assert all(isinstance(each, module.NodeResponse) for each in calls(node, 9))
    assert [server.count for server in servers] == [3, 3, 3]


def test_another_server_answers_for_one_that_fails_until_it_works_again(
    start_upstream, dead_url, monkeypatch
):
    monkeypatch.setattr(breaker_module, "MIN_OUTAGE", 0.0)
    good = start_upstream("good")
    node = settings((dead_url, good.url), breaker=1)

    async def go():
        async with HttpClient() as client:
            upstream = Upstream(node, client)
            for _ in range(6):
                await upstream.call(CHAT, BODY)
            breaker = upstream._breakers[dead_url]
            assert breaker._failures == 1  # it is called once, and then no more
            assert not breaker.may_test
            breaker._open_until = 0.0
            assert upstream._order()[0] == dead_url  # the next call tests it

    asyncio.run(go())
    assert good.answered == 6


def test_a_node_has_a_limit_of_concurrent_calls(small):
    replies = calls(settings(small.url, max_concurrent=2), 8)
    assert all(isinstance(each, module.NodeResponse) for each in replies)
    assert small.most_open <= 2


@pytest.mark.parametrize("limit", [{"max_concurrent": 1}, {"max_rate": 1.0}])
def test_a_call_beyond_a_limit_waits_only_so_long(small, limit):
    small.mode = "slow" if "max_concurrent" in limit else "ok"
    node = settings(small.url, max_wait=0.0, timeout=2.0, **limit)
    kinds = sorted(getattr(each, "kind", "answer") for each in calls(node, 3, timeout=5.0))
    assert kinds.count("queue") == 2
    assert small.count == 1


def test_a_limit_is_held_while_a_stream_lasts(small):
    async def go():
        async with HttpClient() as client:
            upstream = Upstream(settings(small.url, max_concurrent=1, max_wait=0.0), client)
            async with upstream.relay(CHAT, BODY, CallContext.within(5.0)):
                with pytest.raises(UpstreamFailed) as caught:
                    await upstream.call(CHAT, BODY, CallContext.within(5.0))
            await upstream.call(CHAT, BODY, CallContext.within(5.0))
            return caught.value

    assert asyncio.run(go()).kind == "queue"


def test_a_rate_is_kept_over_time():
    now = [0.0]
    limit = RateLimit(4.0, clock=lambda: now[0])
    begun = []
    for _ in range(20):
        pause = limit.reserve(100.0)
        now[0] += pause
        begun.append(now[0])
    most = max(sum(start <= each < start + 1.0 for each in begun) for start in begun)
    assert most <= 2 * 4
    assert begun[-1] == pytest.approx(4.0)
    with pytest.raises(NodeLimitReached):
        limit.reserve(0.0)


@pytest.mark.parametrize(
    ("status", "text", "remedy"),
    [
        (400, "Unsupported parameter: 'max_tokens'", "max_completion_tokens"),
        (400, "`temperature` is deprecated for this model", "temperature = false"),
        (422, "top_logprobs: not supported", "confidence"),
        (404, "The model `small` does not exist", "set its model"),
        (404, "Not Found", "most base URLs end in /v1"),
        (400, "max_tokens is too large: 9999", None),
        (500, "logprobs are not supported", None),
    ],
)
def test_what_an_upstream_does_not_take_has_a_remedy(status, text, remedy):
    error = UpstreamFailed("a", "refused", "refused", status=status, upstream_text=text)
    assert (remedy in error.remedy) if remedy else error.remedy == ""
