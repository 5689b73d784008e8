"""A policy as tensors, for deciding on the device of the network.

Exits are asked in the network's order, so a policy for them is a line or a walk that leaves some
out. Two layouts cover all of them:

- :class:`PlainTables`: the state of an exit is the bin of its confidence; the only memory is the
  best loss so far. This covers policies on confidence with recall, and thresholds.
- :class:`BeliefTables`: the memory is the log-odds, offsets and predictions of the exits asked; X
  is their belief (see :mod:`ttamer.fitted.belief`), and its bin decides. Log-odds are those of the
  confidence, and of the margin and the entropy where the belief reads them.

All numbers keep the precision they have in the policy, so that every device decides as a session
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ttamer._numbers import counted
from ttamer.errors import ArgumentError
from ttamer.fitted.belief import CERTAIN_LOGIT, Belief, context_of
from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitted.models import BeliefModel, ConfidenceModel
from ttamer.policy.walk import WalkPolicy
from ttamer.trace.trace import BELIEF_FIELDS

if TYPE_CHECKING:
    from torch import Tensor


# The next place of an input that stops.
STOP = -1


@dataclass(frozen=True, eq=False)
class _Shared:
    """The fields of both layouts."""

    bounds: Tensor
    """Shape (exits, bins - 1): increasing confidences, padded with inf; double precision."""
    first: int
    """The place where every input starts: an exit or a step."""
    exit_of: tuple[int, ...]
    """The exit that is asked at each place."""

    def to(self, device: torch.device) -> Self:
        """Return the same tables on a device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return replace(self, **moved)

    @property
    def exits(self) -> int:
        """The number of exits of the network."""
        return len(self.bounds)


def _at(tensor: Tensor, places: Sequence[int], count: int, filling: float) -> Tensor:
    """Return a tensor of ``count`` rows, these rows at some places and a filling elsewhere."""
    spread = torch.full((count, *tensor.shape[1:]), filling, dtype=tensor.dtype)
    spread[list(places)] = tensor
    return spread


@dataclass(frozen=True, eq=False)
class PlainTables(_Shared):
    """Tables whose places are exits."""

    own: Tensor
    """Shape (exits, bins): the column of the exit's own loss; smaller is better. int32."""
    onward: Tensor
    """Shape (exits, bins, columns): the exit to ask next, or -1. int32."""

    def spread(self, places: Sequence[int], count: int) -> PlainTables:
        """Return the same tables for a network where these exits are some among others."""
        number = torch.tensor([*places, STOP], dtype=torch.int32)  # the last: stop
        return PlainTables(
            bounds=_at(self.bounds, places, count, np.inf),
            first=places[self.first],
            exit_of=tuple(range(count)),
            own=_at(self.own, places, count, 0),
            onward=_at(number[self.onward.long()], places, count, STOP),
        )

    @property
    def reached(self) -> tuple[int, ...]:
        """The exits that any input may ask, in order."""
        own, onward = self.own.cpu().numpy(), self.onward.cpu().numpy()
        # Per exit, the best columns that inputs may arrive with; the last is for none so far.
        come = np.zeros((self.exits, onward.shape[2] + 1), bool)
        come[self.first, -1] = True
        for k in range(self.first, self.exits):
            best = np.minimum.outer(own[k], np.flatnonzero(come[k]))
            following = np.take_along_axis(onward[k], best, axis=1)
            for j in np.unique(following[following != STOP]):
                come[j, best[following == j]] = True
        return tuple(np.flatnonzero(come.any(axis=1)).tolist())


@dataclass(frozen=True, eq=False)
class BeliefTables(_Shared):
    """Tables whose places are steps: the exits asked so far, or the last few of them."""

    levels: Tensor
    """Shape (exits, bins): log-odds."""
    leans: Tensor
    """Shape (exits, classes): the offset of predicting a class."""
    context: Tensor
    """Shape (steps, width): the exits taken into account, padded with -1. int64."""
    own: Tensor
    """Shape (steps, width, 3): per answer, the constant and the weights of its odds and offset."""
    others: Tensor
    """Shape (steps, width, width, 4): per answer and other exit, the weights of agreement, of its
    odds in agreement, of its odds otherwise, of its offset otherwise; 0 for the answer itself."""
    edges: Tensor
    """Shape (steps, states - 1): increasing X, padded with inf."""
    onward: Tensor
    """Shape (steps, states): the step to go to next, or -1. int32."""
    term_bounds: Tensor
    """Shape (exits, columns, bins - 1): increasing margins, then entropies, padded with inf; there
    are no columns where no exit's are read."""
    terms: Tensor
    """Shape (exits, columns, bins + 1): what each bin adds to the log-odds; the last is for no
    answer."""
    shifts: Tensor
    """Shape (steps, classes): what the class of X's answer adds to X as a state."""

    @property
    def reads_columns(self) -> bool:
        """Whether margins and entropies of some exit are read."""
        return self.terms.shape[1] > 0

    def spread(self, places: Sequence[int], count: int) -> BeliefTables:
        """Return the same tables for a network where these exits are some among others."""
        number = torch.tensor([*places, -1])  # the last: none
        return replace(
            self,
            bounds=_at(self.bounds, places, count, np.inf),
            exit_of=tuple(places[k] for k in self.exit_of),
            levels=_at(self.levels, places, count, 0.0),
            leans=_at(self.leans, places, count, 0.0),
            term_bounds=_at(self.term_bounds, places, count, np.inf),
            terms=_at(self.terms, places, count, 0.0),
            context=number[self.context],
        )

    @property
    def reached(self) -> tuple[int, ...]:
        """The exits that any input may ask, in order."""
        steps = _reached(self.first, [set(rows.unique().tolist()) for rows in self.onward.cpu()])
        return tuple(sorted({self.exit_of[step] for step in steps}))


