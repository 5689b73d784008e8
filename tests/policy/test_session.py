"""Sessions: one input's way through a policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import available, best_value, path_cost, solved, stop_loss, weighed
from support.strategies import problems, tradeoffs
from ttamer.errors import ArgumentError, ObservationError

LINE = tt.Problem.line(
    losses=[0.05, 0.5],
    costs=[0.1, 0.2],
    probabilities=[[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
    names=["small", "large"],
)
POLICIES = {
    "walk": tt.solve(LINE, 0.6),
    "last": tt.solve(LINE, 0.6, recall=False),
    "index": tt.solve(LINE.with_moves("precedence"), 0.6),
}
EACH = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@st.composite
def plays(draw):
    """Draw a policy and play it; return what its session showed before every step."""
    problem = draw(problems())
    recall = draw(st.booleans()) or not (problem.moves == "walk" or problem.is_line)
    policy = solved(problem, draw(tradeoffs), recall=recall)
    assume(policy is not None)
    turn, history, turns = policy.session(), (), []
    seen = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    for state in [*seen, None]:
        turns.append((turn.next, turn.answer, turn.cost, turn.asked, turn.explain(), history))
        if turn.next is None:
            break
        node = policy.problem.number[turn.next]
        state %= len(policy.problem.nodes[node].losses)
        turn.observe(state)
        history = (*history, (node, state))
    assert turn.next is None
    return policy, turns


def test_a_session_asks_until_it_stops_and_answers():
    turn = POLICIES["walk"].session()
    assert (turn.next, turn.answer, turn.asked, turn.cost) == (
        "small",
        None,
        (),
        0,
    )
    turn.observe(1)
    assert (turn.next, turn.answer) == ("large", "small")
    turn.observe(0)
    assert (turn.next, turn.answer) == (None, "large")
    assert turn.asked == ("small", "large")
    assert turn.cost == 0.1 + 0.2


@pytest.mark.parametrize(
    ("kind", "answer"), [("walk", "small"), ("last", "large"), ("index", "small")]
)
def test_of_equal_losses_recall_keeps_the_earlier_answer(kind, answer):
    turn = POLICIES[kind].session()
    turn.observe(1)
    turn.observe(1)
    assert turn.answer == answer


@pytest.mark.parametrize("given", ["ab", "ba"])
def test_of_equally_good_ways_the_one_given_first_is_taken(given):
    nodes = [tt.Node(name, [0.2]) for name in given]
    edges = [tt.Edge(None, name, cost=0.1, probabilities=[1.0]) for name in given]
    for moves in ("walk", "precedence"):
        assert tt.solve(tt.Problem(moves, nodes, edges), 0.5).session().next == given[0]
    assert tt.solve(tt.Problem("walk", nodes, edges[::-1]), 0.5).session().next == given[1]


@pytest.mark.parametrize("moves", ["walk", "precedence"])
def test_a_gain_that_is_rounding_alone_is_no_reason_to_go_on(moves):
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, chances = rng.random(), rng.dirichlet(np.ones(5))
        rows = [[0.5, 0.5], [chances, chances]]
        same = tt.Problem.line([[0.0, x], [x] * 5], [0.0, 0.0], rows, moves=moves)
        turn = tt.solve(same, 0.7).session()
        turn.observe(1)
        assert turn.next is None


def test_sessions_of_one_policy_do_not_share_anything():
    for policy in POLICIES.values():
        one, two = policy.session(), policy.session()
        one.observe(1)
        assert (two.next, two.asked) == ("small", ())
        two.observe(0)
        assert (one.next, two.next) == ("large", None)


@examples(200)
@given(plays())
def test_a_session_follows_its_policys_tables(play):
    policy, turns = play
    problem = policy.problem
    for following, *_, history in turns:
        after, state = history[-1] if history else (None, 0)
        table = policy.choice(after if after is None else problem.names[after])
        if isinstance(policy, tt.WalkPolicy):
            best = stop_loss(problem, history, recall=True)
            chosen = table[state, problem.grid.column(best) if policy.recall else 0]
        else:  # the available node of least index, the first given of equal ones
            best = weighed(stop_loss(problem, history, recall=True), policy.tradeoff)
            states = {-1: 0, **dict(history)}
            open_now = [problem.ends[edge] for edge, _ in available(problem, history)]
            least = min(
                ((policy.sigma[v][states[u]], v) for u, v in open_now), default=(math.inf, -1)
            )
            chosen = least[1] if best > least[0] else -1
            if problem.is_line:
                assert chosen == table[state, policy.fallbacks.searchsorted(best)]
        assert following == (problem.names[chosen] if chosen >= 0 else None)


@examples(200)
@given(plays())
def test_answer_asked_and_cost_are_those_of_what_was_seen(play):
    policy, turns = play
    problem = policy.problem
    for _, answer, cost, asked, _, history in turns:
        assert asked == tuple(problem.names[node] for node, _ in history)
        assert cost == path_cost(problem, history)
        loss = stop_loss(problem, history, recall=policy.recall)
        if policy.recall:
            earliest = [n for n, s in history if problem.nodes[n].losses[s] == loss < math.inf]
            assert answer == (problem.names[earliest[0]] if earliest else None)
        else:
            assert answer == (asked[-1] if asked and loss < math.inf else None)


@examples(200)
@given(plays())
def test_an_explanation_compares_the_loss_in_hand_with_the_index_in_words(play):
    policy, turns = play
    for following, answer, *_, why, history in turns:
        loss = stop_loss(policy.problem, history, recall=policy.recall)
        if not policy.tradeoff and loss < math.inf:
            loss = 0.0  # none counts
        assert (why.next, why.answer) == (following, answer)
        assert why.best == weighed(loss, policy.tradeoff)
        if abs(why.best - why.index) > 1e-6:
            assert (why.best <= why.index) == (following is None)
        if loss == math.inf and following is None:
            assert why.why.startswith("no node asked has an answer")
        elif loss == math.inf:
            assert why.why == f"there is no answer yet: ask {following!r}"
        elif following is not None:
            limit = why.index / (policy.tradeoff or 1.0)
            assert f"the answer of {answer!r} loses {loss:.4g}, above {limit:.4g}" in why.why
            assert why.why.endswith(f": ask {following!r}")
        elif why.index == math.inf:
            assert why.why == f"no node is left to ask: answer with {answer!r}"
        else:
            assert f"the answer of {answer!r} loses {loss:.4g}, at or below" in why.why
            assert why.why.endswith(": stop")


@EACH
def test_a_stop_before_the_end_is_explained_by_the_index(policy):
    turn = policy.session()
    turn.observe(0)
    why = turn.explain()
    assert turn.next is None
    assert why.best == pytest.approx(0.03)
    assert why.best < why.index < math.inf
    limit = why.index / 0.6
    assert why.why == f"the answer of 'small' loses 0.05, at or below {limit:.4g}: stop"


@examples(80)
@given(problems("dag"), tradeoffs)
def test_on_a_walk_the_loss_in_hand_is_compared_with_the_value_of_going_on(problem, tradeoff):
    policy = solved(problem, tradeoff)
    if policy is None:
        return
    turn, history = policy.session(), ()
    while True:
        goes_on = min(
            (
                (1 - tradeoff) * problem.edges[edge].cost
                + sum(
                    chance
                    * best_value(
                        problem, tradeoff, history=(*history, (problem.ends[edge][1], state))
                    )
                    for state, chance in enumerate(law)
                    if chance > 0
                )
                for edge, law in available(problem, history)
            ),
            default=math.inf,
        )
        why = turn.explain()
        if why.best < math.inf or why.next is not None:
            assert why.index == pytest.approx(
                max(goes_on, why.best) if turn.next is None else goes_on
            )
        if turn.next is None:
            return
        law = next(
            law for e, law in available(problem, history) if problem.ends[e][1] == turn.number
        )
        state = max(range(len(law)), key=law.__getitem__)
        history = (*history, (turn.number, state))
        turn.observe(state)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_without_recall_at_tradeoff_0_an_informer_has_an_infinite_loss():
    informer = tt.Problem.line([[math.inf], [0.1]], [1, 1], [[1], [[1]]])
    turn = tt.solve(informer, 0.0, recall=False).session()
    turn.observe(0)
    assert turn.explain().best == math.inf


@pytest.mark.parametrize("moves", ["walk", "precedence"])
def test_a_stop_without_any_answer_is_explained_as_such(moves):
    sure = tt.Problem.line([0.1, math.inf], [1.0], [[1.0, 0.0]], moves=moves)
    turn = tt.solve(sure, 0.5).session()
    turn.observe(1)  # a state of no chance: the policy never reckoned with it
    assert turn.next is None
    assert "None" not in turn.explain().why


@EACH
@pytest.mark.parametrize("state", [-1, 2, 10**30, 0.0, 1.5, None, "0", [0], math.nan])
def test_a_state_the_node_has_not_is_refused_and_nothing_changes(policy, state):
    turn = policy.session()
    with pytest.raises(ObservationError, match="node 'small' has states 0 to 1, not ") as caught:
        turn.observe(state)
    assert str(caught.value).endswith(repr(state))
    assert (turn.next, turn.answer, turn.asked, turn.cost) == ("small", None, (), 0)
    turn.observe(1)
    assert turn.next == "large"


@EACH
@pytest.mark.parametrize("state", [0, -1, 5, None])
def test_nothing_more_can_be_observed_after_the_stop(policy, state):
    turn = policy.session()
    turn.observe(0)
    with pytest.raises(ObservationError, match="stopped and answers with 'small': start a new one"):
        turn.observe(state)
    assert (turn.next, turn.answer, turn.asked) == (None, "small", ("small",))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("states", [40, 200])
def test_small_numpy_integers_lead_where_plain_ones_lead(states):
    losses = np.random.default_rng(0).random((2, states))
    even = np.full((states, states), 1 / states)
    wide = tt.Problem.line(losses, [0.01, 0.02], [even[0], even])
    policy = tt.solve(wide, 0.7)
    for state in range(states):
        plain, small = policy.session(), policy.session()
        plain.observe(state)
        small.observe(np.uint8(state))
        assert small.next == plain.next


@EACH
def test_a_session_shows_where_it_stands(policy):
    turn = policy.session()
    assert repr(turn) == f"{type(turn).__name__}(next='small', answer=None)"
    assert turn.number == 0
    turn.observe(0)
    assert turn.number == -1


# What a policy says of itself is what its sessions do.


def test_a_walk_from_a_file_has_the_exact_index_of_a_line(tmp_path):
    tt.save(POLICIES["walk"], tmp_path / "line.ttamer")
    loaded = tt.load(tmp_path / "line.ttamer")
    assert loaded.index("large").tolist() == POLICIES["index"].index("large").tolist()


@pytest.mark.parametrize("policy", [tt.solve(tt.Problem.skip_of(LINE), 0.6), POLICIES["last"]])
def test_where_routes_part_or_without_recall_no_node_has_an_index_of_its_own(policy):
    with pytest.raises(ArgumentError, match=r"use policy.threshold\(after\) and policy.choice"):
        policy.index("small")


def test_without_recall_the_index_is_the_value_of_the_best_way_on():
    every = [(0, 1), (0, 2), (1, 2), (None, 0), (None, 1), (None, 2)]
    ways = tt.Problem.skip([[0.5], [0.1], [1.0]], [0.1] * 3, {pair: [[1.0]] for pair in every})
    turn = tt.solve(ways, 0.5, recall=False).session()
    assert turn.explain().index == pytest.approx(0.5 * 0.1 + 0.5 * 0.1)


def test_without_recall_there_is_no_threshold_and_the_refusal_names_if_stop():
    with pytest.raises(ArgumentError, match="use if_stop, one column"):
        POLICIES["last"].threshold("small")
    assert POLICIES["last"].if_stop("small").tolist() == [[True], [False]]


@pytest.mark.parametrize("moves", ["precedence", "walk"])
def test_with_a_fallback_in_hand_what_only_beats_worse_ones_is_not_asked(moves):
    rows = [[0.5, 0.5], [[1.0], [1.0]]]
    policy = tt.solve(tt.Problem.line([[0.1, 0.9], [0.5]], [0.02, 0.1], rows, moves=moves), 0.5)
    assert policy.future("m1", 1, best=0.9).mean_cost == pytest.approx(0.1)
    assert policy.future("m1", 1, best=0.5).mean_cost == 0
    assert policy.equivalent_node("m1").mean_cost == pytest.approx(0.02 + 0.5 * 0.1)
    assert policy.equivalent_node("m1", fallback=0.5).mean_cost == pytest.approx(0.02)


def test_a_node_entered_from_two_places_is_not_one_node():
    with pytest.raises(ArgumentError, match="'large' can be entered from 2 places"):
        tt.solve(tt.Problem.skip_of(LINE), 0.6).equivalent_node("large")


@EACH
@pytest.mark.parametrize("state", [-1, 2])
def test_a_future_from_a_state_there_is_not_is_refused(policy, state):
    with pytest.raises(ArgumentError, match=f"node 'small' has states 0 to 1, not {state}"):
        policy.future("small", state)
    with pytest.raises(ArgumentError, match="the start has states 0 to 0, not 1"):
        policy.future(None, 1)


def test_without_recall_a_node_that_only_informs_gives_no_answer():
    line = tt.Problem.line([[math.inf], [0.1]], [1, 1], [[1], [[1]]])
    policy = tt.solve(line, 0.5, recall=False)
    turn, batch = policy.session(), policy.batch(1)
    turn.observe(0)
    batch.observe([0])
    assert turn.answer is None
    assert batch.answer.tolist() == [-1]
    turn.observe(0)
    batch.observe([0])
    assert turn.answer == "m2"
    assert batch.answer.tolist() == [1]


def test_a_stop_within_rounding_is_explained_as_a_stop():
    line = tt.Problem.line([[0.5], [0, 1]], [0, 0], [[1], [[1e-14, 1 - 1e-14]]])
    turn = tt.solve(line, 1.0).session()
    turn.observe(0)
    reported = turn.explain()
    assert turn.next is None
    assert reported.best <= reported.index


@pytest.mark.parametrize("best", [float("nan"), -1.0, -float("inf")])
def test_a_future_from_a_loss_that_cannot_be_is_refused(best):
    with pytest.raises(ArgumentError, match="from 0 up"):
        POLICIES["index"].future(best=best)
    with pytest.raises(ArgumentError, match="is not a loss of this problem"):
        POLICIES["walk"].future(best=best)


# Failures.


@EACH
def test_a_node_that_failed_does_not_answer_and_the_next_is_asked(policy):
    turn, failing = policy.session(), policy.session()
    for each in (turn, failing):
        each.fail()
        assert (each.next, each.answer) == ("large", None)
    turn.observe(0)
    assert (turn.answer, turn.asked) == ("large", ("small", "large"))
    failing.fail()
    assert (failing.next, failing.answer, failing.price) == (None, None, 0.0)
    with pytest.raises(ObservationError, match="stopped"):
        failing.fail()


@EACH
def test_notebooks_show_a_session_and_a_policy(policy):
    assert policy.session()._repr_html_().startswith("<svg")
    page = policy._repr_html_()
    assert all(name in page for name in policy.problem.names)


def test_notebooks_show_a_ladder_with_a_row_for_each_policy():
    ladder = tt.solve_ladder(LINE, [0.2, 0.6, 0.9])
    assert ladder._repr_html_().count("<tr") == 4
