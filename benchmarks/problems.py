"""The random problems that are timed. Every one is seeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import ttamer as tt

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LineData", "line_data", "random_forest"]


class LineData(NamedTuple):
    """The arguments of ``Problem.line``: one support for all nodes, rows from a flat Dirichlet."""

    losses: NDArray[np.float64]
    costs: NDArray[np.float64]
    probabilities: list[NDArray[np.float64]]


def line_data(nodes: int, states: int, seed: int = 0) -> LineData:
    """Return a random line, on which it is neither always nor never worth going on."""
    rng = np.random.default_rng(seed)
    losses = np.sort(rng.random(states))
    costs = rng.uniform(0.005, 0.02, nodes)
    first = rng.dirichlet(np.ones(states))
    return LineData(
        losses, costs, [first, *rng.dirichlet(np.ones(states), size=(nodes - 1, states))]
    )


def random_forest(nodes: int, states: int, *, common: bool, seed: int = 0) -> tt.Problem:
    """Return a forest with random parents, of one loss support or of one per node."""
    rng = np.random.default_rng(seed)
    parents = [None if rng.random() < 0.05 or not i else int(rng.integers(i)) for i in range(nodes)]
    supports = np.sort(rng.random((1 if common else nodes, states)), axis=1)
    rows = [rng.dirichlet(np.ones(states), size=None if p is None else states) for p in parents]
    return tt.Problem.forest(
        supports[0] if common else list(supports), rng.uniform(0.005, 0.02, nodes), rows, parents
    )
