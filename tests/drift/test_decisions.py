"""What a policy does on audited rows, and the rule that believes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import ttamer as tt
from support.shifting import rows_of
from support.traces import answering_trace
from ttamer.baselines import FAMILIES
from ttamer.drift.monitor import decide
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
    found = decide(FAMILIES["always-last"].fit(rows)[0].rule, rows)
    assert found.believed is None
    assert found.states is None
    assert not found.wrong.any()
    assert (found.cost == 14.0).all()
