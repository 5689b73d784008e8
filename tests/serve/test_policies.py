"""The policy in service: reloads without a lost request, and a broken file changes nothing."""

import asyncio
import math

import pytest

import ttamer as tt
from ttamer.serve.policies import PolicyStore


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(PolicyStore, "interval", 0.02)


def version_of(served):
    return served.service.policies.active.version


async def changed(served, former):
    while version_of(served) == former:
        await asyncio.sleep(0.01)


def other_policy(served):
    """Another valid policy for the same cascade."""
    return served.service.policies.active.artefact.at(0.5)


def test_a_changed_file_is_put_into_service_without_a_lost_request(serve):
    served = serve()
    former = version_of(served)

    async def scenario(client):
        asking = asyncio.create_task(ask_until(client))
        tt.save(other_policy(served), served.folder / "policy.ttamer")
        await changed(served, former)
        await asyncio.sleep(0.05)
        asking.cancel()
        return done, await client.chat()

    done = []

    async def ask_until(client):
        while True:
            done.append((await client.chat(f"prompt {len(done)}")).status_code)
            await asyncio.sleep(0)

    statuses, last = served.run(scenario)
    assert set(statuses) == {200}
    assert last.headers["x-ttamer-policy"] == version_of(served) != former


@pytest.mark.parametrize("content", [b"", b"nothing", None])
def test_a_file_that_cannot_be_served_leaves_the_policy_as_it_is(serve, content):
    served = serve()
    former, path = version_of(served), served.folder / "policy.ttamer"
    good = path.read_bytes()

    async def scenario(client):
        path.write_bytes(good[: len(good) // 2] if content is None else content)
        while not served.service.policies.refused:
            await asyncio.sleep(0.01)
        response = await client.chat()
        assert await client.metric("ttamer_policies_refused") >= 1
        path.write_bytes(good)
        return response

    response = served.run(scenario)
    assert response.status_code == 200
    assert response.headers["x-ttamer-policy"] == former


def test_no_error_ends_the_watch(serve, monkeypatch):
    served = serve()
    former = version_of(served)

    def fail(store):
        monkeypatch.undo()
        raise KeyError(store)

    async def scenario(client):
        del client
        monkeypatch.setattr(PolicyStore, "load", fail)
        served.service.policies.hangup.set()
        while not served.service.policies.refused:
            await asyncio.sleep(0.01)
        tt.save(other_policy(served), served.folder / "policy.ttamer")
        served.service.policies.hangup.set()
        await asyncio.wait_for(changed(served, former), 10)

    served.run(scenario)


@pytest.mark.parametrize(
    "choose",
    [lambda x: x, lambda x: x.at(0.5), lambda x: x.for_budget(5.0)],
    ids=["ladder", "policy", "mixture"],
)
def test_whatever_a_fit_gives_can_be_saved_and_served(serve, choose):
    served = serve()
    policy = choose(served.service.policies.active.artefact)
    tt.save(policy, served.folder / "policy.ttamer")
    served.service.policies.active = active = served.service.policies.load()
    response = served.chat(headers={"x-request-id": "r1"})
    assert response.headers["x-ttamer-policy"] == active.version
    first = active.policy.session(key="r1").next
    assert response.headers["x-ttamer-path"].split(",")[0] == first


def test_a_file_that_is_gone_for_a_moment_is_no_change(serve):
    served = serve()

    async def scenario(client):
        (served.folder / "policy.ttamer").rename(served.folder / "away")
        await asyncio.sleep(0.1)
        return await client.chat()

    assert served.run(scenario).status_code == 200
    assert served.service.policies.refused == 0


def test_the_policies_that_requests_choose_are_bounded(serve):
    active = serve(serve={"allow": ["tradeoff"]}).service.policies.active
    for number in range(200):
        active.cascade(("tradeoff", number / 1000), 20.0 + number)
    assert active.cascade.cache_info().currsize == 64
    assert active.cascade(None, math.inf).max_cost == math.inf
    assert active.cascade(None, None) is active.cascade(None, None)
