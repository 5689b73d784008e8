"""What a decision costs, many at once and one at a time.

Many at once
    against the comparison ``confidence >= threshold`` over as many float64 numbers (written with
    ``out=`` or without, whichever is faster): a step of a batch, which also routes, pays and keeps
    answers.
One at a time
    ``session.observe`` against a method that does nothing; the loop around both is taken off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from problems import line_data
from result import Result, show
from timing import Fresh, interleaved

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

SIZES = {"1k": 1_000, "4k": 4_096, "64k": 65_536, "1M": 1_048_576}
MAX_SCALAR = 15.0
NODES, STATES, TRADEOFF = 12, 64, 0.6


def measure() -> list[Result]:
    """Time batched and single decisions."""
    return [*_batched(), *_single()]


def _batched() -> list[Result]:
    policy = tt.solve(tt.Problem.line(*line_data(NODES, STATES)), TRADEOFF)
    found = []
    for label, size in SIZES.items():
        confidence, states = _inputs(size)
        flags = np.empty(size, bool)

        def first_step(size: int = size, states: Bytes = states) -> Callable[[], object]:
            fresh = policy.batch(size)
            return lambda: fresh.observe(states)

        times = interleaved(
            {
                "plain": lambda c=confidence: c >= 0.5,
                "out": lambda c=confidence, o=flags: np.greater_equal(c, 0.5, out=o),
                "batch.observe": Fresh(first_step),
            }
        )
        plain = min(times.median("plain"), times.median("out"))
        note = f"{times.median('batch.observe') * 1e6:.1f} us against {plain * 1e6:.2f} us"
        ratio = times.ratio("batch.observe", "plain", "out")
        found.append(Result.of_ratio(f"batch.observe, {label} inputs", ratio, note=note))
    return found


def _single() -> list[Result]:
    class Empty:
        __slots__ = ()

        def observe(self, state: int) -> None:
            pass

    count = 200
    states = [0] * count  # where the loss is 1, and going on always worth its cost
    losses, costs, row = [1.0, 0.0], [0.01] * count, [0.5, 0.5]
    line = tt.Problem.line(losses, costs, [row, *[[row, row]] * (count - 1)])
    roots = tt.Problem.forest(losses, costs, [row] * count, [None] * count)
    policies = {
        "WalkSession": tt.solve(line, 0.5),
        "LastAnswerSession": tt.solve(line, 0.5, recall=False),
        "IndexSession, a line": tt.solve(line.with_moves("precedence"), 0.5),
        f"IndexSession, {count} roots": tt.solve(roots, 0.5),
    }

    def walk(turn: object) -> Callable[[], object]:
        observe = turn.observe  # type: ignore[attr-defined]

        def run() -> None:
            for state in states:
                observe(state)

        return run

    def bare() -> None:
        for _ in states:
            pass

    times = interleaved(
        {
            "bare": bare,
            "empty": Fresh(lambda: walk(Empty())),
            **{
                name: Fresh(lambda p=policy: walk(p.session())) for name, policy in policies.items()
            },
        },
        rounds=61,
    )
    loop = times.median("bare")
    empty = (times.median("empty") - loop) / count
    results = []
    for name in policies:
        taken = (times.median(name) - loop) / count
        note = f"{taken * 1e9:.0f} ns against {empty * 1e9:.0f} ns"
        ratio = times.ratio(name, "empty", less="bare")
        results.append(Result.of_ratio(f"{name}: observe", ratio, at_most=MAX_SCALAR, note=note))
    return results


def _inputs(size: int) -> tuple[NDArray[np.float64], Bytes]:
    rng = np.random.default_rng(size)
    states = rng.integers(0, STATES, size).astype(np.uint8)
    return rng.random(size), states


if __name__ == "__main__":
    show(measure())
