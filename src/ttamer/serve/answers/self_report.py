"""Self-reports: a model is asked, in a second short call, how sure it is of its own answer.

The question and the answer are set between marks. A reply without a usable number
is the lowest confidence: it never costs the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ttamer.serve.answers.confidence import Unreadable, answer_text
from ttamer.serve.answers.delimiting import delimited

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["report_request", "reported_confidence"]

RUBRIC = (
    "You gave an answer to a question. State how likely it is that the answer is right: 0 means "
    "certainly wrong, 100 certainly right."
)
"""The instructions of a self-report."""
REPLY = "a number from 0 to 100"
"""What a self-report is."""
MAX_REPORT_TOKENS = 16
"""The most tokens of a self-report."""

_NUMBER = re.compile(
    r"(?<![\w.,])(?P<value>\d{1,3}(?:[.,]\d+)?)"
    r"(?:\s*(?P<percent>%|percent\b|per cent\b)|\s*(?:/|out of)\s*(?P<top>\d{1,3})\b)?"
    r"(?![\w]|[.,]\d)",
    re.IGNORECASE,
)


def report_request(question: str, answer: str) -> dict[str, Any]:
    """Return the request for a self-report.

    >>> report_request("2 + 2?", "4")["max_tokens"]
    16

    Args:
        question: The text of the request.
        answer: The answer that the model gave.

    Returns:
        The body of a request for chat completions.
    """
    ask = f"How likely is it that the answer is right? Reply with {REPLY}."
    return {
        "messages": delimited(question, answer, rubric=RUBRIC, reply=REPLY, ask=ask),
        "temperature": 0,
        "max_tokens": MAX_REPORT_TOKENS,
    }


def reported_confidence(response: Mapping[str, Any]) -> float:
    """Return the confidence that a model reports, from 0 to 1.

    A number with a percent sign, or out of another one, comes before plain numbers; of several, the
    first counts. A decimal number up to 1 is a probability.

    >>> [reported_confidence({"choices": [{"message": {"content": text}}]})
    ...  for text in ("85", "I am 90% sure.", "0.75", "8/10")]
    [0.85, 0.9, 0.75, 0.8]

    Args:
        response: The response to a self-report.

    Returns:
        The confidence.

    Raises:
        Unreadable: If the reply holds no number in range.
    """
    found = list(_NUMBER.finditer(answer_text(response).replace("\u2212", "-")))
    units = [each for each in found if each["percent"] or each["top"]]
    for match in units or found[:1]:
        before = match.string[: match.start()]
        value = float(match["value"].replace(",", "."))
        if match["top"]:
            top = float(match["top"])
        else:
            is_share = not match["percent"] and value <= 1 and not match["value"].isdigit()
            top = 1.0 if is_share else 100.0
        if not before.endswith("-") and top and value <= top:
            return value / top
    raise Unreadable("the self-report holds no number from 0 to 100")
