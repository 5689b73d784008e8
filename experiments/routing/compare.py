"""The fit beside routers, chains and pairs of models, on ten public sets.

    python experiments/routing/compare.py DATA --splits 8 --rows 0 300 1000
    python experiments/routing/compare.py --show

DATA is the folder of the sets (README.md). Rows: 0 is half of the set. Each split is a line of
``results/compare.jsonl`` as soon as it is measured; what is there is not run again. The tables are
of the area under the error-cost envelope over that of the single models: smaller is better.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from routers import pairs, routers
from sets import (
    EMBEDDER,
    LLM,
    SERVICES,
    Points,
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
from ttamer.baselines import FAMILIES

RESULTS = Path(__file__).resolve().parent / "results"
COLUMNS = (
    "knn",
    "ridge",
    "clusters",
    "mean",
    "knn+cost",
    "ridge+cost",
    "clusters+cost",
    "mean+cost",
    "chain",
    "pairs",
    "old",
)
MOST_IN_CHAIN = 10  # the chain tries every subset


def families(
    ladder: tt.FittedLadder, fit: tt.Trace, test: tt.Trace, seed: int
) -> Iterator[tuple[str, Points]]:
    """Measure every family; a generator, so that a caller can time each."""
    played = [*ladder.play_all(test)]
    yield "fit", [point(test, p.asked, p.answer) for p in played]
    # The control: the same decisions on other rows, at equal cost on the mean.
    order = np.random.default_rng([seed, 7]).permutation(len(test))
    yield "shuffled", [point(test, p.asked[order], p.answer[order]) for p in played]
    yield "chain", chain(fit, test)
    yield "pairs", pairs(fit, test)
    if fit.prompt is not None:
        yield from routers(fit, test)


def chain(fit: tt.Trace, test: tt.Trace) -> Points:
    """Measure the calibrated chain of any subset of the models, the best ten of more."""
    mean = fit.costs.mean(axis=0)
    best = np.argsort(fit.loss.mean(axis=0) + 0.2 * mean / mean.max())[:MOST_IN_CHAIN]
    names = [fit.names[node] for node in np.sort(best)]
    fit, test = fit.restrict(names), test.restrict(names)
    rules = [setting.rule.play(test) for setting in FAMILIES["chain"].fit(fit)]
    return [point(test, played.asked, played.answer) for played in rules]


def run(args: argparse.Namespace) -> None:
    """Measure what is not measured yet."""
    args.results.mkdir(exist_ok=True)
    path = args.results / "compare.jsonl"
    done = {(line["set"], line["rows"], line["seed"]) for line in read_lines(path)}
    for rows in args.rows:
        for seed in numbers(args.splits):
            for name in args.sets:
                if (name, rows, seed) in done:
                    continue
                fit, test = split(load(name, args.data), seed, rows)
                area, cost, cpu = {}, {}, {}
                begun = time.process_time()
                ladder = tt.fit(fit, embedders=EMBEDDER if fit.inputs else None)
                ladder.default()
                for family, points in families(ladder, fit, test, seed):
                    cpu[family] = round(time.process_time() - begun, 1)
                    reached = score(points, fit, test)
                    area[family], cost[family] = round(reached.area, 4), round(reached.cost, 4)
                    begun = time.process_time()
                best = min(area.items(), key=lambda item: item[1])
                print(
                    name, rows, seed, f"fit {area['fit']} {cpu['fit']} s, least {best}", flush=True
                )
                write_line(path, set=name, rows=rows, seed=seed, area=area, cost=cost, cpu=cpu)


def show(folder: Path) -> None:
    """Print a table for each number of rows; ratios are over the splits that both have."""
    areas: dict[tuple[str, int, str], dict[int, float]] = {}
    costs: dict[tuple[str, int], list[float]] = {}
    for line in [*read_lines(folder / "compare.jsonl"), *read_lines(folder / "old-fit.jsonl")]:
        for family, area in line["area"].items():
            areas.setdefault((line["set"], line["rows"], family), {})[line["seed"]] = area
        if "fit" in line["area"]:
            costs.setdefault((line["set"], line["rows"]), []).append(line["cost"]["fit"])
    for rows in sorted({rows for _, rows in costs}):
        print(f"\n{'halves' if not rows else f'{rows} rows'}\n")
        heads = ("set (splits)", *COLUMNS, "shuffled", "**fit**", "of best", "of old", "cost")
        print(f"| {' | '.join(heads)} |")
        print("|---" * len(heads) + "|")
        of_best, of_old = {}, {}
        for name in (n for n in (*LLM, *SERVICES) if (n, rows) in costs):
            fit = areas[name, rows, "fit"]
            columns = {f: areas[name, rows, f] for f in COLUMNS if (name, rows, f) in areas}
            ratios = {
                family: mean_and_error(
                    area / column[seed] for seed, area in fit.items() if seed in column
                )
                for family, column in columns.items()
            }
            best = max(ratios, key=lambda family: ratios[family][0])
            of_best[name] = ratios[best][0]
            if "old" in ratios:
                of_old[name] = ratios["old"][0]
            form = "{:.3f} ± {:.3f}".format
            means = [f"{fmean(columns[f].values()):.3f}" if f in columns else "-" for f in COLUMNS]
            print(
                f"| {name} ({len(fit)}) | {' | '.join(means)} | "
                f"{fmean(areas[name, rows, 'shuffled'].values()):.3f} | "
                f"**{form(*mean_and_error(fit.values()))}** | {form(*ratios[best])} {best} | "
                f"{form(*ratios['old']) if 'old' in ratios else '-'} | "
                f"{fmean(costs[name, rows]):.2f} |"
            )
        for title, names in (("four LLM sets", LLM), ("all", (*LLM, *SERVICES))):
            ends = [
                f"{fmean(known[name] for name in names):.3f}" if set(names) <= set(known) else "-"
                for known in (of_best, of_old)
            ]
            print(f"| *mean, {title}* |{' |' * (len(COLUMNS) + 2)} {' | '.join(ends)} | |")


def main() -> None:
    """Run, then show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--splits", default="8", help="how many, or from:to")
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--sets", nargs="+", default=[*LLM, *SERVICES])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="only print the tables")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.show:
        run(args)
    show(args.results)


if __name__ == "__main__":
    main()
