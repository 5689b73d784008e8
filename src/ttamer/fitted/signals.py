"""Signals: what is known of an input before anybody is asked, and what it tells.

A signal is a number, a length or a time of day, cut into bins by the rows fitted to. For every bin,

- its *lean* for each node is what the signal adds to the log-odds that the node is wrong, given the
  node's confidence and the class it predicts;
- its *doubt* is what it adds to the log-odds that a node is wrong, given nothing else.

Leans enter beliefs. The sum of doubts is the state of a *router*: a node that costs nothing, cannot
answer (its loss is infinite), and comes before all others, so that the policy may begin with one
model on one input and with another on the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError, ObservationError
from ttamer.fitted.quantiser import Quantiser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["BOOKKEEPING", "MOST_BINS", "Signals", "signal_names", "signal_values"]

MOST_BINS = 8
BOOKKEEPING = ("audit_number", "audit_time", "audit_chance")
"""Columns that a log of audits keeps beside each row. They say nothing of the input."""


@dataclass(frozen=True, eq=False)
class Signals:
    """What the bins of each signal tell."""

    names: tuple[str, ...]
    bounds: tuple[NDArray[np.float64], ...]
    """Per signal, increasing numbers that part it into bins ..."""
    leans: tuple[NDArray[np.float64], ...]
    """... shape (bins, nodes): what each bin adds to a node's log-odds ..."""
    doubts: tuple[NDArray[np.float64], ...]
    """... shape (bins,): and to what is known before anybody is asked."""

    def lean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, shape (T, nodes), what signals of shape (T, k) add to each node's log-odds."""
        bins = self._quantiser.states(values)
        total: NDArray[np.float64] = sum(
            (own[bins[:, k]] for k, own in enumerate(self.leans)),
            start=np.zeros((len(values), self.leans[0].shape[1])),
        )
        return total

    def doubt(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, shape (T,), the state of the router before it is quantised."""
        bins = self._quantiser.states(values)
        total: NDArray[np.float64] = sum(
            (own[bins[:, k]] for k, own in enumerate(self.doubts)), start=np.zeros(len(values))
        )
        return total

    def told(self, given: Mapping[str, float]) -> tuple[list[float], float, int]:
        """Return what signals of one input add to each node, the doubt, and how many are unknown.

        A signal that is not given, or is not a number, tells nothing.
        """
        lean, doubt, unknown = np.zeros(self.leans[0].shape[1]), 0.0, 0
        for k, name in enumerate(self.names):
            value = _number(name, given.get(name, np.nan))
            if value != value:
                unknown += 1
                continue
            place = int(np.searchsorted(self.bounds[k], value, side="right"))
            lean += self.leans[k][place]
            doubt += float(self.doubts[k][place])
        return lean.tolist(), doubt, unknown

    @cached_property
    def _quantiser(self) -> Quantiser:
        return Quantiser(self.bounds)


def _number(name: str, value: object) -> float:
    try:
        return float(0.0 + value)  # type: ignore[operator]  # a number, and not the text of one
    except (TypeError, ValueError, OverflowError):
        raise ObservationError(f"signal {name!r} must be a number, not {value!r}") from None


def signal_names(trace: Trace) -> tuple[str, ...]:
    """Return the signals of a trace that tell something of the input."""
    return tuple(name for name in trace.signals if name not in BOOKKEEPING)


def signal_values(trace: Trace, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the signals of a trace, shape (T, k), or say which it lacks."""
    missing = [name for name in names if name not in trace.signals]
    if missing:
        raise ArgumentError(
            "the policy was fitted with signals, and the trace lacks "
            f"{', '.join(f'signal.{name}' for name in missing)}: add them, or fit without"
        )
    return np.stack([trace.signals[name] for name in names], axis=1)
