"""Memory of CUDA graphs: the inputs that they read, and rows that are copied between their steps.

Rows of all tensors of a value are copied by one kernel, without padding. PyTorch's copies are one
launch for each tensor, which is part of the latency of small batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ttamer.errors import ArgumentError
from ttamer.torch.devices import Value, changed, in_memory_order, tensors_of

# The largest number of tensors that one kernel copies.
MAX_TENSORS = 4


def fill(memory: Value, value: Value) -> None:
    """Copy inputs, which may be on another device, to the first rows of memory; refuse others."""
    sources, targets = tensors_of(value), tensors_of(memory)
    if [part.shape[1:] for part in sources] != [part.shape[1:] for part in targets]:
        received, expected = (
            ", ".join(str(tuple(part.shape)) for part in parts) for parts in (sources, targets)
        )
        raise ArgumentError(
            f"the inputs have shapes {received}, and the example of the graphs {expected}, whose "
            "first number may be smaller: pad the inputs, or use Runner, which takes any shape",
            param="inputs",
        )
    for source, target in zip(sources, targets, strict=True):
        target[: source.shape[0]].copy_(source, non_blocking=True)


def like(value: Value, rows: int) -> Value:
    """Return memory for some rows of a value, in its memory format."""

    def memory(tensor: Tensor) -> Tensor:
        zeros = tensor.new_zeros((rows, *tensor.shape[1:]))
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            zeros = zeros.to(memory_format=torch.channels_last)
        return zeros

    return changed(value, memory)


# The number of words of a row that one program copies.
BLOCK = 1024


def copy_rows(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    rows: Tensor,
    *,
    positions: Tensor | None = None,
    listed: Tensor | None = None,
) -> None:
    """Write rows of sources to the first rows of targets, without those whose number is -1.

    ``rows`` are the numbers, ``positions`` where each lies in the sources; by default one after
    another. The numbers are written to ``listed``.
    """
    count = len(rows)
    pairs = []
    for source, target in zip(sources, targets, strict=True):
        if not target.numel():
            continue
        pair = _words(source, target)
        if pair is not None:
            pairs.append(pair)
        elif positions is None:
            target[:count].copy_(source[:count])
        else:
            torch.index_select(source, 0, positions, out=target[:count])
    for start in range(0, max(len(pairs), 1), MAX_TENSORS):
        group = pairs[start : start + MAX_TENSORS]
        lists = listed if start == 0 else None
        arguments: list[Any] = []
        for source, target in group:
            arguments += [source, target, source.stride(0), target.shape[1]]
        arguments += [rows, rows, 0, 0] * (MAX_TENSORS - len(group))
        blocks = max([1, *(-(-target.shape[1] // BLOCK) for _, target in group)])
        _copy_rows[count, blocks, 1](
            rows,
            rows if positions is None else positions,
            rows if lists is None else lists,
            *arguments,
            len(group),
            positions is not None,
            lists is not None,
            BLOCK,
        )


def _words(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return two tensors as rows of words; ``None`` where their rows lie in another order."""
    read, written = in_memory_order(source), in_memory_order(target)
    alike = (read is source) == (written is target) and read.shape[1:] == written.shape[1:]
    if not alike or read.dtype != written.dtype:
        return None
    if not (read[0].is_contiguous() and written.is_contiguous()):
        return None
    width = read[0].numel()
    lines = read.as_strided((len(read), width), (read.stride(0), 1))
    for kind in (torch.int64, torch.int32, torch.int16, torch.uint8):  # the widest first
        with contextlib.suppress(RuntimeError):
            return lines.view(kind), written.view(len(written), width).view(kind)
    return None


@triton.jit
def _copy(source, target, stride, width, at, position, BLOCK: tl.constexpr):
    """Copy a part of one row."""
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < width
    part = tl.load(source + position * stride + word, mask=inside)
    tl.store(target + at * width + word, part, mask=inside)


@triton.jit
def _copy_rows(
    rows,
    positions,
    listed,
    source0,
    target0,
    stride0,
    width0,
    source1,
    target1,
    stride1,
    width1,
    source2,
    target2,
    stride2,
    width2,
    source3,
    target3,
    stride3,
    width3,
    COUNT: tl.constexpr,
    GATHERS: tl.constexpr,
    LISTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + at)
    if LISTS:
        tl.store(listed + at, row, mask=tl.program_id(1) == 0)
    if row >= 0:
        position = at
        if GATHERS:
            position = tl.load(positions + at)
        if COUNT > 0:
            _copy(source0, target0, stride0, width0, at, position, BLOCK)
        if COUNT > 1:
            _copy(source1, target1, stride1, width1, at, position, BLOCK)
        if COUNT > 2:
            _copy(source2, target2, stride2, width2, at, position, BLOCK)
        if COUNT > 3:
            _copy(source3, target3, stride3, width3, at, position, BLOCK)
