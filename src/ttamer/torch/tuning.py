"""Which policy to run: candidates are run on real inputs, and the clock decides.

Costs that were measured part by part say which policies are worth trying. What a batch takes in the
end also depends on how many leave when, so the few best are timed whole, beside the network as it
was. It is what is recommended where nothing beats it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from ttamer.errors import ArgumentError
from ttamer.evaluation import measure
from ttamer.fitting import fit
from ttamer.replay import Rule
from ttamer.torch.placing import autocast, device_of, rows_of, to_device
from ttamer.torch.profiling import profile
from ttamer.torch.regrouping import group_sizes
from ttamer.torch.running import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ttamer.fitted import FittedPolicy
    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.torch.placing import Precision
    from ttamer.torch.profiling import Profile
    from ttamer.torch.regrouping import Regrouping
    from ttamer.torch.tables import Tables
    from ttamer.trace import Trace

AnyRule = TypeVar("AnyRule", bound=Rule)
STATES = {"full": None, "calibrated": 16}

__all__ = ["Recommendation", "Timing", "candidates", "fastest", "recommend", "time_batches"]

TRIED = 8
"""Policies that are timed whole."""


@dataclass(frozen=True)
class Timing:
    """How long batches took, one after another, each waited for."""

    p50: float
    p99: float
    mean: float
    """Seconds per batch."""
    rows_per_second: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return dict(vars(self))


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
    tried: int
    """How many policies were timed."""

    @property
    def speed_up(self) -> float:
        """How many times faster than the network as it was: the ratio of median times."""
        return self.full_timing.p50 / self.timing.p50


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
            f"there are {rows_of(inputs)} inputs to time on; bring at least {batch}"
        )
    if measured is None:
        sizes = [size for size in group_sizes(batch) if size >= 8 or size == 1]
        measured = profile(
            network, cut[0], sizes=sizes, precision=precision, graphs=graphs, progress=say
        )
    rules: list[FittedPolicy] = []
    for marginal in (False, True):
        priced = trace.priced(measured.costs(batch, marginal=marginal).spec(skip=True))
        for belief in ("full", "calibrated"):
            say(f"fitting belief {belief}")
            rules += fit(priced, belief=belief, order="skip", states=STATES[belief])
    priced = trace.priced(measured.costs(batch).spec(skip=True))
    own = float(trace.wrong()[:, -1].mean())
    chosen = candidates(rules, priced, most_error=own + more_error, count=TRIED)
    rule = measured.regrouping()
    runners = [
        runner_for(
            network, policy, cut[0], classes=classes, precision=precision, regrouping=rule,
            graphs=graphs,
        )
        for policy in chosen
    ]  # fmt: skip
    say(f"timing {len(runners)} policies")
    full = full_run(network, cut[0], precision=precision, graphs=graphs)
    best, alone, times = fastest(full, runners, cut)
    if best is None:
        return Recommendation(full, None, None, own, own, alone, alone, len(runners))
    runner, policy = runners[best], chosen[best]
    error = measure(policy.play(priced), priced, resamples=0).error
    return Recommendation(
        lambda value: runner(value).logits,
        runner, policy, error, own, times[best], alone, len(runners),
    )  # fmt: skip


def runner_for(
    network: EarlyExit,
    policy: FittedPolicy | Tables,
    example: Value,
    *,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    regrouping: Regrouping | None = None,
    graphs: bool = False,
) -> Runner:
    """Return a runner, with or without CUDA graphs."""
    if not graphs:
        return Runner(network, policy, classes=classes, precision=precision, regrouping=regrouping)
    from ttamer.torch.graphs import GraphRunner

    return GraphRunner(
        network, policy, example, classes=classes, precision=precision, regrouping=regrouping
    )


def full_run(
    network: EarlyExit, example: Value, *, precision: Precision = "fp32", graphs: bool = False
) -> Callable[[Any], Tensor]:
    """Return the network as it was, run the same way as a runner: for batches like the example."""
    device = device_of(network)

    @torch.inference_mode()
    def plain(value: Value) -> Tensor:
        with autocast(device, precision):
            return network.full(to_device(value, device))

    if not graphs:
        return plain
    from ttamer.torch.graphs import full_graph

    return full_graph(network, example, precision=precision)


def _split(value: Value, size: int) -> list[Value]:
    if isinstance(value, torch.Tensor):
        return list(torch.split(value, size))
    return list(zip(*(torch.split(tensor, size) for tensor in value), strict=True))


def time_batches(
    run: Callable[[Any], object], batches: Sequence[Value], *, repeats: int = 3, warm_ups: int = 3
) -> Timing:
    """Run batches one after another, waiting for each, and time them."""
    for batch in list(batches)[:warm_ups]:
        run(batch)
    _wait()
    seconds, rows = [], 0
    for _ in range(repeats):
        for batch in batches:
            start = time.perf_counter()
            run(batch)
            _wait()
            seconds.append(time.perf_counter() - start)
            rows += len(batch if isinstance(batch, torch.Tensor) else batch[0])
    return Timing(
        p50=float(np.quantile(seconds, 0.5)),
        p99=float(np.quantile(seconds, 0.99)),
        mean=float(np.mean(seconds)),
        rows_per_second=rows / sum(seconds),
    )


def candidates(
    rules: Iterable[AnyRule], trace: Trace, *, most_error: float, count: int = TRIED
) -> list[AnyRule]:
    """Return the few cheapest rules that err at most so much on a trace, cheapest first."""
    found: list[tuple[float, float, AnyRule]] = []
    seen: set[tuple[bytes, bytes]] = set()
    for rule in rules:
        played = rule.play(trace)
        key = (played.answer.tobytes(), played.asked.tobytes())
        if key in seen:
            continue
        seen.add(key)
        result = measure(played, trace, resamples=0)
        if result.error <= most_error:
            found.append((result.cost, result.error, rule))
    found.sort(key=lambda each: each[:2])
    return [rule for _, _, rule in found[:count]]


def fastest(
    full: Callable[[Any], object],
    runners: Sequence[Callable[[Any], object]],
    batches: Sequence[Value],
    *,
    repeats: int = 2,
) -> tuple[int | None, Timing, list[Timing]]:
    """Time runners beside the network as it was; return the number of the fastest.

    ``None`` where none is faster than the network: then run that. What is compared is the median
    time of a batch.
    """
    if not batches:
        raise ArgumentError("there are no batches to time on; bring some real inputs")
    alone = time_batches(full, batches, repeats=repeats)
    times = [time_batches(run, batches, repeats=repeats) for run in runners]
    best = min(range(len(times)), key=lambda k: times[k].p50, default=None)
    if best is None or times[best].p50 >= alone.p50:
        return None, alone, times
    return best, alone, times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
