"""Operations counted, and the cascade that costs make."""

import numpy as np
import pytest
import torch
from torch import nn

from support.exit_networks import pair_network
from ttamer.torch import early_exit
from ttamer.torch.early_exit import EarlyExit, Ramp
from ttamer.torch.profiling import Costs, count_flops


def convolutions():
    blocks = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)),
    ]
    ramp = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return EarlyExit(blocks, [ramp], head)


@pytest.mark.parametrize("rows", [1, 3])
def test_convolutions_by_hand(rows):
    costs = count_flops(convolutions(), torch.zeros(rows, 3, 8, 8))
    # Per output number: a product and a sum for each input channel and each of 9 places.
    assert costs.segments == (2 * 8 * 8 * 8 * 3 * 9, 2 * 16 * 4 * 4 * 8 * 9)
    assert costs.ramps == (2 * 8 * 5, 2 * 16 * 5)
    assert costs.names == ("exit1", "full")
    assert costs.full == sum(costs.segments) + 160


def test_values_may_be_tuples():
    costs = count_flops(pair_network(2, 3), (torch.zeros(4, 3), torch.zeros(4, 8)))
    assert costs.segments == (0, 0)
    assert costs.ramps == (18, 18)


def test_counting_changes_nothing():
    network = convolutions()
    network.exits[0].requires_grad_(False)
    learning = [part.requires_grad for part in network.parameters()]
    before = {name: part.clone() for name, part in network.state_dict().items()}
    costs = count_flops(network, torch.randn(1, 3, 8, 8))
    assert costs.full > 0
    assert [part.requires_grad for part in network.parameters()] == learning
    for name, part in network.state_dict().items():
        assert torch.equal(part, before[name]), name


# Cascades

COSTS = Costs(("a", "b", "c"), (2.0, 4.0, 3.0), (0.5, 0.25, 1.0))


def test_costs_are_shares_of_the_network_as_it_was():
    spec = COSTS.spec(target="last")
    assert COSTS.full == 10
    assert (spec.names, spec.kind, spec.target) == (("a", "b", "c"), "exits", "last")
    assert spec.costs.tolist() == [0.25, 0.425, 0.4]
    np.testing.assert_allclose(spec.reach[:-1], [0.2, 0.4])
    assert spec.reach[:-1].sum() + spec.costs[2] == pytest.approx(1.0)  # the network as it was
    assert COSTS.spec().target == "label"


def test_a_network_without_ramps_is_one_network_too():
    spec = Costs(("full",), (3.0,), (1.0,)).spec()
    assert spec.kind == "exits"
    assert spec.costs.tolist() == [1.0]


def test_ramps_are_counted_where_kernels_would_run_them(monkeypatch):
    monkeypatch.setattr(early_exit, "_runs_kernels", lambda _: not torch.is_grad_enabled())
    ramp = Ramp(nn.LayerNorm(6), nn.Linear(6, 2), pool="mean")
    network = EarlyExit([nn.Identity()], [], ramp)
    costs = count_flops(network, (torch.zeros(5, 4, 6), torch.ones(5, 4, dtype=torch.bool)))
    assert costs.ramps == (2 * 6 * 2,)


class Latent(nn.Module):
    """A block that calls a module with a view of a parameter, as of queries that are learned."""

    def __init__(self):
        super().__init__()
        self.latents, self.linear = nn.Parameter(torch.zeros(1, 4)), nn.Linear(4, 4)
        self.linear.bias.requires_grad_(False)

    def forward(self, x):
        return x + self.linear(self.latents.expand(len(x), -1))


def test_a_view_of_a_parameter_may_be_the_input_of_a_module():
    network = EarlyExit([Latent()], [], nn.Linear(4, 2))
    learning = [parameter.requires_grad for parameter in network.parameters()]
    assert count_flops(network, torch.zeros(1, 4)).segments == (2 * 4 * 4,)
    assert [parameter.requires_grad for parameter in network.parameters()] == learning
