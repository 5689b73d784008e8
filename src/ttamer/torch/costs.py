"""Costs of the parts of a network, counted or measured, and the cascade they make."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttamer.trace.spec import CascadeNode, CascadeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.trace.spec import Target

__all__ = ["Costs", "count_flops"]


@dataclass(frozen=True)
class Costs:
    """What running each part of a network costs one input."""

    names: tuple[str, ...]
    """Of the exits."""
    segments: tuple[float, ...]
    """Of leading from the exit before to this one."""
    ramps: tuple[float, ...]
    """Of asking this exit once there: its ramp, and in measured costs the decision too."""
    unit: str
    """Of these numbers: ``"flops"``, ``"seconds"``."""

    @property
    def full(self) -> float:
        """What the network as it was costs: all segments, and the head."""
        return sum(self.segments) + self.ramps[-1]

    def spec(self, *, target: Target = "label", skip: bool = False) -> CascadeSpec:
        """Return the cascade, costs as shares of the network as it was.

        Every exit is asked on the way (``order = "fixed"``), or with ``skip`` a policy may pass
        ramps that are not worth their cost.
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


def count_flops(network: EarlyExit, inputs: Value) -> Costs:
    """Count the operations on an example, per input.

    >>> from torch import nn, zeros
    >>> from ttamer.torch.early_exit import EarlyExit
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> costs = count_flops(EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3)), zeros(2, 4))
    >>> costs.segments, costs.ramps
    ((64.0, 128.0), (48.0, 48.0))
    """
    rows = len(inputs) if isinstance(inputs, torch.Tensor) else len(inputs[0])
    segments, ramps = [], []
    value = inputs
    # The plain kernel of attention is made of matrix products, which the counter knows.
    with _evaluating(network), torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
        for segment, ramp in zip(network.segments, network.exits, strict=True):
            with FlopCounterMode(display=False) as counter:
                value = segment(value)
            segments.append(counter.get_total_flops() / rows)
            with FlopCounterMode(display=False) as counter:
                ramp(value)
            ramps.append(counter.get_total_flops() / rows)
    return Costs(network.names, tuple(segments), tuple(ramps), "flops")


@contextlib.contextmanager
def _evaluating(network: EarlyExit) -> Iterator[None]:
    """Run in evaluation mode, so that no running mean is moved, and put the modes back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
