"""Capturing work as CUDA graphs, and what kernels share while work is captured.

Kernels find out which of their programs is the last by *counters*. A kernel finds them at zero and
leaves them at zero. Work that may run at the same time must not share them: each stream has its
own, and so has each pool of memory that graphs are captured with, for graphs that share a pool
never run at the same time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ttamer._extras import is_installed
from ttamer.torch.cuda.branching import destroy_unused, replace_memsets

# How often work runs before it is captured.
WARM_UPS = 2
# The share of a device's memory below which that of graphs that are gone is released.
MIN_FREE = 0.5


def capture(
    work: Callable[[], object], pool: Any = None, *, warm_up: Callable[[], object] | None = None
) -> torch.cuda.CUDAGraph:
    """Capture work as a CUDA graph that can be replayed, or become a part of another graph.

    Graphs that never run at the same time can share a pool of memory. Nothing that work reads may
    be freed while the graph is in use. ``warm_up`` runs before in place of work that must not.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.stream(stream), counters_of(pool):
            for _ in range(WARM_UPS):
                (warm_up or work)()
            torch.cuda.synchronize()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    finally:
        torch.cuda.current_stream().wait_stream(stream)
    if is_installed("cuda.bindings"):
        replace_memsets(graph)
    return graph


def captured(
    work: Callable[[], object], pool: Any = None, *, warm_up: Callable[[], object] | None = None
) -> Callable[[], None]:
    """Capture work as :func:`capture` does, and return a function that replays it."""
    graph = capture(work, pool, warm_up=warm_up)
    graph.instantiate()
    return graph.replay


def release_memory() -> None:
    """Release the memory of graphs that are gone, which an allocation in a capture cannot do.

    Python's part of that takes time, and is left out while much of the device's memory is free.
    """
    destroy_unused()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        if free > MIN_FREE * total:
            return
    gc.collect()
    destroy_unused()
    torch.cuda.empty_cache()


@cache
def _stream(device: int) -> Any:
    """Return the stream of a device that work is captured on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


# The largest number of counters that a kernel can use.
MAX_COUNTERS = 1024
_owner: ContextVar[Hashable | None] = ContextVar("owner", default=None)
_counters: dict[Hashable, Tensor] = {}


@contextlib.contextmanager
def counters_of(owner: Hashable) -> Iterator[None]:
    """Let kernels that are launched meanwhile use the counters of an owner."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def counters(count: int, device: torch.device) -> Tensor | None:
    """Return at least ``count`` counters; ``None`` where there are too few, or none to own.

    >>> counters(3, torch.device("cpu"))[:3].tolist(), counters(9999, torch.device("cpu"))
    ([0, 0, 0], None)
    """
    if count > MAX_COUNTERS:
        return None
    owner = _owner.get()
    if owner is None and device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():  # by others: nothing is known of its replays
            return None
        owner = torch.cuda.current_stream(device).cuda_stream
    key = (device, owner)
    if key not in _counters:
        _counters[key] = torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)
    return _counters[key]


def block_for(count: int, at_least: int = 1) -> int:
    """Return the size of a block of numbers in a kernel: a power of two.

    >>> [block_for(count) for count in (1, 2, 3, 768)], block_for(3, at_least=128)
    ([1, 2, 4, 1024], 128)
    """
    return max(1 << (count - 1).bit_length(), at_least)
