"""The default fit against every baseline, the best of them chosen on the test rows.

    python experiments/llm/compare.py [FOLDER] --half 16 --few 4        # six minutes on 16 cores

The traces are those of the package and those of a folder, each with its cascade beside it, such as
FrugalML's (``experiments/frugalml/import_traces.py``). Each split is drawn by
``numpy.random.default_rng(split).permutation``: half of the rows to fit on, or ``--rows`` rows, and
up to 6,000 others to measure on. Printed is the area under the lower envelope over the least area
of any baseline: means over splits with standard errors. That baseline is chosen by the rows
measured on, so it could not have been chosen beforehand.

Two versions of the package are compared on the same splits by a file of results for each:

    python experiments/llm/compare.py --write FOLDER           # the package's traces as NPZ
    python experiments/llm/compare.py FOLDER --results new.jsonl --against old.jsonl

where ``PYTHONPATH=OLD/src python experiments/llm/compare.py FOLDER --ours --traces NAME ...
--results old.jsonl`` wrote the latter.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.baselines import FAMILIES

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import add_options, load, mean, names, read, run, split

if TYPE_CHECKING:
    from over_splits import Job

    Groups = dict[tuple[str, int], dict[int, Any]]

try:
    from ttamer.evaluation.frontiers import frontier
except ImportError:  # 0.1.0
    from ttamer.frontier import frontier

MOST = 6000
"""How many rows are measured on at most."""
BASELINES = [name for name in FAMILIES if name != "oracle"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="more traces, each with its cascade")
    parser.add_argument("--half", type=int, default=7, help="splits with half of the rows")
    parser.add_argument("--few", type=int, default=4, help="splits with few rows")
    parser.add_argument("--rows", type=int, default=300, help="how many are few")
    parser.add_argument("--traces", nargs="+", help="only these")
    parser.add_argument("--ours", action="store_true", help="without baselines")
    parser.add_argument("--against", type=Path, help="results of another version")
    parser.add_argument("--write", type=Path, help="write the traces to this folder, and end")
    add_options(parser)
    args = parser.parse_args()
    chosen = args.traces or names(args.folder)
    if args.write:
        write(chosen, args)
        return
    folder = None if args.folder is None else str(args.folder)
    cases = [(name, rows) for name in chosen for rows in (0, args.rows)]
    jobs = [
        (name, rows, number, args.ours, folder)
        for number in range(max(args.half, args.few))
        for name, rows in sorted(cases, key=lambda case: case[1])
        if number < (args.few if rows else args.half)
    ]
    found = by_split(run(areas, jobs, args))
    if args.against:
        print_versions(found, by_split(read(args.against)), chosen, args.rows)
    if not args.ours:
        print_ratios(found, chosen, args.rows)


def write(chosen: list[str], args: argparse.Namespace) -> None:
    """Write traces as NPZ, each with its cascade."""
    args.write.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        trace = load(name, args.folder)
        trace.write(args.write / f"{name}.npz")
        trace.spec.to_file(args.write / f"{name}.toml")


def areas(name: str, rows: int, number: int, ours: bool, folder: str | None) -> dict[str, Any]:
    """Return the area of our fit, its seconds of CPU, and the areas of baselines."""
    warnings.simplefilter("ignore")
    trace = load(name, None if folder is None else Path(folder))
    fit, test = split(trace, number, rows, MOST)
    begun = time.process_time()
    found = frontier(fit, test, families=["ttamer"], resamples=0)
    seconds = time.process_time() - begun
    rivals = {}
    if not ours:
        each = frontier(fit, test, families=BASELINES, resamples=0)
        rivals = {family: each.area(family) for family in each.families}
    return {"ttamer": found.area("ttamer"), "seconds": seconds, "baselines": rivals}


def by_split(found: dict[Job, Any]) -> Groups:
    """Return the results by trace and rows to fit, and then by split."""
    groups: Groups = {}
    for (name, rows, number, *_), result in found.items():
        groups.setdefault((name, rows), {})[number] = result
    return groups


def print_ratios(found: Groups, chosen: list[str], few: int) -> None:
    """Print our area over the best baseline's."""
    print(f"| trace | half of the rows | best baselines | fit and replay, CPU s | {few} rows "
          "| best baselines |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    means: dict[tuple[bool, int], list[float]] = {}
    for name in chosen:
        cells = []
        for rows in (0, few):
            results = found.get((name, rows), {}).values()
            values = [each["ttamer"] / min(each["baselines"].values()) for each in results]
            best = [min(each["baselines"], key=each["baselines"].get) for each in results]
            cells += [mean(values), ", ".join(sorted(set(best), key=best.count, reverse=True))]
            if values:
                means.setdefault((name.startswith("llm"), rows), []).append(float(np.mean(values)))
            if not rows:
                cells.append(mean([each["seconds"] for each in results], ".1f"))
        print(f"| {name} | {' | '.join(cells)} |")
    for llms, text in ((True, "mean of LLMs"), (False, "mean of the others")):
        each = (means.get((llms, rows)) for rows in (0, few))
        half, small = (f"{np.mean(some):.3f}" if some else "-" for some in each)
        if (half, small) != ("-", "-"):
            print(f"| {text} | {half} | | | {small} | |")
    print()


def print_versions(found: Groups, other: Groups, chosen: list[str], few: int) -> None:
    """Print by how much our area is above that of another version, split by split."""
    print(f"| trace | half of the rows: area, more than the other version's | splits | {few} rows "
          "| splits |")  # fmt: skip
    print("|---|---|---|---|---|")
    for name in chosen:
        cells = []
        for rows in (0, few):
            new, old = found.get((name, rows), {}), other.get((name, rows), {})
            both = sorted(new.keys() & old.keys())
            more = [new[number]["ttamer"] / old[number]["ttamer"] - 1 for number in both]
            cells += [mean(more, "+.2%"), str(len(both))]
        print(f"| {name} | {' | '.join(cells)} |")
    print()


if __name__ == "__main__":
    main()
