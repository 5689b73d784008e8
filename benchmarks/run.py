"""Run the benchmarks and print one table.

``python benchmarks/run.py [--only NAME] [--json FILE]``. Each question has a process of its own:
what one leaves on the heap changes what the next one pays for memory.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from result import Result, show

QUESTIONS = (
    "solve",
    "ladder",
    "growth",
    "decide",
    "believe",
    "per_input",
    "batching",
    "importing",
    "traces",
)


def measure(question: str) -> list[Result]:
    """Run one benchmark."""
    found: list[Result] = import_module(question).measure()
    return found


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and print one table.")
    parser.add_argument("--only", choices=QUESTIONS, help="run one of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    questions = [options.only] if options.only else list(QUESTIONS)
    fresh = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as processes:
        found = list(zip(questions, processes.map(measure, questions), strict=True))
    show([result for _, results in found for result in results])
    load = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"load {load} on {os.cpu_count()} cores; a ? means the target lies between the quartiles")
    if options.json:
        rows = [
            {"question": question, **asdict(result), "holds": result.holds, "close": result.close}
            for question, results in found
            for result in results
        ]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
