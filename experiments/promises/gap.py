"""How tight ``ladder.gap`` is, and how often it covers, on problems whose optimum is known.

    python experiments/promises/gap.py [--seeds 100] [--json FILE]

Two kinds of problems, a new one for each seed. *Line*: three exits, four states each, a Markov
chain. *Models*: three separate models with independent states, asked in any order; full beliefs.
Ladders are fitted to 4,000 rows; gaps are measured on others. The truth is the value of the exact
policy of the problem the rows are drawn from; what the fitted policy does is measured on 200,000.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import ttamer as tt

TRADEOFF = 0.8
FITTED, TRUTH = 4000, 200_000
ROWS = (500, 2000, 8000)
LOSSES = np.array([[0.02, 0.15, 0.3, 0.5], [0.01, 0.1, 0.2, 0.4], [0.01, 0.05, 0.1, 0.25]])
COSTS = np.array([1.0, 2.0, 4.0])


def tables(kind: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the law of the states: of a chain, or of each model by itself."""
    if kind == "models":
        return list(rng.dirichlet(np.full(4, 2.0), size=3))
    chain = [rng.dirichlet(np.full(4, 2.0))]
    return chain + [np.array([rng.dirichlet(row) for row in np.eye(4) * 2 + 0.5]) for _ in range(2)]


def rows_of(kind: str, law: list[np.ndarray], count: int, rng: np.random.Generator) -> tt.Trace:
    """Draw rows: the confidence gives the state, and errors are independent given it."""
    states: list[np.ndarray] = []
    for table in law:
        each = table if table.ndim == 1 else table[states[-1]]
        above = np.cumsum(each, axis=-1)
        states.append((rng.random((count, 1)) > above).sum(axis=1).clip(0, 3))
    wrong = rng.random((count, 3)) < np.stack([LOSSES[k][s] for k, s in enumerate(states)], 1)
    costs = dict(zip("abc", COSTS.tolist(), strict=True))
    spec = tt.CascadeSpec.of(costs, kind="exits" if kind == "line" else "models")
    return tt.Trace(spec, 1 - np.stack(states, 1) / 4, correct=~wrong)


def optimum(kind: str, law: list[np.ndarray]) -> float:
    """Return the least expected objective of any policy."""
    if kind == "line":
        problem = tt.Problem.line(list(LOSSES), (COSTS / COSTS.sum()).tolist(), law)
    else:
        costs = (COSTS / COSTS.max()).tolist()
        problem = tt.Problem.forest(list(LOSSES), costs, law, [None] * 3)
    return tt.solve(problem, TRADEOFF).value


def one(kind: str, seed: int) -> list[dict[str, float]]:
    """Fit to one problem, and compare gaps with the truth."""
    rng = np.random.default_rng([seed, kind == "line"])
    law = tables(kind, rng)
    options = {"belief": "calibrated", "states": 4} if kind == "line" else {}
    ladder = tt.fit(rows_of(kind, law, FITTED, rng), tradeoffs=[TRADEOFF], folds=2, **options)
    test = rows_of(kind, law, TRUTH, rng)
    played = tt.evaluate(ladder[0], test, resamples=0)
    mine = TRADEOFF * played.error + (1 - TRADEOFF) * played.cost / ladder.fitted.full_cost
    best = optimum(kind, law)
    found = []
    for count in ROWS:
        gap = ladder.gap(tradeoff=TRADEOFF, on=rows_of(kind, law, count, rng))
        found.append({
            "rows": count, "covers": mine - best <= gap.bound, "bound": gap.bound,
            "true gap": mine - best, "optimum": best, "lower": gap.lower,
            "counted": gap.best_on_rows, "any policy": gap.any_policy, "lines": gap.lines,
            "upper holds": mine <= gap.upper, "lower holds": gap.lower <= best,
        })  # fmt: skip
    return found


def main() -> None:
    """Run all seeds and print means with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    every = []
    for kind in ("line", "models"):
        runs = [each for seed in range(options.seeds) for each in one(kind, seed)]
        every += [{"kind": kind, **each} for each in runs]
        for count in ROWS:
            mine = [each for each in runs if each["rows"] == count]
            cells = []
            for key in (k for k in mine[0] if k != "rows"):
                values = np.array([each[key] for each in mine], float)
                spread = values.std(ddof=1) / len(values) ** 0.5
                cells.append(f"{key} {values.mean():.4f} ± {spread:.4f}")
            print(f"{kind}, {count} rows: {'; '.join(cells)}")
    if options.json:
        options.json.write_text(json.dumps(every, default=float, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
