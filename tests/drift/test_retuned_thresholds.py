"""Thresholds re-tuned on the recent window."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.shifting import rows_of
from ttamer.drift.decisions import decide
from ttamer.drift.fallback import AskLast
from ttamer.drift.monitor import Bound
from ttamer.drift.retuned_thresholds import RetunedThresholds, tune_thresholds
from ttamer.errors import ArgumentError


@pytest.mark.parametrize("at_most", [0.0, 0.02, 0.1, 0.4])
def test_on_its_window_it_errs_no_more_than_allowed_and_saves_where_it_can(at_most):
    window = rows_of(600, seed=2)
    found = decide(tune_thresholds(window, Bound("error", at_most)), window)
    assert found.wrong.mean() <= at_most
    full = decide(AskLast(window.spec), window).cost.mean()
    assert found.cost.mean() < full


def test_more_allowed_costs_no_more():
    window = rows_of(600, seed=2)
    costs = [
        decide(tune_thresholds(window, Bound("error", at_most)), window).cost.mean()
        for at_most in (0.01, 0.05, 0.2)
    ]
    assert costs == sorted(costs, reverse=True)


def test_a_drop_is_allowed_on_top_of_the_nodes_own_error():
    window = rows_of(600, seed=2)
    drop = decide(tune_thresholds(window, Bound("drop", 0.03, node=1)), window)
    own = drop.lost[:, 1].mean()
    assert drop.wrong.mean() <= own + 0.03
    assert drop.wrong.mean() > 0.03


def test_it_follows_the_traffic():
    bound = Bound("error", 0.08)
    tuned = RetunedThresholds(rows_of(600, seed=1), bound, window=300, interval=50)
    changed = rows_of(800, seed=3, shifted=True)
    before = decide(tuned.rule, changed).wrong.mean()
    for row in range(0, 400, 10):
        tuned.update(changed.take(slice(row, row + 10)))
    after = decide(tuned.rule, changed.take(slice(400, None))).wrong.mean()
    assert after < before / 1.5


def test_it_waits_for_its_time():
    tuned = RetunedThresholds(rows_of(300, seed=1), Bound("error", 0.08), window=300, interval=50)
    first = tuned.rule
    tuned.update(rows_of(49, seed=2))
    assert tuned.rule is first
    tuned.update(rows_of(1, seed=3))
    assert tuned.rule is not first


def test_confidences_of_another_scale_are_refused():
    window = rows_of(50, seed=1)
    wide = dataclasses.replace(window, confidence=np.asarray(window.confidence) * 7)
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        tune_thresholds(wide, Bound("error", 0.1))
