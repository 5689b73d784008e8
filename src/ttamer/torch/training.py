"""Training: the backbone first, then the ramps on it, or all together.

The random generator is seeded at the start of each epoch from the seed and the epoch's number;
afterwards it is as it was before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ttamer._checks import is_number, require_kind, require_whole
from ttamer.errors import ArgumentError
from ttamer.torch.devices import Batch, Precision, Value, autocast, device_of, inputs_and_labels
from ttamer.torch.early_exit import EarlyExit, require_exits

Part = Literal["backbone", "ramps", "all"]
Optimiser = Literal["sgd", "adamw"]


@dataclass(frozen=True)
class Recipe:
    """How to train one part of a network.

    ``backbone`` trains the network without ramps; ``ramps`` trains the ramps alone with the
    backbone frozen, so that the head's answers do not change; ``all`` trains everything on the
    sum of all exits' losses.

    Raises:
        ArgumentError: A field is out of its range.

    >>> Recipe("ramps", epochs=5, rate=0.02).optimiser
    'sgd'
    """

    part: Part
    """What is trained."""
    epochs: int
    """How many times the loader is run through."""
    rate: float
    """The highest learning rate: it rises over a tenth of all steps and falls as a cosine."""
    optimiser: Optimiser = "sgd"
    """Stochastic gradient descent with Nesterov momentum, or AdamW; norms and biases have no weight
    decay."""
    precision: Precision = "fp32"
    """What the network computes in."""
    seed: int = 0
    """The seed of shuffling and dropout."""

    def __post_init__(self) -> None:
        for name, choice in (("part", Part), ("optimiser", Optimiser)):
            if getattr(self, name) not in get_args(choice):
                raise ArgumentError(
                    f"{name} must be one of {', '.join(get_args(choice))}, not "
                    f"{getattr(self, name)!r}",
                    param=name,
                )
        require_whole(self.epochs, "epochs", least=1)
        require_whole(self.seed, "seed")
        if not (is_number(self.rate) and 0 < self.rate < math.inf):
            raise ArgumentError(
                f"rate is {self.rate!r}; it must be a finite number above 0", param="rate"
            )


def factor(progress: float, warmup: float = 0.1) -> float:
    """Return the learning rate as a share of the highest one, by the share of steps done.

    >>> factor(0.05), factor(0.1), factor(1.0)
    (0.5, 1.0, 0.0)
    """
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def train(
    network: EarlyExit,
    loader: Iterable[Batch],
    recipe: Recipe,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[float]:
    """Train one part of a network in place.

    Args:
        network: The network; it is in evaluation mode afterwards, whether training succeeds or not.
            Parameters that are frozen (``requires_grad=False``) do not learn, and stay frozen.
        loader: Batches of (inputs, labels), or mappings that hold both, read once per epoch; it
            must have a length, as PyTorch's loaders do. Batches without rows are skipped.
        recipe: What to train and how.
        progress: Called with one line of text per epoch.

    Returns:
        The mean loss of each epoch.

    Raises:
        ArgumentError: The loader has no length, no batches or no rows, the network has no ramps to
            train, all of the part is frozen, a label is none of the network's classes, or a loss
            is not finite.

    >>> from torch import nn
    >>> from ttamer.torch.early_exit import EarlyExit
    >>> network = EarlyExit(
    ...     [nn.Linear(4, 8), nn.Linear(8, 8)], [nn.Linear(8, 3)], nn.Linear(8, 3)
    ... )
    >>> loader = [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64))]
    >>> len(train(network, loader, Recipe("all", epochs=2, rate=0.1)))
    2
    """
    require_exits(network)
    if not isinstance(loader, Sized):
        raise ArgumentError(
            f"a {type(loader).__name__} has no length and cannot be read twice; make a list of it, "
            "or use a DataLoader"
        )
    remedy = 'write Recipe("ramps", epochs=5, rate=0.02)'
    require_kind(recipe, Recipe, "train needs a Recipe", remedy)
    frozen = [parameter for parameter in network.parameters() if not parameter.requires_grad]
    device, losses = device_of(network), list[float]()
    try:
        learning = _started(network, recipe.part, len(loader))
        optimiser = _optimiser(recipe, learning)
        for epoch in range(recipe.epochs):
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                # A prime apart, so that no seed begins where another one's epochs go on.
                torch.manual_seed(recipe.seed * 100_003 + epoch)
                total, batches = torch.zeros((), device=device), 0
                for number, batch in enumerate(loader):
                    inputs, labels = inputs_and_labels(batch, device, network.input_names)
                    if not len(labels):  # the mean of no losses is NaN
                        continue
                    batches += 1
                    done = (epoch + (number + 1) / len(loader)) / recipe.epochs
                    for group in optimiser.param_groups:
                        group["lr"] = recipe.rate * factor(min(done, 1.0))
                    with autocast(device, recipe.precision):
                        loss = _loss(network, recipe.part, inputs, labels)
                    optimiser.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimiser.step()
                    total += loss.detach()  # on the device: reading it here would wait each step
            if not batches:
                raise ArgumentError("no batch of the loader has rows; give at least one that has")
            losses.append(float(total) / batches)
            if not math.isfinite(losses[-1]):
                raise ArgumentError(
                    f"the loss of epoch {epoch + 1} is {losses[-1]}: lower the rate "
                    f"({recipe.rate}), or check the inputs for NaN"
                )
            if progress is not None:
                line = f"epoch {epoch + 1} of {recipe.epochs}, loss {losses[-1]:.4f}"
                progress(f"{recipe.part}: {line}")
    finally:  # an error, or Ctrl-C, must not leave the backbone frozen
        network.requires_grad_(True).eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
    return losses


def _started(network: EarlyExit, part: Part, batches: int) -> list[nn.Parameter]:
    """Let one part of a network learn, and nothing else; return what learns."""
    parts: dict[Part, list[nn.Module]] = {
        "backbone": list(network.backbone()),
        "ramps": list(network.ramps()),
        "all": [network],
    }
    if batches < 1:
        raise ArgumentError("the loader has no batches; give at least one")
    if not parts[part]:
        raise ArgumentError("the network has no ramps to train")
    # Exits may share a ramp, and optimisers take each parameter once.
    candidates = dict.fromkeys(itertools.chain(*(module.parameters() for module in parts[part])))
    learning = [parameter for parameter in candidates if parameter.requires_grad]
    if not learning:
        raise ArgumentError(
            f"all parameters of {part} are frozen: call requires_grad_(True) on those that learn"
        )
    network.requires_grad_(False).eval()
    for parameter in learning:
        parameter.requires_grad_(True)
    for module in parts[part]:
        module.train()
    return learning


def _optimiser(recipe: Recipe, learning: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimiser; norms and biases have no weight decay: they have no scale to overfit."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learning if p.ndim > 1]},
        {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.rate, weight_decay=5e-4)
    return torch.optim.SGD(groups, recipe.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _loss(network: EarlyExit, part: Part, inputs: Value, labels: Tensor) -> Tensor:
    """Return the loss of one batch, summed over the exits that learn."""
    if part == "backbone":
        exits = [network.full(inputs)]
    elif part == "all":
        exits = network(inputs)
    else:
        exits, value = [], inputs
        for segment, ramp in zip(network.segments, network.ramps(), strict=False):
            with torch.no_grad():  # the backbone is frozen
                value = segment(value)
            exits.append(ramp(value))
    targets = _targets(labels, exits[0])
    return torch.stack([cross_entropy(logits.float(), targets) for logits in exits]).sum()


def _targets(labels: Tensor, logits: Tensor) -> Tensor:
    """Return labels on the device of logits; wrong ones are named before, for a GPU would not."""
    if labels.ndim == 1 and labels.device.type == "cpu":
        classes = logits.shape[1]
        # PyTorch's losses leave out rows whose label is -100.
        wrong = labels[((labels < 0) & (labels != -100)) | (labels >= classes)]
        if len(wrong):
            raise ArgumentError(
                f"a label is {int(wrong[0])}, and the network has {classes} classes: number them 0 "
                f"to {classes - 1}"
            )
    return labels.to(logits.device)
