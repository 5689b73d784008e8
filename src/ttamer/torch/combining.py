"""Exits that combine what all exits so far return.

The ramps of one network are trained apart from each other, and each returns its own answer only.
Here exit k returns the sum, over exits 0 to k, of a weight times the exit's log-probabilities, plus
a term for each class: a product of experts (Hinton, 2002). These few numbers per exit are fitted on
inputs that the network was not trained on, for on others it is too sure of itself. The head keeps
its own answer, so the network's answers do not change.

The ramps are run as part of the segments, which pass their log-probabilities on beside the value,
so everything that takes a network with exits takes this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from ttamer.errors import ArgumentError
from ttamer.torch.devices import Precision, autocast, device_of, inputs_and_labels
from ttamer.torch.early_exit import Batch, EarlyExit, require_exits

# Log-probabilities are cut off here: one exit alone cannot exclude a class.
MIN_LOG = -12.0
# The fit of an exit stops after this many steps at the latest.
MAX_ROUNDS = 60


def combine_exits(
    network: EarlyExit,
    loader: Iterable[Batch],
    *,
    target: Literal["label", "last"] = "label",
    precision: Precision = "fp32",
) -> CombinedExits:
    """Return a network whose exits combine what all exits so far return.

    Args:
        network: A trained network; its modules are shared, and it is in evaluation mode afterwards.
        loader: Batches of (inputs, labels) that neither the network nor its ramps were trained on,
            nor will be measured on; a few thousand rows are enough. Rows where an exit returns NaN
            are not used.
        target: What the exits are fitted to: the labels, or the answers of the last exit.
        precision: What the network computes in.

    Returns:
        A network with the same exits and the same full output.

    Raises:
        ArgumentError: The network has no ramps, the loader has no inputs, a label is none of
            its classes, or the target is neither.

    >>> layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
    >>> network = EarlyExit(layers, [nn.Linear(8, 3)], nn.Linear(8, 3))
    >>> loader = [(torch.randn(32, 4), torch.randint(3, (32,)))]
    >>> combine_exits(network, loader).names
    ('exit1', 'full')
    """
    if target not in ("label", "last"):
        raise ArgumentError(f'target must be "label" or "last", not {target!r}')
    require_exits(network)
    network.eval()
    device = device_of(network)
    found, right = [], []
    for batch in loader:
        inputs, labels = inputs_and_labels(batch, network)
        with torch.inference_mode(), autocast(device, precision):
            every = torch.stack([_log(logits) for logits in network(inputs)])
        found.append(every.cpu())
        right.append(labels.cpu())
    returned = torch.cat(found, dim=1).double() if found else torch.empty(1, 0, 1)
    whole = returned.isfinite().all(dim=2).all(dim=0)
    if not whole.any():
        raise ArgumentError("the loader has no inputs with finite logits; give at least one")
    returned = returned[:, whole]
    wanted = torch.cat(right)[whole] if target == "label" else returned[-1].argmax(dim=1)
    classes = returned.shape[2]
    if not 0 <= int(wanted.min()) <= int(wanted.max()) < classes:
        raise ArgumentError(
            f"labels are {int(wanted.min())} to {int(wanted.max())}, and the network has {classes} "
            f"classes: number them 0 to {classes - 1}"
        )
    combined = CombinedExits(network, classes)
    for k, exit_ in enumerate(cast("Iterator[_Combination]", combined.ramps())):
        weights, terms = fit_combination(returned[: k + 1], wanted)
        with torch.no_grad():
            exit_.weights.copy_(weights)
            exit_.terms.copy_(terms)
    return combined.to(device).eval()


class CombinedExits(EarlyExit):
    """A network whose exits combine what all exits so far return; at first each only its own.

    Args:
        network: The network; its modules are shared.
        classes: The number of classes.

    Raises:
        ArgumentError: The network has no ramps, or its exits are combined already.

    >>> network = EarlyExit(
    ...     [nn.Linear(4, 8), nn.Linear(8, 8)], [nn.Linear(8, 3)], nn.Linear(8, 3)
    ... )
    >>> [tuple(logits.shape) for logits in CombinedExits(network, 3)(torch.zeros(5, 4))]
    [(5, 3), (5, 3)]
    """

    def __init__(self, network: EarlyExit, classes: int) -> None:
        if isinstance(network, CombinedExits):
            raise ArgumentError("the exits of this network are combined already")
        ramps = list(network.ramps())
        if not ramps:
            raise ArgumentError("the network has no ramps to combine")
        *inner, last = network.segments
        blocks: list[nn.Module] = [
            _Gathering(segment, ramp, first=not k)
            for k, (segment, ramp) in enumerate(zip(inner, ramps, strict=True))
        ]
        own = network.trim
        super().__init__(
            [*blocks, _Last(last)],
            [_Combination(k + 1, classes) for k in range(len(ramps))],
            network.exits[-1],
            names=network.names,
            config=None if network.config is None else {**network.config, "combined": True},
            trim=None if own is None else lambda value: _joined(own(_hidden(value)), value[-1]),
            input_names=network.input_names,
        )
        self.whole = network.whole

    def plain(self) -> EarlyExit:
        """Return the network whose exits are not combined, with the same modules.

        Returns:
            A network with the same exits, each with its own answer.
        """
        blocks: list[Any] = list(self.segments)
        last = blocks.pop()
        return EarlyExit(
            [*(block.segment for block in blocks), last.segment],
            [block.ramp for block in blocks],
            self.exits[-1],
            names=self.names,
            input_names=self.input_names,
        )

    def backbone(self) -> Iterator[nn.Module]:
        """Iterate over the modules of the network without ramps.

        Returns:
            The segments in order, then the head.
        """
        return self.plain().backbone()


class _Gathering(nn.Module):
    """A segment and its ramp: passes on the value, and what all exits so far returned."""

    def __init__(self, segment: nn.Module, ramp: nn.Module, *, first: bool) -> None:
        super().__init__()
        self.segment, self.ramp, self.first = segment, ramp, first

    def forward(self, value: Any) -> tuple[Tensor, ...]:
        hidden = self.segment(value if self.first else _hidden(value))
        own = _log(self.ramp(hidden))
        return _joined(hidden, own if self.first else torch.cat([value[-1], own], dim=1))


class _Last(nn.Module):
    """The last segment: what the exits returned is not passed on to the head."""

    def __init__(self, segment: nn.Module) -> None:
        super().__init__()
        self.segment = segment

    def forward(self, value: tuple[Tensor, ...]) -> Any:
        return self.segment(_hidden(value))


class _Combination(nn.Module):
    """Logits from the log-probabilities of some exits: a weight for each, a term for each class."""

    def __init__(self, count: int, classes: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))
        self.terms = nn.Parameter(torch.zeros(classes))
        with torch.no_grad():
            self.weights[-1] = 1.0

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        gathered = value[-1].reshape(-1, len(self.weights), len(self.terms))
        logits: Tensor = (gathered * self.weights[:, None]).sum(dim=1) + self.terms
        return logits


def _log(logits: Tensor) -> Tensor:
    """Return log-probabilities, cut off, in single precision."""
    return log_softmax(logits.float(), dim=1).clamp(min=MIN_LOG)


def _hidden(value: tuple[Tensor, ...]) -> Any:
    """Return what a segment passes on, without what the exits returned."""
    return value[0] if len(value) == 2 else value[:-1]


def _joined(hidden: Any, gathered: Tensor) -> tuple[Tensor, ...]:
    """Return what a segment passes on, and what the exits returned."""
    return (hidden, gathered) if isinstance(hidden, Tensor) else (*hidden, gathered)


def fit_combination(returned: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights and class terms by maximum likelihood, drawn towards the last exit alone.

    ``returned`` are log-probabilities of shape (exits, rows, classes), ``wanted`` class numbers.
    """
    exits, rows, classes = returned.shape
    alone = torch.zeros(exits, dtype=returned.dtype)
    alone[-1] = 1.0
    weights = alone.clone().requires_grad_()
    terms = torch.zeros(classes, dtype=returned.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights, terms], max_iter=MAX_ROUNDS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = torch.einsum("k,krc->rc", weights, returned) + terms
        penalty = ((weights - alone) ** 2).sum() + (terms**2).sum()
        total = cross_entropy(logits, wanted) + penalty / rows
        torch.autograd.backward(total)
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach(), terms.detach()
