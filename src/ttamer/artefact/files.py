"""The policy artefact: a policy or a ladder as a ``.ttamer`` file (docs/format.md).

It is safe to open a stranger's: nothing in it is executed, nothing is decompressed, no size is
believed, and every table is checked against the problem before a policy is made of it. The
checksum finds damage. It does not tell who wrote the file: a forger can compute it as well, and
what he can do is to make a policy that decides badly.

The same policy gives the same bytes: there are no timestamps.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer import __version__
from ttamer._arguments import require_path
from ttamer.artefact.beliefs import describe_belief, restore_belief
from ttamer.artefact.container import DTYPES, VERSION, Contents, pack, read, write
from ttamer.artefact.fits import describe_fit, restore_fit
from ttamer.artefact.record import Record, describe_record, restore_mixture, restore_record
from ttamer.artefact.rules import TABLES, Saved, check, cut
from ttamer.errors import ArgumentError, ArtefactDamaged, ArtefactError, ProblemError
from ttamer.fitted.cautious import has_line
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import Mix, Mixture, Rungs
from ttamer.fitted.models import BeliefModel, ConfidenceModel, Model
from ttamer.fitted.promise import Promise
from ttamer.policy.base import Ladder, Policy
from ttamer.policy.index import IndexPolicy
from ttamer.policy.joint import JointPolicy
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import Problem

MAX_SHOWN = 300
REMEDY = "copy the file again from where it came, or save the policy again"


# What can be saved: a policy or a ladder, solved or fitted, or a mixture.
Savable = Policy | Ladder | Mixture
# A header and its arrays.
Described = tuple[dict[str, Any], dict[str, "NDArray[Any]"]]


@dataclass(frozen=True, eq=False)
class Artefact:
    """A ``.ttamer`` file, read and checked once. Made by :func:`open_artefact`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import Problem, solve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.ttamer")
    ...     save(solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5), path)
    ...     artefact = open_artefact(path)
    >>> artefact.facts["nodes"], artefact.policy.tradeoff
    (['m1'], 0.5)
    """

    policy: Savable
    """What was saved; its arrays are read-only."""
    facts: dict[str, Any]
    """The contents of the file in plain values, as :func:`inspect` returns them."""


def save(
    policy: Savable,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a policy, a ladder or a mixture, whole or not at all.

    A file at ``path`` is replaced once the new one is complete.

    Args:
        policy: A policy or a ladder, solved or fitted, or a mixture with its promise. The policies
            of a ladder must solve one problem, all with recall or all without.
        path: Where to write.
        notes: Where the policy comes from, in your own words; :func:`inspect` returns them.

    Raises:
        ArgumentError: It is nothing that can be saved.
        ArtefactError: The file cannot be written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(policy, Path(folder, "small.ttamer"), notes={"trace": "july"})
    ...     load(Path(folder, "small.ttamer"))
    WalkPolicy(1 node, tradeoff=0.5, value=0.175)
    """
    header, arrays = _describe(policy, dict(notes or {}))
    require_path(path, "save")
    try:
        _checked(header, arrays)
        parts = pack(header, arrays)
    except ArtefactDamaged as error:
        raise ArgumentError(f"this cannot be saved: {_shown(error)}") from None
    with _about(path):
        write(path, parts)


def load(path: str | os.PathLike[str]) -> Savable:
    """Return what was saved: a policy, a ladder or a mixture. Its arrays are read-only.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        What was saved.

    Raises:
        ArtefactDamaged: The file is not a policy file, was cut short, altered or forged.
        ArtefactTooNew: The file is in a later version of the format.
        ArtefactError: There is no file, or it cannot be read.

    >>> load("no-such-file.ttamer")
    Traceback (most recent call last):
    ttamer.errors.ArtefactError: no-such-file.ttamer: cannot be read: No such file or directory
    """
    return open_artefact(path).policy


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a description of a file in plain values, once all of it has been checked.

    Node names and notes are whatever their author chose: escape them before you show them.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        Kind, versions, nodes, states, tradeoffs, notes, size, checksum, and what is known of a fit.

    Raises:
        ArtefactError: As for :func:`load`.

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
    return open_artefact(path).facts


def open_artefact(path: str | os.PathLike[str]) -> Artefact:
    """Read and check a file once; return what was saved and its description.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        The policy and the facts of the same bytes.

    Raises:
        ArtefactError: As for :func:`load`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ttamer import Problem, solve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.ttamer")
    ...     save(solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5), path)
    ...     artefact = open_artefact(path)
    >>> artefact.policy, artefact.facts["kind"]
    (WalkPolicy(1 node, tradeoff=0.5, value=0.175), 'policy')
    """
    with _about(path):
        contents = read(path)
        found = _checked(contents.header, contents.arrays, contents.version)
        return Artefact(_restored(found), _facts(found, contents))


