"""Wall-clock: VGG as it is, and what ``recommend`` recommends, by batch size and precision.

    python experiments/vision/measure.py --data cifar10_jpeg.npz --weights vgg16.pt

The weights are what train.py wrote. For every batch size and precision a policy is chosen on one
half of the test images, with no or one point more error, and its error is that on the other half.
Times are of batches run in turns with the network alone. Decisions are replayed through sessions on
the host: they must be the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from cifar import CLASSES, Images, normalised
from vgg import folded, vgg

from ttamer import torch as exits

HEAD = (
    f"{'batch':>5} {'':5} {'+err':>5} {'error':>7} {'network':>7} {'p50 ms':>8} {'p99 ms':>8} "
    f"{'rows/s':>9} {'latency':>8} {'through':>8} exits asked"
)


def main() -> None:
    """Measure every setting asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--graphs", action="store_true", help="run as CUDA graphs")
    parser.add_argument("--most", type=int, default=5000, help="test images to time on")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    test = Images.read(args.data, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    test = test.take(order).to(device)
    half = len(order) // 2
    print(HEAD, flush=True)
    for precision in args.precisions:
        network = vgg(args.depth)
        network.load_state_dict(torch.load(args.weights, map_location="cpu", weights_only=True))
        network = folded(network).to(device, memory_format=torch.channels_last)
        network = network.bfloat16() if precision == "bf16" else network
        images = normalised(test.pixels).contiguous(memory_format=torch.channels_last)
        images = images.to(next(network.parameters()).dtype)
        loader = zip(images.split(500), test.labels.split(500), strict=True)
        trace = exits.trace_of(network, loader, classes=CLASSES).take(np.arange(half))
        for batch in args.batches:
            count = min(args.most, half, 300 if batch == 1 else half) // batch * batch
            for more_error in (0.0, 0.01):
                advice = exits.recommend(
                    network,
                    trace,
                    images[:count],
                    batch=batch,
                    more_error=more_error,
                    caution=0.0,
                    classes=CLASSES,
                    graphs=args.graphs,
                )
                others = list(images[half : half + count].split(batch))
                labels = test.labels[half : half + count]
                wrong = [error(run, others, labels) for run in (advice.run, network.full)]
                if advice.runner is not None:
                    check(advice, network, others[:20])
                show(precision, batch, more_error, advice, wrong)


def error(run, batches: list, labels: torch.Tensor) -> float:
    """Return the share of images answered wrong."""
    answers = torch.cat([run(batch).argmax(1) for batch in batches])
    return float((answers != labels).float().mean())


def check(advice: exits.Tuning, network: exits.EarlyExit, batches: list) -> None:
    """Replay what a runner saw through sessions on the host: they must decide the same."""
    for batch in batches:
        answers = advice.runner(batch)
        seen, said = answers.confidence.cpu().numpy(), answers.prediction.cpu().numpy()
        for row in range(min(len(seen), 64)):
            turn = advice.policy.session()
            while turn.next is not None:
                k = network.names.index(turn.next)
                sure, text = seen[row, k], CLASSES[said[row, k]]
                turn.observe(confidence=sure, margin=sure, prediction=text)
            if turn.answer != network.names[int(answers.exit[row])]:
                raise SystemExit("the device decided otherwise than a session")


def show(precision: str, batch: int, more_error: float, advice, wrong: list[float]) -> None:
    """Print a line of the table."""
    p50, p99 = np.quantile(advice.seconds, (0.5, 0.99))
    asked = "the network itself" if advice.runner is None else ",".join(advice.runner.reached)
    print(
        f"{batch:5} {precision:5} {100 * more_error:5.0f} {wrong[0]:7.4f} {wrong[1]:7.4f} "
        f"{1e3 * p50:8.3f} {1e3 * p99:8.3f} {batch / advice.seconds.mean():9.0f} "
        f"{np.median(advice.full_seconds) / p50:8.2f} {advice.speed_up:8.2f} {asked}",
        flush=True,
    )


if __name__ == "__main__":
    main()
