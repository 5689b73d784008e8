"""What the header and the arrays of a ``.ttamer`` file must say (docs/format.md).

A policy is made of a file only after all of this holds, so that one that loads can be played:
sizes agree with the problem, the problem is one, and every choice leads to a node that may be
asked next. What is raised gives the reason alone; :mod:`ttamer.artefact.files` adds the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.container import fields_of, integers_of, text_of
from ttamer.errors import ArtefactDamaged, ProblemError
from ttamer.policy.expected_walk import START, STOP
from ttamer.problem.problem import Edge, Node, Problem

MAX_NODES = 2**16
MAX_EDGES = 2**18
# Policies times places. A small table takes more memory than room in a file: hence a limit.
MAX_TABLES = 2**22
NUMBERS = ("costs", "losses", "probabilities", "tradeoffs", "values")
# What a fit adds, by its field of the header; fits.py and beliefs.py check it.
MORE_ARRAYS = {
    "fit": ("fit_costs", "fit_edges"),
    "belief": (
        "belief_costs",
        "belief_edges",
        "belief_bounds",
        "belief_levels",
        "belief_classes",
        "belief_leans",
        "belief_weights",
    ),
}
# What a fit may add, where it has losses or nodes passed at a cost; and the record.
OPTIONAL_ARRAYS = {
    "fit": ("fit_full_cost", "fit_loss_scale", "fit_mistakes", "fit_max_loss", "fit_passing"),
    "belief": (
        "belief_full_cost",
        "belief_loss_scale",
        "belief_mistakes",
        "belief_max_loss",
        "belief_by_class",
        "belief_shifts",
        "belief_passing",
        "belief_signal_bounds",
        "belief_signal_leans",
        "belief_signal_doubts",
        "belief_signal_shifts",
        "belief_extra_levels",
        "belief_extra_bounds",
        "belief_extra_leans",
    ),
    "record": (
        "record_rungs",
        "record_nodes",
        "record_latencies",
        "record_node_costs",
        "record_held",
        "record_held_nodes",
        "record_cautious",
        "record_cautious_cuts",
        "record_held_cautious",
        "record_held_bound",
        "record_held_losses",
        "record_held_node_losses",
        "record_promises",
    ),
    "mixture": ("mixture_share",),
}
# The tables of a policy, by the kind of moves.
TABLES = {"precedence": ("sigma",), "walk": ("choices", "phi")}


@dataclass(frozen=True, eq=False)
class Saved:
    """What a file holds, all of it checked."""

    kind: str
    problem: Problem
    recall: bool
    library: str
    notes: dict[str, str]
    arrays: Mapping[str, NDArray[Any]]

    @property
    def rows(self) -> list[int]:
        """How many rows of the stacked tables belong to each node."""
        return _rows(self.problem)


def check(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Saved:
    """Check all that a header and its arrays say, or say what cannot be."""
    fits = tuple(name for name in MORE_ARRAYS if name in header)
    if len(fits) > 1:
        raise ArtefactDamaged("the header has two fits")
    if fits and "record" in header:
        fits = (*fits, "record")
    if fits and header.get("kind") == "mixture":
        fits = (*fits, "mixture")
    fields_of(header, "the header", ("kind", "problem", "provenance", "recall", *fits))
    kind, recall = header["kind"], header["recall"]
    if kind not in ("policy", "ladder", "mixture") or (kind == "mixture" and not fits):
        raise ArtefactDamaged(
            f"the kind must be 'policy', 'ladder' or, with a fit, 'mixture', not {kind!r}"
        )
    if not isinstance(recall, bool):
        raise ArtefactDamaged(f"recall must be true or false, not {recall!r}")
    provenance = fields_of(header["provenance"], "the provenance", ("library", "notes"))
    library, notes = text_of(provenance["library"], "the library version"), provenance["notes"]
    if not isinstance(notes, dict):
        raise ArtefactDamaged("the notes must be an object")
    for key, note in notes.items():
        text_of(key, "the key of a note")
        text_of(note, f"the note {key!r}")
    keys: tuple[str, ...] = ("moves", "names", "states", "sources", "targets")
    if isinstance(header["problem"], dict) and "cost_axes" in header["problem"]:
        keys = (*keys, "cost_axes")
    described = fields_of(header["problem"], "the problem", keys)
    moves = described["moves"]
    if not isinstance(moves, str) or moves not in TABLES:
        raise ArtefactDamaged(f"the moves must be 'precedence' or 'walk', not {moves!r}")
    if moves == "precedence" and not recall:
        raise ArtefactDamaged("a policy under precedence always has recall, and recall is false")
    more = tuple(array for name in fits for array in MORE_ARRAYS.get(name, ()))
    more += tuple(a for name in fits for a in OPTIONAL_ARRAYS.get(name, ()) if a in arrays)
    fields_of(arrays, "the list of arrays", (*NUMBERS, *TABLES[moves], *more))
    for name, array in arrays.items():
        if (array.dtype.kind == "i") != (name == "choices"):
            raise ArtefactDamaged(f"array {name!r} cannot hold numbers of type {array.dtype.name}")
    with np.errstate(all="ignore"):  # a forged array holds anything; what comes of it is checked
        problem = _problem(described, arrays)
        _check_numbers(problem, arrays, kind)
        _check_tables(problem, arrays, recall=recall)
    return Saved(kind, problem, recall, library, notes, arrays)


def cut(array: NDArray[Any], sizes: Sequence[int], axis: int = 0) -> tuple[NDArray[Any], ...]:
    """Cut a stacked array into parts of these sizes.

    >>> [part.tolist() for part in cut(np.arange(3), [1, 2])]
    [[0], [1, 2]]
    """
    before = (slice(None),) * axis
    return tuple(array[(*before, slice(*ends))] for ends in pairwise(accumulate(sizes, initial=0)))


def _problem(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Problem:
    names, states = described["names"], described["states"]
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_NODES:
        raise ArtefactDamaged(f"the names must be a list of 1 to {MAX_NODES}")
    for name in names:
        text_of(name, "the name of a node")
    last = len(names) - 1
    integers_of(states, "the states", least=1, most=arrays["losses"].size)
    sources = integers_of(described["sources"], "the sources", least=START, most=last)
    targets = integers_of(described["targets"], "the targets", least=0, most=last)
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
    axes = described.get("cost_axes", [0] * len(sources))
    integers_of(axes, "the axes of the costs", least=0, most=2)
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
            described["moves"],
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


def _check_numbers(problem: Problem, arrays: Mapping[str, NDArray[Any]], kind: str) -> None:
    tradeoffs, values = arrays["tradeoffs"], arrays["values"]
    _check_shape(arrays, "tradeoffs", tradeoffs.size)
    _check_shape(arrays, "values", tradeoffs.size)
    if kind == "policy" and tradeoffs.size != 1:
        raise ArtefactDamaged(f"it holds {tradeoffs.size} tradeoffs, and a policy has one")
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
