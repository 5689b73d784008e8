"""Networks of ``large.py`` in few bytes: weights rounded to 7 bits, and networks made from them.

python experiments/vision/large_packed.py DIR/vgg16-large-packed*.npz --data ... --out DIR

writes DIR/vgg16-large and the inputs for experiments/early_exit/tables.py. Networks of several
names can be given at once, each with all of its files.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from large import built, test_images
from packed import pack, unpack

if TYPE_CHECKING:
    from cifar import Images
    from torch import nn

    from ttamer.torch.early_exit import EarlyExit

BLOCK = 72
"""Packed weights of convolutions have one scale for this many."""
MAX_VALUES = 16_000_000
"""The most weights in one packed file."""


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
    return paths


@torch.no_grad()
def load_packed(network: nn.Module, paths: list[Path]) -> None:
    """Load weights that :func:`write_packed` wrote."""
    found = {name: value for path in paths for name, value in unpack(path).items()}
    state = network.state_dict()
    missing = sorted(set(state) - set(found))
    if missing:
        raise SystemExit(f"{missing[0]} is in none of the files: give all files of a network")
    for name, value in found.items():
        state[name].copy_(value.view_as(state[name]).to(state[name].dtype))


def files_of(name: str, folder: Path) -> list[Path]:
    """Return the packed files of a network in a folder."""
    return sorted(folder.glob(f"{name}-large-packed*.npz"))


def write_network(network: EarlyExit, name: str, test: Images, size: int, out: Path) -> None:
    """Write a network and its inputs for experiments/early_exit/tables.py."""
    network.save_pretrained(out / f"{name}-large")
    pixels, labels = test.pixels.cpu().numpy(), test.labels.cpu().numpy().astype(np.uint8)
    np.savez(out / f"{name}-large-inputs.npz", pixels=pixels, size=size, label=labels)


def main() -> None:
    """Restore networks from packed files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packed", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rows", type=int, default=10**9, help="of the test images")
    args = parser.parse_args()
    groups: dict[str, list[Path]] = {}
    for path in args.packed:
        name = re.sub(r"-large-packed\d*\.npz$", "", path.name)
        groups.setdefault(name, []).append(path)
    test = test_images(args.data, args.rows)
    for name, paths in groups.items():
        network = built(name, args.size).eval()
        load_packed(network, paths)
        write_network(network, name, test, args.size, args.out)
        print(args.out / f"{name}-large", flush=True)


if __name__ == "__main__":
    main()
