"""What the trace says: each detector alone, and our fits on the part they never saw.

python experiments/langid/measure.py
"""

from __future__ import annotations

import sys

import numpy as np

from ttamer import datasets
from ttamer.evaluation.results import measure
from ttamer.fitting.fits import fit
from ttamer.stats.envelope import cost_at_error


def main() -> None:
    """Print the tables of README.md."""
    whole = datasets.load("langid")
    wrong = whole.loss > 0
    for i, name in enumerate(whole.names):
        cost = whole.costs[:, i]
        say(
            f"{name:10} accuracy {1 - wrong[:, i].mean():.4f}, mean {cost.mean():.1f} µs, "
            f"median {np.median(cost):.1f} µs"
        )
    say(f"any right  accuracy {1 - wrong.all(axis=1).mean():.4f}")

    part, test = datasets.load("langid", "fit"), datasets.load("langid", "test")
    light = [name for name in part.names if name != "lingua"]
    compare("all five", part, test)
    compare("without lingua", part.restrict(light), test.restrict(light))


def compare(title: str, part: datasets.Trace, test: datasets.Trace) -> None:
    """Fit on one part, measure on the other, beside the best single detector."""
    errors, costs = test.loss.mean(axis=0), test.costs.mean(axis=0)
    best = int(errors.argmin())
    say(f"\n{title}: {test.names[best]} alone {1 - errors[best]:.4f} at {costs[best]:.1f} µs")
    for belief in ("full", "calibrated", "none"):
        ladder = fit(part, belief=belief)
        found = [measure(played, test, resamples=0) for played in ladder.play_all(test)]
        x, y = [result.cost for result in found], [result.error for result in found]
        equal = cost_at_error(x, y, float(errors[best]))
        least = int(np.argmin(y))
        times = "not reached" if equal is None else f"{equal:.1f} µs, 1/{costs[best] / equal:.0f}"
        say(
            f"  belief {belief:10}: "
            f"the same accuracy at {times}; at best {1 - y[least]:.4f} at {x[least]:.1f} µs"
        )


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
