"""A trace collected on a cluster is the local one, but for the times measured."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import ray_models
from ttamer.errors import ArgumentError, TraceError
from ttamer.runtime.calling import batched
from ttamer.runtime.collecting import collect as collect_here

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    # Ray's own settings warn of one another whenever they are made or copied.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]
TEXTS = [f"text {number}" for number in range(230)]
LABELS = [ray_models.truth(text) for text in TEXTS]
COSTS = {"small": 1.0, "middle": 2.0, "large": 9.0}


@pytest.fixture
def cluster_collect():
    from ttamer.ray import collect

    return collect


def nodes_with(large):
    return {
        "small": ray_models.fails_at_seven,
        "middle": batched(ray_models.of_its_batch, 24),
        "large": large,
    }


def same(one, two) -> None:
    assert one.digest == two.digest
    assert one.classes == two.classes
    assert one.left_out == two.left_out
    assert one.spec == two.spec


def test_the_trace_is_the_local_one_even_where_an_actor_dies(cluster_collect, tmp_path):
    given = {"labels": LABELS, "costs": COSTS, "on_error": "skip"}
    local = collect_here(TEXTS, nodes_with(ray_models.Large()), **given)
    dies = ray_models.DiesOnce(str(tmp_path), TEXTS[100])
    done = []
    spread = cluster_collect(
        iter(TEXTS), nodes_with(dies), progress=lambda *now: done.append(now), **given
    )
    assert (tmp_path / "died").exists()
    assert local.left_out == {"small raised ValueError": 23}
    same(spread, local)
    assert done[-1] == (230, 230)


def test_progress_is_shown_where_it_is_true(cluster_collect, capsys):
    cluster_collect(TEXTS[:10], {"large": ray_models.Large}, costs={"large": 1.0}, progress=True)
    assert "10 of 10 inputs" in capsys.readouterr().err


def test_a_column_of_parquet_files_is_a_list_of_inputs(tmp_path):
    from ttamer.ray import collect_parquet

    for number, part in enumerate([slice(0, 130), slice(130, None)]):
        table = pa.table({"text": TEXTS[part], "right": LABELS[part]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=50)
    given = {"costs": COSTS, "on_error": "skip"}
    spread = collect_parquet(
        tmp_path, nodes_with(ray_models.Large), column="text", label="right", **given
    )
    same(spread, collect_here(TEXTS, nodes_with(ray_models.Large()), labels=LABELS, **given))
    with pytest.raises(TraceError, match=r"there is no column 'input'; the file has text, right"):
        collect_parquet(tmp_path, nodes_with(ray_models.Large))


def test_times_are_measured_where_the_models_run(cluster_collect):
    nodes = {"small": ray_models.Small, "large": ray_models.Large}
    trace = cluster_collect(TEXTS, nodes, workers={"small": 2})
    local = collect_here(TEXTS, {name: model() for name, model in nodes.items()})
    np.testing.assert_array_equal(trace.confidence, local.confidence)
    np.testing.assert_array_equal(trace.prediction, local.prediction)
    assert trace.spec.target == "last"
    assert (trace.cost > 0).all()
    np.testing.assert_array_equal(trace.spec.costs, trace.cost.mean(axis=0))


def test_a_failure_has_the_same_text(cluster_collect):
    given = {"costs": COSTS, "labels": LABELS}
    with pytest.raises(TraceError) as here:
        collect_here(TEXTS, nodes_with(ray_models.Large()), **given)
    with pytest.raises(TraceError) as there:
        cluster_collect(TEXTS, nodes_with(ray_models.Large), **given)
    assert str(there.value) == str(here.value)
    assert "node 'small', input 7 (counting from 0): raised ValueError" in str(here.value)


def test_bad_arguments_are_refused_before_any_call(cluster_collect):
    nodes = {"small": ray_models.Small}
    with pytest.raises(TraceError, match="there are no inputs"):
        cluster_collect([], nodes)
    with pytest.raises(ArgumentError, match="nodes must be a mapping"):
        cluster_collect(TEXTS, [ray_models.Small])
    with pytest.raises(ArgumentError, match="repeat is 0"):
        cluster_collect(TEXTS, nodes, repeat=0)
    with pytest.raises(TraceError, match="1 label and more inputs are given"):
        cluster_collect(TEXTS, nodes, labels=["A"])
    for workers in (0, 1.5, "2", {"small": True}):
        with pytest.raises(ArgumentError, match=r"workers of 'small' is .*a whole number from 1"):
            cluster_collect(TEXTS, nodes, workers=workers)
    with pytest.raises(ArgumentError, match="workers name 'tiny'; the nodes are small"):
        cluster_collect(TEXTS, nodes, workers={"tiny": 1})
    with pytest.raises(ArgumentError, match="resources name 'tiny'; the nodes are small"):
        cluster_collect(TEXTS, nodes, resources={"tiny": {}})
    with pytest.raises(ArgumentError, match="need 3 CPUs together, and the cluster has 2"):
        cluster_collect(TEXTS, nodes, resources={"small": {"num_cpus": 3}})


def test_what_cannot_be_sent_or_created_is_named(cluster_collect):
    from ttamer.ray import WorkLost

    lock = threading.Lock()
    nodes = {"small": ray_models.Small, "large": lambda text: (lock, text)}
    with pytest.raises(ArgumentError, match=r"node 'large' cannot be sent .*lock.*; give a class"):
        cluster_collect(TEXTS, nodes)
    with pytest.raises(ArgumentError, match="inputs 64 to 65, or their labels, cannot be sent"):
        cluster_collect([*TEXTS[:65], lock], {"small": ray_models.Small})
    with pytest.raises(WorkLost, match="node 'broken' could not be created: RuntimeError: no file"):
        cluster_collect(TEXTS[:2], {"broken": ray_models.Broken})
