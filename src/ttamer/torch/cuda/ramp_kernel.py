"""An exit on a GPU in one kernel, written in Triton: pooling, a norm, and a linear layer.

An exit is small, and its kernels wait for each other: at small batches their number is its time.
Many programs pool a part of a row each; the last of them to arrive classifies the row. Numbers are
rounded to the precision of PyTorch's operations where these round them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ttamer.torch.cuda.branching import block_for, counters
from ttamer.torch.early_exit import Pool, pooled

# The most classes of :func:`classify`, which computes one after another.
MAX_CLASSES = 32
# The numbers of a vector that one program pools.
WIDTH_BLOCK = 32
NO_NORM, LAYER_NORM, RMS_NORM = (tl.constexpr(k) for k in range(3))


def run_ramp(layers: nn.Sequential, hidden: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """Return logits: in one kernel where at most a norm comes before a last layer of few classes.

    What is left to PyTorch's operations takes several kernels.
    """
    *before, last = (layer for layer in layers if not isinstance(layer, nn.Dropout))
    counts = counters(len(hidden), hidden.device) if pool == "mean" else None
    if (
        type(last) is not nn.Linear
        or last.out_features > MAX_CLASSES
        or len(before) > 1
        or not all(map(is_norm, before))
        or (pool == "mean" and counts is None)
    ):
        logits: Tensor = layers(pooled(hidden, mask, pool))
        return logits
    return classify(hidden, mask, last, counts, pool=pool, norm=before[0] if before else None)


def is_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a norm of whole vectors that :func:`classify` computes."""
    if not isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return False
    plain = type(layer) in (nn.LayerNorm, nn.RMSNorm)  # a subclass may compute something else
    return plain and layer.weight is not None and len(layer.normalized_shape) == 1


def classify(
    hidden: Tensor,
    mask: Tensor | None,
    last: nn.Linear,
    arrived: Tensor | None,
    *,
    pool: Pool,
    norm: nn.Module | None,
) -> Tensor:
    """Return logits of tokens, pooled; ``arrived`` are a counter for each row, for means."""
    rows, tokens, width = hidden.shape
    device, kind = hidden.device, hidden.dtype
    if torch.is_autocast_enabled(device.type):
        kind = torch.get_autocast_dtype(device.type)
    hidden = hidden.contiguous()
    out = torch.empty((rows, last.out_features), dtype=kind, device=device)
    weight, bias = last.weight.contiguous(), last.bias
    scale: Tensor = weight if norm is None else norm.weight  # type: ignore[assignment]
    shift: Tensor | None = getattr(norm, "bias", None)
    eps = getattr(norm, "eps", 0.0)
    kinds = {type(None): NO_NORM, nn.LayerNorm: LAYER_NORM, nn.RMSNorm: RMS_NORM}
    if mask is not None:
        mask = mask.contiguous()
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    is_mean = pool == "mean"
    # Where there is no mask, shift, bias or mean, what stands in its place is not read.
    _classify[rows, -(-width // WIDTH_BLOCK) if is_mean else 1, 1](
        hidden,
        hidden if mask is None else mask,
        scale,
        scale if shift is None else shift,
        weight,
        weight if bias is None else bias,
        out,
        tokens,
        torch.empty((rows, width), dtype=hidden.dtype, device=device) if is_mean else out,
        out if arrived is None else arrived,
        width,
        kinds[type(norm)].value,
        torch.finfo(torch.float32).eps if eps is None else float(eps),
        shift is not None,
        bias is not None,
        last.out_features,
        block_for(width),
        mask is not None,
        min(block_for(tokens, 16), 256),  # a program that waits for few reads in turn takes longer
        is_mean,
        pool == "last",
        WIDTH_BLOCK,
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def _classify(
    hidden,
    mask,
    scale,
    shift,
    weight,
    bias,
    out,
    tokens,
    vectors,
    arrived,
    width: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
    SHIFT: tl.constexpr,
    BIAS: tl.constexpr,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    TOKEN_BLOCK: tl.constexpr,
    IS_MEAN: tl.constexpr,
    IS_LAST: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
):
    """Classify a row by its first or last token, or by the mean.

    Of means, each program pools a part of a row, and the last of the row to arrive classifies it.
    """
    row = tl.program_id(0).to(tl.int64)
    source = hidden + row * tokens * width
    is_due = row >= 0  # of each row the only program
    if IS_MEAN:
        column = tl.program_id(1) * WIDTH_BLOCK + tl.arange(0, WIDTH_BLOCK)
        inside = column < width
        sums = tl.zeros((WIDTH_BLOCK,), tl.float32)
        count = tl.zeros((TOKEN_BLOCK,), tl.int32)
        for first in range(0, tokens, TOKEN_BLOCK):
            token = first + tl.arange(0, TOKEN_BLOCK)
            counts = token < tokens
            if MASKED:
                counts = tl.load(mask + row * tokens + token, mask=counts, other=0) != 0
            count += counts.to(tl.int32)
            where = source + token[:, None] * width + column[None, :]
            part = tl.load(where, mask=counts[:, None] & inside[None, :], other=0.0)
            sums += tl.sum(part.to(tl.float32), axis=0)
        mean = sums / tl.maximum(tl.sum(count, axis=0), 1).to(tl.float32)
        source = vectors + row * width
        tl.store(source + column, mean.to(vectors.dtype.element_ty), mask=inside)
        tl.debug_barrier()  # all threads of this program have stored their part
        is_due = tl.atomic_add(arrived + row, 1, sem="acq_rel") == tl.num_programs(1) - 1
    elif IS_LAST:
        last = tokens - 1
        if MASKED:  # the last token that is not padding, or the first
            position = tl.zeros((TOKEN_BLOCK,), tl.int32)
            for first in range(0, tokens, TOKEN_BLOCK):
                token = first + tl.arange(0, TOKEN_BLOCK)
                counts = tl.load(mask + row * tokens + token, mask=token < tokens, other=0) != 0
                position = tl.where(counts, token, position)
            last = tl.max(position, axis=0)
        source += last * width
    if is_due:
        if IS_MEAN:
            tl.store(arrived + row, 0)
        full = tl.arange(0, BLOCK)
        valid = full < width
        # Read where all multiprocessors see the same: in the second cache.
        vector = tl.load(source + full, mask=valid, other=0.0, cache_modifier=".cg").to(tl.float32)
        kind = out.dtype.element_ty
        if NORM != NO_NORM:
            if NORM == LAYER_NORM:
                vector = tl.where(valid, vector - tl.sum(vector, axis=0) / width, 0.0)
            vector = vector * tl.rsqrt(tl.sum(vector * vector, axis=0) / width + EPS)
            vector = vector * tl.load(scale + full, mask=valid, other=0.0).to(tl.float32)
            if SHIFT:
                vector += tl.load(shift + full, mask=valid, other=0.0).to(tl.float32)
        vector = vector.to(kind).to(tl.float32)
        for k in tl.static_range(CLASSES):
            factors = tl.load(weight + k * width + full, mask=valid, other=0.0)
            total = tl.sum(vector * factors.to(kind).to(tl.float32), axis=0)
            if BIAS:
                total += tl.load(bias + k).to(kind).to(tl.float32)
            tl.store(out + row * CLASSES + k, total.to(kind))
