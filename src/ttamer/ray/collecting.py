"""Collecting on a cluster: every node about every input, by Ray Data.

Inputs go through the nodes in chunks, one stage of actors for each node; each actor makes its
model once. Chunks keep their order, and a chunk is cut where a local ``ttamer.collect`` would cut
its batches, so the trace is the same but for the times measured.
"""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any, Literal

import ray
import ray.data
from ray.exceptions import RayError

from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.ray.blocks import files_of
from ttamer.ray.cluster import WorkLost, cpus, joined, resources
from ttamer.ray.models import made
from ttamer.ray.spans import Span, spans_of
from ttamer.runtime import collecting as local
from ttamer.runtime.calling import Batched, EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ttamer.ray.blocks import Paths
    from ttamer.trace.spec import Order, Target
    from ttamer.trace.trace import OnBad, Trace

__all__ = ["collect", "collect_parquet"]

CHUNK = 64
"""Inputs handed on at a time, or the next multiple of the largest batch."""

Answers = tuple[list[Any], tuple[int, str] | None]
"""What a node said of a chunk, and where and how it failed for good."""


def collect(
    inputs: Iterable[Any],
    nodes: Mapping[str, Any],
    *,
    labels: Iterable[object] | None = None,
    workers: int | Mapping[str, int] = 1,
    resources: Mapping[str, Mapping[str, float]] | None = None,
    address: str | None = None,
    **options: Any,
) -> Trace:
    """Ask every node about every input, on a cluster; as :func:`ttamer.collect` besides.

    A node is a callable, or a class whose objects are: then each of its actors makes one, and keeps
    its model. ``workers`` is how many actors a node has, and ``resources`` what each of them needs
    (``{"large": {"num_gpus": 1}}``); by default the cores are shared evenly.
    """
    pairs = local.with_labels(inputs, labels)
    size = _chunk_size(nodes)
    chunks = []
    start = 0
    while part := list(itertools.islice(pairs, size)):
        values, said = [value for value, _ in part], [label for _, label in part]
        chunks.append(
            {"start": start, "values": pickle.dumps(values), "labels": pickle.dumps(said)}
        )
        start += len(part)
    work = _Work(nodes, start, labels is not None, workers, resources or {}, **options)
    with joined(address):
        return work.done(ray.data.from_items(chunks, override_num_blocks=len(chunks)))


def collect_parquet(
    paths: Paths,
    nodes: Mapping[str, Any],
    *,
    column: str = "input",
    label: str | None = None,
    workers: int | Mapping[str, int] = 1,
    resources: Mapping[str, Mapping[str, float]] | None = None,
    address: str | None = None,
    **options: Any,
) -> Trace:
    """Ask every node about a column of Parquet files, which the actors' machines read.

    ``column`` holds the inputs and ``label`` names the one of labels, if there is one. All else as
    for :func:`collect`.
    """
    spans = spans_of(files_of(paths), column, label, chunk=_chunk_size(nodes))
    rows = spans[-1].stop if spans else 0
    work = _Work(nodes, rows, label is not None, workers, resources or {}, **options)
    with joined(address):
        items = [{"span": pickle.dumps(span)} for span in spans]
        data = ray.data.from_items(items, override_num_blocks=len(items))
        return work.done(data.flat_map(_chunks, num_cpus=work.share))


