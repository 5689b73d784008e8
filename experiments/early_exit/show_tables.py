"""Print what tables.py measured as tables for README.md.

    python experiments/early_exit/show_tables.py experiments/early_exit/results/*.json [--all]

One row per batch size: the full network's p50 and rows per second; then per rule and allowance its
error, speed-up (mean times), p50 and p99, exits asked, and the share of the bound that it reaches.
Then the network cut after its first exit that errs at most so much more on the rows fitted to, by
the times of its segments: what a policy must beat.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ttamer import datasets

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace


def main() -> None:
    """Print the tables of some files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--all", action="store_true", help="every rule, with p50 and p99")
    args = parser.parse_args()
    for path in args.files:
        report = json.loads(path.read_text("utf-8"))
        name = path.stem.removeprefix("table-")
        print(f"\n**{name}**, {report['device']}, torch {report['torch']}\n")
        print("\n".join(every(report) if args.all else summary(report)))
        print("\n".join(cuts(report, datasets.load(name))))


def summary(report: dict) -> list[str]:
    """Return one line per precision, engine and batch size."""
    lines = [
        "| precision, engine | batch | full: ms, rows/s | one threshold, +1 | its ramps ours, +1 | "
        "ours, +0 | ours, +1 | of the bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((x["precision"], x["engine"]) for x in report["lines"]):
        some = [x for x in report["lines"] if (x["precision"], x["engine"]) == key]
        for batch in sorted({x["batch"] for x in some}):
            here = [x for x in some if x["batch"] == batch]
            full = here[0]
            shown = (("threshold", 0.01), ("same ramps", 0.01), ("ours", 0.0), ("ours", 0.01))
            cells = [found(here, rule, level) for rule, level in shown]
            ours = [x for x in here if x["rule"] == "ours" and "bound" in x]
            shares = ", ".join(f"{x['speed_up'] / x['bound']:.0%}" for x in ours) or "-"
            lines.append(
                f"| {' '.join(key)} | {batch} | {1e3 * full['p50']:.2f}, "
                f"{full['rows_per_second']:,.0f} | {' | '.join(cells)} | {shares} |"
            )
    return lines


def cuts(report: dict, trace: Trace) -> list[str]:
    """Return the error and the speed-up of the network cut after one exit, by batch size."""
    lines = []
    for key, profile in report["profiles"].items():
        places = [trace.names.index(name) for name in profile["names"]]
        halves = np.array_split(trace.wrong()[:, places], 2)
        known, test = (half.mean(axis=0) for half in halves)
        for at, size in enumerate(profile["sizes"]):
            group = profile["groups"].index(size)
            times = np.cumsum([row[group] for row in profile["segments"]])
            times += profile["asking"][-1][at]
            for level in (0.0, 0.01):
                k = int(np.argmax(known <= known[-1] + level + 1e-12))
                lines.append(
                    f"{key}, batch {size}, +{100 * level:.0f}: cut after {profile['names'][k]}: "
                    f"{times[-1] / times[k]:.2f} times, {test[k]:.2%} (full {test[-1]:.2%})"
                )
    return lines


def found(lines: list[dict], rule: str, level: float) -> str:
    """Return the speed-up and the error of a rule at a level."""
    for line in lines:
        if line["rule"] == rule and line["more_error"] == level:
            if "recommended" in line:
                return "the network itself"
            return f"{line['speed_up']:.2f}, {line['error']:.2%}"
    return "-"


def every(report: dict) -> list[str]:
    """Return one line per measurement."""
    lines = [
        "| precision, engine | batch | rule | error | p50 ms | p99 ms | rows/s | speed-up | "
        "bound | exits asked | ramps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for x in report["lines"]:
        more = f" +{100 * x['more_error']:.0f}" if "more_error" in x else ""
        asked = f"{x['exits_asked']:.2f}" if "exits_asked" in x else ""
        bound = f"{x['bound']:.2f}" if "bound" in x else ""
        ramps = x.get("recommended") or ", ".join(x.get("ramps", []))
        lines.append(
            f"| {x['precision']} {x['engine']} | {x['batch']} | {x['rule']}{more} | "
            f"{x['error']:.2%} | {1e3 * x['p50']:.3f} | {1e3 * x['p99']:.3f} | "
            f"{x['rows_per_second']:,.0f} | {x['speed_up']:.2f} | {bound} | {asked} | {ramps} |"
        )
    return lines


if __name__ == "__main__":
    main()
