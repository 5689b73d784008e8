"""What segment times allow and what a runner reaches: networks of real sizes, random weights.

    PYTHONPATH=src python experiments/early_exit/segment_times.py

Needs a GPU, transformers and Triton. Thresholds at two exits are set so that 60% and 30% of the
rows (VGG: 55% and 30%) continue. *Bound* is the speed-up by the times of the segments alone, for
the rows that continue in each batch: no ramp, no decision, no regrouping.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import torch

from ttamer import torch as exits
from ttamer.torch.profiling import full_run, profile, runner_for
from ttamer.torch.runner import group_sizes
from ttamer.torch.tuning import time_batches


def texts(rows):
    """Return texts of 256 tokens."""
    ids = torch.randint(5, 30000, (rows, 256), device="cuda")
    return ids, torch.ones_like(ids, dtype=torch.bool)


def images(rows):
    """Return images of 224 x 224 pixels."""
    pixels = torch.randn(rows, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return pixels.contiguous(memory_format=torch.channels_last)


def with_two_ramps(network, first, second):
    """Return a network with two of its ramps, in bf16 on the GPU."""
    segments, ramps = list(network.segments), list(network.exits)
    kept = [ramp if k in (first, second) else None for k, ramp in enumerate(ramps[:-1])]
    return exits.EarlyExit(segments, kept, ramps[-1]).eval().cuda().bfloat16()


def vgg():
    """Return VGG-16 for large images."""
    network = with_two_ramps(exits.vgg(16, size=224), 3, 7)
    return exits.fold_batch_norm(network).to(memory_format=torch.channels_last)


NETWORKS = {
    "mpnet": (lambda: with_two_ramps(exits.mpnet(classes=2), 3, 7), texts, 0.6, 0.3),
    "smollm2": (lambda: with_two_ramps(exits.llama(classes=2), 9, 19), texts, 0.6, 0.3),
    "vgg16": (vgg, images, 0.55, 0.3),
}
"""Per network: how to build it, its inputs, and the shares of rows that continue."""


def split(value, size):
    """Split a value into batches."""
    if isinstance(value, torch.Tensor):
        return list(value.split(size))
    return list(zip(*(part.split(size) for part in value), strict=True))


def thresholds(network, batches, first, second):
    """Return thresholds that let these shares of the rows continue."""
    with torch.inference_mode():
        every = zip(*[network(batch) for batch in batches], strict=True)
        early, later, _ = (torch.cat(each).float().softmax(-1).amax(-1) for each in every)
    limit = early.quantile(first)
    rest = later[early < limit].quantile(second / first)
    return exits.threshold_tables(np.array([limit.item(), rest.item(), 0.0]))


def measure(network, batches, tables, *, graphs):
    """Return the times of the network and of a runner, and the bound."""
    size = len(batches[0][0]) if isinstance(batches[0], tuple) else len(batches[0])
    measured = profile(network, batches[0], sizes=(size,), graphs=graphs)
    rule, sizes = measured.regrouping(), group_sizes(size)
    runner = runner_for(network, tables, batches[0], regrouping=rule, graphs=graphs)
    full = time_batches(full_run(network, batches[0], graphs=graphs), batches)
    ours = time_batches(runner, batches)
    needed = 0.0
    for batch in batches:
        counts = runner(batch).asked.sum(0).tolist()
        groups = [sizes[bisect_left(sizes, rows)] for rows in counts if rows]
        needed += sum(rule.time(k, group) for k, group in enumerate(groups))
    bound = sum(rule.time(k, size) for k in range(3)) * len(batches) / needed
    return full, ours, bound


def main() -> None:
    """Print one line per network, batch size and way of running."""
    torch.manual_seed(0)
    for name, (build, inputs, first, second) in NETWORKS.items():
        network = build()
        for size in (1, 8, 32, 128):
            batches = split(inputs(max(6 * size, 48)), size)
            tables = thresholds(network, batches, first, second)
            for graphs in (True, False):
                full, ours, bound = measure(network, batches, tables, graphs=graphs)
                print(
                    f"{name} {size} {'graphs' if graphs else 'eager'}: full {1e3 * full.mean:.3f} "
                    f"ms, ours {1e3 * ours.mean:.3f} ms, p99 {1e3 * ours.p99:.3f} ms, "
                    f"{full.mean / ours.mean:.2f} times, bound {bound:.2f}"
                )


if __name__ == "__main__":
    main()
