"""Fits and what they decide: tables, sessions, choices, evaluations, networks and commands."""

from __future__ import annotations

import functools
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import ttamer as tt
from golden.parts import GROUPS, Entries, group, loaded, reported, rows_of, saved_bytes
from support.exit_networks import adding_network, batches, evidence, measured
from ttamer import torch as exits

NODES = ("cld2", "fasttext", "lingua")


def models(part: str, count: int) -> tt.Trace:
    """Three language detectors and, before any is asked, the number of letters."""
    return rows_of("langid", part, count).restrict(NODES)


def with_gaps(trace: tt.Trace) -> tt.Trace:
    """The same log where most rows lack an answer; a third are complete."""
    confidence = trace.confidence.copy()
    rows = np.arange(len(trace))
    confidence[rows, rows % 3] = np.where(rows % 2, np.nan, confidence[rows, rows % 3])
    texts = np.array([*trace.classes, None], object)
    prediction = np.where(np.isnan(confidence), None, texts[trace.prediction])
    return tt.Trace.from_arrays(
        trace.spec, confidence, prediction=prediction, label=texts[trace.label]
    )


def with_prompts(part: str, count: int) -> tt.Trace:
    """Two models, one for short questions and one for long ones: only the prompt says which."""
    generator = np.random.default_rng([count, part == "fit"])
    long = generator.random(count) < 0.5
    right = generator.random((count, 2)) < np.where(np.stack([~long, long], axis=1), 0.9, 0.4)
    words = ["how many words does this question have", "hi"]
    return tt.Trace.from_arrays(
        tt.CascadeSpec.of({"short": 1.0, "long": 1.5}),
        generator.integers(0, 64, (count, 2)) / 64,
        correct=right,
        prompt=[f"{words[0] if x else words[1]} {k % 7}" for k, x in enumerate(long)],
    )


def of_file_of(trace: tt.Trace) -> tt.FittedLadder:
    """A sample of a file, as a fit of a file larger than memory takes it."""
    with tempfile.TemporaryDirectory() as folder:
        trace.write(Path(folder, "trace.parquet"))
        return tt.fit(tt.Trace.read(Path(folder, "trace.parquet"), sample=400))


ROWS: dict[str, Callable[[str, int], tt.Trace]] = {
    "models": models,
    "gaps": lambda part, count: with_gaps(models(part, count)),
    "prompts": with_prompts,
    "exits": functools.partial(rows_of, "minilm-imdb"),
}
FITS: dict[str, tuple[str, Callable[[], tt.FittedLadder]]] = {
    "models": ("models", lambda: tt.fit(models("fit", 700), hold_out=0.4)),
    "gaps": ("gaps", lambda: tt.fit(with_gaps(models("fit", 500)))),
    "prompts": ("prompts", lambda: tt.fit(with_prompts("fit", 650))),
    "exits": ("exits", lambda: tt.fit(rows_of("minilm-imdb", "fit", 900), hold_out=0.5)),
    "markov": (
        "models",
        lambda: tt.fit(models("fit", 600), belief="markov", states=6, hold_out=0.5),
    ),
    "markov, exits": ("exits", lambda: tt.fit(rows_of("minilm-imdb", "fit", 300), belief="markov")),
    "threshold": ("exits", lambda: tt.fit(rows_of("minilm-imdb", "fit", 300), belief="threshold")),
    "stream": (
        "exits",
        lambda: of_file_of(rows_of("minilm-imdb", "fit", 600)),
    ),
}


@functools.cache
def ladder_of(case: str) -> tt.FittedLadder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FITS[case][1]()


def of_fit(case: str) -> Entries:
    ladder = ladder_of(case)
    facts = msgspec.to_builtins(ladder.record)
    del facts["version"]
    yield "record", facts
    yield "tradeoffs", ladder.tradeoffs
    points = ladder.points
    yield "estimates", [points.error, points.cost, points.alone_error, points.alone_cost]
    yield "corners", points.corners
    default = ladder.default()
    yield "default", [default.mix, default.error, default.cost]
    raw = saved_bytes(ladder)
    yield "saved, loaded and saved again", saved_bytes(loaded(raw)) == raw


