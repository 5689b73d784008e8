"""A limit in time for what a task waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["TimeLimit"]


class TimeLimit:
    """What ``asyncio.timeout`` does, at half its price: every call of a node has one.

    ::

        with TimeLimit(2.0):
            await ...           # TimeoutError after two seconds
    """

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit belongs to a task")
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if not self._is_over or self._task.uncancel() > self._cancelling:
            return  # in time, or somebody else wants it to end besides
        if kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()
