"""What baselines are made of: calibration, moves, selection."""

from __future__ import annotations

import numpy as np
import pytest

from support.small_traces import (
    fit,
    make,
    random_trace,
)
from ttamer.baselines import fit_families
from ttamer.baselines.rules import RuleScorer, sweep_prices, walk_of
from ttamer.baselines.threshold import Isotonic, level_starts
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.evaluation.results import measure
from ttamer.fitting.replay import Setting
from ttamer.trace.trace import Trace

# Calibration


def test_isotonic_fit_equals_the_max_min_formula():
    rng = np.random.default_rng(1)
    for _ in range(50):
        size = rng.integers(1, 12)
        said, right = rng.integers(0, 6, size).astype(float), rng.random(size) < 0.5
        levels = np.unique(said)
        for level in levels:
            expected = max(
                min(right[(said >= a) & (said <= b)].mean() for b in levels[levels >= level])
                for a in levels[levels <= level]
            )
            found = Isotonic.fit(said, right)(np.array([level]))
            assert found == pytest.approx(expected)


def test_very_many_confidences_are_calibrated_in_groups():
    said = np.random.default_rng(2).permutation(3 * Isotonic.max_levels).astype(float)
    curve = Isotonic.fit(said, said > Isotonic.max_levels)
    assert len(level_starts(said, 4096)) == 4096
    assert curve(np.array([-5.0, 0.0, 1e9])).tolist() == [0.0, 0.0, 1.0]
    assert np.abs(curve(said) - (said > Isotonic.max_levels)).mean() < 1e-3


# What the cascade allows


def test_the_walk_goes_by_mean_cost_on_the_rows_unless_the_order_is_given():
    cost = np.array([[9.0, 1.0], [1.0, 2.0]])
    assert walk_of(make(np.ones((2, 2)), cost=cost)).tolist() == [1, 0]
    assert walk_of(make(np.ones((2, 2)), cost=cost, kind="exits")).tolist() == [0, 1]


def test_in_a_tree_a_parent_is_asked_before_its_children():
    nodes = (CascadeNode("leaf", 1.0, "root"), CascadeNode("root", 5.0), CascadeNode("alone", 2.0))
    spec = CascadeSpec(nodes)
    trace = Trace(spec, np.ones((2, 3)), correct=np.array([[True, False, False]] * 2))
    assert [spec.names[v] for v in walk_of(trace)] == ["alone", "root", "leaf"]
    assert (
        fit("always-first", trace)[0].rule.play(trace).asked.tolist() == [[True, True, False]] * 2
    )
    assert fit("chain", trace)[-1].knob["nodes"] == ["root", "leaf"]


# Selection


def test_sweeping_prices_finds_every_corner_of_an_exact_family():
    trace = make(np.ones((1, 8)), np.zeros((1, 8)))
    corners = [(float(k), (8 - k) ** 2 / 64) for k in range(8)]

    class Point:
        def __init__(self, number):
            self.number = number

        def play(self, trace):
            raise AssertionError(f"a corner is only named, never played on {trace!r}")

    def solve(price):
        values = [error + price * cost for cost, error in corners]
        return Setting({"corner": int(np.argmin(values))}, Point(int(np.argmin(values))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleScorer, "score", lambda _, rule: corners[rule.number])
        found = sweep_prices(trace, solve)
        assert [s.knob["corner"] for s in found] == list(range(8))
        few = sweep_prices(trace, solve, limit=3)
        assert [s.knob["corner"] for s in few][:: len(few) - 1] == [0, 7]


def test_the_scorer_agrees_with_evaluation():
    for seed in range(4):
        trace = random_trace(seed, nodes=3, rows=17)
        scorer = RuleScorer(trace)
        for settings in fit_families(trace)[0].values():
            for setting in settings:
                result = measure(setting.rule.play(trace), trace, resamples=0)
                assert scorer.score(setting.rule) == (result.cost, result.error)
