"""Calls between the processes of one gateway."""

from __future__ import annotations

import asyncio
import json

import pytest

from ttamer.errors import ArgumentError
from ttamer.serve.processes import channel
from ttamer.serve.processes.channel import MessageLine, PeerUnavailable, answering, call


def refuse() -> None:
    raise ArgumentError("not now")


def run(work) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_call_has_a_result_a_refusal_or_no_answer(tmp_path):
    path, failed = tmp_path / "a.sock", []

    async def later(text):
        return text.upper()

    answers = {"add": lambda a, b: a + b, "later": later, "refuse": refuse, "fail": lambda: 1 / 0}

    async def work():
        async with answering(path, answers, failed.append):
            assert await call(path, "add", a=1, b=2) == 3
            assert await call(path, "later", text="long " * 50_000) == "LONG " * 50_000
            with pytest.raises(ArgumentError, match="not now"):
                await call(path, "refuse")
            for name in ("fail", "unknown"):
                with pytest.raises(PeerUnavailable):
                    await call(path, name)
        assert [type(each) for each in failed] == [ZeroDivisionError, KeyError]
        with pytest.raises(PeerUnavailable):
            await call(path, "add", a=1, b=2)

    run(work)


def test_a_call_that_takes_too_long_has_no_answer(tmp_path):
    path = tmp_path / "a.sock"

    async def work():
        async with answering(path, {"wait": asyncio.Event().wait}, print):
            with pytest.raises(PeerUnavailable, match="Timeout"):
                await call(path, "wait", seconds=0.01)

    run(work)


def test_messages_arrive_in_order_and_over_a_new_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "RECONNECT_SECONDS", 0.01)
    path, taken, lost = tmp_path / "a.sock", [], []
    line, answers = MessageLine(path, lost.append), {"take": lambda number: taken.append(number)}

    async def work():
        assert not line.send("take", number=0)  # not open
        async with line.opened():
            async with answering(path, answers, print):
                for number in range(10):
                    await until(lambda: line.send("take", number=number))  # noqa: B023
                await until(lambda: len(taken) == 10)
            async with answering(path, answers, print):
                number = 10
                while len(taken) == 10:  # what is sent before the end is noticed counts as lost
                    number += line.send("take", number=number)
                    await asyncio.sleep(0.005)
        assert taken[:10] == list(range(10))
        assert 10 + len(taken[10:]) + sum(lost) >= number

    run(work)


def test_messages_that_are_not_answered_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "MAX_UNSENT", 1000)
    path, lost = tmp_path / "a.sock", []
    line = MessageLine(path, lost.append)

    async def work():
        async with answering(path, {"take": asyncio.Event().wait}, print), line.opened():
            await until(lambda: line.send("take"))
            sent = 1
            while line.send("take", text="x" * 10_000):  # until the socket and the line are full
                sent += 1
        assert sum(lost) == sent

    run(work)


def test_a_message_is_its_length_and_json(tmp_path):
    path = tmp_path / "a.sock"

    async def work():
        async with answering(path, {"add": lambda a: a + 1}, print):
            reader, writer = await asyncio.open_unix_connection(path)
            content = json.dumps({"call": "add", "with": {"a": 1}}).encode()
            writer.write(len(content).to_bytes(4) + content)
            size = int.from_bytes(await reader.readexactly(4))
            assert json.loads(await reader.readexactly(size)) == {"result": 2}
            writer.write((3).to_bytes(4) + b"not")  # what is not JSON ends the connection
            assert await reader.read() == b""
            writer.close()
        assert not path.exists()

    run(work)


def test_a_line_begins_with_a_connection(tmp_path):
    path, taken = tmp_path / "a.sock", []

    async def work():
        line = MessageLine(path, lambda count: None)
        opened = line.opened()
        begun = asyncio.create_task(opened.__aenter__())
        await asyncio.sleep(0)  # it tries before anything answers
        async with answering(path, {"add": taken.append}, taken.append):
            await begun
            assert line.send("add", value=1) is True
            await opened.__aexit__(None, None, None)

    asyncio.run(work())
