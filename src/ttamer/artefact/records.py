"""Policies in a ``.ttamer`` file: a record and declared arrays, and back.

A policy is made of a file only after every check holds, so that one that loads can be played: sizes
agree, the problem is one, and every choice leads to a node that may be asked next. What is raised
gives the reason alone; :mod:`ttamer.artefact.file` adds the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ttamer import __version__
from ttamer.artefact.arrays import Arrays, Declared, Stored, cut, put, require
from ttamer.cascade import CascadeSpec, from_tables, to_tables
from ttamer.errors import ArgumentError, ArtefactDamaged, CascadeError, ProblemError
from ttamer.fitting.belief import HEAD, PEER, Belief, PairTable, Step
from ttamer.fitting.fitted import FitRecord, Fitted, first_parents
from ttamer.fitting.inputs import FeatureSpec, InputFeature, Prior
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture
from ttamer.fitting.markov import StateTables
from ttamer.fitting.points import OperatingPoints
from ttamer.fitting.policy import StepTables
from ttamer.fitting.promises import Held, Promise
from ttamer.fitting.session import SingleNode
from ttamer.policy.base import Ladder, Policy
from ttamer.policy.index import IndexPolicy
from ttamer.policy.joint import JointPolicy
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import START, STOP, Edge, Node, Problem
from ttamer.trace.trace import Measure

Kind = Literal["policy", "ladder", "mixture"]
Deciding = FittedPolicy | FittedLadder | Mixture  # by confidences: what a cascade can be run with
Savable = Policy | Ladder | Deciding

FORMAT = 1

# Numbers of a record; JSON has no NaN and nothing infinite.
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SolvedRecord(_Struct, frozen=True):
    """A problem and how it was solved."""

    moves: Literal["precedence", "walk"]
    recall: bool
    names: Annotated[list[str], Meta(min_length=1, max_length=2**16)]
    states: list[Annotated[int, Meta(ge=1, le=2**31)]]
    sources: Annotated[list[Annotated[int, Meta(ge=START)]], Meta(max_length=2**18)]
    targets: list[Natural]
    cost_axes: list[Annotated[int, Meta(ge=0, le=2)]]


class StepRecord(_Struct, frozen=True):
    """Policies on answers."""

    kind: Literal["models", "exits"]
    classes: list[str]
    memory: Count
    agree: bool = True
    reads: Literal["confidence", "margin"] = "confidence"
    features: Annotated[list[InputFeature], Meta(max_length=2**10)] | None = None
    neighbours: Natural = 0
    coarse: Natural = 0


class StateRecord(_Struct, frozen=True):
    """The paper's policies."""

    columns: list[int]
    solved: SolvedRecord


class HeldRecord(_Struct, frozen=True):
    """Rows held out."""

    trace_digest: str
    cap: Annotated[float, Meta(ge=1)]


class ChosenRecord(_Struct, frozen=True):
    """One policy of a ladder, or a node by itself."""

    number: Natural
    error: Amount | None
    cost: Amount | None
    absent: Annotated[list[int], Meta(max_length=0)] = []  # files that were written early have it
    before: list[Natural] | None = None
    backups: list[Natural] | None = None


# What a fit and its record call alike.
OF_FIT = ("record", "full_cost", "unit", "measure", "thresholds", "compare")


class FittedRecord(_Struct, frozen=True):
    """A fit: one of ``steps`` and ``states``."""

    cascade: dict[str, Any]
    record: FitRecord
    full_cost: Positive
    unit: Positive
    measure: Measure
    thresholds: bool
    compare: dict[str, str]
    steps: StepRecord | None = None
    states: StateRecord | None = None
    rows: Natural = 0  # that the estimates of a ladder rest on
    held: HeldRecord | None = None
    promises: Annotated[list[Promise], Meta(max_length=16)] = []
    chosen: list[ChosenRecord] = []  # the policy, or the two of a mixture; none of a ladder
    share: Share = 1.0
    seed: int = 0


