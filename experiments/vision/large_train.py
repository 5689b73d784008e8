"""Train networks of ``large.py`` on CIFAR-10 for a given time, and write them and their traces.

    python experiments/vision/large_train.py vgg16 --start vgg16-weights.npz --data cifar10_jpeg.npz
        --out DIR --seconds 240
    python experiments/vision/large_train.py vgg16 resnet18 --start FOLDER --data ... --out DIR
        --seconds 170 45 --ramp-seconds 20 10

``--start`` is a file that ``large_begin.py`` wrote, or a folder with packed networks to train
further. Everything is trained together, first on small images, where one takes less than half the
time, then on large ones. Each step asks the head and a few ramps, drawn at random; a share of the
ramps' gradients reaches the backbone. Rate and size follow the clock and not the steps: a run
beside others on one GPU ends in time, and with a rate of zero. A run that was cut short goes on
from DIR/NAME-large.ckpt. Then, for ``--ramp-seconds``, the first ramps are trained alone, which is
cheap, for only the first layers run; those are kept that are right more often on images held out.
So is the whole: what is worse than the start is not kept.

Written: DIR/NAME-large-packed*.npz (7 bits a weight); of these weights the network DIR/NAME-large,
its inputs for experiments/early_exit/tables.py, and its trace on the 10,000 test images.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import traceback
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cifar import CLASSES, Images
from large import (
    NETWORKS,
    TEST_BATCH,
    Batches,
    Shuffled,
    accuracies,
    precision_on,
    test_images,
    training_images,
)
from large_begin import begun
from large_packed import load_packed, write_network, write_packed
from torch import nn
from torch.nn.functional import cross_entropy

from ttamer.torch.devices import autocast
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from ttamer.torch.early_exit import EarlyExit

EXIT_GRADIENT = 0.5
"""The share of the ramps' gradients that reaches the backbone, by default."""
MAX_NORM = 10.0
"""The largest norm of the gradient."""
WEIGHT_DECAY = 5e-4
"""The weight decay; norms and biases have none."""
RAMP_RATE = 2e-3
"""The rate of AdamW for ramps alone."""
CHECKED = 20
"""Steps between two looks at the loss, which wait for the device."""
SAVED = 30.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True)
class Plan:
    """How a network is trained."""

    rate: float
    """The highest rate of stochastic gradient descent."""
    batch: int = 125
    """Images per step."""
    sizes: tuple[tuple[float, int], ...] = ((0.5, 144), (1.0, 224))
    """Shares of the time, and the sides of the images until then."""
    ramps: int = 4
    """Ramps that a step asks."""
    first: int = 2
    """The first ramps, which are trained alone afterwards."""
    exit_gradient: float = EXIT_GRADIENT
    """The share of the ramps' gradients that reaches the backbone."""

    def size_at(self, progress: float, most: int) -> int:
        """Return the side of the images at a share of the time."""
        return min(next(size for until, size in self.sizes if progress <= until), most)


PLANS = {
    "vgg16": Plan(0.025, first=4),
    "vgg13": Plan(0.03, ramps=3),
    "vgg11": Plan(0.04, ramps=3),
    "resnet18": Plan(0.15, batch=500, ramps=3, first=3),
}
"""The plans, by network."""


