"""Make a trace by calling every node with every input, and timing each call."""

from __future__ import annotations

import inspect
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_kind
from ttamer.cascade import CascadeNode, CascadeSpec, Kind, Target
from ttamer.errors import ArgumentError, TraceError
from ttamer.runtime.calling import Batched, EventLoop, max_batch, require_callables, result_of
from ttamer.runtime.reply import Reply, Unusable, reply_of, rows_of
from ttamer.show import shown
from ttamer.trace.checks import check_classes
from ttamer.trace.schema import ClassCodes
from ttamer.trace.trace import OnBad, Trace


def collect(
    inputs: Iterable[Any],
    nodes: Mapping[str, Callable[[Any], Any]],
    *,
    labels: Iterable[object] | None = None,
    repeat: int = 1,
    warmup: int = 1,
    costs: Literal["measured"] | Mapping[str, float] = "measured",
    kind: Kind = "models",
    target: Target | None = None,
    on_error: OnBad = "refuse",
    progress: Callable[[int, int | None], None] | bool | None = None,
) -> Trace:
    """Call every node with every input, and return the replies as a trace.

    A node is any callable that :class:`~ttamer.Cascade` takes, with the same meaning of what it
    returns (:mod:`ttamer.runtime.reply`): ``(prediction, confidence)``, a 3-tuple, a mapping or an
    object; plain, async or :func:`~ttamer.runtime.batched`.

    Args:
        inputs: The inputs, handed to the callables as they are.
        nodes: The callable of each node, by name, in the order of the cascade.
        labels: The right answer for each input.
        repeat: How often each call is timed; the median counts.
        warmup: Calls of each node that come first and are not timed.
        costs: ``"measured"``: wall time in seconds, for each row, and its mean as the node's cost.
            Or a cost for each node, which is then called once for each input. A ``cost`` in a
            reply takes the place of either on its row.
        kind: The kind of the cascade.
        target: What counts as right: by default ``"label"`` if there are labels, else ``"last"``.
        on_error: ``"refuse"`` raises at the first call that fails; ``"skip"`` leaves a gap there,
            which ``notes`` counts, and an input without any answer out (``left_out``).
        progress: Called as ``progress(done, total)`` when inputs are done; ``True`` shows it.

    Returns:
        The trace. A confidence that is NaN counts as the lowest of its node, and ``notes`` has
        the count.

    Raises:
        ArgumentError: If an option is out of range.
        TraceError: If a call fails, or no rows are left.

    >>> nodes = {"short": lambda text: (text[0], 0.6), "full": lambda text: (text[-1], 0.9)}
    >>> trace = collect(["ab", "cc"], nodes, labels=["b", "c"], costs={"short": 1, "full": 5})
    >>> trace.loss.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    require_inputs(inputs)
    work = Collection.of(
        nodes,
        labelled=labels is not None,
        repeat=repeat,
        warmup=warmup,
        costs=costs,
        kind=kind,
        target=target,
        on_error=on_error,
    )
    log = work.log()
    total = len(inputs) if isinstance(inputs, Sized) else None
    done = 0
    with EventLoop() as loop, reporting(progress, total) as report:
        calls = work.calls(loop)
        for part in _blocks(with_labels(inputs, labels), work.block):
            values = [value for value, _ in part]
            rows = [calls.ask(name, node, values, done) for name, node in nodes.items()]
            for row, (_, label) in enumerate(part):
                log.add([answers[row] for answers in rows], label, done + row)
            done += len(part)
            report(done)
    if not done:
        raise TraceError("there are no inputs to ask about; bring at least one")
    return log.trace(work.spec, measured=work.measured, done=done)


@contextmanager
def reporting(
    progress: Callable[[int, int | None], None] | bool | None, total: int | None
) -> Iterator[Callable[[int], None]]:
    """Give what is called with the number of inputs done; ``True`` shows it until the end."""
    with shown(progress is True) as bar:

        def report(done: int) -> None:
            if bar is not None:
                bar(counted(done, "input") if total is None else f"{done} of {total} inputs")
            elif callable(progress):
                progress(done, total)

        yield report


@dataclass(frozen=True)
class Collection:
    """The checked options of one collection."""

    spec: CascadeSpec
    labelled: bool
    measured: bool
    repeat: int
    warmup: int
    on_error: OnBad
    block: int
    """How many inputs are taken at a time: the largest batch of a node."""

    @classmethod
    def of(
        cls,
        nodes: Mapping[str, Any],
        *,
        labelled: bool,
        repeat: int = 1,
        warmup: int = 1,
        costs: Literal["measured"] | Mapping[str, float] = "measured",
        kind: Kind = "models",
        target: Target | None = None,
        on_error: OnBad = "refuse",
    ) -> Collection:
        """Check the options of :func:`collect`; with costs given, each call is made once."""
        require_callables(nodes)
        if repeat < 1 or warmup < 0:
            raise ArgumentError(
                f"repeat is {repeat} and warmup {warmup}; at least 1 and 0 are needed"
            )
        if on_error not in ("refuse", "skip"):
            raise ArgumentError(f'on_error is {on_error!r}; it must be "refuse" or "skip"')
        stated: Mapping[str, float] = {}
        if not isinstance(costs, str):
            remedy = 'write {"small": 1.0, "large": 12.5}, or "measured"'
            require_kind(costs, Mapping, "costs must be a mapping from names to costs", remedy)
            stated = costs
            if stated.keys() != nodes.keys():
                odd = ", ".join(map(repr, stated.keys() ^ nodes.keys()))
                raise ArgumentError(
                    f"costs and nodes must name the same nodes; only one of them has {odd}"
                )
        elif costs != "measured":
            raise ArgumentError(
                f'costs is {costs!r}; it must be "measured" or a cost for each node'
            )
        spec = CascadeSpec(
            tuple(CascadeNode(name, stated.get(name, 0.0)) for name in nodes),
            kind,
            target or ("label" if labelled else "last"),
        )
        if stated:
            repeat, warmup = 1, 0
        return cls(spec, labelled, not stated, repeat, warmup, on_error, max_batch(nodes))

    def calls(self, loop: EventLoop) -> Calls:
        """Return what calls the nodes."""
        return Calls(self.repeat, self.warmup, self.on_error, loop)

    def log(self) -> Log:
        """Return an empty log."""
        return Log(self.spec.names, ClassCodes(), self.labelled)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply, and the seconds its call took."""

    reply: Reply
    seconds: float


