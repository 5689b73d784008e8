"""Nodes that fail, and caps on what may be spent: over every kind of fit, order and way to fail."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.traces import answering_trace, chain_trace, passing_trace
from ttamer.errors import ArgumentError, ObservationError
from ttamer.trace.spec import CascadeNode, CascadeSpec

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

ROWS = 400


def _tree() -> Trace:
    trace = answering_trace(ROWS)
    nodes = [
        CascadeNode("small", 1.0),
        CascadeNode("middle", 4.0, "small"),
        CascadeNode("large", 20.0, "small"),
    ]
    return dataclasses.replace(trace, spec=CascadeSpec(tuple(nodes)))


FITS = {
    **{
        f"{belief} {order}": (answering_trace(ROWS, order=order), {"belief": belief})
        for belief in ("none", "calibrated", "full")
        for order in ("fixed", "skip", "any")
    },
    "full exits": (chain_trace(ROWS), {"belief": "full"}),
    "full passing": (passing_trace(ROWS), {"belief": "full", "states": 4}),
    "calibrated passing": (passing_trace(ROWS), {"belief": "calibrated", "order": "skip"}),
    "tree": (_tree(), {"belief": "calibrated"}),
}
TRADEOFFS = (0.0, 0.9, 0.99, 1.0)


@pytest.fixture(scope="module", params=FITS)
def fitted(request):
    trace, options = FITS[request.param]
    options = {"states": 6, **options}
    if options["belief"] == "full":
        options.pop("states")
    return trace, tt.fit(trace, tradeoffs=TRADEOFFS, **options)


def _tell(turn, trace: Trace, row: int) -> None:
    column = trace.spec.index_of(turn.next)
    said = None if trace.prediction is None else trace.prediction[row, column]
    name = None if said is None or said < 0 else trace.classes[said]
    turn.observe(confidence=float(trace.confidence[row, column]), prediction=name)


@given(data=st.data())
def test_a_failed_node_never_answers_and_an_answer_is_found_if_anybody_has_one(fitted, data):
    trace, ladder = fitted
    policy = ladder[data.draw(st.integers(0, len(ladder) - 1))]
    row = data.draw(st.integers(0, len(trace) - 1))
    failing = data.draw(st.sets(st.sampled_from(trace.names)))
    turn, failed, reported = policy.session(), [], []
    while (node := turn.next) is not None:
        assert node not in (*failed, *reported)
        if node in failing:
            turn.fail()
            failed.append(node)
        else:
            _tell(turn, trace, row)
            reported.append(node)
    assert turn.answer in reported if reported else turn.answer is None
    assert set(turn.asked) == {*failed, *reported}
    if not reported:
        left = trace.names[trace.spec.index_of(failed[-1]) + 1 :]  # in increasing order
        assert not left if trace.spec.order == "skip" else set(failed) == set(trace.names)
    with pytest.raises(ObservationError, match="stopped"):
        turn.fail()


@given(data=st.data())
def test_a_cap_holds_whatever_happens(fitted, data):
    trace, ladder = fitted
    policy = ladder[data.draw(st.integers(0, len(ladder) - 1))]
    row = data.draw(st.integers(0, len(trace) - 1))
    cap = data.draw(st.floats(1.0, 30.0))
    free = policy.session()
    if cap < min(free.starts.values()) * (1 - 1e-6):
        with pytest.raises(ArgumentError, match="no node can be asked"):
            policy.session(max_cost=cap)
        return
    turn = policy.session(max_cost=cap)
    reported = []
    while (node := turn.next) is not None:
        before = turn.cost
        price = turn.price
        if data.draw(st.booleans()):
            turn.fail()
        else:
            _tell(turn, trace, row)
            reported.append(node)
        assert turn.cost == pytest.approx(before + price)
        assert turn.cost <= cap * (1 + 1e-6)
    assert turn.answer in reported if reported else turn.answer is None
    assert turn.stopped
    assert turn.price == 0.0
    with pytest.raises(ObservationError, match="stopped"):
        turn.observe(confidence=0.5)


def test_a_cap_that_is_never_reached_changes_nothing(fitted):
    trace, ladder = fitted
    for policy in ladder:
        for row in range(0, ROWS, 37):
            one, two = policy.session(), policy.session(max_cost=1e6, key="any")
            while one.next is not None:
                assert one.next == two.next
                _tell(one, trace, row)
                _tell(two, trace, row)
            assert (one.answer, one.asked, one.cost, one.explain()) == (
                two.answer,
                two.asked,
                two.cost,
                two.explain(),
            )
            assert not two.capped


def test_a_cap_is_reported():
    ladder = tt.fit(answering_trace(2000, order="any"), tradeoffs=[0.999])
    turn = ladder[0].session(max_cost=4.5)
    assert turn.next == "middle"  # the most expensive that can be paid
    assert turn.capped
    turn.observe(confidence=0.1, prediction="c0")
    assert turn.next is None
    assert turn.answer == "middle"
    assert "above the cap of 4.5: stop" in turn.explain().why
    assert turn.explain().to_dict()["next"] is None
    assert "max_cost=4.5" in repr(turn)
    assert turn.unclear == 0
    with pytest.raises(ArgumentError, match="'small', costs 1"):
        ladder[0].session(max_cost=0.5)
    with pytest.raises(ArgumentError, match="must be a number above 0"):
        ladder[0].session(max_cost=0)
    with pytest.raises(ArgumentError, match="must be a number above 0"):
        ladder[0].session(max_cost=float("nan"))


def test_where_one_model_alone_costs_more_than_the_cap_another_answers(tmp_path):
    one = tt.fit(answering_trace(ROWS, order="any")).alone("large")
    tt.save(one, tmp_path / "one.ttamer")
    for policy in (one, tt.load(tmp_path / "one.ttamer")):
        assert policy.session().starts == {"large": 20.0, "middle": 4.0, "small": 1.0}
        turn = policy.session(max_cost=5.0)
        assert (turn.next, turn.capped) == ("middle", True)
        turn.observe(confidence=0.1)
        assert (turn.next, turn.answer, turn.cost) == (None, "middle", 4.0)
        turn = policy.session(max_cost=5.0)
        turn.fail()
        assert turn.next == "small"
        assert policy.single_node == "large"
    with pytest.raises(ArgumentError, match="the cheapest to start with, 'small', costs 1"):
        one.session(max_cost=0.5)


def test_while_every_node_fails_the_reason_is_that_there_is_no_answer(fitted):
    _, ladder = fitted
    for policy in ladder:
        turn = policy.session()
        while turn.next is not None:
            turn.fail()
            found = turn.explain()
            assert (found.answer, found.best, found.gain) == (None, float("inf"), None)
            if turn.next is not None:
                assert found.why == f"there is no answer yet: ask {turn.next!r}"
        assert found.why == "no node asked has an answer, and no node is left that might: stop"


def test_the_reason_of_one_model_alone_is_that_it_is_alone(tmp_path):
    tt.save(tt.fit(answering_trace(ROWS, order="any")).alone("large"), tmp_path / "one.ttamer")
    policy = tt.load(tmp_path / "one.ttamer")
    turn = policy.session()
    turn.observe(confidence=0.1)
    assert turn.explain().why == "the policy takes the answer of 'large' alone: stop"
    turn = policy.session()
    turn.fail()
    turn.observe(confidence=0.1)
    assert turn.explain().why == "the policy takes one answer alone, and 'large' gave none: stop"
    turn = tt.fit(chain_trace(ROWS)).alone("exit2").session()
    turn.observe(confidence=0.1)
    assert turn.explain().why == "the policy takes the answer of 'exit2' alone: ask 'exit2'"


def test_sums_of_costs_meet_a_cap_but_for_rounding():
    trace = answering_trace(2000)
    spec = CascadeSpec.of({"small": 0.1, "middle": 0.2, "large": 20.0}, order="fixed")
    ladder = tt.fit(dataclasses.replace(trace, spec=spec, cost=spec.costs), tradeoffs=[1.0])
    turn = ladder[0].session(max_cost=0.3)
    turn.observe(confidence=0.1, prediction="c0")
    assert turn.next == "middle"  # 0.1 + 0.2 > 0.3 in floating point


def test_after_a_failure_the_belief_in_hand_stays():
    trace = answering_trace(2000, order="fixed")
    policy = tt.fit(trace, tradeoffs=[1.0])[0]
    turn = policy.session()
    turn.observe(confidence=0.9, prediction="c1")
    turn.fail()
    assert turn.answer == "small"
    assert turn.asked == ("small", "middle")
    assert turn.cost == 5.0
    assert np.isfinite(turn.explain().best)
