"""Collecting a trace on a cluster, with Ray Data.

Inputs pass through the nodes in chunks, one stage of actors for each node; each actor creates its
model once. Chunks keep their order and end where a local :func:`ttamer.collect` ends its batches,
so the trace is the same except for measured times.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from ttamer._arguments import require_whole
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.ray.cluster import WorkLost, cpus, joined, resources
from ttamer.ray.parquet import Paths, Span, files_of, spans_of
from ttamer.runtime import collecting as local
from ttamer.runtime.calling import Batched, EventLoop, max_batch, require_callables
from ttamer.runtime.reply import error_text
from ttamer.trace.trace import Trace

# The number of inputs in a chunk, rounded up to a multiple of the largest batch.
CHUNK_ROWS = 64

# The answers of a node to a chunk, and the position and text of its error, if it failed.
Answers = tuple[list[Any], tuple[int, str] | None]


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
    """Call every node with every input, on a cluster, and return the replies as a trace.

    ::

        trace = collect(texts, {"small": small, "large": LargeModel}, workers={"large": 4})

    Args:
        inputs: The inputs.
        nodes: The callable of each node, or a class of callables, of which each actor creates one.
        labels: The right answer for each input.
        workers: The number of actors of every node, or of each node by name.
        resources: What each actor of a node needs (``{"large": {"num_gpus": 1}}``); by default the
            cores are divided evenly.
        address: The address of the cluster: see :func:`ttamer.ray.joined`.
        **options: The other options of :func:`ttamer.collect`.

    Returns:
        The trace.

    Raises:
        ArgumentError: Where an option is out of range, or the cluster is too small.
        TraceError: Where a call fails, or no rows are left.
        WorkLost: Where a task fails repeatedly.
    """
    local.require_inputs(inputs)
    pairs = local.with_labels(inputs, labels)
    size = _chunk_size(nodes)
    chunks = []
    start = 0
    while part := list(itertools.islice(pairs, size)):
        values, right = [value for value, _ in part], [label for _, label in part]
        what = f"inputs {start} to {start + len(part) - 1}, or their labels,"
        with _sending(what, "give what each actor can make them from, such as paths"):
            chunks.append(
                {"start": start, "values": pickle.dumps(values), "labels": pickle.dumps(right)}
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
    """Call every node with a column of Parquet files, which the machines of the cluster read.

    ::

        trace = collect_parquet("inputs/", nodes, column="text", label="right")

    Args:
        paths: A file, a folder, or a list of them.
        nodes: As for :func:`collect`.
        column: The name of the column of inputs.
        label: The name of the column of labels, if there is one.
        workers: As for :func:`collect`.
        resources: As for :func:`collect`.
        address: As for :func:`collect`.
        **options: As for :func:`collect`.

    Returns:
        The trace.

    Raises:
        ArgumentError: Where an option is out of range, or the cluster is too small.
        TraceError: Where a file cannot be read, a call fails, or no rows are left.
        WorkLost: Where a task fails repeatedly.
    """
    spans = spans_of(files_of(paths), column, label, chunk=_chunk_size(nodes))
    rows = spans[-1].stop if spans else 0
    work = _Work(nodes, rows, label is not None, workers, resources or {}, **options)
    with joined(address):
        items = [{"span": pickle.dumps(span)} for span in spans]
        data = ray.data.from_items(items, override_num_blocks=len(items))
        return work.done(data.flat_map(_chunks, num_cpus=work.share))


def _chunk_size(nodes: Mapping[str, Any]) -> int:
    """Return the number of inputs in a chunk: a multiple of what a local collection takes."""
    require_callables(nodes)
    block = max_batch(nodes)
    return -(-CHUNK_ROWS // block) * block


def _chunks(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a span."""
    span: Span = pickle.loads(row["span"])  # noqa: S301 - pickled here
    for start, values, labels in span.read():
        yield {"start": start, "values": pickle.dumps(values), "labels": pickle.dumps(labels)}


