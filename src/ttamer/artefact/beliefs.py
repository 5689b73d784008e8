"""The part of a ``.ttamer`` file that a fit on beliefs adds (docs/format.md).

What is raised gives the reason alone; :mod:`ttamer.artefact.files` adds the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.container import fields_of, integers_of, text_of
from ttamer.artefact.fits import (
    describe_losses,
    parents_in,
    parents_of,
    shared_of,
    spec_of,
    texts_of,
)
from ttamer.artefact.rules import cut
from ttamer.errors import ArtefactDamaged
from ttamer.fitted.belief import (
    MAX_WEIGHT,
    WEIGHT_RESOLUTION,
    Belief,
    Extras,
    Signals,
    Step,
    context_of,
)
from ttamer.fitted.models import BeliefModel
from ttamer.fitted.quantiser import MAX_STATES
from ttamer.problem.problem import Problem
from ttamer.trace.trace import BELIEF_FIELDS

# Steps are written as sets of bits.
MAX_NODES = 60
# What X is added up from: exact in double precision only if made of such numbers.
EXACT = ("belief_levels", "belief_leans", "belief_weights")
FIELDS = ("names", "order", "target", "predictions", "classes", "steps", "edges", "levels",
          "leans", "plan", "trace", "rows")  # fmt: skip
# Fields of which all or none are there.
OPTIONAL_FIELDS = (("signals", "signal_bins"), ("extras", "extra_bins"), ("after",), ("mistakes",))


def describe_belief(fitted: BeliefModel) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what the header and the arrays say of a fit on beliefs."""
    spec, belief = fitted.spec, fitted.belief
    described: dict[str, Any] = {
        "names": list(spec.names),
        "order": spec.order,
        "target": spec.target,
        "predictions": belief.has_predictions,
        "classes": list(fitted.classes),
        "steps": [sum(1 << node for node in step) for step in fitted.steps],
        "edges": [len(edges) for edges in fitted.edges],
        "levels": [len(levels) for levels in belief.levels],
        "leans": [len(leans) for leans in belief.offsets],
        "plan": {key: str(value) for key, value in fitted.plan.items()} | spec.answer_rules,
        "trace": fitted.trace_digest,
        "rows": fitted.rows,
    }
    if any(spec.parents):
        described["after"] = parents_in(spec)
    keys = _answers(fitted.steps, len(spec.names), certain_last=belief.certain_last)
    pad = [0.0]  # no array is empty in a file
    arrays = {
        "belief_costs": np.array(spec.costs, float),
        "belief_full_cost": np.array([fitted.full_cost]),
        "belief_edges": np.concatenate([*fitted.edges, pad]),
        "belief_bounds": np.concatenate([*belief.bounds, pad]),
        "belief_levels": np.concatenate(belief.levels),
        "belief_classes": np.array([*(float(c) for each in belief.offsets for c in each), *pad]),
        "belief_leans": np.array([*(v for each in belief.offsets for v in each.values()), *pad]),
        "belief_weights": np.concatenate([*(belief.weights[key] for key in keys), pad]),
    }
    if belief.by_class:
        arrays["belief_by_class"] = np.stack([belief.by_class[key] for key in keys])
    if belief.shifts:
        none = np.zeros(len(fitted.classes))
        arrays["belief_shifts"] = np.stack([belief.shifts.get(k, none) for k in fitted.steps])
    if fitted.loss_scale is not None:
        arrays["belief_loss_scale"] = np.array([fitted.loss_scale])
    if spec.has_passing:
        arrays["belief_passing"] = np.array(spec.passing, float)
    describe_losses(spec, "belief", described, arrays)
    if belief.signals is not None:
        described["signals"] = list(belief.signals.names)
        described["signal_bins"] = [len(doubt) for doubt in belief.signals.router_logits]
        arrays["belief_signal_bounds"] = np.concatenate([*belief.signals.bounds, pad])
        arrays["belief_signal_leans"] = np.concatenate(belief.signals.offsets)
        arrays["belief_signal_doubts"] = np.concatenate(belief.signals.router_logits)
        if any(own.any() for own in belief.signals.shifts):
            arrays["belief_signal_shifts"] = np.concatenate(belief.signals.shifts)
    if belief.extras:
        read = [belief.extras[v] for v in sorted(belief.extras)]
        nodes = range(len(spec.names))
        described["extras"] = [
            list(belief.extras[v].names) if v in belief.extras else [] for v in nodes
        ]
        described["extra_bins"] = [len(terms) for own in read for terms in own.terms]
        arrays["belief_extra_levels"] = np.concatenate([own.levels for own in read])
        bounds = [bounds for own in read for bounds in own.bounds]
        arrays["belief_extra_bounds"] = np.concatenate([*bounds, pad])
        arrays["belief_extra_leans"] = np.concatenate([each for own in read for each in own.terms])
    return described, arrays


