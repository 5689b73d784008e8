"""The policies of one artefact, and which of them a request may choose."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ttamer.cascade import Cascade
from ttamer.errors import ArgumentError
from ttamer.fitted import FittedPolicy
from ttamer.serve.limits import Refused
from ttamer.serve.status import frontier_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ttamer.cascade_spec import CascadeSpec
    from ttamer.mixture import Mixture
    from ttamer.serve.reloading import Artefact
    from ttamer.serve.settings import ServeSettings
    from ttamer.serve.status import Frontier

__all__ = ["NotAllowed", "Rule", "Rules"]

DEFAULT_TRADEOFF = 0.9
MOST_KEPT = 64
"""Choices of requests whose policies are kept ready."""


class NotAllowed(Refused):
    """A request chose for itself what the operator keeps."""

    code = "choice_not_allowed"
    param = "ttamer"


@dataclass(frozen=True)
class Rule:
    """What runs for a request."""

    cascade: Cascade
    promise: str | None = None
    """For a choice of error: whether it is "certified" or "not-certified"."""


class Rules:
    """The policies of one artefact, by what a request chooses."""

    def __init__(
        self,
        artefact: Artefact,
        serve: ServeSettings,
        nodes: Mapping[str, Callable[[Any], Awaitable[Any]]],
    ) -> None:
        self._artefact, self._serve, self._nodes = artefact, serve, nodes
        self._kept: OrderedDict[tuple[str, float], Rule] = OrderedDict()
        points = {name: getattr(serve, name) for name in ("tradeoff", "budget", "error")}
        given = [(name, value) for name, value in points.items() if value is not None]
        if isinstance(artefact, FittedPolicy) and (given or serve.allow):
            raise ArgumentError(
                "the artefact holds one policy, which has one operating point; fit a ladder, or "
                "remove tradeoff, budget, error and allow from [serve]"
            )
        self.point = given[0] if given else ("tradeoff", DEFAULT_TRADEOFF)
        """The operating point: what is used where a request chooses nothing."""
        self.standard = self._rule(self.point)

    def rule(self, choice: tuple[str, float] | None) -> Rule:
        """Return what runs for a request, or refuse its choice."""
        if choice is None:
            return self.standard
        name, value = choice
        if name not in self._serve.allow:
            allowed = ", ".join(self._serve.allow) or "nothing"
            raise NotAllowed(f"a request may not choose {name} here; it may choose {allowed}")
        low, high = getattr(self._serve, f"{name}_range")
        if not low <= value <= high:
            raise NotAllowed(f"{name} is {value:g}; here it may be from {low:g} to {high:g}")
        if choice not in self._kept:
            try:
                self._kept[choice] = self._rule(choice)
            except ArgumentError as error:
                raise NotAllowed(f"{name} cannot be {value:g}: {error}") from None
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(choice)
        return self._kept[choice]

    @cached_property
    def frontier(self) -> Frontier:
        """What each policy is expected to do, and the one that serves."""
        return frontier_of(self._artefact, self._policy(*self.point))

    def _rule(self, choice: tuple[str, float]) -> Rule:
        policy, most = self._policy(*choice), self._serve.max_cost
        cascade = Cascade(policy, self._nodes, max_cost=most, hedge=self._serve.hedge)
        promise = getattr(policy, "promise", None)
        if promise is None:
            return Rule(cascade)
        # The policy was tested without a cap: what a cap ends early was not.
        is_capped = most is not None and most < sum(node.cost for node in self._spec.nodes)
        is_kept = promise.certified and not is_capped
        return Rule(cascade, "certified" if is_kept else "not-certified")

    @property
    def _spec(self) -> CascadeSpec:
        return self._artefact.fitted.spec

    def _policy(self, name: str, value: float) -> FittedPolicy | Mixture:
        ladder = self._artefact
        if isinstance(ladder, FittedPolicy):
            return ladder
        if name == "tradeoff":
            return ladder.at(value)
        return ladder.for_budget(value) if name == "budget" else ladder.for_error(value)
