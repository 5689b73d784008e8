"""Which policy to run: predicted from measured parts, and then decided by the clock.

Costs per input say what going on is worth to one input. What a batch takes also depends on how many
leave when: a ramp is run, and waited for, if a single input asks it. So policies are fitted for
several small sets of ramps, what a batch would take with each is predicted from the profile, and
the few best are timed whole, beside the network as it was. It is what is recommended where nothing
beats it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttamer.errors import ArgumentError
from ttamer.fitting.plans import fit
from ttamer.torch.devices import rows_of, wait
from ttamer.torch.profiling import full_run, profile, runner_for
from ttamer.torch.runner import group_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.torch.devices import Precision
    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.torch.profiling import Profile
    from ttamer.torch.runner import Runner
    from ttamer.trace.trace import Trace

__all__ = ["Candidate", "Recommendation", "Timing", "predicted", "recommend", "time_batches"]

TRIED = 4
"""Policies that are timed whole."""
MOST_RAMPS = 3
ENOUGH = 0.97
"""What a policy may take of the network's time to be worth it: less is within the noise."""
RUNGS = 48


@dataclass(frozen=True)
class Timing:
    """How long batches took, one after another, each waited for; in seconds."""

    p50: float
    p99: float
    mean: float
    rows_per_second: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy, with what it would take and how often it would err."""

    policy: FittedPolicy
    seconds: float
    """Predicted, per batch."""
    error: float
    """On the trace."""
    ramps: tuple[int, ...]
    """The exits it asks, but for the head."""


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to run on this machine, for batches of one size."""

    run: Callable[[Any], Tensor]
    """From inputs to logits."""
    runner: Runner | None
    """What runs the policy; ``None`` where the network as it was is fastest."""
    policy: FittedPolicy | None
    error: float
    """Of the policy, on the trace."""
    full_error: float
    timing: Timing
    full_timing: Timing
    tried: tuple[Candidate, ...]
    """The policies that were timed."""

    @property
    def speed_up(self) -> float:
        """How many times faster than the network as it was: the ratio of mean times."""
        return self.full_timing.mean / self.timing.mean


