"""Which policy to run: predicted from measured parts, then decided by timing.

Costs per input determine what continuing is worth for one input. The time of a batch also depends
on how many rows leave at each exit: a ramp is run, and waited for, if a single input asks it.
Policies are therefore fitted for several small sets of ramps, the time of a batch with each is
predicted from the profile, and the few best are timed in full, beside the network without ramps.
Where none is faster, the network itself is recommended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ttamer._arguments import require_number, require_whole
from ttamer._numbers import counted
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitting.plans import fit
from ttamer.torch.devices import Precision, by_position, rows_of, wait
from ttamer.torch.early_exit import EarlyExit, Inputs, Value, require_exits
from ttamer.torch.profiling import Profile, full_run, profile, runner_for
from ttamer.torch.runner import Runner, group_sizes
from ttamer.trace.checks import require_trace
from ttamer.trace.spec import Target
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor


# The number of policies that are timed in full.
MAX_TIMED = 4
# The largest number of ramps in a set that grows one by one.
MAX_RAMPS = 3
# The largest number of ramps in the set of all.
MANY_RAMPS = 12
# The share of the network's time below which a policy counts as faster, by two standard errors.
MAX_TIME_SHARE = 0.97
# How often each batch is timed.
REPEATS = 3
# The fewest batches that run before any is timed.
WARM_UPS = 5
# The standard errors that an estimate keeps to spare below the error allowed.
CAUTION = 2.0
# The number of tradeoffs that policies are fitted for.
TRADEOFFS = 60
# The least and the largest number of errors that the whole network costs at a tradeoff.
PRICES = (0.001, 3.0)


@dataclass(frozen=True)
class Timing:
    """The times of batches run one after another, each waited for; in seconds."""

    p50: float
    """The median."""
    p99: float
    """The 99th percentile."""
    mean: float
    """The mean without the slowest hundredth."""
    rows_per_second: float
    """The throughput."""

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy with its predicted time and its error."""

    policy: FittedPolicy
    """The policy."""
    seconds: float
    """The predicted time per batch, with what a call with exits adds once."""
    error: float
    """The error on rows it was not fitted to, by cross-fitting over the trace."""
    ramps: tuple[int, ...]
    """The exits it asks, without the head."""
    spread: float = 0.0
    """The standard error of the difference between its error and the network's own."""


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to run on this machine, for batches of one size.

    >>> from ttamer.torch.tuning import Timing
    >>> slow, fast = Timing(2.0, 2.0, 2.0, 4.0), Timing(1.0, 1.0, 1.0, 8.0)
    >>> found = Recommendation(lambda value: value, None, None, 0.05, 0.05, fast, slow, ())
    >>> found.speed_up
    2.0
    >>> found
    Recommendation(the network itself: 2.00 times as fast, error 5.00% instead of 5.00%)
    """

    run: Callable[[Any], Tensor]
    """A function from inputs to logits."""
    runner: Runner | None
    """The runner of the policy; ``None`` where the network itself is fastest."""
    policy: FittedPolicy | None
    """The policy; ``None`` where the network itself is fastest."""
    error: float
    """The error of the recommendation on rows it was not fitted to, by cross-fitting."""
    full_error: float
    """The error of the network itself on the trace."""
    timing: Timing
    """The times of the recommendation."""
    full_timing: Timing
    """The times of the network itself."""
    tried: tuple[Candidate, ...]
    """The policies that were timed."""

    def __repr__(self) -> str:
        # Not the policy's own costs and error: these may be of another target.
        what = "the network itself" if self.runner is None else ", ".join(self.runner.reached)
        return (
            f"Recommendation({what}: {self.speed_up:.2f} times as fast, error {self.error:.2%} "
            f"instead of {self.full_error:.2%})"
        )

    @property
    def speed_up(self) -> float:
        """How many times faster than the network itself: the ratio of mean times."""
        return self.full_timing.mean / self.timing.mean


def recommend(
    network: EarlyExit,
    trace: Trace,
    inputs: Inputs,
    *,
    batch: int,
    more_error: float = 0.0,
    caution: float = CAUTION,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    graphs: bool = False,
    measured: Profile | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recommendation:
    """Find the fastest way to run a network within an allowance for extra error.

    Args:
        network: The network, on the device where it will run.
        trace: The answers of its exits to inputs it was not trained on, from
            :func:`ttamer.torch.trace_of`.
        inputs: Real inputs to time on, at least one batch.
        batch: The batch size.
        more_error: By how much the error, cross-fitted over the trace, may exceed the network's
            own.
        caution: The number of standard errors that are added to the estimated error. The fastest
            of many policies is chosen, so that with 0 new inputs exceed the allowance more often
            than not; with 2 they rarely do.
        classes: Names of the classes, as in the trace.
        precision: What the network computes in.
        graphs: Run as CUDA graphs.
        measured: A profile at this batch size; by default it is measured first.
        progress: Called with a line of text as the work proceeds.

    Returns:
        The fastest policy with its runner and times, or the network itself where no policy is
        faster.

    Raises:
        ArgumentError: There is less than one batch of inputs, the batch size is less than 1, or
            ``more_error`` or ``caution`` is negative or not finite.

    Example::

        trace = exits.trace_of(network, held_out_loader)
        found = exits.recommend(network, trace, inputs, batch=32, more_error=0.01)
        logits = found.run(batch)
    """
    require_exits(network)
    require_trace(trace, "recommend")
    report = progress or (lambda _: None)
    inputs = by_position(inputs, network.input_names)
    require_whole(batch, "batch", least=1)
    require_number(more_error, "more_error")
    require_number(caution, "caution")
    cut = [part for part in _split(inputs, batch) if rows_of(part) == batch]
    if not cut:
        raise ArgumentError(
            f"inputs has {counted(rows_of(inputs), 'row')} to time on; give at least one batch of "
            f"{batch}"
        )
    if measured is None:
        measured = profile(
            network, cut[0], sizes=(batch,), precision=precision, graphs=graphs, progress=report
        )
    own = float(trace.wrong()[:, -1].mean())
    chosen = search(
        trace, measured, batch, max_error=own + more_error, caution=caution, progress=report
    )
    rule = measured.regrouping()
    runners = [
        runner_for(
            network, each.policy, cut[0], classes=classes, precision=precision, regrouping=rule,
            graphs=graphs,
        )
        for each in chosen
    ]  # fmt: skip
    report(f"timing {counted(len(runners), 'policy')} beside the network")
    full = full_run(network, cut[0], precision=precision, graphs=graphs)
    usual, *seconds = time_each_batch([full, *runners], cut)
    alone, *times = (timing_of(each, batch) for each in (usual, *seconds))
    best = min(range(len(times)), key=lambda k: times[k].mean, default=None)
    if best is None or not clearly_faster(seconds[best], usual):
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
    max_error: float,
    caution: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> list[Candidate]:
    """Return the policies within an error bound with the lowest predicted times, fastest first.

    Sets of ramps grow by one ramp at a time, each time the one that helps most; the set of all
    ramps is tried too. For the largest of them policies are also fitted to the answers of the
    network itself: they change few of these, so that their errors are known more precisely.
    """
    found: dict[tuple[int, ...], Candidate] = {}

    def fastest(ramps: tuple[int, ...], target: Target | None = None) -> Candidate | None:
        """Return the fastest policy for some ramps, and note it where no other asks the same."""
        if progress is not None:
            progress(f"ramps {', '.join(measured.names[k] for k in ramps)}")
        able = [each for each in fitted_for(trace, measured, batch, ramps, target=target)
                if each.error + caution * each.spread <= max_error]  # fmt: skip
        fast = min(able, key=lambda each: each.seconds, default=None)
        if fast is not None:
            known = found.get(fast.ramps, fast)
            found[fast.ramps] = min(fast, known, key=lambda each: each.seconds)
        return fast

    kept: tuple[int, ...] = ()
    exits = range(len(measured.names) - 1)
    for _ in range(min(MAX_RAMPS, len(exits))):
        grown = [tuple(sorted((*kept, ramp))) for ramp in exits if ramp not in kept]
        times = {ramps: fast.seconds for ramps in grown if (fast := fastest(ramps)) is not None}
        if not times:
            break
        kept = min(times, key=lambda ramps: times[ramps])
    every = many_ramps(len(exits))
    if len(exits) > MAX_RAMPS:
        fastest(every)
    if trace.prediction is not None and trace.spec.target == "label":
        for ramps in dict.fromkeys((kept or every, every)):
            fastest(ramps, "last")
    return sorted(found.values(), key=lambda each: each.seconds)[:MAX_TIMED]


def many_ramps(count: int) -> tuple[int, ...]:
    """Return all ramps of this number, or a dozen spread evenly: a policy asks those that pay.

    >>> many_ramps(4), many_ramps(24)[:3]
    ((0, 1, 2, 3), (1, 3, 5))
    """
    chosen = range(1, MANY_RAMPS + 1)
    return tuple(range(count)) if count <= MANY_RAMPS else tuple(
        round(k * count / MANY_RAMPS) - 1 for k in chosen
    )  # fmt: skip


def fitted_for(
    trace: Trace,
    measured: Profile,
    batch: int,
    ramps: tuple[int, ...],
    *,
    target: Target | None = None,
) -> list[Candidate]:
    """Fit a ladder for these ramps and the head, and predict the time of each policy.

    ``target``: what the policies are fitted to, by default the trace's own. Errors are of the
    trace's own in any case: those on its rows, and what cross-fitting adds to those of the target.
    """
    spec = measured.costs(batch).spec(target=target or trace.spec.target, skip=True)
    places = np.array([*ramps, len(spec) - 1])
    fewer = trace.with_spec(spec).restrict([spec.names[k] for k in places])
    ladder = fit(fewer, order="skip", tradeoffs=_tradeoffs())
    found, rows = [], np.arange(len(fewer))
    wrong, fitted = fewer.wrong(trace.spec.target), fewer.wrong()
    for policy, played in zip(ladder, ladder.play_all(fewer), strict=True):
        error = float("inf") if policy.error is None else policy.error
        error += float(wrong[rows, played.answer].mean() - fitted[rows, played.answer].mean())
        asked = np.zeros((len(fewer), len(spec)), bool)
        asked[:, places] = played.asked
        seconds = predicted(asked, places[played.last], measured, batch)
        used = tuple(np.flatnonzero(asked[:, :-1].any(axis=0)).tolist())
        difference = wrong[rows, played.answer].astype(float) - wrong[:, -1]
        spread = float(difference.std() / np.sqrt(len(fewer)))
        found.append(Candidate(policy, seconds, error, used, spread))
    return found


def predicted(
    asked: NDArray[np.bool_], last: NDArray[np.intp], measured: Profile, batch: int
) -> float:
    """Return the expected seconds of a batch whose rows behave as those of a trace.

    ``asked`` has shape (T, exits); ``last``, the exit asked last, has shape (T,). The time is that
    of every segment for the rows that continue, plus that of every exit that any row asks, plus
    what a call with exits adds once.
    """
    rule, sizes = measured.regrouping(), group_sizes(batch)
    at = measured.sizes.index(batch)
    total, size = measured.per_call[at], batch
    for k in range(len(measured.names)):
        going = float((last >= k).mean())
        if going == 0:
            break
        some = 1 - (1 - going) ** batch  # the probability that any row of the batch continues
        left = going * batch / some  # the expected number of such rows, given that there is one
        size = min(size, next(each for each in sizes if each >= left - 1e-9))
        total += some * rule.time(k, size)
        total += (1 - (1 - float(asked[:, k].mean())) ** batch) * measured.asking[k][at]
    return total


def time_batches(
    run: Callable[[Any], object],
    batches: Sequence[Value],
    *,
    repeats: int = REPEATS,
    warm_ups: int = WARM_UPS,
) -> Timing:
    """Run batches one after another, waiting for each, and time them.

    The slowest hundredth is left out of the mean: it is due to the machine.
    """
    (seconds,) = time_each_batch([run], batches, repeats=repeats, warm_ups=warm_ups)
    return timing_of(seconds, sum(rows_of(batch) for batch in batches) / len(batches))


def time_each_batch(
    runs: Sequence[Callable[[Any], object]],
    batches: Sequence[Value],
    *,
    repeats: int = REPEATS,
    warm_ups: int = WARM_UPS,
    keep: Callable[[int, object], None] | None = None,
) -> NDArray[np.float64]:
    """Time several ways to run the same batches, each batch by all of them before the next.

    The machine's speed changes, and so all see the same. ``keep`` is called with the number of a
    run and what it returned, outside of what is timed.

    Returns:
        Shape (runs, repeats times batches): seconds.
    """
    for run in runs:
        for _ in range(-(-warm_ups // len(batches))):
            for batch in batches:
                run(batch)
    wait()
    seconds = np.empty((len(runs), repeats * len(batches)))
    for at, batch in enumerate([*batches] * repeats):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            out = run(batch)
            wait()
            seconds[k, at] = time.perf_counter() - start
            if keep is not None:
                keep(k, out)
                wait()
    return seconds


def clearly_faster(mine: NDArray[np.float64], its: NDArray[np.float64]) -> bool:
    """Return whether times are below the network's on the same batches, by two standard errors.

    >>> its = np.array([1.0, 1.2, 1.1, 1.3, 1.2])
    >>> clearly_faster(0.9 * its, its), clearly_faster(np.array([0.5, 1.6, 0.6, 1.5, 1.7]), its)
    (True, False)
    """
    usual = (mine <= _slowest_usual(mine)) & (its <= _slowest_usual(its))
    saved = (MAX_TIME_SHARE * its - mine)[usual]
    if len(saved) < 2:
        return bool(mine.mean() < MAX_TIME_SHARE * its.mean())
    return bool(saved.mean() > 2 * saved.std(ddof=1) / np.sqrt(len(saved)))


def timing_of(seconds: Sequence[float] | NDArray[np.float64], rows: float) -> Timing:
    """Return the timing of batches of some rows each, without the slowest hundredth."""
    seconds = np.asarray(seconds)
    mean = float(seconds[seconds <= _slowest_usual(seconds)].mean())
    return Timing(
        p50=float(np.quantile(seconds, 0.5)),
        p99=float(np.quantile(seconds, 0.99)),
        mean=mean,
        rows_per_second=rows / mean,
    )


def _slowest_usual(seconds: NDArray[np.float64]) -> float:
    """Return the largest of some times without the slowest hundredth: one of them at least."""
    return float(np.sort(seconds)[max(1, int(0.99 * len(seconds))) - 1])


def _tradeoffs() -> list[float]:
    """Return tradeoffs from cautious to fast."""
    prices = np.geomspace(*PRICES, TRADEOFFS)
    return sorted(float(1 / (1 + price)) for price in prices)


def _split(value: Value, size: int) -> list[Value]:
    """Split a value into batches."""
    if isinstance(value, torch.Tensor):
        return list(torch.split(value, size))
    return list(zip(*(torch.split(tensor, size) for tensor in value), strict=True))
