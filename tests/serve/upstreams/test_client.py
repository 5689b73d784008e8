"""The HTTP client of upstreams, against a server that sends bytes as written here."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
import uvloop

from ttamer.serve.upstreams import client as module
from ttamer.serve.upstreams.client import (
    ConnectFailed,
    ConnectionCut,
    HttpClient,
    Route,
    Target,
    TooLarge,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
LINE = b"x-a: " + 1000 * b"y" + b"\r\n"
LIMIT = 1000

pytestmark = pytest.mark.server


class Server:
    """Answers each request with the next of the given bytes; ``None`` closes the connection."""

    def __init__(self, *answers: bytes | None, tls: ssl.SSLContext | None = None) -> None:
        self._answers, self._tls = list(answers), tls
        self.requests: list[bytes] = []
        self.connections = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, EOFError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                answer = self._answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                has_length = b"content-length" in answer or b"chunked" in answer
                if b"connection: close" in answer or not has_length:
                    break
        writer.close()

    def target(self, scheme: str = "http", path: str = "/v1/x") -> Target:
        """The URL of the server."""
        return Target(f"{scheme}://127.0.0.1:{self.port}{path}", {"authorization": "Bearer k"})


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine on the loop of the standard library, and on the server's."""
    factory = None if request.param == "asyncio" else uvloop.new_event_loop

    def go(coroutine):
        async def bounded():
            async with asyncio.timeout(30):
                return await coroutine

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(bounded())

    return go


async def post(client, target, limit=LIMIT):
    """Post a request, and return the whole response."""
    connection = await client.acquire(target.origin)
    return await connection.exchange(target.request(b"{}", {}), limit, 60.0)


def exchange(*answers, requests=1, limit=LIMIT):
    """Make requests one after the other; return the server, and each response or error."""

    async def go():
        found = []
        async with Server(*answers) as server, HttpClient() as client:
            for _ in range(requests):
                try:
                    found.append(await post(client, server.target(), limit))
                except ConnectionError as error:
                    found.append(error)
        return server, found

    return go()


def test_a_request_is_sent_as_it_is_and_the_connection_is_kept(run):
    server, found = run(exchange(OK, OK, requests=2))
    assert [(each.status, each.content) for each in found] == [(200, b"hi")] * 2
    assert server.connections == 1
    head = (
        f"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\naccept-encoding: identity\r\n"
        "authorization: Bearer k\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert server.requests == [head.encode()] * 2


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"1\r\na\r\n0\r\nx-a: b\r\n\r\n", b"a"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    ],
)  # fmt: skip
def test_the_forms_of_a_body(run, answer, content):
    _, (response,) = run(exchange(answer))
    assert (response.status, response.content) == (200, content)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nshort",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx",
        b"SSH-2.0-x\r\n\r\n",
    ],
)
def test_what_breaks_or_is_not_http_is_cut(run, answer):
    _, (error,) = run(exchange(answer))
    assert isinstance(error, ConnectionCut)


def test_a_connection_that_the_server_ends_is_not_used_again(run):
    closing = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    server, found = run(exchange(closing, OK, requests=2))
    assert [each.status for each in found] == [200, 200]
    assert server.connections == 2


def test_bytes_after_a_response_are_never_taken_for_the_next_one(run):
    forged = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    server, found = run(exchange(OK + forged, OK, requests=2))
    assert [each.content for each in found] == [b"hi", b"hi"]
    assert server.connections == 2


def test_an_idle_connection_is_closed_after_a_while(run, monkeypatch):
    monkeypatch.setattr(module, "KEEP_ALIVE", 0.01)

    async def go():
        async with Server(OK, OK) as server, HttpClient() as client:
            await post(client, server.target())
            while client._open:
                await asyncio.sleep(0.005)
            await post(client, server.target())
            return server.connections

    assert run(go()) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n" + 1001 * b"x",
        CHUNKED + 101 * (b"a\r\n" + 10 * b"x" + b"\r\n"),
        b"HTTP/1.1 200 OK\r\n" + 70 * LINE + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: " + 70_000 * b"y",
        CHUNKED + b"0\r\n" + 70 * LINE + b"\r\n",
    ],
    ids=["length", "chunks", "headers", "one header", "trailers"],
)  # fmt: skip
def test_a_response_that_is_too_large_is_ended(run, answer):
    _, (error,) = run(exchange(answer))
    assert isinstance(error, TooLarge)


