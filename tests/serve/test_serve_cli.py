"""``ttamer serve`` as a process: it starts, serves, drains on SIGTERM, and reloads on SIGHUP."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import numpy as np
import pytest
from cryptography import x509

import ttamer as tt
from support.gateway_process import GatewayProcess
from ttamer.cli import main


@pytest.fixture
def start():
    started: list[GatewayProcess] = []

    def start(served, *arguments: str) -> GatewayProcess:
        started.append(GatewayProcess(str(served.cascade), str(served.artefact), *arguments))
        return started[-1]

    yield start
    for process in started:
        process.close()


def test_it_serves_and_ends_well(served, start):
    gateway = start(served)
    assert gateway.post().status_code == 200
    assert httpx.get(f"{gateway.url}/readyz").status_code == 200
    assert gateway.end() == 0
    assert gateway.wait_for("stop")["running"] == 0


def test_sigterm_lets_what_runs_finish_and_takes_nothing_new(served, start):
    gateway = start(served)
    for upstream in served.upstreams.values():
        upstream.mode = "slow"
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(gateway.post) for _ in range(4)]
        while sum(upstream.open for upstream in served.upstreams.values()) < 4:
            threading.Event().wait(0.01)
        gateway.child.send_signal(signal.SIGTERM)
        _until_refused(gateway.url)
        assert gateway.child.poll() is None
        for upstream in served.upstreams.values():
            upstream.mode = "ok"
            upstream.release()
        assert [reply.result(30).status_code for reply in running] == [200] * 4
    assert gateway.child.wait(30) == 0


def _until_refused(url: str) -> None:
    for _ in range(2000):
        try:
            httpx.get(f"{url}/healthz", timeout=1.0)
        except httpx.TransportError:
            return
        threading.Event().wait(0.01)
    raise AssertionError("new connections are still taken")


def test_the_drain_has_an_end(make_served, start):
    served = make_served(2, serve={"drain": 1.0})
    gateway = start(served)
    for upstream in served.upstreams.values():
        upstream.mode = "slow"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(gateway.post)
        while not any(upstream.open for upstream in served.upstreams.values()):
            threading.Event().wait(0.01)
        assert gateway.end() == 0
        assert running.exception(30) is not None or running.result().status_code >= 500


def test_sighup_loads_the_policy_again(served, start):
    gateway = start(served)
    before = gateway.post().headers["x-ttamer-policy"]
    tt.save(served.ladder, served.artefact, notes={"second": "time"})
    gateway.child.send_signal(signal.SIGHUP)
    assert gateway.wait_for("policy", 2)["ok"]
    assert gateway.post().headers["x-ttamer-policy"] != before
    served.artefact.write_bytes(b"garbage")
    gateway.child.send_signal(signal.SIGHUP)
    assert not gateway.wait_for("policy", 3)["ok"]
    assert gateway.post().status_code == 200


def run(served, *arguments: str) -> subprocess.CompletedProcess[str]:
    files = [str(served.cascade), str(served.artefact)]
    return subprocess.run(
        [sys.executable, "-m", "ttamer", "serve", *files, *arguments],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_check_reads_both_files_and_ends(served):
    done = run(served, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "can be served" in done.stdout


def test_a_port_that_does_not_exist_is_one_line(served):
    done = run(served, "--port", "99999")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot listen" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_cannot_be_served_is_one_line(served, tmp_path, capsys):
    cascade, artefact = str(served.cascade), str(served.artefact)
    (tmp_path / "bad.ttamer").write_bytes(b"garbage")
    (tmp_path / "bare.toml").write_text('[[node]]\nname = "a"\ncost = 1\n')
    cases = {
        "lacks upstream": [str(tmp_path / "bare.toml"), artefact],
        "is not a ttamer file": [cascade, str(tmp_path / "bad.ttamer")],
        "the cascade comes first": [artefact, cascade],
        "is a trace, and a policy is needed": [cascade, str(tmp_path / "log.parquet")],
        "cannot be read": [cascade, str(tmp_path / "none.ttamer")],
        "--open": [cascade, artefact, "--host", "0.0.0.0"],  # noqa: S104
    }
    for message, arguments in cases.items():
        assert main(["serve", *arguments]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_a_lame_duck_still_accepts_connections(make_served, start):
    gateway = start(make_served(serve={"lame_duck": 3600.0}))
    gateway.child.send_signal(signal.SIGTERM)
    while httpx.get(f"{gateway.url}/readyz").status_code == 200:
        threading.Event().wait(0.01)
    assert gateway.post().status_code == 200
    assert gateway.end() == 0  # a second signal ends it at once


def test_gateways_that_take_turns_on_one_socket_refuse_no_connection(served):
    """The parent keeps the listening socket, as systemd does; a request waits for the next one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for _ in range(2):
            command = [sys.executable, "-m", "ttamer", "serve", str(served.cascade)]
            command += [str(served.artefact), "--fd", str(listener.fileno())]
            with ThreadPoolExecutor(1) as pool:
                early = pool.submit(httpx.get, f"{url}/healthz", timeout=60.0)  # no one serves yet
                child = subprocess.Popen(
                    command, pass_fds=[listener.fileno()], stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
                assert early.result().status_code == 200
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0


def test_check_warns_of_a_policy_that_asks_one_node_only(make_served, capsys):
    served = make_served(serve={"tradeoff": 0.0})
    assert main(["serve", str(served.cascade), str(served.artefact), "--check"]) == 0
    said = capsys.readouterr()
    assert "Warning: this policy only ever asks 'small'" in said.err
    assert "tradeoff 0: " in said.out


@pytest.mark.parametrize("descriptor", [-1, 10_000])
def test_a_descriptor_that_is_no_socket_is_refused(served, capsys, descriptor):
    arguments = [str(served.cascade), str(served.artefact), "--fd", str(descriptor)]
    assert main(["serve", *arguments]) != 0
    assert "is not an open socket" in capsys.readouterr().err


def test_a_socket_of_a_network_needs_keys_too(served, capsys):
    arguments = ["serve", str(served.cascade), str(served.artefact), "--fd"]
    with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104
        assert main([*arguments, str(os.dup(listener.fileno()))]) == 2
    assert "the address is 0.0.0.0; set keys_env" in capsys.readouterr().err


def test_a_socket_that_is_not_tcp_is_refused(served, capsys, tmp_path):
    arguments = ["serve", str(served.cascade), str(served.artefact), "--fd"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        assert main([*arguments, str(os.dup(listener.fileno()))]) == 2
    assert "is not a listening TCP socket" in capsys.readouterr().err


def probed(served, capsys, *arguments: str) -> tuple[int, str]:
    """The exit status and the output of ``--check --probe``."""
    capsys.readouterr()
    status = main(
        ["serve", str(served.cascade), str(served.artefact), "--check", "--probe", *arguments]
    )
    return status, capsys.readouterr().out


def test_a_probe_asks_every_server_once(make_served, start_upstream, capsys):
    other = start_upstream("other")
    served = make_served(2, node={"small": {"fallback": other.url}})
    status, text = probed(served, capsys)
    assert status == 0
    assert text.count("lacks nothing") == 3
    assert {upstream.count for upstream in (other, *served.upstreams.values())} == {1}


def test_a_probe_needs_no_policy_and_all_else_does(make_served, capsys):
    served = make_served(2)
    assert main(["serve", str(served.cascade), "--check", "--probe"]) == 0
    assert capsys.readouterr().out.count("lacks nothing") == 2
    assert main(["serve", str(served.cascade), "--check"]) == 2
    assert "a policy is needed" in capsys.readouterr().err


def test_a_probe_prints_what_an_upstream_lacks(make_served, dead_url, capsys):
    price = {"cost_per_token": {"input": 0.1, "output": 0.1}}
    served = make_served(2, node={"small": price, "large": {"fallback": dead_url}})
    answer = {"choices": [{"message": {"role": "assistant", "content": "A"}}]}
    for upstream in served.upstreams.values():
        upstream.raw = json.dumps(answer).encode()
    status, text = probed(served, capsys, "--json")
    assert status == 2
    small, large, dead = json.loads(text)["probe"]
    assert small["needs"] == ["log-probabilities", "usage"]
    assert large["lacks"] == ["log-probabilities", "usage"]
    assert large["needs"] == ["log-probabilities"]
    assert "connection failed" in dead["error"]


PRICE = {"cost_per_token": {"input": 1.0, "output": 0}}


def fitted_for(cascade):
    """A policy for a cascade.toml of two nodes."""
    rng = np.random.default_rng(0)
    right = rng.random((200, 2)) < [0.6, 0.9]
    trace = tt.Trace.from_arrays(
        tt.CascadeSpec.from_file(cascade),
        rng.random((200, 2)),
        prediction=np.where(right, "A", "B"),
        label=["A"] * 200,
    )
    return tt.fit(trace)


@pytest.mark.parametrize(
    ("serve", "node", "why"),
    [
        ({"compare": "exact"}, {}, "compare choice, and it is exact now"),
        ({}, {"large": {"confidence": "none"}}, "large: none now"),
        ({}, {"small": {"cost_per_token": {"input": 2, "output": 3}}}, "2 output 3 now"),
        ({}, {"small": {"cost_per_token": {}}}, "small: input 1, and it is small: 0 now"),
        ({}, {"small": {}}, "cost_per_token small: input 1, and it is not set now"),
        ({}, {"small": PRICE, "large": PRICE}, "large: input 1 now"),
        ({}, {}, None),
    ],
)
def test_a_policy_for_other_answers_is_refused_unless_forced(make_served, capsys, serve, node, why):
    node = {"small": PRICE, **node}
    policy = fitted_for(make_served(2, node={"small": PRICE}).cascade)
    changed = make_served(2, serve=serve, node=node)
    tt.save(policy, changed.artefact)
    command = ["serve", str(changed.cascade), str(changed.artefact), "--check"]
    assert main(command) == (0 if why is None else 2)
    assert why is None or why in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_a_policy_without_prices_of_tokens_is_refused_where_they_have_some(make_served, capsys):
    policy = fitted_for(make_served(2).cascade)
    priced = make_served(2, node={"small": PRICE})
    tt.save(policy, priced.artefact)
    assert main(["serve", str(priced.cascade), str(priced.artefact), "--check"]) == 2
    assert "cost_per_token not set, and it is small: input 1 now" in capsys.readouterr().err


def test_it_serves_https(served, start, certificate, capsys):
    gateway = start(served, "--tls-cert", str(certificate))
    assert gateway.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=certificate)
    assert httpx.get(f"{gateway.url}/readyz", verify=trusted).status_code == 200
    files = [str(served.cascade), str(served.artefact)]
    for wrong in (["--tls-cert", str(served.cascade)], ["--tls-key", str(certificate)]):
        assert main(["serve", *files, "--check", *wrong]) == 2
        assert "--tls-cert" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_renewed_certificate_is_used_after_a_reload(
    served, start, tmp_path, renew_certificate, workers
):
    """A broken one is refused; requests go on with the last one that was accepted."""
    path = renew_certificate(tmp_path / "server.pem", serial=2)
    gateway = start(served, "--tls-cert", str(path), "--workers", str(workers))
    address = "127.0.0.1", int(gateway.url.rpartition(":")[2])

    def serials() -> set[int]:
        texts = [ssl.get_server_certificate(address) for _ in range(5)]
        return {x509.load_pem_x509_certificate(text.encode()).serial_number for text in texts}

    def reload(number: int) -> list[bool]:
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("policy", workers * (1 + number))  # each reports the start too
        return [line["ok"] for line in gateway.lines if line["event"] == "policy"][-workers:]

    gateway.wait_for("start", workers)
    assert serials() == {2}
    renew_certificate(path, serial=3)
    assert all(reload(1))
    assert serials() == {3}
    path.write_text("no certificate")
    assert not any(reload(2))
    assert serials() == {3}
    trusted = ssl.create_default_context(cafile=renew_certificate(path, serial=4))
    assert all(reload(3))
    assert httpx.get(f"{gateway.url}/readyz", verify=trusted).status_code == 200
