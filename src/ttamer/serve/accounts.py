"""What each API key spends: its requests, its costs, its budget and its rate.

Counts are those since the start of the gateway. A budget is for a period, such as a day: periods
begin at multiples of their length since 1970, so that a day begins at midnight UTC.

Several workers share the counts of keys that have a limit in a file (:class:`Ledger`), which each
of them maps into memory. Every step reads, checks and writes under the file's lock, in a few
microseconds, so budgets and rates hold for all workers together exactly as for one process. The
system releases the lock of a process that ends; what such a process had booked stays booked.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ttamer._numbers import counted
from ttamer.errors import CascadeError
from ttamer.fitted.sessions import SLACK
from ttamer.serve.http import RetryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ttamer.serve.config import KeySettings

__all__ = [
    "Account",
    "BudgetSpent",
    "KeyRefused",
    "Ledger",
    "RateExceeded",
    "change_accounts",
]

MAX_ACCOUNTS = 4096
"""The most accounts in a ledger; a key counts once for each length of its period."""
_NAME_BYTES = 16
"""An entry of a ledger begins with this many bytes of the hash of its name."""
_COUNTS = struct.Struct("=qdddqq")
"""The counts of an entry, in the order of their fields."""
_ENTRY_BYTES = _NAME_BYTES + _COUNTS.size


class KeyRefused(RetryLater):
    """A request that its key does not allow now."""

    reason = ""
    """The limit, in metrics: "budget" or "rate"."""


class BudgetSpent(KeyRefused):
    """The budget of the key is spent."""

    code = "insufficient_quota"
    reason = "budget"


class RateExceeded(KeyRefused):
    """The key has made too many requests in the last minute."""

    code = "rate_limit_exceeded"
    reason = "rate"


@dataclass(slots=True)
class _Counts:
    """The counts of one account.

    A ledger writes them in this order: the period before what was spent in it, so that a process
    that is killed in between leaves more booked than was spent, not less.
    """

    window: int
    spent: float
    tokens: float
    refilled: float
    refused_budget: int = 0
    refused_rate: int = 0

    def read(self, memory: mmap.mmap, place: int) -> None:
        """Take the counts at a place of a ledger."""
        (
            self.window,
            self.spent,
            self.tokens,
            self.refilled,
            self.refused_budget,
            self.refused_rate,
        ) = _COUNTS.unpack_from(memory, place)

    def write(self, memory: mmap.mmap, place: int) -> None:
        """Put the counts at a place of a ledger."""
        _COUNTS.pack_into(
            memory,
            place,
            self.window,
            self.spent,
            self.tokens,
            self.refilled,
            self.refused_budget,
            self.refused_rate,
        )


class Account:
    """The spending of one API key.

    >>> account = Account("web", budget=10.0)
    >>> account.admit()
    >>> window = account.reserve(9.0)
    >>> account.left
    1.0
    >>> account.settle(window, 9.0, 2.0)
    >>> account.left
    8.0
    """

    def __init__(
        self,
        name: str,
        *,
        budget: float | None = None,
        period: float = 86_400.0,
        rate: float | None = None,
        clock: Callable[[], float] = time.time,
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        self._budget, self._period, self._rate = budget, period, rate
        self._clock, self._ledger = clock, ledger
        self._open()

    def _open(self) -> None:
        """Begin to count in this period."""
        self._counts = _Counts(self._window_now(), 0.0, self._burst, self._clock())
        self._access: AbstractContextManager[object] = nullcontext()
        """Inside, no other process changes the counts."""
        self._is_shared = False
        self._share()

    def _share(self) -> None:
        """Count with the other processes where there is a limit; without one, nothing waits."""
        if self._is_shared or self._ledger is None or self._budget is self._rate is None:
            return
        self._turn()
        own = self._counts
        self._counts = _Counts(own.window, 0.0, self._burst, own.refilled)
        self._access = self._ledger.entry(_entry_name(self.name, self._period), self._counts)
        self._is_shared = True
        self.book(own.spent)

    @property
    def _burst(self) -> float:
        """The most requests at once: those of a minute, and at least one where there are fewer."""
        return 0.0 if self._rate is None else max(1.0, self._rate)

    def change(self, *, budget: float | None, period: float, rate: float | None) -> None:
        """Change the limits; what was spent in a period of the same length still counts."""
        had_rate = self._rate is not None
        self._budget, self._rate = budget, rate
        if period != self._period:
            self._period = period
            self._open()
        self._share()
        with self._access:
            left = self._counts.tokens if had_rate else self._burst
            self._counts.tokens = min(left, self._burst)

    @property
    def spent(self) -> float:
        """What the key has spent in this period, open charges at the most they can be."""
        with self._access:
            self._turn()
            return self._counts.spent

    @property
    def left(self) -> float:
        """What the key may still spend in this period; infinite without a budget."""
        return math.inf if self._budget is None else max(0.0, self._budget - self.spent)

    def admit(self) -> None:
        """Count a request against the rate.

        Raises:
            BudgetSpent: If nothing is left of the budget.
            RateExceeded: If there were too many requests.
        """
        if self._budget is not None and self.left <= 0:
            raise self.budget_spent()
        if self._rate is None:
            return
        with self._access:
            counts, now = self._counts, self._clock()
            refill = max(0.0, now - counts.refilled) * self._rate / 60
            counts.tokens, counts.refilled = min(self._burst, counts.tokens + refill), now
            if counts.tokens >= 1:
                counts.tokens -= 1
                return
            counts.refused_rate += 1
            wait = math.ceil((1 - counts.tokens) * 60 / self._rate)
        raise RateExceeded(
            f"this API key may make {counted(self._rate, 'request', 'g')} a minute", wait
        )

    def budget_spent(self) -> BudgetSpent:
        """Return the refusal of a request that the budget does not allow."""
        with self._access:
            self._counts.refused_budget += 1
        wait = math.ceil((self._window_now() + 1) * self._period - self._clock())
        return BudgetSpent(f"the budget of this API key is spent: {self._budget:g}", max(1, wait))

    def reserve(self, cost: float) -> int | None:
        """Book a cost if the budget allows it, in one step.

        Args:
            cost: The most that a call can cost.

        Returns:
            The period that the cost belongs to; ``None`` where it is more than is left.
        """
        with self._access:
            self._turn()
            counts = self._counts
            if self._budget is not None:
                left = max(0.0, self._budget - counts.spent)
                if cost > left * (1 + SLACK) + SLACK:
                    return None
            counts.spent += cost
            return counts.window

    def book(self, cost: float) -> int:
        """Book a cost that was paid already; return the period that it belongs to."""
        with self._access:
            self._turn()
            self._counts.spent += cost
            return self._counts.window

    def settle(self, window: int, reserved: float, cost: float) -> None:
        """Replace a cost that was booked by another."""
        with self._access:
            self._turn()
            self._counts.spent += cost - (reserved if window == self._counts.window else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for the status page, in plain values."""
        with self._access:
            self._turn()
            counts = self._counts
            return {
                "budget": self._budget,
                "period": self._period,
                "spent_in_period": counts.spent,
                "shared": self._is_shared,
                "rate": self._rate,
                "refused": {"budget": counts.refused_budget, "rate": counts.refused_rate},
            }

    def _turn(self) -> None:
        """Begin a new period where the last one is over."""
        window, counts = self._window_now(), self._counts
        if window != counts.window:
            counts.window, counts.spent = window, 0.0

    def _window_now(self) -> int:
        return math.floor(self._clock() / self._period)


