"""Decisions on a GPU in one small kernel, written in Triton.

:class:`KernelDecider` decides as :class:`ttamer.torch.deciding.HostDecider` does, on the same
tables. Each program computes the next stage of a few rows from their logits. The last program to
arrive counts and lists those that continue.

What the host needs, how many rows continue and the exit they ask next, is one number. The kernel
writes it directly into pinned memory of the host, which looks there until it arrives: faster than
waiting for an event. Sizes of tables are plain arguments, so that policies share compiled kernels.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ttamer.errors import ArgumentError
from ttamer.torch.cuda.branching import block_for
from ttamer.torch.deciding import BeliefTables, Tables

# The number of rows per program, and the number of rows that one program can list.
BLOCK, MAX_ROWS = 8, 8192
# The host's number is the next exit times this, plus the rows that continue.
STEP = MAX_ROWS + 1
# What the pinned memory holds until the device has written to it.
PENDING = -1
# Log-odds are multiples of 1 / GRID up to LIMIT; what is added to round them.
GRID, LIMIT, ROUND = (tl.constexpr(k) for k in (4096.0, 8.0, 1.5 * 2.0**52))
ROWS, UNIT = tl.constexpr(BLOCK), tl.constexpr(STEP)  # as kernels read them
_give_way = getattr(os, "sched_yield", int)


class KernelCarry(NamedTuple):
    """The state of a batch, as :class:`ttamer.torch.deciding.Carry`, on the device."""

    stage: Tensor
    owner: Tensor
    best: Tensor
    confidence: Tensor
    prediction: Tensor
    odds: Tensor
    offset: Tensor
    asked: Tensor
    logits: Tensor
    answer: Tensor  # shape (B, classes): the logits returned, of the rows that have stopped

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What answers are made of."""
        return self.answer, self.owner, self.asked, self.confidence, self.prediction


