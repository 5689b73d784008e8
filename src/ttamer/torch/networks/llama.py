"""Decoders of the Llama family, such as SmolLM2, with an exit after every layer.

The layers are those of transformers. Rotary positions are computed once and passed on with the
hidden states. A ramp takes the last token that is not padding, normalised as the model does before
its head. Embeddings tied to a language head stay as they are: a classifier has no such head. Inputs
are pairs (ids, mask); see ``ttamer.torch.networks.tokens``.
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

    from ttamer.torch.networks.tokens import Tokens

__all__ = ["exits_on_llama", "llama"]

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
"""The sizes of SmolLM2-135M, a decoder of 30 layers."""


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
    if weights is not None:
        if config is not None:
            raise ArgumentError("give a config or weights, not both: weights include a config")
        model = load_model(package.LlamaModel, weights)
    else:
        config = package.LlamaConfig(**SMOLLM2_135M) if config is None else config
        model = package.LlamaModel(config)
    return exits_on_llama(model, classes=classes)


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
            "the model must be a LlamaModel or LlamaForCausalLM, not "
            f"{type(model).__name__}; models "
            "for one task have it in .model"
        )
    width, config = model.config.hidden_size, model.config
    layers = [_Layer(layer, causal=True) for layer in model.layers]

    def ramp() -> Pooled:
        norm = type(model.norm)(width, eps=config.rms_norm_eps)
        return Pooled("last", norm, nn.Linear(width, classes))

    ramps = [None, *(ramp() for _ in layers[1:])]
    head = Pooled("last", model.norm, nn.Linear(width, classes))
    names = [*(f"layer{k}" for k in range(1, len(layers))), "full"]
    options = {"family": "llama", "config": config.to_diff_dict(), "classes": classes}
    return EarlyExit([_Embed(model), *layers], ramps, head, names=names, config=options)


class _Embed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.max_position_embeddings)
        self.embed_tokens, self.rotary_emb = model.embed_tokens, model.rotary_emb

    def _apply(self, fn: Any, recurse: bool = True) -> _Embed:
        # Frequencies stay in single precision: in bf16 the angles of late tokens would be wrong.
        exact = self.rotary_emb.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.rotary_emb.inv_freq = exact.to(self.rotary_emb.inv_freq.device)
        return self

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002 - padding is last
        hidden = self.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        cosine, sine = self.rotary_emb(hidden, position_ids=positions)
        return hidden, *(part.expand(len(ids), -1, -1) for part in (cosine, sine))


class _Layer(Layer):
    def arguments(self, value: Tokens) -> dict[str, Any]:
        return {"position_embeddings": value[2:4]}
