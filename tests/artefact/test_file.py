"""Files: what is loaded decides as what was saved; what was cut, flipped or forged is refused."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.fitting.test_ladder import TRACES, simulated

import ttamer as tt
from ttamer.artefact import arrays as arrays_of_files, file
from ttamer.errors import ArgumentError, ArtefactDamaged, ArtefactError, ArtefactTooNew
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, Mixture

pytestmark = pytest.mark.filterwarnings("ignore::ttamer.errors.TraceWarning")
LINE = tt.Problem.line([0.0, 0.3, 0.6], [0.1, 0.2], [[0.2, 0.3, 0.5], np.full((3, 3), 1 / 3)])
FOREST = tt.Problem.from_dict(
    {
        "moves": "precedence",
        "nodes": [{"name": name, "losses": [0.1, 0.6]} for name in "abc"],
        "edges": [
            {"from": None, "to": "a", "cost": 0.1, "probabilities": [[0.5, 0.5]]},
            {"from": "a", "to": "b", "cost": 0.1, "probabilities": [[0.9, 0.1], [0.2, 0.8]]},
            {"from": None, "to": "c", "cost": 0.2, "probabilities": [[0.4, 0.6]]},
        ],
    }
)


def saved(policy, **more):
    return file.pack(policy, more)


@pytest.fixture(scope="module")
def fits():
    made = {}
    for kind in ("models", "prompts", "exits", "gaps"):
        made[kind] = fit(TRACES[kind](300), hold_out=0.3)
    made["markov"] = fit(simulated(300), belief="markov", hold_out=0.3)
    made["threshold"] = fit(simulated(300), belief="threshold")
    made["graded"] = fit(graded(300), hold_out=0.3)
    return made


def graded(rows):
    rng = np.random.default_rng(0)
    confidence = rng.random((rows, 2))
    spec = tt.CascadeSpec.of({"a": 1.0, "b": 4.0}, max_loss=5.0)
    loss = 5 * np.clip(1 - confidence + rng.normal(0, 0.1, confidence.shape), 0, 1)
    return tt.Trace.from_arrays(spec, confidence, loss=loss)


KINDS = ("models", "prompts", "exits", "gaps", "markov", "threshold", "graded")


def rows_of(kind):
    if kind == "graded":
        return graded(100)
    return TRACES[kind if kind in TRACES else "models"](80, 1)


def same(one, two, rows):
    a, b = one.play(rows), two.play(rows)
    return (a.answer == b.answer).all() and (a.asked == b.asked).all() and (a.last == b.last).all()


@pytest.mark.parametrize("kind", KINDS)
def test_fits_decide_alike_once_loaded(fits, kind, tmp_path):
    ladder, rows, path = fits[kind], rows_of(kind), tmp_path / "one.ttamer"
    promised = ladder.for_drop(0.05)
    ladder = ladder.with_promise(promised)
    file.save(ladder, path, notes={"from": "a test"})
    loaded = file.load(path)
    assert isinstance(loaded, FittedLadder)
    for number in range(0, len(ladder) + len(ladder.spec), 7):
        assert same(ladder.point(number), loaded.point(number), rows)
    assert loaded.record == ladder.record
    assert loaded.promises == ladder.promises
    assert loaded.default().mix == ladder.default().mix
    assert loaded.for_error(0.4).promise == ladder.for_error(0.4).promise
    assert loaded.for_budget(2.0).cost == ladder.for_budget(2.0).cost
    assert file.pack(loaded, {"from": "a test"}) == path.read_bytes()
    facts = file.inspect(path)
    assert facts["kind"] == "ladder"
    assert facts["fit"]["belief"] == ladder.record.belief


@pytest.mark.parametrize("kind", KINDS)
def test_policies_and_mixtures_decide_alike_once_loaded(fits, kind, tmp_path):
    ladder, rows = fits[kind], rows_of(kind)
    for number, policy in enumerate(
        [
            ladder.at(0.8),
            ladder.alone(ladder.spec.names[-1]),
            ladder.for_drop(0.05),
            ladder.default(),
        ]
    ):
        path = tmp_path / f"{number}.ttamer"
        file.save(policy, path)
        loaded = file.load(path)
        assert type(loaded) is type(policy)
        assert same(policy, loaded, rows)
        assert (loaded.error, loaded.cost) == (policy.error, policy.cost)
        if isinstance(policy, Mixture):
            assert loaded.promise == policy.promise
            assert loaded.mix == policy.mix


@pytest.mark.parametrize("problem", [LINE, FOREST])
def test_solved_policies_are_equal_once_loaded(problem, tmp_path):
    ladder = tt.solve_ladder(problem, [0.2, 0.5, 0.9])
    for policy in (ladder, ladder[1]):
        file.save(policy, tmp_path / "p.ttamer")
        loaded = file.load(tmp_path / "p.ttamer")
        again = file.pack(loaded, {})
        assert again == (tmp_path / "p.ttamer").read_bytes()


def test_nothing_that_serves_a_cascade_is_kept(fits):
    ladder = fits["models"]
    assert b"upstream" not in saved(ladder)


# ---------------------------------------------------------------- damage
@pytest.fixture(scope="module")
def files(fits):
    given = [fits[kind] for kind in KINDS] + [fits["models"].default(), fits["prompts"].at(0.7)]
    given += [tt.solve(LINE, 0.5), tt.solve_ladder(FOREST, [0.3, 0.6])]
    return [saved(policy) for policy in given]


def opened(data, path):
    path.write_bytes(data)
    return file.load(path)


unhurried = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@given(data=st.data())
@unhurried
def test_cut_flipped_or_longer_files_are_refused(files, data, tmp_path):
    whole = data.draw(st.sampled_from(files))
    how = data.draw(st.sampled_from(["cut", "flip", "more", "twice"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    if how == "cut":
        bad = whole[:place]
    elif how == "flip":
        bit = 1 << data.draw(st.integers(0, 7))
        bad = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
    elif how == "more":
        bad = whole + data.draw(st.binary(min_size=1, max_size=9))
    else:
        bad = whole + whole
    with pytest.raises((ArtefactDamaged, ArtefactTooNew)):  # a flip may make the format 3
        opened(bad, tmp_path / "bad.ttamer")


@given(data=st.data())
@unhurried
def test_forged_headers_are_refused(files, data, tmp_path):
    """A key twice, a size or an offset of another array, a type that is not read."""
    whole = data.draw(st.sampled_from(files))
    size = int.from_bytes(whole[:8], "little")
    header, arrays = whole[8 : 8 + size].decode().rstrip(), whole[8 + size :]
    entries = re.findall(r'"[a-z_.]+":{"dtype":"[A-Z0-9]+","shape":[^}]+}', header)
    entry = data.draw(st.sampled_from(entries))
    number = data.draw(st.sampled_from([0, 1, 7, 2**31, 2**62, 2**64]))
    forgeries = {
        "twice": f"{entry},{entry}",
        "shape": re.sub(r"\[\d+", f"[{number}", entry, count=1),
        "start": re.sub(r"\[\d+,", f"[{number},", entry, count=1),
        "end": re.sub(r",\d+\]}", f",{number}]}}", entry),
        "type": re.sub(r'"[FI]\d+"', '"U64"', entry),
        "name": entry.replace('":{', 'x":{', 1),
        "more": entry + ',"more":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}',
        "gone": "",
    }
    forged = forgeries[data.draw(st.sampled_from(sorted(forgeries)))]
    if forged == entry:
        return
    changed = header.replace(entry, forged).replace(",,", ",").encode()
    bad = len(changed).to_bytes(8, "little") + changed + arrays
    with pytest.raises(ArtefactDamaged):
        opened(bad, tmp_path / "forged.ttamer")


@given(data=st.data())
@unhurried
def test_forged_arrays_are_refused_or_can_be_played(files, data, tmp_path):
    """A forger computes the checksum too: whatever loads must decide without an error."""
    record, arrays = file.unpack(data.draw(st.sampled_from(files)))
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name].copy()
    how = data.draw(st.sampled_from(["value", "shape", "drop", "new"]))
    if how == "value" and array.size:
        values = (
            [0, 1, -1, 7, 127] if array.dtype.kind == "i" else [0, -1, 1e300, np.nan, np.inf, 0.5]
        )
        array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(st.sampled_from(values))
        arrays[name] = array
    elif how == "shape":
        arrays[name] = np.concatenate([array, array])
    elif how == "drop":
        del arrays[name]
    else:
        arrays["another"] = np.zeros(1)
    try:
        policy = opened(file._written(record, arrays), tmp_path / "forged.ttamer")
    except ArtefactDamaged:
        return
    if not hasattr(policy, "fitted"):
        return
    rows = rows_of(
        "graded"
        if "a" in policy.spec.names
        else ("exits" if "full" in policy.spec.names else "prompts")
    )
    point = policy.at(0.5) if isinstance(policy, FittedLadder) else policy
    played = point.play(rows)
    assert len(played.answer) == len(rows)


FORGED = {
    "kind": ("mixture", "one"),
    "format": (0, "solved policies or fitted"),
    "solved": (None, "solved policies or fitted"),
}


@pytest.mark.parametrize("field", FORGED)
def test_forged_records_are_refused(field, tmp_path):
    value, message = FORGED[field]
    record, arrays = file.unpack(saved(tt.solve(LINE, 0.5)))
    forged = msgspec.structs.replace(record, **{field: value})
    with pytest.raises(ArtefactDamaged, match=message):
        opened(file._written(forged, arrays), tmp_path / "forged.ttamer")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_cost": 0.0}, r"> 0.0 - at `\$.fitted.full_cost`"),
        ({"unit": -1.0}, r"> 0.0 - at `\$.fitted.unit`"),
        ({"share": 2.0}, r"<= 1.0 - at `\$.fitted.share`"),
        ({"chosen": []}, "a mixture two"),
        ({"cascade": {"cascade": {}, "node": []}}, "cascade cannot be"),
        ({"steps": None}, "policies on answers or policies on states"),
    ],
)
def test_forged_fits_are_refused(fits, change, message, tmp_path):
    record, arrays = file.unpack(saved(fits["models"].default()))
    forged = msgspec.structs.replace(
        record, fitted=msgspec.structs.replace(record.fitted, **change)
    )
    with pytest.raises(ArtefactDamaged, match=message):
        opened(file._written(forged, arrays), tmp_path / "forged.ttamer")


def test_forged_inputs_are_refused(fits, tmp_path):
    record, arrays = file.unpack(saved(fits["prompts"]))
    content = msgspec.to_builtins(record)
    features = content["fitted"]["steps"]["features"]
    (feature,) = [one for one in features if one["kind"] == "prompt"]
    for change in ({"centre": feature["centre"][1:]}, {"spread": []}, {"width": 0}, {"kind": "x"}):
        content["fitted"]["steps"]["features"] = [
            one | change if one is feature else one for one in features
        ]
        with pytest.raises(ArtefactDamaged, match=r"cannot be read as its file says|has shape"):
            opened(file._written(content, arrays), tmp_path / "forged.ttamer")


def test_a_file_from_before_a_key_was_added_loads(fits, tmp_path):
    record, arrays = file.unpack(saved(fits["models"]))
    content = msgspec.to_builtins(record)
    del content["fitted"]["steps"]["agree"], content["notes"]
    loaded = opened(file._written(content, arrays), tmp_path / "old.ttamer")
    assert same(loaded[9], fits["models"][9], rows_of("models"))
    content["fitted"]["steps"]["hidden"] = 1
    with pytest.raises(ArtefactDamaged, match="unknown field"):
        opened(file._written(content, arrays), tmp_path / "more.ttamer")


def test_a_later_format_is_named(tmp_path):
    record, arrays = file.unpack(saved(tt.solve(LINE, 0.5)))
    with pytest.raises(ArtefactTooNew, match="upgrade ttamer"):
        opened(file._written(msgspec.structs.replace(record, format=9), arrays), tmp_path / "new")


def test_numbers_that_no_sum_can_hold_are_refused(fits, tmp_path):
    record, arrays = file.unpack(saved(fits["models"].at(0.7)))
    huge, half = arrays["belief.weights"].copy(), arrays["tables.base"].astype(np.float32)
    huge[0] = 2.0**1000
    for change, message in (
        ({"belief.weights": huge}, "entry that is not from"),
        ({"tables.base": half}, "cannot hold float32"),
        ({"tables.knots": -arrays["tables.knots"]}, "'tables.knots' must rise"),
    ):
        with pytest.raises(ArtefactDamaged, match=message):
            opened(file._written(record, arrays | change), tmp_path / "forged.ttamer")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\x89ttamer\n" + bytes(100), b"PK\x03\x04" + bytes(60), bytes(2000)]
)
def test_other_files_are_not_taken_for_policies(data, tmp_path):
    with pytest.raises(ArtefactDamaged, match="is not a ttamer file"):
        opened(data, tmp_path / "other")


def test_a_header_nested_deeply_or_claimed_long_is_refused(tmp_path):
    deep = b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ArtefactDamaged):
        opened(len(deep).to_bytes(8, "little") + deep, tmp_path / "deep")
    with pytest.raises(ArtefactDamaged, match="too long"):
        opened((2**40).to_bytes(8, "little") + b"{" + bytes(50), tmp_path / "long")


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="not a dict"):
        file.save({}, tmp_path / "x")
    with pytest.raises(ArgumentError, match="notes must map"):
        file.save(tt.solve(LINE, 0.5), tmp_path / "x", notes={"a": 1})
    with pytest.raises(ArgumentError, match="half a character"):
        file.save(tt.solve(LINE, 0.5), tmp_path / "x", notes={"a": "\ud800"})
    with pytest.raises(ArtefactError, match="cannot be written"):
        file.save(tt.solve(LINE, 0.5), tmp_path / "no" / "x")
    with pytest.raises(ArtefactError, match="not a regular file"):
        file.load(tmp_path)


def test_the_page_of_the_format_lists_every_array():
    page = Path("docs/format.md").read_text("utf-8")
    for declared in arrays_of_files.DECLARED.values():
        missing = [name for name in declared if f"{name}`" not in page]
        assert not missing


def test_solved_tables_are_refused_where_they_disagree_with_their_problem(tmp_path):
    record, arrays = file.unpack(saved(tt.solve(LINE, 0.5)))
    choices = arrays["solved.choices"].copy()
    choices[0, -1, -1] = -1
    changes = {
        "has an unknown 'another'": {"another": np.zeros(1)},
        "'solved.phi' has shape": {"solved.phi": arrays["solved.phi"][:, :-1]},
        "'solved.losses' has shape": {"solved.losses": np.zeros(99)},
        "'solved.choices' cannot hold float64": {"solved.choices": choices.astype(float)},
        "stops at the start": {"solved.choices": choices},
        "'solved.choices' has an entry that is not from -1 to 1": {
            "solved.choices": np.full_like(choices, 2)
        },
        "'solved.tradeoffs' has an entry": {"solved.tradeoffs": np.array([1.5])},
    }
    for message, change in changes.items():
        with pytest.raises(ArtefactDamaged, match=message):
            opened(file._written(record, arrays | change), tmp_path / "forged.ttamer")