@dataclass
class Calls:
    """Calls the nodes, times the calls, and reports where one fails."""

    repeat: int
    warmup: int
    on_error: OnBad
    loop: EventLoop
    warm: set[str] = field(default_factory=set)

    def ask(self, name: str, node: Any, values: list[Any], start: int) -> list[_Answer | str]:
        """Return an answer for each value, or the reason why it has none."""
        if isinstance(node, Batched):
            answers: list[_Answer | str] = []
            for first in range(0, len(values), node.limit):
                answers += self._batch(
                    name, node, values[first : first + node.limit], start + first
                )
            return answers
        return [self._one(name, node, value, start + i) for i, value in enumerate(values)]

    def _one(self, name: str, node: Any, value: Any, position: int) -> _Answer | str:
        try:
            returned, seconds = self._timed(name, node, value)
        except Exception as error:  # whatever a user's function raises
            return self._failed(name, error, f"input {position}")
        return self._checked(name, returned, seconds, position)

    def _batch(
        self, name: str, node: Batched, values: list[Any], start: int
    ) -> list[_Answer | str]:
        end = start + len(values) - 1
        try:
            returned, seconds = self._timed(name, node, values)
            returned = rows_of(returned, len(values))
        except Exception as error:  # whatever a user's function raises
            where = f"input {start}" if start == end else f"inputs {start} to {end}"
            reason = self._failed(name, error, where)
            if start == end:
                return [reason]
            # One bad input must not cost the others their rows: call again, one by one.
            rows = enumerate(values, start=start)
            return [answer for i, value in rows for answer in self._batch(name, node, [value], i)]
        share = seconds / len(values)
        return [self._checked(name, reply, share, start + i) for i, reply in enumerate(returned)]

    def _checked(self, name: str, returned: Any, seconds: float, position: int) -> _Answer | str:
        try:
            return _Answer(reply_of(returned), seconds)
        except Unusable as error:
            return self._failed(name, error, f"input {position}")

    def _timed(self, name: str, node: Any, value: Any) -> tuple[Any, float]:
        if name not in self.warm:
            self.warm.add(name)
            for _ in range(self.warmup):
                self._called(node, value)
        times = []
        for _ in range(self.repeat):
            start = time.perf_counter()
            returned = self._called(node, value)
            times.append(time.perf_counter() - start)
        return returned, statistics.median(times)

    def _called(self, node: Any, value: Any) -> Any:
        returned = node(value)
        return self.loop.run(result_of(returned)) if inspect.isawaitable(returned) else returned

    def _failed(self, name: str, error: Exception, where: str) -> str:
        what = str(error) if isinstance(error, Unusable) else f"raised {type(error).__name__}"
        if self.on_error == "skip":
            return f"{name} {what}"
        detail = "" if isinstance(error, Unusable) else f": {' '.join(str(error).split())}"
        raise TraceError(
            f"node {name!r}, {where} (counting from 0): {what}{detail}; fix the "
            'callable, or leave a gap there with on_error="skip" (they are counted)'
        ) from error


