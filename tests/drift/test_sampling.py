"""Which requests are audited: a fair share, alike every time, within the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.drift.audits import AuditSampler
from ttamer.errors import ArgumentError

HOUR = 3600.0


def test_the_share_is_the_stated_one_and_draws_are_alike_every_time():
    one, two = AuditSampler(0.1, seed=3), AuditSampler(0.1, seed=3)
    names = [f"request-{k}" for k in range(20_000)]
    drawn = [one.draw(name, seconds=0.0) for name in names]
    assert drawn == [two.draw(name, seconds=5.0) for name in names]
    assert sum(is_drawn for is_drawn, _ in drawn) == pytest.approx(2000, abs=150)
    assert {chance for _, chance in drawn} == {0.1}


def test_another_seed_is_another_sample():
    one, two = AuditSampler(0.5, seed=1), AuditSampler(0.5, seed=2)
    same = np.mean([one.draw(k, 0.0)[0] == two.draw(k, 0.0)[0] for k in range(4000)])
    assert same == pytest.approx(0.5, abs=0.04)


def test_every_row_is_as_likely_whatever_is_near_it():
    counts = np.zeros(50)
    for seed in range(2000):
        audit = AuditSampler(0.3, seed=seed)
        counts += [audit.draw(k, 0.0)[0] for k in range(50)]
    assert ((counts - 600) ** 2 / (2000 * 0.3 * 0.7)).sum() < 87  # chi square, 50 degrees, 0.001


@given(
    st.lists(st.floats(0, 600), min_size=1, max_size=200),
    st.floats(10.0, 100.0),
    st.floats(0.1, 5.0),
    st.integers(0, 5),
)
def test_no_hour_costs_more_than_two_budgets(gaps, budget, cost, seed):
    audit = AuditSampler(1.0, cost=cost, budget=budget, seed=seed)
    now, spent = 0.0, []
    for number, gap in enumerate(gaps):
        now += gap
        if audit.draw(number, now)[0]:
            spent.append(now)
    for begin in spent:  # what was saved up, and what came in
        assert sum(begin <= t <= begin + HOUR for t in spent) * cost <= 2 * budget + cost


def test_a_lower_cost_than_the_most_leaves_room_for_more():
    expensive, cheap = (AuditSampler(1.0, cost=1.0, budget=20.0) for _ in range(2))
    counts = [0, 0]
    for number in range(200):
        counts[0] += expensive.draw(number, 0.0)[0]
        if cheap.draw(number, 0.0)[0]:
            counts[1] += 1
            cheap.settle(0.05)
    assert counts[0] <= 20
    assert counts[1] > 100


def test_rows_weighted_by_their_chance_are_unbiased_when_the_budget_runs_low():
    """A quiet hour whose requests go well, then a busy one whose requests do not."""
    rng = np.random.default_rng(0)
    times = np.concatenate([np.linspace(0, HOUR, 200), np.linspace(HOUR, 2 * HOUR, 2000)])
    wrong = (rng.random(2200) < np.where(times < HOUR, 0.1, 0.5)).astype(float)
    weighted, plain = [], []
    for seed in range(200):
        audit = AuditSampler(0.5, cost=1.0, budget=120.0, seed=seed)
        drawn = [audit.draw(k, now) for k, now in enumerate(times)]
        rows = np.array([is_drawn for is_drawn, _ in drawn])
        weight = 1 / np.array([chance for _, chance in drawn])[rows]
        weighted.append((weight * wrong[rows]).sum() / len(drawn))
        plain.append(wrong[rows].mean())
    error = np.std(weighted) / math.sqrt(len(weighted))
    assert abs(np.mean(weighted) - wrong.mean()) < 3 * error
    assert np.mean(plain) < wrong.mean() - 10 * np.std(plain) / math.sqrt(len(plain))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AuditSampler(0.5, budget=0.0), "the budget is 0"),
        (lambda: AuditSampler(0.5, cost=5.0, budget=4.0), "one audit may cost 5"),
    ],
)
def test_what_cannot_be_is_refused(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()
