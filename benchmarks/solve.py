"""How fast one solve is, model building included, beside QuantEcon's backward induction.

Line, 12 nodes, 64 states with a common support. Both sides get the same arrays, build their model
and solve it; the values must agree to 1e-12.
"""

from __future__ import annotations

import sys
from pathlib import Path

from problems import line_data
from result import Result, show
from timing import interleaved

import ttamer as tt

NODES, STATES, TRADEOFF = 12, 64, 0.6
MAX_GAP = 1e-12


def measure() -> list[Result]:
    """Time both, and check that they agree."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support import quantecon_line  # the same formulation serves the tests as an oracle

    data = line_data(NODES, STATES)
    line = tt.Problem.line(*data)
    precedence = line.with_moves("precedence")
    written = line.to_dict()  # what json.loads makes of a problem.json
    program = quantecon_line.build(*data, TRADEOFF)
    gap = abs(quantecon_line.solve(program, NODES) - tt.solve(line, TRADEOFF).value)
    if gap > MAX_GAP:
        raise RuntimeError(f"the values differ by {gap}")

    times = interleaved(
        {
            "walk": lambda: tt.solve(tt.Problem.line(*data), TRADEOFF),
            "walk from json": lambda: tt.solve(tt.Problem.from_dict(written), TRADEOFF),
            "walk build": lambda: tt.Problem.line(*data),
            "walk solve": lambda: tt.solve(line, TRADEOFF),
            "index": lambda: tt.solve(tt.Problem.line(*data, moves="precedence"), TRADEOFF),
            "index solve": lambda: tt.solve(precedence, TRADEOFF),
            "quantecon": lambda: quantecon_line.quantecon_value(*data, TRADEOFF),
            "quantecon by state": lambda: quantecon_line.solve(
                quantecon_line.build_by_state(*data, TRADEOFF), NODES
            ),
            "quantecon build": lambda: quantecon_line.build(*data, TRADEOFF),
            "quantecon solve": lambda: quantecon_line.solve(program, NODES),
        }
    )
    results = []
    for what, mine, theirs, at_least in (
        ("walk: build and solve, peer built state by state", "walk", "quantecon by state", 500.0),
        (
            "walk: from the object of a problem.json, build and solve, peer built state by state",
            "walk from json",
            "quantecon by state",
            1000.0,
        ),
        ("walk: build and solve, peer laid out by hand", "walk", "quantecon", None),
        ("walk: build alone", "walk build", "quantecon build", None),
        ("walk: solve alone", "walk solve", "quantecon solve", None),
        ("index: build and solve, peer state by state", "index", "quantecon by state", None),
        ("index: build and solve, peer laid out by hand", "index", "quantecon", None),
        ("index: solve alone", "index solve", "quantecon solve", None),
    ):
        note = f"{times.median(mine) * 1e3:.3f} ms against {times.median(theirs) * 1e3:.1f} ms"
        ratio = times.ratio(theirs, mine)
        results.append(Result.of_ratio(what, ratio, at_least=at_least, note=note))
    results.append(Result("gap between the values", gap, unit="", at_most=MAX_GAP))
    return results


if __name__ == "__main__":
    show(measure())
