"""Limits on connections: headers without end, slow headers, too many connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import httpx2 as httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from support.waiting import until
from ttamer.serve import connections
from ttamer.serve.connections import (
    MAX_HEADER_BYTES,
    BoundedProtocol,
    ConnectionLimits,
    _JoinedWrites,
    descriptor_limit,
)
from ttamer.serve.http import BodyTooLarge, HttpExchange
from ttamer.serve.server import server_config

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
FLOOD = {
    "headers": (HEAD, b"x-a: " + b"b" * 1000 + b"\r\n"),
    "one header": (HEAD + b"x-a: ", b"b" * 1000),
    "url": (b"GET /", b"a" * 1000),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x-a: b\r\n" * 100),
    "one trailer": (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-a: ", b"b" * 1000),
}
HEADER_SECONDS = 1.0  # a busy machine must send headers within it
PLENTY = 64 * 2**20  # more than the buffers of both sockets


def connect(gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=30)


def is_closed(line: socket.socket) -> bool:
    """Whether the other side closes the connection; waits for that."""
    try:
        while line.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("head", "part"), FLOOD.values(), ids=FLOOD)
def test_a_request_without_end_is_cut_off(run_gateway, head, part):
    gateway = run_gateway()
    sent = 0
    with connect(gateway) as line:
        line.sendall(head)
        try:
            while sent < PLENTY:
                sent += line.send(part)
        except ConnectionError:
            pass
    assert sent < PLENTY
    until(lambda: gateway.metric("ttamer_connections_refused_total") == 1)
    assert httpx.get(f"{gateway.root}/healthz").status_code == 200


def test_too_large_headers_get_431(run_gateway):
    gateway = run_gateway()
    with connect(gateway) as line:
        line.sendall(HEAD + b"x-a: " + b"b" * (MAX_HEADER_BYTES + 1))
        assert line.recv(64).startswith(b"HTTP/1.1 431 ")
        assert is_closed(line)


def test_large_bodies_and_many_small_chunks_are_no_headers(run_gateway):
    gateway = run_gateway()
    text = "x" * (4 * MAX_HEADER_BYTES)
    body = {"model": "ttamer", "messages": [{"role": "user", "content": text}]}
    reply = httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30)
    assert reply.status_code == 200
    with connect(gateway) as line:
        line.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(100):
            line.sendall(b"1\r\n \r\n" * 1000)
        line.sendall(b"2\r\n{}\r\n0\r\n\r\n")
        assert line.recv(64).startswith(b"HTTP/1.1 400 ")


def test_headers_that_take_too_long_are_cut_off(run_gateway, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    gateway = run_gateway()
    with connect(gateway) as silent, connect(gateway) as half:
        half.sendall(HEAD)
        assert is_closed(silent)
        assert is_closed(half)
    with connect(gateway) as line:  # the second request of a connection too
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert line.recv(64).startswith(b"HTTP/1.1 200 ")
        line.sendall(b"\r\nGET /hea")
        assert is_closed(line)
    assert [e["refused"] for e in gateway.log if e["event"] == "connection"] == ["timeout"]


def test_answers_may_take_longer_than_headers(run_gateway, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    gateway = run_gateway(1)
    upstream = gateway.served.upstreams["small"]
    upstream.mode = "slow"

    def release(count: int) -> None:
        upstream.wait_for(count)
        time.sleep(1.5 * HEADER_SECONDS)
        upstream.release()

    body = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}]}
    with httpx.Client(timeout=30) as client:  # over one connection
        for count in (1, 2):
            releasing = threading.Thread(target=release, args=(count,))
            releasing.start()
            assert client.post(f"{gateway.url}/chat/completions", json=body).status_code == 200
            releasing.join()


def test_stray_line_feeds_do_not_keep_a_connection(run_gateway, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    gateway = run_gateway()
    with connect(gateway) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert line.recv(64).startswith(b"HTTP/1.1 200 ")
        line.sendall(b"\r\n")
        assert is_closed(line)


def test_one_address_cannot_take_all_connections(run_gateway):
    gateway = run_gateway(serve={"max_connections_per_address": 3})
    lines = [connect(gateway) for _ in range(3)]
    with connect(gateway) as more:
        assert is_closed(more)
    lines.pop().close()
    until(lambda: reachable(gateway))
    for line in lines:
        line.close()


def test_a_process_has_a_limit_of_connections(run_gateway):
    gateway = run_gateway(serve={"max_connections": 2, "max_connections_per_address": 9})
    lines = [connect(gateway) for _ in range(2)]
    with connect(gateway) as more:
        assert is_closed(more)
    for line in lines:
        line.close()
    until(lambda: reachable(gateway))


def reachable(gateway) -> bool:
    try:
        return httpx.get(f"{gateway.root}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_connections_are_counted_until_they_leave():
    limits = ConnectionLimits(5, per_address=1)
    assert limits.admit("a") is None
    assert limits.admit("a") == "address"
    limits.leave("a")
    assert limits.admit("a") is None
    assert limits.connections == 1


def test_idle_connections_outlive_those_of_clients(run_gateway):
    """A client that reuses a connection must not meet a server that is just closing it."""
    kept = server_config(run_gateway(1).gateway).timeout_keep_alive
    assert kept > httpx.Limits().keepalive_expiry
    assert kept > 60  # load balancers


def test_descriptors_are_left_for_upstreams():
    assert descriptor_limit(0) > descriptor_limit(100) >= connections.MIN_CONNECTIONS
    assert descriptor_limit(10**9) == connections.MIN_CONNECTIONS


class Written:
    """A transport that keeps what was written."""

    def __init__(self):
        self.writes, self.is_closed = [], False

    def write(self, data):
        self.writes.append(data)

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True


def joined(*steps):
    """What is written for some steps: bytes, "wait" for a round of the loop, or "close"."""

    async def go():
        transport = Written()
        writes = _JoinedWrites(transport, asyncio.get_running_loop())
        for step in steps:
            if step == "wait":
                await asyncio.sleep(0)
            elif step == "close":
                writes.close()
            else:
                writes.write(step)
        await asyncio.sleep(0)
        return transport.writes

    return asyncio.run(go())


def test_headers_and_body_are_one_write():
    assert joined(b"head", b"body") == [b"headbody"]
    assert joined(b"head", b"first", b"second") == [b"headfirst", b"second"]


def test_headers_that_no_body_follows_are_written_at_once():
    assert joined(b"head", "wait", b"body") == [b"head", b"body"]
    assert joined(b"head") == [b"head"]
    assert joined(b"head", "close") == [b"head"]


class Client(Written):
    """The transport of a client that sends requests to a server in this process."""

    def __init__(self):
        super().__init__()
        self.is_paused = False

    def get_extra_info(self, name, default=None):
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def abort(self):
        self.is_closed = True

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


def served(app, *requests, before=lambda protocol: None):
    """What is written for requests, each received at once."""

    async def go():
        config = uvicorn.Config(
            app, log_config=None, ws="none", lifespan="off", server_header=False
        )
        config.load()
        protocol = BoundedProtocol(ConnectionLimits(9, 9), config=config,
                                   server_state=ServerState(), app_state={})  # fmt: skip
        transport = Client()
        protocol.connection_made(transport)
        before(protocol)
        for request in requests:
            protocol.data_received(request)
            for _ in range(5):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport

    return asyncio.run(go())


async def echo(scope, receive, send):
    """Return the body, with a header of the request."""
    exchange = HttpExchange(scope, receive, send)
    body = await exchange.read(1000)
    exchange.response_headers["x-given"] = exchange.header(b"x-given") or ""
    await exchange.send_bytes(200, body, {"content-type": "text/plain"})


GET = b"GET /a%20b?c HTTP/1.1\r\nhost: x\r\nx-request-id: i\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\nx-given: v\r\nx-request-id: i\r\ncontent-length: 2\r\n\r\nhi"
HEAD_ONLY = b"HEAD / HTTP/1.1\r\nhost: x\r\nx-request-id: i\r\n\r\n"
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nx-given: v\r\n"
    b"x-request-id: i\r\n\r\nhi"
)


def test_a_response_is_one_write():
    assert served(echo, POST, POST).writes == [RESPONSE, RESPONSE]


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


@pytest.mark.parametrize(
    "cut",
    [
        lambda request: [request],
        lambda request: [request[:-2], request[-2:]],
        lambda request: [request[k : k + 1] for k in range(len(request))],
        lambda request: [request + POST],
    ],
    ids=["whole", "body apart", "bytes", "with the next"],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(cut, is_chunked):
    """Clients such as Java's offer HTTP/2 with each request; its body was taken for that."""
    request = POST.replace(b"host: x\r\n", b"host: x\r\n" + OFFER)
    if is_chunked:
        request = request.replace(b"content-length: 2", b"transfer-encoding: chunked")
        request = request.removesuffix(b"hi") + b"2\r\nhi\r\n0\r\n\r\n"
    parts = cut(request)
    expected = [RESPONSE] * (1 + parts[0].endswith(POST))
    assert served(echo, *parts, POST).writes == [*expected, RESPONSE]


