"""Hostile ``.ttamer`` files, made from sound ones.

Each attack is (what the refusal must say, how to make the file). All but those on the checksum
itself carry the right checksum, as a forger's would: what refuses them is the validation.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import os
import pickle
import struct
import zipfile
from typing import Any, NamedTuple

PREFIX = struct.Struct("<8sIQ")
MAGIC = b"\x89ttamer\n"
LETTERS = {"f64": "d", "i8": "b", "i16": "h", "i32": "i"}
SIZES = {"f64": 8, "i8": 1, "i16": 2, "i32": 4}


class Parts(NamedTuple):
    """A file taken apart."""

    header: dict[str, Any]
    data: bytes


def take(file: bytes) -> Parts:
    """Take a sound file apart."""
    _, _, length = PREFIX.unpack_from(file)
    start = PREFIX.size + length
    return Parts(json.loads(file[PREFIX.size : start]), file[start:-32])


def put(header: object, data: bytes, *, version: int = 2, length: int | None = None) -> bytes:
    """Put a file together, with the right checksum; a header may be given as bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * (-(PREFIX.size + len(raw)) % 8)
    prefix = PREFIX.pack(MAGIC, version, len(raw) if length is None else length)
    return signed(prefix + raw + data)


def signed(body: bytes) -> bytes:
    """Append the checksum."""
    return body + hashlib.sha256(body).digest()


def edited(file: bytes, **changes: Any) -> bytes:
    """Change header entries; ``problem__moves="x"`` reaches inside, ``...`` removes."""
    header, data = take(file)
    for place, value in changes.items():
        *path, last = place.split("__")
        item = header
        for name in path:
            item = item[name]
        if value is ...:
            del item[last]
        else:
            item[last] = value
    return put(header, data)


def poked(file: bytes, name: str, position: int, number: float) -> bytes:
    """Change one number of an array."""
    header, data = take(file)
    entry = header["arrays"][name]
    size = SIZES[entry["dtype"]]
    position %= math.prod(entry["shape"])
    changed = bytearray(data)
    struct.pack_into(
        "<" + LETTERS[entry["dtype"]], changed, entry["offset"] + position * size, number
    )
    return put(header, bytes(changed))


def filled(
    file: bytes, header: dict[str, Any], **arrays: tuple[str, list[int], list[float]]
) -> bytes:
    """Replace arrays, given as (dtype, shape, numbers), and lay all of them out again."""
    old_header, data = take(file)
    parts, directory, offset = [], {}, 0
    for name in sorted({*old_header["arrays"], *arrays}):
        if name in arrays:
            dtype, shape, numbers = arrays[name]
            raw = struct.pack(f"<{len(numbers)}{LETTERS[dtype]}", *numbers)
        else:
            entry = old_header["arrays"][name]
            dtype, shape = entry["dtype"], entry["shape"]
            raw = data[entry["offset"] :][: math.prod(shape) * SIZES[dtype]]
        directory[name] = {"dtype": dtype, "shape": shape, "offset": offset}
        raw += bytes(-len(raw) % 8)
        parts.append(raw)
        offset += len(raw)
    return put({**header, "arrays": directory}, b"".join(parts))


def with_arrays(file: bytes, **arrays: tuple[str, list[int], list[float]]) -> bytes:
    """Replace arrays and leave the rest of the header."""
    return filled(file, take(file).header, **arrays)


def entry_changed(file: bytes, name: str, **changes: Any) -> bytes:
    """Change an array's entry in the header."""
    header, data = take(file)
    header["arrays"][name].update(changes)
    return put(header, data)


def without_array(file: bytes, name: str) -> bytes:
    """Take an array out, and close the gap."""
    header, data = take(file)
    kept = sorted(header["arrays"].items(), key=lambda item: item[1]["offset"])
    parts, offset = [], 0
    for key, entry in kept:
        size = math.prod(entry["shape"]) * SIZES[entry["dtype"]]
        size += -size % 8
        if key != name:
            parts.append(data[entry["offset"] : entry["offset"] + size])
            entry["offset"] = offset
            offset += size
    del header["arrays"][name]
    return put(header, b"".join(parts))


def promise_changed(file: bytes, **changes: Any) -> bytes:
    """Change the first promise of a record."""
    header, data = take(file)
    header["record"]["promises"][0] |= changes
    return put(header, data)


def without_record(file: bytes) -> bytes:
    """Take the record out, with its arrays."""
    for name in [name for name in take(file).header["arrays"] if name.startswith("record_")]:
        file = without_array(file, name)
    return edited(file, record=...)


