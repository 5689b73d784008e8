"""Fitted policies in a ``.ttamer`` file: records and arrays to what decides, and back, checked.

Arrays are named after what holds them: ``tables.*`` and ``belief.*`` and ``prior.*`` of policies on
answers, ``states.*`` and ``solved.*`` of the paper's, ``points.*`` for estimates and ``held.*`` for
the rows that promises are tested on. What is raised gives the reason alone;
:mod:`ttamer.artefact.file` adds the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.problem import (
    Arrays,
    SolvedRecord,
    cut,
    describe_solved,
    restore_solved,
)
from ttamer.cascade import CascadeSpec, from_tables, to_tables
from ttamer.errors import ArtefactDamaged, CascadeError
from ttamer.fitting.belief import GRID, HEAD, MAX_ODDS, PEER, Belief, Cells, Step
from ttamer.fitting.inputs import FeatureSpec, InputFeature, Prior
from ttamer.fitting.ladder import (
    FitRecord,
    Fitted,
    FittedLadder,
    FittedPolicy,
    Mixture,
    Tables,
    first_parents,
    single_costs,
)
from ttamer.fitting.points import OperatingPoints
from ttamer.fitting.policy import SingleNode, StepTables
from ttamer.fitting.promises import Held, Measure, Promise
from ttamer.fitting.states import MAX_STATES, StateTables
from ttamer.policy.base import Ladder

Savable = FittedPolicy | FittedLadder | Mixture

MAX_WAYS = 2**24
MAX_PROMISES = 16
MAX_FEATURES = 2**10
FEATURE_KINDS = ("words", "prompt", "number", "category", "vector")


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Policies on answers, beside their arrays."""

    kind: Literal["models", "exits"]
    classes: list[str]
    memory: int
    features: list[InputFeature] | None = None
    neighbours: int = 0
    coarse: int = 0


class StateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's policies, beside their arrays."""

    columns: list[int]
    solved: SolvedRecord


class HeldRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows held out, beside their arrays."""

    trace_digest: str
    cap: float


class ChosenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy of a ladder, or a node by itself."""

    number: int
    error: float | None
    cost: float | None
    before: list[int] | None = None
    backups: list[int] | None = None


class FittedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of a fit beside its arrays."""

    cascade: dict[str, Any]
    record: FitRecord
    full_cost: float
    unit: float
    measure: Measure
    thresholds: bool
    compare: dict[str, str]
    steps: StepRecord | None = None
    states: StateRecord | None = None
    rows: int = 0
    """How many rows the estimates of a ladder rest on."""
    held: HeldRecord | None = None
    promises: list[Promise] = []
    chosen: list[ChosenRecord] = []
    """The policy, or the two of a mixture; none of a ladder."""
    share: float = 1.0
    seed: int = 0


# ---------------------------------------------------------------- to a file
def describe_fitted(given: Savable) -> tuple[FittedRecord, Arrays]:
    """Return the record and the arrays of what was fitted."""
    fitted = given.fitted
    arrays: Arrays = {"tables.tradeoffs": fitted.tradeoffs}
    steps, states = None, None
    if isinstance(fitted.tables, StepTables):
        steps = _describe_steps(fitted.tables, arrays)
    else:
        states = _describe_states(fitted.tables, arrays)
    more: dict[str, Any] = {}
    if isinstance(given, FittedLadder):
        more = _describe_ladder(given, arrays)
    elif isinstance(given, Mixture):
        more["chosen"] = [_describe_chosen(given.cheap), _describe_chosen(given.expensive)]
        more |= {"share": float(given.share), "seed": int(given.seed)}
        more["promises"] = [] if given.promise is None else [given.promise]
    else:
        more["chosen"] = [_describe_chosen(given)]
    record = FittedRecord(
        cascade=to_tables(_bare(fitted.spec)),
        record=fitted.record,
        full_cost=float(fitted.full_cost),
        unit=float(fitted.unit),
        measure=fitted.measure,
        thresholds=fitted.thresholds,
        compare=dict(fitted.compare),
        steps=steps,
        states=states,
        **more,
    )
    return record, {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _bare(spec: CascadeSpec) -> CascadeSpec:
    """Return a cascade without what serves it: addresses, prices by token, settings."""
    nodes = tuple(dataclasses.replace(node, options={}) for node in spec.nodes)
    return dataclasses.replace(spec, nodes=nodes, serve={})


def _describe_chosen(policy: FittedPolicy) -> ChosenRecord:
    rule = policy.rule
    chosen = ChosenRecord(number=policy.number, error=policy.error, cost=policy.cost)
    if isinstance(rule, SingleNode):
        others = {"before": list(rule.before), "backups": list(rule.backups)}
        return msgspec.structs.replace(chosen, **others)
    return chosen


def _describe_steps(tables: StepTables, arrays: Arrays) -> StepRecord:
    belief = tables.belief
    for name in ("costs", "prices", "knots", "base", "slope", "columns", "wait"):
        arrays[f"tables.{name}"] = np.asarray(getattr(tables, name), float)
    for name in ("point", "source", "node"):
        arrays[f"tables.{name}"] = np.asarray(getattr(tables, name), np.int32)
    arrays["tables.steps"] = _sets(tables.steps)
    for name in ("bounds", "levels", "offsets"):
        parts = getattr(belief, name)
        arrays[f"belief.{name}"] = np.concatenate([*parts, np.empty(0)])
        arrays[f"belief.{name}_sizes"] = np.array([len(part) for part in parts], np.int32)
    pairs = sorted(belief.pairs)
    arrays["belief.pairs"] = np.array(pairs, np.int32).reshape(-1, 2)
    cells = [belief.pairs[pair] for pair in pairs]
    arrays["belief.pair_sizes"] = np.array([len(own.keys) for own in cells], np.int32)
    arrays["belief.pair_keys"] = np.concatenate(
        [np.empty(0, np.int64), *(own.keys for own in cells)]
    )
    arrays["belief.pair_values"] = np.concatenate([*(own.values for own in cells), np.empty(0)])
    keys = sorted(belief.weights)
    arrays["belief.weight_sets"] = _sets([step for step, _ in keys])
    arrays["belief.weight_answers"] = np.array([answer for _, answer in keys], np.int32)
    arrays["belief.weights"] = np.concatenate([*(belief.weights[k] for k in keys), np.empty(0)])
    arrays["belief.masked"] = belief.masked
    for name in ("head", "first", "later"):
        if getattr(belief, name) is not None:
            arrays[f"belief.{name}"] = getattr(belief, name)
    prior = tables.prior
    record = {"kind": tables.kind, "classes": list(belief.classes), "memory": belief.memory}
    if prior is None:
        return StepRecord(**record)  # type: ignore[arg-type]
    for name in ("base", "mean_cost", "weights", "losses", "means", "shrink"):
        arrays[f"prior.{name}"] = np.asarray(getattr(prior, name), float)
    for name in ("near", "centres"):
        arrays[f"prior.{name}"] = np.asarray(getattr(prior, name), np.float32)
    features = [] if prior.spec is None else list(prior.spec.features)
    more = {"features": features, "neighbours": int(prior.count), "coarse": int(prior.coarse)}
    return StepRecord(**record, **more)  # type: ignore[arg-type]


def _sets(steps: Iterable[Step]) -> NDArray[np.int32]:
    """Return sets as rows, filled up with -1."""
    steps = list(steps)
    width = max([1, *map(len, steps)])
    rows = [[*step, *[-1] * (width - len(step))] for step in steps]
    return np.array(rows, np.int32).reshape(-1, width)


def _describe_states(tables: StateTables, arrays: Arrays) -> StateRecord:
    solved, more = describe_solved(tables.ladder.policies)
    arrays |= more
    arrays["states.costs"] = np.asarray(tables.costs, float)
    arrays["states.edges"] = np.concatenate([*tables.edges, np.empty(0)])
    arrays["states.edge_sizes"] = np.array([len(e) for e in tables.edges], np.int32)
    return StateRecord(columns=list(map(int, tables.columns)), solved=solved)


def _describe_ladder(ladder: FittedLadder, arrays: Arrays) -> dict[str, Any]:
    points, held = ladder.points, ladder.held
    for name in POINTS:
        arrays[f"points.{name}"] = np.asarray(getattr(points, name), float)
    if points.latency is not None:
        arrays["points.latency"] = points.latency
    more = {"rows": points.rows, "promises": list(ladder.promises)}
    if held is None:
        return more
    arrays["held.policies"] = np.array(held.policies, np.int32)
    for name in ("lost", "alone_lost"):
        losses = getattr(held, name)
        whole = bool(np.isin(losses, (0.0, 1.0)).all())
        arrays[f"held.{name}"] = losses.astype(np.int8 if whole else float)
    for name in ("paid", "alone_paid"):
        arrays[f"held.{name}"] = getattr(held, name)
    if held.weight is not None:
        arrays["held.weight"] = held.weight
    if held.group is not None:
        arrays["held.group"] = np.asarray(held.group, np.int64)
    return more | {"held": HeldRecord(trace_digest=held.trace_digest, cap=held.cap)}


POINTS = ("error", "cost", "standard_error", "excess", "excess_error", "alone_error", "alone_cost")


# ---------------------------------------------------------------- from a file
class _Stored:
    """The arrays of a file, each taken once and checked."""

    def __init__(self, arrays: Arrays) -> None:
        self._left = dict(arrays)

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self._left

    def take(
        self,
        name: str,
        *shape: int,
        low: float = -np.inf,
        high: float = np.inf,
        integers: bool = False,
        grid: bool = False,
        infinite: bool = False,
    ) -> NDArray[Any]:
        """Return an array of this shape (-1: any length), its numbers in a range."""
        if name not in self._left:
            raise ArtefactDamaged(f"the list of arrays lacks {name!r}")
        array = self._left.pop(name)
        fits = array.ndim == len(shape) and all(
            wanted in (-1, size) for wanted, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise ArtefactDamaged(f"array {name!r} has shape {array.shape} and not {shape}")
        if integers != (array.dtype.kind == "i"):
            raise ArtefactDamaged(f"array {name!r} cannot hold {array.dtype.name}")
        if not integers and not infinite and not np.isfinite(array).all():
            raise ArtefactDamaged(f"array {name!r} has an entry that is not finite")
        if np.isnan(array).any() or not ((array >= low) & (array <= high)).all():
            raise ArtefactDamaged(
                f"array {name!r} has an entry that is not from {low:g} to {high:g}"
            )
        if grid and (array * GRID != np.rint(array * GRID)).any():
            raise ArtefactDamaged(f"array {name!r} has an entry that is no multiple of 1/{GRID:g}")
        return array.astype(np.intp) if integers else array

    def done(self) -> None:
        """Refuse arrays that nothing has taken."""
        for name in self._left:
            raise ArtefactDamaged(f"the list of arrays has an unknown {name!r}")


def restore_fitted(kind: str, record: FittedRecord, arrays: Arrays) -> Savable:
    """Check all that a file says of a fit, and return it."""
    try:
        spec = from_tables(record.cascade)
    except CascadeError as error:
        raise ArtefactDamaged(f"its cascade cannot be: {error}") from None
    if spec != _bare(spec) or to_tables(spec) != record.cascade:
        raise ArtefactDamaged("its cascade holds more than nodes and costs")
    for what, value in (("full cost", record.full_cost), ("unit", record.unit)):
        if not (isfinite(value) and value > 0):
            raise ArtefactDamaged(f"its {what} must be above 0")
    if (record.steps is None) == (record.states is None):
        raise ArtefactDamaged("a fit has policies on answers or policies on states")
    stored, tables = _Stored(arrays), None
    with np.errstate(all="ignore"):  # a forged array holds anything; what comes of it is checked
        tables = _tables(record, spec, stored)
        tradeoffs = stored.take("tables.tradeoffs", len(tables), low=0, high=1)
        if not (np.diff(tradeoffs) > 0).all():
            raise ArtefactDamaged("the tradeoffs of a ladder must increase")
        fitted = Fitted(
            spec=spec,
            tables=tables,
            tradeoffs=tradeoffs,
            full_cost=record.full_cost,
            record=record.record,
            measure=record.measure,
            unit=record.unit,
            thresholds=record.thresholds,
            compare=record.compare,
        )
        given = _given(kind, record, fitted, stored)
    stored.done()
    return given


def _tables(record: FittedRecord, spec: CascadeSpec, stored: _Stored) -> Tables:
    if record.steps is not None:
        tables = _steps(record.steps, spec.names, stored)
        return dataclasses.replace(tables, parents=first_parents(spec))
    assert record.states is not None  # noqa: S101 - the caller has looked
    return _states(record.states, spec, stored)


def _given(kind: str, record: FittedRecord, fitted: Fitted, stored: _Stored) -> Savable:
    if kind == "ladder":
        if record.chosen:
            raise ArtefactDamaged("a ladder has no policy that is chosen")
        return _ladder(record, fitted, stored)
    if record.held is not None or len(record.chosen) != (2 if kind == "mixture" else 1):
        raise ArtefactDamaged("a file of one policy has one, and of a mixture two")
    policies = [_chosen(chosen, fitted) for chosen in record.chosen]
    if kind == "policy":
        if record.promises:
            raise ArtefactDamaged("a policy by itself has no promise")
        return policies[0]
    promises = _promises(record, len(fitted.tradeoffs), fitted.spec)
    if len(promises) > 1 or not 0 <= record.share <= 1:
        raise ArtefactDamaged("a mixture has at most one promise, and one share, from 0 to 1")
    if any(None in (policy.error, policy.cost) for policy in policies):
        raise ArtefactDamaged("a mixture has the error and cost of its policies")
    return Mixture(
        policies[0],
        policies[1],
        record.share,
        record.seed,
        promise=promises[0] if promises else None,
    )


def _chosen(chosen: ChosenRecord, fitted: Fitted) -> FittedPolicy:
    nodes, count = len(fitted.spec), len(fitted.tradeoffs)
    if not 0 <= chosen.number < count + nodes:
        raise ArtefactDamaged("the file chooses a policy that it has not")
    for value in (chosen.error, chosen.cost):
        if value is not None and not (isfinite(value) and value >= 0):
            raise ArtefactDamaged("the error and cost of a policy must be from 0 up")
    alone = chosen.number >= count
    if alone != (chosen.before is not None) or alone != (chosen.backups is not None):
        raise ArtefactDamaged("a node by itself says whom it needs and who stands in for it")
    if chosen.before is None or chosen.backups is None:
        rule = fitted.rule(chosen.number)
        return FittedPolicy(fitted, rule, chosen.number, chosen.error, chosen.cost)
    node = chosen.number - count
    if sorted([node, *chosen.before, *chosen.backups]) != list(range(nodes)):
        raise ArtefactDamaged("a node by itself, those before it and its backups are all nodes")
    single = SingleNode(
        fitted.spec.names,
        single_costs(fitted.spec, node),
        node,
        tuple(chosen.before),
        tuple(chosen.backups),
    )
    return FittedPolicy(fitted, single, chosen.number, chosen.error, chosen.cost)


def _read_sets(stored: _Stored, name: str, nodes: int) -> tuple[Step, ...]:
    rows = stored.take(name, -1, -1, low=-1, high=nodes - 1, integers=True).tolist()
    steps = []
    for row in rows:
        step = tuple(v for v in row if v >= 0)
        if list(step) != row[: len(step)] or any(a >= b for a, b in pairwise(step)):
            raise ArtefactDamaged(f"array {name!r} has a row that is no set of nodes")
        steps.append(step)
    return tuple(steps)


def _parts(stored: _Stored, name: str, nodes: int, **checks: Any) -> tuple[NDArray[Any], ...]:
    """Return the arrays of each node, which one array holds."""
    sizes = stored.take(f"{name}_sizes", nodes, low=0, high=2**31, integers=True)
    flat = stored.take(name, -1, **checks)
    if len(flat) != sizes.sum():
        raise ArtefactDamaged(f"array {name!r} does not agree with its sizes")
    return cut(flat, sizes.tolist())


def _steps(record: StepRecord, names: tuple[str, ...], stored: _Stored) -> StepTables:
    nodes, belief = len(names), _belief(record, len(names), stored)
    prior = _prior(record, nodes, stored)
    if (prior is None) != (belief.head is None):
        raise ArtefactDamaged("a belief that reads inputs has a prior, and only such a belief")
    steps = _read_sets(stored, "tables.steps", nodes)
    if not steps or steps[0] or len(set(steps)) != len(steps):
        raise ArtefactDamaged("the sets of a policy are distinct, and the first is empty")
    prices = stored.take("tables.prices", -1, low=0)
    if not len(prices) or (np.diff(prices) < 0).any():
        raise ArtefactDamaged("a ladder has at least one price, and its prices rise")
    knots = stored.take("tables.knots", len(steps), -1, infinite=True)
    pieces = knots.shape[1] + 1
    if pieces > 1 and (knots[:, 1:] < knots[:, :-1]).any():
        raise ArtefactDamaged("the knots of a set must rise")
    point = stored.take("tables.point", -1, low=0, high=len(prices) - 1, integers=True)
    ways = len(point)
    if ways > MAX_WAYS:
        raise ArtefactDamaged(f"it has more than {MAX_WAYS} ways")
    source = stored.take("tables.source", ways, low=0, high=len(steps) - 1, integers=True)
    node = stored.take("tables.node", ways, low=0, high=nodes - 1, integers=True)
    inside = np.zeros((len(steps), nodes), bool)
    for number, step in enumerate(steps):
        inside[number, list(step)] = True
    if inside[source, node].any():
        raise ArtefactDamaged("a way leads to a node that was asked before")
    if len(np.unique(point[source == 0])) != len(prices):
        raise ArtefactDamaged("a policy asks no node at the start")
    return StepTables(
        names=names,
        belief=belief,
        costs=stored.take("tables.costs", nodes, low=0),
        prices=prices,
        steps=steps,
        knots=knots,
        point=point,
        source=source,
        node=node,
        base=stored.take("tables.base", ways, pieces),
        slope=stored.take("tables.slope", ways, pieces),
        columns=stored.take("tables.columns", ways, 2),
        wait=stored.take("tables.wait", nodes, low=0),
        prior=prior,
        kind=record.kind,
    )


def _belief(record: StepRecord, nodes: int, stored: _Stored) -> Belief:
    classes = tuple(record.classes)
    if len(set(classes)) != len(classes) or record.memory < 1:
        raise ArtefactDamaged("the classes of a belief are distinct, and it has a memory")
    bounds = _parts(stored, "belief.bounds", nodes, infinite=True)
    levels = _parts(stored, "belief.levels", nodes, low=-MAX_ODDS, high=MAX_ODDS, grid=True)
    offsets = _parts(stored, "belief.offsets", nodes, grid=True)
    for own, level, offset in zip(bounds, levels, offsets, strict=True):
        if len(level) != len(own) + 1 or (np.diff(own) <= 0).any():
            raise ArtefactDamaged("the bounds of a node's confidence must rise, one level for each")
        if len(offset) not in (0, len(classes) + 1):
            raise ArtefactDamaged("a node has an offset for each class and for others, or none")
    pairs = stored.take("belief.pairs", -1, 2, low=0, high=nodes - 1, integers=True)
    counts = stored.take("belief.pair_sizes", len(pairs), low=0, integers=True).tolist()
    highest = (len(classes) + 1) ** 2 - 1
    cells = cut(
        stored.take("belief.pair_keys", sum(counts), low=0, high=highest, integers=True), counts
    )
    if any((np.diff(own) <= 0).any() for own in cells):
        raise ArtefactDamaged("the keys of a pair's cells must rise")
    added = cut(stored.take("belief.pair_values", sum(counts), grid=True), counts)
    keys = [(a, b) for a, b in pairs.tolist()]
    if len(set(keys)) != len(keys) or any(a == b for a, b in keys):
        raise ArtefactDamaged("pairs of nodes are distinct")
    sets = _read_sets(stored, "belief.weight_sets", nodes)
    answers = stored.take("belief.weight_answers", len(sets), low=0, high=nodes - 1, integers=True)
    sizes = [HEAD + PEER * (len(step) - 1) for step in sets]
    if any(a not in step for step, a in zip(sets, answers.tolist(), strict=True)):
        raise ArtefactDamaged("a regression is of an answer of its set")
    flat = stored.take("belief.weights", sum(sizes), grid=True)
    named = zip(sets, answers.tolist(), cut(flat, sizes), strict=True)
    weights = {(step, answer): own for step, answer, own in named}
    if len(weights) != len(sets):
        raise ArtefactDamaged("a set has one regression for each answer")
    reads = {"head": 4, "first": 3, "later": 7}
    some = [name for name in reads if stored.has(f"belief.{name}")]
    if some and len(some) < len(reads):
        raise ArtefactDamaged("a belief that reads inputs has three tables for them")
    tables_ = {name: stored.take(f"belief.{name}", nodes, reads[name], grid=True) for name in some}
    return Belief(
        classes=classes,
        bounds=bounds,
        levels=levels,
        offsets=offsets,
        pairs={
            key: Cells(own.astype(np.intp), values)
            for key, own, values in zip(keys, cells, added, strict=True)
        },
        weights=weights,
        masked=stored.take("belief.masked", nodes, HEAD + PEER * nodes, grid=True),
        memory=record.memory,
        **tables_,
    )


def _prior(record: StepRecord, nodes: int, stored: _Stored) -> Prior | None:
    if record.features is None:
        return None
    features = record.features
    if len(features) > MAX_FEATURES:
        raise ArtefactDamaged(f"it reads more than {MAX_FEATURES} inputs")
    for feature in features:
        numbers = (*feature.centre, *feature.spread)
        standard = feature.kind in ("prompt", "number")
        if (
            feature.kind not in FEATURE_KINDS
            or feature.width < 1
            or not all(map(isfinite, numbers))
            or any(spread <= 0 for spread in feature.spread)
            or len(numbers) != (2 * feature.width if standard else 0)
            or (feature.kind == "category" and len(feature.levels) != feature.width)
        ):
            raise ArtefactDamaged(f"the input {feature.name!r} cannot be read as its file says")
    spec = FeatureSpec(tuple(features))
    if sorted(features, key=lambda own: own.kind != "vector") != features:
        raise ArtefactDamaged("inputs that are vectors come first")
    width, near = sum(feature.width for feature in features), spec.near
    known = stored.take("prior.near", -1, near, low=-1, high=1)
    centres = stored.take("prior.centres", -1, near, low=-1, high=1)
    if not 1 <= record.neighbours <= len(known) or not 1 <= record.coarse < len(centres):
        raise ArtefactDamaged("a prior has neighbours, and coarse and fine clusters")
    return Prior(
        base=stored.take("prior.base", nodes, low=-MAX_ODDS, high=MAX_ODDS, grid=True),
        mean_cost=stored.take("prior.mean_cost", nodes, low=0),
        weights=stored.take("prior.weights", width + 1, 2 * nodes),
        near=known,
        losses=stored.take("prior.losses", len(known), nodes, low=0, high=1),
        count=record.neighbours,
        centres=centres,
        coarse=record.coarse,
        means=stored.take("prior.means", len(centres), nodes),
        shrink=stored.take("prior.shrink", len(centres), low=0, high=1),
        spec=spec,
    )


def _states(record: StateRecord, spec: CascadeSpec, stored: _Stored) -> StateTables:
    nodes = len(spec)
    solved = {}
    for name in (
        "costs",
        "losses",
        "probabilities",
        "tradeoffs",
        "values",
        "sigma",
        "choices",
        "phi",
    ):
        if stored.has(f"solved.{name}"):
            solved[f"solved.{name}"] = stored._left.pop(f"solved.{name}")
    policies = restore_solved(record.solved, solved)
    problem, columns = policies[0].problem, record.columns
    if sorted(columns) != list(range(nodes)):
        raise ArtefactDamaged("the columns of the fit must hold every node once")
    if [spec.names[column] for column in columns] != list(problem.names):
        raise ArtefactDamaged("the fit and the problem differ in their nodes")
    sizes = stored.take("states.edge_sizes", nodes, low=0, high=MAX_STATES - 1, integers=True)
    flat = stored.take("states.edges", int(sizes.sum()))
    edges = cut(flat, sizes.tolist())
    for place, column in enumerate(columns):
        own = edges[column]
        if len(own) + 1 != len(problem.nodes[place].losses) or (np.diff(own) <= 0).any():
            raise ArtefactDamaged("the edges of a node must rise, and agree with its states")
    costs = stored.take("states.costs", nodes, low=0)
    return StateTables(spec.names, costs, edges, tuple(columns), Ladder(policies))


def _ladder(record: FittedRecord, fitted: Fitted, stored: _Stored) -> FittedLadder:
    count, nodes = len(fitted.tradeoffs), len(fitted.spec)
    values = {}
    for name in POINTS:
        size = nodes if name.startswith("alone") else count
        low = -1.0 if name == "excess" else 0.0
        high = np.inf if name.endswith("cost") else 1.0 + 1e-9
        values[name] = stored.take(f"points.{name}", size, low=low, high=high)
    latency = None
    if stored.has("points.latency"):
        latency = stored.take("points.latency", count + nodes, 3, low=0)
    if record.rows < 1:
        raise ArtefactDamaged("estimates rest on at least one row")
    points = OperatingPoints(**values, rows=record.rows, latency=latency)
    held = None if record.held is None else _held(record.held, fitted, stored)
    return FittedLadder(fitted, points, held, _promises(record, count, fitted.spec))


def _held(record: HeldRecord, fitted: Fitted, stored: _Stored) -> Held:
    count, nodes = len(fitted.tradeoffs), len(fitted.spec)
    policies = stored.take("held.policies", -1, low=0, high=count - 1, integers=True).tolist()
    if not policies or len(set(policies)) != len(policies):
        raise ArtefactDamaged("promises are tested on policies that differ")
    if not (isfinite(record.cap) and record.cap >= 1):
        raise ArtefactDamaged("weights are clipped at a number from 1 up")
    losses = {}
    for name, shape in (("lost", (len(policies), -1)), ("alone_lost", (-1, nodes))):
        whole = stored.has(f"held.{name}") and stored._left[f"held.{name}"].dtype.kind == "i"
        losses[name] = stored.take(f"held.{name}", *shape, low=0, high=1, integers=whole).astype(
            float
        )
    rows = losses["lost"].shape[1]
    if not rows or len(losses["alone_lost"]) != rows:
        raise ArtefactDamaged("rows held out have a loss for each policy and node")
    weight, group = None, None
    if stored.has("held.weight"):
        weight = stored.take("held.weight", len(policies) + nodes, rows, low=0)
    if stored.has("held.group"):
        group = stored.take("held.group", rows, integers=True)
    return Held(
        trace_digest=record.trace_digest,
        policies=tuple(policies),
        lost=losses["lost"],
        paid=stored.take("held.paid", len(policies), rows, low=0),
        alone_lost=losses["alone_lost"],
        alone_paid=stored.take("held.alone_paid", rows, nodes, low=0),
        weight=weight,
        group=group,
        cap=record.cap,
        unit=fitted.unit,
        measure=fitted.measure,
    )


def _promises(record: FittedRecord, count: int, spec: CascadeSpec) -> tuple[Promise, ...]:
    if len(record.promises) > MAX_PROMISES:
        raise ArtefactDamaged(f"it has more than {MAX_PROMISES} promises")
    for promise in record.promises:
        numbers: Sequence[float] = (promise.at_most, promise.bound, promise.observed, promise.unit)
        mix = promise.mix
        if not (
            all(map(isfinite, numbers))
            and 0.5 <= promise.confidence < 1
            and 0 <= mix.share <= 1
            and all(0 <= point < count + len(spec) for point in (mix.cheap, mix.expensive))
            and promise.rows >= 1
            and promise.unit > 0
            and (promise.rows_needed is None or promise.rows_needed >= 1)
            and (promise.budget is None or isfinite(promise.budget))
            and promise.against in spec.names
        ):
            raise ArtefactDamaged(
                "a promise cannot be: a number is out of range, or its node unknown"
            )
    return tuple(record.promises)


def facts_of(given: Any) -> dict[str, Any]:
    """Return a description of what was fitted, as plain values."""
    fitted: Fitted = given.fitted
    facts: dict[str, Any] = {
        "nodes": list(fitted.spec.names),
        "tradeoffs": fitted.tradeoffs.tolist(),
        "fit": {
            **msgspec.to_builtins(fitted.record),
            "full_cost": fitted.full_cost,
            **dict(fitted.compare),
        },
    }
    if isinstance(given, FittedLadder):
        points, held = given.points, given.held
        facts["points"] = {
            "errors": (fitted.unit * points.error).tolist(),
            "costs": points.cost.tolist(),
        }
        facts["held_out"] = held and {"rows": held.rows, "trace": held.trace_digest}
        facts["promises"] = [str(promise) for promise in given.promises]
    if isinstance(given, Mixture):
        facts["mixture"] = {**given.mix._asdict(), "seed": given.seed}
        facts["promises"] = [] if given.promise is None else [str(given.promise)]
    return facts
