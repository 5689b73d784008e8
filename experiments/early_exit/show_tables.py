"""Print what tables.py measured as tables for README.md.

    python experiments/early_exit/show_tables.py experiments/early_exit/results/*.json [--all]

First bf16 with CUDA graphs, one row per network and batch size: the full network's p50 and rows per
second; then per rule and allowance its speed-up (mean times) and how many points more it errs than
the network, with a standard error; at +1, p50 and p99, millijoules per row (full, ours), operations
as a share of the network's and exits asked; and the share of both bounds that is reached. Then the
other engines, batches run together by ``stream``, what an exit adds by the profile (its ramp, the
decision and the wait), and the aims: which settings miss them. Last, the network cut after the
first exit that errs at most so much more on the rows fitted to, by the times of its segments: what
a policy must beat.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

MIN_SHARE = 0.9
"""The share of the bound that is aimed at."""
NAMES = {"mpnet-imdb": "MPNet", "smollm2-imdb": "SmolLM2"}
"""Networks by the names of files; others are named after theirs."""
ENGINES = {"graphs": "graphs", "compiled": "`torch.compile`, graphs", "eager": "eager"}
"""Engines as they are shown."""
AIMS = {1: 1.3, 8: 1.3, 32: 1.4, 128: 1.4}
"""The speed-up that is aimed at, at +1, by batch size."""


def main() -> None:
    """Print the tables of some files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--all", action="store_true", help="every rule, with p50 and p99")
    args = parser.parse_args()
    stems = [path.stem.removeprefix("table-") for path in args.files]
    reports = {NAMES.get(stem, stem): json.loads(path.read_text("utf-8"))
               for stem, path in zip(stems, args.files, strict=True)}  # fmt: skip
    for name, report in reports.items():
        print(f"{name}: {report['device']}, torch {report['torch']}")
    print("\n".join(["", *first_table(reports), "", *other_table(reports), ""]))
    print("\n".join([*streams(reports), "", *asking_table(reports), "", *aims(reports), ""]))
    for name, report in reports.items():
        print("\n".join(f"{name} {line}" for line in cuts(report)))
        if args.all:
            print("\n".join(["", f"**{name}**", "", *every(report), ""]))