def restore_belief(
    described: object, arrays: Mapping[str, NDArray[Any]], problem: Problem, *, recall: bool
) -> BeliefModel:
    """Check what a file records of a fit on beliefs against its problem, and return it."""
    if problem.moves != "walk" or recall:
        raise ArtefactDamaged("a belief needs a walk without recall: recall is inside it")
    known = described if isinstance(described, dict) else {}
    more = [name for group in OPTIONAL_FIELDS if group[0] in known for name in group]
    fields = fields_of(described, "the belief", (*FIELDS, *more))
    has_signals = "signals" in fields
    for kind in ("signal", "extra"):
        if f"{kind}s" not in fields and any(name.startswith(f"belief_{kind}_") for name in arrays):
            raise ArtefactDamaged(f"the belief has arrays of {kind}s, and names none")
    names = texts_of(fields["names"], "names")
    count = len(names)
    if count > MAX_NODES:
        raise ArtefactDamaged(f"the belief has {count} nodes, and at most {MAX_NODES} are read")
    if not isinstance(fields["predictions"], bool):
        raise ArtefactDamaged("predictions must be true or false")
    after = parents_of(fields["after"]) if "after" in fields else [""] * count
    if len(after) != count:
        raise ArtefactDamaged("the belief must have a parent, or none, for each node")
    spec = spec_of(names, after, fields, arrays, "belief")
    classes = fields["classes"]
    if not isinstance(classes, list):
        raise ArtefactDamaged("the classes must be a list")
    for each in classes:
        text_of(each, "a class")
    if len(set(classes)) < len(classes):
        raise ArtefactDamaged("a class stands twice")
    steps = _steps(fields["steps"], count, problem, routed=has_signals)
    signals = _signals(fields, arrays, count) if has_signals else None
    belief = _belief(fields, arrays, steps, count, len(classes), certain_last=spec.target == "last")
    extras = _extras(fields, arrays, count) if "extras" in fields else {}
    return BeliefModel(
        belief=dataclasses.replace(belief, signals=signals, extras=extras),
        steps=tuple(steps),
        edges=_edges(fields["edges"], arrays["belief_edges"], problem),
        classes=tuple(classes),
        **shared_of(fields, arrays, "belief", spec),
    )


def _answers(steps: Sequence[Step], nodes: int, *, certain_last: bool) -> list[tuple[Step, int]]:
    """Return the regressions there are, in the order of the file."""
    return [
        (step, answer)
        for step in steps
        for answer in context_of(step)
        if not (certain_last and answer == nodes - 1)
    ]


def _steps(item: object, nodes: int, problem: Problem, *, routed: bool) -> list[Step]:
    bits = integers_of(item, "the steps", least=0 if routed else 1, most=(1 << nodes) - 1)
    if len(bits) != len(problem.nodes) or len(set(bits)) < len(bits):
        raise ArtefactDamaged(
            "the belief must have one step of its own for each node of the problem"
        )
    for source, target in problem.ends:
        if source < 0 and not bits[target] and _cannot_answer(problem, target):
            continue  # a router, which only signals come before
        before = bits[source] if source >= 0 else 0
        added = bits[target] & ~before
        left, kept = before & ~bits[target], before & bits[target]
        # Where exits are asked in order, a step may be the last asked alone.
        onward = added > before and (not kept or left < kept)
        if added.bit_count() != 1 or (left and not onward):
            raise ArtefactDamaged("a way on must add one node to the step it comes from")
    steps = [tuple(v for v in range(nodes) if step >> v & 1) for step in bits]
    if problem.is_line:  # there the order of asking is known, and kept
        asked: Step = ()
        for place in problem.order:
            asked = (*asked, *(v for v in steps[place] if v not in asked))
            steps[place] = tuple(v for v in asked if v in steps[place])
    return steps


