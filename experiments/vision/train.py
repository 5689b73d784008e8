"""Train VGG with an exit after every convolution block on CIFAR-10, and write its trace.

    python experiments/vision/train.py 11 13 16 --data cifar10_jpeg.npz --out out/vision

The backbone is trained first and the ramps on it, frozen (as Apparate has it). The weights are
then rounded to half precision, which is how they are kept, and traced in single precision on the
10,000 test images.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from cifar import CLASSES, Batches, Images
from vgg import vgg

from ttamer.torch import Recipe, trace_of, train


def main() -> None:
    """Train the networks asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("depths", type=int, nargs="+", choices=(11, 13, 16))
    parser.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--ramp-epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rows", type=int, help="of the training images (default: all)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    args.out.mkdir(parents=True, exist_ok=True)
    fit = Images.read(args.data, "train")
    if args.rows:
        fit = fit.take(torch.randperm(len(fit.labels))[: args.rows])
    fit, test = fit.to(device), Images.read(args.data, "test").to(device)
    done = {}
    for depth in args.depths:
        done[f"vgg{depth}"] = train_one(depth, fit, test, device, args)
        (args.out / "training.json").write_text(json.dumps(done, indent=1))


def train_one(
    depth: int, fit: Images, test: Images, device: str, args: argparse.Namespace
) -> dict[str, object]:
    """Train, round, trace and save one network."""
    torch.manual_seed(depth)
    network = vgg(depth, width=args.width).to(device, memory_format=torch.channels_last)
    precision = "bf16" if device == "cuda" else "fp32"
    recipes = [
        Recipe("backbone", args.epochs, 0.1, precision=precision),
        Recipe("ramps", args.ramp_epochs, 0.02, precision=precision),
    ]
    seconds = {}
    for recipe in recipes:
        start = time.perf_counter()
        batches = Batches(fit, args.batch, augment=True)
        train(network, batches, recipe, progress=tell(depth, recipe.epochs))
        seconds[recipe.part] = round(time.perf_counter() - start, 1)
    rounded = {
        name: value.half() if value.is_floating_point() else value
        for name, value in network.state_dict().items()
    }
    network.load_state_dict(rounded)
    torch.save({k: v.cpu() for k, v in rounded.items()}, args.out / f"vgg{depth}.pt")
    trace = trace_of(network, shuffled(test), classes=CLASSES)
    trace.write(args.out / f"vgg{depth}-cifar10.parquet")
    accuracy = 1 - trace.loss.mean(axis=0)
    print(f"VGG-{depth}: {seconds}")
    for name, share in zip(trace.names, accuracy, strict=True):
        print(f"  {name:8} {share:.4f}")
    return {
        "epochs": [args.epochs, args.ramp_epochs],
        "batch": args.batch,
        "seconds": seconds,
        "accuracy": dict(zip(trace.names, accuracy.round(4).tolist(), strict=True)),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in network.parameters()),
    }


def shuffled(test: Images) -> Batches:
    """Return the test images in a fixed random order: the file is sorted by class."""
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    return Batches(test.take(order.to(test.labels.device)), 500, augment=False)


def tell(depth: int, epochs: int):
    """Print every tenth line of progress."""
    every = max(epochs // 10, 1)

    def say(line: str) -> None:
        if int(line.split()[2]) % every == 0:
            print(f"VGG-{depth} {line}", flush=True)

    return say


if __name__ == "__main__":
    main()
