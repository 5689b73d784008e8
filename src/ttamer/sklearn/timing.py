"""What answering takes on the clock: so much per call, and so much per row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[Any], object]


class CallTiming(NamedTuple):
    """The time of a call, in microseconds.

    >>> CallTiming(100.0, 2.0).of(32)
    164.0
    """

    # What a call takes, however many rows it has
    per_call: float
    per_row: float

    def of(self, rows: int) -> float:
        """Return the time of a call with some rows."""
        return self.per_call + self.per_row * rows

    @classmethod
    def through(cls, sizes: Sequence[int], times: Sequence[float]) -> CallTiming:
        """Return the line of least relative error through times of calls with some rows.

        >>> [round(number, 3) for number in CallTiming.through([1, 8, 64], [12.0, 26.0, 138.0])]
        [10.0, 2.0]
        """
        rows, seconds = np.array(sizes, float), np.array(times, float)
        columns = np.stack([1 / seconds, rows / seconds], axis=1)
        per_call, per_row = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
        if per_call < 0 or per_row < 0:  # noise: the time is in proportion, or the same for all
            column = int(per_call < 0)
            share = columns[:, column].sum() / (columns[:, column] ** 2).sum()
            per_call, per_row = (0.0, share) if column else (share, 0.0)
        return cls(float(per_call), float(per_row))


def clock(works: Sequence[Work], batches: Sequence[Any]) -> list[float]:
    """Return the microseconds of each work per batch, warm: the mean of the least of each batch."""
    times = np.full((len(works), len(batches)), np.inf)
    start, turns = time.perf_counter(), 0
    # The machine's speed changes: works take turns, and of at least three turns, and a tenth of a
    # second, the fastest is the least disturbed. The first one warms caches up and does not count.
    while turns < 4 or (time.perf_counter() - start < 0.1 and turns < 50):
        for column, batch in enumerate(batches):
            for row, work in enumerate(works):
                before = time.perf_counter()
                work(batch)
                if turns:
                    times[row, column] = min(times[row, column], time.perf_counter() - before)
        turns += 1
    return [float(microseconds) for microseconds in 1e6 * times.mean(axis=1)]


def timed(
    works: Mapping[str, Work], samples: Mapping[int, Sequence[Any]]
) -> tuple[dict[str, CallTiming], dict[int, list[float]]]:
    """Return the timing of each work, and what was measured, by the size of batches."""
    times = {size: clock([*works.values()], batches) for size, batches in samples.items()}
    columns = zip(*times.values(), strict=True)
    lines = {
        name: CallTiming.through([*times], column)
        for name, column in zip(works, columns, strict=True)
    }
    return lines, times