@dataclass(frozen=True, eq=False)
class _Checked:
    """What a file holds, all of it checked."""

    saved: Saved
    fitted: Model | None
    record: Record
    mixture: tuple[Mix, int] | None


def _checked(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], version: int = VERSION
) -> _Checked:
    """Check all of a header and its arrays."""
    saved = check(header, arrays)
    fitted: Model | None = None
    if "fit" in header:
        fitted = restore_fit(header["fit"], arrays, saved.problem)
    elif "belief" in header:
        fitted = restore_belief(header["belief"], arrays, saved.problem, recall=saved.recall)
    if fitted is not None:
        stored = "fit_full_cost" in arrays or "belief_full_cost" in arrays
        if stored != (version > 1):
            raise ArtefactDamaged("a fit has its full cost from version 2 of the format on")
        if version == 1:
            saved = _in_shares(saved, fitted.full_cost)
    count = arrays["tradeoffs"].size
    record = Record()
    if fitted is not None and "record" in header:
        line: tuple[int, ...] = ()
        if isinstance(fitted, BeliefModel) and has_line(fitted, saved.problem):
            line = tuple(len(node.losses) for node in saved.problem.nodes)
        record = restore_record(
            header["record"],
            arrays,
            count,
            fitted.spec.names,
            graded=fitted.loss_scale is not None,
            thresholds=fitted.has_thresholds,
            line=line,
        )
    mixture = None
    if saved.kind == "mixture":
        mixture = restore_mixture(header["mixture"], arrays, count)
        if record.rungs is None:
            raise ArtefactDamaged("a mixture has a record of its policies")
    return _Checked(saved, fitted, record, mixture)


def _in_shares(saved: Saved, full: float) -> Saved:
    """Return a fit of version 1 with its costs in shares of the full model's.

    There the tradeoff weighed costs in the cascade's unit. The same decisions come of a tradeoff
    ``t / (t + (1 - t) * full)`` in shares; all that is weighed is scaled alike.
    """
    tradeoffs = saved.arrays["tradeoffs"]
    with np.errstate(all="ignore"):
        scale = 1 / (tradeoffs + (1 - tradeoffs) * full)
        arrays = dict(saved.arrays) | {
            "tradeoffs": tradeoffs * scale,
            "values": saved.arrays["values"] * scale,
        }
        for name in ("sigma", "phi"):
            if name in arrays:
                shape = (-1, *(1,) * (arrays[name].ndim - 1))
                arrays[name] = arrays[name] * scale.reshape(shape)
    edges = tuple(dataclasses.replace(e, cost=e.cost / full) for e in saved.problem.edges)
    try:
        problem = Problem(saved.problem.moves, saved.problem.nodes, edges)
    except ProblemError as error:
        raise ArtefactDamaged(f"its costs cannot be put in shares: {error}") from None
    if not (np.isfinite(scale).all() and (np.diff(arrays["tradeoffs"]) > 0).all()):
        raise ArtefactDamaged("its costs cannot be put in shares: the full cost is out of range")
    return dataclasses.replace(saved, problem=problem, arrays=arrays)


def _restored(found: _Checked) -> Savable:
    """Return what was saved."""
    policies, fitted, record = _policies(found.saved), found.fitted, found.record
    if fitted is None:
        return Ladder(policies) if found.saved.kind == "ladder" else policies[0]
    ladder = FittedLadder.of(Ladder(policies), fitted, record.rungs, record.held, record.promises)
    ladder = dataclasses.replace(ladder, cautious=record.cautious)
    if found.mixture is not None:
        mix, seed = found.mixture
        if record.promises:
            return ladder.mixture_for(record.promises[0], seed=seed)
        return ladder.mixed(mix, seed=seed)
    return ladder if found.saved.kind == "ladder" else ladder[0]


