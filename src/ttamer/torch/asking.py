"""Asking exits on a GPU without graphs of the network: the ramp and the decision as one launch.

Where nothing is captured, the host's launches are what takes the time, and a ramp has several
kernels. Once an exit has been asked with values of some shape, its ramp and its decision are
captured as a small CUDA graph: the value is copied to the memory that the graph reads, and the
graph is replayed. Shapes that are seen once, and ramps that cannot be captured, are run as they
are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from ttamer.torch.cuda.capturing import captured
from ttamer.torch.devices import tensors_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ttamer.torch.decide_triton import TritonCarry, TritonDecider


LOG = logging.getLogger(__name__)
# An exit is captured once it was asked so often with values of a shape.
MIN_SEEN = 2
# The largest number of exits and shapes that are captured.
MAX_GRAPHS = 512
# Tensors begin at multiples of this many bytes.
PAGE = 512


class Asking:
    """Ramps and decisions of one runner on a GPU, and the state of its batches."""

    def __init__(self, decider: TritonDecider) -> None:
        self._decider = decider
        self._carries: dict[int, TritonCarry] = {}
        self._inputs: dict[Hashable, tuple[Tensor, ...]] = {}
        self._graphs: dict[Hashable, Callable[[], None] | None] = {}
        self._seen: dict[Hashable, int] = {}
        self._memory: Tensor | None = None
        self._pool: Any = None  # of graphs that are never replayed at the same time

    def ask(
        self, exit_: int, ramp: nn.Module, value: Any, rows: Tensor, count: int,
        *, awaited: bool, first: bool,
    ) -> TritonCarry:  # fmt: skip
        """Ask one exit for some rows of a batch of ``count``, and return the state of the batch."""
        parts = tensors_of(value)
        reads = getattr(ramp, "reads", range(len(parts)))
        read = tuple(parts[at] for at in reads)
        shape = tuple((part.shape, part.dtype) for part in read)
        key = (exit_, shape, rows.data_ptr(), count, first, awaited)
        if key not in self._graphs:
            seen = self._seen[key] = self._seen.get(key, 0) + 1
            if seen < MIN_SEEN or len(self._graphs) >= MAX_GRAPHS:
                return self._run(exit_, ramp, value, rows, count, awaited=awaited, first=first)
            if shape not in self._inputs:
                self._inputs[shape] = self._placed(read)
            placed = dict(zip(reads, self._inputs[shape], strict=True))
            given: Any = tuple(placed.get(at, part) for at, part in enumerate(parts))
            if isinstance(value, torch.Tensor):
                given = given[0]
            self._graphs[key] = self._captured(
                lambda: ramp(given),
                lambda: self._run(exit_, ramp, given, rows, count, awaited=awaited, first=first),
            )
        graph = self._graphs[key]
        if graph is None:
            return self._run(exit_, ramp, value, rows, count, awaited=awaited, first=first)
        for kept, part in zip(self._inputs[shape], read, strict=True):
            kept.copy_(part)
        self._decider.expect()
        graph()
        return self._carries[count]

    def _captured(
        self, warm_up: Callable[[], object], work: Callable[[], object]
    ) -> Callable[[], None] | None:
        """Capture work without running it; return ``None`` where that is not possible."""
        if not torch.cuda.is_available():
            return None
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            with _uncached():
                return captured(work, self._pool, warm_up=warm_up)
        except Exception as error:  # whatever a ramp does that a capture does not allow
            LOG.info("an exit is not captured: %s: %s", type(error).__name__, error)
            return None

    def _placed(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return tensors like these in memory that all graphs share: one is replayed at a time."""
        sizes = [-(-part.numel() * part.element_size() // PAGE) * PAGE for part in parts]
        if self._memory is None or len(self._memory) < sum(sizes):
            self._memory = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        places = torch.split(self._memory[: sum(sizes)], sizes)
        return tuple(
            place.view(part.dtype).as_strided(
                part.shape, torch.empty_like(part, device="meta").stride()
            )
            for place, part in zip(places, parts, strict=True)
        )

    def _run(
        self, exit_: int, ramp: nn.Module, value: Any, rows: Tensor, count: int,
        *, awaited: bool, first: bool,
    ) -> TritonCarry:  # fmt: skip
        """Run the ramp and the decision as they are."""
        logits = ramp(value)
        if count not in self._carries:
            self._carries[count] = self._decider.start(count, logits.shape[1], logits.dtype)
        carry = self._carries[count]
        self._decider.observe(carry, exit_, rows, logits, awaited=awaited, first=first)
        return carry


def _uncached() -> contextlib.AbstractContextManager[object]:
    """Return the present precision without its cache of weights, which a graph would outlive."""
    if not torch.is_autocast_enabled("cuda"):
        return contextlib.nullcontext()
    kind = torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", dtype=kind, cache_enabled=False)
