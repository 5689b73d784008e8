"""What importing the package costs beside importing NumPy, which it needs.

Every sample is a fresh interpreter. Imports are timed inside it, in CPU time, so that starting
Python, the same for all, does not hide the difference; the command line is timed from outside, on
the wall. ``import ttamer`` alone loads next to nothing, since names load when first used, so the
import of the names with which a problem is built and solved, and of the one with which a server
opens a policy, are timed too.
All of them find their bytecode compiled, as an installed package's is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from result import Result, show
from timing import rounds_of

ROUNDS = 25
MOST = 1.3
TIMED = "from time import process_time as t; a = t(); {}; print(t() - a)"
PEER = "import numpy"
IMPORTS = ("import ttamer", "from ttamer import Problem, solve", "from ttamer import load")


def measure() -> list[Result]:
    """Time imports in turn."""
    with TemporaryDirectory() as cache:
        return _measure({**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""})


def _measure(environment: dict[str, str]) -> list[Result]:
    def run(*words: str) -> str:
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
        return done.stdout

    def inside(code: str) -> float:
        return float(run(sys.executable, "-c", TIMED.format(code)))

    for code in (PEER, *IMPORTS):
        inside(code)  # compiles
    times = rounds_of(inside, [PEER, *IMPORTS], ROUNDS)
    results = []
    for code in IMPORTS:
        note = f"{times.median(code) * 1e3:.1f} ms against {times.median(PEER) * 1e3:.1f} ms"
        note += f"; least {times.best(code) * 1e3:.1f} and {times.best(PEER) * 1e3:.1f} ms"
        results.append(Result.of_ratio(code, times.ratio(code, PEER), at_most=MOST, note=note))

    commands = {
        "ttamer --help": (str(Path(sys.executable).with_name("ttamer")), "--help"),
        "python": (sys.executable, "-c", PEER),
    }

    def outside(name: str) -> float:
        start = perf_counter()
        run(*commands[name])
        return perf_counter() - start

    try:
        outside("ttamer --help")
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("ttamer --help does not run here: left out", file=sys.stderr)
        return results
    times = rounds_of(outside, list(commands), ROUNDS)
    mine, peer = times.median("ttamer --help"), times.median("python")
    note = f"{mine * 1e3:.0f} ms against {peer * 1e3:.0f} ms, starting Python included"
    ratio = times.ratio("ttamer --help", "python")
    results.append(Result.of_ratio("ttamer --help", ratio, note=note))
    return results


if __name__ == "__main__":
    show(measure())
