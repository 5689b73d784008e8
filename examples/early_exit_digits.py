"""Early exits: put ramps on a network, train it, and run it faster. Half a minute on a CPU.

Run it with: python examples/early_exit_digits.py
"""

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from ttamer import torch as exits

torch.manual_seed(0)


def digits(count, seed):
    """Draw digits, rotated, shifted and noisy: some are easy, some are not."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, count)
    images = np.empty((count, 1, 32, 32), np.float32)
    for image, digit in zip(images, labels, strict=True):
        canvas = Image.new("L", (32, 32))
        font = ImageFont.load_default(size=int(generator.integers(14, 27)))
        place = generator.integers(2, 12, 2)
        ImageDraw.Draw(canvas).text(tuple(place), str(digit), fill=255, font=font)
        canvas = canvas.rotate(generator.normal(0, 10))
        noise = generator.exponential(0.15) * generator.standard_normal((32, 32))
        image[0] = np.asarray(canvas, np.float32) / 255 + noise
    return torch.from_numpy(images), torch.from_numpy(labels)


def batches(images, labels, size):
    """Split images and labels into batches."""
    return list(zip(images.split(size), labels.split(size), strict=True))


def block(inside, outside):
    """Return two convolutions and a pooling that halves the side."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


# A network of four blocks; after each but the last a ramp may answer.
blocks = [block(1, 8), block(8, 16), block(16, 64), block(64, 192)]
ramps = [exits.pooled_ramp(channels, side, 10) for channels, side in [(8, 16), (16, 8), (64, 4)]]
head = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
network = exits.EarlyExit(blocks, ramps, head)

train, held_out, new = digits(2000, 1), digits(2000, 2), digits(1024, 3)
loader = batches(*train, 64)
exits.train(network, loader, exits.Recipe("all", 4, 2e-3, optimiser="adamw"), progress=print)

# The answers of every exit to digits that the network was not trained on.
trace = exits.trace_of(network, batches(*held_out, 256))
print("\naccuracy of each exit:")
for name, wrong in zip(trace.names, trace.loss.mean(axis=0), strict=True):
    print(f"  {name}: {1 - wrong:.1%}")

# The fastest way to run it on this machine, with at most one point more error.
found = exits.recommend(network, trace, held_out[0][:512], batch=64, more_error=0.01)
with torch.inference_mode():
    full = (network.full(new[0]).argmax(1) != new[1]).float().mean()
    answers = torch.cat([found.run(part) for part in new[0].split(64)])
wrong = (answers.argmax(1) != new[1]).float().mean()
asks = "no ramp" if found.runner is None else ", ".join(found.runner.reached)
print(
    f"\nbatches of 64, on new digits: {found.speed_up:.2f} times as fast as the network, "
    f"error {wrong:.1%} against {full:.1%}; asks {asks}"
)
