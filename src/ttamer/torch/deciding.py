"""A fitted policy as arrays, and decisions by them for a whole batch, on the host with NumPy.

Exits are asked in the network's order. A *stage* is where an input is in its policy. Two layouts
of tables cover all policies:

- :class:`BeliefTables`: a stage is the exits asked so far. What an input brings along is the
  log-odds, the offset and the prediction of each. x, the least log-odds of their answers, decides.
- :class:`LossTables`: a stage is an exit, the state there is the bin of its confidence, and the
  best loss so far is all that an input brings along.

All numbers keep the precision that they have in the policy, so that every device decides as a
session does. A GPU decides in :mod:`ttamer.torch.cuda`, by the same tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ttamer._checks import counted
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import GRID, HEAD, NOTHING, PEER, Belief, Step
from ttamer.fitting.ladder import FittedPolicy
from ttamer.fitting.markov import StatePolicy
from ttamer.fitting.policy import StepPolicy
from ttamer.fitting.session import SingleNode
from ttamer.policy.walk import WalkPolicy

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

STOP = -1  # the next stage of an input that stops
NO_ANSWER = -1  # the prediction of an exit whose logits have a NaN


@dataclass(frozen=True, eq=False)
class LossTables:
    """Tables whose stages are exits, for thresholds and for policies on the loss in hand."""

    bounds: Floats  # shape (exits, bins - 1): increasing confidences, padded with inf
    first: int  # the stage where every input starts
    loss: Ints  # shape (exits, bins): the column of the loss of each bin; smaller is better
    onward: Ints  # shape (exits, bins, columns): the exit to ask next, or STOP
    by_margin = False

    @property
    def exit_of(self) -> tuple[int, ...]:
        """The exit that is asked at each stage: itself."""
        return tuple(range(len(self.bounds)))

    @property
    def reached(self) -> tuple[int, ...]:
        """The exits that any input may ask, in order."""
        arrived = [(self.first, self.onward.shape[2])]  # exits, with the best column before
        for k, before in arrived:  # it grows meanwhile
            best = np.minimum(self.loss[k], before)
            following = self.onward[k, np.arange(len(best)), best]
            pairs = set(zip(following.tolist(), best.tolist(), strict=True))
            arrived += sorted(pair for pair in pairs - {*arrived} if pair[0] != STOP)
        return tuple(sorted({k for k, _ in arrived}))


@dataclass(frozen=True, eq=False)
class BeliefTables:
    """Tables whose stages are sets of exits asked, of which the last ones count.

    The log-odds of answer a at a stage are, by the weights there::

        weights . (1, odds[a], offset[a])
        + sum over peers b of  peers . (1, odds[b]) if they agree, else peers . (odds[b], offset[b])
                             + peers . what the classes of both add

    Answers that agree share the mean of their log-odds, rounded to the grid.
    """

    bounds: Floats  # shape (exits, bins - 1): increasing confidences or margins, padded with inf
    first: int  # the stage where every input starts
    exit_of: tuple[int, ...]  # the exit that is asked at each stage
    by_margin: bool  # whether bounds are of margins, not of confidences
    levels: Floats  # shape (exits, bins): the log-odds of an answer of each bin
    offsets: Floats  # shape (exits, classes): what predicting a class adds
    context: NDArray[np.int64]  # shape (stages, width): the exits that count, padded with -1
    # Shape (stages, width, 3): per answer, the constant and the weights of its odds and offset.
    weights: Floats
    # Shape (stages, width, width, 5): per answer and peer, the weights of agreement, of its odds in
    # agreement, of its odds otherwise, of its offset otherwise, and of what the classes of both
    # add; 0 for the answer itself.
    peers: Floats
    # Shape (stages, width, width): per answer and peer, the number of their table in pairs.
    pair_of: Ints
    # Shape (tables, classes, classes): what the classes of an answer and of a peer add.
    pairs: Floats
    # Shape (stages, classes): what the class of the best answer adds to x where stages follow
    shifts: Floats
    edges: Floats  # shape (stages, states - 1): increasing x, padded with inf
    onward: Ints  # shape (stages, states): the stage to go to next, or STOP

    @property
    def reached(self) -> tuple[int, ...]:
        """The exits that any input may ask, in order."""
        stages = [self.first]
        for stage in stages:  # it grows meanwhile
            stages += sorted(set(self.onward[stage].tolist()) - {STOP, *stages})
        return tuple(sorted({self.exit_of[stage] for stage in stages}))


Tables = LossTables | BeliefTables


def threshold_tables(thresholds: Floats) -> LossTables:
    """Return the tables of a rule that stops at the first exit whose confidence is high enough.

    Args:
        thresholds: Shape (exits,): the confidence at which each exit stops; the last is ignored.
            ``nan`` leaves a ramp out, ``inf`` never stops there.

    Returns:
        Tables for :class:`ttamer.torch.Runner`.

    >>> tables = threshold_tables(np.array([0.9, np.nan, 0.0]))
    >>> tables.first, tables.reached
    (0, (0, 2))
    """
    last = len(thresholds) - 1
    return _line_tables([*np.flatnonzero(~np.isnan(thresholds[:last])), last], thresholds)


def _line_tables(asked: Sequence[int], limits: Floats) -> LossTables:
    """Return tables that ask exits in turn until a confidence reaches its limit."""
    count = len(limits)
    bounds = np.full((count, 1), np.inf)
    onward = np.full((count, 2, count), STOP, np.int32)
    for k, following in pairwise(asked):
        bounds[k, 0] = limits[k]
        onward[k, 0] = following
    loss = np.arange(count - 1, -1, -1, dtype=np.int32)  # the last one asked answers
    return LossTables(bounds, int(asked[0]), np.stack([loss, loss], axis=1), onward)


def tables_of(
    policy: FittedPolicy | StepPolicy | SingleNode | StatePolicy,
    exits: Sequence[str],
    classes: Sequence[str] | int,
) -> Tables:
    """Return the tables of a fitted policy for a network with these exits and classes.

    The policy may be for some of the exits only: the others are never asked. ``classes`` are the
    names of the network's classes as in the trace, or their number if the trace has numbers.
    """
    rule: object = policy
    if isinstance(policy, FittedPolicy):
        if policy.spec.kind != "exits":
            raise ArgumentError(
                "the policy asks separate models; a network runs policies for its exits: fit one "
                'to a trace whose cascade has kind = "exits", as that of trace_of',
                param="policy",
            )
        rule = policy.rule
    if not isinstance(rule, StepPolicy | SingleNode | StatePolicy):
        raise ArgumentError(
            f"a network runs one fitted policy, not a {type(policy).__name__}: take "
            "ladder.at(tradeoff) of a ladder, or .expensive of a mixture: its promise holds for it",
            param="policy",
        )
    numbers = [list(exits).index(name) for name in rule.names if name in exits]
    if len(numbers) < len(rule.names) or numbers != sorted(numbers):
        raise ArgumentError(
            f"the policy was fitted for {counted(len(rule.names), 'exit')} "
            f"({', '.join(rule.names)}) and the network has {len(exits)} ({', '.join(exits)}): fit "
            "it on a trace of this network",
            param="policy",
        )
    if isinstance(rule, SingleNode):
        asked = [numbers[k] for k in (*rule.before, rule.node)]
        return _line_tables(asked, np.full(len(exits), np.inf))
    if isinstance(rule, StepPolicy):
        texts = [str(k) for k in range(classes)] if isinstance(classes, int) else list(classes)
        return _step_tables(rule, texts, numbers, len(exits))
    if not isinstance(rule.solved, WalkPolicy):
        raise ArgumentError("a network runs policies that walk from exit to exit", param="policy")
    return _walk_tables(rule.tables.edges, rule.solved, numbers, len(exits))


def _step_tables(
    policy: StepPolicy, classes: Sequence[str], numbers: Sequence[int], count: int
) -> BeliefTables:
    """Return the tables of a policy on beliefs whose exits have some numbers of ``count``."""
    belief = policy.tables.belief
    if policy.tables.prior is not None:
        raise ArgumentError(
            "the policy reads inputs, and a network has none besides what it answers: fit it on a "
            "trace without inputs",
            param="policy",
        )
    if not belief.agree:
        raise ArgumentError(
            "the policy was fitted to losses that differ between equal predictions, and a kernel "
            "lets equal predictions share their risk: fit it to a trace without predictions",
            param="policy",
        )
    if belief.classes and not set(belief.classes) & set(classes):
        raise ArgumentError(
            f"the policy's classes are {', '.join(belief.classes[:5])} ... and the network's are "
            f"{', '.join(classes[:5])} ...: name them as in the trace, with classes=",
            param="classes",
        )
    # The last code stands for classes that the fit met on few rows, or never.
    codes = np.array([belief.code_of.get(name, len(belief.classes)) for name in classes])
    stages: dict[Step, int] = {}
    edges, onward = list[Floats](), list[list[Step | None]]()
    waiting: list[Step] = [(int(policy.choose((), (), np.full(1, NOTHING))[0]),)]
    for step in waiting:
        stages[step] = len(stages)
        cuts, following = _choices(policy, step)
        edges.append(cuts)
        onward.append([None if node < 0 else (*step, node) for node in following])
        waiting += {later for later in onward[-1] if later and later not in {*stages, *waiting}}
    offsets = np.zeros((count, len(classes)))
    for number, offset in zip(numbers, belief.offsets, strict=True):
        offsets[number] = offset[codes] if len(offset) else 0.0
    weights = _weights(belief, [belief.context(step) for step in stages], codes)
    return BeliefTables(
        bounds=_padded(_placed(belief.bounds, numbers, count)),
        first=0,
        exit_of=tuple(numbers[step[-1]] for step in stages),
        by_margin=belief.reads == "margin",
        levels=_padded(_placed(belief.levels, numbers, count), 0.0),
        offsets=offsets,
        shifts=np.stack(
            [belief.shifts.get(step, np.zeros(len(belief.classes) + 1))[codes] for step in stages]
        ),
        edges=_padded(edges),
        onward=_padded(
            [[STOP if step is None else stages[step] for step in row] for row in onward], STOP
        ).astype(np.int32),
        **weights | {"context": np.array([*numbers, -1])[weights["context"]]},
    )


def _weights(belief: Belief, contexts: Sequence[Step], codes: NDArray[np.intp]) -> dict[str, Any]:
    """Return the weights of a belief at each stage, as :class:`BeliefTables` has them."""
    width = max(map(len, contexts))
    shape = (len(contexts), width, width)
    context, answers = np.full(shape[:2], -1), np.zeros((*shape[:2], 3))
    peers, pair_of = np.zeros((*shape, PEER)), np.zeros(shape, np.int32)
    answers[:, :, 0] = np.inf  # padding never answers
    pairs: dict[tuple[int, int], int] = {}
    for s, exits in enumerate(contexts):
        context[s, : len(exits)] = exits
        for a, answer in enumerate(exits):
            if len(exits) == 1:
                answers[s, a] = (0.0, 1.0, 1.0)
                continue
            weights = belief.weights_of(exits, answer)
            answers[s, a] = weights[:3]
            beside = [b for b in range(len(exits)) if b != a]
            peers[s, a, beside] = weights[HEAD:].reshape(len(beside), PEER)
            for b in beside:
                if (answer, exits[b]) in belief.pairs:
                    pair_of[s, a, b] = pairs.setdefault((answer, exits[b]), len(pairs) + 1)
    tables = np.zeros((len(pairs) + 1, len(codes), len(codes)))  # table 0 adds nothing
    keys = np.add.outer(codes * (len(belief.classes) + 1), codes)
    for pair, number in pairs.items():
        tables[number] = belief.pairs[pair](keys)
    return {
        "context": context,
        "weights": answers,
        "peers": peers,
        "pair_of": pair_of,
        "pairs": tables,
    }


def _choices(policy: StepPolicy, step: Step) -> tuple[Floats, list[int]]:
    """Return the x at which the choice after a step changes, and the exits chosen between them."""
    x = np.arange(-NOTHING * GRID, NOTHING * GRID + 1) / GRID  # every x that there is
    choice = policy.choose(step, step, x)
    if (choice[choice != STOP] <= max(step)).any():
        raise ArgumentError(
            "the policy asks exits in another order than the network has", param="policy"
        )
    changes = np.flatnonzero(np.diff(choice)) + 1
    return x[changes], choice[[0, *changes]].tolist()


def _walk_tables(
    edges: Sequence[Floats], policy: WalkPolicy, numbers: Sequence[int], count: int
) -> LossTables:
    """Return the tables of the paper's policy, by bins of the confidence."""
    problem, bounds = policy.problem, _padded(_placed(edges, numbers, count))
    number_of = np.array([*numbers, STOP], np.int32)
    loss = np.zeros((count, bounds.shape[1] + 1), np.int32)
    onward = np.full((*loss.shape, len(problem.grid)), STOP, np.int32)
    for k, (number, position) in enumerate(zip(numbers, problem.grid.positions, strict=True)):
        loss[number, : len(position)] = position
        onward[number, : len(position)] = number_of[policy.choices[k]]
    return LossTables(bounds, int(number_of[policy.choices[-1][0, -1]]), loss, onward)


