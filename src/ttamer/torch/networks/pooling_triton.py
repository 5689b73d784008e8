"""The parts of an exit on a GPU in one kernel each, written in Triton.

An exit is small, and its kernels wait for each other: at small batches their number is its time.
With PyTorch's operations pooling takes five kernels, and the last layer up to four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ttamer.torch.launching import Launcher

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAX_CLASSES", "classify", "pool_tokens"]

MAX_CLASSES = 32
"""The most classes of :func:`classify`, which computes one after another."""

WIDTH_BLOCK = 32
"""The numbers of a vector that one program computes."""
MIN_TOKENS, MAX_TOKENS = 16, 256
"""The fewest and the most tokens that are read at once: a program that waits for few reads in turn
takes longer."""


def pool_tokens(hidden: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """Return the mean of the tokens of each row, or its last token; padding comes last."""
    rows, tokens, width = hidden.shape
    hidden, mask = hidden.contiguous(), mask.contiguous()
    out = torch.empty((rows, width), dtype=hidden.dtype, device=hidden.device)
    block = min(max(triton.next_power_of_2(tokens), MIN_TOKENS), MAX_TOKENS)
    _launch_pool(
        (rows, -(-width // WIDTH_BLOCK), 1),
        (hidden, mask.view(torch.uint8), out, tokens, width),
        (mean, WIDTH_BLOCK, block),
        (hidden.dtype, hidden.device, width, mean, block),
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def _pool(
    hidden, mask, out, tokens, width,
    MEAN: tl.constexpr, WIDTH_BLOCK: tl.constexpr, TOKEN_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH_BLOCK + tl.arange(0, WIDTH_BLOCK)
    inside = column < width
    start = hidden + row * tokens * width
    total = tl.zeros((WIDTH_BLOCK,), tl.float32)
    count = tl.zeros((TOKEN_BLOCK,), tl.int32)
    for first in range(0, tokens, TOKEN_BLOCK):
        token = first + tl.arange(0, TOKEN_BLOCK)
        kept = tl.load(mask + row * tokens + token, mask=token < tokens, other=0) != 0
        count += kept.to(tl.int32)
        if MEAN:
            where = start + token[:, None] * width + column[None, :]
            part = tl.load(where, mask=kept[:, None] & inside[None, :], other=0.0)
            total += tl.sum(part.to(tl.float32), axis=0)
    length = tl.maximum(tl.sum(count, axis=0), 1)
    if MEAN:
        answer = total / length.to(tl.float32)
    else:
        answer = tl.load(start + (length - 1) * width + column, mask=inside, other=0.0)
    tl.store(out + row * width + column, answer.to(out.dtype.element_ty), mask=inside)


def classify(vectors: Tensor, weight: Tensor, bias: Tensor | None, *, tanh: bool) -> Tensor:
    """Return the logits of a linear layer with few classes, of vectors or of their tanh.

    Numbers are rounded to the precision of the vectors where PyTorch's operations round them.
    """
    rows, width = vectors.shape
    vectors, weight = vectors.contiguous(), weight.contiguous()
    out = torch.empty((rows, len(weight)), dtype=vectors.dtype, device=vectors.device)
    constants = (width, tanh, bias is not None, len(weight), triton.next_power_of_2(width))
    _launch_classify(
        (rows, 1, 1), (vectors, weight, weight if bias is None else bias, out), constants,
        (vectors.dtype, weight.dtype, vectors.device, constants),
    )  # fmt: skip
    return out


@triton.jit
def _classify(
    vectors, weight, bias, out, width: tl.constexpr,
    TANH: tl.constexpr, BIAS: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    kind = out.dtype.element_ty
    vector = tl.load(vectors + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if TANH:
        vector = (2.0 * tl.sigmoid(2.0 * vector) - 1.0).to(kind).to(tl.float32)
    for k in tl.static_range(CLASSES):
        factors = tl.load(weight + k * width + column, mask=inside, other=0.0)
        total = tl.sum(vector * factors.to(kind).to(tl.float32), axis=0)
        if BIAS:
            total += tl.load(bias + k).to(kind).to(tl.float32)
        tl.store(out + row * CLASSES + k, total.to(kind))


_launch_pool, _launch_classify = Launcher(_pool), Launcher(_classify)