class Record(_Struct, frozen=True):
    """What a file says beside its arrays: one of ``solved`` and ``fitted``."""

    kind: Kind
    format: int = FORMAT
    library: str = __version__
    notes: dict[str, str] = {}
    solved: SolvedRecord | None = None
    fitted: FittedRecord | None = None
    sha256: str = ""


def describe(policy: Savable, notes: dict[str, str]) -> tuple[Record, Arrays]:
    """Return the record and the arrays of a policy.

    Raises:
        ArgumentError: It cannot be saved.
    """
    kind: Kind = "policy"
    if isinstance(policy, Ladder | FittedLadder | Mixture):
        kind = "mixture" if isinstance(policy, Mixture) else "ladder"
    arrays: Arrays = {}
    if isinstance(policy, Deciding):
        return Record(kind=kind, notes=notes, fitted=describe_fitted(policy, arrays)), arrays
    if not isinstance(policy, Policy | Ladder):
        raise ArgumentError(
            f"a policy, a ladder or a mixture can be saved, not a {type(policy).__name__}"
        )
    policies = policy.policies if isinstance(policy, Ladder) else [policy]
    return Record(kind=kind, notes=notes, solved=describe_solved(policies, arrays)), arrays


def restore(record: Record, arrays: Arrays) -> Savable:
    """Check all that a file says, and return its policy."""
    either = record.format == FORMAT and (record.solved is None) != (record.fitted is None)
    require(either, "a file holds either solved policies or fitted ones")
    stored = Stored(arrays)
    restored: Savable
    with np.errstate(all="ignore"):  # a forged array holds anything; what comes of it is checked
        if record.fitted is not None:
            restored = restore_fitted(record.kind, record.fitted, stored)
        elif record.solved is not None:
            restored = Ladder(restore_solved(record.solved, stored))
    stored.done()
    if isinstance(restored, Ladder) and record.kind != "ladder":
        fits = record.kind == "policy" and len(restored) == 1
        require(fits, f"a policy is one, and the file holds {len(restored)} as a {record.kind}")
        return restored[0]
    return restored


def facts_of(policy: Savable) -> dict[str, Any]:
    """Return a description of what was saved, as plain values."""
    if isinstance(policy, Policy | Ladder):
        policies = policy.policies if isinstance(policy, Ladder) else (policy,)
        problem = policies[0].problem
        return {
            "moves": problem.moves,
            "recall": policies[0].recall,
            "nodes": list(problem.names),
            "states": [len(node.losses) for node in problem.nodes],
            "edges": len(problem.edges),
            "tradeoffs": [policy.tradeoff for policy in policies],
            "values": [policy.value for policy in policies],
        }
    fitted = policy.fitted
    how = msgspec.to_builtins(fitted.record) | {"full_cost": fitted.full_cost, **fitted.compare}
    facts = {"nodes": list(fitted.spec.names), "tradeoffs": fitted.tradeoffs.tolist(), "fit": how}
    if isinstance(policy, FittedLadder):
        points, held = policy.points, policy.held
        errors, costs = (fitted.unit * points.error).tolist(), points.cost.tolist()
        facts["points"] = {"errors": errors, "costs": costs}
        facts["held_out"] = held and {"rows": held.rows, "trace": held.trace_digest}
        facts["promises"] = [str(promise) for promise in policy.promises]
    if isinstance(policy, Mixture):
        facts["mixture"] = {**policy.mix._asdict(), "seed": policy.seed}
        facts["promises"] = [] if policy.promise is None else [str(policy.promise)]
    return facts


# Solved policies.


