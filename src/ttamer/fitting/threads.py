"""Work on many rows, on as many threads as there are cores: NumPy leaves the interpreter free."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["on_threads"]

MIN_ROWS = 50_000
"""With fewer rows, starting threads takes longer than they save."""
MAX_THREADS = 4
"""Each thread has arrays of its own, of up to a quarter of a GiB."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(work: Callable[[Item], Result], items: Iterable[Item], *, rows: int) -> list[Result]:
    """Return ``work(item)`` for each item, in their order; the same whatever the threads.

    >>> on_threads(abs, [-1, 2, -3], rows=10)
    [1, 2, 3]
    """
    threads = min(os.cpu_count() or 1, MAX_THREADS)
    if rows < MIN_ROWS or threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
