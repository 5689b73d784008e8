"""Settings change while the gateway serves: nodes' servers, limits and keys; nothing else does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2 as httpx
import pytest

import ttamer as tt
from support.running_gateway import running
from ttamer.errors import ArgumentError, CascadeError
from ttamer.serve import accounts
from ttamer.serve.config import read_settings
from ttamer.serve.processes.workers import WorkerPlace
from ttamer.serve.reloading import changes

OLD, NEW = "the-old-key-of-a-client", "the-new-key-of-a-client"
ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}]}


def post(gateway, key: str = OLD):
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{gateway.url}/chat/completions", json=ASK, headers=headers, timeout=30)


@pytest.fixture
def keyed(make_served, tmp_path):
    """A gateway of one node, whose key is in a file; with its files."""
    keys = tmp_path / "keys"
    keys.write_text(OLD)
    key = {"name": "web", "file": str(keys), "roles": ["ask"], "budget": 1000.0}
    served = make_served(1, serve={"key": [key], "timeout": 30})
    with running(served.cascade, served.artefact) as gateway:
        gateway.gateway._reread = partial(read_settings, served.cascade)
        gateway.served, gateway.key_file = served, keys
        yield gateway


def edit(gateway, old: str, new: str) -> None:
    path = gateway.served.cascade
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def reload(gateway):
    return gateway.do(gateway.gateway.reload("signal"))


def test_a_key_is_replaced_without_a_restart(keyed):
    assert post(keyed).status_code == 200
    keyed.key_file.write_text(f"{OLD}\n{NEW}")  # for a while both are served
    assert reload(keyed).ok
    assert {post(keyed, key).status_code for key in (OLD, NEW)} == {200}
    keyed.key_file.write_text(NEW)
    assert reload(keyed).ok
    assert [post(keyed, key).status_code for key in (OLD, NEW)] == [401, 200]
    assert keyed.gateway.accounts["web"].spent == 4.0  # what was spent still counts
    assert [e["changed"] for e in keyed.log if e["event"] == "settings"] == [["API keys"]] * 2


def test_a_node_moves_to_another_server(keyed, start_upstream):
    other = start_upstream("other")
    edit(keyed, keyed.served.upstreams["small"].url, other.url)
    assert reload(keyed).ok
    assert post(keyed).status_code == 200
    assert (other.count, keyed.served.upstreams["small"].count) == (1, 0)


def test_limits_change(keyed):
    edit(keyed, "timeout = 30", "timeout = 30\nmax_body = 10")
    assert reload(keyed).ok
    assert post(keyed).status_code == 413


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("timeout = 30", "tiemout = 30", "unknown key 'tiemout'"),
        ("timeout = 30", "timeout = 30\ndirect = true", "direct; restart it"),
        ("cost = 1.0", "cost = 2.0", "cost of small|cost or place of a node"),
        ("cost = 1.0", 'cost = 1.0\nconfidence = "none"', "small: confidence"),
        ("cost = 1.0", 'cost = 1.0\nkey_env = "NOT_SET"', "key_env names NOT_SET"),
    ],
)
def test_what_cannot_be_served_changes_nothing(keyed, old, new, why):
    before = keyed.gateway.settings
    edit(keyed, old, new)
    result = reload(keyed)
    assert not result.ok
    assert any(each in result.message for each in why.split("|"))
    assert keyed.gateway.settings is before
    assert post(keyed).status_code == 200


def test_a_lost_key_file_changes_nothing(keyed):
    keyed.key_file.unlink()
    assert not reload(keyed).ok
    assert post(keyed).status_code == 200


def test_a_smaller_limit_lets_running_requests_finish(keyed):
    upstream = keyed.served.upstreams["small"]
    edit(keyed, "timeout = 30", "timeout = 30\nmax_concurrent = 1\nqueue = 0")
    assert reload(keyed).ok
    assert post(keyed).status_code == 200
    assert upstream.count == 1
    assert changes(keyed.gateway.settings, keyed.gateway.settings) == []


def test_a_larger_limit_makes_room_for_connections_to_upstreams(make_served):
    """There are two for each request that may run; others would wait for one."""
    served = make_served(1, serve={"max_concurrent": 1, "queue": 9, "timeout": 3600})
    small = served.upstreams["small"]
    with running(served.cascade, served.artefact) as gateway, ThreadPoolExecutor(5) as pool:
        gateway.gateway._reread = partial(read_settings, served.cascade)
        gateway.served = served
        small.mode = "slow"
        requests = [pool.submit(post, gateway) for _ in range(5)]
        small.wait_for(1)
        edit(gateway, "max_concurrent = 1", "max_concurrent = 5")
        assert reload(gateway).ok
        small.wait_for(5)
        small.mode = "ok"
        small.release()
        assert [each.result().status_code for each in requests] == [200] * 5


@pytest.mark.parametrize("changed", ["small", "large"])
def test_a_verifier_keeps_one_limit_for_all_of_its_calls(make_served, changed):
    """Its own answers and its verdicts are calls of one server, whichever node was reloaded."""
    small = {"confidence": "verifier", "verifier": "large"}
    served = make_served(2, node={"small": small})
    with running(served.cascade, served.artefact) as gateway:
        nodes, gateway.served = gateway.gateway.nodes, served
        gateway.gateway._reread = partial(read_settings, served.cascade)
        before = nodes["large"].upstream
        old = f'upstream = "{served.upstreams[changed].url}"'
        edit(gateway, old, f"{old}\nretries = 2")
        assert reload(gateway).ok
        assert nodes["small"]._verifier is nodes["large"].upstream
        assert (nodes["large"].upstream is before) == (changed == "small")
        assert nodes[changed].settings.retries == 2


def test_the_share_of_a_client_in_audits_is_limited_once_there_is_another(
    make_served, tmp_path, monkeypatch
):
    monkeypatch.setenv("WEB_KEY", OLD)
    monkeypatch.setenv("JOB_KEY", NEW)
    key = {"name": "web", "env": "WEB_KEY", "roles": ["ask"]}
    audit = {"share": 1.0, "log": str(tmp_path / "audits")}
    served = make_served(2, serve={"key": [key], "audit": audit})
    with running(served.cascade, served.artefact) as gateway:
        gateway.gateway._reread, gateway.served = partial(read_settings, served.cascade), served
        audits = gateway.gateway.audits
        assert not any(audits._has_too_many("web") for _ in range(50))
        edit(gateway, 'roles = ["ask"]}', 'roles = ["ask"]}, {name = "job", env = "JOB_KEY"}')
        assert reload(gateway).ok
        assert any(audits._has_too_many("web") for _ in range(50))


def cut_short(served):
    served.artefact.write_bytes(served.artefact.read_bytes()[:-100])


def one_policy(served):
    tt.save(served.ladder.at(0.9), served.artefact)


@pytest.mark.parametrize(
    ("spoil", "why"), [(cut_short, "policy.ttamer"), (one_policy, "holds one policy")]
)
def test_a_policy_that_is_refused_leaves_the_settings_too(keyed, spoil, why):
    before, good = keyed.gateway.settings, keyed.served.artefact.read_bytes()
    is_renewed = []
    keyed.gateway.on_reload.append(lambda: lambda: is_renewed.append(True))
    keyed.key_file.write_text(NEW)
    edit(keyed, "timeout = 30", "timeout = 30\nmax_body = 10")
    edit(keyed, "budget = 1000.0", "budget = 0.5")
    spoil(keyed.served)
    result = reload(keyed)
    assert not result.ok
    assert why in result.message
    assert keyed.gateway.settings is before
    assert [post(keyed, key).status_code for key in (OLD, NEW)] == [200, 401]
    assert keyed.gateway.accounts["web"].left == 999.0
    assert not is_renewed
    assert not any(event["event"] == "settings" for event in keyed.log)
    last = [event for event in keyed.log if event["event"] == "policy"][-1]
    assert (last["ok"], last["cause"], last["message"]) == (False, "signal", result.message)

    keyed.served.artefact.write_bytes(good)
    assert reload(keyed).ok
    assert is_renewed
    assert [post(keyed, key).status_code for key in (OLD, NEW)] == [401, 429]


def test_a_check_that_fails_refuses_the_policy_and_the_settings_too(keyed):
    def fail():
        raise ArgumentError("the certificate cannot be used")

    before, version = keyed.gateway.settings, keyed.gateway.policies.current.version
    keyed.gateway.on_reload.append(fail)
    edit(keyed, "timeout = 30", "timeout = 30\nmax_body = 10")
    tt.save(keyed.served.ladder, keyed.served.artefact, notes={"n": "2"})
    result = reload(keyed)
    assert (result.ok, result.version) == (False, version)
    assert result.message == "the certificate cannot be used"
    assert keyed.gateway.settings is before


def test_too_many_keys_change_nothing(make_served, tmp_path, monkeypatch):
    monkeypatch.setattr(accounts, "MAX_ACCOUNTS", 1)
    monkeypatch.setenv("WEB_KEY", OLD)
    monkeypatch.setenv("JOB_KEY", NEW)
    key = {"name": "web", "env": "WEB_KEY", "roles": ["ask"], "budget": 1000.0}
    served = make_served(1, serve={"key": [key]})
    (tmp_path / "secret").write_bytes(b"s" * 32)
    with running(served.cascade, served.artefact, WorkerPlace(0, 1, tmp_path)) as gateway:
        gateway.gateway._reread = partial(read_settings, served.cascade)
        more = '{name = "job", env = "JOB_KEY", roles = ["ask"], budget = 5.0}'
        text = served.cascade.read_text("utf-8")
        text = text.replace("budget = 1000.0}", f"budget = 2.0}}, {more}")
        served.cascade.write_text(text, "utf-8")
        is_renewed = []
        gateway.gateway.on_reload.append(lambda: lambda: is_renewed.append(True))
        result = reload(gateway)
        assert not result.ok
        assert "at most 1 keys" in result.message
        assert not is_renewed
        assert [post(gateway, key).status_code for key in (OLD, NEW)] == [200, 401]
        assert gateway.gateway.accounts["web"].left == 999.0


def test_keys_cannot_appear(make_served):
    served = make_served(1)
    with running(served.cascade, served.artefact) as gateway:
        gateway.gateway._reread = partial(read_settings, served.cascade)
        key_file = served.cascade.with_name("keys")
        key_file.write_text(NEW)
        text = served.cascade.read_text("utf-8")
        text = text.replace("[serve]\n", f'[serve]\nkeys_file = "{key_file}"\n')
        served.cascade.write_text(text, "utf-8")
        new = read_settings(served.cascade)
        with pytest.raises(CascadeError, match="cannot be added"):
            gateway.gateway._changing_to(new, "test")


def test_a_folder_that_cannot_be_written_refuses_no_reload(make_served, tmp_path):
    served = make_served(1, serve={"timeout": 30})
    (tmp_path / "secret").write_bytes(b"s" * 32)
    with running(served.cascade, served.artefact, WorkerPlace(0, 1, tmp_path)) as gateway:
        gateway.gateway._reread = partial(read_settings, served.cascade)
        gateway.served = served
        (tmp_path / "accepted.json").unlink()
        (tmp_path / "accepted.json").mkdir()
        edit(gateway, "timeout = 30", "timeout = 30\nmax_body = 10")
        assert reload(gateway).ok
        assert post(gateway).status_code == 413
        (warning,) = [event for event in gateway.log if event["event"] == "warning"]
        assert warning["message"].startswith("not kept for workers that start later: ")
