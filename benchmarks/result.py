"""What a benchmark found, and the table it is shown in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timing import Ratio

__all__ = ["Result", "show"]


@dataclass(frozen=True)
class Result:
    """One measured number, and the target it is held against, if there is one."""

    what: str
    measured: float
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
    """The quartiles over the rounds, where there are rounds."""

    @classmethod
    def of_ratio(
        cls,
        what: str,
        ratio: Ratio,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> Result:
        """Return the median of a ratio, with its quartiles."""
        median, low, high = ratio
        return cls(what, median, "x", at_least, at_most, note, low, high)

    @property
    def holds(self) -> bool | None:
        """Whether the median meets the target; ``None`` without one."""
        if self.at_least is not None:
            return self.measured >= self.at_least
        if self.at_most is not None:
            return self.measured <= self.at_most
        return None

    @property
    def close(self) -> bool:
        """Whether the target lies between the quartiles, so that another run may differ."""
        target = self.at_most if self.at_least is None else self.at_least
        if target is None or self.low is None or self.high is None:
            return False
        return self.low <= target <= self.high

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        target = ""
        if self.at_least is not None:
            target = f">= {self.at_least:g} {self.unit}"
        if self.at_most is not None:
            target = f"<= {self.at_most:g} {self.unit}"
        verdict = {True: "yes", False: "NO", None: ""}[self.holds] + ("?" if self.close else "")
        spread = "" if self.low is None else f"{self.low:.3g} to {self.high:.3g}"
        return self.what, f"{self.measured:.3g} {self.unit}", spread, target, verdict, self.note


HEAD = ("what", "measured", "quartiles", "target", "holds", "median times")


def show(results: Sequence[Result]) -> None:
    """Print a table; a question mark says that the target lies between the quartiles."""
    rows = [HEAD, *(result.row() for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        what, *cells, holds, note = (
            cell.ljust(width) if column in (0, 4, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([what, *cells, holds, note]).rstrip())