def recommend(
    network: EarlyExit,
    trace: Trace,
    inputs: Value,
    *,
    batch: int,
    more_error: float = 0.0,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    graphs: bool = False,
    measured: Profile | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recommendation:
    """Find the fastest way to run a network that errs at most so much more than it does alone.

    Args:
        network: Where it will run, as it will run.
        trace: What its exits say of inputs it was not trained on: :func:`ttamer.torch.trace_of`.
        inputs: Real ones to time on, some batches of them.
        batch: How many go at a time.
        more_error: By how much the error on the trace may exceed the full network's.
        classes: Names of the classes, as the trace has them.
        precision: What the network computes in.
        graphs: Run as CUDA graphs.
        measured: A profile made before; by default it is made now.
        progress: Called with a line of text as the work moves on.
    """
    say = progress or (lambda _: None)
    cut = [part for part in _split(inputs, batch) if rows_of(part) == batch]
    if not cut:
        raise ArgumentError(
            f"there are {rows_of(inputs)} inputs to time on; bring at least one batch of {batch}"
        )
    if measured is None:
        measured = profile(
            network, cut[0], sizes=(batch,), precision=precision, graphs=graphs, progress=say
        )
    own = float(trace.wrong()[:, -1].mean())
    chosen = search(trace, measured, batch, most_error=own + more_error, progress=say)
    rule = measured.regrouping()
    runners = [
        runner_for(
            network, each.policy, cut[0], classes=classes, precision=precision, regrouping=rule,
            graphs=graphs,
        )
        for each in chosen
    ]  # fmt: skip
    say(f"timing {len(runners)} policies beside the network")
    full = full_run(network, cut[0], precision=precision, graphs=graphs)
    alone = time_batches(full, cut)
    times = [time_batches(run, cut) for run in runners]
    again = time_batches(full, cut)
    alone = min(alone, again, key=lambda timing: timing.mean)
    best = min(range(len(times)), key=lambda k: times[k].mean, default=None)
    if best is None or times[best].mean > ENOUGH * alone.mean:
        return Recommendation(full, None, None, own, own, alone, alone, tuple(chosen))
    runner = runners[best]
    return Recommendation(
        lambda value: runner(value).logits,
        runner, chosen[best].policy, chosen[best].error, own, times[best], alone, tuple(chosen),
    )  # fmt: skip


def search(
    trace: Trace,
    measured: Profile,
    batch: int,
    *,
    most_error: float,
    progress: Callable[[str], None] | None = None,
) -> list[Candidate]:
    """Return the policies of least predicted time that err at most so much, soonest first.

    Sets of ramps grow one at a time, each time by the one that helps most.
    """
    found: list[Candidate] = []
    kept: tuple[int, ...] = ()
    exits = range(len(measured.names) - 1)
    for _ in range(min(MOST_RAMPS, len(exits))):
        best: Candidate | None = None
        grown = kept
        for ramp in exits:
            if ramp in kept:
                continue
            ramps = tuple(sorted((*kept, ramp)))
            if progress is not None:
                progress(f"ramps {', '.join(measured.names[k] for k in ramps)}")
            able = [each for each in fitted_for(trace, measured, batch, ramps)
                    if each.error <= most_error]  # fmt: skip
            fast = min(able, key=lambda each: each.seconds, default=None)
            if fast is not None and (best is None or fast.seconds < best.seconds):
                best, grown = fast, ramps
            found += [] if fast is None or fast.ramps in {each.ramps for each in found} else [fast]
        if best is None:
            break
        kept = grown
    found.sort(key=lambda each: each.seconds)
    return found[:TRIED]


def fitted_for(
    trace: Trace, measured: Profile, batch: int, ramps: tuple[int, ...]
) -> list[Candidate]:
    """Fit a ladder for these ramps and the head alone, and predict what its policies take."""
    spec = measured.costs(batch).spec(target=trace.spec.target, skip=True)
    places = np.array([*ramps, len(spec) - 1])
    fewer = trace.with_spec(spec).restrict([spec.names[k] for k in places])
    ladder = fit(fewer, order="skip", tradeoffs=_tradeoffs())
    wrong = fewer.wrong()
    rows = np.arange(len(fewer))
    found = []
    for policy, played in zip(ladder, ladder.play_all(fewer), strict=True):
        error = float(wrong[rows, played.answer].mean())
        asked = np.zeros((len(fewer), len(spec)), bool)
        asked[:, places] = played.asked
        seconds = predicted(asked, places[played.last], measured, batch)
        used = tuple(np.flatnonzero(asked[:, :-1].any(axis=0)).tolist())
        found.append(Candidate(policy, seconds, error, used))
    return found


def predicted(
    asked: NDArray[np.bool_], last: NDArray[np.intp], measured: Profile, batch: int
) -> float:
    """Return the seconds a batch takes when its rows do on average as those of a trace.

    ``asked`` has shape (T, exits), ``last``, the exit asked last, shape (T,). Every segment takes
    what it takes for the rows that still go on, and every exit that somebody asks what asking it
    adds.
    """
    rule, sizes = measured.regrouping(), group_sizes(batch)
    at = measured.sizes.index(batch)
    total, size = 0.0, batch
    for k in range(len(measured.names)):
        going = float((last >= k).mean())
        if going == 0:
            break
        some = 1 - (1 - going) ** batch  # the chance that any row of the batch is still there
        left = going * batch / some  # how many are, if any
        size = min(size, next(each for each in sizes if each >= left - 1e-9))
        total += some * rule.time(k, size)
        total += (1 - (1 - float(asked[:, k].mean())) ** batch) * measured.asking[k][at]
    return total


def time_batches(
    run: Callable[[Any], object], batches: Sequence[Value], *, repeats: int = 3, warm_ups: int = 5
) -> Timing:
    """Run batches one after another, waiting for each, and time them.

    What takes longest, one in a hundred, is left out of the mean: it is the machine's own doing.
    """
    for _ in range(max(1, warm_ups // len(batches))):
        for batch in list(batches):
            run(batch)
    wait()
    seconds, rows = [], 0
    for _ in range(repeats):
        for batch in batches:
            start = time.perf_counter()
            run(batch)
            wait()
            seconds.append(time.perf_counter() - start)
            rows += rows_of(batch)
    usual = np.sort(seconds)[: max(1, int(0.99 * len(seconds)))]
    return Timing(
        p50=float(np.quantile(seconds, 0.5)),
        p99=float(np.quantile(seconds, 0.99)),
        mean=float(usual.mean()),
        rows_per_second=rows / len(seconds) / float(usual.mean()),
    )


def _tradeoffs() -> list[float]:
    """Return tradeoffs that price the whole network from a hundredth of an error to three."""
    prices = np.geomspace(0.01, 3.0, RUNGS)
    return sorted(float(1 / (1 + price)) for price in prices)


def _split(value: Value, size: int) -> list[Value]:
    if isinstance(value, torch.Tensor):
        return list(torch.split(value, size))
    return list(zip(*(torch.split(tensor, size) for tensor in value), strict=True))
