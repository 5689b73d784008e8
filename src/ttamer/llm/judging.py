"""A judge: a node that decides how right an answer is, where no rule can compare texts.

Where labels exist, the verdicts are compared with those of the rule ``[serve] compare``, and the
agreement is reported with an interval before anyone relies on them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ttamer._checks import counted
from ttamer.errors import TraceError
from ttamer.llm.client import open_session
from ttamer.llm.confidence import Unreadable, answer_text, delimited
from ttamer.llm.node import ModelNode, Upstream, Work
from ttamer.llm.paid import GIVEN_UP, Ask, Asked, PaidUpstream, Progress, Store, key_of, patient
from ttamer.llm.prompts import Answer, AnsweredPrompt
from ttamer.llm.settings import CascadeSource, comparison_of, read_nodes, spec_of
from ttamer.stats.bounds import binomial_upper
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class Judge:
    """A node of the cascade that judges answers, and its instructions.

    Args:
        node: The name of the node.
        rubric: What counts as right; by default instructions of our own.
    """

    node: str
    rubric: str = ""
    max_tokens: ClassVar = 8  # of a verdict
    default_rubric: ClassVar = (
        "Judge whether an answer to a question is right. It is right if it means the same as the "
        "reference answer, in whatever words; without a reference answer, if it is true and "
        "answers the question."
    )

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
        messages = delimited(
            question,
            answer,
            reference,
            rubric=self.rubric or self.default_rubric,
            reply="one word, yes or no",
            ask="Is the answer right? Reply yes or no.",
        )
        return {"messages": messages, "temperature": 0, "max_tokens": self.max_tokens}

    def read(self, response: Mapping[str, Any]) -> float:
        """Return how right a response says the answer is: the first verdict in it.

        >>> response = {"choices": [{"message": {"content": "**Yes**."}}]}
        >>> Judge("large").read(response)
        1.0

        Args:
            response: The judge's response.

        Returns:
            1 or 0.

        Raises:
            Unreadable: If it says nothing of the kind.
        """
        # Judges tend to explain after their verdict, not before.
        text, wanted = answer_text(response), "neither yes nor no"
        if match := re.search(r"\b(yes|no)\b", text, re.IGNORECASE):
            return float(match[1].casefold() == "yes")
        if not text.strip():
            wanted += (
                f", but an empty text; {self.max_tokens} tokens are too few for a model that "
                "reasons: for such a judge write params = {max_tokens = false}"
            )
        raise Unreadable(f"returned {wanted}")


def agreement_of(pairs: Sequence[tuple[bool, bool]]) -> str:
    """Return how often a judge says what labels say; each pair is what both say of an answer.

    >>> print(agreement_of([(True, True), (True, True), (False, False), (True, False)]))
    agrees with the labels on 3 of 4 answers (75%, 95% interval 19% to 99%)
    """
    if not (count := len(pairs)):
        return "cannot be compared with labels: there are none"
    agree, right = sum(verdict == is_right for verdict, is_right in pairs), sum(r for _, r in pairs)
    low, high = interval_of(agree, count)
    text = f"agrees with the labels on {agree} of {count} answers ({agree / count:.0%}, "
    text += f"95% interval {low:.0%} to {high:.0%})"
    if agree > (constant := max(right, count - right)):
        return text
    return f"{text}, no more than the same verdict for all ({constant / count:.0%})"


def interval_of(agree: int, count: int) -> tuple[float, float]:
    """Return the exact 95% interval for a share (Clopper and Pearson, 1934)."""
    low = 1 - binomial_upper(count - agree, count, 0.025) if agree else 0.0
    return low, binomial_upper(agree, count, 0.025) if agree < count else 1.0


def judge_answers(
    trace: Trace,
    rows: Sequence[AnsweredPrompt],
    cascade: CascadeSource,
    judge: Judge,
    paid: str | os.PathLike[str],
    *,
    upstream: Ask | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Let a node decide which answers of a trace are right; it is asked once about equal ones.

    ::

        rows = read_answers("trace.parquet.answers.jsonl", trace.names)
        judged = judge_answers(trace, rows, "cascade.toml", Judge("large"), "verdicts.sqlite")

    Where only some rows have a label, the judge sees none of them: else its agreement with labels
    would not hold for the others.

    Args:
        trace: The answers.
        rows: The prompt and the answers of each row.
        cascade: A cascade with the upstream of the judge.
        judge: The node that judges.
        paid: A file that keeps the verdicts, so that none is paid for twice.
        upstream: From a node's settings to what is asked in place of its server.
        progress: Called with the numbers of verdicts done, total and failed.

    Returns:
        The trace, with what is right by the verdicts; ``notes`` has what they cost, how often they
        agree with the reference answers, and how many are missing.

    Raises:
        ArgumentError: If the judge is none of the nodes.
        TraceError: If the judge fails again and again.
    """
    require_trace(trace, "a judge")
    if len(rows) != len(trace):
        raise TraceError(f"there are {len(trace)} rows, and prompts for {len(rows)}")
    spec = spec_of(cascade)
    spec.index_of(judge.node)
    asked, store = Asked(read_nodes(spec, [judge.node])[judge.node]), Store(paid)
    sees_labels = all(row.reference is not None for row in rows)
    requests = [_requests(judge, row, sees_labels=sees_labels) for row in rows]

    async def verdict(request: Mapping[str, Any], client: Upstream) -> Answer:
        new: dict[str, bytes] = {}
        node = ModelNode(asked.node, PaidUpstream(asked.node, client, store, new))
        response, cost = await node.call(Work({}), request)
        right = judge.read(response)
        store.add(new)
        return Answer("", cost=cost, right=right)

    def report() -> None:
        if progress is not None:
            progress(*asked.progress)

    async def ask() -> None:
        async with open_session() as session:
            client = (upstream or patient(session))(asked.node)
            waiting = {key_of(request): request for line in requests for request in line.values()}
            await asked.ask(waiting, partial(verdict, client=client), report)

    with store:
        asyncio.run(ask())
    failed = Counter(missing.why for missing in asked.missing.values())
    listed = "; ".join(f"the judge {why}: {count}" for why, count in failed.items())
    if failed and (not asked.answers or GIVEN_UP in failed):
        raise TraceError(
            f"{counted(sum(failed.values()), 'verdict')} missing ({listed}); fix the cause and run "
            "the same command again, which asks only these"
        )
    right, pairs, rule = np.full(trace.confidence.shape, math.nan), [], comparison_of(trace.spec)
    for number, (row, line) in enumerate(zip(rows, requests, strict=True)):
        for node, name in enumerate(trace.names):
            if (answer := row.answers.get(name)) is None:
                continue
            if not (text := answer.text.strip()):  # wrong, and no merit of the judge
                right[number, node] = 0.0
            elif judged := asked.answers.get(key_of(line[text])):
                right[number, node] = judged.right
                if row.reference:
                    pairs.append((judged.right >= 0.5, rule.is_right(answer.text, row.reference)))
    note = (
        f"judged by {judge.node!r} in {counted(len(asked.answers), 'call')} that cost "
        f"{asked.spent:g}; the judge {agreement_of(pairs)}"
    )
    note += ", which it did not see" if pairs and not sees_labels else ""
    note += f"; {counted(sum(failed.values()), 'verdict')} missing ({listed})" if failed else ""
    spec = dataclasses.replace(trace.spec, target="label")
    notes = (*trace.notes, note)
    return dataclasses.replace(
        trace, spec=spec, correct=right, raw_loss=None, label=None, notes=notes
    )


def _requests(judge: Judge, row: AnsweredPrompt, *, sees_labels: bool) -> dict[str, dict[str, Any]]:
    """Return the requests for verdicts on the different answers with text, by answer."""
    label = row.reference if sees_labels else None
    if isinstance(label, tuple):
        label = " or ".join(label[:6])  # it bounds the length of the prompt
    texts = dict.fromkeys(answer.text.strip() for answer in row.answers.values() if answer)
    return {text: judge.request(row.prompt, text, label) for text in texts if text}
