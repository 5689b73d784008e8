"""A wrong main argument is refused in words, by every public function: no error from the inside."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pandas as pd
import pytest

import ttamer as tt
from support.public import names_of
from ttamer import (
    datasets,
    drift,
    evaluation,
    fitting,
    llm,
    reporting,
    runtime,
    serve,
    theory,
)
from ttamer.artefact import open_artefact
from ttamer.cascade import from_tables
from ttamer.errors import ArgumentError, TTamerError

PACKAGES = ("", ".artefact", ".datasets", ".drift", ".evaluation", ".fitting", ".reporting")
PACKAGES += (".llm", ".runtime", ".serve", ".theory", ".trace")
NODES = {"small": lambda _: ("a", 0.5)}
ROWS = tt.Trace.from_arrays({"small": 1.0}, [[0.5]] * 9, prediction=[["a"]] * 9, label=["a"] * 9)
SETTINGS = drift.LoopSettings(0.05)
WRONG = [
    "no such file",
    Path("no such file"),
    None,
    3,
    [1, 2],
    {"a": 1},
    pd.DataFrame({"a": ["x", "y"]}),
]

CALLS = {
    tt.collect: lambda x: tt.collect(NODES, x),
    tt.evaluate: lambda x: tt.evaluate(x, ROWS),
    tt.fit: tt.fit,
    tt.frontier: lambda x: tt.frontier(ROWS, x),
    tt.inspect: tt.inspect,
    tt.load: tt.load,
    tt.offline_optimum: lambda x: tt.offline_optimum(x, 0.5),
    tt.optima: lambda x: tt.optima(x, 0.5),
    tt.report: lambda x: tt.report(x, "report.html"),
    tt.save: lambda x: tt.save(x, "policy.ttamer"),
    tt.simulate: lambda x: tt.simulate(x, 2, seed=0),
    tt.solve: lambda x: tt.solve(x, 0.5),
    tt.solve_ladder: lambda x: tt.solve_ladder(x, [0.5]),
    tt.Cascade: lambda x: tt.Cascade(x, NODES),
    tt.CascadeSpec.from_file: tt.CascadeSpec.from_file,
    tt.CascadeSpec.from_toml: tt.CascadeSpec.from_toml,
    from_tables: from_tables,
    tt.Problem.from_file: tt.Problem.from_file,
    tt.Problem.from_dict: tt.Problem.from_dict,
    tt.Problem.multi_line: tt.Problem.multi_line,
    tt.Problem.skip_of: tt.Problem.skip_of,
    tt.Trace.concat: tt.Trace.concat,
    tt.Trace.from_arrays: lambda x: tt.Trace.from_arrays(x, [[0.5, 0.5]]),
    tt.Trace.from_frame: lambda x: tt.Trace.from_frame(x, {"small": 1.0}),
    tt.Trace.read: tt.Trace.read,
    open_artefact: open_artefact,
    datasets.load: datasets.load,
    datasets.about: datasets.about,
    drift.watch: lambda x: drift.watch(x, "policy.ttamer", SETTINGS),
    drift.serving_of: lambda x: drift.serving_of(x, ROWS, SETTINGS),
    evaluation.compare: lambda x: evaluation.compare(x, POLICY, ROWS),
    fitting.plan_calls: lambda x: fitting.plan_calls(x, ROWS, 1.0),
    reporting.recommend: reporting.recommend,
    llm.import_answers: lambda x: llm.import_answers(x, ROWS.spec),
    llm.collect_prompts: lambda x: llm.collect_prompts(x, [], "paid"),
    llm.judge_answers: lambda x: llm.judge_answers(x, [], ROWS.spec, llm.Judge("small"), "paid"),
    llm.plan_collection: lambda x: llm.plan_collection(x, [], "paid"),
    llm.prompts_of: llm.prompts_of,
    llm.read_prompts: llm.read_prompts,
    serve.read_settings: serve.read_settings,
    theory.contract: lambda x: theory.contract(x, 0.5),
}
OTHERS = {
    datasets.names: "takes none",
    reporting.save_figure: "takes a figure of matplotlib",
    runtime.batched: "any callable; it is called later",
    serve.make_app: "takes a gateway",
    serve.create: "takes none",
    llm.probability_of_answer: "takes the response of an upstream",
    theory.experiment: "takes a name",
    theory.impossibility: "takes a number",
}


def functions():
    """The public functions of the packages."""
    for package in PACKAGES:
        module = importlib.import_module(f"ttamer{package}")
        for name in names_of(f"ttamer{package}"):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield value


def test_every_public_function_is_called_below_or_left_out_with_a_reason():
    assert {each.__qualname__ for each in functions() if each not in {**CALLS, **OTHERS}} == set()


@pytest.mark.parametrize("function", CALLS, ids=lambda each: each.__qualname__)
def test_a_wrong_argument_is_refused_in_words(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in WRONG:
        with pytest.raises(TTamerError) as caught:
            CALLS[function](wrong)
        assert len(str(caught.value)) > 20, caught.value
    assert not list(tmp_path.iterdir())


def test_the_message_names_what_was_received_and_what_to_do():
    with pytest.raises(tt.ArgumentError, match=r"solve needs a Problem, not str: read a file with"):
        tt.solve("problem.json", 0.5)
    with pytest.raises(tt.CascadeError, match=r"'cascade.toml' is the name of a file.*from_file"):
        tt.CascadeSpec.from_toml("cascade.toml")
    with pytest.raises(tt.ArgumentError, match=r"node 'small' must be a callable .* not str"):
        tt.collect(["input"], {"small": "gpt"})
    with pytest.raises(tt.ArgumentError, match=r"not DataFrame: take a column, frame\["):
        tt.collect(pd.DataFrame({"question": ["a", "b"]}), NODES)  # else: of the names of columns
    with pytest.raises(tt.ArgumentError, match="collect takes a list of inputs, not dict"):
        tt.collect({"a": 1}, NODES)
    with pytest.raises(tt.ArgumentError, match=r"costs must be a mapping .* not list"):
        tt.collect(["a"], NODES, costs=[1.0])
    with pytest.raises(tt.TraceError, match="confidence: must be numbers, in rows of equal length"):
        tt.Trace.from_arrays({"small": 1.0}, [["high"]])
    with pytest.raises(tt.ArgumentError, match=r"inputs must be a mapping of arrays, not list"):
        tt.Trace.from_arrays({"small": 1.0}, [[0.5]], inputs=[1.0])
    with pytest.raises(tt.ArgumentError, match="restrict takes a list of names: write"):
        ROWS.restrict("small")
    with pytest.raises(tt.ArgumentError, match=r"families must be a list of names: write \['pap"):
        tt.frontier(ROWS, ROWS, families="paper")
    with pytest.raises(tt.ArgumentError, match=r"families must be a list of names: write \['pap"):
        tt.report(ROWS, "report.html", families="paper")
    with pytest.raises(tt.ArgumentError, match=r"tradeoff must be a number .* not '0\.5'"):
        tt.solve(tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), "0.5")
    policy = tt.fit(datasets.load("langid", part="fit").take(range(200))).at(0.9)
    with pytest.raises(tt.ArgumentError, match="max_cost is '1'; it must be a number above 0"):
        policy.session(max_cost="1")
    with pytest.raises(tt.ArgumentError, match="a replay needs a Trace, not str: make one with"):
        policy.play("trace.parquet")
    with pytest.raises(tt.ArgumentError, match="tradeoffs must be several numbers, not float"):
        tt.solve_ladder(tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), 0.5)
    with pytest.raises(tt.ArgumentError, match="collect takes a list of inputs, not str"):
        tt.collect("inputs.txt", NODES)


STRINGS = datasets.load("langid", part="fit").take(range(60))
LADDER = tt.fit(STRINGS, belief="markov", hold_out=0.5)
POLICY = LADDER.at(0.9)
SOLVED = tt.solve(tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), 0.5)
NAN, INF = float("nan"), float("inf")
NUMBERS = {
    "evaluate(resamples)": (
        lambda x: tt.evaluate(POLICY, STRINGS, resamples=x),
        [-1, 1.5, NAN, "1"],
    ),
    "evaluate(seed)": (lambda x: tt.evaluate(POLICY, STRINGS, seed=x), [-1, 1.5, NAN, None]),
    "frontier(resamples)": (lambda x: tt.frontier(ROWS, ROWS, resamples=x), [-1, 1.5, NAN]),
    "frontier(seed)": (lambda x: tt.frontier(ROWS, ROWS, seed=x), [-1, 1.5, NAN]),
    "fit(states)": (lambda x: tt.fit(ROWS, states=x), [-1, 0, 1.5, NAN, INF]),
    "fit(tradeoffs)": (
        lambda x: tt.fit(STRINGS, tradeoffs=[x], belief="markov"),
        [-1, 1.5, NAN, INF],
    ),
    "fit(seed)": (lambda x: tt.fit(ROWS, seed=x), [-1, 1.5, NAN]),
    "fit(hold_out)": (lambda x: tt.fit(ROWS, hold_out=x), [-1, 1.0, NAN, "half"]),
    "split(seed)": (lambda x: ROWS.split(0.5, seed=x), [-1, 1.5, NAN, None]),
    "at": (LADDER.at, [-1, 1.5, NAN, INF]),
    "for_budget": (LADDER.for_budget, [-1, NAN, None]),
    "for_mistake_cost": (LADDER.for_mistake_cost, [-1, 0, NAN, INF]),
    "for_error(at_most)": (LADDER.for_error, [-1, 1.5, NAN, INF]),
    "for_error(confidence)": (lambda x: LADDER.for_error(0.3, confidence=x), [0, 1, NAN, "high"]),
    "for_drop(at_most)": (LADDER.for_drop, [-1, 1.5, NAN, INF]),
    "simulate(inputs)": (lambda x: tt.simulate(SOLVED, x, seed=0), [0, -1, 1.5, NAN, "1"]),
    "simulate(seed)": (lambda x: tt.simulate(SOLVED, 2, seed=x), [-1, 1.5, None]),
    "batch": (SOLVED.batch, [-1, 1.5, NAN, "1"]),
    "future(state)": (lambda x: SOLVED.future("m1", x), [-1, 2, 0.5, "0"]),
    "session(max_cost)": (lambda x: POLICY.session(max_cost=x), [-1, 0, NAN]),
}


@pytest.mark.parametrize("call", NUMBERS)
def test_numbers_out_of_their_range_are_refused(call):
    function, wrong = NUMBERS[call]
    for number in wrong:
        with pytest.raises(ArgumentError, match=re.escape(str(number))):
            function(number)
