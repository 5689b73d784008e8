"""Print what tables.py measured as tables for README.md.

    python experiments/early_exit/show_tables.py experiments/early_exit/results/table-*.json [--all]
    python experiments/early_exit/show_tables.py experiments/early_exit/results/cpu-*.json

First bf16 with CUDA graphs, one row per network and batch size: the full network's p50 and rows per
second; then per rule and allowance its speed-up (mean times) and how many points more it errs than
the network, with a standard error; at +1, p50 and p99, operations as a share of the network's and
exits asked; and the share of the bound that is reached. A star marks what was measured when switch
nodes chose the branches of a graph, a dagger what else is of an earlier run. Then the other
engines, batches run together by ``stream``, what an exit adds by the profile (its ramp, the
decision and the wait), and the aims: how many settings hold them, and which do not, for texts and
for images; how much faster than one threshold ours is; how far decisions are from a replay of the
trace; and the network cut after the first exit that errs at most so much more on the rows fitted
to, by the times of its segments: what a policy must beat. Of what was measured on a CPU one table,
with int8 weights beside, which are compared with the network in fp32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

LEVELS = (0.0, 0.01)
"""Allowances."""
MIN_SHARE = 0.9
"""The share of the bound that is aimed at."""
NAMES = {
    "mpnet-imdb": "MPNet",
    "smollm2-imdb": "SmolLM2",
    "vgg16-large": "VGG-16",
    "vgg13-large": "VGG-13",
    "vgg11-large": "VGG-11",
    "resnet18-large": "ResNet-18",
}
"""Networks by the names of files; others are named after theirs."""
TEXTS = ("MPNet", "SmolLM2")
"""The networks that aims for the speed-up are for."""
ENGINES = {"graphs": "graphs", "compiled": "`torch.compile`, graphs", "eager": "eager"}
"""Engines as they are shown."""
AIMS = {1: 1.3, 8: 1.3, 32: 1.4, 128: 1.4}
"""The speed-up that is aimed at, at +1, by batch size."""
SWITCHES = "switch nodes"
"""``branches`` of lines that were measured before graphs were launched on the device."""
EARLIER = "earlier"
"""``run`` of lines that the latest run did not measure again."""
RULES = (("threshold", 0.0), ("threshold", 0.01), ("ours", 0.0), ("ours", 0.01))
"""The columns of rules."""


def main() -> None:
    """Print the tables of some files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--all", action="store_true", help="every rule, with p50 and p99")
    args = parser.parse_args()
    stems = [path.stem.removeprefix("table-") for path in args.files]
    if all(stem.startswith("cpu-") for stem in stems):
        stems = [stem.removeprefix("cpu-") for stem in stems]
    named = {
        NAMES.get(stem, stem): json.loads(path.read_text("utf-8"))
        for stem, path in zip(stems, args.files, strict=True)
    }
    order = sorted(named, key=lambda name: [*NAMES.values(), name].index(name))
    reports = {name: named[name] for name in order}
    for name, report in reports.items():
        print(f"{name}: {report['device']}, torch {report['torch']}")
    if not any("graphs" in key for report in reports.values() for key in report["profiles"]):
        print("\n".join(["", *cpu_table(reports)]))
        return
    for table in (first_table, other_table, streams, asking_table):
        print("\n".join(["", *table(reports)]))
    for kind in (True, False):
        some = {name: report for name, report in reports.items() if (name in TEXTS) == kind}
        if some:
            print(
                "\n".join(
                    ["", ", ".join(some), *aims(some), *rivals(some), *decisions(some), *cuts(some)]
                )
            )
    for name, report in reports.items() if args.all else ():
        print("\n".join(["", f"**{name}**", "", *every(report)]))


def settings_of(report: dict) -> dict[tuple[str, str, int], dict]:
    """Return the lines by rule and allowance, by precision, engine and batch size."""
    found: dict[tuple[str, str, int], dict] = {}
    for x in report["lines"]:
        key = x["precision"], x["engine"], x["batch"]
        found.setdefault(key, {})[x["rule"], x.get("more_error")] = x
    return {key: found[key] for key in sorted(found, key=lambda key: (order_of(key), key[2]))}


def order_of(key: tuple) -> tuple[bool, int]:
    """Return where a precision and an engine come."""
    return key[0] != "bf16", [*ENGINES, key[1]].index(key[1])


