"""Running with CUDA graphs: where launching kernels takes longer than running them.

A *hop* leads a group of rows from one exit to the next that some of them are due at: the segments
between, the ramp, and the decision, captured once as a graph and replayed as one launch. Groups
have one of a few sizes; a smaller one is filled up with rows that count for nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, cast

import torch

from ttamer.errors import ArgumentError
from ttamer.torch.decide_triton import TritonDecider
from ttamer.torch.devices import autocast, device_of, rows_of, to_device
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
WARM_UPS = 3


class GraphRunner(Runner):
    """A runner that replays captured hops, for batches of up to a fixed size, on one stream.

    What it returns is written over by the next call: copy what must be kept.
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
        self._sizes = group_sizes(batch) if sizes is None else sorted({*sizes, batch})
        with torch.inference_mode(), autocast(self._device, precision):
            value = to_device(example, self._device)
            logits = network.full(value)
            self._carry = self._decider.start(batch, logits.shape[1], logits.dtype)
            self._rows = {size: torch.arange(size, device=self._device) for size in self._sizes}
            self._whole: dict[int, int] = {}  # sizes whose rows are numbered, and how many
            self._inputs = {size: _like(value, size) for size in self._sizes}
            self._values: dict[tuple[int, int], Any] = {}
            self._hops: dict[tuple[int, int, int], Callable[[], None]] = {}

    @property
    def batch(self) -> int:
        """The most rows a batch may have."""
        return self._sizes[-1]

    def _run(self, value: Any) -> Answers:
        count = rows_of(value)
        if not 0 < count <= self.batch:
            raise ArgumentError(
                f"the batch has {count} rows; graphs were made for 1 to {self.batch}"
            )
        decider = cast("TritonDecider", self._decider)
        size = self._fitting(count)
        _fill(self._inputs[size], value)
        if self._whole.get(size) != count:
            _number(self._rows[size], count)
            self._whole[size] = count
        at, due, last = START, self._reached[0], len(self.network.exits) - 1
        while True:
            self._hop(at, due, size)
            at = due
            self.waits += 1
            counts = decider.wait()
            alive = sum(counts)
            if not alive or at == last:
                break
            due = next(k for k, some in enumerate(counts) if some)
            smaller = self._fitting(alive)
            if smaller < size and self.regrouping.pays(at, due, size, smaller):
                positions, following = decider.lists(size)
                source = self._values[at, size]
                target = self._value(at, smaller, source)
                _gather(target, source, positions[:smaller])
                self._rows[smaller].copy_(following[:smaller])
                self._whole.pop(smaller, None)
                size = smaller
        carry = self._carry
        return Answers(
            carry.answer[:count],
            carry.owner[:count],
            carry.asked[:count],
            carry.confidence[:count],
            carry.prediction[:count],
        )

    def _fitting(self, rows: int) -> int:
        return self._sizes[bisect_left(self._sizes, rows)]

    def _hop(self, start: int, end: int, size: int) -> None:
        key = (start, end, size)
        if key not in self._hops:
            # Warming up decides, too: what was known is put back afterwards.
            known = [part.clone() for part in vars(self._carry).values()]
            rows = self._rows[size].clone()
            self._hops[key] = captured(lambda: self._work(start, end, size))
            for part, before in zip(vars(self._carry).values(), known, strict=True):
                part.copy_(before)
            self._rows[size].copy_(rows)
        self._hops[key]()

    def _work(self, start: int, end: int, size: int) -> None:
        value = self._inputs[size] if start == START else self._values[start, size]
        for segment in list(self.network.segments)[start + 1 : end + 1]:
            value = segment(value)
        logits = self.network.exits[end](value)
        decider = cast("TritonDecider", self._decider)
        decider.observe(self._carry, end, self._rows[size], logits, first=start == START)
        if end == len(self.network.exits) - 1:
            return
        if (end, size) in self._values:
            _copy(self._values[end, size], value)
        elif torch.cuda.is_current_stream_capturing():
            self._values[end, size] = value  # replayed, it will be written there again

    def _value(self, exit_: int, size: int, like: Any) -> Any:
        """Return where the value after an exit is kept for groups of one size."""
        if (exit_, size) not in self._values:
            self._values[exit_, size] = _like(like, size)
        return self._values[exit_, size]


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """Capture work as a CUDA graph; what it returns replays it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def full_graph(
    network: EarlyExit, example: Value, *, precision: Precision = "fp32"
) -> Callable[[Any], Tensor]:
    """Return the network as it was as one graph, for batches like the example."""
    device = device_of(network)
    out: dict[str, Tensor] = {}
    with torch.inference_mode(), autocast(device, precision):
        kept = _like(to_device(example, device), rows_of(example))
        replay = captured(lambda: out.__setitem__("logits", network.full(kept)))

    @torch.inference_mode()
    def run(value: Value) -> Tensor:
        _fill(kept, value)
        replay()
        return out["logits"]

    return run


def _each(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _like(value: Any, size: int) -> Any:
    """Return room for a value of so many rows, laid out as it is."""

    def room(tensor: Tensor) -> Tensor:
        shape = (size, *tensor.shape[1:])
        kept = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            kept = kept.to(memory_format=torch.channels_last)
        return kept

    parts = tuple(room(tensor) for tensor in _each(value))
    return parts[0] if isinstance(value, torch.Tensor) else parts


def _copy(target: Any, source: Any) -> None:
    for kept, tensor in zip(_each(target), _each(source), strict=True):
        kept.copy_(tensor)


def _fill(target: Any, value: Any) -> None:
    for kept, tensor in zip(_each(target), _each(value), strict=True):
        kept[: len(tensor)].copy_(tensor)


def _gather(target: Any, source: Any, positions: Tensor) -> None:
    for kept, tensor in zip(_each(target), _each(source), strict=True):
        torch.index_select(tensor, 0, positions, out=kept)


def _number(rows: Tensor, count: int) -> None:
    """Number the rows of a group that holds a whole batch, -1 where it is filled up."""
    torch.arange(len(rows), out=rows)
    rows[count:] = -1
