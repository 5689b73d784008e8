"""When survivors are regrouped: a rule from measured times."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["Regrouping", "group_sizes"]


@dataclass(frozen=True)
class Regrouping:
    """Regroup where running on to the next exit with fewer rows saves more than it costs.

    >>> Regrouping((8, 64), ((1.0, 4.0), (1.0, 4.0)), cost=0.5).pays(0, 1, rows=64, alive=8)
    True
    >>> Regrouping((8, 64), ((1.0, 4.0), (1.0, 4.0)), cost=9.0).pays(0, 1, rows=64, alive=8)
    False
    """

    sizes: tuple[int, ...]
    """Increasing numbers of rows that segments were measured with; none: always regroup."""
    seconds: tuple[tuple[float, ...], ...]
    """Per segment, how long it took for each of them."""
    cost: float
    """How long regrouping takes."""

    @classmethod
    def always(cls) -> Regrouping:
        """Regroup whenever any row has left."""
        return cls((), (), 0.0)

    @classmethod
    def never(cls) -> Regrouping:
        """Run every batch on whole."""
        return cls((), (), float("inf"))

    def pays(self, after: int, due: int, rows: int, alive: int) -> bool:
        """Whether to regroup ``rows`` to ``alive`` after an exit, when ``due`` is asked next."""
        if alive == rows:
            return False
        if not self.sizes:
            return self.cost == 0.0
        ahead = range(after + 1, due + 1)
        saved = sum(self.time(k, rows) - self.time(k, alive) for k in ahead)
        return saved > self.cost

    def time(self, segment: int, rows: int) -> float:
        """Return how long a segment takes, in proportion between the sizes measured."""
        sizes, seconds = self.sizes, self.seconds[segment]
        at = bisect_left(sizes, rows)
        if at == len(sizes):
            return seconds[-1] * rows / sizes[-1]
        if at == 0 or sizes[at] == rows:
            return seconds[at]
        share = (rows - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])


def group_sizes(batch: int, least: int = 1) -> list[int]:
    """Return the sizes of groups: powers of two and half way between them, up to a batch.

    Libraries choose how to compute for every new size, so there are few; a group is filled up.

    >>> group_sizes(32)
    [1, 2, 4, 6, 8, 12, 16, 24, 32]
    """
    sizes, power = {1, batch}, 2
    while power <= batch:
        sizes |= {power, power * 3 // 2} if power >= 4 else {power}
        power *= 2
    return sorted(size for size in sizes if least <= size <= batch)
