"""Several workers on one socket: metrics add up, and one that ends is started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest

from support.gateway_process import GatewayProcess
from ttamer.cli import main
from ttamer.serve.metrics import Metrics
from ttamer.serve.workers import WorkerPlace, added_up


def test_values_of_a_series_are_added():
    texts = []
    for count in (1, 2):
        metrics = Metrics(["small"], ["/v1/chat/completions"])
        metrics.policy("abc", "start")
        for _ in range(count):
            metrics.refused()
        texts.append(metrics.text())
    text = added_up(texts).decode()
    assert "ttamer_refused_total 3.0\n" in text
    assert 'ttamer_policy_info{source="start",version="abc"} 1.0\n' in text
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in texts[0].decode().splitlines() if line.startswith("#")
    ]


def test_a_worker_that_does_not_answer_is_left_out(tmp_path):
    async def go():
        first, second, third = (WorkerPlace(number, 3, tmp_path) for number in range(3))
        async with first.answering(lambda: b"a"), third.answering(lambda: b"c"):
            return await second.others()

    assert asyncio.run(go()) == [b"a", b"c"]


@pytest.mark.parametrize(
    ("serve", "count", "why"),
    [
        ({}, 0, "from 1 to 256"),
        ({"audit": {"share": 1.0, "log": "audits"}}, 2, "belong to one process"),
        ({"key": [{"name": "a", "env": "A", "budget": 1.0}]}, 2, "counted in one process"),
    ],
)
def test_what_one_process_counts_has_one_worker(make_served, capsys, serve, count, why):
    served = make_served(2, serve=serve)
    command = ["serve", str(served.cascade), str(served.artefact), "--check"]
    assert main([*command, "--workers", str(count)]) == 2
    assert why in capsys.readouterr().err


def test_workers_share_a_socket_and_are_replaced(make_served, tmp_path):
    served = make_served(1, serve={"trace_log": str(tmp_path / "seen.jsonl")})
    gateway = GatewayProcess(str(served.cascade), str(served.artefact), "--workers", "2")
    try:
        gateway.wait_for("start", 2)
        assert {gateway.post().status_code for _ in range(20)} == {200}
        for _ in range(4):  # whichever worker is asked
            text = httpx.get(f"{gateway.url}/metrics").text
            (asked,) = (line for line in text.splitlines() if line.startswith("ttamer_asked_total"))
            assert asked.endswith(" 20.0")
        pid = gateway.child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        assert gateway.wait_for("worker")["ended"] == -signal.SIGKILL
        gateway.wait_for("start", 3)
        assert gateway.post().status_code == 200
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("policy", 5)  # three loads, two reloads
        assert gateway.end() == 0
    finally:
        gateway.close()
    assert {line["worker"] for line in gateway.lines} == {0, 1}
    rows = [
        json.loads(line)
        for file in tmp_path.glob("seen.[01].jsonl")
        for line in file.read_text().splitlines()
    ]
    assert len(rows) == 21
