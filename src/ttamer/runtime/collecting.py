"""Make a trace by calling every node with every input, and timing each call."""

from __future__ import annotations

import inspect
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_kind
from ttamer.cascade import CascadeNode, CascadeSpec, Kind, Target
from ttamer.errors import ArgumentError, TraceError
from ttamer.runtime.calling import Batched, event_loop, require_callables, result_of, size_of
from ttamer.runtime.reply import Reply, Unusable, reply_of, rows_of
from ttamer.show import ProgressOption, shown
from ttamer.trace.checks import check_classes
from ttamer.trace.schema import ClassCodes
from ttamer.trace.trace import OnBad, Trace


def collect(
    inputs: Iterable[Any],
    nodes: Mapping[str, Callable[[Any], Any]],
    *,
    labels: Iterable[object] | None = None,
    facts: Mapping[str, Sequence[Any]] | None = None,
    repeat: int = 1,
    warmup: int = 1,
    costs: Literal["measured"] | Mapping[str, float] = "measured",
    kind: Kind = "models",
    target: Target | None = None,
    on_error: OnBad = "refuse",
    progress: ProgressOption = None,
) -> Trace:
    """Call every node with every input, and return the replies as a trace.

    A node is any callable that :class:`~ttamer.Cascade` takes, with the same meaning of what it
    returns (:mod:`ttamer.runtime.reply`): ``(prediction, confidence)``, a 3-tuple, a mapping or an
    object; plain, async or :func:`~ttamer.runtime.batched`.

    Args:
        inputs: The inputs, handed to the callables as they are.
        nodes: The callable of each node, by name, in the order of the cascade.
        labels: The right answer for each input.
        facts: What is known of each input before a node is asked, a sequence by name, for policies
            that read it; ``"prompt"`` is its text.
        repeat: How often each call is timed; the median counts.
        warmup: Calls of each node that come first and are not timed.
        costs: ``"measured"``: wall time in seconds, for each row, and its mean as the node's cost.
            Or a cost for each node, which is then called once for each input. A ``cost`` in a
            reply takes the place of either on its row.
        kind: The kind of the cascade.
        target: What counts as right: by default ``"label"`` if there are labels, else ``"last"``.
        on_error: ``"refuse"`` raises at the first call that fails; ``"skip"`` leaves a gap there,
            which ``notes`` counts, and an input without any answer out (``left_out``).
        progress: Called with a line of text as inputs are done; ``True`` shows the progress.

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
    _require_inputs(inputs)
    spec = _cascade_of(nodes, costs, kind, target or ("last" if labels is None else "label"))
    if repeat < 1 or warmup < 0:
        raise ArgumentError(
            f"repeat is {repeat} and warmup {warmup}; at least 1 and 0 are needed",
            param="repeat" if repeat < 1 else "warmup",
        )
    if on_error not in ("refuse", "skip"):
        raise ArgumentError(
            f'on_error is {on_error!r}; it must be "refuse" or "skip"', param="on_error"
        )
    is_measured = costs == "measured"
    total = f"{len(inputs)} inputs" if isinstance(inputs, Sized) else ""
    codes, left_out, done = ClassCodes(), Counter[str](), 0
    rows, label, used = list[Sequence[_Answer | str]](), list[int](), list[int]()
    with event_loop() as run, shown(progress) as report:
        calls = _Calls(run, on_error, *((repeat, warmup) if is_measured else (1, 0)))
        block = max((size_of(node) for node in nodes.values()), default=1)
        pairs = _with_labels(inputs, labels)
        while part := list(itertools.islice(pairs, block)):
            values = [value for value, _ in part]
            replies = [calls.ask(name, node, values, done) for name, node in nodes.items()]
            for answers, (_, right) in zip(zip(*replies, strict=True), part, strict=True):
                if any(isinstance(answer, _Answer) for answer in answers):
                    rows.append(answers)
                    label.append(_coded(codes, right, done))
                    used.append(done)
                else:
                    left_out[str(answers[0])] += 1
                done += 1
            if report:
                report(f"{done} of {total}" if total else counted(done, "input"))
    if not done:
        raise TraceError("there are no inputs to ask about; bring at least one", param="inputs")
    if not rows:
        raise TraceError(f"every input was left out ({done} in all): {dict(left_out)}")
    columns: dict[str, Any] = {}
    for name, column in (facts or {}).items():
        if len(column) != done:
            raise ArgumentError(
                f"facts[{name!r}] has {counted(len(column), 'value')} for {counted(done, 'input')}",
                param="facts",
            )
        columns[name] = [column[row] for row in used]
    trace = replace(
        _trace_of(spec, rows, codes, is_measured=is_measured),
        label=None if labels is None else np.array(label, np.int32),
        left_out=left_out,
        prompt=columns.pop("prompt", None),
        inputs=columns,
    )
    check_classes(trace, "the replies")
    return trace


def _cascade_of(
    nodes: Mapping[str, Any], costs: str | Mapping[str, float], kind: Kind, target: Target
) -> CascadeSpec:
    """Return the cascade of the nodes, at no cost where that is measured."""
    require_callables(nodes)
    if isinstance(costs, str):
        if costs != "measured":
            raise ArgumentError(
                f'costs is {costs!r}; it must be "measured" or a cost for each node', param="costs"
            )
        costs = dict.fromkeys(nodes, 0.0)
    remedy = 'write {"small": 1.0, "large": 12.5}, or "measured"'
    require_kind(costs, Mapping, "costs must be a mapping from names to costs", remedy)
    if odd := costs.keys() ^ nodes.keys():
        raise ArgumentError(
            "costs and nodes must name the same nodes; only one of them has "
            f"{', '.join(map(repr, odd))}",
            param="costs",
        )
    return CascadeSpec(tuple(CascadeNode(name, costs[name]) for name in nodes), kind, target)


def _coded(codes: ClassCodes, label: object, position: int) -> int:
    try:
        return codes.code(label)
    except TraceError as error:
        raise TraceError(f"label {position} (counting from 0): {error}", param="labels") from None


class _Answer(NamedTuple):
    """A reply, and the seconds its call took."""

    reply: Reply
    seconds: float


@dataclass
class _Calls:
    """Calls the nodes, times the calls, and reports where one fails."""

    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Awaits what an async node returned."""
    on_error: OnBad
    repeat: int
    warmup: int
    warm: set[str] = field(default_factory=set)

    def ask(self, name: str, node: Any, values: list[Any], start: int) -> list[_Answer | str]:
        """Return an answer for each value, or the reason why it has none."""
        if len(values) > (size := size_of(node)):
            parts = [(k, values[k : k + size]) for k in range(0, len(values), size)]
            return [x for k, part in parts for x in self.ask(name, node, part, start + k)]
        end = start + len(values) - 1
        try:
            returned, seconds = self._timed(name, node, values)
            replies = rows_of(returned, len(values)) if isinstance(node, Batched) else [returned]
        except Exception as error:  # whatever a user's function raises
            where = f"input {start}" if start == end else f"inputs {start} to {end}"
            reason = self._failed(name, error, where)
            if start == end:
                return [reason]
            # One bad input must not cost the others their rows: call again, one by one.
            alone = enumerate(values, start=start)
            return [x for k, value in alone for x in self.ask(name, node, [value], k)]
        answers: list[_Answer | str] = []
        for position, reply in enumerate(replies, start=start):
            try:
                answers.append(_Answer(reply_of(reply), seconds / len(values)))
            except Unusable as error:
                answers.append(self._failed(name, error, f"input {position}"))
        return answers

    def _timed(self, name: str, node: Any, values: list[Any]) -> tuple[Any, float]:
        value, times = values if isinstance(node, Batched) else values[0], list[float]()
        # The first calls of a node may load a model: they are made, and not timed.
        unmeasured = 0 if name in self.warm else self.warmup
        self.warm.add(name)
        for _ in range(unmeasured + self.repeat):
            start = time.perf_counter()
            returned = node(value)
            if inspect.isawaitable(returned):
                returned = self.run(result_of(returned))
            times.append(time.perf_counter() - start)
        return returned, statistics.median(times[unmeasured:])

    def _failed(self, name: str, error: Exception, where: str) -> str:
        what = str(error) if isinstance(error, Unusable) else f"raised {type(error).__name__}"
        if self.on_error == "skip":
            return f"{name} {what}"
        detail = "" if isinstance(error, Unusable) else f": {' '.join(str(error).split())}"
        raise TraceError(
            f"node {name!r}, {where} (counting from 0): {what}{detail}; fix the "
            'callable, or leave a gap there with on_error="skip" (they are counted)'
        ) from error