class KernelDecider:
    """Decides with a kernel, on a GPU; in tests on a CPU, by Triton's interpreter."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        self.tables = tables
        self._device = device
        self._word = torch.full((1,), PENDING, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host_word = memoryview(cast("Any", self._word.numpy()))
        self.result = torch.zeros(1, dtype=torch.int64, device=device)
        """What the host would read, where it does not wait."""
        self._listed: dict[int, tuple[Tensor, Tensor]] = {}
        self._fixed, self._blocks = self._arguments()
        self._arrived = torch.zeros(1, dtype=torch.int32, device=device)  # programs; left at zero

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> KernelCarry:
        """Allocate the state of a batch; its first exit overwrites what is there."""
        exits = len(self.tables.bounds)

        def memory(kind: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=kind, device=self._device)

        return KernelCarry(
            stage=memory(torch.int64, rows),
            best=memory(torch.int64, rows),
            odds=memory(torch.float64, rows, exits).zero_(),
            offset=memory(torch.float64, rows, exits).zero_(),
            logits=memory(dtype, exits, rows, classes),
            answer=memory(dtype, rows, classes),
            owner=memory(torch.int64, rows),
            asked=memory(torch.int64, rows),
            confidence=memory(torch.float32, rows, exits),
            prediction=memory(torch.int32, rows, exits),
        )

    def collect(self, carry: KernelCarry) -> tuple[Tensor, ...]:
        """Return copies of what answers are made of."""
        return tuple(part.clone() for part in carry.parts)

    def observe(
        self,
        carry: KernelCarry,
        exit_: int,
        rows: Tensor,
        logits: Tensor,
        *,
        awaited: bool = True,
        first: bool = False,
        lists: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Record the logits of one exit for some rows, and update the rows that are due there.

        A row of -1 is padding. ``awaited``: :meth:`going` follows. ``first``: no exit was asked
        before. ``lists``: where survivors are listed, in place of :meth:`lists`.
        """
        size, classes = logits.shape
        positions, following = self.lists(size) if lists is None else lists
        # What the last program lists; 0 where one program holds all rows.
        listed = 0 if size <= BLOCK else block_for(size, 128)
        self._host_word[0] = PENDING
        _decide[(-(-size // BLOCK), 1, 1)](
            logits,
            logits.stride(0),
            logits.stride(1),
            rows,
            size,
            exit_,
            int(first),
            self.tables.first,
            *carry,
            len(carry.owner),
            *self._fixed,
            # A result that is not awaited must not arrive while the next one is.
            self._word if awaited else self.result,
            positions,
            following,
            self._arrived,
            classes,
            block_for(classes),
            *self._blocks,
            listed,
        )

    def _arguments(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what the kernel reads of the tables, and the constants it is compiled with."""
        tables = self.tables
        t: dict[str, Tensor] = {
            field.name: torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
            for field in fields(tables)
            if isinstance(array := getattr(tables, field.name), np.ndarray)
        }
        exits = torch.tensor(tables.exit_of, dtype=torch.int32, device=self._device)
        bounds, onward = t["bounds"], t["onward"]
        # Blocks have a least size, so that kernels are compiled for few sizes.
        blocks = (len(bounds), block_for(bounds.shape[1], 128))
        if isinstance(tables, BeliefTables):
            edges, width = t["edges"], t["context"].shape[1]
            names = ("levels", "offsets", "context", "peers", "pair_of", "pairs", "shifts", "edges")
            sizes = (bounds.shape[1], t["levels"].shape[1], onward.shape[1], edges.shape[1])
            return (exits, bounds, t["weights"], onward, *(t[name] for name in names), *sizes), (
                *blocks,
                block_for(edges.shape[1], 64),
                width,
                block_for(width),
                True,
                len(tables.pairs) > 1,
                tables.by_margin,
            )
        loss = t["loss"]  # also stands in for what is not read
        sizes = (bounds.shape[1], loss.shape[1], onward.shape[2], 1)
        return (exits, bounds, loss, onward, *[loss] * 8, *sizes), (*blocks, *[1] * 3, *[False] * 3)

    def lists(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the buffers that list the survivors of ``size`` rows: positions, and rows."""
        if size not in self._listed:
            self._listed[size] = self.new_lists(size)
        return self._listed[size]

    def new_lists(self, size: int) -> tuple[Tensor, Tensor]:
        """Return new buffers that can list the survivors of up to ``size`` rows."""
        if size > MAX_ROWS:
            raise ArgumentError(
                f"at most {MAX_ROWS} rows are decided together, not {size}: use smaller batches",
                param="inputs",
            )
        return (
            torch.zeros(size, dtype=torch.int64, device=self._device),
            torch.zeros(size, dtype=torch.int64, device=self._device),
        )

    def going(self, carry: KernelCarry, rows: Tensor) -> tuple[int, int]:  # noqa: ARG002 - counted
        """Wait for the device; return how many rows continue, and the exit that some ask next."""
        word = self._host_word
        try:
            for _ in range(20_000):  # some 10 ms; then it waits for the device
                if word[0] != PENDING:
                    break
                _give_way()
            else:
                torch.cuda.synchronize(self._device)  # a kernel that failed raises here
        except BaseException:
            torch.cuda.synchronize(self._device)  # or the result would arrive later
            raise
        following, alive = divmod(word[0], STEP)
        return alive, following

    def regroup(self, carry: KernelCarry, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the positions that form a smaller group, and its rows, without waiting.

        Rows that continue come first, in order; the group is padded with rows of -1.
        """
        positions, following = self.lists(len(rows))  # groups shrink: the next lists are others
        return positions[:size], following[:size]


@triton.jit
def _or_stored(place, stored, mine, now, missing):
    """Return a number of an exit: what it said now, what is stored of it, or what is missing."""
    return tl.where(mine, now, tl.load(place, mask=stored, other=missing))


@triton.jit
def _counted(
    stage,
    valid,
    row,
    at,
    exit_of,
    word,
    positions,
    following,
    EXITS: tl.constexpr,
):
    """Write how many rows continue and the exit they ask next; list them, then the others as -1."""
    alive = valid & (stage >= 0)
    due = tl.load(exit_of + stage, mask=alive, other=EXITS)
    going = alive.to(tl.int32)
    total = tl.sum(going, axis=0)
    tl.store(word, tl.min(due, axis=0).to(tl.int64) * UNIT + total)
    rank = tl.cumsum(going, axis=0) - 1
    stopped = tl.cumsum((valid & (stage < 0)).to(tl.int32), axis=0) - 1
    target = tl.where(alive, rank, total + stopped)
    tl.store(positions + target, tl.where(alive, at, 0).to(tl.int64), mask=valid)
    tl.store(following + target, tl.where(alive, row, -1), mask=valid)


# Numbers that differ between calls, and between policies: no kernel is compiled for each.
OF_CALLS = ["row_stride", "size", "exit_", "is_first", "first", "capacity"]
OF_POLICIES = ["BOUNDS", "BINS", "STATES", "EDGES"]


@triton.jit(do_not_specialize=OF_CALLS + OF_POLICIES)
def _decide(
    logits,
    row_stride,
    class_stride,
    rows,
    size,
    exit_,
    is_first,
    first,
    stage_,
    owner_,
    best_,
    confidence_,
    prediction_,
    odds_,
    offset_,
    asked_,
    logits_,
    answer_,
    capacity,
    exit_of,
    bounds,
    weights_,
    onward,
    levels,
    offsets,
    context,
    peers,
    pair_of,
    pairs,
    shifts,
    edges,
    BOUNDS,
    BINS,
    STATES,
    EDGES,
    word,
    positions,
    following,
    arrived,
    CLASSES: tl.constexpr,
    CLASS_BLOCK: tl.constexpr,
    EXITS: tl.constexpr,
    BOUND_BLOCK: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    BELIEF: tl.constexpr,
    PAIRS: tl.constexpr,
    MARGIN: tl.constexpr,
    LIST_BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = at < size
    row = tl.load(rows + at, mask=valid, other=-1)
    real = row >= 0
    stage = tl.load(stage_ + row, mask=real, other=-1)
    # The first time, ignore what the batch before has left.
    fresh = tl.full((ROWS,), is_first, tl.int32) != 0
    stage = tl.where(real & fresh, first, stage).to(tl.int64)
    due = real & (stage >= 0)
    due = due & (tl.load(exit_of + stage, mask=due, other=-1) == exit_)

    # The confidence of the exit: the softmax probability of its class.
    column = tl.arange(0, CLASS_BLOCK)
    inside = valid[:, None] & (column < CLASSES)[None, :]
    where = at[:, None] * row_stride + column[None, :] * class_stride
    raw = tl.load(logits + where, mask=inside, other=-float("inf"))
    values = raw.to(tl.float32)
    unclear = tl.max((values != values).to(tl.int32), axis=1) > 0
    values = tl.where(unclear[:, None], 0.0, values)
    top = tl.max(values, axis=1)
    weight = tl.where((column < CLASSES)[None, :], tl.exp(values - top[:, None]), 0.0)
    confidence = 1.0 / tl.sum(weight, axis=1)
    unclear = unclear | (confidence != confidence)
    confidence = tl.where(unclear, float("nan"), confidence)
    prediction = tl.where(unclear, -1, tl.argmax(values, axis=1).to(tl.int32))
    if MARGIN:
        others = tl.where(column[None, :] == prediction[:, None], -float("inf"), values)
        confidence -= tl.exp(tl.max(others, axis=1) - top) * confidence
    stored = logits_ + (exit_ * capacity + row[:, None]) * CLASSES + column[None, :]
    tl.store(stored, raw, mask=inside & due[:, None])
    tl.store(confidence_ + row * EXITS + exit_, confidence, mask=due)
    tl.store(prediction_ + row * EXITS + exit_, prediction, mask=due)
    asked = tl.load(asked_ + row, mask=due & ~fresh, other=0)
    bit = tl.full((ROWS,), 1, tl.int64) << tl.full((ROWS,), exit_, tl.int64)
    tl.store(asked_ + row, asked | bit, mask=due)

    bound = tl.arange(0, BOUND_BLOCK)
    edge = tl.load(bounds + exit_ * BOUNDS + bound, mask=bound < BOUNDS, other=float("inf"))
    exact = confidence.to(tl.float64)
    bins = tl.sum((edge[None, :] <= exact[:, None]).to(tl.int32), axis=1)

    if BELIEF:
        odds = tl.load(levels + exit_ * BINS + bins)
        offset = tl.load(offsets + exit_ * CLASSES + prediction, mask=prediction >= 0, other=0.0)
        tl.store(odds_ + row * EXITS + exit_, odds, mask=due)
        tl.store(offset_ + row * EXITS + exit_, offset, mask=due)
        step = tl.where(due, stage, 0)
        line = tl.arange(0, WIDTH_BLOCK)  # of the answers that count
        totals = tl.full((ROWS, WIDTH_BLOCK), float("inf"), tl.float64)
        codes = tl.full((ROWS, WIDTH_BLOCK), -1, tl.int32)
        for a in tl.static_range(WIDTH):
            answer = tl.load(context + step * WIDTH + a)
            at_answer = row * EXITS + answer
            mine = answer == exit_  # what was written above is not read back
            stored = due & (answer >= 0) & ~mine
            own_odds = _or_stored(odds_ + at_answer, stored, mine, odds, 0.0)
            own_offset = _or_stored(offset_ + at_answer, stored, mine, offset, 0.0)
            own_prediction = _or_stored(prediction_ + at_answer, stored, mine, prediction, -1)
            weights = weights_ + (step * WIDTH + a) * 3
            total = tl.load(weights) + tl.load(weights + 1) * own_odds
            total += tl.load(weights + 2) * own_offset
            for j in tl.static_range(WIDTH):
                if j != a:
                    peer = tl.load(context + step * WIDTH + j)
                    at_peer = row * EXITS + peer
                    mine = peer == exit_
                    stored = due & (peer >= 0) & ~mine
                    peer_odds = _or_stored(odds_ + at_peer, stored, mine, odds, 0.0)
                    peer_offset = _or_stored(offset_ + at_peer, stored, mine, offset, 0.0)
                    predicted = _or_stored(prediction_ + at_peer, stored, mine, prediction, -1)
                    pair = peers + ((step * WIDTH + a) * WIDTH + j) * 5
                    agreed = tl.load(pair) + tl.load(pair + 1) * peer_odds
                    differed = tl.load(pair + 2) * peer_odds + tl.load(pair + 3) * peer_offset
                    same = (predicted == own_prediction) & (own_prediction >= 0)
                    total += tl.where(same, agreed, differed)
                    if PAIRS:
                        table = tl.load(pair_of + (step * WIDTH + a) * WIDTH + j).to(tl.int64)
                        answered = due & (own_prediction >= 0) & (predicted >= 0)
                        entry = (table * CLASSES + own_prediction) * CLASSES + predicted
                        added = tl.load(pairs + entry, mask=answered, other=0.0)
                        total += tl.load(pair + 4) * added
            totals = tl.where((line == a)[None, :], total[:, None], totals)
            codes = tl.where((line == a)[None, :], own_prediction[:, None], codes)
        lowest = tl.full((ROWS,), float("inf"), tl.float64)
        owner = tl.full((ROWS,), -1, tl.int64)
        owner_class = tl.full((ROWS,), -1, tl.int32)
        for a in tl.static_range(WIDTH):
            answer = tl.load(context + step * WIDTH + a)
            mine = (line == a)[None, :]
            own_prediction = tl.sum(tl.where(mine, codes, 0), axis=1)
            alike = (codes == own_prediction[:, None]) & (own_prediction >= 0)[:, None]
            alike = (alike | mine) & (totals < float("inf"))  # padding counts for nothing
            count = tl.sum(alike.to(tl.float64), axis=1)
            mean = tl.sum(tl.where(alike, totals, 0.0), axis=1) / tl.maximum(count, 1.0)
            # Adding and taking away rounds to whole numbers, of halves to the even one.
            mean = ((mean * GRID + ROUND) - ROUND) / GRID
            mean = tl.minimum(tl.maximum(mean, -LIMIT), LIMIT)
            total = tl.where(answer >= 0, mean, float("inf"))
            better = total < lowest
            lowest = tl.where(better, total, lowest)
            owner = tl.where(better, answer, owner)
            owner_class = tl.where(better, own_prediction, owner_class)
        shift = step * CLASSES + owner_class
        lowest += tl.load(shifts + shift, mask=due & (owner_class >= 0), other=0.0)
        lowest = tl.minimum(tl.maximum(lowest, -LIMIT), LIMIT)
        number = tl.arange(0, EDGE_BLOCK)
        cuts = tl.load(
            edges + step[:, None] * EDGES + number[None, :],
            mask=(number < EDGES)[None, :] & due[:, None],
            other=float("inf"),
        )
        state = tl.sum((cuts <= lowest[:, None]).to(tl.int32), axis=1)
        following_stage = tl.load(onward + step * STATES + state).to(tl.int64)
    else:
        loss = tl.load(weights_ + exit_ * BINS + bins).to(tl.int64)
        earlier = real & ~fresh
        before = tl.load(best_ + row, mask=earlier, other=2147483647)
        owner = tl.load(owner_ + row, mask=earlier, other=-1)
        owner = tl.where(loss < before, exit_, owner)
        best = tl.minimum(loss, before)
        tl.store(best_ + row, best, mask=due)
        column_ = tl.where(due, best, 0)
        following_stage = tl.load(onward + (exit_ * BINS + bins) * STATES + column_).to(tl.int64)
    tl.store(stage_ + row, following_stage, mask=due)
    tl.store(owner_ + row, owner, mask=due)
    done = due & (following_stage < 0)
    recalled = logits_ + (owner[:, None] * capacity + row[:, None]) * CLASSES + column[None, :]
    recalls = done & (owner != exit_)
    answer = tl.load(recalled, mask=inside & recalls[:, None], other=0.0)
    answer = tl.where(recalls[:, None], answer, raw)
    tl.store(
        answer_ + row[:, None] * CLASSES + column[None, :], answer, mask=inside & done[:, None]
    )
    if LIST_BLOCK == 0:
        stage = tl.where(due, following_stage, stage)
        _counted(stage, valid, row, at, exit_of, word, positions, following, EXITS)
    else:
        tl.debug_barrier()  # all threads of this program have stored their stages
        before = tl.atomic_add(arrived, 1, sem="acq_rel")
        if before == tl.num_programs(0) - 1:
            tl.store(arrived, 0)
            at_ = tl.arange(0, LIST_BLOCK)
            rows_ = tl.load(rows + at_, mask=at_ < size, other=-1)
            # Read where all multiprocessors see the same: in the second cache.
            stages = tl.load(stage_ + rows_, mask=rows_ >= 0, other=-1, cache_modifier=".cg")
            inside_ = at_ < size
            _counted(stages, inside_, rows_, at_, exit_of, word, positions, following, EXITS)
