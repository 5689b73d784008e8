"""Running with CUDA graphs, for networks where launching kernels takes longer than running them.

A *hop* takes a group of rows from one exit to the next where some of them are due: regrouping,
the segments between, the ramp, and the decision, captured once as a graph and replayed as one
launch. Groups have one of a few sizes; a smaller group is padded with rows that are ignored.
The first segment of a long hop is a graph of its own: the device works on it while the host
launches the rest, which takes longer the more kernels a graph has.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, cast

import torch

from ttamer.errors import ArgumentError
from ttamer.torch.decide_triton import TritonDecider
from ttamer.torch.devices import autocast, device_of, rows_of, take, to_device
from ttamer.torch.runner import Answers, Runner, group_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.torch.devices import Precision
    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.torch.runner import Regrouping
    from ttamer.torch.tables import Tables

__all__ = ["GraphRunner", "captured", "full_graph"]

START = -1
"""The exit before the first one."""
WARM_UPS = 2
"""How often work runs before it is captured."""
MIN_SPLIT = 3
"""The number of segments from which on the first one is a graph of its own."""


class GraphRunner(Runner):
    """A runner that replays captured hops, for batches of up to a fixed size, on one stream.

    The next call overwrites what it returned: copy what must be kept.

    Args:
        network: The network, on a GPU.
        policy: A fitted policy for these exits, or the tables of one.
        example: A batch of the largest size.
        classes: The names of the network's classes, as for :class:`Runner`.
        precision: What the network computes in.
        regrouping: When survivors are regrouped; by default whenever any row has left.
        sizes: The group sizes; by default powers of two and the numbers half way between.

    Raises:
        ArgumentError: There is no GPU, or Triton is not installed.

    Example::

        runner = GraphRunner(network.cuda(), policy, batch)
        logits = runner(batch).logits.clone()
    """

    def __init__(
        self,
        network: EarlyExit,
        policy: FittedPolicy | Tables,
        example: Value,
        *,
        classes: Sequence[str] | None = None,
        precision: Precision = "fp32",
        regrouping: Regrouping | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            network, policy, classes=classes, precision=precision, regrouping=regrouping
        )
        if not isinstance(self._decider, TritonDecider):
            raise ArgumentError("CUDA graphs need a GPU and Triton; use Runner here")
        batch = rows_of(example)
        on_gpu = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        self._sizes = group_sizes(batch) if sizes is None else sorted({*sizes, batch})
        with torch.inference_mode(), autocast(self._device, precision):
            value = to_device(example, self._device)
            logits = network.full(value)
            self._carry = self._decider.start(batch, logits.shape[1], logits.dtype)
            self._rows = {size: torch.arange(size, device=self._device) for size in self._sizes}
            self._whole: dict[int, int] = {}  # sizes whose rows are numbered, with their count
            self._inputs = {size: _like(value, size) for size in self._sizes}
            self._values: dict[tuple[int, int], Any] = {}
            self._hops: dict[tuple[int, int, int, int], Callable[[], None]] = {}
            self._pays: dict[tuple[int, int, int, int], bool] = {}

    @property
    def batch(self) -> int:
        """The largest number of rows of a batch."""
        return self._sizes[-1]

    def _run(self, value: Any) -> Answers:
        count = rows_of(value)
        if not 0 < count <= self.batch:
            raise ArgumentError(
                f"the batch has {count} rows; the graphs are for 1 to {self.batch}: split it"
            )
        decider = cast("TritonDecider", self._decider)
        size = self._fitting(count)
        _fill(self._inputs[size], value)
        if self._whole.get(size) != count:
            _number(self._rows[size], count)
            self._whole[size] = count
        at, due, last = START, self._reached[0], len(self.network.exits) - 1
        came = size
        while True:
            self._hop(at, due, came, size)
            if due == last:
                break
            at, came = due, size
            self.waits += 1
            alive, due = decider.wait()
            if not alive:
                break
            size = self._regrouped(at, due, size, alive)
        carry = self._carry
        parts: tuple[Tensor, ...] = (
            carry.answer, carry.owner, carry.asked, carry.confidence, carry.prediction,
        )  # fmt: skip
        if count < self.batch:
            parts = tuple(part[:count] for part in parts)
        return Answers(*parts)

    def _fitting(self, rows: int) -> int:
        """Return the smallest group size that holds some rows."""
        return self._sizes[bisect_left(self._sizes, rows)]

    def _regrouped(self, at: int, due: int, size: int, alive: int) -> int:
        """Return the size of the group that goes on."""
        smaller = self._fitting(alive)
        if smaller >= size:
            return size
        key = (at, due, size, smaller)
        if key not in self._pays:
            self._pays[key] = self.regrouping.pays(*key)
        if not self._pays[key]:
            return size
        self._whole.pop(smaller, None)
        return smaller

    def _hop(self, start: int, end: int, came: int, size: int) -> None:
        """Replay a hop of a group that comes from one of another size; capture it where new."""
        key = (start, end, came, size)
        decider = cast("TritonDecider", self._decider)
        if key not in self._hops:
            # Warming up decides too: the state is restored afterwards.
            lists = decider.lists(came)
            state = [*vars(self._carry).values(), self._rows[came], *lists]
            known = [part.clone() for part in state]
            self._hops[key] = self._captured(*key)
            for part, before in zip(state, known, strict=True):
                part.copy_(before)
        decider.expect()
        self._hops[key]()

    def _captured(self, start: int, end: int, came: int, size: int) -> Callable[[], None]:
        """Capture a hop, in two graphs where it is long."""
        split = end - start >= MIN_SPLIT
        middle = start + 1 if split else end
        return captured_in_two(
            (lambda: self._begin(start, middle, came, size)) if split else None,
            lambda value: self._finish(
                self._begin(start, middle, came, size) if value is None else value,
                start, middle, end, size,
            ),
            self._pool,
        )  # fmt: skip

    def _begin(self, start: int, middle: int, came: int, size: int) -> Any:
        """Regroup, and run the segments up to one of them."""
        decider = cast("TritonDecider", self._decider)
        value = self._inputs[size] if start == START else self._values[start, came]
        if size < came:
            positions, following = decider.lists(came)
            value = take(value, positions[:size])
            self._rows[size].copy_(following[:size])
        return self._through(value, start, middle)

    def _finish(self, value: Any, start: int, middle: int, end: int, size: int) -> None:
        """Run the other segments, the ramp and the decision."""
        value = self._through(value, middle, end)
        logits = self.network.exits[end](value)
        last = end == len(self.network.exits) - 1
        cast("TritonDecider", self._decider).observe(
            self._carry, end, self._rows[size], logits, awaited=not last, first=start == START
        )
        if last:
            return
        if (end, size) in self._values:
            _copy(self._values[end, size], value)
        elif torch.cuda.is_current_stream_capturing():
            self._values[end, size] = _kept(value)  # a replay writes there again

    def _through(self, value: Any, start: int, end: int) -> Any:
        """Run the segments after one exit up to another."""
        for segment in list(self.network.segments)[start + 1 : end + 1]:
            value = segment(value)
        return value


def captured(work: Callable[[], object], pool: Any = None) -> Callable[[], None]:
    """Capture work as a CUDA graph, and return a function that replays it.

    Graphs that never run at the same time can share a pool of memory.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