@dataclass
class Log:
    """The rows collected so far."""

    names: tuple[str, ...]
    codes: ClassCodes
    labelled: bool
    rows: list[list[_Answer | str]] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, answers: list[_Answer | str], label: object, position: int) -> None:
        """Keep a row, or count it if no node has an answer."""
        if not any(isinstance(answer, _Answer) for answer in answers):
            self.left_out[str(answers[0])] += 1
            return
        self.rows.append(answers)
        if self.labelled:
            try:
                self.label.append(self.codes.code(label))
            except TraceError as error:
                raise TraceError(f"label {position} (counting from 0): {error}") from None

    def trace(self, spec: CascadeSpec, *, measured: bool, done: int) -> Trace:
        """Return everything kept as a trace."""
        if not self.rows:
            raise TraceError(f"every input was left out ({done} in all): {dict(self.left_out)}")
        answered = np.array([[isinstance(a, _Answer) for a in row] for row in self.rows])
        if (silent := ~answered.any(axis=0)).any():
            node = int(silent.argmax())
            raise TraceError(f"node {self.names[node]!r} gave no answer: {self.rows[0][node]}")

        def table(of: Callable[[_Answer], Any], kind: Any, gap: Any = math.nan) -> Any:
            return np.array(
                [[gap if isinstance(a, str) else of(a) for a in row] for row in self.rows],
                kind, order="F",
            )  # fmt: skip

        failures = Counter(a for row in self.rows for a in row if isinstance(a, str))
        notes = [f"{counted(count, 'row')} with a gap: {why}" for why, count in failures.items()]
        confidence = table(lambda answer: answer.reply.confidence, np.float64)
        for node, name in enumerate(self.names):
            if count := _make_finite(confidence[:, node], answered[:, node]):
                notes.append(
                    f"{count} confidences of {name!r} are NaN or infinite: they count as its "
                    "lowest, or as its highest where infinite"
                )
        cost: Any = None
        stated = table(lambda answer: answer.reply.cost, np.float64)  # NaN where a reply has none
        priced = ~np.isnan(stated)
        if measured or priced.any():
            unstated = table(lambda answer: answer.seconds, np.float64) if measured else spec.costs
            cost = np.asfortranarray(np.where(priced, stated, unstated))
            cost[~answered] = math.nan
            means = np.nanmean(cost, axis=0)
            spec = spec.with_costs(dict(zip(self.names, means, strict=True)))
            if measured and priced.any() and not (priced | ~answered).all():
                names = ", ".join(
                    repr(name) for name, column in zip(self.names, priced.T, strict=True)
                    if column.any()
                )  # fmt: skip
                notes.append(
                    f"costs of {names} are from its replies, and the others are seconds: give "
                    "costs in one unit"
                )
        latency = table(lambda answer: answer.reply.latency, np.float64)
        # A column is there on every answer of a node, or not at all.
        latency[:, (np.isnan(latency) & answered).any(axis=0)] = math.nan
        prediction = table(lambda answer: self.codes.code(answer.reply.prediction), np.int32, -1)
        trace = Trace(
            spec,
            confidence,
            prediction=prediction,
            label=np.array(self.label, np.int32) if self.labelled else None,
            cost=cost,
            latency=None if np.isnan(latency).all() else latency,
            classes=self.codes.classes,
            left_out=self.left_out,
            notes=tuple(notes),
        )
        check_classes(trace, "the replies")
        return trace


def _make_finite(values: NDArray[np.float64], answered: NDArray[np.bool_]) -> int:
    """Put the lowest finite value for NaN and -inf, the highest for inf; return how many."""
    finite = values[np.isfinite(values)]
    bad = answered & ~np.isfinite(values)
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    values[bad] = np.where(values[bad] == np.inf, high, low)
    return int(bad.sum())


def require_inputs(inputs: object) -> None:
    """Refuse what would be iterated over otherwise than input by input."""
    remedy = "read a file into a list first"
    if hasattr(inputs, "columns"):
        remedy = 'take a column, frame["text"].to_list(), or rows, frame.to_dict("records")'
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | Mapping):
        return
    require_kind(inputs, (list, tuple), "collect takes a list of inputs", remedy)


def with_labels(
    inputs: Iterable[Any], labels: Iterable[object] | None
) -> Iterator[tuple[Any, object]]:
    """Yield every input with its label; refuse more of one than of the other."""
    if labels is None:
        yield from ((value, None) for value in inputs)
        return
    end = object()
    for position, (value, label) in enumerate(itertools.zip_longest(inputs, labels, fillvalue=end)):
        if value is end or label is end:
            fewer, more = ("input", "labels") if value is end else ("label", "inputs")
            raise TraceError(
                f"{counted(position, fewer)} and more {more} are given; as many of each are needed"
            )
        yield value, label


def _blocks(pairs: Iterator[tuple[Any, object]], size: int) -> Iterator[list[tuple[Any, object]]]:
    while block := list(itertools.islice(pairs, size)):
        yield block
