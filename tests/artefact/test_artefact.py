"""Policy files: what is saved comes back, and nothing else gets in."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import runpy
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, strategies as st

import ttamer as tt
from support.examples import examples
from support.forge import ATTACKS, MAGIC, SIZES, poked, put, signed, take
from support.strategies import TOPOLOGIES, problems, tradeoffs
from support.traces import answering_trace, passing_trace
from ttamer.artefact.container import MAX_BYTES
from ttamer.artefact.files import inspect, load, save
from ttamer.errors import ArgumentError, ArtefactDamaged, ArtefactError, ArtefactTooNew
from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.plans import fit
from ttamer.policy.base import Ladder
from ttamer.solvers import solve, solve_ladder

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
NAMES = ["größe", "模型🧠", "a\u202eb\x1b[31m\x00\n", 'e\u0301 [0]{"\\"}', "é"]


def small(moves="walk"):
    return tt.Problem.line(
        [0.05, 0.5],
        [0.1, 0.2],
        [[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
        names=["small", "large"],
        moves=moves,
    )


def tree():
    return tt.Problem.tree(
        [0.1, 0.4], [0.1, 0.2, 0.05], [[0.5, 0.5], np.eye(2), [[0.3, 0.7]] * 2], [None, 0, 0]
    )


def with_promise():
    ladder = fit(answering_trace(90), belief="calibrated", order="skip", states=3,
                 tradeoffs=[0.5, 0.9, 1.0], hold_out=0.3)  # fmt: skip
    return ladder.with_promise(ladder.for_error(0.9))


def with_losses():
    """Rows whose answers have losses from 0 to 2."""
    trace = answering_trace(60)
    return dataclasses.replace(
        trace,
        spec=dataclasses.replace(trace.spec, max_loss=2.0),
        correct=None,
        label=None,
        raw_loss=2.0 * trace.wrong() * trace.confidence,
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Sound files, as bytes."""
    things = {
        "line": solve(small(), 0.6),
        "last": solve(small(), 0.6, recall=False),
        "ladder": solve_ladder(small(), [0.1, 0.5, 0.8]),
        "tree": solve(tree(), 0.6),
        "fit": fit(answering_trace(60), belief="calibrated", order="skip", states=3,
                   tradeoffs=[0.9]),
        "passing": fit(passing_trace(60), belief="calibrated", states=3, tradeoffs=[0.9]),
        "belief": build_belief(answering_trace(60), np.array([0.9]), states=3),
        "record": with_promise(),
        "mixture": with_promise().for_error(0.9),
        "losses": fit(with_losses(), belief="calibrated", states=3, tradeoffs=[0.2, 0.9],
                      hold_out=0.5),
    }  # fmt: skip
    path = tmp_path_factory.mktemp("sound") / "file.ttamer"
    files = {}
    for name, thing in things.items():
        save(thing, path, notes={"trace": "july"})
        files[name] = path.read_bytes()
    return files


def solved(problem, given_tradeoffs, *, recall=True):
    """Solve for one tradeoff or several; None where no one is sure to answer."""
    try:
        if isinstance(given_tradeoffs, float):
            return solve(problem, given_tradeoffs, recall=recall)
        return solve_ladder(problem, given_tradeoffs, recall=recall)
    except tt.ProblemError:
        return None


def bits(thing):
    """All that a policy or ladder consists of, down to the last bit."""
    if isinstance(thing, Ladder):
        return ["ladder", [bits(policy) for policy in thing]]
    problem = thing.problem
    names = ("sigma",) if hasattr(thing, "sigma") else ("choices", "phi")
    arrays = [
        *(node.losses for node in problem.nodes),
        *(edge.probabilities for edge in problem.edges),
        *(table for name in names for table in getattr(thing, name)),
    ]
    return [
        type(thing).__name__,
        problem.moves,
        problem.names,
        problem.ends,
        [edge.cost.hex() for edge in problem.edges],
        (thing.tradeoff.hex(), thing.value.hex(), thing.recall),
        [(array.dtype, array.shape, array.tobytes()) for array in arrays],
    ]


