"""A cascade on many inputs at once: each round calls a node once, with the rows that need it.

Rows leave as soon as the policy stops for them. Decisions are those of :meth:`Cascade.run`: over
arrays where the policy has a ``batch`` and one input has no limits, else by a session for each row.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, number, percent, require_kind
from ttamer.errors import ArgumentError
from ttamer.runtime.calling import Batched, Call, CallResult, call
from ttamer.runtime.reply import (
    CascadeFailed,
    Outcome,
    Reply,
    rows_of,
)
from ttamer.show import card

if TYPE_CHECKING:  # it imports this module
    from ttamer.runtime.cascade import Cascade


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


def run_batch(
    cascade: Cascade, values: Any, inputs: Mapping[str, Any] | None = None
) -> BatchOutcome:
    """Answer many inputs; see :meth:`Cascade.run_batch`."""
    start = time.monotonic()
    run = _Run(cascade, values, inputs)
    run.decide()
    return BatchOutcome(
        run.answers, run.predictions, run.by, run.asked, run.cost, time.monotonic() - start,
        run.errors,
    )  # fmt: skip


def groups_to_ask(batch: Any) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield nodes with the rows to ask them about, until no row asks on.

    The answers to a group are given to the batch before the next group is taken.
    """
    while (rows := np.flatnonzero(batch.next >= 0)).size:
        nodes = batch.next[rows]
        for node in np.unique(nodes).tolist():
            yield node, rows[nodes == node]


