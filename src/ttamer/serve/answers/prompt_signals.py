"""Signals of a prompt: numbers known before any node is asked, so that the first one is chosen.

The gateway and ``ttamer collect`` compute them alike, from the text of the request. A fit uses
those that say something about errors, and ignores the others. The embedding of the prompt, where
``[serve.embeddings]`` names an upstream, is reduced to a few numbers by a fixed random projection,
which keeps distances on average and needs nothing to be fitted or stored.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.serve.answers.confidence import question_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SIGNALS", "embedding_signals", "prompt_signals"]

MAX_TEXT = 100_000
"""The number of characters at the end of a prompt that are read."""

SIGNALS = (
    "prompt_length",
    "prompt_turns",
    "prompt_last_length",
    "prompt_script",
    "prompt_code",
    "prompt_digits",
    "prompt_question",
    "prompt_choices",
)
"""The names of the signals of a text."""

_CODE = re.compile(r"[{}();=<>\[\]_`\\#]")
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_QUESTIONS = (
    (3.0, re.compile(r"\b(?:why|how|explain|describe|compare|prove|derive)\b", re.IGNORECASE)),
    (2.0, re.compile(r"\b(?:how (?:many|much|far|long|old|often)|calculate|sum|total)\b",
                     re.IGNORECASE)),
    (1.0, re.compile(r"\b(?:who|whose|when|where|which|what)\b", re.IGNORECASE)),
)  # fmt: skip
_CHOICE = re.compile(r"^\s*\(?[A-H][).:]\s", re.MULTILINE)


def prompt_signals(body: Mapping[str, Any]) -> dict[str, float]:
    """Return the signals of a request body in OpenAI's format.

    Lengths are logarithms of the number of characters, of the whole prompt and of its last message.
    ``prompt_script`` is the share of letters that are not of the English alphabet, ``prompt_code``
    and ``prompt_digits`` the shares of characters that are common in code, and of digits;
    ``prompt_question`` is 1 for who, what, when, where and which, 2 for how many and how much, 3
    for how and why, 0 without these; ``prompt_choices`` is the number of lettered choices.

    Args:
        body: The body of a request for chat completions, completions or a classification.

    Returns:
        A finite number for each of :data:`SIGNALS`.

    >>> found = prompt_signals({"messages": [{"role": "user", "content": "How many is 2 + 2?"}]})
    >>> found["prompt_question"], found["prompt_turns"], round(found["prompt_length"], 3)
    (2.0, 1.0, 2.944)
    """
    messages = body.get("messages")
    turns = len(messages) if isinstance(messages, list) else 1
    whole = question_text(body)
    last = question_text({"messages": messages[-1:]}) if isinstance(messages, list) else whole
    text = whole[-MAX_TEXT:]
    count = max(1, len(text))
    letters = len(_LETTER.findall(text))
    asked = last[-MAX_TEXT:]
    kinds = [kind for kind, pattern in _QUESTIONS if pattern.search(asked)]
    if 2.0 in kinds and 3.0 in kinds:  # "how many" holds "how"
        kinds.remove(3.0)
    return {
        "prompt_length": math.log1p(len(whole)),
        "prompt_turns": float(turns),
        "prompt_last_length": math.log1p(len(last)),
        "prompt_script": 1 - len(_ASCII_LETTER.findall(text)) / letters if letters else 0.0,
        "prompt_code": len(_CODE.findall(text)) / count,
        "prompt_digits": len(_DIGIT.findall(text)) / count,
        "prompt_question": max(kinds, default=0.0),
        "prompt_choices": float(min(26, len(_CHOICE.findall(asked)))),
    }


def embedding_signals(vector: Sequence[float], count: int) -> dict[str, float]:
    """Return an embedding as a few numbers, by a random projection that is always the same.

    Args:
        vector: The embedding; its length does not count, only its direction.
        count: How many numbers.

    Returns:
        ``prompt_embedding_0`` and so on, each about as large as one coordinate of ``count``.

    >>> list(embedding_signals([3.0, 4.0], 2))
    ['prompt_embedding_0', 'prompt_embedding_1']
    """
    values = np.asarray(vector, np.float64)
    size = float(np.linalg.norm(values)) or 1.0
    directions = np.random.default_rng(len(values)).standard_normal((len(values), count))
    projected = (values / size) @ directions
    return {f"prompt_embedding_{k}": float(each) for k, each in enumerate(projected.round(6))}
