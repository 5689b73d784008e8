"""Promises every baseline keeps, on random traces with the awkward cases kept likely."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from support.examples import examples
from ttamer.baselines import FAMILIES, Unsuitable, fit_families
from ttamer.baselines.rules import StopRule, as_policies, walk_of
from ttamer.baselines.threshold import Calibrated, Confidence
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.evaluation.results import measure
from ttamer.fitting.ladder import FittedPolicy
from ttamer.fitting.replay import Setting
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

few = examples(40)
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@st.composite
def traces(draw, *, least: int = 1, most: int = 14) -> Trace:
    """A small trace: any order and target, ties, no answers, equal nodes, free nodes, few rows."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    rows, count = draw(st.integers(least, most)), draw(st.integers(1, 4))
    shape = (rows, count)
    kind = draw(st.sampled_from(["exits", "models"]))
    target = draw(st.sampled_from(["label", "last"]))
    tree = kind == "models" and draw(st.booleans())
    after = [f"m{rng.integers(v)}" if tree and v and rng.random() < 0.5 else None for v in range(4)]
    costs = rng.choice([0.0, 0.5, 1.0, 3.0], count)
    passed = kind == "exits" and draw(st.booleans())  # exits of one network
    passing = rng.choice([0.0, 0.5, 2.0], count) if passed else [None] * count
    nodes = [CascadeNode(f"m{v}", costs[v], after[v], {}, passing[v]) for v in range(count)]
    spec = CascadeSpec(tuple(nodes), kind, target)
    grain = draw(st.sampled_from(["fine", "coarse", "constant"]))
    confidence = {
        "fine": rng.normal(size=shape),
        "coarse": rng.choice([-1.0, 0.0, 0.5, 1.0], shape),
        "constant": np.full(shape, 0.7),
    }[grain]
    prediction = rng.integers(-1, 3, shape).astype(np.int32)
    if draw(st.booleans()) and count > 1:  # the same node twice
        confidence[:, -1], prediction[:, -1] = confidence[:, 0], prediction[:, 0]
    extras = {}
    if draw(st.booleans()):
        extras = {"margin": rng.random(shape), "entropy": rng.random(shape)}
        extras["margin"][:, rng.integers(count)] = np.nan  # a node that never says it
    only_correct = target == "label" and draw(st.booleans())
    return Trace(
        spec,
        confidence,
        prediction=None if only_correct else prediction,
        label=None if only_correct else rng.integers(0, 3, rows).astype(np.int32),
        correct=rng.random(shape) < 0.6 if only_correct else None,
        cost=rng.choice([0.0, 1.0, 2.5], shape) if draw(st.booleans()) else None,
        **extras,
        classes=("a", "b", "c"),
    )


def fitted(family, trace):
    try:
        return family.fit(trace)
    except Unsuitable as reason:
        assert str(reason)
        return []


