"""Times of several ways to answer the same batches, taken in turns."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ttamer.torch.devices import rows_of, wait
from ttamer.torch.runner import Answers
from ttamer.torch.tuning import Timing, timing_of

ROUNDS = 2
"""The turns of each run with CUDA graphs."""


@dataclass(frozen=True)
class Timed:
    """What one run took."""

    times: Timing
    """Its times."""
    joules: float | None
    """Joules per row, where the GPU counts them and turns are long enough to count."""
    answers: list[tuple[torch.Tensor, torch.Tensor]]
    """Per batch the classes answered and the exits asked, where the run has exits."""


def in_turns(runs, batches, *, graphs: bool) -> list[Timed]:
    """Time runs of the same batches; what is first done for a shape must be done.

    With CUDA graphs turns are halves of the batches, so that the GPU's counter of energy, which is
    coarse, can be read; without, single batches, for the host's speed changes.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    answers: list[list[Any]] = [[] for _ in runs]
    joules = [0.0] * len(runs)
    length = -(-len(batches) // ROUNDS) if graphs else 1
    for at in range(0, len(batches), length):
        for k, run in enumerate(runs):
            wait()
            before = joules_so_far()
            for batch in batches[at : at + length]:
                start = time.perf_counter()
                out = run(batch)
                wait()
                seconds[k].append(time.perf_counter() - start)
                if isinstance(out, Answers):
                    answers[k].append((out.logits.argmax(1), out.asked))
                    wait()
            joules[k] += (joules_so_far() or 0.0) - (before or 0.0)
    rows = sum(map(rows_of, batches))
    return [
        Timed(timing_of(took, rows / len(batches)), used / rows if graphs and used else None, some)
        for took, used, some in zip(seconds, joules, answers, strict=True)
    ]


def joules_so_far() -> float | None:
    """Return the energy that the GPU has used, by its own counter; ``None`` without one."""
    found, energy = _counter(), ctypes.c_ulonglong()
    if found is None:
        return None
    library, handle = found
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)):
        return None
    return energy.value / 1e3


@cache
def _counter():
    """Return the library that counts energy, and its name for the GPU."""
    if not torch.cuda.is_available():
        return None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError):
        return None
    return library, handle
