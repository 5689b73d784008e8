"""A thread that works on what is put into its queue, so that whoever puts it there never waits."""

from __future__ import annotations

import queue
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ttamer.errors import TTamerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Worker"]

T = TypeVar("T")


class Worker(Generic[T]):
    """Works on items one by one; ``lost`` is told in one line of each that came to nothing."""

    def __init__(
        self, work: Callable[[T], None], *, most: int, lost: Callable[[str], None], name: str
    ) -> None:
        self._work, self._lost = work, lost
        self._items: queue.Queue[T | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return self._items.qsize()

    def put(self, item: T) -> bool:
        """Let an item be worked on; say whether there was room for it. Never waits."""
        try:
            self._items.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, timeout: float | None = None) -> int:
        """Work off what waits, and end; return how many items are left after so many seconds.

        Nothing may be put any more. Once is enough.
        """
        left = 0
        self._items.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():  # then the item in work is its last
            with suppress(queue.Empty):
                while True:
                    left += self._items.get_nowait() is not None
            self._items.put(None)
        return left

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._work(item)
            except TTamerError as error:
                self._lost(str(error))
            except Exception as error:  # whatever an item can do, the thread lives on
                at = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(at.filename).name}:{at.lineno}"
                self._lost(f"an audited row came to nothing: {type(error).__name__} at {place}")
