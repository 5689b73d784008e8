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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ttamer._checks import counted, require_number, require_whole
from ttamer.cascade import Target
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedPolicy
from ttamer.torch.devices import Inputs, Precision, Value, by_position, changed, rows_of, wait
from ttamer.torch.early_exit import EarlyExit, require_exits
from ttamer.torch.profiling import Profile, full_run, profile, runner_for
from ttamer.torch.runner import Runner, group_sizes
from ttamer.trace.checks import require_trace
from ttamer.trace.losses import complete_losses
from ttamer.trace.trace import Trace

# The largest number of ramps in a set that grows one by one, and in the set of all.
MAX_RAMPS, MANY_RAMPS = 3, 12


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
class Tuning:
    """What to run on this machine, for batches of one size.

    >>> slow, fast = np.array([2.0, 2.0]), np.array([1.0, 1.0])
    >>> advice = Tuning(lambda value: value, None, None, 0.05, 0.05, fast, slow)
    >>> advice
    Tuning(the network itself: 2.00 times as fast, error 5.00% instead of 5.00%)
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
    seconds: NDArray[np.float64]
    """The time of each batch, waited for."""
    full_seconds: NDArray[np.float64]
    """The times of the network itself on the same batches."""

    def __repr__(self) -> str:
        # Not the policy's own costs and error: these may be of another target.
        what = "the network itself" if self.runner is None else ", ".join(self.runner.reached)
        return (
            f"Tuning({what}: {self.speed_up:.2f} times as fast, error {self.error:.2%} "
            f"instead of {self.full_error:.2%})"
        )

    @property
    def speed_up(self) -> float:
        """How many times faster than the network itself: the ratio of mean times.

        Each is without its slowest hundredth, which is due to the machine.
        """
        full, policy = (
            float(times[times <= _slowest_usual(times)].mean())
            for times in (self.full_seconds, self.seconds)
        )
        return full / policy


def recommend(
    network: EarlyExit,
    trace: Trace,
    inputs: Inputs,
    *,
    batch: int,
    more_error: float = 0.0,
    caution: float = 2.0,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    graphs: bool = False,
    measured: Profile | None = None,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
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
        advice = exits.recommend(network, trace, inputs, batch=32, more_error=0.01)
        logits = advice.run(batch)
    """
    require_exits(network)
    require_trace(trace, "recommend")
    report = progress or (lambda _: None)
    inputs = by_position(inputs, network.input_names)
    require_whole(batch, "batch", least=1)
    require_number(more_error, "more_error")
    require_number(caution, "caution")
    starts = range(0, rows_of(inputs) - batch + 1, batch)
    batches = [changed(inputs, lambda part, k=k: part[k : k + batch]) for k in starts]  # type: ignore[misc]
    if not batches:
        raise ArgumentError(
            f"inputs has {counted(rows_of(inputs), 'row')} to time on; give at least one batch of "
            f"{batch}",
            param="inputs",
        )
    how: dict[str, Any] = {"precision": precision, "graphs": graphs}
    if measured is None:
        measured = profile(network, batches[0], sizes=(batch,), progress=report, **how)
    full_error = float(complete_losses(trace)[:, -1].mean())
    full = full_run(network, batches[0], **how)
    candidates = search(trace, measured, batch, full_error + more_error, caution, report)
    how["classes"] = classes
    runners = [runner_for(network, c.policy, batches[0], **how) for c in candidates]
    report(f"timing {counted(len(runners), 'policy')} beside the network")
    alone, *seconds = time_each_batch([full, *runners], batches)
    tried = [
        Tuning(_logits_of(runner), runner, c.policy, c.error, full_error, times, alone)
        for runner, c, times in zip(runners, candidates, seconds, strict=True)
    ]
    best = max(tried, key=lambda tuning: tuning.speed_up, default=None)
    # The best of several times is the luckiest, too: it must be clearly below the network's.
    if best is None or not clearly_faster(best.seconds, alone):
        return Tuning(full, None, None, full_error, full_error, alone, alone)
    return best


def _logits_of(runner: Runner) -> Callable[[Any], Tensor]:
    return lambda inputs: runner(inputs).logits


def search(
    trace: Trace,
    measured: Profile,
    batch: int,
    max_error: float,
    caution: float = 0.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Candidate]:
    """Return the policies within an error bound with the lowest predicted times, fastest first.

    Sets of ramps grow by one ramp at a time, each time the one that helps most; the set of all
    ramps is tried too. For the largest of them policies are also fitted to the answers of the
    network itself: they change few of these, so that their errors are known more precisely.
    """
    best: dict[tuple[int, ...], Candidate] = {}

    def fastest(ramps: tuple[int, ...], target: Target | None = None) -> Candidate | None:
        """Return the fastest policy for some ramps, and note it unless a faster asks the same."""
        progress(f"ramps {', '.join(measured.names[k] for k in ramps)}")
        candidates = fitted_for(trace, measured, batch, ramps, target)
        allowed = [c for c in candidates if c.error + caution * c.spread <= max_error]
        fast = min(allowed, key=lambda candidate: candidate.seconds, default=None)
        if fast is not None:
            rival = best.get(fast.ramps, fast)
            best[fast.ramps] = min(rival, fast, key=lambda candidate: candidate.seconds)
        return fast

    chosen: tuple[int, ...] = ()
    exits = range(len(measured.names) - 1)
    for _ in range(min(MAX_RAMPS, len(exits))):
        grown = [tuple(sorted((*chosen, ramp))) for ramp in exits if ramp not in chosen]
        times = {ramps: fast.seconds for ramps in grown if (fast := fastest(ramps)) is not None}
        if not times:  # no set of so many ramps keeps to the allowance
            break
        chosen = min(times, key=lambda ramps: times[ramps])
    # A policy asks those that pay: of many ramps, some spread evenly are enough.
    spread = np.linspace(0, len(exits), MANY_RAMPS + 1)[1:].round().astype(int) - 1
    ramps = tuple(exits) if len(exits) <= MANY_RAMPS else tuple(spread.tolist())
    if len(exits) > MAX_RAMPS:
        fastest(ramps)
    if trace.prediction is not None and trace.spec.target == "label":
        for few_or_all in dict.fromkeys((chosen or ramps, ramps)):
            fastest(few_or_all, "last")
    return sorted(best.values(), key=lambda candidate: candidate.seconds)[:4]  # timed in full


