"""Peers: our fit, our baselines, and rivals' own code, on traces of separate models.

    python experiments/peers/compare.py --splits 8 --environments FOLDER

Half of the rows of each split are fitted to and the others are measured on. Printed for each peer:
the area under its lower envelope over the chain family's; the saving at the accuracy of the best
model, which is chosen on the rows fitted to and may be mixed in; on how many splits the peer
reaches that accuracy without it; the seconds to fit; and the microseconds to replay one setting on
one row: means over traces and splits, with the standard error over splits. Times are wall-clock:
use ``--jobs 1`` on a quiet machine where they matter.

A rival's own code runs in an environment of its own, which is made with pip on the first run
(``--environments``; without it only ours are measured). A rival's code reads an NPZ file with
confidences, losses and costs, and writes the nodes asked and the answer for each test row; costs
and errors are counted here, in the same way for all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines import FAMILIES, Unsuitable
from ttamer.evaluation.frontiers import OURS
from ttamer.fitting.replay import full_cost, paid
from ttamer.stats.envelope import area_under, cost_at_error

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.fitting.replay import Played
    from ttamer.trace import Trace

HERE = Path(__file__).resolve().parent
RIVALS = {"automix-llm": ("automix_peer.py", ["automix-llm==1.0.3", "setuptools"])}
"""Packages of rivals: the script that runs their code, and what to install for it."""
REPOSITORY = "its authors publish a repository, and no package that pip installs"
NOT_RUN = {
    "routellm": "its routers read the prompt, which the traces do not hold, and load weights or "
    "embeddings from a hub",
    "frugalgpt": REPOSITORY,
    "cascade-routing": REPOSITORY,
    "rational tuning of LLM cascades": REPOSITORY,
    "frugalml": f"{REPOSITORY}; the family frugalml is our own code for that strategy",
    "llm-cascade": "falls back from provider to provider on errors; it has no policy to fit",
}
"""Rivals whose own code is not measured, with the reason."""


FIELDS = ("area", "saving", "reached", "fit", "row")
"""What is measured of a peer on one trace and split."""

Numbers = list[float]


def main() -> None:
    """Print one line for each peer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="more traces, each with its cascade")
    parser.add_argument("--traces", nargs="+", default=list(LLMS), help="the traces to use")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--environments", type=Path, help="where rivals are installed")
    add_options(parser)
    args = parser.parse_args()
    pythons = {} if args.environments is None else dict(installed(args.environments))
    folder = None if args.folder is None else str(args.folder)
    jobs = [
        (name, number, group, python, folder)
        for number in range(args.splits)
        for name in args.traces
        for group, python in [("ours", ""), *pythons.items()]
    ]
    results = run(peers, jobs, args)
    found: dict[str, dict[tuple[int, str], Numbers]] = {}
    for (name, number, *_), each in results.items():
        for peer, numbers in each.items():
            found.setdefault(peer, {})[number, name] = numbers
    print("| peer | area over the chain's | saving at the best model's accuracy | reached "
          "| fit, s | row, µs |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    chain = found["chain"]
    lines = []
    for peer, runs in found.items():
        ratio = {place: [own[0] / chain[place][0], *own[1:]] for place, own in runs.items()}
        area, saving, reached, fit, row = (by_split(ratio, k) for k in range(len(FIELDS)))
        cells = [mean(area), mean(saving, ".0%"), f"{np.mean(reached):.0%}", mean(fit, ".2f"),
                 mean(row, ".1f")]  # fmt: skip
        lines.append((float(np.mean(area)), f"| {peer} | {' | '.join(cells)} |"))
    print(*(line for _, line in sorted(lines)), sep="\n")
    for name, why in NOT_RUN.items():
        print(f"not run: {name}: {why}")


def by_split(runs: dict[tuple[int, str], Numbers], field: int) -> list[float]:
    """Return the mean over traces of one number, for each split."""
    splits = sorted({number for number, _ in runs})
    return [
        float(np.mean([own[field] for (number, _), own in runs.items() if number == each]))
        for each in splits
    ]


def peers(
    name: str, number: int, group: str, python: str, folder: str | None
) -> dict[str, Numbers]:
    """Return the numbers of our peers, or of one rival, on one trace and split."""
    warnings.simplefilter("ignore")
    fit, test = split(load(name, None if folder is None else Path(folder)), number)
    if group != "ours":
        return {group: run_rival(group, python, fit, test)}
    return dict(ours(fit, test))


def ours(fit: Trace, test: Trace) -> Iterator[tuple[str, Numbers]]:
    """Fit our families to one trace and measure them on another."""
    for name, family in ({"ttamer": OURS["ttamer"]} | FAMILIES).items():
        if getattr(family, "uses_labels", False):
            continue
        begun = time.perf_counter()
        try:
            settings = family.fit(fit)
        except Unsuitable:
            continue
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        played = [setting.rule.play(test) for setting in settings]
        micros = 1e6 * (time.perf_counter() - begun) / (len(test) * len(settings))
        points = [point(each, test) for each in played]
        yield name, measured(points, fit, test, seconds, micros)


def point(played: Played, test: Trace) -> tuple[float, float]:
    """Return the mean cost and the error of a rule on the test rows."""
    wrong = test.loss[np.arange(len(test)), played.answer]
    return float(paid(played.asked, test).mean()), float(wrong.mean())


def measured(
    points: list[tuple[float, float]], fit: Trace, test: Trace, seconds: float, micros: float
) -> Numbers:
    """Return the numbers of a peer; the cheapest model may be mixed in, and the best for saving."""
    means, errors = test.costs.mean(axis=0), test.loss.mean(axis=0)
    cheapest, best = int(means.argmin()), int(fit.loss.mean(axis=0).argmin())
    costs, wrong = zip(*points, (float(means[cheapest]), float(errors[cheapest])), strict=True)
    low, high = float(means[cheapest]), full_cost(test.spec, test)
    area = area_under(costs, wrong, low, high) / (high - low)
    price, error = float(means[best]), float(errors[best])
    alone = cost_at_error(costs, wrong, error)
    reached = cost_at_error([*costs, price], [*wrong, error], error) or price
    return [area, 1 - reached / price, float(alone is not None), seconds, micros]


def installed(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the interpreter of each rival's environment, made where it is not there yet."""
    for name, (_, packages) in RIVALS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            call([sys.executable, "-m", "venv", str(folder / name)])
            call([str(python), "-m", "pip", "install", "-q", *packages])
        yield name, str(python)


def call(command: list[str]) -> None:
    """Run a command of this experiment's own, and fail where it fails."""
    subprocess.run(command, check=True)  # noqa: S603 - the commands are written above


def run_rival(name: str, python: str, fit: Trace, test: Trace) -> Numbers:
    """Run a rival's own code on a split, in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder, "given.npz"), Path(folder, "answered.npz")
        np.savez(
            given,
            fit_confidence=fit.confidence, fit_wrong=fit.loss, fit_cost=fit.costs,
            test_confidence=test.confidence, test_wrong=test.loss,
        )  # fmt: skip
        script = HERE / RIVALS[name][0]
        call([python, str(script), str(given), str(answered)])
        with np.load(answered) as found:
            asked, answer = found["asked"], found["answer"]
            seconds, decide = float(found["fit_seconds"]), float(found["decision_seconds"])
    wrong, rows = test.loss > 0, np.arange(len(test))
    points = [
        (float(paid(mine, test).mean()), float(wrong[rows, own].mean()))
        for mine, own in zip(asked, answer, strict=True)
    ]
    return measured(points, fit, test, seconds, 1e6 * decide / (len(test) * len(points)))


if __name__ == "__main__":
    main()
