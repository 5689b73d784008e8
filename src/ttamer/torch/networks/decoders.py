"""Decoders with an exit after every layer: GPT-2, and the Llama family, such as SmolLM2.

The layers are those of transformers. A ramp takes the last token that is not padding, the only one
that depends on the whole input, and normalises it first, as these models do before their head: the
output of a layer is the plain sum of all before, of growing size. Rotary positions are computed
once and passed on with the hidden states. Embeddings tied to a language head stay as they are: a
classifier has no such head. Inputs are pairs (ids, mask); see ``ttamer.torch.networks.tokens``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.ramps import Ramp
from ttamer.torch.networks.tokens import (
    INPUT_NAMES,
    Embed,
    Layer,
    Tokens,
    build_model,
    check_padding_last,
    transformers,
    trim_padding,
)

# The sizes of SmolLM2-135M, a decoder of 30 layers.
SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


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
    model = build_model(transformers().GPT2Model, config, weights)
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
    if not isinstance(model, transformers().GPT2Model):
        raise ArgumentError(
            f"the model must be a GPT2Model, not {type(model).__name__}; models for one task have "
            "it in .transformer"
        )
    return _with_exits(
        _Gpt2Embed(model),
        [Layer(block, causal=True) for block in model.h],
        model,
        classes=classes,
        norm=model.ln_f,
        new_norm=lambda: nn.LayerNorm(model.config.hidden_size),
        prefix="block",
        family="gpt2",
    )


def llama(
    config: Any = None, *, classes: int, weights: str | os.PathLike[str] | None = None
) -> EarlyExit:
    """Return a decoder of the Llama family with an exit after every layer.

    Args:
        config: A ``transformers.LlamaConfig`` for random weights; by default SmolLM2-135M's.
        classes: The number of classes.
        weights: A directory with a ``LlamaModel`` or ``LlamaForCausalLM``, in place of a config.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: Both a config and weights are given, or the directory has no such model.
        MissingExtra: transformers is not installed.

    >>> from transformers import LlamaConfig
    >>> tiny = LlamaConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=3,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> llama(tiny, classes=2).names
    ('layer1', 'layer2', 'full')
    """
    package = transformers()
    if config is None and weights is None:
        config = package.LlamaConfig(**SMOLLM2_135M)
    return exits_on_llama(build_model(package.LlamaModel, config, weights), classes=classes)


def exits_on_llama(model: Any, *, classes: int) -> EarlyExit:
    """Put a ramp after every layer of a ``transformers.LlamaModel``, and a head on the last.

    Args:
        model: The decoder, or a ``LlamaForCausalLM``, whose language head is left out; its weights
            are shared.
        classes: The number of classes.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: The model is of another kind.
        MissingExtra: transformers is not installed.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> tiny = LlamaConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=2,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> exits_on_llama(LlamaModel(tiny), classes=2).names
    ('layer1', 'full')
    """
    package = transformers()
    if isinstance(model, package.LlamaForCausalLM):
        model = model.model
    if not isinstance(model, package.LlamaModel):
        raise ArgumentError(
            f"the model must be a LlamaModel or LlamaForCausalLM, not {type(model).__name__}; "
            "models for one task have it in .model"
        )
    width, eps = model.config.hidden_size, model.config.rms_norm_eps
    return _with_exits(
        _LlamaEmbed(model),
        [_LlamaLayer(layer, causal=True) for layer in model.layers],
        model,
        classes=classes,
        norm=model.norm,
        new_norm=lambda: nn.RMSNorm(width, eps=eps),  # one kernel
        prefix="layer",
        family="llama",
    )


def _with_exits(
    embed: Embed,
    layers: Sequence[Layer],
    model: Any,
    *,
    classes: int,
    norm: nn.Module,
    new_norm: Callable[[], nn.Module],
    prefix: str,
    family: str,
) -> EarlyExit:
    """Return the network of a decoder's layers, with a norm and a linear layer at each exit."""
    width, reference = model.config.hidden_size, next(model.parameters())

    def ramp(normed: nn.Module) -> Ramp:
        return Ramp(normed, nn.Linear(width, classes).to(reference), pool="last")

    ramps = [None, *(ramp(new_norm().to(reference)) for _ in layers[1:])]
    names = [*(f"{prefix}{k}" for k in range(1, len(layers))), "full"]
    config = {"family": family, "config": model.config.to_diff_dict(), "classes": classes}
    return EarlyExit(
        [embed, *layers], ramps, ramp(norm), names=names, config=config, trim=trim_padding,
        input_names=INPUT_NAMES,
    )  # fmt: skip


class _Gpt2Embed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.n_positions)
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        check_padding_last(mask)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        return (self.drop(self.wte(ids) + self.wpe(positions)),)


class _LlamaEmbed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.max_position_embeddings)
        self.embed_tokens, self.rotary_emb = model.embed_tokens, model.rotary_emb

    def _apply(self, fn: Any, recurse: bool = True) -> _LlamaEmbed:
        # Frequencies stay in single precision: in bf16 the angles of late tokens would be wrong.
        exact = self.rotary_emb.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.rotary_emb.inv_freq = exact.to(self.rotary_emb.inv_freq.device)
        return self

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        check_padding_last(mask)
        hidden = self.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        cosine, sine = self.rotary_emb(hidden, position_ids=positions)
        return hidden, *(part.expand(ids.shape[0], -1, -1) for part in (cosine, sine))


class _LlamaLayer(Layer):
    def arguments(self, value: Tokens) -> dict[str, Any]:
        return {"position_embeddings": value[2:4]}
