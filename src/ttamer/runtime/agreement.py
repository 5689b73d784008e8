"""How often two ways to decide what is right agree, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttamer.stats.bounds import binomial_upper

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Agreement"]

INTERVAL = 0.95
"""The confidence of the interval for an agreement."""


@dataclass(frozen=True)
class Agreement:
    """How often verdicts, of a judge or by a threshold, agree with labels."""

    answers: int
    """The number of answers, or of pairs, that have a label."""
    agree: int
    what: str = "answers"
    constant: int = 0
    """The number on which one verdict for all, the more frequent one, agrees."""

    @classmethod
    def of(
        cls, judged: Sequence[bool], by_label: Sequence[bool], what: str = "answers"
    ) -> Agreement:
        """Count the answers on which both verdicts are equal.

        >>> print(Agreement.of([True, True, False, True], [True, True, False, False]))
        agrees with the labels on 3 of 4 answers (75%, 95% interval 19% to 99%)
        >>> print(Agreement.of([False, False, False, False], [True, False, False, False]))
        agrees with the labels on 3 of 4 answers (75%, 95% interval 19% to 99%), no more than the \
same verdict for all (75%)
        """
        agree = sum(bool(a) == bool(b) for a, b in zip(judged, by_label, strict=True))
        right = sum(map(bool, by_label))
        return cls(len(judged), agree, what, max(right, len(judged) - right))

    @property
    def interval(self) -> tuple[float, float]:
        """The exact interval for the share (Clopper and Pearson, 1934)."""
        alpha, wrong = (1 - INTERVAL) / 2, self.answers - self.agree
        low = 1 - binomial_upper(wrong, self.answers, alpha) if self.agree else 0.0
        high = binomial_upper(self.agree, self.answers, alpha) if wrong else 1.0
        return low, high

    def __str__(self) -> str:
        if not self.answers:
            return "cannot be compared with labels: there are none"
        low, high = self.interval
        share = self.agree / self.answers
        more = ""
        if self.agree <= self.constant:
            more = f", no more than the same verdict for all ({self.constant / self.answers:.0%})"
        return (
            f"agrees with the labels on {self.agree} of {self.answers} {self.what} ({share:.0%}, "
            f"{INTERVAL:.0%} interval {low:.0%} to {high:.0%}){more}"
        )
