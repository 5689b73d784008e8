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
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, is_number, number, percent, require_kind, require_whole
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, ObservationError
from ttamer.fitting.session import FittedSession
from ttamer.runtime.calling import (
    Batched,
    Call,
    CallResult,
    call,
    call_async,
    call_rows,
    is_async,
    require_callables,
    row_of,
    rows_at,
    run_awaitable,
)
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome, Reply
from ttamer.show import card

Steps = Generator[Call, CallResult, Outcome]


class Decider(Protocol):
    """What decides: a fitted policy, a mixture of two, or one that asks the last node."""

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it decides for."""
        ...

    @property
    def session(self) -> Callable[..., FittedSession]:
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
    >>> cascade = Cascade(fit(trace, belief="markov").at(0.9), nodes)
    >>> outcome = cascade.run("ab")
    >>> outcome.answer, outcome.by, outcome.cost
    ('a', 'small', 1.0)
    >>> cascade.run_batch(["ab", "cd"]).answers
    ['a', 'c']
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
        names = policy.spec.names
        missing = [name for name in names if name not in nodes]
        odd = [name for name in nodes if name not in names]
        if missing or odd:
            listed = ", ".join(map(repr, missing or odd))
            what = f"there is no callable for {listed}" if missing else f"{listed} is no node"
            raise ArgumentError(f"{what}; the policy's nodes are {', '.join(names)}")
        self.policy = policy
        self.nodes = dict(nodes)  # a caller's later changes do not count
        self.max_cost = _positive(max_cost, "max_cost")
        self.deadline = _positive(deadline, "deadline")
        self.timeouts = _by_node(timeouts, names, "timeouts")
        """Seconds for one call, for each node that has a limit."""
        self.retries = _by_node(retries, names, "retries")
        for name, seconds in self.timeouts.items():
            _positive(seconds, f"timeouts for {name!r}")
        for name, count in self.retries.items():
            require_whole(count, f"retries for {name!r}")
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
            inputs: What is known of the input before a node is asked, by name; ``"prompt"`` is its
                text. What the policy reads and is not given is unknown.

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
            request = next(steps)
            while True:
                request = steps.send(call(request))
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
            value: As for :meth:`run`.
            key: As for :meth:`run`.
            deadline: As for :meth:`run`.
            inputs: As for :meth:`run`.

        Returns:
            The outcome.

        Raises:
            CascadeFailed: If no node gave an answer.
        """
        steps = self.steps(value, key, deadline, inputs)
        try:
            request = next(steps)
            while True:
                request = steps.send(await call_async(request))
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome

    def run_batch(self, values: Any, *, inputs: Mapping[str, Any] | None = None) -> BatchOutcome:
        """Answer many inputs: in each round a node is called once, with the rows that need it.

        The decisions are those of :meth:`run`, row by row, with the number of a row as its key.
        A node marked by :func:`~ttamer.runtime.batched` gets rows as they are: an array of an
        array, a frame of a frame, else a list; others are called row by row. The time limit of a
        node holds for the call of a batch, and the deadline of an input for the batch.

        Args:
            values: An array, a pandas frame or a sequence, one row for each input.
            inputs: What is known of each input, a sequence by name; ``"prompt"`` is its text.

        Returns:
            The answers, the nodes that gave them, and the costs; ``errors`` for inputs without.

        Raises:
            ArgumentError: If a node is async, or what is known of inputs has another length.
        """
        if self._is_async:
            raise ArgumentError("run_batch takes plain callables; await arun for async nodes")
        start, rows = time.perf_counter(), _Rows(self, values, inputs or {})
        rows.decide()
        return replace(rows.outcome, seconds=time.perf_counter() - start)

    def steps(
        self,
        value: Any,
        key: str | int | None,
        deadline: float | None,
        inputs: Mapping[str, Any] | None,
    ) -> Steps:
        """Decide for one input: it hands every call back to the host rather than making it.

        :meth:`run` and :meth:`arun` make these calls; a host with a transport of its own makes them
        itself.

        Args:
            value: As for :meth:`run`.
            key: As for :meth:`run`.
            deadline: As for :meth:`run`.
            inputs: As for :meth:`run`.

        Returns:
            A generator of calls: send the result of each; its return value is the outcome.

        Raises:
            CascadeFailed: While iterating, if no node gave an answer.
        """
        read = _facts_of(inputs) if inputs else {}  # a policy of a user need not read inputs
        turn = self.policy.session(max_cost=self.max_cost, key=key, **read)
        return _Input(self, turn, value, deadline).steps()


