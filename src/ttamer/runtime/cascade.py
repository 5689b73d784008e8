"""A cascade that runs: a policy, and a callable for each of its nodes.

::

    cascade = Cascade(policy, {"small": small, "large": large}, timeouts=2.0, deadline=5.0)
    outcome = cascade.run(question)          # or: await cascade.arun(question)
    outcome.answer, outcome.by, outcome.cost, outcome.why

A node is any callable, plain or async, from an input to a reply: ``(prediction, confidence)``,
``(prediction, confidence, answer)``, or a mapping or object with these names and, where it is
known, ``cost``. :mod:`ttamer.runtime.reply` defines what each part means; :func:`~ttamer.collect`
takes the same callables.

A node fails when it raises, does not return in time, or returns something that is not a reply. It
is called again up to ``retries`` times; then it counts as "no answer", and the policy continues
from the replies it has. Every call is paid, unless its exception has ``paid = False``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ttamer._checks import is_number
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, ObservationError
from ttamer.policy.session import Explanation
from ttamer.runtime.batching import BatchOutcome, run_batch
from ttamer.runtime.calling import (
    Batched,
    Call,
    CallResult,
    call,
    call_async,
    is_async,
    require_callables,
    run_awaitable,
)
from ttamer.runtime.reply import (
    CascadeFailed,
    NodeCall,
    Outcome,
    Reply,
)


class Turn(Protocol):
    """One input's way through a policy."""

    @property
    def next(self) -> str | None:
        """The node to ask; ``None`` to stop."""
        ...

    @property
    def answer(self) -> str | None:
        """The node whose answer is the best so far; ``None`` for none."""
        ...

    @property
    def price(self) -> float:
        """What asking ``next`` costs."""
        ...

    @property
    def observe(self) -> Callable[..., None]:
        """Give an answer: ``observe(confidence=..., prediction=...)``."""
        ...

    def fail(self) -> None:
        """Say that ``next`` gave no answer."""
        ...

    def explain(self) -> Explanation:
        """Return why it goes on or stops."""
        ...


