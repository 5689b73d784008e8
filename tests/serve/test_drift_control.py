"""The drift loop of a gateway: models change, it falls back and re-fits, and an operator acts."""

from __future__ import annotations

import contextlib
import re

import pytest

import ttamer as tt
from support.changing import ADMIN, Traffic, answers, boast, models, modest, write_changing
from support.running_gateway import running
from ttamer.errors import ArtefactError, CascadeError, TraceError
from ttamer.serve.config import read_settings
from ttamer.serve.drift import secret_names
from ttamer.serve.gateway import Gateway


@pytest.fixture
def upstreams():
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(model) for name, model in models().items()}


@pytest.fixture
def changing(tmp_path, upstreams, monkeypatch):
    monkeypatch.setenv("ADMIN_KEYS", ADMIN)
    return write_changing(tmp_path, upstreams, serve={"admin_keys_env": "ADMIN_KEYS"})


@pytest.fixture
def traffic(changing):
    with running(changing.cascade, changing.artefact) as gateway, Traffic(gateway) as found:
        yield found


def kinds(status) -> list[str]:
    return [event["kind"] for event in reversed(status["loop"]["events"])]


def send_until(traffic, kind, *, most=800):
    """Send requests until the loop did something; return what the status page shows then."""
    for _ in range(0, most, 20):
        traffic.send(20)
        status = traffic.settle()
        if kind in kinds(status):
            return status
    raise AssertionError(f"no {kind} after {most} requests: {kinds(status)}")


def test_it_goes_all_the_way_round(changing, traffic):
    quiet = traffic.send(40)
    assert any(reply.headers["x-ttamer-path"] == "small" for reply in quiet)
    version = quiet[0].headers["x-ttamer-policy"]
    assert quiet[0].headers["x-ttamer-promise"] == "certified"
    status = traffic.settle()
    assert status["loop"]["state"] == "watching"
    assert (status["audited"], status["seen"], status["lost"]) == (40, 40, 0)
    assert kinds(status) == []

    changing.upstreams["small"].answer = boast  # sure of everything, and mostly wrong
    status = send_until(traffic, "fallback")
    assert kinds(status)[:2] == ["alarm", "fallback"]
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-path"] == "large"  # the last node answers everything
    assert reply.headers["x-ttamer-policy"] == f"{version}+1"
    assert reply.headers["x-ttamer-promise"] == "certified"  # it is what others are measured by
    page = traffic.client.get("/status.json").json()
    assert page["operating"]["cost"] == 10
    assert page["operating"]["error"] == 0

    changing.upstreams["small"].answer = modest
    status = send_until(traffic, "swap", most=1600)
    assert kinds(status)[2] == "refit"
    assert kinds(status)[-2:] == ["certified", "swap"]
    replies = traffic.send(20)
    assert {reply.headers["x-ttamer-policy"] for reply in replies} == {f"{version}+2"}
    assert any(reply.headers["x-ttamer-path"] == "small" for reply in replies)
    page = traffic.client.get("/status.json").json()
    assert page["version"] == f"{version}+2"
    assert page["operating"]["cost"] < 10

    logged = [line for line in traffic.gateway.log if line["event"] == "drift"]
    assert [line["kind"] for line in logged] == kinds(traffic.settle())
    assert traffic.gateway.metric("ttamer_drift_events_total") == len(logged)
    assert traffic.gateway.metric("ttamer_audits_total") == traffic.settle()["audited"]
    assert not [line for line in traffic.gateway.log if line["event"] in ("audit", "failure")]
    kept = changing.log / "policies" / f"{version}+2.ttamer"
    assert tt.load(kept).fitted.spec.names == ("small", "large")
    assert len(tt.Trace.read(kept.with_suffix(".parquet"))) > 50


def test_a_person_can_hold_it_let_it_go_and_roll_back(changing, traffic):
    (reply,) = traffic.send(1)
    version = reply.headers["x-ttamer-policy"]
    refused = traffic.post("/admin/drift/rollback")
    assert refused.status_code == 409
    assert "no former policy" in refused.json()["error"]["message"]
    assert traffic.post("/admin/drift/retry").status_code == 409
    held = traffic.post("/admin/drift/hold")
    assert (held.status_code, held.json()["held"]) == (200, True)

    changing.upstreams["small"].answer = boast
    status = send_until(traffic, "alarm")
    assert kinds(status) == ["hold", "alarm"]  # it says so, and changes nothing
    assert status["loop"]["held"]
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-policy"] == version

    assert traffic.post("/admin/drift/release").json()["held"] is False
    send_until(traffic, "fallback")
    back = traffic.post("/admin/drift/rollback")
    assert (back.status_code, back.json()["held"]) == (200, True)
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-policy"] == version


