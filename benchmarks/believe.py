"""What a step of a belief costs, and what fitting takes.

``session.observe`` of a policy on beliefs against a method that does nothing; and fits, in seconds,
on one thread.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from result import Result, show
from timing import Fresh, interleaved

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SCALAR = 50.0
CLASSES = 10


def measure() -> list[Result]:
    """Time single steps, and fits."""
    return [*_single(), *_fits()]


def answers(rows: int, nodes: int, *, kind: str = "models", seed: int = 0) -> tt.Trace:
    """Nodes that get better one by one, on inputs that are hard for all of them or for none."""
    generator = np.random.default_rng(seed)
    hard, label = generator.random(rows), generator.integers(0, CLASSES, rows)
    confidence, prediction = [], []
    for node in range(nodes):
        chance = np.clip(0.4 + 0.55 * (node + 1) / nodes + 0.5 * (0.5 - hard), 0.05, 0.99)
        right = generator.random(rows) < chance
        other = (label + generator.integers(1, CLASSES, rows)) % CLASSES
        prediction.append(np.where(right, label, other))
        confidence.append(np.clip(chance + 0.1 * generator.standard_normal(rows), 0, 1))
    return tt.Trace(
        tt.CascadeSpec.of({f"n{node}": 1.0 for node in range(nodes)}, kind=kind),
        np.stack(confidence, axis=1),
        prediction=np.stack(prediction, axis=1).astype(np.int32),
        label=label.astype(np.int32),
        classes=tuple(map(str, range(CLASSES))),
    )


def _single() -> list[Result]:
    class Empty:
        __slots__ = ()

        def observe(self, *, confidence: float, prediction: object = None) -> None:
            pass

    nodes = 4
    policy = tt.fit(answers(5_000, nodes, kind="exits"))[-1]

    def walk(turn: object) -> Callable[[], object]:
        def run() -> None:
            for node in range(nodes):
                turn.observe(confidence=0.3, prediction=str(node))  # type: ignore[attr-defined]

        return run

    times = interleaved(
        {"empty": Fresh(lambda: walk(Empty())), "belief": Fresh(lambda: walk(policy.session()))}
    )
    mine, none = (times.median(name) / nodes * 1e9 for name in ("belief", "empty"))
    note = f"{mine:.0f} ns against {none:.0f} ns"
    ratio = times.ratio("belief", "empty")
    return [
        Result.of_ratio("BeliefSession: observe, four exits", ratio, at_most=MAX_SCALAR, note=note)
    ]


def _fits() -> list[Result]:
    cases = (
        ("fit, 50,000 rows, 12 exits", answers(50_000, 12, kind="exits"), 60.0),
        ("fit, 20,000 rows, 6 models in any order", answers(20_000, 6), 120.0),
        ("fit, 5,000 rows, 10 models in any order", answers(5_000, 10), None),
    )
    results = []
    for name, trace, most in cases:
        start = perf_counter()
        tt.fit(trace)
        results.append(Result(name, perf_counter() - start, "s", at_most=most))
    return results


if __name__ == "__main__":
    show(measure())