def swapped_offsets(file: bytes) -> bytes:
    """Let two arrays share their bytes."""
    header, data = take(file)
    header["arrays"]["values"]["offset"] = header["arrays"]["tradeoffs"]["offset"]
    return put(header, data)


def with_gap(file: bytes) -> bytes:
    """Hide eight bytes before the last array."""
    header, data = take(file)
    last = max(header["arrays"].values(), key=lambda entry: entry["offset"])
    cut = last["offset"]
    last["offset"] += 8
    return put(header, data[:cut] + b"evilcode" + data[cut:])


def with_padding(file: bytes) -> bytes:
    """Write into the bytes that fill up an array of small integers."""
    header, data = take(file)
    choices = header["arrays"]["choices"]
    end = choices["offset"] + math.prod(choices["shape"]) * SIZES[choices["dtype"]]
    assert end % 8  # or there is nothing to write into
    return put(header, data[:end] + b"\1" + data[end + 1 :])


def repeated_key(file: bytes) -> bytes:
    """Say twice whether there is recall."""
    header, data = take(file)
    return put(json.dumps(header)[:-1].encode() + b',"recall":true}', data)


def raw_token(file: bytes, token: bytes) -> bytes:
    """Put a token of one's own where the number of states stands."""
    header, data = take(file)
    header["problem"]["states"] = ["TOKEN"]
    return put(json.dumps(header).encode().replace(b'"TOKEN"', token), data)


