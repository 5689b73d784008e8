"""Fitting Parquet files on a cluster, bit for bit as a local streaming fit would.

There are two rounds of tasks, each over all blocks (:mod:`ttamer.ray.parquet`). The first draws a
uniform sample: a row's key is a function of the seed and of its number among all rows, so every
task can compute which of its rows are in the sample. Plan and states are chosen from the sample, in
this process. The second round counts. Counts are added, and digests joined, in the order of the
blocks, so the result does not depend on the number of workers, on the order in which they finish,
or on tasks that are repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import ray
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, TraceError
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting import streaming
from ttamer.fitting.counts import Counts, Pair
from ttamer.fitting.options import FitKeywords
from ttamer.ray.cluster import RETRIES, cpus, in_order, joined
from ttamer.ray.parquet import Paths, Stretch, files_of, spec_of, stretches
from ttamer.trace.checks import Agreement
from ttamer.trace.classes import ClassCodes
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

# The largest number of blocks of a task, unless row groups are longer.
BLOCKS_PER_TASK = 8
# The number of tasks per core to aim for, so that cores do not wait long for the last task.
TASKS_PER_CORE = 4
# The number of standard deviations by which the first draw of the sample is larger.
SPARE = 6.0
# Below this number of rows a local fit is faster, measured with two workers by
# experiments/ray/growth.py.
MIN_ROWS = 4_000_000

_log = logging.getLogger(__name__)


def fit_parquet(
    paths: Paths,
    cascade: CascadeSpec | str | os.PathLike[str] | None = None,
    *,
    address: str | None = None,
    sample_rows: int | None = None,
    **options: Unpack[FitKeywords],
) -> FittedLadder:
    """Fit Parquet files of any length on a Ray cluster.

    The result is that of :func:`ttamer.fitting.fit_file`, bit for bit. The work of a worker that
    dies is repeated by another::

        ladder = fit_parquet(["day1.parquet", "day2.parquet"], "cascade.toml", address="auto")

    Args:
        paths: A file, a folder, or a list of them, which count as one log in that order. Every
            machine of the cluster must see them under the same names.
        cascade: The cascade; by default the one inside the first file.
        address: The address of the cluster, where this process is not connected to one: see
            :func:`ttamer.ray.joined`.
        sample_rows: The number of rows from which the plan is chosen, as for
            :func:`ttamer.fitting.fit_batches`.
        **options: The fields of :class:`~ttamer.fitting.FitOptions`, but ``hold_out``.

    Returns:
        The fitted ladder.

    Raises:
        TraceError: Where a file cannot be read.
        ArgumentError: Where an option is out of range.
        WorkLost: Where a task fails repeatedly.
    """
    chosen = streaming.streamed(options)
    say = chosen.report
    files = files_of(paths)
    spec = spec_of(cascade, files[0])
    with joined(address):
        workers = cpus()
        work = stretches(files, spec, rows=streaming.BATCH_ROWS, blocks=1)
        rows = work[-1].first + work[-1].rows
        if rows < MIN_ROWS:
            _log.warning(
                "%d rows on %d workers: a local fit is probably faster; use "
                "ttamer.fitting.fit_file (ttamer fit --stream)", rows, workers,
            )  # fmt: skip
        work = _grouped(work, workers)
        most = streaming.sample_size(sample_rows, chosen)
        sample = _sample(work, rows, most, chosen.seed, say)
        planned = streaming.Planned.of(sample, chosen)
        if planned.plan.belief == "full":
            return planned.belief_ladder(rows, _digest(work))
        if planned.sample is not planned.as_read:
            raise ArgumentError(
                "latency_weight on a cluster needs belief='full': other beliefs count costs alone"
            )
        counts, digest = _count(work, planned.quantiser, planned.pairs, rows, say)
    return planned.ladder(counts, digest)


def _grouped(work: Sequence[Stretch], workers: int) -> list[Stretch]:
    """Join neighbours, so that tasks are not too short and every core has several."""
    blocks = sum(len(each.blocks) for each in work)
    most = min(BLOCKS_PER_TASK, math.ceil(blocks / (TASKS_PER_CORE * workers)))
    found = [work[0]]
    for each in work[1:]:
        last = found[-1]
        if each.file == last.file and len(last.blocks) + len(each.blocks) <= most:
            found[-1] = dataclasses.replace(last, cuts=last.cuts + each.cuts[1:])
        else:
            found.append(each)
    return found


def _sample(
    work: Sequence[Stretch], rows: int, most: int, seed: int, say: Callable[[str], None]
) -> Trace:
    """Return the rows of the smallest keys, in their order: a uniform sample."""
    share = 1.0 if rows <= most else min(1.0, (most + SPARE * most**0.5 + SPARE**2) / rows)
    while True:
        parts: list[Trace] = []
        keys: list[NDArray[np.float64]] = []
        sampled = partial(_submit_sampling, seed, share)
        for part, its_keys in in_order(sampled, work):
            if part is not None:
                parts.append(part)
                keys.append(its_keys)
            say(f"sampled {sum(map(len, keys))} of {rows} rows")
        found = np.concatenate(keys) if keys else np.empty(0)
        if len(found) >= min(most, rows):
            break
        share = min(1.0, 2 * share)
    kept = Trace.concat(parts)
    if rows > most:
        inside = np.argpartition(found, most)[:most] if len(found) > most else np.arange(most)
        kept = kept.take(np.sort(inside))
    return kept


def _submit_sampling(seed: int, share: float, stretch: Stretch) -> Any:
    return _sampled.remote(stretch, seed, share)


@ray.remote(max_retries=RETRIES)
def _sampled(
    stretch: Stretch, seed: int, share: float
) -> tuple[Trace | None, NDArray[np.float64] | None]:
    """Return the rows of a stretch whose keys are below a share, and their keys."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, 1]))  # the draws of the local fit
    bits.advance(stretch.first + stretch.cuts[0])  # one number for each row
    generator = np.random.Generator(bits)
    keys = [generator.random(stop - start) for start, stop in stretch.blocks]
    inside = [np.flatnonzero(each < share) for each in keys]
    wanted = [rows.size > 0 for rows in inside]
    if not any(wanted):
        return None, None
    picks = [(rows, key[rows]) for rows, key in zip(inside, keys, strict=True) if rows.size]
    parts = [
        part if len(rows) == len(part) else part.take(rows)
        for part, (rows, _) in zip(stretch.read(wanted), picks, strict=True)
    ]
    return Trace.concat(parts), np.concatenate([key for _, key in picks])


