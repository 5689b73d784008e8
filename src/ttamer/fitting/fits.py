"""``fit``: from a trace to a ladder of policies.

1. Rows are held out, where promises are wanted.
2. The core finds policies for all prices and estimates them on rows that were not fitted to
   (:mod:`ttamer.fitting.crossfit`; :mod:`ttamer.fitting.markov` for the paper's learner).
3. A :class:`~ttamer.fitting.ladder.FittedLadder` is made of them, with what they do on the rows
   held out.

A file larger than memory is fitted by a uniform sample of its rows (``Trace.read(sample=)``): its
policies differ from those of all rows by less than their own standard errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, get_args

import numpy as np

from ttamer._checks import counted, is_number, require_whole
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Bools, Floats, Ints, Seen
from ttamer.fitting.crossfit import StepFit, fit_steps
from ttamer.fitting.fitted import BeliefKind, FitRecord, Fitted, Tables, Weighting, first_parents
from ttamer.fitting.inputs import FeatureSpec
from ttamer.fitting.ladder import FittedLadder
from ttamer.fitting.markov import StateTables, check_markov, fit_states
from ttamer.fitting.planner import Log, PlanOptions, folds_of
from ttamer.fitting.points import OperatingPoints
from ttamer.fitting.policy import play
from ttamer.fitting.promises import CAP, propensity, rows_split
from ttamer.fitting.replay import full_cost, outcomes
from ttamer.fitting.threshold import default_thresholds, threshold_tables
from ttamer.policy.base import one_thread
from ttamer.problem.checks import check_tradeoffs
from ttamer.show import ProgressOption, shown
from ttamer.trace.checks import check_for_fit, require_rows, require_trace
from ttamer.trace.trace import Trace

MIN_ROWS = 10  # a fit needs at least so many complete rows
MAX_ROWS = 100_000  # policies are found on at most so many: a uniform sample of more


def fit(
    trace: Trace,
    *,
    belief: BeliefKind = "answers",
    inputs: bool | Iterable[str] = True,
    embedders: Mapping[str, str] | None = None,
    without: str | Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    max_nodes: int | None = None,
    hold_out: float = 0.0,
    seed: int = 0,
    states: int | None = None,
    tradeoffs: Iterable[float] | None = None,
    progress: ProgressOption = None,
) -> FittedLadder:
    """Fit a ladder of policies to a trace.

    Where the cascade has a ``latency_weight``, policies minimise the loss and
    ``cost + latency_weight * latency``.

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
        rename: New names of nodes, by the old ones: ``{"gpt-4": "gpt-4o"}``.
        max_nodes: The most models that one input asks: 1 is a router, 2 the best pairs. 4 by
            default.
        hold_out: The share of rows held out to test promises on (``ladder.for_error``,
            ``ladder.for_drop``), at most 0.9; groups are not split.
        seed: Of the folds, and of the choice of rows held out.
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
    without = (without,) if isinstance(without, str) else tuple(without)
    require_trace(trace, "a fit")
    _check_options(trace.spec.kind, belief, hold_out, seed, states, tradeoffs, max_nodes)
    trace, total = _with_nodes(trace, without, rename or {}), trace.sampled_of
    check_for_fit(trace)
    held: Trace | None = None
    if hold_out:
        trace, held = rows_split(trace, max(1, round(hold_out * len(trace))), seed)
        if not len(trace):
            raise ArgumentError(
                "all rows are of one group, which is held out whole: bring rows of more groups, or "
                "leave hold_out (--hold-out) out",
                param="hold_out",
            )
    log = trace
    if len(log) > MAX_ROWS:
        generator = np.random.default_rng([len(log), 2])
        trace = log.take(np.sort(generator.permutation(len(log))[:MAX_ROWS]))
    rows, spec = _complete_rows(trace, belief, seed), trace.spec
    _require_latency(trace)
    weight: Floats | None = None
    facts: dict[str, Any] = {}  # further ones of the record
    with shown(progress) as report, one_thread():
        if callable(report):
            report(f"fitting belief {belief} to {counted(len(trace), 'row')}")
        chosen = None if tradeoffs is None else check_tradeoffs(tradeoffs)
        tables: Tables
        if belief == "answers":
            features = _feature_spec(trace, inputs, embedders or {})
            facts["weighting"] = _weighting(trace, is_complete=len(rows) == len(trace))
            options = PlanOptions(seed=seed, max_nodes=max_nodes or PlanOptions.max_nodes)
            is_weighted = facts["weighting"] == "chance"
            tables, asked, answer, weight = _answers(trace, features, is_weighted, options)
            reached = 1 / (1 + tables.prices[::-1] * full_cost(trace))
            if facts["weighting"] != "none":
                facts["effective"] = float(weight.sum() ** 2 / (weight @ weight))
            if features is not None and tables.prior is not None:
                facts["inputs"] = features.names
        elif belief == "markov":  # only complete rows say how states or thresholds do
            tables, asked, answer = _states(rows, seed, chosen, states)
            reached = np.array(tables.ladder.tradeoffs)
            facts["markov"] = check_markov(tables, rows.confidence, seed)
        else:
            reached = default_thresholds() if chosen is None else chosen
            tables = threshold_tables(rows, reached)
            view = tables.belief.view(Seen(rows.confidence))
            played = [play(tables.policy(number), view) for number in range(len(reached))]
            asked, answer = (
                np.stack([p.asked for p in played]),
                np.stack([p.answer for p in played]),
            )
    record = FitRecord(
        belief=belief,
        rows=total or len(log),
        complete=len(rows),
        # Of a sample: no trace in memory was read of all rows.
        trace_digest=log.digest if total is None else f"batches:{log.digest}",
        seed=seed,
        folds=PlanOptions.folds,
        held_out=0 if held is None else len(held),
        sampled=len(trace) if len(trace) < (total or len(log)) else None,
        latency_weight=spec.latency_weight,
        without=without,
        **facts,
    )
    fitted = Fitted.of(trace, tables, reached, record, thresholds=belief == "threshold")
    # A ladder rises in tradeoff, tables in price.
    outcome = outcomes(rows, asked[::-1], answer[::-1])
    group = None if rows.group is None else rows.units
    ladder = FittedLadder(fitted, OperatingPoints.of(*outcome, weight=weight, group=group))
    if belief == "threshold" and not (trace.is_graded and spec.loss_bound is None):
        held = trace
    return ladder if held is None else ladder.with_holdout(held)


