"""Promises: broken in at most their stated share of draws, and never dearer than the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ttamer.errors import ArgumentError
from ttamer.fitting.points import Mix, OperatingPoints
from ttamer.fitting.promises import CAP, Held, check_promise, make_promise

NAMES = ("small", "middle", "large")
NODE_ERROR = np.array([0.30, 0.20, 0.12])
NODE_COST = np.array([1.0, 3.0, 10.0])
TRUE_ERROR = np.array([0.26, 0.20, 0.16, 0.13, 0.115, 0.11])
COST = np.array([1.2, 2.5, 4.0, 6.0, 9.0, 13.0])
COUNT = len(TRUE_ERROR)


def points_of(rng, noise=0.004):
    """Estimates with noise, as a fit has them."""
    error = TRUE_ERROR + rng.normal(0, noise, COUNT)
    return OperatingPoints(
        error=error,
        cost=COST,
        standard_error=np.full(COUNT, noise),
        excess=error - NODE_ERROR.min(),
        excess_error=np.full(COUNT, noise),
        alone_error=NODE_ERROR,
        alone_cost=NODE_COST,
        rows=1000,
    )


def outcomes(rng, rows, graded=False):
    """Losses of policies and nodes: inputs are easy or hard for all alike."""
    hard = rng.random(rows)[:, None] * 0.6 + rng.random((rows, COUNT + 3)) * 0.4
    cuts = np.quantile(rng.random((200_000, 2)) @ [0.6, 0.4], 1 - np.r_[TRUE_ERROR, NODE_ERROR])
    lost = (hard > cuts).astype(float)
    return lost * rng.random(lost.shape) * 2 if graded else lost


def held_of(rng, rows, points, graded=False, **more):
    lost = outcomes(rng, rows, graded).clip(0, 1)
    envelope = [k for k in points.corners if k < COUNT]
    paid = COST[:, None] * rng.uniform(0.5, 1.5, (COUNT, rows))
    return Held(
        trace_digest=f"rows {rng.integers(2**40)}",
        names=NAMES,
        count=COUNT,
        policies=tuple(envelope),
        lost=lost[:, envelope].T,
        paid=paid[envelope],
        alone_lost=lost[:, COUNT:],
        alone_paid=np.tile(NODE_COST, (rows, 1)),
        **more,
    )


def truth(mix, kind="error", against=2):
    errors = np.concatenate([TRUE_ERROR, NODE_ERROR])
    return mix.mean(errors) - (NODE_ERROR[against] if kind == "drop" else 0.0)


def naive(held, at_most):
    """The cheapest mix that looks good on the very rows that then certify it."""
    chain = [COUNT + 2, *held.policies[::-1]]
    seen = [held.sample("error", Mix.of(k), 2).observed for k in chain]
    return Mix.of(
        next((k for k, e in zip(reversed(chain), reversed(seen), strict=True) if e <= at_most), 8)
    )


@pytest.mark.parametrize(("kind", "at_most", "draws"), [("error", 0.15, 300), ("drop", 0.03, 100)])
def test_promises_are_broken_in_at_most_their_share_of_draws(kind, at_most, draws):
    rng = np.random.default_rng(1)
    broken = broken_naive = certified = 0
    for _ in range(draws):
        points = points_of(rng)
        held = held_of(rng, 500, points)
        promise = make_promise(held, points, kind, at_most, 0.9, against=2)
        certified += promise.certified
        broken += promise.certified and truth(promise.mix, kind) > at_most
        broken_naive += truth(naive(held, 0.15)) > 0.15
        assert promise.mix.mean(points.costs) <= NODE_COST[2]
    allowed = 0.1 + 2 * (0.1 * 0.9 / draws) ** 0.5
    assert broken / draws <= allowed
    assert broken_naive / draws > allowed
    assert certified / draws > 0.5


def test_a_reference_chosen_on_the_same_rows_still_breaks_rarely():
    """The largest node is best; rows on which another looks best do not lower the bar."""
    rng = np.random.default_rng(2)
    broken, draws = 0, 150
    for _ in range(draws):
        points = points_of(rng, 0.0)
        held = held_of(rng, 300, points)
        best = int(held.alone_lost.mean(axis=0).argmin())
        promise = make_promise(held, points, "drop", 0.03, 0.9, against=best, chosen=True)
        alone = promise.mix == Mix.of(COUNT + best)
        broken += promise.certified and not alone and truth(promise.mix, "drop") > 0.03
    assert broken / draws <= 0.1 + 2 * (0.09 / draws) ** 0.5


def test_weighted_rows_keep_their_word_where_unweighted_ones_break_it():
    """Hard rows are logged rarely; weights by chance correct for it, clipped ones stay valid."""
    rng = np.random.default_rng(3)
    broken, broken_plain, certified, draws, at_most = 0, 0, 0, 120, 0.25
    for _ in range(draws):
        points = points_of(rng)
        held = held_of(rng, 3000, points)
        hard = held.alone_lost.mean(axis=1) > 0
        chance = np.where(hard, 0.3, 0.9)
        logged = rng.random(len(held)) < chance
        weight = np.tile(np.where(logged, 1 / chance, 0.0), (len(held.policies) + 3, 1))
        fields = vars(held)
        weighted = Held(**{**fields, "weight": weight, "cap": 4.0})
        plain = Held(
            **{
                **fields,
                "lost": held.lost[:, logged],
                "paid": held.paid[:, logged],
                "alone_lost": held.alone_lost[logged],
                "alone_paid": held.alone_paid[logged],
            }
        )
        one, two = (
            make_promise(each, points, "error", at_most, 0.9, against=2)
            for each in (weighted, plain)
        )
        certified += one.certified
        broken += one.certified and truth(one.mix) > at_most
        broken_plain += two.certified and truth(two.mix) > at_most
    assert broken / draws <= 0.1 + 2 * (0.09 / draws) ** 0.5
    assert broken_plain / draws > 0.5
    assert certified / draws > 0.5


@given(st.integers(0, 2**32), st.floats(1.0, CAP), st.sampled_from(["error", "drop"]))
@settings(max_examples=40)
def test_clipped_weights_never_lower_the_loss_that_is_tested(seed, cap, kind):
    """Over all logs of the same rows, the mean of what is tested is at least the true mean."""
    rng = np.random.default_rng(seed)
    points = points_of(rng)
    held = held_of(rng, 4000, points)
    chance = rng.uniform(0.1, 1.0, len(held))
    logged = rng.random(len(held)) < chance
    weight = np.tile(np.where(logged, 1 / chance, 0.0), (len(held.policies) + 3, 1))
    weighted = Held(**{**vars(held), "weight": weight, "cap": cap})
    mix = Mix.of(held.policies[-1])
    full = held.sample(kind, mix, 2).observed
    seen = weighted.sample(kind, mix, 2)
    noise = (seen.high - seen.low) * seen.values.std() / len(held) ** 0.5
    assert seen.observed >= full - 4 * noise


def test_the_model_compared_with_is_always_certified_against_itself():
    rng = np.random.default_rng(4)
    points = points_of(rng)
    held = held_of(rng, 5, points)
    promise = make_promise(held, points, "drop", 0.001, 0.95, against=1)
    assert promise.certified
    assert promise.mix == Mix.of(COUNT + 1)
    assert promise.bound == 0
    assert "certified" in str(promise)


def test_an_error_out_of_reach_gives_the_best_node_and_the_rows_it_would_take():
    rng = np.random.default_rng(5)
    points = points_of(rng)
    held = held_of(rng, 30, points)
    promise = make_promise(held, points, "error", 0.001, 0.95, against=2)
    assert not promise.certified
    assert promise.mix == Mix.of(COUNT + 2)
    assert promise.rows_needed is None or promise.rows_needed > 30
    near = make_promise(held, points, "error", 0.4, 0.999, against=2)
    assert near.certified or (near.rows_needed or 0) > 30


def test_a_budget_that_is_rarely_exceeded():
    rng = np.random.default_rng(6)
    broken, draws = 0, 150
    for _ in range(draws):
        points = points_of(rng)
        held = held_of(rng, 400, points)
        promise = make_promise(held, points, "budget", 0.05, 0.9, against=2, budget=7.0)
        # A policy of cost c pays c times a uniform number from 0.5 to 1.5.
        costs = {k: COST[k] for k in range(COUNT)} | {COUNT + k: 0.0 for k in range(2)}
        share = promise.mix.share
        exceeded = sum(
            weight * np.clip(1.5 - 7.0 / max(costs.get(point, 20.0), 1e-9), 0, 1)
            for point, weight in ((promise.mix.cheap, 1 - share), (promise.mix.expensive, share))
        )
        broken += promise.certified and exceeded > 0.05
    assert broken / draws <= 0.1 + 2 * (0.09 / draws) ** 0.5


def test_a_group_counts_once():
    rng = np.random.default_rng(7)
    points = points_of(rng)
    held = held_of(rng, 50, points)
    tile = {name: np.repeat(getattr(held, name), 20, axis=-1) for name in ("lost", "paid")}
    tile |= {
        name: np.repeat(getattr(held, name), 20, axis=0) for name in ("alone_lost", "alone_paid")
    }
    group = np.repeat(np.arange(50), 20)
    copied = Held(**{**vars(held), **tile})
    grouped = Held(**{**vars(held), **tile, "group": group})
    one, two = (
        make_promise(each, points, "error", 0.2, 0.95, against=2) for each in (copied, grouped)
    )
    assert one.rows == 1000
    assert two.rows == 50
    assert two.bound > one.bound


def test_checked_on_other_rows_a_promise_may_be_refuted():
    rng = np.random.default_rng(8)
    points = points_of(rng)
    promise = make_promise(held_of(rng, 2000, points), points, "error", 0.16, 0.95, against=2)
    assert promise.certified
    again = check_promise(promise, held_of(rng, 2000, points))
    assert again.rows == 2000
    assert not again.refuted
    worse = held_of(rng, 2000, points)
    worse = Held(
        **{**vars(worse), "lost": np.maximum(worse.lost, rng.random(worse.lost.shape) < 0.2)}
    )
    assert check_promise(promise, worse).refuted


def test_graded_losses_are_tested_by_betting():
    rng = np.random.default_rng(9)
    points = points_of(rng)
    held = held_of(rng, 800, points, graded=True)
    promise = make_promise(held, points, "error", 0.3, 0.95, against=2)
    assert promise.certified
    assert promise.observed <= promise.bound <= 0.3


@pytest.mark.parametrize("at_most", [0.0, 1.0, float("nan"), "x"])
def test_bounds_out_of_range_are_refused(at_most):
    rng = np.random.default_rng(10)
    points = points_of(rng)
    with pytest.raises(ArgumentError, match="at_most is"):
        make_promise(held_of(rng, 20, points), points, "error", at_most, 0.95, against=2)
