"""What a model callable may return means the same in ``Cascade`` and in ``collect``."""

from __future__ import annotations

import asyncio
import math
import pickle
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from ttamer import (
    ArgumentError,
    Cascade,
    CascadeFailed,
    CascadeSpec,
    Trace,
    TraceError,
    collect,
    fit,
)
from ttamer.runtime import batched
from ttamer.runtime.reply import Unusable, reply_of

COSTS = {"n": 3.0}


class Answer(NamedTuple):
    prediction: str
    confidence: float


GOOD = {
    "two": (("x", 0.5), "x", 0.5, "x", 3.0),
    "three": (("x", 0.5, {"full": "x!"}), "x", 0.5, {"full": "x!"}, 3.0),
    "a named tuple": (Answer("x", 0.5), "x", 0.5, "x", 3.0),
    "NumPy's": ((np.str_("x"), np.float32(0.5)), "x", 0.5, "x", 3.0),
    "a list": (["x", 0.5], "x", 0.5, "x", 3.0),
    "a dict": ({"prediction": "x", "confidence": 1}, "x", 1.0, "x", 3.0),
    "a dict with all": (
        {"prediction": "x", "confidence": 1, "answer": [1], "cost": 2, "latency": 0.1, "id": 7},
        *("x", 1.0, [1], 2.0),
    ),
    "an object": (
        SimpleNamespace(prediction="x", confidence=1, cost=np.float32(0.5)),
        *("x", 1.0, "x", 0.5),
    ),
    "a number as class": ((3, np.array(0.5)), "3", 0.5, 3, 3.0),
    "an array of one number": ((3, np.array([0.5])), "3", 0.5, 3, 3.0),
    "no answer": ((None, 0.5), None, 0.5, None, 3.0),
    "a cost of None": ({"prediction": "x", "confidence": 1, "cost": None}, "x", 1.0, "x", 3.0),
    "a latency of NaN": ({"prediction": "x", "confidence": 1, "latency": math.nan}, "x", 1, "x", 3),
}

BAD = {
    "one value": (("x",), "returned 1 values"),
    "four values": (("x", 0.5, "x", 1.0), "returned 4 values"),
    "no confidence": ({"prediction": "x"}, r"returned dict; \(prediction, confidence\) is needed"),
    "text": ("x", r"returned str; \(prediction"),
    "nothing": (None, "returned NoneType"),
    "text confidence": (("x", "0.9"), r"confidence that is no number \(str\)"),
    "text in an array": (("x", np.array("0.9")), r"confidence that is no number \(ndarray\)"),
    "several confidences": (("x", np.ones(2)), r"confidence that is no number \(ndarray\)"),
    "no class": ((["x"], 0.9), r"not a class .*\(prediction, confidence, answer\)"),
    "negative cost": ({"prediction": "x", "confidence": 1, "cost": -1}, "a cost of -1"),
    "NaN cost": ({"prediction": "x", "confidence": 1, "cost": math.nan}, "a cost of nan"),
    "text latency": (
        {"prediction": "x", "confidence": 1, "latency": "long"},
        "latency .* no number",
    ),
}


def one_node_policy():
    trace = Trace.from_arrays(
        CascadeSpec.of(COSTS), [[0.5], [0.9]] * 10, prediction=[["x"], ["y"]] * 10, label=["x"] * 20
    )
    return fit(trace, belief="markov").at(0.5)


def plain(returned):
    return lambda _: returned


def in_batches(returned):
    return batched(lambda values: [returned] * len(values))


def awaited(returned):
    async def node(_):
        await asyncio.sleep(0)
        return returned

    return node


KINDS = pytest.mark.parametrize("kind", [plain, in_batches, awaited])


@KINDS
@pytest.mark.parametrize("case", GOOD)
def test_a_reply_means_the_same_everywhere(kind, case):
    returned, prediction, confidence, answer, cost = GOOD[case]
    node = kind(returned)
    outcome = Cascade(one_node_policy(), {"n": node}).run("input")
    assert (outcome.answer, outcome.cost, outcome.asked[0].confidence) == (answer, cost, confidence)
    trace = collect(["input"] * 2, {"n": node}, costs=COSTS)
    code = trace.prediction[0, 0]
    assert (None if code < 0 else trace.classes[code]) == prediction
    assert trace.confidence.tolist() == [[confidence]] * 2
    assert trace.costs.tolist() == [[cost]] * 2
    assert trace.spec.costs.tolist() == [cost]


