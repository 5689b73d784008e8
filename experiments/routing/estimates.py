"""How far new rows are from what a ladder estimates of its policies, on sets and simulated models.

    python experiments/routing/estimates.py DATA --splits 8 --rows 0 300 1000
    python experiments/routing/estimates.py --show

The sets are the ten of ``compare.py``, and pools of 4, 10 and 20 simulated models, which share the
difficulty of an input, so that they err together. What a policy loses is its error and its price
times its cost; by how much more it loses on new rows than estimated is averaged over the policies
of a ladder, in points. Each split is a line of ``results/estimates.jsonl``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sets import (
    EMBEDDER,
    LLM,
    SERVICES,
    load,
    mean_and_error,
    numbers,
    read_lines,
    split,
    write_line,
)

import ttamer as tt

RESULTS = Path(__file__).resolve().parent / "results"
SIMULATED = {"4 models": 4, "10 models": 10, "20 models": 20}
NEW_ROWS = 20_000


def simulated(rows: int, models: int, seed: int) -> tt.Trace:
    """Return rows that models of growing skill and cost answer."""
    generator = np.random.default_rng([seed, models])
    difficulty, label = generator.normal(size=(rows, 1)), generator.integers(0, 4, (rows, 1))
    margin = np.linspace(-0.2, 2.0, models) - difficulty + generator.normal(size=(rows, models))
    wrong = (label + generator.integers(1, 4, (rows, models))) % 4
    return tt.Trace.from_arrays(
        {f"m{node}": float(cost) for node, cost in enumerate(np.geomspace(1, 50, models))},
        np.abs(margin) + 0.5 * generator.normal(size=margin.shape),
        prediction=np.where(margin > 0, label, wrong),
        label=label[:, 0],
    )


def rows_of(name: str, folder: Path, seed: int, rows: int) -> tuple[tt.Trace, tt.Trace]:
    """Return the rows to fit to, and new ones."""
    if name not in SIMULATED:
        return split(load(name, folder), seed, rows)
    models = SIMULATED[name]
    return simulated(rows or 5000, models, seed), simulated(NEW_ROWS, models, seed + 10_000)


def surprise(ladder: tt.FittedLadder, test: tt.Trace) -> tuple[float, float]:
    """Return by how much more policies lose than estimated: in points, and in standard errors."""
    estimated, differences, errors = ladder.points, [], []
    for k, (policy, played) in enumerate(zip(ladder, ladder.play_all(test), strict=True)):
        # Folds choose other policies at a price, of other costs: their sum is what is estimated.
        lost = test.loss[np.arange(len(test)), played.answer]
        lost = lost + policy.rule.price * (played.asked * test.costs).sum(axis=1)
        expected = estimated.error[k] + policy.rule.price * estimated.cost[k]
        differences.append(lost.mean() - expected)
        errors.append(np.hypot(estimated.standard_error[k], lost.std() / len(test) ** 0.5))
    shares = np.array(differences) / np.maximum(errors, 1e-9)
    return float(100 * np.mean(differences)), float(shares.mean())


def run(args: argparse.Namespace) -> None:
    """Measure what is not measured yet."""
    args.results.mkdir(exist_ok=True)
    path = args.results / "estimates.jsonl"
    done = {(line["set"], line["rows"], line["seed"]) for line in read_lines(path)}
    for rows in args.rows:
        for seed in numbers(args.splits):
            for name in args.sets:
                if (name, rows, seed) not in done:
                    fit, test = rows_of(name, args.data, seed, rows)
                    ladder = tt.fit(fit, embedders=EMBEDDER if fit.inputs else None)
                    points, errors = surprise(ladder, test)
                    write_line(path, set=name, rows=rows, seed=seed, points=points, errors=errors)


def show(folder: Path) -> None:
    """Print a table: means over splits, in points and in standard errors of one estimate."""
    lines = read_lines(folder / "estimates.jsonl")
    columns = sorted({line["rows"] for line in lines}, key=lambda rows: rows or 10**9)
    print(f"| set | {' | '.join(f'{rows:,} rows' if rows else 'halves' for rows in columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name in (n for n in (*LLM, *SERVICES, *SIMULATED) if any(n == x["set"] for x in lines)):
        cells = []
        for rows in columns:
            splits = [line for line in lines if (line["set"], line["rows"]) == (name, rows)]
            mean, error = mean_and_error(line["points"] for line in splits)
            share, _ = mean_and_error(line["errors"] for line in splits)
            cells.append(f"{mean:+.2f} ± {error:.2f} ({share:+.1f})")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Run, then show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--splits", default="8", help="how many, or from:to")
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--sets", nargs="+", default=[*LLM, *SERVICES, *SIMULATED])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="only print the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.show:
        run(args)
    show(args.results)


if __name__ == "__main__":
    main()
