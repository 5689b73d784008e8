"""Measured costs: how long each segment takes, and what asking each exit adds.

Asking an exit is its ramp, the decision, and the host's wait for it. A segment is timed as it runs
in a stream of work, nobody waiting. So a policy that is fitted to these costs asks an exit only
where that pays on this machine, at this batch size.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttamer.errors import ArgumentError
from ttamer.torch.costs import Costs
from ttamer.torch.placing import autocast, device_of, rows_of, take, to_device
from ttamer.torch.regrouping import Regrouping
from ttamer.torch.running import decider_for
from ttamer.torch.tables import threshold_tables

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.torch.placing import Precision

__all__ = ["Profile", "profile", "timed"]

GROUPS = 5
"""The median of so many timings is kept."""
LEAST_SECONDS = 0.01
"""Each lasts at least so long."""
MOST_REPEATS = 200


@dataclass(frozen=True)
class Profile:
    """How long the parts of a network take on one machine, in seconds per batch."""

    names: tuple[str, ...]
    """Of the exits."""
    sizes: tuple[int, ...]
    """The batch sizes measured, increasing."""
    segments: tuple[tuple[float, ...], ...]
    """Per exit and size: of leading from the exit before to this one."""
    asking: tuple[tuple[float, ...], ...]
    """Per exit and size: of its ramp, the decision and the wait; of the head, its own time."""
    regroup: float
    """Of regrouping once."""
    device: str
    precision: str
    graphs: bool
    """Whether parts were replayed as CUDA graphs."""

    def costs(self, size: int, *, marginal: bool = False) -> Costs:
        """Return the cost per input at a batch size that was measured.

        With ``marginal``, what one input less saves: a device that is not full takes as long for
        fewer. Segments only; whoever asks an exit pays for the share of all of it.
        """
        if size not in self.sizes:
            raise ArgumentError(
                f"batches of {size} were not measured; there are {', '.join(map(str, self.sizes))}"
            )
        at = self.sizes.index(size)
        below = max((k for k in range(at) if self.sizes[k] <= size / 2), default=None)
        if marginal and below is not None:
            fewer = self.sizes[below]
            saved = ((row[at] - row[below]) / (size - fewer) for row in self.segments)
            segments = tuple(max(each, 0.0) for each in saved)
        else:
            segments = tuple(row[at] / size for row in self.segments)
        return Costs(
            self.names,
            segments,
            tuple(row[at] / size for row in self.asking),
            "seconds",
        )

    def regrouping(self) -> Regrouping:
        """Return the rule for regrouping that these times make."""
        return Regrouping(self.sizes, self.segments, self.regroup)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile."""
        try:
            stored = json.loads(Path(path).read_text("utf-8"))
            for name in ("names", "sizes"):
                stored[name] = tuple(stored[name])
            for name in ("segments", "asking"):
                stored[name] = tuple(tuple(map(float, row)) for row in stored[name])
            return cls(**stored)
        except OSError as error:
            raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path}: is no profile: {error}") from None


@torch.inference_mode()
def profile(
    network: EarlyExit,
    example: Value,
    *,
    sizes: Sequence[int] = (1, 32, 256),
    precision: Precision = "fp32",
    graphs: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure a network where it is, on rows like the example's, at several batch sizes.

    ``graphs`` times parts as CUDA graphs, as :class:`ttamer.torch.graphs.GraphRunner` runs them.
    """
    network.eval()
    device = device_of(network)
    sizes = tuple(sorted(set(sizes)))
    if not sizes or sizes[0] < 1:
        raise ArgumentError(f"batch sizes are {sizes}; name at least one, all of 1 or more")
    if graphs and device.type != "cuda":
        raise ArgumentError("CUDA graphs need a network on a GPU")
    table: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
    regroup = 0.0
    with autocast(device, precision):
        for size in sizes:
            if progress is not None:
                progress(f"timing batches of {size}")
            rows = torch.arange(size, device=device) % rows_of(example)
            parts = _Parts(network, take(to_device(example, device), rows), graphs=graphs)
            table[0].append(parts.segments())
            table[1].append(parts.asking())
            regroup = parts.regrouping()
    segments, asking = (tuple(zip(*rows, strict=True)) for rows in table)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Profile(network.names, sizes, segments, asking, regroup, name, precision, graphs)


class _Parts:
    """The parts of a network, each with what goes into it for one batch size."""

    def __init__(self, network: EarlyExit, value: Any, *, graphs: bool) -> None:
        self._network = network
        self._graphs = graphs
        self._size = rows_of(value)
        self._device = device_of(network)
        self._values = [value]
        for segment in network.segments:
            self._values.append(segment(self._values[-1]))

    def segments(self) -> tuple[float, ...]:
        pairs = zip(self._network.segments, self._values, strict=False)
        return tuple(self._flowing(partial(segment, value)) for segment, value in pairs)

    def asking(self) -> tuple[float, ...]:
        """Time every ramp with its decision, the host waiting; the head alone, flowing."""
        count = len(self._network.exits)
        # Nobody is ever sure enough, so that every exit finds its rows.
        decider = decider_for(threshold_tables(np.full(count, np.inf)), self._device)
        logits = self._network.exits[0](self._values[1])
        carry = decider.start(self._size, logits.shape[1], logits.dtype)
        rows = torch.arange(self._size, device=self._device)
        times = []
        for k, (ramp, value) in enumerate(zip(self._network.exits, self._values[1:], strict=True)):
            if k == count - 1:
                times.append(self._flowing(partial(ramp, value)))
                break

            def ask(k: int = k, ramp: Any = ramp, value: Any = value) -> None:
                decider.observe(carry, k, rows, ramp(value))

            act = self._replayed(ask)

            def ask_and_wait(act: Callable[[], object] = act) -> None:
                act()
                decider.look(carry, rows)

            times.append(timed(ask_and_wait, self._device))
        return tuple(times)

    def regrouping(self) -> float:
        """Time taking half of the rows out of the first value."""
        half = torch.arange(0, self._size, 2, device=self._device)
        return self._flowing(lambda: take(self._values[1], half), graph=False)

    def _flowing(self, work: Callable[[], object], *, graph: bool = True) -> float:
        return timed(self._replayed(work) if graph else work, self._device)

    def _replayed(self, work: Callable[[], object]) -> Callable[[], object]:
        if not self._graphs:
            return work
        from ttamer.torch.graphs import captured

        return captured(work)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return how long work takes when it is done again and again: the median of a few timings."""

    def once(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / repeats

    once(2)
    repeats = int(min(MOST_REPEATS, max(1, LEAST_SECONDS / max(once(1), 1e-9))))
    return statistics.median(once(repeats) for _ in range(GROUPS))
