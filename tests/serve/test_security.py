"""Attacks: each request is refused with the right status, and reaches no upstream."""

from __future__ import annotations

import json
import socket

import httpx2 as httpx
import pytest

import ttamer as tt
from support.forge import pickled, put, take, zipped
from ttamer.errors import ArgumentError, ArtefactError, CascadeError
from ttamer.serve.admission import KeysError
from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.server import check_exposure
from ttamer.trace.spec import CascadeSpec

KEY = "the-right-key-0000001"
ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which letter?"}]}
SHUT = ["/v1/chat/completions", "/v1/completions", "/v1/classify", "/v1/models", "/metrics",
        "/status.json"]  # fmt: skip
OPEN = ["/healthz", "/readyz", "/openapi.json", "/status"]


@pytest.fixture
def gateway(run_gateway, monkeypatch):
    monkeypatch.setenv("GATEWAY_KEYS", f"{KEY},another-key-of-them-02")
    return run_gateway(2, serve={"keys_env": "GATEWAY_KEYS", "max_body": 20_000, "max_depth": 16})


def asked(gateway) -> int:
    return sum(upstream.count for upstream in gateway.served.upstreams.values())


def raw(gateway, content: bytes) -> bytes:
    """Send bytes as they are; return all that comes back."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def post(gateway, body=ASK, *, key: str | None = KEY, path="/chat/completions", **headers):
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    return httpx.post(f"{gateway.url}{path}", content=content, headers=headers, timeout=30.0)


WRONG_KEYS = {
    "none": None,
    "empty": "Bearer",
    "wrong": "Bearer the-right-key-0000002",
    "a part": f"Bearer {KEY[:-1]}",
    "more": f"Bearer {KEY}x",
    "both": f"Bearer {KEY},another-key-of-them-02",
    "basic": f"Basic {KEY}",
    "bare": KEY,
    "two spaces": f"Bearer  {KEY}",
    "huge": "Bearer " + "x" * 5000,
    "not ascii": "Bearer \xff\xfe".encode("latin-1"),
}


@pytest.mark.parametrize("header", WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_without_the_right_key_nothing_is_served(gateway, header):
    headers = {} if header is None else {"authorization": header}
    for path in SHUT:
        method = "POST" if path.startswith("/v1/c") else "GET"
        reply = httpx.request(method, f"{gateway.root}{path}", headers=headers, json=ASK)
        assert reply.status_code == 401, path
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert asked(gateway) == 0


def test_either_key_is_right_and_health_needs_none(gateway):
    assert post(gateway).status_code == 200
    assert post(gateway, key="another-key-of-them-02").status_code == 200
    for path in OPEN:
        assert httpx.get(f"{gateway.root}{path}").status_code == 200


def test_a_body_is_not_read_before_the_key(gateway):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    assert raw(gateway, head).startswith(b"HTTP/1.1 401")


def test_keys_stand_neither_in_the_log_nor_in_what_is_served(gateway):
    post(gateway)
    post(gateway, key="a-wrong-key-to-be-seen")
    pages = [httpx.get(f"{gateway.root}{path}").text for path in OPEN]
    pages += [
        httpx.get(f"{gateway.root}{path}", headers={"authorization": f"Bearer {KEY}"}).text
        for path in ("/metrics", "/status.json", "/v1/models")
    ]
    for text in (*pages, str(gateway.log)):
        assert KEY not in text
        assert "a-wrong-key-to-be-seen" not in text


BODIES = {
    "too large": (json.dumps({**ASK, "x": "y" * 30_000}).encode(), 413, "body_too_large"),
    "too deep": (b'{"model":"ttamer","x":' + b"[" * 40 + b"]" * 40 + b"}", 400, "bad_json"),
    "far too deep": (b"[" * 19_000, 400, "bad_json"),
    "a key twice": (b'{"model":"a","model":"ttamer","messages":[]}', 400, "bad_json"),
    "not a number": (b'{"model":"ttamer","temperature":NaN}', 400, "bad_json"),
    "too large a number": (b'{"model":"ttamer","temperature":1e999}', 400, "bad_json"),
    "many digits": (b'{"n":' + b"9" * 10_000 + b"}", 400, "bad_json"),
    "half a character": (b'{"model":"\\ud800"}', 400, "bad_json"),
    "empty": (b"", 400, "bad_json"),
    "null": (b"null", 400, "bad_field"),
}


@pytest.mark.parametrize(("content", "status", "code"), BODIES.values(), ids=BODIES)
def test_hostile_bodies_are_refused(gateway, content, status, code):
    reply = post(gateway, content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert asked(gateway) == 0


def test_a_body_that_lies_about_its_length_is_counted(gateway):
    chunks = b"".join(b"1000\r\n" + b"x" * 0x1000 + b"\r\n" for _ in range(10)) + b"0\r\n\r\n"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert raw(gateway, head.encode() + chunks).startswith(b"HTTP/1.1 413")


IDS = ["a\tb", "x" * 65, "a b", "a;b", "../../etc", "<script>", "%0d%0aset-cookie:a", ""]


@pytest.mark.parametrize("request_id", IDS)
def test_an_odd_request_id_is_replaced(gateway, request_id):
    reply = post(gateway, **{"x-request-id": request_id})
    assert reply.headers["x-request-id"] != request_id
    assert len(reply.headers["x-request-id"]) == 32


def test_a_header_cannot_be_smuggled_through_the_request_id(gateway):
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\nx-request-id: a\r\n set-cookie: b\r\n"
        f"content-length: {len(json.dumps(ASK))}\r\nconnection: close\r\n\r\n{json.dumps(ASK)}"
    )
    assert b"set-cookie" not in raw(gateway, request.encode()).lower()


MODELS = ["ttamer\r\nset-cookie: a", "small", "http://169.254.169.254/", "../small", "ttamer/../x",
          "TTAMER", " ttamer", "ttamer\x00", "\u202ettamer"]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_only_the_cascade_can_be_asked_for(gateway, model):
    reply = post(gateway, {**ASK, "model": model})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert "set-cookie" not in reply.headers
    assert asked(gateway) == 0


def test_names_of_nodes_are_escaped_in_headers(run_gateway):
    gateway = run_gateway(1)
    from ttamer.serve.request import _path_headers

    found = _path_headers('a,b\r\nx: é"', ("a,b", "c\nd"))
    assert found["x-ttamer-answered-by"] == "a%2Cb%0D%0Ax%3A%20%C3%A9%22"
    assert found["x-ttamer-path"] == "a%2Cb,c%0Ad"
    assert post(gateway, key=None).headers["x-ttamer-path"] == "small"


PATHS = ["/v1/../admin/reload", "/v1//chat/completions", "/V1/models", "/v1/models/",
         "/v1/chat/completions/..", "/%2e%2e/etc/passwd", "/v1/models%00", "//v1/models",
         "/v1/chat%2fcompletions/x", "/admin/reload", "/static/../../etc/passwd",
         "/v1/models;x"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_are_taken_as_they_stand(gateway, path):
    for method in ("GET", "POST"):
        request = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        request += "content-length: 0\r\nconnection: close\r\n\r\n"
        assert raw(gateway, request.encode()).startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert asked(gateway) == 0


def test_a_request_cannot_choose_where_it_goes(gateway):
    """Whatever names a URL is handed on as data, or refused; only the configured are asked."""
    elsewhere = socket.create_server(("127.0.0.1", 0))
    port = elsewhere.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    fields = {"upstream": url, "base_url": url, "api_base": url, "fallback": url, "proxy": url}
    host = f"127.0.0.1:{port}"
    headers = {"x-forwarded-host": host, "host": host, "x-original-url": url, "x-upstream": url}
    assert post(gateway, {**ASK, **fields}, **headers).status_code == 200
    request = f"GET {url} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n"
    raw(gateway, request.encode())
    raw(gateway, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    elsewhere.settimeout(0.1)
    with elsewhere, pytest.raises(TimeoutError):
        elsewhere.accept()


def test_an_upstream_cannot_send_us_elsewhere(run_gateway):
    gateway = run_gateway(1)
    upstream = gateway.served.upstreams["small"]
    upstream.mode, upstream.status = "error", 307
    upstream.headers = {"location": "http://169.254.169.254/"}
    assert post(gateway, key=None).status_code == 502
    assert upstream.count == 1


def test_what_an_upstream_reports_of_itself_is_not_handed_on(run_gateway):
    gateway = run_gateway(2)
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "error"
        upstream.headers = {"set-cookie": "a=b", "x-secret": "s"}
    reply = post(gateway, key=None)
    assert "sk-secret" not in reply.text + str(gateway.log)
    assert not {"set-cookie", "x-secret"} & {name.lower() for name in reply.headers}


def _unsigned(file: bytes) -> bytes:
    return file[:100] + bytes([file[100] ^ 1]) + file[101:]


def _renamed(file: bytes) -> bytes:
    header, data = take(file)
    text = json.dumps(header).replace("small", "sma\\u202el")
    return put(json.loads(text), data)


HOSTILE = {
    "empty": lambda _: b"",
    "text": lambda _: b"x" * 1000,
    "pickle": pickled,
    "zip": zipped,
    "cut short": lambda file: file[: len(file) // 2],
    "altered": _unsigned,
    "other nodes, signed": _renamed,
    "deep header, signed": lambda file: put(b"[" * 100_000, take(file).data),
}


@pytest.mark.parametrize("forge", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_artefact_is_never_served(run_gateway, forge):
    gateway = run_gateway(2)
    version = gateway.gateway.policies.current.version
    artefact = gateway.served.artefact
    artefact.write_bytes(forge(artefact.read_bytes()))
    done = gateway.do(gateway.gateway.policies.reload())
    assert not done.ok
    assert done.message.isprintable()
    assert gateway.gateway.policies.current.version == version
    assert post(gateway, key=None).status_code == 200
    assert gateway.metric("ttamer_reloads_total") == 1


def test_a_policy_for_other_nodes_or_from_a_problem_is_not_served(served, tmp_path):
    settings = read_settings(served.cascade)
    problem = tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]])
    tt.save(tt.solve(problem, 0.5), tmp_path / "solved.ttamer")
    with pytest.raises(ArtefactError, match="ttamer fit"):
        Gateway(settings, tmp_path / "solved.ttamer").load()
    other = CascadeSpec.of({"one": 1.0, "two": 2.0})
    trace = tt.Trace.from_arrays(
        other, [[0.1, 0.9], [0.8, 0.2]] * 20, prediction=[["a", "b"]] * 40, label=["a", "b"] * 20
    )
    tt.save(tt.fit(trace, belief="none"), tmp_path / "other.ttamer")
    with pytest.raises(ArtefactError, match="the cascade has small, large"):
        Gateway(settings, tmp_path / "other.ttamer").load()


def test_no_keys_means_this_machine_only():
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_exposure(host, has_keys=False, is_open=False)
    check_exposure("0.0.0.0", has_keys=True, is_open=False)  # noqa: S104
    check_exposure("0.0.0.0", has_keys=False, is_open=True)  # noqa: S104
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org"):  # noqa: S104
        with pytest.raises(ArgumentError, match="--open"):
            check_exposure(host, has_keys=False, is_open=False)


def test_keys_that_are_not_there_are_an_error_and_not_an_open_door(make_served, monkeypatch):
    served = make_served(1, serve={"keys_env": "NO_SUCH_KEYS"})
    monkeypatch.delenv("NO_SUCH_KEYS", raising=False)
    with pytest.raises(KeysError):
        Gateway(read_settings(served.cascade), served.artefact)


def test_a_node_cannot_take_the_name_of_the_cascade(tmp_path):
    path = tmp_path / "cascade.toml"
    path.write_text('[[node]]\nname = "ttamer"\ncost = 1\nupstream = "http://127.0.0.1:1/v1"\n')
    with pytest.raises(CascadeError, match="name of the whole cascade"):
        Gateway(read_settings(path), tmp_path / "x.ttamer")