def _cannot_answer(problem: Problem, node: int) -> bool:
    return bool(np.isinf(problem.nodes[node].losses).all()) and bool(problem.outgoing[node])


def _signals(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], nodes: int) -> Signals:
    names = texts_of(fields["signals"], "signals")
    bins = integers_of(fields["signal_bins"], "the bins of signals", least=1, most=MAX_STATES)
    if not names or len(bins) != len(names) or len(set(names)) < len(names):
        raise ArtefactDamaged("the belief must name each signal once, and how many bins it has")
    bounds = _bounds_of(arrays, "signal", bins)
    _check_exact(arrays, "belief_signal_leans", (sum(bins), nodes))
    _check_exact(arrays, "belief_signal_doubts", (sum(bins),))
    arrays = {"belief_signal_shifts": np.zeros(sum(bins)), **arrays}  # optional
    _check_exact(arrays, "belief_signal_shifts", (sum(bins),))
    return Signals(
        tuple(names),
        bounds,
        cut(arrays["belief_signal_leans"], bins),
        cut(arrays["belief_signal_doubts"], bins),
        cut(arrays["belief_signal_shifts"], bins),
    )


def _extras(
    fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], nodes: int
) -> dict[int, Extras]:
    names = fields["extras"]
    if not isinstance(names, list) or len(names) != nodes:
        raise ArtefactDamaged("the belief must list the extra columns of each node")
    for own in names:
        if not isinstance(own, list) or own != [name for name in BELIEF_FIELDS if name in own]:
            raise ArtefactDamaged(f"the extra columns of a node are some of {BELIEF_FIELDS}, once")
    bins = integers_of(fields["extra_bins"], "the bins of columns", least=1, most=MAX_STATES)
    counts = [len(own) for own in names]
    if not bins or len(bins) != sum(counts):
        raise ArtefactDamaged("the belief must have a number of bins for each extra column")
    read = [v for v in range(nodes) if counts[v]]
    levels = [fields["levels"][v] for v in read]
    bounds = _bounds_of(arrays, "extra", bins)
    _check_exact(arrays, "belief_extra_levels", (sum(levels),))
    _check_exact(arrays, "belief_extra_leans", (sum(bins),))
    terms = cut(arrays["belief_extra_leans"], bins)
    found, first = {}, 0
    for v, own in zip(read, cut(arrays["belief_extra_levels"], levels), strict=True):
        part = slice(first, first := first + counts[v])
        found[v] = Extras(tuple(names[v]), own, bounds[part], terms[part])
    return found


def _bounds_of(
    arrays: Mapping[str, NDArray[Any]], kind: str, bins: Sequence[int]
) -> tuple[NDArray[np.float64], ...]:
    """Return the bounds of signals or extra columns, one fewer than their bins."""
    name = f"belief_{kind}_bounds"
    stored = _finite(arrays, name, (sum(bins) - len(bins) + 1,))
    bounds = cut(stored[:-1], [count - 1 for count in bins])
    if any((np.diff(own) <= 0).any() for own in bounds) or stored[-1]:
        raise ArtefactDamaged(f"the bounds of {kind}s must increase, and end with 0")
    return bounds


