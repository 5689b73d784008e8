"""The policy artefact: a policy or a ladder as a ``.ttamer`` file (docs/format.md).

It is safe to open a stranger's: nothing in it is executed, nothing is decompressed, no size is
believed, and every table is checked against the problem before a policy is made of it. The
checksum finds damage. It does not tell who wrote the file: a forger can compute it as well, and
what he can do is to make a policy that decides badly.

The same policy gives the same bytes: there are no timestamps.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer._version import __version__
from ttamer.artefact.beliefs import describe_belief, restore_belief
from ttamer.artefact.container import DTYPES, VERSION, pack, read, write
from ttamer.artefact.fits import describe_fit, restore_fit
from ttamer.artefact.record import describe_record, restore_record
from ttamer.artefact.rules import TABLES, Saved, check, cut
from ttamer.errors import ArgumentError, ArtefactDamaged, ArtefactError
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.fitted.models import BeliefModel, ConfidenceModel
from ttamer.policy.base import Ladder, Policy
from ttamer.policy.index import IndexPolicy
from ttamer.policy.walk import WalkPolicy

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.mixture import Rungs
    from ttamer.fitted.models import Model
    from ttamer.fitted.promise import HeldOut, Promise
    from ttamer.problem.problem import Problem

__all__ = ["inspect", "load", "save"]

MOST_SHOWN = 300
REMEDY = "copy the file again from where it came, or save the policy again"


Savable = Policy | Ladder | FittedPolicy | FittedLadder


def save(
    policy: Savable,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a policy or a ladder, solved or fitted, whole or not at all.

    The policies of a ladder must solve one problem, all with recall or all without, in
    increasing order of tradeoff. A file that is at ``path`` is replaced once the new one is
    complete. ``notes`` say in your own words where the policy comes from: :func:`inspect` gives
    them back.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(policy, Path(folder, "small.ttamer"), notes={"trace": "july"})
    ...     load(Path(folder, "small.ttamer"))
    WalkPolicy(1 nodes, tradeoff=0.5, value=0.175)
    """
    header, arrays = _describe(policy, dict(notes or {}))
    try:
        _, fitted = _checked(header, arrays)
        _record(header, arrays, fitted)
        parts = pack(header, arrays)
    except ArtefactDamaged as error:
        raise ArgumentError(f"this cannot be saved: {_shown(error)}") from None
    with _about(path):
        write(path, parts)


def load(path: str | os.PathLike[str]) -> Savable:
    """Return what was saved, a policy or a ladder, solved or fitted. Its arrays are read-only.

    Raises :class:`~ttamer.errors.ArtefactDamaged` for a file that is not one of ours, was cut
    short, altered or forged; :class:`~ttamer.errors.ArtefactTooNew` for a later version of the
    format; :class:`~ttamer.errors.ArtefactError` where there is no file, or it cannot be read.

    >>> load("no-such-file.ttamer")
    Traceback (most recent call last):
    ttamer.errors.ArtefactError: no-such-file.ttamer: cannot be read: No such file or directory
    """
    with _about(path):
        contents = read(path)
        saved, fitted = _checked(contents.header, contents.arrays)
        policies = _policies(saved)
        record = _record(contents.header, contents.arrays, fitted)
    if saved.kind == "ladder":
        ladder = Ladder(policies)
        return ladder if fitted is None else FittedLadder.of(ladder, fitted, *record)
    return policies[0] if fitted is None else FittedPolicy.of(policies[0], fitted)


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file says of itself, in plain values, once all of it has been checked.

    Node names and notes are whatever their author chose: escape them before you show them.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(policy, Path(folder, "small.ttamer"), notes={"trace": "july"})
    ...     facts = inspect(Path(folder, "small.ttamer"))
    >>> facts["kind"], facts["nodes"], facts["states"], facts["tradeoffs"], facts["notes"]
    ('policy', ['m1'], [2], [0.5], {'trace': 'july'})
    """
    with _about(path):
        contents = read(path)
        saved, fitted = _checked(contents.header, contents.arrays)
    facts = {
        "kind": saved.kind,
        "format_version": VERSION,
        "library_version": saved.library,
        "moves": saved.problem.moves,
        "recall": saved.recall,
        "nodes": list(saved.problem.names),
        "states": [len(node.losses) for node in saved.problem.nodes],
        "edges": len(saved.problem.edges),
        "tradeoffs": saved.arrays["tradeoffs"].tolist(),
        "values": saved.arrays["values"].tolist(),
        "notes": dict(saved.notes),
        "bytes": contents.size,
        "sha256": contents.checksum,
    }
    if fitted is not None:
        facts["fit"] = {**fitted.plan, "rows": fitted.rows, "trace": fitted.trace_digest}
        with _about(path):
            rungs, held, promises = _record(contents.header, contents.arrays, fitted)
        if rungs is not None:
            facts["rungs"] = {"errors": rungs.errors.tolist(), "costs": rungs.costs.tolist()}
            facts["held_out"] = held and {"rows": held.rows, "trace": held.trace_digest}
            facts["promises"] = [str(each) for each in promises]
    return facts


def _record(
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    fitted: Model | None,
) -> tuple[Rungs | None, HeldOut | None, tuple[Promise, ...]]:
    """Return how the policies of a ladder did, where the file says."""
    if fitted is None or "record" not in header:
        return None, None, ()
    return restore_record(header["record"], arrays, arrays["tradeoffs"].size, fitted.spec.names)


def _checked(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> tuple[Saved, Model | None]:
    """Check all of a header and its arrays; return the fit too, where there is one."""
    saved = check(header, arrays)
    if "fit" in header:
        return saved, restore_fit(header["fit"], arrays, saved.problem)
    if "belief" in header:
        return saved, restore_belief(header["belief"], arrays, saved.problem, recall=saved.recall)
    return saved, None


@contextmanager
def _about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before, and the remedy after, what is raised."""
    try:
        yield
    except ArtefactDamaged as error:
        raise ArtefactDamaged(f"{path}: {_shown(error)}; {REMEDY}") from None
    except ArtefactError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError:
        raise ArtefactError(f"{path}: does not fit into the memory of this machine") from None


