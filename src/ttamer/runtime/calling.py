"""Calling one node, with one input or with several, within a time limit.

:func:`call` and :func:`call_async` take the same :class:`Call` and return the same
:class:`CallResult`; which node to call, and what its reply means, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import require_kind
from ttamer.errors import ArgumentError
from ttamer.runtime.reply import Reply, error_text, reply_of, rows_of

T = TypeVar("T")

# Seconds after which a cancelled call that has not ended is abandoned.
ABANDON_SECONDS = 0.1


@dataclass(frozen=True)
class Batched:
    """A callable that answers for several inputs at once; made by :func:`batched`."""

    answer: Callable[[Sequence[Any]], Any]
    size: int | None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Answer for several inputs."""
        return self.answer(inputs)

    def single(self, value: Any) -> Any:
        """Answer for one input; to be awaited where the callable is async."""
        returned = self.answer([value])
        return _first_of(returned) if inspect.isawaitable(returned) else rows_of(returned, 1)[0]


async def _first_of(returned: Awaitable[Any]) -> Any:
    return rows_of(await returned, 1)[0]


def batched(answer: Callable[[Sequence[Any]], Any], size: int | None = 32) -> Batched:
    """Mark a callable that takes a list of inputs and returns one reply for each.

    With measured costs, the cost of a row is its share of the time that its batch takes.

    Args:
        answer: From a list of inputs (or rows of an array, see :meth:`Cascade.run_batch`) to one
            reply for each, or to columns: a mapping of arrays, or a tuple of NumPy arrays
            ``(predictions, confidences)``.
        size: The largest number of inputs in one call, at least 1; ``None`` for no limit.

    Returns:
        A node for :func:`~ttamer.collect` and :class:`~ttamer.Cascade`.

    Raises:
        ArgumentError: If ``size`` is below 1.

    >>> from ttamer import collect
    >>> trace = collect(["a", "bb"], {"n": batched(lambda texts: [(len(t), 1.0) for t in texts])})
    >>> trace.classes
    ('1', '2')
    """
    if size is not None and size < 1:
        raise ArgumentError(f"size is {size}; a batch needs at least 1 input", param="size")
    return Batched(answer, size)


class Call(NamedTuple):
    """One input for one node."""

    function: Callable[[Any], Any]
    value: Any
    # Seconds until the call counts as failed
    timeout: float | None = None
    node: str = ""
    # The session that decides, in which this node is next
    session: Any = None
    # The calls made before (:class:`~ttamer.runtime.reply.NodeCall`)
    asked: Sequence[Any] = ()
    # When the time of the input is up, by ``time.perf_counter()``; no call is made after it
    end: float = math.inf


class CallResult(NamedTuple):
    """What the callable returned, or the error that it raised."""

    returned: Any
    error: Exception | None
    # How many calls were made: none where the time was up before
    calls: int
    # How many of them are paid: all but those whose error has ``paid = False``
    paid: int
    seconds: float

    @classmethod
    def of(cls, start: float, returned: Any, error: BaseException | None) -> CallResult:
        """Return the result of a call; what ends the program is raised."""
        if error is not None and not isinstance(error, Exception):
            raise error  # KeyboardInterrupt and SystemExit are not the node's
        paid = int(getattr(error, "paid", True))
        return cls(returned, error, 1, paid, time.perf_counter() - start)

    def reply(self) -> Reply | Exception:
        """Return the reply, or the error in its place."""
        if self.error is not None:
            return self.error
        try:
            return reply_of(self.returned)
        except Exception as error:  # an attribute of a user's object may raise anything
            return error

    def read(self) -> tuple[Reply | None, str | None]:
        """Return the reply, or why there is none."""
        reply = self.reply()
        return (None, error_text(reply)) if isinstance(reply, Exception) else (reply, None)


def is_async(function: Callable[[Any], Any]) -> bool:
    """Return whether calling it returns something to await."""
    if isinstance(function, Batched):
        function = function.answer
    called = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    return any(map(inspect.iscoroutinefunction, (function, called)))


def require_callables(nodes: Mapping[str, object]) -> None:
    """Refuse nodes that are not a mapping from names to callables."""
    remedy = 'name each callable: {"small": ask_small, "large": ask_large}'
    require_kind(nodes, Mapping, "nodes must be a mapping from names to callables", remedy)
    for name, node in nodes.items():
        if not callable(node):
            raise ArgumentError(
                f"node {name!r} must be a callable from an input to (prediction, confidence), not "
                f"{type(node).__name__}"
            )


def _limit(request: Call, start: float) -> float:
    """Return how many seconds a call may take that starts now: none where the time is up."""
    left = request.end - start
    return left if request.timeout is None else min(request.timeout, left)


# The result of a call that was not made.
_LATE = CallResult(None, TimeoutError("the time was up before the call"), 0, 0, 0.0)


def _timed_out(start: float, limit: float) -> CallResult:
    return CallResult.of(start, None, TimeoutError(f"no answer in {limit:.4g} s"))


