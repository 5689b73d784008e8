"""When the first tokens of a stream already show what the policy decides.

A node's answer is returned at once, in a stream, if the mean probability of its first tokens is
above a threshold. The threshold is the lowest one at which, on half of the rows, the policy would
have decided otherwise on the whole answer on at most a share of them; the share on the other half
is its error, with an interval. The log-probabilities of first tokens are those that ``ttamer
collect`` keeps beside the trace.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError, TraceError
from ttamer.stats.bounds import binomial_upper

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["FittedPrefix", "fit_prefixes", "read_first_logprobs"]

TOKENS = (2, 4, 8, 16)
"""The numbers of tokens that are tried."""
MIN_ROWS = 20
"""The rows above a threshold below which it is not used."""
CONFIDENCE = 0.95
"""The confidence of the bound on the share of other decisions."""


@dataclass(frozen=True)
class FittedPrefix:
    """A threshold on the first tokens of one node, and its effect on other rows."""

    node: str
    tokens: int
    confidence: float
    rows: int
    """The rows on which the node was asked."""
    early: int
    """Those that are relayed early."""
    changed: int
    """Those of them on which the policy decides otherwise on the whole answer."""

    @property
    def bound(self) -> float:
        """The upper end of the one-sided 95% interval for the share of changed decisions."""
        return binomial_upper(self.changed, self.early, 1 - CONFIDENCE) if self.early else 1.0

    def __str__(self) -> str:
        return f"prefix = {{tokens = {self.tokens}, confidence = {self.confidence:.4g}}}"


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
        rows = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
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
    """Fit a threshold for each node after which another may be asked.

    Args:
        policy: A fitted policy or mixture.
        trace: The rows, in the order of ``first``.
        first: The log-probabilities of first tokens, by node, for each row.
        max_changed: The share of changed decisions that is allowed among early streams.

    Returns:
        One for each node that has a threshold; nodes without one are left out.

    Raises:
        ArgumentError: If the share is out of range, or the lengths differ.
    """
    if not 0 < max_changed < 1:
        raise ArgumentError(f"max_changed is {max_changed!r}; it must be between 0 and 1")
    if len(first) != len(trace):
        raise ArgumentError(f"there are {len(first)} rows of first tokens, not {len(trace)}")
    kept = _kept(policy, trace)
    found = []
    for v, name in enumerate(trace.names):
        rows = np.flatnonzero(kept[:, v] >= 0)
        fits = [_fit(name, rows, kept[:, v] == 1, first, tokens, max_changed) for tokens in TOKENS]
        best = max((each for each in fits if each), key=lambda each: each.early, default=None)
        if best is not None:
            found.append(best)
    return found


def _fit(
    name: str,
    rows: NDArray[np.intp],
    kept: NDArray[np.bool_],
    first: Sequence[Mapping[str, Sequence[float]]],
    tokens: int,
    max_changed: float,
) -> FittedPrefix | None:
    """Fit a threshold to every other row, and count on the others."""
    long = [row for row in rows.tolist() if len(first[row].get(name, ())) >= tokens]
    sure = {row: math.exp(math.fsum(first[row][name][:tokens]) / tokens) for row in long}
    train = sorted((row for row in long if row % 2 == 0), key=lambda row: -sure[row])
    threshold, wrong = None, 0
    for count, row in enumerate(train, start=1):
        wrong += not kept[row]
        is_edge = count == len(train) or sure[train[count]] < sure[row]
        if is_edge and count >= MIN_ROWS and wrong <= max_changed * count:
            threshold = sure[row]
    if threshold is None:
        return None
    early = [row for row in long if row % 2 and sure[row] >= threshold]
    changed = sum(not kept[row] for row in early)
    asked = int((rows % 2).sum())
    return FittedPrefix(name, tokens, math.ceil(threshold * 1e4) / 1e4, asked, len(early), changed)


def _kept(policy: Any, trace: Trace) -> NDArray[np.int8]:
    """Return, by row and node, whether the policy stops after the node and returns its answer.

    It is 1 where it does, 0 where not, and -1 where the node is not asked, or nothing can follow.
    """
    found = np.full((len(trace), len(trace.names)), -1, np.int8)
    for row in range(len(trace)):
        signals = {name: float(values[row]) for name, values in trace.signals.items()}
        turn = policy.session(key=str(row), signals=signals or None)
        code = None if trace.prediction is None else trace.prediction[row]
        while (name := turn.next) is not None:
            v = trace.spec.index_of(name)
            is_open = set(turn.ahead()) != {None}
            text = None if code is None or code[v] < 0 else trace.classes[code[v]]
            turn.observe(confidence=float(trace.confidence[row, v]), prediction=text)
            if is_open:
                by = None if turn.answer is None else trace.spec.index_of(turn.answer)
                is_same = by == v or (
                    code is not None and by is not None and code[by] == code[v] >= 0
                )
                found[row, v] = turn.next is None and is_same
    return found
