"""The rule with prospects, on rows where X leaves out what later exits make of an input."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import ttamer as tt
from ttamer.stats.envelope import area_under
from ttamer.trace import CascadeSpec, Trace

SCRIPT = Path(__file__).parents[2] / "experiments" / "early_exit" / "prospects.py"
ROWS = 1600
COSTS = {"early": 0.2, "full": 0.8}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("early_exit_prospects", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trace():
    """Classes a and b are mistaken for each other, and c and d; the network solves c and d alone.

    At a confidence of the early exit, all four are wrong equally often.
    """
    rng = np.random.default_rng(5)
    label = rng.integers(0, 4, ROWS).astype(np.int32)
    early = rng.uniform(0.3, 1, ROWS)
    wrong = rng.random(ROWS) < 1 - early
    still = wrong & (label < 2)
    confidence = np.stack([early, np.where(still, 0.4, 0.9)], axis=1)
    prediction = np.where(np.stack([wrong, still], axis=1), label[:, None] ^ 1, label[:, None])
    return Trace(
        CascadeSpec.of(COSTS, order="fixed"), confidence, label=label,
        prediction=prediction.astype(np.int32), classes=tuple("abcd"),
        extras={"margin": confidence - 0.2, "entropy": 1 - confidence},
    )  # fmt: skip


def test_going_on_where_later_exits_are_right_has_less_error_at_the_same_cost(script, trace):
    known, test = trace.take(np.arange(ROWS // 2)), trace.take(np.arange(ROWS // 2, ROWS))
    ladder = tt.fit(known)
    points = script.with_prospects(known, test, ladder)
    limits = np.linspace(0, 1.01, 41)[:, None]
    on = test.confidence[:, 0] < limits
    wrong = np.where(on, test.wrong()[:, 1], test.wrong()[:, 0]).mean(axis=1)
    costs = 0.2 + 0.8 * on.mean(axis=1)
    area, thresholds = (area_under(*each, 0.2, 1.0) for each in (points.T, (costs, wrong)))
    # By the classes the gain of going on is known: half of the rows never gain.
    assert area < 0.95 * thresholds
    assert points[:, 1].min() == pytest.approx(test.wrong()[:, 1].mean(), abs=0.01)
    assert points[:, 0].min() == pytest.approx(0.2)


def test_a_cascade_that_may_leave_exits_out_is_refused(script, trace):
    spec = CascadeSpec.of(COSTS, order="skip", passing={"early": 0.1})
    other = trace.take(np.arange(200)).with_spec(spec)
    with pytest.raises(SystemExit, match="in their order"):
        script.with_prospects(other, other, tt.fit(other))
