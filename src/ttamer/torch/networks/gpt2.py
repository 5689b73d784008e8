"""GPT-2 with an exit after every block.

The blocks are those of transformers. A ramp takes the last token that is not padding, the only one
that depends on the whole input, and normalises it first, as GPT-2 does before its head: the output
of a block is the plain sum of all before, of growing size. Inputs are pairs (ids, mask); see
``ttamer.torch.networks.tokens``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.tokens import Embed, Layer, Pooled, load_model, transformers

if TYPE_CHECKING:
    import os

__all__ = ["exits_on_gpt2", "gpt2"]


def gpt2(
    config: Any = None, *, classes: int, weights: str | os.PathLike[str] | None = None
) -> EarlyExit:
    """Return GPT-2 with an exit after every block.

    Args:
        config: A ``transformers.GPT2Config`` for random weights; by default GPT-2 small; medium is
            ``GPT2Config(n_embd=1024, n_layer=24, n_head=16)``.
        classes: The number of classes.
        weights: A directory with a ``GPT2Model``, in place of a config.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: Both a config and weights are given, or the directory has no such model.
        MissingExtra: transformers is not installed.

    >>> from transformers import GPT2Config
    >>> tiny = GPT2Config(
    ...     vocab_size=9, n_embd=8, n_layer=3, n_head=2, bos_token_id=1, eos_token_id=2
    ... )
    >>> gpt2(tiny, classes=2).names
    ('block1', 'block2', 'full')
    """
    package = transformers()
    if weights is not None:
        if config is not None:
            raise ArgumentError("give a config or weights, not both: weights include a config")
        model = load_model(package.GPT2Model, weights)
    else:
        model = package.GPT2Model(package.GPT2Config() if config is None else config)
    return exits_on_gpt2(model, classes=classes)


def exits_on_gpt2(model: Any, *, classes: int) -> EarlyExit:
    """Put a ramp after every block of a ``transformers.GPT2Model``, and a head on the last.

    Args:
        model: The decoder; its weights are shared.
        classes: The number of classes.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: The model is of another kind.
        MissingExtra: transformers is not installed.

    >>> from transformers import GPT2Config, GPT2Model
    >>> tiny = GPT2Config(
    ...     vocab_size=9, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    ... )
    >>> exits_on_gpt2(GPT2Model(tiny), classes=2).names
    ('block1', 'full')
    """
    package = transformers()
    if not isinstance(model, package.GPT2Model):
        raise ArgumentError(
            f"the model must be a GPT2Model, not {type(model).__name__}; models for one "
            "task have it "
            "in .transformer"
        )
    width = model.config.n_embd
    layers = [Layer(block, causal=True) for block in model.h]
    blocks = [_Embed(model), *layers]
    ramps = [
        None,
        *(Pooled("last", nn.LayerNorm(width), nn.Linear(width, classes)) for _ in layers[1:]),
    ]
    head = Pooled("last", model.ln_f, nn.Linear(width, classes))
    names = [*(f"block{k}" for k in range(1, len(layers))), "full"]
    config = {"family": "gpt2", "config": model.config.to_diff_dict(), "classes": classes}
    return EarlyExit(blocks, ramps, head, names=names, config=config)


class _Embed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.n_positions)
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002 - padding is last
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        return (self.drop(self.wte(ids) + self.wpe(positions)),)
