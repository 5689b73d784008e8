"""Batches: the same decisions as sessions, for many inputs at once."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.strategies import TOPOLOGIES, joint_problems, problems, tradeoffs
from ttamer import Edge, Node, Problem
from ttamer.errors import ArgumentError, ObservationError, ProblemError
from ttamer.policy import JointPolicy

LINE = Problem.line(
    losses=[[0.05, 0.5], [0.1, 0.3, 0.6]],
    costs=[0.1, 0.2],
    probabilities=[[0.6, 0.4], [[0.9, 0.05, 0.05], [0.4, 0.3, 0.3]]],
    names=["small", "large"],
)
POLICIES = {
    "walk": tt.solve(LINE, 0.6),
    "last": tt.solve(LINE, 0.6, recall=False),
    "index": tt.solve(LINE.with_moves("precedence"), 0.6),
}
EACH = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
FIELDS = ("next", "answer", "cost", "steps")


def snapshot(batch):
    return {field: getattr(batch, field).tolist() for field in FIELDS}


def assert_plays_like_sessions(policy, states):
    """Follow a batch step by step beside one session per row of ``states`` (inputs, nodes)."""
    number = {**policy.problem.number, None: -1}
    batch = policy.batch(len(states))
    turns = [policy.session() for _ in states]
    while True:
        assert batch.next.tolist() == [number[turn.next] for turn in turns]
        assert batch.answer.tolist() == [number[turn.answer] for turn in turns]
        assert batch.cost.tolist() == pytest.approx([turn.cost for turn in turns], rel=1e-12)
        assert not any(turn.capped for turn in turns)  # a cap is planned for: nothing is cut
        assert batch.steps.tolist() == [len(turn.asked) for turn in turns]
        assert batch.running == any(turn.next is not None for turn in turns)
        if not batch.running:
            return
        seen = states[np.arange(len(states)), batch.next]
        for turn, state in zip(turns, seen.tolist(), strict=True):
            if turn.next is not None:
                turn.observe(state)
        batch.observe(seen)


def any_states(problem, inputs, seed):
    """Draw a state of every node for every input, each as likely."""
    counts = [len(node.losses) for node in problem.nodes]
    return np.random.default_rng(seed).integers(0, counts, (inputs, len(counts)))


@st.composite
def policies(draw):
    """A policy of any kind, with recall or without, with a cap or without."""
    problem = draw(st.one_of(problems(varied=True), joint_problems()))
    may_forget = problem.moves == "walk" or problem.is_line
    recall, cap = draw(st.booleans()) or not may_forget, draw(st.sampled_from([None, 0.5, 1.2]))
    try:
        return tt.solve(problem, draw(tradeoffs), recall=recall, max_cost=cap)
    except ProblemError:
        return None


@examples(300)
@given(policies().filter(bool), st.integers(0, 40), st.integers(0, 2**32))
def test_a_batch_decides_and_pays_as_sessions_do(policy, inputs, seed):
    assert_plays_like_sessions(policy, any_states(policy.problem, inputs, seed))


@examples(100)
@given(policies().filter(bool), st.integers(0, 2**32))
def test_a_policy_from_a_file_decides_and_pays_the_same(tmp_path_factory, policy, seed):
    problem = policy.problem
    text = json.dumps(problem.to_dict(), allow_nan=False)
    assert Problem.from_dict(json.loads(text)).to_dict() == problem.to_dict()
    if isinstance(policy, JointPolicy):
        return  # in no file
    path = tmp_path_factory.mktemp("files") / "policy.ttamer"
    tt.save(policy, path)
    loaded, states = tt.load(path), any_states(problem, 20, seed)
    assert loaded.problem.to_dict() == problem.to_dict()
    batches = [one.batch(20) for one in (policy, loaded)]
    while batches[0].running:
        for batch in batches:
            batch.observe(states[np.arange(20), batch.next])
        assert snapshot(batches[0]) == snapshot(batches[1])


def large(topology, *, nodes=7, states=5):
    """Build a problem too large to enumerate, with ties among losses and costs."""
    rng = np.random.default_rng(TOPOLOGIES.index(topology))
    pairs = {
        "line": [(v - 1, v) for v in range(nodes)],
        "multi_line": [(v - 1 if v != 4 else -1, v) for v in range(nodes)],
        "tree": [(int(rng.integers(0, v)) if v else -1, v) for v in range(nodes)],
        "forest": [(int(rng.integers(-1, v)), v) for v in range(nodes)],
        "skip": [(u, v) for u in range(-1, nodes) for v in range(u + 1, nodes)],
        "dag": [(u, v) for u in range(-1, nodes) for v in range(u + 1, min(u + 4, nodes))],
    }[topology]
    supports = (rng.integers(0, 20, (nodes, states)) / 20).tolist()
    edges = []
    for u, v in pairs:
        rows = rng.dirichlet(np.ones(states), 1 if u < 0 else states)
        source = f"n{u}" if u >= 0 else None
        cost = float(rng.integers(0, 5)) / 50
        edges.append(Edge(source, f"n{v}", cost=cost, probabilities=rows))
    moves = "walk" if topology in ("line", "skip", "dag") else "precedence"
    return Problem(moves, [Node(f"n{v}", losses) for v, losses in enumerate(supports)], edges)


@pytest.mark.parametrize("recall", [True, False], ids=["recall", "no recall"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_thousands_of_inputs_are_decided_as_sessions_do(topology, recall):
    problem = large(topology)
    if not recall:
        problem = problem.with_moves("walk")
    policy = tt.solve(problem, 0.7, recall=recall)
    states = any_states(problem, 2000, seed=7)
    assert_plays_like_sessions(policy, states)
    batch = policy.batch(len(states))
    while batch.running:
        batch.observe(states[np.arange(len(states)), batch.next])
    assert len(set(batch.steps.tolist())) > 1  # or the test would show little


@EACH
def test_a_batch_of_no_inputs_has_nothing_to_do(policy):
    batch = policy.batch(0)
    assert len(batch) == 0
    assert not batch.running
    batch.observe(np.zeros(0, int))
    batch.observe([])
    assert snapshot(batch) == {field: [] for field in FIELDS}


@EACH
def test_a_batch_of_one_is_a_session(policy):
    batch = policy.batch(1)
    assert snapshot(batch) == {"next": [0], "answer": [-1], "cost": [0.0], "steps": [0]}
    batch.observe([1])
    assert snapshot(batch) == {"next": [1], "answer": [0], "cost": [0.1], "steps": [1]}
    batch.observe([0])
    assert snapshot(batch) == {"next": [-1], "answer": [1], "cost": [0.1 + 0.2], "steps": [2]}


@pytest.mark.parametrize("size", [-1, -10])
@EACH
def test_a_negative_number_of_inputs_is_refused(policy, size):
    with pytest.raises(ArgumentError, match=f"size is {size}; it must be a whole number from 0 on"):
        policy.batch(size)


NO_STATES = {
    "too few": [0, 1],
    "too many": [0] * 4,
    "a column": [[0], [1], [0]],
    "ragged rows": [[0], [0, 1], [0]],
    "one number": 0,
    "none": None,
    "floats": [0.0, 1.0, 0.0],
    "words": ["0", "1", "0"],
    "a gap": [0, None, 1],
    "truths": [True, False, True],
}


@EACH
@pytest.mark.parametrize("states", NO_STATES.values(), ids=NO_STATES)
def test_anything_but_one_integer_per_input_is_refused_and_nothing_changes(policy, states):
    batch = policy.batch(3)
    before = snapshot(batch)
    with pytest.raises(ObservationError, match="states must be 3 integers, one per input, not"):
        batch.observe(states)
    assert snapshot(batch) == before


@EACH
@pytest.mark.parametrize(
    ("wrong", "said"), [(3, "not 3"), (-1, "not -1"), (2**40, "not 1099511627776")]
)
def test_a_wrong_state_names_input_and_node_and_leaves_the_batch_as_it_was(policy, wrong, said):
    batch = policy.batch(4)
    batch.observe([0, 1, 0, 1])  # inputs 0 and 2 stop, 1 and 3 go on to the larger node
    before = snapshot(batch)
    assert before["next"] == [-1, 1, -1, 1]
    with pytest.raises(ObservationError) as caught:
        batch.observe([0, 2, 0, wrong])
    assert str(caught.value) == f"input 3: node 'large' has states 0 to 2, {said}"
    assert snapshot(batch) == before
    batch.observe([0, 0, 0, 2])
    assert batch.answer.tolist()[:3] == [0, 1, 0]


@pytest.mark.parametrize("recall", [True, False])
@pytest.mark.parametrize("moves", ["precedence", "walk"])
def test_a_wrong_state_at_one_node_leaves_the_inputs_at_other_nodes_as_they_were(moves, recall):
    left, right = [[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]
    fork = Problem.forest(
        [[math.inf] * 2, [0.1, 0.9], [0.1, 0.9]], [0.1] * 3, [[0.5, 0.5], left, right], [None, 0, 0]
    ).with_moves(moves)
    batch = tt.solve(fork, 0.9, recall=recall or moves == "precedence").batch(2)
    batch.observe([0, 1])
    before = snapshot(batch)
    assert before["next"] == [1, 2]
    with pytest.raises(ObservationError, match="input 1: node 'm3' has states 0 to 1, not 2"):
        batch.observe([0, 2])
    assert snapshot(batch) == before
    batch.observe([0, 0])
    assert batch.answer.tolist() == [1, 2]


@EACH
@pytest.mark.parametrize("ignored", [-1, 99, -(2**40)])
def test_what_is_reported_of_stopped_inputs_is_ignored(policy, ignored):
    batch = policy.batch(2)
    batch.observe([0, 1])
    batch.observe([ignored, 0])
    assert snapshot(batch) == {
        "next": [-1, -1],
        "answer": [0, 1],
        "cost": [0.1, 0.1 + 0.2],
        "steps": [1, 2],
    }
    batch.observe([ignored, ignored])
    assert batch.steps.tolist() == [1, 2]


@EACH
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64])
def test_states_may_be_of_any_integer_type(policy, kind):
    batch = policy.batch(2)
    batch.observe(np.array([0, 1], kind))
    batch.observe(np.array([0, 2], kind))
    assert batch.steps.tolist() == [1, 2]
