"""How well the drift loop adapts, and how often it raises an alarm for nothing.

    python experiments/drift/adapt.py [--streams NAME ...] [--runs 10] [--quiet-runs 200]
                                      [--json FILE] [--pictures DIR]

For every stream of the package: several runs with different draws of the rows fitted to and of the
audits, target "last" (agreement with the full network), an error of at most 5% promised with
confidence 0.95, a fifth of the rows audited. Then quiet runs: the rows before the shift are
shuffled again, a policy is fitted and certified on the first 4,000, and the other 3,000 are all
audited: how often is there an alarm? Half an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from replay import replay_stream

import ttamer as tt
from ttamer.drift.loop import LoopSettings, serving_of
from ttamer.drift.monitor import Bound, Monitor, decide
from ttamer.reporting import save_figure
from ttamer.stats.bounds import binomial_upper
from ttamer.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces
from figure import draw_replay
from retuned_thresholds import beside

AT_MOST = 0.05
AUDITED = 0.2
SETTINGS = LoopSettings(AT_MOST)
LATER = 1000
"""The number of last rows that error and cost at the end are measured on."""


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", nargs="+", default=list(traces.STREAMS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quiet-runs", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for name in args.streams:
        found[name] = {}
        if args.runs:
            runs = [one_run(name, seed, args.pictures) for seed in range(args.runs)]
            found[name]["adaptation"] = runs
            show(name, runs)
        if args.quiet_runs:
            found[name]["quiet"] = quiet(name, args.quiet_runs)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def one_run(name: str, seed: int, pictures: Path | None) -> dict[str, Any]:
    """Replay a stream once, and return its measurements."""
    stream = traces.stream(name)
    fitted, held = stream.fit.split(0.6, seed)
    serving = serving_of(tt.fit(fitted), held, SETTINGS)
    replayed = replay_stream(serving, stream.rows, SETTINGS, share=AUDITED, seed=seed)
    replayed = beside(replayed, stream.fit, stream.rows, window=SETTINGS.refit_rows)
    if pictures is not None and seed == 0:
        figure = draw_replay(replayed, shift=stream.shift, title=title_of(name))
        save_figure(figure, pictures / f"drift-{name}.png")

    def first(kind: str) -> int | None:
        return next((e.number for e in replayed.events if e.kind == kind), None)

    alarm, swap = first("alarm"), first("swap")
    count = len(replayed)
    run: dict[str, Any] = {
        "certified": serving.promise is not None and serving.promise.certified,
        "alarm": alarm,
        "by": next((e.facts["test"] for e in replayed.events if e.kind == "alarm"), None),
        "change": next((e.facts["change"] for e in replayed.events if e.kind == "alarm"), None),
        "swap": swap,
        "false_alarm": alarm is not None and alarm < stream.shift,
        "audited_to_alarm": None,
        "audited_to_swap": None,
        "audit_cost": replayed.audit_cost,
        "swaps": sum(e.kind == "swap" for e in replayed.events),
        "before": replayed.between(0, stream.shift),
        "after": replayed.between(stream.shift, count),
        "end": replayed.between(count - LATER, count),
    }
    if alarm is not None:
        run["audited_to_alarm"] = replayed.between(stream.shift, alarm + 1)["audited"]
        if alarm >= stream.shift:
            run["to_alarm"] = replayed.between(stream.shift, alarm + 1)
    if swap is not None and swap + 1 < count:
        run["audited_to_swap"] = replayed.between(stream.shift, swap + 1)["audited"]
        run["since_swap"] = replayed.between(swap + 1, count)
    print(f"{name} {seed}: alarm {alarm} ({run['by']}), swap {swap}", flush=True)
    return run


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """Print the medians of some runs."""

    def middle(part: str, arm: str, what: str) -> float:
        return median(run[part][arm][what] for run in runs if part in run)

    print(f"\n{name}, medians of {len(runs)} runs")
    for part in ("before", "to_alarm", "since_swap", "end"):
        if not any(part in run for run in runs):
            continue
        print(f"  {part}")
        for arm in ("adapted", "fixed", "retuned", "fallback"):
            error, cost = (middle(part, arm, what) for what in ("error", "cost"))
            print(f"    {arm:8} error {error:.2%}  cost {cost:.3f}")
    for what in ("audited_to_alarm", "audited_to_swap"):
        known = [run[what] for run in runs if run[what] is not None]
        if known:
            print(f"  {what}: median {median(known)}, from {min(known)} to {max(known)}")
    swapped = [run for run in runs if "since_swap" in run]
    kept = sum(run["since_swap"]["adapted"]["error"] <= AT_MOST for run in swapped)
    print(f"  inside the promise since the swap: {kept} of {len(swapped)} runs that swapped")
    tuned = sum(run["end"]["retuned"]["error"] <= AT_MOST for run in runs)
    fixed = sum(run["end"]["fixed"]["error"] <= AT_MOST for run in runs)
    print(f"  inside it at the end: re-tuned {tuned}, without adaptation {fixed} of {len(runs)}\n")


def quiet(name: str, runs: int) -> dict[str, Any]:
    """Return how often there is an alarm on rows that do not change."""
    stream = traces.stream(name)
    rows = Trace.concat([stream.fit, stream.rows.take(slice(stream.shift))])
    first = len(stream.fit)
    alarms: dict[str, int] = {}
    for seed in range(runs):
        order = np.random.default_rng([seed, 17]).permutation(len(rows))
        mixed = rows.take(order)
        fitted, held = mixed.take(slice(first)).split(0.6, seed)
        serving = serving_of(tt.fit(fitted), held, SETTINGS)
        later = mixed.take(slice(first, None))
        monitor = Monitor(
            reference=decide(serving.policy, held),
            bound=Bound("error", AT_MOST),
            false_alarms=SETTINGS.false_alarms,
            seed=seed,
        )
        alarm = monitor.update(decide(serving.policy, later), range(len(later)))
        if alarm is not None:
            alarms[alarm.test] = alarms.get(alarm.test, 0) + 1
        if seed % 20 == 19:
            print(f"{name}: {sum(alarms.values())} alarms in {seed + 1} quiet runs", flush=True)
    count = sum(alarms.values())
    most = binomial_upper(count, runs, 0.05)
    print(
        f"{name}: {count} of {runs} quiet runs raised an alarm {alarms}; rate at most {most:.2%} "
        "with confidence 0.95\n",
        flush=True,
    )
    return {
        "runs": runs,
        "rows": len(rows) - first,
        "alarms": count,
        "tests": alarms,
        "rate_at_most": most,
    }


def title_of(name: str) -> str:
    """Return the title of a stream's picture."""
    title: str = traces.about(name)["title"]
    return title.split(":")[0]


if __name__ == "__main__":
    main()
