"""Encoders with an exit after every layer: BERT, models built like it such as MiniLM, and MPNet.

The layers are those of transformers. A ramp takes one vector for the input, and is a norm and a
linear layer, or like BERT's head (as in DeeBERT, Xin et al. 2020): a linear layer with tanh comes
before. That is for backbones that stay as they are; where layers learn together with their exits,
it only takes time. MPNet has relative positions: an attention bias that all layers share.
Inputs are pairs (ids, mask); see ``ttamer.torch.networks.tokens``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.ramps import Ramp, dense_layers, linear_layers
from ttamer.torch.networks.tokens import (
    INPUT_NAMES,
    Embed,
    Layer,
    Tokens,
    build_model,
    scores_of_padding,
    transformers,
    trim_padding,
)

# The layers of a ramp: a norm and a linear layer, or those of BERT's head.
Layers = Literal["linear", "dense"]


def bert(
    config: Any = None,
    *,
    classes: int,
    weights: str | os.PathLike[str] | None = None,
    pool: Literal["first", "mean"] = "first",
    ramps: Layers = "linear",
) -> EarlyExit:
    """Return BERT with an exit after every layer.

    Args:
        config: A ``transformers.BertConfig`` for random weights; by default BERT-base.
        classes: The number of classes.
        weights: A directory with a ``BertModel``, in place of a config.
        pool: The vector of an input: its first token, as in BERT, or the mean of all tokens, as in
            MiniLM.
        ramps: "linear", a norm and a linear layer on the vector, or "dense", like BERT's head, with
            one more linear layer and tanh: for a backbone that is not trained with its exits.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: Both a config and weights are given, or the directory has no such model.
        MissingExtra: transformers is not installed.

    >>> from transformers import BertConfig
    >>> tiny = BertConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=3,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> bert(tiny, classes=2).names
    ('layer1', 'layer2', 'full')
    """
    # BERT's pooler is for the first token; a mean needs none, and MiniLM's is not trained.
    kind = transformers().BertModel
    model = build_model(kind, config, weights, add_pooling_layer=pool == "first")
    return exits_on_bert(model, classes=classes, pool=pool, ramps=ramps)


def exits_on_bert(
    model: Any,
    *,
    classes: int,
    pool: Literal["first", "mean"] = "first",
    ramps: Layers = "linear",
) -> EarlyExit:
    """Put a ramp after every layer of a ``transformers.BertModel``, and a head on the last.

    Args:
        model: The encoder; its weights are shared.
        classes: The number of classes.
        pool: The vector of an input: its first token, or the mean of all tokens.
        ramps: "linear", a norm and a linear layer on the vector, or "dense", like BERT's head, with
            one more linear layer and tanh: for a backbone that is not trained with its exits.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: The model is of another kind, or a decoder.
        MissingExtra: transformers is not installed.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=2,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> exits_on_bert(BertModel(tiny), classes=2).names
    ('layer1', 'full')
    """
    if not isinstance(model, transformers().BertModel):
        raise ArgumentError(
            f"the model must be a BertModel, not {type(model).__name__}; models for one task have "
            "it in .bert"
        )
    if model.config.is_decoder:
        raise ArgumentError("the model must be an encoder, and its config has is_decoder")
    layers = [Layer(layer, causal=False) for layer in model.encoder.layer]
    return _with_exits(
        _BertEmbed(model), layers, model, classes=classes, pool=pool, ramps=ramps, family="bert"
    )


def mpnet(
    config: Any = None,
    *,
    classes: int,
    weights: str | os.PathLike[str] | None = None,
    pool: Literal["first", "mean"] = "mean",
    ramps: Layers = "linear",
) -> EarlyExit:
    """Return MPNet with an exit after every layer.

    Args:
        config: A ``transformers.MPNetConfig`` for random weights; by default MPNet-base.
        classes: The number of classes.
        weights: A directory with an ``MPNetModel``, in place of a config.
        pool: The vector of an input: the mean of all tokens, as in all-mpnet, or the first token.
        ramps: "linear", a norm and a linear layer on the vector, or "dense", like BERT's head, with
            one more linear layer and tanh: for a backbone that is not trained with its exits.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: Both a config and weights are given, or the directory has no such model.
        MissingExtra: transformers is not installed.

    >>> from transformers import MPNetConfig
    >>> tiny = MPNetConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=3,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> mpnet(tiny, classes=2).names
    ('layer1', 'layer2', 'full')
    """
    kind = transformers().MPNetModel
    model = build_model(kind, config, weights, add_pooling_layer=pool == "first")
    return exits_on_mpnet(model, classes=classes, pool=pool, ramps=ramps)


def exits_on_mpnet(
    model: Any,
    *,
    classes: int,
    pool: Literal["first", "mean"] = "mean",
    ramps: Layers = "linear",
) -> EarlyExit:
    """Put a ramp after every layer of a ``transformers.MPNetModel``, and a head on the last.

    Args:
        model: The encoder; its weights are shared.
        classes: The number of classes.
        pool: The vector of an input: the mean of all tokens, or the first token.
        ramps: "linear", a norm and a linear layer on the vector, or "dense", like BERT's head, with
            one more linear layer and tanh: for a backbone that is not trained with its exits.

    Returns:
        The network with exits.

    Raises:
        ArgumentError: The model is of another kind.
        MissingExtra: transformers is not installed.

    >>> from transformers import MPNetConfig, MPNetModel
    >>> tiny = MPNetConfig(
    ...     vocab_size=9,
    ...     hidden_size=8,
    ...     num_hidden_layers=2,
    ...     num_attention_heads=2,
    ...     intermediate_size=8,
    ... )
    >>> exits_on_mpnet(MPNetModel(tiny), classes=2).names
    ('layer1', 'full')
    """
    if not isinstance(model, transformers().MPNetModel):
        raise ArgumentError(
            f"the model must be an MPNetModel, not {type(model).__name__}; models for one task "
            "have it in .mpnet"
        )
    embed = _MPNetEmbed(model)
    layers = [_MPNetLayer(layer, embed.bias) for layer in model.encoder.layer]
    return _with_exits(
        embed, layers, model, classes=classes, pool=pool, ramps=ramps, family="mpnet"
    )


def _with_exits(
    embed: Embed,
    layers: Sequence[Layer],
    model: Any,
    *,
    classes: int,
    pool: Literal["first", "mean"],
    ramps: Layers,
    family: str,
) -> EarlyExit:
    """Return the network of an encoder's layers."""
    if pool not in ("first", "mean"):
        raise ArgumentError(f'pool must be "first" or "mean" for an encoder, not {pool!r}')
    if ramps not in ("linear", "dense"):
        raise ArgumentError(f'ramps must be "linear" or "dense", not {ramps!r}')
    width = model.config.hidden_size
    dropout = model.config.hidden_dropout_prob

    def dense() -> tuple[nn.Module, ...]:
        return dense_layers(width, classes, dropout=dropout)

    def ramp() -> Ramp:
        layers = dense() if ramps == "dense" else linear_layers(width, classes)
        return Ramp(*layers, pool=pool).to(reference)

    reference = next(model.parameters())
    every = [None, *(ramp() for _ in layers[1:])]
    if pool == "first" and model.pooler is not None:
        # The layers of BERT's pooler after its pooling, with their weights.
        last = (layer.to(reference) for layer in dense()[2:])
        head = Ramp(model.pooler.dense, model.pooler.activation, *last, pool=pool)
    else:
        head = ramp()
    names = [*(f"layer{k}" for k in range(1, len(layers))), "full"]
    config = {
        "family": family,
        "config": model.config.to_diff_dict(),
        "classes": classes,
        "pool": pool,
        "ramps": ramps,
    }
    return EarlyExit(
        [embed, *layers], every, head, names=names, config=config, trim=trim_padding,
        input_names=INPUT_NAMES,
    )  # fmt: skip


