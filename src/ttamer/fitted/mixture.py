"""A mixture: one of two policies, drawn for each input.

The draw is fixed by the seed and the input's key, so the same request is decided alike when it
comes again. Without a key inputs are numbered as they come.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.replay import Played

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.belief_model import BeliefSession
    from ttamer.fitted.capped import CappedSession
    from ttamer.fitted.ladder import FittedPolicy, FittedSession
    from ttamer.fitted.promise import Promise
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

__all__ = ["Mixture"]

TURN = (5**0.5 - 1) / 2
"""Multiples of the golden ratio fill a circle evenly, however many there are."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Two policies of a ladder, and the share of inputs that the dearer one decides."""

    cheap: FittedPolicy
    dear: FittedPolicy
    share: float
    seed: int = 0
    error: float | None = None
    """The error to expect, where the fit knows."""
    cost: float | None = None
    """The mean cost to expect, where the fit knows."""
    promise: Promise | None = None
    """What was asked of it, where it was asked for by error or by drop, and whether that holds."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def __repr__(self) -> str:
        if self.share in (0, 1):
            only = self.dear if self.share else self.cheap
            return f"Mixture(all at tradeoff {only.tradeoff:g})"
        return (
            f"Mixture({1 - self.share:.1%} at tradeoff {self.cheap.tradeoff:g}, "
            f"{self.share:.1%} at {self.dear.tradeoff:g})"
        )

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.cheap.spec

    def drawn(self, key: str | int) -> FittedPolicy:
        """Return the policy that decides the input of this key."""
        return self.dear if self._draw(key) < self.share else self.cheap

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        signals: Mapping[str, float] | None = None,
    ) -> FittedSession | BeliefSession | CappedSession:
        """Start deciding for one input, by the policy its key draws."""
        policy = self.drawn(next(self._numbers) if key is None else key)
        return policy.session(max_cost=max_cost, signals=signals)

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace; rows are numbered as they stand."""
        one, two = self.cheap.play(trace), self.dear.play(trace)
        dear = self.draws(len(trace))
        return Played(
            np.where(dear, two.answer, one.answer),
            np.where(dear[:, np.newaxis], two.asked, one.asked),
            np.where(dear, two.last, one.last),
        )

    def draws(self, rows: int) -> NDArray[np.bool_]:
        """Return, shape (rows,), which of the inputs numbered from 0 the dearer policy decides."""
        start = self._start()
        return np.asarray((start + TURN * np.arange(rows)) % 1.0 < self.share)

    def _draw(self, key: str | int) -> float:
        if isinstance(key, int):
            return (self._start() + TURN * key) % 1.0
        return _uniform(f"{self.seed}:{key}")

    def _start(self) -> float:
        return _uniform(f"{self.seed}")


def _uniform(text: str) -> float:
    return float(int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48)
