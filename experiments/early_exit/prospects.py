"""How much the prospects of an input could add to X, estimated by stopping by regression.

    python experiments/early_exit/prospects.py [TRACE ...] --splits 8   # a minute on 16 cores

ttamer decides by X, the least chance that an answer in hand is wrong. Two inputs of the same X may
differ in what later exits make of them: one is hopeless, the other will be solved. Here, after each
exit, the chances that this answer and each later one are wrong are estimated from all that a trace
holds: confidence, margin, entropy, class and agreement of every exit so far, and X. The gain of
going on is then regressed on these chances, backward over the exits and for each tradeoff
(Longstaff and Schwartz, 2001). Answers are those that ttamer returns. Printed: the area of ttamer
and of this rule over that of the best threshold, which is chosen on the test rows; and what bounds
every decision: the error of the network itself, the area of stopping with hindsight where its
answer is returned, and with hindsight of what is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.fitted.replay import full_cost
from ttamer.fitting.cross_fit import CrossFit
from ttamer.stats.logistic import fit_logistic, logit, sigmoid

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from early_exit.areas import TARGETS, ExitAreas
from over_splits import add_options, load, mean, run, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace import Trace

    Numbers = NDArray[np.float64]

TRACES = ("vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10")
COLUMNS = ("ttamer", "with prospects", "network", "hindsight of its answer", "hindsight")
RIDGE = 20.0
"""The penalty on the squared weights of the chances, whose features have a spread of 1."""
GAIN_RIDGE = 3.0
"""The same for the gain of going on."""
FOLDS = 5
NEAR = 4
"""Of so many exits before, more is used than agreement and confidence."""


def main() -> None:
    """Print one line for each trace and target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", default=TRACES, metavar="TRACE")
    parser.add_argument("--folder", type=Path, help="of traces that are not the package's")
    parser.add_argument("--splits", type=int, default=8, help="random halves of each trace")
    parser.add_argument("--first", type=int, default=0, help="the number of the first split")
    add_options(parser)
    args = parser.parse_args()
    cases = list(product(args.traces, TARGETS))
    folder = None if args.folder is None else str(args.folder)
    numbers = range(args.first, args.first + args.splits)
    jobs = [(*case, number, folder) for number in numbers for case in cases]
    found = run(compared, jobs, args)
    print(f"| trace | against | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    for name, target in cases:
        each = np.array([own for job, own in found.items() if job[:2] == (name, target)])
        means = [mean(own) for own in each.reshape(-1, len(COLUMNS)).T]
        print(f"| {name} | {target} | {' | '.join(means)} |")


def compared(name: str, target: str, number: int, folder: str | None = None) -> list[float]:
    """Return the areas of ``COLUMNS`` over that of the best threshold."""
    trace = load(name, None if folder is None else Path(folder))
    trace = trace.with_spec(dataclasses.replace(trace.spec, target=TARGETS[target]))
    known, test = split(trace, number)
    found = ExitAreas(test)
    best = found.best_threshold(known)
    ladder = tt.fit(known)
    points = with_prospects(known, test, ladder)
    wrong, differs = test.loss_shares(), test.prediction != test.prediction[:, [-1]]
    hindsights = (found.of_points(*with_hindsight(test, own).T) for own in (differs, wrong))
    areas = (found.of(ladder), found.of_points(*points.T), wrong[:, -1].mean(), *hindsights)
    return [float(area) / best for area in areas]


def with_hindsight(test: Trace, lost: NDArray[np.bool_]) -> Numbers:
    """Return costs and errors where each row stops at the exit that is best for a tradeoff."""
    costs = np.cumsum(test.costs, axis=1) / full_cost(test.spec, test)
    wrong, rows = test.loss_shares(), np.arange(len(test))
    stops = [(w * lost + (1 - w) * costs).argmin(axis=1) for w in np.linspace(0, 1, 101)]
    return np.array([[costs[rows, at].mean(), wrong[rows, at].mean()] for at in stops])


def with_prospects(known: Trace, test: Trace, ladder: tt.FittedLadder) -> Numbers:
    """Return cost and error of the rule on the test rows at each tradeoff of a ladder."""
    model = ladder.fitted
    belief, steps = model.belief, model.steps
    if list(steps) != [tuple(range(k + 1)) for k in range(len(known.names))]:
        raise SystemExit("the rule is for exits that are all asked in their order")
    judged, extras = known, {node: own.names for node, own in belief.extras.items()}
    if belief.columns == {"margin"}:  # in place of confidences
        judged, extras = dataclasses.replace(known, confidence=known.extras["margin"]), {}
    inside = CrossFit(judged, steps, 0, extras=extras).estimates()
    seen = belief.evidence(test.confidence, model.predictions(test), extras=test.extras)
    outside = [np.stack(each, axis=1) for each in
               zip(*(belief.least(seen, step) for step in steps), strict=True)]  # fmt: skip
    lost, lost_new = (
        trace.loss_shares()[np.arange(len(trace))[:, np.newaxis], owner].astype(float)
        for trace, owner in ((known, inside.owner), (test, outside[1]))
    )
    price = known.costs.mean(axis=0) / full_cost(known.spec, known)
    tradeoffs = np.array([policy.tradeoff for policy in ladder])
    last = lost.shape[1] - 1
    half = 0.5 * (sigmoid(inside.least) + lost)  # what stopping loses, as in the fit
    if known.spec.target == "last":
        half[:, -1] = 0.0  # right by definition
    comes = tradeoffs * half[:, [last]]
    stop = np.full((len(test), len(tradeoffs)), last)
    for exit_ in reversed(range(last)):
        own = columns(known, exit_, inside.least[:, exit_])
        others = columns(test, exit_, outside[0][:, exit_])
        rows, new = (
            basis(chances, x[:, exit_])
            for chances, x in zip(
                predicted(own, lost[:, exit_:], others), (inside.least, outside[0]), strict=True
            )
        )
        stopping = tradeoffs * half[:, [exit_]]
        going = comes + (1 - tradeoffs) * price[exit_ + 1]
        gain, gain_new = regressed(rows, stopping - going, new)
        comes = np.where(gain > 0, going, stopping)
        stop = np.where(gain_new > 0, stop, exit_)
    costs = np.cumsum(test.costs, axis=1)[np.arange(len(test))[:, np.newaxis], stop]
    errors = lost_new[np.arange(len(test))[:, np.newaxis], stop]
    return np.c_[costs.mean(axis=0) / full_cost(test.spec, test), errors.mean(axis=0)]


def columns(trace: Trace, exit_: int, x: Numbers) -> Numbers:
    """Return all that is known after an exit, one column each, the first of ones."""
    answers, confident = trace.prediction, logit(trace.confidence)
    margin, entropy = (trace.extras[name][:, exit_] for name in ("margin", "entropy"))
    classes = np.arange(len(trace.classes))
    own, is_class = confident[:, exit_], (answers[:, [exit_]] == classes).astype(float)
    found = [
        np.ones(len(trace)), own, trace.confidence[:, exit_], x, sigmoid(x),
        margin, logit(margin), entropy, np.log(entropy + 1e-6),
        *is_class.T, *(is_class * own[:, np.newaxis]).T,
    ]  # fmt: skip
    for other in range(exit_):
        same = (answers[:, other] == answers[:, exit_]).astype(float)
        found += [same, same * confident[:, other], (1 - same) * confident[:, other]]
        if other >= exit_ - NEAR:
            sure = trace.confidence[:, other]
            found += [same * sure, (1 - same) * sure, same * own]
    if exit_:
        so_far = answers[:, : exit_ + 1]
        same = so_far[:, :-1] == so_far[:, [-1]]
        votes = (so_far[:, :, np.newaxis] == classes).astype(float)
        weighed = np.sort((votes * confident[:, : exit_ + 1, np.newaxis]).sum(axis=1), axis=1)
        found += [
            same.mean(axis=1), np.cumprod(same[:, ::-1], axis=1).sum(axis=1),
            votes.any(axis=1).sum(axis=1), weighed[:, -1] - weighed[:, -2],
            confident[:, : exit_ + 1].max(axis=1), confident[:, : exit_ + 1].mean(axis=1),
        ]  # fmt: skip
    return np.column_stack(found)


def predicted(rows: Numbers, lost: Numbers, new: Numbers) -> tuple[Numbers, Numbers]:
    """Return the chances of outcomes, shape (T, k): by cross-fitting, and on new rows."""
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), FOLDS)
    inside, outside = np.empty_like(lost), np.empty((len(new), lost.shape[1]))
    for k, outcome in enumerate(lost.T):
        weights = fit_logistic(rows, outcome, ridge=RIDGE)
        outside[:, k] = sigmoid(new @ weights)
        for part in parts:
            rest = np.setdiff1d(np.arange(len(rows)), part)
            own = fit_logistic(rows[rest], outcome[rest], ridge=RIDGE, start=weights)
            inside[part, k] = sigmoid(rows[part] @ own)
    return inside, outside


def basis(chances: Numbers, x: Numbers) -> Numbers:
    """Return the columns that the gain is regressed on: of X, of this answer, of some later."""
    least, here, count = sigmoid(x), chances[:, 0], chances.shape[1]
    found = [np.ones(len(x)), least, least**2, x, here, here**2, logit(here)]
    for k in sorted({min(k, count - 1) for k in (1, 2, 3, count // 2, count - 1)}):
        later = chances[:, k]
        found += [later, later**2, later * here, later * least, logit(later)]
    return np.column_stack(found)


def regressed(rows: Numbers, gains: Numbers, new: Numbers) -> tuple[Numbers, Numbers]:
    """Return gains as linear functions of columns, fitted to rows: on them and on new ones."""
    middle, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-9
    middle[0], spread[0] = 0.0, 1.0
    scaled, others = (rows - middle) / spread, (new - middle) / spread
    penalty = np.full(rows.shape[1], GAIN_RIDGE)
    penalty[0] = 0.0
    weights = np.linalg.solve(scaled.T @ scaled + np.diag(penalty), scaled.T @ gains)
    return scaled @ weights, others @ weights


if __name__ == "__main__":
    main()
