"""Sessions of many inputs in step, over arrays: the decisions are those of single sessions.

::

    batch = policy.batch(len(inputs))
    while (rows := np.flatnonzero(batch.next >= 0)).size:
        batch.observe(rows, confidences, predictions)   # the answers of batch.next on these rows
    batch.answer                                        # by row, the node whose answer to return
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttamer.fitting.belief import Floats, Ints, Seen, by_pattern
from ttamer.fitting.policy import StepPolicy, choose
from ttamer.trace.classes import class_text


class StepBatch:
    """Many inputs under way, without caps on their cost.

    Args:
        policies: Policies of one fit.
        drawn: Shape (T,): which of them decides each input.
        prior: Shape (T, n): what the inputs say; ``None`` where policies read none.
        costs: Shape (T, n): the costs that the inputs predict; the means if ``None``.
    """

    def __init__(
        self,
        policies: Sequence[StepPolicy],
        drawn: Ints,
        prior: Floats | None = None,
        costs: Floats | None = None,
    ) -> None:
        self._policies, self._drawn, self._prior = policies, drawn, prior
        self._tables = policies[0].tables
        shape = len(drawn), len(self._tables.names)
        self.costs = np.broadcast_to(self._tables.costs if costs is None else costs, shape)
        """Shape (T, n): what asking each node costs."""
        self.asked = np.zeros(shape, bool)
        self.next = np.full(len(drawn), -1, np.intp)
        """Shape (T,): the node to ask; -1 once stopped."""
        self.answer = np.full(len(drawn), -1, np.intp)
        """Shape (T,): the node whose answer is the best so far; -1 for none."""
        self._confidence = np.full(shape, np.nan)
        self._codes = np.full(shape, -1, np.intp)
        self._code = dict(policies[0].codes)  # classes that the fit never saw get new numbers
        self._choose(np.arange(len(drawn)))

    def observe(
        self, rows: Ints, confidence: Sequence[float | None], prediction: Sequence[object]
    ) -> None:
        """Give the answers of ``next`` on some rows; a confidence of ``None`` is a failure."""
        at = rows, self.next[rows]
        values = np.array([np.nan if c is None else -np.inf if c != c else c for c in confidence])
        self._confidence[at] = values
        texts = [None if c is None else class_text(p)
                 for c, p in zip(confidence, prediction, strict=True)]  # fmt: skip
        number = self._code.setdefault
        self._codes[at] = [-1 if text is None else number(text, len(self._code)) for text in texts]
        self.asked[at] = True
        self._choose(rows)

    def _choose(self, rows: Ints) -> None:
        """Choose the next node for rows: those that asked alike, and had answers alike, at once."""
        for number, policy in enumerate(self._policies):
            drawn = rows[self._drawn[rows] == number]
            for step, of_step in by_pattern(self.asked[drawn]):
                asked = drawn[of_step]
                for came, group in by_pattern(~np.isnan(self._confidence[asked])):
                    at = asked[group]
                    prior = None if self._prior is None else self._prior[at]
                    seen = Seen(self._confidence[at], self._codes[at], prior)
                    view, every = self._tables.belief.view(seen), np.arange(len(at))
                    paid = np.zeros(len(at))
                    self.next[at] = choose(
                        policy, view, step, came, every, self.costs[at], paid, None
                    )
                    if came:
                        self.answer[at] = view.best(came)[1]