class _BertEmbed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.max_position_embeddings)
        self.embeddings = model.embeddings

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        hidden = self.embeddings(input_ids=ids)
        return hidden, scores_of_padding(mask, hidden.dtype)


class _Bias(nn.Module):
    """The attention bias of relative positions, shared by all layers."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.relative_attention_bias = encoder.relative_attention_bias
        self._bucket = encoder.relative_position_bucket
        self._buckets: dict[tuple[int, torch.device], Tensor] = {}

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the bias, shape (1, heads, tokens, tokens)."""
        key = (hidden.shape[1], hidden.device)
        if key not in self._buckets:
            positions = torch.arange(key[0], device=key[1])
            self._buckets[key] = self._bucket(positions[None, :] - positions[:, None])
        bias: Tensor = self.relative_attention_bias(self._buckets[key])
        return bias.permute(2, 0, 1).unsqueeze(0)


class _MPNetEmbed(Embed):
    def __init__(self, model: Any) -> None:
        # The positions up to that of padding are not used.
        padding = int(model.embeddings.padding_idx)
        super().__init__(longest=model.config.max_position_embeddings - padding - 1)
        self.embeddings = model.embeddings
        self.bias = _Bias(model.encoder)
        self._padding = padding

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        kept = mask.long()
        positions = kept.cumsum(dim=1) * kept + self._padding
        hidden = self.embeddings(input_ids=ids, position_ids=positions)
        return hidden, scores_of_padding(mask, hidden.dtype)


class _MPNetLayer(Layer):
    def __init__(self, layer: nn.Module, bias: _Bias) -> None:
        super().__init__(layer, causal=False)
        self._bias = (bias,)  # registered with the embeddings

    def arguments(self, value: Tokens) -> dict[str, Any]:
        return {"position_bias": self._bias[0](value[0])}
