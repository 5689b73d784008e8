"""What to ask next where a budget does not pay for everything.

First a random core of prompts is asked of every node. Then each batch of prompts goes where the
uncertainty of the frontier falls most per unit of cost: to all nodes, whose answers on one prompt
a policy is planned on, or to one node. The mean loss of node v over n rows has the variance s^2/n;
it counts by the square of how often the policies of the frontier return its answer. A row with one
answer teaches less than its share of a complete row (``alone_worth``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TTamerError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spending:
    """How a budget is spent.

    >>> Spending(20.0).core
    100
    """

    budget: float
    """The most that all answers may cost together, those of former runs included."""
    core: int = 100
    """The least number of prompts that every node is asked about; then half of the budget."""
    batch: int = 20
    """The prompts between two choices."""
    alone_worth: float = 0.3  # experiments/routing: gaps recover a tenth to a third of full rows

    def is_core(self, prompts: int, spent: float) -> bool:
        """Return whether every node is asked about the next prompts, whatever they say."""
        return prompts < self.core or spent < self.budget / 2

    def best(self, trace: Trace, ladder: FittedLadder, names: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes to ask about the next prompts.

        Args:
            trace: What is known so far.
            ladder: A fit to it, which says whose answers are returned.
            names: The nodes that may be asked.
        """
        loss = trace.loss
        count = np.maximum((~np.isnan(loss)).sum(axis=0), 1)
        falls = _importance(ladder, trace) ** 2 * np.nanvar(loss, axis=0) / (count * (count + 1))
        costs = np.nanmean(trace.costs, axis=0)
        of = [trace.names.index(name) for name in names]
        choices: dict[tuple[str, ...], float] = {
            tuple(names): float(falls[of].sum() / max(costs[of].sum(), 1e-300))
        }
        for node, name in zip(of, names, strict=True):
            worth = self.alone_worth * falls[node] / max(costs[node], 1e-300)
            choices.setdefault((name,), float(worth))
        return max(choices, key=choices.__getitem__)


def fitted(trace: Trace) -> FittedLadder | None:
    """Return a fit, or ``None`` where too little is known for one."""
    try:
        return fit(trace, inputs=False)
    except TTamerError:
        return None


def worth_of_more(trace: Trace, more: float) -> str | None:
    """Say what spending more is worth: how the error of the default would be known.

    Args:
        trace: What is known.
        more: The cost.
    """
    ladder = fitted(trace)
    if ladder is None:
        return None
    complete = int((~np.isnan(trace.loss).any(axis=1)).sum())
    rows = more / float(np.nansum(np.nanmean(trace.costs, axis=0)))
    mix = ladder.points.default()
    errors: Any = np.concatenate([
        ladder.points.standard_error,
        np.nanstd(trace.loss, axis=0) / math.sqrt(complete),
    ])  # fmt: skip
    now = 1.96 * mix.mean(errors)
    then = now * math.sqrt(complete / (complete + rows))
    return (
        f"the error of the default policy is known to {100 * now:.1f} points; {more:g} more buys "
        f"about {rows:.0f} complete rows, and {100 * then:.1f} points"
    )


def _importance(ladder: FittedLadder, trace: Trace) -> Floats:
    """Return how often policies of the frontier return the answer of each node."""
    rows = trace.take(~np.isnan(trace.loss).any(axis=1))
    nodes, corners = len(trace.names), ladder.points.corners
    shares = [
        np.bincount(ladder.point(corner).play(rows).answer, minlength=nodes) / len(rows)
        for corner in corners
    ]
    return np.asarray(np.mean(shares, axis=0))