class _Work:
    """One collection: its checked options, its stages, and its result."""

    def __init__(
        self,
        nodes: Mapping[str, Any],
        rows: int,
        labelled: bool,
        workers: int | Mapping[str, int],
        resources: Mapping[str, Mapping[str, float]],
        progress: Callable[[int, int | None], None] | bool | None = None,
        **options: Any,
    ) -> None:
        self._options = local.Collection.of(nodes, labelled=labelled, **options)
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
        """The cores of one actor, such that all actors and the reading of files fit.

        An actor keeps its cores: if they did not all fit, the work would never start.
        """
        return min(1.0, int(100 * cpus() / (sum(self._workers.values()) + 1)) / 100)

    def _needs(self, name: str) -> dict[str, float]:
        """Return the resources of one actor of a node."""
        return {"num_cpus": self.share, **self._resources.get(name, {})}

    def _check_room(self) -> None:
        """Refuse actors for which the cluster is too small: they would wait forever."""
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
        """Pass chunks through all nodes, and return the trace."""
        self._check_room()
        for name, node in self._nodes.items():
            with _sending(f"node {name!r}", "give a class, of which each actor creates an object"):
                ray.cloudpickle.dumps(node)  # type: ignore[no-untyped-call]
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
            raise WorkLost(f"collecting failed: {line}") from error

    def _trace(self, data: Any) -> Trace:
        """Return the trace of all chunks."""
        log = self._options.log()
        done = 0
        with local.reporting(self._progress, self._rows) as report:
            for chunk in data.iter_rows():
                replies: list[Answers] = [
                    pickle.loads(chunk[f"answers {number}"])  # noqa: S301 - pickled here
                    for number in range(len(self._nodes))
                ]
                failed = [(at, number, text) for number, (_, fail) in enumerate(replies) if fail
                          for at, text in [fail]]  # fmt: skip
                if failed:  # the one that a local collection meets first
                    raise TraceError(min(failed)[2])
                labels = pickle.loads(chunk["labels"])  # noqa: S301 - pickled here
                for row, label in enumerate(labels):
                    log.add([answers[row] for answers, _ in replies], label, done + row)
                done += len(labels)
                report(done)
        return log.trace(self._options.spec, measured=self._options.measured, done=done)


class _Asker:
    """An actor with one node."""

    def __init__(self, number: int, name: str, node: Any, options: local.Collection) -> None:
        self._column, self._name, self._block = f"answers {number}", name, options.block
        self._calls = options.calls(EventLoop())
        try:
            self._node = _created(node)
        except Exception as error:
            raise TraceError(f"node {name!r} could not be created: {error_text(error)}") from None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        answers = [
            pickle.dumps(self._asked(int(start), pickle.loads(values)))  # noqa: S301 - pickled here
            for start, values in zip(batch["start"], batch["values"], strict=True)
        ]
        return {**batch, self._column: answers}

    def _asked(self, start: int, values: list[Any]) -> Answers:
        """Return the answers to a chunk."""
        answers: list[Any] = []
        for at in range(0, len(values), self._block):
            part = values[at : at + self._block]
            try:
                answers += self._calls.ask(self._name, self._node, part, start + at)
            except TraceError as error:
                return answers, (start + at, str(error))
        return answers, None


@contextmanager
def _sending(what: str, remedy: str) -> Iterator[None]:
    """Report what cannot be pickled."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(f"{what} cannot be sent to the cluster: {error}; {remedy}") from None


def _created(node: Any) -> Any:
    """Return a callable: an object of a class, or the node itself."""
    if isinstance(node, Batched):
        return Batched(_created(node.answer), node.size)
    return node() if inspect.isclass(node) else node


def _by_node(workers: int | Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Return the number of actors of each node."""
    table = {**workers} if isinstance(workers, Mapping) else dict.fromkeys(names, workers)
    if odd := set(table) - set(names):
        raise ArgumentError(f"workers name {odd.pop()!r}; the nodes are {', '.join(names)}")
    found = {name: table.get(name, 1) for name in names}
    for name, count in found.items():
        require_whole(count, f"the number of workers of {name!r}", least=1)
    return found
