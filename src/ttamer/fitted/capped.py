"""A session that never spends more than a cap, and then returns the best answer seen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ttamer.errors import ArgumentError, ObservationError

if TYPE_CHECKING:
    from ttamer.fitted.belief_model import BeliefSession
    from ttamer.fitted.ladder import FittedSession
    from ttamer.policy.session import Explanation

__all__ = ["CappedSession"]

SLACK = 1e-9
"""Sums of costs are not exact: a cap met but for this share is met."""


class CappedSession:
    """A session under a cap on its cost, in the cascade's units.

    It goes the policy's way as far as that can be paid. Where the policy would start with a node
    dearer than the cap, the dearest that can be paid is asked first instead.
    """

    __slots__ = ("_cap", "_ended", "_most", "_redirected", "_turn")

    def __init__(self, turn: FittedSession | BeliefSession, max_cost: float) -> None:
        if not max_cost > 0:
            raise ArgumentError(f"max_cost is {max_cost!r}; it must be above 0")
        self._turn = turn
        self._cap = float(max_cost)
        self._most = self._cap * (1 + SLACK)
        self._ended = False
        self._redirected = turn.price > self._most
        if self._redirected:
            affordable = {node: cost for node, cost in turn.starts.items() if cost <= self._most}
            if not affordable:
                least = min(turn.starts, key=turn.starts.__getitem__)
                raise ArgumentError(
                    f"nobody can be asked for max_cost = {self._cap:g}: the cheapest to begin "
                    f"with, {least!r}, costs {turn.starts[least]:g}"
                )
            turn.start_with(max(affordable, key=affordable.__getitem__))

    def __repr__(self) -> str:
        return f"CappedSession(next={self.next!r}, answer={self.answer!r}, max_cost={self._cap:g})"

    def observe(self, *, confidence: float, prediction: object = None) -> None:
        """Say what ``next`` answered and how sure it was, and move on."""
        self._require_next()
        self._turn.observe(confidence=confidence, prediction=prediction)
        self._ended = self._turn.cost + self._turn.price > self._most

    def fail(self) -> None:
        """Say that ``next`` was asked and gave no answer, and move on."""
        self._require_next()
        self._turn.fail()
        self._ended = self._turn.cost + self._turn.price > self._most

    def _require_next(self) -> None:
        if self.next is None:
            raise ObservationError("the session has stopped: start a new one")

    @property
    def capped(self) -> bool:
        """Whether the cap ended it, or changed with whom it began."""
        return self._ended or self._redirected

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return None if self._ended else self._turn.next

    @property
    def stopped(self) -> bool:
        """Whether to ask nobody else."""
        return self.next is None

    @property
    def answer(self) -> str | None:
        """Whose answer to return: the best seen."""
        return self._turn.answer

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return self._turn.asked

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units."""
        return self._turn.cost

    @property
    def price(self) -> float:
        """What asking ``next`` costs, in the cascade's units; 0 once stopped."""
        return 0.0 if self._ended else self._turn.price

    @property
    def unclear(self) -> int:
        """How many confidences were not a number, and counted as the least sure."""
        return self._turn.unclear

    def explain(self) -> Explanation:
        """Say why the session stands where it stands."""
        inner = self._turn.explain()
        if not self._ended:
            return inner
        why = (
            f"asking {inner.next!r} would cost {self._turn.price:g} on top of {self.cost:g}, above "
            f"the cap of {self._cap:g}: stop"
        )
        return dataclasses.replace(inner, next=None, why=why)