def _finite(
    arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    array = arrays.get(name)
    if array is None or array.shape != shape or not np.isfinite(array).all():
        raise ArtefactDamaged(f"array {name!r} must hold finite numbers, of shape {shape}")
    return array


def _check_exact(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape, or whose sums would not be exact."""
    array = _finite(arrays, name, shape)
    if np.abs(array).max() > MAX_WEIGHT or (array % WEIGHT_RESOLUTION != 0).any():
        raise ArtefactDamaged(
            f"array {name!r} must hold multiples of {WEIGHT_RESOLUTION:g} up to {MAX_WEIGHT:g}"
        )


def _edges(item: object, stored: NDArray[Any], problem: Problem) -> tuple[NDArray[np.float64], ...]:
    counts = integers_of(item, "the edges of the belief", least=0, most=MAX_STATES - 1)
    if stored.shape != (sum(counts) + 1,) or stored[-1] != 0:
        raise ArtefactDamaged("the edges of the belief do not agree with their stated number")
    if [count + 1 for count in counts] != [len(node.losses) for node in problem.nodes]:
        raise ArtefactDamaged("the belief and the problem differ in the states of a step")
    edges = cut(stored, counts)
    for own in edges:
        if not (np.isfinite(own).all() and (np.diff(own) > 0).all()):
            raise ArtefactDamaged("the edges of the belief must be finite and increase")
    return edges


def _belief(
    fields: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    steps: Sequence[Step],
    nodes: int,
    classes: int,
    *,
    certain_last: bool,
) -> Belief:
    levels = integers_of(fields["levels"], "the levels", least=1, most=MAX_STATES)
    leans = integers_of(fields["leans"], "the leans", least=0, most=classes)
    if len(levels) != nodes or len(leans) != nodes:
        raise ArtefactDamaged("the belief must have levels and leans for each node")
    keys = _answers(steps, nodes, certain_last=certain_last)
    predictions = fields["predictions"]
    if predictions != any(leans):
        raise ArtefactDamaged("the belief and the fit disagree on whether predictions are used")
    widths = [3 + (len(context_of(step)) - 1) * (4 if predictions else 1) for step, _ in keys]
    for name, size in (
        ("belief_bounds", sum(levels) - nodes + 1),
        ("belief_levels", sum(levels)),
        ("belief_classes", sum(leans) + 1),
        ("belief_leans", sum(leans) + 1),
        ("belief_weights", sum(widths) + 1),
    ):
        array = arrays[name]
        if array.shape != (size,) or not np.isfinite(array).all():
            raise ArtefactDamaged(f"array {name!r} must hold {size} finite numbers")
        if name != "belief_levels" and array[-1] != 0:
            raise ArtefactDamaged(f"array {name!r} must end with 0")
        if name in EXACT:
            _check_exact(arrays, name, (size,))
    bounds = cut(arrays["belief_bounds"][:-1], [count - 1 for count in levels])
    if any((np.diff(own) <= 0).any() for own in bounds):
        raise ArtefactDamaged("the bounds of the belief must increase")
    codes = arrays["belief_classes"][:-1]
    if codes.size and not (
        (codes == np.floor(codes)).all() and codes.min() >= 0 and codes.max() < classes
    ):
        raise ArtefactDamaged("a lean of the belief is for a class there is not")
    if any(len(set(own.tolist())) < len(own) for own in cut(codes, leans)):
        raise ArtefactDamaged("a class has two leans of the belief in one node")
    parts = zip(cut(codes, leans), cut(arrays["belief_leans"][:-1], leans), strict=True)
    by_class, shifts = (
        _of_classes(arrays, name, rows if predictions else 0, classes)
        for name, rows in (("belief_by_class", len(keys)), ("belief_shifts", len(steps)))
    )
    return Belief(
        bounds=bounds,
        levels=cut(arrays["belief_levels"], levels),
        offsets=tuple(
            dict(zip(own.astype(int).tolist(), values.tolist(), strict=True))
            for own, values in parts
        ),
        weights=dict(zip(keys, cut(arrays["belief_weights"], widths), strict=True)),
        certain_last=certain_last,
        by_class=dict(zip(keys, by_class, strict=True)) if len(by_class) else {},
        shifts={step: own for step, own in zip(steps, shifts, strict=False) if own.any()},
    )


def _of_classes(
    arrays: Mapping[str, NDArray[Any]], name: str, rows: int, classes: int
) -> NDArray[np.float64]:
    """Return an optional array of what classes add, by row and class; without rows if missing."""
    if name not in arrays:
        return np.empty((0, classes))
    if not rows or not classes:
        raise ArtefactDamaged(f"array {name!r} is for a belief that uses predictions")
    _check_exact(arrays, name, (rows, classes))
    return arrays[name]
