"""Trace CIFAR-10 test images with VGG-16, clean and corrupted.

    python experiments/drift/trace_images.py --data cifar10_jpeg.npz --weights vgg16.pt --out DIR

The weights are what experiments/vision/train.py wrote. Images come in the order in which they were
traced there. Writes images-clean.npz, images-noise.npz (Gaussian noise) and images-jpeg.npz
(compressed again), 10,000 rows each, and images.json, what was done; make_streams.py makes streams
of them. Five minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vision"))

from cifar import CLASSES, Batches, Images

from ttamer.torch.networks.vgg import vgg
from ttamer.torch.tracing import trace_of

NOISE = 0.08
"""The standard deviation, where black is 0 and white is 1."""
QUALITY = 15
"""Of JPEG."""


def main() -> None:
    """Trace the images three times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
    parser.add_argument("--weights", type=Path, required=True, help="vgg16.pt")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    network = vgg(16)
    network.load_state_dict(torch.load(args.weights))
    network.float()
    images = Images.read(args.data, "test")
    order = torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))
    images = images.take(order)
    done: dict[str, object] = {"noise": NOISE, "quality": QUALITY, "torch": torch.__version__}
    for name, pixels in (
        ("clean", images.pixels),
        ("noise", noisy(images.pixels)),
        ("jpeg", compressed(images.pixels)),
    ):
        batches = Batches(Images(pixels, images.labels), 500, augment=False)
        trace = dataclasses.replace(trace_of(network, batches, classes=CLASSES), extras={})
        trace.write(args.out / f"images-{name}.npz")
        right = 1 - trace.wrong().mean(axis=0)
        done[name] = dict(zip(trace.names, right.round(4).tolist(), strict=True))
        print(name, done[name], flush=True)
    (args.out / "images.json").write_text(json.dumps(done, indent=1) + "\n")


def noisy(pixels: torch.Tensor) -> torch.Tensor:
    """Return the images with noise added to every pixel, as bytes again."""
    noise = np.random.default_rng(1).normal(0.0, NOISE, tuple(pixels.shape))
    values = (pixels.numpy() / 255 + noise).clip(0, 1)
    return torch.from_numpy((values * 255).round().astype(np.uint8))


def compressed(pixels: torch.Tensor) -> torch.Tensor:
    """Return the images after another round of JPEG, of low quality."""

    def again(image: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
        return np.asarray(Image.open(file))

    found = np.stack([again(image) for image in pixels.permute(0, 2, 3, 1).numpy()])
    return torch.from_numpy(found).permute(0, 3, 1, 2).contiguous()


if __name__ == "__main__":
    main()
