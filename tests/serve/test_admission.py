"""Limits: bodies that are too large, and a concurrency limit that keeps count of its slots."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given, strategies as st

from ttamer.errors import ArgumentError
from ttamer.serve.admission import ConcurrencyLimit, RequestGuard, Watchdog
from ttamer.serve.http import (
    BadJson,
    BodyTooLarge,
    ClientDisconnected,
    TooManyRequests,
    parse_json,
    read_body,
)


def receiving(*parts: bytes, end: bool = True):
    """An ASGI ``receive`` that gives these parts, and how many were taken."""
    messages = [{"type": "http.request", "body": p, "more_body": True} for p in parts]
    if end:
        messages[-1]["more_body"] = False
    taken = []

    async def receive():
        taken.append(1)
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return receive, taken


def test_a_body_comes_whole():
    receive, _ = receiving(b"ab", b"", b"cd")
    assert asyncio.run(read_body(receive, limit=4)) == b"abcd"
    receive, _ = receiving(b"abcd")
    assert asyncio.run(read_body(receive, limit=4, content_length="4")) == b"abcd"


def test_a_body_without_a_body():
    async def receive():
        return {"type": "http.request"}

    assert asyncio.run(read_body(receive, limit=4)) == b""


def test_the_bytes_received_are_counted_not_the_declared_length():
    receive, taken = receiving(*[b"abc"] * 1000)
    with pytest.raises(BodyTooLarge, match="more than the 4 bytes") as caught:
        asyncio.run(read_body(receive, limit=4, content_length="3"))
    assert caught.value.status == 413
    assert len(taken) == 2


@pytest.mark.parametrize("length", ["5", "9" * 18, "9" * 5000])
def test_a_body_declared_too_large_is_not_read(length):
    receive, taken = receiving(b"abc")
    with pytest.raises(BodyTooLarge) as caught:
        asyncio.run(read_body(receive, limit=4, content_length=length))
    assert taken == []
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("length", ["", "-1", "x", "1e9", "٣٣٣٣", None])
def test_an_invalid_content_length_is_ignored(length):
    receive, _ = receiving(b"abcd")
    assert asyncio.run(read_body(receive, limit=4, content_length=length)) == b"abcd"


def test_a_client_that_disconnects():
    receive, _ = receiving(b"abc", end=False)
    with pytest.raises(ClientDisconnected) as caught:
        asyncio.run(read_body(receive, limit=4))
    assert caught.value.status == 499


class Cycle:
    """The state that uvicorn keeps of a request."""

    disconnected = False

    async def receive(self):
        raise AssertionError("the state says it all")


@pytest.mark.parametrize("server", ["uvicorn", "another"])
def test_a_client_that_disconnects_ends_the_block(server):
    async def go():
        cycle, event = Cycle(), asyncio.Event()

        async def receive():
            await event.wait()
            return {"type": "http.disconnect"}

        watchdog = Watchdog()
        given = cycle.receive if server == "uvicorn" else receive
        with RequestGuard(watchdog, given, 30.0) as guard:
            guard.watch_disconnect()
            guard.check(0.0)
            await asyncio.sleep(0)
            cycle.disconnected = True
            event.set()
            await asyncio.sleep(30)

    with pytest.raises(ClientDisconnected):
        asyncio.run(go())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(JSON)
def test_json_reads_as_it_is(data):
    assert parse_json(json.dumps(data, ensure_ascii=False).encode(), max_depth=100) == data


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", r"is not JSON: Expecting value \(line 1, column 1\)"),
        (b"{", "is not JSON"),
        (b'{"a": 1} x', "Extra data"),
        (b"\xff", "is not UTF-8"),
        (b"\xed\xa0\x80", "is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "is not JSON"),
        (b'{"a": 1, "a": 1}', "key twice"),
        (b'{"b": [{"a": 1, "\\u0061": 2}]}', "key twice"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[" + b"1" * 5000 + b"]", "too many digits"),
        (b'["\\ud800"]', "half of a character"),
        (b'{"\\udfff": 1}', "half of a character"),
        (b"[" * 4 + b"]" * 4, "more than 3 deep"),
        (b'{"a":' * 4 + b"1" + b"}" * 4, "more than 3 deep"),
        (b"[" * 100_000, "more than 3 deep|is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "more than 3 deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "more than 3 deep"),
    ],
)
def test_bad_json_is_refused_in_one_line(body, why):
    with pytest.raises(BadJson, match=why) as caught:
        parse_json(body, max_depth=3)
    assert caught.value.status == 400
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120


def test_errors_do_not_repeat_the_body():
    with pytest.raises(BadJson) as caught:
        parse_json(b'{"secret-key": 1, "secret-key": 2}')
    assert "secret-key" not in str(caught.value)


def test_as_deep_as_allowed_and_pairs_of_surrogates_are_fine():
    assert parse_json(b'[[["\\ud83d\\ude00"]]]', max_depth=3) == [[["😀"]]]


async def hold(gate: ConcurrencyLimit, release: asyncio.Event, order: list, name) -> None:
    async with gate.slot():
        order.append(name)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_beyond_limit_and_queue_are_refused():
    async def main():
        gate = ConcurrencyLimit(limit=2, queue=1, wait=60)
        release, order = asyncio.Event(), []
        tasks = [asyncio.create_task(hold(gate, release, order, name)) for name in range(3)]
        await settle()
        assert (gate.running, gate.waiting, order) == (2, 1, [0, 1])
        with pytest.raises(TooManyRequests) as caught:
            async with gate.slot():
                pytest.fail("there is no free slot")
        assert caught.value.status == 429
        assert 1 <= caught.value.retry_after <= 60
        release.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting, order) == (0, 0, [0, 1, 2])

    asyncio.run(main())


def test_slots_are_given_in_order_of_arrival():
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=10, wait=60)
        order = []

        async def visit(name):
            async with gate.slot():
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*(visit(name) for name in range(8)))
        assert order == list(range(8))

    asyncio.run(main())


def test_a_request_that_waits_too_long_is_refused_and_leaves_the_queue():
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=10, wait=60)
        release, order = asyncio.Event(), []
        task = asyncio.create_task(hold(gate, release, order, "a"))
        await settle()
        with pytest.raises(TooManyRequests):
            async with gate.slot(wait=0.001):
                pytest.fail("there is no free slot")
        with pytest.raises(TooManyRequests):
            async with gate.slot(wait=0):
                pytest.fail("there is no free slot")
        assert (gate.running, gate.waiting) == (1, 0)
        release.set()
        await task
        assert gate.running == 0

    asyncio.run(main())


@pytest.mark.parametrize("raised", [RuntimeError, asyncio.CancelledError, KeyError])
def test_a_slot_is_released_whatever_happens_inside(raised):
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=0, wait=1)
        with pytest.raises(raised):
            async with gate.slot():
                raise raised
        assert gate.running == 0

    asyncio.run(main())


def test_a_waiter_cancelled_when_it_receives_its_slot_hands_it_over():
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=10, wait=60)
        release, order = asyncio.Event(), []
        first = asyncio.create_task(hold(gate, release, order, "first"))
        second = asyncio.create_task(hold(gate, asyncio.Event(), order, "second"))
        third = asyncio.create_task(hold(gate, release, order, "third"))
        await settle()
        release.set()
        while not first.done():
            await asyncio.sleep(0)
            if gate.waiting == 1:  # the second has its slot, and has not run yet
                second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await asyncio.wait_for(third, 10)
        assert order == ["first", "third"]
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main())


def test_a_cancelled_waiter_is_skipped():
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=10, wait=60)
        release, order = asyncio.Event(), []
        first = asyncio.create_task(hold(gate, release, order, "first"))
        second = asyncio.create_task(hold(gate, release, order, "second"))
        third = asyncio.create_task(hold(gate, release, order, "third"))
        await settle()
        first.cancel()
        second.cancel()  # both in one turn of the loop
        release.set()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert order == ["first", "third"]
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_added_under_random_cancellation(seed):
    async def main():
        rng = random.Random(seed)  # noqa: S311 - not a secret
        gate = ConcurrencyLimit(limit=3, queue=5, wait=60)
        inside = most = 0

        async def visit():
            nonlocal inside, most
            async with gate.slot(wait=rng.choice([0, 0.0005, 60])):
                inside += 1
                most = max(most, inside)
                try:
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(visit()))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            assert 0 <= gate.running <= 3
            assert gate.waiting <= 5
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.running, gate.waiting, inside) == (0, 0, 0)
        assert most == 3

    asyncio.run(main())


def test_retry_after_is_at_least_the_configured_one():
    async def main():
        gate = ConcurrencyLimit(limit=1, queue=0, wait=1, retry_after=7.5)
        async with gate.slot():
            with pytest.raises(TooManyRequests, match="in 8 s") as caught:
                await gate.slot().__aenter__()
        assert caught.value.retry_after == 8

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"queue": -1}, {"wait": -1}])
def test_invalid_limits_are_refused(wrong):
    with pytest.raises(ArgumentError, match="a concurrency limit needs"):
        ConcurrencyLimit(**{"limit": 1, "queue": 1, "wait": 1} | wrong)
