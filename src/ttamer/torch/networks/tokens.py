"""Shared parts of transformer networks with exits: embeddings, layers and loading.

Inputs are a pair: token ids, shape (batch, tokens), and a mask of the same shape, true for tokens
and false for padding, which comes last, in any case for decoders. Layers pass on hidden states of
shape (batch, tokens, width), the mask, and whatever else the layers of a family need, such as
rotary positions. So rows can leave part way, and padding never changes an answer.
"""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttamer.errors import ArgumentError, MissingExtra

# The names of ids and mask in what the tokenizers of transformers return.
INPUT_NAMES = ("input_ids", "attention_mask")
# Texts are cut to a multiple of this many tokens: kernels run fastest on few, even widths.
WIDTHS = 16
# Ids or hidden states, the mask, and what else layers need, each with the batch first.
Tokens = tuple[Tensor, ...]


def transformers() -> Any:
    """Return the package transformers, imported on first use."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError:
        raise MissingExtra("transformers", "torch") from None


class Embed(nn.Module, ABC):
    """Token ids to hidden states; ``longest`` is the number of positions of the model."""

    def __init__(self, *, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def forward(self, inputs: Tokens) -> Tokens:
        """Check the pair, and return hidden states with a boolean mask."""
        if not isinstance(inputs, tuple | list) or len(inputs) != 2:
            raise ArgumentError(
                f"inputs must be a pair (ids, mask), not {type(inputs).__name__}; the mask is true "
                "for tokens and false for padding"
            )
        ids, mask = inputs
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise ArgumentError(
                f"ids have shape {tuple(ids.shape)} and the mask {tuple(mask.shape)}; both must be "
                "(batch, tokens)"
            )
        if not 0 < ids.shape[1] <= self.longest:
            raise ArgumentError(
                f"inputs are {ids.shape[1]} tokens long, and this model takes 1 to {self.longest}: "
                "truncate them"
            )
        hidden, *more = self.embed(ids, mask.bool())
        return (hidden, mask.bool(), *more)

    @abstractmethod
    def embed(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return hidden states of shape (batch, tokens, width), and what else the layers need."""


class Layer(nn.Module):
    """One layer of transformers, on hidden states and their mask.

    Where it is not causal, it reads the scores of padding after these: the layers share them.
    """

    def __init__(self, layer: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.layer = layer
        self.causal = causal
        attention = getattr(layer, "attn", None) or getattr(layer, "self_attn", None)
        config = getattr(attention, "config", None)
        self._kernel = getattr(config, "_attn_implementation", None)

    def forward(self, value: Tokens) -> Tokens:
        """Attend to tokens that are not padding; where causal, to none that comes later."""
        found = self.layer(value[0], attention_mask=self._mask(value), **self.arguments(value))
        # Some layers return tuples.
        return (found[0] if isinstance(found, tuple) else found, *value[1:])

    def _mask(self, value: Tokens) -> Tensor | None:
        """Return what is added to the scores, or ``None`` where the kernel itself is causal."""
        if not self.causal:
            return value[2][:, None, None, :]
        # Padding comes last, so no token attends to it, and its own outputs are not read.
        if self._kernel == "sdpa":
            return None
        hidden, mask = value[:2]
        seen = mask[:, None, None, :] & mask.new_ones(mask.shape[1], mask.shape[1]).tril()
        return scores_of_padding(seen, hidden.dtype)

    def arguments(self, value: Tokens) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """Return what else the layer is called with."""
        return {}


def scores_of_padding(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores: 0 for tokens that are seen, little for others.

    A form that both kinds of attention of transformers take. Not the lowest number: in bf16 that
    is minus infinity, and a row of padding alone would be NaN.
    """
    scores = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return scores.masked_fill_(~seen, max(torch.finfo(dtype).min, -1e30))


def check_padding_last(mask: Tensor) -> None:
    """Refuse padding before tokens, which causal layers would attend to.

    On a GPU looking there would make the host wait, which a capture refuses: it is done only where
    a network learns.
    """
    looks = mask.device.type == "cpu" or (
        mask.is_cuda and torch.is_grad_enabled() and not torch.cuda.is_current_stream_capturing()
    )
    if looks and not torch.compiler.is_compiling() and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ArgumentError(
            "a text has padding before a token, and this network needs padding last: set "
            'tokenizer.padding_side = "right"'
        )


def trim_padding(value: Tokens) -> Tokens:
    """Return hidden states and what goes with them without the tokens that are padding in all rows.

    >>> hidden, mask = torch.zeros(2, 48, 4), torch.arange(48) < torch.tensor([[3], [17]])
    >>> [tuple(each.shape) for each in trim_padding((hidden, mask))]
    [(2, 32, 4), (2, 32)]
    """
    unused = value[1].any(dim=0).flip(0).to(torch.uint8).argmax()  # columns after the last token
    longest = value[1].shape[1] - int(unused)
    width = -(-longest // WIDTHS) * WIDTHS
    return value if width >= value[1].shape[1] else tuple(each[:, :width] for each in value)


def build_model(
    kind: type[Any], config: Any, weights: str | os.PathLike[str] | None, **options: Any
) -> Any:
    """Return a model of transformers: random weights for a config, or those of a directory."""
    if weights is None:
        return kind(kind.config_class() if config is None else config, **options)
    if config is not None:
        raise ArgumentError("give a config or weights, not both: weights include a config")
    return _load_model(kind, weights, **options)


def _load_model(kind: type[Any], path: str | os.PathLike[str], **options: Any) -> Any:
    """Return a model of transformers from a directory, in single precision.

    Nothing is downloaded. A directory with another kind of model, or without some of its weights,
    is an error: transformers would use random ones.
    """
    wanted = kind.config_class.model_type
    config = Path(path) / "config.json"
    advice = f"give a directory that {kind.__name__}.save_pretrained wrote, or a complete download"
    try:
        found = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"{path}: no config.json with a model_type ({type(error).__name__}); {advice}"
        ) from None
    if found != wanted:
        raise ArgumentError(f"{path}: the model is of type {found!r}, not {wanted!r}; {advice}")
    try:
        model, info = kind.from_pretrained(
            Path(path),
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{path}: cannot be loaded: {error}; {advice}") from error
    lacking = sorted(info["missing_keys"])
    if lacking:
        raise ArgumentError(
            f"{path}: {len(lacking)} weights of {kind.__name__} are missing, the first is "
            f"{lacking[0]}; {advice}"
        )
    return model
