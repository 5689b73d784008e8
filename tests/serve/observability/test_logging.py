"""The log has what happened, and no text of prompts, answers or keys."""

from __future__ import annotations

import http.client
import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ttamer.serve.observability import logging as gateway_logging
from ttamer.serve.observability.logging import JsonLog
from ttamer.serve.observability.record import RequestRecord, failure_kind, request_id_from

SECRETS = ("sk-key-0123456789abcdef", "the patient's name", "forty-two")


def asked(node, prediction=None, error=None):
    return SimpleNamespace(
        node=node, prediction=prediction, confidence=0.5, cost=1.0, seconds=0.1, error=error
    )


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def log(stream):
    return JsonLog(stream, clock=lambda: 1_800_000_000.25)


def lines(stream) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line(log, stream):
    path = (asked("small", error="timeout: after 2 s"), asked("large", "A"))
    log.finished(
        [RequestRecord("7f", "/v1/classify", 200, 0.25, "ab12", path, "large", 2.0, hedged=1)]
    )
    assert lines(stream) == [
        {
            "time": "2027-01-15T08:00:00.250Z",
            "event": "request",
            "request": "7f",
            "endpoint": "/v1/classify",
            "status": 200,
            "seconds": 0.25,
            "path": ["small", "large"],
            "by": "large",
            "cost": 2.0,
            "policy": "ab12",
            "failed": {"small": "timeout"},
            "hedged": 1,
        }
    ]


def test_a_refused_request_reports_why(log, stream):
    log.finished([RequestRecord("7f", "/v1/classify", 429, 0.0, error="rate_limited")])
    (line,) = lines(stream)
    assert line["error"] == "rate_limited"
    assert "path" not in line


def test_no_answer_is_in_any_line(log, stream):
    key, prompt, answer = SECRETS
    upstream = RuntimeError(f"401 for {key}: cannot answer {prompt!r} with {answer!r}")
    path = (
        asked("small", answer, f"{prompt}: {answer}"),
        asked("middle", answer, upstream),
        asked("large", answer),
    )
    log.finished(
        [RequestRecord("7f", "/v1/chat/completions", 200, 0.25, "ab12", path, "large", 2.0)]
    )
    try:
        try:
            raise upstream
        except RuntimeError as error:
            raise ValueError(prompt) from error
    except ValueError as error:
        log.failure("7f", error)
        record = logging.LogRecord(
            "asyncio", 40, "x.py", 1, f"Task failed\ntask: <Task {prompt}>", (), None
        )
        log.handler().handle(record)
        for message, args in (("GET %s with %s", (f"/?q={prompt}", key)), ("%r", (error,))):
            exc = (type(error), error, error.__traceback__)
            log.handler().handle(logging.LogRecord("uvicorn", 40, "x.py", 1, message, args, exc))
    text = stream.getvalue()
    assert len(lines(stream)) == 5
    for secret in SECRETS:
        assert secret not in text


def test_a_failure_reports_what_and_where(log, stream):
    try:
        json.loads("{")
    except ValueError as error:
        log.failure("7f", error)
    (line,) = lines(stream)
    assert line["type"] == "JSONDecodeError"
    assert line["at"][0].startswith("test_logging.py:")
    assert line["at"][-1].startswith("decoder.py:")


def test_messages_of_libraries_become_lines(log, stream):
    logger = logging.Logger("uvicorn.error")
    logger.addHandler(log.handler())
    logger.warning("Exceeded concurrency limit of %d", 3)
    logger.info(object())
    first, second = lines(stream)
    assert first["message"] == "Exceeded concurrency limit of %d"
    assert (first["logger"], first["level"]) == ("uvicorn.error", "warning")
    assert "message" not in second


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "\ud800", "é"])
def test_names_break_no_line(log, stream, name):
    log.finished([RequestRecord("7f", "/v1/x", 200, 0.1, asked=(asked(name),), by=name)])
    (line,) = lines(stream)
    assert line["by"] == name


def test_a_log_that_cannot_be_written_is_harmless(log, stream):
    stream.close()
    log.finished([RequestRecord("7f", "/v1/x", 200, 0.1)])
    log.event("reload", ok=True)
    assert log.lost == 2


