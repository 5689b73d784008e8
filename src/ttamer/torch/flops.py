"""Counted costs: the floating-point operations of each segment and each ramp, for one input.

What is counted are matrix products and convolutions; multiplying and adding are two operations.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttamer.torch.costs import Costs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.torch.early_exit import EarlyExit, Value

__all__ = ["count_flops"]


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
