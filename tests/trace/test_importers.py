from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import struct
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ttamer.errors import CascadeError, TraceError
from ttamer.trace.importers import import_apparate, import_frugalml, import_long_csv
from ttamer.trace.importers.plain_pickle import load_plain
from ttamer.trace.spec import CascadeSpec

CONF = [[0.9, 0.4, 0.6], [0.8, 0.7, 0.5], [0.9, 0.9, 0.9]]
ACC = [[True, False, True], [True, True, False], [True, True, True]]


def pickled(tmp_path, value, protocol=4):
    path = tmp_path / "log.pickle"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return path


# Apparate


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows,
        lambda rows: tuple(map(tuple, rows)),
        np.array,
        lambda rows: [np.array(row) for row in rows],
        lambda rows: [np.asfortranarray(np.array(row, ">f4")) for row in rows],
        lambda rows: [[np.float32(v) for v in row] for row in rows],
        lambda rows: [[np.float64(v) for v in row] for row in rows],
    ],
)
def test_apparate_in_every_form_and_protocol(tmp_path, protocol, form):
    path = pickled(tmp_path, {"conf": form(CONF), "acc": form(ACC)}, protocol)
    trace = import_apparate(path)
    assert trace.names == ("ramp0", "ramp1", "model")
    assert trace.spec.order == "fixed"
    assert np.allclose(trace.confidence, np.transpose(CONF), atol=1e-6)
    assert (trace.wrong() == ~np.transpose(ACC)).all()
    assert trace.notes == (
        "no cascade was given: every exit costs 1; give a cascade.toml with real costs",
    )


def test_pickles_of_numpy_1_name_other_modules(tmp_path):
    data = pickle.dumps({"conf": np.array(CONF), "acc": np.array(ACC)}, 2)
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert import_apparate(pickled(tmp_path, old)).confidence.shape == (3, 3)


def test_apparate_with_a_cascade(tmp_path):
    path = pickled(tmp_path, {"conf": CONF, "acc": ACC, "latency": [1]})
    spec = CascadeSpec.of({"early": 1.0, "middle": 2.0, "full": 4.0}, order="fixed")
    spec.to_file(tmp_path / "cascade.toml")
    trace = import_apparate(path, tmp_path / "cascade.toml")
    assert trace.names == ("early", "middle", "full")
    assert trace.notes == ("parts of the log not used: 'latency'",)
    with pytest.raises(TraceError, match="has 3 ramps with samples, and the cascade has 1 node "):
        import_apparate(path, CascadeSpec.of({"a": 1.0}))
    with pytest.raises(CascadeError, match="cannot be read"):
        import_apparate(path, tmp_path / "none.toml")


