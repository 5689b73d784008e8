"""Make a trace by calling every node with every input, and timing each call."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_kind, require_whole
from ttamer.cascade import CascadeNode, CascadeSpec, Kind, Target
from ttamer.errors import ArgumentError, TraceError
from ttamer.runtime.calling import Batched, call_rows, event_loop, require_callables
from ttamer.runtime.reply import Reply, Unusable
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
        warmup: With measured costs: calls of each node that come first and are not timed.
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
    values = _listed(inputs)
    spec = _cascade_of(nodes, costs, kind, target or ("last" if labels is None else "label"))
    require_whole(warmup, "warmup")
    if on_error not in ("refuse", "skip"):
        raise ArgumentError(
            f'on_error is {on_error!r}; it must be "refuse" or "skip"', param="on_error"
        )
    codes = ClassCodes()  # of labels first, then of predictions: one number for a class
    stated: dict[str, Any] = {f"facts[{name!r}]": c for name, c in (facts or {}).items()}
    if labels is not None:  # coded before anything is asked: what is no class is refused now
        stated["labels"] = label = _coded(codes, labels)
    for name, column in stated.items():
        if len(column) != len(values):
            raise ArgumentError(
                f"{name} has {counted(len(column), 'value')} for {counted(len(values), 'input')}",
                param=name.partition("[")[0],
            )
    is_measured = costs == "measured"
    # Node after node within a block: batches are full, and a failure does not come after all calls.
    block = max(map(_size_of, nodes.values()))
    rows: list[tuple[TimedReply | str, ...]] = []
    with event_loop() as run, shown(progress) as report:
        plain = {name: _without_await(node, run) for name, node in nodes.items()}
        for node in plain.values():
            # The first calls of a node may load a model: they are made, and not timed.
            for _ in range(warmup if is_measured else 0):
                call_rows(node, values[: _size_of(node)])
        for start in range(0, len(values), block):
            part = values[start : start + block]
            answers = [_asked(name, plain[name], part, start, on_error) for name in plain]
            rows += zip(*answers, strict=True)
            if report:
                report(f"{len(rows)} of {len(values)} inputs")
    answered = np.array([[isinstance(cell, TimedReply) for cell in row] for row in rows])
    used = np.flatnonzero(answered.any(axis=1)).tolist()
    left_out = Counter(str(rows[row][0]) for row in np.flatnonzero(~answered.any(axis=1)))
    if not used:
        raise TraceError(f"every input was left out ({len(rows)} in all): {dict(left_out)}")
    columns: dict[str, Any] = {
        name: [column[row] for row in used] for name, column in (facts or {}).items()
    }
    trace = replace(
        _trace_of(spec, [rows[row] for row in used], codes, is_measured=is_measured),
        label=None if labels is None else label[used],
        left_out=left_out,
        prompt=columns.pop("prompt", None),
        inputs=columns,
    )
    check_classes(trace, "the replies")
    return trace


def _listed(inputs: Iterable[Any]) -> list[Any]:
    """Return the inputs; refuse what would be iterated over otherwise than input by input."""
    remedy = "read a file into a list first"
    if hasattr(inputs, "columns"):
        remedy = 'take a column, frame["text"].to_list(), or rows, frame.to_dict("records")'
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | Mapping):
        if values := list(inputs):
            return values
        raise TraceError("there are no inputs to ask about; bring at least one", param="inputs")
    raise ArgumentError(f"collect takes a list of inputs, not {type(inputs).__name__}: {remedy}")


def _cascade_of(
    nodes: Mapping[str, Any], costs: str | Mapping[str, float], kind: Kind, target: Target
) -> CascadeSpec:
    """Return the cascade of the nodes, at no cost where that is measured."""
    require_callables(nodes)
    prices: Any = dict.fromkeys(nodes, 0.0) if costs == "measured" else costs
    remedy = 'write {"small": 1.0, "large": 12.5}, or "measured"'
    require_kind(prices, Mapping, "costs must be a mapping from names to costs", remedy)
    if odd := prices.keys() ^ nodes.keys():
        raise ArgumentError(
            "costs and nodes must name the same nodes; only one of them has "
            f"{', '.join(map(repr, odd))}",
            param="costs",
        )
    return CascadeSpec(tuple(CascadeNode(name, prices[name]) for name in nodes), kind, target)


def _coded(codes: ClassCodes, labels: Iterable[object]) -> NDArray[np.int32]:
    numbers: list[int] = []
    for position, label in enumerate(labels):
        try:
            numbers.append(codes.code(label))
        except TraceError as error:
            where = f"label {position} (counting from 0)"
            raise TraceError(f"{where}: {error}", param="labels") from None
    return np.array(numbers, np.int32)


class TimedReply(NamedTuple):
    """A reply, and the seconds its call took."""

    reply: Reply
    seconds: float


def _size_of(node: object) -> int:
    """Return how many inputs a node is asked about at a time."""
    # Without a limit so many are still asked about that progress is seen.
    return (node.size or 1024) if isinstance(node, Batched) else 1


def _without_await(node: Callable[[Any], Any], run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a node that awaits what it returns in one loop, which clients may keep."""
    if isinstance(node, Batched):
        return Batched(_without_await(node.answer, run), node.size)

    def answer(value: Any) -> Any:
        returned = node(value)
        return run(returned) if inspect.isawaitable(returned) else returned

    return answer