def rows_at(values: Any, rows: Sequence[int] | NDArray[np.intp]) -> Any:
    """Return some inputs: rows of a frame or an array, or a list."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows]


class _Run:
    """One batch under way."""

    def __init__(self, cascade: Cascade, values: Any, inputs: Mapping[str, Any] | None) -> None:
        self.cascade, self.values = cascade, values
        is_indexed = isinstance(values, Sized) and hasattr(values, "__getitem__")
        if isinstance(values, str | bytes | Mapping) or not is_indexed:
            remedy = "give a list, an array or a data frame; for one input call run"
            require_kind(values, list, "run_batch takes several inputs", remedy)
        self.count = int(values.shape[0]) if hasattr(values, "shape") else len(values)
        self.spec = cascade.policy.spec
        self.inputs = dict(inputs or {})
        for name, column in self.inputs.items():
            if len(column) != self.count:
                raise ArgumentError(
                    f"input {name!r} has {counted(len(column), 'value')}; one for each of "
                    f"{counted(self.count, 'input')} is needed",
                    param="inputs",
                )
        self.answers: list[Any] = [None] * self.count
        self.predictions: list[Any] = [None] * self.count
        self.by: list[str | None] = [None] * self.count
        self.asked = np.zeros((self.count, len(self.spec)), bool)
        self.cost = np.zeros(self.count)
        self.errors: dict[int, str] = {}

    def decide(self) -> None:
        """Decide over arrays where that gives the same decisions, else by sessions in step."""
        cascade = self.cascade
        # Limits on one input end rows on their own, between the calls of a batch.
        is_limited = cascade.max_cost is not None or cascade.deadline is not None
        start = getattr(cascade.policy, "batch", None)
        batch = None
        if start is not None and not is_limited and not any(cascade.retries.values()):
            inputs = {name: column for name, column in self.inputs.items() if name != "prompt"}
            batch = start(self.count, prompt=self.inputs.get("prompt"), inputs=inputs)
        if batch is None:
            self._decide_one_by_one()
        else:
            self._decide_together(batch)

    def _decide_together(self, batch: Any) -> None:
        """Decide for all rows of a round at once."""
        replies: list[dict[int, Reply]] = [{} for _ in range(self.count)]
        failures: dict[int, list[str]] = {}
        for node, group in groups_to_ask(batch):
            name, rows = self.spec.names[node], group.tolist()
            answers: list[Reply | None] = []
            prices = batch.costs[group, node].tolist()
            for row, result, price in zip(rows, self._ask(name, rows), prices, strict=True):
                reply, error = result.read()
                answers.append(reply)
                if reply is None:
                    failures.setdefault(row, []).append(f"{name!r}: {error}")
                else:
                    replies[row][node] = reply
                stated = None if reply is None else reply.cost
                self.cost[row] += result.paid * price if stated is None else stated
            batch.observe(
                group,
                [None if reply is None else reply.confidence for reply in answers],
                [None if reply is None else reply.prediction for reply in answers],
            )
        self.asked = batch.asked
        for row, node in enumerate(batch.answer.tolist()):
            if node < 0:
                self.errors[row] = f"no node gave an answer: {'; '.join(failures[row])}"
            else:
                reply, self.by[row] = replies[row][node], self.spec.names[node]
                self.answers[row], self.predictions[row] = reply.answer, reply.prediction

    def _decide_one_by_one(self) -> None:
        """Decide by a session for each row, in step: calls of one round share a batch."""
        running: dict[int, tuple[Generator[Call, CallResult, Outcome], Call]] = {}
        for row in range(self.count):
            inputs = {name: column[row] for name, column in self.inputs.items()}
            steps = self.cascade.steps(self._value(row), row, None, inputs)
            self._advance(running, row, steps, None)
        while running:
            asked: dict[str, list[int]] = {}
            for row, (_, request) in running.items():
                asked.setdefault(request.node, []).append(row)
            requests = {row: request for row, (_, request) in running.items()}
            for name, rows in asked.items():
                for row, result in zip(rows, self._ask(name, rows, requests), strict=True):
                    steps, _ = running.pop(row)
                    self._advance(running, row, steps, result)

    def _advance(
        self, running: dict[int, Any], row: int, steps: Any, result: CallResult | None
    ) -> None:
        """Hand a result to a session, and keep its next call or its outcome."""
        try:
            running[row] = (steps, steps.send(result))
        except StopIteration as done:
            outcome: Outcome = done.value
            self.answers[row], self.predictions[row] = outcome.answer, outcome.prediction
            self.by[row], self.cost[row] = outcome.by, outcome.cost
            self.asked[row, [self.spec.index_of(name) for name in outcome.path]] = True
        except CascadeFailed as failure:
            self.errors[row] = str(failure)
            self.cost[row] = sum(node.cost for node in failure.asked)
            self.asked[row, [self.spec.index_of(node.node) for node in failure.asked]] = True

    def _ask(
        self, name: str, rows: list[int], requests: Mapping[int, Call] | None = None
    ) -> list[CallResult]:
        """Ask a node about rows: in batches where it takes them, else by the rows' requests."""
        node, timeout = self.cascade.batched.get(name), self.cascade.timeouts.get(name)
        if node is None:
            single = self.cascade.nodes[name]
            if requests is None:
                return [call(Call(single, self._value(row), timeout)) for row in rows]
            return [call(requests[row]) for row in rows]
        results = []
        size = node.size or len(rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            end = (
                min((requests[row].end for row in part), default=math.inf) if requests else math.inf
            )
            results += ask_batch(node, rows_at(self.values, part), timeout, end)
        return results

    def _value(self, row: int) -> Any:
        return self.values.iloc[row] if hasattr(self.values, "iloc") else self.values[row]


def ask_batch(node: Batched, values: Any, timeout: float | None, end: float) -> list[CallResult]:
    """Ask a node once about some inputs; where that fails, or returns no replies, each row alone.

    A call that ended at its time limit is the result of all of its rows.
    """
    result, count = call(Call(node, values, timeout, end=end)), len(values)
    is_timed = timeout is not None or end < math.inf
    if is_timed and isinstance(result.error, TimeoutError):
        return [result] * count
    if result.error is None:
        with suppress(Exception):  # whatever a user's function returned
            share, replies = result.seconds / count, rows_of(result.returned, count)
            return [CallResult(reply, None, 1, 1, share) for reply in replies]
    rows = values.iloc if hasattr(values, "iloc") else values
    alone = [rows[row : row + 1] for row in range(count)]
    return [call(Call(node.first, row, timeout, end=end)) for row in alone]
