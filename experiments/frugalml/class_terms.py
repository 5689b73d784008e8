"""What the terms for predicted classes are worth: the same fits with and without, on many splits.

    python experiments/frugalml/class_terms.py FOLDER [--splits 9]     # two minutes

``FOLDER`` as import_traces.py writes it. Each split halves the rows by
``numpy.random.default_rng(split).permutation``, as ``ttamer bench`` does with split 0. Printed are
means over splits of saving (at the best service's accuracy), accuracy (at its price) and area, and
the standard error of each difference.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from ttamer.evaluation.benchmark import find_traces
from ttamer.evaluation.frontiers import frontier
from ttamer.fitting import regressions, subset_search
from ttamer.trace.trace import Trace


def measured(job: tuple[Path, Path, int, bool]) -> tuple[float, float, float]:
    """Return saving and accuracy in points, and the area, of one fit."""
    path, cascade, split, with_terms = job
    trace = Trace.read(path, cascade)
    order = np.random.default_rng(split).permutation(len(trace))
    half = len(trace) // 2

    def known(rows: Trace) -> bool:
        return with_terms and belief_has_terms(rows)

    belief_has_terms = regressions.has_class_terms
    with (
        patch.object(regressions, "has_class_terms", known),
        patch.object(subset_search, "has_class_terms", known),
    ):
        found = frontier(
            trace.take(order[:half]), trace.take(order[half:]), families=["ttamer"], resamples=0
        ).to_dict()
    ours, price = found["families"]["ttamer"], found["reference"]["cost"]
    saving = 1 - ours["cost_at_error"]["+0"] / price
    return 100 * saving, 100 * (1 - ours["error_at_reference_cost"]), ours["area"]


def main() -> None:
    """Fit, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=9)
    args = parser.parse_args()
    traces = list(find_traces(args.folder))
    jobs = [
        (path, cascade, split, with_terms)
        for (path, cascade), split, with_terms in product(traces, range(args.splits), (False, True))
    ]
    with ProcessPoolExecutor(2) as workers:
        found = np.array(list(workers.map(measured, jobs)))
    without, terms = found.reshape(len(traces), args.splits, 2, 3).transpose(2, 0, 1, 3)
    gain = terms - without
    gain[..., 2] = 100 * (terms[..., 2] / without[..., 2] - 1)
    print("| | saving | its spread | saving +- | accuracy +- | area, % +- |")
    print("|---|---|---|---|---|---|")
    rows = [(path.stem, without[k], terms[k], gain[k]) for k, (path, _) in enumerate(traces)]
    for name, before, after, more in rows:
        print(f"| {name} | {before[:, 0].mean():.1f} to {after[:, 0].mean():.1f} "
              f"| {after[:, 0].std(ddof=1):.1f} | {summary(more)} |")  # fmt: skip
    print(f"| all | | | {summary(gain.reshape(-1, 3))} |")


def summary(gain: np.ndarray) -> str:
    """Return three means and their standard errors, as cells of a table."""
    errors = gain.std(axis=0, ddof=1) / len(gain) ** 0.5
    pairs = zip(gain.mean(axis=0), errors, strict=True)
    return " | ".join(f"{mean:+.2f} +- {error:.2f}" for mean, error in pairs)


if __name__ == "__main__":
    main()
