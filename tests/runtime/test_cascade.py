"""The runner: asks what the policy asks, answers what it answers, and stands up to its nodes."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from support.examples import examples
from support.traces import answering_trace, passing_trace, small_traces
from ttamer import ArgumentError, CascadeSpec, ObservationError, fit
from ttamer.fitting.ladder import Mixture
from ttamer.runtime.calling import batched
from ttamer.runtime.cascade import Cascade, CascadeFailed

NEVER = 30.0  # seconds that no test waits for


class InOrder:
    """A policy that asks its nodes in order until one is sure; answers with the surest."""

    def __init__(self, sure: float = 0.9, **costs: float) -> None:
        self.spec = CascadeSpec.of(costs or {"a": 1.0, "b": 2.0, "c": 4.0})
        self.sure = sure
        self.fitted = self

    def session(self, max_cost: float | None = None, key: str | None = None) -> _Turn:
        return _Turn(self, max_cost, key)


class _Turn:
    def __init__(self, policy: InOrder, max_cost: float | None, key: str | None) -> None:
        self.policy, self.max_cost, self.key = policy, max_cost, key
        self.left = list(policy.spec.names)
        self.said: dict[str, float] = {}

    @property
    def price(self) -> float:
        spec = self.policy.spec
        return spec.nodes[spec.index_of(self.left[0])].cost if self.left else 0.0

    @property
    def next(self) -> str | None:
        done = max(self.said.values(), default=0.0) >= self.policy.sure
        return None if done or not self.left else self.left[0]

    @property
    def answer(self) -> str | None:
        return max(self.said, key=lambda node: self.said[node]) if self.said else None

    def observe(self, *, confidence: float, prediction: object = None) -> None:
        if prediction == "refused":
            raise ObservationError("cannot be used")
        self.said[self.left.pop(0)] = confidence

    def fail(self) -> None:
        self.left.pop(0)

    def explain(self) -> SimpleNamespace:
        return SimpleNamespace(why=f"answer with {self.answer}")


def says(confidence: float, text: str = "yes"):
    return lambda value: (text, confidence)


def raises(error: BaseException):
    def node(_):
        raise error

    return node


def make(*nodes, costs=None, **options) -> Cascade:
    """A cascade of nodes a, b, c at costs 1, 2, 4."""
    table = dict(zip("abc", (1.0, 2.0, 4.0) if costs is None else costs, strict=True))
    callables = dict(zip("abc", nodes, strict=False))
    policy = InOrder(**{name: table[name] for name in callables})
    return Cascade(policy, callables, **options)


def slow(event: threading.Event, text: str = "late"):
    """A plain node that waits for an event."""

    def node(_):
        event.wait(NEVER)
        return text, 1.0

    return node


@pytest.fixture
def released():
    """An event that is set at the end of the test, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


BOTH = pytest.mark.parametrize("how", ["run", "arun"])


def go(cascade: Cascade, how: str, value: object = "x", **options):
    if how == "run":
        return cascade.run(value, **options)
    return asyncio.run(cascade.arun(value, **options))


@BOTH
def test_asks_until_the_policy_stops_and_reports_all(how):
    outcome = go(make(says(0.4, "no"), says(0.95), raises(AssertionError("not asked"))), how)
    assert (outcome.answer, outcome.prediction, outcome.by) == ("yes", "yes", "b")
    assert outcome.path == ("a", "b")
    assert [(one.node, one.confidence, one.cost, one.error) for one in outcome.asked] == [
        ("a", 0.4, 1.0, None),
        ("b", 0.95, 2.0, None),
    ]
    assert outcome.cost == 3.0
    assert outcome.why == "answer with b"
    assert not outcome.capped
    assert 0 <= sum(one.seconds for one in outcome.asked) <= outcome.seconds
    assert json.loads(json.dumps(outcome.to_dict()))["asked"][0]["node"] == "a"


@BOTH
def test_an_earlier_answer_is_recalled(how):
    assert go(make(says(0.8, "first"), says(0.3), says(0.5)), how).answer == "first"


class Moody:
    prediction = "yes"

    @property
    def confidence(self):
        raise ConnectionError("gone")


