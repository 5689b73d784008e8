"""What all policies of a fit share: how it was made, and all that is needed to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer import __version__
from ttamer._checks import is_number, percent
from ttamer.cascade import CascadeSpec, answer_rules
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats, Ints, Seen, Step, View
from ttamer.fitting.markov import MarkovRecord, StatePolicy, StateTables
from ttamer.fitting.policy import StepPolicy, StepTables, play
from ttamer.fitting.replay import Played, full_cost
from ttamer.fitting.session import SingleNode
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

Tables = StepTables | StateTables
PolicyRule = StepPolicy | StatePolicy | SingleNode
Column = Sequence[Any] | NDArray[Any]
BeliefKind = Literal["answers", "markov", "threshold"]
Weighting = Literal["none", "raked", "chance"]


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a ladder was fitted. Nothing reads it in order to decide."""

    belief: BeliefKind
    # The rows of the log, held-out ones left out
    rows: int
    # Those on which every node answered and every loss is known
    complete: int
    trace_digest: str
    seed: int = 0
    folds: int = 5
    held_out: int = 0
    # The rows that policies were found on, where there were more than fit into memory
    sampled: int | None = None
    # How complete rows stand for all rows
    weighting: Weighting = "none"
    # So many rows of equal weight say as much as the weighted complete ones
    effective: float | None = None
    latency_weight: float = 0.0
    without: tuple[str, ...] = ()
    # What policies read of an input
    inputs: tuple[str, ...] = ()
    # Of ``belief="markov"`` with nodes in one order
    markov: MarkovRecord | None = None
    version: str = __version__

    @property
    def on_gaps(self) -> str:
        """What the fit assumes where rows have gaps, in words; empty where it assumes nothing."""
        if self.weighting == "none":
            unused = f"{self.complete} rows are complete: the others are not used."
            return unused if self.complete < (self.sampled or self.rows) else ""
        weights = "weighted by the chances in the log"
        if self.weighting == "raked":
            weights = (
                "weighted to look like all rows; that they differ in nothing else is assumed, also "
                "where earlier answers decided what was asked"
            )
        return (
            f"{self.complete} rows are complete: policies are found on them, {weights}. They say "
            f"as much as {self.effective or self.complete:.0f} rows of equal weight."
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """What all policies of a ladder share: all that is needed to decide."""

    spec: CascadeSpec
    tables: Tables
    tradeoffs: Floats  # (P,), rising; of thresholds, the thresholds
    full_cost: float  # what the full model costs per input, in the cascade's unit
    record: FitRecord
    measure: Measure
    unit: float  # what a loss of 1 is in the trace's unit
    # Whether policies are thresholds on the confidence, set before any row was seen
    thresholds: bool
    # How answers are compared and where confidences come from: serving by another rule is refused
    compare: Mapping[str, str]

    @classmethod
    def of(
        cls,
        trace: Trace,
        tables: Tables,
        tradeoffs: Floats,
        record: FitRecord,
        *,
        thresholds: bool = False,
    ) -> Fitted:
        """Return what policies fitted to a trace share."""
        facts = full_cost(trace), record, trace.measure, trace.unit, thresholds
        return cls(trace.spec, tables, tradeoffs, *facts, answer_rules(trace.spec))

    def rule(self, number: int) -> StepPolicy | StatePolicy:
        """Return what decides at a place of the ladder; prices of tables rise."""
        return self.tables.policy(len(self.tables) - 1 - number)

    def only_node(self, rule: PolicyRule) -> str | None:
        """Return the only node that a rule ever asks; ``None`` where it may ask a second one."""
        nodes: Step = ()
        if isinstance(rule, SingleNode):
            nodes = (*rule.before, rule.node)
        elif isinstance(rule, StepPolicy):
            first = rule.ahead(())
            nodes = (*{*first}, *(second for node in first for second in rule.ahead((node,))))
        return self.spec.names[nodes[0]] if len(nodes) == 1 else None

    def alone(self, node: int, error: Floats) -> SingleNode:
        """Return what asks one node; where it fails, the others in order of these errors."""
        spec = self.spec
        required = spec.required[node]
        before = tuple(v for v in spec.asking_order() if required[v] and v != node)
        backups = [v for v in spec.asking_order() if not required[v]]
        if spec.kind == "models" and not any(spec.parents):
            backups.sort(key=lambda v: float(error[v]))
        return self.single_node(node, before, tuple(backups))

    def single_node(self, node: int, before: Step, backups: tuple[int, ...]) -> SingleNode:
        """Return what asks one node; an exit costs all that it passes."""
        spec, costs = self.spec, np.array(self.spec.costs, float)
        if spec.kind == "exits" and not spec.asks_each:
            costs[node] += spec.reach[:node].sum()
        return SingleNode(spec.names, costs, node, before, backups)

    def read(self, trace: Trace) -> SeenRows:
        """Return rows as policies see them."""
        require_trace(trace, "a replay")
        if trace.names != self.spec.names:
            verifies = any(node.verify_cost is not None for node in trace.spec.nodes)
            raise ArgumentError(
                f"the policy was fitted for {', '.join(self.spec.names)}, and the trace has "
                f"{', '.join(trace.names)}: use the same cascade.toml for both"
                f"{'; trace.with_verification()' if verifies else ''}"
            )
        prior, costs = self.of_inputs(trace.prompt, trace.inputs, len(trace))
        scores = trace.confidence
        if isinstance(self.tables, StepTables) and self.tables.belief.reads == "margin":
            if trace.margin is None:
                raise ArgumentError(
                    "the policy reads the margins of exits, and the trace has none: add columns "
                    "<node>.margin, as ttamer.torch.trace_of does"
                )
            scores = trace.margin
        return SeenRows(self, Seen(scores, self._codes(trace), prior), costs)

    def of_inputs(
        self, prompt: Column | None, inputs: Mapping[str, Column], count: int
    ) -> tuple[Floats | None, Floats | None]:
        """Return the log-odds of errors and the costs of rows, (T, n) each; ``None`` if not used.

        A row of which nothing is known that policies read has the mean log-odds and costs.
        """
        prior = self.tables.prior if isinstance(self.tables, StepTables) else None
        if prior is None or prior.spec is None:
            return None, None
        odds, costs = (np.tile(mean, (count, 1)) for mean in (prior.base, self.tables.costs))
        columns = dict(inputs) if prompt is None else {**inputs, "prompt": prompt}
        columns = {name: columns[name] for name in prior.spec.names if name in columns}
        present = np.zeros(count, bool)
        for column in columns.values():
            present |= [not (v is None or (is_number(v) and v != v)) for v in column]
        rows = np.flatnonzero(present)
        if rows.size:
            stated = {name: [column[t] for t in rows.tolist()] for name, column in columns.items()}
            odds[rows], costs[rows] = prior(prior.spec.rows(stated))
        return odds, costs

    def _codes(self, trace: Trace) -> Ints | None:
        """Return predictions in the belief's codes; new classes get new ones."""
        if trace.prediction is None or not isinstance(self.tables, StepTables):
            return None
        classes = self.tables.belief.classes  # perhaps none: texts that agree still count
        code_of = self.tables.belief.code_of
        codes = [code_of.get(text, len(classes) + new) for new, text in enumerate(trace.classes)]
        return np.array([*codes, -1], np.intp)[trace.prediction]


@dataclass(frozen=True, eq=False)
class SeenRows:
    """Rows of a trace as the policies of a fit see them; several policies share the work."""

    fitted: Fitted
    answers: Seen
    costs: Floats | None = None  # (T, n): what inputs predict

    def play(self, rule: PolicyRule) -> Played:
        """Return what a rule does."""
        if isinstance(rule, StepPolicy):
            return play(rule, self._view, self.costs)
        return rule.play(self.answers)

    @cached_property
    def _view(self) -> View:
        assert isinstance(self.fitted.tables, StepTables)  # noqa: S101 - its policies are
        return self.fitted.tables.belief.view(self.answers)


def first_parents(spec: CascadeSpec) -> tuple[int, ...]:
    """Return by node one that must have answered before it, -1 for none; empty for exits."""
    if spec.kind == "exits":
        return ()
    return tuple(nodes[0] if nodes else -1 for nodes in spec.parents)


def shown_error(value: float, measure: Measure, *, digits: int = 2) -> str:
    """Return an error as a percentage with these digits, or a mean loss as a number.

    >>> shown_error(0.0412, "error"), shown_error(41.23456, "mean loss")
    ('4.12%', '41.23')
    """
    return percent(value, digits=digits) if measure == "error" else f"{value:.4g}"
