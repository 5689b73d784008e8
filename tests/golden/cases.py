"""What is digested: fits, decisions, artefacts and interfaces, as named values.

Every group is a function that yields (name, value). A name says what it is about, from the whole to
the part, so that what is meant to change can be separated from what is not.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ttamer as tt
from golden import files, fits
from golden.parts import GROUPS, Entries, flat, group, loaded, reported, rows_of, saved_bytes
from ttamer import datasets
from ttamer.artefact.records import describe

assert files.FILES  # groups of other modules are listed when these are imported
assert fits.FITS

# Problems that were written down.


def line(moves: str = "walk") -> tt.Problem:
    return tt.Problem.line(
        losses=[[0.02, 0.15, 0.45], [0.03, 0.12, 0.40], [0.04, 0.10, 0.30]],
        costs=[0.02, 0.15, 1.0],
        probabilities=[
            [0.55, 0.25, 0.20],
            [[0.80, 0.15, 0.05], [0.45, 0.35, 0.20], [0.20, 0.30, 0.50]],
            [[0.85, 0.12, 0.03], [0.50, 0.35, 0.15], [0.20, 0.40, 0.40]],
        ],
        names=["small", "middle", "large"],
        moves=moves,
    )


def forest() -> tt.Problem:
    return tt.Problem.forest(
        losses=[0.05, 0.2, 0.6],
        costs=[0.03, 0.1, 0.2, 0.05, 0.4],
        probabilities=[
            [0.3, 0.4, 0.3],
            [[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [0.3, 0.3, 0.4]],
            [[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [0.5, 0.3, 0.2]],
            [0.2, 0.5, 0.3],
            [[0.8, 0.2, 0.0], [0.7, 0.2, 0.1], [0.6, 0.2, 0.2]],
        ],
        parents=[None, 0, 0, None, 3],
        names=["a", "a left", "a right", "b", "b below"],
    )


SOLVED: dict[str, tuple[Callable[[], tt.Problem], bool]] = {
    "line": (line, True),
    "line without recall": (line, False),
    "line as precedence": (lambda: line("precedence"), True),
    "skip": (lambda: tt.Problem.skip_of(line()), True),
    "skip without recall": (lambda: tt.Problem.skip_of(line()), False),
    "forest": (forest, True),
    "two lines": (
        lambda: tt.Problem.multi_line(
            [line("precedence"), tt.Problem.line([0.1, 0.5], [0.2], [[0.4, 0.6]], names=["x"])]
        ),
        True,
    ),
}
TRADEOFFS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 1.0)


def of_tables(solved: tt.Policy | tt.Ladder) -> Entries:
    """What the file of a solved policy holds: its problem, and every table."""
    record, arrays = describe(solved, {})
    for part in ("moves", "names", "sources", "states", "targets"):
        yield f"header problem {part}", getattr(record.solved, part)
    yield "header recall", record.solved.recall
    for name, array in arrays.items():
        yield f"array {name.removeprefix('solved.')}", array
    raw = saved_bytes(solved)
    yield "saved, loaded and saved again", saved_bytes(loaded(raw)) == raw


def of_solved(case: str) -> Entries:
    make, recall = SOLVED[case]
    problem = make()
    ladder = tt.solve_ladder(problem, TRADEOFFS, recall=recall)
    yield "problem", problem.to_dict()
    yield from of_tables(ladder)
    one = tt.solve(problem, 0.8, recall=recall)
    yield from flat("one policy", dict(of_tables(one)))
    yield "values", [policy.value for policy in ladder]
    yield "expected", [[p.expected_loss, p.expected_cost, p.asked] for p in ladder]
    states = np.random.default_rng(5).integers(0, 2**20, (300, len(problem.nodes)))
    states %= [len(node.losses) for node in problem.nodes]
    for policy in ladder:
        for kind, fails in FAILURES.items():
            which = f"at {policy.tradeoff:g}, sessions, {kind}"
            yield which, solved_sessions(policy, states, fails)
    for policy in (ladder[2], ladder.at(0.93)):
        which = f"at {policy.tradeoff:g}"
        places = (None, *problem.names)
        if recall:
            yield f"{which}, thresholds", [policy.threshold(after) for after in places]
            if problem.is_forest:
                yield f"{which}, indices", [policy.index(name) for name in problem.names]
        yield f"{which}, choices", [policy.choice(after) for after in places]
        yield f"{which}, equivalent losses", [policy.equivalent_loss(after) for after in places]
        future = policy.future()
        yield f"{which}, future", [future.losses, future.costs, future.probabilities]
        batch = policy.batch(len(states))
        asked = []
        while batch.running:
            asked.append(batch.next.copy())
            batch.observe(states[np.arange(len(states)), batch.next])
        yield f"{which}, batch asked", np.array(asked)
        yield f"{which}, batch answers", batch.answer
        yield f"{which}, batch costs", batch.cost
        drawn = tt.simulate(policy, 200, seed=4)
        yield f"{which}, simulated", [drawn.answer, drawn.loss, drawn.cost]
    best = tt.optima(problem, 0.8)
    yield "optima", {name: getattr(best, name) for name in ("offline", "online", "no_recall")}


FAILURES: dict[str, Callable[[int, int], bool]] = {
    "nobody fails": lambda row, step: False,
    "the first fails": lambda row, step: step == 0,
    "some fail": lambda row, step: (row + step) % 3 == 0,
}


def solved_sessions(
    policy: Any, states: np.ndarray, fails: Callable[[int, int], bool]
) -> list[str]:
    decisions = []
    for row, own in enumerate(states.tolist()):
        turn = policy.session()
        while turn.next is not None:
            if fails(row, len(turn.asked)):
                turn.fail()
            else:
                turn.observe(own[turn.number])
        decisions.append(f"{'>'.join(turn.asked)}={turn.answer} {turn.cost:.6g}")
    return decisions


for _case in SOLVED:
    GROUPS[f"solved/{_case}"] = functools.partial(of_solved, _case)


@group("cli/solve")
def of_solving() -> Entries:
    with tempfile.TemporaryDirectory() as folder:
        for case in ("line", "forest", "skip"):
            path = Path(folder, f"{case}.json")
            SOLVED[case][0]().to_file(path)
            yield f"{case}, problem.json", path.read_bytes()
            yield from flat(f"{case}, --tradeoff", reported("solve", path, "--tradeoff", 0.8))
            yield from flat(f"{case}, --ladder", reported("solve", path, "--ladder", 5))
        path = Path(folder, "line.json")
        yield from flat("--no-recall", reported("solve", path, "--tradeoff", 0.8, "--no-recall"))


@group("cli/theory")
def of_theory() -> Entries:
    yield from flat("no-recall", reported("theory", "no-recall"))
    yield from flat("if-stop", reported("theory", "if-stop"))


# Traces.


@group("trace")
def of_traces() -> Entries:
    for name in datasets.names():
        yield f"{name}, digest", datasets.load(name).digest
        yield f"{name}, facts", datasets.about(name)
    with tempfile.TemporaryDirectory() as folder:
        trace = rows_of("langid", "fit", 50)
        for suffix in ("csv", "parquet"):
            path = Path(folder, f"trace.{suffix}")
            trace.write(path)
            back = tt.Trace.read(path, cascade=trace.spec)
            yield f"{suffix}, the same when read back", back.digest == trace.digest
            if suffix == "csv":
                # Recorded when the columns of inputs were named signal.<name>.
                yield "csv, bytes", path.read_bytes().replace(b"input.", b"signal.")
