"""``fit``: from a trace to a ladder of policies.

1. Rows are held out, where promises are wanted.
2. The core finds policies for all prices and estimates them on rows that were not fitted to
   (:mod:`ttamer.fitting.crossfit`; :mod:`ttamer.fitting.markov` for the paper's learner).
3. A :class:`~ttamer.fitting.ladder.FittedLadder` is made of them, with what they do on the rows
   held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from ttamer._checks import counted, is_number, require_number, require_whole
from ttamer.cascade import answer_rules
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Bools, Floats, Ints
from ttamer.fitting.crossfit import fit_steps
from ttamer.fitting.inputs import FeatureSpec
from ttamer.fitting.ladder import (
    BeliefKind,
    FitRecord,
    Fitted,
    FittedLadder,
    Tables,
    first_parents,
    rows_split,
)
from ttamer.fitting.markov import check_markov, estimate_states, fit_states
from ttamer.fitting.planner import Log, PlanOptions
from ttamer.fitting.points import OperatingPoints
from ttamer.fitting.policy import Estimates, StepTables
from ttamer.fitting.promises import CAP
from ttamer.fitting.replay import alone_paid, full_cost, latency_of, paid
from ttamer.fitting.states import StateTables
from ttamer.fitting.threshold import default_thresholds, threshold_tables
from ttamer.problem.tradeoff import check_tradeoffs
from ttamer.show import ProgressOption, shown
from ttamer.trace.checks import check_for_fit, require_trace
from ttamer.trace.trace import Trace, require_rows

MIN_ROWS = 10  # a fit needs at least so many complete rows
MAX_ROWS = 400_000  # policies are found on at most so many: a uniform sample of more
MAX_HOLD_OUT = 0.9
FOLDS = 5
BOOKKEEPING = ("audit_number", "audit_time", "audit_chance")  # they describe an audit, no input


def fit(
    trace: Trace,
    *,
    belief: BeliefKind = "answers",
    inputs: bool | Iterable[str] = True,
    embedders: Mapping[str, str] | None = None,
    without: str | Iterable[str] = (),
    hold_out: float = 0.0,
    seed: int = 0,
    latency_weight: float | None = None,
    states: int | None = None,
    tradeoffs: Iterable[float] | None = None,
    progress: ProgressOption = None,
) -> FittedLadder:
    """Fit a ladder of policies to a trace.

    Args:
        trace: The answers of each node to each input. Rows may have gaps: every part of the fit
            takes the rows on which what it needs is known.
        belief: ``"answers"``: what all answers so far, and the input, say of each answer.
            ``"markov"``: the paper's learner, whose policies solve a ``Problem``. ``"threshold"``
            fits nothing: each policy is one threshold on the confidence for all nodes, and promises
            are tested on all rows.
        inputs: Whether to use the prompt and the inputs of the trace, where they help; or the names
            of those to use (``"prompt"`` is the prompt).
        embedders: By name of an input that is a vector: the name and version of what made it. It is
            kept in the policy, and others are refused.
        without: Nodes to leave out.
        hold_out: The share of rows held out to test promises on (``ladder.for_error``,
            ``ladder.for_drop``), at most 0.9; groups are not split.
        seed: Of the folds, and of the choice of rows held out.
        latency_weight: What a unit of latency is worth, in the unit of cost: policies minimise the
            loss and ``cost + latency_weight * latency``. By default the cascade's.
        states: With ``"markov"``: how many states a node has; by default by the number of rows.
        tradeoffs: With ``"markov"``: those to solve for, from 0 to 1. With ``"threshold"``: the
            thresholds.
        progress: Called with a line of text as the fit proceeds; ``True`` shows the progress.

    Returns:
        Policies for many tradeoffs, with estimates of what each does on new rows.

    Raises:
        ArgumentError: An option is out of range, or the trace has too few rows.

    >>> from ttamer import datasets
    >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)))
    >>> ladder.record.belief, ladder.record.rows
    ('answers', 500)
    """
    check_options(belief, hold_out, seed, latency_weight, states, tradeoffs)
    require_trace(trace, "a fit")
    left_out = (without,) if isinstance(without, str) else tuple(without)
    for name in left_out:
        trace.spec.index_of(name)  # refuses a name that no node has
    if left_out:
        trace = trace.restrict(name for name in trace.names if name not in left_out)
    trace = trace.with_verification()
    check_for_fit(trace)
    held: Trace | None = None
    if hold_out:
        trace, held = rows_split(trace, max(1, round(hold_out * len(trace))), seed)
    complete = np.asarray(~np.isnan(trace.loss).any(axis=1))
    _require_complete(trace, complete)
    record = FitRecord(
        belief=belief,
        rows=len(trace),
        complete=int(complete.sum()),
        trace_digest=trace.digest,
        seed=seed,
        folds=FOLDS,
        held_out=0 if held is None else len(held),
        sampled=MAX_ROWS if len(trace) > MAX_ROWS else None,
        weighting=_weighting(trace, complete),
        latency_weight=trace.spec.latency_weight if latency_weight is None else latency_weight,
        without=left_out,
    )
    if len(trace) > MAX_ROWS:
        generator = np.random.default_rng([len(trace), 2])
        trace = trace.take(np.sort(generator.permutation(len(trace))[:MAX_ROWS]))
    with shown(progress) as report:
        if callable(report):
            report(f"fitting belief {belief} to {counted(len(trace), 'row')}")
        core = _Core(trace, record, states, tradeoffs, inputs, embedders or {})
        parts = {"answers": _answers, "markov": _states, "threshold": _thresholds}[belief](core)
        ladder = build(core, *parts)
        if held is not None:
            ladder = ladder.with_holdout(held)
        elif belief == "threshold" and not (trace.is_graded and trace.spec.loss_bound is None):
            ladder = ladder.with_holdout(trace)
    return ladder


class _Core(NamedTuple):
    """What the three kinds of fit are given."""

    trace: Trace
    record: FitRecord
    states: int | None
    tradeoffs: Iterable[float] | None
    inputs: bool | Iterable[str]
    embedders: Mapping[str, str]


def build(core: _Core, tables: Tables, tradeoffs: Floats, estimates: Estimates) -> FittedLadder:
    """Make a ladder of tables and estimates."""
    trace, record = core.trace, core.record
    prior = tables.prior if isinstance(tables, StepTables) else None
    if prior is not None and prior.spec is not None:
        names = tuple(dict.fromkeys(feature.name for feature in prior.spec.features))
        record = msgspec.structs.replace(record, inputs=names)
    if isinstance(tables, StateTables):
        markov = check_markov(tables, np.asarray(trace.confidence)[estimates.rows], record.seed)
        record = msgspec.structs.replace(record, markov=markov)
    group = None if trace.group is None else _groups(trace)[estimates.rows]
    fitted = Fitted(
        spec=trace.spec,
        tables=tables,
        tradeoffs=tradeoffs,
        full_cost=full_cost(trace.spec, trace),
        record=record,
        measure=trace.measure,
        unit=trace.unit,
        thresholds=record.belief == "threshold",
        compare=answer_rules(trace.spec),
    )
    return FittedLadder(fitted, OperatingPoints.of(estimates, group))


def _groups(trace: Trace) -> Ints:
    """Return the group of each row; rows without one stand alone."""
    every = np.arange(len(trace))
    if trace.group is None:
        return every
    return np.where(trace.group < 0, trace.group.max() + 1 + every, trace.group).astype(np.intp)


def _answers(core: _Core) -> tuple[Tables, Floats, Estimates]:
    """Fit policies on what answers and inputs say."""
    trace, record = core.trace, core.record
    spec, latency = trace.spec, trace.latency
    if record.latency_weight:
        _require_latency(trace, record.latency_weight)
    features = _features(trace, core.inputs, core.embedders)
    weight = None
    if record.weighting == "chance":
        weight = _chance_weights(trace)
    log = Log(
        losses=np.asarray(trace.loss),
        cost=np.asarray(trace.costs, float),
        confidence=np.asarray(trace.confidence),
        codes=None if trace.prediction is None else trace.prediction.astype(np.intp),
        classes=trace.classes if trace.prediction is not None else (),
        features=None if features is None else features.rows(*_read(trace, features)),
        near=None if features is None else features.near,
        spec=features,
        latency=latency,
        groups=None if trace.group is None else _groups(trace),
        weight=weight,
    )
    fitted = fit_steps(
        spec.names,
        log,
        kind=spec.kind,
        parents=first_parents(spec) or None,
        latency_weight=record.latency_weight,
        options=PlanOptions(seed=record.seed),
    )
    price = fitted.tables.prices[::-1] * full_cost(spec, trace)
    return replace(fitted.tables, parents=first_parents(spec)), 1 / (1 + price), fitted.estimates


def _states(core: _Core) -> tuple[Tables, Floats, Estimates]:
    """Fit the paper's learner to the complete rows."""
    record, spec = core.record, core.trace.spec
    rows = np.flatnonzero(~np.isnan(core.trace.loss).any(axis=1))
    trace = core.trace.take(rows)
    if any(len(parents) > 1 for parents in spec.parents):
        raise ArgumentError(
            'belief="markov" counts how one node follows another, and a node of this cascade is '
            'asked after several: use belief="answers"',
            param="belief",
        )
    cost = np.asarray(trace.costs, float)
    full = full_cost(spec, trace)
    weighed = cost
    if record.latency_weight:
        weighed = cost + record.latency_weight * _require_latency(trace, record.latency_weight)
    tradeoffs = None if core.tradeoffs is None else check_tradeoffs(core.tradeoffs)
    options = {
        "after": [own[0] if own else -1 for own in spec.parents],
        "kind": spec.kind,
        "states": core.states,
    }
    tables = fit_states(
        spec.names,
        trace.confidence,
        weighed.mean(axis=0),
        full,
        tradeoffs=tradeoffs,
        **options,  # type: ignore[arg-type]
    )
    folds = Log(np.asarray(trace.loss), cost, trace.confidence, groups=_groups(trace)).folds(
        FOLDS, record.seed
    )
    estimates = estimate_states(
        tables,
        trace.confidence,
        np.asarray(trace.loss),
        cost,
        full,
        alone_cost=alone_paid(trace),
        latency=trace.latency,
        folds=folds,
        **options,
    )
    estimates = Estimates(rows, *list(vars(estimates).values())[1:])
    return tables, np.array(tables.ladder.tradeoffs), estimates


