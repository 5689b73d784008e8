"""Simulated traces whose law is known, and hypothesis strategies for small ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ttamer.cascade import CascadeSpec
from ttamer.trace.io import batches_of, open_source
from ttamer.trace.trace import Trace


def read_batches(path, cascade=None, *, rows=1 << 18, on_bad="refuse"):
    """Read a file as traces of at most ``rows`` rows."""
    return batches_of(open_source(path), cascade, on_bad, rows)


def chain_trace(rows: int, *, seed: int = 0, nodes: int = 3, kind: str = "exits") -> Trace:
    """Exits whose confidence levels follow a known Markov chain, each right with that chance.

    Confidences take the values 0.3, 0.6, 0.9; a node is right with probability its confidence.
    """
    generator = np.random.default_rng(seed)
    levels = np.array([0.3, 0.6, 0.9])
    states = np.empty((rows, nodes), int)
    states[:, 0] = (generator.random(rows)[:, np.newaxis] > np.cumsum(FIRST)[:-1]).sum(axis=1)
    for node in range(1, nodes):
        cumulative = np.cumsum(ROWS, axis=1)[states[:, node - 1], :-1]
        states[:, node] = (generator.random(rows)[:, np.newaxis] > cumulative).sum(axis=1)
    confidence = levels[states]
    correct = generator.random((rows, nodes)) < confidence
    spec = CascadeSpec.of({f"exit{i + 1}": 1.0 + i for i in range(nodes)}, kind=kind)
    return Trace(spec, confidence, correct=correct)


def passing_trace(rows: int, *, seed: int = 0) -> Trace:
    """Exits of one network that may be passed; the middle one is the cheapest to ask."""
    trace = chain_trace(rows, seed=seed)
    spec = CascadeSpec.of(
        {"exit1": 3.0, "exit2": 2.0, "exit3": 4.0},
        kind="exits",
        reach={"exit1": 1.5, "exit2": 0.25},
    )
    return Trace(spec, trace.confidence, correct=trace.correct)


FIRST = np.array([0.5, 0.3, 0.2])
ROWS = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.05, 0.15, 0.8]])


def answering_trace(rows: int, *, seed: int = 0, kind: str = "models", classes: int = 4) -> Trace:
    """Separate models with predictions and labels; better ones cost more."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, rows)
    hard = generator.random(rows)
    confidence, prediction = [], []
    for skill in (0.5, 0.7, 0.9):
        chance = np.clip(skill + 0.5 * (0.5 - hard), 0.05, 0.99)
        right = generator.random(rows) < chance
        other = (label + generator.integers(1, classes, rows)) % classes
        prediction.append(np.where(right, label, other))
        confidence.append(np.clip(chance + 0.1 * generator.standard_normal(rows), 0, 1))
    spec = CascadeSpec.of({"small": 1.0, "middle": 4.0, "large": 20.0}, kind=kind)
    names = [f"c{i}" for i in range(classes)]
    return Trace(
        spec,
        np.stack(confidence, axis=1),
        prediction=np.stack(prediction, axis=1).astype(np.int32),
        label=label.astype(np.int32),
        classes=tuple(names),
    )


@st.composite
def small_traces(draw, least: int = 10, most: int = 40, nodes: int = 4) -> Trace:
    """Small traces with ties, constant columns, free nodes and costs per row kept likely."""
    count = draw(st.integers(1, nodes))
    rows = draw(st.integers(least, most))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.integers(1, 6))
    confidence = generator.integers(0, levels, (rows, count)) / levels
    prediction = generator.integers(0, 3, (rows, count)).astype(np.int32)
    label = generator.integers(0, 3, rows).astype(np.int32)
    costs = draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=count, max_size=count))
    spec = CascadeSpec.of(
        {f"n{i}": cost for i, cost in enumerate(costs)},
        kind=draw(st.sampled_from(["exits", "models"])),
        target=draw(st.sampled_from(["label", "last"])),
    )
    per_row = generator.random((rows, count)) if draw(st.booleans()) else None
    return Trace(
        spec,
        confidence,
        prediction=prediction,
        label=label,
        classes=("a", "b", "c"),
        **({} if per_row is None else {"cost": per_row}),
    )
