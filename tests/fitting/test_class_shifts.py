"""The class of an answer as part of a state: errors that stay are not worth asking on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ttamer.fitted.replay import paid
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.plans import default_tradeoffs
from ttamer.fitting.regressions import VERY_FEW_ROWS, fit_belief
from ttamer.stats.envelope import area_under
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

STEPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]


def exits(rows, seed=0, classes=4):
    """Four exits of equal confidences; mistakes that predict class 0 or 1 are never corrected."""
    rng = np.random.default_rng([seed, 11])
    doubt, said = rng.random(rows), rng.integers(0, classes, rows)
    label = np.where(rng.random(rows) < doubt, (said + 1) % classes, said)
    corrected = said > (classes - 1) // 2
    later = np.where(corrected, label, said)
    sure = 1 - doubt[:, np.newaxis] + 0.01 * rng.random((rows, 4))
    return Trace.from_arrays(
        CascadeSpec.of(dict.fromkeys("abcd", 1.0), order="fixed"), sure,
        prediction=np.stack([said, later, later, later], axis=1).astype(str),
        label=label.astype(str),
    )  # fmt: skip


def shifts_of(trace):
    return fit_belief(trace, trace.loss_shares(), STEPS).shifts


def area(ladder, trace):
    wrong, rows = trace.wrong(), np.arange(len(trace))
    played = list(ladder.play_all(trace))
    costs = [paid(own.asked, trace).mean() for own in played]
    return area_under(costs, [wrong[rows, own.answer].mean() for own in played], 1.0, 4.0)


def test_a_class_whose_errors_stay_lowers_the_state():
    trace = exits(1000)
    shifts = shifts_of(trace)
    assert list(shifts) == [(0,)]  # what the second exit has not corrected stays
    by_class = dict(zip(trace.classes, shifts[0,], strict=True))
    assert max(by_class["0"], by_class["1"]) < min(by_class["2"], by_class["3"]) - 1


def test_shifts_lower_the_area(monkeypatch):
    known, fresh, some = exits(1000, 1), exits(4000, 2), default_tradeoffs()[::3]
    shifted = build_belief(known, some)
    monkeypatch.setattr("ttamer.fitting.regressions.has_class_shifts", lambda *_: False)
    plain = build_belief(known, some)
    assert shifted.fitted.belief.shifts
    assert not plain.fitted.belief.shifts
    assert area(shifted, fresh) < 0.97 * area(plain, fresh)


@pytest.mark.parametrize(
    "trace",
    [
        exits(VERY_FEW_ROWS),
        exits(600, classes=2),
        dataclasses.replace(
            exits(600), spec=CascadeSpec.of(dict.fromkeys("abcd", 1.0), order="any")
        ),
    ],
    ids=["very few rows", "two classes", "separate models"],
)
def test_where_there_are_none(trace):
    assert not shifts_of(trace)
