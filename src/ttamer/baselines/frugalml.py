"""FrugalML (Chen, Zaharia and Zou, 2020): a base service, and an add-on where it is not sure.

The base is asked on every row. For each label it may predict there is a threshold and an add-on:
at or below the threshold the add-on is asked, and its answer is returned.

For a price, a base and a label, calling add-on v on the rows up to a confidence changes
``error + price * cost`` by a running sum over these rows in order of confidence; its least value
over all confidences and add-ons is the optimum, so each strategy here is exact on the fit rows.
(FrugalML may also draw its base at random; every family may mix two settings.)
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
    require_models,
    sweep_prices,
)
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class FrugalRule:
    """Ask the base; by the label it predicts, perhaps another. Group 0 is every other label."""

    base: int
    groups: Mapping[str, int]  # the group of a label, by its text: codes differ from file to file
    # Per group: at or below this confidence of the base the add-on is asked.
    cuts: NDArray[np.float64]
    addons: NDArray[np.intp]  # per group

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        group = group_rows(trace, self.base, self.groups)
        asks_addon = trace.confidence[:, self.base] <= self.cuts[group]
        answer = np.where(asks_addon, self.addons[group], self.base)
        asked = np.zeros((len(trace), len(trace.spec)), bool)
        asked[:, self.base] = True
        asked[np.arange(len(trace)), answer] = True
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
        trace, self.base = scorer.trace, base
        predicted = predictions_of(trace)[:, base]
        count = np.bincount(predicted[predicted >= 0], minlength=len(trace.classes))
        labels = [trace.classes[code] for code in np.flatnonzero(count >= max(min_rows, 1))]
        self.groups = {label: group for group, label in enumerate(labels, start=1)}
        of_row = group_rows(trace, base, self.groups)
        members = [np.flatnonzero(of_row == group) for group in range(len(labels) + 1)]
        if len(members[0]) < min_rows:
            # Too few to go by (or none, and then any label may still come): take all rows.
            members[0] = np.arange(len(trace))
        self.changes = [self._changes(scorer, rows) for rows in members]

    def _changes(self, scorer: RuleScorer, rows: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        """Return each confidence, and what asking each node up to it changes in error and cost."""
        confidence = scorer.trace.confidence[rows, self.base]
        order = np.argsort(confidence, kind="stable")
        confidence, rows = confidence[order], rows[order]
        # Rows of one confidence are asked together: the sums at its last row count.
        last = np.append(confidence[1:] != confidence[:-1], True)
        worse = scorer.wrong[rows].astype(float) - scorer.wrong[rows, self.base, np.newaxis]
        sums = [np.cumsum(table, axis=0)[last] for table in (worse, scorer.trace.costs[rows])]
        return [confidence[last], *sums]

    def strategy(self, price: float) -> FrugalRule:
        """Return the strategy of least error + price * cost."""
        cuts, addons = [], []
        for confidence, worse, spent in self.changes:
            change = worse + price * spent
            change[:, self.base] = np.inf
            addon = int(change.min(axis=0).argmin())
            end = int(change[:, addon].argmin())
            gains = change[end, addon] < -1e-9  # more than rounding
            cuts.append(confidence[end] if gains else -np.inf)
            addons.append(addon)
        return FrugalRule(self.base, self.groups, np.array(cuts), np.array(addons))


@dataclass
class FrugalML:
    """The best strategy over all bases, for a range of prices."""

    name: str = "frugalml"
    # At least 1. A label predicted on fewer rows shares one strategy with the others like it.
    min_rows: int = 20

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the strategies on the envelope."""
        require_models(trace.spec)
        if any(trace.spec.parents):
            raise Unsuitable("some nodes come after others, and it may ask any two of them")
        predictions_of(trace)
        scorer = RuleScorer(trace)
        bases = [Base(scorer, base, self.min_rows) for base in range(len(trace.spec))]

        def solve(price: float) -> Setting:
            def objective(rule: FrugalRule) -> float:
                cost, error = scorer.score(rule)
                return error + price * cost

            best = min((base.strategy(price) for base in bases), key=objective)
            return Setting({"price": price, **best.knob(trace.names)}, best)

        return sweep_prices(trace, solve)
