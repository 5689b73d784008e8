"""Profiles: every part timed, costs as shares of the bare network, and files that come back."""

import itertools
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from support.exit_networks import adding_network, evidence
from ttamer.errors import ArgumentError
from ttamer.torch import cuda, profiling
from ttamer.torch.profiling import Profile, profile, timed_in_turns

NAMES = ("a", "b", "full")
MADE = Profile(
    names=NAMES,
    sizes=(1, 8),
    groups=(1, 4, 8),
    segments=((1.0, 2.0, 4.0), (1.0, 2.0, 4.0), (2.0, 4.0, 8.0)),
    asking=((0.5, 0.8), (0.5, 0.8), (0.1, 0.2)),
    per_call=(0.25, 0.5),
    device="a test",
    precision="fp32",
    graphs=False,
)


def test_costs_are_per_input_and_shares_of_the_network_without_ramps():
    costs = MADE.costs(8)
    assert costs.segments == (0.5, 0.5, 1.0)
    assert costs.ramps == pytest.approx((0.1, 0.1, 0.025))
    assert costs.full == pytest.approx(2.025)
    spec = costs.spec()
    assert spec.costs.tolist() == pytest.approx([0.6 / 2.025, 0.6 / 2.025, 1.025 / 2.025])
    assert spec.reach[:-1].tolist() == pytest.approx([0.5 / 2.025, 0.5 / 2.025])
    with pytest.raises(ArgumentError, match="batches of 4 were not measured, only 1, 8"):
        MADE.costs(4)


def test_times_of_segments_are_interpolated():
    first, last = MADE.segments[0][0], MADE.segments[0][-1]
    low, high = MADE.groups[0], MADE.groups[-1]
    assert [MADE.time(0, rows) for rows in (low, high, 1)] == [first, last, first]
    assert first < MADE.time(0, (low + high) / 2) < last


def test_every_part_is_timed():
    lines = []
    measured = profile(
        adding_network(), evidence(5, seed=0)[0], sizes=(4, 1), progress=lines.append
    )
    assert measured.sizes == (1, 4)
    assert set(measured.sizes) <= set(measured.groups)
    assert len(measured.segments) == len(measured.asking) == 4
    assert all(len(row) == len(measured.groups) for row in measured.segments)
    assert all(len(row) == 2 for row in measured.asking)
    assert len(measured.per_call) == 2
    assert min(map(min, measured.segments)) > 0
    assert lines == [f"timing batches of {size}" for size in (4, 2, 1)]
    assert measured.costs(4).full > 0
    assert profile(adding_network(2), evidence(4, seed=0, exits=2)[0], sizes=(4,)).groups == (
        1,
        2,
        4,
    )


def test_what_asking_adds_is_of_calls_that_are_waited_for(monkeypatch):
    events = []
    monkeypatch.setattr(profiling, "wait", lambda _: events.append("wait"))
    monkeypatch.setattr(profiling, "runner_for", lambda *_, **__: lambda _: events.append("run"))
    profile(adding_network(2), evidence(1, seed=0, exits=2)[0], sizes=(1,))
    assert "run" in events
    assert ("run", "run") not in set(itertools.pairwise(events))


def test_exits_differ_by_their_ramps_in_what_asking_adds():
    ramps = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    # Besides the ramps 0.3, 0.2 and 8.5 at three exits; the median counts.
    turns = [(10.9, 1.4, 1.5, 10.0, 1.0)]
    asking, once = profiling.separated(turns, [0, 2, 4], ramps)
    assert once == 0.0
    assert asking == pytest.approx((0.4, 0.5, 0.6, 0.7, 0.8, 0.6))
    # What varies between turns is left to the exits.
    steady = [(174, 150, 154, 100)] * 5
    (cost, *_), once = profiling.separated(steady, [0, 1], [3, 7, 5])
    assert (cost, once) == (20, 30)
    shaken = [(174 + shift, 150, 154, 100) for shift in (-60, 60, -55, 55, 0)]
    (cost, *_), once = profiling.separated(shaken, [0, 1], [3, 7, 5])
    assert (cost, once) == (50, 0)


def clocked(monkeypatch, *, alone, once, exit_, first=0.0):
    """Let calls take known microseconds: a runner those of the network, its own, and its exits'."""
    now, asked = [0.0], []

    def spend(microseconds):
        now[0] += 1e-6 * microseconds * (1 + 0.01 * now[0])  # everything becomes slower

    def runner(_network, tables, _example, **_):
        exits = tables.reached[:-1]
        asked.append(exits)
        building = [first]  # what the first call compiles or captures

        def call(_):
            spend(building.pop() if building else 0.0)
            spend(alone + once + sum(exit_ + k for k in exits))

        return call

    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(profiling, "full_run", lambda *_, **__: lambda _: spend(alone))
    monkeypatch.setattr(profiling, "runner_for", runner)
    network = adding_network(6)
    for k, ramp in enumerate(network.exits):
        ramp.register_forward_hook(lambda *_, k=k: spend(k))
    return network, asked