def _with_nodes(trace: Trace, without: Sequence[str], rename: Mapping[str, str]) -> Trace:
    """Return the trace of the nodes to fit to, by their new names."""
    for name in (*without, *rename):
        trace.spec.index_of(name)  # refuses a name that no node has
    if without:
        trace = trace.restrict(name for name in trace.names if name not in without)
    if rename:
        nodes = []
        for node in trace.spec.nodes:
            parents = tuple(rename.get(parent, parent) for parent in node.parents)
            after = parents if isinstance(node.after, tuple) else next(iter(parents), None)
            nodes.append(replace(node, name=rename.get(node.name, node.name), after=after))
        trace = replace(trace, spec=replace(trace.spec, nodes=tuple(nodes)))
    return trace.with_verification()


def _complete_rows(trace: Trace, belief: BeliefKind, seed: int) -> Trace:
    """Return the rows on which every node answered and every loss is known; refuse too few."""
    require_rows(trace, MIN_ROWS, "fitting")
    complete = np.flatnonzero(~np.isnan(trace.loss).any(axis=1))
    if len(complete) < MIN_ROWS:
        raise ArgumentError(
            f"fitting needs at least {MIN_ROWS} rows on which every node answered and every loss "
            f"is known, and there are {len(complete)} ({trace.coverage}): ask all nodes on some "
            "of the inputs (ttamer collect), or leave nodes out (without=...; --without)"
        )
    folds = folds_of(trace.units, PlanOptions.folds, seed)[complete]
    if belief != "threshold" and (folds == folds[0]).all():
        raise ArgumentError(
            "the complete rows are of too few groups: estimates are of groups that were not fitted "
            "to; bring rows of more groups, or leave the column group out"
        )
    return trace if len(complete) == len(trace) else trace.take(complete)


def _weighting(trace: Trace, *, is_complete: bool) -> Weighting:
    """Return how complete rows stand for all."""
    if trace.chance is None:
        return "none" if is_complete else "raked"
    # Complete rows, too, may have been drawn with different chances.
    return "none" if is_complete and not np.ptp(_chance_weights(trace)) > 0 else "chance"