def test_logits_of_the_last_ramp_become_probabilities(tmp_path):
    logits = [[2.0, 1.0, -1000.0], [1000.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    for last in (logits, np.array(logits), [np.array(row) for row in logits]):
        trace = import_apparate(pickled(tmp_path, {"conf": [*CONF[:2], last], "acc": ACC}))
        expected = [np.e / (np.e + 1), 1.0, 1 / 3]
        assert np.allclose(trace.confidence[:, 2], expected)
        assert "model: raw logits: the largest softmax" in trace.notes[1]


def test_probabilities_are_not_squashed_again(tmp_path):
    shares = [[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]]
    trace = import_apparate(pickled(tmp_path, {"conf": [*CONF[:2], shares], "acc": ACC}))
    assert trace.confidence[:, 2].tolist() == [0.5, 0.9, 1.0]


def test_a_raw_score_is_kept_and_reported(tmp_path):
    trace = import_apparate(pickled(tmp_path, {"conf": [*CONF[:2], [7, -3, 9]], "acc": ACC}))
    assert trace.confidence[:, 2].tolist() == [7, -3, 9]
    assert "outside 0 to 1" in trace.notes[1]


def test_a_network_without_confidence_is_sure(tmp_path):
    trace = import_apparate(pickled(tmp_path, {"conf": [*CONF[:2], [None] * 3], "acc": ACC}))
    assert trace.confidence[:, 2].tolist() == [1, 1, 1]
    assert "no confidence in the log" in trace.notes[1]


def test_ramps_that_were_switched_off_are_reported(tmp_path):
    log = {"conf": [CONF[0], [], CONF[2]], "acc": [ACC[0], [], ACC[2]]}
    trace = import_apparate(pickled(tmp_path, log))
    assert trace.names == ("ramp0", "model")
    assert trace.notes[0] == "ramps without samples are not nodes: 1"


def test_gaps_are_refused_or_left_out(tmp_path):
    path = pickled(tmp_path, {"conf": [[0.9, None, 0.6], *CONF[1:]], "acc": ACC})
    with pytest.raises(TraceError, match=r"'ramp0.confidence': row 1 "):
        import_apparate(path)
    trace = import_apparate(path, on_bad="skip")
    assert trace.left_out == {"ramp0.confidence is missing, NaN or infinite": 1}
    assert len(trace) == 2
    path = pickled(tmp_path, {"conf": [[None], [None]], "acc": [[1], [1]]})
    with pytest.raises(TraceError, match=r"every row was left out \(1 in all"):
        import_apparate(path, on_bad="skip")


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ([1, 2], "is not a log of Apparate"),
        ({"conf": CONF}, '"conf" and "acc"'),
        ({"conf": 3, "acc": ACC}, "conf: must be a list"),
        ({"conf": [], "acc": []}, "conf: must be a list"),
        ({"conf": [3], "acc": [3]}, "conf of ramp 0: must be a list"),
        ({"conf": ["abc"], "acc": ACC}, "conf of ramp 0: must be a list"),
        ({"conf": [[]], "acc": [[]]}, "no rows"),
        ({"conf": CONF, "acc": ACC[:2]}, "conf has 3 ramps and acc has 2"),
        ({"conf": [*CONF[:2], [0.5]], "acc": ACC}, "conf of ramp 2 has 1 samples"),
        ({"conf": CONF, "acc": [*ACC[:2], [True]]}, "acc of ramp 2 has 1 samples"),
        ({"conf": [["a", "b", "c"], *CONF[1:]], "acc": ACC}, "conf of ramp 0: sample 0"),
        ({"conf": [[[1, 2], 0.5, 0.5], *CONF[1:]], "acc": ACC}, "sample 1 .* mixed types"),
        ({"conf": [[[1, 2], [1], [1]], *CONF[1:]], "acc": ACC}, "sample 1 .* has 1 logits"),
        ({"conf": [[[], [], []], *CONF[1:]], "acc": ACC}, "sample 0 .* has 0 logits"),
        ({"conf": [[[[1]], [[1]], [[1]]], *CONF[1:]], "acc": ACC}, "is list, not a number"),
        ({"conf": [[10**400, 0, 0], *CONF[1:]], "acc": ACC}, "too large"),
        ({"conf": [[np.inf, 0, 0], *CONF[1:]], "acc": ACC}, r"'ramp0.confidence': row 0"),
        ({"conf": [[[np.inf, np.inf]] * 3, *CONF[1:]], "acc": ACC}, r"'ramp0.confidence': row 0"),
        ({"conf": CONF, "acc": [[2, 0, 1], *ACC[1:]]}, r"'ramp0.correct': row 0 .* is 2"),
        ({"conf": CONF, "acc": [np.zeros((3, 2)), *ACC[1:]]}, "acc of ramp 0: must be one number"),
        ({"conf": CONF, "acc": [np.array(["a"] * 3), *ACC[1:]]}, "acc of ramp 0: must be one"),
    ],
)
def test_logs_of_another_shape(tmp_path, log, says):
    path = pickled(tmp_path, log)
    with pytest.raises(TraceError, match=says) as error:
        import_apparate(path)
    assert str(error.value).startswith(str(path))


# The pickle reader