def _facts(found: _Checked, contents: Contents) -> dict[str, Any]:
    """Return a description of a file."""
    saved, fitted, record = found.saved, found.fitted, found.record
    facts: dict[str, Any] = {
        "kind": saved.kind,
        "format_version": contents.version,
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
    if fitted is None:
        return facts
    facts["fit"] = {
        **fitted.plan,
        "rows": fitted.rows,
        "trace": fitted.trace_digest,
        "full_cost": fitted.full_cost,
    }
    if fitted.reads:
        facts["fit"]["reads"] = fitted.columns_read
    if record.rungs is not None:
        held = record.held
        facts["rungs"] = {
            "errors": record.rungs.errors.tolist(),
            "costs": record.rungs.costs.tolist(),
        }
        facts["held_out"] = held and {"rows": held.rows, "trace": held.trace_digest}
        facts["promises"] = [str(each) for each in record.promises]
    if found.mixture is not None:
        facts["mixture"] = {**found.mixture[0]._asdict(), "seed": found.mixture[1]}
    return facts


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
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _describe(given: Savable, notes: dict[str, str]) -> Described:
    """Return the header and the arrays of what is to be saved, in the types of the file."""
    if isinstance(given, Mixture):
        header, arrays = _describe_mixture(given, notes)
    elif isinstance(given, FittedPolicy):
        rung = None
        if given.error is not None and given.cost is not None:
            rung = Rungs(np.array([given.error]), np.array([given.cost]))
        header, arrays = _describe_fitted(given.policy, given.fitted, notes, Record(rung))
    elif isinstance(given, FittedLadder):
        inner = Ladder(tuple(policy.policy for policy in given))
        record = Record(given.rungs, given.held, given.promises, given.cautious)
        header, arrays = _describe_fitted(inner, given.fitted, notes, record)
    else:
        header, arrays = _describe_solved(given, notes)
    return header, {name: _stored(name, array) for name, array in arrays.items()}


def _describe_fitted(
    given: Policy | Ladder, fitted: Model, notes: dict[str, str], record: Record
) -> Described:
    """Return the header and the arrays of a fit, and how its policies did where that is known."""
    header, arrays = _describe_solved(given, notes)
    more: dict[str, NDArray[Any]]
    if isinstance(fitted, BeliefModel):
        header["belief"], more = describe_belief(fitted)
    elif isinstance(fitted, ConfidenceModel):
        header["fit"], more = describe_fit(fitted)
    else:
        raise ArgumentError(f"a model of type {type(fitted).__name__} cannot be saved")
    arrays |= more
    if record.rungs is not None:
        header["record"], more = describe_record(
            record.rungs, record.held, record.promises, record.cautious
        )
        arrays |= more
    return header, arrays


def _describe_mixture(given: Mixture, notes: dict[str, str]) -> Described:
    """Return the header and the arrays of a mixture: its policies, their share, its promise."""
    # By tradeoff, as in every file: the cheaper of two policies may have the higher one.
    pair = {each.tradeoff: each for each in (given.cheap, given.expensive)}
    tradeoffs = sorted(pair)
    policies = [pair[tradeoff] for tradeoff in tradeoffs]
    numbers = [(each.error, each.cost) for each in policies]
    if any(None in each for each in numbers):
        raise ArgumentError("a mixture needs the error and cost of its policies to be saved")
    table = np.array(numbers, float).T
    cheap, expensive = (tradeoffs.index(x.tradeoff) for x in (given.cheap, given.expensive))
    mix = Mix(cheap, expensive, given.share)
    promises: tuple[Promise, ...] = ()
    if given.promise is not None:
        promises = (dataclasses.replace(given.promise, mix=mix),)
    inner = Ladder(tuple(policy.policy for policy in policies))
    record = Record(Rungs(table[0], table[1]), None, promises)
    header, arrays = _describe_fitted(inner, given.fitted, notes, record)
    header["kind"] = "mixture"
    header["mixture"] = {"cheap": mix.cheap, "expensive": mix.expensive, "seed": given.seed}
    arrays["mixture_share"] = np.array([given.share])
    return header, arrays


def _describe_solved(given: object, notes: dict[str, str]) -> Described:
    """Return the header and the arrays of a solved policy or ladder."""
    if not isinstance(given, Policy | Ladder):
        raise ArgumentError(
            f"a policy, a ladder or a mixture can be saved, not a {type(given).__name__}"
        )
    for word in (*notes, *notes.values()):
        if not isinstance(word, str):
            raise ArgumentError(f"notes must map strings to strings, and one of them is {word!r}")
    policies = given.policies if isinstance(given, Ladder) else (given,)
    first = policies[0]
    for policy in policies:
        if not isinstance(policy, _kind(policy.problem)):
            advice = "; save policy.walk" if isinstance(policy, JointPolicy) else ""
            raise ArgumentError(f"a policy of type {type(policy).__name__} cannot be saved{advice}")
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
    return header, arrays


def _describe_problem(problem: Problem) -> Described:
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
