"""A ladder: policies for many tradeoffs over one problem, along the frontier."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ttamer.errors import ArgumentError
from ttamer.problem.tradeoff import check_tradeoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.policy.base import Policy
    from ttamer.problem.problem import Problem

__all__ = ["Ladder"]


@dataclass(frozen=True, eq=False)
class Ladder:
    """Policies in increasing order of tradeoff, so of expected cost."""

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ArgumentError("a ladder needs at least one policy")
        if any(right <= left for left, right in pairwise(self.tradeoffs)):
            raise ArgumentError("a ladder needs its policies in increasing order of tradeoff")

    def __len__(self) -> int:
        return len(self.policies)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.policies)

    def __getitem__(self, rung: int) -> Policy:
        return self.policies[rung]

    def __repr__(self) -> str:
        first, last = self.tradeoffs[0], self.tradeoffs[-1]
        return f"Ladder({len(self)} policies, tradeoffs {first:g} to {last:g})"

    @property
    def problem(self) -> Problem:
        """The problem all policies solve."""
        return self.policies[0].problem

    @property
    def tradeoffs(self) -> tuple[float, ...]:
        """The tradeoff of each policy."""
        return tuple(policy.tradeoff for policy in self.policies)

    def at(self, tradeoff: float) -> Policy:
        """Return the policy solved for the nearest tradeoff; the lower one if two are as near."""
        wanted = check_tradeoff(tradeoff)
        tradeoffs = self.tradeoffs
        right = min(bisect_left(tradeoffs, wanted), len(self) - 1)
        left = max(right - 1, 0)
        nearer_left = wanted - tradeoffs[left] <= tradeoffs[right] - wanted
        return self.policies[left if nearer_left else right]
