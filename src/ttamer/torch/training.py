"""Training: the backbone first, then the ramps on it, or all together.

Everything random is seeded anew at the start of each epoch, from the seed and the epoch's
number. So a run that was cut short goes on from its checkpoint to the same weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ttamer._files import atomic_write
from ttamer.errors import ArgumentError
from ttamer.torch.devices import autocast, device_of, to_device

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from ttamer.torch.devices import Precision
    from ttamer.torch.early_exit import EarlyExit, Value

__all__ = ["Part", "Recipe", "train"]

Part = Literal["backbone", "ramps", "all"]
PARTS = ("backbone", "ramps", "all")
OPTIMISERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """How to train one part of a network.

    ``backbone`` trains the network as it was; ``ramps`` the ramps alone, the backbone frozen,
    so that its own answers stay as they are; ``all`` everything, on the sum of all exits' losses.
    """

    part: Part
    epochs: int
    rate: float
    """The learning rate at its highest: it rises over the warm-up, and falls as a cosine."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    weight_decay: float = 5e-4
    warmup: float = 0.1
    """Share of all steps."""
    clip: float | None = None
    """The most the norm of the gradient may be."""
    precision: Precision = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ArgumentError(f"part must be one of {', '.join(PARTS)}, not {self.part!r}")
        if self.epochs < 1 or not self.rate > 0:
            raise ArgumentError(
                f"epochs is {self.epochs} and rate {self.rate}; at least 1, and more than 0"
            )
        if not 0 <= self.warmup < 1:
            raise ArgumentError(f"warmup is {self.warmup}; a share of all steps, less than 1")
        if self.optimiser not in OPTIMISERS:
            raise ArgumentError(
                f"optimiser must be one of {', '.join(OPTIMISERS)}, not {self.optimiser!r}"
            )

    def factor(self, progress: float) -> float:
        """Return the share of the highest rate after this share of all steps.

        >>> recipe = Recipe("all", epochs=1, rate=0.1, warmup=0.5)
        >>> recipe.factor(0.25), recipe.factor(0.5), recipe.factor(1.0)
        (0.5, 1.0, 0.0)
        """
        if progress < self.warmup:
            return progress / self.warmup
        fallen = (progress - self.warmup) / (1 - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * fallen))


