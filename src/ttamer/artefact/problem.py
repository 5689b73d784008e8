"""Solved policies in a ``.ttamer`` file: their problem and their tables, checked.

A policy is made of a file only after all of this holds, so that one that loads can be played: sizes
agree with the problem, the problem is one, and every choice leads to a node that may be asked next.
What is raised gives the reason alone; :mod:`ttamer.artefact.file` adds the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.arrays import Arrays, cut, require
from ttamer.errors import ArgumentError, ArtefactDamaged, ProblemError
from ttamer.policy.base import Policy
from ttamer.policy.index import IndexPolicy
from ttamer.policy.joint import JointPolicy
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.graph import START, STOP, Edge, Node
from ttamer.problem.problem import Problem

TABLES = {"precedence": ("sigma",), "walk": ("choices", "phi")}  # of a policy, by kind of moves
SOLVED = ("costs", "losses", "probabilities", "tradeoffs", "values", "sigma", "choices", "phi")


class SolvedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem and how it was solved, beside its arrays."""

    moves: Literal["precedence", "walk"]
    recall: bool
    names: list[str]
    states: list[int]
    sources: list[int]
    targets: list[int]
    cost_axes: list[int]


def describe_solved(policies: Sequence[Policy]) -> tuple[SolvedRecord, Arrays]:
    """Return what a file says of policies of one problem.

    Raises:
        ArgumentError: They are of several problems, or of a kind that cannot be saved.
    """
    first = policies[0]
    for policy in policies:
        if not isinstance(policy, _kind(policy.problem)):
            advice = "; save policy.walk" if isinstance(policy, JointPolicy) else ""
            raise ArgumentError(f"a policy of type {type(policy).__name__} cannot be saved{advice}")
        if policy.recall != first.recall or not _same(policy.problem, first.problem):
            raise ArgumentError(
                "the policies of a ladder must solve the same problem, all with recall or all "
                "without, to be saved as one file"
            )
    described, arrays = _describe_problem(first.problem)
    arrays["tradeoffs"] = np.array([policy.tradeoff for policy in policies])
    arrays["values"] = np.array([policy.value for policy in policies])
    for name in TABLES[first.problem.moves]:
        arrays[name] = np.stack([np.concatenate(getattr(policy, name)) for policy in policies])
    if "choices" in arrays:
        arrays["choices"] = _smallest(arrays["choices"])
    return SolvedRecord(recall=bool(first.recall), **described), {
        f"solved.{name}": np.ascontiguousarray(array) for name, array in arrays.items()
    }


def _describe_problem(problem: Problem) -> tuple[dict[str, Any], Arrays]:
    described = {
        "moves": problem.moves,
        "names": list(problem.names),
        "states": [len(node.losses) for node in problem.nodes],
        "sources": [source for source, _ in problem.ends],
        "targets": [target for _, target in problem.ends],
        "cost_axes": [np.ndim(edge.cost) for edge in problem.edges],
    }
    return described, {
        "losses": np.concatenate([node.losses for node in problem.nodes]),
        "costs": np.concatenate([np.ravel(edge.cost) for edge in problem.edges]).astype(float),
        "probabilities": np.concatenate([edge.probabilities.ravel() for edge in problem.edges]),
    }


def _same(first: Problem, second: Problem) -> bool:
    if first is second:
        return True
    (facts, arrays), (facts2, arrays2) = map(_describe_problem, (first, second))
    return facts == facts2 and all(np.array_equal(arrays[k], arrays2[k]) for k in arrays)


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    """Return choices in the smallest type that holds them."""
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if limits.min <= array.min() and array.max() <= limits.max:
            return array.astype(kind)
    return array


def _kind(problem: Problem) -> type[IndexPolicy | WalkPolicy]:
    return IndexPolicy if problem.moves == "precedence" else WalkPolicy


def restore_solved(record: SolvedRecord, stored: Mapping[str, NDArray[Any]]) -> tuple[Policy, ...]:
    """Check all that a file says of solved policies, and return them."""
    arrays: Arrays = {}
    for name in (*SOLVED[:5], *TABLES[record.moves]):
        require(f"solved.{name}" in stored, f"the list of arrays lacks 'solved.{name}'")
        arrays[name] = array = stored[f"solved.{name}"]
        kind = "i" if name == "choices" else "f"
        fits = array.dtype.kind == kind
        require(fits, f"array {name!r} cannot hold numbers of type {array.dtype.name}")
    require(
        record.moves == "walk" or record.recall,
        "a policy under precedence always has recall, and recall is false",
    )
    with np.errstate(all="ignore"):  # a forged array holds anything; what comes of it is checked
        problem = _problem(record, arrays)
        _check_numbers(problem, arrays)
        _check_tables(problem, arrays, recall=record.recall)
    rows, tables = _rows(problem), {}
    for name in TABLES[record.moves]:
        array = arrays[name].astype(np.int32 if name == "choices" else float)
        array.setflags(write=False)
        tables[name] = [cut(table, rows) for table in array]
    numbers = zip(arrays["tradeoffs"].tolist(), arrays["values"].tolist(), strict=True)
    policies: list[Policy] = []
    for rung, (tradeoff, value) in enumerate(numbers):
        facts: dict[str, Any] = {name: table[rung] for name, table in tables.items()}
        facts |= {"problem": problem, "recall": record.recall}
        policies.append(_kind(problem)(tradeoff=tradeoff, value=value, **facts))
    return tuple(policies)


