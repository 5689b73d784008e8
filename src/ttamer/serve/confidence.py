"""Reading a response in OpenAI's format: its answer and its confidence.

Nothing here calls a node; :mod:`ttamer.serve.node` does. A response that lacks what is needed is an
:class:`Unreadable` that names it.

How the answer is compared with others is in :mod:`ttamer.runtime.comparison`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ttamer._numbers import is_number
from ttamer.errors import TTamerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Unreadable",
    "agreement",
    "answer_text",
    "field_value",
    "probability_of_answer",
    "probability_of_choice",
    "probability_of_yes",
    "question_text",
    "verifier_body",
]

MIN_LOGPROB = -1e9
"""The lowest log-probability: its exponential is 0, and sums of many stay finite."""
TOP_LOGPROBS = 20
"""The number of likely tokens requested of a verifier: the most that OpenAI returns."""
VERDICT_TOKENS = 4
"""The most tokens of a verifier's answer."""
VERIFY = (
    "Here is a question and a proposed answer.\n\nQuestion:\n{question}\n\nProposed answer:\n"
    "{answer}\n\nIs the proposed answer right? Say yes or no, one word."
)
"""The prompt of a verifier."""

_AROUND = " \t\n()[]*.:,\"'\u2581\u0120"
"""Characters that may surround a letter within its token."""


class Unreadable(TTamerError):
    """A response lacks the answer, or the source of its confidence."""


def answer_text(response: Mapping[str, Any], path: str | None = None) -> str:
    """Return the text of the answer; for a tool call, the text of the call.

    >>> answer_text({"choices": [{"message": {"content": "Paris"}}]})
    'Paris'
    """
    if path is not None:
        value = _at(response, path)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Unreadable(f"there is no text at answer = {path!r}")
        return str(value)
    choice = _choice_of(response)
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if isinstance(text, str):
        return text
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls):
        return json.dumps([call.get("function") for call in calls], sort_keys=True)
    raise Unreadable("there is no text in choices.0")


def probability_of_answer(response: Mapping[str, Any]) -> float:
    """Return the mean log-probability of the answer's tokens, as a probability.

    >>> tokens = [{"token": "Par", "logprob": -0.2}, {"token": "is", "logprob": 0.0}]
    >>> probability_of_answer({"choices": [{"logprobs": {"content": tokens}}]})
    0.9048374180359595
    """
    logs = [log for _, log in _tokens(response)]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0


def probability_of_choice(response: Mapping[str, Any], letter: str) -> float:
    """Return the probability of the token that names the choice.

    An answer that begins with its letter names it there, another one where it does so last. Where
    no token is the letter alone, the whole answer's probability is the next best.
    """
    tokens = _tokens(response)
    naming = [i for i, (text, _) in enumerate(tokens) if text.strip(_AROUND).upper() == letter]
    if not naming:
        return probability_of_answer(response)
    before = "".join(text for text, _ in tokens[: naming[0]])
    place = naming[0] if not before.strip(_AROUND) else naming[-1]
    return math.exp(tokens[place][1])


def question_text(body: Mapping[str, Any]) -> str:
    """Return the text of a request, for a verifier."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return str(body.get("prompt", body.get("input", "")))
    texts = [_message_text(m.get("content")) for m in messages if isinstance(m, dict)]
    return "\n\n".join(text for text in texts if text)


def verifier_body(question: str, answer: str) -> dict[str, Any]:
    """Return the request that asks a verifier about an answer."""
    text = VERIFY.format(question=question, answer=answer)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": VERDICT_TOKENS,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
    }


def probability_of_yes(response: Mapping[str, Any]) -> float:
    """Return a verifier's probability of "yes", of "yes" and "no" together.

    >>> top = [{"token": " Yes", "logprob": -0.5}, {"token": "no", "logprob": -0.5}]
    >>> token = {"token": " Yes", "logprob": -0.5, "top_logprobs": top}
    >>> probability_of_yes({"choices": [{"logprobs": {"content": [token]}}]})
    0.5
    """
    for entry in _entries(response):
        top = entry.get("top_logprobs")
        likely = [each for each in top if isinstance(each, dict)] if isinstance(top, list) else []
        verdict = {"yes": 0.0, "no": 0.0}
        for other in likely or [entry]:
            word = str(other.get("token", "")).strip(_AROUND).casefold()
            if word in verdict:
                verdict[word] += math.exp(_log(other.get("logprob")))
        if total := verdict["yes"] + verdict["no"]:
            return verdict["yes"] / total
    raise Unreadable("the verifier returned neither yes nor no")


def agreement(predictions: Sequence[str | None]) -> tuple[int, float]:
    """Return which of several answers to give, and the share of them that agree with it.

    An answer without content, or a failed call, agrees with no other. Ties take the first.

    >>> agreement(["B", None, "B", "C"])
    (0, 0.5)
    """
    counts = Counter(prediction for prediction in predictions if prediction is not None)
    if not counts:
        return 0, 0.0
    modal, count = counts.most_common(1)[0]
    return list(predictions).index(modal), count / len(predictions)


def field_value(response: Mapping[str, Any], path: str) -> float:
    """Return the number at a dotted path.

    >>> field_value({"choices": [{"score": 0.7}]}, "choices.0.score")
    0.7
    """
    number = _number(_at(response, path))
    if not math.isfinite(number):
        raise Unreadable(f"there is no number at field = {path!r}")
    return number


def _at(response: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(response, dict):
            response = response.get(step)
        elif isinstance(response, list) and step.isdecimal() and int(step) < len(response):
            response = response[int(step)]
        else:
            return None
    return response


def _choice_of(response: Mapping[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unreadable("there are no choices")
    return choices[0]


def _entries(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens of the first choice, as chat completions describe them."""
    logprobs = _choice_of(response).get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        return content
    if isinstance(logprobs, dict) and isinstance(logprobs.get("token_logprobs"), list):
        logs = logprobs["token_logprobs"]
        tokens = logprobs.get("tokens")
        texts = tokens if isinstance(tokens, list) and tokens else [None] * len(logs)
        pairs = zip(texts, logs, strict=False)
        return [{"token": text, "logprob": log} for text, log in pairs if log is not None]
    raise Unreadable("there are no log-probabilities: the upstream must support logprobs")


def _tokens(response: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the tokens that have text: llama.cpp adds one for the end of the answer."""
    entries = [e for e in _entries(response) if e.get("token") != ""]
    return [(str(e.get("token")), _log(e.get("logprob"))) for e in entries]


def _log(value: Any) -> float:
    """Return a log-probability between :data:`MIN_LOGPROB` and 0."""
    number = _number(value)
    if math.isnan(number):
        raise Unreadable("a log-probability is not a number")
    return max(min(number, 0.0), MIN_LOGPROB)


def _number(value: Any) -> float:
    """Return a JSON number as a float, infinite if too large; NaN for anything else."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _message_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(part for part in parts if isinstance(part, str))
