from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest

from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.runtime.calling import batched
from ttamer.runtime.collecting import collect
from ttamer.trace.trace import Trace


def short(text):
    return text[0], 0.6


def full(text):
    return text[-1], 0.9


NODES = {"short": short, "full": full}
COSTS = {"short": 1.0, "full": 5.0}


def test_every_node_is_asked_about_every_input():
    trace = collect(["ab", "cc", "da"], NODES, labels=["b", "c", "a"], costs=COSTS)
    assert isinstance(trace, Trace)
    assert trace.names == ("short", "full")
    assert trace.confidence.tolist() == [[0.6, 0.9]] * 3
    assert trace.loss.tolist() == [[True, False], [False, False], [True, False]]
    assert trace.cost is None
    assert trace.spec.costs.tolist() == [1.0, 5.0]
    assert (trace.spec.kind, trace.spec.target) == ("models", "label")
    assert trace.left_out == {}


def test_without_labels_the_last_node_is_the_target():
    trace = collect(["ab"], NODES, costs=COSTS)
    assert trace.label is None
    assert (trace.spec.kind, trace.spec.target) == ("models", "last")
    assert trace.loss.tolist() == [[True, False]]
    assert collect(["ab"], NODES, costs=COSTS, target="label").spec.target == "label"


def test_measured_costs_are_seconds_per_row(monkeypatch):
    clock = iter([0.0, 2.0, 3.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    trace = collect(["a", "b"], {"n": short}, warmup=0)
    assert trace.cost.tolist() == [[2.0], [5.0]]
    assert trace.spec.costs.tolist() == [3.5]


def test_measured_costs_are_real_times():
    def slow(text):
        time.sleep(0.01)
        return text, 1.0

    trace = collect(["a", "b"], {"quick": short, "slow": slow})
    assert (trace.cost[:, 1] >= 0.01).all()
    assert np.allclose(trace.spec.costs, trace.cost.mean(axis=0))


def counting(calls: list):
    def node(value):
        calls.append(value)
        return value, 0.5

    return node


def test_how_often_a_node_is_called():
    calls: list = []
    collect(["a", "b"], {"n": counting(calls)}, warmup=3)
    assert calls == ["a"] * 4 + ["b"]
    calls.clear()
    collect(["a", "b"], {"n": counting(calls)}, warmup=3, costs={"n": 1.0})
    assert calls == ["a", "b"]


def test_latency_is_kept_where_a_node_always_reports_it():
    def timed(value):
        return {"prediction": "x", "confidence": 1, "latency": value, "entropy": 2}

    def moody(value):
        return {"prediction": "x", "confidence": 1} | ({"latency": 1} if value else {})

    trace = collect([0, 1], {"timed": timed, "moody": moody}, costs={"timed": 1, "moody": 1})
    assert trace.latency[:, 0].tolist() == [0, 1]
    assert np.isnan(trace.latency[:, 1]).all()
    assert trace.entropy is None


def test_classes_of_any_kind():
    said = iter(["x", 3, 3.0, True, None, np.int64(4)])
    trace = collect(range(6), {"n": lambda _: (next(said), 1)}, costs={"n": 1})
    assert [None if c < 0 else trace.classes[c] for c in trace.prediction[:, 0]] == [
        *("x", "3", "3", "1", None, "4")
    ]


def fails(value):
    if value == 2:
        raise KeyError("broken")
    return value, 0.5


def fails_at_length(value):
    if value == 2:
        raise ValueError("the first line\n  and the second")
    return value, 0.5


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (fails_at_length, "raised ValueError: the first line and the second; fix the callable"),
        (fails, "node 'n', input 2 .*: raised KeyError: 'broken'; fix the callable"),
        (lambda v: 0.5 if v == 2 else ("x", 1), r"input 2 .* returned float; \(prediction, conf"),
    ],
)
def test_what_goes_wrong_is_placed_or_counted(node, says):
    with pytest.raises(TraceError, match=says):
        collect(range(4), {"n": node})
    trace = collect(range(4), {"n": node}, on_error="skip", labels=["x", 1, 2, 3])
    assert len(trace) == 3
    assert sum(trace.left_out.values()) == 1
    assert next(iter(trace.left_out)).startswith("n r")
    assert [trace.classes[c] for c in trace.label] == ["x", "1", "3"]


def test_the_cause_is_kept():
    with pytest.raises(TraceError) as error:
        collect([2], {"n": fails})
    assert isinstance(error.value.__cause__, KeyError)


def test_a_row_is_left_out_once():
    trace = collect(range(4), {"a": fails, "b": fails}, costs={"a": 1, "b": 1}, on_error="skip")
    assert trace.left_out == {"a raised KeyError": 1}
    with pytest.raises(TraceError, match=r"every input was left out \(1 in all"):
        collect([2], {"n": fails}, on_error="skip")


def test_a_failure_of_one_node_is_a_gap():
    def sure(value):
        return value, math.nan if value == 1 else 0.5

    nodes = {"a": fails, "b": sure}
    trace = collect(range(4), nodes, costs={"a": 1, "b": 2}, on_error="skip", labels=range(4))
    assert trace.answered.tolist() == [[True, True], [True, True], [False, True], [True, True]]
    assert trace.prediction[2, 0] == -1
    assert np.isnan(trace.loss).sum() == 1
    assert trace.confidence[:, 1].tolist() == [0.5] * 4
    assert trace.notes[0] == "1 row with a gap: a raised KeyError"
    measured = collect(range(4), nodes, on_error="skip")
    assert np.isnan(measured.cost).tolist() == (~measured.answered).tolist()
    with pytest.raises(TraceError, match="node 'a' gave no answer: a raised KeyError"):
        collect([2, 2], nodes, on_error="skip")


