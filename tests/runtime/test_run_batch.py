"""``run_batch`` decides as ``run`` does, row by row, with one call of a node in each round."""

from __future__ import annotations

import math
import threading
from functools import cache

import numpy as np
import pandas as pd
import pytest

from ttamer import ArgumentError, Cascade, CascadeFailed, CascadeSpec, Trace, fit
from ttamer.runtime import batched

ROWS = 300
NAMES = ("a", "b", "c")


def make_trace(kind="models", seed=0, signals=None, **options):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, ROWS)
    sure = rng.random((ROWS, 3))
    right = rng.random((ROWS, 3)) < 0.4 + 0.6 * sure
    prediction = np.where(right, label[:, np.newaxis], (label[:, np.newaxis] + 1) % 3)
    spec = CascadeSpec.of(dict(zip(NAMES, (1.0, 2.0, 4.0), strict=True)), kind=kind, **options)
    return Trace.from_arrays(spec, sure, prediction=prediction, label=label, inputs=signals or {})


@cache
def fitted(belief="answers", kind="models"):
    """A ladder on the rows of ``make_trace(kind)``."""
    return fit(make_trace(kind), belief=belief)


class Nodes:
    """Callables that look replies up by row, and count their calls."""

    def __init__(self, trace, change=None):
        self.trace, self.calls = trace, []
        self.change = change or (lambda node, row, reply: reply)

    def reply(self, node, row):
        number = self.trace.names.index(node)
        code = self.trace.prediction[row, number]
        reply = (int(self.trace.classes[code]), float(self.trace.confidence[row, number]))
        return self.change(node, row, reply)

    def single(self, node):
        return lambda row: self.reply(node, int(row))

    def together(self, node):
        def answer(rows):
            self.calls.append((node, len(rows)))
            return [self.reply(node, int(row)) for row in rows]

        return batched(answer, size=None)

    def columns(self, node):
        def answer(rows):
            self.calls.append((node, len(rows)))
            replies = [self.reply(node, int(row)) for row in rows]
            return np.array([r[0] for r in replies]), np.array([r[1] for r in replies])

        return batched(answer, size=None)

    def of(self, kind):
        return {name: getattr(self, kind)(name) for name in self.trace.names}


def check_same(policy, nodes, inputs, **options):
    """Compare with one run for each row."""
    cascade = Cascade(policy, nodes, **options)
    found = cascade.run_batch(inputs)
    assert len(found) == len(inputs)
    for row in range(len(inputs)):
        try:
            outcome = cascade.run(inputs[row], key=row)
        except CascadeFailed as failure:
            assert found.by[row] is None
            assert found.errors[row] == str(failure)
            continue
        asked = tuple(np.array(policy.spec.names)[found.asked[row]])
        assert (found.answers[row], found.predictions[row]) == (outcome.answer, outcome.prediction)
        assert (found.by[row], sorted(asked)) == (outcome.by, sorted(outcome.path))
        assert found.cost[row] == pytest.approx(outcome.cost)
    return found