def _asked(
    name: str, node: Callable[[Any], Any], values: list[Any], start: int, on_error: OnBad
) -> list[TimedReply | str]:
    """Return an answer for each value, or the reason why it has none."""
    answers: list[TimedReply | str] = []
    for position, result in enumerate(call_rows(node, values), start):
        reply = result.reply()
        if isinstance(reply, Exception):
            answers.append(_failed(name, reply, position, on_error))
        else:
            answers.append(TimedReply(reply, result.seconds))
    return answers


def _failed(name: str, error: Exception, position: int, on_error: OnBad) -> str:
    """Return why there is no answer, or raise it with the place."""
    what = str(error) if isinstance(error, Unusable) else f"raised {type(error).__name__}"
    if on_error == "skip":
        return f"{name} {what}"
    detail = "" if isinstance(error, Unusable) else f": {' '.join(str(error).split())}"
    raise TraceError(
        f"node {name!r}, input {position} (counting from 0): {what}{detail}; fix the "
        'callable, or leave a gap there with on_error="skip" (they are counted)'
    ) from error


def _trace_of(
    spec: CascadeSpec,
    rows: Sequence[Sequence[TimedReply | str]],
    codes: ClassCodes,
    *,
    is_measured: bool,
) -> Trace:
    """Return the trace of answers; a text is the reason of a gap."""
    answered = np.array([[isinstance(cell, TimedReply) for cell in row] for row in rows])
    if (silent := ~answered.any(axis=0)).any():
        node = int(silent.argmax())
        raise TraceError(f"node {spec.names[node]!r} gave no answer: {rows[0][node]}")

    def table(of: Callable[[TimedReply], Any], kind: Any = np.float64, gap: Any = math.nan) -> Any:
        cells = [[of(c) if isinstance(c, TimedReply) else gap for c in row] for row in rows]
        return np.array(cells, kind, order="F")

    failures = Counter(cell for row in rows for cell in row if isinstance(cell, str))
    notes = [f"{counted(count, 'row')} with a gap: {why}" for why, count in failures.items()]
    confidence = table(lambda answer: answer.reply.confidence)
    for node, name in enumerate(spec.names):
        if count := _make_finite(confidence[:, node], answered[:, node]):
            notes.append(
                f"{count} confidences of {name!r} are NaN or infinite: they count as its "
                "lowest, or as its highest where infinite"
            )
    cost: Any = None
    stated = table(lambda answer: answer.reply.cost)  # NaN where a reply has none
    priced = ~np.isnan(stated)
    if is_measured or priced.any():
        unstated = table(lambda answer: answer.seconds) if is_measured else spec.costs
        cost = np.asfortranarray(np.where(priced, stated, unstated))
        cost[~answered] = math.nan  # a gap has no cost, although a failed call may have one
        spec = spec.with_costs(dict(zip(spec.names, np.nanmean(cost, axis=0), strict=True)))
        if is_measured and priced.any() and not (priced | ~answered).all():
            names = ", ".join(repr(spec.names[node]) for node in np.flatnonzero(priced.any(axis=0)))
            notes.append(
                f"costs of {names} are from its replies, and the others are seconds: give costs "
                "in one unit"
            )
    latency = table(lambda answer: answer.reply.latency)
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