Tables = PlainTables | BeliefTables


def tables_of(policy: FittedPolicy, exits: Sequence[str], classes: Sequence[str] | int) -> Tables:
    """Return the tables of a fitted policy for a network with these exits and classes.

    The policy may be for some of the exits only: the others are never asked. ``classes`` are the
    names of the network's classes as in the trace, or their number if the trace has numbers.
    """
    if not isinstance(policy, FittedPolicy):
        raise ArgumentError(
            f"a network runs one fitted policy, not a {type(policy).__name__}: take "
            "ladder.at(tradeoff) of a ladder, or .expensive of a mixture: its promise holds for it"
        )
    fitted, solved = policy.fitted, policy.policy
    names = fitted.spec.names
    places = [list(exits).index(name) for name in names if name in exits]
    if len(places) < len(names) or places != sorted(places):
        raise ArgumentError(
            f"the policy was fitted for {counted(len(names), 'exit')} ({', '.join(names)}) and the "
            f"network has {len(exits)} ({', '.join(exits)}): fit it on a trace of this network"
        )
    if not isinstance(solved, WalkPolicy) or not fitted.spec.is_network:
        raise ArgumentError(
            "the policy asks separate models; for the exits of one network use a trace with "
            'order = "fixed", or "skip" with passing'
        )
    if isinstance(fitted, BeliefModel) and fitted.belief.signals is not None:
        raise ArgumentError(
            "the policy was fitted with signals, and a network has no signals of its inputs: fit "
            "it on a trace without signal columns"
        )
    if isinstance(fitted, BeliefModel):
        texts = [str(k) for k in range(classes)] if isinstance(classes, int) else list(classes)
        return _belief_tables(fitted, solved, texts).spread(places, len(exits))
    if not isinstance(fitted, ConfidenceModel) or list(fitted.columns) != sorted(fitted.columns):
        raise ArgumentError("the policy asks exits in another order than the network has")
    return _plain_tables(fitted.quantiser.edges, solved).spread(places, len(exits))


def threshold_tables(thresholds: NDArray[np.float64]) -> PlainTables:
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
    count = len(thresholds)
    kept = [k for k in range(count - 1) if not np.isnan(thresholds[k])] + [count - 1]
    bounds = torch.full((count, 1), np.inf, dtype=torch.float64)
    onward = torch.full((count, 2, count), STOP, dtype=torch.int32)
    for at, following in pairwise(kept):
        bounds[at, 0] = float(thresholds[at])
        onward[at, 0] = following
    own = torch.arange(count - 1, -1, -1, dtype=torch.int32)  # the last one asked answers
    return PlainTables(
        bounds, kept[0], tuple(range(count)), own[:, None].repeat(1, 2).contiguous(), onward
    )


def _plain_tables(edges: Sequence[NDArray[np.float64]], policy: WalkPolicy) -> PlainTables:
    """Return the tables of a policy on confidence."""
    problem = policy.problem
    bins = max(len(own) for own in edges) + 1
    positions: Sequence[NDArray[np.integer]] = problem.grid.positions
    columns = len(problem.grid)
    if not policy.recall:  # the last one asked answers: each exit has one loss, below those before
        columns = len(edges)
        positions = [np.full(len(n.losses), columns - 1 - k) for k, n in enumerate(problem.nodes)]
    own = np.zeros((len(edges), bins), np.int32)
    onward = np.full((len(edges), bins, columns), STOP, np.int32)
    for k, position in enumerate(positions):
        own[k, : len(position)] = position
        onward[k, : len(position)] = policy.choices[k]
    return PlainTables(
        bounds=torch.from_numpy(_padded(edges)),
        first=int(policy.choices[-1][0, -1]),
        exit_of=tuple(range(len(edges))),
        own=torch.from_numpy(own),
        onward=torch.from_numpy(onward),
    )


