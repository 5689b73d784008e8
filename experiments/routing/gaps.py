"""Logs with gaps: how much of what a full log is worth is recovered from rows with gaps.

    python experiments/routing/gaps.py DATA --splits 8 --cases a b c d
    python experiments/routing/gaps.py --show

15% of the rows are complete. The others, by case:

a  one model was asked, at random;
b  a cascade of two was asked: the cheapest, then the best where the first is unsure;
c  all models were asked, and there is no label;
d  as b, and only the answer that was returned was judged.

Recovered is the share of the distance, in area, between a fit to the complete rows alone and one to
the full log. Each split is a line of ``results/gaps.jsonl``.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from sets import (
    EMBEDDER,
    LLM,
    SERVICES,
    load,
    mean_and_error,
    numbers,
    point,
    read_lines,
    score,
    split,
    write_line,
)

import ttamer as tt

RESULTS = Path(__file__).resolve().parent / "results"
Bools = NDArray[np.bool_]
ROWS, COMPLETE, UNSURE = 1500, 0.15, 0.5  # a cascade goes on with the less sure half


def gapped(trace: tt.Trace, asked: Bools, judged: Bools) -> tt.Trace:
    """Return a log in which only some models were asked, and only some answers judged."""
    nothing = ~asked
    known = asked & judged
    fields = {
        "confidence": np.where(nothing, np.nan, trace.confidence),
        "prediction": np.where(nothing, -1, trace.prediction),
        "cost": np.where(nothing, np.nan, trace.costs),
    }
    if trace.raw_loss is not None:
        fields["raw_loss"] = np.where(known, trace.raw_loss, np.nan)
    else:
        fields["correct"] = np.where(known, trace.correct, -1)
    return dataclasses.replace(trace, **fields)


def log_of(case: str, trace: tt.Trace, complete: Bools, seed: int) -> tt.Trace:
    """Return the log of a case."""
    rows, nodes = trace.loss.shape
    generator = np.random.default_rng([seed, 9])
    every = np.arange(rows)
    asked = np.zeros((rows, nodes), bool)
    judged = np.ones((rows, nodes), bool)
    if case == "a":
        asked[every, generator.integers(nodes, size=rows)] = True
    elif case == "c":
        asked[:], judged[:] = True, complete[:, None]
    else:
        first, last = int(trace.costs.mean(axis=0).argmin()), int(trace.loss.mean(axis=0).argmin())
        confidence = trace.confidence[:, first]
        on = confidence <= np.quantile(confidence, UNSURE)
        if confidence.std() == 0:  # none logged: by chance
            on = generator.random(rows) < UNSURE
        asked[:, first], asked[on, last] = True, True
        if case == "d":
            judged[:] = False
            judged[every, np.where(on, last, first)] = True
            judged[complete] = True
    asked[complete] = True
    return gapped(trace, asked, judged)


def area(log: tt.Trace, fit: tt.Trace, test: tt.Trace) -> float:
    """Fit to a log, and return the area on other rows."""
    ladder = tt.fit(log, embedders=EMBEDDER if log.inputs else None)
    points = [point(test, p.asked, p.answer) for p in ladder.play_all(test)]
    return round(score(points, fit, test).area, 4)


def run(args: argparse.Namespace) -> None:
    """Measure what is not measured yet."""
    args.results.mkdir(exist_ok=True)
    path = args.results / "gaps.jsonl"
    done = {(line["set"], line["seed"]): line for line in read_lines(path)}
    for seed in numbers(args.splits):
        for name in args.sets:
            line = dict(done.get((name, seed), {"set": name, "seed": seed}))
            left = [case for case in args.cases if case not in line]
            if not left:
                continue
            fit, test = split(load(name, args.data), seed, ROWS)
            complete = np.random.default_rng([seed, 8]).random(len(fit)) < COMPLETE
            if "full" not in line:
                line["complete"] = area(fit.take(complete), fit, test)
                line["full"] = area(fit, fit, test)
            for case in left:
                line[case] = area(log_of(case, fit, complete, seed), fit, test)
            print(line, flush=True)
            write_line(path, **line)


def show(folder: Path) -> None:
    """Print the table: what is recovered, and the area over that of complete rows alone."""
    lines = {(line["set"], line["seed"]): line for line in read_lines(folder / "gaps.jsonl")}
    cases = sorted({key for line in lines.values() for key in line if len(key) == 1})
    print(f"| set (splits) | complete | full | {' | '.join(cases)} |")
    print("|---" * (len(cases) + 3) + "|")
    recovered: dict[str, list[float]] = {case: [] for case in cases}
    for name in dict.fromkeys(name for name, _ in lines):
        own = [line for (other, _), line in lines.items() if other == name]
        complete, full = (fmean(line[key] for line in own) for key in ("complete", "full"))
        cells = []
        for case in cases:
            known = [line for line in own if case in line]
            if not known:
                cells.append("-")
                continue
            whole = fmean(line["complete"] - line["full"] for line in known)
            share = fmean(line["complete"] - line[case] for line in known) / whole
            recovered[case].append(share)
            mean, error = mean_and_error(line[case] / line["complete"] for line in known)
            cells.append(f"{share:.2f} ({mean:.3f} ± {error:.3f})")
        print(f"| {name} ({len(own)}) | {complete:.3f} | {full:.3f} | {' | '.join(cells)} |")
    means = [f"{fmean(shares):.2f}" for shares in recovered.values()]
    print(f"| *mean* | | | {' | '.join(means)} |")


def main() -> None:
    """Run, then show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--splits", default="8", help="how many, or from:to")
    parser.add_argument("--cases", nargs="+", default=["a", "b", "c", "d"])
    parser.add_argument("--sets", nargs="+", default=[*SERVICES, *LLM])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="only print the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.show:
        run(args)
    show(args.results)


if __name__ == "__main__":
    main()
