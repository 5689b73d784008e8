"""Cross-fitting: what is left out has no influence; expected errors account for the search."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.cross_fit import FOLDS, CrossFit
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

STEPS = [(0,), (1,), (0, 1)]


def alike(rows, seed, nodes=6, order="any"):
    """Models of the same error, 30%, whose confidences say nothing."""
    rng = np.random.default_rng(seed)
    spec = CascadeSpec.of({f"m{node}": 1.0 for node in range(nodes)}, order=order)
    return Trace(spec, rng.random((rows, nodes)), correct=rng.random((rows, nodes)) > 0.3)


def flipped(trace, rows):
    """The trace with the right answers of some rows wrong, and the wrong ones right."""
    correct = trace.correct.copy()
    correct[rows] = ~correct[rows]
    return dataclasses.replace(trace, correct=correct)


@pytest.fixture(scope="module")
def trace():
    return alike(90, 0, nodes=2)


def test_a_row_has_no_influence_on_its_own_estimate(trace):
    before = CrossFit(trace, STEPS, 0).estimates()
    part = CrossFit(trace, STEPS, 0).parts[0]
    after = CrossFit(flipped(trace, part), STEPS, 0).estimates()
    np.testing.assert_array_equal(before.least[part], after.least[part])
    others = np.setdiff1d(np.arange(len(trace)), part)
    assert (before.least[others] != after.least[others]).any()


def test_a_part_left_out_has_no_influence_on_the_other_rows(trace):
    fits = CrossFit(trace, STEPS, 0)
    for k, (part, rest, found) in enumerate(fits.left_out()):
        assert sorted([*part, *rest]) == list(range(len(trace)))
        changed = list(CrossFit(flipped(trace, part), STEPS, 0).left_out())
        np.testing.assert_array_equal(found.least, changed[k].estimates.least)
        np.testing.assert_array_equal(found.owner, changed[k].estimates.owner)
        other = changed[(k + 1) % FOLDS].estimates  # there the part is fitted to
        assert other.least.shape != found.least.shape or (other.least != found.least).any()


def test_the_best_of_models_that_are_alike_is_not_expected_to_be_better():
    """The best of six models is best by luck, and errs as the others do on new rows."""
    expected, lucky = [], []
    for seed in range(8):
        rows = alike(120, seed)
        mean = rows.wrong().mean()
        expected.append(build_belief(rows, np.array([0.5])).rungs.errors[0] - mean)
        lucky.append(rows.wrong().mean(axis=0).min() - mean)
    assert np.mean(lucky) < -0.04
    assert abs(np.mean(expected)) < 0.02


def test_parts_are_fitted_as_the_whole_is():
    """Two thirds of 400 rows are very few by themselves, and the 400 are not."""
    rows = alike(400, 0, nodes=3, order="fixed")
    owners = CrossFit(rows, [(0, 1, 2)], 0).estimates().owner
    assert set(owners.ravel()) == {1, 2}
    few = rows.take(np.arange(300))
    assert set(CrossFit(few, [(0, 1, 2)], 0).estimates().owner.ravel()) == {2}


def test_predictions_may_be_known_on_rows_of_one_part_alone():
    trace = alike(90, 0, nodes=2)
    prediction = np.full((90, 2), -1)
    prediction[CrossFit(trace, STEPS, 0).parts[0][0]] = 0
    some = dataclasses.replace(trace, prediction=prediction, classes=("a",))
    assert np.isfinite(CrossFit(some, STEPS, 0).estimates().least).all()
