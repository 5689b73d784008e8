"""Running a network with a policy: rows that are done leave, and answers keep the inputs' order.

Three ways to run:

- :meth:`Runner.__call__`: one batch, with the lowest latency. After every exit asked the host waits
  for the device once, to read which rows continue; survivors are regrouped where that pays.
- :meth:`Runner.stream`: many batches, with the highest throughput. Several batches run together,
  so that the survivors still fill the device and one wait serves them all.
- :meth:`Runner.early`: results as soon as they are available, while the batch runs to its end, as
  in Apparate. The host never waits in between, and nothing is regrouped.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import torch

from ttamer._arguments import require_whole
from ttamer._numbers import counted
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedPolicy
from ttamer.torch.combining import CombinedExits
from ttamer.torch.decide import NO_ANSWER, Carry, Decider
from ttamer.torch.decide_cpu import CpuDecider
from ttamer.torch.devices import (
    Precision,
    autocast,
    check_current,
    check_precision,
    device_of,
    rows_of,
    take,
    tensors_of,
    to_device,
)
from ttamer.torch.early_exit import EarlyExit, Inputs, Value, require_exits
from ttamer.torch.tables import BeliefTables, PlainTables, Tables, tables_of

if TYPE_CHECKING:
    from torch import Tensor, nn


# After this many groups without padding to cut off, only some are looked at.
MAX_IN_VAIN = 8
# One group in this many is looked at then.
TRIM_EVERY = 16


@dataclass(frozen=True)
class Regrouping:
    """When survivors are regrouped: where fewer rows up to the next exit save more than it costs.

    >>> Regrouping((8, 64), ((1.0, 4.0), (1.0, 4.0)), cost=0.5).pays(0, 1, rows=64, alive=8)
    True
    >>> Regrouping((8, 64), ((1.0, 4.0), (1.0, 4.0)), cost=9.0).pays(0, 1, rows=64, alive=8)
    False
    """

    sizes: tuple[int, ...]
    """The numbers of rows that were measured, increasing; empty for a rule without measurements."""
    seconds: tuple[tuple[float, ...], ...]
    """Per segment, the seconds for each of these numbers of rows."""
    cost: float
    """The seconds that regrouping takes."""

    @classmethod
    def always(cls) -> Regrouping:
        """Return the rule that regroups whenever any row has left.

        Returns:
            The rule, without measurements.
        """
        return cls((), (), 0.0)

    @classmethod
    def never(cls) -> Regrouping:
        """Return the rule that never regroups.

        Returns:
            The rule, without measurements.
        """
        return cls((), (), float("inf"))

    def pays(self, after: int, due: int, rows: int, alive: int) -> bool:
        """Decide whether to regroup.

        Args:
            after: The exit just asked.
            due: The next exit that is asked.
            rows: The number of rows now.
            alive: The number of rows after regrouping.

        Returns:
            Whether the segments up to ``due`` save more than regrouping costs.
        """
        if alive == rows:
            return False
        if not self.sizes:
            return self.cost == 0.0
        ahead = range(after + 1, due + 1)
        saved = sum(self.time(k, rows) - self.time(k, alive) for k in ahead)
        return saved > self.cost

    def time(self, segment: int, rows: int) -> float:
        """Return the seconds that a segment takes, interpolated between the sizes measured.

        Args:
            segment: The number of the segment.
            rows: The number of rows.

        Returns:
            Seconds; below the smallest size those of the smallest, beyond the largest in
            proportion to the rows.
        """
        sizes, seconds = self.sizes, self.seconds[segment]
        at = bisect_left(sizes, rows)
        if at == len(sizes):
            return seconds[-1] * rows / sizes[-1]
        if at == 0 or sizes[at] == rows:
            return seconds[at]
        share = (rows - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])


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
    """Shape (batch, exits): confidences; undefined where the exit was not asked."""
    raw_prediction: Tensor
    """Shape (batch, exits): predictions; undefined where the exit was not asked."""

    @property
    def asked(self) -> Tensor:
        """Shape (batch, exits): which exits were asked."""
        every = torch.arange(self.raw_confidence.shape[1], device=self.asked_bits.device)
        return (self.asked_bits[:, None] >> every) & 1 == 1

    @property
    def confidence(self) -> Tensor:
        """Shape (batch, exits): the confidence of each exit; NaN where it was not asked."""
        return self.raw_confidence.where(self.asked, float("nan"))

    @property
    def prediction(self) -> Tensor:
        """Shape (batch, exits): the class each exit predicts; -1 where none, or not asked."""
        return self.raw_prediction.where(self.asked, NO_ANSWER)

    def __len__(self) -> int:
        return len(self.exit)

    @property
    def unclear(self) -> int:
        """The number of NaN confidences of exits asked; they count as the lowest."""
        return int((self.asked & torch.isnan(self.confidence)).sum())


class Runner:
    """A network with exits and the policy that decides on them.

    On a CPU several threads may call it at a time; on a GPU their calls must not overlap.

    Args:
        network: The network; it is put in evaluation mode, and is run in that mode only.
        policy: A fitted policy for these exits, or the tables of one.
        classes: Names of the network's classes as in the policy's trace; not needed where the
            trace has their numbers, as those of :func:`ttamer.torch.trace_of` by default.
        precision: What the network computes in.
        regrouping: When survivors are regrouped; by default whenever any row has left. A measured
            rule comes from :meth:`ttamer.torch.Profile.regrouping`.

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
        regrouping: Regrouping | None = None,
    ) -> None:
        require_exits(network)
        self.network = network.eval()
        self.precision: Precision = precision
        self.regrouping = regrouping or Regrouping.always()
        self._device = device_of(network)
        check_current(self._device)
        check_precision(precision)
        if isinstance(policy, PlainTables | BeliefTables):
            tables: Tables = policy
            if tables.exits != len(network.names):
                raise ArgumentError(
                    f"the tables are for {counted(tables.exits, 'exit')}, and the network has "
                    f"{len(network.names)}: build them for this network"
                )
        else:
            tables = tables_of(policy, network.names, classes if classes else _classes(network))
        self._decider = decider_for(tables, self._device)
        self._reached = tables.reached
        self._asking = self._decider.asking()
        self._sized: dict[int, tuple[list[int], Tensor]] = {}
        self._pays: dict[tuple[int, int, int, int], bool] = {}
        self._untrimmed = 0
        self.waits = 0
        """The number of times the host has waited for the device."""

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        network: EarlyExit | None = None,
        *,
        tradeoff: float | None = None,
        precision: Precision = "fp32",
        regrouping: Regrouping | None = None,
    ) -> Runner:
        """Return a runner of the network and the policy in a folder.

        Args:
            folder: A folder that :meth:`EarlyExit.save_pretrained` wrote with a policy.
            network: A network of the same architecture, on the device to run on; not needed for
                families that are built by name.
            tradeoff: Which policy of a ladder to run.
            precision: What the network computes in.
            regrouping: When survivors are regrouped; by default whenever any row has left.

        Returns:
            The runner.

        Raises:
            ArgumentError: The folder has no policy, or a ladder and no tradeoff is given.
        """
        from ttamer.torch.pretrained import load_runnable

        found, policy, classes = load_runnable(folder, network, tradeoff)
        return Runner(found, policy, classes=classes, precision=precision, regrouping=regrouping)

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
        value = self._received(inputs)
        with autocast(self._device, self.precision):
            return self._run(value)

    def stream(self, batches: Iterable[Inputs], *, window: int = 8) -> Iterator[Answers]:
        """Run many batches, several of them together.

        Args:
            batches: The inputs of each batch.
            window: How many batches run together, where their inputs have the same shape, such as
                texts of the same width.

        Returns:
            The answers of each batch, in order.

        Raises:
            ArgumentError: ``window`` is not a whole number of at least 1.
        """
        require_whole(window, "window", least=1)
        waiting: list[Inputs] = []
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == window:
                yield from self._together(waiting)
                waiting = []
        if waiting:
            yield from self._together(waiting)

    @torch.inference_mode()
    def early(self, inputs: Inputs) -> Iterator[tuple[Tensor, Answers]]:
        """Run one batch to its end, and yield results as soon as they are available.

        All work is queued on the device before the first result is waited for.

        Args:
            inputs: What the first block takes, or a mapping by its names, on any device.

        Returns:
            Pairs (positions, answers) for the inputs that stop at each exit, in that order.
        """
        value: Any = self._received(inputs)
        count = rows_of(value)
        if not count:
            return
        rows = torch.arange(count, device=self._device)
        ready: list[tuple[Any, Tensor, Answers]] = []
        carry: Carry | None = None
        with autocast(self._device, self.precision):
            running = torch.ones(count, dtype=torch.bool, device=self._device)
            for k, (segment, ramp) in enumerate(
                zip(self.network.segments, self.network.exits, strict=True)
            ):
                value = segment(value)
                if k not in self._reached:
                    continue
                logits = ramp(value)
                if carry is None:
                    carry = self._decider.start(count, logits.shape[1], logits.dtype)
                self._decider.observe(carry, k, rows, logits, awaited=False, first=not ready)
                settled = running & (carry.place < 0)
                running = running & ~settled
                ready.append((_event(self._device), settled, self._answers(carry)))
        for event, settled, answers in ready:
            if event is not None:
                event.synchronize()
            found = settled.nonzero()[:, 0]
            if len(found):
                yield found, _rows(answers, found)

    def _received(self, inputs: Inputs) -> Value:
        """Return inputs on the device."""
        self._check_mode()
        return to_device(inputs, self._device, self.network.input_names)

    def _check_mode(self) -> None:
        """Refuse a network in training mode: with dropout answers would be random."""
        if self.network.training:
            raise ArgumentError(
                "the network is in training mode: call network.eval() before it is run"
            )

    def _together(self, batches: list[Inputs]) -> Iterator[Answers]:
        """Run batches of one shape as one, and yield the answers of each batch, in order."""
        names = self.network.input_names
        moved = (to_device(batch, self._device, names) for batch in batches)
        for _, alike in groupby(moved, _shapes):
            yield from self._joined(list(alike))

    def _joined(self, moved: list[Any]) -> Iterator[Answers]:
        """Run some batches as one, and yield the answers of each."""
        sizes = [rows_of(batch) for batch in moved]
        if isinstance(moved[0], torch.Tensor):
            joined: Value = torch.cat(moved)
        else:
            joined = tuple(torch.cat(part) for part in zip(*moved, strict=True))
        whole = self(joined)
        start = 0
        for size in sizes:
            yield _rows(whole, torch.arange(start, start + size, device=self._device))
            start += size

    def _run(self, value: Any) -> Answers:
        """Run a batch that is on the device, regrouping its survivors."""
        count = rows_of(value)
        if not count:
            return self._none(value)
        if count not in self._sized:
            every = torch.arange(count, device=self._device)
            self._sized[count] = (group_sizes(count), every)
        sizes, rows = self._sized[count]
        last = len(self.network.exits) - 1
        carry: Carry | None = None
        due = self._reached[0]
        for k, (segment, ramp) in enumerate(
            zip(self.network.segments, self.network.exits, strict=True)
        ):
            value = segment(value)
            if k < due:
                continue
            carry = self._asked(k, ramp, value, rows, carry, count, awaited=k < last)
            if k == last:
                break
            self.waits += 1
            alive, due = self._decider.going(carry, rows)
            if not alive:
                break
            size = sizes[bisect_left(sizes, alive)]
            if size < len(rows) and self._regroups(k, due, len(rows), size):
                positions, rows = self._decider.regroup(carry, rows, size)
                value = self._trimmed(take(value, positions))
        return self._answers(cast("Carry", carry))  # some exit is always due

    def _none(self, value: Any) -> Answers:
        """Return the answers to a batch without rows, which many layers refuse: one row is run."""
        ones = tuple(each.new_ones((1, *each.shape[1:])) for each in tensors_of(value))
        some: Any = ones[0] if isinstance(value, torch.Tensor) else ones
        first = self._reached[0]
        for segment in self.network.segments[: first + 1]:
            some = segment(some)
        logits = self.network.exits[first](some)
        return self._answers(self._decider.start(0, logits.shape[1], logits.dtype))

    def _asked(
        self, exit_: int, ramp: nn.Module, value: Any, rows: Tensor, carry: Carry | None,
        count: int, *, awaited: bool,
    ) -> Carry:  # fmt: skip
        """Run a ramp, decide, and return the state of the batch; ``None`` before its first exit."""
        first = carry is None
        if self._asking is not None:
            return self._asking.ask(exit_, ramp, value, rows, count, awaited=awaited, first=first)
        logits = ramp(value)
        if carry is None:
            if logits.ndim != 2:
                raise ArgumentError(
                    f"an exit returns shape {tuple(logits.shape)}, not (batch, classes): give a "
                    "batch of inputs; for one input, inputs[None]"
                )
            carry = self._decider.start(count, logits.shape[1], logits.dtype)
        self._decider.observe(carry, exit_, rows, logits, awaited=awaited, first=first)
        return carry

    def _regroups(self, after: int, due: int, rows: int, alive: int) -> bool:
        """Return whether regrouping pays, by the rule, which is asked once for each case."""
        key = (after, due, rows, alive)
        if key not in self._pays:
            self._pays[key] = self.regrouping.pays(*key)
        return self._pays[key]

    def _trimmed(self, value: Any) -> Any:
        """Return a value without what its rows do not need.

        To find that out the host waits for the device; where it was in vain several times, it is
        tried now and then.
        """
        if self.network.trim is None:
            return value
        self._untrimmed += 1
        if self._untrimmed > MAX_IN_VAIN and self._untrimmed % TRIM_EVERY:
            return value
        found = self.network.trim(value)
        if found is not value:
            self._untrimmed = 0
        return found

    def _answers(self, carry: Carry) -> Answers:
        """Return the answers of a batch; those of rows that have stopped do not change."""
        return Answers(*self._decider.collect(carry))


