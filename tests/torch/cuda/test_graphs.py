"""Steps and groups, with work done again in place of graphs replayed: there is no GPU here."""

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from support.cuda_driver import Graph, put_in_place
from support.exit_networks import adding_network, by_session, evidence, fitted
from ttamer.errors import ArgumentError
from ttamer.torch import attach, profiling, runner as running
from ttamer.torch.cuda import branching, graphs
from ttamer.torch.cuda.branching import NONE, Branch
from ttamer.torch.cuda.decide_kernel import KernelDecider
from ttamer.torch.cuda.graphs import Case, GraphRunner, full_graph
from ttamer.torch.deciding import threshold_tables
from ttamer.torch.devices import tensors_of
from ttamer.torch.early_exit import run_in_order
from ttamer.torch.runner import Runner

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


@pytest.fixture
def replayed(monkeypatch):
    """Let capturing run the work, replaying run it again, and Python run the branches."""
    monkeypatch.setattr(running, "decider_for", KernelDecider)

    def capture(work, pool=None):  # noqa: ARG001
        work()
        return graph_of(work)

    def computed(runner, segments, value):  # noqa: ARG001
        found = tuple(part.clone() for part in tensors_of(run_in_order(segments, value)))
        found = found if isinstance(value, tuple) else found[0]

        def again():
            for kept, part in zip(
                tensors_of(found), tensors_of(run_in_order(segments, value)), strict=True
            ):
                kept.copy_(part)

        return graph_of(again), found

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(branching, "capture", capture)
    monkeypatch.setattr(GraphRunner, "_computed", computed)
    monkeypatch.setattr(branching, "_unused", [])
    return put_in_place(monkeypatch)


def graph_of(work):
    """Return what stands for a captured graph."""
    graph = SimpleNamespace(replay=work, instantiate=int)
    graph.raw_cuda_graph = lambda: graph
    return graph


def same(one, two):
    """Compare answers; what was not asked does not count."""
    assert torch.equal(one.exit, two.exit)
    assert torch.equal(one.asked, two.asked)
    assert torch.equal(torch.nan_to_num(one.logits, nan=9.0), torch.nan_to_num(two.logits, nan=9.0))


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("tradeoff", [0.97, 1.0])
def test_graphs_answer_as_a_plain_runner_does(tradeoff):
    network, policy = adding_network(3), fitted(exits=3).at(tradeoff)
    batches = [
        evidence(rows, seed=seed, exits=3, broken=0.1)[0] for seed, rows in enumerate([12, 5, 1])
    ]
    runner = GraphRunner(network, policy, batches[0])
    assert runner.batch == 12
    plain = Runner(network, policy)
    for batch in (*batches, batches[0]):  # what a batch leaves behind must not matter to the next
        same(plain(batch), runner(batch))


@pytest.mark.usefixtures("replayed")
def test_graphs_decide_as_sessions_do():
    policy = fitted().at(0.97)
    inputs = evidence(12, seed=9)[0]
    answers = GraphRunner(adding_network(), policy, inputs)(inputs)
    names = adding_network().names
    for row, (asked, answer, _) in enumerate(by_session(policy, names, answers)):
        assert asked == tuple(names[k] for k in torch.nonzero(answers.asked[row])[:, 0])
        assert answer == names[answers.exit[row]]


@pytest.mark.usefixtures("replayed")
def test_a_batch_that_does_not_fit_is_refused():
    runner = GraphRunner(adding_network(), fitted().at(0.9), evidence(4, seed=0)[0])
    for rows in (0, 5):
        with pytest.raises(ArgumentError, match=f"the batch has {rows} rows"):
            runner(torch.zeros(rows, evidence(1, seed=0)[0].shape[1]))


@pytest.mark.usefixtures("replayed")
def test_the_whole_network_as_a_graph():
    network, (inputs, _) = adding_network().eval(), evidence(6, seed=1)
    other = evidence(6, seed=2)[0]
    run = full_graph(network, inputs)
    for some in (other, other[:4]):
        assert torch.equal(run(some), network.full(some))
    for rows in (0, 7):
        with pytest.raises(ArgumentError, match=f"{rows} rows; the graphs are for 1 to 6"):
            run(other.new_zeros(rows, other.shape[1]))