class Bomb:
    """What a pickle would run."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def pickled(_: bytes) -> bytes:
    """Make a pickle that runs a command when it is opened."""
    return pickle.dumps(Bomb("touch /tmp/ttamer-attack-was-run"))


def zipped(_: bytes) -> bytes:
    """Make a small zip of many zeros."""
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1_000_000))
    return box.getvalue()


def edges(file: bytes, count: int) -> bytes:
    """Claim many edges."""
    return edited(file, problem__sources=[-1] * count, problem__targets=[0] * count)


def many_policies(file: bytes, count: int) -> bytes:
    """Claim a ladder of many tiny policies."""
    header = copy.deepcopy(take(file).header)
    header["kind"] = "ladder"
    numbers = ("f64", [count], [0.0] * count)
    return filled(file, header, tradeoffs=numbers, values=numbers)


def deep(levels: int) -> bytes:
    """Nest lists."""
    return b"[" * levels + b"]" * levels


# The sound files: ``line`` (a walk of two nodes with two states, recall), ``ladder`` (the same for
# three tradeoffs) and ``tree`` (precedence). Attacks name the one they start from.
ATTACKS: dict[str, tuple[str, str, Any]] = {
    "empty": ("is not a ttamer file", "line", lambda _: b""),
    "text": ("is not a ttamer file", "line", lambda _: b"x" * 1000),
    "other magic, signed": (
        "is not a ttamer file",
        "line",
        lambda f: signed(MAGIC[:-1] + b"\r" + f[8:-32]),
    ),
    "pickle": ("is not a ttamer file", "line", pickled),
    "zip": ("is not a ttamer file", "line", zipped),
    "pickle behind the magic": (
        "the header is too long",
        "line",
        lambda f: f[:12] + pickled(f),
    ),
    "pickle as header": (
        "the header is not UTF-8",
        "line",
        lambda f: put(pickled(f), take(f).data),
    ),
    "magic alone": ("is cut short", "line", lambda f: f[:8]),
    "no data": ("is cut short", "line", lambda f: put(take(f).header, b"")),
    "appended": ("has bytes too many", "line", lambda f: f + b"\0"),
    "appended and signed": ("has bytes too many", "line", lambda f: signed(f[:-32] + bytes(8))),
    "version 0": ("has format version 0", "line", lambda f: put(*take(f), version=0)),
    "header of 2**64 - 1": (
        "the header is too long",
        "line",
        lambda f: put(*take(f), length=2**64 - 1),
    ),
    "header of 17 MiB": ("the header is too long", "line", lambda f: put(b" " * (17 * 2**20), f)),
    "header past the end": ("is cut short", "line", lambda f: put(*take(f), length=2**20)),
    "header of odd length": (
        "the header does not end on a multiple of 8 bytes",
        "line",
        lambda f: put(*take(f), length=13),
    ),
    "header in UTF-16": (
        "the header is not UTF-8",
        "line",
        lambda f: put(json.dumps(take(f).header).encode("utf-16"), take(f).data),
    ),
    "header with a byte order mark": (
        "the header is not JSON",
        "line",
        lambda f: put(b"\xef\xbb\xbf" + json.dumps(take(f).header).encode(), take(f).data),
    ),
    "no header": ("the header is not JSON", "line", lambda f: put(b"", take(f).data)),
    "header with a tail": (
        "the header is not JSON",
        "line",
        lambda f: put(json.dumps(take(f).header).encode() + b"{}", take(f).data),
    ),
    "100,000 lists deep": (
        "the header is nested too deeply, or has too many parts",
        "line",
        lambda f: put(deep(100_000), take(f).data),
    ),
    "17 lists deep": (
        "the header is nested too deeply, or has too many parts",
        "line",
        lambda f: put(deep(17), take(f).data),
    ),
    "deep behind a tricky string": (
        "the header is nested too deeply, or has too many parts",
        "line",
        lambda f: put(rb'["\\",' + deep(100_000) + rb',"\""]', take(f).data),
    ),
    "a million objects": (
        "the header is nested too deeply, or has too many parts",
        "line",
        lambda f: put(b"[" + b"{}," * 10**6 + b"0]", take(f).data),
    ),
    "a list as header": ("the header must be an object", "line", lambda f: put([1], take(f).data)),
    "a list of arrays": ("the header must be an object", "line", lambda f: edited(f, arrays=[])),
    "no arrays": ("the header names no arrays", "line", lambda f: edited(f, arrays={})),
    "a key twice": ("twice in one object", "line", repeated_key),
    "NaN": ("it may hold whole numbers only", "line", lambda f: raw_token(f, b"NaN")),
    "infinity": ("it may hold whole numbers only", "line", lambda f: raw_token(f, b"-Infinity")),
    "hidden infinity": ("it may hold whole numbers only", "line", lambda f: raw_token(f, b"1e999")),
    "a million digits": (
        "a number of more than 19 digits",
        "line",
        lambda f: raw_token(f, b"9" * 10**6),
    ),
    "kind missing": ("lacks", "line", lambda f: edited(f, kind=...)),
    "array missing": (
        "lacks",
        "line",
        lambda f: put(
            {
                **take(f).header,
                "arrays": {k: v for k, v in take(f).header["arrays"].items() if v["offset"] == 0},
            },
            take(f).data[: take(f).header["arrays"]["costs"]["offset"]],
        ),
    ),
    "unknown key": ("has an unknown", "line", lambda f: edited(f, extra=1)),
    "unknown key inside": ("has an unknown", "line", lambda f: edited(f, problem__code="x")),
    "unknown array": ("has an unknown", "line", lambda f: with_arrays(f, zz=("f64", [1], [0.0]))),
    "sigma for a walk": (
        "has an unknown",
        "line",
        lambda f: with_arrays(f, sigma=("f64", [1], [0.0])),
    ),
    "problem a string": ("must be an object", "line", lambda f: edited(f, problem="x")),
    "notes a list": ("must be an object", "line", lambda f: edited(f, provenance__notes=[])),
    "array a number": ("must be an object", "line", lambda f: edited(f, arrays__phi=7)),
    "sources a string": ("must be a list", "line", lambda f: edited(f, problem__sources="ab")),
    "states negative": (
        "must hold whole numbers",
        "line",
        lambda f: edited(f, problem__states=[-2, 2]),
    ),
    "states zero": ("must hold whole numbers", "line", lambda f: edited(f, problem__states=[0, 4])),
    "states true": (
        "must hold whole numbers",
        "line",
        lambda f: edited(f, problem__states=[True, 3]),
    ),
    "states huge": (
        "must hold whole numbers",
        "line",
        lambda f: edited(f, problem__states=[2**62, 2]),
    ),
    "source past the end": (
        "must hold whole numbers",
        "line",
        lambda f: edited(f, problem__sources=[-1, 9]),
    ),
    "source -2": ("must hold whole numbers", "line", lambda f: edited(f, problem__sources=[-2, 0])),
    "target -1": ("must hold whole numbers", "line", lambda f: edited(f, problem__targets=[-1, 1])),
    "huge shape": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", shape=[2**40]),
    ),
    "negative shape": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", shape=[-1, -5, 4]),
    ),
    "empty array": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", shape=[0]),
    ),
    "shape of strings": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", shape=["8"]),
    ),
    "negative offset": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", offset=-8),
    ),
    "offset null": (
        "must hold whole numbers",
        "line",
        lambda f: entry_changed(f, "phi", offset=None),
    ),
    "large shape": (
        "is cut short",
        "line",
        lambda f: entry_changed(f, "values", shape=[2**31, 2**31]),
    ),
    "name a number": ("must be Unicode text", "line", lambda f: edited(f, problem__names=["a", 1])),
    "name half a character": (
        "must be Unicode text",
        "line",
        lambda f: edited(f, problem__names=["a", "\ud800"]),
    ),
    "note a list": (
        "must be Unicode text",
        "line",
        lambda f: edited(f, provenance__notes={"a": []}),
    ),
    "library null": ("must be Unicode text", "line", lambda f: edited(f, provenance__library=None)),
    "dtype of objects": (
        "there are f64, i8, i16, i32",
        "line",
        lambda f: entry_changed(f, "phi", dtype="O"),
    ),
    "dtype a list": (
        "there are f64, i8, i16, i32",
        "line",
        lambda f: entry_changed(f, "phi", dtype=[]),
    ),
    "no dimension": ("must have a shape", "line", lambda f: entry_changed(f, "phi", shape=[])),
    "a million dimensions": (
        "must have a shape",
        "line",
        lambda f: entry_changed(f, "phi", shape=[9] * 10**6),
    ),
    "overlap": ("may neither overlap nor leave a gap", "line", swapped_offsets),
    "gap": ("may neither overlap nor leave a gap", "line", with_gap),
    "unaligned": (
        "may neither overlap nor leave a gap",
        "line",
        lambda f: entry_changed(f, "costs", offset=take(f).header["arrays"]["costs"]["offset"] + 1),
    ),
    "hidden in the padding": ("bytes other than zero", "line", with_padding),
    "altered": ("was altered", "line", lambda f: f[:-40] + bytes([f[-40] ^ 1]) + f[-39:]),
    "unsigned": ("was altered", "line", lambda f: f[:-32] + bytes(32)),
    "unknown kind": ("the kind must be", "line", lambda f: edited(f, kind="model")),
    "kind a list": ("the kind must be", "line", lambda f: edited(f, kind=["policy"])),
    "recall 1": ("recall must be", "line", lambda f: edited(f, recall=1)),
    "unknown moves": ("the moves must be", "line", lambda f: edited(f, problem__moves="jump")),
    "moves a list": ("the moves must be", "line", lambda f: edited(f, problem__moves=["walk"])),
    "precedence without recall": ("always has recall", "tree", lambda f: edited(f, recall=False)),
    "no names": ("the names must be a list", "line", lambda f: edited(f, problem__names=[])),
    "names an object": ("the names must be a list", "line", lambda f: edited(f, problem__names={})),
    "70,000 names": (
        "the names must be a list",
        "line",
        lambda f: edited(f, problem__names=["a"] * 70_000),
    ),
    "fewer states": ("as many states as names", "line", lambda f: edited(f, problem__states=[4])),
    "fewer targets": ("as many states as names", "line", lambda f: edited(f, problem__targets=[0])),
    "300,000 edges": ("at most 262144 are read", "line", lambda f: edges(f, 300_000)),
    "choices as fractions": (
        "cannot hold numbers of type",
        "line",
        lambda f: with_arrays(f, choices=("f64", [1, 5, 3], [0.0] * 15)),
    ),
    "losses as integers": (
        "cannot hold numbers of type",
        "line",
        lambda f: with_arrays(f, losses=("i32", [4], [0, 1, 0, 1])),
    ),
    "recall denied": ("has shape", "line", lambda f: edited(f, recall=False)),
    "states moved": ("has shape", "line", lambda f: edited(f, problem__states=[1, 3])),
    "losses in two dimensions": (
        "has shape",
        "line",
        lambda f: entry_changed(f, "losses", shape=[2, 2]),
    ),
    "tradeoffs in two dimensions": (
        "has shape",
        "ladder",
        lambda f: entry_changed(f, "tradeoffs", shape=[3, 1]),
    ),
    "fewer values": (
        "has shape",
        "ladder",
        lambda f: with_arrays(f, values=("f64", [2], [0.1, 0.2])),
    ),
    "tables turned": ("has shape", "line", lambda f: entry_changed(f, "phi", shape=[3, 5, 1])),
    "one rung fewer": (
        "has shape",
        "ladder",
        lambda f: with_arrays(f, phi=("f64", [2, 5, 3], [0.5] * 30)),
    ),
    "sigma cut": ("has shape", "tree", lambda f: with_arrays(f, sigma=("f64", [1, 2], [0.1, 0.2]))),
    "loss NaN": ("its problem cannot be", "line", lambda f: poked(f, "losses", 1, math.nan)),
    "loss negative": ("its problem cannot be", "line", lambda f: poked(f, "losses", 1, -1.0)),
    "cost infinite": ("its problem cannot be", "line", lambda f: poked(f, "costs", 0, math.inf)),
    "probability 2": ("its problem cannot be", "line", lambda f: poked(f, "probabilities", 0, 2.0)),
    "probability NaN": (
        "its problem cannot be",
        "line",
        lambda f: poked(f, "probabilities", 2, math.nan),
    ),
    "probability 1e308": (
        "its problem cannot be",
        "line",
        lambda f: poked(f, "probabilities", 0, 1e308),
    ),
    "probability -inf": (
        "its problem cannot be",
        "line",
        lambda f: poked(f, "probabilities", 0, -math.inf),
    ),
    "probabilities that overflow": (
        "its problem cannot be",
        "line",
        lambda f: with_arrays(f, probabilities=("f64", [6], [1.7e308] * 6)),
    ),
    "probabilities without a sum": (
        "its problem cannot be",
        "line",
        lambda f: with_arrays(f, probabilities=("f64", [6], [math.inf, -math.inf] * 3)),
    ),
    "cycle": ("its problem cannot be", "tree", lambda f: edited(f, problem__sources=[-1, 2, 1])),
    "edge twice": ("its problem cannot be", "line", lambda f: edited(f, problem__targets=[0, 0])),
    "name twice": ("its problem cannot be", "line", lambda f: edited(f, problem__names=["a", "a"])),
    "name empty": ("its problem cannot be", "line", lambda f: edited(f, problem__names=["", "a"])),
    "a policy of three": ("and a policy has one", "ladder", lambda f: edited(f, kind="policy")),
    "two million policies": (
        "tables: policies times places",
        "line",
        lambda f: many_policies(f, 2**21),
    ),
    "tradeoff 1.5": (
        "a tradeoff is not from 0 to 1",
        "line",
        lambda f: poked(f, "tradeoffs", 0, 1.5),
    ),
    "tradeoff NaN": (
        "a tradeoff is not from 0 to 1",
        "line",
        lambda f: poked(f, "tradeoffs", 0, math.nan),
    ),
    "tradeoffs fall": (
        "the tradeoffs of a ladder must increase",
        "ladder",
        lambda f: poked(f, "tradeoffs", 0, 0.9),
    ),
    "tradeoffs stand": (
        "the tradeoffs of a ladder must increase",
        "ladder",
        lambda f: poked(f, "tradeoffs", 0, 0.5),
    ),
    "value infinite": ("a value is not finite", "line", lambda f: poked(f, "values", 0, math.inf)),
    "value NaN": ("a value is not finite", "ladder", lambda f: poked(f, "values", 2, math.nan)),
    "choice 2": (
        "neither -1 nor the number of a node",
        "line",
        lambda f: poked(f, "choices", 0, 2),
    ),
    "choice -2": (
        "neither -1 nor the number of a node",
        "line",
        lambda f: poked(f, "choices", 0, -2),
    ),
    "stops at the start": ("stops at the start", "line", lambda f: poked(f, "choices", -1, -1)),
    "stops at a later start": (
        "stops at the start",
        "ladder",
        lambda f: poked(f, "choices", -1, -1),
    ),
    "choice of itself": (
        "is not one of its successors",
        "line",
        lambda f: poked(f, "choices", 0, 0),
    ),
    "choice backwards": (
        "is not one of its successors",
        "line",
        lambda f: poked(f, "choices", 11, 0),
    ),
    "start skips": ("is not one of its successors", "line", lambda f: poked(f, "choices", -1, 1)),
    "phi NaN": (
        "has an entry that is not a number from 0 up",
        "line",
        lambda f: poked(f, "phi", 3, math.nan),
    ),
    "phi negative": (
        "has an entry that is not a number from 0 up",
        "line",
        lambda f: poked(f, "phi", 3, -0.5),
    ),
    "sigma NaN": (
        "has an entry that is not a number from 0 up",
        "tree",
        lambda f: poked(f, "sigma", 1, math.nan),
    ),
    "two fits": ("the header has two fits", "belief", lambda f: edited(f, fit={})),
    "a fit without its arrays": ("lacks", "line", lambda f: edited(f, fit={})),
    "a belief without its arrays": ("lacks", "line", lambda f: edited(f, belief={})),
    "a record of no fit": ("has an unknown", "ladder", lambda f: edited(f, record={})),
    "a record of a list": ("must be an object", "record", lambda f: edited(f, record=[])),
    "a record without its arrays": (
        "the record lacks the array",
        "record",
        lambda f: without_array(f, "record_rungs"),
    ),
    "an error of minus one": (
        "must have a finite error and cost for each policy",
        "record",
        lambda f: poked(f, "record_rungs", 0, -1.0),
    ),
    "a cost that is none": (
        "must have a finite error and cost for each policy",
        "record",
        lambda f: poked(f, "record_rungs", 3, math.nan),
    ),
    "counts of nothing": (
        "has counts of no rows held out",
        "record",
        lambda f: edited(f, record__held={}),
    ),
    "counts of another shape": (
        "must have eight counts for each pair of corners",
        "record",
        lambda f: with_arrays(f, record_held=("f64", [1, 4], [1, 1, 1, 1])),
    ),
    "no counts": (
        "must have eight counts for each pair of corners",
        "record",
        lambda f: without_array(f, "record_held"),
    ),
    "counts against one node of three": (
        "must have counts against each node",
        "record",
        lambda f: with_arrays(f, record_held_nodes=("f64", [1, 1, 8], [0.0] * 8)),
    ),
    "half a row": (
        "must be whole, and add up to the rows",
        "record",
        lambda f: poked(f, "record_held", 0, 0.5),
    ),
    "counts of other rows": (
        "must be whole, and add up to the rows",
        "record",
        lambda f: edited(f, record__held__rows=7),
    ),
    "held out of minus one row": (
        "must hold whole numbers",
        "record",
        lambda f: edited(f, record__held__rows=-1),
    ),
    "seventeen promises": (
        "a list of at most 16",
        "record",
        lambda f: edited(f, record__promises=[{}] * 17),
    ),
    "numbers of no promise": (
        "must have five finite numbers for each promise",
        "record",
        lambda f: edited(f, record__promises=[]),
    ),
    "a promise of infinity": (
        "must have five finite numbers for each promise",
        "record",
        lambda f: poked(f, "record_promises", 0, math.inf),
    ),
    "a promise of luck": (
        "is of 'error' or 'drop', certified or not",
        "record",
        lambda f: promise_changed(f, kind="luck"),
    ),
    "a promise of a list": (
        "is of 'error' or 'drop', certified or not",
        "record",
        lambda f: promise_changed(f, kind=["error"]),
    ),
    "certified by a word": (
        "is of 'error' or 'drop', certified or not",
        "record",
        lambda f: promise_changed(f, certified="yes"),
    ),
    "certain beyond doubt": (
        "has a confidence below 1 and a share from 0 to 1",
        "record",
        lambda f: poked(f, "record_promises", 1, 1.0),
    ),
    "a share of two": (
        "has a confidence below 1 and a share from 0 to 1",
        "record",
        lambda f: poked(f, "record_promises", 2, 2.0),
    ),
    "a promise of no policy": (
        "must hold whole numbers",
        "record",
        lambda f: promise_changed(f, dear=999),
    ),
    "a promise against nobody": (
        "compares with a node that the cascade has not",
        "record",
        lambda f: promise_changed(f, against="nobody"),
    ),
    "held out against nobody": (
        "compares with a node that the cascade has not",
        "record",
        lambda f: edited(f, record__held__against="nobody"),
    ),
    "a version without full cost": (
        "from version 2 of the format on",
        "fit",
        lambda f: put(*take(f), version=1),
    ),
    "a fit without full cost": (
        "from version 2 of the format on",
        "fit",
        lambda f: without_array(f, "fit_full_cost"),
    ),
    "a full cost of nothing": (
        "must be one finite number above 0",
        "fit",
        lambda f: poked(f, "fit_full_cost", 0, 0.0),
    ),
    "old costs of next to nothing": (
        "cannot be put in shares",
        "fit",
        lambda f: put(
            *take(
                with_arrays(without_array(f, "fit_full_cost"), fit_costs=("f64", [3], [5e-324] * 3))
            ),
            version=1,
        ),
    ),
    "a node's error of minus one": (
        "must have a finite error for each node",
        "record",
        lambda f: poked(f, "record_nodes", 0, -1.0),
    ),
    "a node's cost of minus one": (
        "must have a finite cost for each node",
        "record",
        lambda f: poked(f, "record_node_costs", 0, -1.0),
    ),
    "a latency below nothing": (
        "must have three finite latencies for each policy",
        "losses",
        lambda f: with_arrays(f, record_latencies=("f64", [2, 3], [-1.0] * 6)),
    ),
    "a largest loss of nothing": (
        "the largest loss held out must be one finite number above 0",
        "losses",
        lambda f: poked(f, "record_held_bound", 0, 0.0),
    ),
    "rows held out without losses": (
        "must have a loss for each corner, node and row held out",
        "losses",
        lambda f: without_array(f, "record_held_losses"),
    ),
    "a loss above the largest": (
        "losses held out must be from 0 to the largest there can be",
        "losses",
        lambda f: poked(f, "record_held_node_losses", 0, 99.0),
    ),
    "two largest losses": (
        "must have one cost for each mistake, and one largest loss",
        "losses",
        lambda f: with_arrays(f, fit_max_loss=("f64", [2], [1.0, 1.0])),
    ),
    "mistakes without their costs": (
        "must have one cost for each mistake, and one largest loss",
        "losses",
        lambda f: edited(f, fit__mistakes=[["a", "b"]]),
    ),
    "mistakes that are no pairs": (
        "must have one cost for each mistake, and one largest loss",
        "losses",
        lambda f: edited(f, fit__mistakes=[["a"]]),
    ),
    "a cascade of no loss": (
        "the cascade of the fit is none",
        "losses",
        lambda f: poked(f, "fit_max_loss", 0, 0.0),
    ),
    "a unit of loss of nothing": (
        "the loss scale of the fit must be one finite number above 0",
        "losses",
        lambda f: poked(f, "fit_loss_scale", 0, 0.0),
    ),
    "a mixture of no fit": ("the kind must be", "ladder", lambda f: edited(f, kind="mixture")),
    "a mixture of one share and a half": (
        "a mixture has one share",
        "mixture",
        lambda f: poked(f, "mixture_share", 0, 1.5),
    ),
    "a mixture without record": (
        "has a record of its policies",
        "mixture",
        lambda f: without_record(f),
    ),
    "a fit unsaid": ("has an unknown", "fit", lambda f: edited(f, fit=...)),
    "fit a list": ("must be an object", "fit", lambda f: edited(f, fit=[])),
    "belief a string": ("must be an object", "belief", lambda f: edited(f, belief="answers")),
    "a belief with one parent": (
        "a parent, or none, for each node",
        "belief",
        lambda f: edited(f, belief__after=["small"]),
    ),
    "a belief with a number for a parent": (
        "must be Unicode text",
        "belief",
        lambda f: edited(f, belief__after=["", "", ["small", 3]]),
    ),
    "a belief whose parents are an object": (
        "must be a list",
        "belief",
        lambda f: edited(f, belief__after={}),
    ),
    "plan a list": ("must be an object", "belief", lambda f: edited(f, belief__plan=[])),
    "a plan of numbers": ("must be Unicode text", "fit", lambda f: edited(f, fit__plan={"a": 1})),
    "rows zero": ("must hold whole numbers", "fit", lambda f: edited(f, fit__rows=0)),
    "classes a string": ("must be a list", "belief", lambda f: edited(f, belief__classes="ab")),
    "costs of a fit as integers": (
        "cannot hold numbers of type",
        "fit",
        lambda f: with_arrays(f, fit_costs=("i32", [3], [1, 2, 3])),
    ),
    "a fit of two nodes": (
        "must name as many nodes as the problem has",
        "fit",
        lambda f: edited(f, fit__names=["small", "middle"]),
    ),
    "a column twice": (
        "must hold every node once",
        "fit",
        lambda f: edited(f, fit__columns=[0, 0, 1]),
    ),
    "a fit of others": (
        "the fit and the problem differ in their nodes",
        "fit",
        lambda f: edited(f, fit__names=["small", "middle", "other"]),
    ),
    "costs in two dimensions": (
        "must have one cost for each node",
        "fit",
        lambda f: entry_changed(f, "fit_costs", shape=[3, 1]),
    ),
    "passing in two dimensions": (
        "must have one cost of passing for each node",
        "passing",
        lambda f: entry_changed(f, "fit_passing", shape=[3, 1]),
    ),
    "passing for two of three": (
        "must have one cost of passing for each node",
        "passing",
        lambda f: with_arrays(f, fit_passing=("f64", [2], [0.5, 0.5])),
    ),
    "passing negative": (
        "the cascade of the fit is none",
        "passing",
        lambda f: poked(f, "fit_passing", 0, -1.0),
    ),
    "passing NaN": (
        "the cascade of the fit is none",
        "passing",
        lambda f: poked(f, "fit_passing", 1, math.nan),
    ),
    "passing infinite": (
        "the cascade of the fit is none",
        "passing",
        lambda f: poked(f, "fit_passing", 2, math.inf),
    ),
    "passing in a fixed order": (
        "the cascade of the fit is none",
        "passing",
        lambda f: edited(f, fit__kind="exits"),
    ),
    "passing as integers": (
        "cannot hold numbers of type",
        "passing",
        lambda f: with_arrays(f, fit_passing=("i32", [3], [1, 1, 1])),
    ),
    "passing without a fit": (
        "has an unknown",
        "line",
        lambda f: with_arrays(f, fit_passing=("f64", [1], [1.0])),
    ),
    "costs of a belief cut": (
        "must have one cost for each node",
        "belief",
        lambda f: with_arrays(f, belief_costs=("f64", [1], [1.0])),
    ),
    "unknown order": (
        "the cascade of the fit is none",
        "fit",
        lambda f: edited(f, fit__order="sideways"),
    ),
    "unknown target": (
        "the cascade of the fit is none",
        "belief",
        lambda f: edited(f, belief__target="first"),
    ),
    "cost of a node NaN": (
        "the cascade of the fit is none",
        "belief",
        lambda f: poked(f, "belief_costs", 0, math.nan),
    ),
    "edges without their end": (
        "do not agree with their stated number",
        "fit",
        lambda f: poked(f, "fit_edges", -1, 0.5),
    ),
    "edges of a belief without their end": (
        "do not agree with their stated number",
        "belief",
        lambda f: poked(f, "belief_edges", -1, 0.5),
    ),
    "states of another node": (
        "differ in the states of a",
        "fit",
        lambda f: edited(f, fit__edges=[1, 2, 3]),
    ),
    "states of another step": (
        "differ in the states of a",
        "belief",
        lambda f: edited(f, belief__edges=[1, 3, *take(f).header["belief"]["edges"][2:]]),
    ),
    "edges fall": ("must be finite and increase", "fit", lambda f: poked(f, "fit_edges", 1, -9.0)),
    "edge infinite": (
        "must be finite and increase",
        "belief",
        lambda f: poked(f, "belief_edges", 1, math.inf),
    ),
    "31 nodes": (
        "and at most 60 are read",
        "belief",
        lambda f: edited(f, belief__names=[f"n{i}" for i in range(61)]),
    ),
    "predictions 1": (
        "predictions must be true or false",
        "belief",
        lambda f: edited(f, belief__predictions=1),
    ),
    "predictions denied": (
        "disagree on whether predictions are used",
        "belief",
        lambda f: edited(f, belief__predictions=False),
    ),
    "class twice": (
        "a class stands twice",
        "belief",
        lambda f: edited(f, belief__classes=["c0", "c0", "c1", "c2"]),
    ),
    "step twice": (
        "one step of its own for each node",
        "belief",
        lambda f: edited(f, belief__steps=[1, 1, 4, 3, 5, 6, 7]),
    ),
    "a step of two at once": (
        "must add one node",
        "belief",
        lambda f: edited(f, belief__steps=[3, 2, 4, 1, 5, 6, 7]),
    ),
    "no levels of a node": (
        "must have levels and leans for each node",
        "belief",
        lambda f: edited(f, belief__levels=[1, 1]),
    ),
    "weight NaN": ("finite numbers", "belief", lambda f: poked(f, "belief_weights", 0, math.nan)),
    "weights cut": (
        "finite numbers",
        "belief",
        lambda f: with_arrays(f, belief_weights=("f64", [2], [0.0, 0.0])),
    ),
    "weights without their end": (
        "must end with 0",
        "belief",
        lambda f: poked(f, "belief_weights", -1, 1.0),
    ),
    "bounds fall": (
        "the bounds of the belief must increase",
        "belief",
        lambda f: poked(f, "belief_bounds", 0, 9.0),
    ),
    "a weight between grains": (
        "must hold multiples of",
        "belief",
        lambda f: poked(f, "belief_weights", 0, 0.1),
    ),
    "a class there is not": (
        "for a class there is not",
        "belief",
        lambda f: poked(f, "belief_classes", 0, 4.0),
    ),
}
