"""The decision log of a server as a trace with gaps.

The first line of a file has the cascade, every other one a request or feedback on one::

    {"v": 1, "cascade": "..."}
    {"v": 1, "time": 1.5, "request": "r1", "policy": "...", "by": "small", "cost": 1.0,
     "prompt": "...", "drawn": 0.05, "judging": 0.0,
     "nodes": {"small": {"chance": 1.0, "confidence": 0.9, "prediction": "B", "cost": 1.0},
               "large": {"chance": 0.05}}}
    {"v": 1, "time": 2.5, "feedback": "r1", "label": "B", "score": null, "scores": null}

What is right comes from labels, from scores of the answer that was returned (0 and 1 are thumbs),
and from ``scores`` by node, by a judge or by a label that was compared with answers as text. The
same answer has the same score, whoever gave it. ``drawn`` is the chance with which a request was
drawn for an audit, where it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_path
from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.trace.schema import located
from ttamer.trace.trace import Trace

LOG_VERSION = 1


@dataclass(frozen=True)
class LoggedDecisions:
    """The requests of a decision log, in their order."""

    trace: Trace
    requests: tuple[str, ...]
    times: NDArray[np.float64]  # seconds since 1970
    drawn: NDArray[np.float64]  # the chance with which each was drawn for an audit; NaN: it was not
    audit_cost: NDArray[np.float64]  # of asking the other nodes, and a judge
    versions: tuple[str, ...]  # the policy that decided each
    lines: tuple[Mapping[str, Any], ...]  # with what feedback says about them


def is_decision_log(columns: Sequence[str]) -> bool:
    """Return whether the keys of JSON lines are those of a decision log.

    >>> is_decision_log(["v", "cascade"]), is_decision_log(["id", "node"])
    (True, False)
    """
    return "v" in columns and ("nodes" in columns or "cascade" in columns)


def log_files(path: Path) -> list[Path]:
    """Return a log and the older files that it was rotated to, the oldest first."""
    older = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdecimal()]
    return [*sorted(older, key=lambda file: -int(file.suffix[1:])), path]


def read_decisions(
    path: str | os.PathLike[str], spec: CascadeSpec | None = None
) -> LoggedDecisions:
    """Read a decision log with the older files beside it; by default with its own cascade."""
    require_path(path, "read_decisions")
    rows: list[dict[str, Any]] = []
    feedback: list[dict[str, Any]] = []
    broken, toml = 0, None
    for line in _lines(Path(path)):
        if line is None:
            broken += 1
        elif "cascade" in line:
            toml = str(line["cascade"])  # of several files the newest
        elif "feedback" in line:
            feedback.append(line)
        elif "nodes" in line:
            rows.append(line)
    if spec is None and toml is not None:
        spec = CascadeSpec.from_toml(toml)
    if not rows or spec is None:
        lacks = "requests" if not rows else "cascade in its first line: give one (--cascade)"
        raise TraceError(f"{path}: this decision log has no {lacks}")
    by_request = {str(row.get("request")): row for row in rows}
    for line in feedback:  # the last word counts; of a request deleted there is no row
        row = by_request.get(str(line["feedback"]), {"nodes": {}})
        row |= {key: line[key] for key in ("label", "score") if line.get(key) is not None}
        for name, score in (line.get("scores") or {}).items():
            row["nodes"].setdefault(name, {})["score"] = score
    # Their answers would be dropped without a word.
    for name in sorted({name for row in rows for name in row["nodes"]} - {*spec.names}):
        raise TraceError(f"{path}: has the node {name!r}, and the cascade {', '.join(spec.names)}")
    with located(path):
        return decisions_of(
            rows,
            spec,
            notes=(f"a decision log of {counted(len(rows), 'request', ',')}",),
            left_out={"lines that are not JSON": broken} if broken else {},
        )


class LoggedAnswer(msgspec.Struct):
    """What a line has of one node."""

    confidence: float | None = None
    prediction: str | float | bool | None = None
    cost: float | None = None
    chance: float | None = None
    seconds: float | None = None
    score: float | None = None


class LoggedLine(msgspec.Struct):
    """What a line may hold; further keys are kept as they stand."""

    nodes: dict[str, LoggedAnswer] = {}
    scores: dict[str, float | None] | None = None
    inputs: dict[str, float | list[float]] | None = None
    label: str | float | bool | None = None
    prompt: str | None = None
    score: float | None = None
    time: float | None = None
    cost: float | None = None
    judging: float | None = None
    drawn: float | None = None


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the lines, ``None`` for one that is cut short: of a process that ended, a full disk."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for file in log_files(path):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from None
        for number, text in enumerate(content.splitlines(), start=1):
            try:
                line = decoder.decode(text)
                msgspec.convert(line, LoggedLine)
            except msgspec.ValidationError as error:
                raise TraceError(
                    f"{file}: line {number}: {error}; correct the log, or give the decision log "
                    "of a server"
                ) from None
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield None
            else:
                yield line


def decisions_of(
    rows: Sequence[Mapping[str, Any]],
    spec: CascadeSpec,
    *,
    is_graded: bool | None = None,
    **fields: Any,
) -> LoggedDecisions:
    """Return lines of a decision log as a trace.

    Scores are losses where ``is_graded``: by default where one is neither 0 nor 1. Say so where
    these are some rows of many.
    """
    answers = [[row["nodes"].get(name) or {} for name in spec.names] for row in rows]

    def column(key: str, kind: type = float) -> NDArray[Any]:
        values = [[answer.get(key) for answer in line] for line in answers]
        return np.array(values, kind).reshape(len(rows), len(spec))  # None is NaN

    confidence, cost = column("confidence"), column("cost")
    parts = (part for row, line in zip(rows, answers, strict=True) for part in (row, *line))
    if any("score" in part for part in parts):  # labels alone are compared as classes are
        score = np.array([_scores(row, spec.names) for row in rows])
        is_known = ~np.isnan(score)
        # Thumbs are 0 and 1: right or wrong. Anything between is a grade.
        if is_graded is None:
            is_graded = not np.isin(score[is_known], (0, 1)).all()
        if is_known.any():
            right = np.where(is_known, score >= 0.5, np.nan)
            fields |= {"score": score} if is_graded else {"correct": right}
    for name in ("label", "prompt"):
        values = np.array([row.get(name) for row in rows], object)
        if any(value is not None for value in values):
            fields[name] = values
    stated = [row.get("inputs") or {} for row in rows]
    inputs = {  # an input that some requests lack cannot be read
        name: np.array([values[name] for values in stated], float)
        for name in stated[0]
        if len({np.shape(values.get(name, [[]])) for values in stated}) == 1
    }
    # A fit reads the latency of every node, or of none.
    latency = np.where(np.isnan(confidence), np.nan, column("seconds"))
    trace = Trace.from_arrays(
        spec,
        confidence,
        prediction=column("prediction", object),
        cost=cost,
        chance=column("chance"),
        latency=None if np.isnan(latency).all(axis=0).any() else latency,
        inputs=inputs,
        **fields,
    )
    # What the request cost by itself is no audit.
    more = [(row.get("judging") or 0.0) - (row.get("cost") or 0.0) for row in rows]
    return LoggedDecisions(
        trace,
        tuple(str(row.get("request")) for row in rows),
        np.array([row.get("time") or 0.0 for row in rows], float),
        np.array([row.get("drawn") or np.nan for row in rows], float),
        np.maximum(np.nansum(cost, axis=1) + more, 0.0),
        tuple(str(row.get("policy")) for row in rows),
        tuple(rows),
    )


def _scores(row: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Return the score of each answer to a request: the same answer has the same score."""
    answers = {name: row["nodes"].get(name) or {} for name in names}
    scores: dict[Any, float] = {}
    for name, answer in answers.items():
        # A score of the request is one of the answer that it returned.
        is_returned = row.get("by") == name and row.get("score") is not None
        score = row["score"] if is_returned else answer.get("score")
        if score is not None:
            scores[answer.get("prediction")] = float(score)
    predictions, label = [answer.get("prediction") for answer in answers.values()], row.get("label")
    if label is not None:
        return [np.nan if text is None else float(text == label) for text in predictions]
    return [np.nan if text is None else scores.get(text, np.nan) for text in predictions]
