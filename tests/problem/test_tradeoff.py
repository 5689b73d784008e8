"""The tradeoff: what is one, and what it does to losses."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ttamer as tt
from ttamer.errors import ArgumentError
from ttamer.problem.checks import check_tradeoff, check_tradeoffs, weigh_losses

ONE_NODE = tt.Problem.line([0.2], [1.0], [[1.0]])
NO_TRADEOFFS = [math.nan, -0.1, 1.1, math.inf, -math.inf, np.nextafter(1, 2), "x", None, [0.5], 1j]


@pytest.mark.parametrize("tradeoff", [0, 0.0, 0.7, 1, np.float32(0.5), np.int64(1)])
def test_a_number_from_0_to_1_is_returned_as_a_plain_float(tradeoff):
    checked = check_tradeoff(tradeoff)
    assert type(checked) is float
    assert checked == tradeoff


@pytest.mark.parametrize("tradeoff", NO_TRADEOFFS)
def test_anything_else_is_refused_with_the_range_and_what_was_given(tradeoff):
    with pytest.raises(ArgumentError) as caught:
        check_tradeoff(tradeoff)
    assert "from 0 (only cost) to 1 (only loss)" in str(caught.value)
    assert str(caught.value).endswith(f"not {tradeoff!r}")


@pytest.mark.parametrize("tradeoff", NO_TRADEOFFS)
def test_solve_refuses_it_too(tradeoff):
    with pytest.raises(ArgumentError, match="tradeoff must be"):
        tt.solve(ONE_NODE, tradeoff)
    with pytest.raises(ArgumentError, match="tradeoff must be"):
        tt.solve_ladder(ONE_NODE, [0.5, tradeoff])


def test_an_integer_too_large_for_a_float_is_refused_as_well():
    with pytest.raises(ArgumentError, match="tradeoff must be"):
        check_tradeoff(10**400)


def test_many_tradeoffs_come_back_distinct_and_in_order():
    assert check_tradeoffs(iter([1, 0.5, 0.0, 0.5])).tolist() == [0.0, 0.5, 1.0]


def test_no_tradeoffs_are_refused():
    with pytest.raises(ArgumentError, match="at least one number from 0 to 1"):
        check_tradeoffs([])


def test_losses_are_multiplied_and_infinity_stays_even_at_0():
    losses = np.array([0.0, 0.5, math.inf])
    assert weigh_losses(losses, 0.5).tolist() == [0.0, 0.25, math.inf]
    assert weigh_losses(losses, 0.0).tolist() == [0.0, 0.0, math.inf]


def test_several_tradeoffs_weigh_row_by_row():
    weighed = weigh_losses(np.array([0.5, math.inf]), np.array([[0.0], [1.0]]))
    assert weighed.tolist() == [[0.0, math.inf], [0.5, math.inf]]
