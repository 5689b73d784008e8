"""A network with exits: segments of blocks, a ramp after each, and the head at the end.

Exit k is reached by running segments 0 to k and then its own ramp; the last exit is the network's
own head. What blocks pass on is a *value*: a tensor, or a tuple of tensors, each with the batch
as its first dimension, so that rows can leave a batch part way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.devices import Inputs, Value, by_position

# The vector of an input: its first token, the mean of its tokens, or its last token.
Pool = Literal["first", "mean", "last"]
POOLS = get_args(Pool)
# Whether kernels can be written in Triton here.
HAS_TRITON = find_spec("triton") is not None


class EarlyExit(nn.Module):
    """Exits on any sequence of modules.

    Args:
        blocks: Modules run one after another; each takes the output of the one before.
        ramps: One per block but the last, or ``None`` where there is no exit. Each takes the
            output of its block and returns logits of shape (batch, classes).
        head: Takes the output of the last block and returns logits.
        names: Names of the exits, the head last; by default exit1, exit2, ..., full.
        input_names: The names of the tensors that the first block takes, in its order, for inputs
            in a mapping.

    Raises:
        ArgumentError: The numbers of blocks, ramps and names do not fit together, or two exits
            have the same name.

    >>> from torch import nn, zeros
    >>> network = EarlyExit(
    ...     [nn.Linear(4, 8), nn.Linear(8, 8)], [nn.Linear(8, 3)], nn.Linear(8, 3)
    ... )
    >>> network.names, [tuple(logits.shape) for logits in network(zeros(5, 4))]
    (('exit1', 'full'), [(5, 3), (5, 3)])
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        ramps: Sequence[nn.Module | None],
        head: nn.Module,
        *,
        names: Sequence[str] | None = None,
        input_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not blocks or len(ramps) != len(blocks) - 1:
            raise ArgumentError(
                f"there are {len(blocks)} blocks and {len(ramps)} ramps; give one ramp for each "
                "block but the last, which the head follows (None where there is no exit)",
                param="ramps",
            )
        segments: list[nn.Module] = []
        pending: list[nn.Module] = []
        exits: list[nn.Module] = []
        for block, ramp in zip(blocks, [*ramps, head], strict=True):
            pending.append(block)
            if ramp is not None:
                segments.append(pending[0] if len(pending) == 1 else nn.Sequential(*pending))
                exits.append(ramp)
                pending = []
        names = names or [*(f"exit{k}" for k in range(1, len(exits))), "full"]
        if len(names) != len(exits) or len(set(names)) < len(names):
            raise ArgumentError(
                f"there are {len(exits)} exits, the head among them, and the names are "
                f"{', '.join(names)}; give each exit one name of its own",
                param="names",
            )
        self.segments = nn.ModuleList(segments)
        """Segment k leads from exit k - 1 to exit k."""
        self.exits = nn.ModuleList(exits)
        """The ramps, and the head last."""
        self.names = tuple(names)
        self.input_names = None if input_names is None else tuple(input_names)
        """The names of the inputs, or ``None`` where a mapping is not taken."""
        self.direct: Callable[[Any], Tensor] | None = None
        """The full output from the inputs, where that takes less than the segments and the head;
        set by :func:`ttamer.torch.attach`. It is not used once a segment is compiled."""

    def forward(self, inputs: Inputs) -> list[Tensor]:
        """Run all exits.

        Args:
            inputs: What the first block takes, or a mapping by its names.

        Returns:
            The logits of every exit, the head's last, each of shape (batch, classes).
        """
        logits = []
        value: Any = self._value(inputs)
        for segment, ramp in zip(self.segments, self.exits, strict=True):
            value = segment(value)
            logits.append(ramp(value))
        return logits

    def full(self, inputs: Inputs) -> Tensor:
        """Run the network without its ramps.

        Args:
            inputs: What the first block takes, or a mapping by its names.

        Returns:
            The logits of the head, shape (batch, classes).
        """
        value = self._value(inputs)
        compiled = any(segment._compiled_call_impl for segment in self.segments)
        if self.direct is not None and not compiled:  # the compiled way is the faster one
            return self.direct(value)
        return cast("Tensor", run_in_order(self.backbone(), value))

    def _value(self, inputs: Inputs) -> Value:
        """Return what the first block takes; other values than mappings as they are."""
        return by_position(inputs, self.input_names) if isinstance(inputs, Mapping) else inputs

    def backbone(self) -> Iterator[nn.Module]:
        """Iterate over the modules of the network without ramps.

        Yields:
            The segments in order, then the head.
        """
        yield from self.segments
        yield self.exits[-1]

    def ramps(self) -> Iterator[nn.Module]:
        """Iterate over the ramps, without the head.

        Yields:
            The ramps in the order of their exits.
        """
        yield from list(self.exits)[:-1]