def test_a_full_disk_is_harmless():
    code = (
        "from ttamer.serve.observability.logging import JsonLog; log = JsonLog(); "
        "log.event('start'); print(log.lost)"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.stdout == b"1\n"


@pytest.mark.parametrize(
    ("header", "kept"),
    [("job-17", True), ("a" * 64, True), (None, False), ("", False), ("a" * 65, False),
     ("a\r\nset-cookie: b", False), ("a b", False), ("é", False), ("a\n", False)],
)  # fmt: skip
def test_request_ids_from_outside_are_short_and_harmless(header, kept):
    assert (request_id_from(header) == header) is kept
    assert request_id_from(header) != ""


def test_new_request_ids_differ():
    assert len({request_id_from(None) for _ in range(300)}) == 300


FORKED = """
import os
from ttamer.serve.observability.record import request_id_from
request_id_from(None)
child = os.fork()
os.write(1, f"{request_id_from(None)}\\n".encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_has_request_ids_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=600
    )
    assert len(set(done.stdout.split())) == 2


def test_kinds_are_a_fixed_list():
    assert failure_kind(SimpleNamespace(kind="cut")) == "cut"
    assert failure_kind(SimpleNamespace(kind="sk-123")) == "other"
    assert failure_kind(TimeoutError()) == "timeout"
    assert failure_kind(KeyError("sk-123")) == "other"
    assert failure_kind("garbage: not JSON") == "garbage"
    assert failure_kind("sk-123: not JSON") == "other"


SECRET = "s3cr3t-0123456789abcdef"  # noqa: S105 - planted everywhere, to be found nowhere


def send(gateway, path, headers, body) -> int:
    """Send a request, and return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def test_secrets_in_every_place_of_a_request_are_in_no_record_of_it(
    run_gateway, monkeypatch, tmp_path, caplog
):
    monkeypatch.setenv("GATEWAY_KEYS", SECRET)
    monkeypatch.setenv("UPSTREAM_KEY", f"up-{SECRET}")
    seen = tmp_path / "seen.jsonl"
    gateway = run_gateway(
        2,
        serve={"keys_env": "GATEWAY_KEYS", "trace_log": str(seen)},
        node={"small": {"key_env": "UPSTREAM_KEY"}},
    )
    small, large = gateway.served.upstreams.values()
    body = {
        "model": "ttamer",
        "messages": [{"role": "user", "content": SECRET}],
        "user": SECRET,
        "metadata": {SECRET: SECRET},
    }
    headers = {
        "authorization": f"Bearer {SECRET}",
        "content-type": "application/json",
        "cookie": f"a={SECRET}",
        "user-agent": SECRET,
        "x-request-id": f"{SECRET} with a space",
        "traceparent": SECRET,
        "x-ttamer-choice": SECRET,
    }
    chat = f"/v1/chat/completions?key={SECRET}"
    whole = json.dumps(body)
    statuses = [send(gateway, chat, headers, whole)]
    small.answer = large.answer = lambda _prompt, _sample: (SECRET, 0.9)
    statuses.append(send(gateway, chat, headers, whole))
    for mode in ("error", "garbage", "reset"):
        small.mode = large.mode = mode
        statuses.append(send(gateway, chat, headers, whole))
    wrong = [
        (chat, {}, json.dumps(body | {"model": SECRET})),
        (chat, {}, json.dumps(body | {"messages": SECRET})),
        (chat, {}, f'{{"{SECRET}": 1, "{SECRET}": 2}}'),
        (chat, {}, SECRET),
        (f"/{SECRET}", {}, ""),
        (chat, {"authorization": f"Bearer x{SECRET}"}, whole),
        (chat, {"x-ttamer-tradeoff": SECRET}, whole),
        (chat, {"content-type": SECRET}, whole),
    ]
    statuses += [send(gateway, path, headers | more, text) for path, more, text in wrong]
    assert statuses[:2] == [200, 200]
    assert all(400 <= status < 600 for status in statuses[2:])
    assert gateway.log  # everything is written now
    records = gateway._stream.getvalue() + gateway.gateway.metrics.text().decode()
    records += json.dumps(gateway.gateway.status_now()) + caplog.text
    gateway.gateway.trace_log.close()
    records += seen.read_text()
    assert '"path":["' in records
    assert "s3cr3t" not in records


def test_lines_of_workers_are_written_in_short_parts(monkeypatch):
    """A pipe keeps short writes whole; a line is never cut."""
    monkeypatch.setattr(gateway_logging, "MAX_WRITE", 200)
    writes: list[str] = []
    stream = io.StringIO()
    stream.write = writes.append
    records = [RequestRecord(f"{number}" * 40, "/v1/x", 200, 0.1) for number in range(6)]
    JsonLog(stream, worker=1).finished([*records, RequestRecord("9" * 300, "/v1/x", 200, 0.1)])
    lines = "".join(writes).splitlines()
    assert [json.loads(line)["worker"] for line in lines] == [1] * 7
    assert all(each.endswith("\n") for each in writes)
    assert 1 < len(writes) <= 7
    monkeypatch.setattr(gateway_logging, "MAX_WRITE", 4096)
    writes.clear()
    JsonLog(stream, worker=1).finished(records)
    assert len(writes) == 1
