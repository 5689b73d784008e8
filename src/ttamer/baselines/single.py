"""One node for everything: the first, the last, or the best on the fit rows.

First and last are meant as the nodes stand in the cascade: the last is the full network, or the
model that ``target = "last"`` compares with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.selection import RuleScorer
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.trace import Trace, require_rows


@dataclass(frozen=True, eq=False)
class AlwaysNode:
    """Return one node's answer on every row."""

    node: int
    needs: NDArray[np.bool_]
    """Shape (n,): the nodes asked; others on the way are passed."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        answer = np.full(len(trace), self.node)
        return Played(answer, np.tile(self.needs, (len(trace), 1)), answer)


def _setting(trace: Trace, node: int) -> list[Setting]:
    require_rows(trace, 1, "a baseline")
    rule = AlwaysNode(node, trace.spec.required[node])
    return [Setting({"node": trace.names[node]}, rule)]


class AlwaysFirst:
    """The first node of the cascade."""

    name = "always-first"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the one setting."""
        return _setting(trace, 0)


class AlwaysLast:
    """The last node of the cascade."""

    name = "always-last"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the one setting."""
        return _setting(trace, len(trace.spec) - 1)


class AlwaysBest:
    """The node of least error on the fit rows; of equals the cheapest, then the first."""

    name = "always-best"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the one setting."""
        errors = RuleScorer.of(trace).wrong.mean(axis=0)
        prices = trace.spec.answer_costs(trace.costs.mean(axis=0))
        return _setting(trace, int(np.lexsort((prices, errors))[0]))
