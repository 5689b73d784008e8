"""What margin, entropy and earlier exits add to a confidence in predicting that an exit is right.

    python experiments/early_exit/columns.py [TRACE ...]

For every exit a logistic model is fitted on one half of the rows: on the logit of the confidence
alone, with margin and entropy, and with confidence and answer of the two exits before as well.
Printed: the area under the ROC curve on the other half.
"""

from __future__ import annotations

import sys

import numpy as np

from ttamer import datasets

RIDGE = 1.0
FINITE = 20.0
"""Logits are cut off here."""


def logits(values: np.ndarray) -> np.ndarray:
    """Return log odds, cut off."""
    return np.clip(np.log(values / np.clip(1 - values, 1e-9, 1) + 1e-12), -FINITE, FINITE)


def scores(fit: np.ndarray, right: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit a logistic model by Newton's steps, and return its log odds on other rows."""
    mean, spread = fit.mean(axis=0), fit.std(axis=0) + 1e-9
    rows, others = (np.c_[np.ones(len(x)), (x - mean) / spread] for x in (fit, test))
    weights = np.zeros(rows.shape[1])
    ridge = np.diag(np.r_[1e-9, np.full(len(weights) - 1, RIDGE)])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (right - chance) - ridge @ weights
        weights += np.linalg.solve(
            (rows * (chance * (1 - chance))[:, None]).T @ rows + ridge, slope
        )
    return others @ weights


def area(right: np.ndarray, score: np.ndarray) -> float:
    """Return the chance that a right row has a higher score than a wrong one."""
    ranks = score.argsort().argsort()
    count = int(right.sum())
    above = ranks[right == 1].sum() - count * (count - 1) / 2
    return float(above / (count * (len(right) - count)))


def main() -> None:
    """Print one line per exit."""
    for name in sys.argv[1:] or ["vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10"]:
        trace = datasets.load(name)
        order = np.random.default_rng(0).permutation(len(trace))
        fit, test = np.array_split(order, 2)
        right = 1.0 - trace.wrong()
        confident = logits(trace.confidence)
        for k, exit_ in enumerate(trace.names):
            margin, entropy = (trace.extras[each][:, k] for each in ("margin", "entropy"))
            own = [confident[:, k], logits(margin), margin, entropy, np.log(entropy + 1e-9)]
            before = []
            for j in range(max(k - 2, 0), k):
                same = (trace.prediction[:, j] == trace.prediction[:, k]).astype(float)
                before += [same, confident[:, j], same * confident[:, j]]
            found = [
                area(right[test, k], scores(columns[fit], right[fit, k], columns[test]))
                for columns in (np.c_[own[0]], np.column_stack(own), np.column_stack(own + before))
            ]
            print(f"{name} {exit_:7} " + " ".join(f"{each:.4f}" for each in found))


if __name__ == "__main__":
    main()