def _answers(
    trace: Trace, features: FeatureSpec | None, is_weighted: bool, options: PlanOptions
) -> StepFit:
    """Fit policies on what answers and inputs say."""
    spec = trace.spec
    agree, margin = _equal_answers_lose_alike(trace), _margins(trace)
    codes = trace.prediction if agree else None
    log = Log(
        losses=np.asarray(trace.loss),
        cost=np.asarray(trace.costs, float),
        confidence=np.asarray(trace.confidence if margin is None else margin),
        codes=None if codes is None else codes.astype(np.intp),
        classes=() if codes is None else trace.classes,
        features=None if features is None else features.rows(_input_columns(trace)),
        spec=features,
        latency=trace.latency,
        latency_weight=spec.latency_weight,
        groups=None if trace.group is None else trace.units,
        weight=_chance_weights(trace) if is_weighted else None,
        kind=spec.kind,
        parents=first_parents(spec),
    )
    fitted = fit_steps(spec.names, log, options=options)
    belief = replace(fitted.tables.belief, agree=agree)
    if margin is not None:
        belief = replace(belief, reads="margin")
    tables = replace(fitted.tables, belief=belief)
    return fitted._replace(tables=tables)


def _margins(trace: Trace) -> Floats | None:
    """Return the margins of exits where all answers have one, of more than two classes."""
    margin = trace.margin
    if trace.spec.kind != "exits" or margin is None or len(trace.classes) <= 2:
        return None
    return margin if np.isfinite(margin[trace.answered]).all() else None


def _equal_answers_lose_alike(trace: Trace) -> bool:
    """Return whether answers that predict the same lose the same.

    So it is where answers are right or wrong. Where they are distributions, the more certain one of
    two with the same class may lose far less: then agreement says little, and is not read.
    """
    answers, gaps = trace.prediction, ([0.0], [1e-9])  # between answers that differ, that agree
    if answers is None or not trace.is_graded:
        return True
    for a, b in combinations(range(len(trace.spec)), 2):
        gap = np.abs(trace.loss[:, a] - trace.loss[:, b])
        same = (answers[:, a] == answers[:, b]) & (answers[:, a] >= 0)
        for agree in (0, 1):
            gaps[agree].append(np.nanmean(np.append(gap[same == agree], 0)))
    return bool(np.mean(gaps[1]) <= 0.01 * np.mean(gaps[0]) + 1e-9)


def _states(
    trace: Trace, seed: int, tradeoffs: Floats | None, states: int | None
) -> tuple[StateTables, Bools, Ints]:
    """Fit the paper's learner to complete rows; what it does is estimated by folds."""
    spec, cost = trace.spec, np.asarray(trace.costs, float)
    if any(len(parents) > 1 for parents in spec.parents):
        raise ArgumentError(
            'belief="markov" counts how one node follows another, and a node of this cascade is '
            'asked after several: use belief="answers"',
            param="belief",
        )
    if spec.latency_weight and trace.latency is not None:
        cost = cost + spec.latency_weight * trace.latency

    def learn(rows: Ints | slice, tradeoffs: Floats | None) -> StateTables:
        seen, means, full = trace.confidence[rows], cost[rows].mean(axis=0), full_cost(trace)
        return fit_states(spec, seen, means, full, states=states, tradeoffs=tradeoffs)

    tables = learn(slice(None), tradeoffs)
    solved = np.array(tables.ladder.tradeoffs)
    fold = folds_of(trace.units, PlanOptions.folds, seed)
    asked = np.zeros((len(tables), *trace.confidence.shape), bool)
    answer = np.zeros(asked.shape[:2], np.intp)
    for k in np.unique(fold):
        part = np.flatnonzero(fold == k)
        of_others = learn(np.flatnonzero(fold != k), solved)
        for number in range(len(tables)):
            done = of_others.policy(number).play(Seen(trace.confidence[part]))
            asked[number, part], answer[number, part] = done.asked, done.answer
    return tables, asked, answer


