"""Running a network with a policy: rows that are done leave, and answers keep the inputs' order.

After every exit asked the host waits for the device once, to read which rows continue; survivors
are regrouped as soon as a smaller group holds them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ttamer._checks import counted
from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedPolicy
from ttamer.torch.deciding import (
    NO_ANSWER,
    BeliefTables,
    HostDecider,
    LossTables,
    Tables,
    tables_of,
)
from ttamer.torch.devices import (
    Inputs,
    Precision,
    autocast,
    changed,
    check_current,
    device_of,
    rows_of,
    take,
    to_device,
)
from ttamer.torch.early_exit import HAS_TRITON, EarlyExit, require_exits


def group_sizes(batch: int, smallest: int = 1) -> list[int]:
    """Return the sizes of groups: powers of two and the numbers half way between, up to a batch.

    Libraries choose an algorithm for every new size, so there are few sizes; groups are padded.

    >>> group_sizes(32)
    [1, 2, 4, 6, 8, 12, 16, 24, 32]
    """
    sizes, power = {1, batch}, 2
    while power <= batch:
        sizes |= {power, power * 3 // 2} if power >= 4 else {power}
        power *= 2
    return sorted(size for size in sizes if smallest <= size <= batch)


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to a batch, in the order of the inputs, on the device of the network.

    >>> from torch import nn, zeros
    >>> import numpy as np
    >>> from ttamer.torch import EarlyExit, Runner, threshold_tables
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> network = EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3))
    >>> answers = Runner(network, threshold_tables(np.array([0.0, 0.0])))(zeros(2, 4))
    >>> answers.exit.tolist(), answers.asked.tolist()
    ([0, 0], [[True, False], [True, False]])
    """

    logits: Tensor
    """Shape (batch, classes): the logits of the exit whose answer is returned."""
    exit: Tensor
    """Shape (batch,): the number of that exit."""
    asked_bits: Tensor
    """Shape (batch,): a bit for every exit that was asked."""
    raw_confidence: Tensor
    """Shape (batch, exits): as ``confidence``; undefined where the exit was not asked."""
    raw_prediction: Tensor
    """Shape (batch, exits): predictions; undefined where the exit was not asked."""

    @property
    def asked(self) -> Tensor:
        """Shape (batch, exits): which exits were asked."""
        exits = torch.arange(self.raw_confidence.shape[1], device=self.asked_bits.device)
        return (self.asked_bits[:, None] >> exits) & 1 == 1

    @property
    def confidence(self) -> Tensor:
        """Shape (batch, exits): the confidences or margins that are read; NaN where not asked."""
        return self.raw_confidence.where(self.asked, float("nan"))

    @property
    def prediction(self) -> Tensor:
        """Shape (batch, exits): the class each exit predicts; -1 where none, or not asked."""
        return self.raw_prediction.where(self.asked, NO_ANSWER)

    def __len__(self) -> int:
        return len(self.exit)


