"""Cascades of scikit-learn models: each model alone, one threshold, and the cascade.

    python experiments/sklearn/compare.py --splits 10

Data that comes with scikit-learn: 1,797 handwritten digits, and 569 tumours. Half the rows are
fitted to, half are measured on. Costs are measured times per row. The threshold asks the first
model, and the last one where the first is not certain enough; it is set on the same cross-fitted
answers to cost what the cascade costs.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from ttamer.sklearn import CascadeClassifier

SETS = {
    "digits": (
        load_digits,
        [
            ("linear", LinearDiscriminantAnalysis()),
            ("forest", RandomForestClassifier(200, random_state=0)),
        ],
    ),
    "digits, three models": (
        load_digits,
        [
            ("bayes", GaussianNB()),
            ("linear", LinearDiscriminantAnalysis()),
            ("forest", RandomForestClassifier(200, random_state=0)),
        ],
    ),
    "tumours": (
        load_breast_cancer,
        [
            ("bayes", GaussianNB()),
            ("forest", RandomForestClassifier(200, random_state=0)),
        ],
    ),
}


def main() -> None:
    """Print accuracy and cost over splits, with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, (load, models) in SETS.items():
        x, y = load(return_X_y=True)
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(args.splits):
            halves = train_test_split(x, y, test_size=0.5, random_state=seed, stratify=y)
            for what, numbers in measured(models, *halves).items():
                found.setdefault(what, []).append(numbers)
        print(f"\n{name}, {args.splits} splits: accuracy, and time in µs per row")
        for what, rows in found.items():
            mean = np.mean(rows, axis=0)
            error = np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
            print(f"  {what:10} {mean[0]:.2%} ± {error[0]:.2%}   {mean[1]:7.1f} ± {error[1]:.1f}")


def measured(models, x, held, y, right) -> dict[str, tuple[float, float]]:
    """Return accuracy and cost per row of each model, of the threshold and of the cascade."""
    cascade = CascadeClassifier(models).fit(x, y)
    costs = list(cascade.costs_.values())
    found = {
        name: (model.score(held, right), cascade.costs_[name]) for name, model in cascade.models_
    }
    done = cascade.run_batch(held)
    trace = cascade.trace_
    share = np.clip((cascade.policy_.cost - costs[0]) / costs[-1], 0.0, 1.0)
    threshold = np.quantile(trace.confidence[:, 0], share)
    first, last = cascade.models_[0][1], cascade.models_[-1][1]
    certain = first.predict_proba(held).max(axis=1) >= threshold
    answer = np.where(certain, first.predict(held), last.predict(held))
    found["threshold"] = (
        float((answer == right).mean()),
        float(costs[0] + costs[-1] * (~certain).mean()),
    )
    found["cascade"] = (float((np.array(done.answers) == right).mean()), float(done.cost.mean()))
    return found


if __name__ == "__main__":
    main()
