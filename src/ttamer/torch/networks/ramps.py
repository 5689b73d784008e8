"""Ramps on the hidden states of a value: of tokens, one vector for each input is pooled first."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError

# The vector of an input: its first token, the mean of its tokens, or its last token.
Pool = Literal["first", "mean", "last"]
# The ways of pooling.
POOLS = ("first", "mean", "last")
# Whether kernels can be written in Triton here.
HAS_TRITON = find_spec("triton") is not None


def linear_layers(width: int, classes: int) -> tuple[nn.Module, ...]:
    """Return the layers of a ramp on one vector: a norm and a linear layer."""
    return (nn.LayerNorm(width), nn.Linear(width, classes))


def dense_layers(width: int, classes: int, *, dropout: float) -> tuple[nn.Module, ...]:
    """Return the layers of BERT's head: one more linear layer, with tanh."""
    return (nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, classes))


class Ramp(nn.Module):
    """Layers on the hidden states of a value, its first tensor.

    ``pool``: hidden states have the shape (batch, tokens, width), and the layers read one vector
    for each input. ``mask``: the position in a value of the mask, true for tokens and false for
    padding, if there is one; some models make fewer tokens of their inputs, or add some at the end.
    """

    def __init__(self, *layers: nn.Module, pool: Pool | None = None, mask: int | None = 1) -> None:
        super().__init__()
        if pool is not None and pool not in POOLS:
            raise ArgumentError(f"pool must be one of {', '.join(POOLS)}, not {pool!r}")
        self.layers = nn.Sequential(*layers)
        self.pool = pool
        self.mask = mask if pool in ("mean", "last") else None
        self.reads = (0,) if self.mask is None else (0, self.mask)
        """The positions of the tensors of a value that are read."""

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        """Return logits of shape (batch, classes)."""
        hidden = value[0]
        if self.pool is None:
            return cast("Tensor", self.layers(hidden))
        mask = None if self.mask is None else _for_tokens(value[self.mask], hidden.shape[1])
        if not self.training and _in_kernels(hidden):
            return self._in_few_kernels(hidden, mask)
        return cast("Tensor", self.layers(pooled(hidden, mask, self.pool)))

    def _in_few_kernels(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits: in one kernel where at most a norm comes before the last layer."""
        from ttamer.torch.networks.ramps_triton import MAX_CLASSES, classify, is_norm, pool_tokens

        pool = cast("Pool", self.pool)
        *before, last = (each for each in self.layers if not isinstance(each, nn.Dropout))
        if type(last) is not nn.Linear or last.out_features > MAX_CLASSES:
            return cast("Tensor", self.layers(pool_tokens(hidden, mask, pool)))
        if not before:
            return classify(hidden, mask, last, pool=pool)
        if len(before) == 1 and is_norm(before[0]):
            return classify(hidden, mask, last, pool=pool, norm=before[0])
        tanh = isinstance(before[-1], nn.Tanh)
        vectors = pool_tokens(hidden, mask, pool)
        for layer in before[:-1] if tanh else before:
            vectors = layer(vectors)
        return classify(vectors.unsqueeze(1), None, last, pool="first", tanh=tanh)

    def extra_repr(self) -> str:
        """Show the pooling where PyTorch prints modules."""
        return "" if self.pool is None else repr(self.pool)


def pooled(hidden: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """Return one vector per input: that of its first or last token, or their mean.

    >>> hidden = torch.tensor([[[1.0], [3.0], [8.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> [pooled(hidden, mask, pool).item() for pool in POOLS]
    [1.0, 2.0, 3.0]
    >>> [pooled(hidden, None, pool).item() for pool in POOLS]
    [1.0, 4.0, 8.0]
    """
    if pool == "first":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(dim=1) if pool == "mean" else hidden[:, -1]
    kept = mask.bool()
    if pool == "mean":
        kept = kept.unsqueeze(-1)
        return (hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp_min(1)
    positions = torch.arange(kept.shape[1], device=kept.device)
    last = torch.where(kept, positions, 0).amax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


def _for_tokens(mask: Tensor, tokens: int) -> Tensor:
    """Return a mask for as many tokens: in proportion if they are fewer, with padding if more."""
    given = mask.shape[1]
    if given == tokens:
        return mask
    if given < tokens:
        return nn.functional.pad(mask, (0, tokens - given))
    return mask[:, torch.arange(tokens, device=mask.device) * given // tokens]


def _in_kernels(hidden: Tensor) -> bool:
    """Return whether kernels compute an exit: on a GPU with Triton, where nothing is learned."""
    return (
        hidden.is_cuda
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and HAS_TRITON
    )
