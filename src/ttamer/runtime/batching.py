"""A cascade on many inputs at once: each round calls a node once, with the rows that need it.

Rows leave as soon as the policy stops for them. Each is decided by a session of its own: decisions
are those of :meth:`Cascade.run`, whatever the policy, the limits and the failures are.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._arguments import require_kind
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError
from ttamer.runtime.calling import Call, CallResult, call
from ttamer.runtime.reply import (
    CascadeFailed,
    Outcome,
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
    >>> found = BatchOutcome(["a", "b"], ["a", "b"], ["small", "large"], asked, cost, 0.01, {})
    >>> len(found), found.by, float(found.cost.mean())
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
        found = Counter(node for node in self.by if node is not None)
        rows = [[node, percent(count / len(self))] for node, count in found.most_common()]
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
        for name, own in self.inputs.items():
            if len(own) != self.count:
                raise ArgumentError(
                    f"input {name!r} has {counted(len(own), 'value')}; one for each of "
                    f"{counted(self.count, 'input')} is needed",
                    param="inputs",
                )
        size = (self.count, len(self.spec))
        self.answers: list[Any] = [None] * self.count
        self.predictions: list[Any] = [None] * self.count
        self.by: list[str | None] = [None] * self.count
        self.asked = np.zeros(size, bool)
        self.cost = np.zeros(self.count)
        self.errors: dict[int, str] = {}

    def take(self, rows: NDArray[np.intp]) -> Any:
        """Return some inputs: rows of an array or a frame, or a list."""
        if hasattr(self.values, "iloc"):
            return self.values.iloc[rows]
        if hasattr(self.values, "shape"):
            return self.values[rows]
        return [self.values[row] for row in rows.tolist()]

    def parts(self, node: str, rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of each call of a node that answers for several inputs."""
        size = self.cascade.batched[node].size or len(rows)
        yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def call(self, node: str, rows: NDArray[np.intp], end: float = math.inf) -> CallResult:
        """Call a node that answers for several inputs, once."""
        timeout = self.cascade.timeouts.get(node)
        return call(Call(self.cascade.batched[node], self.take(rows), timeout, end=end))

    def value(self, row: int) -> Any:
        """Return one input."""
        return self.values.iloc[row] if hasattr(self.values, "iloc") else self.values[row]

    def decide(self) -> None:
        """Decide for rows by sessions, in step: calls of one round share a batch."""
        running: dict[int, tuple[Generator[Call, CallResult, Outcome], Call]] = {}
        for row in range(self.count):
            known = {name: values[row] for name, values in self.inputs.items()}
            steps = self.cascade.steps(self.value(row), row, None, known)
            self._advance(running, row, steps, None)
        while running:
            results = self._round({row: request for row, (_, request) in running.items()})
            for row, result in results.items():
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
            self.cost[row] = sum(each.cost for each in failure.asked)
            self.asked[row, [self.spec.index_of(each.node) for each in failure.asked]] = True

    def _round(self, requests: Mapping[int, Call]) -> dict[int, CallResult]:
        """Make one call for each row, those of one node that takes batches together."""
        results: dict[int, CallResult] = {}
        together: dict[str, list[int]] = {}
        for row, request in requests.items():
            name = request.node
            if name in self.cascade.batched:
                together.setdefault(name, []).append(row)
            else:
                results[row] = call(request)
        for name, rows in together.items():
            for part in self.parts(name, np.array(rows, np.intp)):
                end = min(requests[row].end for row in part.tolist())
                each = self._results(name, part, self.call(name, part, end), end)
                results |= zip(part.tolist(), each, strict=True)
        return results

    def _results(
        self, name: str, rows: NDArray[np.intp], result: CallResult, end: float = math.inf
    ) -> list[CallResult]:
        """Return the result of each row of one call.

        A call that ended at its time limit is the result of all of them. Where it failed otherwise,
        or returned no replies, each row is called alone.
        """
        timeout = self.cascade.timeouts.get(name)
        is_limited = timeout is not None or end < math.inf
        if is_limited and isinstance(result.error, TimeoutError):
            return [result] * len(rows)
        if result.error is None:
            with suppress(Exception):  # whatever a user's function returned
                share = result.seconds / len(rows)
                replies = rows_of(result.returned, len(rows))
                return [CallResult(reply, None, 1, 1, share) for reply in replies]
        answer = self.cascade.batched[name].first
        each = (self.take(rows[at : at + 1]) for at in range(len(rows)))
        return [call(Call(answer, one, timeout, end=end)) for one in each]
