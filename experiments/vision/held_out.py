"""Compare the images held out by ``large.py`` with the test images of CIFAR-10.

    python experiments/vision/held_out.py --data cifar10_jpeg.npz

Prints, for the training images that are held out and for the test images: bytes and quantisation
tables of the JPEG files, images per class, and how near the nearest image is that networks are
trained on, mirrored or not, by correlation at 8 x 8 pixels.
Needs Pillow, PyTorch, and PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from cifar import CLASSES, Images
from large import held_out_rows
from PIL import Image
from torch.nn.functional import avg_pool2d, normalize

NEAR = (0.98, 0.96, 0.94)
"""Correlations above which images are counted as near."""
CHUNK = 500
"""Images that are compared at once."""


def files(path: Path, split: str, rows: np.ndarray) -> str:
    """Return what the JPEG files of some rows have in common."""
    with np.load(path) as stored:
        bytes_, ends = stored[f"{split}_buf"], stored[f"{split}_off"]
    tables = set()
    for k in rows:
        image = Image.open(io.BytesIO(bytes_[ends[k] : ends[k + 1]].tobytes()))
        tables.add(tuple(sum(table) for table in image.quantization.values()))
    sizes = np.diff(ends)[rows]
    error = sizes.std() / len(rows) ** 0.5
    return f"{sizes.mean():.0f} ± {error:.0f} bytes, sums of quantisation tables {sorted(tables)}"


def small(pixels: torch.Tensor) -> torch.Tensor:
    """Return images at 8 x 8 pixels, their mean removed, of length 1."""
    flat = avg_pool2d(pixels.float(), 4).flatten(1)
    return normalize(flat - flat.mean(1, keepdim=True), dim=1)


def nearest(images: Images, others: Images) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the correlation with the nearest of the others, and whether it has the same class."""
    plain, mirrored = small(others.pixels), small(others.pixels.flip(-1))
    highest, same = [], []
    for each, label in zip(
        small(images.pixels).split(CHUNK), images.labels.split(CHUNK), strict=True
    ):
        found, row = torch.maximum(each @ plain.T, each @ mirrored.T).max(1)
        highest.append(found)
        same.append(others.labels[row] == label)
    return torch.cat(highest), torch.cat(same)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
    args = parser.parse_args()
    every, test = Images.read(args.data, "train"), Images.read(args.data, "test")
    held, fit = held_out_rows(len(every.labels))
    others = every.take(fit)
    for name, split, rows, images in (
        ("held out", "train", held, every.take(held)),
        ("test", "test", torch.arange(len(test.labels)), test),
    ):
        highest, same = nearest(images, others)
        near = ", ".join(f"{(highest > each).float().mean():.2%} above {each}" for each in NEAR)
        classes = torch.bincount(images.labels, minlength=len(CLASSES)).tolist()
        print(f"{name}: {len(rows)} images; {files(args.data, split, rows.numpy())}")
        print(f"  {dict(zip(CLASSES, classes, strict=True))}")
        print(f"  nearest: {near}; of the same class {same.float().mean():.1%}", flush=True)


if __name__ == "__main__":
    main()
