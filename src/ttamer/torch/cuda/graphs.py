"""Running with CUDA graphs, for networks where launching kernels takes longer than running them.

A policy is one graph for each number of rows that a batch begins with. Its steps lead from one exit
that the policy may ask to the next: the segments between, the ramp, the decision, and regrouping.
A step has a branch for every size of the group that may arrive there, and for whether a row is due
at its exit. The decision chooses the next branch on the device, so that the host launches once and
never waits. A smaller group is padded with rows that are ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedPolicy
from ttamer.torch.cuda.branching import (
    NONE,
    Branch,
    BranchingGraph,
    capture,
    captured,
    release_memory,
)
from ttamer.torch.deciding import Tables
from ttamer.torch.devices import (
    Inputs,
    Precision,
    Value,
    autocast,
    by_position,
    changed,
    check_current,
    device_of,
    rows_of,
    tensors_of,
    to_device,
)
from ttamer.torch.early_exit import HAS_TRITON, EarlyExit, run_in_order
from ttamer.torch.runner import Answers, Runner, group_sizes

if HAS_TRITON:
    from ttamer.torch.cuda.decide_kernel import STEP, KernelDecider
    from ttamer.torch.cuda.memory import copy_rows, fill, like

# The exit before the first one.
START = -1


class Case(NamedTuple):
    """A group that arrives at a step."""

    size: int  # the number of rows, with padding
    asks: bool  # whether some row is due at the exit of the step


class GraphRunner(Runner):
    """A runner whose policy runs as one CUDA graph, for batches of up to a fixed size.

    The next call overwrites what it returned: copy what must be kept. A call returns before the
    device is done, as PyTorch's operations do; calls from several threads or on several streams
    must not overlap.

    Args:
        network: The network, on a GPU.
        policy: A fitted policy for these exits, or the tables of one.
        example: A batch of the largest size.
        classes: The names of the network's classes, as for :class:`Runner`.
        precision: What the network computes in.
        sizes: The group sizes; by default powers of two and the numbers half way between.

    Raises:
        ArgumentError: There is no GPU, Triton is not installed, or the driver is older than
            CUDA 12.1.

    Example::

        runner = GraphRunner(network.cuda(), policy, batch)
        logits = runner(batch).logits.clone()
    """

    def __init__(
        self,
        network: EarlyExit,
        policy: FittedPolicy | Tables,
        example: Inputs,
        *,
        classes: Sequence[str] | None = None,
        precision: Precision = "fp32",
        sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(network, policy, classes=classes, precision=precision)
        if not HAS_TRITON or not isinstance(self._decider, KernelDecider):
            raise ArgumentError("CUDA graphs need a GPU and Triton; use Runner here")
        self._kernel = self._decider
        example = by_position(example, network.input_names)
        self.batch = rows_of(example)
        """The largest number of rows of a batch."""
        # One pool: the branches never run at the same time, and may overwrite each other's memory.
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._sizes = group_sizes(self.batch) if sizes is None else sorted({*sizes, self.batch})
        with torch.inference_mode(), autocast(self._device, precision, cached=False):
            value = to_device(example, self._device)
            logits = network.full(value)
            self._carry = self._started(self.batch, logits)
        self._inputs = {size: like(value, size) for size in self._sizes}
        self._rows = {size: torch.arange(size, device=self._device) for size in self._sizes}
        self._counts = {size: size for size in self._sizes}
        self._graphs: dict[int, Callable[[], None]] = {}
        self._buffers: list[Any] = []  # what graphs read and write, beside what they allocate

    @torch.inference_mode()
    def __call__(self, inputs: Inputs) -> Answers:
        """Run one batch.

        Args:
            inputs: What the first block takes, or a mapping by its names, on any device.

        Returns:
            The answers, in the order of the inputs; the next call overwrites them.

        Raises:
            ArgumentError: The batch is empty, larger than the example, or has other shapes, or the
                network was put in training mode.
        """
        self._check_mode()
        value = by_position(inputs, self.network.input_names)
        count = _fitting_rows(value, self.batch)
        size = self._fitting(count)
        if size not in self._graphs:
            with autocast(self._device, self.precision, cached=False):
                self._graphs[size] = self._built(size)
        fill(self._inputs[size], value)
        if self._counts[size] != count:  # batches of one size in turn change no numbers
            rows = self._rows[size]
            torch.arange(size, out=rows)
            rows[count:] = -1
            self._counts[size] = count
        self._graphs[size]()
        parts = self._carry.parts
        return Answers(*(parts if count == self.batch else (part[:count] for part in parts)))

    def _fitting(self, rows: int) -> int:
        """Return the smallest group size that holds some rows."""
        return self._sizes[bisect_left(self._sizes, rows)]

    def _built(self, size: int) -> Callable[[], None]:
        """Capture the branches of all steps for batches of one size, and join them."""
        release_memory()
        cases, tables = self._planned(size)
        value: Any = self._inputs[size]
        rows, start = self._rows[size], START
        steps = []
        for k, end in enumerate(self._reached):
            segments = list(self.network.segments)[start + 1 : end + 1]
            lists = self._kernel.new_lists(size)
            # A single row is not regrouped: the next step reads the same row.
            grouped = size > 1 and k + 1 < len(self._reached)
            buffer = like(run_in_order(segments, value), size) if grouped else None
            self._buffers.append((buffer, lists))
            computed: dict[int, tuple[Any, Any]] = {}
            branches = []
            for case, table in zip(cases[k], tables[k], strict=True):
                if case.size not in computed:
                    computed[case.size] = self._computed(segments, _first(value, case.size))
                graph, hidden = computed[case.size]
                group = _Group(hidden, rows[: case.size], buffer, lists)
                parts = [graph]
                if case.asks:
                    work = partial(self._ask_group, end, group, start == START)
                    parts.append(capture(work, self._pool))
                elif grouped:
                    parts.append(capture(group.move, self._pool))
                branches.append(Branch(tuple(parts), table))
            steps.append(branches)
            value, rows = (buffer, lists[1]) if grouped else (hidden, rows)
            start = end
        return BranchingGraph(steps[0][0], steps[1:], self._kernel.result, unit=STEP)

    def _computed(self, segments: Sequence[Any], value: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
        """Capture segments; return the graph, and the value that its replays overwrite."""
        out: dict[str, Any] = {}

        def work() -> None:
            out["value"] = run_in_order(segments, value)

        return capture(work, self._pool), out["value"]

    def _ask_group(self, exit_: int, group: _Group, first: bool) -> None:
        """Ask an exit, decide, and regroup the rows that continue."""
        logits = self.network.exits[exit_](group.value)
        self._kernel.observe(
            self._carry, exit_, group.rows, logits, awaited=False, first=first, lists=group.lists
        )
        group.regroup()

    def _planned(self, size: int) -> tuple[list[list[Case]], list[list[Tensor | None]]]:
        """Return the cases of each step, and for each the table of the cases that follow."""
        cases: list[list[Case]] = [[Case(size, True)]]
        tables: list[list[Tensor | None]] = []
        for k in range(len(self._reached) - 1):
            numbers: dict[Case, int] = {}
            tables.append([])
            for case in cases[k]:
                table = np.full((len(self.network.exits) + 1, size + 1), NONE, np.int32)
                sizes = self._sizes[: self._sizes.index(case.size) + 1]
                for due in self._reached[k + 1 :]:
                    for fewer, smaller in pairwise([0, *sizes]):  # rows that fit this size
                        following = Case(smaller, due == self._reached[k + 1])
                        number = numbers.setdefault(following, len(numbers))
                        table[due, fewer + 1 : smaller + 1] = number
                tables[k].append(torch.from_numpy(table).to(self._device))
            cases.append(list(numbers))
        tables.append([None] * len(cases[-1]))
        return cases, tables


class _Group(NamedTuple):
    """The rows that arrive at an exit, and where those that continue are written."""

    value: Any  # what the segments have computed for them
    rows: Tensor  # their positions in the batch; -1 for padding
    buffer: Any  # the buffer that the next step reads, or None where it reads value
    # The positions in the group, and in the batch, of the rows that continue.
    lists: tuple[Tensor, Tensor]

    def regroup(self) -> None:
        """Write the rows that continue to the buffer, the first ones first."""
        if self.buffer is not None:
            count = len(self.rows)
            positions, following = (numbers[:count] for numbers in self.lists)
            self._copy(following, positions=positions)

    def move(self) -> None:
        """Write all rows to the buffer: none is due at this exit."""
        self._copy(self.rows, listed=self.lists[1])

    def _copy(self, rows: Tensor, **options: Tensor) -> None:
        copy_rows(tensors_of(self.value), tensors_of(self.buffer), rows, **options)


def full_graph(
    network: EarlyExit, example: Inputs, *, precision: Precision = "fp32"
) -> Callable[[Any], Tensor]:
    """Return the network without ramps as a graph, for batches of up to the example's rows."""
    device = device_of(network)
    check_current(device)
    out: dict[str, Tensor] = {}
    example = by_position(example, network.input_names)
    largest = rows_of(example)
    memory = like(to_device(example, device), largest)

    def work() -> None:
        out["logits"] = network.full(memory)

    release_memory()
    with torch.inference_mode(), autocast(device, precision, cached=False):
        replay = captured(work)

    @torch.inference_mode()
    def run(inputs: Inputs) -> Tensor:
        value = by_position(inputs, network.input_names)
        count = _fitting_rows(value, largest)
        fill(memory, value)
        replay()
        return out["logits"][:count]

    return run


def _fitting_rows(value: Value, largest: int) -> int:
    """Return the rows of a batch; refuse those that do not fit in the memory of graphs."""
    count = rows_of(value)
    if not 0 < count <= largest:
        raise ArgumentError(
            f"the batch has {count} rows; the graphs are for 1 to {largest}: split it",
            param="inputs",
        )
    return count


def _first(value: Value, size: int) -> Value:
    """Return the first rows of a value."""
    return changed(value, lambda part: part[:size])