class Learner:
    """A network with its optimiser, and the seconds and steps spent on it."""

    def __init__(self, network: EarlyExit, plan: Plan) -> None:
        self.network, self.plan = network, plan
        self.spent, self.steps = 0.0, 0
        self.device = next(network.parameters()).device
        weights = [each for each in network.parameters() if each.ndim > 1]
        others = [each for each in network.parameters() if each.ndim <= 1]
        self.optimiser = torch.optim.SGD(
            [{"params": weights}, {"params": others, "weight_decay": 0.0}],
            lr=plan.rate, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY,
        )  # fmt: skip

    def step(self, images: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        """Train on one batch and return the head's loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with autocast(self.device, precision_on(self.device)):
            losses = [cross_entropy(each.float(), labels) for each in self._logits(images)]
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self.optimiser.step()
        self.steps += 1
        return losses[-1].detach()

    def _logits(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return the logits of a few ramps and of the head."""
        ramps = list(self.network.ramps())
        asked = set(random.sample(range(len(ramps)), min(self.plan.ramps, len(ramps))))
        every = []
        for k, (segment, ramp) in enumerate(zip(self.network.segments, ramps, strict=False)):
            value = segment(value)
            if k in asked:
                every.append(_apart(ramp, value, self.plan.exit_gradient))
        return [*every, self.network.exits[-1](self.network.segments[-1](value))]

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        state = {"plan": asdict(self.plan), "spent": self.spent, "steps": self.steps,
                 "network": self.network.state_dict(),
                 "optimiser": self.optimiser.state_dict()}  # fmt: skip
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["plan"] != asdict(self.plan):
            raise SystemExit(f"{path} is of another plan: remove it to begin again")
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.spent, self.steps = state["spent"], state["steps"]


def _apart(ramp: nn.Module, value: torch.Tensor, share: float) -> torch.Tensor:
    """Return a ramp's logits; a share of its gradient reaches the value.

    The gradient is multiplied after the ramp's pooling, where there is less of it.
    """
    layers = list(ramp)
    if isinstance(layers[0], nn.AvgPool2d):
        value = layers.pop(0)(value)
    value = value.view_as(value)
    if value.requires_grad:
        value.register_hook(lambda gradient: gradient * share)
    for layer in layers:
        value = layer(value)
    return value


def learn(
    learner: Learner,
    images: Images,
    size: int,
    seconds: float,
    *,
    checkpoint: Path,
    say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """Train everything until the seconds are spent, and return what was seen on the way."""
    if checkpoint.exists():
        learner.resume(checkpoint)
    plan, seen = learner.plan, []
    shape = Recipe("all", epochs=1, rate=plan.rate, warmup=0.05)
    stream = Shuffled(images, plan.batch)
    start, saved, told = time.perf_counter() - learner.spent, learner.spent, learner.spent
    total, count = torch.zeros((), device=learner.device), 0
    learner.network.train()
    while (spent := time.perf_counter() - start) < seconds:
        progress = spent / seconds
        value, labels = stream.draw(plan.size_at(progress, size))
        total += learner.step(value, labels, plan.rate * shape.factor(progress))
        count += 1
        if learner.steps % CHECKED:
            continue
        learner.spent = time.perf_counter() - start
        if stopped():
            say(f"stopped at {progress:.0%}")
            break
        loss = float(total) / count
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} after {learner.steps} steps: lower the rate")
        if learner.spent - told > seconds / 20:
            told = learner.spent
            epochs = learner.steps * stream.batch / len(images.labels)
            seen.append({"epochs": round(epochs, 2), "side": value.shape[-1], "loss": loss})
            say(f"{progress:.0%}, {epochs:.2f} epochs, {value.shape[-1]} pixels, loss {loss:.3f}")
            total, count = torch.zeros_like(total), 0
        if learner.spent - saved > SAVED:
            saved = learner.spent
            learner.save(checkpoint)
    learner.network.eval()
    return seen


def learn_ramps(
    network: EarlyExit, images: Images, held: Batches, plan: Plan, seconds: float
) -> None:
    """Train the first ramps alone, and keep those that are then right more often."""
    blocks, exits = list(network.segments)[: plan.first], list(network.ramps())[: plan.first]
    known, before = accuracies(network, held), [deepcopy(each.state_dict()) for each in exits]
    device = images.labels.device
    ramps = nn.ModuleList(exits).train()
    optimiser = torch.optim.AdamW(ramps.parameters(), weight_decay=0.01)
    shape = Recipe("ramps", epochs=1, rate=RAMP_RATE, warmup=0.05)
    stream, start = Shuffled(images, TEST_BATCH), time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        optimiser.param_groups[0]["lr"] = RAMP_RATE * shape.factor(spent / seconds)
        value, labels = stream.draw(held.size)
        losses = []
        with autocast(device, precision_on(device)):
            for block, ramp in zip(blocks, exits, strict=True):
                with torch.no_grad():
                    value = block(value)
                losses.append(cross_entropy(ramp(value).float(), labels))
        optimiser.zero_grad(set_to_none=True)
        torch.stack(losses).sum().backward()
        optimiser.step()
        float(losses[0].detach())  # waits for the device
    found = accuracies(network, held)
    for name, ramp, old in zip(network.names, exits, before, strict=False):
        if found[name] <= known[name]:
            ramp.load_state_dict(old)


def worth(found: dict[str, float]) -> float:
    """Return what networks are compared by: the head and the mean exit."""
    return (found["full"] + sum(found.values()) / len(found)) / 2


class Study:
    """The images, and the networks that are trained on them one after another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.started, self.name = args, time.perf_counter(), ""
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.manual_seed(0)
        random.seed(0)
        args.out.mkdir(parents=True, exist_ok=True)
        fit, held = (each.to(self.device) for each in training_images(args.data, args.rows))
        self.fit, self.held = fit, Batches(held, args.size)
        self.test = test_images(args.data, args.rows).to(self.device)
        self.say(f"{len(fit.labels)} images to train on, {len(held.labels)} held out")

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"[{time.perf_counter() - self.started:5.1f} s] {self.name}: {line}", flush=True)

    def stopped(self) -> bool:
        """Return whether training is to end."""
        return self.args.stop is not None and self.args.stop.exists()

    def run(self, name: str, seconds: float, ramp_seconds: float) -> None:
        """Train, pack and trace one network."""
        self.name, args = name, self.args
        plan = replace(PLANS[name], exit_gradient=args.exit_gradient)
        network = begun(name, args.size, args.start, self.fit, args.out)
        write_network(network, name, self.test, args.size, args.out)  # should training be cut
        first = accuracies(network, self.held)
        before = deepcopy(network.state_dict())
        self.say(f"held out, at the start: {first}")
        learner = Learner(network, plan)
        checkpoint = args.out / f"{name}-large.ckpt"
        seen = learn(
            learner, self.fit, args.size, seconds,
            checkpoint=checkpoint, say=self.say, stopped=self.stopped,
        )  # fmt: skip
        trained = accuracies(network, self.held)
        self.say(f"held out: {trained}")
        if worth(trained) < worth(first):
            self.say("worse than the start, which is kept")
            network.load_state_dict(before)
        if ramp_seconds > 0 and not self.stopped():
            learn_ramps(network, self.fit, self.held, plan, ramp_seconds)
            self.say(f"held out, with ramps trained alone: {accuracies(network, self.held)}")
        paths = write_packed(network, args.out / f"{name}-large-packed")
        load_packed(network, paths)
        write_network(network, name, self.test, args.size, args.out)
        trace = trace_of(network, Batches(self.test, args.size), classes=CLASSES)
        trace.write(args.out / f"{name}-large-cifar10.npz")
        right = (1 - trace.wrong().mean(0)).round(4).tolist()
        accuracy = dict(zip(trace.names, right, strict=True))
        self.say(f"test images, packed, fp32: {accuracy}")
        notes: dict[str, Any] = {
            "accuracy": accuracy, "held_out": {"start": first, "trained": trained},
            "plan": asdict(plan), "seconds": seconds, "ramp_seconds": ramp_seconds,
            "steps": learner.steps, "seen": seen, "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
        }  # fmt: skip
        (args.out / f"{name}-large.json").write_text(json.dumps(notes, indent=1) + "\n")
        checkpoint.unlink(missing_ok=True)


def main() -> None:
    """Train networks one after another; one that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=NETWORKS)
    parser.add_argument("--start", type=Path, help="a folder of packed networks, or ImageNet's")
    parser.add_argument("--data", type=Path, required=True, help="cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, nargs="+", default=[240.0], help="per network")
    parser.add_argument("--ramp-seconds", type=float, nargs="+", default=[0.0], help="per network")
    parser.add_argument("--exit-gradient", type=float, default=EXIT_GRADIENT, help="a share")
    parser.add_argument("--stop", type=Path, help="end training once this file is there, and write")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rows", type=int, default=10**9, help="of the images, for a trial")
    args = parser.parse_args()
    study, failed = Study(args), []
    for k, name in enumerate(args.networks):
        seconds, ramps = (each[min(k, len(each) - 1)] for each in (args.seconds, args.ramp_seconds))
        try:
            study.run(name, seconds, ramps)
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
            torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