def _digest(work: Sequence[Stretch]) -> str:
    """Return the digest of all rows, made in their order."""
    digest = hashlib.sha256()
    for _, its_digest in _read(work, None):
        digest.update(its_digest.encode())
    return f"batches:{digest.hexdigest()}"


def _count(
    work: Sequence[Stretch],
    quantiser: Quantiser,
    pairs: list[Pair],
    rows: int,
    say: Callable[[str], None],
) -> tuple[Counts, str]:
    """Return the counts of all rows and their digest, both in the order of the rows."""
    counts: Counts | None = None
    digest = hashlib.sha256()
    for more, its_digest in _read(work, ray.put((quantiser, pairs))):
        counts = more if counts is None else counts + more
        digest.update(its_digest.encode())
        say(f"counted {int(counts.rows)} of {rows} rows")
    if counts is None or counts.rows != rows:
        raise TraceError("the second reading gave other rows than the first: the file has changed")
    return counts, f"batches:{digest.hexdigest()}"


def _read(work: Sequence[Stretch], states: Any) -> Iterator[tuple[Any, str]]:
    """Yield the counts and the digest of every block, in order, and check the classes.

    Without ``states``, a reference to a quantiser and pairs, nothing is counted.
    """
    agreements = _Agreements()
    results = in_order(lambda piece: _counted.remote(piece, states), work)
    for piece, (found, classes) in zip(work, results, strict=True):
        agreements.note(piece, classes)
        yield from found
    agreements.check()


@ray.remote(max_retries=RETRIES)
def _counted(
    stretch: Stretch, states: tuple[Quantiser, list[Pair]] | None
) -> tuple[list[tuple[Counts | None, str]], _Classes]:
    """Return the counts and the digest of each block, and the classes that occur."""
    agreement = Agreement()
    classes: tuple[str, ...] = ()
    found = []
    for block in stretch.read():
        found.append((None if states is None else Counts.of(block, *states), block.digest))
        agreement.add(block)
        classes = block.classes
    return found, _classes_of(agreement, classes)


def _classes_of(agreement: Agreement, classes: tuple[str, ...]) -> _Classes:
    """Return the classes that occur; ``None`` once a label was predicted."""
    if agreement.found:
        return None
    return (
        [classes[code] for code in sorted(agreement.predicted)],
        [classes[code] for code in sorted(agreement.labels)],
    )


# The classes predicted, and the classes of labels; None once a label was predicted.
_Classes = tuple[list[str], list[str]] | None


class _Agreements:
    """Whether predictions and labels share a class, file by file."""

    def __init__(self) -> None:
        self._piece: Stretch | None = None
        self._start()

    def _start(self) -> None:
        """Begin a file."""
        self._codes, self._agreement = ClassCodes(), Agreement()

    def note(self, piece: Stretch, classes: _Classes) -> None:
        """Take one more stretch into account; with the next file the last one is checked."""
        if self._piece is not None and self._piece.file != piece.file:
            self.check()
            self._start()
        self._piece = piece
        mine = self._agreement
        if classes is None:
            mine.found = True
        elif not mine.found:
            mine.predicted |= {self._codes.code(text) for text in classes[0]}
            mine.labels |= {self._codes.code(text) for text in classes[1]}
            mine.found = not mine.predicted.isdisjoint(mine.labels)

    def check(self) -> None:
        """Refuse a file in which no label was ever predicted."""
        if self._piece is not None and self._piece.layout.compares_classes:
            self._agreement.check(self._codes.classes, self._piece.layout.place)
