"""Two workers and the owner of their audits, labels and drift loop, each on a thread."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import httpx2 as httpx
import pytest

import ttamer as tt
from support.changing import ADMIN, answers, boast, models, write_changing
from support.gateway_process import GatewayProcess
from support.running_gateway import RunningGateway, running
from support.waiting import until
from ttamer.drift.audit_log import AuditLog, read_log
from ttamer.drift.loop import serving_of
from ttamer.serve.processes.workers import OWNER, WorkerPlace
from ttamer.trace.spec import CascadeSpec

WEB, JOB = "a-key-of-the-web-client", "a-key-of-the-job-client"
KEYS = [
    {"name": name, "env": f"{name.upper()}_KEY", "roles": ["ask", "label", "metrics"]}
    for name in ("web", "job")
]


@dataclass
class Workers:
    """Two workers, and an owner that can end and be started again."""

    changing: object
    folder: object
    workers: list[RunningGateway] = field(default_factory=list)
    owner: RunningGateway | None = None
    _owning: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    sent: int = 0

    def start(self, name) -> contextlib.AbstractContextManager[RunningGateway]:
        place = WorkerPlace(name, 2, self.folder)
        return running(self.changing.cascade, self.changing.artefact, place)

    def start_owner(self) -> None:
        self.owner = self._owning.enter_context(self.start(OWNER))
        until(lambda: all(each.gateway.audits._line._writer for each in self.workers))

    def stop_owner(self) -> None:
        self._owning.close()
        until(lambda: not any(each.gateway.audits._line._writer for each in self.workers))

    def ask(self, worker: int, key: str = WEB) -> httpx.Response:
        self.sent += 1
        body = {
            "model": "ttamer",
            "messages": [{"role": "user", "content": f"prompt {self.sent}"}],
        }
        reply = self.post(worker, "/v1/chat/completions", body, key)
        assert reply.status_code == 200
        return reply

    def post(self, worker: int, path: str, body=None, key: str = WEB) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(
            f"{self.workers[worker].root}{path}", json=body, headers=headers, timeout=60
        )

    def label(self, worker: int, request: str, label: str, key: str = WEB) -> httpx.Response:
        return self.post(worker, "/v1/labels", {"request": request, "label": label}, key)

    def drift(self, worker: int = 0) -> dict:
        """The audits on the status page of a worker, once the owner has answered it."""
        found: list[dict] = []

        def has_answered() -> bool:
            found[:] = filter(None, [self.status(worker)["drift"]])
            return bool(found)

        until(has_answered)
        return found[0]

    def status(self, worker: int = 0) -> dict:
        headers = {"authorization": f"Bearer {WEB}"}
        return httpx.get(
            f"{self.workers[worker].root}/status.json", headers=headers, timeout=60
        ).json()

    def dropped(self) -> float:
        return sum(each.metric("ttamer_audits_total") for each in self.workers)

    def versions(self) -> list[str]:
        return [self.ask(worker).headers["x-ttamer-policy"] for worker in (0, 1)]

    def activate(self, serving) -> None:
        """Do what the drift loop does when it swaps."""
        loop = self.owner.gateway.drift.loop
        with loop._lock:
            loop._serve(serving)


@pytest.fixture
def start_files(tmp_path, monkeypatch):
    """Start the models, and write the files of a cascade."""
    for name, key in (("ADMIN_KEYS", ADMIN), ("WEB_KEY", WEB), ("JOB_KEY", JOB)):
        monkeypatch.setenv(name, key)
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "secret").write_bytes(bytes(32))
    with contextlib.ExitStack() as stack:
        upstreams = {name: stack.enter_context(model) for name, model in models().items()}
        serve = {"admin_keys_env": "ADMIN_KEYS", "key": KEYS}
        yield functools.partial(write_changing, tmp_path, upstreams, serve=serve)


@pytest.fixture
def start(start_files, tmp_path):
    """Start two workers and their owner, each on a thread."""
    with contextlib.ExitStack() as stack:

        def start_all(**options) -> Workers:
            found = Workers(start_files(**options), tmp_path / "private")
            for name in (0, 1):
                found.workers.append(stack.enter_context(found.start(name)))
            stack.callback(found._owning.close)
            found.start_owner()
            return found

        yield start_all


def test_a_label_reaches_the_row_that_another_worker_recorded(start):
    workers = start(target="label", loop=False)
    asked = [(worker, workers.ask(worker).headers["x-request-id"]) for worker in (0, 1, 0, 1)]
    until(lambda: workers.drift()["written"] == 4)
    for worker, request in asked:
        foreign = workers.label(1 - worker, request, "B", key=JOB)
        assert foreign.json()["audited"] is False  # it asked nothing
        taken = workers.label(1 - worker, request, "A")
        assert taken.json()["audited"] is True
    until(lambda: workers.drift()["unlabelled"] == 0)
    until(lambda: workers.drift()["written"] == 8)  # each row, and again with its label
    status = workers.drift(1)
    assert (status["requests"], status["audited"], status["lost"]) == (4, 4, 0)
    assert {len(each.requests) for each in workers.changing.upstreams.values()} == {4}
    url, headers = f"{workers.workers[0].root}/metrics", {"authorization": f"Bearer {WEB}"}
    until(
        lambda: (
            'ttamer_audits_total{result="taken"} 4.0'
            in httpx.get(url, headers=headers, timeout=60).text
        )
    )
    workers.stop_owner()
    assert len(read_log(workers.changing.log, labelled=True)) == 4


def test_a_label_that_is_faster_than_its_request_counts(start):
    workers = start(target="label", loop=False)
    request = workers.ask(0).headers["x-request-id"]
    key = workers.workers[0].gateway.request_key("web", "early")
    assert key == workers.workers[1].gateway.request_key("web", "early")  # one secret for all
    assert workers.label(1, "early", "A").json()["audited"] is False
    headers = {"authorization": f"Bearer {WEB}", "x-request-id": "early"}
    body = {"model": "ttamer", "messages": [{"role": "user", "content": "another"}]}
    url = f"{workers.workers[0].url}/chat/completions"
    assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
    until(lambda: workers.drift()["audited"] == 2)
    until(lambda: workers.drift()["unlabelled"] == 1)  # only the first request
    assert workers.label(1, request, "A").json()["audited"] is True


def test_a_policy_of_the_loop_reaches_all_workers_and_outlives_its_owner(start):
    workers = start()
    (version, same) = workers.versions()
    assert version == same
    reference = answers(models(), 300, "held again", "last")
    ladder = tt.fit(answers({**models(), "small": Boastful()}, 400, "fit again", "last"))
    serving = serving_of(ladder, reference, workers.owner.gateway.drift.loop.settings)
    workers.activate(serving)
    until(lambda: workers.versions() == [f"{version}+1"] * 2)
    until(
        lambda: [each["version"] for each in workers.status(1)["workers"]] == [f"{version}+1"] * 3
    )
    for worker in workers.workers:
        active = worker.gateway.policies.current.policies.standard
        policy = active.cascade.policy
        assert (policy.promise, policy.share) == (serving.promise, serving.policy.share)

    assert workers.post(0, "/admin/drift/hold", key=ADMIN).json()["held"] is True
    workers.stop_owner()
    dropped = workers.dropped()
    assert workers.versions() == [f"{version}+1"] * 2  # workers go on
    assert workers.label(0, "any", "A").status_code == 503
    assert workers.post(1, "/admin/drift/release", key=ADMIN).status_code == 503
    assert workers.dropped() == dropped + 2  # counted, and no request waited

    workers.start_owner()
    loop = workers.owner.gateway.drift.loop
    assert loop.held
    assert str(loop.serving) == str(serving)
    assert workers.versions() == [f"{version}+1"] * 2
    refused = workers.post(1, "/admin/drift/rollback", key=ADMIN)
    assert refused.status_code == 409
    assert "no former policy" in refused.json()["error"]["message"]


def test_after_a_fallback_an_owner_starts_in_the_fallback(start):
    workers = start()
    version = workers.versions()[0]
    workers.activate(workers.owner.gateway.drift.loop._fallback)
    until(lambda: workers.versions() == [f"{version}+1"] * 2)
    workers.stop_owner()
    workers.start_owner()
    loop = workers.owner.gateway.drift.loop
    assert (loop.state, loop.rows_needed) == ("suspected", loop.settings.refit_rows)
    until(lambda: workers.versions() == [f"{version}+2"] * 2)
    assert workers.ask(1).headers["x-ttamer-path"] == "large"


def test_a_reload_reaches_the_loop_and_all_workers(start):
    workers = start()
    version = workers.versions()[0]
    workers.activate(workers.owner.gateway.drift.loop._fallback)
    until(lambda: workers.versions() == [f"{version}+1"] * 2)
    tt.save(tt.fit(answers(models(), 450, "fit again", "last")), workers.changing.artefact)
    for each in (*workers.workers, workers.owner):  # as after SIGHUP
        assert each.do(each.gateway.reload("signal")).ok
    until(lambda: len(set(workers.versions())) == 1 and "+" not in workers.versions()[0])
    assert workers.versions()[0] != version
    assert workers.owner.gateway.drift.loop.state == "watching"


def test_the_owner_is_a_process_that_is_started_again(start_files):
    """A label reaches a row of another worker; without an owner requests are answered."""
    changing = start_files(target="label", loop=False)
    arguments = (str(changing.cascade), str(changing.artefact))
    gateway = GatewayProcess(*arguments, "--workers", "2")
    headers = {"authorization": f"Bearer {WEB}"}
    try:
        gateway.wait_for("start", 3)
        with gateway.only("0"):
            request = gateway.post(headers=headers).headers["x-request-id"]
        until(lambda: drift(gateway)["written"] == 1)
        with gateway.only("1"):
            label = {"request": request, "label": "A"}
            taken = httpx.post(f"{gateway.url}/v1/labels", json=label, headers=headers, timeout=60)
            assert taken.json()["audited"] is True
        until(lambda: drift(gateway)["written"] == 2)
        os.kill(gateway.workers()["owner"], signal.SIGKILL)
        gateway.wait_for("worker")
        assert gateway.post(headers=headers).status_code == 200
        gateway.wait_for("start", 4)
        until(lambda: gateway.post(headers=headers) and drift(gateway)["written"] >= 1)
        assert gateway.end() == 0
    finally:
        gateway.close()
    assert {line["worker"] for line in gateway.lines} == {0, 1, "owner"}
    assert len(read_log(changing.log, labelled=True)) == 1


def test_an_owner_waits_for_the_log_of_the_one_it_replaces(start_files, tmp_path):
    changing = start_files(loop=False)
    place = WorkerPlace(OWNER, 2, tmp_path / "private")
    command = [sys.executable, "-m", "ttamer", "serve", str(changing.cascade)]
    command += [str(changing.artefact), "--json", "--worker", str(place)]
    spec = CascadeSpec.of({"small": 1.0, "large": 10.0}, target="last")
    with AuditLog(changing.log, spec):
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert owner.stdout.readline()  # workers may start
        assert "waiting for the process" in owner.stderr.readline()
    events = [json.loads(owner.stderr.readline())["event"] for _ in range(2)]
    assert events == ["policy", "start"]
    owner.send_signal(signal.SIGTERM)
    owner.communicate(timeout=60)
    assert owner.returncode == 0


def drift(gateway: GatewayProcess) -> dict:
    """The audits on the status page; without an owner there are none."""
    headers = {"authorization": f"Bearer {WEB}"}
    found = httpx.get(f"{gateway.url}/status.json", headers=headers, timeout=60).json()["drift"]
    return found or {"written": 0}


class Boastful:
    """A model that is very sure, whatever it answers."""

    answer = staticmethod(boast)