def call(request: Call) -> CallResult:
    """Call now, in this thread unless there is a time limit."""
    start = time.perf_counter()
    limit = _limit(request, start)
    if limit <= 0:
        return _LATE
    if limit == math.inf:
        try:
            return CallResult.of(start, _returned(request), None)
        except Exception as error:  # whatever a user's function raises
            return CallResult.of(start, None, error)
    # A call that is late goes on in its thread, and is not awaited: Python ends no threads.
    answer = _in_thread(lambda: _returned(request))
    try:
        # A limit may be longer than what threads can wait for, and is then none.
        failure = answer.exception(min(limit, threading.TIMEOUT_MAX))
    except TimeoutError:  # of waiting: one that the function raised is returned
        return _timed_out(start, limit)
    return CallResult.of(start, None if failure else answer.result(), failure)


async def call_async(request: Call) -> CallResult:
    """Call without blocking: async functions in this loop, others in a thread of their own."""
    start = time.perf_counter()
    limit = _limit(request, start)
    if limit <= 0:
        return _LATE
    task = asyncio.create_task(_awaited(request))
    try:
        await asyncio.wait([task], timeout=None if limit == math.inf else limit)
        if not task.done():
            return _timed_out(start, limit)
        error = _error(task)
        return CallResult.of(start, None if error else task.result(), error)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_error)  # read, so that asyncio does not warn about it
            await asyncio.wait([task], timeout=ABANDON_SECONDS)


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return RuntimeError("the call was cancelled") if task.cancelled() else task.exception()


def call_rows(
    node: Callable[[Any], Any], values: Any, timeout: float | None = None, end: float = math.inf
) -> list[CallResult]:
    """Call a node with some inputs: together where it takes them so, else one by one."""
    if not isinstance(node, Batched):
        return [
            call(Call(node, row_of(values, row), timeout, end=end)) for row in range(len(values))
        ]
    size = node.size or max(len(values), 1)  # a range has no step of 0
    parts = [row_of(values, slice(k, k + size)) for k in range(0, len(values), size)]
    return [result for part in parts for result in _call_together(node, part, timeout, end)]


def _call_together(
    node: Batched, values: Any, timeout: float | None, end: float
) -> list[CallResult]:
    """Call a node once; where that fails, or does not return one reply for each, row by row."""
    result, count = call(Call(node, values, timeout, end=end)), len(values)
    if result.error is None:
        try:
            replies = rows_of(result.returned, count)
        except Exception as error:  # whatever a user's function returned
            result = result._replace(error=error)
        else:
            share = result.seconds / count
            return [CallResult(reply, None, 1, 1, share) for reply in replies]
    # What was late together would be late again, row after row.
    is_timed = timeout is not None or end < math.inf
    if count == 1 or (is_timed and isinstance(result.error, TimeoutError)):
        return [result] * count
    # One bad row must not cost the others their answers. A row comes as the batch does: as an
    # array, a frame or a list of one.
    alone = [row_of(values, slice(row, row + 1)) for row in range(count)]
    return [result for row in alone for result in _call_together(node, row, timeout, end)]


def row_of(values: Any, row: int | slice) -> Any:
    """Return one of several inputs, or those of a slice."""
    return (values.iloc if hasattr(values, "iloc") else values)[row]


def rows_at(values: Any, rows: Sequence[int] | NDArray[np.intp]) -> Any:
    """Return some of several inputs: rows of a frame or an array, or a list."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows]


async def _awaited(request: Call) -> Any:
    if is_async(request.function):
        return await request.function(request.value)
    answer = _in_thread(lambda: request.function(request.value))
    returned = await asyncio.wrap_future(answer)
    return await returned if inspect.isawaitable(returned) else returned


def _returned(request: Call) -> Any:
    """Call the function; what it returns to be awaited is awaited in a loop of its own."""
    returned = request.function(request.value)
    return run_awaitable(returned) if inspect.isawaitable(returned) else returned


def run_awaitable(awaitable: Awaitable[T]) -> T:
    """Await in a new event loop, which no other may enclose."""
    coroutine = awaitable if inspect.iscoroutine(awaitable) else _result_of(awaitable)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        result: T = asyncio.run(coroutine)
        return result
    coroutine.close()  # Python would warn that it was never awaited
    raise ArgumentError("an event loop is running here: await arun, instead of calling run")


async def _result_of(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _in_thread(function: Callable[[], Any]) -> futures.Future[Any]:
    """Call the function in a thread that does not keep the interpreter from ending."""
    # What a caller has set, such as the trace of a request, holds in the thread too.
    context, future = contextvars.copy_context(), futures.Future[Any]()
    future.set_running_or_notify_cancel()  # a waiter that leaves cannot cancel it

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except StopIteration:  # an awaited future cannot carry one, and would never end
            future.set_exception(RuntimeError("raised StopIteration"))
        except BaseException as error:  # passed on to whoever waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="ttamer node").start()
    return future


@contextmanager
def event_loop() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """Await for code that is not async itself, also where a loop is already running.

    >>> import asyncio
    >>> with event_loop() as run:
    ...     run(asyncio.sleep(0, "done"))
    'done'
    """
    # In a thread: this one may run a loop already, as notebooks do, and Ctrl-C must not wait.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="ttamer loop")
    thread.start()

    def run(awaitable: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_result_of(awaitable), loop).result()

    try:
        yield run
    finally:
        run(_end_tasks())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_tasks() -> None:
    """Cancel what nodes left running in this loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=ABANDON_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()
