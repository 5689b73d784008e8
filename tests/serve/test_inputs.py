"""What a policy reads of a request: its text, what the request states, vectors by an embedder."""

import asyncio
import functools
import time

import numpy as np
import pytest

import ttamer as tt
from support.served import COSTS
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArtefactError
from ttamer.llm.client import Client, UpstreamFailed
from ttamer.serve.policies import PolicyStore
from ttamer.serve.service import Service

EASY, HARD = [1.0, 0.0, 0.1], [0.0, 1.0, 0.1]


@functools.cache
def fitted():
    """A ladder for which small errs on hard inputs alone, and its confidence says nothing."""
    rng = np.random.default_rng(0)
    hard = rng.random(600) < 0.5
    right = np.stack([~hard, np.ones(600, bool)], axis=1)
    label = rng.integers(0, 4, 600)
    letters = np.array(list("ABCD"))
    predicted = letters[np.where(right, label[:, None], (label[:, None] + 1) % 4)]
    spec = CascadeSpec.of({name: COSTS[name] for name in ("small", "large")})
    trace = tt.Trace.from_arrays(
        spec,
        np.full((600, 2), 0.5),
        prediction=predicted,
        label=letters[label],
        inputs={
            "vector": np.where(hard[:, None], HARD, EASY),
            "plan": np.where(rng.random(600) < 0.5, "paid", "free"),
        },
    )
    return tt.fit(trace, embedders={"vector": "embedder-1"})


class Embedder:
    """An upstream of embeddings."""

    def __init__(self):
        self.error, self.texts, self.width = None, [], 3

    async def embed(self, text, deadline=None):
        del deadline
        self.texts.append(text)
        if self.error is not None:
            raise self.error
        return (HARD if "hard" in text else EASY)[: self.width]


@pytest.fixture
def reading(serve, tmp_path, monkeypatch):
    """Serve a policy that reads a vector and a plan, with an embedder."""

    def make(**tables):
        embedder = Embedder()
        monkeypatch.setattr(Client, "of_embeddings", lambda *_: embedder)
        load = PolicyStore.load

        def saved(store):
            tt.save(fitted(), tmp_path / "policy.ttamer")
            return load(store)

        monkeypatch.setattr(PolicyStore, "load", saved)
        table = {"tradeoff": 0.9, **tables}
        served = serve(serve=table, force=True)
        for model in served.models.values():
            model.answer = lambda prompt: ("A", 0.5)
        return served, embedder

    return make


UPSTREAM = {"upstream": "http://embeddings.invalid/v1", "model": "embedder-1"}


def first_of(response):
    assert response.status_code == 200, response.text
    return response.headers["x-ttamer-path"].split(",")[0]


def test_vectors_of_prompts_decide_who_is_asked(reading):
    served, _ = reading(embeddings=UPSTREAM)
    responses = served.chat({"content": "easy"}, {"content": "hard"})
    assert [first_of(response) for response in responses] == ["small", "large"]


def test_an_embedder_that_fails_leaves_the_input_unknown(reading):
    served, embedder = reading(embeddings=UPSTREAM)

    async def scenario(client):
        embedder.error = UpstreamFailed("embeddings", "timeout", "late")
        failed = await client.chat("hard")
        embedder.error, embedder.width = None, 2  # vectors of another model
        odd = await client.chat("hard")
        return failed, odd, await client.metric("ttamer_embeddings_missing")

    failed, odd, count = served.run(scenario)
    assert first_of(failed) == first_of(odd)
    assert count == 2


def test_a_request_states_its_inputs(reading):
    served, embedder = reading(embeddings=UPSTREAM)
    stated = {"vector": HARD, "plan": "paid", "unread": 3}
    easy, hard = served.chat({"content": "easy"}, {"content": "hard", "ttamer": {"inputs": stated}})
    (decided,) = served.post("/decide", {"ttamer": {"inputs": stated}})
    assert (first_of(easy), first_of(hard)) == ("small", "large")
    assert decided.json()["next"] == "large"
    assert len(embedder.texts) == 1  # the first request had none
    for odd in ({"vector": [1.0]}, {"plan": {}}, {"vector": "x"}):
        response = served.chat({"ttamer": {"inputs": odd}})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("ttamer.inputs")


def test_without_an_embedder_and_inputs_it_serves_and_warns(reading):
    served, _ = reading()
    assert served.chat({}).status_code == 200
    (warning,) = served.service.policies.active.warnings()
    assert "reads plan, vector" in warning


def test_vectors_by_another_embedder_are_refused(reading):
    with pytest.raises(ArtefactError, match="vectors by embedder-1, and the model of"):
        reading(embeddings={**UPSTREAM, "model": "embedder-2"})


def test_an_embedder_that_hangs_costs_a_request_little(reading, monkeypatch):
    served, embedder = reading(embeddings=UPSTREAM)
    monkeypatch.setattr(Service, "embedding_seconds", 0.1)

    async def hang(text, deadline):
        del text
        await asyncio.sleep(deadline.left)
        raise UpstreamFailed("embeddings", "timeout", "did not answer in time")

    embedder.embed = hang
    start = time.monotonic()
    assert served.chat({}).status_code == 200
    assert 0.1 <= time.monotonic() - start < 5