class Decider(Protocol):
    """What decides: a fitted policy, a mixture of two, or one that asks the last node."""

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it decides for."""
        ...

    @property
    def session(self) -> Callable[..., Turn]:
        """Start deciding for one input: ``session(max_cost=, key=, prompt=, inputs=)``."""
        ...


class Cascade:
    """A policy, and a callable for each of its nodes. Any number of inputs may run at once.

    Args:
        policy: A fitted policy, or a mixture of two.
        nodes: The callable of each node, by name.
        timeouts: Seconds for one call; one number for all nodes, or a mapping by node.
        retries: How often a failed node is called again; a number, or a mapping by node.
        max_cost: The most that one input may cost: no call is made that would exceed it, and the
            best answer so far is returned.
        deadline: The maximum time of one input in seconds; then the best answer so far is returned.

    Raises:
        ArgumentError: If a node has no callable, or a limit is not above 0.

    >>> from ttamer import CascadeSpec, Trace, fit
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> predictions = [["a", "a"], ["b", "a"]] * 20
    >>> trace = Trace.from_arrays(
    ...     spec, [[0.9, 0.9], [0.2, 0.9]] * 20, prediction=predictions, label=["a"] * 40
    ... )
    >>> nodes = {"small": lambda text: (text[0], 0.9), "large": lambda text: (text[-1], 0.95)}
    >>> outcome = Cascade(fit(trace, belief="markov").at(0.9), nodes).run("ab")
    >>> outcome.answer, outcome.by, outcome.cost
    ('a', 'small', 1.0)
    """

    def __init__(
        self,
        policy: Decider,
        nodes: Mapping[str, Callable[[Any], Any]],
        *,
        timeouts: float | Mapping[str, float] | None = None,
        retries: int | Mapping[str, int] = 0,
        max_cost: float | None = None,
        deadline: float | None = None,
    ) -> None:
        if not hasattr(policy, "session"):
            raise ArgumentError(
                f"a cascade runs one policy, not a {type(policy).__name__}: give "
                "ladder.default(), ladder.at(tradeoff), or another policy of a ladder"
            )
        require_callables(nodes)
        spec = policy.spec
        missing = [name for name in spec.names if name not in nodes]
        odd = [name for name in nodes if name not in spec.names]
        if missing or odd:
            names = ", ".join(map(repr, missing or odd))
            what = f"there is no callable for {names}" if missing else f"{names} is no node"
            raise ArgumentError(f"{what}; the policy's nodes are {', '.join(spec.names)}")
        self.policy = policy
        self.nodes = {
            name: node.single if isinstance(node, Batched) else node for name, node in nodes.items()
        }
        self.batched = {n: node for n, node in nodes.items() if isinstance(node, Batched)}
        """The nodes that answer for several inputs at once."""
        self.max_cost = _limit(max_cost, "max_cost")
        self.deadline = _limit(deadline, "deadline")
        self.timeouts = _by_node(timeouts, spec.names, "timeouts")
        """Seconds for one call, for each node that has a limit."""
        self.retries = _by_node(retries, spec.names, "retries")
        for name, count in self.retries.items():
            if count % 1 != 0:
                raise ArgumentError(
                    f"retries for {name!r} is {count!r}; it must be a whole number, 0 or more"
                )
        self._is_async = any(map(is_async, nodes.values()))
        if max_cost is not None:
            policy.session(max_cost=max_cost, key="")  # refused now if no node can be asked

    def __repr__(self) -> str:
        return f"Cascade({', '.join(self.nodes)}; {self.policy!r})"

    def run(
        self,
        value: Any,
        *,
        key: str | int | None = None,
        deadline: float | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Answer one input.

        Where a node is async this starts an event loop; inside a running one, await :meth:`arun`.

        Args:
            value: The input, handed to the callables as it is.
            key: Fixes the choice of a policy that mixes two at random.
            deadline: The maximum time of this input in seconds, instead of the cascade's.
            inputs: What is known of the input before a node is asked, by name, where the policy
                reads it; ``"prompt"`` is its text.

        Returns:
            The answer, the node that gave it, and the cost.

        Raises:
            CascadeFailed: If no node gave an answer.
            ArgumentError: If a node is async, and an event loop is running here.
        """
        if self._is_async:
            return run_awaitable(self.arun(value, key=key, deadline=deadline, inputs=inputs))
        steps = self.steps(value, key, deadline, inputs)
        try:
            question = next(steps)
            while True:
                question = steps.send(call(question))
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome

    async def arun(
        self,
        value: Any,
        *,
        key: str | int | None = None,
        deadline: float | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Answer one input as :meth:`run` does, without blocking; plain callables run in threads.

        Args:
            value: The input, handed to the callables as it is.
            key: Fixes the choice of a policy that mixes two at random.
            deadline: The maximum time of this input in seconds, instead of the cascade's.
            inputs: What is known of the input before a node is asked, by name; ``"prompt"`` is its
                text.

        Returns:
            The answer, the node that gave it, and the cost.

        Raises:
            CascadeFailed: If no node gave an answer.
        """
        steps = self.steps(value, key, deadline, inputs)
        try:
            question = next(steps)
            while True:
                question = steps.send(await call_async(question))
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome

    def run_batch(self, values: Any, *, inputs: Mapping[str, Any] | None = None) -> BatchOutcome:
        """Answer many inputs: in each round a node is called once, with the rows that need it.

        The decisions are those of :meth:`run`, row by row, with the number of a row as its key.
        A node marked by :func:`~ttamer.runtime.batched` gets the rows as they are taken from
        ``values``: an array for an array, a frame for a frame, else a list. Other nodes are called
        row by row. A row on which a node fails goes on without it, as in :meth:`run`. The time
        limit of a node holds for the call of a batch. All inputs start at once, so that the
        deadline of an input is that of the batch.

        Args:
            values: An array, a pandas frame or a sequence, one row for each input.
            inputs: What is known of each input, a sequence by name; ``"prompt"`` is its text.

        Returns:
            The answers, the nodes that gave them, and the costs; ``errors`` for inputs without.

        Raises:
            ArgumentError: If a node is async, or what is known of inputs has another length.

        >>> import numpy as np
        >>> from ttamer import CascadeSpec, Trace, fit
        >>> from ttamer.runtime import batched
        >>> rng = np.random.default_rng(0)
        >>> sure = rng.random((400, 2))
        >>> spec = CascadeSpec.of({"small": 1.0, "large": 3.0})
        >>> ladder = fit(Trace(spec, sure, correct=rng.random((400, 2)) < sure), belief="markov")
        >>> nodes = {
        ...     "small": batched(lambda x: (x > 0.5, x), size=None),
        ...     "large": batched(lambda x: (x > 0.5, np.ones(len(x))), size=None),
        ... }
        >>> batch = Cascade(ladder.at(0.9), nodes).run_batch(np.array([0.1, 0.99]))
        >>> batch.answers
        [False, True]
        """
        if self._is_async:
            raise ArgumentError("run_batch takes plain callables; await arun for async nodes")
        return run_batch(self, values, inputs)

    def steps(
        self,
        value: Any,
        key: str | int | None,
        deadline: float | None,
        inputs: Mapping[str, Any] | None,
    ) -> Generator[Call, CallResult, Outcome]:
        """Decide for one input: it hands every call back to the host rather than making it.

        :meth:`run` and :meth:`arun` make the calls of this generator; a host with a transport of
        its own does so itself.

        Args:
            value: The input, handed to the callables as it is.
            key: Fixes the choice of a policy that mixes two at random.
            deadline: The maximum time of this input in seconds; ``None`` for the cascade's.
            inputs: What is known of the input by name, or ``None``.

        Returns:
            A generator of calls: send the result of each; its return value is the outcome.

        Raises:
            CascadeFailed: While iterating, if no node gave an answer.
        """
        read: dict[str, Any] = {}  # not every policy reads inputs
        if inputs:
            read["inputs"] = {name: value for name, value in inputs.items() if name != "prompt"}
            read["prompt"] = inputs.get("prompt")
        turn = self.policy.session(max_cost=self.max_cost, key=key, **read)
        limits = _Limits(self.max_cost, self.deadline if deadline is None else deadline)
        asked: list[NodeCall] = []
        replies: dict[str, Reply] = {}
        while (node := turn.next) is not None:
            price = turn.price
            if limits.forbid(price):
                break
            reply, done = yield from self._ask(node, value, price, limits, turn, asked)
            if not done.calls:  # the deadline passed before the call
                continue
            if reply is not None:
                try:
                    turn.observe(confidence=reply.confidence, prediction=reply.prediction)
                except ObservationError as refusal:
                    done = replace(
                        done, prediction=None, confidence=None, error=f"reply: {refusal}"
                    )
                    reply = None
            if reply is None:
                turn.fail()
            else:
                replies[node] = reply
            asked.append(done)
            limits.spent += done.cost
        return self._outcome(turn, limits, asked, replies)

    def _ask(
        self,
        node: str,
        value: Any,
        price: float,
        limits: _Limits,
        turn: Turn,
        asked: list[NodeCall],
    ) -> Generator[Call, CallResult, tuple[Reply | None, NodeCall]]:
        """Call one node, again where it fails; return its reply and what the calls took."""
        reply, error = None, None
        calls, paid, seconds = 0, 0, 0.0
        for attempt in range(1 + int(self.retries.get(node, 0))):
            if attempt and limits.forbid((paid + 1) * price, retrying=True):
                break
            timeout = self.timeouts.get(node)
            result = yield Call(self.nodes[node], value, timeout, node, turn, asked, limits.end)
            calls += result.calls
            paid += result.paid
            seconds += result.seconds
            reply, error = result.read()
            if reply is not None or not getattr(result.error, "retry", True):
                break
        if reply is None:
            return None, NodeCall(node, None, None, paid * price, seconds, error, calls)
        # A reply knows the cost of its own call, and not of those that failed or came too late.
        cost = (paid - 1) * price + (price if reply.cost is None else reply.cost)
        done = NodeCall(node, reply.prediction, reply.confidence, cost, seconds, None, calls)
        return reply, done

    def _outcome(
        self, turn: Turn, limits: _Limits, asked: list[NodeCall], replies: Mapping[str, Reply]
    ) -> Outcome:
        by = turn.answer
        if by is None:
            raise self._failure(turn, limits, tuple(asked))
        reply, reached = replies[by], limits.reached
        return Outcome(
            reply.answer,
            reply.prediction,
            by,
            tuple(asked),
            limits.spent,
            limits.seconds,
            f"{reached}: the best answer so far is that of {by!r}" if reached else _Why(turn),
            bool(reached or getattr(turn, "capped", False)),
        )

    def _failure(self, turn: Turn, limits: _Limits, asked: tuple[NodeCall, ...]) -> CascadeFailed:
        failures = "; ".join(f"{call.node!r}: {call.error}" for call in asked if call.error)
        cap = ""
        if failures and limits.max_cost is not None and len(asked) < len(self.policy.spec):
            cap = (
                f"max_cost is {limits.max_cost:g}, of which {limits.spent:g} is spent, and the "
                "policy asks no other node within it"
            )
        parts = [part for part in (limits.reached, failures, cap) if part]
        detail = "; ".join(parts) or turn.explain().why
        return CascadeFailed(f"no node gave an answer: {detail}", asked, late=limits.late)


class _Why:
    """Explains a decision when it is asked for."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __call__(self) -> str:
        return self._turn.explain().why


class _Limits:
    """What may still be spent on one input: cost and time."""

    slack = 1e-9  # a cap counts as met up to this relative error of summation, as in sessions

    def __init__(self, max_cost: float | None, deadline: float | None) -> None:
        self.start = time.monotonic()
        self.max_cost, self.deadline = max_cost, deadline
        self.end = math.inf if deadline is None else self.start + deadline
        self.spent = 0.0
        self.reached = ""
        """Which limit ended the run, as text."""
        self.late = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def forbid(self, cost: float, *, retrying: bool = False) -> bool:
        """Return whether a call at this cost is forbidden; keep the reason if it ends the run."""
        if self.deadline is not None and time.monotonic() >= self.end:
            self.late = True
            self.reached = f"the deadline of {self.deadline:g} s has passed"
            return True
        cap = math.inf if self.max_cost is None else self.max_cost * (1 + self.slack) + self.slack
        if self.spent + cost <= cap:
            return False
        if not retrying:  # the policy may still ask a cheaper node
            self.reached = (
                f"of max_cost = {self.max_cost:g}, {self.spent:g} is spent, and a call costs "
                f"{cost:g}"
            )
        return True


def _limit(value: float | None, what: str) -> float | None:
    if value is not None and not (is_number(value) and value > 0):
        raise ArgumentError(
            f"{what} is {value!r}; it must be a number above 0, or None for no limit"
        )
    return value


def _by_node(stated: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return a number for each node that has one."""
    table = stated if isinstance(stated, Mapping) else dict.fromkeys(names, stated)
    for name, value in table.items():
        if name not in names:
            raise ArgumentError(f"{what} names {name!r}; the nodes are {', '.join(names)}")
        if value is None:
            continue
        if not is_number(value) or not value >= 0:
            raise ArgumentError(f"{what} for {name!r} is {value!r}; it must be 0 or more")
    return {name: value for name, value in table.items() if value is not None}
