"""Several workers on one socket: metrics add up, and one that ends is started again."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket

import httpx2 as httpx
import pytest

from support.gateway_process import ASK, GatewayProcess
from ttamer.errors import ArgumentError, CascadeError
from ttamer.serve import accounts
from ttamer.serve.accounts import Account, Ledger, RateExceeded
from ttamer.serve.observability.logging import JsonLog
from ttamer.serve.observability.metrics import Metrics
from ttamer.serve.processes import workers
from ttamer.serve.processes.workers import WorkerPlace, added_up, check_workers

KEY = "a-key-of-the-tests-0123"
BEARER = {"authorization": f"Bearer {KEY}"}


def ask_at_once(gateway: GatewayProcess, count: int) -> list[int]:
    """Ask on as many connections at the same time; return the statuses."""

    async def go() -> list[int]:
        async with httpx.AsyncClient(headers=BEARER, timeout=30) as client:
            url = f"{gateway.url}/v1/chat/completions"
            found = await asyncio.gather(*(client.post(url, json=ASK) for _ in range(count)))
            return [each.status_code for each in found]

    return asyncio.run(go())


def check_sums(gateway: GatewayProcess) -> None:
    """Ask for metrics and status, again where a worker was too slow to be included."""
    answered = 'ttamer_answered_total{node="small"} 30.0\n'
    for _ in range(20):
        text = httpx.get(f"{gateway.url}/metrics", headers=BEARER, timeout=30).text
        status = httpx.get(f"{gateway.url}/status.json", headers=BEARER, timeout=30).json()
        if answered in text and [each["worker"] for each in status["workers"]] == ["0", "1"]:
            break
    assert answered in text
    assert (status["requests"]["all"], status["bill"]["spent"]) == (50, 30.0)
    (web,) = status["keys"]
    assert (web["requests"], web["spent"], web["spent_in_period"]) == (50, 30.0, 30.0)
    assert web["refused"]["budget"] == 20


def test_values_of_a_series_are_added():
    texts = []
    for count in (1, 2):
        metrics = Metrics(["small"], ["/v1/chat/completions"])
        metrics.policy("abc", "start")
        for _ in range(count):
            metrics.refused()
        texts.append(metrics.text().decode())
    text = added_up(texts)
    assert "ttamer_refused_total 3.0\n" in text
    assert 'ttamer_policy_info{source="start",version="abc"} 1.0\n' in text
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in texts[0].splitlines() if line.startswith("#")
    ]


def test_a_worker_that_does_not_answer_is_left_out(tmp_path):
    async def go():
        first, second, third = (WorkerPlace(number, 3, tmp_path) for number in range(3))
        one, three = {"name": lambda: "a"}, {"name": lambda: "c"}
        async with first.answering(one, print), third.answering(three, print):
            return await second.others("name")

    assert asyncio.run(go()) == ["a", "c"]


def test_a_worker_ends_with_its_supervisor_and_removes_the_private_folder(tmp_path, monkeypatch):
    parents, sent = iter([7, 7, 1]), []
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda pid, sig: sent.append((pid, sig)))
    monkeypatch.setattr(workers, "PARENT_SECONDS", 0.0)
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "secret").write_bytes(b"x")
    asyncio.run(workers._end_with_parent(folder))
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert not folder.exists()


def test_a_number_of_workers_out_of_range_is_refused():
    check_workers(256)
    for count in (0, 257):
        with pytest.raises(ArgumentError, match="from 1 to 256"):
            check_workers(count)


def test_a_rate_is_shared_by_workers(tmp_path):
    accounts = [
        Account("web", rate=5.0, clock=lambda: 0.0, ledger=Ledger(tmp_path / "accounts"))
        for _ in range(2)
    ]
    for number in range(5):
        accounts[number % 2].admit()
    for account in accounts:
        with pytest.raises(RateExceeded):
            account.admit()
    assert accounts[0].to_dict()["refused"] == {"budget": 0, "rate": 2}


def test_accounts_of_a_ledger_are_separate_and_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(accounts, "MAX_ACCOUNTS", 3)
    ledger = Ledger(tmp_path / "accounts")
    web, job = (Account(name, budget=9.0, ledger=ledger) for name in ("web", "job"))
    web.book(5.0)
    web.change(budget=9.0, period=60.0, rate=None)  # another period, and another entry
    assert (web.left, job.left) == (9.0, 9.0)
    web.change(budget=9.0, period=86_400.0, rate=None)
    assert web.left == 4.0
    with pytest.raises(CascadeError, match="at most 3 keys"):
        Account("third", budget=1.0, ledger=ledger)


def test_what_was_spent_before_there_is_a_budget_counts(tmp_path):
    """Keys without a limit are counted by each worker, and all together once they have one."""
    one, two = (
        Account("web", clock=lambda: 0.0, ledger=Ledger(tmp_path / "accounts")) for _ in range(2)
    )
    window = one.book(3.0)
    two.book(4.0)
    assert (one.spent, two.spent) == (3.0, 4.0)
    for account in (one, two):
        account.change(budget=10.0, period=86_400.0, rate=None)
    assert (one.left, two.left) == (3.0, 3.0)
    one.settle(window, 3.0, 1.0)
    assert two.left == 5.0


def test_workers_share_a_socket_and_a_budget_and_are_replaced(make_served, tmp_path, monkeypatch):
    """Both workers spend, and the upstream sees exactly what the budget allows."""
    monkeypatch.setenv("WEB_KEY", KEY)
    key = {"name": "web", "env": "WEB_KEY", "roles": ["ask", "metrics"], "budget": 30.0}
    served = make_served(1, serve={"trace_log": str(tmp_path / "seen.jsonl"), "key": [key]})
    gateway = GatewayProcess(str(served.cascade), str(served.artefact), "--workers", "2")
    try:
        gateway.wait_for("start", 2)
        for worker in ("0", "1"):
            with gateway.only(worker):
                assert ask_at_once(gateway, 5) == [200] * 5
        assert sorted(ask_at_once(gateway, 40)) == [200] * 20 + [429] * 20
        assert served.upstreams["small"].count == 30
        for _ in range(4):  # whichever worker is asked
            check_sums(gateway)
        os.kill(gateway.workers()["0"], signal.SIGKILL)
        assert gateway.wait_for("worker")["ended"] == -signal.SIGKILL
        gateway.wait_for("start", 3)
        assert set(ask_at_once(gateway, 8)) == {429}  # what it spent stays spent
        text = served.cascade.read_text("utf-8")
        served.cascade.write_text(text.replace("30.0", "31.0"), "utf-8")
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("policy", 5)  # three loads, two reloads
        assert sorted(ask_at_once(gateway, 8)) == [200] + [429] * 7
        assert gateway.end() == 0
    finally:
        gateway.close()
    assert {line["worker"] for line in gateway.lines} == {0, 1}
    rows = [
        json.loads(line)
        for file in tmp_path.glob("seen.[01].jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sum(row["by"] == "small" for row in rows) == 31


def test_no_worker_changes_its_settings_where_the_policy_is_refused(make_served, monkeypatch):
    monkeypatch.setenv("WEB_KEY", KEY)
    monkeypatch.setenv("ADMIN_KEY", f"{KEY}-admin")
    key = {"name": "web", "env": "WEB_KEY", "roles": ["ask"], "budget": 2.0}
    served = make_served(1, serve={"key": [key], "admin_keys_env": "ADMIN_KEY", "watch": 0})
    gateway = GatewayProcess(str(served.cascade), str(served.artefact), "--workers", "2")
    admin, good = {"authorization": f"Bearer {KEY}-admin"}, served.artefact.read_bytes()
    try:
        gateway.wait_for("start", 2)
        text = served.cascade.read_text("utf-8")
        served.cascade.write_text(text.replace("budget = 2.0", "budget = 9.0"), "utf-8")
        served.artefact.write_bytes(good[:-100])
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("policy", 4)  # two loads, two reloads
        response = httpx.post(f"{gateway.url}/admin/reload", headers=admin, timeout=30)
        assert response.status_code == 409
        assert str(served.artefact) in response.json()["message"]
        assert sorted(ask_at_once(gateway, 8)) == [200] * 2 + [429] * 6
        assert not [line for line in gateway.lines if line["event"] == "settings"]
        refused = [line for line in gateway.lines if line["event"] == "policy" and not line["ok"]]
        assert {line["worker"] for line in refused if line["cause"] == "signal"} == {0, 1}
        assert {line["message"] for line in refused} == {response.json()["message"]}

        served.artefact.write_bytes(good)
        assert httpx.post(f"{gateway.url}/admin/reload", headers=admin, timeout=30).json()["ok"]
        gateway.wait_for("settings", 2)
        assert sorted(ask_at_once(gateway, 8)) == [200] * 7 + [429]
        assert gateway.end() == 0
    finally:
        gateway.close()


class Child:
    """A process that ends when it is signalled; waiting for it before that never ends."""

    def __init__(self):
        self.stdout = io.BytesIO(b"serving\n")
        self.is_signalled = False

    def send_signal(self, _):
        self.is_signalled = True

    def terminate(self):
        self.is_signalled = True

    def wait(self):
        assert self.is_signalled, "the supervisor waits for a worker that it did not stop"


@pytest.mark.parametrize("last", [1, 2], ids=["the first worker", "the last worker"])
def test_a_signal_that_arrives_while_workers_start_stops_all_of_them(monkeypatch, last):
    children = []

    def popen(*_, **__):
        children.append(Child())
        if len(children) == last:
            os.kill(os.getpid(), signal.SIGTERM)
        return children[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", popen)
    with socket.socket() as listener:
        workers.supervise(["serve"], 2, listener, lambda: None, JsonLog(io.StringIO()))
    assert len(children) == 2


def test_a_worker_that_is_started_again_serves_what_the_others_serve(make_served):
    """Not files that a reload has refused: other costs need a restart, and half a file is none."""
    served = make_served(1, serve={"watch": 0})
    gateway = GatewayProcess(str(served.cascade), str(served.artefact), "--workers", "2")
    try:
        gateway.wait_for("start", 2)
        text = served.cascade.read_text("utf-8").replace("watch = 0", "watch = 0\nmax_body = 200")
        served.cascade.write_text(text, "utf-8")
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("settings", 2)
        served.cascade.write_text(text.replace("cost = 1.0", "cost = 7.0"), "utf-8")
        served.artefact.write_bytes(served.artefact.read_bytes()[:-100])
        gateway.child.send_signal(signal.SIGHUP)
        assert not gateway.wait_for("policy", 6)["ok"]  # two loads, four reloads
        os.kill(gateway.workers()["0"], signal.SIGKILL)
        gateway.wait_for("start", 3)
        for worker in ("0", "1"):
            with gateway.only(worker):
                response = gateway.post()
                assert (response.status_code, response.headers["x-ttamer-cost"]) == (200, "1")
                assert gateway.post(user="x" * 200).status_code == 413
        assert gateway.end() == 0
    finally:
        gateway.close()
