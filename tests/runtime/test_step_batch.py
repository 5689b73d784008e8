"""Decisions over arrays are those of a session for each row, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ttamer import Cascade, CascadeSpec, Trace, fit
from ttamer.runtime import batched, cascade as running

ROWS, NAMES = 900, ("a", "b", "c")


def log(*, with_prompts):
    rng = np.random.default_rng(3)
    label, sure = rng.integers(0, 4, ROWS), rng.random((ROWS, 3))
    hard = rng.random(ROWS) < 0.5
    chance = np.where(hard[:, None], [0.3, 0.6, 0.9], [0.9, 0.92, 0.95]) * (0.6 + 0.4 * sure)
    right = rng.random((ROWS, 3)) < chance
    texts = np.array(["Prove it: why?" if h else "Hi there" for h in hard], object)
    return Trace.from_arrays(
        CascadeSpec.of(dict(zip(NAMES, (1.0, 3.0, 9.0), strict=True))),
        sure,
        prediction=np.where(right, label[:, None], (label[:, None] + 1) % 4),
        label=label,
        prompt=texts if with_prompts else None,
        inputs={"length": rng.random(ROWS)} if with_prompts else {},
    )


@pytest.fixture(scope="module", params=[False, True], ids=["answers", "inputs"])
def fitted(request):
    trace = log(with_prompts=request.param)
    return trace, fit(trace)


def said(trace, name):
    """A node that fails on some rows, has no confidence on others, and says unseen classes."""
    node = NAMES.index(name)
    codes, sure = trace.prediction[:, node], trace.confidence[:, node]

    def reply(row):
        if row % 7 == node or row % 31 == 0:
            return "not a reply"
        confidence = np.nan if row % 11 == node else sure[row]
        prediction = f"new {row % 2}" if row % 13 == 0 else trace.classes[codes[row]]
        return {
            "prediction": None if row % 17 == 0 else prediction,
            "confidence": confidence,
            "cost": 20.0 if row % 19 == 0 else None,
        }

    return batched(lambda rows: [reply(int(row)) for row in rows], size=None)


@pytest.mark.parametrize("chosen", [0.6, 0.8, 0.95, "mixture"])
def test_rows_are_decided_as_by_sessions(fitted, chosen, monkeypatch):
    trace, ladder = fitted
    policy = ladder.for_budget(3.0) if chosen == "mixture" else ladder.at(chosen)
    cascade = Cascade(policy, {name: said(trace, name) for name in NAMES})
    inputs = dict(trace.inputs)
    if trace.prompt is not None:
        inputs["prompt"] = trace.prompt
    together = cascade.run_batch(np.arange(ROWS), inputs=inputs)
    monkeypatch.setattr(running._Batch, "decide", running._Batch.decide_in_step)
    single = cascade.run_batch(np.arange(ROWS), inputs=inputs)
    assert (together.asked == single.asked).all()
    assert together.errors == single.errors
    assert together.errors.keys() == set(range(0, ROWS, 31))
    assert (together.by, together.answers) == (single.by, single.answers)
    assert together.cost == pytest.approx(single.cost)
