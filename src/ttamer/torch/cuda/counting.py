"""Counters on a GPU, by which programs of a kernel find out which of them is the last.

A kernel that uses counters finds them at zero and leaves them at zero. Work that may run at the
same time must not share them: each stream has its own, and so has each pool of memory that graphs
are captured with, for graphs that share a pool never run at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


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
