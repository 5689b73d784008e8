"""What is known of an input before any node is asked."""

from __future__ import annotations

from dataclasses import dataclass

from ttamer.fitting.belief import Floats, bar_of


@dataclass(frozen=True, eq=False)
class Prior:
    """The log-odds that each node errs, and what it costs, from the features of an input."""

    base: Floats
    """Shape (n,): the log-odds of each node where nothing is known of the input."""

    @property
    def unknown(self) -> tuple[list[float], float]:
        """The log-odds of an input of which nothing is known, and their mean."""
        return self.base.tolist(), float(bar_of(self.base))
