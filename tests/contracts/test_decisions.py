"""Rows, sessions, batches and files decide alike, and no cap is exceeded, whatever the policy."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from support.examples import examples
from ttamer.artefact import file
from ttamer.baselines import fit_families
from ttamer.cascade import from_tables
from ttamer.errors import ArgumentError, ObservationError
from ttamer.fitting.fits import fit
from ttamer.trace.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::ttamer.errors.TraceWarning")
KINDS = (
    "models",
    "texts",
    "inputs",
    "gaps",
    "exits",
    "margins",
    "tree",
    "graded",
    "markov",
    "markov tree",
    "threshold",
)


STOPPING = ("threshold", "threshold-per-exit", "calibrated", "chain", "pairwise", "always-last")
COSTS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 8.0}


def rows_of(kind: str, count: int, seed: int, absent: float = 0.0) -> Trace:
    """Four nodes that get better and cost more, on easy and hard inputs; some answers fail."""
    rng = np.random.default_rng([count, seed])
    hard = rng.random(count) < 0.5
    chance = np.where(hard[:, None], [0.2, 0.5, 0.7, 0.95], [0.9, 0.92, 0.9, 0.97])
    right = rng.random((count, 4)) < chance
    confidence = np.where(right, 0.7, 0.4) + rng.integers(-2, 3, (count, 4)) / 8
    label = rng.integers(0, 3, count)
    prediction = np.where(right, label[:, None], (label[:, None] + 1) % 3).astype(str)
    prediction = prediction.astype(object)
    if kind == "texts":  # right answers agree; no text is common enough to be a class
        prediction = np.array(
            [[f"{k} {p}" for p in row] for k, row in enumerate(prediction)], object
        )
        label = np.array([f"{k} {code}" for k, code in enumerate(label)])
    loss = np.where(right, 0.0, rng.integers(1, 9, (count, 4)) / 4)
    failed = rng.random((count, 4)) < absent
    confidence[failed], prediction[failed], loss[failed] = np.nan, None, np.nan
    after = {"b": {"after": "a"}, "d": {"after": "c"}} if "tree" in kind else {}
    facts = {"kind": "exits" if kind in ("exits", "margins", "threshold") else "models"}
    if kind == "graded":
        facts["max_loss"] = 2.0
    nodes = [{"name": name, "cost": cost, **after.get(name, {})} for name, cost in COSTS.items()]
    spec = from_tables({"cascade": facts, "node": nodes})
    more = {"prediction": prediction, "label": label.astype(str)}
    if kind == "graded":
        more = {"loss": loss}
    if kind == "margins":
        more |= {"margin": confidence - 0.3 + rng.integers(-1, 2, (count, 4)) / 8}
    if kind == "inputs":
        more |= {"prompt": np.where(hard, "a hard one", "easy").tolist()}
        more |= {"inputs": {"length": np.where(hard, 90.0, 10.0) + rng.integers(0, 9, count)}}
    return Trace.from_arrays(spec, confidence, **more)


@functools.cache
def ladder_of(kind: str):
    belief = kind.split()[0] if kind.split()[0] in ("markov", "threshold") else "answers"
    rows = 640 if kind == "inputs" else 240
    return fit(rows_of(kind, rows, 0, 0.1 if kind == "gaps" else 0.0), belief=belief)


@functools.cache
def policies_of(kind: str):
    """Policies of a few prices, nodes alone, and a mixture; each as it is, and from a file."""
    ladder = ladder_of(kind)
    at = [ladder[len(ladder) * k // 4] for k in range(4)]
    corners = ladder.points.corners
    mixture = ladder.for_budget(float(ladder.points.costs[list(corners)][-2:].mean()))
    policies = [*at, ladder.alone("d"), ladder.alone("b"), mixture]
    if kind in ("models", "exits", "tree"):
        families, _ = fit_families(rows_of(kind, 240, 0), STOPPING)
        policies += [settings[len(settings) // 2].rule for settings in families.values()]
    return [(policy, loaded(file.pack(policy, {}))) for policy in policies]


def answer_by_session(policy, rows: Trace, row: int, cap: float | None):
    turn = policy.session(
        key=row,
        max_cost=cap,
        prompt=None if rows.prompt is None else rows.prompt[row],
        inputs={name: values[row] for name, values in rows.inputs.items()},
    )
    while turn.next is not None:
        node = rows.names.index(turn.next)
        if not rows.answered[row, node]:
            turn.fail()
            continue
        code = -1 if rows.prediction is None else rows.prediction[row, node]
        text = None if code < 0 else rows.classes[code]
        sure = {"confidence": float(rows.confidence[row, node])}
        if rows.margin is not None:
            sure |= {"margin": float(rows.margin[row, node])}
        turn.observe(**sure, prediction=text)
    return turn


def loaded(data: bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.ttamer")
        path.write_bytes(data)
        return file.load(path)


@pytest.mark.parametrize("kind", KINDS)
@examples(12)
@given(seed=st.integers(0, 99), share=st.sampled_from([0.0, 0.3, 0.9]))
def test_rows_sessions_batches_and_files_decide_alike(kind, seed, share):
    rows = rows_of(kind, 12, seed, share)
    for policy, stored in policies_of(kind):
        played = policy.play(rows)
        turns = [answer_by_session(policy, rows, row, None) for row in range(len(rows))]
        for row, turn in enumerate(turns):
            asked = {rows.names[v] for v in np.flatnonzero(played.asked[row])}
            assert set(turn.asked) == asked
            answer = played.answer[row]
            assert turn.answer == (None if answer < 0 else rows.names[answer])
            assert not turn.asked or turn.asked[-1] == rows.names[played.last[row]]
        inputs = {name: list(values) for name, values in rows.inputs.items()}
        prompts = None if rows.prompt is None else rows.prompt.tolist()
        batch = policy.batch(len(rows), prompt=prompts, inputs=inputs)
        while batch is not None and (going := np.flatnonzero(batch.next >= 0)).size:
            nodes = batch.next[going]
            came = rows.answered[going, nodes]
            sure = [
                float(c) if a else None
                for c, a in zip(rows.confidence[going, nodes], came, strict=True)
            ]
            codes = np.full(len(going), -1)
            if rows.prediction is not None:
                codes = rows.prediction[going, nodes]
            said = [None if c < 0 else rows.classes[c] for c in codes]
            if kind == "margins":
                with pytest.raises(ArgumentError, match="reads margins of exits"):
                    batch.observe(going, sure, said)
                batch = None
                break
            batch.observe(going, sure, said)
        if batch is not None:
            assert (batch.asked == played.asked).all()
            assert (batch.answer == played.answer).all()
        again = stored.play(rows)
        assert (again.asked == played.asked).all()
        assert (again.answer == played.answer).all()


def test_a_policy_that_reads_margins_says_so_where_there_are_none():
    policy = policies_of("margins")[0][0]
    with pytest.raises(ObservationError, match="'a': margin must be a number, not None"):
        policy.session().observe(confidence=0.9, prediction="1")
    with pytest.raises(ArgumentError, match="reads the margins of exits, and the trace has none"):
        policy.play(dataclasses.replace(rows_of("margins", 12, 0), margin=None))


@pytest.mark.parametrize("kind", KINDS)
@examples(12)
@given(seed=st.integers(0, 99), cap=st.sampled_from([1.0, 2.5, 4.0, 9.0, 13.5]))
def test_no_session_costs_more_than_its_cap(kind, seed, cap):
    rows = rows_of(kind, 4, seed, 0.4)
    for policy, _ in policies_of(kind):
        for row in range(len(rows)):
            turn = answer_by_session(policy, rows, row, cap)
            assert turn.cost <= cap * (1 + 1e-9)
            costs = dict(zip(rows.names, rows.spec.costs, strict=True))
            assert sum(costs[name] for name in turn.asked) <= cap * (1 + 1e-9)
            if turn.answer is None and kind in ("models", "texts", "inputs", "gaps", "graded"):
                unasked = costs.keys() - {*turn.asked}
                assert all(turn.cost + costs[name] > cap for name in unasked)