def _thresholds(core: _Core) -> tuple[Tables, Floats, Estimates]:
    """Set thresholds, and measure them on the complete rows."""
    spec = core.trace.spec
    rows = np.flatnonzero(~np.isnan(core.trace.loss).any(axis=1))
    trace = core.trace.take(rows)
    given = core.tradeoffs
    thresholds = default_thresholds() if given is None else check_tradeoffs(given)
    tables = threshold_tables(trace, thresholds)
    lost, costs, waited = [], [], []
    fitted = Fitted(spec, tables, thresholds, 1.0, core.record, thresholds=True)
    seen, every = fitted.read(trace), np.arange(len(trace))
    for number in range(len(thresholds)):
        played = seen.play(tables.policy(number))
        lost.append(trace.loss[every, played.answer])
        costs.append(paid(played.asked, trace))
        waited.append(latency_of(played.asked, trace))
    alone = [np.broadcast_to(asked, trace.confidence.shape) for asked in spec.required]
    alone_waited = [latency_of(asked, trace) for asked in alone]
    has_latency = all(wait is not None for wait in (*waited, *alone_waited))
    estimates = Estimates(
        rows,
        np.ones(len(trace)),
        np.stack(lost),
        np.stack(costs),
        np.stack(waited) if has_latency else None,  # type: ignore[arg-type]
        np.asarray(trace.loss),
        alone_paid(trace),
        np.stack(alone_waited, axis=1) if has_latency else None,  # type: ignore[arg-type]
    )
    return tables, thresholds, estimates


