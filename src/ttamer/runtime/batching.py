"""A cascade on many inputs at once: each round calls a node once, with the rows that need it.

Rows leave as soon as the policy stops for them. The decisions are those of :meth:`Cascade.run`, row
by row: a fitted policy decides for all rows over arrays; rows on which a node fails, and policies
with limits on cost or time or with hedged calls, are decided by sessions, and still share their
calls.
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

from ttamer._arguments import require_kind
from ttamer._display.notebook import card
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.fitted.models import BeliefModel, ConfidenceModel, Model
from ttamer.policy.batch import Batch
from ttamer.policy.expected_walk import STOP
from ttamer.runtime.calling import Call, CallResult, call
from ttamer.runtime.reply import (
    CascadeFailed,
    Outcome,
    Unusable,
    are_columns,
    error_text,
    plain_list,
    reply_of,
    rows_of,
)
from ttamer.trace.classes import ClassCodes
from ttamer.trace.trace import BELIEF_FIELDS

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
    cascade: Cascade, inputs: Any, signals: Mapping[str, Any] | None = None
) -> BatchOutcome:
    """Answer many inputs; see :meth:`Cascade.run_batch`."""
    start = time.monotonic()
    run = _Run(cascade, inputs, signals)
    policy = cascade.policy
    limited = cascade.max_cost is not None or cascade.deadline is not None or cascade.hedge
    left = np.arange(run.count)
    # A session counts inputs that are missing as unknown; arrays have no such rows.
    if (
        isinstance(policy, FittedPolicy | Mixture)
        and not limited
        and run.count
        and run.knows_inputs(policy)
    ):
        left = np.array(sorted(run.decide_together(policy)), np.intp)
    run.decide_apart(left)
    return BatchOutcome(
        run.answers, run.predictions, run.by, run.asked, run.cost, time.monotonic() - start,
        run.errors,
    )  # fmt: skip


@dataclass
class _Group:
    """The rows that one policy decides."""

    batch: Batch
    model: Model
    rows: NDArray[np.intp]


class _Run:
    """One batch under way."""

    def __init__(self, cascade: Cascade, inputs: Any, signals: Mapping[str, Any] | None) -> None:
        self.cascade, self.inputs = cascade, inputs
        is_indexed = isinstance(inputs, Sized) and hasattr(inputs, "__getitem__")
        if isinstance(inputs, str | bytes | Mapping) or not is_indexed:
            remedy = "give a list, an array or a data frame; for one input call run"
            require_kind(inputs, list, "run_batch takes several inputs", remedy)
        self.count = int(inputs.shape[0]) if hasattr(inputs, "shape") else len(inputs)
        self.spec = cascade.policy.spec
        self.signals = {k: np.asarray(v, np.float64) for k, v in (signals or {}).items()}
        for name, values in self.signals.items():
            if values.shape != (self.count,):
                raise ArgumentError(
                    f"signal {name!r} has shape {values.shape}; one number for each of "
                    f"{counted(self.count, 'input')} is needed"
                )
        size = (self.count, len(self.spec))
        self.answers: list[Any] = [None] * self.count
        self.predictions: list[Any] = [None] * self.count
        self.by: list[str | None] = [None] * self.count
        self.asked = np.zeros(size, bool)
        self.cost = np.zeros(self.count)
        self.errors: dict[int, str] = {}
        self.confidence = np.zeros(size)
        self.coded = np.full(size, -1, np.int32)
        self.own_cost = np.full(size, np.nan)
        self.extras = {name: np.full(size, np.nan) for name in BELIEF_FIELDS}
        self.given: list[dict[int, tuple[Any, Any]]] = [{} for _ in self.spec.names]
        self.results: dict[int, dict[str, CallResult]] = {}

    def take(self, rows: NDArray[np.intp]) -> Any:
        """Return some inputs: rows of an array or a frame, or a list."""
        if hasattr(self.inputs, "iloc"):
            return self.inputs.iloc[rows]
        if hasattr(self.inputs, "shape"):
            return self.inputs[rows]
        return [self.inputs[row] for row in rows.tolist()]

    def parts(self, node: str, rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of each call of a node that answers for several inputs."""
        size = self.cascade.batched[node].size or len(rows)
        yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def call(self, node: str, rows: NDArray[np.intp], end: float = math.inf) -> CallResult:
        """Call a node that answers for several inputs, once."""
        timeout = self.cascade.timeouts.get(node)
        return call(Call(self.cascade.batched[node], self.take(rows), timeout, end=end))

    # Fitted policies, over arrays

    def decide_together(self, policy: FittedPolicy | Mixture) -> set[int]:
        """Decide for all rows; return those on which a node failed."""
        every = np.arange(self.count)
        if isinstance(policy, Mixture):
            drawn = policy.draws(self.count)
            parts = [(policy.cheap, every[~drawn]), (policy.expensive, every[drawn])]
        else:
            parts = [(policy, every)]
        groups = [
            _Group(each.policy.batch(len(rows)), each.fitted, rows)
            for each, rows in parts
            if len(rows)
        ]
        model = groups[0].model
        codes = ClassCodes(model.classes if isinstance(model, BeliefModel) else ())
        owner = np.full(self.count, -1)
        failed: set[int] = set()
        while any(group.batch.running for group in groups):
            wanted = np.full(self.count, -1)
            for group in groups:
                going = np.flatnonzero(group.batch.next != STOP)
                rows = group.rows[going]
                new = group.model.members[group.batch.next[going]] & ~self.asked[rows]
                wanted[rows] = np.where(new.any(axis=1), new.argmax(axis=1), -1)
            if failed:
                wanted[list(failed)] = -1
            for node in np.unique(wanted[wanted >= 0]).tolist():
                rows = np.flatnonzero(wanted == node)
                failed |= self._ask(node, rows, codes)
                self.asked[rows, node] = True
            for group in groups:
                places = group.batch.next
                states = np.zeros(len(places), np.intp)
                for place in np.unique(places[places != STOP]).tolist():
                    here = np.flatnonzero(places == place)
                    states[here], owner[group.rows[here]] = self._states(
                        group.model, place, group.rows[here]
                    )
                group.batch.observe(states)
        for group in groups:
            if isinstance(group.model, ConfidenceModel):
                owner[group.rows] = np.array(group.model.columns)[group.batch.answer]
        self._finish(owner, failed)
        for row in failed:  # replies that are there are not asked for again
            known = self.results.setdefault(row, {})
            for node in np.flatnonzero(self.asked[row]).tolist():
                if row in self.given[node]:
                    answer, prediction = self.given[node][row]
                    cost = self.own_cost[row, node]
                    reply = {
                        "prediction": prediction,
                        "confidence": self.confidence[row, node],
                        "answer": answer,
                        "cost": None if np.isnan(cost) else cost,
                        **{name: values[row, node] for name, values in self.extras.items()},
                    }
                    known[self.spec.names[node]] = CallResult(reply, None, 1, 1, 0.0)
        return failed

    def _ask(self, node: int, rows: NDArray[np.intp], codes: ClassCodes) -> set[int]:
        """Call a node for some rows and keep its replies; return the rows on which it failed."""
        name = self.spec.names[node]
        if name in self.cascade.batched:
            parts = self.parts(name, rows)
            return set().union(*(self._ask_part(node, part, codes) for part in parts))
        function, timeout = self.cascade.nodes[name], self.cascade.timeouts.get(name)
        results = [call(Call(function, self.value(row), timeout)) for row in rows.tolist()]
        return self._keep(node, rows, results, codes)

    def _ask_part(self, node: int, rows: NDArray[np.intp], codes: ClassCodes) -> set[int]:
        """Make one call for several rows and keep the replies; return the rows that failed."""
        name = self.spec.names[node]
        result = self.call(name, rows)
        with suppress(Exception):  # what cannot be kept as columns is read row by row
            if result.error is None and self._keep_columns(node, rows, result.returned, codes):
                return set()
        return self._keep(node, rows, self._results(name, rows, result), codes)

    def _keep(
        self,
        node: int,
        rows: NDArray[np.intp],
        results: Sequence[CallResult],
        codes: ClassCodes,
    ) -> set[int]:
        """Keep the replies of a node, one for each row; return the rows on which it failed."""
        name = self.spec.names[node]
        failed = set()
        for row, result in zip(rows.tolist(), results, strict=True):
            self.results.setdefault(row, {})[name] = result
            try:
                if result.error is not None:
                    raise Unusable(error_text(result.error))  # noqa: TRY301
                reply = reply_of(result.returned)
                self.coded[row, node] = codes.code(reply.prediction)
            except (Unusable, TraceError):
                failed.add(row)
                continue
            self.confidence[row, node] = reply.confidence
            self.own_cost[row, node] = np.nan if reply.cost is None else reply.cost
            for column, value in (reply.columns or {}).items():
                self.extras[column][row, node] = value
            self.given[node][row] = (reply.answer, reply.prediction)
        return failed

    def _keep_columns(
        self, node: int, rows: NDArray[np.intp], returned: Any, codes: ClassCodes
    ) -> bool:
        """Keep replies that came as arrays; return whether they did, and are all usable."""
        if are_columns(returned) and len(returned) in (2, 3):
            names = ("prediction", "confidence", "answer")
            returned = dict(zip(names, returned, strict=False))
        if not isinstance(returned, Mapping) or not {"prediction", "confidence"} <= set(returned):
            return False
        columns = {
            name: np.asarray(returned[name])
            for name in ("prediction", "confidence", "cost", *BELIEF_FIELDS)
            if name in returned
        }  # fmt: skip
        if isinstance(returned["prediction"], list | tuple):  # an array would make [1, "a"] texts
            columns["prediction"] = np.fromiter(returned["prediction"], object)
        confidence = columns["confidence"]
        if any(len(column) != len(rows) for column in columns.values()) or any(
            column.ndim != 1 for column in columns.values()
        ):
            return False
        numbers = [columns[name] for name in ("confidence", *BELIEF_FIELDS) if name in columns]
        if any(column.dtype.kind not in "biuf" for column in numbers):
            return False
        predictions = columns["prediction"]
        plain = predictions.tolist()
        shown = plain_list(returned["answer"]) if "answer" in returned else plain
        if len(shown) != len(rows):
            return False
        if "cost" in columns:
            cost = columns["cost"]
            if cost.dtype.kind not in "biuf" or not (np.isfinite(cost) & (cost >= 0)).all():
                return False
            self.own_cost[rows, node] = cost
        self.coded[rows, node] = codes.encode(predictions)
        self.confidence[rows, node] = confidence
        for name in set(BELIEF_FIELDS) & set(columns):
            values = columns[name]
            self.extras[name][rows, node] = np.where(np.isfinite(values), values, np.nan)
        given = self.given[node]
        given.update(zip(rows.tolist(), zip(shown, plain, strict=True), strict=True))
        return True

    def _states(
        self, model: Model, place: int, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the state of rows at a place of the problem, and the node of the best answer."""
        if isinstance(model, ConfidenceModel):
            node = model.columns[place]
            edges = model.quantiser.edges[node]
            confidence = self.confidence[rows, node]
            sure = np.where(np.isnan(confidence), -np.inf, confidence)
            return np.searchsorted(edges, sure, side="right"), np.full(len(rows), node)
        assert isinstance(model, BeliefModel)  # the two kinds there are  # noqa: S101
        confidence = self.confidence[rows]
        for node, edges in enumerate(model.belief.bounds):
            low, high = (edges[0] - 1, edges[-1] + 1) if len(edges) else (0.0, 0.0)
            column = np.where(np.isnan(confidence[:, node]), low, confidence[:, node])
            confidence[:, node] = np.clip(column, low, high)
        extras = {name: self.extras[name][rows] for name in model.belief.columns}
        signals = self._signals(model, rows)
        return model.states_at(place, confidence, self.coded[rows], signals, extras)

    def _signals(self, model: Model, rows: NDArray[np.intp]) -> NDArray[np.float64] | None:
        if not isinstance(model, BeliefModel) or model.belief.signals is None:
            return None
        names = model.belief.signals.names
        return np.stack([self.signals[name][rows] for name in names], axis=1)

    def knows_inputs(self, policy: FittedPolicy | Mixture) -> bool:
        """Return whether the signals that the policy was fitted with are there."""
        parts = [policy.cheap, policy.expensive] if isinstance(policy, Mixture) else [policy]
        models = [part.fitted for part in parts if isinstance(part.fitted, BeliefModel)]
        used = [model.belief.signals for model in models if model.belief.signals is not None]
        return all(name in self.signals for signals in used for name in signals.names)

    def _finish(self, owner: NDArray[np.intp], failed: set[int]) -> None:
        """Keep the answers and the costs of the rows that did not fail."""
        costs = np.where(np.isnan(self.own_cost), self.spec.costs, self.own_cost)
        total = np.where(self.asked, costs, 0.0).sum(axis=1)
        if self.spec.has_passing:
            before = np.concatenate([[0.0], np.cumsum(self.spec.passing)])
            last = np.full(self.count, -1)
            for node in range(len(self.spec)):
                here = self.asked[:, node]
                passed = before[node] - before[last + 1]
                total += np.where(here & np.isnan(self.own_cost[:, node]), passed, 0.0)
                last[here] = node
        self.cost[:] = total
        for row, node in enumerate(owner.tolist()):
            if row not in failed:
                self.answers[row], self.predictions[row] = self.given[node][row]
                self.by[row] = self.spec.names[node]

    # Everything else, by sessions

    def value(self, row: int) -> Any:
        """Return one input."""
        return self.inputs.iloc[row] if hasattr(self.inputs, "iloc") else self.inputs[row]

    def decide_apart(self, rows: NDArray[np.intp]) -> None:
        """Decide for rows by sessions, in step: calls of one round share a batch."""
        running: dict[int, tuple[Generator[Call, CallResult, Outcome], Call]] = {}
        for row in rows.tolist():
            self.asked[row], self.cost[row] = False, 0.0
            signals = {name: float(values[row]) for name, values in self.signals.items()} or None
            steps = self.cascade.steps(self.value(row), row, None, signals)
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
            known = self.results.get(row, {}).pop(name, None)
            if known is not None:
                results[row] = known
            elif name in self.cascade.batched:
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
