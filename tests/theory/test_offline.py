"""The offline optimum where routes meet, against enumeration of all joint states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.oracles import cost_of, realisations
from support.strategies import problems, tradeoffs
from ttamer import Edge, Problem, ProblemError

CLOSE = 1e-12


def prophet(problem, tradeoff, law):
    """The mean over joint states of the least loss and path cost, path by path."""

    def paths(history):
        yield history
        here = history[-1][0] if history else -1
        for source, target in problem.ends:
            if source == here:
                yield from paths((*history, (target, states[target])))

    def price(path):
        total = 0.0
        for k, (node, state) in enumerate(path):
            before = path[k - 1][0] if k else -1
            [edge] = [e for e in problem.incoming[node] if problem.ends[e][0] == before]
            total += cost_of(problem, edge, path[:k], state)
        return total

    mean = 0.0
    for chance, states in realisations(law):
        mean += chance * min(
            tradeoff * problem.nodes[path[-1][0]].losses[states[path[-1][0]]]
            + (1 - tradeoff) * price(path)
            for path in paths(())
            if path
        )
    return mean


@examples(60)
@given(problems("line", informers=False), tradeoffs)
def test_a_skip_of_a_chain_has_the_law_of_the_chain(line, tradeoff):
    skip = Problem.skip_of(line)
    found = tt.optima(skip, tradeoff)
    assert found.offline == pytest.approx(prophet(skip, tradeoff, line), abs=CLOSE)
    assert found.offline <= found.online + CLOSE


def test_a_tree_of_routes_that_agree_has_a_law_too():
    half, rows = [0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]]
    nodes = [tt.Node(name, [0.1, 0.8]) for name in "abc"]
    edges = [
        Edge(None, "a", cost=0.1, probabilities=half),
        Edge("a", "b", cost=0.2, probabilities=rows),
        Edge("a", "c", cost=0.3, probabilities=rows),
        Edge(None, "c", cost=0.2, probabilities=half @ np.array(rows)),
    ]
    problem = Problem("walk", tuple(nodes), tuple(edges))
    law = Problem("precedence", tuple(nodes), tuple(edges[:3]))
    assert tt.offline_optimum(problem, 0.5) == pytest.approx(prophet(problem, 0.5, law), abs=CLOSE)


@pytest.mark.parametrize("direct", [[0.4, 0.6], None])
def test_routes_that_disagree_have_none(direct):
    half = [0.5, 0.5]
    nodes = [tt.Node(name, [0.1, 0.8]) for name in "abc"]
    edges = [
        Edge(None, "a", cost=0.1, probabilities=half),
        Edge(None, "b", cost=0.1, probabilities=half),
        Edge("a", "c", cost=0.1, probabilities=[half, half]),
    ]
    if direct:  # the law of c from the start is not that over a
        edges.append(Edge(None, "c", cost=0.1, probabilities=direct))
    else:  # c follows a and b, neither of which leads to the other
        edges.append(Edge("b", "c", cost=0.1, probabilities=[half, half]))
    problem = Problem("walk", tuple(nodes), tuple(edges))
    with pytest.raises(ProblemError, match=r"edge .*'c' does not follow from the other edges"):
        tt.offline_optimum(problem, 0.5)
    assert tt.optima(problem, 0.5).offline is None


@pytest.mark.parametrize("cost", [0.1, [0.1, 0.2]])
def test_what_gives_no_law_has_no_prophet(cost):
    half = [0.5, 0.5]
    nodes = [tt.Node(name, [0.1, 0.8]) for name in "abc"]
    edges = [Edge(None, name, cost=0.1, probabilities=half) for name in "ab"]
    if isinstance(cost, list):  # of a state, where routes meet
        edges += [Edge(u, v, cost=cost, probabilities=[half] * 2) for u, v in ("ab", "ac")]
    else:
        edges.append(Edge(("a", "b"), "c", cost=cost, probabilities=[[half, half]] * 2))
    problem = Problem("walk" if isinstance(cost, list) else "precedence", tuple(nodes), edges)
    with pytest.raises(ProblemError, match="several parents, or where routes meet"):
        tt.offline_optimum(problem, 0.5)
    assert tt.optima(problem, 0.5).offline is None


def test_a_prophet_passes_infinite_losses():
    nodes = (tt.Node("a", [0.1, math.inf]), tt.Node("b", [math.inf, 0.2]))
    edges = (
        Edge(None, "a", cost=0.1, probabilities=[0.5, 0.5]),
        Edge("a", "b", cost=0.1, probabilities=[[1.0, 0.0], [0.0, 1.0]]),
        Edge(None, "b", cost=0.1, probabilities=[0.5, 0.5]),
    )
    found = tt.offline_optimum(Problem("walk", nodes, edges), 0.5)
    assert found == pytest.approx(0.5 * (0.05 + 0.05) + 0.5 * (0.1 + 0.05), abs=CLOSE)