BAD = {  # the forms of replies are those of test_reply
    "nothing": (None, "returned NoneType"),
    "refused by the policy": (("refused", 0.9), "cannot be used"),
    "an object that raises": (Moody(), "ConnectionError: gone"),
}


@BOTH
@pytest.mark.parametrize(("said", "reason"), BAD.values(), ids=BAD)
def test_a_reply_that_cannot_be_used_counts_as_no_answer(how, said, reason):
    outcome = go(make(lambda value: said, says(0.95)), how)
    assert (outcome.by, outcome.cost) == ("b", 3.0)
    assert reason in outcome.asked[0].error
    assert outcome.asked[0].confidence is None


@BOTH
def test_a_node_that_raises_counts_as_no_answer_and_is_paid(how):
    outcome = go(make(raises(OSError("connection\nreset")), says(0.95)), how)
    assert outcome.asked[0].error == "OSError: connection reset"
    assert (outcome.by, outcome.cost, outcome.path) == ("b", 3.0, ("a", "b"))


@BOTH
def test_a_call_that_was_never_made_is_not_paid(how):
    refused = ConnectionRefusedError("refused")
    refused.paid = False
    outcome = go(make(raises(refused), says(0.95)), how)
    assert outcome.cost == 2.0
    assert outcome.asked[0].cost == 0.0


@BOTH
def test_when_all_fail_the_error_lists_each(how):
    cascade = make(raises(OSError("down")), raises(ValueError()), lambda value: None)
    with pytest.raises(CascadeFailed) as caught:
        go(cascade, how)
    message = str(caught.value)
    assert message.startswith("no node gave an answer: 'a': OSError: down; 'b': ValueError; 'c': ")
    assert [one.node for one in caught.value.asked] == ["a", "b", "c"]
    assert not caught.value.late
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (str(copy), copy.asked, copy.late) == (message, caught.value.asked, False)


@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["stop", "exit"])
@pytest.mark.parametrize("timeouts", [None, NEVER])
def test_what_ends_the_program_is_no_failed_node(how, error, timeouts):
    with pytest.raises(type(error)):
        go(make(raises(error), says(0.95), timeouts=timeouts), how)


@BOTH
def test_retries_ask_the_same_node_again_and_are_paid(how):
    tries = []

    def flaky(value):
        tries.append(value)
        if len(tries) < 3:
            raise OSError("again")
        return "yes", 0.95

    outcome = go(make(flaky, says(1.0), retries={"a": 2}), how, "q")
    assert tries == ["q"] * 3
    assert (outcome.by, outcome.cost, outcome.asked[0].calls) == ("a", 3.0, 3)
    assert outcome.asked[0].error is None


@BOTH
def test_the_cost_in_a_reply_is_that_of_its_own_call(how):
    """A call that failed before it costs what its node does."""
    replies = iter([None, {"prediction": "yes", "confidence": 0.95, "cost": 0.25}])
    assert go(make(lambda value: next(replies), retries=1), how).cost == 1.25


@BOTH
@pytest.mark.parametrize("limit", ["timeouts", "deadline"])
def test_limits_may_be_infinite(how, limit):
    assert go(make(says(0.95), **{limit: math.inf}), how).answer == "yes"


@BOTH
def test_a_batched_node_may_be_async(how):
    async def together(values):
        return [("yes", 0.95) for _ in values]

    assert go(make(batched(together)), how).answer == "yes"


async def _surely(_):
    return "yes", 0.95


@pytest.mark.parametrize("node", [_surely, lambda value: _surely(value)], ids=["async", "plain"])
def test_run_inside_a_running_loop_refers_to_arun(node):
    async def run():
        make(node).run("x")

    with pytest.raises((ArgumentError, CascadeFailed), match="await arun"):
        asyncio.run(run())


@BOTH
def test_a_reply_that_cannot_be_used_is_retried(how):
    replies = iter([None, ("yes", 0.95)])
    assert go(make(lambda value: next(replies), retries=1), how).answer == "yes"


@BOTH
def test_an_error_that_would_come_again_is_not_retried(how):
    hopeless = ValueError("bad request")
    hopeless.retry = False
    calls = []

    def node(value):
        calls.append(value)
        raise hopeless

    assert go(make(node, says(0.95), retries=5), how).cost == 3.0
    assert len(calls) == 1