def _placed(rows: Sequence[Floats], numbers: Sequence[int], count: int) -> list[Floats]:
    """Return ``count`` rows, of which those with these numbers are known and others are empty."""
    row_of = dict(zip(numbers, rows, strict=True))
    return [row_of.get(k, np.empty(0)) for k in range(count)]


def _padded(rows: Sequence[Any], filling: float = np.inf) -> Floats:
    """Return rows of different lengths as one array, padded at their ends."""
    padded = np.full((len(rows), max([1, *map(len, rows)])), filling)
    for k, row in enumerate(rows):
        padded[k, : len(row)] = row
    return padded


@dataclass(eq=False)
class Carry:
    """The state of a batch of B inputs, one row each, in the caller's order."""

    stage: NDArray[np.int64]  # shape (B,): the stage where the input is due next, or STOP
    owner: NDArray[np.int64]  # shape (B,): the exit whose answer is the best so far
    best: Ints  # shape (B,): the column of its loss, for LossTables
    # Shape (B, exits): the confidence of each exit, or its margin where that is read; NaN where it
    # was not asked, or has none.
    confidence: NDArray[np.float32]
    prediction: Ints  # shape (B, exits): the class each exit predicts; NO_ANSWER where none
    odds: Floats  # shape (B, exits): the log-odds of each exit's answer, for beliefs
    offset: Floats  # shape (B, exits): what each predicted class adds, for beliefs
    asked: NDArray[np.int64]  # shape (B,): a bit for every exit that was asked
    # Shape (exits, B, classes): the logits of each exit; not written where it was not asked.
    logits: Tensor


