"""CIFAR-10 from JPEG bytes, and batches of it made on the device."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
MEAN = (0.491, 0.482, 0.447)
SPREAD = (0.247, 0.243, 0.262)
PAD = 4
ERASED = 8


@dataclass(frozen=True)
class Images:
    """Images of shape (N, 3, 32, 32) as bytes, and their classes."""

    pixels: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def read(cls, path: Path, split: str) -> Images:
        """Read and decode one split, "train" or "test"."""
        with np.load(path) as stored:
            bytes_, ends, labels = (stored[f"{split}_{part}"] for part in ("buf", "off", "y"))

        def decode(k: int) -> np.ndarray:
            image = Image.open(io.BytesIO(bytes_[ends[k] : ends[k + 1]].tobytes()))
            return np.asarray(image.convert("RGB"))

        with ThreadPoolExecutor() as pool:
            pixels = np.stack(list(pool.map(decode, range(len(labels)), chunksize=500)))
        pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        return cls(pixels, torch.from_numpy(labels.astype(np.int64)))

    def to(self, device: str) -> Images:
        """Return the same images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def take(self, rows: torch.Tensor) -> Images:
        """Return some of the images."""
        return Images(self.pixels[rows], self.labels[rows])


class Batches:
    """Normalised batches in a random order, flipped, shifted and partly erased; or plain ones."""

    def __init__(self, images: Images, size: int, *, augment: bool) -> None:
        self._images = images
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return -(-len(self._images.labels) // self._size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pixels, labels = self._images.pixels, self._images.labels
        count = len(labels)
        order = torch.randperm(count) if self._augment else torch.arange(count)
        for rows in order.to(labels.device).split(self._size):
            batch = normalised(pixels[rows])
            if self._augment:
                batch = erased(shifted(flipped(batch)))
            yield batch.contiguous(memory_format=torch.channels_last), labels[rows]


def normalised(
    pixels: torch.Tensor,
    mean: tuple[float, ...] = MEAN,
    spread: tuple[float, ...] = SPREAD,
) -> torch.Tensor:
    """Return bytes as numbers of mean 0 and spread 1."""
    return (pixels.float() / 255 - _colours(mean, pixels.device)) / _colours(spread, pixels.device)


@cache
def _colours(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return a number for each colour; a copy to the device waits for it, so there is only one."""
    return torch.tensor(values, device=device).view(1, 3, 1, 1)


def flipped(batch: torch.Tensor) -> torch.Tensor:
    """Return images of which half are mirrored."""
    flip = torch.rand(len(batch), 1, 1, 1, device=batch.device) < 0.5
    return torch.where(flip, batch.flip(-1), batch)


def shifted(batch: torch.Tensor) -> torch.Tensor:
    """Return images that are shifted by up to 4 pixels, each its own way."""
    count, _, side, _ = batch.shape
    padded = torch.nn.functional.pad(batch, (PAD,) * 4, mode="reflect")
    shift = torch.randint(0, 2 * PAD + 1, (2, count, 1), device=batch.device)
    line = torch.arange(side, device=batch.device)
    rows, columns = line + shift[0], line + shift[1]
    every = torch.arange(count, device=batch.device)
    return padded.permute(0, 2, 3, 1)[
        every[:, None, None], rows[:, :, None], columns[:, None, :]
    ].permute(0, 3, 1, 2)


def erased(batch: torch.Tensor) -> torch.Tensor:
    """Return images with a square of 8 x 8 pixels set to the mean, each its own."""
    count, _, side, _ = batch.shape
    corner = torch.randint(0, side - ERASED + 1, (2, count, 1), device=batch.device)
    line = torch.arange(side, device=batch.device)
    inside = (line >= corner) & (line < corner + ERASED)
    return batch.masked_fill((inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1), 0.0)