def first_table(reports: dict[str, dict]) -> list[str]:
    """Return one line per network and batch size, bf16 with CUDA graphs."""
    lines = [
        "| bf16, CUDA graphs | batch | full: p50 ms, rows/s | threshold, +0 | threshold, +1 | "
        "**ours, +0** | **ours, +1** | p50, p99 ms at +1 | mJ per row: full, ours at +1 | "
        "operations, exits asked at +1 | of the bound, +0, +1 | with the rest |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        shown = name
        for batch in batches_of(report, "bf16", "graphs"):
            here = setting(report, "bf16", "graphs", batch)
            full = here["full", None]
            shown = shown and f"{name}, {full['error']:.2%}"
            rules = (("threshold", 0.0), ("threshold", 0.01), ("ours", 0.0), ("ours", 0.01))
            cells = [found(here.get(rule), bold=rule[0] == "ours") for rule in rules]
            ours = here.get(("ours", 0.01), {})
            if "bound" in ours:
                cells.append(f"{digits(1e3 * ours['p50'])}, {digits(1e3 * ours['p99'])}")
                cells.append(energy(ours))
                cells.append(f"{ours['operations']:.0%}, {ours['exits_asked']:.2f}")
            else:
                cells += ["-", "-", "-"]
            cells += [shares(here, "bound"), shares(here, "bound_besides")]
            lines.append(
                f"| {shown} | {batch} | {digits(1e3 * full['p50'])}, "
                f"{full['rows_per_second']:,.0f} | {' | '.join(cells)} |"
            )
            shown = ""
    return lines


def other_table(reports: dict[str, dict]) -> list[str]:
    """Return one line per network, precision and engine, its batch sizes side by side."""
    lines = [
        "| 1 / 8 / 32 / 128 | full: p50 ms | threshold, +0 | threshold, +1 | **ours, +0** | "
        "**ours, +1** | points more, +0 | points more, +1 | of the bound, +0 | of the bound, +1 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        last = last_run(report)
        runs = dict.fromkeys((x["precision"], x["engine"], x.get("run", last))
                             for x in report["lines"])  # fmt: skip
        for *key, run in runs:
            batches = batches_of(report, *key, run=run)
            settings = [setting(report, *key, batch) for batch in batches]
            speed = {rule: [gain(each.get(rule)) for each in settings]
                     for rule in (("threshold", 0.0), ("threshold", 0.01),
                                  ("ours", 0.0), ("ours", 0.01))}  # fmt: skip
            more = [[f"{100 * each.get(('ours', level), {}).get('more', 0.0):+.2f}"
                     for each in settings] for level in (0.0, 0.01)]  # fmt: skip
            bound = [[share(each.get(("ours", level))) for each in settings]
                     for level in (0.0, 0.01)]  # fmt: skip
            full = [digits(1e3 * each["full", None]["p50"]) for each in settings]
            sizes = "" if batches == [1, 8, 32, 128] else f" ({' / '.join(map(str, batches))})"
            if key == ["bf16", "graphs"]:
                continue
            shown = f"{name}, {key[0]}, {ENGINES.get(key[1], key[1])}{sizes}"
            shown += "" if run == last else f"; run {run}"
            cells = [shown, *map(" / ".join, (
                full, *speed.values(), *more, *bound))]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def asking_table(reports: dict[str, dict]) -> list[str]:
    """Return what asking an exit adds in the last run beside what a segment takes."""
    lines = ["| µs, 1 / 8 / 32 / 128 | a segment | an exit that is asked adds |", "|---|---|---|"]
    for name, report in reports.items():
        last = last_run(report)
        for key, profile in report["profiles"].items():
            if not batches_of(report, *key.split(), run=last):
                continue
            columns = [profile["groups"].index(size) for size in profile["sizes"]]
            segments = [np.median([row[at] for row in profile["segments"]]) for at in columns]
            asking = [np.median(each) for each in zip(*profile["asking"][:-1], strict=True)]
            shown = [" / ".join(f"{1e6 * each:,.0f}" for each in some)
                     for some in (segments, asking)]  # fmt: skip
            precision, engine = key.split()
            title = f"{name}, {precision}, {ENGINES.get(engine, engine)}"
            lines.append(f"| {title} | {' | '.join(shown)} |")
    return lines


def aims(reports: dict[str, dict]) -> list[str]:
    """Return the settings of the last run that miss an aim, and the ranges of its errors."""
    counted, missed, slow, beaten, far = 0, [], [], [], []
    errors: dict[float, list[float]] = {0.0: [], 0.01: []}
    for name, report in reports.items():
        last = last_run(report)
        for key in dict.fromkeys((x["precision"], x["engine"]) for x in report["lines"]):
            for batch in batches_of(report, *key, run=last):
                here = setting(report, *key, batch)
                for level in (0.0, 0.01):
                    shown = f"{name} {' '.join(key)} {batch} +{100 * level:.0f}"
                    ours = here.get(("ours", level))
                    if ours is None:
                        continue
                    rival = here.get(("threshold", level))
                    if rival and rival["speed_up"] > ours["speed_up"]:
                        beaten.append(f"{shown}: {rival['speed_up']:.2f}, ours "
                                      f"{ours['speed_up']:.2f}")  # fmt: skip
                    if "bound" not in ours:
                        continue
                    counted += 1
                    errors[level].append(100 * ours["more"])
                    reached = ours["speed_up"] / ours["bound"]
                    besides = ours["speed_up"] / ours["bound_besides"]
                    if reached < MIN_SHARE:
                        missed.append(f"{shown}: {reached:.1%} (with the rest {besides:.1%})")
                    if ours["speed_up"] < 1:
                        slow.append(f"{shown}: {ours['speed_up']:.2f}")
                    if level > 0 and ours["speed_up"] < AIMS.get(batch, 1.0):
                        far.append(f"{shown}: {ours['speed_up']:.2f}")
    lines = [f"{counted} settings of ours with exits in the last run"]
    for text, some in (("below 90% of the bound", missed), ("slower than the network", slow),
                       ("below the speed-up aimed at", far),
                       ("slower than one threshold", beaten)):  # fmt: skip
        lines.append(f"{text}: {len(some)}" + (f": {'; '.join(some)}" if some else ""))
    lines += [f"points more at +{100 * level:.0f}: {min(some):+.2f} to {max(some):+.2f}"
              for level, some in errors.items() if some]  # fmt: skip
    return lines


def last_run(report: dict) -> int:
    """Return the number of the last run; lines without a number are of it."""
    return max((x.get("run", 0) for x in report["lines"]), default=0)


def batches_of(report: dict, precision: str, engine: str, run: int | None = None) -> list[int]:
    """Return the batch sizes of a precision and an engine, of all runs or of one."""
    return sorted({x["batch"] for x in report["lines"]
                   if (x["precision"], x["engine"]) == (precision, engine)
                   and run in (None, x.get("run", run))})  # fmt: skip


def setting(report: dict, precision: str, engine: str, batch: int) -> dict:
    """Return the lines of a setting, by rule and allowance."""
    return {(x["rule"], x.get("more_error")): x for x in report["lines"]
            if (x["precision"], x["engine"], x["batch"]) == (precision, engine, batch)}  # fmt: skip


def digits(number: float) -> str:
    """Return a number with three digits or two decimals."""
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def gain(line: dict | None) -> str:
    """Return a speed-up; 1 where the network itself is recommended."""
    return "-" if line is None else f"{line['speed_up']:.2f}"


def share(line: dict | None) -> str:
    """Return the share of the bound that a line reaches."""
    known = line is not None and "bound" in line
    return f"{line['speed_up'] / line['bound']:.0%}" if known else "-"


def shares(here: dict, bound: str) -> str:
    """Return the shares of a bound that ours reaches, at each allowance."""
    some = (here.get(("ours", level), {}) for level in (0.0, 0.01))
    return ", ".join(f"{x['speed_up'] / x[bound]:.0%}" if bound in x else "-" for x in some)


def energy(line: dict) -> str:
    """Return the millijoules per row of the network and of a rule."""
    if line["joules"] is None:
        return "-"
    return f"{1e3 * line['full_joules']:.0f}, {1e3 * line['joules']:.0f}"


def streams(reports: dict[str, dict]) -> list[str]:
    """Return a line per window of batches that are run together, bf16 with CUDA graphs."""
    lines = [
        "| rows/s, ms | network, batch by batch | network, windows | ours, batch by batch | "
        "**ours, `stream`** |",
        "|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        for x in report["lines"]:
            key = x["precision"], x["engine"]
            if not x["rule"].startswith("stream") or key != ("bf16", "graphs"):
                continue
            small = int(x["rule"].rpartition(" ")[2])
            single, whole = (setting(report, *key, size) for size in (small, x["batch"]))
            cells = [rate(single.get(("full", None))), rate(whole.get(("full", None))),
                     rate(single.get(("ours", x["more_error"]))), rate(x)]  # fmt: skip
            count = x["batch"] // small
            lines.append(f"| {name}, {count} batches of {small} | {' | '.join(cells)} |")
    return lines


def rate(line: dict | None) -> str:
    """Return the throughput and the time of a call."""
    if line is None:
        return "-"
    return f"{line['rows_per_second']:,.0f}, {digits(1e3 * line['p50'])}"


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


def found(line: dict | None, *, bold: bool = False) -> str:
    """Return the speed-up and the error of a rule."""
    if line is None:
        return "-"
    if "recommended" in line:
        return "network itself"
    spread, mark = 100 * line["more_se"], "**" if bold else ""
    return f"{mark}{line['speed_up']:.2f}{mark}, {100 * line['more']:+.2f} ± {spread:.2f}"


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