class HostDecider:
    """Decides with NumPy, for a network on any device; reads only the rows that are due."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        self.tables = tables
        self._device = device
        self._exit_of = np.array([*tables.exit_of, STOP])  # the last entry: stopped

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> Carry:
        """Return the state before any exit is asked."""
        exits = len(self.tables.bounds)
        return Carry(
            stage=np.full(rows, self.tables.first, np.int64),
            owner=np.full(rows, STOP, np.int64),
            best=np.full(rows, np.iinfo(np.int32).max, np.int32),
            confidence=np.full((rows, exits), np.nan, np.float32),
            prediction=np.full((rows, exits), NO_ANSWER, np.int32),
            odds=np.zeros((rows, exits)),
            offset=np.zeros((rows, exits)),
            asked=np.zeros(rows, np.int64),
            logits=torch.empty((exits, rows, classes), dtype=dtype, device=self._device),
        )

    def observe(self, carry: Carry, exit_: int, rows: Tensor, logits: Tensor, **_: bool) -> None:
        """Record the logits of one exit for some rows, and update the rows that are due there.

        Args:
            carry: The state of the batch.
            exit_: The number of the exit.
            rows: Shape (m,): positions in the batch.
            logits: Shape (m, classes).
            **_: What a kernel needs: whether :meth:`going` follows, and whether this exit is the
                first. The host has waited, and a batch starts with new memory.
        """
        carry.logits[exit_].index_copy_(0, rows, logits.to(carry.logits.dtype))
        tables = self.tables
        parts = confidence_of(logits, by_margin=tables.by_margin)
        confidence, prediction = (part.cpu().numpy() for part in parts)
        row = rows.cpu().numpy()
        due = self._exit_of[carry.stage[row]] == exit_
        if not due.all():
            row, confidence, prediction = row[due], confidence[due], prediction[due]
        carry.confidence[row, exit_], carry.prediction[row, exit_] = confidence, prediction
        carry.asked[row] |= np.int64(1) << np.int64(exit_)
        bins = np.searchsorted(tables.bounds[exit_], confidence.astype(np.float64), "right")
        bins[np.isnan(confidence)] = 0  # as a policy takes what is no number
        if isinstance(tables, LossTables):
            loss, before = tables.loss[exit_, bins], carry.best[row]
            carry.owner[row] = np.where(loss < before, exit_, carry.owner[row])
            carry.best[row] = best = np.minimum(loss, before)
            carry.stage[row] = tables.onward[exit_, bins, best]
            return
        carry.odds[row, exit_] = tables.levels[exit_, bins]
        offset = tables.offsets[exit_, prediction]  # of no answer the last, which is not used
        carry.offset[row, exit_] = np.where(prediction == NO_ANSWER, 0.0, offset)
        carry.owner[row], carry.stage[row] = _believe(tables, carry, row)

    def going(self, carry: Carry, rows: Tensor) -> tuple[int, int]:
        """Return how many rows continue, and the exit that some ask next."""
        exits = self._exit_of[carry.stage[rows.cpu().numpy()]]
        due = exits[exits != STOP]
        return len(due), int(due.min(initial=len(self.tables.bounds)))

    def regroup(self, carry: Carry, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the positions that form a smaller group, and its rows.

        Rows that continue come first, in order; the group is padded with rows that have stopped.
        """
        stopped = carry.stage[rows.cpu().numpy()] == STOP
        order = torch.from_numpy(stopped.argsort(kind="stable")[:size])
        positions = order.to(self._device)
        return positions, rows[positions]

    def collect(self, carry: Carry) -> tuple[Tensor, ...]:
        """Return what answers are made of: logits, owners, exits asked, confidences, classes."""
        arrays = (carry.owner, carry.asked, carry.confidence, carry.prediction)
        owner, *parts = (torch.from_numpy(array.copy()).to(self._device) for array in arrays)
        rows = torch.arange(len(owner), device=self._device)
        return carry.logits[owner.clamp_min(0), rows], owner, *parts


