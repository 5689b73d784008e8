"""Chains and FrugalML's strategy: by eye, and against brute force."""

from __future__ import annotations

import dataclasses
from itertools import chain, combinations, product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.small_traces import (
    PRICES,
    answers,
    asked,
    best_at,
    fit,
    make,
    points,
    random_trace,
)
from ttamer.baselines.chain import chain_table, chains_of
from ttamer.baselines.frugalml import FrugalML
from ttamer.baselines.rules import RuleScorer
from ttamer.baselines.threshold import Calibrated

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

# Chains


def every_chain(trace: Trace, *, common: bool) -> list[tuple[float, float]]:
    """All subsets, all thresholds (one for all, or one each), row by row."""
    wrong, costs = trace.loss > 0, trace.costs
    chance = Calibrated.fit(trace)
    said = np.column_stack([chance(trace, v) for v in range(len(trace.spec))])
    walk = sorted(range(len(trace.spec)), key=lambda v: (costs[:, v].mean(), v))
    cuts = [*np.unique(said), np.inf]
    found = []
    for subset in chain.from_iterable(combinations(walk, k) for k in range(1, len(walk) + 1)):
        steps = len(subset) - 1
        for each in [(c,) * steps for c in cuts] if common else product(cuts, repeat=steps):
            cost = error = 0.0
            for row in range(len(trace)):
                for node, cut in zip(subset, (*each, -np.inf), strict=True):
                    cost += costs[row, node]
                    if said[row, node] >= cut:
                        error += wrong[row, node]
                        break
            found.append((cost / len(trace), error / len(trace)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_table_of_chains_holds_every_subset_at_every_threshold(seed):
    trace = random_trace(seed, nodes=3, rows=8)
    score = Calibrated.fit(trace)
    cuts = np.array([*np.unique([score(trace, v) for v in range(3)]), np.inf])
    errors, costs = chain_table(RuleScorer(trace), chains_of(trace, 3), score, cuts)
    mine = np.column_stack([costs.ravel(), errors.ravel()])
    brute = np.array(every_chain(trace, common=True))
    assert sorted(map(tuple, mine.round(9))) == sorted(map(tuple, brute.round(9)))


@pytest.mark.parametrize("seed", range(12))
def test_chain_of_two_models_is_the_best_there_is(seed):
    trace = random_trace(seed, nodes=2, rows=9)
    mine, brute = points(fit("chain", trace), trace), every_chain(trace, common=False)
    for price in PRICES:
        assert best_at(mine, price) == pytest.approx(best_at(brute, price))


@pytest.mark.parametrize("seed", range(8))
def test_chain_of_three_is_no_worse_than_any_common_threshold_nor_better_than_the_best(seed):
    trace = random_trace(seed, nodes=3, rows=8)
    mine = points(fit("chain", trace), trace)
    common, each = (every_chain(trace, common=c) for c in (True, False))
    for price in PRICES:
        assert best_at(mine, price) <= best_at(common, price) + 1e-9
        assert best_at(mine, price) >= best_at(each, price) - 1e-9


# FrugalML


def test_frugalml_asks_another_for_the_label_it_cannot_trust():
    # The base a is right when it says x, and wrong half the time when it says y; b is right
    # whenever a says y, and c never.
    said = ["x"] * 4 + ["y"] * 4
    label = ["x"] * 4 + ["y", "y", "x", "x"]
    prediction = [[a, t, "z"] for a, t in zip(said, label, strict=True)]
    confidence = [[c, 0.5, 0.9] for c in [0.1, 0.2, 0.3, 0.4, 0.9, 0.8, 0.3, 0.2]]
    trace = make(confidence, prediction=prediction, label=label, costs=[1, 4, 2])
    settings = FrugalML(min_rows=1).fit(trace)
    assert points(settings, trace) == [(1.0, 0.25), ((8 + 2 * 4) / 8, 0.0)]
    assert settings[-1].knob["base"] == "a"
    assert settings[-1].knob["labels"] == {"x": None, "y": {"at_most": 0.3, "ask": "b"}}
    assert asked(settings[-1], trace) == ["a"] * 6 + ["ab"] * 2
    assert answers(settings[-1], trace) == "aaaaaabb"


def every_strategy(trace: Trace, *, by_label: bool) -> list[tuple[float, float]]:
    """All bases, thresholds and add-ons, for each label on its own or for all alike."""
    wrong, costs, rows = trace.loss > 0, trace.costs, len(trace)
    found = []
    for base in range(len(trace.spec)):
        group = trace.prediction[:, base] if by_label else np.zeros(rows, int)
        labels = np.unique(group)
        cuts = [-np.inf, *np.unique(trace.confidence[:, base])]
        others = [v for v in range(len(trace.spec)) if v != base]
        for plan in product(product(cuts, others), repeat=len(labels)):
            cost, error = costs[:, base].sum(), 0.0
            for row in range(rows):
                cut, addon = plan[int(np.searchsorted(labels, group[row]))]
                more = trace.confidence[row, base] <= cut
                error += wrong[row, addon if more else base]
                cost += costs[row, addon] if more else 0.0
            found.append((cost / rows, error / rows))
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("least", "by_label"), [(1, True), (100, False)])
def test_frugalml_is_the_best_strategy_there_is(seed, least, by_label):
    trace = random_trace(seed, nodes=3 if seed < 6 else 2, rows=8)
    mine = points(FrugalML(min_rows=least).fit(trace), trace)
    brute = every_strategy(trace, by_label=by_label)
    for price in PRICES:
        assert best_at(mine, price) == pytest.approx(best_at(brute, price))


def test_frugalml_takes_the_largest_confidences_there_are():
    trace = random_trace(0, nodes=2, rows=40)
    wide = dataclasses.replace(trace, confidence=np.where(trace.confidence > 1, 1.7e308, -1.7e308))
    narrow = dataclasses.replace(trace, confidence=np.sign(wide.confidence))
    assert points(fit("frugalml", wide), wide) == points(fit("frugalml", narrow), narrow)


def test_frugalml_matches_a_label_by_its_text_not_by_its_code():
    trace = random_trace(2, nodes=3, rows=80)
    other = dataclasses.replace(
        trace,
        classes=("unseen", *reversed(trace.classes)),
        prediction=len(trace.classes) - trace.prediction,
        label=len(trace.classes) - trace.label,
    )
    for setting in FrugalML(min_rows=1).fit(trace):
        assert answers(setting, trace) == answers(setting, other)


def test_frugalml_treats_rare_and_new_labels_as_it_does_all_rows_together():
    # a is right at 0.9, where it says x; at 0.3 it says y, too seldom for a strategy of its own.
    said = [["x", "y"]] * 30 + [["y", "x"]] * 10
    confidence = [[0.9, 0.5]] * 30 + [[0.3, 0.5]] * 10
    trace = make(confidence, prediction=said, label=["x"] * 40)
    setting = fit("frugalml", trace)[-1]
    assert points([setting], trace) == [((40 + 20) / 40, 0.0)]
    assert setting.knob["labels"] == {"x": None}
    assert setting.knob["other_labels"] == {"at_most": 0.3, "ask": "b"}
    new = make(
        [[0.2, 0.5], [0.7, 0.5], [0.1, 0.5]], prediction=[["z", "t"], ["z", "t"], [None, "t"]]
    )
    assert asked(setting, new) == ["ab", "a", "ab"]


def test_frugalml_gives_rare_labels_a_strategy_of_their_own_when_together_they_are_enough():
    # x comes 30 times; ten labels come three times each, and there b is right and a is wrong.
    said = [["x", "y"]] * 30 + [[str(k % 10), "x"] for k in range(30)]
    trace = make([[0.5, 0.5]] * 60, prediction=said, label=["x"] * 60)
    setting = fit("frugalml", trace)[-1]
    assert setting.knob["labels"] == {"x": None}
    assert setting.knob["other_labels"] == {"at_most": 0.5, "ask": "b"}
    assert points([setting], trace) == [(2.0, 0.0)]