class _Input:
    """One input under way: its session, the calls made, and what may still be spent on it."""

    slack = 1e-9  # a cap counts as met up to this relative error of summation, as in sessions

    def __init__(self, cascade: Cascade, turn: FittedSession, value: Any, deadline: Any) -> None:
        self.turn = turn
        self.cascade, self.value, self.max_cost = cascade, value, cascade.max_cost
        self.deadline = cascade.deadline if deadline is None else deadline
        self.start = time.perf_counter()
        self.end = math.inf if self.deadline is None else self.start + self.deadline
        self.spent = 0.0
        self.reached, self.late = "", False  # the limit that ended the run, as text
        self.asked: list[NodeCall] = []
        self.replies: dict[str, Reply] = {}

    def steps(self) -> Steps:
        """Ask what the session asks, until it stops or a limit is reached."""
        turn = self.turn
        while (node := turn.next) is not None and not self.forbid(turn.price):
            reply, done = yield from self.ask(node, turn.price)
            if not done.calls:  # the deadline passed before the call
                continue
            if reply is not None:
                try:
                    turn.observe(confidence=reply.confidence, prediction=reply.prediction)
                except ObservationError as refusal:
                    error = f"reply: {refusal}"
                    done = replace(done, prediction=None, confidence=None, error=error)
                    reply = None
            if reply is None:
                turn.fail()
            else:
                self.replies[node] = reply
            self.asked.append(done)
            self.spent += done.cost
        return self.outcome()

    def ask(self, node: str, price: float) -> Generator[Call, CallResult, tuple[Any, NodeCall]]:
        """Call one node, again where it fails; return its reply and what the calls took."""
        function, timeout = self.cascade.nodes[node], self.cascade.timeouts.get(node)
        if isinstance(function, Batched):
            function = function.single
        # The session and the calls before are for hosts that relay a stream.
        request = Call(function, self.value, timeout, node, self.turn, self.asked, self.end)
        reply, error = None, None
        calls, paid, seconds = 0, 0, 0.0
        for attempt in range(1 + self.cascade.retries.get(node, 0)):
            if attempt and self.forbid((paid + 1) * price, retrying=True):
                break
            result = yield request
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

    def forbid(self, cost: float, *, retrying: bool = False) -> bool:
        """Return whether a call at this cost is forbidden; keep the reason if it ends the run."""
        if self.end < math.inf and time.perf_counter() >= self.end:
            self.late = True
            self.reached = f"the deadline of {self.deadline:g} s has passed"
            return True
        cap = math.inf if self.max_cost is None else self.max_cost * (1 + self.slack) + self.slack
        if self.spent + cost <= cap:
            return False
        if not retrying:  # without the retry the policy may still ask a cheaper node
            self.reached = (
                f"of max_cost = {self.max_cost:g}, {self.spent:g} is spent, and a call costs "
                f"{cost:g}"
            )
        return True

    def outcome(self) -> Outcome:
        """Return the best answer there is."""
        turn, by = self.turn, self.turn.answer
        if by is None:
            raise self.failure()
        reply, reached = self.replies[by], self.reached
        return Outcome(
            reply.answer,
            reply.prediction,
            by,
            tuple(self.asked),
            self.spent,
            time.perf_counter() - self.start,
            # An explanation takes longer than a decision: it is written when it is read.
            f"{reached}: the best answer so far is that of {by!r}"
            if reached
            else lambda: turn.explain().why,
            bool(reached or getattr(turn, "capped", False)),
        )

    def failure(self) -> CascadeFailed:
        """Return why there is no answer."""
        failures = [f"{call.node!r}: {call.error}" for call in self.asked if call.error]
        parts = [self.reached, "; ".join(failures)]
        if failures and self.max_cost is not None and len(failures) < len(self.cascade.nodes):
            parts.append(
                f"max_cost is {self.max_cost:g}, of which {self.spent:g} is spent, and the "
                "policy asks no other node within it"
            )
        detail = "; ".join(filter(None, parts)) or self.turn.explain().why
        return CascadeFailed(f"no node gave an answer: {detail}", tuple(self.asked), late=self.late)