def fitted_for(
    trace: Trace,
    measured: Profile,
    batch: int,
    ramps: tuple[int, ...],
    target: Target | None = None,
) -> list[Candidate]:
    """Fit a ladder for these ramps and the head, and predict the time of each policy.

    ``target``: what the policies are fitted to, by default the trace's own. Errors are of the
    trace's own in any case: those on its rows, and what cross-fitting adds to those of the target.
    """
    spec = measured.costs(batch).spec(target=target or trace.spec.target)
    numbers = np.array([*ramps, len(spec) - 1])
    fewer = trace.with_spec(spec).restrict([spec.names[k] for k in numbers])
    ladder = fit(fewer)
    rows = np.arange(len(fewer))
    wrong, fitted = complete_losses(fewer, trace.spec.target), complete_losses(fewer)
    candidates = []
    for policy, played in zip(ladder, ladder.play_all(fewer), strict=True):
        lost = wrong[rows, played.answer]
        error = float("inf") if policy.error is None else policy.error
        # The estimate is of the target fitted to; the trace's own differs by what its rows say.
        error += float(lost.mean() - fitted[rows, played.answer].mean())
        asked = np.zeros((len(fewer), len(spec)), bool)
        asked[:, numbers] = played.asked
        used = tuple(np.flatnonzero(asked[:, :-1].any(axis=0)).tolist())
        seconds = predicted(asked, numbers[played.last], measured, batch)
        spread = float((lost - wrong[:, -1]).std() / np.sqrt(len(fewer)))
        candidates.append(Candidate(policy, seconds, error, used, spread))
    return candidates


def predicted(
    asked: NDArray[np.bool_], last: NDArray[np.intp], measured: Profile, batch: int
) -> float:
    """Return the expected seconds of a batch whose rows behave as those of a trace.

    ``asked`` has shape (T, exits); ``last``, the exit asked last, has shape (T,). The time is that
    of every segment for the rows that continue, plus that of every exit that any row asks, plus
    what a call with exits adds once.
    """
    sizes, column = group_sizes(batch), measured.sizes.index(batch)
    total, size = measured.per_call[column], batch
    for k in range(len(measured.names)):
        going = float((last >= k).mean())
        if going == 0:
            break
        any_row = 1 - (1 - going) ** batch  # the probability that any row of the batch continues
        rows = going * batch / any_row  # the expected number of such rows, if there is one
        size = min(size, next(group for group in sizes if group >= rows - 1e-9))
        total += any_row * measured.time(k, size)
        total += (1 - (1 - float(asked[:, k].mean())) ** batch) * measured.asking[k][column]
    return total


def time_each_batch(
    runs: Sequence[Callable[[Any], object]], batches: Sequence[Value], repeats: int = 3
) -> NDArray[np.float64]:
    """Time several ways to run the same batches, each batch by all of them before the next.

    The machine's speed changes, and so all see the same. At least five batches run before.

    Returns:
        Shape (runs, repeats times batches): seconds, each batch waited for.
    """
    for run in runs:
        for _ in range(-(-5 // len(batches))):
            for batch in batches:
                run(batch)
    wait()
    seconds = np.empty((len(runs), repeats * len(batches)))
    for column, batch in enumerate([*batches] * repeats):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            run(batch)
            wait()
            seconds[k, column] = time.perf_counter() - start
    return seconds


def clearly_faster(policy: NDArray[np.float64], network: NDArray[np.float64]) -> bool:
    """Return whether times are below the network's on the same batches, by two standard errors.

    >>> network = np.array([1.0, 1.2, 1.1, 1.3, 1.2])
    >>> clearly_faster(0.9 * network, network)
    True
    >>> clearly_faster(np.array([0.5, 1.6, 0.6, 1.5, 1.7]), network)
    False
    """
    usual = (policy <= _slowest_usual(policy)) & (network <= _slowest_usual(network))
    # A gain of less than 3% is not worth the change.
    saved = (0.97 * network - policy)[usual]
    if len(saved) < 2:
        return bool(policy.mean() < 0.97 * network.mean())
    return bool(saved.mean() > 2 * saved.std(ddof=1) / np.sqrt(len(saved)))


def _slowest_usual(seconds: NDArray[np.float64]) -> float:
    """Return the largest of some times without the slowest hundredth: one of them at least."""
    return float(np.sort(seconds)[max(1, int(0.99 * len(seconds))) - 1])
