"""Exhaustive answers, by enumeration over full histories.

Nothing here knows of indices, surrogates, grids or tables: a decision may depend on everything
seen, in the order it was seen. Exponential, so for small problems only.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer import Problem

History = tuple[tuple[int, int], ...]
"""(node, state) of everything asked, in order."""


def available(problem: Problem, history: History) -> Iterator[tuple[int, list[float]]]:
    """Edges that may be taken now, with the law of the state they lead to."""
    states = dict(history)
    for number, edge in enumerate(problem.edges):
        source, target = problem.ends[number]
        if target in states:
            continue
        if problem.moves == "walk":
            here = history[-1][0] if history else -1
            if source != here:
                continue
        elif not all(each < 0 or each in states for each in problem.sources[number]):
            continue
        yield number, edge.probabilities[states_before(problem, number, history)].tolist()


def states_before(problem: Problem, edge: int, history: History) -> tuple[int, ...]:
    """The states of the sources of an edge; 0 for the start."""
    states = dict(history)
    return tuple(states.get(source, 0) for source in problem.sources[edge])


def cost_of(problem: Problem, edge: int, history: History, state: int) -> float:
    """What an edge costs, once its target is seen in a state."""
    return float(problem.edges[edge].cost_table[(*states_before(problem, edge, history), state)])


def solved(problem: Problem, tradeoff: float, **options):
    """The policy, or ``None`` where none is sure of an answer, as enumeration must find too."""
    try:
        return tt.solve(problem, tradeoff, **options)
    except tt.ProblemError as error:
        assert "no policy is sure of an answer" in str(error)
        assert best_value(problem, tradeoff, **options) == math.inf
        return None


def weighed(loss: float, tradeoff: float) -> float:
    return math.inf if math.isinf(loss) else tradeoff * loss


def stop_loss(problem: Problem, history: History, *, recall: bool) -> float:
    """The loss of the answer if the search ends now."""
    seen = [float(problem.nodes[node].losses[state]) for node, state in history]
    if not seen:
        return math.inf
    return min(seen) if recall else seen[-1]


def best_value(
    problem: Problem,
    tradeoff: float,
    *,
    recall: bool = True,
    history: History = (),
    fallback: float = math.inf,
) -> float:
    """The least expected weighed loss and further cost from a history.

    ``fallback`` is a loss in hand beside those of the history, in the problem's units.
    """
    stop = weighed(min(fallback, stop_loss(problem, history, recall=recall)), tradeoff)
    best = stop
    for edge, law in available(problem, history):
        value = 0.0
        target = problem.ends[edge][1]
        for state, chance in enumerate(law):
            if chance > 0:
                value += chance * (1 - tradeoff) * cost_of(problem, edge, history, state)
                value += chance * best_value(
                    problem,
                    tradeoff,
                    recall=recall,
                    history=(*history, (target, state)),
                    fallback=fallback,
                )
        best = min(best, value)
    return best


def outcomes(policy, states_seen: tuple[int, ...] = ()) -> Iterator[tuple[float, History, str]]:
    """Play a policy's session over every course of events: (chance, history, answer)."""
    turn = policy.session()
    problem = policy.problem
    history: History = ()
    chance = 1.0
    for state in states_seen:
        node = problem.number[turn.next]
        for edge, law in available(problem, history):
            if problem.ends[edge][1] == node:
                chance *= law[state]
        history = (*history, (node, state))
        turn.observe(state)
    if chance == 0:
        return
    if turn.next is None:
        yield chance, history, turn.answer
        return
    for state in range(len(problem.nodes[problem.number[turn.next]].losses)):
        yield from outcomes(policy, (*states_seen, state))


def law_of(losses, costs, chances) -> dict[tuple[float, float], float]:
    """Chances by (loss, cost), costs rounded."""
    law: dict[tuple[float, float], float] = {}
    for loss, cost, chance in zip(*map(np.ndarray.tolist, (losses, costs, chances)), strict=True):
        law[loss, round(cost, 9)] = law.get((loss, round(cost, 9)), 0.0) + chance
    return law


def assert_play_is_as_stated(policy, tolerance: float = 1e-12) -> None:
    """Hold a policy's value, means and law of the future to what its sessions do."""
    problem, tradeoff, atoms = policy.problem, policy.tradeoff, []
    asked = dict.fromkeys(problem.names, 0.0)
    for chance, history, answer in outcomes(policy):
        loss = stop_loss(problem, history, recall=policy.recall)
        own = {problem.names[node]: problem.nodes[node].losses[state] for node, state in history}
        assert own[answer] == loss
        atoms.append((loss, path_cost(problem, history), chance))
        for node, _ in history:
            asked[problem.names[node]] += chance
    losses, costs, chances = np.array(atoms).T
    assert chances.sum() == pytest.approx(1, abs=tolerance)
    assert policy.expected_loss == pytest.approx(chances @ losses, abs=tolerance)
    assert policy.expected_cost == pytest.approx(chances @ costs, abs=tolerance)
    assert policy.asked == pytest.approx(asked, abs=tolerance)
    value = chances @ (tradeoff * losses + (1 - tradeoff) * costs)
    assert policy.value == pytest.approx(value, abs=10 * tolerance)
    law = law_of(*vars(policy.future()).values())
    assert law == pytest.approx(law_of(losses, costs, chances), abs=10 * tolerance)


def path_cost(problem: Problem, history: History) -> float:
    """What a history cost."""
    total, seen = 0.0, []
    for node, state in history:
        [edge] = [e for e, _ in available(problem, tuple(seen)) if problem.ends[e][1] == node]
        total += cost_of(problem, edge, tuple(seen), state)
        seen.append((node, state))
    return total


def realisations(problem: Problem) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every joint state of a forest's nodes, with its chance."""
    for states in product(*(range(len(node.losses)) for node in problem.nodes)):
        chance = 1.0
        for (source, target), edge in zip(problem.ends, problem.edges, strict=True):
            chance *= float(
                edge.probabilities[states[source] if source >= 0 else 0, states[target]]
            )
        if chance > 0:
            yield chance, states
