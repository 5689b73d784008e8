"""Whether an allowance for error holds on new rows, with standard errors to spare and without.

    PYTHONPATH=src python experiments/early_exit/caution.py [mpnet-imdb smollm2-imdb] [--traces DIR]

The traces that come with the package, or those that tables.py wrote beside its results, split at
random into 5,000 rows to fit and 5,000 to test, and the times that tables.py measured
(results/table-NAME.json; bf16, CUDA graphs, batches of 32), for the sets of ramps that were best
there and for all ramps. Of the policies within the allowance, as
``exits.recommend`` estimates it, some of them fitted to the network's answers, the fastest is
chosen. Prints per allowance and caution: points of error more than the network on the test rows,
mean and standard error over splits; in how many splits the allowance holds; and the speed-up
predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import ttamer as tt
from ttamer.torch import tuning
from ttamer.torch.profiling import Profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

BATCH = 32
LEVELS, CAUTIONS = (0.0, 0.01), (0.0, 1.0, 2.0)


def main() -> None:
    """Print the lines of each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["mpnet-imdb", "smollm2-imdb"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--traces", type=Path, help="a folder with what tables.py traced")
    args = parser.parse_args()
    for name in args.names:
        path = Path(__file__).parent / "results" / f"table-{name}.json"
        report = json.loads(path.read_text("utf-8"))
        stored = report["profiles"]["bf16 graphs"]
        measured = Profile(**{
            key: tuple(map(tuple, value)) if key in ("segments", "asking")
            else tuple(value) if isinstance(value, list) else value
            for key, value in stored.items()
        })  # fmt: skip
        if args.traces is None:
            trace = traces.load(name)
        else:
            trace = tt.Trace.read(args.traces / f"table-{name}.bf16.trace.npz")
        trace = trace.restrict(measured.names)
        sets = [tuple(ramps) for ramps in report["sets"][str(BATCH)]]
        sets.append(tuning.many_ramps(len(measured.names) - 1))
        found = [chosen(trace, measured, sets, seed) for seed in range(args.splits)]
        for key in found[0]:
            more, speed = np.array([each[key] for each in found]).T
            held = int((more <= 100 * key[0] + 1e-9).sum())
            print(f"{name}, +{100 * key[0]:.0f}, caution {key[1]:.0f}: {more.mean():+.2f} ± "
                  f"{more.std(ddof=1) / len(more) ** 0.5:.2f}, holds in {held} of {len(more)}, "
                  f"{speed.mean():.2f} times", flush=True)  # fmt: skip


def chosen(trace, measured, sets, seed) -> dict:
    """Return points more and speed-up of what is chosen in one split; the network where nothing."""
    order = np.random.default_rng(seed).permutation(len(trace))
    half = len(trace) // 2
    fit, test = trace.take(order[:half]), trace.take(order[half:])
    own = float(fit.wrong()[:, -1].mean())
    group = measured.groups.index(BATCH)
    whole = sum(row[group] for row in measured.segments)
    every = [each for ramps in sets for each in tuning.fitted_for(fit, measured, BATCH, ramps)]
    every += tuning.fitted_for(fit, measured, BATCH, sets[-1], target="last")
    found = {}
    for level in LEVELS:
        for caution in CAUTIONS:
            most = own + level
            able = [each for each in every
                    if each.ramps and each.error + caution * each.spread <= most]  # fmt: skip
            if not able:
                found[level, caution] = (0.0, 1.0)
                continue
            best = min(able, key=lambda each: each.seconds)
            rows = test.with_spec(measured.costs(BATCH).spec(skip=True))
            rows = rows.restrict(best.policy.fitted.spec.names)
            wrong = rows.wrong().astype(float)
            its = wrong[np.arange(len(rows)), best.policy.play(rows).answer]
            found[level, caution] = (100 * (its - wrong[:, -1]).mean(), whole / best.seconds)
    return found


if __name__ == "__main__":
    main()
