"""What signals cost and gain: useless, weak and useful ones beside the same rows without any.

    python experiments/signals/compare.py --splits 16        # three minutes on 16 cores

For each trace and split the same rows are fitted without signals, with seven useless ones (normal
noise), with the length of the prompt (the tokens that the cheapest model is paid for), and with a
useful one: how many models are wrong on the input, with noise of its own spread, as a good estimate
of difficulty would be. Printed is the area under the lower envelope, more than without signals, on
the rows not fitted to: means over splits with standard errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np

from ttamer.evaluation.frontiers import frontier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

USELESS = 7
KINDS = ("none", "useless", "length", "useful")


def main() -> None:
    """Print one line for each trace and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="more traces, each with its cascade")
    parser.add_argument("--splits", type=int, default=16)
    parser.add_argument("--rows", type=int, default=300, help="how many rows are few")
    parser.add_argument("--few", action="store_true", help="fit to few rows only, not to half")
    parser.add_argument("--traces", nargs="+", default=list(LLMS))
    add_options(parser)
    args = parser.parse_args()
    folder = None if args.folder is None else str(args.folder)
    cases = list(product(args.traces, (args.rows,) if args.few else (0, args.rows)))
    jobs = [
        (*case, number, kind, folder)
        for number in range(args.splits)
        for case in cases
        for kind in KINDS
    ]
    found = run(area, jobs, args)
    print("| trace | rows to fit | seven useless signals | length of the prompt | a useful one |")
    print("|---|---|---|---|---|")
    for name, rows in cases:
        cells = []
        for kind in KINDS[1:]:
            more = []
            for number in range(args.splits):
                own = found.get((name, rows, number, kind, folder))
                base = found.get((name, rows, number, "none", folder))
                if own is not None and base is not None:
                    more.append(own / base - 1)
            cells.append(mean(more, "+.2%"))
        print(f"| {name} | {rows or 'half'} | {' | '.join(cells)} |")


def area(name: str, rows: int, number: int, kind: str, folder: str | None) -> float:
    """Return the area of a fit with one kind of signal, on the rows not fitted to."""
    warnings.simplefilter("ignore")
    trace = load(name, None if folder is None else Path(folder))
    rng = np.random.default_rng([number, KINDS.index(kind)])
    wrong = trace.wrong().sum(axis=1)
    signals: dict[str, np.ndarray] = {}
    if kind == "useless":
        signals = {f"noise{k}": rng.normal(size=len(trace)) for k in range(USELESS)}
    elif kind == "length":
        cheapest = int(trace.costs.mean(axis=0).argmin())
        signals = {"length": np.log(trace.costs[:, cheapest])}
    elif kind == "useful":
        signals = {"difficulty": wrong + wrong.std() * rng.normal(size=len(trace))}
    fit, test = split(dataclasses.replace(trace, inputs=signals), number, rows)
    return frontier(fit, test, families=["ttamer"], resamples=0).area("ttamer")


if __name__ == "__main__":
    main()
