"""Reloading: a valid file is activated, another changes nothing, and no request waits."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

import ttamer as tt
from support.traces import answering_trace, chain_trace
from ttamer.artefact import files
from ttamer.errors import ArgumentError, ArtefactError
from ttamer.serve import policies as reloading
from ttamer.serve.hangups import hangups_kept
from ttamer.serve.policies import PolicyStore, load_artefact

NODES = ("small", "middle", "large")


def quickly(trace) -> tt.FittedLadder:
    return tt.fit(trace, order="fixed", states=4, belief="none", folds=2, tradeoffs=[0.5, 0.9])


@pytest.fixture(scope="module")
def ladders():
    """Three ladders for the same nodes."""
    return [quickly(answering_trace(300, seed=seed)) for seed in range(3)]


@pytest.fixture
def path(ladders, tmp_path):
    path = tmp_path / "policy.ttamer"
    tt.save(ladders[0], path)
    return path


def version(path) -> str:
    return tt.inspect(path)["sha256"]


def build(artefact, version):
    return (artefact.at(0.9) if isinstance(artefact, tt.FittedLadder) else artefact), version


@pytest.fixture
def reported():
    return []


@pytest.fixture
def reloader(path, reported):
    reloader = PolicyStore(path, NODES, build, reported.append)
    reloader.load()
    return reloader


def reload(reloader, cause="admin"):
    return asyncio.run(reloader.reload(cause))


def rollback(reloader):
    return asyncio.run(reloader.rollback())


def test_the_first_load(reloader, path, reported):
    now = reloader.current
    assert now.version == version(path)
    assert now.short_version == now.version[:16]
    assert now.policies[1] == now.version
    (first,) = reported
    assert first.to_dict() == {
        "ok": True,
        "action": "load",
        "cause": "start",
        "version": now.version,
        "changed": True,
        "message": f"serving {now.short_version} from {path}",
    }


def test_before_the_first_load_there_is_none(path):
    with pytest.raises(ArtefactError, match="no policy is loaded yet"):
        PolicyStore(path, NODES, build).current  # noqa: B018


def test_a_new_file_takes_over_and_those_under_way_keep_theirs(reloader, ladders, path, reported):
    under_way = reloader.current
    tt.save(ladders[1], path)
    result = reload(reloader)
    assert result.changed
    assert reloader.current.version == version(path) != under_way.version
    assert under_way.policies[0].session().next in NODES
    assert reported[-1] is result


def test_the_same_file_again_changes_nothing(reloader):
    before = reloader.current
    result = reload(reloader)
    assert result.ok
    assert not result.changed
    assert "active" in result.message
    assert reloader.current is before
    assert not rollback(reloader).ok  # and it did not become its own former


def test_rollback_and_back(reloader, ladders, path):
    first = reloader.current
    tt.save(ladders[1], path)
    reload(reloader)
    second = reloader.current
    assert rollback(reloader).version == first.version
    assert reloader.current is first
    assert rollback(reloader).ok
    assert reloader.current is second


def test_rollback_needs_a_former_policy(reloader):
    before = reloader.current
    result = rollback(reloader)
    assert not result.ok
    assert "no former policy" in result.message
    assert reloader.current is before


def test_one_policy_alone_may_serve(ladders, path):
    tt.save(ladders[0].at(0.5), path)
    artefact, _ = load_artefact(path, NODES)
    assert isinstance(artefact, tt.FittedPolicy)


def save_for(path, *names):
    trace = chain_trace(100)
    spec = tt.CascadeSpec.of(dict.fromkeys(names, 1.0))
    tt.save(quickly(tt.Trace(spec, trace.confidence, correct=trace.correct)), path)


def spoil_garbage(path):
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def spoil_empty(path):
    path.write_bytes(b"")


def spoil_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def spoil_flipped(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def spoil_gone(path):
    path.unlink()


def spoil_folder(path):
    path.unlink()
    path.mkdir()


def spoil_pipe(path):
    path.unlink()
    os.mkfifo(path)


def spoil_nodes(path):
    tt.save(quickly(chain_trace(300)), path)


def spoil_order(path):
    save_for(path, "large", "middle", "small")


def spoil_solved(path):
    problem = tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]], names=["small"])
    tt.save(tt.solve(problem, tradeoff=0.5), path)


SPOILS = {
    spoil_garbage: "is not a ttamer file",
    spoil_empty: "is not a ttamer file",
    spoil_cut: "is cut short",
    spoil_flipped: "was altered",
    spoil_gone: "cannot be read",
    spoil_folder: "is not a regular file",
    spoil_pipe: "is not a regular file",
    spoil_nodes: "was fitted for exit1, exit2, exit3, and the cascade has small, middle, large",
    spoil_order: "was fitted for large, middle, small",
    spoil_solved: "was solved from a problem",
}


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_a_bad_file_leaves_the_old_policy_serving(reloader, path, reported, spoil):
    before = reloader.current
    spoil(path)
    result = reload(reloader)
    assert not result.ok
    assert not result.changed
    assert SPOILS[spoil] in result.message
    assert str(path) in result.message
    assert "\n" not in result.message
    assert result.version == before.version
    assert reloader.current is before
    assert reported[-1] == result
    with pytest.raises(ArtefactError):
        PolicyStore(path, NODES, build).load()


def test_a_bad_file_is_forgotten_when_a_good_one_comes(reloader, ladders, path):
    spoil_garbage(path)
    assert not reload(reloader).ok
    tt.save(ladders[1], path)
    assert reload(reloader).changed
    assert rollback(reloader).ok


def test_what_cannot_be_built_from_is_refused(ladders, path, reported):
    calls = []

    def picky(artefact, version):
        calls.append(artefact)
        if len(calls) == 2:
            raise ArgumentError("no policy of this ladder costs as little as 0.1")
        if len(calls) == 3:
            raise KeyError("secret")
        return version

    reloader = PolicyStore(path, NODES, picky, reported.append)
    before = reloader.load()
    tt.save(ladders[1], path)
    assert "as little as 0.1" in reload(reloader).message
    unexpected = reload(reloader).message
    assert unexpected == f"{path}: could not be loaded: KeyError"
    assert reloader.current is before
    assert [one.ok for one in reported] == [True, False, False]


def test_a_file_is_read_once(path, monkeypatch):
    reads, real = [], files.read
    monkeypatch.setattr(files, "read", lambda given: reads.append(given) or real(given))
    store = PolicyStore(path, NODES, build)
    store.read()
    store.load()
    assert len(reads) == 1


def test_names_of_a_stranger_s_file_are_cut_short(reloader, path):
    save_for(path, *("x" * 300 + letter for letter in "abc"))
    assert len(reload(reloader).message) < 500


class Watched:
    """A reloader being watched, and a way to wait for what it tells."""

    def __init__(self, reloader, reported):
        self.reloader, self.reported = reloader, reported

    async def until(self, count):
        while len(self.reported) < count:
            await asyncio.sleep(0.001)


def watched(reloader, reported, main, every=0.002):
    async def run():
        async with reloader.watching(every):
            await asyncio.wait_for(main(Watched(reloader, reported)), 30)

    asyncio.run(run())


def test_a_changed_file_is_noticed(reloader, ladders, path, reported):
    async def main(watch):
        tt.save(ladders[1], path)
        await watch.until(2)
        assert reported[-1].cause == "file"
        assert reloader.current.version == version(path)
        path.write_bytes(b"garbage")
        await watch.until(3)
        assert not reported[-1].ok
        tt.save(ladders[2], path)
        await watch.until(4)
        assert reloader.current.version == version(path)

    watched(reloader, reported, main)
    assert len(reported) == 4  # and the bad file was tried once only


def test_a_file_that_stays_as_it_is_or_goes_away_is_left_alone(
    reloader, reported, path, monkeypatch
):
    looks = []
    real = PolicyStore._read_signature
    monkeypatch.setattr(PolicyStore, "_read_signature", lambda self: looks.append(1) or real(self))

    async def main(_):
        while len(looks) < 5:
            await asyncio.sleep(0.001)
        path.unlink()
        while len(looks) < 10:
            await asyncio.sleep(0.001)

    watched(reloader, reported, main)
    assert len(reported) == 1


def test_a_file_still_being_written_is_waited_for(reloader, ladders, path, reported, monkeypatch):
    tt.save(ladders[1], path)
    data = path.read_bytes()
    path.write_bytes(data[:100])
    real = reloader._read_signature
    sizes = iter([*range(200, 1000, 100), len(data)])

    def growing():
        """It grows between any two looks; then it is whole."""
        size = next(sizes, None)
        if size is not None:
            path.write_bytes(data[:size])
        return real()

    monkeypatch.setattr(reloader, "_read_signature", growing)

    async def main(watch):
        await watch.until(2)

    watched(reloader, reported, main)
    assert [(one.ok, one.changed) for one in reported[1:]] == [(True, True)]


def test_a_rolled_back_policy_stays_until_the_file_changes(reloader, ladders, path, reported):
    first = reloader.current

    async def main(watch):
        tt.save(ladders[1], path)
        await watch.until(2)
        await reloader.rollback()
        await asyncio.sleep(0.02)
        assert reloader.current is first
        tt.save(ladders[2], path)
        await watch.until(4)
        assert reloader.current.version == version(path)

    watched(reloader, reported, main)


def test_sighup_reloads_and_is_no_longer_handled_afterwards(reloader, ladders, path, reported):
    before = signal.getsignal(signal.SIGHUP)

    async def main():
        async with reloader.watching(0):
            tt.save(ladders[1], path)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait_for(Watched(reloader, reported).until(2), 30)
        assert signal.getsignal(signal.SIGHUP) == before

    asyncio.run(main())
    assert reported[-1].cause == "signal"
    assert reported[-1].changed


def test_a_sighup_that_comes_early_reloads_once_there_is_a_handler(
    reloader, ladders, path, reported
):
    async def main():
        async with reloader.watching(0):
            await asyncio.wait_for(Watched(reloader, reported).until(2), 30)

    tt.save(ladders[1], path)
    with hangups_kept():
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.run(main())
    assert (reported[-1].cause, reported[-1].changed) == ("signal", True)


def test_watching_in_another_thread_goes_without_the_signal(reloader, ladders, path, reported):
    async def main(watch):
        tt.save(ladders[1], path)
        await watch.until(2)

    thread = threading.Thread(target=watched, args=(reloader, reported, main))
    thread.start()
    thread.join(30)
    assert reported[-1].changed


def test_readers_never_see_anything_but_a_whole_generation(reloader, ladders, path):
    """Many readers, while good and bad files come and go and rollbacks happen."""
    stop = threading.Event()
    seen, wrong = set(), []

    def read():
        while not stop.is_set():
            now = reloader.current
            turn = now.policies[0].session()
            if now.policies[1] != now.version or turn.next not in NODES:
                wrong.append(now)
            seen.add(now.version)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()

    async def main():
        for turn in range(12):
            if turn % 3 == 2:
                spoil_garbage(path)
            else:
                tt.save(ladders[turn % 2], path)
            await asyncio.gather(reloader.reload(), reloader.rollback(), reloader.reload())

    try:
        asyncio.run(main())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(seen) == 2


def test_loading_does_not_hold_up_the_loop(reloader, ladders, path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = reloading.open_artefact

    def slow(given):
        begun.set()
        assert go_on.wait(10)
        return real(given)

    monkeypatch.setattr(reloading, "open_artefact", slow)
    tt.save(ladders[1], path)

    async def main():
        before = reloader.current
        loading = asyncio.create_task(reloader.reload())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert reloader.current is before  # requests go on
        go_on.set()
        assert (await loading).changed

    asyncio.run(main())
