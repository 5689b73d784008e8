"""Families of rules to compare with: routers that ask one model, chosen by the prompt; and pairs.

A router predicts each model's error from the prompt, and asks the one whose error plus price times
cost is least. A fair router also predicts what each model costs on this prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from sets import Floats, Points, point
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV

import ttamer as tt
from ttamer.stats.envelope import lower_envelope

Predictor = Callable[[Floats, Floats, Floats], Floats]  # features, values, new features
WORD = r"[^\W\d_]+|\d|[^\w\s]"
WORDS = HashingVectorizer(n_features=1024, ngram_range=(1, 2), token_pattern=WORD)
PENALTIES = np.logspace(-2, 4, 25)
PRICES = 60


def features(trace: tt.Trace) -> Floats:
    """Return what routers read: the embedding, then hashed words and pairs of words."""
    words = WORDS.transform([str(text)[:4000] for text in trace.prompt]).toarray()
    return np.hstack([trace.inputs["minilm"], 0.7 * words])


def near(rows: Floats) -> Floats:
    """Return the embedding, of unit length."""
    own = rows[:, :384]
    return own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-9)


def ridge(rows: Floats, values: Floats, new: Floats) -> Floats:
    """Regress the principal directions of the values, each with its own penalty."""
    mean = values.mean(axis=0)
    _, _, directions = np.linalg.svd(values - mean, full_matrices=False)
    model = RidgeCV(PENALTIES, alpha_per_target=True).fit(rows, (values - mean) @ directions.T)
    return model.predict(new) @ directions + mean


def knn(rows: Floats, values: Floats, new: Floats) -> Floats:
    """Average the nearest rows by cosine; how many is chosen by leaving one out."""
    rows, new = near(rows), near(new)
    most = min(160, len(rows) // 3)
    own = rows @ rows.T
    np.fill_diagonal(own, -np.inf)
    order = np.argsort(-own, axis=1)[:, :most]
    counts = [count for count in (5, 10, 20, 40, 80, 160) if count <= most]
    loss = [((values[order[:, :count]].mean(axis=1) - values) ** 2).mean() for count in counts]
    count = counts[int(np.argmin(loss))]
    nearest = np.argpartition(-(new @ rows.T), count, axis=1)[:, :count]
    return values[nearest].mean(axis=1)


def clusters(rows: Floats, values: Floats, new: Floats) -> Floats:
    """Average the rows of a fine cluster, drawn to a coarse one, drawn to all."""
    rows, new = near(rows), near(new)
    guess = np.tile(values.mean(axis=0), (len(new), 1))
    for wanted in (20, 100):
        count = min(wanted, max(2, len(rows) // 12))
        model = KMeans(count, n_init=1, random_state=0, max_iter=50).fit(rows)
        members = np.eye(count)[model.labels_]
        sums, sizes = members.T @ values, members.sum(axis=0)[:, None]
        own = model.predict(new)
        guess = (sums[own] + 24 * guess) / (sizes[own] + 24)
    return guess


def mean(rows: Floats, values: Floats, new: Floats) -> Floats:
    """Average the three, the ridge twice."""
    return (2 * ridge(rows, values, new) + knn(rows, values, new) + clusters(rows, values, new)) / 4


PREDICTORS: dict[str, Predictor] = {"knn": knn, "ridge": ridge, "clusters": clusters, "mean": mean}


def routers(fit: tt.Trace, test: tt.Trace) -> Iterator[tuple[str, Points]]:
    """Measure each router, and each with the predicted cost."""
    rows, new = features(fit), features(test)
    average = fit.costs.mean(axis=0)
    shares = ridge(rows, fit.costs / average, new)
    costs = {
        "": np.broadcast_to(average, shares.shape),
        "+cost": np.clip(shares, 0.05, 20) * average,
    }
    gaps = np.diff(np.unique(np.append(0, average)))
    top = 3 / max(gaps.min(), 1e-3 * average.max())
    prices = np.append(0, np.geomspace(1e-6 * top, top, PRICES - 1))
    for name, predict in PREDICTORS.items():
        errors = predict(rows, fit.loss, new)
        for suffix, cost in costs.items():
            choices = [(errors + price * cost).argmin(axis=1) for price in prices]
            yield name + suffix, [point(test, one_asked(c, test), c) for c in choices]


def one_asked(choice: NDArray[np.intp], trace: tt.Trace) -> NDArray[np.bool_]:
    """Return who is asked where one model is."""
    return choice[:, None] == np.arange(len(trace.names))


def pairs(fit: tt.Trace, test: tt.Trace) -> Points:
    """Measure the envelope of all pairs: ask the second where the first is likely wrong.

    The threshold is on the calibrated chance. Points are chosen on the fit rows.
    """
    nodes = range(len(fit.names))
    chance_fit, chance_test = np.empty(fit.loss.shape), np.empty(test.loss.shape)
    for node in nodes:
        curve = IsotonicRegression(increasing=False, out_of_bounds="clip")
        chance_fit[:, node] = curve.fit_transform(fit.confidence[:, node], fit.loss[:, node])
        chance_test[:, node] = curve.predict(test.confidence[:, node])
    settings = [
        (first, second, cut)
        for first in nodes
        for second in nodes
        if fit.costs[:, first].mean() < fit.costs[:, second].mean()
        for cut in [-1.0, *np.unique(np.quantile(chance_fit[:, first], np.linspace(0, 1, 21)))]
    ]

    def play(
        trace: tt.Trace, chance: Floats, first: int, second: int, cut: float
    ) -> tuple[float, float]:
        on = chance[:, first] > cut
        asked = np.zeros(trace.loss.shape, bool)
        asked[:, first], asked[:, second] = True, on
        return point(trace, asked, np.where(on, second, first))

    costs, errors = zip(*(play(fit, chance_fit, *s) for s in settings), strict=True)
    return [play(test, chance_test, *settings[s]) for s in lower_envelope(costs, errors)]