def _belief_tables(fitted: BeliefModel, policy: WalkPolicy, classes: Sequence[str]) -> BeliefTables:
    """Return the tables of a policy on beliefs."""
    belief, steps = fitted.belief, fitted.steps
    if belief.by_class:
        raise ArgumentError(
            "the policy was fitted to separate models, with terms for the classes they predict; a "
            'network needs a fit to its own exits: order = "fixed", or costs of passing'
        )
    known = fitted.codes
    if belief.has_predictions and not any(name in known for name in classes):
        raise ArgumentError(
            f"the policy's classes are {', '.join(list(known)[:5])} ... and the network's are "
            f"{', '.join(classes[:5])} ...: name them as in the trace, with classes="
        )
    leans = np.zeros((len(belief.offsets), len(classes)))
    for k, own in enumerate(belief.offsets):
        leans[k] = [own.get(known.get(name, -1), 0.0) for name in classes]
    shifts = np.zeros((len(steps), len(classes)))
    for s, step in enumerate(steps):
        added = dict(zip(fitted.classes, belief.shifts.get(step, ()), strict=False))
        shifts[s] = [added.get(name, 0.0) for name in classes]
    levels = np.zeros((len(belief.levels), max(len(level) for level in belief.levels)))
    for k, level in enumerate(belief.levels):
        levels[k, : len(level)] = belief.extras[k].levels if k in belief.extras else level
    term_bounds, terms = _terms(belief)
    width = max(len(context_of(step)) for step in steps)
    context = np.full((len(steps), width), -1)
    own_weights = np.zeros((len(steps), width, 3))
    others = np.zeros((len(steps), width, width, 4))
    own_weights[:, :, 0] = np.inf  # padding never answers
    for s, step in enumerate(steps):
        for a, answer in enumerate(context_of(step)):
            context[s, a] = answer
            if belief.certain_last and answer == len(belief.bounds) - 1:
                own_weights[s, a] = (CERTAIN_LOGIT, 0.0, 0.0)
                continue
            weights = belief.weights[step, answer]
            own_weights[s, a] = weights[:3]
            rest = [j for j in range(len(context_of(step))) if j != a]
            if belief.has_predictions:
                others[s, a, rest] = weights[3:].reshape(len(rest), 4)
            else:  # the odds weigh the same in agreement and otherwise
                others[s, a, rest, 1] = others[s, a, rest, 2] = weights[3:]
    onward = np.full((len(steps), max(len(own) for own in fitted.edges) + 1), STOP, np.int32)
    for s in range(len(steps)):
        choice = policy.choices[s]
        onward[s, : len(choice)] = choice[:, 0]
    asked = np.array([max(step) for step in steps])
    if ((onward != STOP) & (asked[onward] <= asked[:, np.newaxis])).any():
        raise ArgumentError("the policy asks exits in another order than the network has")
    return BeliefTables(
        bounds=torch.from_numpy(_padded(belief.bounds)),
        first=int(policy.choices[-1][0, -1]),
        exit_of=tuple(asked.tolist()),
        levels=torch.from_numpy(levels),
        leans=torch.from_numpy(leans),
        context=torch.from_numpy(context),
        own=torch.from_numpy(own_weights),
        others=torch.from_numpy(others),
        edges=torch.from_numpy(_padded(fitted.edges)),
        onward=torch.from_numpy(onward),
        term_bounds=torch.from_numpy(term_bounds),
        terms=torch.from_numpy(terms),
        shifts=torch.from_numpy(shifts),
    )


def _terms(belief: Belief) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bounds of margins and entropies, and their terms; see :class:`BeliefTables`.

    Without an answer the log-odds are those of the lowest confidence alone, so the last term of the
    first column is the difference between the levels there.
    """
    bins = max((len(each) for own in belief.extras.values() for each in own.terms), default=1)
    size = (len(belief.levels), len(BELIEF_FIELDS) if belief.extras else 0)
    bounds, terms = np.full((*size, bins - 1), np.inf), np.zeros((*size, bins + 1))
    for k, own in belief.extras.items():
        terms[k, 0, -1] = belief.levels[k][0] - own.levels[0]
        for name, edges, added in zip(own.names, own.bounds, own.terms, strict=True):
            column = BELIEF_FIELDS.index(name)
            bounds[k, column, : len(edges)] = edges
            terms[k, column, : len(added)] = added
    return bounds, terms


def _padded(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return rows of different lengths as one array, padded with infinity."""
    padded = np.full((len(rows), max(1, *(len(row) for row in rows))), np.inf)
    for k, row in enumerate(rows):
        padded[k, : len(row)] = row
    return padded


def _reached(first: int, onward: list[set[int]]) -> tuple[int, ...]:
    """Return the places that can be reached from the first."""
    found, front = {first}, {first}
    while front:
        front = set().union(*(onward[place] for place in front)) - found - {STOP}
        found |= front
    return tuple(sorted(found))