def play(policy, games=6):
    """Transcripts of some games, by session and by batch."""
    problem, rng = policy.problem, np.random.default_rng(7)
    drawn = [[int(rng.integers(len(n.losses))) for n in problem.nodes] for _ in range(games)]
    record = []
    for states in drawn:
        turn = policy.session()
        why = [turn.explain().why]
        while turn.next is not None:
            turn.observe(states[problem.index_of(turn.next)])
            why.append(turn.explain().why)
            assert len(turn.asked) <= len(problem.nodes)  # or it would never end
        record.append((turn.asked, turn.answer, turn.cost, why))
    batch = policy.batch(games)
    while batch.running:
        batch.observe(np.array(drawn)[np.arange(games), batch.next])
        assert batch.steps.max() <= len(problem.nodes)
    record.append((batch.answer.tolist(), batch.cost.tolist(), batch.steps.tolist()))
    return record


def policies_of(thing):
    if isinstance(thing, tt.Mixture):
        thing = thing.cheap
    policies = list(thing) if isinstance(thing, Ladder) else [thing]
    return [each.policy if isinstance(each, FittedPolicy) else each for each in policies]


# What is saved comes back.


@pytest.mark.parametrize("recall", [True, False])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_was_saved_comes_back_bit_for_bit(topology, recall, tmp_path):
    path = tmp_path / "p.ttamer"
    several = st.lists(tradeoffs, min_size=1, max_size=4)

    @examples(40)
    @given(problems(topology), st.one_of(tradeoffs, several))
    def check(problem, chosen):
        thing = solved(problem, chosen, recall=recall)
        if thing is None:
            return
        save(thing, path)
        loaded = load(path)
        assert bits(loaded) == bits(thing)
        for one, two in zip(policies_of(loaded), policies_of(thing), strict=True):
            assert play(one) == play(two)
            assert one.expected_loss == two.expected_loss
        save(loaded, path.with_name("again.ttamer"))
        assert path.with_name("again.ttamer").read_bytes() == path.read_bytes()

    check()


@pytest.mark.parametrize("name", ["choices", "phi", "costs", "values", "tradeoffs"])
def test_the_comparison_sees_a_single_changed_number(name, sound, tmp_path):
    path = tmp_path / "p.ttamer"
    path.write_bytes(sound["line"])
    before = bits(load(path))
    path.write_bytes(poked(sound["line"], name, 0, 1 if name == "choices" else 0.25))
    assert bits(load(path)) != before


@pytest.mark.parametrize("nodes", [127, 128, 129, 130, 300])
def test_choices_are_stored_in_the_smallest_integers_that_hold_them(nodes, tmp_path):
    line = tt.Problem.line([0.1, 0.5], [0.01] * nodes, [[0.5, 0.5], *[np.eye(2)] * (nodes - 1)])
    policy = solve(line, 1.0)
    save(policy, tmp_path / "p")
    most = max(int(table.max()) for table in policy.choices)
    dtype = take((tmp_path / "p").read_bytes()).header["arrays"]["choices"]["dtype"]
    assert dtype == ("i8" if most <= 127 else "i16")
    assert bits(load(tmp_path / "p")) == bits(policy)


def test_more_than_32768_nodes_need_the_widest_integers(tmp_path):
    last = 33_000
    nodes = tuple(tt.Node(f"n{i}", [0.5]) for i in range(last))
    edges = tuple(
        tt.Edge(None, node.name, cost=1 - i / last, probabilities=[1.0])
        for i, node in enumerate(nodes)
    )
    policy = solve(tt.Problem("walk", nodes, edges), 0.5)
    save(policy, tmp_path / "p")
    assert take((tmp_path / "p").read_bytes()).header["arrays"]["choices"]["dtype"] == "i32"
    assert load(tmp_path / "p").session().next == f"n{last - 1}"


