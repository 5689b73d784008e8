"""What must be true of optimal policies, whatever the problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import outcomes, path_cost, stop_loss
from support.quantecon_line import build_by_state, quantecon_value, solve as quantecon_solve
from support.strategies import costs, problems, tradeoffs
from ttamer import ArgumentError
from ttamer.theory.experiments import EXPERIMENTS, best_threshold, experiment

CLOSE = 1e-12
lines = problems("line", informers=False)


def priced(problem: tt.Problem, prices: list[float]) -> tt.Problem:
    """The same problem at other costs."""
    edges = [
        tt.Edge(e.source, e.target, cost=price, probabilities=e.probabilities)
        for e, price in zip(problem.edges, prices, strict=True)
    ]
    return tt.Problem(problem.moves, problem.nodes, tuple(edges))


@settings(deadline=None)
@given(lines, tradeoffs)
def test_one_branch_tree_equals_the_line(problem, tradeoff):
    walk = tt.solve(problem, tradeoff)
    index = tt.solve(problem.with_moves("precedence"), tradeoff)
    assert index.value == pytest.approx(walk.value, abs=CLOSE)
    assert index.expected_cost == pytest.approx(walk.expected_cost, abs=CLOSE)
    for name in problem.names:
        np.testing.assert_array_equal(index.choice(name), walk.choice(name))
        np.testing.assert_allclose(index.index(name), walk.index(name), atol=CLOSE)


@pytest.mark.parametrize("trace", [5e-324, 2.3e-308, 1e-200])
@pytest.mark.parametrize("chance", [1.0, 0.5, 1e-9])
def test_numbers_too_small_to_compare_count_as_zero_everywhere(trace, chance):
    # below the smallest normal number solvers used to see ties differently
    line = tt.Problem.line(
        [[trace], [0.0, trace]], [0.0, trace], [[1.0], [[chance, 1 - chance]]], names=["a", "b"]
    )
    for problem in (line, line.with_moves("precedence"), tt.Problem.skip_of(line)):
        for tradeoff in (1.0, 0.5, trace):
            policy = tt.solve(problem, tradeoff)
            turn = policy.session()
            turn.observe(0)
            batch = policy.batch(1)
            batch.observe([0])
            assert (turn.next, turn.answer, policy.value) == (None, "a", 0.0)
            assert not batch.running


@settings(deadline=None)
@given(lines, tradeoffs)
def test_skip_is_never_worse_than_the_line_it_contains(problem, tradeoff):
    skip = tt.Problem.skip_of(problem)
    assert tt.solve(skip, tradeoff).value <= tt.solve(problem, tradeoff).value + CLOSE


@settings(deadline=None)
@given(problems("dag", informers=False), tradeoffs)
def test_recall_is_never_worse_than_no_recall(problem, tradeoff):
    with_recall = tt.solve(problem, tradeoff).value
    assert with_recall <= tt.solve(problem, tradeoff, recall=False).value + CLOSE


@settings(deadline=None)
@given(problems("line", informers=False), tradeoffs)
def test_offline_online_and_no_recall_come_in_this_order(problem, tradeoff):
    best = tt.optima(problem, tradeoff)
    assert best.offline <= best.online + CLOSE
    assert best.online <= best.no_recall + CLOSE


@settings(deadline=None)
@given(st.data(), problems(informers=False), tradeoffs, st.floats(0, 1))
def test_value_is_concave_and_nondecreasing_in_costs(data, problem, tradeoff, share):
    low = [data.draw(costs) for _ in problem.edges]
    high = [data.draw(costs) for _ in problem.edges]
    mixed = [share * a + (1 - share) * b for a, b in zip(low, high, strict=True)]
    more = [a + b for a, b in zip(low, high, strict=True)]
    cases = {"low": low, "high": high, "mixed": mixed, "more": more}
    value = {name: tt.solve(priced(problem, c), tradeoff).value for name, c in cases.items()}
    assert value["mixed"] >= share * value["low"] + (1 - share) * value["high"] - CLOSE
    assert value["more"] >= max(value["low"], value["high"]) - CLOSE


@settings(deadline=None)
@given(problems(), st.lists(tradeoffs, min_size=1, max_size=5))
def test_many_tradeoffs_at_once_equal_one_by_one(problem, weights):
    try:
        ladder = tt.solve_ladder(problem, weights)
    except tt.ProblemError:
        with pytest.raises(tt.ProblemError):
            tt.solve(problem, weights[0])
        return
    for together in ladder:
        alone = tt.solve(problem, together.tradeoff)
        assert together.value == pytest.approx(alone.value, abs=CLOSE)
        for name in (None, *problem.names):
            np.testing.assert_array_equal(together.choice(name), alone.choice(name))
            np.testing.assert_allclose(
                together.equivalent_loss(name), alone.equivalent_loss(name), atol=CLOSE
            )


@settings(deadline=None)
@given(problems(informers=False))
def test_at_tradeoff_0_the_cheapest_answer_and_at_1_the_best(problem):
    cheapest, best = tt.solve(problem, 0.0), tt.solve(problem, 1.0)
    starts = [problem.edges[e].cost for e in problem.outgoing[-1]]
    assert cheapest.value == pytest.approx(min(starts), abs=CLOSE)
    assert best.value == pytest.approx(best.expected_loss, abs=CLOSE)
    if problem.is_forest and problem.moves == "precedence":
        assert best.value == pytest.approx(tt.offline_optimum(problem, 1.0), abs=CLOSE)


def test_an_exact_tie_stops_even_where_sums_round():
    # 0.5 * (0.7 + 0.1) is below 0.5 * 0.8 in floating point; the tie is real, so stop.
    for moves in ("walk", "precedence"):
        problem = tt.Problem.line([[0.8], [0.7]], [0.0, 0.1], [[1.0], [[1.0]]], moves=moves)
        policy = tt.solve(problem, 0.5)
        assert policy.expected_cost == 0
        assert policy.if_stop("m1")[0, problem.grid.column(0.8)]


def test_independent_identical_losses_have_one_index_and_one_threshold_is_optimal():
    *independent, chain = (
        experiment(name, nodes=5, states=17, cost=0.07, tradeoff=0.4) for name in EXPERIMENTS
    )
    for case in independent:
        low, high = case.index_range
        assert high - low < CLOSE
        assert abs(case.excess_with_recall) < CLOSE
        assert case.excess_without_recall > 1e-6
        stops = [case.policy.if_stop(name)[:, :-1] for name in case.policy.problem.names[:-1]]
        for matrix in stops:
            np.testing.assert_array_equal(matrix, np.broadcast_to(stops[0][0], matrix.shape))
    low, high = chain.index_range
    assert high - low > 0.05
    assert chain.excess_with_recall > 1e-4


def test_where_nothing_counts_no_threshold_exceeds_the_optimum():
    found = experiment("uniform(0, 0.5)", nodes=2, states=4, cost=0.0, tradeoff=0.0)
    assert found.policy.value == found.excess_with_recall == found.excess_without_recall == 0


def test_an_experiment_there_is_not_is_refused():
    with pytest.raises(ArgumentError, match=r"no experiment 'normal'; there are normal\(0.5"):
        experiment("normal")


@settings(deadline=None)
@given(lines, tradeoffs)
def test_no_fixed_threshold_beats_the_optimum(problem, tradeoff):
    best = tt.optima(problem, tradeoff)
    assert best_threshold(problem, tradeoff, recall=True) >= best.online - CLOSE
    assert best_threshold(problem, tradeoff, recall=False) >= best.no_recall - CLOSE


@pytest.mark.parametrize("tradeoff", [0.2, 0.7, 0.95])
def test_value_equals_quantecon_backward_induction(tradeoff):
    generator = np.random.default_rng(7)
    losses = np.sort(generator.random(9))
    rows = [
        generator.dirichlet(np.ones(9)),
        *(generator.dirichlet(np.ones(9), 9) for _ in range(4)),
    ]
    prices = generator.random(5) * 0.1
    ours = tt.solve(tt.Problem.line(losses, prices, rows), tradeoff).value
    assert ours == pytest.approx(quantecon_value(losses, prices, rows, tradeoff), abs=CLOSE)
    plainly = quantecon_solve(build_by_state(losses, prices, rows, tradeoff), 5)
    assert ours == pytest.approx(plainly, abs=CLOSE)


@examples(30)
@given(problems(), st.floats(0.1, 0.9), st.integers(0, 2**32 - 1))
def test_monte_carlo_play_agrees_with_the_value(problem, tradeoff, seed):
    try:
        policy = tt.solve(problem, tradeoff)
    except tt.ProblemError:
        return
    play = tt.simulate(policy, 4000, seed=seed)
    courses = [
        (p, tradeoff * stop_loss(problem, way, recall=True), path_cost(problem, way))
        for p, way, _ in outcomes(policy)
    ]
    values = np.array([loss + (1 - tradeoff) * cost for _, loss, cost in courses])
    variance = np.array([p for p, *_ in courses]) @ (values - policy.value) ** 2
    # Bernstein's inequality, which counts courses too rare to be drawn: a false alarm in a billion.
    log, rows = np.log(2e9), len(play.objective)
    error = np.sqrt(2 * variance * log / rows) + np.ptp(values) * log / (3 * rows)
    assert abs(play.objective.mean() - policy.value) <= error + CLOSE