def check_options(
    belief: object,
    hold_out: float,
    seed: int,
    latency_weight: float | None,
    states: int | None,
    tradeoffs: Iterable[float] | None,
) -> None:
    """Refuse options that are out of range, or do not go together."""
    if belief not in get_args(BeliefKind):
        old = {"full": "answers", "calibrated": "answers", "none": "markov"}
        hint = f': {belief!r} is now "{old[str(belief)]}"' if belief in old else ""
        kinds = ", ".join(get_args(BeliefKind))
        raise ArgumentError(f"belief must be one of {kinds}, not {belief!r}{hint}", param="belief")
    require_whole(seed, "seed")
    if latency_weight is not None:
        require_number(latency_weight, "latency_weight")
    if not is_number(hold_out) or not 0 <= hold_out <= MAX_HOLD_OUT:
        raise ArgumentError(
            f"hold_out is {hold_out!r}; it must be from 0 to {MAX_HOLD_OUT}", param="hold_out"
        )
    if states is not None:
        require_whole(states, "states", least=1)
    if states is not None and belief != "markov":
        raise ArgumentError('states are those of belief="markov"', param="states")
    if tradeoffs is not None and belief == "answers":
        raise ArgumentError(
            'belief="answers" finds policies for all tradeoffs at once: leave tradeoffs out, and '
            "choose one with ladder.at(tradeoff)",
            param="tradeoffs",
        )
    if hold_out and belief == "threshold":
        raise ArgumentError(
            'belief="threshold" fits nothing, so promises are tested on all rows: leave hold_out '
            "(--hold-out) out",
            param="hold_out",
        )