@pytest.mark.parametrize("name", ["line", "last", "ladder", "tree"])
def test_loaded_arrays_are_read_only(name, sound, tmp_path):
    (tmp_path / "p").write_bytes(sound[name])
    for policy in policies_of(load(tmp_path / "p")):
        tables = policy.sigma if name == "tree" else (*policy.choices, *policy.phi)
        for array in (
            *tables,
            policy.problem.nodes[0].losses,
            policy.problem.edges[0].probabilities,
        ):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_the_same_policy_gives_the_same_bytes(sound, tmp_path):
    for path in (tmp_path / "one", tmp_path / "two"):
        save(solve(small(), 0.6), path, notes={"b": "2", "a": "1"})
    save(solve(small(), 0.6), tmp_path / "three", notes={"a": "1", "b": "2"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()
    assert (tmp_path / "one").read_bytes() != sound["line"]  # other notes


def test_odd_names_and_notes_come_back_exactly(tmp_path):
    line = tt.Problem.line([0.1, 0.5], [0.1] * 5, [[0.5, 0.5], *[np.eye(2)] * 4], names=NAMES)
    notes = {name: name[::-1] for name in NAMES} | {"": "", '{"kind":': "[" * 1000}
    save(solve(line, 0.5), tmp_path / "p", notes=notes)
    assert load(tmp_path / "p").problem.names == tuple(NAMES)
    assert inspect(tmp_path / "p")["notes"] == notes


def test_inspect_reports_what_is_in_the_file(sound, tmp_path):
    path = tmp_path / "p.ttamer"
    path.write_bytes(sound["ladder"])
    ladder = load(path)
    facts = inspect(path)
    assert facts == {
        "kind": "ladder",
        "format_version": 2,
        "library_version": tt.__version__,
        "moves": "walk",
        "recall": True,
        "nodes": ["small", "large"],
        "states": [2, 2],
        "edges": 2,
        "tradeoffs": [0.1, 0.5, 0.8],
        "values": [policy.value for policy in ladder],
        "notes": {"trace": "july"},
        "bytes": len(sound["ladder"]),
        "sha256": sound["ladder"][-32:].hex(),
    }
    assert json.loads(json.dumps(facts)) == facts


def test_a_ladder_of_separately_solved_policies_is_saved(tmp_path):
    policies = tuple(solve(small("precedence"), t, recall=False) for t in (0.2, 0.7))
    assert policies[0].problem is not policies[1].problem
    save(Ladder(policies), tmp_path / "p")
    assert bits(load(tmp_path / "p")) == bits(Ladder(policies))


# What cannot be saved.


def two(first, second):
    return Ladder((first, second))


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        (small(), "not a Problem"),
        (None, "not a NoneType"),
        (two(solve(small(), 0.2), solve(small(), 0.7, recall=False)), "all with recall"),
        (two(solve(small(), 0.2), solve(tree(), 0.7)), "the same problem"),
        (
            two(solve(small(), 0.2), solve(tt.Problem.skip_of(small()), 0.7)),
            "the same problem",
        ),
    ],
)
def test_save_refuses_what_load_would_not_give_back(thing, reason, tmp_path):
    with pytest.raises(ArgumentError, match=reason):
        save(thing, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_save_refuses_a_policy_whose_tables_are_not_sound(tmp_path):
    policy = solve(small(), 0.6)
    facts = {"problem": policy.problem, "tradeoff": 0.6, "value": policy.value}
    turned = tuple(np.where(table == 1, 257, table) for table in policy.choices)
    forged = type(policy)(**facts, choices=turned, phi=policy.phi)
    with pytest.raises(ArgumentError, match="neither -1 nor the number of a node"):
        save(forged, tmp_path / "p")


def test_save_refuses_a_policy_of_another_kind(tmp_path):
    policy = solve(small(), 0.6)
    forged = type(policy)(
        problem=tree(), tradeoff=0.6, value=0.1, choices=policy.choices, phi=policy.phi
    )
    with pytest.raises(ArgumentError, match="of type WalkPolicy"):
        save(forged, tmp_path / "p")


@pytest.mark.parametrize("notes", [{1: "a"}, {"a": 1}, {"a": None}])
def test_notes_must_be_strings(notes, tmp_path):
    with pytest.raises(ArgumentError, match="notes must map strings to strings"):
        save(solve(small(), 0.6), tmp_path / "p", notes=notes)


def test_half_characters_and_huge_notes_are_refused_when_saving(tmp_path):
    line = tt.Problem.line([0.5], [0.1], [[1.0]], names=["\ud800"])
    with pytest.raises(ArgumentError, match="must be Unicode text"):
        save(solve(line, 0.5), tmp_path / "p")
    with pytest.raises(ArgumentError, match="is too large"):
        save(solve(small(), 0.6), tmp_path / "p", notes={"a": "x" * 2**24})
    assert list(tmp_path.iterdir()) == []


# Damage.


@pytest.mark.parametrize("name", ["line", "tree"])
def test_every_flipped_byte_is_refused(name, sound, tmp_path):
    path, file = tmp_path / "p", sound[name]
    for offset in range(len(file)):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(file[:offset] + bytes([file[offset] ^ flip]) + file[offset + 1 :])
            with pytest.raises(ArtefactError):
                load(path)


@pytest.mark.parametrize("name", ["line", "ladder", "tree"])
def test_every_truncation_is_refused(name, sound, tmp_path):
    path, file = tmp_path / "p", sound[name]
    for length in range(len(file)):
        path.write_bytes(file[:length])
        with pytest.raises(ArtefactDamaged):
            load(path)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 8, b"x", MAGIC])
