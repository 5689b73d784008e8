"""The best chain of separate models: any subset, a threshold on the calibrated chance at each.

All subsets are tried with all common thresholds, exactly: at one threshold a row matters only
through the nodes that would stop there, so rows with the same such nodes are counted together. For
each price the best few subsets are then tuned with one threshold per node, beginning from their
best common one.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import (
    RuleScorer,
    StopRule,
    Unsuitable,
    plain,
    require_models,
    sweep_prices,
    walk_of,
)
from ttamer.baselines.threshold import Calibrated, Descent, common_thresholds
from ttamer.fitting.replay import Setting
from ttamer.trace.trace import Trace


class Chain:
    """Chains in the order of asking, for a range of prices."""

    name = "chain"
    longest = 10  # the most nodes of one chain
    max_nodes = 10  # the most nodes of the cascade: of so many all subsets are tried
    tuned = 6  # so many subsets are tuned for each price

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the chains on the envelope."""
        walk = walk_of(trace)
        require_models(trace.spec)
        if len(walk) > self.max_nodes:
            raise Unsuitable(
                f"it tries every subset of at most {self.max_nodes} nodes, and there are "
                f"{len(walk)}: take the best of them with trace.restrict(names)"
            )
        scorer = RuleScorer(trace)
        score = Calibrated.fit(trace)
        # As if the last node could stop too: it does in chains where it is not the last.
        common = common_thresholds(trace, score, np.append(walk, 0))
        subsets = chains_of(trace, self.longest)
        errors, costs = chain_table(scorer, subsets, score, common)
        chances = np.stack([score(trace, node) for node in range(len(walk))], axis=1)
        descent = Descent(scorer, chances, [curve.values for curve in score.curves])

        def solve(price: float) -> Setting:
            value = errors + price * costs
            cuts = common[value.argmin(axis=0)]  # the best common threshold of each subset
            ranked = np.argsort(value.min(axis=0), kind="stable")[: self.tuned]
            ends = [(*descent.tuned(subsets[k], price, cuts[k]), k) for k in ranked.tolist()]
            _, thresholds, best = min(ends, key=lambda end: end[0])
            knob = {
                "price": price,
                "nodes": [trace.names[node] for node in subsets[best]],
                "thresholds": [plain(cut) for cut in thresholds],
            }
            return Setting(knob, StopRule(score, subsets[best], thresholds))

        return sweep_prices(trace, solve)


class Pairwise(Chain):
    """The pairwise envelope: the best chain of one or two models for each price."""

    name = "pairwise"
    longest = 2
    max_nodes = 60


def chains_of(trace: Trace, longest: int) -> list[NDArray[np.intp]]:
    """Return the chains that the cascade allows: their nodes in the order of asking.

    Of equals the first counts: one without the most expensive nodes comes before one with them.
    """
    walk, required = walk_of(trace), trace.spec.required
    sizes = range(1, min(longest, len(walk)) + 1)
    steps = [chain for size in sizes for chain in combinations(range(len(walk)), size)]
    steps.sort(key=lambda chain: sum(1 << step for step in chain))
    chains = [walk[list(chain)] for chain in steps]
    # A chain that lacks a parent of one of its nodes is none.
    return [chain for chain in chains if required[chain].any(axis=0).sum() == len(chain)]


def chain_table(
    scorer: RuleScorer,
    chains: list[NDArray[np.intp]],
    score: Calibrated,
    thresholds: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return error and mean cost of chains at common thresholds, shape (thresholds, chains)."""
    trace, bits = scorer.trace, np.arange(len(scorer.trace.spec))
    ends = np.array([len(chain) - 1 for chain in chains])
    # Shape (steps, chains); behind its end a chain has a node that is never asked.
    nodes = np.array([np.pad(chain, (0, ends.max() + 1 - len(chain))) for chain in chains]).T
    chance = np.stack([score(trace, node) for node in bits.tolist()], axis=1)
    errors, costs = np.zeros((2, len(thresholds), len(chains)))
    for number, cut in enumerate(thresholds):
        pattern, group = np.unique((chance >= cut) @ (1 << bits), return_inverse=True)
        sure = (pattern[:, np.newaxis] >> bits) & 1 == 1
        wrong, spent = (
            np.stack([np.bincount(group, column, len(pattern)) for column in table.T], axis=1)
            for table in (scorer.wrong, trace.costs)
        )
        running = np.ones((len(pattern), len(chains)), bool)
        for step, node in enumerate(nodes):
            costs[number] += np.einsum("pc,pc->c", spent[:, node], running)
            stops = running & (sure[:, node] | (ends == step))
            errors[number] += np.einsum("pc,pc->c", wrong[:, node], stops)
            running &= ~stops
    return errors / len(trace), costs / len(trace)
