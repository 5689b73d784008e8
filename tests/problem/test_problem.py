"""Problems: what the constructors build, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.strategies import problems, tradeoffs
from ttamer import Edge, Node, Problem
from ttamer.errors import ArgumentError, ProblemError

HALF = [0.5, 0.5]
STEP = [[0.9, 0.1], [0.4, 0.6]]
LINE = {"losses": [0.1, 0.5], "costs": [1.0, 2.0, 4.0], "probabilities": [HALF, STEP, STEP]}
NODES = {"a": [0.1, 0.5], "b": [0.2, 0.3, math.inf]}
A, B, AB = (None, "a"), (None, "b"), ("a", "b")
EDGES = {
    A: (1.0, [HALF]),
    B: (2.0, [[0.2, 0.3, 0.5]]),
    AB: (4.0, [[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]),
}


def built(moves="walk", nodes=NODES, edges=EDGES):
    """Build a raw problem: losses by name, (cost, probabilities) by pair of names."""
    return Problem(
        moves,
        tuple(Node(name, losses) for name, losses in nodes.items()),
        tuple(Edge(u, v, cost=cost, probabilities=rows) for (u, v), (cost, rows) in edges.items()),
    )


def with_rows(pair, rows):
    return lambda: built(edges={**EDGES, pair: (1.0, rows)})


def with_cost(cost):
    return lambda: built(edges={**EDGES, AB: (cost, EDGES[AB][1])})


def with_losses(losses):
    return lambda: built(nodes={**NODES, "b": losses})


def with_edges(*pairs, moves="walk"):
    """Three nodes of one state, joined by these edges."""
    edges = tuple(Edge(u, v, cost=1, probabilities=[[1.0]]) for u, v in pairs)
    return lambda: Problem(moves, [Node(name, [0.1]) for name in "abc"], edges)


def line(**changes):
    return lambda: Problem.line(**{**LINE, **changes})


def forest(parents):
    rows = [HALF if parent is None else STEP for parent in parents]
    return lambda: Problem.forest([0.1, 0.5], [1.0] * len(parents), rows, parents)


def skip(costs=(1.0, 2.0), lacking=None):
    rows = {(None, 0): HALF, (None, 1): HALF, (0, 1): STEP}
    return lambda: Problem.skip([0.1, 0.5], costs, {k: v for k, v in rows.items() if k != lacking})


REFUSED = {
    # Probabilities.
    "a row that sums to 0.9": (
        with_rows(AB, [[0.5, 0.5, 0], [0, 0.3, 0.6]]),
        "edge 'a' -> 'b', row 1: probabilities sum to 0.9, not 1; normalise",
    ),
    "a row a little off": (with_rows(A, [[0.5, 0.5 + 2e-9]]), "start|-> 'a', row 0|1.000000002"),
    "the row furthest off": (with_rows(AB, [[0.5, 0.4, 0], [3, 0, 0]]), "row 1|sum to 3"),
    "a negative probability": (
        with_rows(AB, [[0.5, 0.5, 0], [0, 1.25, -0.25]]),
        "edge 'a' -> 'b', row 1, column 2: the probability is -0.25|from 0 to 1",
    ),
    "a NaN probability": (
        with_rows(AB, [[0.5, 0.5, 0], [0, math.nan, 1]]),
        "'a' -> 'b', row 1, column 1: the probability is nan|from 0 to 1",
    ),
    "an infinite probability": (with_rows(A, [[math.inf, 0]]), "-> 'a', row 0|inf"),
    "a row too few": (with_rows(AB, [[0.5, 0.5, 0]]), "'a' -> 'b'|(1, 3)|2 row(s)|of 3"),
    "a column too few": (with_rows(AB, STEP), "'a' -> 'b'|(2, 2)|state of the target"),
    "a flat row between nodes": (with_rows(AB, [0.5, 0.5, 0]), "'a' -> 'b'|(3,)|2 row(s)"),
    "one number for a row": (with_rows(A, 1.0), "-> 'a'|shape ()|1 row(s)"),
    "rows for the start": (with_rows(A, STEP), "-> 'a'|(2, 2)|1 row(s)"),
    "no rows": (with_rows(A, []), "-> 'a'|1 row(s)"),
    "ragged rows": (with_rows(AB, [[0.5, 0.5, 0], [1]]), "'a' -> 'b': probabilities|equal length"),
    "words for rows": (with_rows(AB, "half"), "'a' -> 'b': probabilities must be numbers"),
    # Costs.
    "a negative cost": (with_cost(-1), "edge 'a' -> 'b': the cost is -1.0|not negative"),
    "a NaN cost": (with_cost(math.nan), "edge 'a' -> 'b': the cost is nan|finite"),
    "an infinite cost": (with_cost(math.inf), "edge 'a' -> 'b': the cost is inf|finite"),
    "no cost": (with_cost(None), "edge 'a' -> 'b': cost must be a number|not None"),
    "a word for a cost": (with_cost("high"), "edge 'a' -> 'b': cost|a number|not 'high'"),
    "an endless cost": (with_cost(10**400), "edge 'a' -> 'b': cost must be a number"),
    # Losses.
    "a negative loss": (with_losses([0.2, -0.5]), "node 'b', state 1: the loss is -0.5|from 0 up"),
    "a NaN loss": (with_losses([0.2, math.nan]), "node 'b', state 1: the loss is nan|inf where"),
    "no losses": (with_losses([]), "node 'b': losses must be a non-empty list"),
    "one number for losses": (with_losses(0.5), "node 'b': losses must be a non-empty list"),
    "losses in rows": (with_losses([[0.2, 0.5]]), "node 'b'|one loss per state"),
    "ragged losses": (with_losses([[0.2], [0.2, 0.5]]), "node 'b': losses must be numbers"),
    "words for losses": (with_losses(["low"]), "node 'b': losses must be numbers"),
    "nobody answers": (
        lambda: built(nodes={"a": [math.inf] * 2, "b": [math.inf] * 3}),
        "every loss is inf|no node can answer|finite losses",
    ),
    # Names.
    "an unknown source": (
        lambda: built(edges={**EDGES, ("c", "b"): (1.0, [[1]])}),
        "edge 'c' -> 'b': there is no node 'c'; the nodes are a, b",
    ),
    "an unknown target": (
        lambda: built(edges={**EDGES, ("a", "c"): (1.0, [[1]])}),
        "edge 'a' -> 'c': there is no node 'c'; the nodes are a, b",
    ),
    "no target": (
        lambda: built(edges={**EDGES, ("a", None): (1.0, [[1]])}),
        "edge 'a' -> None: an edge must lead to a node",
    ),
    "an empty name": (lambda: built(nodes={**NODES, "": [0.1]}), "node 2: name|non-empty string"),
    "a number for a name": (lambda: built(nodes={7: [0.1]}), "node 0: name|non-empty string"),
    "one name twice": (line(names=["a", "b", "a"]), "two nodes are named 'a': rename one"),
    # Shape.
    "no nodes": (lambda: built(nodes={}, edges={}), "no nodes: give at least one model"),
    "no edges": (lambda: built(edges={}), 'no edge leaves the start|"from": null'),
    "no edge from the start": (with_edges(("a", "b"), ("b", "c")), "no edge leaves the start"),
    "a node without an edge": (
        with_edges((None, "a"), ("a", "b")),
        "node 'c' cannot be reached: give it an edge, or leave it out",
    ),
    "an edge twice": (
        with_edges((None, "a"), ("a", "b"), ("b", "c"), ("a", "b")),
        "edge 'a' -> 'b': given twice; keep one",
    ),
    "a cycle": (
        with_edges((None, "a"), ("a", "b"), ("b", "c"), ("c", "b")),
        "cycle|'b', 'c'|remove an edge",
    ),
    "a cycle apart": (
        with_edges((None, "a"), ("b", "c"), ("c", "b")),
        "cycle through 'b', 'c'",
    ),
    "a node after itself": (
        with_edges((None, "a"), ("a", "b"), ("b", "c"), ("c", "c")),
        "cycle|through 'c'|remove an edge",
    ),
    "two parents under precedence": (
        with_edges((None, "a"), ("a", "b"), (None, "c"), ("b", "c"), moves="precedence"),
        'node \'c\' has 2 edges (from start, b)|precedence|one edge with|"moves": "walk"',
    ),
    # Moves.
    "unknown moves": (lambda: built("jump"), '"precedence" or "walk", not \'jump\''),
    "no moves": (lambda: built(None), '"precedence" or "walk", not None'),
    "a list of moves": (lambda: built(["walk"]), '"precedence" or "walk", not [\'walk\']'),
    # Lengths and parents in the constructors.
    "a line with rows lacking": (
        line(probabilities=[HALF]),
        "1 probabilities for 3 costs|per node",
    ),
    "a line with names lacking": (line(names=["a"]), "1 name for 3 nodes: give one name per node"),
    "a line with losses lacking": (
        line(losses=[[0.1, 0.5]] * 2),
        "2 loss supports for 3 nodes|one list per node",
    ),
    "a line without losses": (line(losses=[]), "0 loss supports for 3 nodes"),
    "a line of one loss": (line(losses=0.5), "losses are 0.5: give one list of losses"),
    "an empty line": (line(costs=[], probabilities=[]), "no nodes"),
    "parents lacking": (
        lambda: Problem.forest([0.1], [1, 1], [[1], [1]], [None]),
        "1 parents for 2 costs: give one of each per node",
    ),
    "a parent beyond the nodes": (
        forest([None, 2]),
        "parents[1] is 2; give a node's number below 2, or None",
    ),
    "a negative parent": (forest([None, -1]), "parents[1] is -1; give a node's number below 2"),
    "a parent by its name": (
        forest([None, "m1"]),
        "parents[1] is 'm1'; give a node's number",
    ),
    "a parent of itself": (forest([None, 1]), "cycle|'m2'"),
    "parents in a circle": (forest([None, 2, 1]), "cycle|'m2', 'm3'"),
    "lines that branch": (
        lambda: Problem.multi_line([line()(), forest([None, 0, 0])()]),
        "multi_line: item 1 is not a line|Problem.forest",
    ),
    "no lines": (lambda: Problem.multi_line([]), "no nodes"),
    "a skip lacking a pair": (skip(lacking=(0, 1)), "skip: probabilities lacks the pair (0, 1)"),
    "a skip lacking a start": (skip(lacking=(None, 0)), "probabilities lacks the pair (None, 0)"),
    "a skip by names": (
        lambda: Problem.skip([0.1], [1.0], {(None, "m1"): [1.0]}),
        "skip: probabilities are by pairs of node numbers: write (None, 0)",
    ),
    "a skip lacking a cost": (skip(costs=[1.0]), "skip: 1 cost for 2 nodes|one per node"),
    "a skip lacking the cost of a pair": (
        skip(costs={(None, 0): 1, (None, 1): 1}),
        "skip: costs lacks the pair (0, 1)",
    ),
    "an empty skip": (lambda: Problem.skip([0.1], [], {}), "no nodes"),
    "a skip of a tree": (lambda: Problem.skip_of(forest([None, 0, 0])()), "skip_of|not a line"),
}


@pytest.mark.parametrize(("build", "words"), REFUSED.values(), ids=REFUSED)
def test_a_bad_problem_is_refused_and_the_message_names_place_and_remedy(build, words):
    with pytest.raises(ProblemError) as caught:
        build()
    for part in words.split("|"):
        assert part in str(caught.value)


@pytest.mark.parametrize("row", [[1e308, 1e308], [math.inf, -math.inf]])
def test_a_row_whose_sum_overflows_is_refused_without_a_warning(row):
    with pytest.raises(ProblemError, match="row 0"):
        with_rows(A, [row])()


def test_rows_may_be_off_by_rounding():
    assert with_rows(A, [[0.5, 0.5 + 9e-10]])().names == ("a", "b")


# What the constructors build.


def joined(problem):
    """(source, target, cost) of each edge, by name."""
    return [(edge.source, edge.target, edge.cost) for edge in problem.edges]


def test_a_line_joins_each_node_to_the_one_before():
    problem = Problem.line(**LINE)
    assert problem.moves == "walk"
    assert joined(problem) == [(None, "m1", 1.0), ("m1", "m2", 2.0), ("m2", "m3", 4.0)]
    assert [edge.probabilities.tolist() for edge in problem.edges] == [[HALF], STEP, STEP]
    assert problem.is_line
    assert problem.is_forest
    assert Problem.line(**LINE, moves="precedence").moves == "precedence"


def test_one_support_serves_all_nodes_or_each_has_its_own():
    shared = Problem.line(**LINE)
    assert [node.losses.tolist() for node in shared.nodes] == [[0.1, 0.5]] * 3
    supports = [[0.1, math.inf], [0.2], [0.3, 0.0, 0.9]]
    rows = [HALF, [[1], [1]], [[0.2, 0.3, 0.5]]]
    own = Problem.line(supports, [1, 2, 4], rows, names=["x", "y", "z"])
    assert [node.losses.tolist() for node in own.nodes] == supports
    assert own.names == ("x", "y", "z")


def test_a_multi_line_puts_lines_side_by_side():
    lines = [Problem.line(**LINE, names=names) for names in ("abc", "def")]
    problem = Problem.multi_line(lines)
    assert problem.moves == "precedence"
    assert joined(problem) == joined(lines[0]) + joined(lines[1])
    assert problem.is_forest
    assert not problem.is_line
    assert len(problem.outgoing[-1]) == 2


def test_a_tree_and_a_forest_join_each_node_to_its_parent():
    tree = forest([None, 0, 0, 1])()
    assert tree.moves == "precedence"
    assert tree.ends == ((-1, 0), (0, 1), (0, 2), (1, 3))
    assert forest([2, None, None])().ends == ((2, 0), (-1, 1), (-1, 2))


def test_a_skip_joins_every_pair_in_order_at_the_cost_of_its_target_or_its_own():
    assert joined(skip()()) == [(None, "m1", 1.0), (None, "m2", 2.0), ("m1", "m2", 2.0)]
    costs = {(None, 0): 1, (None, 1): 3, (0, 1): 5}
    assert joined(skip(costs)()) == [(None, "m1", 1.0), (None, "m2", 3.0), ("m1", "m2", 5.0)]
    assert skip()().moves == "walk"


def test_skip_of_multiplies_the_transitions_over_each_gap():
    problem = Problem.skip_of(Problem.line(**LINE))
    rows = {(edge.source, edge.target): edge.probabilities for edge in problem.edges}
    assert rows["m1", "m2"].tolist() == STEP
    assert rows["m1", "m3"] == pytest.approx(np.array(STEP) @ STEP)
    assert rows[None, "m3"] == pytest.approx(np.array([HALF]) @ STEP @ STEP)
    assert len(rows) == 6
    assert {(edge.target, edge.cost) for edge in problem.edges} == {("m1", 1), ("m2", 2), ("m3", 4)}


def test_skip_of_follows_the_line_and_not_the_order_in_which_nodes_are_given():
    backwards = Problem("walk", built().nodes[::-1], (built().edges[2], built().edges[0]))
    problem = Problem.skip_of(backwards)
    assert problem.names == ("a", "b")
    assert joined(problem) == [(None, "a", 1.0), (None, "b", 4.0), ("a", "b", 4.0)]


def test_skip_of_takes_every_line_whose_rows_are_within_tolerance():
    rows = [[0.5, 0.5 + 9e-10]]
    Problem.skip_of(Problem.line([0.1, 0.5], [1, 1, 1], [rows[0], rows * 2, rows * 2]))


@pytest.mark.parametrize(
    ("costs", "extra"),
    [([1.0, 2.0, 3.0], {}), ([1.0, 2.0], {(1, 0): STEP}), ([1, 2], {(-1, 1): 7})],
)
def test_skip_refuses_costs_and_pairs_that_lead_nowhere(costs, extra):
    rows = {(None, 0): HALF, (None, 1): HALF, (0, 1): STEP, **extra}
    with pytest.raises(ProblemError):
        Problem.skip([0.1, 0.5], costs, rows)


def test_a_raw_walk_may_be_any_directed_acyclic_graph():
    problem = built()
    assert problem.ends == ((-1, 0), (-1, 1), (0, 1))
    assert problem.outgoing[-1] == (0, 1)
    assert problem.outgoing == ((2,), (), (0, 1))
    assert problem.incoming == ((0,), (1, 2))
    assert problem.order == (0, 1)
    assert not problem.is_forest
    assert not problem.is_line
    assert repr(problem) == "Problem(walk, 2 nodes, 3 edges)"


def test_nodes_and_edges_may_come_as_lists_and_are_kept_as_tuples():
    problem = Problem("walk", list(built().nodes), list(built().edges))
    assert isinstance(problem.nodes, tuple)
    assert isinstance(problem.edges, tuple)


@examples(100)
@given(problems())
def test_every_source_comes_before_its_targets_in_the_order(problem):
    assert sorted(problem.order) == list(range(len(problem.nodes)))
    place = {node: position for position, node in enumerate(problem.order)}
    assert all(source < 0 or place[source] < place[target] for source, target in problem.ends)


def test_with_moves_changes_the_moves_alone():
    walk = Problem.line(**LINE)
    other = walk.with_moves("precedence")
    assert (other.moves, other.nodes, other.edges) == ("precedence", walk.nodes, walk.edges)
    assert walk.with_moves("walk") is walk
    with pytest.raises(ProblemError, match="has 2 edges"):
        built().with_moves("precedence")


@pytest.mark.parametrize("name", ["c", "", None, 0, ["a"]])
def test_an_unknown_node_is_refused_with_the_names_there_are(name):
    assert built().index_of("b") == 1
    with pytest.raises(ArgumentError, match="the nodes are a, b") as caught:
        built().index_of(name)
    assert f"no node {name!r}" in str(caught.value)


# What is kept is kept for good.


@examples(30)
@given(problems())
def test_losses_and_probabilities_are_read_only(problem):
    arrays = [node.losses for node in problem.nodes]
    arrays += [edge.probabilities for edge in problem.edges]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_the_grid_is_read_only():
    for array in (built().grid.values, *built().grid.positions):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_a_later_change_of_the_callers_array_does_not_reach_the_problem():
    losses, rows = np.array([0.1, 0.5]), np.array([HALF])
    node, edge = Node("a", losses), Edge(None, "a", cost=1, probabilities=rows)
    losses[:], rows[:] = 9, 9
    assert node.losses.tolist() == [0.1, 0.5]
    assert edge.probabilities.tolist() == [HALF]


@examples(100)
@given(problems(informers=False), tradeoffs, st.data())
def test_the_order_in_which_edges_are_given_does_not_matter_to_the_value(problem, tradeoff, data):
    edges = tuple(data.draw(st.permutations(problem.edges)))
    shuffled = Problem(problem.moves, problem.nodes, edges)
    value = tt.solve(problem, tradeoff).value
    assert tt.solve(shuffled, tradeoff).value == pytest.approx(value, abs=1e-12)


def test_lines_with_names_in_common_stand_side_by_side_under_numbered_names():
    line = Problem.line([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]])
    assert Problem.multi_line([line, line]).names == ("1.m1", "1.m2", "2.m1", "2.m2")
    other = Problem.line([0.0], [0.1], [[1.0]], names=["other"])
    assert Problem.multi_line([line, other]).names == ("m1", "m2", "other")
