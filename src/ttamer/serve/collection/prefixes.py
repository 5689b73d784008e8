"""When the first tokens of a stream already show what the policy decides.

A node's answer is returned at once, in a stream, if the mean probability of its first tokens is
above a threshold. There is a threshold after 1 token, and others after 2, 4, 8 and 16 tokens for
streams that were not relayed before, so that no stream waits for more tokens than it must. Each is
the lowest one at which, on half of the rows, the policy would have decided otherwise on the whole
answer on at most a share of them; the share on the other half is the error, with an interval. The
log-probabilities of first tokens are those that ``ttamer collect`` keeps beside the trace.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer._files import lines_of
from ttamer.errors import ArgumentError, TraceError
from ttamer.stats.bounds import binomial_upper

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["FittedPrefix", "RecalledAnswers", "fit_prefixes", "read_first_logprobs",
           "recalled_answers"]  # fmt: skip

TOKENS = (1, 2, 4, 8, 16)
"""The numbers of tokens after which streams may be relayed."""
MIN_ROWS = 20
"""The rows above a threshold below which it is not used."""
OPEN_OTHER, OPEN_OWN, LAST_OTHER, LAST_OWN = range(4)
"""What follows an answer: another could be asked (open) or not, and the policy stops and returns
this answer (own) or not."""
CONFIDENCE = 0.95
"""The confidence of the bound on the share of other decisions."""


@dataclass(frozen=True)
class FittedPrefix:
    """The thresholds on the first tokens of one node, and their effect on other rows."""

    node: str
    steps: tuple[tuple[int, float], ...]
    """Numbers of tokens, increasing, each with the least mean probability of these tokens."""
    rows: int
    """The rows on which the node was asked."""
    early: int
    """Those that are relayed early."""
    changed: int
    """Those of them on which the policy decides otherwise on the whole answer."""
    tokens: float
    """The mean number of tokens for which an early stream waits."""

    @property
    def bound(self) -> float:
        """The upper end of the one-sided 95% interval for the share of changed decisions."""
        return binomial_upper(self.changed, self.early, 1 - CONFIDENCE) if self.early else 1.0

    def __str__(self) -> str:
        tables = [f"{{tokens = {k}, confidence = {sure:.4g}}}" for k, sure in self.steps]
        return f"prefix = {tables[0] if len(tables) == 1 else '[' + ', '.join(tables) + ']'}"


@dataclass(frozen=True)
class RecalledAnswers:
    """How often a policy returns an earlier answer after the last node that it asks.

    >>> print(RecalledAnswers(rows=200, recalled=5))
    after its last node the policy returns an earlier answer on 5 of 200 rows (at most 5.2%)
    """

    rows: int
    """The rows on which several nodes are asked, and no other could be asked."""
    recalled: int
    """Those on which the policy returns an earlier answer."""

    @property
    def bound(self) -> float:
        """The upper end of the one-sided 95% interval for the share."""
        return binomial_upper(self.recalled, self.rows, 1 - CONFIDENCE) if self.rows else 1.0

    def __str__(self) -> str:
        return (
            f"after its last node the policy returns an earlier answer on {self.recalled} of "
            f"{self.rows} rows (at most {self.bound:.1%})"
        )


def recalled_answers(policy: Any, trace: Trace) -> RecalledAnswers:
    """Count how often a policy returns an earlier answer after the last node that it asks.

    With ``stream = "last"`` a stream returns the last node's answer then: its tokens are relayed
    before it is complete, and the policy needs it whole to prefer another.

    Args:
        policy: A fitted policy or mixture.
        trace: The rows.

    Returns:
        The counts.
    """
    found = _followed(policy, trace)
    several = (found >= 0).sum(axis=1) > 1
    other = ((found == LAST_OTHER).any(axis=1) & several).sum()
    own = ((found == LAST_OWN).any(axis=1) & several).sum()
    return RecalledAnswers(int(other + own), int(other))


def read_first_logprobs(
    path: str | os.PathLike[str], names: Sequence[str]
) -> list[dict[str, list[float]]]:
    """Read the log-probabilities of first tokens that ``ttamer collect`` keeps.

    Args:
        path: The file, ``<trace>.answers.jsonl``.
        names: The nodes of the trace.

    Returns:
        For each row of the trace, a list of numbers for each node that has them.

    Raises:
        TraceError: If the file cannot be read or is not valid.
    """
    try:
        rows = [json.loads(line) for line in lines_of(Path(path).read_text("utf-8"))]
        return [
            {name: [float(log) for log in row["first"][name]] for name in names
             if name in row["first"]}
            for row in rows
        ]  # fmt: skip
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read: {error.strerror or error}; ttamer collect writes it beside "
            "the trace, unless --forget is given"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise TraceError(
            f"{path}: lacks the log-probabilities of first tokens; collect the trace again with "
            'confidence = "logprobs"'
        ) from None


def fit_prefixes(
    policy: Any,
    trace: Trace,
    first: Sequence[Mapping[str, Sequence[float]]],
    *,
    max_changed: float = 0.02,
) -> list[FittedPrefix]:
    """Fit thresholds for each node after which another may be asked.

    Args:
        policy: A fitted policy or mixture.
        trace: The rows, in the order of ``first``.
        first: The log-probabilities of first tokens, by node, for each row.
        max_changed: The share of changed decisions that is allowed among early streams.

    Returns:
        One for each node that has thresholds; nodes without one are left out.

    Raises:
        ArgumentError: If the share is out of range, or the lengths differ.
    """
    if not 0 < max_changed < 1:
        raise ArgumentError(f"max_changed is {max_changed!r}; it must be between 0 and 1")
    if len(first) != len(trace):
        raise ArgumentError(f"there are {len(first)} rows of first tokens, not {len(trace)}")
    followed = _followed(policy, trace)
    found = []
    for v, name in enumerate(trace.names):
        rows = np.flatnonzero((followed[:, v] == OPEN_OTHER) | (followed[:, v] == OPEN_OWN))
        logs = {row: first[row].get(name, ()) for row in rows.tolist()}
        fitted = _fit(name, logs, followed[:, v] == OPEN_OWN, max_changed)
        if fitted is not None:
            found.append(fitted)
    return found


def _fit(
    name: str,
    logs: Mapping[int, Sequence[float]],
    kept: NDArray[np.bool_],
    max_changed: float,
) -> FittedPrefix | None:
    """Fit thresholds to every other row, one after the other, and count on the others."""
    waiting, steps = set(logs), []
    early: list[tuple[int, int]] = []
    for tokens in TOKENS:
        sure = {
            row: math.exp(math.fsum(logs[row][:tokens]) / tokens)
            for row in waiting
            if len(logs[row]) >= tokens
        }
        threshold = _threshold({row: s for row, s in sure.items() if row % 2 == 0}, kept,
                               max_changed)  # fmt: skip
        if threshold is not None:
            steps.append((tokens, threshold))
            relayed = [row for row, s in sure.items() if s >= threshold]
            early += [(row, tokens) for row in relayed if row % 2]
            waiting -= set(relayed)
    if not steps:
        return None
    changed = sum(not kept[row] for row, _ in early)
    asked = sum(row % 2 for row in logs)
    mean = sum(tokens for _, tokens in early) / len(early) if early else 0.0
    return FittedPrefix(name, tuple(steps), asked, len(early), changed, mean)


def _threshold(
    sure: Mapping[int, float], kept: NDArray[np.bool_], max_changed: float
) -> float | None:
    """Return the lowest threshold that changes few enough decisions; ``None`` for none."""
    rows = sorted(sure, key=lambda row: -sure[row])
    threshold, wrong = None, 0
    for count, row in enumerate(rows, start=1):
        wrong += not kept[row]
        is_edge = count == len(rows) or sure[rows[count]] < sure[row]
        if is_edge and count >= MIN_ROWS and wrong <= max_changed * count:
            threshold = sure[row]
    return None if threshold is None else math.floor(threshold * 1e4) / 1e4


def _followed(policy: Any, trace: Trace) -> NDArray[np.int8]:
    """Return, by row and node, what follows its answer; -1 where the node is not asked."""
    found = np.full((len(trace), len(trace.names)), -1, np.int8)
    for row in range(len(trace)):
        signals = {name: float(values[row]) for name, values in trace.signals.items()}
        turn = policy.session(key=str(row), signals=signals or None)
        code = None if trace.prediction is None else trace.prediction[row]
        while (name := turn.next) is not None:
            v = trace.spec.index_of(name)
            is_open = set(turn.ahead()) != {None}
            text = None if code is None or code[v] < 0 else trace.classes[code[v]]
            columns = {
                column: float(trace.extras[column][row, v])
                for column in turn.reads
                if column in trace.extras
            }
            turn.observe(confidence=float(trace.confidence[row, v]), prediction=text, **columns)
            by = None if turn.answer is None else trace.spec.index_of(turn.answer)
            is_same = by == v or (code is not None and by is not None and code[by] == code[v] >= 0)
            is_own = turn.next is None and is_same
            found[row, v] = (OPEN_OTHER if is_open else LAST_OTHER) + is_own
    return found
