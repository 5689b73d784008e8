"""Which requests are audited: a fair share, alike every time, within the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from ttamer.drift.sampling import AuditSampler, Budget, estimate

from ttamer.errors import ArgumentError

HOUR = 3600.0


def test_the_share_is_the_stated_one_and_draws_are_alike_every_time():
    one, two = AuditSampler(0.1, seed=3), AuditSampler(0.1, seed=3)
    names = [f"request-{k}" for k in range(20_000)]
    drawn = [one.draw(name, now=0.0) for name in names]
    assert drawn == [two.draw(name, now=5.0) for name in names]
    assert sum(each.audited for each in drawn) == pytest.approx(2000, abs=150)
    assert {each.chance for each in drawn} == {0.1}


def test_requests_that_cannot_be_drawn_may_be_counted_only():
    """Workers pass on what is below the share: the same requests are audited within the budget."""
    budget = Budget(total=100.0)
    every, passed_on = (AuditSampler(0.4, cost=1.0, budget=budget, seed=5) for _ in range(2))
    expected = [name for name in range(600) if every.draw(name, 0.0).audited]
    found = []
    for name in range(600):
        if passed_on.position(name) >= passed_on.share:
            passed_on.skip(1, 0.0)
        elif passed_on.draw(name, 0.0).audited:
            found.append(name)
    assert found == expected
    assert 90 < len(found) <= 100
    assert (passed_on.requests, passed_on.uncovered) == (every.requests, every.uncovered)


def test_another_seed_is_another_sample():
    one, two = AuditSampler(0.5, seed=1), AuditSampler(0.5, seed=2)
    same = np.mean([one.draw(k, 0.0).audited == two.draw(k, 0.0).audited for k in range(4000)])
    assert same == pytest.approx(0.5, abs=0.04)


def test_every_row_is_as_likely_whatever_is_near_it():
    counts = np.zeros(50)
    for seed in range(2000):
        audit = AuditSampler(0.3, seed=seed)
        counts += [audit.draw(k, 0.0).audited for k in range(50)]
    assert ((counts - 600) ** 2 / (2000 * 0.3 * 0.7)).sum() < 87  # chi square, 50 degrees, 0.001


@given(
    st.lists(st.floats(0, 600), min_size=1, max_size=200),
    st.floats(10.0, 100.0),
    st.floats(0.1, 5.0),
    st.integers(0, 5),
)
def test_no_hour_costs_more_than_two_budgets_and_the_total_holds(gaps, budget, cost, seed):
    audit = AuditSampler(
        1.0, cost=cost, budget=Budget(per_hour=budget, total=4 * budget), seed=seed
    )
    now, spent = 0.0, []
    for number, gap in enumerate(gaps):
        now += gap
        if audit.draw(number, now).audited:
            spent.append(now)
    assert len(spent) * cost <= 4 * budget + 1e-9
    for begin in spent:  # what was saved up, and what came in
        assert sum(begin <= t <= begin + HOUR for t in spent) * cost <= 2 * budget + cost


def test_a_lower_cost_than_the_most_leaves_room_for_more():
    dear, cheap = (AuditSampler(1.0, cost=1.0, budget=Budget(total=20.0)) for _ in range(2))
    for number in range(200):
        dear.draw(number, 0.0)
        if cheap.draw(number, 0.0).audited:
            cheap.settle(0.1)
    assert dear.spent <= 20
    assert dear.uncovered > 0
    assert cheap.uncovered == 0


def busy_day(seed):
    """A quiet hour whose requests go well, then a busy one whose requests do not."""
    rng = np.random.default_rng(seed)
    times = np.concatenate([np.linspace(0, HOUR, 200), np.linspace(HOUR, 2 * HOUR, 2000)])
    return times, (rng.random(2200) < np.where(times < HOUR, 0.1, 0.5)).astype(float)


def test_estimates_are_unbiased_when_the_budget_bites_and_plain_means_are_not():
    weighted, plain, scaled = [], [], []
    times, wrong = busy_day(0)
    for seed in range(300):
        audit = AuditSampler(0.5, cost=1.0, budget=Budget(per_hour=120.0), seed=seed)
        drawn = [audit.draw(k, now) for k, now in enumerate(times)]
        rows = np.array([each.audited for each in drawn])
        chances = np.array([each.chance for each in drawn])[rows]
        assert audit.uncovered == 0
        weighted.append(estimate(wrong[rows], chances, audit.requests))
        scaled.append(estimate(wrong[rows], chances).mean)
        plain.append(wrong[rows].mean())
    truth = wrong.mean()
    means = np.array([each.mean for each in weighted])
    error = means.std() / math.sqrt(len(means))
    assert abs(means.mean() - truth) < 3 * error
    assert abs(np.mean(scaled) - truth) < 0.01
    assert np.mean(plain) < truth - 10 * np.std(plain) / math.sqrt(len(plain))
    inside = [abs(each - truth) < 2 * w.error for each, w in zip(scaled, weighted, strict=True)]
    assert np.mean(inside) > 0.85


@pytest.mark.parametrize("knows_requests", [True, False])
@pytest.mark.parametrize("share_wrong", [0.1, 0.9])
def test_the_standard_error_is_the_spread_over_audits(knows_requests, share_wrong):
    rng = np.random.default_rng(0)
    wrong = (rng.random(2000) < share_wrong).astype(float)
    chances = np.where(np.arange(2000) < 1000, 0.5, 0.05)
    found = []
    for _ in range(1000):
        rows = rng.random(2000) < chances
        requests = 2000 if knows_requests else None
        found.append(estimate(wrong[rows], chances[rows], requests))
    spread = np.std([each.mean for each in found])
    assert np.mean([each.error for each in found]) == pytest.approx(spread, rel=0.1)


def test_where_every_request_is_audited_the_mean_is_known():
    assert estimate([0.0, 1.0, 1.0], [1.0] * 3, requests=3)[:2] == pytest.approx((2 / 3, 0.0))


def test_with_equal_chances_it_is_the_plain_mean():
    found = estimate([0.0, 1.0, 1.0, 0.0], [0.2] * 4)
    assert found.mean == 0.5
    assert found.effective == pytest.approx(4)
    assert estimate([0.0, 1.0, 1.0, 0.0], [0.2] * 4, requests=20).mean == 0.5


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AuditSampler(0.0), "share is 0.0"),
        (lambda: AuditSampler(0.5, cost=-1.0), "cost is -1.0"),
        (lambda: Budget(per_hour=0.0), "above 0"),
        (lambda: AuditSampler(0.5, cost=5.0, budget=Budget(total=4.0)), "one audit may cost 5"),
        (lambda: estimate([], []), "needs rows"),
        (lambda: estimate([1.0], [0.0]), "chance above 0"),
        (lambda: estimate([1.0], [1.5]), "at most 1"),
        (lambda: estimate([1.0, 0.0], [0.5, 0.5], requests=1), "requests is 1, and 2 of them"),
    ],
)
def test_what_cannot_be_is_refused(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()
