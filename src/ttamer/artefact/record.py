"""The part of a ``.ttamer`` file that records how its policies did: the record (docs/format.md).

What is raised gives the reason alone; :mod:`ttamer.artefact.files` adds the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.artefact.container import fields_of, integers_of, text_of
from ttamer.artefact.fits import MAX_ROWS
from ttamer.errors import ArtefactDamaged
from ttamer.fitted.cautious import Cautious
from ttamer.fitted.mixture import Mix, Rungs
from ttamer.fitted.promise import (
    HeldLosses,
    HeldOut,
    Promise,
    cautious_pairs,
    pairs_of_corners,
)

MAX_PROMISES = 16
# Seeds are from minus this to this.
MAX_SEED = 2**62
# Neighbouring policies, by number.
Pairs = tuple[tuple[int, int], ...]
FIELDS = ("held", "promises")
HELD_FIELDS = ("rows", "trace", "against")
PROMISE_FIELDS = ("kind", "cheap", "dear", "certified", "rows", "trace", "against", "needed")


@dataclass(frozen=True, eq=False)
class Record:
    """How the policies of a file did, where that is known."""

    rungs: Rungs | None = None
    held: HeldOut | None = None
    promises: tuple[Promise, ...] = ()
    cautious: Cautious | None = None


def describe_record(
    rungs: Rungs,
    held: HeldOut | None,
    promises: Sequence[Promise],
    cautious: Cautious | None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what the header and the arrays say of how policies did."""
    arrays: dict[str, NDArray[Any]] = {
        "record_rungs": np.stack([rungs.errors, rungs.costs, rungs.corner_errors])
    }
    described: dict[str, Any] = {"held": {}, "promises": []}
    if rungs.node_errors is not None:
        arrays["record_nodes"] = rungs.node_errors
    if rungs.latencies is not None and np.isfinite(rungs.latencies).all():
        arrays["record_latencies"] = rungs.latencies
    if rungs.node_costs is not None:
        arrays["record_node_costs"] = rungs.node_costs
    if cautious is not None:
        arrays["record_cautious"] = np.stack([cautious.tradeoffs, cautious.errors, cautious.costs])
        arrays["record_cautious_cuts"] = cautious.cuts.astype(float)
    if held is not None:
        described["held"] = {
            "rows": held.rows,
            "trace": held.trace_digest,
            "against": held.against,
        }
        if isinstance(held, HeldLosses):
            arrays["record_held_bound"] = np.array([held.bound])
            arrays["record_held_losses"] = held.losses
            arrays["record_held_node_losses"] = np.stack(list(held.nodes.values()))
        else:
            arrays["record_held"] = held.counts.reshape(-1, 8).astype(float)
        if held.by_node:
            counts = np.stack([each.reshape(-1, 8) for each in held.by_node.values()])
            arrays["record_held_nodes"] = counts.astype(float)
        if held.cautious is not None:
            arrays["record_held_cautious"] = held.cautious.counts.reshape(-1, 8).astype(float)
    if promises:
        described["promises"] = [
            {
                "kind": each.kind,
                "cheap": each.mix.cheap,
                "dear": each.mix.expensive,
                "certified": each.certified,
                "rows": each.rows,
                "trace": each.trace_digest,
                "against": each.against,
                "needed": each.rows_needed or 0,
            }
            for each in promises
        ]
        arrays["record_promises"] = np.array(
            [(p.at_most, p.confidence, p.mix.share, p.bound, p.observed) for p in promises]
        )
    return described, arrays


def restore_record(
    described: object,
    arrays: Mapping[str, NDArray[Any]],
    count: int,
    names: Sequence[str],
    *,
    graded: bool,
    thresholds: bool,
    line: Sequence[int],
) -> Record:
    """Check what a file records of how its ``count`` policies did, and return it.

    With ``graded`` it records losses instead of errors; of ``thresholds``, which are all tested, it
    records every pair of neighbours. ``line`` has the number of states at each exit of a network
    that cautious policies may be for; it is empty where there are none.
    """
    fields = fields_of(described, "the record", FIELDS)
    rungs = _rungs(arrays, count, len(names))
    cautious = _cautious(arrays, () if graded else line)
    held = None
    if fields["held"] != {}:
        restore = _held_losses if graded else _held
        pairs = pairs_of_corners(rungs.tested(every=thresholds))
        held = restore(fields["held"], arrays, pairs, names)
        if cautious is not None:
            held = _with_cautious(held, arrays, count, len(cautious), names[-1])
    elif any(name.startswith("record_held") for name in arrays):
        raise ArtefactDamaged("the record has counts of no rows held out")
    policies = count + (0 if cautious is None else len(cautious))
    promises = _promises(fields["promises"], arrays, policies, names)
    if graded:
        promises = tuple(dataclasses.replace(each, measure="mean loss") for each in promises)
    return Record(rungs, held, promises, cautious)


