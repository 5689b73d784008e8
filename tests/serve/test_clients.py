"""Clients: roles of keys, labels of one's own requests, host names, and choices on a grid."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import threading
import time

import httpx2 as httpx
import pytest

import ttamer as tt
from support.changing import answers, fitted, models
from support.running_gateway import running
from ttamer.drift.audit_log import read_log
from ttamer.drift.loop import serving_of
from ttamer.drift.settings import LoopSettings
from ttamer.errors import CascadeError
from ttamer.serve.config import settings_from
from ttamer.serve.drift import concealer, save_serving
from ttamer.serve.observability.logging import MAX_WAITING, JsonLog
from ttamer.serve.policies import on_grid
from ttamer.trace.spec import CascadeSpec

KEYS = {"web": "web-key-0123456789", "ops": "ops-key-0123456789", "judge": "judge-key-012345678"}
TABLES = [
    {"name": "web", "env": "WEB", "roles": ["ask", "label"]},
    {"name": "judge", "env": "JUDGE", "roles": ["label"]},
    {"name": "ops", "env": "OPS", "roles": ["metrics"]},
]
ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}]}


@pytest.fixture
def _keys(monkeypatch):
    for name, key in KEYS.items():
        monkeypatch.setenv(name.upper(), key)


def bearer(name) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def statuses(gateway, name) -> list[int]:
    url, headers = gateway.root, bearer(name)
    return [
        httpx.post(f"{gateway.url}/chat/completions", json=ASK, headers=headers).status_code,
        httpx.post(
            f"{gateway.url}/labels", json={"request": "x", "label": "A"}, headers=headers
        ).status_code,
        httpx.get(f"{url}/metrics", headers=headers).status_code,
        httpx.get(f"{url}/status.json", headers=headers).status_code,
    ]


REQUIRED, UNKNOWN = "an API key is required: Authorization: Bearer KEY", "this API key is not known"
NO_ADMIN = "this API key is not known, or is no admin key"
METRICS = "this API key may not be used here; it needs the role 'metrics'"


@pytest.mark.parametrize(
    ("path", "authorization", "status", "message"),
    [
        ("/metrics", None, 401, REQUIRED),
        ("/metrics", "Basic d2ViOmtleQ==", 401, REQUIRED),
        ("/metrics", "Bearer a-key-of-no-client-01", 401, UNKNOWN),
        ("/metrics", "Bearer an-admins-own-key-01", 401, UNKNOWN),
        ("/metrics", f"Bearer {KEYS['web']}", 403, METRICS),
        ("/admin/reload", None, 401, REQUIRED.replace("API", "admin")),
        ("/admin/reload", "Bearer a-key-of-no-client-01", 401, NO_ADMIN),
        ("/admin/reload", f"Bearer {KEYS['web']}", 401, NO_ADMIN),
    ],
)
def test_the_error_of_a_refused_key_states_why_and_not_which_keys_exist(
    run_gateway, monkeypatch, path, authorization, status, message
):
    monkeypatch.setenv("WEB", KEYS["web"])
    monkeypatch.setenv("ADMIN", "an-admins-own-key-01")
    gateway = run_gateway(1, serve={"key": TABLES[:1], "admin_keys_env": "ADMIN"})
    headers = {} if authorization is None else {"authorization": authorization}
    method = "POST" if path.startswith("/admin") else "GET"
    response = httpx.request(method, gateway.root + path, headers=headers, timeout=30)
    assert (response.status_code, response.json()["error"]["message"]) == (status, message)


@pytest.mark.usefixtures("_keys")
def test_a_key_opens_what_its_roles_say(run_gateway, tmp_path):
    audit = {"share": 1.0, "log": os.fspath(tmp_path / "audits")}
    gateway = run_gateway(serve={"key": TABLES, "audit": audit})
    assert statuses(gateway, "web") == [200, 200, 403, 403]
    assert statuses(gateway, "judge") == [403, 200, 403, 403]
    assert statuses(gateway, "ops") == [403, 403, 200, 200]
    assert httpx.get(f"{gateway.root}/metrics").status_code == 401


@pytest.mark.usefixtures("_keys")
def test_a_client_labels_only_its_own_requests(run_gateway, tmp_path):
    audit = {"share": 1.0, "log": os.fspath(tmp_path / "audits")}
    gateway = run_gateway(serve={"key": TABLES, "audit": audit})
    headers = {**bearer("web"), "x-request-id": "r1"}
    for _ in range(2):  # the second use of an id does not replace the first row
        httpx.post(f"{gateway.url}/chat/completions", json=ASK, headers=headers)
    body = {"request": "r1", "label": "A"}
    taken = [
        httpx.post(f"{gateway.url}/labels", json=body, headers=bearer(name)).json()["audited"]
        for name in ("judge", "web", "web")
    ]
    assert taken[0] is False
    assert taken[1] is True
    assert gateway.gateway.audits.status()["audited"] == 1


def test_the_folder_of_audits_is_private(run_gateway, tmp_path):
    folder = tmp_path / "audits"
    run_gateway(serve={"audit": {"share": 1.0, "log": os.fspath(folder)}})
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("plain", [False, True])
def test_files_of_audits_are_private_and_hold_no_answers_unless_asked_for(
    tmp_path, make_served, plain
):
    folder, elsewhere = tmp_path / "audits", tmp_path / "elsewhere"
    audit = {"share": 1.0, "log": os.fspath(folder), "log_answers": plain}
    served = make_served(serve={"compare": "exact", "audit": audit})
    for upstream in served.upstreams.values():
        upstream.answer = lambda prompt, _: (f"a secret about {prompt}", 0.9)
    with running(served.cascade, served.artefact) as gateway:
        for number in (1, 1, 2):
            ask = {**ASK, "messages": [{"role": "user", "content": f"prompt {number}"}]}
            assert httpx.post(f"{gateway.url}/chat/completions", json=ask).status_code == 200
        (folder / f"00000001-3-{int(time.time())}.parquet").symlink_to(elsewhere)
    content = b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())
    assert (b"secret" in content) is plain
    assert [f for f in folder.iterdir() if f.stat(follow_symlinks=False).st_mode & 0o077
            and not f.is_symlink()] == []  # fmt: skip
    assert not elsewhere.exists()
    rows = read_log(folder)
    assert len(set(rows.classes)) == 2
    assert (rows.prediction[:, 0] == rows.prediction[:, 1]).all()


def test_policies_of_the_loop_are_saved_privately_with_the_classes_they_need(tmp_path):
    ladder, held = fitted("last"), answers(models(), 100, "held", "last")
    texts = tuple("a secret" if text == "C" else text for text in held.classes)
    serving = dataclasses.replace(
        serving_of(ladder, held, LoopSettings(at_most=0.5)),
        reference=dataclasses.replace(held, classes=texts),
    )
    save_serving(serving, tmp_path / "policies", "1", concealer(b"key"))
    files = sorted((tmp_path / "policies").iterdir())
    assert [file.name for file in files] == ["1.parquet", "1.ttamer"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    kept = sorted(tt.Trace.read(files[0]).classes)
    assert kept[1:] == ["A", "B", "D"]
    assert kept[0].startswith("#")
    assert b"secret" not in files[0].read_bytes()


def test_a_client_does_not_choose_the_side_of_a_mixture(run_gateway):
    one, two = (run_gateway().gateway for _ in range(2))
    assert one.request_key("", "id") == one.request_key("", "id")
    assert one.request_key("", "id") != one.request_key("web", "id")
    assert one.request_key("", "id") != two.request_key("", "id")


def test_other_host_names_are_refused(run_gateway):
    gateway = run_gateway(serve={"hosts": ["api.example", "127.0.0.1"]})
    url = f"{gateway.root}/healthz"
    for host, status in {"api.example": 200, "API.example:80": 200, "evil.example": 421}.items():
        assert httpx.get(url, headers={"host": host}).status_code == status
    assert httpx.get(url).status_code == 200
    reply = httpx.post(
        f"{gateway.url}/chat/completions", json=ASK, headers={"host": "evil.example"}
    )
    assert reply.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "a"}, "one of env and file"),
        ({"env": "A"}, "needs a name"),
        ({"name": "a", "env": "A", "file": "f"}, "one of env and file"),
        ({"name": "a", "env": "A", "roles": ["root"]}, '"ask", "label", "metrics"'),
    ],
)
def test_keys_that_cannot_be_are_refused(table, said):
    nodes = [{"name": "n", "cost": 1.0, "upstream": "http://x/v1"}]
    spec = CascadeSpec.from_dict({"serve": {"key": [table]}, "node": nodes})
    with pytest.raises(CascadeError, match=said):
        settings_from(spec)


def test_choices_lie_on_a_grid(run_gateway):
    gateway = run_gateway(serve={"allow": ["budget"]})
    policies = gateway.gateway.policies.current.policies
    for number in range(50):
        body = {**ASK, "ttamer": {"budget": 5 + number / 1e5}}
        assert httpx.post(f"{gateway.url}/chat/completions", json=body).status_code == 200
    assert len(policies._chosen) == 1


@pytest.mark.parametrize("value", [1e-310, 0.0123456, 0.1, 0.99999, 1.0, 9.999, 123456.7, 0.0])
def test_the_grid_is_near_and_never_above(value):
    for name, nearest in {"budget": 0.989, "error": 0.9}.items():
        found = on_grid(name, value)
        assert nearest * value <= found <= value
        assert on_grid(name, found) == found


def test_errors_at_random_are_few_policies():
    assert len({on_grid("error", number / 10_007) for number in range(1, 10_007)}) < 400


def test_a_number_that_no_float_holds_is_refused(run_gateway):
    gateway = run_gateway(serve={"allow": ["budget"]})
    body = json.dumps({**ASK, "ttamer": {"budget": 1}}).replace("1}}", "9" * 400 + "}}")
    reply = httpx.post(
        f"{gateway.url}/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "ttamer.budget"


# The log


class Stalled(io.StringIO):
    """A stream whose reader has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.release.wait(60)
        return super().write(text)


def test_a_reader_of_the_log_that_stalls_delays_nothing():
    stream, lost = Stalled(), []
    log = JsonLog(stream)
    log.on_lost = lost.append
    log.start()
    log.event("first")
    assert stream.entered.wait(60)
    for _ in range(MAX_WAITING + 5):  # returns at once: the thread waits, not the caller
        log.event("more")
    assert log.lost == sum(lost) == 5
    stream.release.set()
    log.stop(60.0)
    assert stream.getvalue().count("\n") == MAX_WAITING + 1


def test_stopping_does_not_wait_for_a_reader_that_stalls():
    stream = Stalled()
    log = JsonLog(stream)
    log.start()
    for _ in range(3):
        log.event("more")
    assert stream.entered.wait(60)
    log.stop(0.0)
    assert log.lost == 2
    stream.release.set()