def test_appended_bytes_are_refused(tail, sound, tmp_path):
    (tmp_path / "p").write_bytes(sound["line"] + tail)
    with pytest.raises(ArtefactDamaged, match="has bytes too many"):
        load(tmp_path / "p")


@pytest.mark.parametrize("version", [3, 4, 2**32 - 1])
def test_a_later_version_is_named_together_with_ours(version, sound, tmp_path):
    (tmp_path / "p").write_bytes(put(*take(sound["line"]), version=version))
    wanted = (
        f"version {version} .* ttamer {re.escape(tt.__version__)} reads up to version 2: upgrade"
    )
    for opened in (load, inspect):
        with pytest.raises(ArtefactTooNew, match=wanted):
            opened(tmp_path / "p")


# Attacks.


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_refused_for_its_reason(attack, sound, tmp_path):
    reason, victim, forge = ATTACKS[attack]
    path = tmp_path / "p.ttamer"
    path.write_bytes(forge(sound[victim]))
    for opened in (load, inspect):
        with pytest.raises(ArtefactDamaged, match=re.escape(reason)) as refused:
            opened(path)
        message = str(refused.value)
        assert message.startswith(f"{path}: ")
        assert message.endswith(
            "; copy the file again from where it came, or save the policy again"
        )
        assert message.isprintable()
        assert len(message) < 600
    assert not Path("/tmp/ttamer-attack-was-run").exists()  # noqa: S108 - the bomb's own mark


def test_the_sound_files_of_the_attacks_are_sound(sound, tmp_path):
    for file in sound.values():
        (tmp_path / "p").write_bytes(put(*take(file)))  # taken apart and put together again
        play(policies_of(load(tmp_path / "p"))[0])


@pytest.mark.parametrize(
    "attack",
    [
        "header of 2**64 - 1",
        "huge shape",
        "large shape",
        "zip",
        "states huge",
        "header past the end",
    ],
)
def test_nothing_is_allocated_for_what_a_file_only_claims(attack, sound, tmp_path):
    _, victim, forge = ATTACKS[attack]
    (tmp_path / "p").write_bytes(forge(sound[victim]))
    tracemalloc.start()
    try:
        with pytest.raises(ArtefactDamaged):
            load(tmp_path / "p")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_file_over_the_limit_is_refused_before_it_is_read(sound, tmp_path):
    with (tmp_path / "p").open("wb") as file:
        file.write(sound["line"])
        file.truncate(MAX_BYTES + 1)  # sparse: it takes no room
    with pytest.raises(ArtefactDamaged, match="is too large"):
        load(tmp_path / "p")


