"""How fast one solve is, from a ``problem.json`` to the value, beside QuantEcon's induction.

    python benchmarks/solve.py [NODESxSTATES ...]

Lines of one common support. Both sides read the same file, build their model of it and solve it;
the values must agree to 1e-12. QuantEcon's program has one state per node, state and best loss so
far, and its solver goes over all of them once per node, so the ratio grows with the nodes; on our
side more than half of the time is reading the numbers of the file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from problems import line_data
from result import Result, show
from timing import interleaved

import ttamer as tt

SIZES, ALONE, TRADEOFF = ((3, 8), (12, 16), (12, 64), (48, 32)), (12, 64), 0.6
ROUNDS, FEW_ROUNDS = 7, 2
MANY = 200_000
"""With more numbers in the file there are few rounds."""
AIM = 1000.0
MAX_GAP = 1e-12


def measure(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Result]:
    """Time both, and check that they agree."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    results = [result for size in sizes for result in from_file(*size)]
    return [*results, *without_file(*ALONE)] if sizes is SIZES else results


def from_file(nodes: int, states: int) -> list[Result]:
    """Compare the way from a file to the value."""
    from support import quantecon_line  # the same formulation serves the tests as an oracle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.json")
        tt.Problem.line(*line_data(nodes, states)).to_file(path)

        def read() -> tuple[list[float], list[float], list[object], float]:
            written = json.loads(path.read_bytes())
            rows = [np.array(edge["probabilities"]) for edge in written["edges"]]
            costs = [edge["cost"] for edge in written["edges"]]
            return written["nodes"][0]["losses"], costs, [rows[0][0], *rows[1:]], TRADEOFF

        calls = {
            "ours": lambda: tt.solve(tt.Problem.from_file(path), TRADEOFF).value,
            "by state": lambda: quantecon_line.solve(quantecon_line.build_by_state(*read()), nodes),
            "by hand": lambda: quantecon_line.quantecon_value(*read()),
        }
        values = [call() for call in calls.values()]
        if max(values) - min(values) > MAX_GAP:
            raise RuntimeError(f"the values differ: {values}")
        times = interleaved(calls, ROUNDS if nodes * states**2 < MANY else FEW_ROUNDS)
    results = []
    for peer, what, aim in (("by state", "state by state", AIM), ("by hand", "by hand", None)):
        note = f"{times.median('ours') * 1e3:.3f} ms against {times.median(peer) * 1e3:.1f} ms"
        label = f"{nodes} nodes, {states} states: problem.json to value, peer built {what}"
        ratio = times.ratio(peer, "ours")
        results.append(Result.of_ratio(label, ratio, at_least=aim, note=note))
    return results


def without_file(nodes: int, states: int) -> list[Result]:
    """Compare building and solving on arrays."""
    from support import quantecon_line

    data = line_data(nodes, states)
    line = tt.Problem.line(*data)
    precedence = line.with_moves("precedence")
    program = quantecon_line.build(*data, TRADEOFF)
    times = interleaved(
        {
            "walk": lambda: tt.solve(tt.Problem.line(*data), TRADEOFF),
            "walk solve": lambda: tt.solve(line, TRADEOFF),
            "index solve": lambda: tt.solve(precedence, TRADEOFF),
            "quantecon": lambda: quantecon_line.quantecon_value(*data, TRADEOFF),
            "quantecon solve": lambda: quantecon_line.solve(program, nodes),
        }
    )
    results = []
    for what, mine, theirs in (
        ("walk: build of arrays and solve, peer by hand", "walk", "quantecon"),
        ("walk: solve alone", "walk solve", "quantecon solve"),
        ("index: solve alone", "index solve", "quantecon solve"),
    ):
        note = f"{times.median(mine) * 1e3:.3f} ms against {times.median(theirs) * 1e3:.1f} ms"
        label = f"{nodes} nodes, {states} states: {what}"
        results.append(Result.of_ratio(label, times.ratio(theirs, mine), note=note))
    return results


if __name__ == "__main__":
    stated = [tuple(map(int, size.split("x"))) for size in sys.argv[1:]]
    show(measure(stated or SIZES))  # type: ignore[arg-type]
