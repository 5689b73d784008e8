"""The best chain of separate models: any subset, a threshold on the calibrated chance at each.

All subsets are tried with all common thresholds, exactly: at one threshold a row matters only
through the nodes that would stop there, a pattern of n bits, so rows are counted by pattern and
each subset is scored on the counts. For each price the best few subsets are then tuned with one
threshold per node, beginning from their best common one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.calibration import Calibrated
from ttamer.baselines.rules import (
    RuleScorer,
    StopRule,
    Unsuitable,
    plain,
    separate_models,
    sweep_prices,
    walk_of,
)
from ttamer.baselines.threshold import common_thresholds, descend
from ttamer.fitting.replay import Setting
from ttamer.trace.losses import Losses
from ttamer.trace.trace import Trace


class Chain:
    """Chains in the walking order, for a range of prices."""

    name = "chain"
    max_nodes = longest = 10
    """Of so many nodes all subsets are tried; and the most nodes of one chain."""
    tuned = 6
    """So many subsets are tuned for each price."""

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the chains on the envelope."""
        walk = walk_of(trace)
        if trace.spec.asks_each:
            raise Unsuitable(
                "the nodes are exits of one network, where it is the same as calibrated"
            )
        separate_models(trace.spec)
        if len(trace.spec) > self.max_nodes:
            raise Unsuitable(
                f"it tries every subset of the nodes, at most {self.max_nodes}; "
                f"there are {len(trace.spec)}"
            )
        scorer = RuleScorer.of(trace)
        score = Calibrated.fit(trace, scorer.wrong)
        common = common_thresholds(trace, score, np.append(walk, 0))
        table = chain_table(trace, scorer.wrong, score, common)
        too_long = np.array([len(subset) > self.longest for subset in table.subsets])
        levels = [c.level(trace.confidence[:, v]) for v, c in enumerate(score.curves)]

        def solve(price: float) -> Setting:
            value = table.errors + price * table.costs
            value[:, too_long] = np.inf
            best = value.argmin(axis=0)  # the best common threshold of each subset
            few = min(self.tuned, int((~too_long).sum()))
            ranked = np.argsort(value.min(axis=0), kind="stable")[:few]
            tuned = [tune(table.subsets[s], float(common[best[s]]), price) for s in ranked]
            _, walk, thresholds = min(tuned, key=lambda chain: chain[0])
            knob = {
                "price": price,
                "nodes": [trace.names[node] for node in walk],
                "thresholds": [plain(cut) for cut in thresholds],
            }
            return Setting(knob, StopRule(score, walk, thresholds))

        def tune(
            walk: NDArray[np.intp], common: float, price: float
        ) -> tuple[float, NDArray[np.intp], NDArray[np.float64]]:
            values = [score.curves[node].values for node in walk[:-1]]
            begin = [int(np.searchsorted(v, common)) for v in values]
            losses = list((scorer.wrong[:, walk] + price * np.cumsum(trace.costs[:, walk], 1)).T)
            mine = [levels[node] for node in walk[:-1]]
            cuts, loss = descend(mine, [len(v) for v in values], losses, begin)
            ends = [np.append(v, np.inf)[cut] for v, cut in zip(values, cuts, strict=True)]
            return loss, walk, np.array(ends)

        return sweep_prices(trace, solve)


class Pairwise(Chain):
    """The pairwise envelope: the best chain of one or two models for each price."""

    name = "pairwise"
    longest = 2


@dataclass(frozen=True, eq=False)
class ChainTable:
    """Every chain at every common threshold."""

    subsets: list[NDArray[np.intp]]
    """The nodes of each chain, in walking order."""
    costs: NDArray[np.float64]
    """Shape (thresholds, chains): mean cost."""
    errors: NDArray[np.float64]
    """Shape (thresholds, chains)."""


def chain_table(
    trace: Trace,
    wrong: Losses,
    score: Calibrated,
    thresholds: NDArray[np.float64],
) -> ChainTable:
    """Return cost and error of every chain the cascade allows; bits are steps of the walk."""
    walk, count, rows = walk_of(trace), len(trace.spec), len(trace)
    masks = np.arange(1 << count)
    bits = (masks[:, np.newaxis] >> np.arange(count)) & 1  # (masks, n)
    needs = trace.spec.required[np.ix_(walk, walk)]
    # A parent missing from a subset that holds its child: no chain.
    lacks = (bits @ needs.astype(int) > 0) & (bits == 0)
    chains = masks[(masks > 0) & ~lacks.any(axis=1)]
    lowest = np.append(0, bits[1:].argmax(axis=1))
    highest = np.append(0, count - 1 - bits[1:, ::-1].argmax(axis=1))
    chance = np.stack([score(trace, int(node)) for node in walk], axis=1)
    costs, errors = np.empty((2, len(thresholds), len(chains)))
    for number, cut in enumerate(thresholds):
        pattern, group = np.unique((chance >= cut) @ (1 << np.arange(count)), return_inverse=True)
        sums = [np.bincount(group, wrong[:, v], len(pattern)) for v in walk]
        wrongs = np.stack(sums, axis=1)
        spent = np.stack([np.bincount(group, trace.costs[:, v], len(pattern)) for v in walk], 1)
        hit = chains[:, np.newaxis] & pattern  # nodes that would stop and belong to the chain
        answer = np.where(hit > 0, lowest[hit], highest[chains][:, np.newaxis])
        asked = chains[:, np.newaxis] & ((2 << answer) - 1)
        patterns = np.arange(len(pattern))
        errors[number] = wrongs[patterns, answer].sum(axis=1) / rows
        costs[number] = (spent @ bits.T)[patterns, asked].sum(axis=1) / rows
    subsets = [walk[bits[chain] == 1] for chain in chains]
    return ChainTable(subsets, costs, errors)