# Decisions of what was fitted.


def reasons(explanation: tt.Explanation) -> dict[str, Any]:
    """Return the fields of an explanation and what going on gains, ``None`` where infinite."""
    values = {**vars(explanation), "beliefs": dict(explanation.beliefs)}
    values["gain"] = explanation.best - explanation.index
    return {
        k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in values.items()
    }


def sessions(
    policy: Any,
    trace: tt.Trace,
    *,
    fails: Callable[[int, int], bool] = lambda row, step: False,
    odd: Callable[[int, int], bool] = lambda row, step: False,
    keys: Callable[[int], Any] = lambda row: None,
    explained: list[Any] | None = None,
    **options: Any,
) -> list[str]:
    """Return per row which nodes a session asks, whose answer it returns, and what that cost.

    At some steps, of row and step, a node fails, or is sure of nothing and predicts a new class.
    """
    decisions = []
    for row in range(len(trace)):
        prompt = None if trace.prompt is None else trace.prompt[row]
        inputs = {name: values[row] for name, values in trace.inputs.items()}
        turn = policy.session(prompt=prompt, inputs=inputs, key=keys(row), **options)
        step = 0
        while turn.next is not None:
            if explained is not None:
                explained.append(reasons(turn.explain()))
            node = trace.names.index(turn.next)
            code = -1 if trace.prediction is None else trace.prediction[row, node]
            text = None if code < 0 else trace.classes[code]
            if fails(row, step) or not trace.answered[row, node]:
                turn.fail()
            elif odd(row, step):
                turn.observe(confidence=float("nan"), margin=float("nan"), prediction="a new class")
            else:
                sure = {"confidence": float(trace.confidence[row, node])}
                if trace.margin is not None:
                    sure |= {"margin": float(trace.margin[row, node])}
                turn.observe(**sure, prediction=text)
            step += 1
        if explained is not None:
            explained.append(reasons(turn.explain()))
        marks = "!" * turn.capped + "?" * turn.unclear
        decisions.append(f"{'>'.join(turn.asked)}={turn.answer}{marks} {turn.cost:.6g}")
    return decisions


def played(policy: Any, trace: tt.Trace) -> list[str]:
    """Return per row whose answer is returned, the node asked last, and a mark for all asked."""
    done = policy.play(trace)
    return [
        f"{answer} {last} {''.join('01'[each] for each in asked)}"
        for answer, last, asked in zip(
            done.answer.tolist(), done.last.tolist(), done.asked.tolist(), strict=True
        )
    ]


SESSIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the first node fails": {"fails": lambda row, step: step == 0},
    "some nodes fail": {"fails": lambda row, step: (row + step) % 3 == 0},
    "odd answers": {"odd": lambda row, step: (row + step) % 2 == 0},
}