def _facts_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of inputs as policies take it: the prompt apart."""
    others = {name: column for name, column in inputs.items() if name != "prompt"}
    return {"prompt": inputs.get("prompt"), "inputs": others}


def _positive(value: float | None, what: str) -> float | None:
    if value is not None and not (is_number(value) and value > 0):
        raise ArgumentError(
            f"{what} is {value!r}; it must be a number above 0, or None for no limit"
        )
    return value


def _by_node(stated: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return the value of each node that has one."""
    table = stated if isinstance(stated, Mapping) else dict.fromkeys(names, stated)
    for name in table:
        if name not in names:
            raise ArgumentError(f"{what} names {name!r}; the nodes are {', '.join(names)}")
    return {name: value for name, value in table.items() if value is not None}


class InStep:
    """Inputs that are decided together: the next call of each, and the outcomes of those done."""

    def __init__(self, steps: Sequence[Steps]) -> None:
        self.steps = steps
        self.outcomes: list[Any] = [None] * len(steps)
        """For each input its outcome, or the error that says why it has none."""
        self._waiting: list[tuple[int, Call]] = []
        for row in range(len(steps)):
            self.send(row, None)

    def send(self, row: int, result: CallResult | None) -> None:
        """Hand the result of its call to an input; ``None`` starts it."""
        try:
            self._waiting.append((row, self.steps[row].send(result)))  # type: ignore[arg-type]
        except StopIteration as done:
            self.outcomes[row] = done.value
        except CascadeFailed as failure:
            self.outcomes[row] = failure

    def take(self) -> dict[str, list[tuple[int, Call]]]:
        """Return the calls to be made now, by node: each with the number of its input."""
        # All at once: what is asked next, while these are answered, belongs to the next round.
        by_node: dict[str, list[tuple[int, Call]]] = {}
        for row, request in self._waiting:
            by_node.setdefault(request.node, []).append((row, request))
        self._waiting = []
        return by_node


@dataclass(frozen=True, eq=False)
class BatchOutcome:
    """The answers to many inputs, the nodes that gave them, and the costs.

    >>> import numpy as np
    >>> asked = np.array([[True, False], [True, True]])
    >>> cost = np.array([1.0, 10.0])
    >>> batch = BatchOutcome(["a", "b"], ["a", "b"], ["small", "large"], asked, cost, 0.01, {})
    >>> len(batch), batch.by, float(batch.cost.mean())
    (2, ['small', 'large'], 5.5)
    """

    answers: list[Any]
    """For each input, what the caller gets; ``None`` where no node gave an answer."""
    predictions: list[Any]
    """For each input, the class that was compared."""
    by: list[str | None]
    """For each input, the node that gave the answer; ``None`` where no node did."""
    asked: NDArray[np.bool_]
    """Shape (inputs, n): the nodes asked."""
    cost: NDArray[np.float64]
    """Shape (inputs,): the cost of all calls, in the cascade's unit."""
    seconds: float
    """Wall time of the whole batch."""
    errors: dict[int, str]
    """Why there is no answer, by the number of the input."""

    def __len__(self) -> int:
        return len(self.answers)

    def _repr_html_(self) -> str:
        answers = Counter(node for node in self.by if node is not None)
        rows = [[node, percent(count / len(self))] for node, count in answers.most_common()]
        notes = [f"{len(self.errors)} without an answer"] if self.errors else []
        if len(self):
            notes.insert(0, f"mean cost {number(float(self.cost.mean()))}")
        head = ["node", "answered"]
        return card(counted(len(self), "input", ","), notes=notes, head=head, rows=rows)