def _shown(error: Exception) -> str:
    """Cut a message, and escape what does not print: a stranger's names may stand in it."""
    text = str(error)
    text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _describe(
    given: Savable, notes: dict[str, str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of what is to be saved."""
    if isinstance(given, FittedPolicy | FittedLadder):
        inner: Policy | Ladder
        if isinstance(given, FittedPolicy):
            inner = given.policy
        else:
            inner = Ladder(tuple(policy.policy for policy in given))
        header, arrays = _describe(inner, notes)
        if isinstance(given.fitted, BeliefModel):
            header["belief"], more = describe_belief(given.fitted)
        elif isinstance(given.fitted, ConfidenceModel):
            header["fit"], more = describe_fit(given.fitted)
        if isinstance(given, FittedLadder) and given.rungs is not None:
            header["record"], record = describe_record(given)
            more = {**more, **record}
        return header, {**arrays, **{name: _stored(name, array) for name, array in more.items()}}
    if isinstance(given, Mixture):
        raise ArgumentError(
            "a mixture is two policies of a ladder: save the ladder, and ask it again once loaded "
            "(for_budget, for_error, for_drop; ladder.promising keeps a promise in the file)"
        )
    if not isinstance(given, Policy | Ladder):
        raise ArgumentError(f"a policy or a ladder can be saved, not a {type(given).__name__}")
    for word in (*notes, *notes.values()):
        if not isinstance(word, str):
            raise ArgumentError(f"notes must map strings to strings, and one of them is {word!r}")
    policies = given.policies if isinstance(given, Ladder) else (given,)
    first = policies[0]
    for policy in policies:
        if not isinstance(policy, _kind(policy.problem)):
            raise ArgumentError(f"a policy of type {type(policy).__name__} cannot be saved")
        if policy.recall != first.recall or not _same(policy.problem, first.problem):
            raise ArgumentError(
                "the policies of a ladder must solve the same problem, all with recall or all "
                "without, to be saved as one file"
            )
    described, arrays = _describe_problem(first.problem)
    arrays["tradeoffs"] = np.array([policy.tradeoff for policy in policies])
    arrays["values"] = np.array([policy.value for policy in policies])
    for name in TABLES[first.problem.moves]:
        arrays[name] = np.stack([np.concatenate(getattr(policy, name)) for policy in policies])
    header = {
        "kind": "ladder" if isinstance(given, Ladder) else "policy",
        "problem": described,
        "recall": bool(first.recall),
        "provenance": {"library": __version__, "notes": notes},
    }
    return header, {name: _stored(name, array) for name, array in arrays.items()}


def _describe_problem(problem: Problem) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    described = {
        "moves": problem.moves,
        "names": list(problem.names),
        "states": [len(node.losses) for node in problem.nodes],
        "sources": [source for source, _ in problem.ends],
        "targets": [target for _, target in problem.ends],
    }
    if not problem.has_fixed_costs:
        described["cost_axes"] = [np.ndim(edge.cost) for edge in problem.edges]
    return described, {
        "losses": np.concatenate([node.losses for node in problem.nodes]),
        "costs": np.concatenate([np.ravel(edge.cost) for edge in problem.edges]),
        "probabilities": np.concatenate([edge.probabilities.ravel() for edge in problem.edges]),
    }


def _same(one: Problem, two: Problem) -> bool:
    if one is two:
        return True
    (facts, arrays), (others, other_arrays) = _describe_problem(one), _describe_problem(two)
    return facts == others and all(np.array_equal(arrays[k], other_arrays[k]) for k in arrays)


def _stored(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the type it has in the file: choices in the smallest that holds them."""
    dtype = DTYPES["f64"]
    if name == "choices":
        for code in ("i32", "i16", "i8"):
            limits = np.iinfo(DTYPES[code])
            if limits.min <= array.min() and array.max() <= limits.max:
                dtype = DTYPES[code]
    return np.ascontiguousarray(array, dtype)


def _kind(problem: Problem) -> type[IndexPolicy | WalkPolicy]:
    return IndexPolicy if problem.moves == "precedence" else WalkPolicy


def _policies(saved: Saved) -> tuple[Policy, ...]:
    tables: dict[str, list[Any]] = {}
    for name in TABLES[saved.problem.moves]:
        # Nothing is copied but the choices, unless this machine has the other order of bytes.
        array = saved.arrays[name].astype(np.int32 if name == "choices" else float, copy=False)
        array.setflags(write=False)
        tables[name] = [cut(table, saved.rows) for table in array]
    numbers = zip(saved.arrays["tradeoffs"].tolist(), saved.arrays["values"].tolist(), strict=True)
    policies: list[Policy] = []
    for rung, (tradeoff, value) in enumerate(numbers):
        facts: dict[str, Any] = {name: table[rung] for name, table in tables.items()}
        facts |= {"problem": saved.problem, "recall": saved.recall}
        policies.append(_kind(saved.problem)(tradeoff=tradeoff, value=value, **facts))
    return tuple(policies)