def test_a_strangers_names_cannot_flood_or_steer_the_terminal(sound, tmp_path):
    header, data = take(sound["tree"])
    header["problem"]["names"] = ["\x1b[2J" + "x" * 10_000, "b", "c"]
    header["problem"]["sources"] = [-1, 0, 2]
    header["problem"]["targets"] = [0, 1, 1]  # two edges into one node: the error names them
    (tmp_path / "p").write_bytes(put(header, data))
    with pytest.raises(ArtefactDamaged, match=r"2 edges.*\\x1b\[2Jxxx.*\.\.\.;") as refused:
        load(tmp_path / "p")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700


def test_every_refusal_is_documented_and_every_documented_refusal_happens():
    text = FORMAT.read_text("utf-8")
    table = text.split("`ArtefactDamaged`: copy", 1)[1].split("\n## ", 1)[0]
    documented = set(re.findall(r"^\| `(.+?)` \|", table, re.M))
    elsewhere = {
        "is too large",
        "needs a walk without recall",  # test_artefact_belief
        "must name each signal once",  # test_signals
        "must hold finite numbers, of shape",  # test_signals
        "the belief must list the extra columns of each node",  # test_extras
        "the extra columns of a node are some of",  # test_extras
        "a number of bins for each extra column",  # test_extras
        "and names none",  # test_extras
        "the bounds of signals must increase, and end with 0",  # test_signals
        "has two leans",  # test_artefact_belief
        "is for a belief that uses predictions",  # test_artefact_belief
        "have numbers and thresholds, and are for the exits of one network",  # test_cautious
        "has three numbers, and a threshold for each exit",  # test_cautious
        "the numbers of cautious policies must be finite",  # test_cautious
        "the thresholds of cautious policies must be whole",  # test_cautious
    }
    assert documented == {reason for reason, _, _ in ATTACKS.values()} | elsewhere


# Files that cannot be opened.


def test_what_is_not_there_or_not_a_file(tmp_path):
    for path, reason in [
        (tmp_path / "none", "cannot be read: No such file"),
        (tmp_path, "is not a regular file"),
        ("a\0b", "is not the name of a file"),
        (tmp_path / ("x" * 5000), "cannot be read: File name too long"),
    ]:
        for opened in (load, inspect):
            with pytest.raises(ArtefactError, match=reason) as refused:
                opened(path)
            assert type(refused.value) is ArtefactError


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtefactError, match="is not a regular file"):
        load(tmp_path / "pipe")


def test_a_file_that_shrinks_while_it_is_read(sound, tmp_path, monkeypatch):
    path = tmp_path / "p"
    path.write_bytes(sound["line"][:-8])
    whole = os.stat_result([stat.S_IFREG, 0, 0, 0, 0, 0, len(sound["line"]), 0, 0, 0])
    monkeypatch.setattr(os, "fstat", lambda _: whole)
    with pytest.raises(ArtefactDamaged, match="is cut short: it shrank"):
        load(path)


def test_too_little_memory_is_an_error_of_ours(sound, tmp_path, monkeypatch):
    def exhausted(*_):
        raise MemoryError

    (tmp_path / "p").write_bytes(sound["line"])
    monkeypatch.setattr("ttamer.artefact.container.np.frombuffer", exhausted)
    with pytest.raises(ArtefactError, match="does not fit into the memory"):
        load(tmp_path / "p")