def describe_solved(policies: Sequence[Policy], arrays: Arrays) -> SolvedRecord:
    """Return what a file says of policies of one problem, and add their arrays.

    Raises:
        ArgumentError: They are of several problems, or of a kind that cannot be saved.
    """
    first, problem = policies[0], policies[0].problem
    for policy in policies:
        if not isinstance(policy, _kind(policy.problem)):
            advice = "; save policy.walk" if isinstance(policy, JointPolicy) else ""
            raise ArgumentError(f"a policy of type {type(policy).__name__} cannot be saved{advice}")
        if policy.problem is not problem or policy.recall != first.recall:
            raise ArgumentError(
                "the policies of a ladder must solve the same problem, all with recall or all "
                "without, to be saved as one file: solve it with solve_ladder"
            )
    tables: dict[str, Any] = dict.fromkeys(("sigma", "choices", "phi"))
    for name in _tables_of(problem.moves):
        tables[name] = np.stack([np.concatenate(getattr(policy, name)) for policy in policies])
    parts = {
        "losses": np.concatenate([node.losses for node in problem.nodes]),
        "costs": np.concatenate([np.ravel(edge.cost) for edge in problem.edges]),
        "probabilities": np.concatenate([edge.probabilities.ravel() for edge in problem.edges]),
        "tradeoffs": [policy.tradeoff for policy in policies],
        "values": [policy.value for policy in policies],
    }
    put(arrays, "solved", parts | tables)
    return SolvedRecord(
        moves=problem.moves,
        recall=bool(first.recall),
        names=list(problem.names),
        states=[len(node.losses) for node in problem.nodes],
        sources=[source for source, _ in problem.ends],
        targets=[target for _, target in problem.ends],
        cost_axes=[np.ndim(edge.cost) for edge in problem.edges],
    )


def _kind(problem: Problem) -> type[IndexPolicy | WalkPolicy]:
    return IndexPolicy if problem.moves == "precedence" else WalkPolicy


def _tables_of(moves: str) -> tuple[str, ...]:
    return ("sigma",) if moves == "precedence" else ("choices", "phi")


def restore_solved(record: SolvedRecord, stored: Stored) -> tuple[Policy, ...]:
    """Check all that a file says of solved policies, and return them."""
    always = record.moves == "walk" or record.recall
    require(always, "a policy under precedence always has recall, and recall is false")
    problem = _problem(record, stored)
    tradeoffs, values = stored.read("solved", "tradeoffs", "values").values()
    require(tradeoffs.size, "it holds no policy")
    # Small tables take more memory than room in a file: a forged count must not fill it.
    few = tradeoffs.size * (len(problem.nodes) + 1) <= 2**22
    require(few, "it has more than 2**22 tables: policies times places")
    rows = [*record.states, 1]
    if problem.moves == "precedence":
        edges = map(problem.parent_edge, range(len(problem.nodes)))
        rows = [len(edge.probabilities) for edge in edges]
    stored.sizes |= {
        "table_rows": sum(rows),
        "levels": len(problem.grid) if record.recall else 1,
        "solved nodes": len(problem.nodes),
    }
    tables = stored.read("solved", *_tables_of(record.moves))
    if "choices" in tables:  # tables of numbers cannot leave the problem: their shapes are checked
        _check_choices(problem, tables["choices"], rows)
        tables["choices"] = tables["choices"].astype(np.int32)
    for table in tables.values():
        table.setflags(write=False)  # policies of a ladder share one array
    parts: dict[str, Any] = {n: [cut(part, rows) for part in t] for n, t in tables.items()}
    return tuple(
        _kind(problem)(
            problem=problem,
            tradeoff=float(tradeoffs[number]),
            value=float(values[number]),
            recall=record.recall,
            **{name: part[number] for name, part in parts.items()},
        )
        for number in range(len(tradeoffs))
    )


