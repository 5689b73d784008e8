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
    "knn", "ridge", "clusters", "mean", "knn+cost", "ridge+cost", "clusters+cost", "mean+cost",
    "chain", "pairs", "old",
)  # fmt: skip
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


def surprise(ladder: tt.FittedLadder, test: tt.Trace) -> tuple[float, float]:
    """Return by how much more policies lose on new rows than estimated: in points, and in SE.

    What a policy loses is its error and its price times its cost: folds choose other policies at a
    price, of other costs.
    """
    estimated, differences, errors = ladder.points, [], []
    for k, (policy, played) in enumerate(zip(ladder, ladder.play_all(test), strict=True)):
        lost = test.loss[np.arange(len(test)), played.answer]
        lost = lost + policy.rule.price * (played.asked * test.costs).sum(axis=1)
        expected = estimated.error[k] + policy.rule.price * estimated.cost[k]
        differences.append(lost.mean() - expected)
        errors.append(np.hypot(estimated.standard_error[k], lost.std() / len(test) ** 0.5))
    shares = np.array(differences) / np.maximum(errors, 1e-9)
    return round(float(100 * np.mean(differences)), 3), round(float(shares.mean()), 3)


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
                write_line(
                    path, set=name, rows=rows, seed=seed, area=area, cost=cost, cpu=cpu,
                    surprise=surprise(ladder, test),
                )  # fmt: skip


def show(folder: Path) -> None:
    """Print a table for each number of rows."""
    areas: dict[tuple[str, int, int, str], float] = {}
    costs = dict(areas)
    surprises: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for line in [*read_lines(folder / "compare.jsonl"), *read_lines(folder / "old-fit.jsonl")]:
        key = line["set"], line["rows"], line["seed"]
        areas |= {(*key, family): area for family, area in line["area"].items()}
        costs |= {(*key, family): cost for family, cost in line["cost"].items()}
        if "surprise" in line:
            surprises.setdefault((line["set"], line["rows"]), []).append(line["surprise"])
    for rows in sorted({rows for _, rows, _, family in areas if family == "fit"}):
        seeds = {
            name: sorted(s for n, r, s, f in areas if (n, r, f) == (name, rows, "fit"))
            for name in (*LLM, *SERVICES)
        }
        print(f"\n{'halves' if not rows else f'{rows} rows'}\n")
        heads = ("set (splits)", *COLUMNS, "shuffled", "**fit**", "of best", "of old", "cost")
        print(f"| {' | '.join(heads)} |")
        print("|---" * (len(COLUMNS) + 6) + "|")
        of_best, of_old = {}, {}
        for name, own in seeds.items():
            if not own:
                continue

            def column(
                family: str, name: str = name, own: list[int] = own, rows: int = rows
            ) -> list[float]:
                keys = [(name, rows, seed, family) for seed in own]
                return [areas[key] for key in keys if key in areas]

            fit = column("fit")
            known = {f: column(f) for f in COLUMNS if len(column(f)) == len(own)}
            best = min(known, key=lambda f: fmean(known[f]))
            of_best[name] = [a / b for a, b in zip(fit, known[best], strict=True)]
            cells = [f"{fmean(known[f]):.3f}" if f in known else "-" for f in COLUMNS]
            ratio = "{:.3f} ± {:.3f}".format
            old = "-"
            if "old" in known:
                of_old[name] = [a / b for a, b in zip(fit, known["old"], strict=True)]
                old = ratio(*mean_and_error(of_old[name]))
            cost = fmean(costs[name, rows, seed, "fit"] for seed in own)
            print(
                f"| {name} ({len(own)}) | {' | '.join(cells)} | {fmean(column('shuffled')):.3f} | "
                f"**{ratio(*mean_and_error(fit))}** | {ratio(*mean_and_error(of_best[name]))} "
                f"{best} | {old} | {cost:.2f} |"
            )
        for title, names in (("four LLM sets", LLM), ("all", (*LLM, *SERVICES))):
            if all(name in of_best for name in names):
                best_mean = fmean(fmean(of_best[name]) for name in names)
                old_mean = [fmean(of_old[name]) for name in names if name in of_old]
                end = f"{fmean(old_mean):.3f}" if len(old_mean) == len(names) else "-"
                print(f"| *mean, {title}* |{' |' * (len(COLUMNS) + 2)} {best_mean:.3f} | {end} | |")
    print("\n| new rows lose more than estimated by | points | standard errors |\n|---|---|---|")
    for (name, rows), values in sorted(surprises.items(), key=lambda item: item[0][::-1]):
        points, errors = zip(*values, strict=True)
        form = "{:+.2f} ± {:.2f}".format
        print(
            f"| {name}, {rows or 'halves'} ({len(values)}) | {form(*mean_and_error(points))} | "
            f"{form(*mean_and_error(errors))} |"
        )


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
