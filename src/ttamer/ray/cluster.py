"""A Ray cluster: connecting to it, and running tasks on it in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ttamer.errors import TTamerError

# The number of times a task is repeated after its process died.
RETRIES = 5
# The number of tasks per core that may be submitted before the first result is taken.
MAX_TASKS_PER_CORE = 4


class WorkLost(TTamerError):  # noqa: N818 - named after what happened
    """A task failed on the cluster, and repeating it did not help."""


@contextmanager
def joined(address: str | None = None, **options: Any) -> Iterator[None]:
    """Connect to a cluster, as a context manager.

    Where this process is connected already, that connection is used and left open::

        with joined("auto"):
            ladder = fit_parquet("log.parquet", "cascade.toml")

    Args:
        address: The address of a running cluster (``"auto"``, ``"ray://host:10001"``), or
            ``"local"`` for one on this machine that is started here and stopped afterwards.
        **options: The options of ``ray.init``.

    Yields:
        ``None``, while the process is connected.

    Raises:
        WorkLost: Where the cluster cannot be reached.
    """
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(
            address=address or "local",
            **{"include_dashboard": False, "logging_level": "warning", **options}
            if address in (None, "local")
            else options,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise WorkLost(
            f"no Ray cluster is reachable at {address!r}: {line}; start one with ray start --head, "
            'or use "local"'
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def cpus() -> int:
    """Return the number of cores of the cluster, at least 1."""
    return max(1, int(resources().get("CPU", 1)))


def resources() -> dict[str, float]:
    """Return the resources of the cluster by kind: CPU, GPU and others."""
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


def in_order(submit: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
    """Run tasks on the cluster, and yield their results in the order of the pieces.

    ``submit`` starts the task of a piece and returns its reference. Only as many are submitted as
    keep the cores busy, so the results that wait to be taken stay few even if one task is slow.
    """
    under_way: deque[tuple[Any, Any]] = deque()
    limit = MAX_TASKS_PER_CORE * cpus()
    waiting = iter(pieces)
    try:
        while True:
            while len(under_way) < limit and (piece := next(waiting, None)) is not None:
                under_way.append((piece, submit(piece)))
            if not under_way:
                return
            piece, reference = under_way.popleft()
            yield _got(piece, reference)
    finally:
        for _, reference in under_way:
            ray.cancel(reference)


def _got(piece: Any, reference: Any) -> Any:
    """Return the result of a task, or raise its error."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, TTamerError):
            raise error.cause from None
        raise
    except RayError as error:
        line = str(error).strip().partition("\n")[0]
        raise WorkLost(
            f"{piece}: failed after {RETRIES} retries: {type(error).__name__}: {line}; see the log "
            "of the cluster for what ends its workers (most often memory)"
        ) from None