def change_accounts(
    accounts: dict[str, Account],
    keys: Sequence[KeySettings],
    clients: Sequence[str],
    ledger: Ledger | None,
) -> None:
    """Open an account for each client that has none, close those of others, and set their limits.

    What clients have spent is kept. Where there are too many accounts, none changes.

    Args:
        accounts: The accounts by name.
        keys: The keys that may have limits.
        clients: The names of all clients that have a key.
        ledger: Where several processes share the counts.

    Raises:
        CascadeError: If the ledger has no room for all of them.
    """
    limits = {key.name: key for key in keys}
    if ledger is not None:
        limited = [k for k in keys if k.budget is not None or k.requests_per_minute is not None]
        ledger.check_room([_entry_name(key.name, key.budget_seconds) for key in limited])
    names = dict.fromkeys([*(name for name in clients if name not in limits), *limits])
    for name in accounts.keys() - names:
        del accounts[name]
    for name in names:
        key = limits.get(name)
        if name not in accounts:
            accounts[name] = Account(name, ledger=ledger)
        if key is not None:
            accounts[name].change(
                budget=key.budget, period=key.budget_seconds, rate=key.requests_per_minute
            )


def _entry_name(name: str, period: float) -> str:
    """Return the name of an account's entry in a ledger."""
    return f"{name}\0{period!r}"