def test_of_an_error_response_only_the_beginning_is_kept(run):
    answer = b"HTTP/1.1 500 No\r\ncontent-length: 9999\r\n\r\n" + 9999 * b"e"
    server, found = run(exchange(answer, OK, requests=2))
    assert (found[0].status, len(found[0].content)) == (500, 4096)
    assert (found[1].status, server.connections) == (200, 2)


def test_no_server_is_a_failed_connection(run, dead_url):
    async def go():
        async with HttpClient() as client:
            await post(client, Target(dead_url, {}))

    with pytest.raises(ConnectFailed):
        run(go())


def test_a_block_that_ends_early_closes_its_connection(run):
    async def go():
        async with Server(BEGUN, OK) as server, HttpClient() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await post(client, server.target())
            return await post(client, server.target()), server.connections

    response, connections = run(go())
    assert (response.status, connections) == (200, 2)


def test_an_exchange_that_takes_too_long_is_a_timeout(run):
    async def go():
        async with Server(BEGUN, OK) as server, HttpClient() as client:
            target = server.target()
            connection = await client.acquire(target.origin)
            with pytest.raises(TimeoutError):
                await connection.exchange(target.request(b"{}", {}), LIMIT, 0.05)
            return await post(client, target), server.connections

    response, connections = run(go())
    assert (response.status, connections) == (200, 2)


def test_at_the_limit_requests_wait_for_a_connection(run):
    async def go():
        async with Server(*[OK] * 6) as server, HttpClient(2) as client:
            posts = [post(client, server.target()) for _ in range(6)]
            found = await asyncio.gather(*posts)
            return [each.status for each in found], server.connections

    assert run(go()) == ([200] * 6, 2)


def test_one_that_waits_and_is_cancelled_blocks_no_other(run):
    async def go():
        async with Server(BEGUN, OK) as server, HttpClient(1) as client:
            posts = [asyncio.create_task(post(client, server.target())) for _ in range(3)]
            while not server.requests:
                await asyncio.sleep(0.005)
            posts[1].cancel()
            posts[0].cancel()
            return (await posts[2]).status

    assert run(go()) == 200


def test_the_connections_of_one_server_do_not_keep_another_waiting(run):
    async def go():
        async with Server(OK) as one, Server(OK) as two, HttpClient(1) as client:
            await post(client, one.target())
            return (await post(client, two.target())).status

    assert run(go()) == 200


def start(client, server):
    async def go():
        target = server.target()
        connection = await client.acquire(target.origin)
        return await connection.start(target.request(b"{}", {}))

    return go()


def test_a_stream_is_received_piece_by_piece_and_its_connection_kept(run):
    answer = CHUNKED + b"2\r\nhe\r\n"

    async def go():
        async with Server(answer, OK) as server, HttpClient() as client:
            response = await start(client, server)
            chunks = response.chunks()
            first = await anext(chunks)
            response._connection.data_received(b"3\r\nllo\r\n0\r\n\r\n")
            rest = [chunk async for chunk in chunks]
            response.close()
            after = await post(client, server.target())
            return response.status, first, rest, after.status, server.connections

    assert run(go()) == (200, b"he", [b"llo"], 200, 1)


def test_a_stream_that_breaks_gives_its_bytes_and_then_an_error(run):
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nabc"

    async def go():
        async with Server(answer) as server, HttpClient() as client:
            response = await start(client, server)
            chunks = response.chunks()
            first = await anext(chunks)
            with pytest.raises(ConnectionCut):
                await anext(chunks)
            response.close()
            return first

    assert run(go()) == b"abc"


