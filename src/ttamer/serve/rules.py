"""The policies of one artefact, and which of them a request may choose."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ttamer.drift.decisions import decide
from ttamer.drift.loop import CertifiedServing, FallbackServing
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedPolicy
from ttamer.runtime.cascade import Cascade
from ttamer.serve.limits import Refused
from ttamer.serve.status import Frontier, Rung, frontier_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ttamer.drift.fallback import AskLast
    from ttamer.drift.loop import Serving
    from ttamer.fitted.mixture import Mixture
    from ttamer.serve.reloading import Artefact
    from ttamer.serve.settings import ServeSettings
    from ttamer.trace.spec import CascadeSpec

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
    version: str
    """Of the policy, as responses name it."""
    promise: str | None = None
    """For a choice of error: whether it is "certified" or "not-certified"."""


class Rules:
    """The policies of one artefact, by what a request chooses."""

    def __init__(
        self,
        artefact: Artefact,
        version: str,
        serve: ServeSettings,
        nodes: Mapping[str, Callable[[Any], Awaitable[Any]]],
        serving: CertifiedServing | None = None,
    ) -> None:
        self._artefact, self._version, self._serve, self._nodes = artefact, version, serve, nodes
        self.serving = serving
        """What the drift loop begins with, where there is one."""
        self._kept: OrderedDict[tuple[str, float], Rule] = OrderedDict()
        points = {name: getattr(serve, name) for name in ("tradeoff", "budget", "error")}
        given = [(name, value) for name, value in points.items() if value is not None]
        if isinstance(artefact, FittedPolicy) and (given or serve.allow):
            raise ArgumentError(
                "the artefact holds one policy, which has one operating point; fit a ladder, or "
                "remove tradeoff, budget, error and allow from [serve]"
            )
        self.point = given[0] if given else ("tradeoff", DEFAULT_TRADEOFF)
        """The operating point: what is used where a request chooses nothing and no loop runs."""
        self._frontier: Callable[[], Frontier]
        if serving is None:
            self._standard = self._rule(self.point)
            self._frontier = cache(partial(frontier_of, artefact, self._policy(*self.point)))
        else:
            self.put(serving, version)

    def rule(self, choice: tuple[str, float] | None) -> Rule:
        """Return what runs for a request, or refuse its choice."""
        if choice is None:
            return self._standard
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

    def put(self, serving: Serving, version: str) -> None:
        """Let another policy answer those who choose nothing, from the next request on."""
        promise: str | None
        if isinstance(serving, FallbackServing):
            # With target = "last" the last node is right by definition.
            promise = self._promise(is_kept=self._spec.target == "last")
            self._frontier = cache(partial(self._frontier_at, serving.policy))
        else:
            promise = self._promised(serving.policy)
            self._frontier = cache(partial(frontier_of, serving.ladder, serving.policy))
        self._standard = Rule(self._cascade(serving.policy), version, promise)

    @property
    def frontier(self) -> Frontier:
        """What each policy is expected to do, and the one that serves."""
        return self._frontier()

    def _frontier_at(self, fallback: AskLast) -> Frontier:
        """Return the artefact's frontier, with the fallback policy as the one that serves."""
        assert self.serving is not None  # noqa: S101 - only a loop puts it in place
        found = decide(fallback, self.serving.reference)
        ladder = self.serving.ladder
        rungs = frontier_of(ladder, ladder.at(1.0)).rungs
        return Frontier(rungs, Rung(1.0, float(found.cost.mean()), float(found.wrong.mean())))

    def _rule(self, choice: tuple[str, float]) -> Rule:
        policy = self._policy(*choice)
        return Rule(self._cascade(policy), self._version, self._promised(policy))

    def _cascade(self, policy: FittedPolicy | Mixture | AskLast) -> Cascade:
        serve = self._serve
        return Cascade(policy, self._nodes, max_cost=serve.max_cost, hedge=serve.hedge)

    def _promised(self, policy: FittedPolicy | Mixture) -> str | None:
        promise = getattr(policy, "promise", None)
        return None if promise is None else self._promise(is_kept=promise.certified)

    def _promise(self, *, is_kept: bool) -> str:
        # Policies are tested without a cap: what a cap ends early was not.
        most = self._serve.max_cost
        is_capped = most is not None and most < sum(node.cost for node in self._spec.nodes)
        return "certified" if is_kept and not is_capped else "not-certified"

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
