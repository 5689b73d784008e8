"""``fit``: nodes left out, renamed and limited; what further calls are worth."""

import numpy as np
import pytest

import ttamer as tt
from ttamer import datasets
from ttamer.errors import ArgumentError, CascadeError
from ttamer.fitting.worth import plan_calls


@pytest.fixture(scope="module")
def trace():
    return datasets.load("langid").take(slice(600))


@pytest.fixture(scope="module")
def ladder(trace):
    return tt.fit(trace)


@pytest.mark.parametrize("most", [1, 2])
def test_no_input_asks_more_models_than_allowed(trace, most):
    asked = [played.asked.sum(axis=1) for played in tt.fit(trace, max_nodes=most).play_all(trace)]
    assert max(count.max() for count in asked) == most


def test_a_router_asks_the_model_that_the_input_calls_for():
    rng = np.random.default_rng(0)
    hard = rng.random(1500) < 0.5
    correct = np.stack([~hard, np.ones(1500, bool)], axis=1)
    trace = tt.Trace.from_arrays(
        {"small": 1.0, "large": 10.0},
        np.zeros((1500, 2)),
        correct=correct,
        inputs={"hard": hard.astype(float)},
    )
    fit, test = trace.take(slice(1000)), trace.take(slice(1000, 1500))
    policy = tt.fit(fit, max_nodes=1).default()
    played = policy.play(test)
    assert (played.asked.sum(axis=1) == 1).all()
    assert test.loss[np.arange(500), played.answer].mean() < 0.01
    assert np.mean(played.answer == hard[1000:]) > 0.95


def test_a_renamed_node_decides_as_before(trace, ladder):
    name = trace.names[0]
    renamed = tt.fit(trace, rename={name: "new"})
    assert renamed.fitted.spec.names == ("new", *trace.names[1:])
    for one, other in zip(ladder, renamed, strict=True):
        assert (one.error, one.cost) == (other.error, other.cost)
    with pytest.raises(CascadeError, match="name"):
        tt.fit(trace, rename={name: trace.names[1]})
    with pytest.raises(ArgumentError, match="no node"):
        tt.fit(trace, rename={"nobody": "new"})


def test_calls_are_bought_where_the_uncertainty_falls_most(trace, ladder):
    cost = trace.costs.mean(axis=0)
    plan = plan_calls(ladder, trace, budget=100 * cost.sum())
    assert plan.cost <= 100 * cost.sum()
    assert plan.cost == pytest.approx(
        plan.complete * cost.sum()
        + sum(plan.alone[n] * c for n, c in zip(trace.names, cost, strict=True))
    )
    more = plan_calls(ladder, trace, budget=200 * cost.sum())
    assert plan.error > plan.error_after > more.error_after
    assert plan.next_unit > more.next_unit > 0
    with pytest.raises(ArgumentError, match="above 0"):
        plan_calls(ladder, trace, budget=0)


@pytest.mark.parametrize("graded", [True, False])
def test_equal_predictions_of_unequal_losses_do_not_share_their_risk(graded):
    rng = np.random.default_rng(0)
    loss = rng.random((900, 2)) * [1.0, 0.1]  # the same class, ten times as certain
    trace = tt.Trace.from_arrays(
        {"a": 1.0, "b": 2.0},
        1 - loss,
        prediction=rng.integers(3, size=(900, 1))[:, [0, 0]],
        loss=loss if graded else np.broadcast_to(loss[:, :1] > 0.5, loss.shape).astype(float),
    )
    ladder = tt.fit(trace)
    assert ladder.fitted.tables.belief.agree != graded
    policy = ladder.at(1.0)
    answers = policy.play(trace).answer
    for row in range(20):
        turn = policy.session()
        while turn.next is not None:
            node = trace.names.index(turn.next)
            prediction = trace.classes[trace.prediction[row, node]]
            turn.observe(confidence=trace.confidence[row, node], prediction=prediction)
        assert turn.answer == trace.names[answers[row]]
