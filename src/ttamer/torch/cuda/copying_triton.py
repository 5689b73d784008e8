"""Rows of all tensors of a value written to another place by one kernel, written in Triton.

PyTorch's operations take one kernel for each tensor, and copy padding, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from ttamer.torch.cuda.launching import Launcher
from ttamer.torch.devices import in_memory_order

if TYPE_CHECKING:
    from torch import Tensor


# The largest number of tensors that one kernel copies.
MAX_TENSORS = 4
# The number of words of a row that one program copies.
BLOCK = 1024
# What rows are copied as, the widest first.
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


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
        some = pairs[start : start + MAX_TENSORS]
        _launch(some, rows, positions, listed if start == 0 else None)


def _launch(
    pairs: list[tuple[Tensor, Tensor]],
    rows: Tensor,
    positions: Tensor | None,
    listed: Tensor | None,
) -> None:
    """Launch the kernel for a few tensors."""
    given: list[Any] = [
        rows, rows if positions is None else positions, rows if listed is None else listed,
    ]  # fmt: skip
    for source, target in pairs:
        given += [source, target, source.stride(0), target.shape[1]]
    for _ in range(MAX_TENSORS - len(pairs)):
        given += [rows, rows, 0, 0]
    constants = (len(pairs), positions is not None, listed is not None, BLOCK)
    # Triton compiles for numbers that are 1, and for multiples of 16.
    kinds = tuple(
        (each % 16 == 0, each == 1) if isinstance(each, int) else each.dtype for each in given
    )
    blocks = max([1, *(-(-target.shape[1] // BLOCK) for _, target in pairs)])
    _launcher((len(rows), blocks, 1), given, constants, (kinds, constants, rows.device))


def _words(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return two tensors as rows of words; ``None`` where their rows lie in another order."""
    one, two = in_memory_order(source), in_memory_order(target)
    alike = (one is source) == (two is target) and one.shape[1:] == two.shape[1:]
    if not alike or one.dtype != two.dtype:
        return None
    if not (one[0].is_contiguous() and two.is_contiguous()):
        return None
    width = one[0].numel()
    one, two = one.as_strided((len(one), width), (one.stride(0), 1)), two.view(len(two), width)
    for kind in WORDS:
        with contextlib.suppress(RuntimeError):
            return one.view(kind), two.view(kind)
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
    rows, positions, listed,
    source0, target0, stride0, width0, source1, target1, stride1, width1,
    source2, target2, stride2, width2, source3, target3, stride3, width3,
    COUNT: tl.constexpr, GATHERS: tl.constexpr, LISTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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


_launcher = Launcher(_copy_rows)
