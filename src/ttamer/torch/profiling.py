"""Measured costs: how long each segment takes, what asking each exit adds, and what a call adds.

Asking an exit adds its ramp, the decision, and the host's wait for it; a call with exits adds time
once, whatever it asks. Both come from calls in which no row stops, timed in turns with the network
without ramps, for all drift: calls that ask one of a few exits, and a call that asks them all.
Exits differ by the times of their ramps. Segments are timed one after another, as they run in the
network, without waiting: repeating one alone would leave its weights in the caches. A policy that
is fitted to these costs therefore asks an exit only where that pays on this machine, at this batch
size.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ttamer._arguments import require_whole
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedPolicy
from ttamer.torch.costs import Costs
from ttamer.torch.devices import Precision, autocast, device_of, rows_of, take, to_device, wait
from ttamer.torch.early_exit import EarlyExit, Inputs, Value, require_exits
from ttamer.torch.runner import Regrouping, Runner, group_sizes
from ttamer.torch.tables import Tables, threshold_tables

if TYPE_CHECKING:
    from torch import Tensor


# The number of timings whose median is kept.
TIMINGS = 5
# The shortest duration of one timing, reached by repeating the work.
MIN_SECONDS = 0.005
# The largest number of repetitions in one timing.
MAX_REPEATS = 200
# Work that takes this many seconds or more is timed twice only, and not repeated.
SLOW = 0.2
# With fewer turns all that a call adds counts as the exits'.
MIN_TURNS = 3
# The number of exits asked in whole calls that are timed, each alone and all together.
PROBED = 3


@dataclass(frozen=True)
class Profile:
    """The times of the parts of a network on one machine, in seconds per batch.

    >>> measured = Profile(
    ...     names=("early", "full"),
    ...     sizes=(8,),
    ...     groups=(4, 8),
    ...     segments=((0.1, 0.2), (0.3, 0.6)),
    ...     asking=((0.05,), (0.0,)),
    ...     regroup=0.01,
    ...     device="cpu",
    ...     precision="fp32",
    ...     graphs=False,
    ... )
    >>> measured.costs(8).full, measured.regrouping().pays(0, 1, rows=8, alive=4)
    (0.1, True)
    """

    names: tuple[str, ...]
    """The names of the exits."""
    sizes: tuple[int, ...]
    """The batch sizes measured, increasing."""
    groups: tuple[int, ...]
    """The batch sizes, and smaller sizes that the rest of a batch may have."""
    segments: tuple[tuple[float, ...], ...]
    """Per exit and group size: the segment from the exit before to this one."""
    asking: tuple[tuple[float, ...], ...]
    """Per exit and batch size: its ramp, the decision and the wait; for the head, its own time."""
    regroup: float
    """The time of regrouping once; 0 with graphs, where it is part of asking an exit."""
    device: str
    """The name of the GPU, or ``"cpu"``."""
    precision: str
    """What the network computed in."""
    graphs: bool
    """Whether parts were replayed as CUDA graphs."""
    per_call: tuple[float, ...] = ()
    """Per batch size: what a call with exits adds once, whatever it asks; by default zeros."""

    def __post_init__(self) -> None:
        if not self.per_call:
            object.__setattr__(self, "per_call", (0.0,) * len(self.sizes))

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
                "choose one of these, or measure again"
            )
        at, group = self.sizes.index(size), self.groups.index(size)
        return Costs(
            self.names,
            tuple(row[group] / size for row in self.segments),
            tuple(row[at] / size for row in self.asking),
            "seconds",
        )

    def regrouping(self) -> Regrouping:
        """Return the rule for regrouping that follows from these times.

        Returns:
            The rule, for :class:`Runner`.
        """
        return Regrouping(self.groups, self.segments, self.regroup)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON.

        Args:
            path: The file to write.
        """
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile.

        Args:
            path: A file that :meth:`save` wrote.

        Returns:
            The profile.

        Raises:
            ArgumentError: The file cannot be read, or is not a profile.
        """
        try:
            stored = json.loads(Path(path).read_text("utf-8"))
            for name in ("names", "sizes", "groups"):
                stored[name] = tuple(stored[name])
            stored["per_call"] = tuple(map(float, stored.get("per_call", ())))
            for name in ("segments", "asking"):
                stored[name] = tuple(tuple(map(float, row)) for row in stored[name])
            return cls(**stored)
        except OSError as error:
            raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path}: not a profile: {error}") from None


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
    >>> from ttamer.torch import EarlyExit
    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> network = EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3))
    >>> profile(network, zeros(2, 4), sizes=(1, 2)).sizes
    (1, 2)
    """
    require_exits(network)
    network.eval()
    device = device_of(network)
    for size in sizes:
        require_whole(size, "a batch size", least=1)
    sizes = tuple(sorted({int(size) for size in sizes}))
    if not sizes:
        raise ArgumentError("there are no batch sizes; give at least one")
    if graphs and device.type != "cuda":
        raise ArgumentError(
            "CUDA graphs need a network on a GPU: move it there, or use graphs=False"
        )
    smallest = min(sizes[0], max(1, sizes[-1] // 16))
    groups = tuple(sorted({*sizes, *group_sizes(sizes[-1], smallest=smallest)}))
    reach: dict[int, tuple[float, ...]] = {}
    ask: dict[int, tuple[float, ...]] = {}
    per_call: dict[int, float] = {}
    regroup, capturing = 0.0, _Capturing() if graphs else None
    moved = to_device(example, device, network.input_names)
    with autocast(device, precision):
        batches = [take(moved, torch.arange(size, device=device) % rows_of(moved))
                   for size in groups]  # fmt: skip
        if not graphs:
            reach = dict(zip(groups, segment_times(network, batches, device), strict=True))
        # The largest first: the others find its memory free.
        for size, value in reversed(list(zip(groups, batches, strict=True))):
            if not graphs and size not in sizes:
                continue
            if progress is not None:
                progress(f"timing batches of {size}")
            parts = _Parts(network, value, capturing)
            if graphs:
                reach[size] = parts.segments()
            if size in sizes:
                ask[size], per_call[size] = parts.asking(precision)
            if size == groups[-1] and not graphs:  # with graphs it is part of every exit asked
                regroup = parts.regrouping()
    return Profile(
        names=network.names,
        sizes=sizes,
        groups=groups,
        segments=tuple(zip(*(reach[size] for size in groups), strict=True)),
        asking=tuple(zip(*(ask[size] for size in sizes), strict=True)),
        regroup=regroup,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        precision=precision,
        graphs=graphs,
        per_call=tuple(per_call[size] for size in sizes),
    )


class _Capturing:
    """Graphs of parts, which run one after another and share their memory."""

    def __init__(self) -> None:
        from ttamer.torch.cuda.capturing import release_memory

        release_memory()
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: Any = None  # the pool is gone with the last of its graphs

    def __call__(self, work: Callable[[], object]) -> Callable[[], object]:
        """Capture work, and return a function that replays it."""
        from ttamer.torch.cuda.capturing import captured

        self._latest = captured(work, self._pool)
        return cast("Callable[[], object]", self._latest)


class _Parts:
    """The parts of a network, each with its input for one batch size."""

    def __init__(self, network: EarlyExit, value: Any, capturing: _Capturing | None) -> None:
        self._network = network
        self._capturing = capturing
        self._size = rows_of(value)
        self._device = device_of(network)
        self._values = [value]
        for segment in network.segments:
            self._values.append(segment(self._values[-1]))

    def segments(self) -> tuple[float, ...]:
        """Time every segment."""
        pairs = zip(self._network.segments, self._values, strict=False)
        parts = [self._replayed(partial(segment, value)) for segment, value in pairs]
        return in_sequence(parts, self._device)

    def asking(self, precision: Precision) -> tuple[tuple[float, ...], float]:
        """Time what asking every exit adds, and what a call adds once."""
        pairs = zip(self._network.exits, self._values[1:], strict=True)
        parts = [self._replayed(partial(ramp, value)) for ramp, value in pairs]
        ramps = in_sequence(parts, self._device)
        if len(ramps) == 1:
            return ramps, 0.0
        places = sorted({round(x) for x in np.linspace(0, len(ramps) - 2, PROBED)})
        turns = timed_in_turns(self._calls(places, precision), self._device)
        return separated(turns, places, ramps)

    def _calls(self, places: Sequence[int], precision: Precision) -> list[Callable[[], None]]:
        """Return a call that asks some exits, calls that ask one each, and the network alone."""
        inputs, graphs = self._values[0], self._capturing is not None

        def waited(run: Callable[[Any], object]) -> Callable[[], None]:
            """Return a whole call that is waited for: a runner does not wait for its last hop."""

            def call() -> None:
                run(inputs)
                wait(self._device)

            return call

        calls = []
        several = [list(places)] if len(places) > 1 else []
        for asked in (*several, *([k] for k in places)):
            limits = np.full(len(self._network.exits), np.nan)
            limits[asked] = np.inf  # no row stops, so that all groups are of the full size
            runner = runner_for(
                self._network, threshold_tables(limits), inputs, precision=precision,
                graphs=graphs, sizes=[self._size],
            )  # fmt: skip
            calls.append(waited(runner))
        # Not network.full, which may take a shorter way: these parts run in calls with exits, too.
        *segments, head = self._network.backbone()
        bare = EarlyExit(segments, [None] * (len(segments) - 1), head)
        alone = full_run(bare, inputs, precision=precision, graphs=graphs)
        return [*calls, waited(alone)]

    def regrouping(self) -> float:
        """Time taking half of the rows out of the first value."""
        half = torch.arange(0, self._size, 2, device=self._device)
        return timed(self._replayed(lambda: take(self._values[1], half)), self._device)

    def _replayed(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return work as it will run: captured as a graph, or as it is."""
        return work if self._capturing is None else self._capturing(work)


def separated(
    turns: Sequence[Sequence[float]], places: Sequence[int], ramps: Sequence[float]
) -> tuple[tuple[float, ...], float]:
    """Return what asking every exit adds, its ramp at least, and what a call adds once.

    A turn has the seconds of a call that asks all exits at ``places``, of calls that ask one each,
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
    ones, together = calls[-len(places) :], calls[0]
    rest = statistics.median(
        statistics.median(mine - its for mine, its in zip(one, alone, strict=True)) - ramps[k]
        for k, one in zip(places, ones, strict=True)
    )
    once = 0.0
    if len(places) > 1 and len(turns) >= MIN_TURNS:
        found = [
            (sum(each) - every) / (len(places) - 1) - bare
            for bare, every, *each in zip(alone, together, *ones, strict=True)
        ]
        clear = statistics.median(found) - 2 * statistics.stdev(found) / len(found) ** 0.5
        once = max(min(clear, rest), 0.0)
    return (*(ramp + max(rest - once, 0.0) for ramp in ramps[:-1]), head), once


def in_sequence(parts: Sequence[Callable[[], object]], device: torch.device) -> tuple[float, ...]:
    """Return the seconds of each part when they run one after another: medians of a few passes."""
    for part in parts:
        part()
    wait(device)
    start = time.perf_counter()
    passes: list[list[float]] = []
    least = TIMINGS
    while len(passes) < least or (
        time.perf_counter() - start < TIMINGS * MIN_SECONDS and len(passes) < MAX_REPEATS
    ):
        passes.append(_marked(parts, device))
        if sum(passes[0]) > SLOW:
            least = 2
    return tuple(statistics.median(each) for each in zip(*passes, strict=True))


def segment_times(
    network: EarlyExit, batches: Sequence[Value], device: torch.device
) -> list[tuple[float, ...]]:
    """Return the seconds of each segment without graphs, per batch: medians of passes in turns.

    Without graphs times are often the host's, whose speed changes: all batches see the same.
    """
    passes: list[list[list[float]]] = [[] for _ in batches]

    def flow(batch: Value) -> list[float]:
        value: Any = batch

        def run(segment: Callable[[Any], Any]) -> None:
            nonlocal value
            value = segment(value)

        return _marked([partial(run, segment) for segment in network.segments], device, ahead=False)

    for batch in batches:
        flow(batch)
    start, least = time.perf_counter(), TIMINGS
    while len(passes[0]) < least or (
        time.perf_counter() - start < TIMINGS * MIN_SECONDS * len(batches)
        and len(passes[0]) < MAX_REPEATS
    ):
        for batch, some in zip(batches, passes, strict=True):
            some.append(flow(batch))
        if sum(passes[-1][0]) > SLOW:
            least = 2
    return [tuple(statistics.median(each) for each in zip(*some, strict=True)) for some in passes]


def _marked(
    parts: Sequence[Callable[[], object]], device: torch.device, *, ahead: bool = True
) -> list[float]:
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
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    regrouping: Regrouping | None = None,
    graphs: bool = False,
    sizes: Sequence[int] | None = None,
) -> Runner:
    """Return a runner, with or without CUDA graphs; ``sizes`` are the group sizes of graphs."""
    if not graphs:
        return Runner(network, policy, classes=classes, precision=precision, regrouping=regrouping)
    from ttamer.torch.graphs import GraphRunner

    return GraphRunner(
        network, policy, example, classes=classes, precision=precision, regrouping=regrouping,
        sizes=sizes,
    )  # fmt: skip


def full_run(
    network: EarlyExit, example: Value, *, precision: Precision = "fp32", graphs: bool = False
) -> Callable[[Any], Tensor]:
    """Return the network without ramps, run as a runner runs, for batches like the example."""
    device = device_of(network)

    @torch.inference_mode()
    def plain(value: Inputs) -> Tensor:
        with autocast(device, precision):
            return network.full(to_device(value, device, network.input_names))

    if not graphs:
        return plain
    from ttamer.torch.graphs import full_graph

    return full_graph(network, example, precision=precision)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that work takes when it is repeated: the median of a few timings."""
    repeats, timings = _effort(work, device)
    return statistics.median(_once(work, repeats, device) for _ in range(timings))


def timed_in_turns(
    works: Sequence[Callable[[], object]], device: torch.device
) -> list[tuple[float, ...]]:
    """Return turns, each with the seconds of every work; the first is expected to take longest."""
    for work in works:  # the first call may compile or capture, which says nothing of the others
        _once(work, 1, device)
    repeats, timings = _effort(works[0], device)
    return [tuple(_once(work, repeats, device) for work in works) for _ in range(timings)]


def _effort(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Return how often work is repeated in one timing, and how often it is timed."""
    if _once(work, 1, device) > SLOW:
        return 1, 2
    seconds = _once(work, 2, device)
    return int(min(MAX_REPEATS, max(1, MIN_SECONDS / max(seconds, 1e-9)))), TIMINGS


def _once(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the seconds of one repetition, all waited for at the end."""
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    wait(device)
    return (time.perf_counter() - start) / repeats
