"""Operating points: default() against a plain search, and its promise on simulated pools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.errors import ArgumentError
from ttamer.fitting.points import Mix, OperatingPoints, caution, neighbours


def plain_default(lost, paid, alone, alone_cost, tolerance=5e-4):
    """The least cost over all pairs of points and their best shares: slow, and by the text."""
    points, rows = lost.shape
    best = int(alone.mean(0).argmin())
    difference = np.empty_like(lost)
    for j in range(points):
        around = [min(max(j + a, 0), points - 1) for a in (-2, -1, 0, 1, 2)]
        difference[j] = np.mean([lost[k] for k in around], axis=0) - alone[:, best]
    own = lost.mean(1) - alone[:, best].mean()  # neighbours lower the noise, never the excess
    mean, error = np.maximum(difference.mean(1), own), difference.std(1) / rows**0.5
    cost, reference = paid.mean(1), alone_cost[:, best].mean()
    lead = max(
        [
            0.0,
            *(
                -m / e
                for m, e, c in zip(mean, error, cost, strict=True)
                if c <= reference and e > 0
            ),
        ]
    )
    bound = []
    for m, e in zip(mean, error, strict=True):
        harm = np.log(0.17 * e / tolerance) if e > 0 else -np.inf
        bound.append(m + max(0.0, harm - max(lead - 2.5, 0) ** 2 / 2) / 1.55 * e)
    cost, bound = [*cost, reference], [*bound, 0.0]
    least = reference
    for i in range(points + 1):
        for j in range(points + 1):
            if bound[i] <= 0:
                least = min(least, cost[i])
            elif bound[j] <= 0:
                share = bound[i] / (bound[i] - bound[j])
                least = min(least, (1 - share) * cost[i] + share * cost[j])
    return least


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(5, 200), st.integers(1, 4))
def test_default_is_the_cheapest_mix_that_a_plain_search_finds(seed, points, rows, nodes):
    rng = np.random.default_rng(seed)
    quality = rng.uniform(0.05, 0.4, points + nodes)
    lost = (rng.random((points + nodes, rows)) < quality[:, None]).astype(float)
    paid = rng.uniform(0.1, 2.0, (points + nodes, 1)) * rng.uniform(0.5, 1.5, (1, rows))
    one = OperatingPoints.of(lost[:points], paid[:points], lost[points:].T, paid[points:].T)
    mix = one.default()
    slow = plain_default(lost[:points], paid[:points], lost[points:].T, paid[points:].T)
    assert mix.mean(one.costs) == pytest.approx(slow, rel=1e-9)
    assert mix.mean(one.costs) <= one.alone_cost[one.best] * (1 + 1e-12)


@pytest.mark.parametrize(("rows", "most"), [(300, 0.0025), (1000, 0.0015), (4000, 0.001)])
def test_where_nothing_is_better_the_default_errs_little(rows, most):
    """Cheap policies are truly worse by 0 to 3 points, which tempts most."""
    rng = np.random.default_rng(rows)
    excess = []
    shares = np.linspace(1, 0, 16)  # of the inputs that each policy leaves to the cheap node
    for _ in range(600):
        worse = rng.uniform(0, 0.03)  # how much worse the cheap node is
        differ = rng.uniform(0.04, 0.15)
        kinds = rng.choice(3, rows, p=[1 - differ, (differ - worse) / 2, (differ + worse) / 2])
        reference = (kinds == 1) | ((kinds == 0) & (rng.random(rows) < 0.1))
        cheap = (kinds == 2) | ((kinds == 0) & reference)
        left = rng.random(rows) < shares[:, None]
        lost = np.where(left, cheap, reference).astype(float)
        paid = np.where(left, 0.2, 1.0)
        alone = reference.astype(float)[:, None]
        one = OperatingPoints.of(lost, paid, alone, np.ones((rows, 1)))
        excess.append(one.default().mean(np.append(shares * worse, 0.0)))
    # The tolerance is for one price; the choice among all of them costs up to 4 times as much.
    assert 0 < np.mean(excess) < most


def test_without_caution_the_same_choice_errs_more():
    rng = np.random.default_rng(7)
    shares = []
    for margin in (True, False):
        excess = []
        for _ in range(400):
            truth = 0.012
            seen, error = rng.normal(truth, 0.012), 0.012
            k = float(caution(np.array([error]), 0.0)[0]) if margin else 0.0
            excess.append(truth if seen + k * error <= 0 else 0.0)
        shares.append(np.mean(excess))
    assert shares[0] < 0.0008 < shares[1]


def points_of(error, cost, alone_error=(0.05,), alone_cost=(9.0,)):
    error, cost = np.array(error, float), np.array(cost, float)
    zero = np.zeros(len(error))
    alone = np.array(alone_error), np.array(alone_cost)
    return OperatingPoints(error, cost, zero, error - min(alone_error), zero, *alone, rows=100)


def test_a_budget_is_not_spent_on_what_buys_nothing():
    one = points_of([0.4, 0.1, 0.0999], [1.0, 2.0, 5.0], alone_error=(0.0998,))
    assert one.for_budget(5.0) == Mix.of(1)
    assert one.for_budget(1.5) == Mix(0, 1, 0.5)
    assert one.for_budget(1.0) == Mix.of(0)
    assert points_of([0.4, 0.1], [1.0, 2.0]).for_budget(100.0) == Mix.of(2)  # the node alone
    with pytest.raises(ArgumentError, match="the cheapest costs 1 per input"):
        one.for_budget(0.5)


def test_a_stated_drop_may_be_spent():
    one = points_of([0.058, 0.05], [1.0, 4.0])
    assert one.default() == Mix.of(1)
    assert one.default(allowed=0.01) == Mix.of(0)


def test_groups_widen_the_standard_error():
    rng = np.random.default_rng(0)
    lost = np.repeat(rng.random(50) < 0.3, 4).astype(float)[None]
    alone = np.zeros((200, 1))
    facts = lost, np.ones((1, 200)), alone, np.ones((200, 1))
    plain = OperatingPoints.of(*facts).standard_error
    grouped = OperatingPoints.of(*facts, group=np.repeat(np.arange(50), 4)).standard_error
    assert grouped == pytest.approx(2 * plain)


def test_neighbours_keep_a_constant():
    assert (neighbours(np.ones((7, 3))) == 1).all()
