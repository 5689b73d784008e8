"""Times of several ways to answer the same batches, taken in turns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.torch.devices import rows_of, wait
from ttamer.torch.runner import Answers
from ttamer.torch.tuning import Timing, timing_of

if TYPE_CHECKING:
    import torch

ROUNDS = 2
"""The turns of each run with CUDA graphs."""


@dataclass(frozen=True)
class Timed:
    """What one run took."""

    times: Timing
    """Its times."""
    seconds: np.ndarray
    """The time of each batch."""
    answers: list[tuple[torch.Tensor, torch.Tensor]]
    """Per batch the classes answered and the exits asked, where the run has exits."""


def in_turns(runs, batches, *, graphs: bool) -> list[Timed]:
    """Time runs of the same batches; what is first done for a shape must be done.

    With CUDA graphs turns are halves of the batches; without, single batches, for the host's speed
    changes.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    answers: list[list[Any]] = [[] for _ in runs]
    length = -(-len(batches) // ROUNDS) if graphs else 1
    for at in range(0, len(batches), length):
        for k, run in enumerate(runs):
            wait()
            for batch in batches[at : at + length]:
                start = time.perf_counter()
                out = run(batch)
                wait()
                seconds[k].append(time.perf_counter() - start)
                if isinstance(out, Answers):
                    answers[k].append((out.logits.argmax(1), out.asked))
                    wait()
    rows = rows_of(batches[0])
    return [Timed(timing_of(took, rows), np.array(took), some)
            for took, some in zip(seconds, answers, strict=True)]  # fmt: skip
