"""Solved policies in a ``.ttamer`` file: their problem and their tables, checked.

A policy is made of a file only after all of this holds, so that one that loads can be played: sizes
agree with the problem, the problem is one, and every choice leads to a node that may be asked next.
What is raised gives the reason alone; :mod:`ttamer.artefact.file` adds the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ttamer.artefact.arrays import Arrays, Stored, cut, require
from ttamer.errors import ArgumentError, ArtefactDamaged, ProblemError
from ttamer.policy.base import Policy
from ttamer.policy.index import IndexPolicy
from ttamer.policy.joint import JointPolicy
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import START, STOP, Edge, Node, Problem


class SolvedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem and how it was solved, beside its arrays."""

    moves: Literal["precedence", "walk"]
    recall: bool
    names: Annotated[list[str], Meta(min_length=1, max_length=2**16)]
    states: list[Annotated[int, Meta(ge=1, le=2**31)]]
    sources: Annotated[list[Annotated[int, Meta(ge=START)]], Meta(max_length=2**18)]
    targets: list[Annotated[int, Meta(ge=0)]]
    cost_axes: list[Annotated[int, Meta(ge=0, le=2)]]


def describe_solved(policies: Sequence[Policy]) -> tuple[SolvedRecord, Arrays]:
    """Return what a file says of policies of one problem.

    Raises:
        ArgumentError: They are of several problems, or of a kind that cannot be saved.
    """
    first = policies[0]
    record, arrays = _describe_problem(first)
    for policy in policies:
        if not isinstance(policy, _kind(policy.problem)):
            advice = "; save policy.walk" if isinstance(policy, JointPolicy) else ""
            raise ArgumentError(f"a policy of type {type(policy).__name__} cannot be saved{advice}")
        if policy.problem is first.problem and policy.recall == first.recall:
            continue
        again, copies = _describe_problem(policy)
        if again != record or not all(np.array_equal(copies[k], arrays[k]) for k in arrays):
            raise ArgumentError(
                "the policies of a ladder must solve the same problem, all with recall or all "
                "without, to be saved as one file"
            )
    arrays["tradeoffs"] = np.array([policy.tradeoff for policy in policies])
    arrays["values"] = np.array([policy.value for policy in policies])
    for name in _tables_of(first.problem.moves):
        arrays[name] = np.stack([np.concatenate(getattr(policy, name)) for policy in policies])
    if "choices" in arrays:  # numbers of nodes, or STOP
        kinds = (np.int8, np.int16, np.int32)
        fitting = (kind for kind in kinds if arrays["choices"].max() <= np.iinfo(kind).max)
        arrays["choices"] = arrays["choices"].astype(next(fitting))
    return record, {f"solved.{name}": np.ascontiguousarray(a) for name, a in arrays.items()}


def _describe_problem(policy: Policy) -> tuple[SolvedRecord, Arrays]:
    problem = policy.problem
    record = SolvedRecord(
        moves=problem.moves,
        recall=bool(policy.recall),
        names=list(problem.names),
        states=[len(node.losses) for node in problem.nodes],
        sources=[source for source, _ in problem.ends],
        targets=[target for _, target in problem.ends],
        cost_axes=[np.ndim(edge.cost) for edge in problem.edges],
    )
    return record, {
        "losses": np.concatenate([node.losses for node in problem.nodes]),
        "costs": np.concatenate([np.ravel(edge.cost) for edge in problem.edges]).astype(float),
        "probabilities": np.concatenate([edge.probabilities.ravel() for edge in problem.edges]),
    }


def _kind(problem: Problem) -> type[IndexPolicy | WalkPolicy]:
    return IndexPolicy if problem.moves == "precedence" else WalkPolicy


def _tables_of(moves: str) -> tuple[str, ...]:
    return ("sigma",) if moves == "precedence" else ("choices", "phi")


