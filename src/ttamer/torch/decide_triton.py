"""Decisions on a GPU in one small kernel, written in Triton.

:class:`TritonDecider` decides as :class:`ttamer.torch.decide.Decider` does, on the same tables.
Each program computes the next place of a few rows from their logits. The last program to arrive
counts and lists those that continue.

What the host needs, how many rows continue and the exit they ask next, is one number. The kernel
writes it directly into pinned memory of the host, which looks there until it arrives: faster than
waiting for an event. Sizes of tables are plain arguments, so that policies share compiled kernels.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import triton
import triton.language as tl

from ttamer.errors import ArgumentError
from ttamer.torch.asking import Asking
from ttamer.torch.cuda.launching import ALIGNMENT, Launcher, block_for
from ttamer.torch.decide import Carry, Decider
from ttamer.torch.tables import BeliefTables, Tables

if TYPE_CHECKING:
    from torch import Tensor


# The number of rows per program.
BLOCK = 8
# The number of rows that one program can list.
MAX_ROWS = 8192
# The host's number is the next exit times this, plus the rows that continue.
STEP = MAX_ROWS + 1
# Blocks are at least this large: kernels are compiled for few sizes.
MIN_LIST, MIN_BOUNDS, MIN_EDGES, MIN_TERMS = 128, 128, 64, 8
# What the pinned memory holds until the device has written to it.
PENDING = -1
# How often the host looks for the result before it waits for the device, some 10 ms.
MAX_LOOKS = 20_000
_give_way = getattr(os, "sched_yield", int)


@dataclass(eq=False)
class TritonCarry(Carry):
    """The state of a batch, and the answers of the rows that have stopped."""

    answer: Tensor
    """Shape (B, classes): the logits returned."""
    packed: Tensor
    """The memory of what answers are made of. uint8."""


# Names, types and shapes of tensors that lie in one piece of memory.
Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def _unpacked(packed: Tensor, sizes: list[int], layout: Layout) -> dict[str, Tensor]:
    """Return the tensors that lie in a piece of memory, each in so many bytes."""
    found = {}
    for part, (name, kind, shape) in zip(packed.split(sizes), layout, strict=True):
        count = math.prod(shape)
        found[name] = part.view(kind)[:count].view(shape)
    return found


class TritonDecider(Decider):
    """Decides by the same tables, on a GPU."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        super().__init__(tables, device)
        pinned = device.type == "cuda"
        self._exits32 = torch.tensor(tables.exit_of, dtype=torch.int32, device=device)
        self._word = torch.full((1,), PENDING, dtype=torch.int64, pin_memory=pinned)
        self._seen = memoryview(cast("Any", self._word.numpy()))
        self.result = torch.zeros(1, dtype=torch.int64, device=device)
        """What the host would read, where it does not wait."""
        self._listed: dict[int, tuple[Tensor, Tensor]] = {}
        self._fixed, self._blocks = self._arguments()
        self._decide = Launcher(_decide)
        self._arrived = torch.zeros(1, dtype=torch.int32, device=device)  # programs; left at zero
        self._layouts: dict[tuple[Any, ...], tuple[list[int], Layout]] = {}

    def asking(self) -> Asking:
        """Return how exits are asked with few launches."""
        return Asking(self)

    def start(self, rows: int, classes: int, dtype: torch.dtype) -> TritonCarry:
        """Allocate the state of a batch; its first exit overwrites what is there.

        What answers are made of lies in one piece of memory, so that it is copied at once.
        """
        self._check(classes)
        exits, device = self.tables.exits, self._device
        layout = (
            ("answer", dtype, (rows, classes)),
            ("owner", torch.int64, (rows,)),
            ("asked", torch.int64, (rows,)),
            ("confidence", torch.float32, (rows, exits)),
            ("prediction", torch.int32, (rows, exits)),
        )
        sizes = [-(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
                 for _, kind, shape in layout]  # fmt: skip
        packed = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        self._layouts[rows, classes, dtype] = (sizes, layout)
        return TritonCarry(
            place=torch.empty(rows, dtype=torch.int64, device=device),
            best=torch.empty(rows, dtype=torch.int64, device=device),
            odds=torch.zeros((rows, exits), dtype=torch.float64, device=device),
            lean=torch.zeros((rows, exits), dtype=torch.float64, device=device),
            logits=torch.empty((exits, rows, classes), dtype=dtype, device=device),
            packed=packed,
            **_unpacked(packed, sizes, layout),
        )

    def collect(self, carry: Carry) -> tuple[Tensor, ...]:
        """Return copies of what answers are made of."""
        carry = cast("TritonCarry", carry)
        key = (*carry.answer.shape, carry.answer.dtype)
        return tuple(_unpacked(carry.packed.clone(), *self._layouts[key]).values())

    def observe(
        self,
        carry: Carry,
        exit_: int,
        rows: Tensor,
        logits: Tensor,
        *,
        awaited: bool = True,
        first: bool = False,
        lists: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Record the logits of one exit for some rows, and update the rows that were due there.

        A row of -1 is padding. ``awaited``: :meth:`wait` follows. ``first``: no exit was asked
        before. ``lists``: where survivors are listed, in place of :meth:`lists`.
        """
        carry = cast("TritonCarry", carry)
        size, classes = logits.shape
        positions, following = self.lists(size) if lists is None else lists
        # A result that is not awaited must not arrive while the next one is.
        word = self._word if awaited else self.result
        stride = logits.stride(1)
        # What the last program lists; 0 where one program holds all rows.
        listed = 0 if size <= BLOCK else block_for(size, MIN_LIST)
        self.expect()
        self._decide(
            (-(-size // BLOCK), 1, 1),
            (
                logits, logits.stride(0), stride, rows, size, exit_, int(first), self.tables.first,
                carry.place, carry.owner, carry.best, carry.confidence, carry.prediction,
                carry.odds, carry.lean, carry.asked, carry.logits, carry.answer,
                len(carry.owner), *self._fixed, word, positions, following, self._arrived,
            ),
            (classes, block_for(classes), *self._blocks, listed, STEP, BLOCK),
            (logits.dtype, carry.logits.dtype, stride, classes, listed),
        )  # fmt: skip

    def _arguments(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what the kernel reads of the tables, and the constants it is compiled with."""
        tables, shape = self.tables, cast("Any", self.tables)  # fields of either layout, by name
        believed = isinstance(tables, BeliefTables)
        reads = isinstance(tables, BeliefTables) and tables.reads_columns
        none = tables.own
        fixed = (
            self._exits32, tables.bounds, tables.own, tables.onward,
            *((shape.levels, shape.leans, shape.context, shape.others, shape.edges)
              if believed else (none,) * 5),
            *((shape.term_bounds, shape.terms) if reads else (none, none)),
            shape.shifts if believed else none,
            tables.bounds.shape[1],
            (shape.levels if believed else tables.own).shape[1],
            tables.onward.shape[-1],
            shape.edges.shape[1] if believed else 1,
            shape.term_bounds.shape[2] if reads else 0,
        )  # fmt: skip
        blocks = (
            tables.exits,
            block_for(tables.bounds.shape[1], MIN_BOUNDS),
            block_for(shape.edges.shape[1], MIN_EDGES) if believed else 1,
            shape.context.shape[1] if believed else 1,
            believed,
            reads,
            block_for(shape.term_bounds.shape[2], MIN_TERMS) if reads else 1,
        )
        return fixed, blocks

    def expect(self) -> None:
        """Mark the result as pending, before work that will write it is started."""
        self._seen[0] = PENDING

    def lists(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the buffers that list the survivors of ``size`` rows: positions, and rows."""
        if size not in self._listed:
            self._listed[size] = self.new_lists(size)
        return self._listed[size]

    def new_lists(self, size: int) -> tuple[Tensor, Tensor]:
        """Return new buffers that can list the survivors of up to ``size`` rows."""
        if size > MAX_ROWS:
            raise ArgumentError(
                f"at most {MAX_ROWS} rows are decided together, not {size}: use smaller batches"
            )
        return (
            torch.zeros(size, dtype=torch.int64, device=self._device),
            torch.zeros(size, dtype=torch.int64, device=self._device),
        )

    def wait(self) -> tuple[int, int]:
        """Wait for the device; return how many rows continue, and the exit some ask next."""
        seen = self._seen
        try:
            for _ in range(MAX_LOOKS):
                if seen[0] != PENDING:
                    break
                _give_way()
            else:
                torch.cuda.synchronize(self._device)  # a kernel that failed raises here
        except BaseException:
            torch.cuda.synchronize(self._device)  # or the result would arrive later
            raise
        following, alive = divmod(seen[0], STEP)
        return alive, following

    def going(self, carry: Carry, rows: Tensor) -> tuple[int, int]:  # noqa: ARG002 - counted already
        """Wait for the device; return how many rows continue, and the exit some ask next."""
        return self.wait()

    def regroup(self, carry: Carry, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the positions that form a smaller group, and its rows, without waiting.

        Rows that continue come first, in order; the group is padded with rows of -1.
        """
        positions, following = self.lists(len(rows))  # groups shrink: the next lists are others
        return positions[:size], following[:size]


@triton.jit
def _counted(
    place, valid, row, at, exit_of, word, positions, following, EXITS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Write how many rows continue and the exit they ask next; list them, then the others as -1."""
    alive = valid & (place >= 0)
    due = tl.load(exit_of + place, mask=alive, other=EXITS)
    going = alive.to(tl.int32)
    total = tl.sum(going, axis=0)
    tl.store(word, tl.min(due, axis=0).to(tl.int64) * STEP + total)
    rank = tl.cumsum(going, axis=0) - 1
    others = tl.cumsum((valid & (place < 0)).to(tl.int32), axis=0) - 1
    target = tl.where(alive, rank, total + others)
    tl.store(positions + target, tl.where(alive, at, 0).to(tl.int64), mask=valid)
    tl.store(following + target, tl.where(alive, row, -1), mask=valid)


@triton.jit(do_not_specialize=[
    "row_stride", "size", "exit_", "is_first", "first", "capacity",
    "BOUNDS", "BINS", "STATES", "EDGES", "TERMS",
])  # fmt: skip
def _decide(
    logits, row_stride, class_stride, rows, size, exit_, is_first, first,
    place_, owner_, best_, confidence_, prediction_, odds_, lean_, asked_, logits_, answer_,
    capacity, exit_of, bounds, own_, onward, levels, leans, context, others, edges,
    term_bounds, terms, shifts, BOUNDS, BINS, STATES, EDGES, TERMS, word, positions, following,
    arrived,
    CLASSES: tl.constexpr, CLASS_BLOCK: tl.constexpr, EXITS: tl.constexpr,
    BOUND_BLOCK: tl.constexpr, EDGE_BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    BELIEF: tl.constexpr, COLUMNS: tl.constexpr, TERM_BLOCK: tl.constexpr,
    LIST_BLOCK: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = at < size
    row = tl.load(rows + at, mask=valid, other=-1)
    real = row >= 0
    place = tl.load(place_ + row, mask=real, other=-1)
    # The first time, ignore what the batch before has left.
    fresh = tl.full((BLOCK,), is_first, tl.int32) != 0
    place = tl.where(real & fresh, first, place).to(tl.int64)
    due = real & (place >= 0)
    due = due & (tl.load(exit_of + place, mask=due, other=-1) == exit_)

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
    kept = logits_ + (exit_ * capacity + row[:, None]) * CLASSES + column[None, :]
    tl.store(kept, raw, mask=inside & due[:, None])
    tl.store(confidence_ + row * EXITS + exit_, confidence, mask=due)
    tl.store(prediction_ + row * EXITS + exit_, prediction, mask=due)
    asked = tl.load(asked_ + row, mask=due & ~fresh, other=0)
    bit = tl.full((BLOCK,), 1, tl.int64) << tl.full((BLOCK,), exit_, tl.int64)
    tl.store(asked_ + row, asked | bit, mask=due)

    bound = tl.arange(0, BOUND_BLOCK)
    edge = tl.load(bounds + exit_ * BOUNDS + bound, mask=bound < BOUNDS, other=float("inf"))
    exact = confidence.to(tl.float64)
    bins = tl.sum((edge[None, :] <= exact[:, None]).to(tl.int32), axis=1)

    if BELIEF:
        odds = tl.load(levels + exit_ * BINS + bins)
        if COLUMNS:  # the margin, and the entropy; without an answer, the last bin of each
            own_class = column[None, :] == prediction[:, None]
            rest = tl.where(own_class | unclear[:, None], 0.0, weight)
            margin = confidence - tl.max(rest, axis=1) * confidence
            away = tl.where(weight > 0, values - top[:, None], 0.0)
            entropy = tl.log(tl.sum(weight, axis=1)) - tl.sum(weight * away, axis=1) * confidence
            limit = tl.arange(0, TERM_BLOCK)
            for c in tl.static_range(2):
                cut = tl.load(
                    term_bounds + (exit_ * 2 + c) * TERMS + limit, mask=limit < TERMS,
                    other=float("inf"),
                )  # fmt: skip
                value = (margin if c == 0 else entropy).to(tl.float64)
                part = tl.sum((cut[None, :] <= value[:, None]).to(tl.int32), axis=1)
                part = tl.where(unclear, TERMS + 1, part)
                odds += tl.load(terms + (exit_ * 2 + c) * (TERMS + 2) + part)
        lean = tl.load(leans + exit_ * CLASSES + prediction, mask=prediction >= 0, other=0.0)
        tl.store(odds_ + row * EXITS + exit_, odds, mask=due)
        tl.store(lean_ + row * EXITS + exit_, lean, mask=due)
        step = tl.where(due, place, 0)
        least = tl.full((BLOCK,), float("inf"), tl.float64)
        owner = tl.full((BLOCK,), -1, tl.int64)
        answered = tl.full((BLOCK,), -1, tl.int32)  # what the owner predicts
        for a in tl.static_range(WIDTH):
            answer = tl.load(context + step * WIDTH + a)
            mine = answer == exit_  # what was written above is not read back
            there = due & (answer >= 0) & ~mine
            own_odds = tl.load(odds_ + row * EXITS + answer, mask=there, other=0.0)
            own_odds = tl.where(mine, odds, own_odds)
            own_lean = tl.load(lean_ + row * EXITS + answer, mask=there, other=0.0)
            own_lean = tl.where(mine, lean, own_lean)
            own_prediction = tl.load(prediction_ + row * EXITS + answer, mask=there, other=-1)
            own_prediction = tl.where(mine, prediction, own_prediction)
            weights = own_ + (step * WIDTH + a) * 3
            total = tl.load(weights) + tl.load(weights + 1) * own_odds
            total += tl.load(weights + 2) * own_lean
            for j in tl.static_range(WIDTH):
                if j != a:
                    other = tl.load(context + step * WIDTH + j)
                    same_exit = other == exit_
                    seen = due & (other >= 0) & ~same_exit
                    its_odds = tl.load(odds_ + row * EXITS + other, mask=seen, other=0.0)
                    its_odds = tl.where(same_exit, odds, its_odds)
                    its_lean = tl.load(lean_ + row * EXITS + other, mask=seen, other=0.0)
                    its_lean = tl.where(same_exit, lean, its_lean)
                    its_prediction = tl.load(prediction_ + row * EXITS + other, mask=seen, other=-1)
                    its_prediction = tl.where(same_exit, prediction, its_prediction)
                    pair = others + ((step * WIDTH + a) * WIDTH + j) * 4
                    agreed = tl.load(pair) + tl.load(pair + 1) * its_odds
                    differed = tl.load(pair + 2) * its_odds + tl.load(pair + 3) * its_lean
                    total += tl.where(its_prediction == own_prediction, agreed, differed)
            better = total < least
            least = tl.where(better, total, least)
            owner = tl.where(better, answer, owner)
            answered = tl.where(better, own_prediction, answered)
        number = tl.arange(0, EDGE_BLOCK)
        cuts = tl.load(
            edges + step[:, None] * EDGES + number[None, :],
            mask=(number < EDGES)[None, :] & due[:, None],
            other=float("inf"),
        )
        known_class = due & (answered >= 0)
        least += tl.load(shifts + step * CLASSES + answered, mask=known_class, other=0.0)
        state = tl.sum((cuts <= least[:, None]).to(tl.int32), axis=1)
        following_place = tl.load(onward + step * STATES + state).to(tl.int64)
    else:
        own = tl.load(own_ + exit_ * BINS + bins).to(tl.int64)
        known = real & ~fresh
        before = tl.load(best_ + row, mask=known, other=2147483647)
        owner = tl.load(owner_ + row, mask=known, other=-1)
        owner = tl.where(own < before, exit_, owner)
        best = tl.minimum(own, before)
        tl.store(best_ + row, best, mask=due)
        column_ = tl.where(due, best, 0)
        following_place = tl.load(onward + (exit_ * BINS + bins) * STATES + column_).to(tl.int64)
    tl.store(place_ + row, following_place, mask=due)
    tl.store(owner_ + row, owner, mask=due)
    done = due & (following_place < 0)
    recalled = logits_ + (owner[:, None] * capacity + row[:, None]) * CLASSES + column[None, :]
    earlier = done & (owner != exit_)
    answer = tl.load(recalled, mask=inside & earlier[:, None], other=0.0)
    answer = tl.where(earlier[:, None], answer, raw)
    tl.store(
        answer_ + row[:, None] * CLASSES + column[None, :], answer, mask=inside & done[:, None]
    )
    if LIST_BLOCK == 0:
        place = tl.where(due, following_place, place)
        _counted(place, valid, row, at, exit_of, word, positions, following, EXITS, STEP)
    else:
        tl.debug_barrier()  # all threads of this program have stored their places
        before = tl.atomic_add(arrived, 1, sem="acq_rel")
        if before == tl.num_programs(0) - 1:
            tl.store(arrived, 0)
            every = tl.arange(0, LIST_BLOCK)
            rows_ = tl.load(rows + every, mask=every < size, other=-1)
            # Read where all multiprocessors see the same: in the second cache.
            places = tl.load(place_ + rows_, mask=rows_ >= 0, other=-1, cache_modifier=".cg")
            _counted(
                places, every < size, rows_, every, exit_of, word, positions, following, EXITS,
                STEP,
            )  # fmt: skip
