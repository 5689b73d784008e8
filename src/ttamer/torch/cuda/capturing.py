"""Capturing work as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from ttamer.torch.cuda.branching import destroy_unused, replace_memsets
from ttamer.torch.cuda.counting import counters_of

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
    if find_spec("cuda") is not None and find_spec("cuda.bindings") is not None:
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
