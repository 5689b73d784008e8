"""How well the drift loop adapts, and how often it raises an alarm for nothing.

    python experiments/drift/adapt.py [--streams NAME ...] [--runs 10] [--quiet-runs 200]

For every stream: several runs with different draws of the rows fitted to and of the audits, target
"last" (agreement with the full network), an error of at most 5% promised with confidence 0.95, a
fifth of the rows audited. Then quiet runs: the rows before the shift are shuffled again, a policy
is fitted and certified on the first 4,000, and the other 3,000 are all audited: how often is there
an alarm? Half an hour on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ttamer as tt
from ttamer.drift import Loop, LoopSettings, serving_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

AT_MOST = 0.05
AUDITED = 0.2
SETTINGS = LoopSettings(AT_MOST)
# Rows that are served before the loop takes the audited ones among them.
BATCH = 20


def one_run(name: str, seed: int) -> dict[str, Any]:
    """Replay a stream once: mean error and cost of each arm before and after the change."""
    stream = traces.stream(name)
    fitted, held = stream.fit.split(0.6, seed)
    serving = serving_of(tt.fit(fitted), held, SETTINGS)
    loop, count = Loop(serving, SETTINGS), len(stream.rows)
    audited = np.random.default_rng([seed, 5]).random(count) < AUDITED
    last = serving.ladder.alone(stream.rows.names[-1])
    measured = []
    for begin in range(0, count, BATCH):
        numbers = np.arange(begin, min(begin + BATCH, count))
        rows = stream.rows.take(numbers)
        arms = {"adapted": loop.policy, "fixed": serving.policy, "last node": last}
        results = {arm: tt.evaluate(policy, rows, resamples=0) for arm, policy in arms.items()}
        measured.append({arm: (result.error, result.cost) for arm, result in results.items()})
        drawn = np.flatnonzero(audited[numbers])
        if drawn.size:
            loop.update(rows.take(drawn), numbers[drawn].tolist())

    def first(kind: str) -> int | None:
        return next((event.number for event in loop.events if event.kind == kind), None)

    alarm, swap = first("alarm"), first("swap")
    print(f"{name} {seed}: alarm {alarm}, swap {swap}", flush=True)
    parts = {"before": (0, stream.shift), "at the end": (count - 1000, count)}
    if alarm is not None:
        parts["to the alarm"] = (stream.shift, alarm)
    if swap is not None:
        parts["since the swap"] = (swap, count)
    means = {
        part: np.mean([list(at.values()) for at in measured[begin // BATCH : -(-end // BATCH)]], 0)
        for part, (begin, end) in parts.items()
        if begin < end
    }
    until = {
        f"audited rows to the {what}": int(audited[stream.shift : number + 1].sum())
        for what, number in (("alarm", alarm), ("swap", swap))
        if number is not None
    }
    return {"means": means, "until": until}


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """Print the medians of some runs."""
    print(f"\n{name}, medians of {len(runs)} runs")
    for part in ("before", "to the alarm", "since the swap", "at the end"):
        means = [run["means"][part] for run in runs if part in run["means"]]
        for number, arm in enumerate(("adapted", "fixed", "last node") if means else ()):
            error, cost = (median(mean[number, what] for mean in means) for what in (0, 1))
            print(f"  {part:15} {arm:10} error {error:.2%}  cost {cost:.3f}  ({len(means)} runs)")
    for what in ("audited rows to the alarm", "audited rows to the swap"):
        if counts := [run["until"][what] for run in runs if what in run["until"]]:
            print(f"  {what}: median {median(counts)}, from {min(counts)} to {max(counts)}")
    swapped = [run["means"]["since the swap"] for run in runs if "since the swap" in run["means"]]
    kept = sum(mean[0, 0] <= AT_MOST for mean in swapped)
    print(f"  inside the promise since the swap: {kept} of {len(swapped)} runs that swapped\n")


def quiet(name: str, runs: int) -> None:
    """Print how often there is an alarm on rows that do not change."""
    stream = traces.stream(name)
    rows = tt.Trace.concat([stream.fit, stream.rows.take(slice(stream.shift))])
    first = len(stream.fit)
    alarms: Counter[str] = Counter()
    for seed in range(runs):
        mixed = rows.take(np.random.default_rng([seed, 17]).permutation(len(rows)))
        fitted, held = mixed.take(slice(first)).split(0.6, seed)
        loop = Loop(serving_of(tt.fit(fitted), held, SETTINGS), SETTINGS)
        later = mixed.take(slice(first, None))
        loop.update(later, range(len(later)))
        alarms.update(event.facts["test"] for event in loop.events[:1])
    print(f"{name}: {alarms.total()} of {runs} quiet runs raised an alarm {dict(alarms)}\n")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", nargs="+", default=list(traces.STREAMS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quiet-runs", type=int, default=200)
    args = parser.parse_args()
    for name in args.streams:
        if args.runs:
            show(name, [one_run(name, seed) for seed in range(args.runs)])
        if args.quiet_runs:
            quiet(name, args.quiet_runs)


if __name__ == "__main__":
    main()