@pytest.mark.parametrize("kind", ["single", "together", "columns"])
@pytest.mark.parametrize("belief", ["markov", "answers"])
def test_the_decisions_are_those_of_single_runs(belief, kind):
    trace, ladder = make_trace(), fitted(belief)
    for rung in (0, len(ladder) // 2, len(ladder) - 1):
        check_same(ladder[rung], Nodes(trace).of(kind), np.arange(60))


@pytest.mark.parametrize("order", ["exits", "models"])
def test_in_every_order(order):
    trace = make_trace(order)
    for belief in ("markov", "answers"):
        ladder = fitted(belief, order)
        check_same(ladder[len(ladder) // 2], Nodes(trace).of("columns"), np.arange(40))


def test_exits_that_are_passed():
    trace = make_trace("exits", reach={"a": 0.5, "b": 0.25})
    ladder = fit(trace)
    check_same(ladder[len(ladder) // 2], Nodes(trace).of("columns"), np.arange(40))


def test_mixtures_draw_by_the_number_of_the_row():
    trace = make_trace()
    mixture = fitted("markov").for_budget(2.0)
    check_same(mixture, Nodes(trace).of("columns"), np.arange(80))


def test_a_node_is_called_once_in_each_round_with_the_rows_that_need_it():
    trace = make_trace("exits")
    ladder = fitted("answers", "exits")
    nodes = Nodes(trace)
    found = Cascade(ladder[len(ladder) // 2], nodes.of("columns")).run_batch(np.arange(ROWS))
    assert [node for node, _ in nodes.calls] == list(NAMES)[: len(nodes.calls)]
    assert [rows for _, rows in nodes.calls] == found.asked.sum(axis=0).tolist()[: len(nodes.calls)]


def broken(node, row, reply):
    if row % 7 == 0 and node == "b":
        raise RuntimeError("broken")
    if row % 11 == 0:
        return reply[0], math.nan
    if row % 13 == 0 and node == "a":
        return reply[0], "high"
    if row % 17 == 0:
        return {"prediction": reply[0], "confidence": reply[1], "cost": 9.0, "answer": f"row {row}"}
    if row == 20:
        raise RuntimeError("no node answers this one")
    return reply


@pytest.mark.parametrize("kind", ["single", "together"])
@pytest.mark.parametrize("belief", ["markov", "answers"])
def test_rows_on_which_nodes_fail_go_on_without_them(belief, kind):
    trace, ladder = make_trace(), fitted(belief)
    found = check_same(ladder[len(ladder) // 2], Nodes(trace, broken).of(kind), np.arange(60))
    assert list(found.errors) == [20]


def test_limits_hold_in_a_batch():
    trace, ladder = make_trace(), fitted()
    found = check_same(ladder[-1], Nodes(trace).of("together"), np.arange(40), max_cost=3.0)
    assert found.cost.max() <= 3.0


@pytest.fixture
def never():
    """An event that is set at the end of the test, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("kind", ["single", "together"])
@pytest.mark.parametrize("limits", [{}, {"max_cost": 9.0}])
def test_a_node_without_an_answer_in_time_counts_as_no_answer(never, kind, limits):
    trace = make_trace("exits")

    def hang(node, _row, reply):
        if node == "a":
            never.wait(30)
        return reply

    nodes = Nodes(trace, hang).of(kind)
    cascade = Cascade(fitted("answers", "exits")[-1], nodes, timeouts={"a": 0.05}, **limits)
    found = cascade.run_batch(np.arange(3))
    assert set(found.by) <= {"b", "c"}
    assert found.asked[:, 0].all()
    assert found.cost.tolist() == [cascade.run(row).cost for row in range(3)]


@pytest.mark.parametrize("is_batched", [False, True])
def test_no_row_is_called_after_the_deadline(never, is_batched):
    """Rows that wait for the calls of others are not called, and cost nothing."""
    called = []

    def hang(row):
        called.append(int(row))
        never.wait(30)
        return 0, 0.9

    def hang_alone(rows):
        if len(rows) > 1:
            raise MemoryError
        return [hang(rows[0])]

    nodes = dict.fromkeys(NAMES, batched(hang_alone) if is_batched else hang)
    cascade = Cascade(fitted("markov", "exits")[-1], nodes, deadline=0.1)
    found = cascade.run_batch(np.arange(4))
    assert called == [0]
    assert found.asked.sum() == 1
    assert found.cost.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert len(found.errors) == 4
    assert all("the deadline of 0.1 s has passed" in text for text in found.errors.values())


def test_replies_in_a_tuple_are_replies_and_not_columns():
    """As columns, two replies with numbers for predictions would be read the other way round."""
    nodes = {name: batched(lambda rows: tuple((int(row), 0.5) for row in rows)) for name in NAMES}
    found = check_same(fitted("markov")[0], nodes, [0, 2])
    assert found.predictions == [0, 2]


def test_columns_of_different_lengths_are_not_used():
    """The rows are then called one by one."""

    def node(rows):
        answers = [f"row {row}" for row in rows]
        return {
            "prediction": np.zeros(len(rows), int),
            "confidence": np.full(len(rows), 0.9),
            "answer": answers if len(rows) == 1 else answers[1:],
        }

    found = check_same(fitted("markov")[0], dict.fromkeys(NAMES, batched(node)), np.arange(3))
    assert found.answers == ["row 0", "row 1", "row 2"]


def test_a_failed_call_of_a_limited_batch_leaves_the_others():
    """Its rows are called one by one, and the failed call is not made again."""
    trace = make_trace("exits")
    calls = []

    def first(rows):
        calls.append(list(rows))
        if 5 in rows and len(rows) > 1:
            raise RuntimeError("broken")
        return [Nodes(trace).reply("a", row) for row in rows]

    nodes = {**Nodes(trace).of("single"), "a": batched(first, size=4)}
    Cascade(fitted("markov", "exits")[0], nodes).run_batch(list(range(8)))
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [4], [5], [6], [7]]


def test_signals_are_arrays():
    rng = np.random.default_rng(5)
    signals = {"length": rng.random(ROWS)}
    trace = make_trace(signals=signals)
    ladder = fit(trace)
    policy = ladder[len(ladder) // 2]
    cascade = Cascade(policy, Nodes(trace).of("columns"))
    found = cascade.run_batch(np.arange(50), inputs={"length": signals["length"][:50]})
    for row in range(50):
        outcome = cascade.run(row, inputs={"length": float(signals["length"][row])})
        assert (found.by[row], found.answers[row]) == (outcome.by, outcome.answer)
    with pytest.raises(ArgumentError, match="one for each of 3 inputs"):
        cascade.run_batch(np.arange(3), inputs={"length": [1.0]})


def test_lists_frames_and_batches_of_a_limited_size():
    trace = make_trace()
    policy = fitted("markov")[3]
    nodes = Nodes(trace)
    of_list = check_same(policy, nodes.of("together"), list(range(30)))
    frame = pd.DataFrame({"row": np.arange(30)})
    by_frame = {
        name: batched(lambda part, name=name: [nodes.reply(name, row) for row in part["row"]], 4)
        for name in NAMES
    }
    of_frame = Cascade(policy, by_frame).run_batch(frame)
    assert of_frame.answers == of_list.answers


@pytest.mark.parametrize("inputs", ["text", None, iter([1]), {"a": 1}, {"a", "b"}])
def test_inputs_that_are_not_several_are_refused(inputs):
    cascade = Cascade(fitted("markov")[0], dict.fromkeys(NAMES, lambda _: (0, 0.5)))
    with pytest.raises(ArgumentError, match="run_batch takes several inputs, not"):
        cascade.run_batch(inputs)


def test_no_inputs_and_async_nodes():
    trace = make_trace()
    policy = fitted("markov")[3]
    assert len(Cascade(policy, Nodes(trace).of("together")).run_batch([])) == 0

    async def node(_):
        return "x", 1.0

    with pytest.raises(ArgumentError, match="await arun"):
        Cascade(policy, dict.fromkeys(NAMES, node)).run_batch([1])


def test_rows_called_one_by_one_come_as_the_batch_does():
    """A row of an array is an array of one row, and a row of a frame a frame."""
    trace, policy = make_trace("exits"), fitted("markov", "exits")[0]
    seen = []

    def first(rows):
        seen.append(type(rows))
        if len(rows) > 1:
            raise MemoryError
        return np.full(len(rows), 1), np.full(len(rows), 0.9)

    nodes = {**Nodes(trace).of("single"), "a": batched(first)}
    by_frame = {**nodes, "b": lambda row: (1, 0.9), "c": lambda row: (1, 0.9)}
    for limits in ({}, {"max_cost": 9.0}):
        found = Cascade(policy, nodes, **limits).run_batch(np.arange(3))
        assert found.predictions == [1, 1, 1]
        Cascade(policy, by_frame, **limits).run_batch(pd.DataFrame({"row": np.arange(3)}))
    assert seen == ([np.ndarray] * 4 + [pd.DataFrame] * 4) * 2


def test_a_batched_node_that_is_async_is_refused():
    async def together(rows):
        return [("x", 1.0) for _ in rows]

    cascade = Cascade(fitted("markov")[3], dict.fromkeys(NAMES, batched(together)))
    with pytest.raises(ArgumentError, match="await arun"):
        cascade.run_batch([1])


@pytest.mark.parametrize("said", [[1, "x"], [True, 2], [1, 2.5]])
def test_predictions_in_a_list_keep_their_types(said):
    def together(rows):
        return {"prediction": [said[row] for row in rows], "confidence": [0.9] * len(rows)}

    nodes = dict.fromkeys(NAMES, batched(together))
    found = check_same(fitted("markov")[0], nodes, [0, 1])
    assert list(map(type, found.answers)) == list(map(type, said))


def test_missing_signals_are_unknown_as_in_a_session():
    rng = np.random.default_rng(0)
    length = rng.random(3000)
    right = rng.random((3000, 2)) < np.stack(
        [np.where(length < 0.5, 0.95, 0.35), np.full(3000, 0.9)], axis=1
    )
    spec = CascadeSpec.of({"a": 1.0, "b": 10.0}, kind="exits")
    trace = Trace(spec, rng.random((3000, 2)), correct=right, inputs={"length": length})

    def together(rows):
        return np.zeros(len(rows), int), np.zeros(len(rows))

    nodes = {"a": batched(together), "b": batched(together)}
    check_same(fit(trace).at(0.5), nodes, np.arange(3))


def test_columns_may_be_lists():
    trace = make_trace()
    nodes = Nodes(trace).of("columns")
    lists = {
        name: batched(lambda rows, node=node: tuple(map(list, node(rows))), size=None)
        for name, node in nodes.items()
    }
    policy = fitted("markov")[0]
    arrays = Cascade(policy, nodes).run_batch(np.arange(40))
    assert Cascade(policy, lists).run_batch(list(range(40))).answers == arrays.answers


def said(trace, name):
    """A node that fails on some rows, has no confidence on others, and says unseen classes."""
    node = NAMES.index(name)

    def reply(row):
        if row % 7 == node or row % 31 == 0:
            return "not a reply"
        _, confidence = Nodes(trace).reply(name, row)
        prediction = (
            f"new {row % 2}" if row % 13 == 0 else trace.classes[trace.prediction[row, node]]
        )
        return {
            "prediction": None if row % 17 == 0 else prediction,
            "confidence": math.nan if row % 11 == node else confidence,
            "cost": 20.0 if row % 19 == 0 else None,
        }

    return batched(lambda rows: [reply(int(row)) for row in rows], size=None)


@pytest.mark.parametrize("chosen", [0.6, 0.8, 0.95, "mixture"])
@pytest.mark.parametrize("reads", [False, True], ids=["answers", "inputs"])
def test_rows_are_decided_together_as_by_sessions(reads, chosen):
    length = np.random.default_rng(4).random(ROWS)
    inputs = {"length": length} if reads else {}
    trace = make_trace(signals=inputs)
    ladder = fit(trace) if reads else fitted()
    policy = ladder.for_budget(3.0) if chosen == "mixture" else ladder.at(chosen)
    nodes = {name: said(trace, name) for name in NAMES}
    together = Cascade(policy, nodes).run_batch(np.arange(ROWS), inputs=inputs)
    # Where an input has limits of its own, sessions decide.
    single = Cascade(policy, nodes, deadline=1e6).run_batch(np.arange(ROWS), inputs=inputs)
    assert (together.asked == single.asked).all()
    assert together.errors == single.errors
    assert together.errors.keys() == set(range(0, ROWS, 31))
    assert (together.by, together.answers) == (single.by, single.answers)
    assert together.cost == pytest.approx(single.cost)


def test_a_batch_of_one_that_fails_is_asked_once():
    calls = []

    def node(rows):
        calls.append(list(rows))
        raise RuntimeError

    cascade = Cascade(fitted("markov")[0], dict.fromkeys(NAMES, batched(node)))
    assert cascade.run_batch([0]).errors.keys() == {0}
    assert calls == [[0]] * len(NAMES)
