"""Pickles that hold nothing but numbers, text, lists, tuples, dicts and NumPy arrays.

A pickle is a program, and the usual way to read one runs whatever it names. Here nothing is ever
imported or called: a name the pickle asks for becomes a mark on the stack if it is one of the few
that NumPy writes, and the pickle is refused otherwise; what NumPy would have built is built from
checked numbers and bytes. Operations that plain data does not need are not known at all.

The standard library's Unpickler in Python is the base, not the one in C: that one reserves memory
for any memo number a pickle claims, and a few bytes can claim all there is.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError

_CORES = ("numpy.core", "numpy._core")  # NumPy 1 and 2
_NAMES = {
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    **{(f"{core}.multiarray", "_reconstruct"): "array" for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): "scalar" for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): "buffer" for core in _CORES},
    ("_codecs", "encode"): "bytes",  # how protocols before 3 write bytes
    ("__builtin__", "bytes"): "no bytes",
}
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|[SU][0-9]{1,5}")
_KEYS = (str, int, float, bool, type(None))
_KEY_BITS = 1024
_DEPTH = 8
_OPERATIONS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT
    GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL
""".split()  # noqa: SIM905 - fifty names would take fifty lines
_Unpickler: Any = pickle._Unpickler  # the one in Python; its parts have no declared types


def load_plain(path: str | os.PathLike[str]) -> Any:
    """Read a pickle of plain data; refuse any other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "plain.pickle")
    ...     _ = path.write_bytes(pickle.dumps({"conf": [np.array([0.5, 0.25])]}))
    ...     load_plain(path)
    {'conf': [array([0.5 , 0.25])]}
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data:
        raise TraceError(f"{path}: is empty")
    try:
        reader = _PlainUnpickler(io.BytesIO(data), encoding="latin1")
        return _resolved(reader.load(), {}, 0)
    except _Refused as error:
        raise TraceError(
            f"{path}: is not a pickle of plain numbers, text, lists, dicts and arrays: {error}; "
            "it was not opened"
        ) from None
    except Exception as error:  # a broken pickle can fail in any way
        raise TraceError(
            f"{path}: is not a pickle, or is damaged ({type(error).__name__})"
        ) from None


class _Refused(Exception):  # noqa: N818 - named after what happened
    """The pickle asks for something that plain data does not need."""


class _Name:
    """A name the pickle asked for: a mark, not the thing."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role


class _Dtype:
    """A type of numbers, as the pickle describes it."""

    __slots__ = ("code", "order")

    def __init__(self, code: object) -> None:
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise _Refused("it holds an array of something other than numbers or text")
        self.code, self.order = code, "="

    def set(self, state: Any) -> None:
        _, order, *structure = state[:5]
        if order not in ("<", ">", "=", "|") or structure != [None, None, None]:
            raise _Refused("it holds an array of records")
        self.order = order

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """An array that the pickle will describe."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: NDArray[Any] | None = None

    def set(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.values = _values(data, dtype, shape, "F" if fortran else "C")


def _values(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if isinstance(data, str):  # bytes of Python 2
        data = data.encode("latin1")
    if not isinstance(data, bytes) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise _Refused("it describes an array as only a made-up pickle would")
    if not data and len(shape) > 1:  # no numbers, and perhaps a billion rows of none
        raise _Refused("it holds a table without numbers")
    return np.frombuffer(data, dtype.dtype).reshape(shape, order=order)


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    """Builds plain values and the records above; calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """Answer with a mark for the names NumPy writes; refuse all others."""
        role = _NAMES.get((module, name))
        if role is None:
            raise _Refused(f"it asks for {module[:80]}.{name[:80]}")
        return _Name(role)

    def load_reduce(self) -> None:
        """Build what NumPy would have built."""
        arguments = self.stack.pop()
        name = self.stack[-1]
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise _Refused("it calls something that is no function")
        self.stack[-1] = _built(name.role, arguments)

    def load_build(self) -> None:
        """Take in the description of a type or an array."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Dtype | _Array) or not isinstance(state, tuple):
            raise _Refused("it changes an object")
        self.stack[-1].set(state)

    def load_setitem(self) -> None:
        """Set one item of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        """Set items of a dict."""
        items = self.pop_mark()
        _set_items(self.stack[-1], items)

    def load_dict(self) -> None:
        """Build a dict from its items."""
        items = self.pop_mark()
        self.append(_set_items({}, items))

    def load_bytearray8(self) -> None:
        """Read bytes: as many as there are, whatever length the pickle states."""
        size = int.from_bytes(self.read(8), "little")
        data = self.read(size)
        if len(data) != size:
            raise EOFError
        self.append(bytes(data))

    dispatch = {  # noqa: RUF012 - as in the base class
        **{
            getattr(pickle, op)[0]: _Unpickler.dispatch[getattr(pickle, op)[0]]
            for op in _OPERATIONS
        },
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


def _set_items(target: Any, items: list[Any]) -> Any:
    if type(target) is not dict or len(items) % 2:
        raise _Refused("it sets items of something that is no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in _KEYS:  # hashing a tuple of tuples without end would end the process
            raise _Refused("it has a dict whose keys are not text or numbers")
        if type(key) is int and key.bit_length() > _KEY_BITS:  # too long to be shown in a message
            raise _Refused("it has a dict with a number of hundreds of digits as key")
        target[key] = value
    return target


def _built(role: str, arguments: tuple[Any, ...]) -> Any:
    if role == "dtype":
        return _Dtype(arguments[0])
    if role == "array":
        if not isinstance(arguments[0], _Name) or arguments[0].role != "ndarray":
            raise _Refused("it holds an array of an unknown kind")
        return _Array()
    if role == "buffer":
        array = _Array()
        array.values = _values(*arguments[:4])
        return array
    if role == "scalar":
        dtype, data = arguments
        return _values(data, dtype, (), "C").item()
    if role == "bytes" and len(arguments) == 2 and arguments[1] == "latin1":
        return arguments[0].encode("latin1")
    if role == "no bytes" and not arguments:
        return b""
    raise _Refused("it calls something that plain data does not need")


def _resolved(value: Any, done: dict[int, Any], depth: int) -> Any:
    """Return the value with arrays in place of their records; nothing is visited twice."""
    if depth > _DEPTH:
        raise _Refused(f"its lists are more than {_DEPTH} deep")
    if isinstance(value, _Array):
        if value.values is None:
            raise _Refused("it holds an array without values")
        return value.values
    if isinstance(value, _Name | _Dtype):
        raise _Refused("it holds a function or a type")
    if not isinstance(value, list | tuple | dict):
        return value
    if id(value) not in done:
        items = list(value.values()) if isinstance(value, dict) else value
        if any(isinstance(item, list | tuple | dict | _Array | _Name | _Dtype) for item in items):
            items = [_resolved(item, done, depth + 1) for item in items]
        if isinstance(value, dict):
            done[id(value)] = dict(zip(value, items, strict=True))
        else:
            done[id(value)] = tuple(items) if isinstance(value, tuple) else list(items)
    return done[id(value)]
