"""Traces small enough to see the right answer, and how to look at what a rule did on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines import FAMILIES
from ttamer.cascade import CascadeSpec
from ttamer.evaluation.results import measure
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from ttamer.fitting.replay import Setting

# Three exits; the first is right where it is sure, the second on all but the last row.
SURE = [[0.9, 0.9, 0.9], [0.8, 0.9, 0.9], [0.2, 0.7, 0.9], [0.1, 0.3, 0.5]]
RIGHT = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]


def make(confidence, correct=None, *, costs=None, kind="models", target="label", **fields) -> Trace:
    """A trace of nodes a, b, c, ... at costs 1, 2, 3, ... unless said otherwise."""
    confidence = np.array(confidence, float)
    count = confidence.shape[1]
    costs = list(range(1, count + 1)) if costs is None else costs
    spec = CascadeSpec.of(dict(zip("abcdefghijkl", costs, strict=False)), kind=kind, target=target)
    if correct is not None:
        fields["correct"] = np.array(correct, bool)
    if "prediction" in fields:
        return Trace.from_arrays(spec, confidence, **fields)
    return Trace(spec, confidence, **fields)


def fit(name: str, trace: Trace) -> list[Setting]:
    return FAMILIES[name].fit(trace)


def points(settings: list[Setting], trace: Trace) -> list[tuple[float, float]]:
    """(cost, error) of each setting."""
    results = [measure(s.rule.play(trace), trace, resamples=0) for s in settings]
    return [(r.cost, r.error) for r in results]


def asked(setting: Setting, trace: Trace) -> list[str]:
    """Whom it asked on each row, in the order of the cascade."""
    table = setting.rule.play(trace).asked
    return ["".join(np.array(trace.names)[row]) for row in table]


def answers(setting: Setting, trace: Trace) -> str:
    return "".join(trace.names[v] for v in setting.rule.play(trace).answer)


def random_trace(seed: int, *, nodes: int, rows: int, **fields) -> Trace:
    rng = np.random.default_rng(seed)
    said = rng.integers(0, 4, (rows, nodes)).astype(float)
    prediction = rng.integers(0, 2, (rows, nodes)).astype(str)
    costs = rng.choice([0.5, 1.0, 2.0, 4.0], nodes)
    if seed % 2:
        fields["cost"] = rng.choice([0.5, 1.0, 3.0], (rows, nodes))
    label = rng.integers(0, 2, rows).astype(str)
    return make(said, prediction=prediction, label=label, costs=costs, **fields)


def best_at(found: list[tuple[float, float]], price: float) -> float:
    return min(error + price * cost for cost, error in found)


PRICES = [0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0]
