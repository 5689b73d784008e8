"""Our own fits as families, beside the baselines.

- ``ttamer``: the default fit.
- ``paper``: ``belief="none"``, the paper as written; with target ``"last"`` the loss of the last
  node is 0, as it is right by definition.
- ``paper-literal``: with target ``"last"``, the paper word for word: the last node too loses one
  minus its confidence. By name only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttamer.baselines import FAMILIES, fit_families, known_names
from ttamer.baselines.rules import Unsuitable
from ttamer.errors import ArgumentError
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.models import ConfidenceModel
from ttamer.fitted.replay import Family, Setting
from ttamer.fitting.plans import fit
from ttamer.problem.problem import Node, Problem
from ttamer.solvers import solve_ladder
from ttamer.trace.trace import Trace


class FitFamily:
    """The policies of one kind of fit, one per tradeoff."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self._options = options

    def fit(self, trace: Trace) -> list[Setting]:
        """Fit a ladder; its policies are the settings: their tradeoffs are chosen on no rows."""
        try:
            ladder = fit(trace, **self._options)
        except ArgumentError as error:
            raise Unsuitable(str(error)) from None
        return _settings(ladder)


def _settings(ladder: FittedLadder) -> list[Setting]:
    """Return the policies of a ladder as settings of a family."""
    return [Setting({"tradeoff": policy.tradeoff}, policy) for policy in ladder]


@dataclass(eq=False)
class _Made:
    """The policies of a fit that has been made already."""

    name: str
    ladder: FittedLadder

    def fit(self, trace: Trace) -> list[Setting]:
        """Return its policies as settings."""
        del trace
        return _settings(self.ladder)


class LiteralFamily:
    """The paper's policies with target ``"last"``, where no loss is 0 by definition."""

    name = "paper-literal"

    def fit(self, trace: Trace) -> list[Setting]:
        """Fit as ``paper``, then solve again with the last node's own confidences."""
        if trace.spec.target != "last":
            raise Unsuitable('the target is "label", and "paper" is the paper as written')
        try:
            ladder = fit(trace, belief="none")
        except ArgumentError as error:
            raise Unsuitable(str(error)) from None
        model, problem, last = ladder.fitted, ladder.problem, len(trace.names) - 1
        if not isinstance(model, ConfidenceModel):
            raise TypeError("belief none gives a model of confidences")
        states = model.quantiser.states(trace.confidence)[:, last]
        count = len(problem.nodes[problem.number[trace.names[last]]].losses)
        seen = np.bincount(states, minlength=count)
        sums = np.bincount(states, weights=trace.confidence[:, last], minlength=count)
        means = np.where(seen > 0, sums / np.maximum(seen, 1), trace.confidence[:, last].mean())
        own = Node(trace.names[last], np.clip(1 - means, 0.0, 1.0))
        nodes = tuple(own if node.name == own.name else node for node in problem.nodes)
        literal = Problem(problem.moves, nodes, problem.edges)
        solved = solve_ladder(literal, [policy.tradeoff for policy in ladder])
        return _settings(FittedLadder.of(solved, model))


# Families that are fitted only where they are asked for by name.
BY_NAME: dict[str, Family] = {"paper-literal": LiteralFamily()}
OURS: dict[str, Family] = {
    "ttamer": FitFamily("ttamer"),
    "paper": FitFamily("paper", belief="none"),
}

# What each family does, to be read after its name.
SUMMARIES: dict[str, str] = {
    "ttamer": "stops, goes on and returns the answer by calibrated beliefs about all answers",
    "paper": "is the paper as written: one minus the confidence is the loss of an answer",
    "paper-literal": "is the paper word for word, where the last node is right by definition",
    "always-first": "asks the first node alone",
    "always-last": "asks the last node alone",
    "always-best": "asks the node alone that errs least on the rows fitted to",
    "threshold": "stops at the first node whose confidence reaches one number",
    "threshold-per-exit": "stops at the first node whose confidence reaches a number of its own",
    "entropy": "stops at the first node whose entropy is at most one number",
    "margin": "stops at the first node whose margin over the second class reaches one number",
    "patience": "stops once some nodes in a row, two for instance, have given the same answer",
    "calibrated": "stops at the first node whose calibrated chance of being right reaches a number",
    "chain": "asks some of the nodes in order, each with a threshold on its calibrated chance",
    "no-recall": "goes on by calibrated chances, and returns the answer of the last node asked",
    "frugalml": "asks one node, and for each class that it predicts perhaps another (FrugalML)",
    "routing": "asks the node whose answer is worth most, one step ahead (cascade routing)",
    "oracle": "uses the labels: the cheapest way to a right answer, a bound that no rule reaches",
}


def family_names(names: Iterable[str]) -> list[str]:
    """Return the names of families to fit as a list, each once; refuse others before any fit.

    >>> family_names(["ttamer", "chain", "paper-literal"])
    ['ttamer', 'chain', 'paper-literal']
    """
    return known_names(names, {**OURS, **FAMILIES, **BY_NAME})


def fit_all(
    trace: Trace,
    names: Iterable[str] | None,
    *,
    ladder: FittedLadder | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, list[Setting]], dict[str, str]]:
    """Fit our families and the baselines: settings by name, and why others were left out.

    ``ladder`` is the default fit, where it has been made already.
    """
    every = {**OURS, **FAMILIES}
    names = list(every) if names is None else names
    if ladder is not None:
        every["ttamer"] = _Made("ttamer", ladder)
    return fit_families(trace, names, families={**every, **BY_NAME}, progress=progress)


def uses_labels(family: str) -> bool:
    """Return whether a family uses the labels of the rows it decides on: a bound, not a rival.

    >>> uses_labels("oracle"), uses_labels("threshold")
    (True, False)
    """
    return bool(getattr(FAMILIES.get(family), "uses_labels", False))