def restore_mixture(
    described: object, arrays: Mapping[str, NDArray[Any]], count: int
) -> tuple[Mix, int]:
    """Check what a file records of a mixture of its policies, and return it with its seed."""
    fields = fields_of(described, "the mixture", ("cheap", "expensive", "seed"))
    rungs = [fields["cheap"], fields["expensive"]]
    cheap, expensive = integers_of(rungs, "the policies of a mixture", least=0, most=count - 1)
    (seed,) = integers_of([fields["seed"]], "the seed of a mixture", least=-MAX_SEED, most=MAX_SEED)
    share = arrays.get("mixture_share")
    if share is None or share.shape != (1,) or not 0 <= share[0] <= 1:
        raise ArtefactDamaged("a mixture has one share, from 0 to 1")
    return Mix(cheap, expensive, float(share[0])), seed


def _rungs(arrays: Mapping[str, NDArray[Any]], count: int, nodes: int) -> Rungs:
    if "record_rungs" not in arrays:
        raise ArtefactDamaged("the record lacks the array 'record_rungs'")
    table = arrays["record_rungs"]
    if not _from_zero(table, (3, count)):
        raise ArtefactDamaged("the record must have a finite error and cost for each policy")
    alone = {"error": arrays.get("record_nodes"), "cost": arrays.get("record_node_costs")}
    for what, each in alone.items():
        if each is not None and not _from_zero(each, (nodes,)):
            raise ArtefactDamaged(f"the record must have a finite {what} for each node")
    times = arrays.get("record_latencies")
    if times is not None and not _from_zero(times, (count, 3)):
        raise ArtefactDamaged("the record must have three finite latencies for each policy")
    return Rungs(table[0], table[1], table[2], alone["error"], alone["cost"], times)


def _cautious(arrays: Mapping[str, NDArray[Any]], line: Sequence[int]) -> Cautious | None:
    """Return the cautious policies of a file, if it has any."""
    table, cuts = arrays.get("record_cautious"), arrays.get("record_cautious_cuts")
    if table is None and cuts is None and "record_held_cautious" not in arrays:
        return None
    if table is None or cuts is None or not line:
        raise ArtefactDamaged(
            "cautious policies have numbers and thresholds, and are for the exits of one network"
        )
    count = cuts.shape[0]
    if cuts.shape != (count, len(line) - 1) or table.shape != (3, count) or not count:
        raise ArtefactDamaged("a cautious policy has three numbers, and a threshold for each exit")
    tradeoffs = table[0]
    if not (_from_zero(table, (3, count)) and (np.diff(tradeoffs) > 0).all()):
        raise ArtefactDamaged("the numbers of cautious policies must be finite, from 0 up")
    if (
        not _whole(cuts)
        or (cuts > np.array(line[:-1])).any()
        or cuts[-1].any()
        or tradeoffs[-1] != 1
    ):
        raise ArtefactDamaged(
            "the thresholds of cautious policies must be whole, and those of the last one 0"
        )
    return Cautious(tradeoffs, cuts.astype(np.intp), table[1], table[2])


def _with_cautious(
    held: HeldOut, arrays: Mapping[str, NDArray[Any]], count: int, cautious: int, last: str
) -> HeldOut:
    """Return rows held out with their counts under cautious policies."""
    pairs = cautious_pairs(count, cautious)
    own = _outcomes(arrays.get("record_held_cautious"), pairs, held.rows)
    return dataclasses.replace(
        held, cautious=HeldOut(held.rows, held.trace_digest, last, pairs, own)
    )