def _believe(
    tables: BeliefTables, carry: Carry, row: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Ints]:
    """Return the owner and the next stage of rows, by the belief at each row's stage.

    Numbers are multiples of 2^-12 of limited size: their sums are exact in any order.
    """
    stage = carry.stage[row]
    context = tables.context[stage]
    line = row[:, np.newaxis]
    odds, offset = carry.odds[line, context], carry.offset[line, context]
    predicted = carry.prediction[line, context]
    weights, peers = tables.weights[stage], tables.peers[stage]
    totals = weights[:, :, 0] + weights[:, :, 1] * odds + weights[:, :, 2] * offset
    if context.shape[1] > 1:
        odds, offset = odds[:, np.newaxis], offset[:, np.newaxis]
        agreed = peers[..., 0] + peers[..., 1] * odds
        differed = peers[..., 2] * odds + peers[..., 3] * offset
        answers, beside = predicted[:, :, np.newaxis], predicted[:, np.newaxis]
        same = (answers == beside) & (answers != NO_ANSWER)
        totals += np.where(same, agreed, differed).sum(axis=2)
        if len(tables.pairs) > 1:
            answered = (answers != NO_ANSWER) & (beside != NO_ANSWER)
            added = tables.pairs[tables.pair_of[stage], answers, beside]
            totals += (peers[..., 4] * np.where(answered, added, 0.0)).sum(axis=2)
        same |= np.eye(context.shape[1], dtype=bool)
        same &= (context >= 0)[:, np.newaxis]  # padding counts for nothing
        sums = np.where(same, totals[:, np.newaxis], 0.0).sum(axis=2)
        totals = sums / np.maximum(same.sum(axis=2), 1)
    x = np.clip(np.rint(totals * GRID) / GRID, -NOTHING, NOTHING)
    x = np.where(context >= 0, x, np.inf)
    best = x.argmin(axis=1)  # among equals the first
    at = np.arange(len(row)), best
    shift = np.where(predicted[at] == NO_ANSWER, 0.0, tables.shifts[stage, predicted[at]])
    shifted = np.clip(x[at] + shift, -NOTHING, NOTHING)
    state = (tables.edges[stage] <= shifted[:, np.newaxis]).sum(axis=1)
    return context[at], tables.onward[stage, state]


def confidence_of(logits: Tensor, *, by_margin: bool = False) -> tuple[Tensor, Tensor]:
    """Return the confidence and the prediction of logits of shape (batch, classes).

    The confidence is the softmax probability of the predicted class, less that of the second one
    for a margin, in single precision whatever the network computes in. Logits with a NaN give no
    answer: the prediction is ``NO_ANSWER`` and the confidence NaN, which every policy treats as the
    lowest.

    >>> confidence, prediction = confidence_of(torch.tensor([[0.0, 0.0], [float("nan"), 1.0]]))
    >>> confidence.tolist(), prediction.tolist()
    ([0.5, nan], [0, -1])
    """
    chances = torch.log_softmax(logits.float(), dim=-1).exp()
    best, prediction = chances.max(dim=-1)
    prediction = torch.where(torch.isnan(best), NO_ANSWER, prediction).to(torch.int32)
    if not by_margin:
        return best, prediction
    largest = chances.topk(min(2, chances.shape[-1]), dim=-1).values
    return largest[..., 0] - largest[..., 1:].sum(dim=-1), prediction
