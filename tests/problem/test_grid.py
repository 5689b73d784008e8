"""The loss grid: every value the best loss so far can take, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from support.examples import examples
from support.strategies import problems
from ttamer.errors import ArgumentError
from ttamer.problem.problem import LossGrid

GRID = LossGrid.of([np.array([0.3, 0.1]), np.array([0.1, math.inf])])


@examples(100)
@given(problems())
def test_the_grid_is_the_distinct_losses_in_order_and_infinity(problem):
    losses = {loss for node in problem.nodes for loss in node.losses.tolist()}
    assert problem.grid.values.tolist() == sorted(losses | {math.inf})
    assert len(problem.grid) == len(problem.grid.values)


@examples(100)
@given(problems())
def test_positions_point_at_each_states_own_loss(problem):
    for node, position in zip(problem.nodes, problem.grid.positions, strict=True):
        assert problem.grid.values[position].tolist() == node.losses.tolist()


def test_an_infinite_loss_shares_the_last_column():
    assert GRID.values.tolist() == [0.1, 0.3, math.inf]
    assert [position.tolist() for position in GRID.positions] == [[1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("loss", "column"), [(0.1, 0), (0.3, 1), (math.inf, 2), (np.float64(0.3), 1)]
)
def test_column_finds_a_loss_of_the_grid(loss, column):
    assert GRID.column(loss) == column


@pytest.mark.parametrize("loss", [0.2, 0.0, 0.31, 0.1 + 2e-16, -math.inf, math.nan])
def test_column_refuses_a_loss_between_or_beyond_and_reports_what_is_allowed(loss):
    with pytest.raises(ArgumentError, match="not a loss of this problem") as caught:
        GRID.column(loss)
    assert repr(loss) in str(caught.value)
    assert "2 losses in grid.values, or inf" in str(caught.value)
