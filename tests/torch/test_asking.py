"""Exits asked with one launch, with work done again in place of graphs replayed."""

import pytest
import torch

from support.exit_networks import adding_network, evidence, fitted
from ttamer.torch import runner as running
from ttamer.torch.asking import PAGE, Asking
from ttamer.torch.decide_triton import TritonDecider
from ttamer.torch.networks.ramps import Ramp
from ttamer.torch.runner import Runner

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")
SIZES = (9, 2, 9, 9, 2, 2, 9)


@pytest.fixture
def graphs(monkeypatch):
    """Let a graph run its work again; return what was captured."""
    found = []

    def captured(_, warm, work):
        warm()
        found.append(work)
        return work

    monkeypatch.setattr(running, "decider_for", TritonDecider)
    monkeypatch.setattr(Asking, "_captured", captured)
    return found


def compare(runner, plain, batch):
    one, two = runner(batch), plain(batch)
    assert torch.equal(one.exit, two.exit)
    assert torch.equal(one.asked, two.asked)
    assert torch.equal(one.logits, two.logits)


def network_and_policy():
    return adding_network(3), fitted("full", skip=True, exits=3).at(0.97)


def test_captured_exits_answer_as_others_do(graphs):
    network, policy = network_and_policy()
    runner = Runner(network, policy)
    plain = Runner(network, policy)
    plain._asking = None
    for seed, size in enumerate(SIZES):
        compare(runner, plain, evidence(size, seed=seed, exits=3)[0])
    assert graphs
    count = len(graphs)
    compare(runner, plain, evidence(9, seed=2, exits=3)[0])
    assert len(graphs) == count  # nothing is captured twice


def test_shapes_that_are_seen_once_are_not_captured(graphs):
    network, policy = network_and_policy()
    runner = Runner(network, policy)
    for size in (1, 2, 3):
        runner(evidence(size, seed=size, exits=3)[0])
    assert not graphs


def test_ramps_that_cannot_be_captured_run_as_they_are(graphs, monkeypatch):
    monkeypatch.setattr(Asking, "_captured", lambda *_: None)
    network, policy = network_and_policy()
    runner = Runner(network, policy)
    plain = Runner(network, policy)
    plain._asking = None
    for seed in range(3):
        compare(runner, plain, evidence(4, seed=seed, exits=3)[0])
    assert not graphs


def test_only_what_a_ramp_reads_is_copied(graphs):
    tables = fitted("full", skip=True, exits=3)
    decider = Runner(adding_network(3), tables.at(0.97))._decider
    asked = Asking(decider)
    ramp = Ramp(torch.nn.Linear(4, 4), pool="mean")
    rows = torch.arange(2)
    with torch.inference_mode():
        for _ in range(3):
            value = (torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 7))
            asked.ask(0, ramp, value, rows, 2, awaited=True, first=True)
    assert len(graphs) == 1
    (kept,) = asked._inputs.values()
    assert torch.equal(kept[0], value[0])
    assert len(kept) == len(ramp.reads) == 2


def test_memory_that_graphs_read_is_shared_and_keeps_the_order_of_images():
    asked = Asking(None)
    large = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last)
    (one,) = asked._placed((large,))
    two = asked._placed((large[:2], torch.zeros(2, dtype=torch.bool)))
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert one.data_ptr() == two[0].data_ptr()
    assert two[1].data_ptr() % PAGE == two[0].data_ptr() % PAGE
    assert [tuple(each.shape) for each in two] == [(2, 3, 5, 5), (2,)]


def test_without_a_gpu_nothing_is_captured():
    assert Asking(None)._captured(lambda: 0, lambda: 0) is None