# Writing.


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file(call, error, sound, tmp_path, monkeypatch):
    path = tmp_path / "p.ttamer"
    path.write_bytes(sound["tree"])

    def fail(*_):
        raise error

    monkeypatch.setattr(os, call, fail)
    wanted = ArtefactError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(wanted) as failed:
        save(solve(small(), 0.6), path)
    if wanted is ArtefactError:
        assert str(failed.value) == f"{path}: cannot be written: No space left on device"
    monkeypatch.undo()
    assert path.read_bytes() == sound["tree"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_complete_before_it_gets_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "p.ttamer", []
    replace = os.replace

    def watched(source, target):
        assert not path.exists()
        assert Path(source).parent == tmp_path  # another folder may be another disk
        seen.append(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    save(solve(small(), 0.6), path)
    assert seen == [path.read_bytes()]


def test_a_file_gets_the_usual_permissions_and_a_link_stays_a_link(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    save(solve(small(), 0.6), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert bits(load(tmp_path / "link")) == bits(load(tmp_path / "target"))


def test_where_no_file_can_be_written(tmp_path):
    policy = solve(small(), 0.6)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # never try this on a real device: root would replace it
    for path, reason in [
        (tmp_path / "no" / "p", "cannot be written: No such file"),
        (tmp_path, "is not a regular file"),
        (pipe, "is not a regular file"),
        ("a\0b", "is not the name of a file"),
    ]:
        with pytest.raises(ArtefactError, match=reason):
            save(policy, path)
    assert list(tmp_path.iterdir()) == [pipe]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


# Fuzzing.


def outcome(path):
    """Load and inspect; play what comes out. Anything but an ArtefactError fails the test."""
    try:
        thing = load(path)
    except ArtefactError as error:
        with pytest.raises(type(error)):
            inspect(path)
        return type(error).__name__
    facts = inspect(path)
    for policy in policies_of(thing):
        with np.errstate(over="ignore"):  # costs of 1e308 may add up to infinity
            play(policy, games=3)
    assert facts["nodes"] == list(policies_of(thing)[0].problem.names)
    return "loaded"


def test_random_bytes_are_refused(tmp_path):
    path = tmp_path / "p"

    @examples(300)
    @given(
        st.binary(max_size=200), st.sampled_from(["bare", "magic", "prefix", "header"]), st.data()
    )
    def check(noise, dress, data):
        if dress == "magic":
            noise = MAGIC + noise
        elif dress == "prefix":
            noise = signed(MAGIC + b"\1\0\0\0" + (len(noise) // 2).to_bytes(8, "little") + noise)
        elif dress == "header":
            noise = put(data.draw(scraps).encode(), noise)
        path.write_bytes(noise)
        assert outcome(path) in ("ArtefactDamaged", "ArtefactTooNew")

    check()


scraps = st.text(alphabet='{}[]",:\\0123456789-eEtrufalsn Ni\u00e9', max_size=60)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.sampled_from([-(2**63), 2**31, 2**32, 2**63 - 1, 2**64, 10**30]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        ["policy", "ladder", "walk", "precedence", "f64", "i8", "i16", "i32", "", "\ud800"]
    ),
    st.text(max_size=5),
)
values = st.recursive(
    leaves,
    lambda v: st.one_of(
        st.lists(v, max_size=4), st.dictionaries(st.text(max_size=3), v, max_size=3)
    ),
    max_leaves=6,
)
numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308]),
    st.floats(0, 1),
    st.floats(allow_nan=True, allow_infinity=True),
)


def spots(item, path=()):
    """List the path of every value in the header."""
    yield path
    if isinstance(item, dict | list):
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            yield from spots(item[key], (*path, key))


def mutate_header(header, data):
    """Change, remove, add, double or swap something in a header."""
    *path, key = data.draw(st.sampled_from([spot for spot in spots(header) if spot]))
    item = header
    for step in path:
        item = item[step]
    kind = data.draw(st.sampled_from(["set", "set", "nudge", "remove", "add", "swap"]))
    if kind == "set":
        item[key] = data.draw(values)
    elif kind == "nudge" and type(item[key]) is int:
        item[key] += data.draw(st.sampled_from([-8, -1, 1, 8]))
    elif kind == "remove":
        del item[key]
    elif kind == "add" and isinstance(item, dict):
        item[data.draw(st.text(max_size=4))] = data.draw(values)
    elif kind == "add":
        item.insert(key, item[key])
    else:
        other = data.draw(
            st.sampled_from(list(item) if isinstance(item, dict) else range(len(item)))
        )
        item[key], item[other] = item[other], item[key]


def mutated(file, data):
    """Change a sound file in one to three places, and give it the right checksum."""
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["header", "number", "number", "bytes", "text"]))
        parts = take(file)
        if kind == "header":
            mutate_header(parts.header, data)
            return put(parts.header, parts.data)
        if kind == "text":
            raw = bytearray(json.dumps(parts.header).encode())
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            return put(bytes(raw), parts.data)
        if kind == "bytes":
            raw = bytearray(parts.data)
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            file = put(parts.header, bytes(raw))
        else:
            name = data.draw(st.sampled_from(sorted(parts.header["arrays"])))
            whole = SIZES[parts.header["arrays"][name]["dtype"]] == 1
            number = data.draw(st.integers(-3, 3) if whole else numbers)
            file = poked(file, name, data.draw(st.integers(0, 100)), number)
    return file


