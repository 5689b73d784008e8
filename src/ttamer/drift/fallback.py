"""The fallback policy: the last node answers every input.

It uses nothing that was learned from earlier traffic, so a change of traffic does not affect it.
The last node is the full network, or the model that ``target = "last"`` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttamer.baselines.single import AlwaysLast
from ttamer.cascade import CascadeSpec
from ttamer.fitting.policy import SingleNode
from ttamer.fitting.replay import Played
from ttamer.fitting.session import FittedSession
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class AskLast:
    """Return the last node's answer on every input.

    >>> from ttamer.trace import CascadeSpec
    >>> AskLast(CascadeSpec.of({"small": 1.0, "large": 9.0}))
    AskLast(large)

    Args:
        spec: The cascade.
    """

    spec: CascadeSpec

    def __repr__(self) -> str:
        return f"AskLast({self.spec.names[-1]})"

    def play(self, trace: Trace) -> Played:
        """Return the decisions for every row of a trace.

        Args:
            trace: The rows.

        Returns:
            The nodes asked and the node whose answer is returned, for every row.
        """
        return AlwaysLast().fit(trace)[0].rule.play(trace)

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        prompt: str | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> FittedSession:
        """Return a session that decides for one input.

        Args:
            max_cost: The largest cost that the session may reach.
            key: Not used: this policy draws nothing.
            prompt: Not used: this policy depends on nothing.
            inputs: Not used.

        Returns:
            A session that asks the last node; if it fails, separate models are asked in reverse
            order. An exit that a network has passed cannot be asked later.

        >>> from ttamer.trace import CascadeSpec
        >>> turn = AskLast(CascadeSpec.of({"small": 1.0, "large": 9.0})).session()
        >>> turn.fail()
        >>> turn.next
        'small'
        """
        del key, prompt, inputs
        spec, last = self.spec, len(self.spec) - 1
        required = spec.required[last]
        before = tuple(v for v in spec.asking_order() if required[v] and v != last)
        backups = tuple(v for v in reversed(range(last)) if not required[v])
        if spec.kind == "exits":
            backups = ()
        costs = np.array(spec.costs, float)
        if not before:
            costs[last] = float(
                spec.reach[:last].sum() + spec.costs[last]
            )  # of a network: past all exits before
        return SingleNode(spec.names, costs, last, before, backups).session(max_cost)
