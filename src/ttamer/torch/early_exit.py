"""A network with exits: segments of blocks, a ramp after each, and the head at the end.

Exit k is reached by running segments 0 to k and then its own ramp; the last exit is the network's
own head. What blocks pass on is a *value*: a tensor, or a tuple of tensors, each with the batch
as its first dimension, so that rows can leave a batch part way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.torch.devices import by_position

# What blocks pass on: the batch is the first dimension of every tensor in it.
Value = Tensor | tuple[Tensor, ...]
# What a network takes: a value, or a mapping from the names of its inputs to tensors.
Inputs = Value | Mapping[str, Tensor]
# What a loader gives: inputs and labels, or a mapping that holds both by their names.
Batch = tuple[Inputs, Tensor] | Mapping[str, Tensor]


class EarlyExit(nn.Module):
    """Exits on any sequence of modules.

    Args:
        blocks: Modules run one after another; each takes the output of the one before.
        ramps: One per block but the last, or ``None`` where there is no exit. Each takes the
            output of its block and returns logits of shape (batch, classes).
        head: Takes the output of the last block and returns logits.
        names: Names of the exits, the head last; by default exit1, exit2, ..., full.
        config: How to build the network again, set by the families that can be built by name.
        trim: Takes a value of which rows were taken, and returns it without what the rows left do
            not need, such as padding; set by the families of text networks.
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
        config: Mapping[str, Any] | None = None,
        trim: Callable[[Any], Any] | None = None,
        input_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not blocks or len(ramps) != len(blocks) - 1:
            raise ArgumentError(
                f"there are {len(blocks)} blocks and {len(ramps)} ramps; give one ramp for each "
                "block but the last, which the head follows (None where there is no exit)"
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
                f"{', '.join(names)}; give each exit one name of its own"
            )
        self.segments = nn.ModuleList(segments)
        """Segment k leads from exit k - 1 to exit k."""
        self.exits = nn.ModuleList(exits)
        """The ramps, and the head last."""
        self.names = tuple(names)
        self.config = None if config is None else dict(config)
        """How to build the network again, or ``None`` if it belongs to no family."""
        self.trim = trim
        """What a value loses when rows have left, or ``None`` where nothing can be left out."""
        self.input_names = None if input_names is None else tuple(input_names)
        """The names of the inputs, or ``None`` where a mapping is not taken."""
        self.whole: Callable[[Any], Tensor] | None = None
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
        value: Any = self._positional(inputs)
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
        value: Any = self._positional(inputs)
        if self.whole is not None and not any(each._compiled_call_impl for each in self.segments):
            return self.whole(value)
        *segments, head = self.backbone()
        for segment in segments:
            value = segment(value)
        logits: Tensor = head(value)
        return logits

    def _positional(self, inputs: Inputs) -> Value:
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

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        policy: FittedPolicy | FittedLadder | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        """Write the network as safetensors, and a policy for its exits, to a folder.

        Args:
            folder: Created if it does not exist; files in it are replaced.
            policy: A fitted policy or ladder for the exits, for :meth:`Runner.from_pretrained`.
            classes: The names of the classes, as in the policy's trace, where they are not numbers.

        Raises:
            ArgumentError: The policy is for other exits, or a weight is not a tensor.
        """
        from ttamer.torch.pretrained import save_pretrained

        save_pretrained(self, folder, policy=policy, classes=classes)

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], network: EarlyExit | None = None
    ) -> EarlyExit:
        """Read a network from a folder that :meth:`save_pretrained` wrote.

        Args:
            folder: The folder.
            network: A network of the same architecture, whose weights are replaced; not needed
                for families that are built by name, such as ``vgg``, ``bert`` and ``llama``.

        Returns:
            The network in evaluation mode, on the CPU and in the precision that it was saved in, or
            as the given one is.

        Raises:
            ArgumentError: The folder is not complete, or does not fit the network.
        """
        from ttamer.torch.pretrained import load_pretrained

        return load_pretrained(folder, network).network


def require_exits(network: object) -> None:
    """Refuse a model without exits; a network that ``torch.compile`` returns has them."""
    if not all(hasattr(network, name) for name in ("segments", "exits", "names")):
        raise ArgumentError(
            f"a {type(network).__name__} has no exits: put them on it with attach(model, points, "
            "example), or build EarlyExit(blocks, ramps, head)"
        )


def fold_batch_norm(network: EarlyExit) -> EarlyExit:
    """Fold batch normalisations into convolutions, where one follows the other in a sequence.

    Subclasses of either, which may compute more, stay as they are, and so do blocks of an attached
    network that are one of the two themselves: those run one by one.

    Args:
        network: The trained network; it is not changed.

    Returns:
        A copy for inference that computes the same with fewer operations.

    >>> from torch import nn
    >>> from ttamer.torch.networks.vgg import vgg
    >>> network = fold_batch_norm(vgg(11, width=8))
    >>> any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    False
    """
    require_exits(network)
    copy = deepcopy(network).eval()
    copy.config = None  # it has fewer weights now
    apart = {block for part in copy.segments.modules() for block in getattr(part, "runs_apart", ())}
    for part in [module for module in copy.modules() if isinstance(module, nn.Sequential)]:
        layers = list(part.children())
        kept: list[nn.Module] = []
        for layer in layers:
            before = kept[-1] if kept else None
            if (
                type(layer) is nn.BatchNorm2d
                and type(before) is nn.Conv2d
                and layer.running_mean is not None  # or it takes the means of each batch
                and apart.isdisjoint((before, layer))
            ):
                kept[-1] = fuse_conv_bn_eval(before, layer)
            else:
                kept.append(layer)
        if len(kept) < len(layers):
            for name in list(part._modules):
                del part._modules[name]
            for number, layer in enumerate(kept):
                part.add_module(str(number), layer)
    return copy