def _problem(record: SolvedRecord, stored: Stored) -> Problem:
    names, states, sources, targets = record.names, record.states, record.sources, record.targets
    axes = record.cost_axes
    fits = len(states) == len(names) and len(sources) == len(targets) == len(axes)
    fits = fits and max([*sources, *targets], default=0) < len(names)
    require(fits, "its nodes and edges do not agree: states, sources, targets or axes")
    shapes = [
        (1 if source == START else states[source], states[target])
        for source, target in zip(sources, targets, strict=True)
    ]
    cost_shapes = [shape[:count] for shape, count in zip(shapes, axes, strict=True)]
    sizes, cost_sizes = list(map(prod, shapes)), list(map(prod, cost_shapes))
    stored.sizes |= {"losses": sum(states), "costs": sum(cost_sizes), "probabilities": sum(sizes)}
    losses, costs, chances = stored.read("solved", "losses", "costs", "probabilities").values()
    costs_by_edge = map(np.reshape, cut(costs, cost_sizes), cost_shapes)
    chances_by_edge = map(np.reshape, cut(chances, sizes), shapes)
    ends = zip(sources, targets, costs_by_edge, chances_by_edge, strict=True)
    try:
        edges = tuple(
            Edge(None if u == START else names[u], names[v], cost=c, probabilities=p)
            for u, v, c, p in ends
        )
        return Problem(record.moves, tuple(map(Node, names, cut(losses, states))), edges)
    except ProblemError as error:
        raise ArtefactDamaged(f"its problem cannot be: {error}") from None


def _check_choices(problem: Problem, choices: NDArray[Any], rows: Sequence[int]) -> None:
    """Check that every choice is a successor of its place, or to stop: so all play ends."""
    stops = (choices[:, START, -1] == STOP).any()
    require(not stops, "a policy stops at the start, before any node has answered")
    for source, table in enumerate(cut(choices, rows, axis=1)):
        following = [problem.ends[edge][1] for edge in problem.outgoing[source]]
        where = repr(problem.names[source]) if source < len(problem.nodes) else "the start"
        allowed = np.isin(table, [STOP, *following]).all()
        require(allowed, f"a choice after {where} is not one of its successors")


# Fitted policies.


def describe_fitted(policy: Deciding, arrays: Arrays) -> FittedRecord:
    """Return the record of what was fitted, and add its arrays."""
    fitted, facts = policy.fitted, dict[str, Any]()
    arrays["tradeoffs"] = fitted.tradeoffs
    if isinstance(fitted.tables, StepTables):
        facts["steps"] = _describe_steps(fitted.tables, arrays)
    else:
        put(arrays, "states", vars(fitted.tables))
        solved = describe_solved(fitted.tables.ladder.policies, arrays)
        facts["states"] = StateRecord(columns=list(map(int, fitted.tables.columns)), solved=solved)
    if isinstance(policy, FittedLadder):
        put(arrays, "points", vars(policy.points))
        facts |= {"rows": policy.points.rows, "promises": list(policy.promises)}
        if (held := policy.held) is not None:
            put(arrays, "held", vars(held))
            facts["held"] = HeldRecord(trace_digest=held.trace_digest, cap=held.cap)
    elif isinstance(policy, Mixture):
        facts["chosen"] = [_describe_chosen(policy.cheap), _describe_chosen(policy.expensive)]
        facts |= {"share": float(policy.share), "seed": int(policy.seed)}
        facts["promises"] = [] if policy.promise is None else [policy.promise]
    else:
        facts["chosen"] = [_describe_chosen(policy)]
    facts |= {name: getattr(fitted, name) for name in OF_FIT}
    facts["full_cost"], facts["unit"] = float(fitted.full_cost), float(fitted.unit)
    return FittedRecord(cascade=to_tables(_bare(fitted.spec)), **facts)


def _bare(spec: CascadeSpec) -> CascadeSpec:
    """Return a cascade without what serves it: addresses, prices by token, settings."""
    nodes = tuple(dataclasses.replace(node, options={}) for node in spec.nodes)
    return dataclasses.replace(spec, nodes=nodes, serve={})


def _describe_chosen(policy: FittedPolicy) -> ChosenRecord:
    rule, nodes = policy.rule, dict[str, Any]()
    if isinstance(rule, SingleNode):
        nodes = {"before": list(rule.before), "backups": list(rule.backups)}
    return ChosenRecord(number=policy.number, error=policy.error, cost=policy.cost, **nodes)


