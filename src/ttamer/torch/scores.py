"""What an exit's logits say: the class predicted, and how sure the exit is of it.

Confidence is the softmax probability of the predicted class, in single precision whatever the
network computes in. Logits with a NaN among them say nothing: the prediction is ``NO_ANSWER``, and
the confidence NaN, which every policy takes for the least sure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NO_ANSWER", "Scores", "scores_of"]

NO_ANSWER = -1


class Scores(NamedTuple):
    """Shape (batch,) each, in single precision."""

    confidence: Tensor
    prediction: Tensor
    margin: Tensor
    """Between the two likeliest classes; of one class alone, its probability."""
    entropy: Tensor


def scores_of(logits: Tensor) -> Scores:
    """Return what logits of shape (batch, classes) say.

    >>> scores = scores_of(torch.tensor([[0.0, 0.0, -1e9], [float("nan"), 1.0, 2.0]]))
    >>> scores.confidence.tolist(), scores.prediction.tolist(), scores.margin.tolist()
    ([0.5, nan], [0, -1], [0.0, nan])
    """
    logs = torch.log_softmax(logits.float(), dim=-1)
    chances = logs.exp()
    best, prediction = chances.max(dim=-1)
    margin = best
    if chances.shape[-1] > 1:
        two = chances.topk(2, dim=-1).values
        margin = two[..., 0] - two[..., 1]
    entropy = -(chances * logs.clamp_min(-1e30)).sum(dim=-1)
    prediction = torch.where(torch.isnan(best), NO_ANSWER, prediction)
    return Scores(best, prediction.to(torch.int32), margin, entropy)