@pytest.mark.usefixtures("replayed")
def test_calls_that_are_timed_capture_groups_of_the_full_size_only(monkeypatch):
    network, (inputs, _) = adding_network(5).eval(), evidence(2, seed=1, exits=5)
    built, planned = [], GraphRunner._planned

    def plan(runner, size):
        cases, tables = planned(runner, size)
        built.append((runner.reached, {case.size for step in cases for case in step}))
        return cases, tables

    monkeypatch.setattr(GraphRunner, "_planned", plan)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    parts = profiling._Parts(network, inputs, profiling._as_graphs(), graphs=True)
    for call in parts._calls([0, 2], "fp32"):
        call()
    names = ("exit1", "exit3", "full")
    assert built == [(reached, {2}) for reached in (names, (names[0], "full"), names[1:])]


@pytest.mark.usefixtures("replayed")
def test_steps_lead_from_one_exit_to_the_next_and_skip_those_that_no_row_asks():
    tables = threshold_tables([np.nan, np.nan, 2.0, 0.0])
    runner = GraphRunner(adding_network(), tables, evidence(4, seed=0)[0])
    cases, follow = runner._planned(4)
    assert cases[0] == [Case(4, True)]
    assert set(cases[1]) == {Case(size, True) for size in (1, 2, 4)}  # every row asks the last
    last = len(tables.exit_of) - 1
    assert [cases[1][int(follow[0][0][last, alive])].size for alive in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert int(follow[0][0][last + 1, 0]) == NONE
    assert follow[1] == [None] * len(cases[1])


@pytest.mark.usefixtures("replayed")
def test_a_network_in_training_mode_is_not_captured():
    network, inputs = adding_network(), evidence(4, seed=0)[0]
    runner = GraphRunner(network, threshold_tables(np.array([0.5, 0.5, 0.5, 0.0])), inputs)
    network.train()
    with pytest.raises(ArgumentError, match=r"in training mode: call network\.eval\(\)"):
        runner(inputs)


def test_a_call_is_one_launch_and_no_wait(replayed):
    policy = fitted().at(0.97)
    inputs = evidence(3, seed=9)[0]
    runner = GraphRunner(adding_network(), policy, inputs)
    runner(inputs)
    assert (replayed.launches, runner.waits) == (1, 0)


@pytest.mark.usefixtures("replayed")
def test_what_graphs_read_lives_as_long_as_the_runner(monkeypatch):
    made = []

    def remembered(work):
        def call(*given):
            found = work(*given)
            made.extend(weakref.ref(part) for part in tensors_of(found))
            return found

        return call

    def forgotten(work, pool=None):  # noqa: ARG001
        work()
        return graph_of(int)  # as a graph, it does not keep what it was captured from

    monkeypatch.setattr(KernelDecider, "new_lists", remembered(KernelDecider.new_lists))
    monkeypatch.setattr(graphs, "like", remembered(graphs.like))
    monkeypatch.setattr(graphs, "capture", forgotten)
    monkeypatch.setattr(
        GraphRunner,
        "_computed",
        lambda _, segments, value: (graph_of(int), run_in_order(segments, value)),
    )
    inputs = evidence(3, seed=9)[0]
    runner = GraphRunner(adding_network(), fitted().at(0.97), inputs)
    runner(inputs)
    gc.collect()
    assert len(made) > 2 * len(runner.reached)
    assert all(part() is not None for part in made)


def test_graphs_are_destroyed_once_the_device_is_done_with_them(replayed, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(len(replayed.ready)))
    cases, result = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    first, last = Branch((graph_of(int),), cases), Branch((graph_of(int),), None)
    graph = branching.BranchingGraph(first, [[last, last]], result, unit=2)
    graph()
    assert replayed.ran
    del graph
    assert len(replayed.ready) == 3
    branching.destroy_unused()
    branching.destroy_unused()
    assert (replayed.ready, waited) == ({}, [3])


def test_old_drivers_and_missing_bindings_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(ArgumentError, match="pip install cuda-bindings, or use Runner"):
        branching.driver.__wrapped__()
    old = SimpleNamespace(cuDriverGetVersion=lambda: (0, 11080))
    monkeypatch.setattr(branching, "driver", lambda: old)
    with pytest.raises(ArgumentError, match=r"12\.1 or later, and this one is of 11\.8"):
        branching.BranchingGraph(None, [], None, unit=1)


@pytest.mark.parametrize(("element", "height"), [(1, 1), (4, 2)])
def test_memsets_become_kernels_between_the_same_nodes(replayed, element, height):
    memory = torch.zeros(24, dtype=torch.uint8)
    graph = Graph()
    ran = []
    _, first = graph.add([], lambda: ran.append(("first", memory.tolist())))
    memset = SimpleNamespace(
        dst=memory.data_ptr(),
        value=0x0403_0201,
        elementSize=element,
        width=8 // element,
        height=height,
        pitch=12,
    )
    _, node = graph.add([first], lambda: ran.append("memset"), memset=memset)
    graph.add([node], lambda: ran.append(("last", memory.tolist())))
    branching.replace_memsets(SimpleNamespace(raw_cuda_graph=lambda: graph))
    replayed.cuGraphLaunch(graph, 0)
    row = [1] * 8 if element == 1 else [1, 2, 3, 4] * 2
    filled = [*row, 0, 0, 0, 0, *(row if height == 2 else [0] * 8), 0, 0, 0, 0]
    assert ran == [("first", [0] * 24), ("last", filled)]


def test_without_a_gpu_there_are_no_graphs():
    with pytest.raises(ArgumentError, match="CUDA graphs need a GPU and Triton"):
        GraphRunner(adding_network(), fitted().at(0.9), evidence(4, seed=0)[0])


class Texts(nn.Module):
    """Layers that get hidden states, and a mask."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(99, 24), nn.Linear(24, 2)
        layer = nn.TransformerEncoderLayer(24, 3, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids, attention_mask):
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=~attention_mask.bool())
        return self.head(hidden[:, 0])


def test_values_of_several_tensors_are_regrouped_together(replayed):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 90, (36, 8), generator=generator)
    mask = (torch.arange(8) < torch.randint(1, 9, (36, 1), generator=generator)).long()
    mask[0] = 1  # in the example, some have padding and some have none
    example = {"ids": ids[:12], "attention_mask": mask[:12]}
    network = attach(Texts().eval(), "encoder.layers", example)
    with torch.inference_mode():
        confidence = [each.softmax(-1).amax(-1) for each in network((ids, mask))]
    # About a third of the rows stop at each exit; one exit is passed.
    limits = np.array([confidence[0].quantile(0.7), np.nan, confidence[2].quantile(0.5), 0.0])
    tables = threshold_tables(limits)
    runner = GraphRunner(network, tables, (ids[:12], mask[:12]))
    plain = Runner(network, tables)
    for rows in [*torch.arange(36).split(12), torch.arange(5), torch.arange(12)]:
        one, two = plain((ids[rows], mask[rows])), runner((ids[rows], mask[rows]))
        assert torch.equal(one.exit, two.exit)
        torch.testing.assert_close(one.logits, two.logits, rtol=1e-5, atol=1e-6)
    cases = runner._planned(12)[0]
    steps = [each.data_ptr() for each in reversed(runner._graphs[12]._memory[2:])]
    ran = {(steps.index(step), case) for step, case in replayed.ran if step in steps}
    assert any(cases[k][case].size < 12 for k, case in ran)  # some were regrouped


def test_memory_is_released_only_where_little_is_free(monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    for free, times in ((60, 0), (40, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 100))
        branching.release_memory()
        assert len(emptied) == times
