"""The rule by which survivors are regrouped."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.torch.regrouping import Regrouping, group_sizes

RULE = Regrouping((2, 4, 16), ((1.0, 2.0, 8.0), (3.0, 3.0, 3.0), (0.5, 1.0, 4.0)), cost=3.0)


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0), (10, 5.0), (16, 8.0), (32, 16.0)]
)
def test_times_are_in_proportion_between_the_sizes_measured_and_beyond(rows, seconds):
    assert RULE.time(0, rows) == pytest.approx(seconds)


def test_small_batches_take_as_long_as_the_smallest_measured():
    assert RULE.time(2, 1) == RULE.time(2, 2) == 0.5


def test_it_pays_where_the_segments_up_to_the_next_exit_save_more_than_it_costs():
    # From 16 rows to 2, segment 1 saves nothing, segment 2 saves 3.5.
    assert not RULE.pays(0, 1, rows=16, alive=2)
    assert RULE.pays(0, 2, rows=16, alive=2)
    assert RULE.pays(1, 2, rows=16, alive=2)
    # From 16 to 4 it saves 3: as much as it costs, and no more.
    assert not RULE.pays(1, 2, rows=16, alive=4)


def test_where_nobody_left_there_is_nothing_to_regroup():
    for rule in (RULE, Regrouping.always(), Regrouping.never()):
        assert not rule.pays(0, 2, rows=16, alive=16)


@given(st.integers(2, 100), st.data())
def test_always_and_never(rows, data):
    alive = data.draw(st.integers(1, rows - 1))
    assert Regrouping.always().pays(0, 1, rows, alive)
    assert not Regrouping.never().pays(0, 1, rows, alive)


@given(st.integers(1, 40), st.integers(1, 40))
def test_more_rows_never_take_less_where_none_did_when_measured(one, two):
    low, high = sorted((one, two))
    for segment in range(3):
        assert RULE.time(segment, low) <= RULE.time(segment, high) + 1e-12


@given(st.integers(1, 5000))
def test_groups_have_few_sizes_and_none_is_filled_up_by_more_than_half(batch):
    sizes = group_sizes(batch)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, batch)
    assert len(sizes) <= 2 * batch.bit_length()
    for small, large in pairwise(sizes):
        assert large <= 2 * small
        assert large <= 1.5 * small or small < 4
