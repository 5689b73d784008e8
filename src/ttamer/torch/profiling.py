"""Costs of the parts of a network, counted or measured, and the cascade that they make.

Counted costs are floating-point operations for one input: matrix products and convolutions, where
multiplying and adding are two operations.

Measured costs are seconds on one machine: how long each segment takes, what asking each exit adds
(its ramp, the decision, and the host's wait for it), and what a call with exits adds once, whatever
it asks. The latter two come from calls in which no row stops, timed in turns with the network
without ramps, for all drift: calls that ask one of a few exits, and a call that asks them all.
Exits differ by the times of their ramps. Segments are timed one after another, as they run in the
network: repeating one alone would leave its weights in the caches. A policy that is fitted to these
costs asks an exit only where that pays on this machine, at this batch size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ttamer._checks import require_whole
from ttamer.cascade import CascadeSpec, Target
from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedPolicy
from ttamer.torch.deciding import Tables, threshold_tables
from ttamer.torch.devices import (
    Inputs,
    Precision,
    Value,
    autocast,
    by_position,
    device_of,
    rows_of,
    take,
    to_device,
    wait,
)
from ttamer.torch.early_exit import EarlyExit, require_exits
from ttamer.torch.runner import Runner, group_sizes


@dataclass(frozen=True)
class Costs:
    """Cost of each part of a network for one input.

    >>> costs = Costs(("early", "full"), (2.0, 7.0), (1.0, 1.0))
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

    @property
    def full(self) -> float:
        """The cost of the network without ramps: all segments, and the head."""
        return sum(self.segments) + self.ramps[-1]

    def spec(self, *, target: Target = "label") -> CascadeSpec:
        """Return the cascade, with costs as shares of the network without ramps.

        Args:
            target: What counts as correct: the label, or the answer of the last exit.

        Returns:
            The cascade of the exits. Ramps that are not worth their cost may be passed.
        """
        asking = [
            (segment + ramp) / self.full
            for segment, ramp in zip(self.segments, self.ramps, strict=True)
        ]
        costs = dict(zip(self.names, asking, strict=True))
        reach = {n: s / self.full for n, s in zip(self.names[:-1], self.segments, strict=False)}
        return CascadeSpec.of(costs, kind="exits", target=target, reach=reach)


def count_flops(network: EarlyExit, inputs: Inputs) -> Costs:
    """Count the operations of every segment and ramp.

    Args:
        network: The network; it is in evaluation mode afterwards.
        inputs: Some inputs, on the device of the network.

    Returns:
        The operations for one input.

    >>> from torch import nn, zeros
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> costs = count_flops(EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3)), zeros(2, 4))
    >>> costs.segments, costs.ramps
    ((64.0, 128.0), (48.0, 48.0))
    """
    require_exits(network)
    value = by_position(inputs, network.input_names)
    rows = rows_of(value)
    segments, ramps = [], []
    # The counter fails where a module gets a view of a parameter that learns.
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.requires_grad_(False).eval()
    try:
        # The plain kernel of attention consists of matrix products, which are counted.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            for segment, ramp in zip(network.segments, network.exits, strict=True):
                with FlopCounterMode(display=False) as counter:
                    value = segment(value)
                segments.append(counter.get_total_flops() / rows)
                # With gradients a ramp consists of operations on a GPU, too, and of no kernel.
                with FlopCounterMode(display=False) as counter, torch.enable_grad():
                    ramp(value)
                ramps.append(counter.get_total_flops() / rows)
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
    return Costs(network.names, tuple(segments), tuple(ramps))


