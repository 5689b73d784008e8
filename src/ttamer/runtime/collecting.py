"""Make a trace by asking: every model about every input, with the time each call takes."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.classes import ClassCodes, class_text
from ttamer.trace.spec import CascadeNode, CascadeSpec, Order, Target
from ttamer.trace.trace import EXTRA_FIELDS, OnBad, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Calls", "Log", "batched", "collect", "with_labels"]


@dataclass(frozen=True)
class Batched:
    """A callable that answers for several inputs at once."""

    answer: Callable[[Sequence[Any]], Sequence[Any]]
    size: int

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.answer(inputs)


def batched(answer: Callable[[Sequence[Any]], Sequence[Any]], size: int = 32) -> Batched:
    """Mark a callable that takes a list of inputs and returns a list of answers.

    The cost of a row is its share of the batch's time.

    >>> trace = collect(["a", "bb"], {"n": batched(lambda texts: [(len(t), 1.0) for t in texts])})
    >>> trace.classes
    ('1', '2')
    """
    if size < 1:
        raise ArgumentError(f"size is {size}; a batch needs at least 1 input")
    return Batched(answer, size)


def collect(
    inputs: Iterable[Any],
    nodes: Mapping[str, Callable[[Any], Any]],
    *,
    labels: Iterable[object] | None = None,
    repeat: int = 1,
    warmup: int = 1,
    costs: Literal["measured"] | Mapping[str, float] = "measured",
    order: Order = "auto",
    target: Target | None = None,
    on_error: OnBad = "refuse",
    progress: Callable[[int, int | None], None] | None = None,
) -> Trace:
    """Ask every node about every input, and return what they said as a trace.

    A node is a callable from an input to ``(prediction, confidence)``, or to an object or mapping
    with these, and ``margin`` and ``entropy`` where known. A prediction of ``None`` is no answer.

    ``costs="measured"`` is wall time in seconds, the median of ``repeat`` calls, kept for each row;
    a node's cost in the cascade is its mean. ``warmup`` calls come first and are not counted. With
    costs given, each node is called once per input. An exception in a callable ends the work, or
    with ``on_error="leave_out"`` leaves its row out, counted. ``target`` is the label if there are
    labels, else the last node. ``progress(done, total)`` is called as inputs are done.

    >>> nodes = {"short": lambda text: (text[0], 0.6), "full": lambda text: (text[-1], 0.9)}
    >>> trace = collect(["ab", "cc"], nodes, labels=["b", "c"], costs={"short": 1, "full": 5})
    >>> trace.wrong().tolist()
    [[True, False], [False, False]]
    """
    names = tuple(nodes)
    if repeat < 1 or warmup < 0:
        raise ArgumentError(f"repeat is {repeat} and warmup {warmup}; at least 1 and 0 are needed")
    if on_error not in ("refuse", "leave_out"):
        raise ArgumentError(f'on_error is {on_error!r}; it must be "refuse" or "leave_out"')
    if not isinstance(costs, str) and costs.keys() != nodes.keys():
        odd = ", ".join(map(repr, costs.keys() ^ nodes.keys()))
        raise ArgumentError(f"costs and nodes must name the same nodes; only one of them has {odd}")
    if isinstance(costs, str) and costs != "measured":
        raise ArgumentError(f'costs is {costs!r}; it must be "measured" or a cost for each node')
    target = target or ("last" if labels is None else "label")
    given = {} if isinstance(costs, str) else costs
    spec = CascadeSpec(tuple(CascadeNode(n, given.get(n, 0.0)) for n in names), order, target)

    log = Log(names, ClassCodes(), labels is not None)
    calls = Calls(repeat if not given else 1, warmup if not given else 0, on_error)
    total = len(inputs) if isinstance(inputs, Sized) else None
    block = max((n.size for n in nodes.values() if isinstance(n, Batched)), default=1)
    done = 0
    for part in _blocks(with_labels(inputs, labels), block):
        values = [value for value, _ in part]
        rows = [calls.ask(name, node, values, done) for name, node in nodes.items()]
        for row, (_, label) in enumerate(part):
            log.add([answers[row] for answers in rows], label, done + row)
        done += len(part)
        if progress is not None:
            progress(done, total)
    if not done:
        raise TraceError("there are no inputs to ask about; bring at least one")
    return log.trace(spec, measured=not given, done=done)


@dataclass(frozen=True)
class _Answer:
    """What one node said of one input, checked."""

    prediction: str | None
    confidence: float
    extras: tuple[float, ...]
    seconds: float


class _Bad(Exception):  # noqa: N818 - never leaves this file
    """An answer that cannot be used; its text says why."""


@dataclass
class Calls:
    """Calls the nodes, times the calls, and places what goes wrong."""

    repeat: int
    warmup: int
    on_error: OnBad
    warm: set[str] = field(default_factory=set)

    def ask(self, name: str, node: Any, values: list[Any], start: int) -> list[_Answer | str]:
        """Return an answer per value, or the reason why it has none."""
        if isinstance(node, Batched):
            answers: list[_Answer | str] = []
            for first in range(0, len(values), node.size):
                answers += self._batch(name, node, values[first : first + node.size], start + first)
            return answers
        return [self._one(name, node, value, start + i) for i, value in enumerate(values)]

    def _one(self, name: str, node: Any, value: Any, position: int) -> _Answer | str:
        try:
            said, seconds = self._timed(name, node, value)
        except Exception as error:  # whatever a user's function raises
            return self._failed(name, error, f"input {position}")
        return self._checked(name, said, seconds, position)

    def _batch(
        self, name: str, node: Batched, values: list[Any], start: int
    ) -> list[_Answer | str]:
        end = start + len(values) - 1
        try:
            said, seconds = self._timed(name, node, values)
            if len(said) != len(values):
                raise _Bad(f"gave {len(said)} answers for {len(values)} inputs")  # noqa: TRY301
        except Exception as error:  # whatever a user's function raises
            where = f"input {start}" if start == end else f"inputs {start} to {end}"
            reason = self._failed(name, error, where)
            if start == end:
                return [reason]
            # One bad input must not cost the others their rows: ask again, one by one.
            each = enumerate(values, start=start)
            return [answer for i, value in each for answer in self._batch(name, node, [value], i)]
        share = seconds / len(values)
        return [self._checked(name, one, share, start + i) for i, one in enumerate(said)]

    def _checked(self, name: str, said: Any, seconds: float, position: int) -> _Answer | str:
        try:
            return _answer(said, seconds)
        except _Bad as error:
            return self._failed(name, error, f"input {position}")

    def _timed(self, name: str, node: Any, value: Any) -> tuple[Any, float]:
        if name not in self.warm:
            self.warm.add(name)
            for _ in range(self.warmup):
                node(value)
        times = []
        for _ in range(self.repeat):
            start = time.perf_counter()
            said = node(value)
            times.append(time.perf_counter() - start)
        return said, statistics.median(times)

    def _failed(self, name: str, error: Exception, where: str) -> str:
        what = str(error) if isinstance(error, _Bad) else f"raised {type(error).__name__}"
        if self.on_error == "leave_out":
            return f"{name} {what}"
        detail = "" if isinstance(error, _Bad) else f": {error}"
        raise TraceError(
            f"node {name!r}, {where} (counting from 0): {what}{detail}; mend the callable, or "
            'leave such rows out, counted, with on_error="leave_out"'
        ) from error


@dataclass
class Log:
    """Rows as they come."""

    names: tuple[str, ...]
    codes: ClassCodes
    labelled: bool
    rows: list[list[_Answer]] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, answers: list[_Answer | str], label: object, position: int) -> None:
        """Keep a row, or count it if some node has no answer."""
        good = [answer for answer in answers if isinstance(answer, _Answer)]
        if len(good) < len(answers):
            reason = next(answer for answer in answers if isinstance(answer, str))
            self.left_out[reason] = self.left_out.get(reason, 0) + 1
            return
        self.rows.append(good)
        if self.labelled:
            try:
                self.label.append(self.codes.code(label))
            except TraceError as error:
                raise TraceError(f"label {position} (counting from 0): {error}") from None

    def trace(self, spec: CascadeSpec, *, measured: bool, done: int) -> Trace:
        """Return everything kept as a trace."""
        if not self.rows:
            raise TraceError(f"all {done} inputs were left out: {self.left_out}")

        def table(of: Callable[[_Answer], Any], kind: Any) -> Any:
            return np.array([[of(answer) for answer in row] for row in self.rows], kind, order="F")

        cost: Any = None
        if measured:
            cost = table(lambda answer: answer.seconds, np.float64)
            spec = spec.with_costs(dict(zip(self.names, cost.mean(axis=0), strict=True)))
        extras = {}
        every = table(lambda answer: answer.extras, np.float64)
        for number, extra in enumerate(EXTRA_FIELDS):
            values = np.asfortranarray(every[:, :, number])
            values[:, np.isnan(values).any(axis=0)] = math.nan  # said on every row, or not a column
            if not np.isnan(values).all():
                extras[extra] = values
        prediction = table(lambda answer: self.codes.code(answer.prediction), np.int32)
        return Trace(
            spec,
            table(lambda answer: answer.confidence, np.float64),
            prediction=prediction,
            label=np.array(self.label, np.int32) if self.labelled else None,
            cost=cost,
            extras=extras,
            classes=self.codes.classes,
            left_out=self.left_out,
        )


def _answer(said: Any, seconds: float) -> _Answer:
    """Return an answer in one form, or say what is wrong with it."""
    if isinstance(said, tuple | list):
        if len(said) != 2:
            raise _Bad(f"returned {len(said)} values; (prediction, confidence) is needed")
        found = {"prediction": said[0], "confidence": said[1]}
    elif isinstance(said, Mapping):
        found = dict(said)
    else:
        names = ("prediction", "confidence", *EXTRA_FIELDS)
        found = {name: getattr(said, name) for name in names if hasattr(said, name)}
    if not {"prediction", "confidence"} <= found.keys():
        raise _Bad(f"returned {type(said).__name__}; (prediction, confidence) is needed")
    try:
        text = class_text(found["prediction"])
    except TraceError as error:
        raise _Bad(f"returned a prediction that is no class: {error}") from None
    extras = tuple(_number(found[n], n) if n in found else math.nan for n in EXTRA_FIELDS)
    return _Answer(text, _number(found["confidence"], "confidence"), extras, seconds)


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _Bad(f"returned a {what} that is no number ({type(value).__name__})") from None
    if not math.isfinite(number):
        raise _Bad(f"returned a {what} of {number}")
    return number


def with_labels(
    inputs: Iterable[Any], labels: Iterable[object] | None
) -> Iterator[tuple[Any, object]]:
    """Yield every input with its label, or say which of them are too few."""
    if labels is None:
        yield from ((value, None) for value in inputs)
        return
    end = object()
    for position, (value, label) in enumerate(itertools.zip_longest(inputs, labels, fillvalue=end)):
        if value is end or label is end:
            few, many = ("inputs", "labels") if value is end else ("labels", "inputs")
            raise TraceError(f"there are {position} {few} and more {many}; bring as many of each")
        yield value, label


def _blocks(pairs: Iterator[tuple[Any, object]], size: int) -> Iterator[list[tuple[Any, object]]]:
    while block := list(itertools.islice(pairs, size)):
        yield block