class Calls:
    """Calls a function when unpickled in the usual way."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def marker(tmp_path) -> str:
    return str(tmp_path / "was_run")


class Slotted:
    __slots__ = ("x",)


def memo_bomb() -> bytes:
    return b"\x80\x04]r\xff\xff\xff\x7f."


def unfolding_bomb() -> bytes:
    inner = [0.5] * 1000
    middle = [inner] * 1000
    return pickle.dumps({"conf": [middle] * 1000, "acc": [middle] * 1000})


def deep(levels: int) -> bytes:
    return b"\x80\x04" + b")" + b"\x85" * levels + b"."


def deep_key(levels: int) -> bytes:
    return b"\x80\x04}" + b")" + b"\x85" * levels + b"Ns."


def array_state(*, shape=(1,), code="f8", order="<", data=b"\0" * 8, structure=None) -> bytes:
    """A pickled array with parts of its description replaced."""
    out = io.BytesIO()
    out.write(
        b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    )
    out.write(b"(K\x01" + pickle.dumps(shape, 2)[2:-1])
    out.write(b"cnumpy\ndtype\n" + pickle.dumps((code, False, True), 2)[2:-1] + b"R")
    out.write(pickle.dumps((3, order, structure, None, None, -1, -1, 0), 2)[2:-1] + b"b")
    out.write(b"\x89B" + struct.pack("<I", len(data)) + data + b"tb.")
    return out.getvalue()


def attacks(tmp_path) -> dict[str, bytes]:
    run = marker(tmp_path)
    dump = pickle.dumps
    return {
        "os.system": dump(Calls(os.system, f"touch {run}")),
        "os.system inside a log": dump({"conf": [[Calls(os.system, f"touch {run}")]], "acc": []}),
        "eval": dump(Calls(eval, f"open({run!r}, 'w')")),
        "exec, protocol 0": dump(Calls(exec, f"open({run!r}, 'w')"), 0),
        "open": dump(Calls(open, run, "w")),
        "getattr": dump(Calls(getattr, "a", "upper")),
        "__import__": b"c__builtin__\n__import__\n(S'os'\ntR.",
        "INST": b"(S'touch " + run.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'true'\no.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        "NEWOBJ": dump(Slotted()),
        "EXT": b"\x80\x02\x82\x01.",
        "PERSID": b"P1\n.",
        "set": dump({1, 2}),
        "frozenset": dump(frozenset({1})),
        "complex": dump(1j),
        "object array": dump(np.array([None, 1], object)),
        "object scalar": dump(np.array([Calls(os.system, f"touch {run}")], object)),
        "record array": dump(np.zeros(2, [("a", "f8")])),
        "date array": dump(np.zeros(2, "M8[s]")),
        "memmap's class": dump(np.ma.masked_array([1.0], [True])),
        "numpy.load": b"cnumpy\nload\n(S'x'\ntR.",
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
        "other core name": b"cnumpy._core.multiarray\nset_string_function\n(tR.",
        "a function as value": b"cnumpy\ndtype\n.",
        "a dtype as value": dump(np.dtype("f8")),
        "codecs with another codec": b"c_codecs\nencode\n(Vx\nVzlib\ntR.",
        "codecs of no text": b"c_codecs\nencode\n(K\x01Vlatin1\ntR.",
        "bytes of something": b"c__builtin__\nbytes\n(I9\ntR.",
        "reduce of a list": b"](tR.",
        "reduce with a list": b"cnumpy\ndtype\n]R.",
        "build on a list": b"]}b.",
        "build on a function": b"c_codecs\nencode\n}(Vx\nI1\nub.",
        "build on an array with a dict": b"cnumpy._core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n(I0\ntS'b'\ntR}b.",
        "array never described": b"cnumpy._core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n(I0\ntS'b'\ntR.",
        "array of another class": b"cnumpy._core.multiarray\n_reconstruct\n"
        b"(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
        "array: too little data": array_state(shape=(10**6,)),
        "array: shape of text": array_state(shape="ab"),
        "array: negative": array_state(shape=(-5, 3)),
        "array: objects": array_state(code="O8"),
        "array: void": array_state(code="V8"),
        "array: no numbers, many rows": array_state(shape=(10**9, 0), data=b""),
        "array: byte order": array_state(order="x"),
        "array: subarray": array_state(structure=1),
        "array: strange code": array_state(code="f8,f8"),
        "items of a list": b"](K\x01K\x02u.",
        "items without a value": b"}(K\x01u.",
        "tuple keys": dump({(1, 2): 3}),
        "a key of many digits": dump({"conf": [[0.5]], "acc": [[1]], 1 << 100_000: 1}),
        "memo without end": memo_bomb(),
        "lists that unfold": unfolding_bomb(),
        "deep nesting": deep(1_000_000),
        "deep key": deep_key(1_000_000),
        "huge bytes claimed": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
        "huge text claimed": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        "huge bytearray claimed": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
        "huge frame claimed": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "many digits": b"I" + b"9" * 100_000 + b"\n.",
        "unknown operation": b"\xff.",
        "no end": dump(CONF)[:-1],
        "nothing": b"",
        "stop": b".",
        "pop of nothing": b"0.",
        "mark of nothing": b"t.",
        "get of nothing": b"h\x07.",
        "protocol 9": b"\x80\x09N.",
        "text": b"conf: 3",
        "gzip": gzip.compress(dump(CONF)),
    }


def test_no_pickle_can_do_anything(tmp_path):
    for name, data in attacks(tmp_path).items():
        path = pickled(tmp_path, data) if data else tmp_path / "log.pickle"
        path.write_bytes(data)
        with pytest.raises(TraceError) as error:
            import_apparate(path)
        assert str(error.value).startswith(str(path)), name
        assert "\n" not in str(error.value), name
        assert len(str(error.value)) < 1000, name
        assert not (tmp_path / "was_run").exists(), name
    assert sys.getrecursionlimit() >= 1000


def test_the_attacks_work_on_the_usual_reader(tmp_path):
    """A test of the test: the first of them does run something elsewhere."""
    pickle.loads(attacks(tmp_path)["os.system"])  # noqa: S301 - to see that it is one
    assert (tmp_path / "was_run").exists()


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@given(value=plain, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_they_went_in(tmp_path_factory, value, protocol):
    path = tmp_path_factory.getbasetemp() / "plain.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    assert load_plain(path) == value


@given(
    kind=st.sampled_from(["f8", ">f4", "i2", "u8", "?", "U3", "S2", "f2"]),
    shape=st.lists(st.integers(1, 3), max_size=3),
    fortran=st.booleans(),
    protocol=st.integers(0, pickle.HIGHEST_PROTOCOL),
)
def test_arrays_come_out_as_they_went_in(tmp_path_factory, kind, shape, fortran, protocol):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    array = np.asfortranarray(array) if fortran else array
    path = tmp_path_factory.getbasetemp() / "array.pickle"
    path.write_bytes(pickle.dumps([array, array], protocol))
    one, two = load_plain(path)
    assert one is two
    assert one.dtype == array.dtype
    assert (one == array).all()


def test_damaged_pickles_are_refused_or_read(tmp_path):
    whole = pickletools.optimize(pickle.dumps({"conf": np.array(CONF), "acc": ACC}))
    random = np.random.default_rng(0)
    for _ in range(1500):
        altered = bytearray(whole)
        for place in random.integers(0, len(whole), random.integers(1, 8)):
            altered[place] = random.integers(256)
        with suppress(TraceError):
            import_apparate(pickled(tmp_path, bytes(altered)))


def test_a_pickle_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        import_apparate(tmp_path / "none.pickle")


# FrugalML

SERVICES = {
    "row": [0, 1, 2],
    "true_label": [1, 0, 2],
    "conf__Google": [0.9, 0.5, 0.1],
    "pred__Google": [1, 0, 1],
    "correct__Google": [1, 1, 0],
    "conf__GitHub_CNN": [0.3, 0.3, 0.3],
    "pred__GitHub_CNN": [1, 1, 2],
    "correct__GitHub_CNN": [1, 0, 1],
}
PRICES = (
    "Index,MLaaS(API),Cost per 10k images,class number\n0,Google,15,7\n100,GitHub(CNN),0.001,7\n"
)


def frugal(tmp_path, columns=SERVICES, prices=PRICES, suffix="parquet"):
    table = tmp_path / f"table.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table(columns), table)
    else:
        lines = [
            ",".join(columns),
            *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True)),
        ]
        table.write_text("\n".join(lines) + "\n")
    (tmp_path / "prices.csv").write_text(prices)
    return table, tmp_path / "prices.csv"


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_frugalml(tmp_path, suffix):
    trace = import_frugalml(*frugal(tmp_path, suffix=suffix))
    assert trace.names == ("GitHub_CNN", "Google")
    assert np.allclose(trace.cost, [0.001 / 10_000, 15 / 10_000])
    assert trace.spec.order == "any"
    assert trace.wrong().tolist() == [[False, False], [True, False], [False, True]]
    assert (trace.prediction != trace.label[:, None]).tolist() == trace.wrong().tolist()
    assert trace.notes == ()


def test_frugalml_reports_what_it_did_not_use(tmp_path):
    prices = PRICES + "3,Baidu,3.5,7\n"
    trace = import_frugalml(*frugal(tmp_path, SERVICES | {"name": ["x"] * 3}, prices))
    assert trace.notes == (
        "columns not used: 'name'",
        "prices of services that are not in the table: 'Baidu'",
    )


def test_frugalml_leaves_out_only_on_request(tmp_path):
    files = frugal(tmp_path, SERVICES | {"conf__Google": [0.9, None, 0.1]})
    with pytest.raises(TraceError, match="'conf__Google': row 1"):
        import_frugalml(*files)
    assert import_frugalml(*files, on_bad="skip").left_out == {
        "conf__Google is missing, NaN or infinite": 1
    }


@pytest.mark.parametrize(
    ("columns", "prices", "says"),
    [
        ({"x": [1]}, PRICES, "no FrugalML table"),
        ({k: v for k, v in SERVICES.items() if k != "pred__Google"}, PRICES, "'pred__Google'"),
        (SERVICES | {"conf__Baidu": [0.1] * 3}, PRICES, "no price for 'Baidu'"),
        (SERVICES | {"conf__": [0.1] * 3}, PRICES + "1,,3\n", "make no cascade"),
        (SERVICES, "", "is not a list of prices"),
        (SERVICES, "a,b\n1,2\n", "is not a list of prices"),
        (SERVICES, "name,price\n", "is not a list of prices"),
        (SERVICES, "name,price\nGoogle,much\n", "line 2: there is no service and price"),
        (SERVICES, "name,price\nGoogle\n", "line 2: there is no service and price"),
        (SERVICES, "name,price\nGoogle,-1\n", "line 2: the price of 'Google' is -1"),
        (SERVICES, "name,price\nGoogle,nan\n", "line 2: the price of 'Google' is nan"),
        (SERVICES, "name,price\nGoogle,1\nGoogle,2\n", "line 3: 'Google' has a price already"),
    ],
)
def test_frugalml_tables_of_another_shape(tmp_path, columns, prices, says):
    with pytest.raises(TraceError, match=says):
        import_frugalml(*frugal(tmp_path, columns, prices))


def test_frugalml_files_that_cannot_be_read(tmp_path):
    table, prices = frugal(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        import_frugalml(table, tmp_path / "none.csv")
    prices.write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="UTF-8"):
        import_frugalml(table, prices)
    doubled = pa.table([[0.1], [0.2]], names=["conf__Google"] * 2)
    pq.write_table(doubled, table)
    with pytest.raises(TraceError, match="appears twice"):
        import_frugalml(table, prices)


# A long CSV

LONG = """label,exit,sample,prediction,confidence,cost
cat,early,s1,cat,0.9,1
cat,late,s1,cat,0.8,3
dog,late,s2,dog,0.7,5
dog,early,s2,cat,0.2,1
"""


def long(tmp_path, text=LONG, name="long.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["long.csv", "long.csv.gz"])
def test_long_csv(tmp_path, name):
    trace = import_long_csv(long(tmp_path, name=name))
    assert trace.names == ("early", "late")
    assert trace.confidence.tolist() == [[0.9, 0.8], [0.2, 0.7]]
    assert trace.wrong().tolist() == [[False, False], [True, False]]
    assert trace.cost.tolist() == [[1, 3], [1, 5]]
    assert trace.spec.costs.tolist() == [1, 4]
    assert "no cascade was given" in trace.notes[0]


def test_long_csv_in_the_cascades_order(tmp_path):
    spec = CascadeSpec.of({"late": 2.0, "early": 1.0})
    spec.to_file(tmp_path / "cascade.toml")
    trace = import_long_csv(long(tmp_path), tmp_path / "cascade.toml")
    assert trace.names == ("late", "early")
    assert trace.confidence.tolist() == [[0.8, 0.9], [0.7, 0.2]]
    assert trace.spec == spec


def test_long_csv_with_correct_only(tmp_path):
    text = "sample,exit,confidence,correct\n1,a,0.5,true\n1,b,0.5,0\n"
    assert import_long_csv(long(tmp_path, text)).wrong().tolist() == [[False, True]]


def test_long_csv_with_gaps(tmp_path):
    text = LONG + "cat,early,s3,cat,0.5,1\nowl,early,s4,,,\nowl,late,s4,owl,0.5,1\n"
    trace = import_long_csv(long(tmp_path, text))
    assert trace.answered[-2:].tolist() == [[True, False], [False, True]]
    assert trace.loss[-2:, 0].tolist()[0] == 0.0
    assert np.isnan(trace.loss[-1, 0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("sample,exit,confidence\n", "no rows"),
        ("sample,exit\n1,a\n", "'confidence' is missing"),
        ("sample,sample,exit,confidence\n1,1,a,0.5\n", "'sample' appears twice"),
        ("sample,exit,confidence\n1,a,0.5\n1,a,0.6\n", "sample '1' has 2 lines for exit 'a'"),
        ("sample,exit,confidence\n,a,0.5\n", "'sample': row 0 .* is empty"),
        ("sample,exit,confidence\n1,,0.5\n", "'exit': row 0 .* is empty"),
        ("sample,exit,confidence\n1,a,high\n", "'confidence': row 0 .* holds 'high'"),
        ("sample,exit,confidence\n1,a,inf\n", r"'a.confidence': row 0"),
        ("sample,exit,confidence,cost\n1,a,1,-1\n", r"'a.cost': row 0 .* negative"),
        ("sample,exit,confidence,label\n1,a,1,x\n1,b,1,y\n", "sample '1' has two labels"),
        ("sample,exit,confidence,label,prediction\n1,a,1,x,y\n", "no label is ever predicted"),
        ("sample,exit,confidence\n1, ,0.5\n", "make no cascade"),
    ],
)
def test_long_csv_that_cannot_be(tmp_path, text, says):
    path = long(tmp_path, text)
    with pytest.raises(TraceError, match=says) as error:
        import_long_csv(path)
    assert str(error.value).startswith(str(path))


def test_long_csv_of_other_exits(tmp_path):
    with pytest.raises(TraceError, match="exits that are not in the cascade: 'late'"):
        import_long_csv(long(tmp_path), CascadeSpec.of({"early": 1.0}))
    with pytest.raises(TraceError, match="no line for exit 'never'"):
        import_long_csv(long(tmp_path), CascadeSpec.of({"early": 1.0, "late": 1.0, "never": 1.0}))
    with pytest.raises(TraceError, match=r"suffix must be .csv"):
        import_long_csv(tmp_path / "long.parquet")