def test_an_artefact_put_in_place_ends_what_the_loop_was_about(changing, traffic, upstreams):
    (reply,) = traffic.send(1)
    first = reply.headers["x-ttamer-policy"]
    upstreams["small"].answer = boast
    send_until(traffic, "fallback")
    upstreams["small"].answer = modest
    tt.save(tt.fit(answers(upstreams, 500, "fit again", "last")), changing.artefact)
    answers(upstreams, 300, "held again", "last").write(changing.reference)
    assert traffic.post("/admin/reload").json()["ok"]
    (reply,) = traffic.send(1)
    second = reply.headers["x-ttamer-policy"]
    assert second not in (first, f"{first}+1")
    status = send_until(traffic, "reset")
    assert status["loop"]["state"] == "watching"
    assert not status["loop"]["can_roll_back"]
    quiet = traffic.send(40)
    assert traffic.settle()["loop"]["state"] == "watching"
    assert any(reply.headers["x-ttamer-path"] == "small" for reply in quiet)

    assert traffic.post("/admin/rollback").json()["ok"]
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-policy"] == first  # and not what the loop had put there


def test_an_artefact_that_the_loop_cannot_use_is_refused_and_changes_nothing(changing, traffic):
    (reply,) = traffic.send(1)
    tt.save(tt.load(changing.artefact).at(0.9), changing.artefact)
    refused = traffic.post("/admin/reload")
    assert refused.status_code == 409
    assert "holds one policy" in refused.json()["message"]
    (again,) = traffic.send(1)
    assert again.headers["x-ttamer-policy"] == reply.headers["x-ttamer-policy"]


def test_only_with_an_admin_key_and_only_where_there_is_a_loop(tmp_path, changing, traffic):
    assert traffic.post("/admin/drift/hold", key="a-wrong-key-of-the-tests").status_code == 401
    assert not traffic.status["loop"]["held"]
    other = write_changing(tmp_path, changing.upstreams, loop=False, audit={"log": "x"})
    text = other.cascade.read_text("utf-8").replace('"x"', f'"{tmp_path / "others"}"')
    text = text.replace("[serve]\n", '[serve]\nadmin_keys_env = "ADMIN_KEYS"\n')
    other.cascade.write_text(text, "utf-8")
    with running(other.cascade, other.artefact) as gateway, Traffic(gateway) as bare:
        assert bare.post("/admin/drift/hold").status_code == 404
        bare.send(3)
        assert bare.settle()["loop"] is None


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (("held.parquet", "gone.parquet"), TraceError, "gone.parquet"),
        (('target = "last"', 'target = "label"'), ArtefactError, "was fitted for target 'last'"),
        (("share = 1.0", "share = 1.0\nbudget = 3"), CascadeError, "one audit may cost 11"),
    ],
)
def test_what_would_not_do_is_found_before_anything_is_served(changing, change, error, says):
    text = changing.cascade.read_text("utf-8").replace("reference.parquet", "held.parquet")
    changing.reference.rename(changing.reference.with_name("held.parquet"))
    assert change[0] in text
    changing.cascade.write_text(text.replace(*change), "utf-8")
    with pytest.raises(error, match=re.escape(says)):
        Gateway(read_settings(changing.cascade), changing.artefact).load()


def test_a_refit_gets_no_key(tmp_path):
    cascade = tmp_path / "cascade.toml"
    cascade.write_text(
        """
[serve]
admin_keys_env = "ADMIN"
[serve.embeddings]
upstream = "http://127.0.0.1:1/v1"
key_env = "EMBEDDINGS"
[[serve.key]]
name = "web"
env = "WEB"
[[node]]
name = "small"
cost = 1
upstream = "http://127.0.0.1:1/v1"
key_env = "SMALL"
proxy = "http://127.0.0.1:2"
proxy_auth_env = "PROXY"
headers = {x-team = {env = "TEAM"}}
""",
        "utf-8",
    )
    names = {"ADMIN", "EMBEDDINGS", "WEB", "SMALL", "PROXY", "TEAM"}
    assert secret_names(read_settings(cascade)) == names