class Runner:
    """A network with exits and the policy that decides on them.

    On a CPU several threads may call it at a time; on a GPU their calls must not overlap.

    Args:
        network: The network; it is put in evaluation mode, and is run in that mode only.
        policy: A fitted policy for these exits, or the tables of one.
        classes: Names of the network's classes as in the policy's trace; not needed where the
            trace has their numbers, as those of :func:`ttamer.torch.trace_of` by default.
        precision: What the network computes in.

    Raises:
        ArgumentError: The policy is not for the exits or classes of this network, the precision is
            another, or the network is on a GPU that is not the current one.

    >>> from torch import nn, zeros
    >>> import numpy as np
    >>> from ttamer.torch import EarlyExit, threshold_tables
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> network = EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3))
    >>> runner = Runner(network, threshold_tables(np.array([0.9, 0.0])))
    >>> runner.reached, runner(zeros(5, 4)).logits.shape
    (('exit1', 'full'), torch.Size([5, 3]))
    """

    def __init__(
        self,
        network: EarlyExit,
        policy: FittedPolicy | Tables,
        *,
        classes: Sequence[str] | None = None,
        precision: Precision = "fp32",
    ) -> None:
        require_exits(network)
        self.network = network.eval()
        self.precision: Precision = precision
        self._device = device_of(network)
        check_current(self._device)
        autocast(self._device, precision)  # refuses other precisions
        if isinstance(policy, LossTables | BeliefTables):
            tables: Tables = policy
            if len(tables.bounds) != len(network.names):
                raise ArgumentError(
                    f"the tables are for {counted(len(tables.bounds), 'exit')}, and the network "
                    f"has {len(network.names)}: build them for this network",
                    param="policy",
                )
        else:
            tables = tables_of(policy, network.names, classes if classes else _classes(network))
        if len(tables.bounds) > 64:  # the exits asked are bits of a 64-bit integer
            raise ArgumentError(
                f"there are {len(tables.bounds)} exits, and at most 64 are supported: build "
                "the network with fewer ramps",
                param="network",
            )
        self._tables, self._decider = tables, decider_for(tables, self._device)
        self._reached = tables.reached
        # By the rows of a batch: both take longer to make than a decision takes.
        self._sized: dict[int, tuple[list[int], Tensor]] = {}
        self.waits = 0  # how often the host has waited for the device

    @property
    def reached(self) -> tuple[str, ...]:
        """The exits that the policy may ask."""
        return tuple(self.network.names[k] for k in self._reached)

    @torch.inference_mode()
    def __call__(self, inputs: Inputs) -> Answers:
        """Run one batch with the lowest latency.

        Args:
            inputs: What the first block takes, or a mapping by its names, on any device.

        Returns:
            The answers, in the order of the inputs.

        Raises:
            ArgumentError: The network was put in training mode, or the inputs are of another kind.
        """
        self._check_mode()
        value = to_device(inputs, self._device, self.network.input_names)
        with autocast(self._device, self.precision):
            return self._run(value)

    def _check_mode(self) -> None:
        """Refuse a network in training mode: with dropout answers would be random."""
        if self.network.training:
            raise ArgumentError(
                "the network is in training mode: call network.eval() before it is run",
                param="network",
            )

    def _run(self, value: Any) -> Answers:
        """Run a batch that is on the device, regrouping its survivors."""
        count = rows_of(value)
        if not count:  # many layers refuse a batch without rows: one row is run
            one = self._run(changed(value, lambda part: part.new_ones((1, *part.shape[1:]))))
            return Answers(**{name: part[:0] for name, part in vars(one).items()})
        if count not in self._sized:
            self._sized[count] = (group_sizes(count), torch.arange(count, device=self._device))
        sizes, rows = self._sized[count]
        last, due = len(self.network.exits) - 1, self._reached[0]
        carry: Any = None
        for k, segment in enumerate(self.network.segments):
            value = segment(value)
            if k < due:  # no row asks this exit
                continue
            logits, first = self.network.exits[k](value), carry is None
            if first:
                carry = self._started(count, logits)
            self._decider.observe(carry, k, rows, logits, awaited=k < last, first=first)
            if k == last:  # all rows stop: there is nothing to wait for
                break
            self.waits += 1
            alive, due = self._decider.going(carry, rows)
            if not alive:
                break
            size = sizes[bisect_left(sizes, alive)]
            if size < len(rows):
                positions, rows = self._decider.regroup(carry, rows, size)
                value = take(value, positions)
        # Some exit is always due; answers of rows that have stopped do not change.
        return Answers(*self._decider.collect(carry))

    def _started(self, count: int, logits: Tensor) -> Any:
        """Return the state of a batch of which no exit has been asked."""
        if logits.ndim != 2:
            raise ArgumentError(
                f"an exit returns shape {tuple(logits.shape)}, not (batch, classes): give a "
                "batch of inputs; for one input, inputs[None]",
                param="inputs",
            )
        classes = logits.shape[1]
        if isinstance(self._tables, BeliefTables) and self._tables.offsets.shape[1] != classes:
            raise ArgumentError(
                f"the policy's tables are for {self._tables.offsets.shape[1]} classes, and the "
                f"network's logits are for {classes}: name all classes with classes=",
                param="classes",
            )
        return self._decider.start(count, classes, logits.dtype)


def decider_for(tables: Tables, device: torch.device) -> Any:
    """Return the fastest decider for a device: on a GPU with Triton, a kernel."""
    if device.type == "cuda" and HAS_TRITON:
        from ttamer.torch.cuda import KernelDecider

        return KernelDecider(tables, device)
    return HostDecider(tables, device)


def _classes(network: EarlyExit) -> int:
    """Return the number of classes: the width of the last linear layer of the head, or of a ramp.

    The head of an attached network calls the model that it is a part of, and has no layers. Linear
    layers with int8 weights are of another class.
    """
    for exit_ in reversed(network.exits):
        widths = [getattr(layer, "out_features", None) for layer in exit_.modules()]
        if counts := [width for width in widths if isinstance(width, int)]:
            return counts[-1]
    raise ArgumentError(
        "no exit has a linear layer to count classes by: name them with classes=", param="classes"
    )