def restore_solved(record: SolvedRecord, stored: Stored) -> tuple[Policy, ...]:
    """Check all that a file says of solved policies, and return them."""
    always = record.moves == "walk" or record.recall
    require(always, "a policy under precedence always has recall, and recall is false")
    with np.errstate(all="ignore"):  # a forged array holds anything; what comes of it is checked
        problem = _problem(record, stored)
        numbers = stored.read("solved", "tradeoffs", "values")
        tradeoffs, values = numbers["tradeoffs"], numbers["values"]
        require(tradeoffs.size, "it holds no policy")
        require((np.diff(tradeoffs) > 0).all(), "the tradeoffs of a ladder must increase")
        # A small table takes more memory than room in a file.
        # A forged count of policies must not fill the memory.
        few = tradeoffs.size * (len(problem.nodes) + 1) <= 2**22
        require(few, "it has more than 2**22 tables: policies times places")
        if problem.moves == "precedence":
            edges = map(problem.parent_edge, range(len(problem.nodes)))
            rows = [len(edge.probabilities) for edge in edges]
        else:
            rows = [*record.states, 1]
        stored.sizes |= {
            "table_rows": sum(rows),
            "levels": len(problem.grid) if record.recall else 1,
            "solved nodes": len(problem.nodes),
        }
        tables = stored.read("solved", *_tables_of(record.moves))
    if "choices" in tables:
        _check_choices(problem, tables["choices"], rows)
        tables["choices"] = tables["choices"].astype(np.int32)
    for table in tables.values():
        table.setflags(write=False)
    parts = {name: [cut(part, rows) for part in table] for name, table in tables.items()}
    policies: list[Policy] = []
    for number, (tradeoff, value) in enumerate(
        zip(tradeoffs.tolist(), values.tolist(), strict=True)
    ):
        facts: dict[str, Any] = {name: part[number] for name, part in parts.items()}
        facts |= {"problem": problem, "recall": record.recall}
        policies.append(_kind(problem)(tradeoff=tradeoff, value=value, **facts))
    return tuple(policies)


def _problem(record: SolvedRecord, stored: Stored) -> Problem:
    names, states, sources, targets = record.names, record.states, record.sources, record.targets
    last, axes = len(names) - 1, record.cost_axes
    alike = len(states) == len(names) and len(sources) == len(targets) == len(axes)
    require(alike, "it needs as many states as names, and as many targets and axes as sources")
    require(max([*sources, *targets], default=0) <= last, "an edge leads to a node that it lacks")
    shapes = [
        (1 if source == START else states[source], states[target])
        for source, target in zip(sources, targets, strict=True)
    ]
    cost_shapes = [shape[:count] for shape, count in zip(shapes, axes, strict=True)]
    sizes, cost_sizes = list(map(prod, shapes)), list(map(prod, cost_shapes))
    stored.sizes |= {"losses": sum(states), "costs": sum(cost_sizes), "probabilities": sum(sizes)}
    arrays = stored.read("solved", "losses", "costs", "probabilities")
    costs, chances = cut(arrays["costs"], cost_sizes), cut(arrays["probabilities"], sizes)
    try:
        edges = [
            Edge(
                None if source == START else names[source],
                names[target],
                cost=costs[number].reshape(cost_shapes[number]),
                probabilities=chances[number].reshape(shapes[number]),
            )
            for number, (source, target) in enumerate(zip(sources, targets, strict=True))
        ]
        nodes = tuple(map(Node, names, cut(arrays["losses"], states)))
        return Problem(record.moves, nodes, tuple(edges))
    except ProblemError as error:
        raise ArtefactDamaged(f"its problem cannot be: {error}") from None


def _check_choices(problem: Problem, choices: NDArray[Any], rows: Sequence[int]) -> None:
    """Check that every choice is a successor of its place, or to stop: so all play ends."""
    stops = (choices[:, START, -1] == STOP).any()
    require(not stops, "a policy stops at the start, before any node has answered")
    last = len(problem.nodes) - 1
    allowed = np.zeros(last + 2, bool)  # by node; the last one stands for -1
    allowed[STOP] = True
    for source, table in enumerate(cut(choices, rows, axis=1)):
        following = [problem.ends[edge][1] for edge in problem.outgoing[source]]
        allowed[following] = True
        where = repr(problem.names[source]) if source <= last else "the start"
        require(allowed[table].all(), f"a choice after {where} is not one of its successors")
        allowed[following] = False