@BOTH
def test_a_node_without_an_answer_in_time_counts_as_no_answer(how, released):
    outcome = go(make(slow(released), says(0.95), timeouts={"a": 0.02}), how)
    assert outcome.by == "b"
    assert outcome.asked[0].error == "timeout: no answer in 0.02 s"
    assert outcome.seconds < NEVER / 2


@BOTH
def test_the_deadline_returns_the_best_answer_so_far(how, released):
    outcome = go(make(says(0.5, "in hand"), slow(released), says(1.0), deadline=0.5), how)
    assert (outcome.answer, outcome.path, outcome.capped) == ("in hand", ("a", "b"), True)
    assert outcome.why == "the deadline of 0.5 s has passed: the best answer so far is that of 'a'"
    assert outcome.cost == 3.0


@BOTH
def test_the_deadline_with_nothing_in_hand_is_an_error(how, released):
    with pytest.raises(
        CascadeFailed, match=r"deadline of 0.05 s has passed; 'a': timeout: no answer"
    ) as e:
        go(make(slow(released), says(1.0), deadline=0.05, retries=3), how)
    assert e.value.late
    assert [one.node for one in e.value.asked] == ["a"]


@BOTH
def test_max_cost_is_given_to_the_policy(how):
    seen = []
    cascade = make(says(0.95), max_cost=5.0)
    session = cascade.policy.session

    def watch(**options):
        seen.append(options)
        return session(**options)

    cascade.policy.session = watch
    go(cascade, how, key="request 7")
    assert seen == [{"max_cost": 5.0, "key": "request 7"}]


@BOTH
def test_a_failure_under_a_cap_names_the_cap(how):
    def broken(_):
        raise RuntimeError("down")

    with pytest.raises(CascadeFailed, match=r"'a': RuntimeError: down; .*max_cost") as failed:
        go(make(broken, says(0.95), max_cost=1.5), how)
    assert [call.node for call in failed.value.asked] == ["a"]


@BOTH
def test_max_cost_holds_whatever_nodes_say_they_cost(how):
    dear = {"prediction": "yes", "confidence": 0.5, "cost": 4.5}
    outcome = go(make(lambda value: dear, says(0.95), max_cost=5.0), how)
    assert (outcome.by, outcome.cost, outcome.capped) == ("a", 4.5, True)
    assert "of max_cost = 5, 4.5 is spent, and a call costs 2" in outcome.why


@BOTH
def test_max_cost_holds_for_retries_and_the_next_node_may_still_be_asked(how):
    calls = []

    def down(value):
        calls.append(value)
        raise OSError("down")

    outcome = go(make(down, says(0.95), costs=(3.0, 1.0, 1.0), retries=5, max_cost=4.0), how)
    assert (len(calls), outcome.by, outcome.cost) == (1, "b", 4.0)
    assert not outcome.capped


@BOTH
def test_max_cost_is_not_passed_by_rounding(how):
    costs = (0.1, 0.2, 1.0)
    outcome = go(make(says(0.5), says(0.95), costs=costs, max_cost=0.3), how)
    assert outcome.by == "b"


def test_a_max_cost_below_every_node_is_refused_at_once():
    trace = answering_trace(60)
    with pytest.raises(ArgumentError, match="cheapest to start with, 'small', costs 1"):
        Cascade(fit(trace).at(0.9), nodes_of(trace, trace.names), max_cost=0.5)


@BOTH
def test_plain_and_async_nodes_work_together(how):
    async def later(value):
        await asyncio.sleep(0)
        return value, 0.95

    class Callable:
        async def __call__(self, value):
            return value, 0.5

    outcome = go(make(says(0.1), Callable(), later), how)
    assert (outcome.path, outcome.answer) == (("a", "b", "c"), "x")


@pytest.mark.parametrize("timeouts", [None, NEVER])
@BOTH
def test_a_plain_function_that_returns_something_to_await_is_awaited(how, timeouts):
    async def later(value):
        return value, 0.95

    outcome = go(make(lambda value: later(value), timeouts=timeouts), how)
    assert outcome.answer == "x"


