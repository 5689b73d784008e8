"""SIGHUP, which reloads a gateway, while its process starts: without a handler it would end it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hangups_blocked", "hangups_kept", "take_hangup"]

_HANGUPS = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
"""The signal, on systems that have it."""
_early: list[int] = []


@contextmanager
def hangups_kept() -> Iterator[None]:
    """Inside, a SIGHUP that no other handler takes is kept for :func:`take_hangup`."""
    if not _HANGUPS or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda sig, _: _early.append(sig))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUPS)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        _early.clear()


def take_hangup() -> bool:
    """Return whether a SIGHUP was kept; the next call returns false."""
    is_kept = bool(_early)
    _early.clear()
    return is_kept


@contextmanager
def hangups_blocked() -> Iterator[None]:
    """Inside, start processes to which SIGHUP is delivered once they keep it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