def _shapes(value: Value) -> list[torch.Size]:
    """Return the shapes of a value's tensors, without the batch."""
    return [tensor.shape[1:] for tensor in tensors_of(value)]


def _rows(answers: Answers, rows: Tensor) -> Answers:
    """Return the answers of some rows."""
    return Answers(**{name: part[rows] for name, part in vars(answers).items()})


def decider_for(tables: Tables, device: torch.device) -> Decider:
    """Return the fastest decider for a device: on a GPU with Triton, a kernel."""
    if device.type == "cpu":
        return CpuDecider(tables, device)
    if device.type == "cuda" and find_spec("triton") is not None:
        from ttamer.torch.decide_triton import TritonDecider

        return TritonDecider(tables, device)
    return Decider(tables, device)


def _event(device: torch.device) -> Any:
    """Return an event recorded now, or ``None`` on a device without events."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _classes(network: EarlyExit) -> int:
    """Return the number of classes: the width of the last linear layer of the head, or of a ramp.

    The head of an attached network calls the model that it is a part of, and has no layers. Linear
    layers with int8 weights are of another class.
    """
    if isinstance(network, CombinedExits):
        network = network.plain()  # there the ramps are apart from the segments
    for each in reversed(network.exits):
        widths = [getattr(layer, "out_features", None) for layer in each.modules()]
        found = [width for width in widths if isinstance(width, int)]
        if found:
            return found[-1]
    raise ArgumentError("no exit has a linear layer to count classes by: name them with classes=")