def test_plain_nodes_do_not_block_the_loop():
    """Each waits for the other: they can only end if both run."""
    both = threading.Barrier(2, timeout=NEVER)

    def node(_):
        both.wait()
        return "yes", 0.95

    async def twice():
        cascade = make(node)
        return await asyncio.gather(cascade.arun(1), cascade.arun(2))

    assert [outcome.answer for outcome in asyncio.run(twice())] == ["yes", "yes"]


@BOTH
@pytest.mark.parametrize("timeouts", [None, NEVER])
def test_nodes_see_the_callers_context(how, timeouts):
    user = contextvars.ContextVar("user", default="nobody")
    user.set("somebody")
    assert go(make(lambda value: (user.get(), 0.95), timeouts=timeouts), how).answer == "somebody"


def test_cancelling_a_run_cancels_its_node():
    started, ended = asyncio.Event(), []

    async def node(value):
        started.set()
        try:
            await asyncio.sleep(NEVER)
        finally:
            ended.append(value)

    async def cancelled():
        run = asyncio.create_task(make(node, says(1.0)).arun("x"))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1
    assert ended == ["x"]


def test_a_call_that_takes_too_long_is_cancelled():
    cancelled = []

    async def node(value):
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            cancelled.append(value)
            raise

    async def run():
        outcome = await make(node, says(0.95), timeouts={"a": 0.01}).arun("x")
        return outcome.answer, len(asyncio.all_tasks())

    assert asyncio.run(run()) == ("yes", 1)
    assert cancelled == ["x"]


def test_a_node_that_will_not_be_cancelled_is_left_behind():
    async def run():
        end = asyncio.Event()

        async def deaf(_):
            while not end.is_set():
                with suppress(asyncio.CancelledError):
                    await end.wait()
            return "late", 1.0

        outcome = await make(deaf, says(0.95), timeouts={"a": 0.02}).arun("x")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(left) == 1  # it still runs
        end.set()
        await asyncio.wait(left)
        return outcome

    assert asyncio.run(run()).by == "b"


def test_a_node_that_cancels_itself_has_failed():
    async def node(_):
        raise asyncio.CancelledError

    outcome = go(make(node, says(0.95)), "arun")
    assert (outcome.by, outcome.asked[0].error) == ("b", "RuntimeError: the call was cancelled")


@BOTH
def test_stop_iteration_from_a_node_is_a_failed_node(how):
    outcome = go(make(raises(StopIteration()), says(0.95), timeouts=NEVER), how)
    assert outcome.by == "b"


def test_one_cascade_runs_in_many_threads():
    cascade = make(lambda value: (value, value % 2), lambda value: (-value, 1.0))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(cascade.run, range(200)))
    assert [o.answer for o in outcomes] == [i if i % 2 else -i for i in range(200)]
    assert [o.cost for o in outcomes] == [1.0 if i % 2 else 3.0 for i in range(200)]


def test_one_cascade_runs_many_inputs_at_once():
    async def first(value):
        await asyncio.sleep(0.001 * (value % 3))
        return value, value % 2

    async def every():
        cascade = make(first, lambda value: (-value, 1.0))
        return await asyncio.gather(*(cascade.arun(i) for i in range(200)))

    outcomes = asyncio.run(every())
    assert [o.answer for o in outcomes] == [i if i % 2 else -i for i in range(200)]


REFUSED = {
    "no callable": (lambda p: Cascade(p, {"a": says(1)}), "no callable for 'b', 'c'; the policy's"),
    "no policy": (lambda p: Cascade(p.spec, {}), "one policy, not a CascadeSpec: give ladder"),
    "no node": (lambda p: Cascade(p, dict.fromkeys("abcd", says(1))), "'d' is no node"),
    "odd timeout": (lambda p: _with(p, timeouts={"z": 1.0}), "timeouts names 'z'"),
    "no time": (lambda p: _with(p, timeouts=0), "timeouts for 'a' is 0; it must be a number above"),
    "bad timeout": (lambda p: _with(p, timeouts="1"), "timeouts for 'a' is '1'"),
    "bad retries": (lambda p: _with(p, retries={"b": True}), "retries for 'b' is True"),
    "half a retry": (lambda p: _with(p, retries=0.5), "retries for 'a' is 0.5"),
    "infinite retries": (lambda p: _with(p, retries=math.inf), "retries for 'a' is inf"),
    "bad cap": (lambda p: _with(p, max_cost=0), "max_cost is 0"),
    "cap as text": (lambda p: _with(p, max_cost="1"), "max_cost is '1'; it must be a number"),
    "bad deadline": (lambda p: _with(p, deadline=float("nan")), "deadline is nan"),
}


