"""Audited rows that wait for their label.

Who audits does not know the right answer; it may come an hour later, or never. It may even come
before the audit is done.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttamer.drift.audit_log import AuditRow

__all__ = ["Unlabelled"]


class Unlabelled:
    """Joins rows and labels by the request's id; the oldest are forgotten when there are too many.

    >>> waiting = Unlabelled(most=100)
    >>> waiting.expect("request-1")
    >>> waiting.label("request-2", "B")
    (False, None)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._expected: OrderedDict[str, AuditRow | str | None] = OrderedDict()
        """A row that waits, a label that came first, or nothing yet."""

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, request: str) -> None:
        """Say that a request is being audited."""
        self._expected[request] = None
        while len(self._expected) > self._most:
            self._expected.popitem(last=False)

    def add(self, request: str, row: AuditRow) -> AuditRow:
        """Take an audited row; return it, with its label where that came first."""
        found = self._expected.get(request)
        if isinstance(found, str):
            del self._expected[request]
            return dataclasses.replace(row, label=found)
        if request in self._expected:
            self._expected[request] = row
        return row

    def label(self, request: str, label: str) -> tuple[bool, AuditRow | None]:
        """Take a label; return whether it is waited for, and the row with it, if it is there."""
        if request not in self._expected:
            return False, None
        row = self._expected[request]
        if row is None or isinstance(row, str):
            self._expected[request] = label
            return True, None
        del self._expected[request]
        return True, dataclasses.replace(row, label=label)

    def forget(self, request: str) -> None:
        """Say that the audit came to nothing."""
        self._expected.pop(request, None)
