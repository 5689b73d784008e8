"""A cascade on Ray Serve answers as it does here, and loses nothing when a replica dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

import ttamer as tt
from support import ray_models
from support.faulty_upstream import FaultyUpstream
from support.waiting import LONGEST_WAIT
from ttamer.errors import ArgumentError, ArtefactError, CascadeError
from ttamer.runtime.cascade import Cascade
from ttamer.trace.spec import CascadeSpec

TEXTS = [f"text {number}" for number in range(400)]
TOML = """
[serve]
tradeoff = 0.9

[[node]]
name = "small"
cost = 1.0
model = "support.ray_models:HeldSmall"
replicas = 2
cpus = 0.2

[[node]]
name = "large"
cost = 5.0
model = "support.ray_models:Large"
replicas = [1, 2]
cpus = 0.2
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A cascade.toml and a policy fitted to what its models say."""
    folder = tmp_path_factory.mktemp("served")
    nodes = {"small": ray_models.Small(), "large": ray_models.Large()}
    labels = [ray_models.truth(text) for text in TEXTS]
    trace = tt.collect(TEXTS, nodes, labels=labels, costs={"small": 1.0, "large": 5.0})
    tt.save(tt.fit(trace), folder / "policy.ttamer")
    (folder / "cascade.toml").write_text(TOML)
    return folder


@pytest.fixture(scope="module")
def url(cluster, files):
    """Where the application answers."""
    from ray import serve

    from ttamer.ray import build

    assert cluster.is_initialized()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    given = {"cascade": str(files / "cascade.toml"), "policy": str(files / "policy.ttamer")}
    serve.run(build(given), name="cascade", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def expected(files, text):
    """What the same policy and models answer in this process."""
    nodes = {"small": ray_models.Small(), "large": ray_models.Large()}
    outcome = Cascade(tt.load(files / "policy.ttamer").at(0.9), nodes).run(text)
    return outcome.answer, list(outcome.path), outcome.cost


def classify(url, text):
    reply = httpx.post(f"{url}/v1/classify", json={"input": text}, timeout=LONGEST_WAIT)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    return found["label"], found["path"], found["cost"]


def test_answers_are_those_of_the_cascade_here(url, files):
    paths = set()
    for text in TEXTS[:20]:
        found = classify(url, text)
        assert found == expected(files, text)
        paths.add(len(found[1]))
    assert paths == {1, 2}  # some go on, some stop


def test_a_node_with_two_numbers_of_replicas_grows_with_its_traffic(cluster):
    from ttamer.ray.replicas import read_placements
    from ttamer.ray.serving import _deployment

    assert cluster.is_initialized()
    settings, placements = read_placements(CascadeSpec.from_toml(TOML))
    fixed, growing = (
        _deployment(number, settings.nodes[name], placements[name])
        for number, name in enumerate(("small", "large"), start=1)
    )
    assert (fixed.num_replicas, fixed._deployment_config.autoscaling_config) == (2, None)
    limits = growing._deployment_config.autoscaling_config
    assert (limits.min_replicas, limits.max_replicas, limits.target_ongoing_requests) == (1, 2, 4)


def test_the_endpoints_of_the_gateway_are_there(url, files):
    body = {"model": "ttamer", "messages": [{"role": "user", "content": TEXTS[0]}]}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LONGEST_WAIT)
    assert reply.json()["choices"][0]["message"]["content"] == expected(files, TEXTS[0])[0]
    body = {"model": "ttamer", "prompt": TEXTS[1]}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=LONGEST_WAIT)
    assert reply.json()["choices"][0]["text"] == expected(files, TEXTS[1])[0]
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
    assert b"ttamer_" in httpx.get(f"{url}/metrics").content
    assert httpx.post(f"{url}/v1/classify", json={}).status_code == 400
    body = {"model": "small", "input": "text"}
    assert httpx.post(f"{url}/v1/classify", json=body).status_code == 404


def test_a_replica_killed_in_traffic_loses_nothing(url, files, cluster_folder):
    texts = [f"hold {number}" for number in range(24)]

    def at_work() -> dict[int, int]:
        found: dict[int, int] = {}
        for mark in cluster_folder.glob("started-*"):
            pid = int(mark.name.split("-")[1])
            found[pid] = found.get(pid, 0) + 1
        return found

    with ThreadPoolExecutor(len(texts)) as threads:
        asked = [threads.submit(classify, url, text) for text in texts]
        try:
            end = time.monotonic() + LONGEST_WAIT
            while len(at_work()) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            before = at_work()
            assert len(before) == 2, before  # both replicas hold inputs, none is answered
            victim = min(before)
            os.kill(victim, signal.SIGKILL)
        finally:
            (cluster_folder / "go").touch()
        answers = [each.result() for each in asked]
    assert answers == [expected(files, text) for text in texts]
    held = {mark.name.split("-")[2] for mark in cluster_folder.glob(f"started-{victim}-*")}
    again = {
        mark.name.split("-")[2]
        for mark in cluster_folder.glob("started-*")
        if mark.name.split("-")[1] != str(victim)
    }
    assert held
    assert held <= again  # what it held was asked again elsewhere


def test_a_node_with_an_upstream_is_asked_by_its_replica():
    from ttamer.ray.replicas import Failed, Replica

    body = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    with FaultyUpstream("small") as upstream:
        toml = f"node = [{{name = 'small', cost = 1.0, upstream = '{upstream.url}'}}]"

        async def ask():
            replica = Replica(toml, "small")
            good = await replica.ask("/chat/completions", body, 30.0, {})
            upstream.mode = "error"
            bad = await replica.ask("/chat/completions", body, 30.0, {})
            upstream.status, upstream.code = 400, "context_length_exceeded"
            refused = await replica.ask("/chat/completions", body, 30.0, {})
            await replica.close()
            return good, bad, refused

        good, bad, refused = asyncio.run(ask())
        assert good.text == upstream.answer("2 + 2?", 0)[0]
    assert isinstance(bad, Failed)
    assert (bad.kind, bad.status, bad.code) == ("error", 500, None)
    error = asyncio.run(raised_for(refused))
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert str(error).count("node 'small'") == 1


async def raised_for(found):
    """Return the error that the gateway raises for what a replica returns."""
    from ttamer.ray.replicas import read_placements
    from ttamer.ray.serving import _Remote
    from ttamer.serve.upstreams.upstream import UpstreamFailed

    class Handle:
        @property
        def ask(self):
            return self

        async def remote(self, *_):
            return found

    settings, _ = read_placements(CascadeSpec.from_toml(TOML))
    with pytest.raises(UpstreamFailed) as caught:
        await _Remote(settings.nodes["small"], Handle()).ask("/chat/completions", {})
    return caught.value


@pytest.mark.parametrize(
    ("model", "kind"),
    [("fails_always", "error"), ("raises_stop", "error"), ("says_nonsense", "garbage")],
)
def test_a_model_that_fails_reports_why(model, kind):
    from ttamer.ray.replicas import Failed, Replica

    replica = Replica(
        f"node = [{{name = 'a', cost = 1, model = 'support.ray_models:{model}'}}]", "a"
    )
    found = asyncio.run(replica.ask("/classify", {"input": "text"}, 30.0, {}))
    assert isinstance(found, Failed)
    assert found.kind == kind


def test_what_a_plain_model_returns_to_be_awaited_is_awaited():
    from ttamer.ray.replicas import Replica

    replica = Replica(
        "node = [{name = 'a', cost = 1, model = 'support.ray_models:returns_awaitable'}]", "a"
    )
    found = asyncio.run(replica.ask("/classify", {"input": "text"}, 30.0, {}))
    assert (found.text, found.confidence) == ("text", 0.5)


def test_the_margin_that_a_model_returns_reaches_the_policy():
    from ttamer.ray.replicas import Replica

    replica = Replica(
        "node = [{name = 'a', cost = 1, model = 'support.ray_models:with_margin'}]", "a"
    )
    found = asyncio.run(replica.ask("/classify", {"input": "text"}, 30.0, {}))
    assert (found.confidence, found.margin, found.entropy) == (0.5, 0.25, None)


def refused(text, files) -> str:
    from ttamer.ray import application

    with pytest.raises((CascadeError, ArgumentError, ArtefactError)) as caught:
        application(CascadeSpec.from_toml(text), files / "policy.ttamer")
    return str(caught.value)


def test_what_cannot_be_served_is_refused_at_once(files):
    from ttamer.ray import build

    assert "has no upstream, and model is None" in refused("node = [{name='a', cost=1}]", files)
    assert "model is 'plain'" in refused("node = [{name='a', cost=1, model='plain'}]", files)
    assert "replicas is [2, 1]" in refused(TOML.replace("[1, 2]", "[2, 1]"), files)
    assert "cpus is -1" in refused(TOML.replace("cpus = 0.2", "cpus = -1"), files)
    assert "unknown key 'replica'" in refused(TOML.replace("replicas =", "replica ="), files)
    assert "direct" in refused(TOML.replace("tradeoff = 0.9", "direct = true"), files)
    assert "was fitted for small, large" in refused(TOML.replace('"small"', '"tiny"'), files)
    with pytest.raises(ArgumentError, match=r"the arguments are cascade=cascade\.toml and"):
        build({"cascade": "cascade.toml"})
