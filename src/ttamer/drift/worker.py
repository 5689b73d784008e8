"""A queue and a thread that works it off, so that the caller never waits."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from ttamer.errors import TTamerError

T = TypeVar("T")


class Worker(Generic[T]):
    """Works on items one by one, in a thread.

    >>> done = []
    >>> worker = Worker(done.append, size=10, lost=print, name="example")
    >>> worker.put("a"), worker.close()
    (True, 0)
    >>> done
    ['a']

    Args:
        work: Called with each item, in the thread.
        size: The number of items that may wait.
        lost: Called with one line of text for each item whose work failed.
        name: The name of the thread.
    """

    def __init__(
        self, work: Callable[[T], None], *, size: int, lost: Callable[[str], None], name: str
    ) -> None:
        self._work, self._lost = work, lost
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._size = size
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of items that wait."""
        return self._items.qsize()

    def put(self, item: T) -> bool:
        """Add an item, without waiting.

        Args:
            item: The item.

        Returns:
            Whether there was room for it.
        """
        if self._items.qsize() >= self._size:
            return False
        self._items.put(item)
        return True

    def close(self, timeout: float | None = None) -> int:
        """Work off the items that wait, and end the thread; nothing may be added afterwards.

        Args:
            timeout: The number of seconds to wait at most.

        Returns:
            The number of items that were left.
        """
        left = 0
        self._items.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():  # the current item is its last
            with suppress(queue.Empty):
                while True:
                    left += self._items.get_nowait() is not None
            self._items.put(None)
        return left

    def _run(self) -> None:
        """Work on items until there is ``None``."""
        while (item := self._items.get()) is not None:
            try:
                self._work(item)
            except Exception as error:  # the thread must survive any failure
                with suppress(Exception):
                    self._lost(f"an audited row was lost: {failure_text(error)}")


def failure_text(error: Exception) -> str:
    """Return the text of an error of this package; of others their kind and place.

    The texts of others may hold prompts and answers.

    >>> failure_text(TTamerError("out of range"))
    'out of range'
    >>> failure_text(KeyError("an answer"))
    'KeyError'
    """
    if isinstance(error, TTamerError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + place
