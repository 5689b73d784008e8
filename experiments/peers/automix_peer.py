"""AutoMix by its own package (automix-llm), run by compare.py in an environment of its own.

    python automix_peer.py GIVEN.npz ANSWERED.npz

AutoMix decides between one small and one large model, from a verifier's confidence in the small
one's answer. The glue, which is ours: the verifier is the small model's confidence, which costs
nothing; pairs are formed of the models on the lower convex envelope of cost and error on the rows
fitted to; for each pair the POMDP meta-verifier of the package is trained on the rows fitted to,
with ``cost_constraint`` set to each of ``BANDS`` equal bands of cost between asking the small model
alone and asking both.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import combinations, pairwise

import automix
import numpy as np
import pandas as pd

BANDS = 4
BINS = 10
SMALL, LARGE, VERIFIER = "llama13b_f1", "llama70b_f1", "p_ver_13b"
"""The names of columns that the package has in its code."""


def envelope(cost: np.ndarray, error: np.ndarray) -> list[int]:
    """Return the models on the lower convex envelope, the cheapest first."""
    kept: list[int] = []
    for v in np.lexsort((error, cost)).tolist():
        if kept and error[v] >= error[kept[-1]]:
            continue
        while len(kept) > 1 and (error[kept[-1]] - error[kept[-2]]) * (
            cost[v] - cost[kept[-2]]
        ) >= (error[v] - error[kept[-2]]) * (cost[kept[-1]] - cost[kept[-2]]):
            kept.pop()
        kept.append(v)
    return kept


def frame(confidence: np.ndarray, wrong: np.ndarray, small: int, large: int) -> pd.DataFrame:
    """Return rows as the package reads them."""
    good, better = ~wrong[:, small], ~wrong[:, large]
    category = np.where(good, "GOOD", np.where(better, "NEEDY", "HOPELESS"))
    values = {SMALL: good.astype(float), LARGE: better.astype(float), "category": category}
    return pd.DataFrame(values | {VERIFIER: np.clip(confidence[:, small], 0.0, 1.0)})


def main() -> None:
    """Train on the rows fitted to, decide for the test rows, and write both times."""
    warnings.simplefilter("ignore")
    given = dict(np.load(sys.argv[1]))
    cost, wrong = given["fit_cost"].mean(axis=0), given["fit_wrong"]
    nodes, rows = wrong.shape[1], len(given["test_wrong"])
    asked, answer, fitting, deciding = [], [], 0.0, 0.0
    for small, large in combinations(envelope(cost, wrong.mean(axis=0)), 2):
        train = frame(given["fit_confidence"], wrong, small, large)
        test = frame(given["test_confidence"], given["test_wrong"], small, large)
        ends = np.linspace(cost[small], cost[small] + cost[large], BANDS + 1)
        for low, high in pairwise(ends):
            mixer = automix.Automix(
                automix.POMDP(num_bins=BINS),
                costs=[cost[small], cost[large]],
                verifier_cost=0,
            )
            begun = time.perf_counter()
            try:
                mixer.train(train, cost_constraint=(low, high))
            except ValueError:  # no setting of the package lies in this band
                continue
            fitting += time.perf_counter() - begun
            begun = time.perf_counter()
            retry = test.apply(mixer.infer, axis=1).to_numpy(bool)
            deciding += time.perf_counter() - begun
            mine = np.zeros((rows, nodes), bool)
            mine[:, small] = True
            mine[:, large] = retry
            asked.append(mine)
            answer.append(np.where(retry, large, small))
    np.savez(
        sys.argv[2], asked=np.array(asked), answer=np.array(answer), fit_seconds=fitting,
        decision_seconds=deciding,
    )  # fmt: skip


if __name__ == "__main__":
    main()
