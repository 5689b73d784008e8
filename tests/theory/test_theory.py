"""Every lemma and theorem of the paper, in its corrected form, on random instances.

Names follow the paper's numbering (sections B and C are its appendices on lines and trees);
docs/paper.md lists what was corrected.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import best_value, outcomes, path_cost, realisations, stop_loss
from support.strategies import costs, losses, problems, rows, tradeoffs
from ttamer.theory.optimum import impossibility, needle

CLOSE = 1e-11
inside = st.floats(0.05, 0.95)
"""Tradeoffs at which both loss and cost count."""


def below(problem: tt.Problem, node: str, state: int) -> tt.Problem | None:
    """The problem that is left below a node once its state is known; None below a leaf."""
    kept, edges = {node}, []
    for number in problem.order:
        edge = problem.parent_edge(number)
        if edge.source in kept:
            kept.add(edge.target)
            if edge.source == node:
                row = edge.probabilities[state]
                edge = tt.Edge(None, edge.target, cost=edge.cost, probabilities=row)
            edges.append(edge)
    nodes = tuple(n for n in problem.nodes if n.name in kept - {node})
    answers = any(np.isfinite(n.losses).any() for n in nodes)
    return tt.Problem(problem.moves, nodes, tuple(edges)) if answers else None


def cut(line: tt.Problem, count: int) -> tt.Problem:
    """The first nodes of a line."""
    kept = {line.names[v] for v in line.order[:count]}
    nodes = tuple(n for n in line.nodes if n.name in kept)
    return tt.Problem(line.moves, nodes, tuple(e for e in line.edges if e.target in kept))


lines = problems("line", informers=False)
forests = problems("forest", informers=False)


@given(st.floats(1.01, 1e6))
def test_theorem_3_4_without_recall_the_ratio_to_the_prophet_is_alpha(alpha):
    for size in (alpha, 1e30):
        example = impossibility(size)
        assert example.ratio_without_recall == pytest.approx(size, rel=1e-9)
        assert example.ratio == pytest.approx(1, rel=1e-9)


def test_recall_alone_bounds_no_ratio_to_the_prophet_either():
    assert needle(10).ratio < needle(100).ratio < needle(1000).ratio
    assert needle(1000).ratio > 100


@examples(100)
@given(st.one_of(lines, forests), tradeoffs)
def test_lemma_b_1_phi_is_monotone_and_1_lipschitz_and_gains_are_never_negative(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for after in (None, *problem.names):
        phi = policy.equivalent_loss(after)[:, :-1]
        x = policy.fallbacks[:-1]
        steps = np.diff(phi, axis=1)
        assert (steps >= -CLOSE).all()
        assert (steps <= np.diff(x) + CLOSE).all()
        gap = phi - x  # the paper's H: not positive, where it says not negative
        assert (gap <= CLOSE).all()
        assert (np.diff(gap, axis=1) <= CLOSE).all()


@examples(100)
@given(lines, tradeoffs)
def test_lemma_b_1_phi_equals_x_up_to_the_index_and_falls_below_it_after(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for before, name in itertools.pairwise((None, *(problem.names[v] for v in problem.order))):
        index = policy.index(name)[:, np.newaxis]
        phi, x = policy.equivalent_loss(before)[:, :-1], policy.fallbacks[:-1]
        assert (np.abs(phi - x)[x <= index] <= CLOSE).all()
        assert (phi < x)[x > index + CLOSE].all()


@examples(100)
@given(lines, tradeoffs)
def test_lemma_b_2_an_index_never_rises_when_nodes_are_appended(problem, tradeoff):
    whole = tt.solve(problem, tradeoff)
    for count in range(1, len(problem.nodes)):
        short = tt.solve(cut(problem, count), tradeoff)
        for name in short.problem.names:
            assert (whole.index(name) <= short.index(name) + CLOSE).all()


@examples(150)
@given(lines, inside)
def test_lemma_b_2_and_c_5_nodes_with_larger_indices_do_not_count(problem, tradeoff):
    whole = tt.solve(problem, tradeoff)
    for count in range(1, len(problem.nodes)):
        last, following = problem.order[count - 1], problem.order[count]
        alone = tt.solve(cut(problem, count), tradeoff).index(problem.names[last])
        later = whole.index(problem.names[following])
        reached = problem.parent_edge(last).probabilities > 0
        for state, own in enumerate(alone):
            if (later[reached[state]] >= own).all():
                assert whole.index(problem.names[last])[state] == pytest.approx(own, abs=CLOSE)


@examples(150)
@given(forests, inside)
def test_lemma_b_3_the_index_balances_gain_and_cost(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for name in problem.names:
        for state, sigma in enumerate(policy.index(name).tolist()):
            node = policy.equivalent_node(name, state, fallback=sigma / tradeoff)
            gain = np.maximum(sigma - tradeoff * node.losses, 0) @ node.probabilities
            assert gain == pytest.approx((1 - tradeoff) * node.mean_cost, abs=CLOSE)


def test_lemma_b_3_indices_rounded_to_the_grid_of_losses_tie_and_lose():
    boxes = tt.Problem.forest([0.0, 1.0], [0.2, 0.1], [[0.5, 0.5]] * 2, [None] * 2)
    policy = tt.solve(boxes, 0.5)
    rounded = dataclasses.replace(policy, sigma=tuple(map(np.zeros_like, policy.sigma)))
    values = [0.5 * each.expected_loss + 0.5 * each.expected_cost for each in (policy, rounded)]
    assert values == pytest.approx([0.225, 0.25])


@examples(60)
@given(lines, tradeoffs)
def test_lemma_b_4_the_payoff_table_is_the_value_of_playing_on(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for name in problem.names:
        phi = policy.equivalent_loss(name)
        for state in range(len(phi)):
            for column, x in enumerate(problem.grid.values[:-1].tolist()):
                ahead = policy.future(name, state, x)
                total = tradeoff * ahead.mean_loss(x) + (1 - tradeoff) * ahead.mean_cost
                assert phi[state, column] == pytest.approx(total, abs=CLOSE)
                assert ahead.probabilities.sum() == pytest.approx(1, abs=CLOSE)


@examples(100)
@given(lines, tradeoffs)
def test_theorem_4_5_stop_exactly_when_the_best_loss_is_at_or_below_the_index(problem, tradeoff):
    for moves in ("walk", "precedence"):
        policy = tt.solve(problem.with_moves(moves), tradeoff)
        for before, name in itertools.pairwise((None, *(problem.names[v] for v in problem.order))):
            index = policy.index(name)[:, np.newaxis]
            far = np.abs(policy.fallbacks - index) > CLOSE  # at a tie both are optimal
            agree = policy.if_stop(before) == (policy.fallbacks <= index)
            assert (agree | ~far).all()


@examples(60)
@given(lines, tradeoffs)
def test_theorem_4_5_the_policy_is_online_optimal_on_a_line(problem, tradeoff):
    value = tt.solve(problem, tradeoff).value
    assert value == pytest.approx(best_value(problem, tradeoff), abs=CLOSE)


@examples(60)
@given(forests, inside, st.floats(0, 1))
def test_lemma_c_4_a_subtree_is_one_node_of_random_loss_and_cost(problem, tradeoff, fallback):
    policy = tt.solve(problem, tradeoff)
    for name in problem.names:
        for state, losing in enumerate(problem.nodes[problem.number[name]].losses.tolist()):
            ahead = policy.future(name, state, min(fallback, losing))
            rest = below(problem, name, state)
            if rest is None:
                assert ahead.losses.tolist() == [math.inf]
                continue
            total = tradeoff * ahead.mean_loss(min(fallback, losing))
            total += (1 - tradeoff) * ahead.mean_cost
            want = best_value(rest, tradeoff, fallback=min(fallback, losing))
            assert total == pytest.approx(want, abs=CLOSE)


@examples(100)
@given(forests, tradeoffs)
def test_definition_c_12_contraction_keeps_the_equivalent_loss_of_the_parent(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for name in problem.names:
        phi = policy.equivalent_loss(name)
        for state in range(len(phi)):
            rest = below(problem, name, state)
            for column, x in enumerate(problem.grid.values.tolist()):
                if rest is None:
                    assert phi[state, column] == policy.fallbacks[column]
                else:
                    want = best_value(rest, tradeoff, fallback=x)
                    assert phi[state, column] == pytest.approx(want, abs=CLOSE)


def single_index(own, law, cost) -> float:
    """The index of one node, in units of loss plus cost (at equal weights both count half)."""
    problem = tt.Problem.forest([own], [cost], [law], [None])
    return 2 * float(tt.solve(problem, 0.5).index("m1")[0])


@st.composite
def three_nodes(draw):
    """A and B independent, C after both, its law and so its index depending on both states.

    The indices come in this order: A's is at most B's, and C's is at least B's whatever was seen.
    """
    (la, pa, ca), (lb, pb, cb) = sorted(
        (([draw(losses), draw(losses)], draw(rows(1, 2))[0], draw(costs)) for _ in range(2)),
        key=lambda node: single_index(*node),
    )
    lc, pc = [draw(losses), draw(losses)], draw(rows(4, 2)).reshape(2, 2, 2)
    dear = (np.maximum(single_index(lb, pb, cb) - np.array(lc), 0) @ pc.reshape(4, 2).T).max()
    return (la, pa, ca), (lb, pb, cb), (lc, pc, float(dear) + draw(costs))


@examples(300)
@given(three_nodes(), st.floats(0, 1.5))
def test_lemma_c_6_the_lower_index_is_asked_first_even_when_a_third_depends_on_both(nodes, x):
    (la, pa, ca), (lb, pb, cb), (lc, pc, cc) = nodes

    def end(best, i, j):  # both seen: stop or ask C
        go = cc + sum(p * min(best, y) for p, y in zip(pc[i, j], lc, strict=True))
        return min(best, go)

    def after(first, seen, best):  # one of them seen: stop or ask the other
        law, own, cost = (pb, lb, cb) if first == "a" else (pa, la, ca)
        go = cost + sum(
            p * end(min(best, y), *((seen, k) if first == "a" else (k, seen)))
            for k, (p, y) in enumerate(zip(law, own, strict=True))
        )
        return min(best, go)

    def start(first):
        law, own, cost = (pa, la, ca) if first == "a" else (pb, lb, cb)
        return cost + sum(
            p * after(first, k, min(x, y)) for k, (p, y) in enumerate(zip(law, own, strict=True))
        )

    assert min(x, start("a")) <= min(x, start("b")) + CLOSE


@examples(50)
@given(forests, tradeoffs)
def test_theorem_c_8_and_lemma_c_13_the_table_has_one_number_per_node_and_parent_state(
    problem, tradeoff
):
    policy = tt.solve(problem.with_moves("precedence"), tradeoff)
    for edge in problem.edges:
        assert len(policy.index(edge.target)) == len(edge.probabilities)


@examples(100)
@given(problems("tree", informers=False), tradeoffs)
def test_theorem_c_14_the_index_policy_is_optimal_on_trees(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    played = sum(
        chance
        * (
            tradeoff * stop_loss(problem, history, recall=True)
            + (1 - tradeoff) * path_cost(problem, history)
        )
        for chance, history, _ in outcomes(policy)
    )
    assert played == pytest.approx(best_value(problem, tradeoff), abs=CLOSE)


@examples(60)
@given(problems("skip", informers=False), tradeoffs)
def test_lemma_c_15_the_tables_of_a_skip_have_one_row_per_state(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    for node in problem.nodes:
        assert policy.choice(node.name).shape == (len(node.losses), len(problem.grid))


@examples(100)
@given(forests, tradeoffs)
def test_definition_3_2_the_prophet_takes_the_cheapest_best_of_every_realisation(problem, tradeoff):
    total = 0.0
    for chance, states in realisations(problem):
        reach: dict[int, float] = {-1: 0.0}
        for node in problem.order:
            parent = problem.ends[problem.incoming[node][0]][0]
            reach[node] = reach[parent] + problem.parent_edge(node).cost
        total += chance * min(
            tradeoff * problem.nodes[n].losses[states[n]] + (1 - tradeoff) * reach[n]
            for n in range(len(states))
        )
    assert tt.offline_optimum(problem, tradeoff) == pytest.approx(total, abs=CLOSE)
