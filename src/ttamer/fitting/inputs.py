"""What is known of an input before any node is asked, and what it says of each node.

An input becomes one vector of features: vectors (embeddings) of unit length; hashed words and pairs
of words of the prompt, signed log counts of unit length; a few numbers of the prompt; numbers, by
their mean and spread; categories, one column each. Features are multiples of ``2**-11``.

The prior of T rows with losses y (T, n), features f centred::

    ridge       y turned to its principal directions V; each regressed on f with the penalty that
                is best when a row is left out, or not at all: how hard an input is for all nodes
                has much signal, contrasts between nodes little
    neighbours  mean losses of the k nearest rows by cosine, k by the same loss
    clusters    mean losses of coarse and fine clusters, drawn to coarser ones and to the mean
    z[m]        log-odds of (2 ridge + neighbours + clusters) / 4
    cost[m]     ridge of cost over its mean, clipped to [0.05, 20], times the mean

Without some folds the ridge needs their share of f'f and f'y only, in the eigenvectors of all rows;
neighbours and clusters leave out their losses. Directions, penalties and k are those of all rows.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import MAX_ODDS, Floats, Ints, bar_of, on_grid

Features = NDArray[np.float32]
Folds = frozenset[int]

WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
HASHED = re.compile(r"#ttamer-prompt:((?: \d+(?:\.\d+)?(?:e-\d+)?){6});((?: \d{1,4}:-?\d{1,5})*)")


# ---------------------------------------------------------------- features
def hashed_words(text: str, size: int) -> Floats:
    """Return hashed words and pairs of words: signed log counts, unit length; time is linear.

    >>> float(round((hashed_words("two words", 64) ** 2).sum(), 6))
    1.0
    """
    counts = _word_counts(text, size)
    levels = np.sign(counts) * np.log1p(np.abs(counts))
    return np.asarray(levels / max(float(np.linalg.norm(levels)), 1e-9))


def _word_counts(text: str, size: int) -> Floats:
    """Return signed counts of hashed words and pairs of words, of a text or its hashed form."""
    if (match := HASHED.fullmatch(text)) is not None:
        pairs = [pair.split(":") for pair in match[2].split()]
        columns = np.array([int(column) for column, _ in pairs], np.int64)
        signed = [float(count) for _, count in pairs]
        return np.asarray(np.bincount(columns % size, signed, size), float)
    parts = WORD.findall(_ends_of(text).lower())
    words = [f"<{min(len(w), 4)} digits>" if w.isdigit() else w for w in parts]
    grams = [*words, *(f"{a} {b}" for a, b in pairwise(words))]
    codes = np.array([zlib.crc32(gram.encode("utf-8", "replace")) for gram in grams], np.int64)
    return np.asarray(np.bincount(codes % size, 2.0 * ((codes >> 20) & 1) - 1, size), float)


def hashed_prompt(text: str) -> str:
    """Return what a log without texts keeps of a prompt: all that fits read of it by default.

    It stands in the place of the prompt: the features of both are the same.

    >>> hashed_prompt("To be?")
    '#ttamer-prompt: 1.9459101490553132 0.0 0.0 0.16666666666666666 0.16666666666666666 \
0.6931471805599453; 85:-1 192:1 525:-1 688:-1 708:-1'
    >>> bool((hashed_words(hashed_prompt("To be?"), 64) == hashed_words("To be?", 64)).all())
    True
    """
    counts = _word_counts(text, 1024)  # as many columns as fits have
    words = "".join(f" {column}:{int(counts[column])}" for column in np.flatnonzero(counts))
    numbers = "".join(f" {value}" for value in prompt_numbers(text))
    return f"#ttamer-prompt:{numbers};{words}"


def _ends_of(text: str) -> str:
    # So many characters of a prompt are read, half at either end: time is bounded.
    return text if len(text) <= 4000 else f"{text[:2000]} {text[-2000:]}"


def prompt_numbers(text: str) -> list[float]:
    """Return numbers of a prompt: length, lines, shares of kinds of characters, questions."""
    if (match := HASHED.fullmatch(text)) is not None:
        return [float(value) for value in match[1].split()]
    read = _ends_of(text)
    count = max(len(read), 1)
    kinds = (str.isdigit, str.isupper, str.isalnum, str.isspace)
    digits, capitals, alphanumeric, spaces = (sum(map(kind, read)) for kind in kinds)
    marks = len(read) - alphanumeric - spaces
    return [
        math.log1p(len(text)),
        math.log1p(text.count("\n")),
        *(number / count for number in (digits, capitals, marks)),
        math.log1p(read.count("?")),
    ]


@dataclass(frozen=True)
class InputFeature:
    """One input, and how it becomes columns."""

    name: str
    kind: str  # "words", "prompt", "number", "category" or "vector"
    width: int  # the number of columns
    centre: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()  # the categories; any other one has no column
    embedder: str = ""  # the name and version of what made a vector

    def columns(self, values: Sequence[object]) -> Floats:
        """Return the columns of rows, shape (T, width); zeros where a value is missing."""
        if self.kind == "words":
            return np.array([0.7 * hashed_words(str(v or ""), self.width) for v in values])
        if self.kind == "category":
            wanted = np.array(["" if v is None else str(v) for v in values])[:, None]
            return np.asarray(0.5 * (wanted == np.array(self.levels)))
        if self.kind == "vector":
            return _unit(np.array([_numbers(self.name, v, self.width) for v in values]))
        if self.kind == "prompt":
            numbers = np.array([prompt_numbers(str(v or "")) for v in values])
        else:
            numbers = np.array([_numbers(self.name, v, 1) for v in values])
        levels = (numbers - np.array(self.centre)) / np.array(self.spread)
        return np.asarray(0.2 * np.clip(np.nan_to_num(levels), -3, 3))


def _numbers(name: str, value: object, width: int) -> Floats:
    """Return one value as numbers; NaN where it is missing."""
    if value is None:
        return np.full(width, np.nan)
    try:
        numbers = np.asarray(value, float).reshape(-1)
    except (TypeError, ValueError):
        raise ArgumentError(f"input {name!r}: {value!r} is not a number", param=name) from None
    if len(numbers) != width:
        raise ArgumentError(
            f"input {name!r} has {len(numbers)} numbers; the policy was fitted to {width}",
            param=name,
        )
    return numbers


def _gridded(columns: NDArray[Any]) -> Features:
    # Products of two such features are exact in single precision.
    return np.asarray(np.rint(columns * 2048.0) / 2048.0, np.float32)


def _unit(rows: Floats) -> Floats:
    rows = np.nan_to_num(rows)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))


@dataclass(frozen=True)
class FeatureSpec:
    """How inputs become features: what a policy that reads inputs keeps of them.

    >>> columns = {"user": ["free", "paid"], "prompt": ["one", "two words"]}
    >>> FeatureSpec.of(columns, words=64).rows(columns).shape
    (2, 72)
    """

    features: tuple[InputFeature, ...]  # vectors first

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Sequence[Any]],
        *,
        embedders: Mapping[str, str] | None = None,
        words: int = 1024,
        max_levels: int = 32,
    ) -> FeatureSpec:
        """Return how inputs become features, by name one value for each row.

        Numbers, texts (categories) or arrays (vectors); ``"prompt"`` is the text of the prompt.
        ``words`` is how many columns hashed words have, ``max_levels`` the most categories.
        """
        features = []
        for name, values in columns.items():
            example = next((v for v in values if v is not None), None)
            if name == "prompt":
                numbers = np.array([prompt_numbers(text or "") for text in values])
                features.append(_standardised(name, "prompt", numbers))
                features.append(InputFeature(name, "words", words))
            elif isinstance(example, str):
                counts = Counter(str(v) for v in values if v is not None)
                levels = sorted(counts, key=lambda v: (-counts[v], v))[:max_levels]
                features.append(InputFeature(name, "category", len(levels), levels=tuple(levels)))
            elif example is not None and np.size(example) > 1:
                embedder = (embedders or {}).get(name, "")
                features.append(InputFeature(name, "vector", np.size(example), embedder=embedder))
            elif example is not None:
                numbers = np.array([_numbers(name, v, 1) for v in values])
                features.append(_standardised(name, "number", numbers))
        return cls(tuple(sorted(features, key=lambda feature: feature.kind != "vector")))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(dict.fromkeys(feature.name for feature in self.features))

    @property
    def near(self) -> int:
        """The number of columns by which inputs are near: vectors, or all where there are none."""
        vectors = sum(feature.width for feature in self.features if feature.kind == "vector")
        return vectors or sum(feature.width for feature in self.features)

    def rows(self, columns: Mapping[str, Sequence[Any]]) -> Features:
        """Return features, shape (T, D); what is missing counts as nothing known."""
        parts = [np.zeros((max(map(len, columns.values()), default=0), 0))]
        for feature in self.features:
            part = np.zeros((len(parts[0]), feature.width))
            if feature.name in columns:
                part = feature.columns(columns[feature.name]).reshape(part.shape)
            parts.append(part)
        return _gridded(np.hstack(parts))


def _standardised(name: str, kind: str, numbers: Floats) -> InputFeature:
    centre, spread = np.nan_to_num(np.nanmean(numbers, axis=0)), np.nanstd(numbers, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    return InputFeature(
        name, kind, numbers.shape[1], tuple(centre.tolist()), tuple(spread.tolist())
    )


# ---------------------------------------------------------------- what they say
@dataclass(frozen=True, eq=False)
class Prior:
    """The log-odds that each node errs, and what it costs, from the features of an input."""

    base: Floats  # (n,): the log-odds of each node where nothing is known of the input
    mean_cost: Floats  # (n,)
    weights: Floats  # (D + 1, 2 n): of losses, then of cost over its mean; the last row is constant
    near: Features  # (T, d): the rows fitted to, by the first d features, unit length
    losses: Floats  # (T, n)
    count: int  # how many neighbours count
    centres: Features  # (c, d): of clusters, coarse ones first
    coarse: int  # how many of them are coarse
    # (c, n): the losses of each cluster, fine ones before they are drawn to a coarse one
    means: Floats
    shrink: Floats  # (c,): the weight of a cluster's own mean, beside what it is drawn to
    # How inputs become features, where the fit was given inputs and not features
    spec: FeatureSpec | None = None

    @cached_property
    def unknown(self) -> tuple[list[float], float]:
        """The log-odds of an input of which nothing is known, and their mean."""
        return self.base.tolist(), float(bar_of(self.base))

    def __call__(self, features: Features) -> tuple[Floats, Floats]:
        """Return log-odds and costs, shape (T, n) each: those of a row by itself, bit for bit."""
        near = near_columns(features, self.near.shape[1])
        clusters = nearest_centres(near, self.centres, self.coarse)
        return self.combined(features, self._neighbours(near), *clusters)

    def combined(
        self, features: Features, neighbours: Floats, coarse: Ints, fine: Ints
    ) -> tuple[Floats, Floats]:
        """Return the same, given mean losses of neighbours and the clusters of rows."""
        nodes = len(self.base)
        linear = features.astype(float) @ self.weights[:-1] + self.weights[-1]
        share = self.shrink[fine][:, None]
        clusters = share * self.means[fine] + (1 - share) * self.means[coarse]
        chances = (2 * linear[:, :nodes] + neighbours + clusters) / 4
        return z_of(chances), np.clip(on_grid(linear[:, nodes:]), 0.05, 20) * self.mean_cost

    def _neighbours(self, near: Features) -> Floats:
        means = np.empty((len(near), self.losses.shape[1]))
        for start in range(0, len(near), 1024):
            block = slice(start, start + 1024)
            nearest = np.argpartition(-(near[block] @ self.near.T), self.count - 1, axis=1)
            means[block] = self.losses[nearest[:, : self.count]].sum(axis=1) / self.count
        return means


def z_of(chances: Floats) -> Floats:
    """Return chances of errors as log-odds on the grid."""
    chances = np.clip(chances, 0.01, 0.99)
    return on_grid(np.log(chances) - np.log1p(-chances), MAX_ODDS)


def near_columns(features: Features, width: int) -> Features:
    """Return the columns by which inputs are near, unit length, on a grid."""
    return _gridded(_unit(features[:, :width].astype(float)))


def nearest_centres(near: Features, centres: Features, coarse: int) -> tuple[Ints, Ints]:
    """Return the coarse and the fine cluster of each row."""
    size = (centres.astype(float) ** 2).sum(axis=1)
    distance = size - 2.0 * (near @ centres.T).astype(float)
    return distance[:, :coarse].argmin(axis=1), coarse + distance[:, coarse:].argmin(axis=1)


def k_means(near: Features, count: int, rng: np.random.Generator, rounds: int = 15) -> Features:
    """Return the centres of clusters (Lloyd's algorithm), shape (count, d)."""
    centres = near[rng.permutation(len(near))[:count]]
    for _ in range(rounds):
        cluster = ((centres**2).sum(axis=1) - 2 * near @ centres.T).argmin(axis=1)
        members = (cluster[:, None] == np.arange(len(centres))).astype(np.float32)
        sizes = members.sum(axis=0)[:, None]
        moved = np.where(sizes > 0, members.T @ near / np.maximum(sizes, 1), centres)
        if np.abs(moved - centres).max() < 1e-4:
            break
        centres = moved.astype(np.float32)
    return _gridded(centres)


class CrossFittedPrior:
    """Priors fitted without some folds; the work is done once, on all rows."""

    penalties = np.logspace(-2, 4, 25)
    counts = (5, 10, 20, 40, 80, 160)  # of neighbours
    listed = 480  # neighbours kept of each row; of these, enough lie outside three of five folds
    clusters = (20, 100)
    drawn = 24.0  # rows that what a cluster is drawn to counts as

    def __init__(
        self,
        features: Features,
        losses: Floats,
        cost: Floats,
        complete: Ints,
        fold: Ints,
        spec: FeatureSpec | None = None,
    ) -> None:
        """Prepare what all folds share; losses, in [0, 1], are of the R complete rows."""
        self.features, self.complete, self.fold, self.spec = features, complete, fold, spec
        self.losses, self.mean_cost = on_grid(losses), cost.mean(axis=0)
        self.near = near_columns(features, features.shape[1] if spec is None else spec.near)
        self.nodes, self.folds = losses.shape[1], range(int(fold.max()) + 1)
        shares = cost[complete] / np.maximum(self.mean_cost, 1e-300)
        self._prepare_ridge(np.hstack([self.losses, shares]))
        self._prepare_neighbours()
        self._prepare_clusters()
        self.without, self.of_rows = cache(self._without), cache(self._of_rows)

    def _without(self, out: Folds) -> Prior:
        """Return the prior of all complete rows but those of some folds."""
        means, shrink = self._cluster_means(out)
        return Prior(
            base=z_of(self.losses.mean(axis=0)),
            mean_cost=self.mean_cost,
            weights=self._ridge(out),
            near=self._near_complete,
            losses=self.losses,
            count=self.count,
            centres=self._centres,
            coarse=self._coarse,
            means=means,
            shrink=shrink,
            spec=self.spec,
        )

    def _of_rows(self, out: Folds) -> tuple[Floats, Floats]:
        """Return log-odds and costs of all rows: each by the prior without its fold and others."""
        z, cost = np.empty((2, len(self.features), self.nodes))
        near = self._neighbours(out, self.count)
        coarse, fine = self._cluster
        for k in self.folds:
            on = self.fold == k
            prior = self.without(out | {k})
            z[on], cost[on] = prior.combined(self.features[on], near[on], coarse[on], fine[on])
        return z, cost

    # Ridge.
    def _prepare_ridge(self, targets: Floats) -> None:
        """Turn features to their eigenvectors and targets to directions; choose penalties."""
        rows, nodes = self.features[self.complete].astype(float), self.nodes
        self._centre = rows.mean(axis=0)
        rows -= self._centre
        # The smaller of the two matrices has the same eigenvalues.
        wide = rows.shape[1] > len(rows)
        values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
        values = np.maximum(values, 1e-9 * max(float(values[-1]), 1e-9))
        basis = rows.T @ vectors / np.sqrt(values) if wide else vectors
        turned = targets - targets.mean(axis=0)
        directions = np.zeros((2 * nodes, 2 * nodes))
        for part in (slice(nodes), slice(nodes, None)):  # losses, then costs
            axes = np.linalg.svd(turned[:, part], full_matrices=False)[2].T
            directions[part, part.start or 0 : (part.start or 0) + axes.shape[1]] = axes
        turned = turned @ directions
        scores = rows @ basis
        product, square = scores.T @ turned, scores**2
        # A direction is regressed only if that lowers its squares by a thousandth.
        best = 0.999 * (turned**2).mean(axis=0)
        self._penalty = np.full(2 * nodes, np.inf)
        for penalty in self.penalties:
            fit = scores @ (product / (values + penalty)[:, None])
            hat = square @ (1 / (values + penalty)) + 1 / len(rows)
            loss = (((turned - fit) / (1 - np.minimum(hat, 0.99))[:, None]) ** 2).mean(axis=0)
            self._penalty = np.where(loss < best, penalty, self._penalty)
            best = np.minimum(loss, best)
        # Directions of so little variance are shrunk to nothing by every penalty chosen.
        used = values >= 0.01 * min(float(self._penalty.min()), self.penalties[-1])
        self._basis, self._directions, self._targets = basis[:, used], directions, targets
        self._scores, fold = scores[:, used], self.fold[self.complete]
        parts = [self._scores[fold == k] for k in self.folds]
        self._squares = [part.T @ part for part in parts]

    def _ridge(self, out: Folds) -> Floats:
        """Return the weights of all features without some folds, shape (D + 1, 2 n)."""
        used = ~np.isin(self.fold[self.complete], [*out])
        scores, targets = self._scores[used], self._targets[used]
        middle, base = scores.mean(axis=0), targets.mean(axis=0)
        square = np.sum([part for k, part in enumerate(self._squares) if k not in out], axis=0)
        square = square - len(scores) * np.outer(middle, middle)
        product = scores.T @ ((targets - base) @ self._directions)
        solved = np.zeros_like(product)
        for penalty in np.unique(self._penalty[np.isfinite(self._penalty)]):
            columns = self._penalty == penalty
            ridge = square + penalty * np.eye(len(square))
            solved[:, columns] = np.linalg.solve(ridge, product[:, columns])
        weights = self._basis @ solved @ self._directions.T
        constant = base - (self._centre + self._basis @ middle) @ weights
        # Finer than the grid of odds: sums of a thousand products stay exact.
        return np.rint(np.vstack([weights, constant]) * 2.0**20) / 2.0**20

    # Neighbours.
    def _prepare_neighbours(self) -> None:
        """List the nearest complete rows of each row, and choose how many count."""
        self._near_complete = rows = self.near[self.complete]
        listed = min(self.listed, len(rows))
        self._nearest = np.empty((len(self.near), listed), np.intp)
        for start in range(0, len(self.near), 1024):
            block = slice(start, start + 1024)
            closeness = self.near[block] @ rows.T
            order = np.argpartition(-closeness, listed - 1, axis=1)[:, :listed]
            inner = np.argsort(-np.take_along_axis(closeness, order, 1), axis=1, kind="stable")
            self._nearest[block] = np.take_along_axis(order, inner, 1)
        self._fold_of_nearest = self.fold[self.complete][self._nearest]
        best, self.count = np.inf, 1
        for count in self.counts:
            if count > max(len(rows) // 3, 1):
                break
            means = self._neighbours(frozenset(), count)[self.complete]
            loss = float(((means - self.losses) ** 2).mean())
            if loss < best:
                best, self.count = loss, count

    def _neighbours(self, out: Folds, count: int) -> Floats:
        """Return mean losses of the nearest rows outside some folds and the row's fold."""
        used = self._fold_of_nearest != self.fold[:, None]
        for k in out:
            used &= self._fold_of_nearest != k
        used &= used.cumsum(axis=1) <= count
        total = np.maximum(used.sum(axis=1), 1)
        sums = [(losses[self._nearest] * used).sum(axis=1) for losses in self.losses.T]
        return np.asarray(np.stack(sums, axis=1) / total[:, None])

    # Clusters.
    def _prepare_clusters(self) -> None:
        """Cluster rows, and sum the losses of each cluster by fold."""
        rows, rng = self.near[self.complete], np.random.default_rng(0)
        sizes = [min(count, max(2, len(rows) // 12)) for count in self.clusters]
        levels = [k_means(rows, size, rng) for size in sizes]
        self._centres, self._coarse = np.concatenate(levels), len(levels[0])
        self._cluster = nearest_centres(self.near, self._centres, self._coarse)
        shape = len(self.folds), len(self._centres), self.nodes
        self._sums, self._rows = np.zeros(shape), np.zeros(shape[:2])
        for cluster in self._cluster:
            cell = self.fold[self.complete], cluster[self.complete]
            np.add.at(self._sums, cell, self.losses)
            np.add.at(self._rows, cell, 1)

    def _cluster_means(self, out: Folds) -> tuple[Floats, Floats]:
        """Return the losses of clusters, and their weight beside what they are drawn to."""
        folds = [k for k in self.folds if k not in out]
        sums, rows = self._sums[folds].sum(axis=0), self._rows[folds].sum(axis=0)
        coarse = slice(self._coarse)
        base = sums[coarse].sum(axis=0) / max(rows[coarse].sum(), 1)
        means, weight = sums / np.maximum(rows, 1)[:, None], rows / (rows + self.drawn)
        share = weight[coarse, None]
        means[coarse] = share * means[coarse] + (1 - share) * base
        return on_grid(means), on_grid(weight)
