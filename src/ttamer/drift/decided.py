"""What a policy does on audited rows, and what it believes of its own answers there.

Any rule can be watched: what it answers is right or wrong, and costs something. A fitted policy
says more: the chance it gives its answer to be wrong, and the states in which it found the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.fitted.replay import paid
from ttamer.fitted.replay_states import play_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief_model import BeliefFitted
    from ttamer.fitted.ladder import Fitted
    from ttamer.fitted.replay import Rule
    from ttamer.trace.trace import Trace

__all__ = ["Decided", "decide"]

MOST_STATES = 6
"""Of the steps of a long walk so many are watched, evenly spread."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What a rule did on T rows; shape (T,) each, unless said otherwise."""

    answer: NDArray[np.intp]
    wrong: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    """Shape (T, n): where each node is wrong."""
    cost: NDArray[np.float64]
    believed: NDArray[np.float64] | None = None
    """The chance to be wrong that the policy gives the answer it returns."""
    states: NDArray[np.float64] | None = None
    """Shape (T, m): the states of the row at some steps."""

    def __len__(self) -> int:
        return len(self.wrong)


def decide(rule: Rule, trace: Trace, keys: Sequence[str | int] | None = None) -> Decided:
    """Return what a rule does on rows; a mixture draws by their keys (default: numbered from 0)."""
    lost = trace.wrong()
    rows = np.arange(len(trace))
    if isinstance(rule, Mixture):
        names = range(len(trace)) if keys is None else keys
        dear = np.array([rule.drawn(key) is rule.dear for key in names], bool)
        one, two = (decide(policy, trace) for policy in (rule.cheap, rule.dear))
        assert one.believed is not None  # noqa: S101 - both are fitted policies
        assert two.believed is not None  # noqa: S101
        answer = np.where(dear, two.answer, one.answer)
        return Decided(
            answer,
            lost[rows, answer],
            lost,
            np.where(dear, two.cost, one.cost),
            np.where(dear, two.believed, one.believed),
            one.states,
        )
    if isinstance(rule, FittedPolicy):
        raw = rule.fitted.states(trace)
        found = raw[0] if isinstance(raw, tuple) else raw
        played = rule.fitted.played(rule.policy, raw)  # type: ignore[arg-type]
        place = play_states(rule.policy, found)[0]
        nodes = rule.policy.problem.nodes
        losses = np.zeros((len(nodes), 256))
        for k, node in enumerate(nodes):
            losses[k, : len(node.losses)] = node.losses
        return Decided(
            played.answer,
            lost[rows, played.answer],
            lost,
            paid(played.asked, trace),
            losses[place, found[rows, place]],
            found[:, _watched(rule.fitted)].astype(np.float64),
        )
    played = rule.play(trace)
    cost = paid(played.asked, trace)
    return Decided(played.answer, lost[rows, played.answer], lost, cost)


def _watched(fitted: Fitted | BeliefFitted) -> list[int]:
    """Return the steps whose states are watched: of each node alone, or along the walk."""
    steps = getattr(fitted, "steps", None)
    alone = [] if steps is None else [k for k, step in enumerate(steps) if len(step) == 1]
    count = len(fitted.columns) if steps is None else len(steps)  # type: ignore[union-attr]
    every = alone if len(alone) > 1 else list(range(count))
    places = np.linspace(0, len(every) - 1, min(MOST_STATES, len(every))).round().astype(int)
    return [every[place] for place in places]
