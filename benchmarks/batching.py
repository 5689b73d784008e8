"""What ``Cascade.run_batch`` adds to the models: against calling them on exactly the chosen rows.

Two dense networks in NumPy answer for arrays of rows; the small one is the large one with fewer
units, and wrong more often. The policy asks the large one on part of the rows.

``python benchmarks/run.py --only batching``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from result import Result
from timing import interleaved

import ttamer as tt
from ttamer.runtime import batched

ROWS = 10_000
"""Inputs of one batch."""

MAX_RATIO = 1.3
"""The target: time of the batch over the time of the models alone."""


def measure() -> list[Result]:
    """Time a batch and the models alone, for policies on confidence and on beliefs."""
    rng = np.random.default_rng(0)
    first, second, third = (rng.normal(size=size) for size in ((64, 512), (512, 512), (512, 10)))

    def scores(rows: Any, units: int) -> Any:
        hidden = np.maximum(np.maximum(rows @ first, 0)[:, :units] @ second[:units], 0)
        return hidden @ third

    def node(units: int) -> Any:
        def answer(rows: Any) -> tuple[Any, Any]:
            every = scores(rows, units)
            top = np.partition(every, -2, axis=1)
            return every.argmax(axis=1), top[:, -1] - top[:, -2]

        return batched(answer, size=None)

    nodes = {"small": node(256), "large": node(512)}
    fit_rows, rows = rng.normal(size=(4000, 64)), rng.normal(size=(ROWS, 64))
    replies = [each(fit_rows) for each in nodes.values()]
    trace = tt.Trace.from_arrays(
        tt.CascadeSpec.of({"small": 0.1, "large": 1.0}),
        np.column_stack([confidence for _, confidence in replies]),
        prediction=np.column_stack([prediction for prediction, _ in replies]),
        label=scores(fit_rows, 512).argmax(axis=1),
    )
    results = []
    for belief in ("answers", "markov"):
        ladder = tt.fit(trace, belief=belief)
        shares = [policy.play(trace).asked.mean(axis=0).sum() for policy in ladder]
        policy = ladder[int(np.argmin(np.abs(np.array(shares) - 1.5)))]
        cascade = tt.Cascade(policy, nodes)
        asked = cascade.run_batch(rows).asked
        chosen = [np.flatnonzero(column) for column in asked.T]

        def alone(chosen: Any = chosen) -> None:
            for each, at in zip(nodes.values(), chosen, strict=True):
                if len(at):
                    each(rows[at])

        times = interleaved(
            {"batch": lambda cascade=cascade: cascade.run_batch(rows), "alone": alone}, rounds=9
        )
        shown = ", ".join(
            f"{n} on {len(at) / ROWS:.0%}" for n, at in zip(nodes, chosen, strict=True)
        )
        results.append(
            Result.of_ratio(
                f"run_batch over its models, belief={belief}",
                times.ratio("batch", "alone"),
                at_most=MAX_RATIO,
                note=f"{ROWS:,} rows; {shown}",
            )
        )
    return results