def captured_in_two(
    begin: Callable[[], Any] | None, finish: Callable[[Any], object], pool: Any = None
) -> Callable[[], None]:
    """Capture work that begins with what may be a graph of its own, whose value it goes on with.

    The value may share its memory with what later graphs of the pool use in between: the two are
    always replayed one after the other.
    """
    if begin is None:
        return captured(lambda: finish(None), pool)
    out: dict[str, Any] = {}
    first = captured(lambda: out.__setitem__("value", begin()), pool)
    first()
    second = captured(lambda: finish(out["value"]), pool)

    def replay() -> None:
        first()
        second()

    return replay


def full_graph(
    network: EarlyExit, example: Value, *, precision: Precision = "fp32"
) -> Callable[[Any], Tensor]:
    """Return the network without ramps as graphs, for batches like the example."""
    device = device_of(network)
    out: dict[str, Tensor] = {}
    first, *others, head = network.backbone()

    def finish(value: Any) -> None:
        value = first(kept) if value is None else value
        for segment in others:
            value = segment(value)
        out["logits"] = head(value)

    with torch.inference_mode(), autocast(device, precision):
        kept = _like(to_device(example, device), rows_of(example))
        begin = (lambda: first(kept)) if len(others) + 1 >= MIN_SPLIT else None
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        replay = captured_in_two(begin, finish, pool)

    @torch.inference_mode()
    def run(value: Value) -> Tensor:
        _fill(kept, value)
        replay()
        return out["logits"]

    return run


def _each(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a value."""
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _like(value: Any, size: int) -> Any:
    """Return a buffer for ``size`` rows of a value, in its memory format."""

    def buffer(tensor: Tensor) -> Tensor:
        shape = (size, *tensor.shape[1:])
        kept = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            kept = kept.to(memory_format=torch.channels_last)
        return kept

    parts = tuple(buffer(tensor) for tensor in _each(value))
    return parts[0] if isinstance(value, torch.Tensor) else parts


def _kept(value: Any) -> Any:
    """Return a value whose tensors can be written to: those that repeat a row are copied."""
    parts = tuple(part.clone() if 0 in part.stride() else part for part in _each(value))
    return parts[0] if isinstance(value, torch.Tensor) else parts


def _copy(target: Any, source: Any) -> None:
    """Copy a value into a buffer of its size; what was passed on as it is, is there already."""
    for kept, tensor in zip(_each(target), _each(source), strict=True):
        if kept.data_ptr() != tensor.data_ptr():
            kept.copy_(tensor)


def _fill(target: Any, value: Any) -> None:
    """Copy a value into the first rows of a buffer."""
    for kept, tensor in zip(_each(target), _each(value), strict=True):
        (kept if len(kept) == len(tensor) else kept[: len(tensor)]).copy_(tensor)


def _number(rows: Tensor, count: int) -> None:
    """Number the rows of a group that holds a whole batch, with -1 for padding."""
    torch.arange(len(rows), out=rows)
    rows[count:] = -1
