"""The demonstration with real models: ``python experiments/langid/live.py``.

The installed language detectors are run again on strings of the shipped trace, to measure how fast
they are on this machine and to check that their answers are unchanged. A policy is fitted to the
trace of these detectors at these costs, and then decides for every text typed which detector to
ask, when to stop, and whose answer to return.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import detectors
import numpy as np

from ttamer import datasets
from ttamer.errors import ArgumentError, TTamerError
from ttamer.evaluation.results import evaluate, measure
from ttamer.fitting.fits import fit
from ttamer.runtime.collecting import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from detectors import Detect

    from ttamer.evaluation.results import Result
    from ttamer.fitting.ladder import FittedLadder, FittedPolicy
    from ttamer.trace.trace import Trace

__all__ = ["Again", "Answer", "Live", "Step", "answer", "ask_again", "prepare", "run_live"]

TRACE = "langid"
STRINGS = Path(__file__).parent / "langid-strings.json"
PASSES = 3
SHARE = 0.25
"""What the policy may cost, of the most expensive detector's cost."""


class Turn(Protocol):
    """What is needed of a session."""

    @property
    def next(self) -> str | None: ...
    @property
    def answer(self) -> str | None: ...
    def observe(self, *, confidence: float, prediction: object = None) -> None: ...
    def explain(self) -> Any: ...


class Sessions(Protocol):
    """What is needed of a policy."""

    def session(self) -> Turn: ...


@dataclass(frozen=True)
class Step:
    """One model asked."""

    node: str
    language: str | None
    confidence: float
    microseconds: float
    why: str
    """What the policy made of it."""


