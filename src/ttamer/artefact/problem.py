"""Solved policies in a ``.ttamer`` file: their problem and their tables, checked.

A policy is made of a file only after all of this holds, so that one that loads can be played: sizes
agree with the problem, the problem is one, and every choice leads to a node that may be asked next.
What is raised gives the reason alone; :mod:`ttamer.artefact.file` adds the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, ArtefactDamaged, ProblemError
from ttamer.policy.base import Policy
from ttamer.policy.expected import START, STOP
from ttamer.policy.index import IndexPolicy
from ttamer.policy.joint import JointPolicy
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import Edge, Node, Problem

Arrays = dict[str, NDArray[Any]]

MAX_NODES = 2**16
MAX_EDGES = 2**18
# Policies times places: a small table takes more memory than room in a file.
MAX_TABLES = 2**22
TABLES = {"precedence": ("sigma",), "walk": ("choices", "phi")}  # of a policy, by kind of moves


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


def _same(one: Problem, two: Problem) -> bool:
    if one is two:
        return True
    (facts, arrays), (others, other_arrays) = _describe_problem(one), _describe_problem(two)
    return facts == others and all(np.array_equal(arrays[k], other_arrays[k]) for k in arrays)


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
    names = ("costs", "losses", "probabilities", "tradeoffs", "values", *TABLES[record.moves])
    arrays: Arrays = {}
    for name in names:
        if f"solved.{name}" not in stored:
            raise ArtefactDamaged(f"the list of arrays lacks 'solved.{name}'")
        array = stored[f"solved.{name}"]
        if array.dtype.kind != ("i" if name == "choices" else "f"):
            raise ArtefactDamaged(f"array {name!r} cannot hold numbers of type {array.dtype.name}")
        arrays[name] = array
    if record.moves == "precedence" and not record.recall:
        raise ArtefactDamaged("a policy under precedence always has recall, and recall is false")
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


def cut(array: NDArray[Any], sizes: Sequence[int], axis: int = 0) -> tuple[NDArray[Any], ...]:
    """Cut a stacked array into parts of these sizes.

    >>> [part.tolist() for part in cut(np.arange(3), [1, 2])]
    [[0], [1, 2]]
    """
    before = (slice(None),) * axis
    return tuple(array[(*before, slice(*ends))] for ends in pairwise(accumulate(sizes, initial=0)))


def _within(numbers: Sequence[int], what: str, *, least: int, most: int) -> None:
    for number in numbers:
        if not least <= number <= most:
            raise ArtefactDamaged(
                f"{what} must hold whole numbers from {least} to {most}, not {number!r}"
            )


def _problem(record: SolvedRecord, arrays: Mapping[str, NDArray[Any]]) -> Problem:
    names, states, sources, targets = record.names, record.states, record.sources, record.targets
    if not 1 <= len(names) <= MAX_NODES:
        raise ArtefactDamaged(f"the names must be a list of 1 to {MAX_NODES}")
    last = len(names) - 1
    _within(states, "the states", least=1, most=arrays["losses"].size)
    _within(sources, "the sources", least=START, most=last)
    _within(targets, "the targets", least=0, most=last)
    if len(states) != len(names) or len(sources) != len(targets):
        raise ArtefactDamaged("there must be as many states as names, and sources as targets")
    if len(sources) > MAX_EDGES:
        raise ArtefactDamaged(f"it has {len(sources)} edges, and at most {MAX_EDGES} are read")
    shapes = [
        (1 if source == START else states[source], states[target])
        for source, target in zip(sources, targets, strict=True)
    ]
    sizes = [rows * columns for rows, columns in shapes]
    _check_shape(arrays, "losses", sum(states))
    axes = record.cost_axes
    _within(axes, "the axes of the costs", least=0, most=2)
    if len(axes) != len(sources):
        raise ArtefactDamaged("there must be as many axes of the costs as sources")
    cost_shapes = [shape[:count] for shape, count in zip(shapes, axes, strict=True)]
    cost_sizes = [math.prod(shape) for shape in cost_shapes]
    _check_shape(arrays, "costs", sum(cost_sizes))
    costs = [
        part.reshape(shape)
        for part, shape in zip(cut(arrays["costs"], cost_sizes), cost_shapes, strict=True)
    ]
    _check_shape(arrays, "probabilities", sum(sizes))
    parts = cut(arrays["probabilities"], sizes)
    entries = zip(sources, targets, costs, shapes, parts, strict=True)
    try:
        return Problem(
            record.moves,
            tuple(map(Node, names, cut(arrays["losses"], states))),
            tuple(
                Edge(
                    None if source == START else names[source],
                    names[target],
                    cost=cost,
                    probabilities=part.reshape(shape),
                )
                for source, target, cost, shape, part in entries
            ),
        )
    except ProblemError as error:
        raise ArtefactDamaged(f"its problem cannot be: {error}") from None


def _check_numbers(problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> None:
    tradeoffs, values = arrays["tradeoffs"], arrays["values"]
    _check_shape(arrays, "tradeoffs", tradeoffs.size)
    _check_shape(arrays, "values", tradeoffs.size)
    if not tradeoffs.size:
        raise ArtefactDamaged("it holds no policy")
    if tradeoffs.size * (len(problem.nodes) + 1) > MAX_TABLES:
        raise ArtefactDamaged(f"it has more than {MAX_TABLES} tables: policies times places")
    if not ((tradeoffs >= 0) & (tradeoffs <= 1)).all():
        raise ArtefactDamaged("a tradeoff is not from 0 to 1")
    if not (np.diff(tradeoffs) > 0).all():
        raise ArtefactDamaged("the tradeoffs of a ladder must increase")
    if not np.isfinite(values).all():
        raise ArtefactDamaged("a value is not finite")


def _check_tables(problem: Problem, arrays: Mapping[str, NDArray[Any]], *, recall: bool) -> None:
    shape = [arrays["tradeoffs"].size, sum(_rows(problem))]
    if problem.moves == "walk":
        shape.append(len(problem.grid) if recall else 1)
    for name in TABLES[problem.moves]:
        _check_shape(arrays, name, *shape)
        if name == "choices":
            _check_choices(problem, arrays[name])
        elif not (arrays[name] >= 0).all():  # also NaN
            raise ArtefactDamaged(f"array {name!r} has an entry that is not a number from 0 up")


def _check_choices(problem: Problem, choices: NDArray[Any]) -> None:
    """Check that every choice is a successor of its place, or to stop: so all play ends."""
    last = len(problem.nodes) - 1
    if choices.min() < STOP or choices.max() > last:
        raise ArtefactDamaged(f"a choice is neither {STOP} nor the number of a node, 0 to {last}")
    if (choices[:, START, -1] == STOP).any():
        raise ArtefactDamaged("a policy stops at the start, before any node has answered")
    allowed = np.zeros(last + 2, bool)  # by node; the last one stands for -1
    allowed[STOP] = True
    for place, table in enumerate(cut(choices, _rows(problem), axis=1)):
        following = [problem.ends[edge][1] for edge in problem.outgoing[place]]
        allowed[following] = True
        if not allowed[table].all():
            where = repr(problem.names[place]) if place <= last else "the start"
            raise ArtefactDamaged(f"a choice after {where} is not one of its successors")
        allowed[following] = False


def _rows(problem: Problem) -> list[int]:
    """One per state of a node, and one for the start; of sigma, one per state of the parent."""
    nodes = range(len(problem.nodes))
    if problem.moves == "precedence":
        return [len(problem.parent_edge(node).probabilities) for node in nodes]
    return [*(len(problem.nodes[node].losses) for node in nodes), 1]


def _check_shape(arrays: Mapping[str, NDArray[Any]], name: str, *shape: int) -> None:
    if arrays[name].shape != shape:
        raise ArtefactDamaged(f"array {name!r} has shape {arrays[name].shape} and not {shape}")
