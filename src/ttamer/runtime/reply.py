"""What a node said, in one form, however it said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Reply", "Unusable", "reply_of", "told"]


@dataclass(frozen=True)
class Reply:
    """What a node said, in one form."""

    prediction: object
    confidence: float
    answer: Any
    cost: float | None


class Unusable(Exception):  # noqa: N818 - the runner counts it as no answer
    """What a node said cannot be used; its text says why."""


def reply_of(said: Any) -> Reply:
    """Return what a node said in one form, or say what is wrong with it."""
    found: Mapping[str, Any]
    if isinstance(said, tuple | list):
        if len(said) not in (2, 3):
            raise Unusable(f"returned {len(said)} values; (prediction, confidence) is needed")
        found = dict(zip(("prediction", "confidence", "answer"), said, strict=False))
    elif isinstance(said, Mapping):
        found = said
    else:
        names = ("prediction", "confidence", "answer", "cost")
        found = {name: getattr(said, name) for name in names if hasattr(said, name)}
    if "prediction" not in found or "confidence" not in found:
        raise Unusable(f"returned {type(said).__name__}; (prediction, confidence) is needed")
    prediction, cost = found["prediction"], found.get("cost")
    confidence = _number(found["confidence"], "confidence")
    if cost is not None:
        cost = _number(cost, "cost")
        if not 0 <= cost < float("inf"):
            raise Unusable(f"returned a cost of {cost:g}; it must be finite and not negative")
    return Reply(prediction, confidence, found.get("answer", prediction), cost)


def _number(value: Any, what: str) -> float:
    """Return a float; a confidence may be not a number, which counts as the least sure."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # noqa: TRY301
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several numbers
        raise Unusable(f"returned a {what} that is no number ({type(value).__name__})") from None


def told(error: Exception) -> str:
    """Return an error as "kind: text"; its kind is its own word for it, or its type."""
    text = " ".join(str(error).split())
    kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
    kind = getattr(error, "kind", kind)
    return f"{kind}: {text}" if text else kind
