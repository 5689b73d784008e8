"""What many tradeoffs cost, and how large a problem is still comfortable."""

from __future__ import annotations

import tracemalloc

import numpy as np
from problems import line_data, random_forest
from result import Result, show
from timing import interleaved

import ttamer as tt

TRADEOFF = 0.6
TRADEOFFS = np.linspace(0, 1, 100)
MAX_SECONDS = 5.0
"""What we take "in seconds" to mean."""


def measure() -> list[Result]:
    """Time a ladder against one solve; a long wide line; forests."""
    line = tt.Problem.line(*line_data(12, 64))
    index = line.with_moves("precedence")
    times = interleaved(
        {
            "one": lambda: tt.solve(line, TRADEOFF),
            "ladder": lambda: tt.solve_ladder(line, TRADEOFFS),
            "index one": lambda: tt.solve(index, TRADEOFF),
            "index ladder": lambda: tt.solve_ladder(index, TRADEOFFS),
        },
        rounds=15,
    )
    results = []
    for what, many, one, most in (
        ("walk: 100 tradeoffs against one", "ladder", "one", 130.0),
        ("index: 100 tradeoffs against one", "index ladder", "index one", None),
    ):
        note = f"{times.median(many) * 1e3:.1f} ms against {times.median(one) * 1e3:.2f} ms"
        results.append(Result.of_ratio(what, times.ratio(many, one), at_most=most, note=note))

    wide = tt.Problem.line(*line_data(100, 256))
    common = random_forest(200, 32, common=True)
    distinct = random_forest(200, 32, common=False)
    large = {
        "line, 100 nodes, 256 states": lambda: tt.solve(wide, TRADEOFF),
        "forest, 200 nodes, 32 states, common support": lambda: tt.solve(common, TRADEOFF),
        "forest, 200 nodes, 32 states, distinct supports": lambda: tt.solve(distinct, TRADEOFF),
    }
    times = interleaved(large, rounds=7)
    results += [Result(what, times.median(what), "s", at_most=MAX_SECONDS) for what in large]
    tracemalloc.start()
    policy = tt.solve(wide, TRADEOFF)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    note = f"{kept / 1e6:.0f} MB of it kept by the policy of value {policy.value:.4g}"
    results.append(Result("peak memory of that line", peak / 1e6, unit="MB", note=note))
    return results


if __name__ == "__main__":
    show(measure())
