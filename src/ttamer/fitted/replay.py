"""Replay: what a rule would have done on every row of a trace.

A *rule* is anything that decides row by row from what the nodes said: a fitted policy, a
threshold, an oracle. It sees the trace and says whom it would have asked and whose answer it would
have returned; what that cost and whether it was right is counted in one place, evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

__all__ = ["Family", "Played", "Rule", "Setting", "asked_up_to", "full_cost", "paid"]


@dataclass(frozen=True, eq=False)
class Played:
    """What a rule did on each of T rows."""

    answer: NDArray[np.intp]
    """Shape (T,): the number of the node whose answer is returned."""
    asked: NDArray[np.bool_]
    """Shape (T, n): whom it asked."""
    last: NDArray[np.intp]
    """Shape (T,): the number of the node it asked last."""

    def __post_init__(self) -> None:
        rows = np.arange(len(self.answer))
        if not self.asked[rows, self.answer].all():
            row = int(np.argmin(self.asked[rows, self.answer]))
            raise ArgumentError(
                f"row {row}: the rule returns the answer of node {self.answer[row]}, "
                "which it did not ask"
            )


class Rule(Protocol):
    """Something that decides, row by row."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        ...


@dataclass(frozen=True, eq=False)
class Setting:
    """One rule of a family, and the knob that gave it."""

    knob: dict[str, Any]
    """Plain values, for people and for JSON."""
    rule: Rule


class Family(Protocol):
    """A kind of rule with a knob that trades error against cost."""

    name: str

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the settings worth having, every knob chosen on this trace alone."""
        ...


def asked_up_to(last: NDArray[np.intp], nodes: int) -> NDArray[np.bool_]:
    """Return, shape (T, nodes), who was asked when nodes are asked in order up to ``last``.

    >>> asked_up_to(np.array([0, 2]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return np.less_equal(np.arange(nodes), last[:, np.newaxis])


def paid(asked: NDArray[np.bool_], trace: Trace) -> NDArray[np.float64]:
    """Return, shape (T,), what each row paid, given whom it asked, shape (T, n).

    Every node asked costs what the row says; a node before the last one asked that was not asked
    itself was passed, and costs what the cascade says that does.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> spec = CascadeSpec.of({"a": 3.0, "b": 5.0}, order="skip", passing={"a": 2.0})
    >>> trace = Trace(spec, np.zeros((3, 2)))
    >>> paid(np.array([[True, False], [True, True], [False, True]]), trace).tolist()
    [3.0, 8.0, 7.0]
    """
    cost = asked @ trace.cost if trace.cost.ndim == 1 else (asked * trace.cost).sum(axis=1)
    if trace.spec.has_passing:
        reached = np.logical_or.accumulate(asked[:, ::-1], axis=1)[:, ::-1]
        cost = cost + (reached & ~asked) @ trace.spec.passing
    return np.asarray(cost, np.float64)


def full_cost(spec: CascadeSpec, trace: Trace) -> float:
    """Return what the full model costs per row of a trace; see :meth:`CascadeSpec.full_cost`."""
    return spec.full_cost(trace.costs.mean(axis=0))
