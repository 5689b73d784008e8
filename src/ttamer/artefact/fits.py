"""The part of a ``.ttamer`` file that a fit adds: how confidences become states (docs/format.md).

What is raised gives the reason alone; :mod:`ttamer.artefact.files` adds the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.container import fields_of, integers_of, text_of
from ttamer.artefact.rules import cut
from ttamer.errors import ArtefactDamaged, CascadeError
from ttamer.fitted.models import ConfidenceModel
from ttamer.fitted.quantiser import MAX_STATES, Quantiser
from ttamer.problem.problem import Problem
from ttamer.trace.spec import CascadeNode, CascadeSpec

# The most rows that a file may state: all smaller counts are exact as numbers of an array.
MAX_ROWS = 2**53
FIELDS = ("names", "after", "order", "target", "columns", "edges", "plan", "trace", "rows")


def describe_fit(fitted: ConfidenceModel) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what the header and the arrays say of a fit."""
    spec = fitted.spec
    described = {
        "names": list(spec.names),
        "after": parents_in(spec),
        "order": spec.order,
        "target": spec.target,
        "columns": list(fitted.columns),
        "edges": [len(edges) for edges in fitted.quantiser.edges],
        "plan": {key: str(value) for key, value in fitted.plan.items()} | spec.answer_rules,
        "trace": fitted.trace_digest,
        "rows": fitted.rows,
    }
    # No array is empty in a file; one entry past the last edge sees to that.
    edges = np.concatenate([*fitted.quantiser.edges, [0.0]])
    arrays = {
        "fit_costs": np.array(spec.costs, float),
        "fit_edges": edges,
        "fit_full_cost": np.array([fitted.full_cost]),
    }
    if fitted.loss_scale is not None:
        arrays["fit_loss_scale"] = np.array([fitted.loss_scale])
    if spec.has_passing:
        arrays["fit_passing"] = np.array(spec.passing, float)
    describe_losses(spec, "fit", described, arrays)
    return described, arrays


def restore_fit(
    described: object, arrays: Mapping[str, NDArray[Any]], problem: Problem
) -> ConfidenceModel:
    """Check what a file records of a fit against its problem, and return it."""
    more = ["mistakes"] if isinstance(described, dict) and "mistakes" in described else []
    fields = fields_of(described, "the fit", (*FIELDS, *more))
    names, after = texts_of(fields["names"], "names"), parents_of(fields["after"])
    count = len(names)
    if count != len(problem.nodes) or len(after) != count:
        raise ArtefactDamaged("the fit must name as many nodes as the problem has")
    columns = integers_of(fields["columns"], "the columns of the fit", least=0, most=count - 1)
    if sorted(columns) != list(range(count)):
        raise ArtefactDamaged("the columns of the fit must hold every node once")
    if [names[column] for column in columns] != list(problem.names):
        raise ArtefactDamaged("the fit and the problem differ in their nodes")
    spec = spec_of(names, after, fields, arrays, "fit")
    return ConfidenceModel(
        quantiser=_quantiser(fields["edges"], arrays["fit_edges"], columns, problem),
        steps=tuple((column,) for column in columns),
        **shared_of(fields, arrays, "fit", spec),
    )


def shared_of(
    fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], kind: str, spec: CascadeSpec
) -> dict[str, Any]:
    """Return the fields of :class:`Model` for a fit of a kind: ``"fit"`` or ``"belief"``."""
    full = _unit_in(arrays, f"{kind}_full_cost", "full cost")
    (rows,) = integers_of([fields["rows"]], "the rows of the fit", least=1, most=MAX_ROWS)
    return {
        "spec": spec,
        "full_cost": spec.full_cost(spec.costs) if full is None else full,  # none in version 1
        "loss_scale": _unit_in(arrays, f"{kind}_loss_scale", "loss scale"),
        "plan": _plan(fields["plan"]),
        "trace_digest": text_of(fields["trace"], f"the trace of the {kind}"),
        "rows": rows,
    }


def _unit_in(arrays: Mapping[str, NDArray[Any]], name: str, what: str) -> float | None:
    stored = arrays.get(name)
    if stored is None:
        return None
    if stored.shape != (1,) or not (np.isfinite(stored).all() and stored[0] > 0):
        raise ArtefactDamaged(f"the {what} of the fit must be one finite number above 0")
    return float(stored[0])


def _plan(item: object) -> dict[str, str]:
    """Return the plan of a fit, text by text."""
    if not isinstance(item, dict):
        raise ArtefactDamaged("the plan of the fit must be an object")
    for key, value in item.items():
        text_of(key, "the key of a plan")
        text_of(value, f"the plan's {key!r}")
    return item


