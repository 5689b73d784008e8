"""MPNet with an exit after every layer: an encoder of BERT's size with relative positions.

The layers are those of transformers, the ramps those of :mod:`ttamer.torch.networks.bert`. Inputs
are pairs (ids, mask); see ``ttamer.torch.networks.tokens``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.networks.bert import encoder_exits
from ttamer.torch.networks.tokens import Embed, Layer, load_model, transformers

if TYPE_CHECKING:
    import os

    from ttamer.torch.early_exit import EarlyExit
    from ttamer.torch.networks.tokens import Tokens

__all__ = ["exits_on_mpnet", "mpnet"]


def mpnet(
    config: Any = None,
    *,
    classes: int,
    weights: str | os.PathLike[str] | None = None,
    pool: Literal["first", "mean"] = "mean",
) -> EarlyExit:
    """Return MPNet with an exit after every layer.

    Args:
        config: A ``transformers.MPNetConfig`` for random weights; by default MPNet-base.
        classes: The number of classes.
        weights: A directory with an ``MPNetModel``, in place of a config.
        pool: The vector of an input: the mean of all tokens, as in all-mpnet, or the first token.

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
    package = transformers()
    pooler = {"add_pooling_layer": pool == "first"}
    if weights is not None:
        if config is not None:
            raise ArgumentError("give a config or weights, not both: weights include a config")
        model = load_model(package.MPNetModel, weights, **pooler)
    else:
        model = package.MPNetModel(package.MPNetConfig() if config is None else config, **pooler)
    return exits_on_mpnet(model, classes=classes, pool=pool)


def exits_on_mpnet(
    model: Any, *, classes: int, pool: Literal["first", "mean"] = "mean"
) -> EarlyExit:
    """Put a ramp after every layer of a ``transformers.MPNetModel``, and a head on the last.

    Args:
        model: The encoder; its weights are shared.
        classes: The number of classes.
        pool: The vector of an input: the mean of all tokens, or the first token.

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
    package = transformers()
    if not isinstance(model, package.MPNetModel):
        raise ArgumentError(
            f"the model must be an MPNetModel, not {type(model).__name__}; models for one "
            "task have "
            "it in .mpnet"
        )
    embed = _Embed(model)
    layers = [_Layer(layer, embed.bias) for layer in model.encoder.layer]
    return encoder_exits(embed, layers, model, classes=classes, pool=pool, family="mpnet")


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


class _Embed(Embed):
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
        return (self.embeddings(input_ids=ids, position_ids=positions),)


class _Layer(Layer):
    def __init__(self, layer: nn.Module, bias: _Bias) -> None:
        super().__init__(layer, causal=False)
        self._bias = (bias,)  # registered with the embeddings

    def arguments(self, value: Tokens) -> dict[str, Any]:
        return {"position_bias": self._bias[0](value[0])}
