"""VGG-11, 13, 16 and ResNet-18 at 224 x 224 pixels with exits, and CIFAR-10 enlarged for them.

Ramps are convolutional. ``large_train.py`` trains these networks, ``large_begin.py`` has the
weights that they begin with, ``large_packed.py`` writes and restores them in few bytes.
Needs Pillow, PyTorch, and PYTHONPATH=src:experiments/text.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from cifar import CLASSES, Images, erased, flipped, normalised, shifted
from torch import nn
from torch.nn.functional import interpolate, relu

from ttamer.torch.devices import autocast
from ttamer.torch.networks.resnet import exits_on_resnet
from ttamer.torch.networks.vgg import convolutional_ramp, vgg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ttamer.torch.early_exit import EarlyExit

NETWORKS = ("vgg16", "vgg13", "vgg11", "resnet18")
"""The names of the networks."""
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of ImageNet's pixels, by colour."""
HELD_OUT = 2000
"""Training images that no network is trained on."""
TEST_BATCH = 250
"""Images that are asked together outside training."""


class Residual(nn.Module):
    """A residual block of ResNet-18 (He et al. 2016)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out),
            nn.ReLU(inplace=True), nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Add the body to the shortcut."""
        return relu(self.body(value) + self.shortcut(value))


class ResNet18(nn.Module):
    """ResNet-18 with the parts of torchvision's."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [64, 64, 128, 256, 512]
        for k in range(1, 5):
            first = Residual(sizes[k - 1], sizes[k], 1 if k == 1 else 2)
            setattr(self, f"layer{k}", nn.Sequential(first, Residual(sizes[k], sizes[k], 1)))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)


def built(name: str, size: int) -> EarlyExit:
    """Return a network with exits and random weights."""
    if name == "resnet18":
        ramp = partial(convolutional_ramp, width=64)
        return exits_on_resnet(ResNet18(len(CLASSES)), classes=len(CLASSES), size=size, ramp=ramp)
    return vgg(int(name.removeprefix("vgg")), size=size, ramps="convolutional")


def resized(images: torch.Tensor, size: int) -> torch.Tensor:
    """Return images of another size, channels last."""
    large = interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return large.contiguous(memory_format=torch.channels_last)


def enlarged(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Return bytes as normalised images of a larger size, channels last."""
    return resized(normalised(pixels, MEAN, SPREAD), size)


class Batches:
    """Enlarged batches of all images in their order."""

    def __init__(self, images: Images, size: int, batch: int = TEST_BATCH) -> None:
        self.images, self.size, self.batch = images, size, batch

    def __len__(self) -> int:
        return -(-len(self.images.labels) // self.batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pixels, labels = self.images.pixels.split(self.batch), self.images.labels.split(self.batch)
        for some, label in zip(pixels, labels, strict=True):
            yield enlarged(some, self.size), label


class Shuffled:
    """Images in a random order without end, flipped, shifted, partly erased, and enlarged."""

    def __init__(self, images: Images, batch: int) -> None:
        self.images, self.batch = images, min(batch, len(images.labels))
        self.left = torch.empty(0, dtype=torch.int64, device=images.labels.device)

    def draw(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next batch at a size."""
        if len(self.left) < self.batch:
            every = torch.randperm(len(self.images.labels), device=self.left.device)
            self.left = torch.cat([self.left, every])
        rows, self.left = self.left[: self.batch], self.left[self.batch :]
        images = normalised(self.images.pixels[rows], MEAN, SPREAD)
        return resized(erased(shifted(flipped(images))), size), self.images.labels[rows]


def held_out_rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows held out, the same in every run, and the rows to train on."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    held = min(HELD_OUT, count // 5)
    return order[:held], order[held:]


def training_images(path: Path, rows: int) -> tuple[Images, Images]:
    """Return images to train on, and those held out, fewer of both where rows are few."""
    fit = Images.read(path, "train")
    held, others = held_out_rows(len(fit.labels))
    return fit.take(others[:rows]), fit.take(held[: max(rows // 5, 1)])


def test_images(path: Path, rows: int) -> Images:
    """Return test images in the order of the traces."""
    test = Images.read(path, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    return test.take(order[:rows])


def precision_on(device: torch.device | str) -> Any:
    """Return what networks are trained in."""
    return "bf16" if torch.device(device).type == "cuda" else "fp32"


@torch.no_grad()
def accuracies(network: EarlyExit, batches: Batches) -> dict[str, float]:
    """Return how often each exit is right."""
    network.eval()
    device = batches.images.labels.device
    right = torch.zeros(len(network.names), device=device)
    for value, label in batches:
        with autocast(device, precision_on(device)):
            right += torch.stack([(each.argmax(1) == label).sum() for each in network(value)])
    shares = (right / len(batches.images.labels)).tolist()
    return {name: round(each, 4) for name, each in zip(network.names, shares, strict=True)}
