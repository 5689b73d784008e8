"""A cascade on a cluster decides as it does here, loses nothing, and asks nothing twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

import ttamer as tt
from support import ray_models
from ttamer.runtime import batched
from ttamer.runtime.reply import CascadeFailed

pytestmark = [
    pytest.mark.ray,
    # Ray's own settings warn of one another whenever they are made or copied.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TEXTS = [f"text {number}" for number in range(400)]
COSTS = {"small": 1.0, "large": 9.0}


@pytest.fixture(scope="module")
def clusters(cluster):
    del cluster
    from ttamer import ray as clusters

    return clusters


@pytest.fixture(scope="module")
def ladder():
    nodes = {"small": ray_models.Small(), "large": ray_models.Large()}
    texts = [f"fit {number}" for number in range(300)]
    labels = [ray_models.truth(text) for text in texts]
    return tt.fit(tt.collect(texts, nodes, labels=labels, costs=COSTS), belief="markov")


def dataset(texts=TEXTS, blocks=5):
    import ray

    items = [{"input": text, "id": f"key {text}"} for text in texts]
    return ray.data.from_items(items, override_num_blocks=blocks)


def broken_at_seven(text):
    if text.endswith("7"):
        raise ValueError("not this one")
    return ray_models.Small()(text)


def large_in_batches(texts):
    if any(text.endswith(("17", "57")) for text in texts):
        raise ValueError("not these ones")
    return [ray_models.Large()(text) for text in texts]


async def large_later_together(texts):
    return all_in_batches(texts)


def all_in_batches(texts):
    return [ray_models.Large()(text) for text in texts]


def here(policy, nodes, **limits):
    """What a cascade in this process does."""
    cascade = tt.Cascade(policy, nodes, **limits)
    outcomes = []
    for text in TEXTS:
        try:
            outcomes.append(cascade.run(text, key=f"key {text}"))
        except CascadeFailed as error:
            outcomes.append(error)
    return outcomes


def test_decisions_and_failures_are_those_of_a_cascade_in_this_process(clusters, ladder):
    policy = ladder.for_budget(6.0)  # a mixture draws by the key
    nodes = {"small": broken_at_seven, "large": batched(large_in_batches, 16)}
    local = here(policy, nodes, retries=1)
    options = {"workers": {"large": 2}, "key": "id", "batch_size": 60, "retries": 1}
    rows = clusters.run(dataset(), policy, nodes, **options).take_all()
    assert [row["input"] for row in rows] == TEXTS
    assert len({len(outcome.asked) for outcome in local}) > 1
    failed = []
    for row, outcome in zip(rows, local, strict=True):
        assert row["asked"] == [call.node for call in outcome.asked]
        assert row["cost"] == sum(call.cost for call in outcome.asked)
        if isinstance(outcome, CascadeFailed):
            failed.append(row["input"])
            assert (row["answer"], row["by"], row["error"]) == (None, None, str(outcome))
        else:
            assert (row["answer"], row["by"]) == (outcome.answer, outcome.by)
            assert row["error"] is None
    assert failed == [text for text in TEXTS if text.endswith(("17", "57"))]


def test_a_process_that_dies_loses_nothing_and_nothing_is_asked_again_after_a_stop(
    clusters, ladder, tmp_path
):
    calls, out = tmp_path / "calls", tmp_path / "out"
    calls.mkdir()
    policy = ladder.at(0.95)
    local = here(policy, {"small": ray_models.Small(), "large": ray_models.Large()})
    answers = {text: outcome.answer for text, outcome in zip(TEXTS, local, strict=True)}
    asked = [text for text, one in zip(TEXTS, local, strict=True) if "large" in one.path]
    dies = ray_models.DiesOnce(str(calls), asked[len(asked) // 2])
    nodes = {"small": ray_models.Small(str(calls)), "large": dies}
    texts = [*TEXTS, *TEXTS[:50]]  # the last block is equal to the first
    options = {
        "output": out,
        "batch_size": 50,
        "resources": {"large": {"resources": {"second": 1}}},
    }
    rows = clusters.run(dataset(texts, 9), policy, nodes, **options).take_all()
    assert (calls / "died").exists()
    assert [row["input"] for row in rows] == texts
    assert all(row["answer"] == answers[row["input"]] for row in rows)
    assert {row["input"]: row["answer"] for row in pq.read_table(out).to_pylist()} == answers
    # Only the call that died is made again, with those of its block that were sent along with it.
    small, large = (Counter(ray_models.calls_of(str(calls), name)) for name in ("small", "large"))
    assert set(small) == set(TEXTS)
    assert {text for text, count in small.items() if count > 1} <= set(TEXTS[:50])
    assert set(large) == set(asked)
    twice = [TEXTS.index(text) // 50 for text, count in large.items() if count > 1]
    assert set(twice) <= {0, TEXTS.index(asked[len(asked) // 2]) // 50}
    # A block that is missing is answered again, and no other; another policy answers all again.
    file = min(out.glob("*.parquet"))
    lost = pq.read_table(file)["input"].to_pylist()
    file.unlink()
    again = clusters.run(dataset(TEXTS, 8), policy, nodes, **options)
    assert {row["input"]: row["answer"] for row in again.take_all()} == answers
    after = Counter(ray_models.calls_of(str(calls), "small"))
    assert after - small == Counter(lost)
    rows = clusters.run(dataset(TEXTS[:50], 1), ladder.at(0.0), nodes, **options).take_all()
    assert {row["by"] for row in rows} == {"small"}


def test_a_trace_collected_there_is_the_one_collected_here(clusters):
    import ray

    labels = [ray_models.truth(text) for text in TEXTS]
    items = [{"text": text, "right": label} for text, label in zip(TEXTS, labels, strict=True)]
    nodes = {"small": ray_models.Small, "large": batched(all_in_batches, 16)}
    data = ray.data.from_items(items, override_num_blocks=4)
    columns = {"column": "text", "label": "right", "inputs": ["text"]}
    there = clusters.collect(data, nodes, costs=COSTS, batch_size=70, **columns)
    assert there.inputs["text"].tolist() == TEXTS
    local = {"small": ray_models.Small(), "large": ray_models.Large()}
    trace = tt.collect(TEXTS, local, labels=labels, costs=COSTS)
    np.testing.assert_array_equal(there.confidence, trace.confidence)
    for name in ("prediction", "label"):
        codes, texts = getattr(there, name), np.array(there.classes)
        np.testing.assert_array_equal(texts[codes], np.array(trace.classes)[getattr(trace, name)])


BAD = {
    "the dataset has no column 'text'; it has input, id": {"column": "text"},
    "workers names 'middle'; the nodes are small, large": {"workers": {"middle": 1}},
    "the actors need 64 GPUs together, and the cluster has 0": {
        "resources": {"large": {"num_gpus": 64}}
    },
    "the actors need 64 CPUs together": {"resources": {"large": {"num_cpus": 64}}},
    "batch_size is 0": {"batch_size": 0},
    "there is no callable for 'large'": {"nodes": {"small": ray_models.Small}},
    "node 'small' could not be created: RuntimeError: no file of weights": {
        "nodes": {"small": ray_models.Broken, "large": ray_models.Large}
    },
}


def test_bad_arguments_are_refused_in_words(clusters, ladder):
    nodes = {"small": ray_models.Small, "large": ray_models.Large}
    data = dataset(TEXTS[:4], 1)
    for text, options in BAD.items():
        with pytest.raises(tt.TTamerError, match=text):
            clusters.run(data, ladder.at(0.9), **{"nodes": nodes, **options})


def test_a_served_cascade_answers_as_it_does_here(clusters, ladder, tmp_path):
    import httpx2 as httpx
    from ray import serve

    path = tmp_path / "policy.ttamer"
    tt.save(ladder.at(0.95), path)
    nodes = {"small": ray_models.Small, "large": batched(large_later_together)}
    options = {"num_cpus": 0.1}
    application = clusters.application(
        path, nodes, small={"ray_actor_options": options}, large={"ray_actor_options": options}
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": 8123})
    try:
        serve.run(application)
        local = here(ladder.at(0.95), {"small": ray_models.Small(), "large": ray_models.Large()})
        with httpx.Client(base_url="http://127.0.0.1:8123", timeout=60) as client:
            for text, outcome in list(zip(TEXTS, local, strict=True))[:20]:
                reply = client.post("/", json={"input": text}).json()
                assert reply == {
                    "answer": outcome.answer,
                    "by": outcome.by,
                    "cost": outcome.cost,
                    "asked": list(outcome.path),
                }
            assert client.post("/", content=b"{").status_code == 400
    finally:
        serve.shutdown()


def test_without_ray_the_error_names_the_command_that_installs_it():
    program = """
import sys
sys.modules["ray"] = None
try:
    import ttamer.ray
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "this needs ray, which is not installed: pip install 'ttamer[ray]'\n", (
        done.stderr
    )
