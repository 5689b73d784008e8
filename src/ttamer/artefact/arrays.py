"""Arrays of a ``.ttamer`` file: declared with their shapes, and taken only as declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArtefactDamaged
from ttamer.fitting.belief import GRID, MAX_ODDS

Arrays = dict[str, NDArray[Any]]


class Declared(NamedTuple):
    """What an array may hold."""

    # The names of its sizes, perhaps with ``+1``. A size without a value yet takes the array's.
    # The last one may be ``*size``: parts of different lengths, stored one after the other, their
    # lengths in ``<name>_sizes``; parts of the same size have the same lengths, of ``*`` any.
    shape: str
    low: float = -np.inf
    high: float = np.inf
    # Of whole numbers: the size that they are numbers of, as places or nodes are
    of: str = ""
    # Whether entries are multiples of 1 / GRID
    grid: bool = False
    # Whether entries may be infinite
    infinite: bool = False
    # Whether whole numbers, and entries that are all 0 or 1, take as few bytes as they can
    small: bool = False
    # How an entry compares with the one before it in its row or part
    rises: Literal["", ">", ">="] = ""
    # Whether entries may be in single precision
    single: bool = False
    optional: bool = False


# What a file may hold, by prefix and name.
DECLARED: Mapping[str, Mapping[str, Declared]] = {
    "tables": {
        "costs": Declared("nodes", 0),
        "prices": Declared("prices", 0, rises=">="),
        "steps": Declared("steps members", -1, of="nodes"),
        "knots": Declared("steps knots", infinite=True, rises=">="),
        "point": Declared("ways", 0, of="prices"),
        "source": Declared("ways", 0, of="steps"),
        "node": Declared("ways", 0, of="nodes"),
        "base": Declared("ways knots+1"),
        "slope": Declared("ways knots+1"),
        "columns": Declared("ways 2"),
        "wait": Declared("nodes", 0),
    },
    "belief": {
        "bounds": Declared("nodes *bins", infinite=True, rises=">"),
        "levels": Declared("nodes *bins+1", -MAX_ODDS, MAX_ODDS, grid=True),
        "offsets": Declared("nodes *", grid=True),
        "pairs": Declared("pairs 2", 0, of="nodes"),
        "pair_keys": Declared("pairs *keys", 0, of="cells", rises=">"),
        "pair_values": Declared("pairs *keys", grid=True),
        "weight_sets": Declared("regressions joint", -1, of="nodes"),
        "weight_answers": Declared("regressions", 0, of="nodes"),
        "weights": Declared("regressions *", grid=True),
        "masked": Declared("nodes masked", grid=True),
        "shift_sets": Declared("shifts prefix", -1, of="nodes", optional=True),
        "shifts": Declared("shifts *", -4, 4, grid=True, optional=True),
        "head": Declared("nodes 4", grid=True, optional=True),
        "first": Declared("nodes 3", grid=True, optional=True),
        "later": Declared("nodes 7", grid=True, optional=True),
    },
    "prior": {
        "base": Declared("nodes", -MAX_ODDS, MAX_ODDS, grid=True),
        "mean_cost": Declared("nodes", 0),
        "weights": Declared("features+1 outputs"),
        "near": Declared("neighbours near", -1, 1, single=True),
        "losses": Declared("neighbours nodes", 0, 1, small=True),
        "centres": Declared("clusters near", -1, 1, single=True),
        "means": Declared("clusters nodes"),
        "shrink": Declared("clusters", 0, 1),
    },
    "states": {"costs": Declared("nodes", 0), "edges": Declared("nodes *", rises=">")},
    "points": {
        "error": Declared("prices", 0, 1 + 1e-9),
        "cost": Declared("prices", 0),
        "standard_error": Declared("prices", 0, 1 + 1e-9),
        "excess": Declared("prices", -1, 1 + 1e-9),
        "excess_error": Declared("prices", 0, 1 + 1e-9),
        "alone_error": Declared("nodes", 0, 1 + 1e-9),
        "alone_cost": Declared("nodes", 0),
    },
    "held": {
        "policies": Declared("tested", 0, of="prices"),
        "lost": Declared("tested rows", 0, 1, small=True),
        "paid": Declared("tested rows", 0),
        "alone_lost": Declared("rows nodes", 0, 1, small=True),
        "alone_paid": Declared("rows nodes", 0),
        "weight": Declared("weightings rows", 0, optional=True),
        "group": Declared("rows", of="groups", optional=True),
    },
    "solved": {
        # The checks of a problem say what its numbers may be; parts stand one after the other.
        "losses": Declared("losses", infinite=True),
        "costs": Declared("costs", infinite=True),
        "probabilities": Declared("probabilities"),
        "tradeoffs": Declared("policies", 0, 1, rises=">"),
        "values": Declared("policies"),
        # One row per state of a node, and of walks one for the start; of sigma, one per state of
        # the parent.
        "sigma": Declared("policies table_rows", 0, infinite=True),
        "choices": Declared("policies table_rows levels", of="solved nodes", small=True),
        "phi": Declared("policies table_rows levels", 0, infinite=True),
    },
}


def require(condition: object, message: str) -> None:
    """Refuse a file that lacks what must hold."""
    if not condition:
        raise ArtefactDamaged(message)


def cut(array: NDArray[Any], sizes: Sequence[int], axis: int = 0) -> tuple[NDArray[Any], ...]:
    """Cut a stacked array into parts of these sizes.

    >>> [part.tolist() for part in cut(np.arange(3), [1, 2])]
    [[0], [1, 2]]
    """
    before = (slice(None),) * axis
    return tuple(array[(*before, slice(*ends))] for ends in pairwise(accumulate(sizes, initial=0)))


def put(arrays: Arrays, prefix: str, values: Mapping[str, Any]) -> None:
    """Add values to the arrays of a file, as they are declared; those that are ``None`` are not."""
    for name, declared in DECLARED[prefix].items():
        value, key = values[name], f"{prefix}.{name}"
        if value is None:
            continue
        kind: type = np.int64 if declared.of else float
        if "*" in declared.shape:
            arrays[f"{key}_sizes"] = np.array([len(part) for part in value], np.int64)
            value = np.concatenate([np.empty(0, kind), *value])
        array = np.asarray(value)
        if array.dtype == np.float32:  # of inputs that are near: products in single precision
            kind = np.float32
        elif declared.small and (declared.of or np.isin(array, (0, 1)).all()):
            kind = next(k for k in (np.int8, np.int16, np.int32) if array.max(initial=0) < _end(k))
        arrays[key] = np.ascontiguousarray(array, kind)


def _end(kind: type) -> int:
    return int(np.iinfo(kind).max) + 1


class Stored:
    """The arrays of a file, each taken once."""

    def __init__(self, arrays: Arrays, **sizes: int) -> None:
        self.arrays, self.sizes = dict(arrays), dict(sizes)

    def read(self, prefix: str, *names: str) -> dict[str, Any]:
        """Return arrays by name, checked; optional ones that the file lacks are ``None``."""
        declared = DECLARED[prefix]
        return {name: self.take(f"{prefix}.{name}", declared[name]) for name in names or declared}

    def take(self, name: str, declared: Declared) -> Any:
        """Return one array, or its parts."""
        if declared.optional and name not in self.arrays:
            return None
        parts: tuple[NDArray[Any], ...]
        *shape, last = declared.shape.split()
        if last[0] != "*":
            parts = (self._array(name, declared, [*shape, last]),)
        else:
            # Sizes first: where they are forged, nothing is cut by them.
            counts = self._array(f"{name}_sizes", Declared("", 0, of="any"), shape).tolist()
            array = self._array(name, declared, [f"all {name}"])
            size, plus, more = last[1:].partition("+")
            fits = len(array) == sum(counts) and all(
                self._agrees(f"{size} {number}{plus}{more}", count)
                for number, count in enumerate(counts if size else ())
            )
            require(fits, f"array {name!r} does not agree with its sizes")
            parts = cut(array, counts)
        for part in parts if declared.rises else ():
            earlier, later = part[..., :-1], part[..., 1:]
            rises = later > earlier if declared.rises == ">" else later >= earlier
            require(rises.all(), f"array {name!r} must rise")
        return parts if last[0] == "*" else parts[0]

    def _agrees(self, size: str, length: int) -> bool:
        """Return whether a length is that of its name; a name without a value takes it."""
        name, _, more = size.partition("+")
        length -= int(more or 0)  # below 0 it agrees with no array
        return length == (int(name) if name.isdigit() else self.sizes.setdefault(name, length))

    def _array(self, name: str, declared: Declared, shape: Sequence[str]) -> NDArray[Any]:
        # Taken away: what is left at the end is unknown.
        require(name in self.arrays, f"the list of arrays lacks {name!r}")
        array = self.arrays.pop(name)
        same = array.ndim == len(shape) and all(map(self._agrees, shape, array.shape))
        require(same, f"array {name!r} has shape {array.shape} and not ({', '.join(shape)})")
        if declared.small and not declared.of and array.dtype == np.int8:
            array = array.astype(float)
        is_single = declared.single and array.dtype == np.float32
        fits = array.dtype.kind == "i" if declared.of else array.dtype == np.float64 or is_single
        require(fits, f"array {name!r} cannot hold {array.dtype.name}")
        low, high = declared.low, declared.high
        # Whole numbers are positions: out of range they would index another row from the end.
        if declared.of:
            low, high = max(low, -1), self.sizes.get(declared.of, 2**31) - 1
        elif declared.grid:  # sums of huge numbers would be no numbers
            low, high = max(low, -(2.0**20)), min(high, 2.0**20)
        finite = declared.of or declared.infinite or np.isfinite(array).all()
        require(finite, f"array {name!r} has an entry that is not finite")
        inside = ((array >= low) & (array <= high)).all()  # NaN is not
        require(inside, f"array {name!r} has an entry that is not from {low:g} to {high:g}")
        on_grid = not declared.grid or (array * GRID == np.rint(array * GRID)).all()
        require(on_grid, f"array {name!r} has an entry that is no multiple of 1/{GRID:g}")
        return array.astype(np.intp) if declared.of else array

    def done(self) -> None:
        """Refuse arrays that nothing has taken."""
        for name in self.arrays:
            raise ArtefactDamaged(f"the list of arrays has an unknown {name!r}")