def _chunk_size(nodes: Mapping[str, Any]) -> int:
    block = _block(nodes)
    return -(-CHUNK // block) * block


def _block(nodes: Mapping[str, Any]) -> int:
    """Return how many inputs a local reading takes at a time."""
    return max((n.size for n in nodes.values() if isinstance(n, Batched)), default=1)


def _chunks(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    span: Span = pickle.loads(row["span"])  # noqa: S301 - made here
    for start, values, labels in span.read():
        yield {"start": start, "values": pickle.dumps(values), "labels": pickle.dumps(labels)}


class _Work:
    """One collection: what was asked for, checked; the stages; what comes of them."""

    def __init__(
        self,
        nodes: Mapping[str, Any],
        rows: int,
        labelled: bool,
        workers: int | Mapping[str, int],
        resources: Mapping[str, Mapping[str, float]],
        *,
        repeat: int = 1,
        warmup: int = 1,
        costs: Literal["measured"] | Mapping[str, float] = "measured",
        order: Order = "auto",
        target: Target | None = None,
        on_error: OnBad = "refuse",
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self._options = local.Collection.of(
            nodes,
            labelled=labelled,
            repeat=repeat,
            warmup=warmup,
            costs=costs,
            order=order,
            target=target,
            on_error=on_error,
        )
        if not rows:
            raise TraceError("there are no inputs to ask about; bring at least one")
        names = tuple(nodes)
        self._nodes, self._rows, self._progress = nodes, rows, progress
        self._workers = _by_node(workers, names)
        self._resources = resources
        if odd := set(resources) - set(names):
            raise ArgumentError(f"resources name {odd.pop()!r}; the nodes are {', '.join(names)}")

    @property
    def share(self) -> float:
        """The cores of one actor, so that all have room, and reading besides.

        What an actor holds is lent to nobody: were there no room left, all would wait for ever.
        """
        return min(1.0, int(100 * cpus() / (sum(self._workers.values()) + 1)) / 100)

    def _needs(self, name: str) -> dict[str, float]:
        """Return what one actor of a node needs."""
        return {"num_cpus": self.share, **self._resources.get(name, {})}

    def _check_room(self) -> None:
        """Refuse what the cluster has no room for: it would be waited for without end."""
        there = resources()
        for key, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
            needed = sum(
                count * self._needs(name).get(key, 0) for name, count in self._workers.items()
            )
            if needed > there.get(kind, 0):
                raise ArgumentError(
                    f"the actors need {needed:g} {kind}s together, and the cluster has "
                    f"{there.get(kind, 0):g}; give fewer workers or resources"
                )

    def done(self, data: Any) -> Trace:
        """Send chunks through all nodes, and return the trace."""
        self._check_room()
        data.context.execution_options.preserve_order = True
        data.context.enable_progress_bars = False
        for number, (name, node) in enumerate(self._nodes.items()):
            data = data.map_batches(
                _Asker,
                fn_constructor_args=(number, name, node, self._options),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=self._workers[name]),
                **self._needs(name),
            )
        try:
            return self._trace(data)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TTamerError):
                raise cause from None
            line = str(error).strip().rpartition("\n")[2]
            raise WorkLost(f"the inputs could not be asked about: {line}") from error

    def _trace(self, data: Any) -> Trace:
        log = self._options.log()
        done = 0
        for chunk in data.iter_rows():
            said: list[Answers] = [
                pickle.loads(chunk[f"answers {number}"])  # noqa: S301 - made here
                for number in range(len(self._nodes))
            ]
            failed = [(at, number, text) for number, (_, fail) in enumerate(said) if fail
                      for at, text in [fail]]  # fmt: skip
            if failed:  # the one that a local collection would have met first
                raise TraceError(min(failed)[2])
            labels = pickle.loads(chunk["labels"])  # noqa: S301 - made here
            for row, label in enumerate(labels):
                log.add([answers[row] for answers, _ in said], label, done + row)
            done += len(labels)
            if self._progress is not None:
                self._progress(done, self._rows)
        return log.trace(self._options.spec, measured=self._options.measured, done=done)


class _Asker:
    """An actor with one node inside."""

    def __init__(self, number: int, name: str, node: Any, options: local.Collection) -> None:
        self._column, self._name, self._block = f"answers {number}", name, options.block
        self._calls = options.calls(EventLoop())
        self._node = made(node)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        answers = [
            pickle.dumps(self._asked(int(start), pickle.loads(values)))  # noqa: S301 - made here
            for start, values in zip(batch["start"], batch["values"], strict=True)
        ]
        return {**batch, self._column: answers}

    def _asked(self, start: int, values: list[Any]) -> Answers:
        answers: list[Any] = []
        for at in range(0, len(values), self._block):
            part = values[at : at + self._block]
            try:
                answers += self._calls.ask(self._name, self._node, part, start + at)
            except TraceError as error:
                return answers, (start + at, str(error))
        return answers, None


def _by_node(workers: int | Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    table = dict.fromkeys(names, workers) if isinstance(workers, int) else {**workers}
    if odd := set(table) - set(names):
        raise ArgumentError(f"workers name {odd.pop()!r}; the nodes are {', '.join(names)}")
    found = {name: table.get(name, 1) for name in names}
    for name, count in found.items():
        if count < 1:
            raise ArgumentError(f"workers of {name!r} are {count}; at least 1 is needed")
    return found