def _from_zero(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    """Return whether an array has this shape, and finite numbers from 0 up."""
    return array.shape == shape and bool((np.isfinite(array) & (array >= 0)).all())


def _whole(array: NDArray[Any]) -> bool:
    """Return whether an array holds whole numbers from 0 up."""
    return _from_zero(array, array.shape) and bool((array == np.rint(array)).all())


def _outcomes(counts: NDArray[Any] | None, pairs: Pairs, rows: int) -> NDArray[np.int64]:
    """Return the counts of rows held out, shape (pairs, 2, 2, 2), once they are checked."""
    if counts is None or counts.shape != (len(pairs), 8):
        raise ArtefactDamaged("the record must have eight counts for each pair of corners")
    if not _whole(counts) or (counts.sum(axis=1) != rows).any():
        raise ArtefactDamaged("the counts of rows held out must be whole, and add up to the rows")
    return counts.astype(np.int64).reshape(-1, 2, 2, 2)


def _held(
    item: object, arrays: Mapping[str, NDArray[Any]], pairs: Pairs, names: Sequence[str]
) -> HeldOut:
    fields = fields_of(item, "the rows held out", HELD_FIELDS)
    (rows,) = integers_of([fields["rows"]], "the rows held out", least=1, most=MAX_ROWS)
    counts = _outcomes(arrays.get("record_held"), pairs, rows)
    by_node = {}
    if (every := arrays.get("record_held_nodes")) is not None:
        if every.shape != (len(names), len(pairs), 8):
            raise ArtefactDamaged("the record must have counts against each node, or against one")
        by_node = {n: _outcomes(own, pairs, rows) for n, own in zip(names, every, strict=True)}
    return HeldOut(
        rows,
        text_of(fields["trace"], "the trace held out"),
        _node(fields["against"], names),
        pairs,
        counts,
        by_node,
    )


def _held_losses(
    item: object, arrays: Mapping[str, NDArray[Any]], pairs: Pairs, names: Sequence[str]
) -> HeldLosses:
    fields = fields_of(item, "the rows held out", HELD_FIELDS)
    (rows,) = integers_of([fields["rows"]], "the rows held out", least=1, most=MAX_ROWS)
    empty = np.empty((0, 0))
    bound = arrays.get("record_held_bound", empty)
    losses = arrays.get("record_held_losses", empty)
    nodes = arrays.get("record_held_node_losses", empty)
    if bound.shape != (1,) or not (np.isfinite(bound).all() and bound[0] > 0):
        raise ArtefactDamaged("the largest loss held out must be one finite number above 0")
    corners = len({rung for pair in pairs for rung in pair})
    if losses.shape != (corners, rows) or nodes.shape != (len(names), rows):
        raise ArtefactDamaged("the record must have a loss for each corner, node and row held out")
    for each in (losses, nodes):
        if not (_from_zero(each, each.shape) and (each <= bound[0]).all()):
            raise ArtefactDamaged("losses held out must be from 0 to the largest there can be")
    return HeldLosses(
        rows,
        text_of(fields["trace"], "the trace held out"),
        _node(fields["against"], names),
        pairs,
        np.zeros((len(pairs), 2, 2, 2), np.int64),
        bound=float(bound[0]),
        losses=losses,
        nodes=dict(zip(names, nodes, strict=True)),
    )


def _promises(
    item: object, arrays: Mapping[str, NDArray[Any]], count: int, names: Sequence[str]
) -> tuple[Promise, ...]:
    if not isinstance(item, list) or len(item) > MAX_PROMISES:
        raise ArtefactDamaged(f"the promises must be a list of at most {MAX_PROMISES}")
    numbers = arrays.get("record_promises", np.empty((0, 5)))
    if numbers.shape != (len(item), 5) or not np.isfinite(numbers).all():
        raise ArtefactDamaged("the record must have five finite numbers for each promise")
    found = []
    for each, (at_most, confidence, share, bound, observed) in zip(
        item, numbers.tolist(), strict=True
    ):
        fields = fields_of(each, "a promise", PROMISE_FIELDS)
        if fields["kind"] not in ("error", "drop") or not isinstance(fields["certified"], bool):
            raise ArtefactDamaged("a promise is of 'error' or 'drop', certified or not")
        if not (0.5 <= confidence < 1 and 0 <= share <= 1):
            raise ArtefactDamaged("a promise has a confidence below 1 and a share from 0 to 1")
        rungs = [fields["cheap"], fields["dear"]]
        cheap, expensive = integers_of(rungs, "the policies of a promise", least=0, most=count - 1)
        (rows,) = integers_of([fields["rows"]], "the rows of a promise", least=1, most=MAX_ROWS)
        (needed,) = integers_of(
            [fields["needed"]], "the rows a promise needs", least=0, most=MAX_ROWS
        )
        found.append(
            Promise(
                kind=fields["kind"],
                at_most=at_most,
                confidence=confidence,
                mix=Mix(cheap, expensive, share),
                certified=fields["certified"],
                bound=bound,
                observed=observed,
                rows=rows,
                trace_digest=text_of(fields["trace"], "the trace of a promise"),
                against=_node(fields["against"], names),
                rows_needed=needed or None,
            )
        )
    return tuple(found)


def _node(item: object, names: Sequence[str]) -> str:
    name = text_of(item, "the node compared with")
    if name not in names:
        raise ArtefactDamaged("the record compares with a node that the cascade has not")
    return name