def _with(policy, **options):
    return Cascade(policy, dict.fromkeys("abc", says(1)), **options)


@pytest.mark.parametrize(("make_it", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused(make_it, message):
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        make_it(InOrder())


def nodes_of(trace, names, said=None):
    """Callables that say what stands in a trace; the input is a row's number."""

    def node(name):
        column = trace.names.index(name)

        def answer(row):
            if said is not None:
                said.append((row, name))
            code = -1 if trace.prediction is None else trace.prediction[row, column]
            text = None if code < 0 else trace.classes[code]
            return text, float(trace.confidence[row, column]), (name, row)

        return answer

    return {name: node(name) for name in names}


def check_as_played(trace, policy, rows, how="run"):
    played = policy.play(trace)
    said: list[tuple[int, str]] = []
    cascade = Cascade(policy, nodes_of(trace, trace.names, said))
    for row in rows:
        said.clear()
        outcome = go(cascade, how, row)
        assert outcome.answer == (trace.names[played.answer[row]], row)
        assert outcome.path == tuple(name for _, name in said)
        asked = {trace.names[v] for v in np.flatnonzero(played.asked[row])}
        assert set(outcome.path) == asked
        assert len(outcome.path) == len(asked)
        assert outcome.path[-1] == trace.names[played.last[row]]


@examples(5)
@given(trace=small_traces(), belief=st.sampled_from(["markov", "answers"]), rung=st.integers(0, 20))
def test_a_run_asks_and_answers_as_the_policy_plays_the_trace(trace, belief, rung):
    for policy in list(fit(trace, belief=belief))[rung::20]:
        check_as_played(trace, policy, range(0, len(trace), 3))


@pytest.mark.parametrize("how", ["run", "arun"])
@pytest.mark.parametrize("kind", ["exits", "models"])
def test_a_run_asks_and_answers_as_played_in_every_kind(how, kind):
    trace = answering_trace(120, kind=kind)
    for policy in list(fit(trace))[::8]:
        check_as_played(trace, policy, range(0, 120, 10), how)


def test_the_cost_of_exits_passed_is_in_the_cost():
    trace = passing_trace(300)
    for policy in list(fit(trace, belief="markov", states=3))[::8]:
        cascade = Cascade(policy, nodes_of(trace, trace.names))
        for row in range(0, 300, 50):
            turn = policy.session()
            while turn.next is not None:
                column = trace.names.index(turn.next)
                turn.observe(confidence=trace.confidence[row, column])
            assert cascade.run(row).cost == pytest.approx(turn.cost)


def test_on_real_policies_failures_and_caps_leave_the_best_answer_there_is():
    trace = answering_trace(200)
    nodes = nodes_of(trace, trace.names)
    for policy in list(fit(trace))[::8]:
        for row in range(0, 200, 20):
            failing = dict(nodes, small=raises(OSError("down")), large=raises(OSError("down")))
            assert Cascade(policy, failing).run(row).by == "middle"
            outcome = Cascade(policy, nodes, max_cost=5.0).run(row)
            assert outcome.cost <= 5.0
            assert outcome.by in ("small", "middle")


def test_a_mixture_is_drawn_by_the_key():
    trace = answering_trace(200)
    ladder = fit(trace)
    mixture = Mixture(ladder[0], ladder[-1], 0.5)
    cascade = Cascade(mixture, nodes_of(trace, trace.names))
    paths = {key: {cascade.run(3, key=key).path for _ in range(5)} for key in "abcdefgh"}
    assert all(len(found) == 1 for found in paths.values())
    assert len(set.union(*paths.values())) == 2