def texts_of(item: object, what: str) -> list[str]:
    """Return a list of text that is not empty."""
    if not isinstance(item, list) or not item:
        raise ArtefactDamaged(f"the {what} of the fit must be a list")
    return [text_of(each, f"one of the {what} of the fit") for each in item]


def parents_in(spec: CascadeSpec) -> list[str | list[str]]:
    """Return for each node the name of its parent, a list of several, or an empty text for none."""
    return [
        list(node.after) if isinstance(node.after, tuple) else node.after or ""
        for node in spec.nodes
    ]


def parents_of(item: object) -> list[str | tuple[str, ...]]:
    """Return what :func:`parents_in` wrote."""
    if not isinstance(item, list) or not item:
        raise ArtefactDamaged("the after of the fit must be a list")
    what = "one of the after of the fit"
    return [
        tuple(text_of(name, what) for name in each)
        if isinstance(each, list)
        else text_of(each, what)
        for each in item
    ]


def describe_losses(
    spec: CascadeSpec, kind: str, described: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    """Add the losses of the cascade to the header and the arrays."""
    pairs = [(label, each) for label, row in spec.mistakes.items() for each in row]
    if pairs:
        described["mistakes"] = [list(pair) for pair in pairs]
        arrays[f"{kind}_mistakes"] = np.array([spec.mistakes[a][b] for a, b in pairs])
    elif spec.max_loss is not None:
        arrays[f"{kind}_max_loss"] = np.array([spec.max_loss])


def _losses_of(
    fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], kind: str
) -> tuple[dict[str, dict[str, float]], float | None]:
    """Return the mistakes and the largest loss that :func:`describe_losses` wrote."""
    bound, costs = arrays.get(f"{kind}_max_loss"), arrays.get(f"{kind}_mistakes")
    pairs = fields.get("mistakes", [])
    known = isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs)
    count = 0 if costs is None else costs.size
    if not known or count != len(pairs) or (bound is not None and bound.shape != (1,)):
        raise ArtefactDamaged("the fit must have one cost for each mistake, and one largest loss")
    mistakes: dict[str, dict[str, float]] = {}
    for (label, prediction), cost in zip(pairs, [] if costs is None else costs.flat, strict=True):
        row = mistakes.setdefault(text_of(label, "the label of a mistake"), {})
        row[text_of(prediction, "the prediction of a mistake")] = float(cost)
    return mistakes, None if bound is None else float(bound[0])


def spec_of(
    names: list[str],
    after: Sequence[str | tuple[str, ...]],
    fields: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    kind: str,
) -> CascadeSpec:
    """Return the cascade of a fit, from arrays whose names begin with ``kind``."""
    costs, passing = arrays[f"{kind}_costs"], arrays.get(f"{kind}_passing")
    if costs.shape != (len(names),):
        raise ArtefactDamaged("the fit must have one cost for each node")
    if passing is not None and passing.shape != (len(names),):
        raise ArtefactDamaged("the fit must have one cost of passing for each node")
    past = [None] * len(names) if passing is None else passing.tolist()
    mistakes, max_loss = _losses_of(fields, arrays, kind)
    order = text_of(fields["order"], "the order of the fit")
    target = text_of(fields["target"], "the target of the fit")
    try:
        nodes = [
            CascadeNode(name, cost, after=parent or None, passing=each)
            for name, cost, parent, each in zip(names, costs.tolist(), after, past, strict=True)
        ]
        return CascadeSpec(
            tuple(nodes),
            order=order,  # type: ignore[arg-type]
            target=target,  # type: ignore[arg-type]
            mistakes=mistakes,
            max_loss=max_loss,
        )
    except CascadeError as error:
        raise ArtefactDamaged(f"the cascade of the fit is none: {error}") from None


def _quantiser(
    item: object, stored: NDArray[Any], columns: list[int], problem: Problem
) -> Quantiser:
    counts = integers_of(item, "the edges of the fit", least=0, most=MAX_STATES - 1)
    if len(counts) != len(columns) or stored.shape != (sum(counts) + 1,) or stored[-1] != 0:
        raise ArtefactDamaged("the edges of the fit do not agree with their stated number")
    edges = cut(stored, counts)
    for node, column in enumerate(columns):
        own = edges[column]
        if len(own) + 1 != len(problem.nodes[node].losses):
            raise ArtefactDamaged("the fit and the problem differ in the states of a node")
        if not (np.isfinite(own).all() and (np.diff(own) > 0).all()):
            raise ArtefactDamaged("the edges of the fit must be finite and increase")
    return Quantiser(edges)