def _describe_steps(tables: StepTables, arrays: Arrays) -> StepRecord:
    belief, prior = tables.belief, tables.prior
    put(arrays, "tables", vars(tables) | {"steps": _padded(tables.steps)})
    pairs, keys = sorted(belief.pairs), sorted(belief.weights)
    parts = {
        "pairs": np.array(pairs).reshape(-1, 2),
        "pair_keys": [belief.pairs[pair].keys for pair in pairs],
        "pair_values": [belief.pairs[pair].values for pair in pairs],
        "weight_sets": _padded([step for step, _ in keys]),
        "weight_answers": [answer for _, answer in keys],
        "weights": [belief.weights[key] for key in keys],
    }
    shifts: dict[str, Any] = {"shift_sets": None, "shifts": None}
    if belief.shifts:
        shifts = {"shift_sets": _padded([*belief.shifts]), "shifts": [*belief.shifts.values()]}
    put(arrays, "belief", vars(belief) | parts | shifts)
    facts: dict[str, Any] = {}
    if prior is not None:
        put(arrays, "prior", vars(prior))
        facts["features"] = [] if prior.spec is None else list(prior.spec.features)
        facts |= {"neighbours": int(prior.count), "coarse": int(prior.coarse)}
    return StepRecord(
        kind="exits" if tables.kind == "exits" else "models",
        classes=list(belief.classes),
        memory=belief.memory,
        agree=belief.agree,
        reads=belief.reads,
        **facts,
    )


def _padded(steps: Iterable[Step]) -> NDArray[np.int32]:
    """Return sets as rows, filled up with -1."""
    steps = list(steps)
    width = max([1, *map(len, steps)])
    rows = [[*step, *[-1] * (width - len(step))] for step in steps]
    return np.array(rows, np.int32).reshape(-1, width)


def restore_fitted(kind: Kind, record: FittedRecord, stored: Stored) -> Deciding:
    """Check all that a file says of a fit, and return it."""
    try:
        spec = from_tables(record.cascade)
    except CascadeError as error:
        raise ArtefactDamaged(f"its cascade cannot be: {error}") from None
    # A stranger's file must not bring addresses or settings of a server along.
    bare = spec == _bare(spec) and to_tables(spec) == record.cascade
    require(bare, "its cascade holds more than nodes and costs")
    stored.sizes["nodes"], steps, states = len(spec), record.steps, record.states
    either = (steps is None) != (states is None)
    require(either, "a fit has policies on answers or policies on states")
    fitted = Fitted(
        spec=spec,
        tables=_steps(steps, spec, stored) if steps else _states(states, spec, stored),
        tradeoffs=stored.take("tradeoffs", Declared("prices", 0, 1, rises=">")),
        **{name: getattr(record, name) for name in OF_FIT},
    )
    _check_promises(record, len(fitted.tradeoffs), spec)
    policies, promises = [_chosen(chosen, fitted) for chosen in record.chosen], record.promises
    if kind == "ladder":
        require(not policies, "a ladder has no policy that is chosen")
        return _ladder(record, fitted, stored)
    count = 2 if kind == "mixture" else 1
    fits = len(policies) == count > len(promises) and record.held is None
    require(fits, "a policy is one, without a promise; a mixture two, with at most one")
    if kind == "policy":
        return policies[0]
    return Mixture(policies[0], policies[1], record.share, record.seed, *promises)


def _chosen(chosen: ChosenRecord, fitted: Fitted) -> FittedPolicy:
    nodes, count = len(fitted.spec), len(fitted.tradeoffs)
    estimates = (chosen.number, chosen.error, chosen.cost)
    require(chosen.number < count + nodes, "the file chooses a policy that it has not")
    is_node = chosen.number >= count
    fits = is_node == (chosen.before is not None) == (chosen.backups is not None)
    require(fits, "a node by itself says which nodes it needs and which stand in for it")
    if not is_node:
        return FittedPolicy(fitted, fitted.rule(chosen.number), *estimates)
    node, before, backups = chosen.number - count, chosen.before or [], chosen.backups or []
    listed = [node, *before, *backups]
    fits = len({*listed}) == len(listed) and {*listed} <= {*range(nodes)}
    require(fits, "a node by itself, those before it and its backups are nodes, each once")
    single = fitted.single_node(node, tuple(before), tuple(backups))
    return FittedPolicy(fitted, single, *estimates)


