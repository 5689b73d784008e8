"""FrugalML (Chen, Zaharia and Zou, 2020): a base service, and an add-on where it is not sure.

The base is asked on every row. For each label it may predict there is a threshold and an add-on:
at or below the threshold the add-on is asked, and its answer is returned.

For a price, a base and a label, calling add-on v on the rows up to a confidence changes
``error + price * cost`` by a running sum over these rows in order of confidence; its least value
over all confidences and add-ons is the optimum, so each strategy here is exact on the fit rows.
(FrugalML may also draw its base at random; every family may mix two settings.)
Cost: O(T n) for each price and base, after sorting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import (
    RuleScorer,
    Unsuitable,
    plain,
    predictions_of,
    separate_models,
    sweep_prices,
)
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class FrugalRule:
    """Ask the base; by the label it predicts, perhaps another. Group 0 is every other label."""

    base: int
    groups: Mapping[str, int]
    """The group of a label, by its text: codes differ from file to file."""
    cuts: NDArray[np.float64]
    """Per group: at or below this confidence of the base the add-on is asked."""
    addons: NDArray[np.intp]
    """Per group."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        rows = np.arange(len(trace))
        group = group_rows(trace, self.base, self.groups)
        more = trace.confidence[:, self.base] <= self.cuts[group]
        answer = np.where(more, self.addons[group], self.base)
        asked = np.zeros((len(trace), len(trace.spec)), bool)
        asked[:, self.base] = True
        asked[rows, answer] = True
        return Played(answer, asked, answer)

    def knob(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the strategy as plain values: the add-on of each label, up to which confidence."""

        def words(group: int) -> dict[str, Any] | None:
            cut = plain(self.cuts[group])
            return None if cut is None else {"at_most": cut, "ask": names[self.addons[group]]}

        by_label = {label: words(group) for label, group in self.groups.items()}
        return {"base": names[self.base], "labels": by_label, "other_labels": words(0)}


def group_rows(trace: Trace, base: int, groups: Mapping[str, int]) -> NDArray[np.intp]:
    """Return, shape (T,), the group of the label that the base predicts."""
    by_code = np.array([*(groups.get(label, 0) for label in trace.classes), 0])
    return by_code[predictions_of(trace)[:, base]]  # code -1, no answer, is the last


class Base:
    """All strategies of one base, on the fit rows."""

    def __init__(self, scorer: RuleScorer, base: int, min_rows: int) -> None:
        trace, count = scorer.trace, len(scorer.trace.spec)
        self.base = base
        self.groups = _groups(trace, base, min_rows)
        group = group_rows(trace, base, self.groups)
        rows = np.lexsort((trace.confidence[:, base], group))
        if np.count_nonzero(group == 0) < min_rows:
            # Too few to go by (or none, and then any label may still come): take all rows.
            everyone = np.argsort(trace.confidence[:, base], kind="stable")
            listed = rows[group[rows] > 0]
            rows = np.concatenate([everyone, listed])
            group = np.concatenate([np.zeros(len(trace), np.intp), group[listed]])
        else:
            group = group[rows]
        sure = trace.confidence[rows, base]
        changes = (sure[1:] != sure[:-1]) | (group[1:] != group[:-1])
        ends = np.flatnonzero(np.append(changes, True))
        starts = np.searchsorted(group, np.arange(len(self.groups) + 1))
        self.cut_at = sure[ends]
        self.first = np.searchsorted(group[ends], np.arange(len(self.groups) + 1))
        self.of_end = group[ends]
        lost = scorer.wrong[rows].astype(float)
        worse = lost - lost[:, base, np.newaxis]
        self.worse = _running(worse, starts, ends, self.of_end)
        self.spent = _running(trace.costs[rows], starts, ends, self.of_end)
        self.barred = np.arange(count) == base

    def strategy(self, price: float) -> FrugalRule:
        """Return the strategy of least error + price * cost."""
        change = self.worse + price * self.spent
        change[:, self.barred] = np.inf
        lowest = np.minimum.reduceat(change, self.first, axis=0)  # (groups, n)
        addons = lowest.argmin(axis=1)
        best = lowest.min(axis=1)
        mine = change[np.arange(len(change)), addons[self.of_end]]
        hits = np.flatnonzero(mine == best[self.of_end])
        _, where = np.unique(self.of_end[hits], return_index=True)  # the least confidence of equals
        cuts = np.where(best < -1e-9, self.cut_at[hits[where]], -np.inf)
        return FrugalRule(self.base, self.groups, cuts, addons)


@dataclass
class FrugalML:
    """The best strategy over all bases, for a range of prices."""

    name: str = "frugalml"
    min_rows: int = 20
    """At least 1. A label predicted on fewer rows shares one strategy with the others like it."""

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the strategies on the envelope."""
        if trace.spec.asks_each:
            raise Unsuitable("the nodes are exits of one network, and it needs separate services")
        separate_models(trace.spec)
        if any(trace.spec.parents):
            raise Unsuitable("some nodes come after others, and it may ask any two of them")
        predictions_of(trace)
        scorer = RuleScorer.of(trace)
        bases = [Base(scorer, base, self.min_rows) for base in range(len(trace.spec))]

        def solve(price: float) -> Setting:
            rules = [base.strategy(price) for base in bases]
            points = [scorer.score(rule) for rule in rules]
            values = [error + price * cost for cost, error in points]
            best = rules[int(np.argmin(values))]
            return Setting({"price": price, **best.knob(trace.names)}, best)

        return sweep_prices(trace, solve)


def _groups(trace: Trace, base: int, min_rows: int) -> dict[str, int]:
    """Return a group from 1 on for each label the base predicts often enough."""
    predicted = predictions_of(trace)[:, base]
    count = np.bincount(predicted[predicted >= 0], minlength=len(trace.classes))
    labels = [trace.classes[code] for code in np.flatnonzero(count >= max(min_rows, 1))]
    return {label: group for group, label in enumerate(labels, start=1)}


def _running(
    values: NDArray[Any],
    starts: NDArray[np.intp],
    ends: NDArray[np.intp],
    of_end: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Return, shape (ends, n), the sum from the start of its group to each end."""
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    running: NDArray[np.float64] = total[ends + 1] - total[starts][of_end]
    return running
