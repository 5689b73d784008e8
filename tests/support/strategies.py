"""Random problems of every topology, with the awkward cases kept likely.

Small numbers on coarse scales make ties, zero costs, deterministic rows, single nodes and single
states common.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from ttamer import Edge, Node, Problem

TOPOLOGIES = ("line", "multi_line", "tree", "forest", "skip", "dag")

tradeoffs = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.01, 0.99))
coarse = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 0.8, 1.0])
losses = st.one_of(coarse, st.floats(0, 1))
costs = st.one_of(st.just(0.0), coarse, st.floats(0, 0.5))


@st.composite
def rows(draw, count: int, width: int) -> np.ndarray:
    """Probability rows: deterministic, coarse or fine."""
    table = np.zeros((count, width))
    for row in table:
        kind = draw(st.sampled_from(["one", "coarse", "fine"]))
        if kind == "one":
            row[draw(st.integers(0, width - 1))] = 1.0
        else:
            whole = st.integers(0, 4) if kind == "coarse" else st.integers(1, 10_000)
            weights = np.array([draw(whole) for _ in range(width)], float)
            row[:] = (weights if weights.sum() else weights + 1) / max(weights.sum(), 1)
            if not weights.sum():
                row /= row.sum()
    return table


@st.composite
def supports(draw, count: int, most: int = 3, informers: bool = True) -> list[list[float]]:
    """One list of losses per node; some nodes may only inform (all losses infinite)."""
    lists = []
    for node in range(count):
        size = draw(st.integers(1, most))
        if informers and node < count - 1 and draw(st.integers(0, 5)) == 0:
            lists.append([math.inf] * size)
        else:
            lists.append([draw(losses) for _ in range(size)])
    return lists


@st.composite
def edge_costs(draw, sources: tuple[int, ...], targets: int, varied: bool):
    """One number; or where costs are varied, also one per state of the source, or a table."""
    shape = draw(st.sampled_from([(), sources, (*sources, targets)])) if varied else ()
    numbers = [draw(costs) for _ in range(math.prod(shape))]
    return np.array(numbers).reshape(shape)


@st.composite
def problems(
    draw,
    topology: str | None = None,
    most: int = 4,
    informers: bool = True,
    varied: bool = False,
) -> Problem:
    """A random problem of a topology (of any, if none is given).

    Where ``varied``, costs may depend on the state before and on the state seen.
    """
    topology = topology or draw(st.sampled_from(TOPOLOGIES))
    count = draw(st.integers(1, most))
    support = draw(supports(count, informers=informers))
    names = [f"n{i}" for i in range(count)]
    nodes = tuple(Node(name, values) for name, values in zip(names, support, strict=True))
    pairs: list[tuple[int | None, int]]
    if topology == "line":
        pairs = [(i - 1 if i else None, i) for i in range(count)]
    elif topology == "multi_line":
        cut = draw(st.integers(0, count))
        pairs = [(i - 1 if i not in (0, cut) else None, i) for i in range(count)]
    elif topology == "tree":
        pairs = [(draw(st.integers(0, i - 1)) if i else None, i) for i in range(count)]
    elif topology == "forest":
        parent = [
            draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None for i in range(count)
        ]
        pairs = [(parent[i], i) for i in range(count)]
    elif topology == "skip":
        pairs = [(None, v) for v in range(count)]
        pairs += [(u, v) for u in range(count) for v in range(u + 1, count)]
    else:
        every = [(u, v) for u in range(count) for v in range(u + 1, count)]
        kept = [pair for pair in every if draw(st.booleans())]
        entered = {v for _, v in kept}
        pairs = [(None, v) for v in range(count) if v not in entered or draw(st.booleans())]
        pairs += kept
    order = draw(st.permutations(pairs))  # the order in which edges are given must not matter
    edges = []
    for u, v in order:
        table = draw(rows(1 if u is None else len(support[u]), len(support[v])))
        cost = draw(edge_costs(table.shape[:-1], table.shape[-1], varied))
        edges.append(
            Edge(None if u is None else names[u], names[v], cost=cost, probabilities=table)
        )
    walks = {"line": "walk", "skip": "walk", "dag": "walk"}
    return Problem(walks.get(topology, "precedence"), nodes, tuple(edges))


@st.composite
def joint_problems(draw, most: int = 4, informers: bool = True) -> Problem:
    """A random problem under precedence in which nodes may have several parents."""
    count = draw(st.integers(3, most))
    support = draw(supports(count, most=2, informers=informers))
    names = [f"n{i}" for i in range(count)]
    edges = []
    for node in range(count):
        chosen = draw(st.permutations(range(node)))[: draw(st.integers(0, 2))] if node else []
        if node == count - 1 and len(chosen) < 2:
            chosen = [0, 1]  # at least one node has several
        sizes = tuple(len(support[parent]) for parent in chosen) or (1,)
        table = draw(rows(math.prod(sizes), len(support[node])))
        source = None if not chosen else tuple(names[parent] for parent in chosen)
        if len(chosen) == 1:
            source = names[chosen[0]]
        edges.append(
            Edge(
                source,
                names[node],
                cost=draw(edge_costs(sizes, len(support[node]), True)),
                probabilities=table.reshape(*sizes, -1),
            )
        )
    order = draw(st.permutations(edges))
    return Problem("precedence", tuple(map(Node, names, support)), tuple(order))
