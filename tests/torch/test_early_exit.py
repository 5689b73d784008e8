"""Exits on any sequence of modules."""

import numpy as np
import pytest
import torch
from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch import Recipe, Runner, profile, threshold_tables, trace_of, train
from ttamer.torch.early_exit import EarlyExit


def layers(count):
    return [nn.Linear(4, 4) for _ in range(count)]


def test_every_exit_is_its_blocks_and_then_its_ramp():
    torch.manual_seed(0)
    blocks, ramps, head = layers(3), layers(2), nn.Linear(4, 2)
    network = EarlyExit(blocks, ramps, head)
    inputs = torch.randn(5, 4)
    first = blocks[0](inputs)
    second = blocks[1](first)
    third = blocks[2](second)
    want = [ramps[0](first), ramps[1](second), head(third)]
    for found, wanted in zip(network(inputs), want, strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(network.full(inputs), want[-1])
    assert network.names == ("exit1", "exit2", "full")


def test_where_there_is_no_ramp_blocks_run_on():
    torch.manual_seed(0)
    blocks, ramp, head = layers(4), nn.Linear(4, 2), nn.Linear(4, 2)
    network = EarlyExit(blocks, [None, ramp, None], head)
    assert network.names == ("exit1", "full")
    assert len(network.segments) == 2
    inputs = torch.randn(3, 4)
    half = blocks[1](blocks[0](inputs))
    found = network(inputs)
    assert torch.equal(found[0], ramp(half))
    assert torch.equal(found[1], head(blocks[3](blocks[2](half))))


def test_the_whole_network_runs_no_ramp():
    def refuse(*_):
        raise AssertionError("a ramp ran")

    network = EarlyExit(layers(2), layers(1), nn.Linear(4, 2))
    next(network.ramps()).register_forward_hook(refuse)
    assert network.full(torch.zeros(1, 4)).shape == (1, 2)


def test_a_network_of_one_block_has_one_exit():
    network = EarlyExit(layers(1), [], nn.Linear(4, 2))
    assert network.names == ("full",)
    assert list(network.ramps()) == []
    assert [tuple(logits.shape) for logits in network(torch.zeros(3, 4))] == [(3, 2)]


@pytest.mark.parametrize(
    ("blocks", "ramps"), [(0, 0), (2, 2), (3, 1)], ids=["no blocks", "too many", "too few"]
)
def test_there_is_one_ramp_for_each_block_but_the_last(blocks, ramps):
    with pytest.raises(ArgumentError, match=f"{blocks} blocks and {ramps} ramps; give one ramp"):
        EarlyExit(layers(blocks), layers(ramps), nn.Linear(4, 2))


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"], ["one", "one"]])
def test_each_exit_has_a_name_of_its_own(names):
    with pytest.raises(ArgumentError, match=f"there are 2 exits.* {', '.join(names)}; give each"):
        EarlyExit(layers(2), layers(1), nn.Linear(4, 2), names=names)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, loader: Runner(model, threshold_tables(np.array([0.5, 0.0]))),
        lambda model, loader: trace_of(model, loader),
        lambda model, loader: train(model, loader, Recipe("all", epochs=1, rate=0.1)),
        lambda model, loader: profile(model, loader[0][0], sizes=(1,)),
    ],
    ids=["run", "trace", "train", "profile"],
)
def test_a_model_without_exits_is_refused(use):
    loader = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))]
    with pytest.raises(ArgumentError, match=r"a Linear has no exits.*with attach\(model, points"):
        use(nn.Linear(4, 3), loader)
