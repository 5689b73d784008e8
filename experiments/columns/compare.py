"""What extra columns of nodes add to beliefs: informative, of a network's exits, and useless ones.

    python experiments/columns/compare.py --splits 4

For each case and split the same rows are fitted with and without the columns:

- three real LLMs (``small-models``) whose confidence is the likelihood of the mean token, with that
  of the whole answer as a column, and the other way round;
- three simulated models whose confidences are rounded to one digit, with a margin that is not;
- the margins and entropies of VGG's exits;
- two columns of normal noise for each LLM.

Printed is the area under the lower envelope, more than without columns, on the rows not fitted to
(means over splits with standard errors), and the share of the columns that the beliefs read. For
the real LLMs also how well the belief in a model by itself tells its wrong answers from its right
ones: the area under the ROC curve on rows not fitted to.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from ttamer.fitting.cross_fit import CrossFit
from ttamer.fitting.regressions import useful_extras

from ttamer import CascadeSpec, Trace, fit
from ttamer.evaluation import frontier
from ttamer.stats.logistic import sigmoid

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from over_splits import LLMS, add_options, load, mean, run, split  # noqa: E402

VGG = ("vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10")
NOISE = "noise for "
REAL = ("mean, and whole answer", "whole answer, and mean")
CASES = (*REAL, "rounded, and margin", *VGG,
         NOISE + "small-models", *(NOISE + name for name in LLMS))  # fmt: skip
SIMULATED_ROWS = 6000
ROC_SEEDS = 8


def main() -> None:
    """Print one line for each case and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[0, 300], help="0: half of them")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    add_options(parser)
    args = parser.parse_args()
    cases = list(product(args.cases, args.rows))
    jobs = [(*case, number) for number in range(args.splits) for case in cases]
    found = run(areas, jobs, args)
    print("| case | rows to fit | area with columns | columns read |\n|---|---|---|---|")
    for case, rows in cases:
        own = [found[job] for job in jobs if job[:2] == (case, rows) and job in found]
        more = mean([after / before - 1 for before, after, _ in own], "+.2%")
        print(f"| {case} | {rows or 'half'} | {more} | {mean([read for *_, read in own], '.0%')} |")
    for case in [each for each in REAL if each in args.cases]:
        trace = trace_of(case, 0)
        print(f"\n| {case}: area under ROC | {' | '.join(trace.names)} |")
        print("|---" * (1 + len(trace.names)) + "|")
        for name, extras in (("without", {}), ("with", useful_extras(trace, trace.wrong()))):
            found = np.array([roc_areas(trace, extras, seed) for seed in range(ROC_SEEDS)])
            print(f"| {name} | " + " | ".join(mean(each) for each in found.T) + " |")


def roc_areas(trace: Trace, extras: dict[int, tuple[str, ...]], seed: int) -> list[float]:
    """Return, per node, the chance that a wrong answer has a higher X than a right one."""
    wrong = trace.wrong()
    steps = [(node,) for node in range(len(trace.names))]
    least = CrossFit(trace, steps, seed, extras=extras).estimates().least
    areas = []
    for bad, own in zip(wrong.T, least.T, strict=True):
        below = np.searchsorted(np.sort(own[~bad]), own[bad], "left")
        up_to = np.searchsorted(np.sort(own[~bad]), own[bad], "right")
        areas.append(float((below + up_to).mean() / (2 * (~bad).sum())))
    return areas


def areas(case: str, rows: int, number: int) -> tuple[float, float, float]:
    """Return the areas without and with columns, and the share of columns that is read."""
    warnings.simplefilter("ignore")
    trace = trace_of(case, number)
    some, test = split(trace, number, rows)
    both, read = [], 0
    for rows_to_fit in (dataclasses.replace(some, margin=None, entropy=None, latency=None), some):
        ladder = fit(rows_to_fit)
        found = frontier(rows_to_fit, test, ladder=ladder, families=["ttamer"], resamples=0)
        both.append(found.area("ttamer"))
        read = len(ladder.fitted.columns_read)
    return both[0], both[1], read / (len(trace.extras) * len(trace.names))


@cache
def trace_of(case: str, number: int) -> Trace:
    """Return the trace of a case, with columns."""
    if case in VGG:
        return load(case)
    if case == "rounded, and margin":
        return rounded(SIMULATED_ROWS, number)
    if case.startswith(NOISE):
        name = case.removeprefix(NOISE)
        trace = llms(name) if name == "small-models" else load(name)
        rng = np.random.default_rng([number, 5])
        noise = {each: rng.normal(size=trace.confidence.shape) for each in ("margin", "entropy")}
        return dataclasses.replace(
            trace, **{"margin": None, "entropy": None, "latency": None} | noise
        )
    one, two = llms("small-models-mean"), llms("small-models")
    if case == "whole answer, and mean":
        one, two = two, one
    return dataclasses.replace(
        one, **{"margin": None, "entropy": None, "latency": None} | {"margin": two.confidence}
    )


def llms(name: str) -> Trace:
    """Return the answers of three real LLMs, with one of two confidences."""
    return Trace.read(HERE.parent / "llm" / f"{name}.npz")


def rounded(rows: int, seed: int) -> Trace:
    """Return three simulated models whose confidences are rounded, with margins that are not."""
    rng = np.random.default_rng([seed, 6])
    skill = 0.7 * rng.normal(size=(rows, 1)) + 0.8 * rng.normal(size=(rows, 3)) + [0.2, 1.0, 2.0]
    right = rng.random((rows, 3)) < sigmoid(2.5 * skill)
    noisy = skill + 0.6 * rng.normal(size=skill.shape)
    return Trace(
        CascadeSpec.of({"small": 1.0, "medium": 4.0, "large": 20.0}),
        np.round(sigmoid(noisy), 1),
        correct=right,
        margin=skill + 0.5 * rng.normal(size=skill.shape),
    )


if __name__ == "__main__":
    main()
