"""The fallback policy: the last node answers every input.

It uses nothing that was learned from earlier traffic, so a change of traffic does not affect it.
The last node is the full network, or the model that ``target = "last"`` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from ttamer.baselines.single import AlwaysLast
from ttamer.errors import ObservationError
from ttamer.fitted.replay import Played
from ttamer.fitted.sessions import CappedSession, FittedSession
from ttamer.policy.session import Explanation
from ttamer.trace.spec import CascadeSpec
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
        signals: Mapping[str, float] | None = None,
    ) -> FittedSession:
        """Return a session that decides for one input.

        Args:
            max_cost: The largest cost that the session may reach.
            key: Not used: this policy draws nothing.
            signals: Not used: this policy depends on nothing.

        Returns:
            The session, capped where ``max_cost`` is given.
        """
        del key, signals
        turn = LastSession(self.spec)
        return turn if max_cost is None else CappedSession(turn, max_cost)


class LastSession(FittedSession):
    """A session that asks the last node; if it fails, the others are asked in reverse order.

    >>> from ttamer.trace import CascadeSpec
    >>> turn = AskLast(CascadeSpec.of({"small": 1.0, "large": 9.0})).session()
    >>> turn.next
    'large'
    >>> turn.fail()
    >>> turn.next
    'small'
    """

    __slots__ = ("_answer", "_asked", "_left", "_spec", "_substitutes")

    def __init__(self, spec: CascadeSpec) -> None:
        self._spec = spec
        required = spec.required[-1]
        wanted = [spec.names[node] for node in spec.cheapest_first() if required[node]]
        self._left = wanted
        # A network runs forwards only: an exit that was passed cannot be asked later.
        one_way = spec.has_passing or spec.order == "fixed"
        self._substitutes = [
            name for name in reversed(spec.names) if not one_way and name not in wanted
        ]
        self._asked: list[str] = []
        self._answer: str | None = None
        self.unclear = 0

    def observe(
        self,
        *,
        confidence: float,
        prediction: object = None,
        margin: float = nan,
        entropy: float = nan,
    ) -> None:
        """Record the answer of ``next``."""
        del prediction, margin, entropy
        self.unclear += confidence != confidence
        self._answer = self._advance()

    def prefers_next(self) -> bool:
        """Return whether there is a node to ask: the last answer is returned."""
        return bool(self._left)

    def fail(self) -> None:
        """Record that ``next`` was asked and failed."""
        self._advance()
        if not self._left and self._answer is None:
            self._left = [node for node in self._substitutes if node not in self._asked][:1]

    def start_with(self, node: str) -> None:
        """Ask this node of ``starts`` first."""
        self._left = [node]

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and the cost of each."""
        if self._spec.order == "fixed":
            return {self._spec.names[0]: float(self._spec.costs[0])}
        return {
            node.name: self._cost_of(k)
            for k, node in enumerate(self._spec.nodes)
            if node.after is None
        }

    def ahead(self) -> dict[str | None, float]:
        """Return the node that is asked right after ``next``, with chance 1."""
        return {self._left[1] if len(self._left) > 1 else None: 1.0} if self._left else {}

    def price_after(self, node: str) -> float:
        """Return what asking a node right after ``next`` costs, in the cascade's units."""
        last = self._spec.index_of(self._left[0]) if self._left else -1
        return self._spec.step_cost(last, self._spec.index_of(node))

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return self._left[0] if self._left else None

    @property
    def answer(self) -> str | None:
        """The node whose answer is returned."""
        return self._answer

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(self._asked)

    @property
    def cost(self) -> float:
        """The cost of the nodes asked, in the cascade's units."""
        asked = [self._spec.index_of(name) for name in self._asked]
        passed = [node for node in range(max(asked, default=0)) if node not in asked]
        return float(self._spec.costs[asked].sum() + self._spec.passing[passed].sum())

    @property
    def price(self) -> float:
        """The cost of asking ``next``, in the cascade's units; 0 once stopped."""
        return self._cost_of(self._spec.index_of(self._left[0])) if self._left else 0.0

    def explain(self) -> Explanation:
        """Return the reason for the current decision."""
        why = "the fallback policy is active: the last node answers"
        return Explanation(self.next, self.answer, 0.0, 0.0, why)

    def _cost_of(self, node: int) -> float:
        """Return the cost of asking a node now."""
        last = self._spec.index_of(self._asked[-1]) if self._asked else -1
        return self._spec.step_cost(last, node)

    def _advance(self) -> str:
        """Move ``next`` to the nodes asked, and return its name."""
        if not self._left:
            raise ObservationError("the session has stopped: start a new one")
        node = self._left.pop(0)
        self._asked.append(node)
        return node