def run_in_order(parts: Iterator[nn.Module] | Sequence[nn.Module], value: Any) -> Any:
    """Run modules one after another."""
    for part in parts:
        value = part(value)
    return value


def require_exits(network: object) -> None:
    """Refuse a model without exits; a network that ``torch.compile`` returns has them."""
    if not all(hasattr(network, name) for name in ("segments", "exits", "names")):
        raise ArgumentError(
            f"a {type(network).__name__} has no exits: put them on it with attach(model, points, "
            "example), or build EarlyExit(blocks, ramps, head)",
            param="network",
        )


class Ramp(nn.Module):
    """Layers on the hidden states of a value, its first tensor.

    ``pool``: hidden states have the shape (batch, tokens, width), and the layers read one vector
    for each input. ``mask``: the position in a value of the mask, true for tokens and false for
    padding, if there is one; some models make fewer tokens of their inputs, or add some at the end.
    """

    def __init__(self, *layers: nn.Module, pool: Pool | None = None, mask: int | None = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.pool = pool
        self.mask = mask if pool in ("mean", "last") else None

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        """Return logits of shape (batch, classes)."""
        hidden = value[0]
        if self.pool is None:
            return cast("Tensor", self.layers(hidden))
        mask = None if self.mask is None else _mask_for(value[self.mask], hidden.shape[1])
        if not self.training and _runs_kernels(hidden):
            from ttamer.torch.cuda import run_ramp

            return run_ramp(self.layers, hidden, mask, self.pool)
        return cast("Tensor", self.layers(pooled(hidden, mask, self.pool)))


def pooled(hidden: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """Return one vector per input: that of its first or last token, or their mean.

    >>> hidden = torch.tensor([[[1.0], [3.0], [8.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> [pooled(hidden, mask, pool).item() for pool in POOLS]
    [1.0, 2.0, 3.0]
    """
    if pool == "first":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(dim=1) if pool == "mean" else hidden[:, -1]
    counts = mask.bool()  # tokenisers return whole numbers
    if pool == "mean":
        counts = counts.unsqueeze(-1)
        return (hidden * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(1)
    positions = torch.arange(counts.shape[1], device=counts.device)
    last = torch.where(counts, positions, 0).amax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


def _mask_for(mask: Tensor, tokens: int) -> Tensor:
    """Return a mask for as many tokens: in proportion if they are fewer, with padding if more."""
    length = mask.shape[1]
    if length < tokens:
        return nn.functional.pad(mask, (0, tokens - length))
    if length > tokens:
        return mask[:, torch.arange(tokens, device=mask.device) * length // tokens]
    return mask


def _runs_kernels(hidden: Tensor) -> bool:
    """Return whether kernels compute an exit: on a GPU with Triton, where nothing is learned."""
    is_used = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_used and HAS_TRITON and hidden.is_cuda


def pooled_ramp(
    channels: int, side: int, classes: int, *, max_features: int = 2048
) -> nn.Sequential:
    """Return a ramp for feature maps: average pooling to a small square, then one linear layer.

    Args:
        channels: The number of channels.
        side: The side of the feature maps.
        classes: The number of classes.
        max_features: The most numbers that the linear layer reads, unless there are more channels.

    Returns:
        Pooling, flattening, and a linear layer.

    >>> pooled_ramp(64, 32, 10)[2].in_features
    1024
    """
    square = 1
    while square * 2 <= side and channels * (square * 2) ** 2 <= max_features:
        square *= 2
    # Where the side is a multiple, plain pooling is the same and faster.
    pool = nn.AvgPool2d(side // square) if side % square == 0 else nn.AdaptiveAvgPool2d(square)
    return nn.Sequential(pool, nn.Flatten(), nn.Linear(channels * square**2, classes))
