"""Waiting for something that happens in another thread or process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_WAIT = 600.0
"""Seconds after which a test gives up. It is long because a busy machine is no fault: only a test
that would fail anyway waits for all of it."""


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + LONGEST_WAIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)
