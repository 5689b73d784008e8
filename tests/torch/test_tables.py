"""Policies as tensors, and what is refused."""

import dataclasses

import numpy as np
import pytest

from support.exit_networks import (
    CLASSES,
    EXITS,
    TRADEOFFS,
    adding_network,
    batches,
    evidence,
    fitted,
)
from support.traces import answering_trace, chain_trace, passing_trace
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedPolicy
from ttamer.solvers import solve
from ttamer.torch.deciding import BeliefTables, LossTables, tables_of, threshold_tables
from ttamer.torch.runner import Runner
from ttamer.torch.tracing import trace_of

NAMES = adding_network().names
BELIEFS = ["full", "calibrated", "none"]


@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("skip", [False, True])
def test_exits_that_are_not_reached_are_never_asked(belief, skip):
    inputs, labels = evidence(400, seed=2)
    ladder = fitted(belief, skip=skip)
    trace = trace_of(adding_network(), batches(inputs, labels), spec=ladder.fitted.spec)
    sizes = []
    for policy in ladder:
        tables = tables_of(policy, NAMES, CLASSES)
        asked = {int(k) for k in np.flatnonzero(policy.play(trace).asked.any(axis=0))}
        assert asked <= set(tables.reached)
        assert list(tables.reached) == sorted(set(tables.reached))
        assert len(tables.bounds) == EXITS
        sizes.append(len(tables.reached))
    assert sizes[0] == 1  # at the least tradeoff one exit answers all
    assert max(sizes) > 2


def test_numbers_are_the_policy_s_own_in_double_precision():
    policy = fitted("calibrated").at(0.9)
    tables = tables_of(policy, NAMES, CLASSES)
    assert isinstance(tables, LossTables)
    assert tables.bounds.dtype == np.float64
    for k, edges in enumerate(policy.fitted.quantiser.edges):
        assert tables.bounds[k, : len(edges)].tolist() == edges.tolist()
        assert np.isinf(tables.bounds[k, len(edges) :]).all()
    policy = fitted("full").at(0.9)
    tables = tables_of(policy, NAMES, CLASSES)
    assert isinstance(tables, BeliefTables)
    for k, (bounds, levels) in enumerate(
        zip(policy.fitted.belief.bounds, policy.fitted.belief.levels, strict=True)
    ):
        assert tables.bounds[k, : len(bounds)].tolist() == bounds.tolist()
        assert tables.levels[k, : len(levels)].tolist() == levels.tolist()
    for s, edges in enumerate(policy.fitted.edges):
        assert tables.edges[s, : len(edges)].tolist() == edges.tolist()


def test_leans_follow_the_names_of_classes():
    policy = fitted("full").at(0.9)
    plain = tables_of(policy, NAMES, CLASSES)
    assert np.abs(plain.leans).sum() > 0
    turned = tables_of(policy, NAMES, ["2", "0", "other", "1", "3"])
    assert np.array_equal(turned.leans[:, [1, 3, 0, 4]], plain.leans)
    assert (turned.leans[:, 2] == 0).all()


# Thresholds


def test_thresholds_leave_out_ramps_without_one():
    tables = threshold_tables(np.array([np.nan, 0.8, np.nan, np.inf, 0.5]))
    assert tables.first == 1
    assert tables.reached == (1, 3, 4)
    assert len(tables.bounds) == 5
    assert threshold_tables(np.array([np.nan, np.nan])).reached == (1,)
    assert threshold_tables(np.array([0.5])).reached == (0,)


# What is refused


def test_a_policy_for_another_number_of_exits():
    policy = fitted("calibrated").at(0.9)
    with pytest.raises(
        ArgumentError,
        match=r"fitted for 4 exits \(exit1, exit2, exit3, full\) and the network has 2 \(a, b\): "
        "fit it on a trace",
    ):
        tables_of(policy, ["a", "b"], CLASSES)


def test_a_policy_for_exits_of_other_names():
    with pytest.raises(ArgumentError, match=r"network has 4 \(full, exit3, exit2, exit1\)"):
        tables_of(fitted("full").at(0.9), NAMES[::-1], CLASSES)


