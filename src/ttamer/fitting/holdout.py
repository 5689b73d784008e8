"""Rows held out of a fit: how they are drawn and recognised, and what policies do on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats
from ttamer.fitting.fitted import FitRecord, Fitted
from ttamer.fitting.points import OperatingPoints
from ttamer.fitting.promises import Held
from ttamer.fitting.replay import alone_paid, paid
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace

MAX_HELD_ROWS = 20_000  # rows that a file keeps for promises: a uniform sample of more


def groups_of(trace: Trace) -> NDArray[np.intp]:
    """Return the group of each row, shape (T,); rows without one stand alone."""
    rows = np.arange(len(trace))
    if trace.group is None:
        return rows
    return np.where(trace.group < 0, trace.group.max() + 1 + rows, trace.group).astype(np.intp)


def rows_split(trace: Trace, count: int, seed: int) -> tuple[Trace, Trace]:
    """Return the rows to fit and about ``count`` rows to hold out; groups are not split."""
    groups, sizes = np.unique(groups_of(trace), return_counts=True)
    order = np.random.default_rng([seed, 3]).permutation(len(groups))
    chosen = groups[order[np.cumsum(sizes[order]) <= max(count, sizes[order[0]])]]
    held = np.isin(groups_of(trace), chosen)
    return trace.take(np.flatnonzero(~held)), trace.take(np.flatnonzero(held))


def were_fitted_to(record: FitRecord, trace: Trace) -> bool:
    """Return whether rows are those fitted to, or these and the rows held out of the same log.

    Such a log is recognised by repeating the split of the fit.
    """
    if trace.digest == record.trace_digest:
        return True
    count = len(trace) - record.rows
    if count <= 0 or record.held_out != count:
        return False
    rows, _ = rows_split(trace, count, record.seed)
    return rows.digest == record.trace_digest


def refuse_fitted_rows(fitted: Fitted, trace: Trace, what: str) -> None:
    """Refuse rows that a ladder was fitted to, or that hold them."""
    if fitted.thresholds or not were_fitted_to(fitted.record, trace):
        return
    if trace.digest == fitted.record.trace_digest:
        raise ArgumentError(
            f"these are the rows the ladder was fitted to: {what} needs others; hold some out of "
            "the fit (hold_out=0.2; ttamer fit --hold-out 0.2), or give other rows"
        )
    raise ArgumentError(
        f"the ladder was fitted to {fitted.record.rows} of these {len(trace)} rows: {what} needs "
        "others; leave the trace out to use the rows held out of the fit, or give other rows"
    )


def held_of(fitted: Fitted, points: OperatingPoints, trace: Trace) -> Held:
    """Play the policies of the frontier on rows that a ladder was not fitted to.

    Rows count that have every answer and every loss; where the log has the chances with which nodes
    were asked, all rows with a label do, weighted.
    """
    require_trace(trace, "a promise")
    trace = trace.with_verification() if trace.names != fitted.spec.names else trace
    digest = trace.digest
    refuse_fitted_rows(fitted, trace, "a promise")
    if trace.measure != fitted.measure:
        raise ArgumentError(
            f"these rows are measured by their {trace.measure}, and the ladder was fitted to "
            f"the {fitted.measure}: give rows with the same losses, or fit again"
        )
    if trace.is_graded and trace.spec.loss_bound is None:
        raise ArgumentError(
            "a promise about losses needs the largest loss there can be, known beforehand: set "
            "max_loss in [cascade], or CascadeSpec.of(..., max_loss=...) (for scores it is 1)"
        )
    complete = ~np.isnan(trace.loss).any(axis=1)
    weighted = trace.chance is not None and not complete.all()
    evidence = ~np.isnan(trace.loss).all(axis=1) if weighted else complete
    rows = np.flatnonzero(evidence)
    if not rows.size:
        raise ArgumentError(
            "no row is evidence for a promise: it needs rows on which every node answered and "
            f"every loss is known ({trace.coverage}), or the chances with which nodes were asked "
            "(columns <node>.chance)"
        )
    if len(rows) > MAX_HELD_ROWS:
        generator = np.random.default_rng([len(rows), 5])
        rows = np.sort(generator.permutation(rows)[:MAX_HELD_ROWS])
    trace = trace.take(rows)
    policies = lower_envelope(points.cost, points.error).tolist()
    if fitted.thresholds:  # their order is fixed before any row is seen: all are tested
        policies = list(range(len(points)))
    loss, view = np.nan_to_num(trace.loss), fitted.read(trace)
    lost, costs, asked = [], [], []
    for policy in policies:
        played = view.play(fitted.rule(policy))
        lost.append(np.where(played.answer < 0, 1.0, loss[np.arange(len(loss)), played.answer]))
        costs.append(np.nan_to_num(paid(played.asked, trace)))
        asked.append(played.asked)
    weight = None
    if weighted:
        nodes = trace.spec.required
        asked += [np.broadcast_to(row, trace.confidence.shape) for row in nodes]
        weight = np.stack([_weight(sets, trace) for sets in asked])
    return Held(
        trace_digest=digest,
        policies=tuple(policies),
        lost=np.stack(lost),
        paid=np.stack(costs),
        alone_lost=loss,
        alone_paid=np.nan_to_num(alone_paid(trace)),
        weight=weight,
        group=None if trace.group is None else groups_of(trace),
        unit=fitted.unit,
        measure=fitted.measure,
    )


def _weight(asked: NDArray[np.bool_], trace: Trace) -> Floats:
    """Return one over the least chance of the nodes asked; 0 where the log lacks one of them."""
    assert trace.chance is not None  # noqa: S101 - the caller has looked
    chance = np.where(np.isnan(trace.chance), 1.0, trace.chance)
    lowest = np.where(asked, chance, 1.0).min(axis=1)
    answered = (~asked | ~np.isnan(trace.loss)).all(axis=1) & (lowest > 0)
    return np.where(answered, 1 / np.where(lowest > 0, lowest, 1.0), 0.0)
