"""What a decision costs, many at once and one at a time.

Many at once
    against the comparison ``confidence >= threshold`` over as many float64 numbers (written with
    ``out=`` or without, whichever is faster): lock-step decisions, where all inputs stand at the
    same node of a line, and a step of a general batch, which also routes, pays and keeps answers.
    Run this file by itself to see other ways of writing the lock-step lookup.
One at a time
    ``session.observe`` against a method that does nothing; the loop around both is taken off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from problems import line_data
from result import Result, show
from timing import Fresh, interleaved

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

SIZES = {"1k": 1_000, "4k": 4_096, "64k": 65_536, "1M": 1_048_576}
MAX_SCALAR = 15.0
NODES, STATES, TRADEOFF = 12, 64, 0.6
BLOCK = 65_536
"""Inputs decided together: their bytes stay in the second-level cache, and on the heap."""


def measure() -> list[Result]:
    """Time batched and single decisions."""
    return [*_batched(), *_single()]


def _batched() -> list[Result]:
    policy = tt.solve(tt.Problem.line(*line_data(NODES, STATES)), TRADEOFF)
    found = []
    for label, size in SIZES.items():
        confidence, _, states = _inputs(size)
        flags = np.empty(size, bool)

        def first_step(size: int = size, states: Bytes = states) -> Callable[[], object]:
            fresh = policy.batch(size)
            return lambda: fresh.observe(states)

        times = interleaved(
            {
                "plain": lambda c=confidence: c >= 0.5,
                "out": lambda c=confidence, o=flags: np.greater_equal(c, 0.5, out=o),
                "batch.observe": Fresh(first_step),
            }
        )
        plain = min(times.median("plain"), times.median("out"))
        note = f"{times.median('batch.observe') * 1e6:.1f} us against {plain * 1e6:.2f} us"
        ratio = times.ratio("batch.observe", "plain", "out")
        found.append(Result.of_ratio(f"batch.observe, {label} inputs", ratio, note=note))
    return found


def _single() -> list[Result]:
    class Empty:
        __slots__ = ()

        def observe(self, state: int) -> None:
            pass

    count = 200
    states = [0] * count  # where the loss is 1, and going on always worth its cost
    losses, costs, row = [1.0, 0.0], [0.01] * count, [0.5, 0.5]
    line = tt.Problem.line(losses, costs, [row, *[[row, row]] * (count - 1)])
    roots = tt.Problem.forest(losses, costs, [row] * count, [None] * count)
    policies = {
        "WalkSession": tt.solve(line, 0.5),
        "LastAnswerSession": tt.solve(line, 0.5, recall=False),
        "IndexSession, a line": tt.solve(line.with_moves("precedence"), 0.5),
        f"IndexSession, {count} roots": tt.solve(roots, 0.5),
    }

    def walk(turn: object) -> Callable[[], object]:
        observe = turn.observe  # type: ignore[attr-defined]

        def run() -> None:
            for state in states:
                observe(state)

        return run

    def bare() -> None:
        for _ in states:
            pass

    times = interleaved(
        {
            "bare": bare,
            "empty": Fresh(lambda: walk(Empty())),
            **{
                name: Fresh(lambda p=policy: walk(p.session())) for name, policy in policies.items()
            },
        },
        rounds=61,
    )
    loop = times.median("bare")
    empty = (times.median("empty") - loop) / count
    results = []
    for name in policies:
        taken = (times.median(name) - loop) / count
        note = f"{taken * 1e9:.0f} ns against {empty * 1e9:.0f} ns"
        ratio = times.ratio(name, "empty", less="bare")
        results.append(Result.of_ratio(f"{name}: observe", ratio, at_most=MAX_SCALAR, note=note))
    return results


def lookup_kernel(best: Bytes, states: Bytes, table: bytes, stop: Flags) -> None:
    """Decide for inputs that stand at one node of a line; changes ``best`` and ``stop``.

    ``best`` is the grid column of the best loss so far (255 before any answer), ``states`` what
    the node was seen in, in order of loss, ``table`` its stop columns, padded to 256 bytes, and
    ``stop`` becomes whether each input stops. ``bytearray.translate`` is the one lookup at hand
    that goes from bytes to bytes: NumPy's own widen every index to eight bytes first.
    """
    if len(states) > BLOCK:
        for at in range(0, len(states), BLOCK):
            block = slice(at, at + BLOCK)
            lookup_kernel(best[block], states[block], table, stop[block])
        return
    limit = np.frombuffer(bytearray(states).translate(table), np.uint8)
    np.less_equal(np.minimum(best, states, out=best), limit, out=stop)


def variants() -> list[Result]:
    """Time other ways to write the lookup kernel, each with the same two results."""
    rng = np.random.default_rng(0)
    limits = rng.integers(0, STATES, 256).astype(np.uint8)
    table = limits.tobytes()
    places = rng.permutation(256).astype(np.uint8).tobytes()
    either = np.arange(65_536)
    pairs = limits[either & 255] | (limits[either >> 8].astype(np.uint16) << 8)
    results = []
    for label, size in SIZES.items():
        confidence, best, states = _inputs(size)
        wide, words = states.astype(np.intp), states.view(np.uint16)
        after, stop, limit = np.empty_like(best), np.empty(size, bool), np.empty_like(best)
        limit16 = limit.view(np.uint16)

        def finish(limit: Bytes, own: Bytes = states, b: Bytes = best) -> None:
            np.less_equal(np.minimum(b, own, out=after), limit, out=stop)  # noqa: B023

        def steps(runs: int, s: Bytes = states, limit: Bytes = limit) -> None:
            limit[:] = 40
            for edge in range(1, runs):
                limit -= s >= edge * STATES // runs
            finish(limit)

        calls: dict[str, Callable[[], object]] = {
            "plain": lambda c=confidence: c >= 0.5,
            "out": lambda c=confidence, o=stop: np.greater_equal(c, 0.5, out=o),
            "no lookup (one limit for all states)": lambda f=finish: f(np.uint8(30)),
            "bytearray.translate, in blocks": lambda b=best, s=states, o=stop: lookup_kernel(
                b, s, table, o
            ),
            "bytearray.translate": lambda f=finish, s=states: f(
                np.frombuffer(bytearray(s).translate(table), np.uint8)
            ),
            "bytes.translate": lambda f=finish, s=states: f(
                np.frombuffer(s.tobytes().translate(table), np.uint8)
            ),
            "take, pairs of states as uint16": lambda f=finish, w=words, o=limit16, v=limit: (
                pairs.take(w, out=o, mode="wrap"),
                f(v),
            ),
            "take, states as intp": lambda f=finish, w=wide, o=limit: f(
                limits.take(w, out=o, mode="clip")
            ),
            "take, states as uint8": lambda f=finish, s=states, o=limit: f(
                limits.take(s, out=o, mode="clip")
            ),
            "limits[states], intp": lambda f=finish, w=wide: f(limits[w]),
            "limits[states], uint8": lambda f=finish, s=states: f(limits[s]),
            "staircase of 2 steps": lambda k=steps: k(2),
            "staircase of 4 steps": lambda k=steps: k(4),
            "staircase of 8 steps": lambda k=steps: k(8),
            "two translates (states not in order)": lambda f=finish, s=states: f(
                np.frombuffer(bytearray(s).translate(table), np.uint8),
                np.frombuffer(bytearray(s).translate(places), np.uint8),
            ),
        }
        times = interleaved(calls)
        plain = min(times.median("plain"), times.median("out"))
        for name in list(calls)[2:]:
            note = f"{times.median(name) * 1e6:.1f} us against {plain * 1e6:.2f} us"
            ratio = times.ratio(name, "plain", "out")
            results.append(Result.of_ratio(f"{label}: {name}", ratio, note=note))
    return results


def _inputs(size: int) -> tuple[NDArray[np.float64], Bytes, Bytes]:
    rng = np.random.default_rng(size)
    states = rng.integers(0, STATES, size).astype(np.uint8)
    return rng.random(size), np.full(size, 255, np.uint8), states


if __name__ == "__main__":
    show(measure())
    print()
    show(variants())
