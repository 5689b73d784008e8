"""Calling one node about one input: within a time limit, and twice where it is slow.

Both :func:`call` and :func:`call_async` take the same :class:`Call` and give the same
:class:`Heard`; whom to call, and what to make of it, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "Heard", "call", "call_async", "is_async"]

LEAVE_BEHIND = 0.1
"""Seconds a cancelled call is waited for; one that does not end by then is left behind."""


@dataclass(frozen=True)
class Call:
    """One question to one node."""

    function: Callable[[Any], Any]
    value: Any
    timeout: float | None = None
    """Seconds until it counts as failed."""
    hedge: float | None = None
    """Seconds after which the same is asked a second time; the first answer counts."""


@dataclass(frozen=True)
class Heard:
    """What came of it: what was said, or the error."""

    said: Any
    error: Exception | None
    made: int
    """How many calls were made."""
    paid: int
    """How many of them are to be paid: all but those whose error has ``paid = False``."""
    seconds: float


def is_async(function: Callable[[Any], Any]) -> bool:
    """Say whether calling it gives something to await."""
    own = inspect.iscoroutinefunction(function)
    return own or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class _Calls:
    """The calls of one question: when to make the second, and which answer counts."""

    def __init__(self, question: Call) -> None:
        self.start = time.monotonic()
        self.end = None if question.timeout is None else self.start + question.timeout
        self.hedge = None if question.hedge is None else self.start + question.hedge
        self.made = self.failed = self.unpaid = 0
        self.error: Exception | None = None

    def wait(self) -> float | None:
        """Return for how long to wait for the calls made."""
        ends = [end for end in (self.end, self.hedge) if end is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def is_over(self) -> bool:
        """Say whether nothing came in time; if not, it is time for the second call."""
        if self.end is not None and time.monotonic() >= self.end:
            self.error = TimeoutError(f"no answer in {self.end - self.start:.4g} s")
            return True
        self.hedge = None
        return False

    def fail(self, error: BaseException) -> bool:
        """Count a failed call; say whether it was the last one under way."""
        if not isinstance(error, Exception):
            raise error
        self.error = error
        self.failed += 1
        self.unpaid += not getattr(error, "paid", True)
        return self.failed == self.made

    def heard(self, said: Any = None, *, well: bool = False) -> Heard:
        error = None if well else self.error
        seconds = time.monotonic() - self.start
        return Heard(said, error, self.made, self.made - self.unpaid, seconds)


def call(question: Call) -> Heard:
    """Ask now, in this thread unless there is a time to keep."""
    calls = _Calls(question)
    if question.timeout is None and question.hedge is None:
        calls.made = 1
        try:
            return calls.heard(question.function(question.value), well=True)
        except Exception as error:  # whatever a user's function raises
            calls.fail(error)
            return calls.heard()
    came: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    while True:
        _thread(question, lambda *result: came.put(result))
        calls.made += 1
        while True:
            try:
                said, raised = came.get(timeout=calls.wait())
            except queue.Empty:
                if calls.is_over():
                    return calls.heard()
                break
            if raised is None:
                return calls.heard(said, well=True)
            if calls.fail(raised):
                return calls.heard()


async def call_async(question: Call) -> Heard:
    """Ask without blocking: async functions here, others in a thread of their own."""
    calls = _Calls(question)
    tasks: set[asyncio.Task[Any]] = set()
    ask_once = _awaited if is_async(question.function) else _in_thread
    try:
        while True:
            tasks.add(asyncio.create_task(ask_once(question)))
            calls.made += 1
            while True:
                done, tasks = await asyncio.wait(
                    tasks, timeout=calls.wait(), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    if calls.is_over():
                        return calls.heard()
                    break
                good = [task for task in done if _error(task) is None]
                if good:
                    return calls.heard(good[0].result(), well=True)
                over = [calls.fail(_error(task) or RuntimeError()) for task in done]
                if any(over):
                    return calls.heard()
    finally:
        if tasks:
            for task in tasks:
                task.cancel()
                task.add_done_callback(_error)  # an error that nobody waits for is no news
            await asyncio.wait(tasks, timeout=LEAVE_BEHIND)


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return RuntimeError("the call was cancelled") if task.cancelled() else task.exception()


async def _awaited(question: Call) -> Any:
    return await question.function(question.value)


async def _in_thread(question: Call) -> Any:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[Any] = loop.create_future()

    def settle(said: Any, error: BaseException | None) -> None:
        if came.done():
            return
        if error is None:
            came.set_result(said)
        elif isinstance(error, StopIteration):  # a future cannot carry one
            came.set_exception(RuntimeError("raised StopIteration"))
        else:
            came.set_exception(error)

    def tell(said: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, said, error)

    _thread(question, tell)
    said = await came
    return await said if inspect.isawaitable(said) else said


def _thread(question: Call, tell: Callable[[Any, BaseException | None], None]) -> None:
    """Call the function in a thread that does not keep the interpreter from ending."""
    context = contextvars.copy_context()

    def work() -> None:
        try:
            said = context.run(question.function, question.value)
        except BaseException as error:  # told to who waits
            tell(None, error)
        else:
            tell(said, None)

    threading.Thread(target=work, daemon=True, name="ttamer node").start()