def test_forged_files_are_refused_or_can_be_played(sound, tmp_path):
    path, seen = tmp_path / "p", set()

    @examples(1500)
    @given(st.sampled_from(sorted(sound)), st.data())
    def check(name, data):
        path.write_bytes(mutated(sound[name], data))
        result = outcome(path)
        event(result)
        seen.add(result)

    check()
    assert seen >= {"loaded", "ArtefactDamaged"}  # or the fuzzer proves nothing


@pytest.mark.parametrize("name", ["line", "last", "ladder", "tree"])
def test_one_forged_number_of_a_table_is_refused_or_played(name, sound, tmp_path):
    header = take(sound[name]).header
    for array, entry in header["arrays"].items():
        whole = entry["dtype"] != "f64"
        for position in range(math.prod(entry["shape"])):
            for number in range(-3, 4) if whole else (0.0, -1.0, 1.0, math.inf, math.nan, 1e308):
                (tmp_path / "p").write_bytes(poked(sound[name], array, position, number))
                outcome(tmp_path / "p")


# The layers, and the specification.


def test_loading_and_deciding_load_no_solver(sound, tmp_path):
    (tmp_path / "p").write_bytes(sound["line"])
    code = (
        "import sys, ttamer\n"
        "turn = ttamer.load(sys.argv[1]).session()\n"
        "turn.observe(1)\n"
        "ttamer.inspect(sys.argv[1])\n"
        "print(turn.next, *sorted(sys.modules))\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, tmp_path / "p"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    following, *modules = done.stdout.split()
    assert following == "large"
    assert "ttamer.artefact.files" in modules
    assert [m for m in modules if m.startswith(("ttamer.solvers", "ttamer.theory"))] == []


def test_the_reader_in_the_specification_decides_as_we_do(tmp_path):
    code = FORMAT.read_text("utf-8").split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "reader.py").write_text(code, "utf-8")
    reader = runpy.run_path(str(tmp_path / "reader.py"))
    path = tmp_path / "p.ttamer"

    @examples(150)
    @given(problems(), st.lists(tradeoffs, min_size=1, max_size=3), st.booleans(), st.data())
    def check(problem, chosen, recall, data):
        ladder = solved(problem, chosen, recall=recall or problem.moves == "precedence")
        if ladder is None:
            return
        save(ladder, path)
        header, arrays = reader["read"](path)
        states = [data.draw(st.integers(0, len(node.losses) - 1)) for node in problem.nodes]
        decide = reader["walk" if ladder.problem.moves == "walk" else "forest"]
        for rung, policy in enumerate(ladder):
            turn = policy.session()
            while turn.next is not None:
                turn.observe(states[problem.index_of(turn.next)])
            asked, answer = decide(header, arrays, rung, states)
            assert [problem.names[node] for node in asked] == list(turn.asked)
            assert turn.answer == (None if answer is None else problem.names[answer])
            assert arrays["values"][1][rung] == policy.value

    check()