@KINDS
@pytest.mark.parametrize("case", BAD)
def test_what_is_no_reply_is_refused_everywhere_with_the_same_words(kind, case):
    returned, message = BAD[case]
    node = kind(returned)
    with pytest.raises(Unusable, match=message):
        reply_of(returned)
    with pytest.raises(CascadeFailed, match=message):
        Cascade(one_node_policy(), {"n": node}).run("input")
    with pytest.raises(TraceError, match=message):
        collect(["input"], {"n": node}, costs=COSTS)


@pytest.mark.parametrize("belief", ["markov", "answers"])
def test_nan_counts_as_the_lowest_confidence_in_a_trace_and_in_a_session(belief):
    confidence = [0.3, math.nan, 0.7, -math.inf, math.inf]
    trace = collect(range(5), {"n": lambda i: ("x", confidence[i])}, costs=COSTS)
    assert trace.confidence[:, 0].tolist() == [0.3, 0.3, 0.7, 0.3, 0.7]
    assert trace.notes == (
        "3 confidences of 'n' are NaN or infinite: they count as its lowest, or as its highest "
        "where infinite",
    )
    rng = np.random.default_rng(0)
    sure = rng.random((400, 2))
    right = rng.random((400, 2)) < sure
    fitted = fit(
        Trace.from_arrays(
            CascadeSpec.of({"a": 1.0, "b": 2.0}),
            sure,
            prediction=np.where(right, "x", "y"),
            label=["x"] * 400,
        ),
        belief=belief,
    )
    for rung in fitted:
        sessions = [rung.session() for _ in range(2)]
        if sessions[0].next is None:
            continue
        lowest = sure[:, trace.spec.names.index("n") if sessions[0].next == "a" else 1].min()
        for session, value in zip(sessions, (math.nan, lowest), strict=True):
            session.observe(confidence=value, prediction="x")
        assert sessions[0].next == sessions[1].next
        assert (sessions[0].unclear, sessions[1].unclear) == (1, 0)


def test_all_confidences_nan_is_a_trace_without_information():
    trace = collect([0, 1], {"n": lambda _: ("x", math.nan)}, costs=COSTS)
    assert trace.confidence.tolist() == [[0.0], [0.0]]


def test_costs_of_replies_take_the_place_of_measured_ones_and_mixed_units_are_noted():
    def priced(_):
        return {"prediction": "x", "confidence": 1, "cost": 7.0}

    alone = collect([0, 1], {"n": priced})
    assert (alone.costs.tolist(), alone.notes) == ([[7.0], [7.0]], ())
    both = collect([0, 1], {"n": priced, "timed": lambda _: ("x", 1)})
    assert both.costs[:, 0].tolist() == [7.0, 7.0]
    assert both.notes == (
        "costs of 'n' are from its replies, and the others are seconds: give costs in one unit",
    )


def test_costs_of_some_rows_are_kept_by_row():
    def sometimes(value):
        return {"prediction": "x", "confidence": 1} | ({"cost": 9.0} if value else {})

    trace = collect([0, 1], {"n": sometimes}, costs=COSTS)
    assert (trace.costs.tolist(), trace.spec.costs.tolist()) == ([[3.0], [9.0]], [6.0])


def test_collect_awaits_nodes_inside_a_running_loop():
    async def main() -> Trace:
        return collect([0], {"n": awaited(("x", 0.5))}, costs=COSTS)

    assert asyncio.run(main()).confidence.tolist() == [[0.5]]


def test_why_is_computed_when_it_is_read_and_kept_when_pickled():
    outcome = Cascade(one_node_policy(), {"n": plain(("x", 0.5))}).run("input")
    assert callable(outcome.reason)
    again = pickle.loads(pickle.dumps(outcome))  # noqa: S301 - made here
    assert again.why == outcome.why == outcome.to_dict()["why"]
    assert again == outcome


def test_collect_refuses_an_unknown_way_to_treat_errors():
    with pytest.raises(ArgumentError, match='must be "refuse" or "skip"'):
        collect([0], {"n": plain(("x", 1))}, on_error="leave_out")