def test_a_belief_with_terms_for_classes():
    policy = fitted("full").at(0.9)
    belief = policy.fitted.belief
    terms = {key: np.zeros(CLASSES) for key in belief.weights}
    changed = dataclasses.replace(policy.fitted, belief=dataclasses.replace(belief, by_class=terms))
    with pytest.raises(ArgumentError, match="terms for the classes"):
        tables_of(dataclasses.replace(policy, fitted=changed), NAMES, CLASSES)


@pytest.mark.parametrize("belief", ["full", "calibrated"])
def test_a_policy_for_separate_models(belief):
    trace = answering_trace(2000)
    policy = fit(trace, belief=belief, states=4, tradeoffs=[0.9])[0]
    with pytest.raises(ArgumentError, match=r'separate models.*kind = "exits"'):
        tables_of(policy, trace.names, trace.classes)


def test_a_policy_that_goes_back_to_an_exit_it_passed():
    # The cascade has exits, and the fit may ask them in any order: the second is cheap
    # and first, and where it is not sure the first one is asked.
    trace = answering_trace(3000, kind="exits")
    costs = dict(zip(trace.names, (4.0, 1.0, 20.0), strict=True))
    trace = dataclasses.replace(trace, spec=CascadeSpec.of(costs, kind="exits"), cost=None)
    back = 0
    for policy in fit(trace, tradeoffs=[0.5, 0.9, 0.97, 0.99]):
        way = [policy.fitted.steps[k] for k in range(len(policy.fitted.steps))]
        turns = [
            (way[s], way[t])
            for s in range(len(way))
            for t in np.unique(policy.policy.choices[s]).tolist()
            if t >= 0 and max(way[t]) <= max(way[s])
        ]
        if turns:
            back += 1
            with pytest.raises(ArgumentError, match="in another order than the network has"):
                tables_of(policy, trace.names, trace.classes)
    assert back


@pytest.mark.parametrize("tradeoff", [0.3, 0.8, 0.95])
def test_a_policy_on_confidence_without_recall(tradeoff):
    policy = fitted("calibrated").at(tradeoff)
    without = solve(policy.policy.problem, tradeoff, recall=False)
    answers_as_replayed(FittedPolicy.of(without, policy.fitted))


def test_thresholds_run_on_the_network():
    inputs, labels = evidence(400, seed=2)
    spec = fitted("none").fitted.spec
    trace = trace_of(adding_network(), batches(inputs, labels), spec=spec)
    ladder = fit(trace, belief="threshold", tradeoffs=[0.0, 0.4, 0.6, 0.9, 1.0])
    asked = [answers_as_replayed(policy) for policy in ladder]
    assert asked == sorted(asked)
    assert asked[0] == 400
    assert asked[-1] == 400 * EXITS


def answers_as_replayed(policy):
    """Run a policy on a network, compare with a replay of its trace, and count the exits asked."""
    inputs, labels = evidence(400, seed=2)
    network = adding_network()
    trace = trace_of(network, batches(inputs, labels), spec=policy.fitted.spec)
    answers, played = Runner(network, policy)(inputs), policy.play(trace)
    assert answers.exit.tolist() == played.answer.tolist()
    assert answers.asked.tolist() == played.asked.tolist()
    return int(played.asked.sum())


def test_classes_that_are_not_in_the_trace():
    with pytest.raises(ArgumentError, match=r"classes are 0, 1, 2, 3 .*are cat, dog .*name them"):
        tables_of(fitted("full").at(0.9), NAMES, ["cat", "dog"])
    # On confidence alone names do not matter.
    assert tables_of(fitted("none").at(0.9), NAMES, ["cat", "dog"]).bounds.shape[0] == EXITS


@pytest.mark.parametrize("make", [chain_trace, passing_trace])
def test_a_trace_without_predictions_needs_no_classes(make):
    trace = make(2500)
    for policy in fit(trace, tradeoffs=TRADEOFFS):
        tables = tables_of(policy, trace.names, ["cat", "dog"])
        assert isinstance(tables, BeliefTables)
        assert (tables.leans == 0).all()
