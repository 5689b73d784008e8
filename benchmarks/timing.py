"""Timing several calls against each other on a noisy machine.

What is timed is the thread's CPU time, page faults included: all that is timed here runs on one
thread and waits for nothing, so on an idle machine this is the time on the wall, and on a busy one
it leaves out the waiting for a core.

Other work can still halve the machine's speed for seconds at a time. So one sample of each call is
taken per round, in an order that changes, and calls are compared *within* rounds: a ratio is the
median of the rounds' ratios, with its quartiles. The ratio of two best samples is not used: the two
may come from different rounds, one quiet and one disturbed, and then says nothing.
"""

from __future__ import annotations

import gc
import random
import statistics
from dataclasses import dataclass
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Fresh", "Ratio", "Samples", "interleaved", "rounds_of"]

SAMPLE = 2e-3
"""A call shorter than this many seconds is repeated within a sample."""
LONG = 1.0
"""A call longer than this many seconds is warmed once."""
MAX_FRESH = 50
"""At most this many calls that use up what they work on are made ready for one sample."""


@dataclass(frozen=True)
class Fresh:
    """A call that uses up what it works on: ``make`` returns it ready to run, untimed."""

    make: Callable[[], Callable[[], object]]


class Ratio(NamedTuple):
    """How many times longer one call takes than another, over the rounds of one run."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Samples:
    """CPU seconds per call: for each name, one sample per round."""

    taken: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median time of a call."""
        return statistics.median(self.taken[name])

    def best(self, name: str) -> float:
        """Return the least time of a call: to be read, not to be compared."""
        return min(self.taken[name])

    def ratio(self, name: str, *others: str, less: str | None = None) -> Ratio:
        """Compare a call with another, or with the faster of several, round by round.

        ``less`` names a call whose time is first taken off both: the loop around them.
        """
        off = self.taken[less] if less else [0.0] * len(self.taken[name])
        peers = [min(row) for row in zip(*(self.taken[other] for other in others), strict=True)]
        rounds = [
            (mine - bare) / (peer - bare)
            for mine, peer, bare in zip(self.taken[name], peers, off, strict=True)
        ]
        low, middle, high = statistics.quantiles(rounds, n=4)
        return Ratio(middle, low, high)


def interleaved(calls: Mapping[str, Callable[[], object] | Fresh], rounds: int = 31) -> Samples:
    """Time calls, one sample of each per round; short ones are repeated within a sample."""
    loops = {name: _loops(call) for name, call in calls.items()}

    def sample(name: str) -> float:
        call, count = calls[name], loops[name]
        turns = [call.make() for _ in range(count)] if isinstance(call, Fresh) else [call] * count
        start = thread_time()
        for turn in turns:
            turn()
        return (thread_time() - start) / count

    return rounds_of(sample, list(calls), rounds)


def rounds_of(sample: Callable[[str], float], names: list[str], rounds: int) -> Samples:
    """Take one sample of each name per round, in an order that changes."""
    shuffle = random.Random(0).shuffle  # noqa: S311 - an order, not a secret
    samples = Samples({name: [] for name in names})
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(names)
            for name in names:
                samples.taken[name].append(sample(name))
    finally:
        gc.enable()
    return samples


def _loops(call: Callable[[], object] | Fresh) -> int:
    """Warm a call (caches, lazily loaded libraries, the heap) and count those of one sample."""
    spent = []
    for _ in range(4):
        turn = call.make() if isinstance(call, Fresh) else call
        start = thread_time()
        turn()
        spent.append(thread_time() - start)
        if spent[-1] > LONG:
            break
    count = max(1, int(SAMPLE / max(min(spent), 1e-8)))
    return min(count, MAX_FRESH) if isinstance(call, Fresh) else count
