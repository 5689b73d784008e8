"""A cascade on a cluster, with Ray: offline inference of any size, collecting, and serving.

::

    from ttamer import ray as cluster

    nodes = {"small": small, "large": LargeModel}  # functions, or classes that load a model once
    answered = cluster.run(ray.data.read_parquet("inputs/"), policy, nodes, output="answers/")

Every node is a pool of actors with resources of its own. A block of rows is decided by one process:
each round it sends every pool the rows that the policy asks there, so rows move on by decision and
pools work at the same time. The decisions are those of :meth:`ttamer.Cascade.run`, row by row.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from ttamer._checks import require, require_whole
from ttamer._files import atomic_write
from ttamer.artefact.file import load, pack
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.runtime.calling import (
    Batched,
    Call,
    CallResult,
    call_async,
    call_rows,
    require_callables,
)
from ttamer.runtime.cascade import Cascade, InStep
from ttamer.runtime.reply import CascadeFailed, error_text
from ttamer.trace.schema import class_text
from ttamer.trace.trace import Trace

ray = require("ray", "ray")

# The columns of a result beside those of the rows.
ADDED = ("answer", "by", "cost", "asked", "error")


def run(
    dataset: Any,
    policy: Any,
    nodes: Mapping[str, Any],
    *,
    column: str = "input",
    key: str | None = None,
    inputs: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    workers: int | Mapping[str, int] = 1,
    resources: Mapping[str, Mapping[str, float]] | None = None,
    batch_size: int = 256,
    **limits: Any,
) -> Any:
    """Answer every row of a dataset by a policy.

    ::

        gpus = {"large": {"num_gpus": 1}}
        rows = run(dataset, policy, nodes, workers={"large": 4}, resources=gpus, output="answers/")

    Args:
        dataset: A ``ray.data.Dataset``.
        policy: A fitted policy or a mixture, as for :class:`ttamer.Cascade`.
        nodes: The callable of each node, or a class of callables of which every actor creates one;
            :func:`ttamer.runtime.batched` marks callables that take a list of inputs.
        column: The column that the nodes get.
        key: The column that fixes the draws of a mixture, such as an id.
        inputs: The columns that the policy reads before any node is asked, such as ``prompt``.
        output: A folder on a disk that all machines share: the rows of every block are written to
            a Parquet file there as soon as they are answered. Run again with the same policy and
            limits, blocks that have a file are read, not asked again. Equal blocks share a file.
        workers: The number of actors of every node, or by node.
        resources: What an actor of a node reserves (``{"large": {"num_gpus": 1}}``), by default
            nothing.
        batch_size: The rows of a block.
        **limits: ``timeouts``, ``retries``, ``max_cost`` and ``deadline``, as for
            :class:`ttamer.Cascade`.

    Returns:
        A dataset with the columns of the rows and ``answer``, ``by``, ``cost``, ``asked`` (names)
        and ``error`` (why there is no answer).

    Raises:
        ArgumentError: If an argument does not fit, or the cluster is too small.
        ray.exceptions.RayError: If work fails although it was repeated.
    """
    cascade = Cascade(policy, dict.fromkeys(nodes, _elsewhere), **limits)
    names = _columns_of(dataset, column, key, *inputs)
    if clashes := set(names) & set(ADDED):
        raise ArgumentError(
            f"the dataset has a column {clashes.pop()!r}, which the result needs: rename it"
        )
    folder, salt = None, b""
    if output is not None:
        folder = Path(output).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        # Blocks are read again only where the same policy answered them, under the same limits.
        salt = pack(policy, {}) + repr((column, key, *inputs, limits)).encode()
    answer = partial(
        _answered, cascade=cascade, column=column, key=key, inputs=inputs, folder=folder, salt=salt
    )
    with _pools(nodes, workers, resources or {}) as pools:
        return _blocks(dataset, batch_size, partial(answer, pools=pools), pools)


def collect(
    dataset: Any,
    nodes: Mapping[str, Any],
    *,
    costs: Mapping[str, float] | CascadeSpec,
    column: str = "input",
    label: str | None = None,
    inputs: Sequence[str] = (),
    workers: int | Mapping[str, int] = 1,
    resources: Mapping[str, Mapping[str, float]] | None = None,
    batch_size: int = 256,
) -> Trace:
    """Ask every node about every row, and return the trace.

    ::

        trace = collect(dataset, {"small": small, "large": LargeModel}, costs={...}, label="right")

    Args:
        dataset: A ``ray.data.Dataset``.
        nodes: As for :func:`run`.
        costs: The cost of each node by name, or the cascade.
        column: The column that the nodes get.
        label: The column of right answers, if there is one.
        inputs: Further columns of the trace: what policies may read before any node is asked, such
            as ``prompt``.
        workers: As for :func:`run`.
        resources: As for :func:`run`.
        batch_size: As for :func:`run`.

    Returns:
        The trace, in the order of the rows.

    Raises:
        ArgumentError: If an argument does not fit, or the cluster is too small.
        TraceError: If a call fails.
        ray.exceptions.RayError: If work fails although it was repeated.
    """
    spec = costs if isinstance(costs, CascadeSpec) else CascadeSpec.of(costs)
    _columns_of(dataset, column, label, *inputs)
    with _pools(nodes, workers, resources or {}) as pools:
        ask = partial(_collected, pools=pools, column=column, label=label, inputs=inputs)
        answered = _blocks(dataset, batch_size, ask, pools)
    return Trace.from_frame(answered.to_pandas(), spec)


def application(policy: Any, nodes: Mapping[str, Any], **options: Mapping[str, Any]) -> Any:
    """Return a Ray Serve application: a deployment for each node, and one that decides.

    ::

        serve.run(application("policy.ttamer", {"small": small, "large": LargeModel},
                              large={"ray_actor_options": {"num_gpus": 1}, "num_replicas": 4}))

    ``POST`` of ``{"input": ...}`` (and ``key`` and ``inputs``, as for :meth:`ttamer.Cascade.run`)
    returns ``{"answer", "by", "cost", "asked"}``, or status 503 where no node answered.

    Args:
        policy: A policy file or a policy; of a ladder its default.
        nodes: The callable of each node, or a class of callables.
        **options: The options of a node's deployment, by node, as for ``serve.deployment``.

    Returns:
        The application.

    Raises:
        ArgumentError: If options name no node.
    """
    serve = require("ray.serve", "ray")
    require_callables(nodes)
    if odd := set(options) - set(nodes):
        raise ArgumentError(f"options name {odd.pop()!r}; the nodes are {', '.join(nodes)}")
    deployments = {
        name: serve.deployment(_Replica, name=name, **options.get(name, {})).bind(node)
        for name, node in nodes.items()
    }
    fitted: Any = load(policy) if isinstance(policy, str | os.PathLike) else policy
    fitted = fitted.default() if hasattr(fitted, "default") else fitted
    deciding = serve.deployment(_Deciding, name="policy", ray_actor_options={"num_cpus": 0})
    return deciding.bind(fitted, deployments)


def _columns_of(dataset: Any, *used: str | None) -> list[str]:
    """Return the columns of a dataset; refuse one that lacks a column that is used."""
    names: list[str] = dataset.columns()
    for name in used:
        if name is not None and name not in names:
            raise ArgumentError(
                f"the dataset has no column {name!r}; it has {', '.join(names)}", param="column"
            )
    return names


def _elsewhere(_: Any) -> Any:
    raise RuntimeError("this node is asked on the cluster")


class _Node:
    """An actor that holds the callable of one node."""

    def __init__(self, name: str, node: Any) -> None:
        self._error: str | None = None
        try:
            self._node = _created(node)
        except Exception as error:
            self._error = f"node {name!r} could not be created: {error_text(error)}"

    def error(self) -> str | None:
        """Return why there is no callable."""
        return self._error

    def ask(self, values: Sequence[Any], timeout: float | None, seconds: float) -> list[CallResult]:
        """Call the node with some inputs; no call begins after that many seconds."""
        end = time.perf_counter() + seconds  # clocks of machines differ
        return [_plain(result) for result in call_rows(self._node, values, timeout, end)]


def _plain(result: CallResult) -> CallResult:
    """Return a result that can be sent to another process: of an error its text."""
    if result.error is None:
        return result
    kind, _, text = error_text(result.error).partition(": ")
    error = RuntimeError(text)
    vars(error).update(kind=kind, retry=getattr(result.error, "retry", True))
    return result._replace(error=error)


def _created(node: Any) -> Any:
    """Return a callable: an object of a class, or the node itself."""
    if isinstance(node, Batched):
        return Batched(_created(node.answer), node.size)
    return node() if inspect.isclass(node) else node


Pools = Mapping[str, Sequence[Any]]  # the actors of each node


def _answered(
    block: Any,
    *,
    cascade: Cascade,
    pools: Pools,
    column: str,
    key: str | None,
    inputs: Sequence[str],
    folder: Path | None,
    salt: bytes,
) -> Any:
    """Decide the rows of a block, asking the pools; read it where it was answered before."""
    pa, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    file = None if folder is None else folder / f"{_digest(block, salt)}.parquet"
    if file is not None and file.exists():
        return parquet.read_table(file)
    values, count = block.column(column).to_pylist(), len(block)
    keys = [None] * count if key is None else block.column(key).to_pylist()
    facts = block.select(list(inputs)).to_pylist() if inputs else [None] * count
    rows = zip(values, keys, [None] * count, facts, strict=True)
    outcomes = _outcomes([cascade.steps(*row) for row in rows], pools)
    errors = [str(outcome) if isinstance(outcome, CascadeFailed) else None for outcome in outcomes]
    cells = {
        "answer": pa.array([getattr(outcome, "answer", None) for outcome in outcomes]),
        "by": pa.array([getattr(outcome, "by", None) for outcome in outcomes], pa.string()),
        "cost": pa.array([sum(call.cost for call in outcome.asked) for outcome in outcomes]),
        "asked": pa.array([[call.node for call in outcome.asked] for outcome in outcomes]),
        "error": pa.array(errors, pa.string()),
    }
    for name in ADDED:
        block = block.append_column(name, cells[name])
    if file is not None:
        with atomic_write(file) as part:
            parquet.write_table(block, part)
    return block


def _outcomes(steps: Sequence[Any], pools: Pools) -> list[Any]:
    """Run every row of a block to its end; pools work at the same time."""
    rows, turns = InStep(steps), {name: cycle(actors) for name, actors in pools.items()}
    waiting: dict[Any, Sequence[int]] = {}
    while (calls := rows.take()) or waiting:
        now = time.perf_counter()
        for name, requests in calls.items():
            share = -(-len(requests) // len(pools[name]))  # a part for every actor
            for first in range(0, len(requests), share):
                numbers, part = zip(*requests[first : first + share], strict=True)
                seconds = min(1e9, *(request.end - now for request in part))
                values = [request.value for request in part]
                asked = next(turns[name]).ask.remote(values, part[0].timeout, seconds)
                waiting[asked] = numbers
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        for row, result in zip(waiting.pop(done), ray.get(done), strict=True):
            rows.send(row, result)
    return rows.outcomes


def _every_node(value: Any, names: Sequence[str]) -> Generator[Call, CallResult, Any]:
    """Ask every node about a value."""
    results = {}
    for name in names:
        results[name] = yield Call(_elsewhere, value, node=name)
    return results


def _collected(
    block: Any, *, pools: Pools, column: str, label: str | None, inputs: Sequence[str]
) -> Any:
    """Ask every node about the rows of a block."""
    pa = require("pyarrow", "ray")
    values = block.column(column).to_pylist()
    rows = _outcomes([_every_node(value, [*pools]) for value in values], pools)
    columns: dict[str, Any] = {}
    for name in pools:
        replies = [results[name].reply() for results in rows]
        for value, reply in zip(values, replies, strict=True):
            if isinstance(reply, Exception):
                raise TraceError(f"node {name!r}, input {value!r:.80}: {reply}")
        columns[f"{name}.confidence"] = [reply.confidence for reply in replies]
        columns[f"{name}.prediction"] = [class_text(reply.prediction) for reply in replies]
        if any(reply.cost is not None for reply in replies):
            columns[f"{name}.cost"] = [reply.cost for reply in replies]
    if label is not None:
        columns["label"] = block.column(label).cast(pa.string())
    for name in inputs:
        columns[name if name == "prompt" else f"input.{name}"] = block.column(name)
    return pa.table(columns)


@contextmanager
def _pools(
    nodes: Mapping[str, Any],
    workers: int | Mapping[str, int],
    resources: Mapping[str, Mapping[str, float]],
) -> Iterator[dict[str, list[Any]]]:
    """Start the actors of every node; end them at the end."""
    require_callables(nodes)
    several = workers if isinstance(workers, Mapping) else dict.fromkeys(nodes, workers)
    counts = {**dict.fromkeys(nodes, 1), **several}
    for what, table in (("workers", counts), ("resources", resources)):
        if odd := set(table) - set(nodes):
            raise ArgumentError(
                f"{what} names {odd.pop()!r}; the nodes are {', '.join(nodes)}", param=what
            )
    for name, count in counts.items():
        require_whole(count, f"the number of workers of {name!r}", least=1)
    size = ray.cluster_resources()
    for kind, resource in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        needed = sum(counts[name] * of.get(kind, 0) for name, of in resources.items())
        # The actors would wait forever, or blocks would, which need a core.
        if needed and needed + (resource == "CPU") > size.get(resource, 0):
            raise ArgumentError(
                f"the actors need {needed:g} {resource}s together, and the cluster has "
                f"{size.get(resource, 0):g}; give fewer workers or resources, and leave a core",
                param="workers",
            )
    # The work of a process that died is repeated, at most five times.
    actor = ray.remote(max_restarts=-1, max_task_retries=5, scheduling_strategy="SPREAD")(_Node)
    pools: dict[str, list[Any]] = {name: [] for name in nodes}
    try:
        for name, node in nodes.items():
            # Without a stated need none is reserved: a restart must not wait for a core that blocks
            # hold, which wait for the actor.
            start = actor.options(**{"num_cpus": 0, **resources.get(name, {})}).remote
            try:
                pools[name] += [start(name, node) for _ in range(counts[name])]
            except (TypeError, AttributeError) as error:
                raise ArgumentError(
                    f"node {name!r} cannot be sent to the cluster: {error}; give a class, of which "
                    "each actor creates an object",
                    param="nodes",
                ) from None
        texts = ray.get([handle.error.remote() for handle in chain(*pools.values())])
        for text in filter(None, texts):
            raise TraceError(text)
        yield pools
    finally:
        for handle in chain(*pools.values()):
            with suppress(Exception):
                ray.kill(handle)


def _blocks(dataset: Any, batch_size: int, stage: Callable[[Any], Any], pools: Pools) -> Any:
    """Pass a dataset through a stage, in order, until all blocks are done."""
    require_whole(batch_size, "batch_size", least=1)
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    # Blocks mostly wait: twice as many as actors are under way, so that no actor does.
    free = ray.available_resources().get("CPU", 1) / (2 * sum(map(len, pools.values())))
    share = max(0.0001, min(1.0, free))
    staged = dataset.map_batches(
        stage, batch_size=batch_size, batch_format="pyarrow", num_cpus=share
    )
    try:
        return staged.materialize()
    except ray.exceptions.RayError as error:
        cause: Any = error
        while isinstance(cause, ray.exceptions.RayError):
            cause = getattr(cause, "cause", None)
        raise (cause if isinstance(cause, TTamerError) else error) from None


def _digest(block: Any, salt: bytes) -> str:
    """Return what names the answers to a block: a hash of its rows, and of what decides."""
    pa = require("pyarrow", "ray")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema.remove_metadata()) as stream:
        stream.write_table(block.replace_schema_metadata().combine_chunks())
    return hashlib.sha256(salt + sink.getvalue().to_pybytes()).hexdigest()[:32]


class _Replica:
    """A deployment that holds the callable of one node."""

    def __init__(self, node: Any) -> None:
        created = _created(node)
        self._node = created.single if isinstance(created, Batched) else created

    async def ask(self, value: Any) -> Any:
        """Return what the callable returns."""
        result = await call_async(Call(self._node, value))
        if result.error is not None:
            raise result.error
        return result.returned


async def _ask(handle: Any, value: Any) -> Any:
    return await handle.ask.remote(value)


class _Deciding:
    """A deployment that decides whom to ask, and returns the answer."""

    def __init__(self, policy: Any, handles: Mapping[str, Any]) -> None:
        nodes = {name: partial(_ask, handle) for name, handle in handles.items()}
        self._cascade = Cascade(policy, nodes)

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            body = await request.json()
            value = body["input"]
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": 'the body must be JSON: {"input": ...}'}, 400)
        try:
            facts = {"key": body.get("key"), "inputs": body.get("inputs")}
            outcome = await self._cascade.arun(value, **facts)
        except CascadeFailed as error:
            return JSONResponse({"error": str(error)}, 503)
        answer = {"answer": outcome.answer, "by": outcome.by, "cost": outcome.cost}
        return JSONResponse({**answer, "asked": list(outcome.path)})