def _require_complete(trace: Trace, complete: Bools) -> None:
    require_rows(trace, MIN_ROWS, "fitting")
    if int(complete.sum()) < MIN_ROWS:
        raise ArgumentError(
            f"fitting needs at least {MIN_ROWS} rows on which every node answered and every loss "
            f"is known, and there are {int(complete.sum())} ({trace.coverage}): ask all nodes on "
            "some of the inputs (ttamer collect), or leave nodes out (without=...; --without)"
        )


def _require_latency(trace: Trace, weight: float) -> Floats:
    """Return the latencies, or refuse a trace that lacks one."""
    latency = trace.latency
    lacking = [
        name
        for node, name in enumerate(trace.names)
        if latency is None or np.isnan(latency[trace.answered[:, node], node]).any()
    ]
    if latency is None or lacking:
        raise ArgumentError(
            f"latency_weight is {weight:g}, and the trace has no latency of {', '.join(lacking)}: "
            "add columns <node>.latency, or remove the weight",
            param="latency_weight",
        )
    return np.asarray(latency)


def _weighting(trace: Trace, complete: Bools) -> Literal["none", "raked", "chance"]:
    if complete.all():
        return "none"
    return "raked" if trace.chance is None else "chance"


def _chance_weights(trace: Trace) -> Floats:
    """Return one over the least chance of the nodes that answered on each row, clipped; mean 1."""
    assert trace.chance is not None  # noqa: S101 - the caller has looked
    known = trace.answered & ~np.isnan(trace.chance)
    least = np.where(known, trace.chance, 1.0).min(axis=1)
    weight = np.minimum(1 / np.maximum(least, 1 / CAP), CAP)
    return np.asarray(weight / weight.mean())


def _features(
    trace: Trace, inputs: bool | Iterable[str], embedders: Mapping[str, str]
) -> FeatureSpec | None:
    """Return how inputs become features; ``None`` where there are none to use."""
    known = [*(["prompt"] if trace.prompt is not None else []), *trace.inputs]
    known = [name for name in known if name not in BOOKKEEPING]
    if isinstance(inputs, bool):
        names = known if inputs else []
    else:
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        for name in names:
            if name not in known:
                have = f"it has {', '.join(known)}" if known else "it has none"
                raise ArgumentError(f"the trace has no input {name!r}: {have}", param="inputs")
    if not names:
        return None
    prompts = trace.prompt.tolist() if "prompt" in names and trace.prompt is not None else None
    values = {name: list(trace.inputs[name]) for name in names if name != "prompt"}
    return FeatureSpec.of(prompts, values, embedders=embedders)


def _read(
    trace: Trace, features: FeatureSpec
) -> tuple[list[str | None] | None, dict[str, list[object]]]:
    return trace.prompt.tolist() if trace.prompt is not None else None, {
        feature.name: list(trace.inputs[feature.name])
        for feature in features.features
        if feature.name in trace.inputs
    }