def _trace_of(
    spec: CascadeSpec,
    rows: Sequence[Sequence[_Answer | str]],
    codes: ClassCodes,
    *,
    is_measured: bool,
) -> Trace:
    """Return the trace of answers; a text is the reason of a gap."""
    answered = np.array([[isinstance(answer, _Answer) for answer in row] for row in rows])
    if (silent := ~answered.any(axis=0)).any():
        node = int(silent.argmax())
        raise TraceError(f"node {spec.names[node]!r} gave no answer: {rows[0][node]}")

    def table(of: Callable[[_Answer], Any], kind: Any, gap: Any = math.nan) -> Any:
        cells = [[gap if isinstance(a, str) else of(a) for a in row] for row in rows]
        return np.array(cells, kind, order="F")

    failures = Counter(answer for row in rows for answer in row if isinstance(answer, str))
    notes = [f"{counted(count, 'row')} with a gap: {why}" for why, count in failures.items()]
    confidence = table(lambda answer: answer.reply.confidence, np.float64)
    for node, name in enumerate(spec.names):
        if count := _make_finite(confidence[:, node], answered[:, node]):
            notes.append(
                f"{count} confidences of {name!r} are NaN or infinite: they count as its "
                "lowest, or as its highest where infinite"
            )
    cost: Any = None
    stated = table(lambda answer: answer.reply.cost, np.float64)  # NaN where a reply has none
    priced = ~np.isnan(stated)
    if is_measured or priced.any():
        unstated = table(lambda answer: answer.seconds, np.float64) if is_measured else spec.costs
        cost = np.asfortranarray(np.where(priced, stated, unstated))
        cost[~answered] = math.nan
        means = np.nanmean(cost, axis=0)
        if is_measured and priced.any() and not (priced | ~answered).all():
            names = [
                name for name, column in zip(spec.names, priced.T, strict=True) if column.any()
            ]
            notes.append(
                f"costs of {', '.join(map(repr, names))} are from its replies, and the others are "
                "seconds: give costs in one unit"
            )
        spec = spec.with_costs(dict(zip(spec.names, means, strict=True)))
    latency = table(lambda answer: answer.reply.latency, np.float64)
    # A column is there on every answer of a node, or not at all.
    latency[:, (np.isnan(latency) & answered).any(axis=0)] = math.nan
    return Trace(
        spec,
        confidence,
        prediction=table(lambda answer: codes.code(answer.reply.prediction), np.int32, -1),
        cost=cost,
        latency=None if np.isnan(latency).all() else latency,
        classes=codes.classes,  # those of the predictions too: they were coded just now
        notes=tuple(notes),
    )


def _make_finite(values: NDArray[np.float64], answered: NDArray[np.bool_]) -> int:
    """Put the lowest finite value for NaN and -inf, the highest for inf; return how many."""
    finite = values[np.isfinite(values)]
    bad = answered & ~np.isfinite(values)
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    values[bad] = np.where(values[bad] == np.inf, high, low)
    return int(bad.sum())


def _require_inputs(inputs: object) -> None:
    """Refuse what would be iterated over otherwise than input by input."""
    remedy = "read a file into a list first"
    if hasattr(inputs, "columns"):
        remedy = 'take a column, frame["text"].to_list(), or rows, frame.to_dict("records")'
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | Mapping):
        return
    require_kind(inputs, (list, tuple), "collect takes a list of inputs", remedy)


def _with_labels(
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
