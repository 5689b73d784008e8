"""Pretrained weights in few bytes: 7 bits a number, or the 4-bit blocks of a GGUF file as they are.

Matrices are rounded to 127 levels with a scale for each row; everything else is in half precision.
Rows of an embedding that no review uses are left out and come back as zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = 63
"""The largest whole number of a rounded matrix: 7 bits with the sign."""
BLOCK = 20
"""The bytes of a Q4_1 block of 32 numbers: a scale and a minimum in half precision, 16 bytes."""
MIN_ROWS = 64
"""Matrices with fewer rows are kept in half precision."""


def pack(weights: dict[str, np.ndarray], path: Path, kept: dict[str, np.ndarray]) -> None:
    """Write weights; ``kept`` has the rows to keep of some. Arrays of bytes are Q4_1 blocks."""
    stored: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.dtype == np.uint8:
            stored[f"{name}|blocks"] = value
            continue
        if name in kept:
            stored[f"{name}|rows"] = kept[name].astype(np.int32)
            stored[f"{name}|count"] = np.array(len(value))
            value = value[kept[name]]
        if value.ndim == 2 and len(value) >= MIN_ROWS:
            scale = np.maximum(np.abs(value).max(axis=1, keepdims=True), 1e-8) / LEVELS
            stored[f"{name}|levels"] = np.round(value / scale).astype(np.int8)
            stored[f"{name}|scale"] = scale.astype(np.float32)
        else:
            stored[f"{name}|half"] = value.astype(np.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **stored)


def unpack(path: Path) -> dict[str, torch.Tensor]:
    """Read weights that :func:`pack` wrote, in single precision."""
    found: dict[str, torch.Tensor] = {}
    with np.load(path) as stored:
        for key in stored.files:
            name, _, kind = key.partition("|")
            if kind == "blocks":
                value = blocks_to_numbers(stored[key])
            elif kind == "levels":
                value = stored[key].astype(np.float32) * stored[f"{name}|scale"]
            elif kind == "half":
                value = stored[key].astype(np.float32)
            else:
                continue
            if f"{name}|rows" in stored.files:
                whole = np.zeros((int(stored[f"{name}|count"]), *value.shape[1:]), np.float32)
                whole[stored[f"{name}|rows"]] = value
                value = whole
            found[name] = torch.from_numpy(value)
    return found


def blocks_to_numbers(blocks: np.ndarray) -> np.ndarray:
    """Return the numbers of Q4_1 blocks, shape (rows, bytes)."""
    each = blocks.reshape(-1, BLOCK)
    scale, lowest = np.ascontiguousarray(each[:, :4]).view(np.float16).astype(np.float32).T
    levels = np.concatenate([each[:, 4:] & 15, each[:, 4:] >> 4], axis=1)
    return (levels * scale[:, None] + lowest[:, None]).reshape(len(blocks), -1)
