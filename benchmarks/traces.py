"""What replaying costs: 100 policies of a ladder, against 100 replays of one threshold."""

from __future__ import annotations

import numpy as np
from result import Result, show
from timing import interleaved

from ttamer.baselines import FAMILIES
from ttamer.cascade import CascadeSpec
from ttamer.fitting.fits import fit
from ttamer.trace.trace import Trace

REPLAY_ROWS, EXITS, SAMPLE = 1_000_000, 12, 100_000
MAX_REPLAY = 10.0


def measure() -> list[Result]:
    """Time replaying."""
    return _replaying()


def _trace(rows: int) -> Trace:
    generator = np.random.default_rng(0)
    skill = np.linspace(2, 6, EXITS)
    confidence = generator.beta(skill, 1.5, (rows, EXITS))
    spec = CascadeSpec.of({f"exit{i}": 1.0 for i in range(EXITS)}, kind="exits")
    return Trace(spec, confidence, correct=generator.random((rows, EXITS)) < confidence)


def _replaying() -> list[Result]:
    trace = _trace(REPLAY_ROWS)
    tradeoffs = np.linspace(0.01, 0.99, 100)
    ladder = fit(trace.take(slice(0, SAMPLE)), belief="markov", states=16, tradeoffs=tradeoffs)
    settings = FAMILIES["threshold"].fit(trace.take(slice(0, 5000)))
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