def test_a_sender_waits_for_a_slow_reader(run):
    size = 20 * module.MAX_BUFFERED
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + size * b"x"

    async def go():
        async with Server(answer) as server, HttpClient() as client:
            response = await start(client, server)
            connection = response._connection
            while not connection._is_paused:
                await asyncio.sleep(0.005)
            held = sum(map(len, connection._parts))
            received = 0
            async for chunk in response.chunks():
                received += len(chunk)
            response.close()
            return held, received

    held, received = run(go())
    assert received == size
    assert held < 3 * module.MAX_BUFFERED


@pytest.mark.parametrize("headers", [{"x-a": "b\r\nx-c: d"}, {"x a": "b"}, {"x-a": "b\0"}])
def test_a_header_cannot_begin_another(headers):
    with pytest.raises(ValueError, match="characters that are not allowed"):
        Target("http://127.0.0.1/v1", {}).request(b"", headers)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_tls_is_spoken_with_servers_that_are_trusted(run, certificate, is_trusted):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=certificate) if is_trusted else None

    async def go():
        async with Server(OK, OK, tls=server_side) as server, HttpClient(tls=trusted) as client:
            for _ in range(2):
                response = await post(client, server.target("https"))
            return response.content, server.connections

    if is_trusted:
        assert run(go()) == (b"hi", 1)
    else:
        with pytest.raises(ConnectFailed):
            run(go())


class Proxy:
    """An HTTP proxy: tunnels to a server, and answers requests with a whole URL itself."""

    def __init__(self, status: bytes = b"200 OK") -> None:
        self._status = status
        self.heads: list[bytes] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if not head.startswith(b"CONNECT "):
            writer.write(OK)
        else:
            writer.write(b"HTTP/1.1 " + self._status + b"\r\n\r\n")
            if self._status == b"200 OK":
                host, port = head.split(b" ")[1].decode().rsplit(":", 1)
                there, back = await asyncio.open_connection(host, int(port))
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(65536):
            writer.write(content)
        writer.close()


@pytest.mark.parametrize("status", [b"200 OK", b"407 Proxy Authentication Required"])
def test_a_proxy_is_asked_for_a_tunnel_to_https_servers(run, certificate, status):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate)

    async def go():
        async with (
            Server(OK, OK, tls=server_side) as server,
            HttpClient() as client,
            Proxy(status) as proxy,
        ):
            route = Route(proxy.url, "Basic dTpw", str(certificate))
            target = Target(f"https://127.0.0.1:{server.port}/v1/x", {}, route)
            for _ in range(2):
                response = await post(client, target)
            return response.content, server.requests, proxy.heads

    if status != b"200 OK":
        with pytest.raises(ConnectFailed, match="status 407"):
            run(go())
        return
    content, requests, heads = run(go())
    assert content == b"hi"
    assert len(requests) == 2
    assert requests[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    (head,) = heads  # the tunnel is kept
    assert b"proxy-authorization: Basic dTpw\r\n" in head
    assert b"proxy-authorization" not in requests[0]


def test_a_proxy_gets_the_whole_url_of_http_servers(run):
    async def go():
        async with HttpClient() as client, Proxy() as proxy:
            target = Target("http://models.invalid/v1/x?y=1", {}, Route(proxy.url, "Basic dTpw"))
            response = await post(client, target)
            return response.content, proxy.heads[0]

    content, head = run(go())
    assert content == b"hi"
    assert head.startswith(b"POST http://models.invalid/v1/x?y=1 HTTP/1.1\r\n")
    assert b"proxy-authorization: Basic dTpw\r\n" in head


def test_a_request_that_is_cancelled_as_it_is_woken_wakes_the_next_one(run):
    async def main():
        async with Server(OK, OK) as server, HttpClient(connections=1) as client:
            target = server.target()
            await post(client, target)
            held = client.take(target.origin)
            first, second = (asyncio.create_task(client.acquire(target.origin)) for _ in range(2))
            await asyncio.sleep(0)  # both wait for the connection
            client.keep(held)
            first.cancel()
            done, _ = await asyncio.wait([second], timeout=module.KEEP_ALIVE / 4)
            return second in done and second.result() is held

    assert run(main())