@dataclass(frozen=True)
class Profile:
    """The times of the parts of a network on one machine, in seconds per batch.

    >>> profile = Profile(
    ...     names=("early", "full"),
    ...     sizes=(8,),
    ...     groups=(4, 8),
    ...     segments=((0.1, 0.2), (0.3, 0.6)),
    ...     asking=((0.05,), (0.0,)),
    ...     per_call=(0.0,),
    ...     device="cpu",
    ...     precision="fp32",
    ...     graphs=False,
    ... )
    >>> profile.costs(8).full, profile.time(0, 4)
    (0.1, 0.1)
    """

    names: tuple[str, ...]
    """The names of the exits."""
    sizes: tuple[int, ...]
    """The batch sizes measured, increasing."""
    groups: tuple[int, ...]
    """The batch sizes, and smaller sizes that the survivors of a batch may have."""
    segments: tuple[tuple[float, ...], ...]
    """Per exit and group size: the segment from the exit before to this one."""
    asking: tuple[tuple[float, ...], ...]
    """Per exit and batch size: its ramp, the decision and the wait; for the head, its own time."""
    per_call: tuple[float, ...]
    """Per batch size: what a call with exits adds once, whatever it asks."""
    device: str
    """The name of the GPU, or ``"cpu"``."""
    precision: str
    """What the network computed in."""
    graphs: bool
    """Whether parts were replayed as CUDA graphs."""

    def costs(self, size: int) -> Costs:
        """Return the costs per input at a batch size that was measured.

        Args:
            size: One of ``sizes``.

        Returns:
            The costs in seconds, without ``per_call``, which no decision changes.

        Raises:
            ArgumentError: The size was not measured.
        """
        if size not in self.sizes:
            raise ArgumentError(
                f"batches of {size} were not measured, only {', '.join(map(str, self.sizes))}: "
                "choose one of these, or measure again",
                param="size",
            )
        column, group = self.sizes.index(size), self.groups.index(size)
        return Costs(
            self.names,
            tuple(row[group] / size for row in self.segments),
            tuple(row[column] / size for row in self.asking),
        )

    def time(self, segment: int, rows: int) -> float:
        """Return the seconds that a segment takes, interpolated between the groups measured.

        Args:
            segment: The number of the segment.
            rows: The number of rows.

        Returns:
            Seconds; below the smallest group those of the smallest.
        """
        return float(np.interp(rows, self.groups, self.segments[segment]))


