"""A Ray cluster: joined for as long as there is work, and work done on it in order."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from ttamer.errors import TTamerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["RETRIES", "WorkLost", "cpus", "in_order", "joined", "resources"]

RETRIES = 5
"""How often work is done again after the process that did it died."""
AHEAD = 4
"""Pieces of work per core that may be under way before the first of them is taken."""


class WorkLost(TTamerError):  # noqa: N818 - the name says what happened
    """Work could not be done on the cluster, however often it was tried."""


@contextmanager
def joined(address: str | None = None, **options: Any) -> Iterator[None]:
    """Be connected to a cluster while inside.

    ``address`` is that of a running cluster (``"auto"``, ``"ray://host:10001"``), or ``"local"``
    for one started here and ended after. Where this process is connected already, that connection
    is used and left as it is. Further options as for ``ray.init``.
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
            f"no Ray cluster can be had at {address!r}: {line}; start one with ray start --head, "
            'or use "local"'
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def cpus() -> int:
    """Return how many cores the cluster has for work, at least 1."""
    return max(1, int(resources().get("CPU", 1)))


def resources() -> dict[str, float]:
    """Return what the cluster has in all, by kind: CPU, GPU and others."""
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


def in_order(submit: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
    """Do pieces of work on the cluster; yield what came of them in the order of the pieces.

    ``submit`` starts one and returns its reference. Only so many are under way that no core waits,
    so what is done and not yet taken stays bounded, however slow one of them is.
    """
    under_way: deque[tuple[Any, Any]] = deque()
    most = AHEAD * cpus()
    waiting = iter(pieces)
    try:
        while True:
            while len(under_way) < most and (piece := next(waiting, None)) is not None:
                under_way.append((piece, submit(piece)))
            if not under_way:
                return
            piece, reference = under_way.popleft()
            yield _got(piece, reference)
    finally:
        for _, reference in under_way:
            ray.cancel(reference)


def _got(piece: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, TTamerError):
            raise error.cause from None
        raise
    except RayError as error:
        line = str(error).strip().partition("\n")[0]
        raise WorkLost(
            f"{piece}: given up after {RETRIES} more tries: {type(error).__name__}: {line}; see "
            "the log of the cluster for what ends its workers (memory, most often)"
        ) from None