def _chance_weights(trace: Trace) -> Floats:
    """Return one over the least chance of the nodes that answered on each row, clipped; mean 1."""
    weight = np.minimum(1 / np.maximum(propensity(trace.answered, trace), 1 / CAP), CAP)
    return np.asarray(weight / weight.mean())


def _feature_spec(
    trace: Trace, inputs: bool | Iterable[str], embedders: Mapping[str, str]
) -> FeatureSpec | None:
    """Return how inputs become features; ``None`` where there are none to use."""
    present = _input_columns(trace)
    for name in ("audit_number", "audit_time", "audit_chance"):  # of an audit, not of an input
        present.pop(name, None)
    names = list(present) if inputs is True else []
    if not isinstance(inputs, bool):
        names = [inputs] if isinstance(inputs, str) else list(inputs)
    _require_known(names, present, "inputs", "the trace has no input {!r}")
    columns = {name: values for name, values in present.items() if name in names}
    spec = FeatureSpec.of(columns, embedders=embedders)
    vectors = [feature.name for feature in spec.features if feature.kind == "vector"]
    no_vector = "embedders names {!r}, which is no vector that the fit reads"
    _require_known(embedders, vectors, "embedders", no_vector)
    return spec if names else None


def _require_known(names: Iterable[str], known: Iterable[str], param: str, problem: str) -> None:
    """Refuse a name that is not known."""
    for name in names:
        if name not in known:
            have = f"there are {', '.join(known) or 'none'}"
            raise ArgumentError(f"{problem.format(name)}: {have}", param=param)


def _input_columns(trace: Trace) -> dict[str, list[Any]]:
    """Return what is known of each input, by name."""
    columns = {name: list(values) for name, values in trace.inputs.items()}
    return columns if trace.prompt is None else {**columns, "prompt": trace.prompt.tolist()}


def _check_options(
    kind: str,
    belief: object,
    hold_out: object,
    seed: int,
    states: int | None,
    tradeoffs: Iterable[float] | None,
    max_nodes: int | None,
) -> None:
    """Refuse options that are out of range, or do not go together."""
    require_whole(seed, "seed")
    for name, value in (("states", states), ("max_nodes", max_nodes)):
        if value is not None:
            require_whole(value, name, least=1)
    kinds, old = (
        get_args(BeliefKind),
        {"full": "answers", "calibrated": "answers", "none": "markov"},
    )
    hint = f': {belief!r} is now "{old[str(belief)]}"' if belief in old else ""
    in_range = is_number(hold_out) and 0 <= hold_out <= 0.9
    of_all = 'belief="answers" finds policies for all tradeoffs at once: choose one with '
    fits_nothing = 'belief="threshold" fits nothing, so promises are tested on all rows: '
    refusals = [
        ("belief", belief not in kinds, f"belief must be {', '.join(kinds)}, not {belief!r}{hint}"),
        ("hold_out", not in_range, f"hold_out is {hold_out!r}; it must be from 0 to 0.9"),
        ("states", states and belief != "markov", 'states: only belief="markov" takes it'),
        (
            "max_nodes",
            max_nodes and belief != "answers",
            'max_nodes: only belief="answers" takes it',
        ),
        (
            "max_nodes",
            max_nodes and kind == "exits",
            "max_nodes limits separate models: leave exits of a network out (without=...)",
        ),
        (
            "tradeoffs",
            tradeoffs is not None and belief == "answers",
            f"{of_all}ladder.at(tradeoff), and leave tradeoffs out",
        ),
        (
            "hold_out",
            hold_out and belief == "threshold",
            f"{fits_nothing}leave hold_out (--hold-out) out",
        ),
    ]
    for param, is_refused, text in refusals:
        if is_refused:
            raise ArgumentError(text, param=param)


def _require_latency(trace: Trace) -> None:
    """Refuse a trace that lacks a latency, where one counts."""
    latency = np.full(trace.answered.shape, np.nan) if trace.latency is None else trace.latency
    lacking = np.flatnonzero((np.isnan(latency) & trace.answered).any(axis=0))
    if trace.spec.latency_weight and lacking.size:
        raise ArgumentError(
            f"latency_weight is {trace.spec.latency_weight:g}, and the trace has no latency of "
            f"{', '.join(trace.names[node] for node in lacking)}: add columns <node>.latency, or "
            "remove the weight",
            param="latency_weight",
        )
