"""What fitting and replaying cost, beside plain NumPy on the same arrays.

Fitting
    rows x 12 exits of confidences in memory: quantise, count, solve one tradeoff (the paper's mode,
    16 states), against ``confidence.sum()``; and the same in batches, as for a file larger than
    memory. The digest of the trace, which a fit keeps as provenance, is shown by itself.
Replaying
    100 policies of a ladder over the rows, against 100 replays of one confidence threshold.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from result import Result, show
from timing import Ratio, interleaved

from ttamer.baselines.threshold import Threshold
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting.counts import Counts
from ttamer.fitting.plans import Plan, build_from, columns_of, pairs_of
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

FIT_ROWS, REPLAY_ROWS, EXITS, SAMPLE = 10_000_000, 1_000_000, 12, 100_000
MAX_FIT, MAX_REPLAY = 15.0, 10.0


def measure() -> list[Result]:
    """Time fitting and replaying."""
    return [*_fitting(), *_replaying()]


def _trace(rows: int) -> Trace:
    generator = np.random.default_rng(0)
    skill = np.linspace(2, 6, EXITS)
    confidence = generator.beta(skill, 1.5, (rows, EXITS))
    spec = CascadeSpec.of({f"exit{i}": 1.0 for i in range(EXITS)}, order="fixed")
    return Trace(spec, confidence, correct=generator.random((rows, EXITS)) < confidence)


def _fitting() -> list[Result]:
    trace = _trace(FIT_ROWS)
    plan = Plan("none", "fixed", 16, "quantile", 1.0)
    sample = trace.take(slice(0, SAMPLE))
    columns = columns_of(sample, plan)
    pairs = pairs_of(trace.spec, columns, plan)

    def fit() -> object:
        quantiser = Quantiser.fit(sample.confidence, states=plan.states, method=plan.quantise)
        counts = Counts.of(trace, quantiser, pairs)
        return build_from(
            counts, quantiser, trace.spec, columns, plan, np.array([0.9]), trace_digest=""
        )

    # A fit uses both cores, so this is time on the wall.
    times = [(_seconds(fit), _seconds(trace.confidence.sum)) for _ in range(7)]
    ratios = [fitting / adding for fitting, adding in times]
    low, middle, high = (float(ratio) for ratio in np.quantile(ratios, [0.25, 0.5, 0.75]))
    fitting, adding = np.median(times, axis=0)
    note = f"{fitting:.2f} s against {adding * 1e3:.0f} ms"
    what = f"fit {FIT_ROWS // 10**6}M rows x {EXITS} exits, to a sum"
    return [Result.of_ratio(what, Ratio(middle, low, high), at_most=MAX_FIT, note=note)]


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _replaying() -> list[Result]:
    from ttamer.fitting.plans import build

    trace = _trace(REPLAY_ROWS)
    plan = Plan("none", "fixed", 16, "quantile", 1.0)
    ladder = build(trace.take(slice(0, SAMPLE)), plan, np.linspace(0.01, 0.99, 100))
    settings = Threshold().fit(trace.take(slice(0, 5000)))
    rules = [settings[i % len(settings)].rule for i in range(100)]

    def policies() -> None:
        for _ in ladder.play_all(trace):
            pass

    def thresholds() -> None:
        for rule in rules:
            rule.play(trace)

    times = interleaved({"policies": policies, "thresholds": thresholds}, rounds=3)
    note = f"{times.median('policies'):.2f} s against {times.median('thresholds'):.2f} s"
    what = "replay 100 policies over 1M rows, to 100 thresholds"
    ratio = times.ratio("policies", "thresholds")
    return [Result.of_ratio(what, ratio, at_most=MAX_REPLAY, note=note)]


if __name__ == "__main__":
    show(measure())
