"""Peers: our fit, our baselines, and rivals' own code, on traces of separate models.

    python experiments/peers/compare.py [FOLDER] --splits 4 --environments FOLDER

Half of the rows of each split are fitted to and the others are measured on. Printed for each peer:
the area under its lower envelope over the chain family's, the saving at the best model's accuracy
(that model being chosen on the rows fitted to; "-" where it is not reached on some split), the
seconds to fit, and the microseconds to replay one setting on one row: means over traces and splits,
with the standard error over splits.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ttamer import datasets
from ttamer.baselines import FAMILIES, Unsuitable
from ttamer.evaluation.benchmark import find_traces
from ttamer.evaluation.families import OURS
from ttamer.fitted.replay import full_cost, paid
from ttamer.stats.envelope import area_under, cost_at_error
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ttamer.fitted.replay import Played

HERE = Path(__file__).resolve().parent
TRACES = ("llm-mmlu", "llm-triviaqa")
RIVALS = {"automix-llm": ("automix_peer.py", ["automix-llm==1.0.3", "setuptools"])}
"""Packages of rivals: the script that runs their code, and what to install for it."""
NOT_RUN = {
    "routellm": "its routers read the prompt, which the traces do not hold, and load weights or "
    "embeddings from a hub",
    "frugalgpt": "no such package",
    "cascade-routing": "no such package",
    "frugalml": "no such package; the family frugalml is our own code for that strategy",
    "rational tuning of LLM cascades": "no such package",
    "llm-cascade": "falls back from provider to provider on errors; it has no policy to fit",
}
"""Rivals whose own code is not measured, with the reason."""


@dataclass(frozen=True)
class Measured:
    """What one peer did on one split."""

    area: float
    saving: float
    fit_seconds: float
    decision_micros: float


def main() -> None:
    """Print one line for each peer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="traces, each with its cascade")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--environments", type=Path, help="where rivals are installed")
    args = parser.parse_args()
    pythons = {} if args.environments is None else dict(installed(args.environments))
    found: dict[str, list[list[Measured]]] = {}
    for split in range(args.splits):
        each: dict[str, list[Measured]] = {}
        for _, trace in traces(args.folder):
            order = np.random.default_rng(split).permutation(len(trace))
            half = len(trace) // 2
            fit, test = trace.take(order[:half]), trace.take(order[half:])
            for name, measured in peers(fit, test, pythons):
                each.setdefault(name, []).append(measured)
        for name, some in each.items():
            found.setdefault(name, []).append(some)
    print("| peer | area over the chain's | saving at the best model's accuracy | fit, s "
          "| row, us |")  # fmt: skip
    print("|---|---|---|---|---|")
    base = table(found["chain"], "area")
    rows = {name: table(runs, "area") / base for name, runs in found.items()}
    for name in sorted(rows, key=lambda name: float(rows[name].mean())):
        runs = found[name]
        cells = [shown(rows[name].mean(axis=1), 3), shown(table(runs, "saving").mean(axis=1), 2)]
        cells += [f"{table(runs, 'fit_seconds').mean():.2f}",
                  f"{table(runs, 'decision_micros').mean():.1f}"]  # fmt: skip
        print(f"| {name} | {' | '.join(cells)} |")
    for name, why in NOT_RUN.items():
        print(f"not run: {name}: {why}")


def traces(folder: Path | None) -> Iterator[tuple[str, Trace]]:
    """Yield every trace by its name."""
    if folder is None:
        yield from ((name, datasets.load(name)) for name in TRACES)
    else:
        for path, cascade in find_traces(folder):
            yield path.stem, Trace.read(path, cascade)


def peers(fit: Trace, test: Trace, pythons: dict[str, Path]) -> Iterator[tuple[str, Measured]]:
    """Fit every peer to one trace and measure it on another."""
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
    for name, python in pythons.items():
        yield name, run_rival(name, python, fit, test)


def point(played: Played, test: Trace) -> tuple[float, float]:
    """Return the mean cost and the error of a rule on the test rows."""
    wrong = test.wrong()[np.arange(len(test)), played.answer]
    return float(paid(played.asked, test).mean()), float(wrong.mean())


def measured(
    points: list[tuple[float, float]], fit: Trace, test: Trace, seconds: float, micros: float
) -> Measured:
    """Return area and saving of points; every peer may mix in the cheapest single model."""
    means, errors = test.costs.mean(axis=0), test.wrong().mean(axis=0)
    cheapest, best = int(means.argmin()), int(fit.wrong().mean(axis=0).argmin())
    costs, wrong = zip(*points, (float(means[cheapest]), float(errors[cheapest])), strict=True)
    low, high = float(means[cheapest]), full_cost(test.spec, test)
    area = area_under(costs, wrong, low, high) / (high - low)
    reached = cost_at_error(costs, wrong, float(errors[best]))
    saving = np.nan if reached is None else 1 - reached / float(means[best])
    return Measured(area, saving, seconds, micros)


def installed(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the interpreter of each rival's environment, made where it is not there yet."""
    for name, (_, packages) in RIVALS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            run([sys.executable, "-m", "venv", str(folder / name)])
            run([str(python), "-m", "pip", "install", "-q", *packages])
        yield name, python


def run(command: list[str]) -> None:
    """Run a command of this experiment's own, and fail where it fails."""
    subprocess.run(command, check=True)  # noqa: S603 - the commands are written above


def run_rival(name: str, python: Path, fit: Trace, test: Trace) -> Measured:
    """Run a rival's own code on a split, in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder, "given.npz"), Path(folder, "answered.npz")
        np.savez(
            given,
            fit_confidence=fit.confidence, fit_wrong=fit.wrong(), fit_cost=fit.costs,
            test_confidence=test.confidence, test_wrong=test.wrong(),
        )  # fmt: skip
        script = HERE / RIVALS[name][0]
        run([str(python), str(script), str(given), str(answered)])
        with np.load(answered) as found:
            asked, answer = found["asked"], found["answer"]
            seconds, decide = float(found["fit_seconds"]), float(found["decision_seconds"])
    wrong, rows = test.wrong(), np.arange(len(test))
    points = [
        (float(paid(mine, test).mean()), float(wrong[rows, own].mean()))
        for mine, own in zip(asked, answer, strict=True)
    ]
    return measured(points, fit, test, seconds, 1e6 * decide / (len(test) * len(points)))


def table(runs: list[list[Measured]], field: str) -> np.ndarray:
    """Return one number of every run, shape (splits, traces)."""
    return np.array([[getattr(each, field) for each in some] for some in runs])


def shown(values: np.ndarray, digits: int) -> str:
    """Return a mean and its standard error; "-" where some value is missing."""
    if np.isnan(values).any():
        return "-"
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}"


if __name__ == "__main__":
    main()
