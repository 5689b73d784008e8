"""What exits gain that combine what all exits so far return, over random halves of the rows.

    python experiments/vision/train.py 11 13 16 --data cifar10_jpeg.npz --out OUT --logits
    python experiments/early_exit/combined.py OUT --splits 8

OUT holds ``NAME.npz``, a trace, and ``NAME-logits.npz``, the logits of its exits. The combination
(``ttamer.torch.combine_exits``) is fitted on the half that the policies are fitted on, to the label
or to the network's own answer, whichever counts as right. Printed: areas over that of the best
threshold on the exits as they are; the best is chosen on the test rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import ttamer as tt
from ttamer.torch.combining import MIN_LOG, fit_combination
from ttamer.torch.decide import scores_of
from ttamer.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from early_exit.areas import TARGETS, ExitAreas
from over_splits import add_options, mean, run

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("ttamer", "best threshold, combined", "ttamer, combined")


def main() -> None:
    """Print one line for each trace and target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=8, help="random halves of each trace")
    add_options(parser)
    args = parser.parse_args()
    names = [path.name.removesuffix("-logits.npz") for path in args.folder.glob("*-logits.npz")]
    cases = list(product(sorted(names), TARGETS))
    jobs = [(str(args.folder), *case, k) for k in range(args.splits) for case in cases]
    found = run(compared, jobs, args)
    print(f"| trace | against | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    for case in cases:
        each = np.array([own for job, own in found.items() if job[1:3] == case])
        print(f"| {' | '.join((*case, *(mean(column) for column in each.T)))} |")


def compared(folder: str, name: str, target: str, number: int) -> list[float]:
    """Return the areas of ``COLUMNS`` over that of the best threshold on the exits as they are."""
    trace = Trace.read(Path(folder) / f"{name}.npz")
    spec = dataclasses.replace(trace.spec, target=TARGETS[target])
    plain = dataclasses.replace(trace, spec=spec)
    with np.load(Path(folder) / f"{name}-logits.npz") as stored:
        logits = torch.from_numpy(stored["logits"]).double().permute(1, 0, 2)
    order = np.random.default_rng(number).permutation(len(trace))
    fit, test = np.array_split(order, 2)
    wanted = trace.label if target == "label" else logits[-1].argmax(dim=1).numpy()
    together = combined(plain, logits, wanted, fit)
    threshold, *others = (
        area for each in (plain, together) for area in areas(each.take(fit), each.take(test))
    )
    return [area / threshold for area in others]


def combined(
    trace: Trace, logits: torch.Tensor, wanted: NDArray[np.integer], fit: NDArray[np.intp]
) -> Trace:
    """Return the trace of combined exits, fitted on some rows; the last exit is as it was."""
    returned = logits.log_softmax(dim=2).clamp(min=MIN_LOG)
    classes, rows = torch.as_tensor(np.asarray(wanted, np.int64))[fit], torch.from_numpy(fit)
    scores = []
    for k in range(len(returned) - 1):
        weights, terms = fit_combination(returned[: k + 1, rows], classes)
        scores.append(scores_of(torch.einsum("k,krc->rc", weights, returned[: k + 1]) + terms))
    scores.append(scores_of(logits[-1]))
    confidence, prediction, margin, entropy = (
        torch.stack(column, dim=1).numpy() for column in zip(*scores, strict=True)
    )
    extras = {"margin": margin.astype(np.float64), "entropy": entropy.astype(np.float64)}
    return dataclasses.replace(
        trace, confidence=confidence.astype(np.float64), prediction=prediction.astype(np.int32),
        extras=extras,
    )  # fmt: skip


def areas(known: Trace, test: Trace) -> tuple[float, float]:
    """Return the areas of the best threshold and of ttamer."""
    found = ExitAreas(test)
    return found.best_threshold(known), found.of(tt.fit(known))


if __name__ == "__main__":
    main()