def _digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_NAME_BYTES).digest()


class Ledger:
    """The counts of accounts in a file that several processes share.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = (Ledger(Path(folder, "accounts")) for _ in range(2))
    ...     first = Account("web", budget=10.0, ledger=one)
    ...     second = Account("web", budget=10.0, ledger=two)
    ...     _ = first.reserve(9.0)
    ...     second.left, second.reserve(2.0)
    (1.0, None)

    Args:
        path: The file; created, for its owner alone, where it does not exist.
    """

    def __init__(self, path: Path) -> None:
        import fcntl  # not on every system, as workers are not

        self._flock, self._lock, self._unlock = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_UN
        # A descriptor of its own: the lock belongs to it.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._file, MAX_ACCOUNTS * _ENTRY_BYTES)
        self._memory = mmap.mmap(self._file, MAX_ACCOUNTS * _ENTRY_BYTES)

    def entry(self, name: str, counts: _Counts) -> AbstractContextManager[object]:
        """Return access to the counts of a name: those in the file, or these where it has none.

        Args:
            name: The name.
            counts: Updated on entering the context, and written on leaving it.

        Returns:
            A context inside which no other process changes the counts.

        Raises:
            CascadeError: If there are too many accounts.
        """
        digest = _digest(name)
        with self:
            places = self._places()
            place = places.get(digest)
            if place is None:
                place = len(places) * _ENTRY_BYTES
                self._check_fits(len(places) + 1)
                counts.write(self._memory, place + _NAME_BYTES)
                self._memory[place : place + _NAME_BYTES] = digest
        return _Entry(self, self._memory, place + _NAME_BYTES, counts)

    def check_room(self, names: Sequence[str]) -> None:
        """Refuse names of which there are too many, with those that have an entry.

        Args:
            names: The names.

        Raises:
            CascadeError: If there are too many accounts.
        """
        with self:
            self._check_fits(len(self._places().keys() | {_digest(name) for name in names}))

    def _places(self) -> dict[bytes, int]:
        """Return where the entry of each name begins, by the hash of the name."""
        found: dict[bytes, int] = {}
        for place in range(0, len(self._memory), _ENTRY_BYTES):
            digest = self._memory[place : place + _NAME_BYTES]
            if digest == bytes(_NAME_BYTES):
                break  # entries are not removed
            found[digest] = place
        return found

    def _check_fits(self, count: int) -> None:
        """Refuse a number of accounts that is too large."""
        if count * _ENTRY_BYTES > len(self._memory):
            raise CascadeError(
                f"[[serve.key]]: with several workers there are at most {MAX_ACCOUNTS} keys; "
                "remove some, or restart where many were replaced"
            )

    def __enter__(self) -> None:
        self._flock(self._file, self._lock)

    def __exit__(self, *_: object) -> None:
        self._flock(self._file, self._unlock)

    def __del__(self) -> None:
        os.close(self._file)


class _Entry:
    """The counts of one account in a ledger."""

    def __init__(self, ledger: Ledger, memory: mmap.mmap, place: int, counts: _Counts) -> None:
        self._ledger, self._memory, self._place, self._counts = ledger, memory, place, counts

    def __enter__(self) -> None:
        self._ledger.__enter__()
        self._counts.read(self._memory, self._place)

    def __exit__(self, *_: object) -> None:
        self._counts.write(self._memory, self._place)
        self._ledger.__exit__()