def _within(numbers: Sequence[int], what: str, *, low: int, high: int) -> None:
    for number in numbers:
        inside = low <= number <= high
        require(inside, f"{what} must hold whole numbers from {low} to {high}, not {number!r}")


def _problem(record: SolvedRecord, arrays: Arrays) -> Problem:
    names, states, sources, targets = record.names, record.states, record.sources, record.targets
    require(1 <= len(names) <= 2**16, "the names must be a list of 1 to 2**16")
    require(len(sources) <= 2**18, f"it has {len(sources)} edges, and at most 2**18 are read")
    last, axes = len(names) - 1, record.cost_axes
    _within(states, "the states", low=1, high=arrays["losses"].size)
    _within(sources, "the sources", low=START, high=last)
    _within(targets, "the targets", low=0, high=last)
    _within(axes, "the axes of the costs", low=0, high=2)
    require(
        len(states) == len(names) and len(sources) == len(targets) == len(axes),
        "there must be as many states as names, and as many targets and axes as sources",
    )
    shapes = [
        (1 if source == START else states[source], states[target])
        for source, target in zip(sources, targets, strict=True)
    ]
    cost_shapes = [shape[:count] for shape, count in zip(shapes, axes, strict=True)]
    sizes = [math.prod(shape) for shape in cost_shapes]
    _check_shape(arrays, "losses", sum(states))
    _check_shape(arrays, "costs", sum(sizes))
    _check_shape(arrays, "probabilities", sum(map(math.prod, shapes)))
    costs = zip(cut(arrays["costs"], sizes), cost_shapes, strict=True)
    chances = zip(cut(arrays["probabilities"], list(map(math.prod, shapes))), shapes, strict=True)
    ends = zip(sources, targets, costs, chances, strict=True)
    try:
        return Problem(
            record.moves,
            tuple(map(Node, names, cut(arrays["losses"], states))),
            tuple(
                Edge(
                    None if source == START else names[source],
                    names[target],
                    cost=cost.reshape(cost_shape),
                    probabilities=part.reshape(shape),
                )
                for source, target, (cost, cost_shape), (part, shape) in ends
            ),
        )
    except ProblemError as error:
        raise ArtefactDamaged(f"its problem cannot be: {error}") from None


def _check_numbers(problem: Problem, arrays: Arrays) -> None:
    tradeoffs, values = arrays["tradeoffs"], arrays["values"]
    _check_shape(arrays, "tradeoffs", tradeoffs.size)
    _check_shape(arrays, "values", tradeoffs.size)
    require(tradeoffs.size, "it holds no policy")
    # A small table takes more memory than room in a file.
    tables = tradeoffs.size * (len(problem.nodes) + 1)
    require(tables <= 2**22, "it has more than 2**22 tables: policies times places")
    inside = ((tradeoffs >= 0) & (tradeoffs <= 1)).all()
    require(inside, "a tradeoff is not from 0 to 1")
    require((np.diff(tradeoffs) > 0).all(), "the tradeoffs of a ladder must increase")
    require(np.isfinite(values).all(), "a value is not finite")


def _check_tables(problem: Problem, arrays: Arrays, *, recall: bool) -> None:
    shape = [arrays["tradeoffs"].size, sum(_rows(problem))]
    if problem.moves == "walk":
        shape.append(len(problem.grid) if recall else 1)
    for name in TABLES[problem.moves]:
        _check_shape(arrays, name, *shape)
        if name == "choices":
            _check_choices(problem, arrays[name])
            continue
        positive = (arrays[name] >= 0).all()  # NaN is not
        require(positive, f"array {name!r} has an entry that is not a number from 0 up")


def _check_choices(problem: Problem, choices: NDArray[Any]) -> None:
    """Check that every choice is a successor of its place, or to stop: so all play ends."""
    last = len(problem.nodes) - 1
    inside = choices.min() >= STOP and choices.max() <= last
    require(inside, f"a choice is neither {STOP} nor the number of a node, 0 to {last}")
    stops = (choices[:, START, -1] == STOP).any()
    require(not stops, "a policy stops at the start, before any node has answered")
    allowed = np.zeros(last + 2, bool)  # by node; the last one stands for -1
    allowed[STOP] = True
    for source, table in enumerate(cut(choices, _rows(problem), axis=1)):
        following = [problem.ends[edge][1] for edge in problem.outgoing[source]]
        allowed[following] = True
        where = repr(problem.names[source]) if source <= last else "the start"
        require(allowed[table].all(), f"a choice after {where} is not one of its successors")
        allowed[following] = False


def _rows(problem: Problem) -> list[int]:
    """One per state of a node, and one for the start; of sigma, one per state of the parent."""
    nodes = range(len(problem.nodes))
    if problem.moves == "precedence":
        return [len(problem.parent_edge(node).probabilities) for node in nodes]
    return [*(len(problem.nodes[node].losses) for node in nodes), 1]


def _check_shape(arrays: Arrays, name: str, *shape: int) -> None:
    actual = arrays[name].shape
    require(actual == shape, f"array {name!r} has shape {actual} and not {shape}")