def test_a_websocket_is_answered_as_any_request():
    request = GET.replace(
        b"host: x\r\n", b"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    )
    (written,) = served(echo, request).writes
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_tunnel_is_refused():
    (written,) = served(echo, b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\nhi").writes
    assert written.startswith(b"HTTP/1.1 400 ")


def test_requests_sent_at_once_are_answered_in_order():
    transport = served(echo, POST + POST.replace(b"hi", b"ho"))
    assert transport.writes == [RESPONSE, RESPONSE.replace(b"hi", b"ho")]
    assert not transport.is_paused


def test_a_body_in_parts_is_read_whole():
    assert served(echo, POST[:-1], POST[-1:]).writes == [RESPONSE]


def test_a_body_that_is_too_large_is_refused():
    sizes = []

    async def app(scope, receive, send):
        exchange = HttpExchange(scope, receive, send)
        with pytest.raises(BodyTooLarge):
            await exchange.read(1)
        sizes.append(scope["path"])
        await exchange.send_bytes(413, b"", {})

    served(app, POST, POST[:-1], POST[-1:])
    assert sizes == ["/", "/"]


def test_the_response_to_head_has_no_body():
    (written,) = served(echo, HEAD_ONLY).writes
    assert written.endswith(b"content-length: 0\r\nx-given: \r\nx-request-id: i\r\n\r\n")

    async def app(scope, receive, send):
        await HttpExchange(scope, receive, send).send_bytes(200, b"hi", {})

    (written,) = served(app, HEAD_ONLY).writes
    assert b"content-length: 2\r\n" in written
    assert written.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
def test_a_header_with_a_line_break_is_not_sent(value):
    async def app(scope, receive, send):
        await HttpExchange(scope, receive, send).send_bytes(200, b"", {"x-name": value})

    (written,) = served(app, GET).writes
    assert written.startswith(b"HTTP/1.1 500")
    assert b"x-name" not in written


def test_a_connection_that_the_client_ends_is_closed():
    transport = served(echo, POST.replace(b"host", b"connection: close\r\nhost"))
    assert transport.is_closed
    assert b"connection: close\r\n" in transport.writes[0]
    assert served(echo, POST.replace(b"HTTP/1.1", b"HTTP/1.0")).is_closed


def test_a_response_waits_for_a_client_that_does_not_read():
    transport = served(echo, POST, before=lambda protocol: protocol.pause_writing())
    assert transport.writes == []


def test_the_path_of_a_request_is_decoded():
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await HttpExchange(scope, receive, send).send_bytes(200, b"", {})

    served(app, GET)
    (scope,) = scopes
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b", b"/a%20b", b"c")
    assert (scope["method"], scope["http_version"], scope["scheme"]) == ("GET", "1.1", "http")


def test_trailers_are_not_headers():
    request = (
        b"POST / HTTP/1.1\r\nhost: x\r\nx-given: v\r\nx-request-id: i\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-given: w\r\n\r\n"
    )
    assert served(echo, request).writes == [RESPONSE]