@dataclass(frozen=True)
class Answer:
    """What became of one text."""

    text: str
    language: str | None
    by: str
    """Whose answer it is."""
    steps: tuple[Step, ...]

    @property
    def why(self) -> str:
        """Why the policy stopped."""
        return self.steps[-1].why

    @property
    def microseconds(self) -> float:
        """How long the models took."""
        return sum(step.microseconds for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        more = {"why": self.why, "microseconds": self.microseconds}
        return {**dataclasses.asdict(self), **more}

    def lines(self) -> list[str]:
        """Return it for people: one line for each model asked, then the answer."""
        wide = max(len(step.node) for step in self.steps)
        said = [
            f"  {step.node:{wide}}  {step.language or '?':4} {step.confidence:5.3f} "
            f"{step.microseconds:7.0f} µs   {step.why}"
            for step in self.steps
        ]
        return [*said, f"{self.language or '?'}  says {self.by}, in {self.microseconds:.0f} µs"]


@dataclass(frozen=True)
class Again:
    """What came of asking one detector about shipped strings again."""

    node: str
    asked: int
    same: int
    """How many answers are those of the shipped trace."""
    microseconds: float
    """Mean time per call here."""
    slower: float
    """That time over the shipped trace's on the same strings."""


@dataclass(frozen=True, eq=False)
class Live:
    """Detectors with a policy fitted to them."""

    detectors: Mapping[str, Detect]
    policy: FittedPolicy
    again: tuple[Again, ...]
    held_out: Result
    """How the policy does on the shipped test part, at this machine's costs."""
    alone: str
    """The best single detector."""
    alone_error: float
    alone_cost: float

    def answer(self, text: str) -> Answer:
        """Ask about one text."""
        return answer(text, self.policy, self.detectors)

    def introduction(self) -> list[str]:
        """Return who is there and what to expect, in lines."""
        missing = [name for name in detectors.DETECTORS if name not in self.detectors]
        lines = [
            f"{each.node}: {each.same} of {each.asked} answers as in the shipped trace, "
            f"{each.microseconds:.0f} µs a call here"
            for each in self.again
        ]
        for name in missing:
            package = detectors.DETECTORS[name]
            lines.append(f"{name}: not here (pip install 'ttamer[{package.extra}]')")
        lines.append(
            f"on {self.held_out.rows} held-out strings: {1 - self.held_out.error:.1%} right at "
            f"{self.held_out.cost:.0f} µs; {self.alone} alone {1 - self.alone_error:.1%} at "
            f"{self.alone_cost:.0f} µs"
        )
        return lines


def answer(text: str, policy: Sessions, models: Mapping[str, Detect]) -> Answer:
    """Run a policy's session on one text, asking real models.

    >>> models = {"cld2": lambda text: ("en", 0.6), "langid": lambda text: ("en", 0.9)}
    >>> live = prepare(models, states=4, kind="exits")
    >>> live.answer("Where is the station?").language
    'en'
    """
    readable = _readable(text)
    turn = policy.session()
    steps: list[Step] = []
    said: dict[str, str | None] = {}
    while (node := turn.next) is not None:
        start = time.perf_counter()
        language, confidence = models[node](readable)
        seconds = time.perf_counter() - start
        turn.observe(confidence=confidence, prediction=language)
        said[node] = language
        steps.append(Step(node, language, confidence, seconds * 1e6, turn.explain().why))
    by = turn.answer
    if by is None:
        raise ArgumentError("the policy stopped before anybody was asked; fit it again")
    return Answer(readable, said[by], by, tuple(steps))


def ask_again(
    models: Mapping[str, Detect], *, progress: Callable[[str], object] | None = None
) -> tuple[Again, ...]:
    """Ask detectors about the shipped strings again, each in passes of its own."""
    sample = json.loads(STRINGS.read_text("utf-8"))
    rows = datasets.load(TRACE, "test").take([each["row"] for each in sample])
    shipped = rows.restrict(models.keys())
    texts = [each["text"] for each in sample]
    assert shipped.prediction is not None  # noqa: S101 - the shipped trace has them
    found = []
    for name in shipped.names:
        if progress:
            progress(f"asking {name} about {len(texts)} strings")
        passes = [collect(texts, {name: models[name]}, warmup=3) for _ in range(PASSES)]
        column = shipped.spec.index_of(name)
        before = _predictions(shipped, column)
        same = sum(a == b for a, b in zip(_predictions(passes[0], 0), before, strict=True))
        seconds = np.min([one.cost[:, 0] for one in passes], axis=0).mean()  # as in the trace
        there = shipped.costs[:, column].mean()
        found.append(
            Again(name, len(texts), same, float(seconds) * 1e6, float(seconds * 1e6 / there))
        )
    return tuple(found)


def prepare(
    models: Mapping[str, Detect] | Iterable[str] | None = None,
    *,
    tradeoff: float | None = None,
    progress: Callable[[str], object] | None = None,
    **options: Any,
) -> Live:
    """Build detectors, ask them again, and fit a policy to them.

    Args:
        models: Detectors by name, or the names of those to build; by default all installed.
        tradeoff: Which policy of the ladder; by default the one that errs least on the fit
            part at a quarter of the most expensive detector's cost.
        progress: Called with a line of text as the work moves on.
        options: Passed on to :func:`ttamer.fit`.
    """

    def say(line: str) -> None:
        if progress:
            progress(line)

    if not isinstance(models, Mapping):
        models = _loaded(models, say)
    again = ask_again(models, progress=say)
    slower = {each.node: each.slower for each in again}
    part = _at_speed(datasets.load(TRACE, "fit").restrict(models.keys()), slower)
    test = _at_speed(datasets.load(TRACE, "test").restrict(models.keys()), slower)
    say("fitting")
    ladder = fit(part, progress=say, **options)
    policy = _within_share(ladder, part) if tradeoff is None else ladder.at(tradeoff)
    best = int(test.loss.mean(axis=0).argmin())
    return Live(
        detectors=models,
        policy=policy,
        again=again,
        held_out=evaluate(policy, test, resamples=0),
        alone=test.names[best],
        alone_error=float(test.loss[:, best].mean()),
        alone_cost=float(test.costs[:, best].mean()),
    )


def run_live(
    lines: Iterable[str],
    write: Callable[[str], object],
    *,
    models: Mapping[str, Detect] | Iterable[str] | None = None,
    tradeoff: float | None = None,
    progress: Callable[[str], object] | None = None,
    **options: Any,
) -> None:
    """Answer every line: write who was asked, what each said, who answered and why.

    A line with no letters in it is said to be so; an empty one is passed over. ``progress`` takes
    what is being done before the first answer, by default ``write``; the other arguments are those
    of :func:`prepare`.
    """
    live = prepare(models, tradeoff=tradeoff, progress=progress or write, **options)
    for line in live.introduction():
        write(line)
    write("type a sentence in any language; end with Ctrl-D")
    for text in lines:
        if not text.strip():
            continue
        try:
            said = live.answer(text).lines()
        except TTamerError as error:
            said = [str(error)]
        for line in said:
            write(line)


def _loaded(names: Iterable[str] | None, say: Callable[[str], object]) -> dict[str, Detect]:
    built: dict[str, Detect] = {}
    # One by one, to say which; nothing installed is for build to refuse.
    for name in (detectors.available() if names is None else tuple(names)) or (None,):
        known = detectors.DETECTORS.get(name) if name else None
        more = " (20 seconds, 1.4 GB of memory)" if known and known.slow_to_load else ""
        say(f"loading {name}{more}")
        built |= detectors.build(None if name is None else [name])
    return built


def _readable(text: str) -> str:
    """Return a text without what no detector takes: control characters, halves of surrogates."""
    kept = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    if not any(map(str.isalpha, kept)):
        raise ArgumentError("there are no letters in this text: type a few words")
    return " ".join(kept.split())


def _predictions(trace: Trace, column: int) -> list[str | None]:
    codes = () if trace.prediction is None else trace.prediction[:, column].tolist()
    return [None if code < 0 else trace.classes[code] for code in codes]


def _at_speed(trace: Trace, slower: Mapping[str, float]) -> Trace:
    """Return the trace at the costs of a machine on which nodes are slower by the given factors.

    Signals are left out: detectors are asked about bare text.
    """
    times = np.array([slower[name] for name in trace.names])
    costs = dict(zip(trace.names, (trace.spec.costs * times).tolist(), strict=True))
    return dataclasses.replace(
        trace,
        spec=trace.spec.with_costs(costs),
        cost=np.asfortranarray(trace.costs * times),
        inputs={},
    )


def _within_share(ladder: FittedLadder, trace: Trace) -> FittedPolicy:
    """Return the policy that errs least here, at a quarter of the most expensive node's cost.

    If none is as cheap as that, the cheapest.
    """
    limit = float(trace.costs.mean(axis=0).max()) * SHARE
    results = [measure(played, trace, resamples=0) for played in ladder.play_all(trace)]
    cheap = [i for i, result in enumerate(results) if result.cost <= limit]
    if cheap:
        return ladder[min(cheap, key=lambda i: (results[i].error, results[i].cost))]
    return ladder[min(range(len(results)), key=lambda i: results[i].cost)]


if __name__ == "__main__":
    run_live(sys.stdin, print)
