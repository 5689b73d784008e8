"""Pooling on a GPU in one kernel, written in Triton: with PyTorch's operations it takes five.

An exit is small, and its kernels wait for each other: at small batches their number is its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ttamer.torch.launching import Launcher

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["pool_tokens"]

WIDTH_BLOCK = 32
"""The numbers of a vector that one program computes."""
TOKEN_BLOCK = 64
"""The tokens that are read at once."""


def pool_tokens(hidden: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """Return the mean of the tokens of each row, or its last token; padding comes last."""
    rows, tokens, width = hidden.shape
    hidden, mask = hidden.contiguous(), mask.contiguous()
    out = torch.empty((rows, width), dtype=hidden.dtype, device=hidden.device)
    _launch(
        (rows, -(-width // WIDTH_BLOCK), 1),
        (hidden, mask.view(torch.uint8), out, tokens, width),
        (mean, WIDTH_BLOCK, TOKEN_BLOCK),
        (hidden.dtype, hidden.device, width, mean),
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


_launch = Launcher(_pool)
