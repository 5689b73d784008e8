"""What experiments over random splits share: traces, splits, work on processes, and means.

Work that is cut off is continued: results are appended to a file as JSON, one line for each job,
and jobs whose line is there are not done again. Use a new file for other code.

Only ``load`` and ``names`` need this version of the package, so that the same experiment can run
an older one on a folder of traces.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.trace import Trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Sequence

LLMS = ("llm-mmlu", "llm-triviaqa")
"""The traces of the package in which nine LLMs answer."""

Job = tuple[Any, ...]


def names(folder: Path | None) -> list[str]:
    """Return the names of the package's traces and of those of a folder."""
    import traces

    return list(dict.fromkeys([*traces.names(), *in_folder(folder)]))


def in_folder(folder: Path | None) -> dict[str, Path]:
    """Return the traces of a folder by name; ``NAME.toml`` holds the cascade, or the trace does."""
    if folder is None:
        return {}
    files = sorted(path for path in folder.iterdir() if path.suffix == ".parquet")
    return {path.stem: path for path in files}


@cache
def load(name: str, folder: Path | None = None) -> Trace:
    """Return a trace of the folder, or else of the package."""
    path = in_folder(folder).get(name)
    if path is not None:
        cascade = path.with_suffix(".toml")
        return Trace.read(path, cascade if cascade.exists() else None)
    import traces

    return traces.load(name)


def split(trace: Trace, number: int, rows: int = 0, most: int | None = None) -> tuple[Trace, Trace]:
    """Return some rows to fit on (0: half of them), and at most ``most`` others to measure on."""
    order = np.random.default_rng(number).permutation(len(trace))
    count = rows or len(trace) // 2
    end = None if most is None else count + most
    return trace.take(order[:count]), trace.take(order[count:end])


def add_options(parser: ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--results", type=Path, help="file of results, one line for each job")
    parser.add_argument("--minutes", type=float, default=np.inf, help="no job is started later")


def run(work: Callable[..., Any], jobs: Iterable[Job], options: Namespace) -> dict[Job, Any]:
    """Return ``work(*job)`` for each job, on processes; jobs that failed are named and left out."""
    wanted = list(dict.fromkeys(jobs))
    found = read(options.results)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    end = time.monotonic() + 60 * options.minutes
    waiting = iter(job for job in wanted if job not in found)
    with ProcessPoolExecutor(options.jobs) as pool:
        first = islice(waiting, options.jobs if options.minutes > 0 else 0)
        doing = {pool.submit(work, *job): job for job in first}
        while doing:
            future = next(iter(wait(doing, return_when=FIRST_COMPLETED).done))
            job = doing.pop(future)
            if time.monotonic() < end:
                doing |= {pool.submit(work, *new): new for new in islice(waiting, 1)}
            try:
                found[job] = future.result()
            except Exception:  # one job must not end the others
                print(f"failed: {job}\n{traceback.format_exc()}", flush=True)
                continue
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([job, found[job]]) + "\n")
    done = {job: found[job] for job in wanted if job in found}
    if len(done) < len(wanted):
        print(f"{len(done)} of {len(wanted)} jobs are done")
    return done


def read(results: Path | None) -> dict[Job, Any]:
    """Return the results that a file holds, by job."""
    if results is None or not results.exists():
        return {}
    lines = results.read_text("utf-8").splitlines()
    return {tuple(job): result for job, result in map(json.loads, lines)}


def mean(values: Sequence[float] | np.ndarray, form: str = ".3f") -> str:
    """Return a mean with its standard error; "-" where a value is missing."""
    numbers = np.asarray(values, float)
    if not numbers.size or np.isnan(numbers).any():
        return "-"
    if numbers.size == 1:
        return f"{numbers[0]:{form}}"
    error = numbers.std(ddof=1) / numbers.size**0.5
    return f"{numbers.mean():{form}} ± {error:{form.replace('+', '')}}"
