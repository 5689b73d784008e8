"""Traces with losses: regressors, graded scores and unequal mistakes.

    python experiments/losses/make_traces.py FOLDER [--frugalml FOLDER]      # about a minute

Written are, as NPZ files:

- ``diabetes``, ``friedman``: three regressors of scikit-learn on the diabetes data that come with
  it, and on its Friedman function; the loss is the absolute error, and the confidence of a
  regressor is minus its own estimate of its spread.
- ``digits``: three classifiers on scikit-learn's digits whose answers are distributions; the score
  is one minus half the Brier score.
- ``numbers``: the same classifiers read numbers of three digits; the score is the share of digits
  that are right. Every digit is in one number.
- ``ferplus``, ``digit``: services of FrugalML's traces (``--frugalml``). A face of anger, fear,
  sadness or disgust that is taken for neutral or happy costs 10, every other mistake 1; a spoken
  digit costs the distance to the digit answered, or 2 where none was understood.

Answers are out of sample: the models are fitted to other rows, by five-fold cross-validation.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, make_friedman1
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from ttamer.trace import CascadeSpec, Trace

FOLDS = KFold(5, shuffle=True, random_state=0)
DARK = ("0", "1", "2", "4")
"""The codes of emotions that should not be missed: anger, disgust, fear, sadness."""
LIGHT = ("3", "6")
"""The codes of emotions that they should not be taken for: happy, neutral."""
NO_DIGIT = "10"
"""The code of an answer that is no digit."""


def main() -> None:
    """Write every trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--frugalml", type=Path, help="FrugalML's tables and prices")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    diabetes().write(args.folder / "diabetes.npz")
    friedman().write(args.folder / "friedman.npz")
    digit, chances = read_digits()
    scored_digits(digit, chances).write(args.folder / "digits.npz")
    scored_numbers(digit, chances).write(args.folder / "numbers.npz")
    for name in ("ferplus", "digit") if args.frugalml else ():
        sys.path.append(str(Path(__file__).parents[1] / "frugalml"))
        read = importlib.import_module("tables").read
        table = args.frugalml / f"frugalml_{name}.parquet"
        trace = read(table, args.frugalml / f"frugalml_{name}_prices.csv")
        costs = dict(zip(trace.names, trace.spec.costs.tolist(), strict=True))
        mistakes = missed_emotions() if name == "ferplus" else distances()
        spec = CascadeSpec.of(costs, mistakes=mistakes)
        trace.with_spec(spec).write(args.folder / f"{name}.npz")


def diabetes() -> Trace:
    """Return the trace of three forests that see more and more of a patient.

    The first sees age, sex and body mass, the second blood pressure too, the third blood serum.
    """
    features, target = load_diabetes(return_X_y=True)
    answers, spreads = np.zeros((2, len(target), 3))
    for rest, part in FOLDS.split(features):
        for node, seen in enumerate((3, 4, 10)):
            forest = RandomForestRegressor(200, min_samples_leaf=5, random_state=0)
            forest.fit(features[rest, :seen], target[rest])
            each = np.stack([tree.predict(features[part, :seen]) for tree in forest.estimators_])
            answers[part, node], spreads[part, node] = each.mean(axis=0), each.std(axis=0)
    return Trace.from_arrays(
        CascadeSpec.of({"body mass": 1.0, "pressure": 2.0, "serum": 20.0}),
        confidence=-spreads,
        loss=np.abs(answers - target[:, np.newaxis]),
    )


def friedman() -> Trace:
    """Return the trace of a line, neighbours and a Gaussian process; features are signals."""
    features, target = make_friedman1(3000, noise=0.5, random_state=0)
    answers, spreads = np.zeros((2, len(target), 3))
    for rest, part in FOLDS.split(features):
        line = BayesianRidge().fit(features[rest], target[rest])
        answers[part, 0], spreads[part, 0] = line.predict(features[part], return_std=True)
        near = KNeighborsRegressor(15).fit(features[rest], target[rest])
        answers[part, 1] = near.predict(features[part])
        around = near.kneighbors(features[part], return_distance=False)
        spreads[part, 1] = target[rest][around].std(axis=1)
        kernel = RBF(np.ones(features.shape[1])) + WhiteKernel()
        process = GaussianProcessRegressor(kernel, normalize_y=True)
        process.fit(features[rest[:800]], target[rest[:800]])
        answers[part, 2], spreads[part, 2] = process.predict(features[part], return_std=True)
    return Trace.from_arrays(
        CascadeSpec.of({"line": 1.0, "neighbours": 3.0, "process": 20.0}),
        confidence=-spreads,
        loss=np.abs(answers - target[:, np.newaxis]),
        inputs={f"x{k}": features[:, k] for k in range(features.shape[1])},
    )


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits, and the chances that three classifiers give each, shape (3, T, 10).

    They see the sums of pixel rows, every other pixel, and all pixels.
    """
    pixels, digit = load_digits(return_X_y=True)
    models = (
        (GaussianNB(), pixels.reshape(-1, 8, 8).sum(axis=2)),
        (LogisticRegression(max_iter=2000), pixels[:, ::2]),
        (SVC(probability=True, random_state=0), pixels),
    )
    chances = [
        cross_val_predict(
            make_pipeline(StandardScaler(), model), seen, digit, cv=FOLDS, method="predict_proba"
        )
        for model, seen in models
    ]
    return digit, np.stack(chances)


READERS = CascadeSpec.of({"rows": 1.0, "half": 4.0, "all": 20.0})
"""The classifiers of digits, and what each costs."""


def scored_digits(digit: np.ndarray, chances: np.ndarray) -> Trace:
    """Return the trace of single digits, graded by the Brier score."""
    brier = ((chances - np.eye(10)[digit]) ** 2).sum(axis=2)
    return Trace.from_arrays(
        READERS,
        confidence=chances.max(axis=2).T,
        prediction=chances.argmax(axis=2).T,
        label=digit,
        score=(1 - brier / 2).T,
    )


def scored_numbers(digit: np.ndarray, chances: np.ndarray) -> Trace:
    """Return the trace of numbers of three digits, graded by the share of digits read right."""
    count = len(digit) // 3
    of_number = np.random.default_rng(0).permutation(len(digit))[: 3 * count].reshape(count, 3)
    read = chances.argmax(axis=2)
    right = read == digit
    joined = [["".join(map(str, each[row])) for each in read] for row in of_number]
    return Trace.from_arrays(
        READERS,
        confidence=np.log(chances.max(axis=2))[:, of_number].sum(axis=2).T,
        prediction=joined,
        label=["".join(map(str, digit[row])) for row in of_number],
        score=right[:, of_number].mean(axis=2).T,
    )


def missed_emotions() -> dict[str, dict[str, float]]:
    """Return what mistakes cost where some emotions should not be missed."""
    return {label: dict.fromkeys(LIGHT, 10.0) for label in DARK}


def distances() -> dict[str, dict[str, float]]:
    """Return what mistakes cost where near digits are better than far ones."""
    return {
        str(one): {NO_DIGIT: 2.0}
        | {str(two): float(abs(one - two)) for two in range(10) if two != one}
        for one in range(10)
    }


if __name__ == "__main__":
    main()
