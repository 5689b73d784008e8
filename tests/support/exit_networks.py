"""Networks with exits whose arithmetic is exact, so that a row's logits never depend on its batch.

Every weight is 0, 1 or a power of two and every input a small whole number: sums are exact in
single precision and in bfloat16, in any order. So whatever differs between two ways of running
such a network is a mistake, not rounding.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ttamer.fitting.fits import fit
from ttamer.torch.early_exit import EarlyExit, pooled_ramp
from ttamer.torch.profiling import Costs
from ttamer.torch.tracing import trace_of

if TYPE_CHECKING:
    from ttamer.fitting.ladder import FittedLadder, FittedPolicy
    from ttamer.torch.runner import Answers

CLASSES = 4
EXITS = 4
BELIEFS = ("answers", "markov", "threshold")
TRADEOFFS = (0.3, 0.8, 0.97, 1.0)
"""From asking one exit at most to asking nearly all; in between rows part at every exit."""


class Adding(nn.Module):
    """A block that adds the evidence of its exit to what was gathered so far."""

    def __init__(self, exit_: int, exits: int, classes: int) -> None:
        super().__init__()
        width = classes * (exits + 1) + exits
        self.linear = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(width))
            for c in range(classes):
                self.linear.weight[c, classes * (exit_ + 1) + c] = 1.0

    def forward(self, value: Tensor) -> Tensor:
        return self.linear(value)


class Reading(nn.Module):
    """A ramp whose logits are the evidence gathered, and NaN where the input's flag says so."""

    def __init__(self, exit_: int, exits: int, classes: int) -> None:
        super().__init__()
        self.flag = classes * (exits + 1) + exit_
        width = classes * (exits + 1) + exits
        self.linear = nn.Linear(width, classes, bias=False)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, :classes] = 0.5 * torch.eye(classes)

    def forward(self, value: Tensor) -> Tensor:
        broken = value[:, self.flag, None] > 0
        return self.linear(value).masked_fill(broken, float("nan"))


def adding_network(exits: int = EXITS, classes: int = CLASSES) -> EarlyExit:
    """Return a network whose exits grow surer as evidence adds up."""
    blocks = [Adding(k, exits, classes) for k in range(exits)]
    ramps = [Reading(k, exits, classes) for k in range(exits)]
    return EarlyExit(blocks, ramps[:-1], ramps[-1])


def evidence(
    rows: int, *, seed: int, exits: int = EXITS, classes: int = CLASSES, broken: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return inputs and labels; ``broken`` is the share of logits that will be NaN."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, rows)
    reported = generator.integers(-2, 3, (rows, exits, classes))
    hard = generator.random((rows, 1)) < 0.5
    # Some classes are harder than others, so that what is predicted says something too.
    reported[np.arange(rows), :, label] += np.where(hard, 1, 3) - label[:, np.newaxis] % 2
    start = np.zeros((rows, classes))
    flags = generator.random((rows, exits)) < broken
    inputs = np.concatenate([start, reported.reshape(rows, -1), flags], axis=1)
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(label)


class PairAdding(nn.Module):
    """The same block on a pair: what was gathered so far, and all that is still to come."""

    def __init__(self, exit_: int, classes: int) -> None:
        super().__init__()
        self.reported = slice(classes * exit_, classes * (exit_ + 1))

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gathered, rest = value
        return gathered + rest[:, self.reported], rest


class PairReading(nn.Module):
    """The same ramp on a pair."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(0.5 * torch.eye(classes))

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        return self.linear(value[0])


def pair_network(exits: int = EXITS, classes: int = CLASSES) -> EarlyExit:
    """Return :func:`adding_network` for inputs that were cut in two by :func:`pair_of`."""
    blocks = [PairAdding(k, classes) for k in range(exits)]
    ramps = [PairReading(classes) for _ in range(exits)]
    return EarlyExit(blocks, ramps[:-1], ramps[-1])


def pair_of(inputs: Tensor, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Return what :func:`pair_network` takes for what :func:`adding_network` takes."""
    return inputs[:, :classes], inputs[:, classes:]


class Echo(nn.Module):
    """A ramp that returns its part of the inputs, of shape (batch, exits, classes)."""

    def __init__(self, exit_: int) -> None:
        super().__init__()
        self.exit = exit_

    def forward(self, value: Tensor) -> Tensor:
        return value[:, self.exit].contiguous()


def echo_network(exits: int) -> EarlyExit:
    """Return a network whose logits are its inputs."""
    ramps = [Echo(k) for k in range(exits)]
    return EarlyExit([nn.Identity() for _ in ramps], ramps[:-1], ramps[-1])


def convolutions(classes: int, *, size: int = 8, width: int = 4) -> EarlyExit:
    """Return four blocks of convolutions on images, whose exits are sure of what they say."""
    channels = (3, width, 2 * width, 2 * width, 4 * width)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in pairwise(channels)
    ]
    ramps = [pooled_ramp(count, size, classes) for count in channels[1:-1]]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
    with torch.no_grad():
        for exit_ in (*ramps, head):
            exit_[-1].weight.mul_(20.0)
    return EarlyExit(blocks, ramps, head)


def batches(inputs: Tensor, labels: Tensor, size: int = 256) -> list[tuple[Tensor, Tensor]]:
    """Return a loader: a list of batches."""
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def measured(exits: int = EXITS) -> Costs:
    """Return costs of :func:`adding_network` by which some ramps are worth passing."""
    names = adding_network(exits).names
    return Costs(names, (1.0,) * exits, tuple([1.0, 0.5] * exits)[:exits])


@functools.cache
def fitted(belief: str = "answers", *, exits: int = EXITS) -> FittedLadder:
    """Return policies fitted on a trace of :func:`adding_network`."""
    inputs, labels = evidence(1500, seed=1, exits=exits)
    trace = trace_of(adding_network(exits), batches(inputs, labels), spec=measured(exits).spec())
    return fit(trace, belief=belief)


def by_session(
    policy: FittedPolicy, names: tuple[str, ...], answers: Answers
) -> list[tuple[tuple[str, ...], str | None, int]]:
    """Return per row the exits that a session asks, whose answer it returns, and how many of the
    confidences were unclear.
    """
    confidence, prediction = answers.confidence.tolist(), answers.prediction.tolist()
    decided = []
    for sure, said in zip(confidence, prediction, strict=True):
        turn = policy.session()
        while turn.next is not None:
            k = names.index(turn.next)
            text = None if said[k] < 0 else said[k]
            turn.observe(confidence=sure[k], margin=sure[k], prediction=text)
        decided.append((turn.asked, turn.answer, turn.unclear))
    return decided


@dataclass
class Calls:
    """On how many rows each segment and ramp of a network ran, call by call."""

    segments: dict[int, list[int]] = field(default_factory=dict)
    ramps: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, network: EarlyExit) -> Calls:
        """Start counting."""
        calls = cls()
        for kept, modules in ((calls.segments, network.segments), (calls.ramps, network.exits)):
            for k, module in enumerate(modules):

                def count(_module, args, _out, kept=kept, k=k) -> None:
                    kept.setdefault(k, []).append(len(args[0]))

                module.register_forward_hook(count)
        return calls
