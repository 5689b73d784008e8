"""Signals as states: an input that is hard for every node is not worth asking on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ttamer.fitted.replay import paid
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.cross_fit import CrossFit
from ttamer.fitting.plans import default_tradeoffs
from ttamer.fitting.regressions import fit_belief
from ttamer.fitting.signals import MAX_SIGNAL_BINS, fit_offsets
from ttamer.fitting.subset_search import _weighs_signals
from ttamer.stats.envelope import area_under
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

SOME = default_tradeoffs()[::3]
STEPS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


def with_hopeless_inputs(rows, seed, nodes=3):
    """Models of growing skill; on 15% of the inputs all are wrong, which a signal hints at."""
    rng = np.random.default_rng([seed, 7])
    hopeless, label = rng.random(rows) < 0.15, rng.integers(0, 4, rows)
    margin = np.linspace(0.6, 2.4, nodes) - 0.7 * rng.normal(size=(rows, 1))
    margin = margin + rng.normal(size=(rows, nodes))
    right = (margin > 0) & ~hopeless[:, np.newaxis]
    unsure = np.where(hopeless[:, np.newaxis], rng.normal(size=(rows, nodes)), margin)
    other = (label[:, np.newaxis] + rng.integers(1, 4, (rows, nodes))) % 4
    costs = np.geomspace(1, 30, nodes)
    return Trace.from_arrays(
        CascadeSpec.of({f"m{v}": float(cost) for v, cost in enumerate(costs)}),
        np.abs(unsure) + 0.5 * rng.normal(size=(rows, nodes)),
        prediction=np.where(right, label[:, np.newaxis], other).astype(str),
        label=label.astype(str),
        inputs={"hint": hopeless + 0.4 * rng.normal(size=rows)},
    )


def without_signals(trace):
    return dataclasses.replace(trace, inputs={})


def area(ladder, trace):
    wrong, rows, means = trace.wrong(), np.arange(len(trace)), trace.costs.mean(axis=0)
    played = list(ladder.play_all(trace))
    costs = [paid(own.asked, trace).mean() for own in played]
    errors = [wrong[rows, own.answer].mean() for own in played]
    cheapest = wrong[:, means.argmin()].mean()
    return area_under([*costs, means.min()], [*errors, cheapest], means.min(), means.max())


@pytest.mark.parametrize(("nodes", "seeds"), [(3, 5), (6, 2)])
def test_a_useful_signal_pays_with_few_rows(nodes, seeds):
    more = []
    for seed in range(seeds):
        trace, new = (
            with_hopeless_inputs(rows, each, nodes) for rows, each in ((300, seed), (4000, 9))
        )
        without = area(build_belief(without_signals(trace), SOME), without_signals(new))
        more.append(area(build_belief(trace, SOME), new) / without - 1)
    assert np.mean(more) < -0.005


def test_a_hopeless_input_is_likely_wrong_and_not_asked_further():
    trace = with_hopeless_inputs(2000, 0)
    signals = fit_belief(trace, trace.wrong(), STEPS).signals
    assert signals is not None
    (offset,), (shift,) = signals.offsets, signals.shifts
    assert (offset[-1] > 1.0).all()
    assert shift[-1] < -1.0
    hint = trace.signals["hint"]
    policy = build_belief(trace, SOME).at(0.95)
    asked = policy.play(trace).asked.sum(axis=1)
    assert asked[hint > np.quantile(hint, 0.95)].mean() < asked[hint < 0.5].mean() + 0.1


def test_where_all_errors_can_be_corrected_the_shift_is_small():
    """One model fails where the signal is high, and the other answers everything."""
    rng = np.random.default_rng(0)
    hint = rng.random(3000)
    correct = np.stack([rng.random(3000) > 0.8 * hint, np.ones(3000, bool)], axis=1)
    trace = Trace(
        CascadeSpec.of({"small": 1.0, "large": 9.0}),
        rng.random((3000, 2)),
        correct=correct,
        inputs={"hint": hint},
    )
    signals = fit_belief(trace, trace.wrong(), [(0,), (1,), (0, 1)]).signals
    assert signals is not None
    ((offset,), (shift,)) = signals.offsets, signals.shifts
    assert offset[-1, 0] - offset[0, 0] > 1.5
    state = offset[:, 0] + shift
    assert state[-1] - state[0] > 1.5


def test_signals_that_are_added_leave_the_regressions_as_they_are():
    trace = with_hopeless_inputs(400, 1)
    some = {"class_terms": False, "scored_once": True}
    added = fit_belief(trace, trace.wrong(), STEPS, weigh_signals=False, **some)
    plain = fit_belief(trace, trace.wrong(), STEPS, signals=(), **some)
    weighed = fit_belief(trace, trace.wrong(), STEPS, **some)
    assert added.signals is not None
    assert plain.signals is None
    for key, weights in plain.weights.items():
        np.testing.assert_array_equal(added.weights[key], weights)
    assert any((weighed.weights[key] != plain.weights[key]).any() for key in plain.weights)


def telling_trace(rows, seed=0):
    """Two models that are each right on half of the inputs; a signal shows which one is."""
    rng = np.random.default_rng(seed)
    first, label = rng.random(rows) < 0.5, rng.integers(0, 9, rows)
    right = np.stack([first, ~first, rng.random(rows) < 0.5], axis=1)
    other = (label[:, np.newaxis] + rng.integers(1, 9, (rows, 3))) % 9
    return Trace.from_arrays(
        CascadeSpec.of({"a": 1.0, "b": 1.0, "c": 1.0}),
        rng.random((rows, 3)),
        prediction=np.where(right, label[:, np.newaxis], other).astype(str),
        label=label.astype(str),
        inputs={"hint": first + 0.5 * rng.normal(size=rows)},
    )


def test_signals_are_weighed_where_that_clearly_pays():
    hopeless, telling = with_hopeless_inputs(300, 0), telling_trace(1000)
    for trace, weighed in ((hopeless, False), (telling, True)):
        (name,) = trace.signals
        several = [step for step in STEPS if len(step) > 1]
        assert _weighs_signals(CrossFit(trace, several, 0, (name,))) is weighed


def test_nodes_share_an_offset_and_deviate_where_they_differ():
    rng = np.random.default_rng(1)
    hint = rng.random(4000)
    alike = rng.random((4000, 3)) < (0.2 + 0.5 * hint)[:, np.newaxis]
    apart = alike.copy()
    apart[:, 2] = rng.random(4000) < 0.7 - 0.5 * hint
    differ = []
    for wrong in (alike, apart):
        rates = wrong.mean(axis=0)
        odds = np.tile(np.log(rates / (1 - rates)), (4000, 1))
        (offset,) = fit_offsets(("hint",), hint[:, np.newaxis], odds, wrong).offsets
        assert offset.shape == (MAX_SIGNAL_BINS, 3)
        assert offset[0, 0] < -0.5 < 0.5 < offset[-1, 0]
        differ.append(np.ptp(offset[-1]))
    assert differ[0] < 0.2
    assert differ[1] > 1.5