def _sets(rows: NDArray[Any], name: str) -> tuple[Step, ...]:
    steps = tuple(tuple(v for v in row if v >= 0) for row in rows.tolist())
    for step, row in zip(steps, rows.tolist(), strict=True):
        rises = list(step) == row[: len(step)] and all(a < b for a, b in pairwise(step))
        require(rises, f"array {name!r} has a row that is no set of nodes")
    return steps


def _steps(record: StepRecord, spec: CascadeSpec, stored: Stored) -> StepTables:
    belief, prior = _belief(record, stored, len(spec)), _prior(record, stored, len(spec))
    reads = (prior is None) == (belief.head is None)
    require(reads, "a belief that reads inputs has a prior, and only such a belief")
    values = stored.read("tables")
    steps, source = _sets(values.pop("steps"), "tables.steps"), values["source"]
    distinct = steps and not steps[0] and len(set(steps)) == len(steps)
    require(distinct, "the sets of a policy are distinct, and the first is empty")
    fits = len(values["prices"]) and len(source) <= 2**24
    require(fits, "a ladder has at least one price, and at most 2**24 ways")
    # Play ends because every way leads to a node that is not in its set.
    inside = np.array([[node in step for node in range(len(spec))] for step in steps])
    repeats = inside[source, values["node"]].any()
    require(not repeats, "a way leads to a node that was asked before")
    # The first set is the empty one: where play starts.
    starts = np.unique(values["point"][source == 0])
    require(len(starts) == len(values["prices"]), "a policy asks no node at the start")
    return StepTables(
        names=spec.names,
        belief=belief,
        steps=steps,
        prior=prior,
        kind=record.kind,
        parents=first_parents(spec),
        **values,
    )


def _belief(record: StepRecord, stored: Stored, nodes: int) -> Belief:
    classes = tuple(record.classes)
    # One code for all classes that are not listed: so there is one cell more than classes, squared.
    require(len(set(classes)) == len(classes), "the classes of a belief are distinct")
    stored.sizes |= {"cells": (len(classes) + 1) ** 2, "masked": HEAD + PEER * nodes}
    values = stored.read("belief")
    fits = all(len(offsets) in (0, len(classes) + 1) for offsets in values["offsets"])
    require(fits, "a node has an offset for each class and for others, or none")
    pairs = [(a, b) for a, b in values.pop("pairs").tolist()]
    distinct = len(set(pairs)) == len(pairs) and all(a != b for a, b in pairs)
    require(distinct, "pairs of nodes are distinct")
    cells = map(PairTable, values.pop("pair_keys"), values.pop("pair_values"))
    sets = _sets(values.pop("weight_sets"), "belief.weight_sets")
    keys = list(zip(sets, values.pop("weight_answers").tolist(), strict=True))
    weights = dict(zip(keys, values.pop("weights"), strict=True))
    require(len(weights) == len(keys), "a set has one regression for each answer")
    for (step, answer), part in weights.items():
        fits = answer in step and len(part) == HEAD + PEER * (len(step) - 1)
        require(fits, "a regression is of an answer of its set, with weights for all")
    shift_sets, parts = values.pop("shift_sets"), values.pop("shifts")
    shifts = (
        {}
        if parts is None
        else dict(zip(_sets(shift_sets, "belief.shift_sets"), parts, strict=True))
    )
    fits = all(len(shift) == len(classes) + 1 for shift in shifts.values())
    require(fits, "a set has a shift for each class and for others")
    reads = len({values[name] is None for name in ("head", "first", "later")}) == 1
    require(reads, "a belief that reads inputs has three tables for them")
    return Belief(
        classes=classes,
        pairs=dict(zip(pairs, cells, strict=True)),
        weights=weights,
        memory=record.memory,
        agree=record.agree,
        reads=record.reads,
        shifts=shifts,
        **values,
    )