def groups_to_ask(batch: Any) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield nodes with the rows to ask them about, until no row asks on.

    The answers to a group are given to the batch before the next group is taken.
    """
    while (rows := np.flatnonzero(batch.next >= 0)).size:
        nodes = batch.next[rows]
        for node in np.unique(nodes).tolist():
            yield node, rows[nodes == node]


class _Rows:
    """Many inputs under way: each round calls a node once, with the rows that need it."""

    def __init__(self, cascade: Cascade, values: Any, inputs: Mapping[str, Any]) -> None:
        is_indexed = isinstance(values, Sized) and hasattr(values, "__getitem__")
        if isinstance(values, str | bytes | Mapping) or not is_indexed:
            remedy = "give a list, an array or a data frame; for one input call run"
            require_kind(values, list, "run_batch takes several inputs", remedy)
        count = len(values)
        for name, column in inputs.items():
            if len(column) != count:
                raise ArgumentError(
                    f"input {name!r} has {counted(len(column), 'value')}; one for each of "
                    f"{counted(count, 'input')} is needed",
                    param="inputs",
                )
        self.cascade, self.values, self.inputs = cascade, values, inputs
        self.names = cascade.policy.spec.names
        by: list[str | None] = [None] * count
        asked, cost = np.zeros((count, len(self.names)), bool), np.zeros(count)
        self.outcome = BatchOutcome([None] * count, [None] * count, by, asked, cost, 0.0, {})

    def decide(self) -> None:
        """Decide over arrays where that gives the same decisions, else by a session for each."""
        cascade, start = self.cascade, getattr(self.cascade.policy, "batch", None)
        # Limits on one input end rows by themselves, between the calls of a batch.
        is_limited = cascade.max_cost is not None or cascade.deadline is not None
        batch = None
        if start is not None and not is_limited and not any(cascade.retries.values()):
            batch = start(len(self.outcome), **_facts_of(self.inputs))
        if batch is None:
            self.decide_in_step()
        else:
            self.decide_together(batch)

    def decide_together(self, batch: Any) -> None:
        """Decide for all rows of a round at once."""
        outcome = self.outcome
        replies: dict[tuple[int, int], Reply] = {}
        failures: dict[int, list[str]] = {}
        for node, group in groups_to_ask(batch):
            name, rows, answers = self.names[node], group.tolist(), list[tuple[Any, Any]]()
            prices = batch.costs[group, node].tolist()
            for row, price, result in zip(rows, prices, self.ask(name, rows), strict=True):
                reply, error = result.read()
                cost = result.paid * price
                if reply is None:
                    failures.setdefault(row, []).append(f"{name!r}: {error}")
                    answers.append((None, None))
                else:
                    replies[row, node] = reply
                    answers.append((reply.confidence, reply.prediction))
                    cost = cost if reply.cost is None else reply.cost
                outcome.cost[row] += cost
            # Answers that are equal in kind are decided at once, so all of a group come together.
            batch.observe(group, *zip(*answers, strict=True))
        outcome.asked[:] = batch.asked
        for row, node in enumerate(batch.answer.tolist()):
            if node < 0:
                outcome.errors[row] = f"no node gave an answer: {'; '.join(failures[row])}"
            else:
                reply, outcome.by[row] = replies[row, node], self.names[node]
                outcome.answers[row], outcome.predictions[row] = reply.answer, reply.prediction

    def decide_in_step(self) -> None:
        """Decide by a session for each row; the calls of one round share a batch."""
        batch, steps = self.outcome, self.cascade.steps
        facts = [{name: c[row] for name, c in self.inputs.items()} for row in range(len(batch))]
        together = InStep(
            [steps(row_of(self.values, row), row, None, inputs) for row, inputs in enumerate(facts)]
        )
        while calls := together.take():
            for name, requests in calls.items():
                rows = [row for row, _ in requests]
                # They began within microseconds of each other: one end is that of all.
                results = self.ask(name, rows, min(request.end for _, request in requests))
                for row, result in zip(rows, results, strict=True):
                    together.send(row, result)
        for row, outcome in enumerate(together.outcomes):
            if isinstance(outcome, CascadeFailed):
                batch.errors[row] = str(outcome)
            else:
                batch.answers[row], batch.predictions[row] = outcome.answer, outcome.prediction
                batch.by[row] = outcome.by
            for node in outcome.asked:
                batch.cost[row] += node.cost
                batch.asked[row, self.names.index(node.node)] = True

    def ask(self, name: str, rows: list[int], end: float = math.inf) -> list[CallResult]:
        """Ask a node about rows."""
        cascade, values = self.cascade, rows_at(self.values, rows)
        return call_rows(cascade.nodes[name], values, cascade.timeouts.get(name), end)
