"""Costs of the parts of a network, counted or measured, and the cascade they make.

Counted costs are floating-point operations for one input: matrix products and convolutions, where
multiplying and adding are two operations. Measured costs come from :mod:`ttamer.torch.profiling`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttamer.torch.combining import CombinedExits
from ttamer.torch.devices import by_position, evaluating, rows_of
from ttamer.torch.early_exit import EarlyExit, Inputs, require_exits
from ttamer.trace.spec import CascadeNode, CascadeSpec, Target


@dataclass(frozen=True)
class Costs:
    """Cost of each part of a network for one input.

    >>> costs = Costs(("early", "full"), (2.0, 7.0), (1.0, 1.0), "flops")
    >>> costs.full, costs.spec().costs.tolist()
    (10.0, [0.3, 0.8])
    """

    names: tuple[str, ...]
    """The names of the exits."""
    segments: tuple[float, ...]
    """The cost of each segment, from the exit before to this one."""
    ramps: tuple[float, ...]
    """The cost of asking each exit once it is reached: its ramp, and in measured costs the decision
    too."""
    unit: str
    """The unit of these numbers: ``"flops"`` or ``"seconds"``."""

    @property
    def full(self) -> float:
        """The cost of the network without ramps: all segments, and the head."""
        return sum(self.segments) + self.ramps[-1]

    def spec(self, *, target: Target = "label", skip: bool = False) -> CascadeSpec:
        """Return the cascade, with costs as shares of the network without ramps.

        Args:
            target: What counts as correct: the label, or the answer of the last exit.
            skip: Whether a policy may pass ramps that are not worth their cost; otherwise every
                exit is asked on the way (``order = "fixed"``).

        Returns:
            The cascade of the exits.
        """
        nodes = tuple(
            CascadeNode(name, (segment + ramp) / self.full)
            for name, segment, ramp in zip(self.names, self.segments, self.ramps, strict=True)
        )
        if not skip or len(nodes) == 1:  # with one exit there is none to pass
            return CascadeSpec(nodes, "fixed", target)
        passing = {
            name: segment / self.full
            for name, segment in zip(self.names[:-1], self.segments, strict=False)
        }
        costs = {node.name: node.cost for node in nodes}
        return CascadeSpec.of(costs, order="skip", target=target, passing=passing)


def count_flops(network: EarlyExit, inputs: Inputs) -> Costs:
    """Count the operations of every segment and ramp.

    Args:
        network: Its modules are put back in the mode they were in.
        inputs: Some inputs, on the device of the network.

    Returns:
        The operations for one input.

    >>> from torch import nn, zeros
    >>> from ttamer.torch.early_exit import EarlyExit
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> costs = count_flops(EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3)), zeros(2, 4))
    >>> costs.segments, costs.ramps
    ((64.0, 128.0), (48.0, 48.0))
    """
    require_exits(network)
    if isinstance(network, CombinedExits):
        network = network.plain()  # there the ramps are apart from the segments
    value = by_position(inputs, network.input_names)
    rows = rows_of(value)
    segments, ramps = [], []
    # The plain kernel of attention consists of matrix products, which are counted.
    with evaluating(network), _frozen(network), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for segment, ramp in zip(network.segments, network.exits, strict=True):
            with FlopCounterMode(display=False) as counter:
                value = segment(value)
            segments.append(counter.get_total_flops() / rows)
            # With gradients, a ramp consists of operations on a GPU, too, not of a kernel of ours.
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                ramp(value)
            ramps.append(counter.get_total_flops() / rows)
    return Costs(network.names, tuple(segments), tuple(ramps), "flops")


@contextlib.contextmanager
def _frozen(network: EarlyExit) -> Iterator[None]:
    """Freeze all parameters for a while: the counter fails where a module gets a view of one."""
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
