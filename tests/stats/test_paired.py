"""The exact paired test, against enumeration of all rows that may be drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ttamer.stats.bounds import betting_p, paired_p, paired_upper

ALPHA = 0.05
ROWS = 40


@pytest.fixture(scope="module", params=[0.1, 0.0, -0.05])
def refuted(request):
    """Return a drop, and whether each pair of counts (worse, better) refutes it."""
    found = np.zeros((ROWS + 1, ROWS + 1), bool)
    for worse in range(ROWS + 1):
        for better in range(ROWS + 1 - worse):
            p = paired_p(worse, better, ROWS, request.param, alpha=ALPHA)
            found[worse, better] = p <= ALPHA
    return request.param, found


def test_the_truth_is_refuted_no_more_often_than_the_level(refuted):
    drop, found = refuted
    worse, better = np.nonzero(found)
    counts = np.stack([worse, better, ROWS - worse - better], axis=1)
    largest = 0.0
    for chance_better in np.linspace(max(0.0, -drop), (1 - drop) / 2, 60):
        law = [chance_better + drop, chance_better, max(1 - 2 * chance_better - drop, 0.0)]
        largest = max(largest, stats.multinomial.pmf(counts, ROWS, law).sum())
    assert largest <= ALPHA
    assert largest > 0.5 * ALPHA  # it spends most of its level


def test_fewer_worse_rows_and_more_better_ones_refute_more(refuted):
    _, found = refuted
    inside = np.add.outer(np.arange(ROWS + 1), np.arange(ROWS + 1)) < ROWS
    assert (found[:-1] >= found[1:])[inside[:-1]].all()
    assert (found[:, 1:] >= found[:, :-1])[inside[:, :-1]].all()


def test_it_certifies_where_betting_does_not():
    worse, better, rows, drop = 8, 6, 1000, 0.01
    assert paired_p(worse, better, rows, drop, alpha=ALPHA) <= ALPHA
    counts = [better, rows - worse - better, worse]
    assert betting_p([0.0, 0.5, 1.0], counts, (1 + drop) / 2, alpha=ALPHA) > ALPHA


def test_the_bound_is_refuted_and_less_is_not():
    upper = paired_upper(30, 25, 2000, alpha=ALPHA)
    assert 0.0025 < upper < 0.02
    assert paired_p(30, 25, 2000, upper, alpha=ALPHA) <= ALPHA
    assert paired_p(30, 25, 2000, upper - 1e-4, alpha=ALPHA) > ALPHA


@pytest.mark.parametrize(("drop", "p"), [(1.0, 0.0), (-1.0, 1.0)])
def test_the_ends(drop, p):
    assert paired_p(3, 4, 100, drop, alpha=ALPHA) == p


def test_rows_that_never_differ_refute_any_drop_they_are_many_enough_for():
    assert paired_p(0, 0, 1000, 0.01, alpha=ALPHA) <= ALPHA < paired_p(0, 0, 100, 0.01, alpha=ALPHA)


def test_a_million_rows():
    assert paired_p(30_000, 29_500, 1_000_000, 0.001, alpha=ALPHA) <= ALPHA
    assert paired_p(30_000, 29_300, 1_000_000, 0.001, alpha=ALPHA) > ALPHA
