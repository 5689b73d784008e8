"""Throughput: batches that go together, so that what is left of them still fills the device.

    python experiments/vision/stream.py --data cifar10_jpeg.npz --weights vgg16.pt --out s.json

Requests come in batches of 256. The network as it was runs each by itself, or eight together, which
suits the device better; ours always runs eight together (``Runner.stream``).
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cifar import CLASSES, Images, normalised
from measure import load, traced

from ttamer.torch.profiling import full_run, profile
from ttamer.torch.tuning import recommend, time_batches


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--window", type=int, default=8)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    test = Images.read(args.data, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    test = test.take(order).to(device)
    lines = []
    print(f"{'':5} {'+err':>4} {'error':>7} {'full':>7} {'rows/s':>9} {'one by one':>10} "
          f"{'together':>9} ramps")  # fmt: skip
    for precision in args.precisions:
        for line in compare(load(args, device, precision), test, args.batch, args.window):
            lines.append({"precision": precision, **line})
            args.out.write_text(json.dumps(lines, indent=1))
            print(
                f"{precision:5} {100 * line['more_error']:4.0f} {line['error']:7.4f} "
                f"{line['full_error']:7.4f} {line['rows_per_second']:9.0f} "
                f"{line['one_by_one']:10.2f} {line['together']:9.2f} "
                f"{','.join(line['ramps']) or 'full'}",
                flush=True,
            )


def compare(network, test: Images, batch: int, window: int):
    """Yield one dictionary per level of error."""
    images = normalised(test.pixels).contiguous(memory_format=torch.channels_last)
    images = images.to(next(network.parameters()).dtype)
    trace = traced(network, images, test.labels)
    whole, half = batch * window, len(images) // 2
    known, new, labels = images[:half], images[half:], test.labels[half:]
    rows = new[: len(new) // whole * whole]
    cut = list(rows.split(batch))
    full = full_run(network, new[:whole])
    measured = profile(network, known[:whole], sizes=(whole,))
    small = time_batches(lambda _: [full(part) for part in cut], [rows], repeats=9)
    large = time_batches(lambda _: [full(part) for part in rows.split(whole)], [rows], repeats=9)

    def wrong(logits: list[torch.Tensor]) -> float:
        return float((torch.cat(logits).argmax(1) != labels).float().mean())

    alone = wrong([full(part) for part in new.split(whole)])
    for more in (0.0, 0.01):
        found = recommend(
            network, trace.take(np.arange(half)), known, batch=whole, more_error=more,
            classes=CLASSES, measured=measured,
        )  # fmt: skip
        ours, error, ramps = large, alone, []
        if found.runner is not None:
            runner = found.runner
            ours = time_batches(partial(streamed, runner, cut, window), [rows], repeats=9)
            error = wrong([part.logits for part in runner.stream(new.split(batch), window=window)])
            ramps = list(runner.reached)
        yield {
            "more_error": more, "error": error, "full_error": alone,
            "rows_per_second": len(rows) / ours.p50, "one_by_one": small.p50 / ours.p50,
            "together": large.p50 / ours.p50, "ramps": ramps,
        }  # fmt: skip


def streamed(runner, cut, window, _) -> list:
    """Run all batches, some together."""
    return list(runner.stream(cut, window=window))


if __name__ == "__main__":
    main()