@torch.inference_mode()
def profile(
    network: EarlyExit,
    example: Inputs,
    *,
    sizes: Sequence[int] = (1, 32, 256),
    precision: Precision = "fp32",
    graphs: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure a network on its device, at several batch sizes.

    Args:
        network: The network, on the device where it will run.
        example: Some inputs; their rows are repeated to fill batches.
        sizes: The batch sizes.
        precision: What the network computes in.
        graphs: Time parts as CUDA graphs, as :class:`ttamer.torch.GraphRunner` runs them.
        progress: Called with a line of text for each batch size.

    Returns:
        The measured times.

    Raises:
        ArgumentError: A batch size is not a whole number of at least 1, or graphs are wanted
            without a GPU.

    >>> from torch import nn, zeros
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> network = EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3))
    >>> profile(network, zeros(2, 4), sizes=(1, 2)).sizes
    (1, 2)
    """
    require_exits(network)
    network.eval()
    device = device_of(network)
    if not sizes:
        raise ArgumentError("there are no batch sizes; give at least one", param="sizes")
    for size in sizes:
        require_whole(size, "a batch size", least=1)
    sizes = tuple(sorted(set(map(int, sizes))))
    if graphs and device.type != "cuda":
        raise ArgumentError(
            "CUDA graphs need a network on a GPU: move it there, or use graphs=False",
            param="graphs",
        )
    # Groups of survivors: down to a sixteenth of the largest batch a size changes the time.
    smallest = min(sizes[0], max(1, sizes[-1] // 16))
    groups = tuple(sorted({*sizes, *group_sizes(sizes[-1], smallest=smallest)}))
    reach: dict[int, tuple[float, ...]] = {}
    ask: dict[int, tuple[float, ...]] = {}
    per_call: dict[int, float] = {}
    as_run = _as_graphs() if graphs else lambda work: work
    moved = to_device(example, device, network.input_names)
    with autocast(device, precision):
        for size in reversed(groups):  # the largest first: the others find its memory free
            if progress is not None:
                progress(f"timing batches of {size}")
            value = take(moved, torch.arange(size, device=device) % rows_of(moved))
            parts = _Parts(network, value, as_run, graphs=graphs)
            reach[size] = parts.segments()
            if size in sizes:
                ask[size], per_call[size] = parts.asking(precision)
    return Profile(
        names=network.names,
        sizes=sizes,
        groups=groups,
        segments=tuple(zip(*(reach[size] for size in groups), strict=True)),
        asking=tuple(zip(*(ask[size] for size in sizes), strict=True)),
        per_call=tuple(per_call[size] for size in sizes),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        precision=precision,
        graphs=graphs,
    )


Work = Callable[[], object]


def _as_graphs() -> Callable[[Work], Work]:
    """Return a function that captures work; the graphs share memory, and run one after another."""
    from ttamer.torch.cuda import captured, release_memory

    release_memory()
    pool, latest = torch.cuda.graph_pool_handle(), list[Work]()

    def capture(work: Work) -> Work:
        replay: Work = captured(work, pool)
        latest[:] = [replay]  # the pool is gone with the last of its graphs
        return replay

    return capture


class _Parts:
    """The parts of a network, each with its input for one batch size."""

    def __init__(
        self, network: EarlyExit, value: Any, as_run: Callable[[Work], Work], *, graphs: bool
    ) -> None:
        self._network, self._as_run, self._graphs = network, as_run, graphs
        self._size = rows_of(value)
        self._device = device_of(network)
        self._values = [value]
        for segment in network.segments:
            self._values.append(segment(self._values[-1]))

    def segments(self) -> tuple[float, ...]:
        """Time every segment."""
        pairs = zip(self._network.segments, self._values, strict=False)
        parts = [self._as_run(partial(segment, value)) for segment, value in pairs]
        # Without graphs the time is often the host's, which a runner waits for too.
        return in_sequence(parts, self._device, ahead=self._graphs)

    def asking(self, precision: Precision, *, probed: int = 3) -> tuple[tuple[float, ...], float]:
        """Time what asking every exit adds, by calls that ask some of them, and a call once."""
        pairs = zip(self._network.exits, self._values[1:], strict=True)
        ramps = in_sequence(
            [self._as_run(partial(ramp, value)) for ramp, value in pairs], self._device
        )
        if len(ramps) == 1:
            return ramps, 0.0
        numbers = sorted({round(x) for x in np.linspace(0, len(ramps) - 2, probed)})
        turns = timed_in_turns(self._calls(numbers, precision), self._device)
        return separated(turns, numbers, ramps)

    def _calls(self, numbers: Sequence[int], precision: Precision) -> list[Work]:
        """Return a call that asks some exits, calls that ask one each, and the network alone."""
        inputs, how = self._values[0], dict[str, Any](precision=precision, graphs=self._graphs)
        sized = how | ({"sizes": [self._size]} if self._graphs else {})
        calls: list[Work] = []
        several = [list(numbers)] if len(numbers) > 1 else []
        for asked in (*several, *([k] for k in numbers)):
            limits = np.full(len(self._network.exits), np.nan)
            limits[asked] = np.inf  # no row stops, so that all groups are of the full size
            tables = threshold_tables(limits)
            runner = runner_for(self._network, tables, inputs, **sized)
            calls.append(partial(runner, inputs))
        # Not network.full, which may take a shorter way: these parts run in calls with exits, too.
        *segments, head = self._network.backbone()
        bare = EarlyExit(segments, [None] * (len(segments) - 1), head)
        return [*calls, partial(full_run(bare, inputs, **how), inputs)]


def separated(
    turns: Sequence[Sequence[float]], numbers: Sequence[int], ramps: Sequence[float]
) -> tuple[tuple[float, ...], float]:
    """Return what asking every exit adds, its ramp at least, and what a call adds once.

    A turn has the seconds of a call that asks all exits at ``numbers``, of calls that ask one each,
    and of the network alone. The sum of the latter calls, less the former, is what is there without
    exits, the network and what a call adds once, as many times as there are exits, less one. Two
    standard errors of that over the turns are left to the exits, so that where times vary, as the
    host's do, exits do not seem to cost nothing. With one exit the first call is left out, and all
    that is added is the exit's; so it is with fewer than three turns.

    >>> separated([(174, 150, 154, 100)] * 3, [0, 1], [3, 7, 5])
    ((20.0, 24.0, 5), 30.0)
    """
    *_, head = ramps
    *calls, alone = zip(*turns, strict=True)
    singles, together = calls[-len(numbers) :], calls[0]
    added = statistics.median(
        statistics.median(single - bare for single, bare in zip(times, alone, strict=True))
        - ramps[k]
        for k, times in zip(numbers, singles, strict=True)
    )
    once = 0.0
    if len(numbers) > 1 and len(turns) >= 3:
        estimates = [
            (sum(times) - all_asked) / (len(numbers) - 1) - bare
            for bare, all_asked, *times in zip(alone, together, *singles, strict=True)
        ]
        error = statistics.stdev(estimates) / len(estimates) ** 0.5
        once = max(min(statistics.median(estimates) - 2 * error, added), 0.0)
    return (*(ramp + max(added - once, 0.0) for ramp in ramps[:-1]), head), once


def in_sequence(
    parts: Sequence[Work], device: torch.device, *, ahead: bool = True
) -> tuple[float, ...]:
    """Return the seconds of each part when they run one after another: medians of a few passes."""
    turns = _turns([partial(_part_times, parts, device, ahead=ahead)])
    return tuple(
        statistics.median(times) for times in zip(*(flow for (flow,) in turns), strict=True)
    )


def timed_in_turns(works: Sequence[Work], device: torch.device) -> list[tuple[float, ...]]:
    """Return turns, each with the seconds of every work, waited for."""

    def seconds(work: Work) -> list[float]:
        start = time.perf_counter()
        work()
        wait(device)  # a runner does not wait for its last decision
        return [time.perf_counter() - start]

    turns = _turns([partial(seconds, work) for work in works])
    return [tuple(once for (once,) in turn) for turn in turns]


def _turns(flows: Sequence[Callable[[], list[float]]]) -> list[list[list[float]]]:
    """Return turns, in each of which every flow runs once: the seconds of the parts of each."""
    for flow in flows:  # the first call may compile or capture, which says nothing of the others
        flow()
    start, fewest = time.perf_counter(), 5
    turns: list[list[list[float]]] = []
    while len(turns) < fewest or (
        # Short work is timed more often, up to 25 ms of each flow.
        time.perf_counter() - start < 0.025 * len(flows) and len(turns) < 200
    ):
        turns.append([flow() for flow in flows])
        if sum(turns[-1][-1]) > 0.2:
            fewest = 2  # the median of two passes of long work is as steady as that of five
    return turns


def _part_times(parts: Sequence[Work], device: torch.device, *, ahead: bool) -> list[float]:
    """Run parts once, and return the seconds of each; ``ahead``: once before, without waiting."""
    if device.type != "cuda":
        times = [time.perf_counter()]
        for part in parts:
            part()
            times.append(time.perf_counter())
        return [after - before for before, after in pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]  # type: ignore[no-untyped-call]
    for part in parts if ahead else ():  # the device works while the host starts what is timed
        part()
    events[0].record()
    for part, event in zip(parts, events[1:], strict=True):
        part()
        event.record()
    wait(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def runner_for(
    network: EarlyExit,
    policy: FittedPolicy | Tables,
    example: Value,
    *,
    graphs: bool,
    **options: Any,
) -> Runner:
    """Return a runner, with or without CUDA graphs."""
    if not graphs:
        return Runner(network, policy, **options)
    from ttamer.torch.cuda import GraphRunner

    return GraphRunner(network, policy, example, **options)


def full_run(
    network: EarlyExit, example: Inputs, *, precision: Precision = "fp32", graphs: bool = False
) -> Callable[[Any], Tensor]:
    """Return the network without ramps, run as a runner runs, for batches like the example."""
    if graphs:
        from ttamer.torch.cuda import full_graph

        return full_graph(network, example, precision=precision)
    device = device_of(network)

    @torch.inference_mode()
    def plain(value: Inputs) -> Tensor:
        with autocast(device, precision):
            return network.full(to_device(value, device, network.input_names))

    return plain
