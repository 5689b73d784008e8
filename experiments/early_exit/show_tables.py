"""Print what tables.py measured as tables for README.md.

    python experiments/early_exit/show_tables.py experiments/early_exit/results/*.json [--all]

One row per precision, engine and batch size: the full network's p50 and rows per second; then per
rule and allowance its speed-up (mean times) and how many points more it errs than the network, with
a standard error; at +1, p50 and p99, millijoules per row (full, ours), operations as a share of the
network's; and the share of both bounds that is reached. Then batches run together by ``stream``,
and the network cut after its first exit that errs at most so much more on the rows fitted to, by
the times of its segments: what a policy must beat.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np


def main() -> None:
    """Print the tables of some files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--all", action="store_true", help="every rule, with p50 and p99")
    args = parser.parse_args()
    for path in args.files:
        report = json.loads(path.read_text("utf-8"))
        print(f"\n**{path.stem.removeprefix('table-')}**, {report['device']}, "
              f"torch {report['torch']}\n")  # fmt: skip
        print("\n".join(every(report) if args.all else summary(report)))
        print("\n".join([*streams(report), *cuts(report)]))


def summary(report: dict) -> list[str]:
    """Return one line per precision, engine and batch size."""
    lines = [
        "| precision, engine | batch | full: p50 ms, rows/s | threshold, +0 | threshold, +1 | "
        "ours, +0 | ours, +1 | p50, p99 ms | mJ/row: full, ours | operations | of the bound, +0, "
        "+1 | with the rest of a call |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((x["precision"], x["engine"]) for x in report["lines"]):
        some = [x for x in report["lines"] if (x["precision"], x["engine"]) == key]
        for batch in sorted({x["batch"] for x in some}):
            here = [x for x in some if x["batch"] == batch]
            full = next(x for x in here if x["rule"] == "full")
            shown = (("threshold", 0.0), ("threshold", 0.01), ("ours", 0.0), ("ours", 0.01))
            cells = [found(here, rule, level) for rule, level in shown]
            ours = [x for x in here if x["rule"] == "ours" and "bound" in x]
            last = ours[-1] if ours and ours[-1]["more_error"] > 0 else None
            cells += [] if last else ["-", "-", "-"]
            if last:
                cells.append(f"{1e3 * last['p50']:.2f}, {1e3 * last['p99']:.2f}")
                cells.append(energy(last))
                cells.append(f"{last['operations']:.0%}")
            cells += [shares(ours, "bound"), shares(ours, "bound_besides")]
            lines.append(
                f"| {' '.join(key)} | {batch} | {1e3 * full['p50']:.2f}, "
                f"{full['rows_per_second']:,.0f} (error {full['error']:.2%}) | "
                f"{' | '.join(cells)} |"
            )
    return lines


def shares(lines: list[dict], bound: str) -> str:
    """Return the shares of a bound that some lines reach, at each allowance."""
    known = {x["more_error"]: f"{x['speed_up'] / x[bound]:.0%}" for x in lines}
    return ", ".join(known.get(level, "-") for level in (0.0, 0.01))


def energy(line: dict) -> str:
    """Return the millijoules per row of the network and of a rule."""
    if line["joules"] is None:
        return "-"
    return f"{1e3 * line['full_joules']:.0f}, {1e3 * line['joules']:.0f}"


def streams(report: dict) -> list[str]:
    """Return a line per window of batches that are run together, beside its alternatives."""
    lines = []
    for x in report["lines"]:
        if not x["rule"].startswith("stream"):
            continue
        small = int(x["rule"].rpartition(" ")[2])
        parts = []
        for batch in (small, x["batch"]):
            for rule in ("full", "ours"):
                some = [
                    y
                    for y in report["lines"]
                    if all(y[k] == x[k] for k in ("precision", "engine"))
                    and (y["batch"], y["rule"]) == (batch, rule)
                    and y.get("more_error", x["more_error"]) == x["more_error"]
                ]
                parts += [f"{rule} by {batch} {shown(y)}" for y in some]
        lines.append(
            f"{x['precision']} {x['engine']}, batches of {small}, {x['batch'] // small} together: "
            f"{shown(x)}; {'; '.join(parts)}"
        )
    return lines


def shown(line: dict) -> str:
    """Return the throughput and the time of a call."""
    return f"{line['rows_per_second']:,.0f} rows/s at {1e3 * line['p50']:.2f} ms"


def cuts(report: dict) -> list[str]:
    """Return the error and the speed-up of the network cut after one exit, by batch size."""
    lines = []
    for key, profile in report["profiles"].items():
        known, test = (np.array(report["exits"][key][half]) for half in ("fit", "test"))
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
            spread = 100 * line["more_se"]
            return f"{line['speed_up']:.2f}, {100 * line['more']:+.2f} ± {spread:.2f}"
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