def first_half(trace: Trace) -> Trace:
    """Rows to fit on; the others are new to the rule."""
    return trace.take(slice((len(trace) + 1) // 2))


def scrambled(trace: Trace, asked: np.ndarray, seed: int) -> Trace:
    """The same trace where no one who was not asked says what they said, and truth is hidden."""
    rng = np.random.default_rng(seed)

    def mix(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(asked, values, other).astype(values.dtype)

    shape = trace.confidence.shape
    changed = {"confidence": mix(trace.confidence, rng.normal(size=shape) * 3)}
    if trace.prediction is not None:
        changed["prediction"] = mix(trace.prediction, rng.integers(-1, 3, shape))
    if trace.label is not None:
        changed["label"] = np.zeros_like(trace.label)
    if trace.correct is not None:
        changed["correct"] = trace.correct == 0
    # A cost per row is known once it is paid, and then it is too late to matter.
    changed["cost"] = rng.random(shape) if trace.cost is not None else None
    extras = {}
    for name in ("margin", "entropy", "latency"):
        values = getattr(trace, name)
        if values is None:
            continue
        silent = np.isnan(values).all(axis=0)
        extras[name] = np.where(silent, np.nan, mix(values, rng.random(shape)))
    return dataclasses.replace(
        trace, **changed, **{"margin": None, "entropy": None, "latency": None} | extras
    )


def same(one, other) -> bool:
    return all(
        np.array_equal(getattr(one, field), getattr(other, field))
        for field in ("answer", "asked", "last")
    )


@every_family
@few
@given(trace=traces())
def test_what_a_rule_did_is_what_the_cascade_allows(family, trace):
    rows, count = np.arange(len(trace)), len(trace.spec)
    for setting in fitted(family, first_half(trace)):
        played = setting.rule.play(trace)
        assert played.asked.shape == (len(rows), count)
        assert played.asked.dtype == bool
        for nodes in (played.answer, played.last):
            assert nodes.shape == (len(rows),)
            assert nodes.dtype.kind == "i"
            assert played.asked[rows, nodes].all()
        if trace.spec.asks_each:
            assert (played.asked == (np.arange(count) <= played.last[:, np.newaxis])).all()
        else:
            for node, parents in enumerate(trace.spec.parents):
                for parent in parents:
                    assert not (played.asked[:, node] & ~played.asked[:, parent]).any()
        if trace.spec.kind == "exits":
            assert (played.last == count - 1 - played.asked[:, ::-1].argmax(axis=1)).all()


@every_family
@few
@given(trace=traces(), seed=st.integers(0, 99))
def test_no_rule_looks_at_what_was_not_asked_nor_at_the_truth(family, trace, seed):
    if getattr(family, "uses_labels", False):
        return
    for setting in fitted(family, first_half(trace)):
        played = setting.rule.play(trace)
        assert same(played, setting.rule.play(scrambled(trace, played.asked, seed)))


def test_a_rule_that_looks_is_found_out():
    """The check above would fail on the oracle, which says that it looks."""
    trace = Trace(
        CascadeSpec.of({"small": 1.0, "large": 2.0}),
        np.ones((4, 2)),
        correct=np.array([[True, True], [False, True], [True, False], [False, False]]),
    )
    family = FAMILIES["oracle"]
    assert family.uses_labels
    (setting,) = family.fit(trace)
    played = setting.rule.play(trace)
    assert not same(played, setting.rule.play(scrambled(trace, played.asked, 0)))
    assert [f for f in FAMILIES if getattr(FAMILIES[f], "uses_labels", False)] == ["oracle"]


@few
@given(trace=traces(), data=st.data())
def test_a_stop_rule_decides_as_the_policy_that_it_is_served_as(trace, data):
    walk, score = walk_of(trace), data.draw(st.sampled_from([Confidence(), "calibrated"]))
    score = Calibrated.fit(trace) if score == "calibrated" else score
    seen = [score(trace, node) for node in walk]
    levels = st.sampled_from([-np.inf, np.inf, *np.unique(seen).tolist()])
    rules = []
    for length in range(1, len(walk) + 1):
        cuts = data.draw(st.lists(levels, min_size=length - 1, max_size=length - 1))
        rules.append(StopRule(score, walk[:length], np.array(cuts)))
    served = as_policies(trace, [Setting({}, rule) for rule in rules])
    for rule, setting in zip(rules, served, strict=True):
        assert isinstance(setting.rule, FittedPolicy)
        assert same(rule.play(trace), setting.rule.play(trace))


@every_family
@few
@given(trace=traces())
def test_fitting_twice_gives_the_same_rules(family, trace):
    first, second = fitted(family, trace), fitted(family, trace)
    assert [s.knob for s in first] == [s.knob for s in second]
    for one, other in zip(first, second, strict=True):
        assert same(one.rule.play(trace), other.rule.play(trace))


@every_family
@few
@given(trace=traces())
def test_knobs_are_plain(family, trace):
    for setting in fitted(family, trace):
        text = json.dumps(setting.knob, allow_nan=False)
        assert json.loads(text) == setting.knob


@every_family
@few
@given(trace=traces())
def test_settings_are_the_corners_of_their_envelope_on_the_fit_rows(family, trace):
    results = [measure(s.rule.play(trace), trace, resamples=0) for s in fitted(family, trace)]
    if results:
        kept = lower_envelope([r.cost for r in results], [r.error for r in results])
        assert kept.tolist() == list(range(len(results)))


@few
@given(trace=traces())
def test_every_family_is_either_fitted_or_left_out_with_a_reason(trace):
    settings, left_out = fit_families(trace)
    assert settings.keys() | left_out.keys() == FAMILIES.keys()
    assert not settings.keys() & left_out.keys()
    assert all(settings.values())
    assert all(left_out.values())


@few
@given(trace=traces())
def test_no_policy_is_right_more_often_or_as_often_for_less_than_the_oracle(trace):
    settings, _ = fit_families(trace)
    (oracle,) = settings.pop("oracle")
    bound = measure(oracle.rule.play(trace), trace, resamples=0)
    for rules in settings.values():
        for setting in rules:
            result = measure(setting.rule.play(trace), trace, resamples=0)
            assert result.error >= bound.error
            assert result.error > bound.error or result.cost >= bound.cost - 1e-12
