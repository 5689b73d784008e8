"""Apparate's logs: ``{"conf": [ramp][sample], "acc": [ramp][sample]}`` in a pickle.

The last ramp is the network itself. Its confidences may be missing, or be raw logits. ``acc`` is
whether a ramp agreed with the network, or with the label: the pickle does not tell which.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer._numbers import counted
from ttamer.errors import TraceError
from ttamer.trace.builder import TraceBuilder
from ttamer.trace.classes import ClassCodes, shown
from ttamer.trace.columns import plan
from ttamer.trace.importers.plain_pickle import load_plain
from ttamer.trace.npz import ArrayBatch
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import OnBad, Trace

_NUMBERS = {int, float, bool, type(None)}


def import_apparate(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | str | os.PathLike[str] | None = None,
    *,
    on_bad: OnBad = "refuse",
) -> Trace:
    """Read a pickle of Apparate as a trace of exits in fixed order.

    The pickle is not run: it can hold numbers, text, lists, dicts and arrays, and is refused
    otherwise. Exits are called ``ramp0``, ``ramp1``, ... and ``model``, each at cost 1, unless a
    cascade gives them names and costs. ``notes`` has what was done about logits and gaps.

    >>> import pickle, tempfile
    >>> log = {"conf": [[0.9, 0.4], [2.5, 3.5]], "acc": [[True, False], [True, True]]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "log.pickle").write_bytes(pickle.dumps(log))
    ...     trace = import_apparate(Path(folder, "log.pickle"))
    >>> trace.names, trace.wrong().tolist()
    (('ramp0', 'model'), [[False, False], [True, False]])
    """
    place = str(path)
    data = load_plain(path)
    if not isinstance(data, dict) or not {"conf", "acc"} <= data.keys():
        raise TraceError(
            f'{place}: is not a log of Apparate: a dict with "conf" and "acc" is needed'
        )
    conf, acc = _ramps(data["conf"], f"{place}: conf"), _ramps(data["acc"], f"{place}: acc")
    _check_size(conf, acc, Path(path).stat().st_size, place)
    if len(conf) != len(acc):
        raise TraceError(f"{place}: conf has {len(conf)} ramps and acc has {len(acc)}")
    notes = []
    asleep = [r for r in range(len(conf)) if not len(conf[r]) and not len(acc[r])]
    active = [r for r in range(len(conf)) if r not in asleep]
    if not active:
        raise TraceError(f"{place}: has no rows; bring a log with at least one sample")
    if asleep:
        notes.append(f"ramps without samples are not nodes: {', '.join(map(str, asleep))}")

    spec = cascade
    if spec is None:
        names = [*(f"ramp{r}" for r in active[:-1]), "model"]
        spec = CascadeSpec.of(dict.fromkeys(names, 1.0), order="fixed")
        notes.append(
            "no cascade was given: every exit costs 1; give a cascade.toml with real costs"
        )
    elif not isinstance(spec, CascadeSpec):
        spec = CascadeSpec.from_file(spec)
    if len(spec) != len(active):
        raise TraceError(
            f"{place}: has {counted(len(active), 'ramp')} with samples, and the cascade "
            f"has {counted(len(spec), 'node')} "
            f"({shown(spec.names)}); they must match, in order"
        )
    columns: dict[str, NDArray[Any]] = {}
    rows = len(conf[active[0]])
    for name, ramp in zip(spec.names, active, strict=True):
        for what, values in (("conf", conf[ramp]), ("acc", acc[ramp])):
            if len(values) != rows:
                raise TraceError(
                    f"{place}: {what} of ramp {ramp} has {len(values)} samples, and conf of ramp "
                    f"{active[0]} has {rows}; all must have the same"
                )
        confidence, note = _confidence(
            conf[ramp], f"{place}: conf of ramp {ramp}", is_last=ramp == active[-1]
        )
        if note:
            notes.append(f"{name}: {note}")
        columns[f"{name}.confidence"] = confidence
        columns[f"{name}.correct"] = _scalars(acc[ramp], f"{place}: acc of ramp {ramp}")
    more = [str(key) for key in data if key not in ("conf", "acc")]
    if more:
        notes.append(f"parts of the log not used: {shown(more)}")
    builder = TraceBuilder(plan(list(columns), spec, place, notes=notes), rows, ClassCodes())
    builder.add(ArrayBatch(place, 0, columns, None))
    trace = builder.finish(on_bad)
    if not len(trace):
        raise TraceError(f"{place}: every row was left out ({rows} in all); fix the log")
    return trace


def _ramps(values: Any, place: str) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim in (2, 3):
        return list(values)
    if not isinstance(values, list | tuple) or not values:
        raise TraceError(f"{place}: must be a list with one list of samples for each ramp")
    for ramp, samples in enumerate(values):
        if not isinstance(samples, list | tuple) and not (
            isinstance(samples, np.ndarray) and samples.ndim in (1, 2)
        ):
            raise TraceError(
                f"{place} of ramp {ramp}: must be a list with one value for each sample"
            )
    return list(values)


def _check_size(conf: list[Any], acc: list[Any], size: int, place: str) -> None:
    """Refuse a pickle that names the same list again and again: it would unfold without end."""
    total = 0
    for samples in (*conf, *acc):
        total += len(samples)
        if isinstance(samples, list | tuple):
            total += sum(len(v) for v in samples if isinstance(v, list | tuple | np.ndarray))
        if total > 16 * size:
            raise TraceError(f"{place}: unfolds to far more numbers than it has bytes; not opened")


def _scalars(samples: Any, place: str) -> NDArray[np.float64]:
    """Return one number per sample; NaN for ``None``."""
    if isinstance(samples, np.ndarray):
        if samples.ndim != 1 or samples.dtype.kind not in "biuf":
            raise TraceError(f"{place}: must be one number for each sample, not {samples.dtype}")
        return samples.astype(np.float64)
    for sample, value in enumerate(samples):
        if type(value) not in _NUMBERS:
            raise TraceError(
                f"{place}: sample {sample} (counting from 0) is {type(value).__name__}, "
                "not a number"
            )
    try:
        return np.array([np.nan if v is None else float(v) for v in samples], np.float64)
    except OverflowError:
        raise TraceError(f"{place}: holds a number that is too large") from None


def _confidence(
    samples: Any, place: str, *, is_last: bool
) -> tuple[NDArray[np.float64], str | None]:
    """Return one confidence per sample, and what was done to get it, if anything was."""
    vectors = _vectors(samples, place)
    if vectors is not None:
        with np.errstate(invalid="ignore"):  # infinite logits give NaN, which is then refused
            shares = (vectors >= 0).all() and np.allclose(vectors.sum(axis=1), 1, atol=1e-3)
            if shares:
                return vectors.max(axis=1), "probabilities: the largest is its confidence"
            top = vectors.max(axis=1, keepdims=True)
            share = 1 / np.exp(vectors - top).sum(axis=1)
        return share, "raw logits: the largest softmax probability is its confidence"
    if is_last and not isinstance(samples, np.ndarray) and all(v is None for v in samples):
        return np.ones(len(samples)), "no confidence in the log: 1 on every row"
    values = _scalars(samples, place)
    if ((values < 0) | (values > 1)).any():
        return values, "confidences outside 0 to 1 (raw logits?): kept, only their order counts"
    return values, None


def _vectors(samples: Any, place: str) -> NDArray[np.float64] | None:
    """Return one row of logits per sample, or ``None`` where each sample is one number."""
    if isinstance(samples, np.ndarray):
        if samples.ndim == 1:
            return None
        samples = list(samples)
    if all(type(value) in _NUMBERS for value in samples):
        return None
    rows: list[NDArray[np.float64]] = []
    for sample, value in enumerate(samples):
        where = f"{place}: sample {sample} (counting from 0)"
        if not isinstance(value, list | tuple | np.ndarray):
            raise TraceError(f"{where} is one value among vectors of logits; mixed types")
        row = _scalars(value, where)
        if not row.size or (rows and row.size != rows[0].size):
            raise TraceError(
                f"{where} has {row.size} logits; all samples must have the same number"
            )
        rows.append(row)
    return np.stack(rows)
