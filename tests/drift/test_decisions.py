"""What a policy does on audited rows, and the rule that believes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from ttamer.drift.decisions import decide
from ttamer.drift.fallback import AskLast

import ttamer as tt
from support.shifting import rows_of
from support.traces import answering_trace, passing_trace
from ttamer.errors import ObservationError
from ttamer.evaluation.results import measure
from ttamer.fitting.ladder import Mixture


@pytest.fixture(scope="module", params=["exits", "models", "markov"])
def fitted(request):
    if request.param == "exits":
        return tt.fit(rows_of(2500, seed=3)), rows_of(300, seed=4)
    trace = answering_trace(900, seed=1, kind="models" if request.param == "models" else "exits")
    options = {"belief": "markov"} if request.param == "markov" else {}
    return tt.fit(trace.take(slice(600)), **options), trace.take(slice(600, None))


def test_it_is_what_evaluation_measures(fitted):
    ladder, rows = fitted
    for policy in (ladder[0], ladder.at(0.9), ladder[len(ladder) - 1]):
        found, result = decide(policy, rows), measure(policy.play(rows), rows, resamples=0)
        assert found.wrong.mean() == result.error
        assert found.cost.mean() == pytest.approx(result.cost)
        assert len(found) == len(rows)


def test_what_it_believes_of_its_answers_is_about_true(fitted):
    ladder, rows = fitted
    if ladder.record.belief == "markov":  # it has states, and no belief
        assert decide(ladder.at(0.9), rows).believed is None
        return
    found = decide(ladder.at(0.9), rows)
    assert 0 <= found.believed.min() <= found.believed.max() <= 1
    assert found.wrong.mean() == pytest.approx(found.believed.mean(), abs=0.06)


def test_a_mixture_is_drawn_by_keys_as_its_sessions_are(fitted):
    ladder, rows = fitted
    mixture = Mixture(ladder[0], ladder[len(ladder) - 1], 0.5, seed=3)
    keys = [f"request-{k}" for k in range(len(rows))]
    found = decide(mixture, rows, keys)
    cheap, dear = decide(mixture.cheap, rows), decide(mixture.expensive, rows)
    drawn = np.array([mixture.drawn(key) is mixture.expensive for key in keys])
    assert 0.3 < drawn.mean() < 0.7
    np.testing.assert_array_equal(found.answer, np.where(drawn, dear.answer, cheap.answer))
    np.testing.assert_array_equal(found.cost, np.where(drawn, dear.cost, cheap.cost))
    numbered = decide(mixture, rows)
    np.testing.assert_array_equal(numbered.answer, mixture.play(rows).answer)


def test_a_rule_that_believes_nothing_can_be_decided_too():
    rows = rows_of(50, seed=1)
    found = decide(AskLast(rows.spec), rows)
    assert found.believed is None
    assert found.states is None
    assert not found.wrong.any()
    assert (found.cost == 14.0).all()


@pytest.mark.parametrize("kind", ["exits", "models", "passed"])
def test_the_last_nodes_session_does_what_its_play_does(kind):
    rows = passing_trace(40) if kind == "passed" else answering_trace(40, kind=kind)
    policy = AskLast(rows.spec)
    turn = policy.session(key="anything")
    while turn.next is not None:
        assert turn.price > 0
        turn.observe(confidence=0.5, prediction="x")
    played = policy.play(rows)
    assert turn.answer == rows.names[-1]
    assert set(turn.asked) == set(np.array(rows.names)[played.asked[0]])
    assert turn.cost == pytest.approx(decide(policy, rows).cost[0])
    assert "alone: stop" in turn.explain().why
    with pytest.raises(ObservationError, match="stopped"):
        turn.observe(confidence=0.5)


def test_if_the_last_fails_the_others_are_asked():
    spec = answering_trace(5).spec
    turn = AskLast(spec).session()
    asked = []
    while turn.next is not None:
        asked.append(turn.next)
        turn.fail()
    assert asked == list(reversed(spec.names))
    assert turn.answer is None
    turn = AskLast(spec).session()
    turn.fail()
    turn.observe(confidence=0.4, prediction="x")
    assert turn.stopped
    assert turn.answer == spec.names[-2]


def test_a_cap_holds_for_the_last_node_too():
    spec = answering_trace(5).spec
    cheapest = min(spec.costs)
    turn = AskLast(spec).session(max_cost=cheapest)
    turn.observe(confidence=0.4, prediction="x")
    assert turn.stopped
    assert turn.cost <= cheapest
