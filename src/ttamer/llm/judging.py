"""A judge: a node that decides how right an answer is, where no rule can compare texts.

Where labels exist, the verdicts are compared with those of the rule ``[serve] compare``, and the
agreement is reported with an interval before anyone relies on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.confidence import Unreadable, answer_text, delimited
from ttamer.llm.likeness import LabelAgreement


@dataclass(frozen=True)
class Judge:
    """A node of the cascade that judges answers, and its instructions.

    Args:
        node: The name of the node.
        rubric: What counts as right; by default instructions of our own.
        graded: Whether it gives scores, which become losses, instead of yes and no.
        min_agreement: The share of labelled answers on which it must agree with the labels. Where
            the upper end of the 95% interval is below it, the verdicts are not used.

    Raises:
        ArgumentError: If the share is not from 0 to 1.
    """

    node: str
    rubric: str = ""
    graded: bool = False
    min_agreement: float = 0.0
    max_tokens: ClassVar = 8  # of a verdict
    default_rubric: ClassVar = (
        "Judge whether an answer to a question is right. It is right if it means the same as the "
        "reference answer, in whatever words; without a reference answer, if it is true and "
        "answers the question."
    )
    default_grading: ClassVar = (
        "Judge how good an answer to a question is, from 0 (wrong or useless) to 10 (right and "
        "complete). Where there is a reference answer, an answer that means the same is right."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.min_agreement <= 1:
            raise ArgumentError(f"min_agreement is {self.min_agreement!r}; it must be from 0 to 1")

    def request(self, question: str, answer: str, reference: str | None) -> dict[str, Any]:
        """Return the request for one verdict.

        >>> body = Judge("large").request("Capital of France?", "Paris!", "Paris")
        >>> body["messages"][0]["role"], body["temperature"]
        ('system', 0)

        Args:
            question: The text of the prompt.
            answer: The answer that is judged.
            reference: The label, or ``None``.

        Returns:
            The body of a request for chat completions.
        """
        rubric = self.rubric or (self.default_grading if self.graded else self.default_rubric)
        reply, ask = "one word, yes or no", "Is the answer right? Reply yes or no."
        if self.graded:
            reply = "a number from 0 to 10"
            ask = f"How good is the answer? Reply with {reply}."
        return {
            "messages": delimited(question, answer, reference, rubric=rubric, reply=reply, ask=ask),
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }

    def read(self, response: Mapping[str, Any]) -> float:
        """Return how right a response says the answer is, from 0 to 1.

        Raises:
            Unreadable: If it says nothing of the kind.
        """
        return score_from(response) if self.graded else float(verdict_from(response))

    def agreement(self, judged: Sequence[bool], by_label: Sequence[bool]) -> LabelAgreement:
        """Return how often verdicts agree with labels.

        Raises:
            TraceError: If they agree too rarely.
        """
        agreement = LabelAgreement.of(judged, by_label)
        if judged and agreement.interval[1] < self.min_agreement:
            raise TraceError(
                f"the judge {self.node!r} {agreement}, and at least {100 * self.min_agreement:g}% "
                "is needed; change the rubric or the judge, or lower --min-agreement"
            )
        return agreement


def verdict_from(response: Mapping[str, Any]) -> bool:
    """Return a judge's verdict: the first "yes" or "no" of its reply.

    >>> verdict_from({"choices": [{"message": {"content": "**Yes**."}}]})
    True

    Raises:
        Unreadable: If the reply is neither.
    """
    match = re.search(r"\b(yes|no)\b", answer_text(response), re.IGNORECASE)
    if match is None:
        raise Unreadable(f"returned neither yes nor no{_cut(response)}")
    return match[1].casefold() == "yes"


def score_from(response: Mapping[str, Any]) -> float:
    """Return the score of a judge that grades, as a share of the highest.

    >>> score_from({"choices": [{"message": {"content": "Score: 7/10"}}]})
    0.7

    Raises:
        Unreadable: If the reply holds no number from 0 to 10.
    """
    match = re.search(r"(?<![\w.])(\d{1,2}(?:\.\d+)?)(?![\d.]*\d)", answer_text(response))
    score = float(match[1]) if match else math.inf
    if score > 10:
        raise Unreadable(f"returned no score from 0 to 10{_cut(response)}")
    return score / 10


def _cut(response: Mapping[str, Any]) -> str:
    """Return what helps where a model reasons, and its verdict is cut off before it begins."""
    if answer_text(response).strip():
        return ""
    return (
        f", but an empty text; {Judge.max_tokens} tokens are too few for a model that reasons: "
        "for such a judge write params = {max_tokens = false}"
    )