def first_table(reports: dict[str, dict]) -> list[str]:
    """Return one line per network and batch size, bf16 with CUDA graphs."""
    lines = [
        "| bf16, CUDA graphs | batch | full: p50 ms, rows/s | threshold, +0 | threshold, +1 | "
        "**ours, +0** | **ours, +1** | p50, p99 ms at +1 | "
        "operations, exits asked at +1 | of the bound, +0, +1 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        shown = name
        for (*key, batch), here in settings_of(report).items():
            if key != ["bf16", "graphs"]:
                continue
            full = here["full", None]
            shown = shown and f"{name}, {full['error']:.2%}"
            mark = mark_of(full)
            cells = [found(here.get(rule), bold=rule[0] == "ours") for rule in RULES]
            ours = here.get(("ours", 0.01), {})
            if "bound" in ours:
                cells.append(f"{digits(1e3 * ours['p50'])}, {digits(1e3 * ours['p99'])}")
                cells.append(f"{ours['operations']:.0%}, {ours['exits_asked']:.2f}")
            else:
                cells += ["-", "-"]
            cells.append(", ".join(share(here.get(("ours", level))) for level in LEVELS))
            lines.append(
                f"| {shown} | {batch}{mark} | {digits(1e3 * full['p50'])}, "
                f"{full['rows_per_second']:,.0f} | {' | '.join(cells)} |"
            )
            shown = ""
    return lines


def mark_of(line: dict) -> str:
    """Return the mark of a line that is of an earlier run, or measured with switch nodes."""
    if line.get("branches") == SWITCHES:
        return "*"
    return "†" if line.get("run") == EARLIER else ""


def other_table(reports: dict[str, dict]) -> list[str]:
    """Return one line per network, precision and engine, its batch sizes side by side."""
    lines = [
        "| 1 / 8 / 32 / 128 | full: p50 ms | threshold, +0 | threshold, +1 | **ours, +0** | "
        "**ours, +1** | points more, +0 | points more, +1 | of the bound, +0 | of the bound, +1 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        found: dict[tuple, dict] = {}
        for (*key, batch), here in settings_of(report).items():
            if key != ["bf16", "graphs"]:
                found.setdefault((*key, mark_of(here["full", None])), {})[batch] = here
        for key, some in found.items():
            sizes = "" if [*some] == [1, 8, 32, 128] else f" ({' / '.join(map(str, some))})"
            cells = [[digits(1e3 * here["full", None]["p50"]) for here in some.values()]]
            cells += [[gain(here.get(rule)) for here in some.values()] for rule in RULES]
            for show in (points, share):
                cells += [
                    [show(here.get(("ours", level))) for here in some.values()] for level in LEVELS
                ]
            shown = f"{name}, {key[0]}, {ENGINES.get(key[1], key[1])}{key[2]}{sizes}"
            lines.append(f"| {' | '.join([shown, *map(' / '.join, cells)])} |")
    return lines


def streams(reports: dict[str, dict]) -> list[str]:
    """Return a line per window of batches that are run together, bf16 with CUDA graphs."""
    lines = [
        "| rows/s, ms | network, batch by batch | network, windows | ours, batch by batch | "
        "**ours, `stream`** |",
        "|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        settings = settings_of(report)
        for (*key, batch), here in settings.items():
            for (rule, level), x in here.items():
                if not rule.startswith("stream") or key != ["bf16", "graphs"]:
                    continue
                small = int(rule.rpartition(" ")[2])
                single = settings.get((*key, small), {})
                cells = [
                    rate(single.get(("full", None))),
                    rate(here.get(("full", None))),
                    rate(single.get(("ours", level))),
                    rate(x),
                ]
                count = batch // small
                lines.append(f"| {name}, {count} batches of {small} | {' | '.join(cells)} |")
    return lines


def asking_table(reports: dict[str, dict]) -> list[str]:
    """Return what asking an exit and what a call with exits adds, beside what a segment takes."""
    titles = ("µs, 1 / 8 / 32 / 128", "a segment", "an exit that is asked adds", "a call adds once")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, report in reports.items():
        for key in sorted(report["profiles"], key=lambda key: order_of(key.split())):
            profile = report["profiles"][key]
            columns = [profile["groups"].index(size) for size in profile["sizes"]]
            segments = [np.median([row[at] for row in profile["segments"]]) for at in columns]
            asking = [np.median(each) for each in zip(*profile["asking"][:-1], strict=True)]
            once = profile.get("per_call", ())  # earlier files have it in what an exit adds
            shown = [
                " / ".join(f"{1e6 * each:,.0f}" for each in some) or "-"
                for some in (segments, asking, once)
            ]
            precision, engine = key.split()
            sizes = "" if len(columns) == 4 else f" ({' / '.join(map(str, profile['sizes']))})"
            title = f"{name}, {precision}, {ENGINES.get(engine, engine)}{sizes}"
            lines.append(f"| {title} | {' | '.join(shown)} |")
    return lines


def aims(reports: dict[str, dict]) -> list[str]:
    """Return in how many settings each aim is held, the settings that miss it, and ranges."""
    missed: dict[str, list[str]] = {
        text: []
        for text in (
            "below 90% of the bound",
            "slower than the network",
            "below the speed-up aimed at",
            "slower than one threshold",
            "more error than allowed",
            "by more than 2 standard errors",
        )
    }
    counts: dict[str, list[int]] = {}
    with_the_rest = 0
    gains: dict[tuple[str, float], list[float]] = {}
    itself, errors = [], {level: [] for level in LEVELS}
    for name, report in reports.items():
        for (*key, batch), here in settings_of(report).items():
            for level in LEVELS:
                shown = f"{name} {' '.join(key)} {batch} +{100 * level:.0f}"
                ours, rival = here.get(("ours", level)), here.get(("threshold", level))
                if ours is None:
                    continue
                if rival and rival["speed_up"] > ours["speed_up"]:
                    texts = f"{rival['speed_up']:.2f}, ours {ours['speed_up']:.2f}"
                    missed["slower than one threshold"].append(f"{shown}: {texts}")
                aim = AIMS.get(batch, 1.0) if level > 0 and name in TEXTS else 0.0
                if ours["speed_up"] < aim:
                    text = f"{shown}: {ours['speed_up']:.2f}"
                    missed["below the speed-up aimed at"].append(text)
                if "bound" not in ours:
                    itself.append(shown)
                    continue
                errors[level].append(100 * ours["more"])
                gains.setdefault((" ".join(key), level), []).append(ours["speed_up"])
                reached, besides = (ours["speed_up"] / ours[k] for k in ("bound", "bound_besides"))
                held = counts.setdefault(f"{name} {' '.join(key)}", [0, 0])
                held[0] += reached >= MIN_SHARE
                held[1] += 1
                with_the_rest += besides >= MIN_SHARE
                for text, miss, how in (
                    (
                        "below 90% of the bound",
                        reached < MIN_SHARE,
                        f"{reached:.1%} (with the rest {besides:.1%})",
                    ),
                    ("slower than the network", ours["speed_up"] < 1, f"{ours['speed_up']:.2f}"),
                    ("more error than allowed", ours["more"] > level, found(ours)),
                    (
                        "by more than 2 standard errors",
                        ours["more"] > level + 2 * ours["more_se"],
                        found(ours),
                    ),
                ):
                    missed[text] += [f"{shown}: {how}"] if miss else []
    total = sum(len(some) for some in errors.values())
    lines = [
        f"{total} settings of ours with exits; the network itself in {len(itself)}: "
        f"{'; '.join(itself)}"
    ]
    lines += [
        f"{text}: {len(some)}" + (f": {'; '.join(some)}" if some else "")
        for text, some in missed.items()
    ]
    lines.append(
        "90% of the bound held: " + ", ".join(f"{k} {a}/{b}" for k, (a, b) in counts.items())
    )
    reached_by = sum(a for a, _ in counts.values())
    lines.append(
        f"90% of the bound held in {reached_by} of {total}; with the time besides the "
        f"segments, which the network has too, in {with_the_rest}"
    )
    lines += [
        f"speed-up {key} +{100 * level:.0f}: {min(some):.2f} to {max(some):.2f}"
        for (key, level), some in gains.items()
    ]
    lines += [
        f"points more at +{100 * level:.0f}: {min(some):+.2f} to {max(some):+.2f}, no more "
        f"than allowed in {sum(x <= 100 * level for x in some)} of {len(some)}"
        for level, some in errors.items()
        if some
    ]
    return lines


def rivals(reports: dict[str, dict]) -> list[str]:
    """Return how much faster than one threshold ours is, where a threshold keeps the allowance."""
    found: dict[tuple[float, str], list[tuple[float, float, float]]] = {}
    for report in reports.values():
        for (_, engine, _), here in settings_of(report).items():
            for level in LEVELS:
                ours, rival = here.get(("ours", level)), here.get(("threshold", level))
                if ours and rival:
                    ratio = ours["speed_up"] / rival["speed_up"]
                    values = ratio, rival["speed_up"], 100 * rival["more"]
                    for key in ("all", engine):
                        found.setdefault((level, key), []).append(values)
    return [
        f"beside one threshold, +{100 * level:.0f}, {engine}: ours faster in "
        f"{sum(ratio > 1 for ratio, *_ in some)} of {len(some)}, by {min(some)[0] - 1:.1%} to "
        f"{max(some)[0] - 1:.1%}; the threshold slower than the network in "
        f"{sum(gain < 1 for _, gain, _ in some)}, {min(x[2] for x in some):+.2f} to "
        f"{max(x[2] for x in some):+.2f} points more"
        for (level, engine), some in sorted(found.items())
    ]


def cpu_table(reports: dict[str, dict]) -> list[str]:
    """Return one line per network and batch size: fp32, and int8 beside the network in fp32."""
    lines = [
        "| fp32 | batch | full: p50 ms | threshold, +0 | threshold, +1 | ours, +0 | **ours, +1** | "
        "of the bound, +0, +1 | int8 alone | int8 and threshold, +1 | **int8 and ours, +1** |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        shown = name
        settings = settings_of(report)
        for (_, engine, batch), here in settings.items():
            if engine != "eager":
                continue
            full, small = here["full", None], settings.get(("fp32", "int8", batch), {})
            shown = shown and f"{name}, {full['error']:.2%}, {report['device']}"
            cells = [found(here.get(rule), bold=rule[0] == "ours") for rule in RULES]
            cells.append(", ".join(share(here.get(("ours", level))) for level in LEVELS))
            for rule in (("full", None), ("threshold", 0.01), ("ours", 0.01)):
                x = small.get(rule)
                cells.append(f"{full['mean'] / x['mean']:.2f}, {x['error']:.2%}" if x else "-")
            lines.append(f"| {shown} | {batch} | {1e3 * full['p50']:,.0f} | {' | '.join(cells)} |")
            shown = ""
    return lines


def decisions(reports: dict[str, dict]) -> list[str]:
    """Return by engine how far answers and exits asked are from a replay of the trace."""
    found: dict[str, list[tuple[float, float]]] = {}
    for report in reports.values():
        for x in report["lines"]:
            if "asked_by_trace" in x:
                rows = x["rows"] * (x["error_of_timed"] - x["error_by_trace"])
                found.setdefault(f"{x['precision']} {x['engine']}", []).append(
                    (abs(rows), abs(x["exits_asked"] - x["asked_by_trace"]))
                )
    return [
        f"replay, {key}: of {len(some)} lines {sum(asked < 1e-6 for _, asked in some)} ask as the "
        f"trace; at most {max(rows for rows, _ in some):.0f} rows' answers and "
        f"{max(asked for _, asked in some):.3f} exits a row apart"
        for key, some in found.items()
    ]


def cuts(reports: dict[str, dict]) -> list[str]:
    """Return the network cut after one exit, bf16 with CUDA graphs at 32."""
    lines = []
    for name, report in reports.items():
        profile = report["profiles"].get("bf16 graphs")
        if profile is None or 32 not in profile["sizes"]:
            continue
        known, test = (np.array(report["exits"]["bf16 graphs"][half]) for half in ("fit", "test"))
        group = profile["groups"].index(32)
        times = np.cumsum([row[group] for row in profile["segments"]])
        times += profile["asking"][-1][profile["sizes"].index(32)]
        for level in LEVELS:
            k = int(np.argmax(known <= known[-1] + level + 1e-12))
            lines.append(
                f"{name}, +{100 * level:.0f}: cut after {profile['names'][k]}: "
                f"{times[-1] / times[k]:.2f} times, {test[k]:.2%} (full {test[-1]:.2%})"
            )
    return lines


def digits(number: float) -> str:
    """Return a number with three digits or two decimals."""
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def gain(line: dict | None) -> str:
    """Return a speed-up; 1 where the network itself is recommended."""
    return "-" if line is None else f"{line['speed_up']:.2f}"


def points(line: dict | None) -> str:
    """Return how many points more a rule errs."""
    return "-" if line is None or "more" not in line else f"{100 * line['more']:+.2f}"


def share(line: dict | None) -> str:
    """Return the share of the bound that a line reaches."""
    known = line is not None and "bound" in line
    return f"{line['speed_up'] / line['bound']:.0%}" if known else "-"


def rate(line: dict | None) -> str:
    """Return the throughput and the time of a call."""
    if line is None:
        return "-"
    return f"{line['rows_per_second']:,.0f}, {digits(1e3 * line['p50'])}"


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
