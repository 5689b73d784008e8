"""Cascades of scikit-learn models: each model alone, one threshold, and the cascade.

    python experiments/sklearn/compare.py --splits 10 [--batch 256]

Data that comes with scikit-learn: 1,797 handwritten digits, and 569 tumours. Half the rows are
fitted to, half are measured on. Everything is timed in batches of one size, by turns, and the time
that the plan books for a row is printed beside. The threshold asks the first model, and the last
one where the first is not certain enough; it is set on the same cross-fitted answers to cost what
the cascade costs.
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
from ttamer.sklearn.base import clock

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
    """Print accuracy and times over splits, with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, (load, models) in SETS.items():
        x, y = load(return_X_y=True)
        results: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(args.splits):
            halves = train_test_split(x, y, test_size=0.5, random_state=seed, stratify=y)
            for rule, numbers in measured(models, args.batch, *halves).items():
                results.setdefault(rule, []).append(numbers)
        print(
            f"\n{name}, {args.splits} splits: accuracy, µs per row in batches of {args.batch}, "
            "and µs booked"
        )
        for rule, rows in results.items():
            means = np.mean(rows, axis=0)
            errors = np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
            print(
                f"  {rule:10} {means[0]:.2%} ± {errors[0]:.2%}   "
                f"{means[1]:7.1f} ± {errors[1]:.1f}   {means[2]:7.1f}"
            )


def measured(models, batch, x, held, y, right) -> dict[str, tuple[float, ...]]:
    """Return accuracy, time and booked time per row of models, the threshold and the cascade."""
    cascade = CascadeClassifier(models, batch=batch).fit(x, y)
    costs, trace = list(cascade.costs_.values()), cascade.trace_
    share = cascade.policy_.play(trace).asked[:, -1].mean()
    limit = np.quantile(trace.confidence[:, 0], share)
    first, last = cascade.models_[0][1], cascade.models_[-1][1]

    def threshold(rows):
        probabilities = first.predict_proba(rows)
        answer = first.classes_[probabilities.argmax(axis=1)]
        unsure = probabilities.max(axis=1) < limit
        if unsure.any():
            answer[unsure] = last.predict(rows[unsure])
        return answer

    asked = (first.predict_proba(held).max(axis=1) < limit).mean()
    rules = {name: model.predict for name, model in cascade.models_}
    rules |= {"threshold": threshold, "cascade": cascade.predict}
    some = cascade.timings_[cascade.models_[-1][0]].of(asked * batch) / batch
    several = np.random.default_rng(1).integers(0, len(held), (max(8, 64 // batch), batch))
    booked = [*costs, costs[0] + some, cascade.run_batch(held[several[0]]).cost.mean()]
    times = clock(rules, {batch: [(held[rows],) for rows in several]})
    return {
        name: (float((rule(held) == right).mean()), times[name][batch] / batch, float(cost))
        for (name, rule), cost in zip(rules.items(), booked, strict=True)
    }


if __name__ == "__main__":
    main()