def train(
    network: EarlyExit,
    loader: Iterable[tuple[Value, Tensor]],
    recipe: Recipe,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[float]:
    """Train one part of a network in place; return the mean loss of each epoch.

    ``loader`` gives batches of (inputs, labels) and is gone through once per epoch; it must know
    its length, as PyTorch's loaders do. Where ``checkpoint`` exists, training goes on from it; it
    is written after every epoch.
    """
    if not isinstance(loader, Sized):
        raise ArgumentError(
            f"a {type(loader).__name__} does not know how many batches it has, nor can it be gone "
            "through twice; make a list of it, or use a DataLoader"
        )
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not path.parent.is_dir():
        raise ArgumentError(f"{path}: there is no folder {path.parent} to write checkpoints to")
    learner = _Learner(network, recipe, len(loader))
    if path is not None and path.exists():
        learner.resume(path)
    for epoch in range(learner.epoch, recipe.epochs):
        torch.manual_seed(recipe.seed * 100_003 + epoch)
        loss = learner.run_epoch(loader)
        if progress is not None:
            progress(f"{recipe.part}: epoch {epoch + 1} of {recipe.epochs}, loss {loss:.4f}")
        if path is not None:
            learner.save(path)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    network.eval()
    return learner.losses


class _Learner:
    """A network, its optimiser, and how far they are."""

    def __init__(self, network: EarlyExit, recipe: Recipe, batches: int) -> None:
        self.network = network
        self.recipe = recipe
        self.batches = batches
        self.epoch = 0
        self.losses: list[float] = []
        parts: dict[Part, list[nn.Module]] = {
            "backbone": list(network.backbone()),
            "ramps": list(network.ramps()),
            "all": [network],
        }
        trained = parts[recipe.part]
        if batches < 1:
            raise ArgumentError("the loader gives no batches; bring at least one")
        if not trained:
            raise ArgumentError("the network has no ramps to train")
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        self.parameters = list(itertools.chain(*(part.parameters() for part in trained)))
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        network.eval()
        for part in trained:
            part.train()
        # Norms and biases are not shrunk: they have no scale to overfit with.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.parameters if p.ndim > 1]},
            {"params": [p for p in self.parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        if recipe.optimiser == "sgd":
            self.optimiser: torch.optim.Optimizer = torch.optim.SGD(
                groups,
                lr=recipe.rate,
                momentum=0.9,
                nesterov=True,
                weight_decay=recipe.weight_decay,
            )
        else:
            self.optimiser = torch.optim.AdamW(
                groups, lr=recipe.rate, weight_decay=recipe.weight_decay
            )

    def run_epoch(self, loader: Iterable[tuple[Value, Tensor]]) -> float:
        device = device_of(self.network)
        total = torch.zeros((), device=device)
        for number, (inputs, labels) in enumerate(loader):
            done = (self.epoch * self.batches + number + 1) / (self.recipe.epochs * self.batches)
            for group in self.optimiser.param_groups:
                group["lr"] = self.recipe.rate * self.recipe.factor(min(done, 1.0))
            with autocast(device, self.recipe.precision):
                loss = self._loss(to_device(inputs, device), labels.to(device))
            self.optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            if self.recipe.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
            self.optimiser.step()
            total += loss.detach()
        self.epoch += 1
        self.losses.append(float(total) / self.batches)
        if not math.isfinite(self.losses[-1]):
            raise ArgumentError(
                f"the loss of epoch {self.epoch} is {self.losses[-1]}: lower the rate "
                f"({self.recipe.rate}), clip gradients, or look for NaN in the inputs"
            )
        return self.losses[-1]

    def _loss(self, inputs: Value, labels: Tensor) -> Tensor:
        if self.recipe.part == "backbone":
            return cross_entropy(self.network.full(inputs).float(), labels)
        if self.recipe.part == "all":
            every = self.network(inputs)
        else:
            every = []
            value: Any = inputs
            for segment, ramp in zip(self.network.segments, self.network.ramps(), strict=False):
                with torch.no_grad():
                    value = segment(value)
                every.append(ramp(value))
        return torch.stack([cross_entropy(each.float(), labels) for each in every]).sum()

    def save(self, path: Path) -> None:
        """Write a checkpoint whole or not at all."""
        state = {
            "recipe": asdict(self.recipe),
            "batches": self.batches,
            "epoch": self.epoch,
            "losses": self.losses,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with atomic_write(path) as part:
            torch.save(state, part)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same recipe."""
        try:
            stored = torch.load(path, map_location=device_of(self.network), weights_only=True)
            mine = {"recipe": asdict(self.recipe), "batches": self.batches}
            theirs = {key: stored[key] for key in mine}
            rest = {key: stored[key] for key in ("network", "optimiser", "epoch", "losses")}
        except Exception as error:
            raise ArgumentError(
                f"{path}: is no checkpoint that can be read ({type(error).__name__}); remove it to "
                "start anew"
            ) from error
        if mine != theirs:
            raise ArgumentError(
                f"{path}: is a checkpoint of {theirs}, and this is {mine}; use another path, or "
                "remove it to start anew"
            )
        # Compared before anything is loaded: a refused checkpoint must leave the network alone.
        ours, other = (
            {name: tuple(value.shape) for name, value in each.items()}
            for each in (self.network.state_dict(), rest["network"])
        )
        if ours != other:
            odd = sorted(name for name in {*ours, *other} if ours.get(name) != other.get(name))
            raise ArgumentError(
                f"{path}: is a checkpoint of another network; {odd[0]} has shape "
                f"{other.get(odd[0], 'none')} there and {ours.get(odd[0], 'none')} here"
            )
        self.network.load_state_dict(rest["network"])
        self.optimiser.load_state_dict(rest["optimiser"])
        self.epoch = rest["epoch"]
        self.losses = rest["losses"]