def of_decisions(policies: list[Any], trace: tt.Trace) -> Entries:
    """Decisions of some policies of one cascade on rows: by rows and by sessions, capped too."""
    yield "rows", [" ".join(played(policy, trace)) for policy in policies]
    few, costs = trace.take(slice(60)), trace.spec.costs
    some = policies if len(policies) < 4 else [policies[len(policies) * k // 4] for k in (1, 2, 3)]
    for number, policy in enumerate(some):
        for kind, options in SESSIONS.items():
            yield f"sessions of {number}, {kind}", sessions(policy, few, **options)
        for share in (0.4, 1.2):
            cap = max(share * sum(costs), costs[0])
            fails = SESSIONS["some nodes fail"]["fails"]
            capped = sessions(policy, few, max_cost=cap, fails=fails)
            yield f"sessions of {number}, capped at {share}", capped
        explained: list[Any] = []
        sessions(policy, few.take(slice(8)), explained=explained)
        yield f"explained by {number}", explained


for _case, (_rows, _) in FITS.items():
    GROUPS[f"fit/{_case}"] = functools.partial(of_fit, _case)
    GROUPS[f"decisions/{_case}"] = lambda case=_case, rows=_rows: of_decisions(
        list(ladder_of(case)), ROWS[rows]("test", 300)
    )


@group("evaluate")
def of_evaluation() -> Entries:
    for case in ("models", "markov", "exits"):
        result = tt.evaluate(ladder_of(case).at(0.9), ROWS[FITS[case][0]]("test", 600))
        yield case, result.to_dict()


def of_mixture(mixed: tt.Mixture) -> Any:
    promise = mixed.promise
    facts = [list(mixed.mix), mixed.error, mixed.cost]
    return facts if promise is None else [*facts, promise.to_dict(), str(promise)]


@group("mixture")
def of_mixtures() -> Entries:
    for case in ("models", "exits", "markov"):
        ladder, rows = ladder_of(case), ROWS[FITS[case][0]]("test", 60)
        low, high = (float(ladder.points.costs[ladder.points.corners[k]]) for k in (0, -1))
        for share in (0.05, 0.7, 1.5):
            mixed = ladder.for_budget(low + share * (high - low), seed=3)
            yield f"{case}, budget {share}", of_mixture(mixed)
        mixed = ladder.mixed(ladder.for_budget(low + 0.3 * (high - low)).mix, seed=3)
        yield f"{case}, rows", played(mixed, rows)
        yield f"{case}, sessions by number", sessions(mixed, rows, keys=int)
        yield f"{case}, sessions by key", sessions(mixed, rows, keys=lambda row: f"request-{row}")
        for at_most in (0.02, 0.2):
            yield f"{case}, error {at_most}", of_mixture(ladder.for_error(at_most))
            yield f"{case}, drop {at_most}", of_mixture(ladder.for_drop(at_most, confidence=0.9))
        share = ladder.for_budget(high, exceeded_at_most=0.2)
        yield f"{case}, share above a budget", of_mixture(share)


# Networks.


@functools.cache
def network_ladder(belief: str) -> tt.FittedLadder:
    inputs, labels = evidence(1000, seed=1)
    costs = dict(zip(measured().names, measured().spec().costs.tolist(), strict=True))
    spec = tt.CascadeSpec.of(costs, kind="exits")
    trace = exits.trace_of(adding_network(), batches(inputs, labels), spec=spec)
    return tt.fit(trace, belief=belief)


def of_network(belief: str) -> Entries:
    torch.set_num_threads(1)
    ladder = network_ladder(belief)
    inputs, _ = evidence(200, seed=2, broken=0.05)
    for number in (len(ladder) * k // 4 for k in (1, 2, 3)):
        runner = exits.Runner(adding_network(), ladder[number])
        answers = runner(inputs)
        yield f"policy {number}", answered(answers)
        yield f"policy {number}, logits", answers.logits.numpy()
        parts = [row for part in inputs.split(37) for row in answered(runner(part))]
        yield f"policy {number}, smaller batches decide alike", parts == answered(answers)


def answered(answers: exits.Answers) -> list[str]:
    return [
        f"{exit_} {''.join('01'[each] for each in asked)} {predicted}"
        for exit_, asked, predicted in zip(
            answers.exit.tolist(), answers.asked.tolist(), answers.prediction.tolist(), strict=True
        )
    ]


for _belief in ("answers", "markov", "threshold"):
    GROUPS[f"network/{_belief}"] = functools.partial(of_network, _belief)


# Commands.


@group("cli/fit")
def of_commands() -> Entries:
    with tempfile.TemporaryDirectory() as folder:
        fit, test, cascade, output = (
            Path(folder, name)
            for name in ("fit.parquet", "test.parquet", "cascade.toml", "one.ttamer")
        )
        models("fit", 600).write(fit)
        models("test", 200).write(test)
        models("fit", 600).spec.to_file(cascade)
        for belief in ("answers", "markov"):
            options = ("--belief", belief, "--hold-out", 0.4)
            facts = reported("fit", fit, "--cascade", cascade, "-o", output, *options)
            del facts["output"], facts["record"]["version"]
            yield f"{belief}, fit", facts
            yield f"{belief}, evaluate", reported("evaluate", output, test)
            yield f"{belief}, certify", reported("certify", output, "--error", 0.3)["promises"]
        facts = reported(
            "frontier", "--fit", fit, "--test", test, "--cascade", cascade, "--resamples", 20
        )
        yield from ((f"frontier, {name}", value) for name, value in facts.items())
