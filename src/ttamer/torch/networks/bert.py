"""BERT, and models built like it such as MiniLM, with an exit after every layer.

The layers are those of transformers. A ramp is built like BERT's head: one vector for the input, a
linear layer with tanh, dropout, and a linear layer to the classes (as in DeeBERT, Xin et al. 2020).
Inputs are pairs (ids, mask); see ``ttamer.torch.networks.tokens``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.tokens import Embed, Layer, Pooled, load_model, transformers

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["bert", "exits_on_bert"]


def bert(
    config: Any = None,
    *,
    classes: int,
    weights: str | os.PathLike[str] | None = None,
    pool: Literal["first", "mean"] = "first",
) -> EarlyExit:
    """Return BERT with an exit after every layer.

    Args:
        config: A ``transformers.BertConfig`` for random weights; by default BERT-base.
        classes: The number of classes.
        weights: A directory with a ``BertModel``, in place of a config.
        pool: The vector of an input: its first token, as in BERT, or the mean of all tokens, as in
            MiniLM.

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
    package = transformers()
    # BERT's pooler is for the first token; a mean needs none, and MiniLM's is not trained.
    pooler = {"add_pooling_layer": pool == "first"}
    if weights is not None:
        if config is not None:
            raise ArgumentError("give a config or weights, not both: weights include a config")
        model = load_model(package.BertModel, weights, **pooler)
    else:
        model = package.BertModel(package.BertConfig() if config is None else config, **pooler)
    return exits_on_bert(model, classes=classes, pool=pool)


def exits_on_bert(
    model: Any, *, classes: int, pool: Literal["first", "mean"] = "first"
) -> EarlyExit:
    """Put a ramp after every layer of a ``transformers.BertModel``, and a head on the last.

    Args:
        model: The encoder; its weights are shared.
        classes: The number of classes.
        pool: The vector of an input: its first token, or the mean of all tokens.

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
    package = transformers()
    if not isinstance(model, package.BertModel):
        raise ArgumentError(
            f"the model must be a BertModel, not {type(model).__name__}; models for one "
            "task have it "
            "in .bert"
        )
    if model.config.is_decoder:
        raise ArgumentError("the model must be an encoder, and its config has is_decoder")
    layers = [Layer(layer, causal=False) for layer in model.encoder.layer]
    return encoder_exits(_Embed(model), layers, model, classes=classes, pool=pool, family="bert")


def encoder_exits(
    embed: Embed,
    layers: Sequence[Layer],
    model: Any,
    *,
    classes: int,
    pool: Literal["first", "mean"],
    family: str,
) -> EarlyExit:
    """Return the network of an encoder's layers, with ramps like BERT's head."""
    if pool not in ("first", "mean"):
        raise ArgumentError(f'pool must be "first" or "mean" for an encoder, not {pool!r}')
    width = model.config.hidden_size
    dropout = model.config.hidden_dropout_prob

    def ramp() -> list[nn.Module]:
        return [nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, classes)]

    ramps = [None, *(Pooled(pool, *ramp()) for _ in layers[1:])]
    last = ramp()
    if pool == "first" and model.pooler is not None:
        # The layers of BERT's pooler after its pooling, with their weights.
        last[:2] = [model.pooler.dense, model.pooler.activation]
    names = [*(f"layer{k}" for k in range(1, len(layers))), "full"]
    config = {
        "family": family,
        "config": model.config.to_diff_dict(),
        "classes": classes,
        "pool": pool,
    }
    head = Pooled(pool, *last)
    return EarlyExit([embed, *layers], ramps, head, names=names, config=config)


class _Embed(Embed):
    def __init__(self, model: Any) -> None:
        super().__init__(longest=model.config.max_position_embeddings)
        self.embeddings = model.embeddings

    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002 - padding is last
        return (self.embeddings(input_ids=ids),)