def _prior(record: StepRecord, stored: Stored, nodes: int) -> Prior | None:
    features = record.features
    if features is None:
        return None
    for feature in features:
        count = feature.width if feature.kind in ("prompt", "number") else 0
        fits = (
            feature.kind in ("words", "prompt", "number", "category", "vector")
            and feature.width >= 1
            and len(feature.centre) == len(feature.spread) == count
            and all(spread > 0 for spread in feature.spread)
            and (feature.kind != "category" or len(feature.levels) == feature.width)
        )
        require(fits, f"the input {feature.name!r} cannot be read as its file says")
    spec = FeatureSpec(tuple(features))
    # Neighbours and clusters are found by the first columns.
    vectors_first = sorted(features, key=lambda feature: feature.kind != "vector") == features
    require(vectors_first, "inputs that are vectors come first")
    width = sum(feature.width for feature in features)
    stored.sizes |= {"features": width, "outputs": 2 * nodes, "near": spec.near}
    values = stored.read("prior")
    counts = 1 <= record.neighbours <= len(values["near"])
    counts = counts and 1 <= record.coarse < len(values["centres"])
    require(counts, "a prior has neighbours, and coarse and fine clusters")
    return Prior(count=record.neighbours, coarse=record.coarse, spec=spec, **values)


def _states(record: StateRecord | None, spec: CascadeSpec, stored: Stored) -> StateTables:
    assert record is not None  # noqa: S101 - a fit has one of the two
    policies = restore_solved(record.solved, stored)
    stored.sizes["prices"] = len(policies)
    problem, columns = policies[0].problem, record.columns
    complete = sorted(columns) == list(range(len(spec)))
    fits = complete and [spec.names[column] for column in columns] == list(problem.names)
    require(fits, "the columns of the fit must be the nodes of its problem, each once")
    values = stored.read("states")
    states = [len(values["edges"][column]) + 1 for column in columns]
    require(states == record.solved.states, "the edges of a node must agree with its states")
    return StateTables(spec.names, columns=tuple(columns), ladder=Ladder(policies), **values)


def _ladder(record: FittedRecord, fitted: Fitted, stored: Stored) -> FittedLadder:
    promises = tuple(record.promises)
    # Standard errors and certificates divide by them.
    require(record.rows >= 1, "estimates rest on at least one row")
    points = OperatingPoints(**stored.read("points"), rows=record.rows)
    if record.held is None:
        return FittedLadder(fitted, points, None, promises)
    values = stored.read("held")
    policies = tuple(values.pop("policies").tolist())
    weights = values["weight"] is None or len(values["weight"]) == len(policies) + len(fitted.spec)
    fits = policies and len(set(policies)) == len(policies) and stored.sizes["rows"] and weights
    require(fits, "promises are tested on at least one row, weighted for each policy and node")
    held = Held(
        **msgspec.structs.asdict(record.held),
        names=fitted.spec.names,
        count=len(fitted.tradeoffs),
        policies=policies,
        unit=fitted.unit,
        measure=fitted.measure,
        **values,
    )
    return FittedLadder(fitted, points, held, promises)


def _check_promises(record: FittedRecord, count: int, spec: CascadeSpec) -> None:
    for promise in record.promises:
        mix, needed = promise.mix, promise.rows_needed
        fits = (
            0.5 <= promise.confidence < 1
            and 0 <= mix.share <= 1
            and all(0 <= point < count + len(spec) for point in (mix.cheap, mix.expensive))
            and promise.rows >= 1
            and promise.unit > 0
            and (needed is None or needed >= 1)
            and promise.against in spec.names
        )
        require(fits, "a promise cannot be: a number is out of range, or its node unknown")