@pytest.mark.parametrize(("once", "exit_"), [(30, 20), (0, 40), (200, 5)])
def test_what_a_call_adds_once_is_separated_from_what_an_exit_adds(monkeypatch, once, exit_):
    network, asked = clocked(monkeypatch, alone=900, once=once, exit_=exit_, first=1e6)
    measured = profile(network, evidence(1, seed=0, exits=6)[0], sizes=(1,))
    assert asked == [(0, 2, 4), (0,), (2,), (4,)]
    assert measured.per_call == pytest.approx((1e-6 * once,), rel=0.05, abs=1e-6)
    found = [1e6 * row[0] for row in measured.asking]
    assert found == pytest.approx([*(exit_ + k for k in range(5)), 5], rel=0.05, abs=1)
    assert measured.costs(1).ramps == tuple(row[0] for row in measured.asking)


@pytest.mark.parametrize(
    "turns",
    [
        [(150, 150, 150, 100)] * 3,  # a second exit adds nothing
        [(140, 150, 150, 100)] * 3,  # less than nothing
        [(400, 150, 150, 100)] * 3,  # more than the first with all that a call adds
        [(103, 101, 101, 100)] * 3,  # less than a ramp in all
        [(90, 90, 90, 100)] * 3,
        [(150, 100), (160, 100)],  # of one exit
    ],
)
def test_an_exit_adds_its_ramp_at_least_and_the_sum_is_what_one_exit_adds(turns):
    places = [0, 1][: len(turns[0]) - 2] or [0]
    asking, once = profiling.separated(turns, places, [8, 8, 5])
    assert once >= 0
    assert min(asking[:-1]) >= 8
    one, alone = np.median(turns, axis=0)[-2:]
    assert once + asking[0] == pytest.approx(max(one - alone, 8))
    assert asking[-1] == 5


def test_one_exit_is_asked_once(monkeypatch):
    _, asked = clocked(monkeypatch, alone=900, once=30, exit_=20)
    measured = profile(adding_network(2), evidence(1, seed=0, exits=2)[0], sizes=(1,))
    assert asked == [(0,)]
    assert measured.per_call == (0.0,)
    assert measured.asking[0] == pytest.approx((50e-6,), rel=0.05)


def test_calls_are_timed_beside_the_same_segments():
    network, inputs = adding_network(), evidence(2, seed=0)[0]
    network.direct = lambda _: pytest.fail("another way to the full output was timed")
    assert profile(network, inputs, sizes=(2,)).sizes == (2,)
    assert network.direct is not None


def test_work_is_timed_in_turns(monkeypatch):
    now, ran = [0.0], []

    def work(name, seconds):
        ran.append(name)
        now[0] += seconds + 0.001 * len(ran)  # everything becomes slower

    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])
    mine, its = (lambda: work("mine", 0.1)), (lambda: work("its", 0.05))
    turns = np.array(profiling.timed_in_turns((mine, its), torch.device("cpu")))
    assert turns[:, 0] - turns[:, 1] == pytest.approx(0.05, abs=0.002)
    assert ran[-4:] == ["mine", "its", "mine", "its"]


def test_bad_sizes_and_graphs_without_a_gpu_are_refused():
    inputs = evidence(3, seed=0)[0]
    with pytest.raises(ArgumentError, match="there are no batch sizes"):
        profile(adding_network(), inputs, sizes=())
    for size in (0, 1.5):
        with pytest.raises(ArgumentError, match=f"a batch size is {size}; it must be a whole"):
            profile(adding_network(), inputs, sizes=(2, size))
    with pytest.raises(ArgumentError, match="CUDA graphs need a network on a GPU"):
        profile(adding_network(), inputs, sizes=(2,), graphs=True)


@pytest.mark.parametrize(("seconds", "count"), [(1e-6, 200), (1e-3, 25), (0.1, 5), (1.0, 2)])
def test_short_work_is_timed_more_often(monkeypatch, seconds, count):
    now = [0.0]

    def work():
        now[0] += seconds

    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])
    turns = timed_in_turns([work], torch.device("cpu"))
    assert turns == [(pytest.approx(seconds),)] * len(turns)
    assert len(turns) == pytest.approx(count, abs=1)


def test_one_graph_of_a_pool_is_there_when_the_next_is_captured(monkeypatch):
    captures = []

    def captured(work, _):
        assert not captures or captures[-1]() is not None
        replay = partial(work)
        captures.append(weakref.ref(replay))
        return replay

    monkeypatch.setattr(cuda, "captured", captured)
    monkeypatch.setattr(cuda, "release_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    value = evidence(2, seed=0, exits=2)[0]
    as_run = profiling._as_graphs()
    for size in (2, 1):
        parts = profiling._Parts(adding_network(2), value[:size], as_run, graphs=True)
        assert len(parts.segments()) == len(parts.segments()) == 2
