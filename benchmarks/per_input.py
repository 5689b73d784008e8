"""What deciding adds to one input: a session, and ``Cascade``, on the language detectors.

The models are functions that return recorded answers, so that what is timed is the deciding:
``session()``, ``next``, ``observe`` and ``answer`` for every node asked; and ``Cascade.run``, which
adds the calls with their timing, the checks of what they return, and the record of the outcome.
A whole trace decided at once (``play``) is beside them. Costs of the detectors are in microseconds.

``python benchmarks/run.py --only per_input``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from result import Result, show
from timing import interleaved

import ttamer as tt
from ttamer import datasets

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 500
"""Inputs decided in one sample."""


def measure() -> list[Result]:
    """Time one input, averaged over rows of the test part."""
    fit_rows, test_rows = (datasets.load("langid", part) for part in ("fit", "test"))
    ladder = tt.fit(fit_rows)
    rows = test_rows.take(slice(ROWS))
    single = fit_rows.loss.mean(axis=0).min()
    policy = min((p for p in ladder if p.error <= single), key=lambda p: p.cost)
    models = tt.evaluate(policy, rows, resamples=0)
    answers = [
        {
            name: (rows.classes[rows.prediction[i, j]], float(rows.confidence[i, j]))
            for j, name in enumerate(rows.names)
        }
        for i in range(ROWS)
    ]
    calls = {name: _recorded(name) for name in rows.names}
    cascade = tt.Cascade(policy, calls)

    def sessions() -> None:
        for answer in answers:
            turn = policy.session()
            while turn.next is not None:
                prediction, confidence = answer[turn.next]
                turn.observe(confidence=confidence, prediction=prediction)
            _ = turn.answer

    def runs() -> None:
        for answer in answers:
            cascade.run(answer)

    times = interleaved(
        {"session": sessions, "cascade": runs, "play": lambda: policy.play(rows)}, rounds=15
    )
    asked = sum(models.asked.values())
    note = f"the models themselves: {models.cost:.1f} us; {asked:.2f} asked per input"
    return [
        Result(f"one input of langid, {what}", times.median(name) / ROWS * 1e6, "us", note=note)
        for name, what in (
            ("session", "a session"),
            ("cascade", "Cascade.run"),
            ("play", f"{ROWS} at once, what their inputs say included"),
        )
    ]


def _recorded(name: str) -> Callable[[dict[str, tuple[str, float]]], tuple[str, float]]:
    """Return a model that returns its recorded answer."""
    return lambda answers: answers[name]


if __name__ == "__main__":
    show(measure())