def test_the_user_can_interrupt():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect([1], {"n": stop}, on_error="skip")


def test_batches():
    sizes = []

    def together(values):
        sizes.append(len(values))
        return [(value, 0.5) for value in values]

    trace = collect(
        iter(range(10)), {"many": batched(together, size=4), "one": short_number}, costs=UNIT
    )
    assert sizes == [4, 4, 2]
    assert trace.prediction[:, 0].tolist() == trace.prediction[:, 1].tolist()


UNIT = {"many": 1, "one": 1}


def short_number(value):
    return value, 0.5


def test_batches_of_several_sizes():
    sizes: dict = {2: [], 5: []}

    def of(size):
        def together(values):
            sizes[size].append(len(values))
            return [(value, 0.5) for value in values]

        return batched(together, size)

    collect(range(7), {"a": of(2), "b": of(5)}, costs={"a": 1, "b": 1})
    assert sizes == {2: [2, 2, 1, 2], 5: [5, 2]}


def test_the_cost_of_a_row_is_its_share_of_the_batch(monkeypatch):
    clock = iter([0.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    trace = collect(range(4), {"n": batched(lambda v: [(x, 1) for x in v], 4)}, warmup=0)
    assert trace.cost.tolist() == [[2.0]] * 4


def test_a_bad_input_does_not_cost_its_batch():
    def together(values):
        return [fails(value) for value in values]

    with pytest.raises(TraceError, match=r"input 2 .* raised KeyError"):
        collect(range(6), {"n": batched(together, 4)})
    trace = collect(range(6), {"n": batched(together, 4)}, on_error="skip")
    assert [trace.classes[c] for c in trace.prediction[:, 0]] == ["0", "1", "3", "4", "5"]
    assert trace.left_out == {"n raised KeyError": 1}


def test_a_bad_answer_in_a_batch_is_placed():
    def together(values):
        return [("x", "high" if value == 5 else 1.0) for value in values]

    with pytest.raises(TraceError, match=r"input 5 .* a confidence that is no number"):
        collect(range(8), {"n": batched(together, 4)})
    trace = collect(range(8), {"n": batched(together, 4)}, on_error="skip")
    assert (len(trace), trace.left_out) == (
        7,
        {"n returned a confidence that is no number (str)": 1},
    )


def test_a_batch_with_too_few_answers_is_asked_one_by_one():
    trace = collect(range(3), {"n": batched(lambda values: [(values[0], 1)])}, costs={"n": 1})
    assert trace.classes == ("0", "1", "2")
    with pytest.raises(TraceError, match=r"input 0 .* returned 0 replies for 1 input"):
        collect(range(3), {"n": batched(lambda _: [])})


def test_labels_and_facts_are_refused_before_anything_is_asked():
    def asked(_):
        raise AssertionError

    for options in ({"labels": ["a", [1]]}, {"labels": iter("a")}, {"facts": {"prompt": ["a"]}}):
        with pytest.raises((TraceError, ArgumentError), match=r"label 1|1 value for 2 inputs"):
            collect(iter("ab"), {"n": asked}, **options)


def test_progress():
    seen = []
    collect(["a", "b"], NODES, costs=COSTS, progress=seen.append)
    assert seen == ["1 of 2 inputs", "2 of 2 inputs"]
    collect(iter(["a"]), NODES, costs=COSTS, progress=seen.append)
    assert seen[-1] == "1 of 1 inputs"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"warmup": -1}, ArgumentError, "warmup is -1"),
        ({"on_error": "drop"}, ArgumentError, "on_error is 'drop'"),
        ({"costs": "guessed"}, ArgumentError, "costs must be a mapping .* not str"),
        ({"costs": {"short": 1}}, ArgumentError, "only one of them has 'full'"),
        ({"costs": {"short": 1, "full": -1}}, CascadeError, "cost is -1"),
        ({"kind": "random"}, CascadeError, "kind is 'random'"),
        ({"labels": ["a"]}, ArgumentError, "labels has 1 value for 2 inputs"),
        ({"labels": ["a", [1]]}, TraceError, "label 1 .* a class must be"),
        ({"facts": {"x": [1]}}, ArgumentError, r"facts\['x'\] has 1 value for 2 inputs"),
        ({"inputs": []}, TraceError, "no inputs"),
        ({"nodes": {}}, CascadeError, "no nodes"),
    ],
)
def test_arguments(options, error, says):
    with pytest.raises(error, match=says):
        collect(**{"inputs": ["ab", "cd"], "nodes": NODES, **options})


def test_what_is_known_of_an_input_stays_beside_its_row():
    def node(text):
        if text == "bad":
            raise OSError
        return text, 0.5

    facts = {"prompt": ["A", "B", "C"], "size": [1, 2, 3]}
    trace = collect(["a", "bad", "c"], {"a": node}, facts=facts, on_error="skip")
    assert trace.prompt.tolist() == ["A", "C"]
    assert trace.inputs["size"].tolist() == [1, 3]


def test_a_batch_of_none():
    with pytest.raises(ArgumentError, match="size is 0"):
        batched(lambda _: [], 0)


def test_what_is_collected_is_a_file_like_any_other(tmp_path):
    trace = collect(["ab", "cc"], NODES, labels=["b", "c"])
    trace.write(tmp_path / "t.parquet")
    assert Trace.read(tmp_path / "t.parquet").digest == trace.digest


def test_what_async_nodes_leave_running_is_cancelled():
    tasks, cancelled = [], []

    async def refresh():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("refresh")

    async def node(_):
        tasks.append(asyncio.create_task(refresh()))
        await asyncio.sleep(0)  # it starts
        return "yes", 0.9

    collect(["x"], {"a": node}, costs={"a": 1.0})
    assert cancelled == ["refresh"]
    assert tasks[0].done()
