"""Which node may be asked when, and at what cost: one place for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ttamer.trace.spec import CascadeNode, CascadeSpec

COSTS = {"a": 4.0, "b": 1.0, "c": 2.0}
EXITS = CascadeSpec.of(COSTS, order="skip", passing={"a": 0.5, "b": 0.25})
TREE = CascadeSpec(
    (CascadeNode("leaf", 1.0, after="root"), CascadeNode("root", 3.0), CascadeNode("alone", 2.0))
)


@pytest.mark.parametrize("order", ["fixed", "skip", "any", "auto"])
def test_orders_of_separate_models_and_of_exits(order):
    spec = CascadeSpec.of(COSTS, order=order)
    in_order = order in ("fixed", "skip")
    assert spec.asking_order() == ((0, 1, 2) if in_order else (1, 2, 0))
    assert spec.asking_order(np.array([3.0, 2.0, 1.0])) == ((0, 1, 2) if in_order else (2, 1, 0))
    assert spec.full_cost() == (7.0 if order == "fixed" else 4.0)
    assert spec.answer_costs().tolist() == ([4.0, 5.0, 7.0] if order == "fixed" else [4, 1, 2])
    allowed = {
        "fixed": {(0, 1), (1, 2)},
        "skip": {(0, 1), (0, 2), (1, 2)},
    }.get(order, set(itertools.permutations(range(3), 2)))
    assert set(zip(*map(np.ndarray.tolist, np.nonzero(spec.successors)), strict=True)) == allowed


def test_equal_costs_keep_the_order_of_the_cascade():
    spec = CascadeSpec.of(dict.fromkeys("abcd", 1.0))
    assert spec.cheapest_first() == (0, 1, 2, 3)


def test_a_parent_comes_before_its_children_whatever_it_costs():
    assert TREE.cheapest_first() == TREE.asking_order() == (2, 1, 0)
    assert TREE.required.tolist() == [
        [True, True, False],
        [False, True, False],
        [False, False, True],
    ]
    assert TREE.answer_costs().tolist() == [4.0, 3.0, 2.0]


def test_exits_passed_cost_on_the_way():
    assert EXITS.is_network
    assert EXITS.asking_order() == (0, 1, 2)
    assert EXITS.step_cost(-1, 2) == 2.75
    assert EXITS.step_cost(0, 2) == 2.25
    assert EXITS.step_cost(0, 2, np.array([1.0, 1.0, 9.0])) == 9.25
    assert EXITS.answer_costs().tolist() == [4.0, 1.5, 2.75]
    assert EXITS.full_cost() == 2.75


def test_a_free_cascade_has_a_full_cost_to_divide_by():
    assert CascadeSpec.of({"a": 0.0}).full_cost() == 1.0


def test_arrays_cannot_be_changed():
    for array in (EXITS.costs, EXITS.passing, EXITS.required, EXITS.successors):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_a_changed_copy_does_not_keep_what_was_computed():
    assert EXITS.costs.tolist() == [4.0, 1.0, 2.0]
    assert EXITS.with_costs({"a": 9.0}).costs.tolist() == [9.0, 1.0, 2.0]
    assert CascadeSpec.of(COSTS, order="skip", passing={"a": 0.5, "b": 0.25}) == EXITS
