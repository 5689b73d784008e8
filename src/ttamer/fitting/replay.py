"""Replay: what a rule would have done on every row of a trace.

A *rule* decides row by row from the answers of the nodes: a fitted policy, a threshold, an oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.trace.trace import Trace

Floats = NDArray[np.float64]
SLACK = 1e-9  # a limit on costs counts as met up to this relative error of their sums


@dataclass(frozen=True, eq=False)
class Played:
    """What a rule did on each of T rows.

    >>> played = Played(np.array([0, 1]), np.array([[True, False], [True, True]]), np.array([0, 1]))
    >>> played.asked.sum(axis=1).tolist()  # the number of nodes asked, per row
    [1, 2]
    """

    answer: NDArray[np.intp]
    """Shape (T,): the number of the node whose answer is returned; -1 where none came."""
    asked: NDArray[np.bool_]
    """Shape (T, n): which nodes it asked."""
    last: NDArray[np.intp]
    """Shape (T,): the number of the node it asked last."""

    def __post_init__(self) -> None:
        rows = np.arange(len(self.answer))
        was_asked = self.asked[rows, self.answer] | (self.answer < 0)
        if not was_asked.all():
            row = int(np.argmin(was_asked))
            raise ArgumentError(
                f"row {row}: the rule returns the answer of node {self.answer[row]}, "
                "which it did not ask"
            )


class Rule(Protocol):
    """A rule that decides row by row.

    A rule that asks the first node only::

        class FirstNode:
            def play(self, trace: Trace) -> Played:
                first = np.zeros(len(trace), np.intp)
                return Played(first, asked_up_to(first, len(trace.names)), first)
    """

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace.

        Args:
            trace: T rows of the cascade.

        Returns:
            The nodes asked and the node that answers.
        """
        ...


@dataclass(frozen=True, eq=False)
class Setting:
    """One rule of a family, and the knob that gave it.

    >>> from ttamer import datasets
    >>> from ttamer.baselines import FAMILIES
    >>> [setting] = FAMILIES["always-first"].fit(datasets.load("minilm-imdb").take(slice(100)))
    >>> setting.knob
    {'node': 'layer1'}
    """

    knob: dict[str, Any]
    """Plain values, for people and for JSON."""
    rule: Rule


class Family(Protocol):
    """A kind of rule with a knob that trades error against cost.

    A family with one setting::

        class First:
            name = "first"

            def fit(self, trace: Trace) -> list[Setting]:
                return [Setting({"node": trace.names[0]}, FirstNode())]
    """

    name: str

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the settings worth having, every knob chosen on this trace alone.

        Args:
            trace: The rows to fit to.

        Returns:
            The settings, each with its rule.
        """
        ...


def asked_up_to(last: NDArray[np.intp], nodes: int) -> NDArray[np.bool_]:
    """Return, shape (T, nodes), who was asked when nodes are asked in order up to ``last``.

    >>> asked_up_to(np.array([0, 2]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return np.less_equal(np.arange(nodes), last[:, np.newaxis])


def paid(asked: NDArray[np.bool_], trace: Trace) -> NDArray[np.float64]:
    """Return, shape (T,), what each row paid, given the nodes asked, shape (T, n).

    A node asked costs what the row records, an exit that was passed its cost of reaching.

    >>> from ttamer import CascadeSpec
    >>> spec = CascadeSpec.of({"a": 3.0, "b": 5.0}, kind="exits", reach={"a": 2.0})
    >>> trace = Trace(spec, np.zeros((3, 2)))
    >>> paid(np.array([[True, False], [True, True], [False, True]]), trace).tolist()
    [3.0, 8.0, 7.0]
    """
    if trace.cost is None:
        cost = asked @ trace.spec.costs
    else:  # NaN where a node asked has no cost
        cost = np.where(asked, trace.cost, 0.0).sum(axis=1)
    if trace.spec.kind == "exits" and not trace.spec.asks_each:
        reached = np.logical_or.accumulate(asked[:, ::-1], axis=1)[:, ::-1]
        cost = cost + (reached & ~asked) @ trace.spec.reach
    return np.asarray(cost, np.float64)


def latency_of(asked: NDArray[np.bool_], trace: Trace) -> NDArray[np.float64] | None:
    """Return, shape (T,), how long each row took: nodes are asked one after another.

    ``None`` where the trace has no latency of a node that was asked.
    """
    if trace.latency is None:
        return None
    total = np.where(asked, trace.latency, 0.0).sum(axis=1)
    return None if np.isnan(total).any() else total


def alone_paid(trace: Trace) -> NDArray[np.float64]:
    """Return, shape (T, n), what each node's answer costs by itself, row by row.

    >>> from ttamer import CascadeSpec
    >>> spec = CascadeSpec.of({"e1": 1.0, "e2": 2.0}, kind="exits")
    >>> alone_paid(Trace(spec, np.zeros((1, 2)))).tolist()
    [[1.0, 3.0]]
    """
    shape = trace.confidence.shape
    return np.stack(
        [paid(np.broadcast_to(asked, shape), trace) for asked in trace.spec.required], axis=1
    )


def outcomes(
    trace: Trace, asked: Iterable[NDArray[np.bool_]], answer: Iterable[NDArray[np.intp]]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what policies lose and pay on R rows, shape (P, R); each node by itself, (R, n).

    ``asked`` (R, n) and ``answer`` (R,) are of each policy. What a row lacks counts as 0.
    """
    rows, loss = np.arange(len(trace)), np.nan_to_num(trace.loss)
    lost = np.column_stack([loss, np.ones(len(loss))])  # no answer, -1, loses all there is to lose
    returned = np.stack([lost[rows, nodes] for nodes in answer])
    cost = np.stack([np.nan_to_num(paid(nodes, trace)) for nodes in asked])
    return returned, cost, loss, np.nan_to_num(alone_paid(trace))


def full_cost(trace: Trace) -> float:
    """Return what the full model costs per row of a trace; 1 where everything is free.

    It is the last exit of a network and all before it, or the most expensive model.

    >>> from ttamer import CascadeSpec
    >>> full_cost(Trace(CascadeSpec.of({"small": 1.0, "large": 9.0}), [[0.5, 0.5]]))
    9.0
    """
    spec, prices = trace.spec, np.nanmean(trace.costs, axis=0)
    if spec.kind == "exits" and not spec.asks_each:
        return float(spec.answer_costs(prices)[-1]) or 1.0
    return float(prices.sum() if spec.kind == "exits" else prices.max()) or 1.0
