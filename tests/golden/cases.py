"""What is digested: fits, decisions, artefacts and interfaces, as named values.

Every group is a function that yields (name, value). A name says what it is about, from the whole to
the part, so that what is meant to change can be separated from what is not: decisions of a rung
never depend on the name or the tradeoff of the rung.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import ttamer as tt
from golden.canonical import artefact_parts, without_version
from support import experiment_traces
from support.exit_networks import adding_network, batches, evidence, measured
from ttamer import datasets, torch as exits

# What has no public name: when it moves, the move is to be followed here and nowhere else.
from ttamer.artefact.problem import describe_solved
from ttamer.cli import main
from ttamer.fitting import fit_batches
from ttamer.trace.trace import BELIEF_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Entries = Iterator[tuple[str, Any]]

FILES = Path(__file__).parent / "files"
ROWS = 2500
RUNGS = (0, 8, 16, 22, 28, 34, 40, 47)
TOLD_RUNGS = (12, 24, 36)
GROUPS: dict[str, Callable[[], Entries]] = {}


def group(name: str) -> Callable[[Callable[[], Entries]], Callable[[], Entries]]:
    """Put a function among the groups; the name stands before those of its entries."""

    def put(entries: Callable[[], Entries]) -> Callable[[], Entries]:
        GROUPS[name] = entries
        return entries

    return put


# Fits.


@functools.cache
def rows_of(name: str, part: str, count: int = ROWS) -> tt.Trace:
    return experiment_traces.load(name, part).take(slice(count))


FITS: dict[str, Callable[[], tt.FittedLadder]] = {}
for _name in ("langid", "vgg11-cifar10", "minilm-imdb"):
    FITS[f"{_name} full"] = lambda name=_name: tt.fit(rows_of(name, "fit"))
    for _belief in ("calibrated", "none"):
        FITS[f"{_name} {_belief}"] = lambda name=_name, belief=_belief: tt.fit(
            rows_of(name, "fit"), belief=belief, states=8
        )
FITS |= {
    "minilm-imdb threshold": lambda: tt.fit(rows_of("minilm-imdb", "fit"), belief="threshold"),
    "vgg11-cifar10 full, few rows": lambda: tt.fit(rows_of("vgg11-cifar10", "fit", 400)),
    "minilm-imdb calibrated, states chosen": lambda: tt.fit(
        rows_of("minilm-imdb", "fit", 200), belief="markov", quantise="kmeans"
    ),
    "langid calibrated, skip": lambda: tt.fit(
        rows_of("langid", "fit", 1000), belief="markov", states=6
    ),
    "langid calibrated, any": lambda: tt.fit(
        rows_of("langid", "fit", 1000), belief="markov", states=6
    ),
    "langid full, held out": lambda: tt.fit(rows_of("langid", "fit"), hold_out=0.2),
    "minilm-imdb full, held out": lambda: tt.fit(rows_of("minilm-imdb", "fit"), hold_out=0.3),
    "minilm-imdb stream": lambda: fit_batches(
        lambda: (
            rows_of("minilm-imdb", "fit").take(slice(k, k + 700)) for k in range(0, ROWS, 700)
        ),
        sample_rows=800,
        belief="markov",
        states=8,
    ),
}


@functools.cache
def ladder_of(case: str) -> tt.FittedLadder:
    return FITS[case]()


def test_rows(case: str, count: int) -> tt.Trace:
    return rows_of(case.split()[0], "test", count)


def saved_bytes(policy: Any, **options: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.ttamer")
        tt.save(policy, path, **options)
        return path.read_bytes()


def loaded(raw: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.ttamer")
        path.write_bytes(raw)
        return tt.load(path)


def of_artefact(policy: Any) -> Entries:
    """What the file of a policy says: its header field by field, and every array."""
    raw = saved_bytes(policy)
    header, arrays = artefact_parts(raw)
    for key, value in header.items():
        parts = value.items() if key in ("belief", "fit", "problem") else [("", value)]
        for part, each in parts:
            yield f"header {key} {part}".strip(), each
    for key, array in arrays.items():
        yield f"array {key}", array
    yield "saved, loaded and saved again", saved_bytes(loaded(raw)) == raw


def of_fit(case: str) -> Entries:
    ladder = ladder_of(case)
    yield from of_artefact(ladder)
    yield "count of rungs", len(ladder)
    yield "rungs' tradeoffs", [policy.tradeoff for policy in ladder]
    rungs = ladder.rungs
    yield "rungs' errors", rungs.errors
    yield "rungs' costs", rungs.costs
    yield "rungs' corners", rungs.corners


for _case in FITS:
    GROUPS[f"fit/{_case}"] = functools.partial(of_fit, _case)


# Decisions of what was fitted.


def sessions(
    policy: Any,
    trace: tt.Trace,
    *,
    fails: Callable[[int, int], bool] = lambda row, step: False,
    odd: Callable[[int, int], bool] = lambda row, step: False,
    keys: Callable[[int], Any] = lambda row: None,
    **options: Any,
) -> tuple[list[str], list[Any]]:
    """Return per row whom a session asks and whose answer it returns, and what that cost.

    At some steps, of row and step, a node fails, or is not sure of anything and says something new.
    """
    names, classes = trace.names, (*trace.classes, None)
    sure = trace.confidence.tolist()
    said = [[-1] * len(names)] * len(trace)
    if trace.prediction is not None:
        said = trace.prediction.tolist()
    decisions, costs = [], []
    for row in range(len(trace)):
        signals = {name: float(values[row]) for name, values in trace.signals.items()}
        turn = policy.session(signals=signals, key=keys(row), **options)
        step = 0
        while turn.next is not None:
            node = names.index(turn.next)
            if fails(row, step):
                turn.fail()
            elif odd(row, step):
                turn.observe(confidence=float("nan"), prediction="never heard of")
            else:
                turn.observe(
                    confidence=sure[row][node],
                    prediction=classes[said[row][node]],
                    **columns_of(trace, row, node),
                )
            step += 1
        more = "!" * getattr(turn, "capped", False) + "?" * turn.unclear
        decisions.append(f"{'>'.join(turn.asked)}={turn.answer}{more}")
        costs.append(turn.cost)
    return decisions, costs


def columns_of(trace: tt.Trace, row: int, node: int) -> dict[str, float]:
    """Return the margin and the entropy of an answer, where the trace has them."""
    return {name: float(trace.extras[name][row, node]) for name in BELIEF_FIELDS
            if name in trace.extras}  # fmt: skip


def played(policy: Any, trace: tt.Trace) -> list[str]:
    """Return per row whose answer is returned, who was asked last, and a mark for all asked."""
    done = policy.play(trace)
    return [
        f"{answer} {last} {''.join('01'[each] for each in asked)}"
        for answer, last, asked in zip(
            done.answer.tolist(), done.last.tolist(), done.asked.tolist(), strict=True
        )
    ]


def of_decisions(case: str) -> Entries:
    ladder, rows = ladder_of(case), test_rows(case, 400)
    yield "replay of all rungs", [" ".join(played(policy, rows)) for policy in ladder]
    for rung in RUNGS:
        yield f"replay of rung {rung}", played(ladder[rung], test_rows(case, 2000))
    few = rows.take(slice(150))
    cost = few.spec.costs
    for rung in TOLD_RUNGS:
        policy = ladder[rung]
        decisions, costs = sessions(policy, few)
        yield f"sessions of rung {rung}", decisions
        yield f"sessions of rung {rung}, costs", costs
        yield (
            f"sessions of rung {rung}, the first node fails",
            sessions(policy, few, fails=lambda row, step: step == 0)[0],
        )
        yield (
            f"sessions of rung {rung}, nodes fail",
            sessions(policy, few, fails=lambda row, step: (row + step) % 3 == 0)[0],
        )
        yield (
            f"sessions of rung {rung}, odd answers",
            sessions(policy, few, odd=lambda row, step: (row + step) % 2 == 0)[0],
        )
        for share in (0.1, 0.5, 1.2):
            cap = max(share * float(cost.sum()), float(cost.min()), float(cost[0]))
            yield (
                f"sessions of rung {rung}, capped at {share}",
                sessions(policy, few, max_cost=cap, fails=lambda row, step: (row + step) % 5 == 0)[
                    0
                ],
            )
    steps = [
        step
        for rung in TOLD_RUNGS
        for row in range(10)
        for step in told_why(ladder[rung], few, row)
    ]
    yield from listed("explained", steps)


def told_why(policy: Any, trace: tt.Trace, row: int) -> list[dict[str, Any]]:
    """Return what a session says of itself before and after each step, by key."""
    signals = {name: float(values[row]) for name, values in trace.signals.items()}
    turn = policy.session(signals=signals)
    reported = [turn.explain().to_dict()]
    while turn.next is not None:
        node = trace.names.index(turn.next)
        code = -1 if trace.prediction is None else int(trace.prediction[row, node])
        turn.observe(
            confidence=float(trace.confidence[row, node]),
            prediction=(*trace.classes, None)[code],
            **columns_of(trace, row, node),
        )
        reported.append(turn.explain().to_dict())
    return reported


for _case in FITS:
    GROUPS[f"decisions/{_case}"] = functools.partial(of_decisions, _case)


@group("evaluate")
def of_evaluation() -> Entries:
    for case in ("langid full", "langid calibrated", "vgg11-cifar10 full", "minilm-imdb none"):
        for rung in (16, 34):
            result = tt.evaluate(ladder_of(case)[rung], test_rows(case, 2000))
            yield f"{case}, rung {rung}", result.to_dict()


def rung_of(ladder: tt.FittedLadder, policy: tt.FittedPolicy) -> int:
    return [each.tradeoff for each in ladder].index(policy.tradeoff)


def of_mixture(ladder: tt.FittedLadder, mixed: tt.Mixture) -> Entries:
    yield "rungs", [rung_of(ladder, mixed.cheap), rung_of(ladder, mixed.expensive)]
    yield "share, error, cost", [mixed.share, mixed.error, mixed.cost]
    promise = mixed.promise
    yield "promise", None if promise is None else promise.to_dict()
    yield "promise in words", str(promise)


@group("mixture")
def of_mixtures() -> Entries:
    for case in ("langid full, held out", "minilm-imdb full, held out", "langid calibrated"):
        ladder, rows = ladder_of(case), test_rows(case, 150)
        low, high = (float(ladder.rungs.costs[list(ladder.rungs.corners)][k]) for k in (0, -1))
        for share in (0.05, 0.3, 0.7, 1.5):
            mixed = ladder.for_budget(low + share * (high - low), seed=3)
            for part, value in of_mixture(ladder, mixed):
                yield f"{case}, budget {share}, {part}", value
            yield f"{case}, budget {share}, replay", played(mixed, rows)
            numbered, _ = sessions(mixed, rows, keys=int)
            yield f"{case}, budget {share}, sessions by number", numbered
            yield (
                f"{case}, budget {share}, sessions by key",
                sessions(mixed, rows, keys=lambda row: f"request-{row}")[0],
            )
            again, _ = sessions(ladder.for_budget(low + share * (high - low), seed=3), rows)
            yield (
                f"{case}, budget {share}, sessions as they come are those by number",
                (again == numbered),
            )
        on = None if ladder.held is not None else rows_of(case.split()[0], "test")
        for at_most in (0.02, 0.1, 0.2):
            for part, value in of_mixture(ladder, ladder.for_error(at_most, on=on)):
                yield f"{case}, error {at_most}, {part}", value
        for at_most in (0.005, 0.05):
            mixed = ladder.for_drop(at_most, confidence=0.9, on=on)
            for part, value in of_mixture(ladder, mixed):
                yield f"{case}, drop {at_most}, {part}", value


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
    record, arrays = describe_solved(solved.policies if hasattr(solved, "policies") else [solved])
    for part in ("moves", "names", "sources", "states", "targets"):
        yield f"header problem {part}", getattr(record, part)
    yield "header recall", record.recall
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


# Networks.


@functools.cache
def network_ladder(belief: str, skip: bool) -> tt.FittedLadder:
    inputs, labels = evidence(2000, seed=1)
    trace = exits.trace_of(
        adding_network(), batches(inputs, labels), spec=measured().spec(skip=skip)
    )
    return tt.fit(trace, belief=belief, states=None if belief == "full" else 8)


def of_network(belief: str, skip: bool) -> Entries:
    torch.set_num_threads(1)
    ladder = network_ladder(belief, skip)
    yield from of_artefact(ladder)
    inputs, _ = evidence(300, seed=2, broken=0.05)
    for rung in RUNGS:
        runner = exits.Runner(adding_network(), ladder[rung])
        answers = runner(inputs)
        yield f"rung {rung}", answered(answers)
        yield f"rung {rung}, exits reached", runner.reached
        yield f"rung {rung}, logits", answers.logits.numpy()
        together = [each for part in runner.stream(inputs.split(37)) for each in answered(part)]
        yield f"rung {rung}, a stream decides alike", together == answered(answers)
        early = {}
        for positions, part in runner.early(inputs):
            early |= dict(zip(positions.tolist(), answered(part), strict=True))
        yield f"rung {rung}, early", [early[row] for row in range(len(inputs))]


def answered(answers: exits.Answers) -> list[str]:
    return [
        f"{exit_} {''.join('01'[each] for each in asked)} {said}"
        for exit_, asked, said in zip(
            answers.exit.tolist(), answers.asked.tolist(), answers.prediction.tolist(), strict=True
        )
    ]


for _belief in ("full", "calibrated", "none"):
    for _skip in (False, True):
        GROUPS[f"network/{_belief}, {'skip' if _skip else 'fixed'}"] = functools.partial(
            of_network, _belief, _skip
        )


# Files that were written once: what is read from them never changes.


def promising(case: str, **options: Any) -> tt.FittedLadder:
    ladder = tt.fit(
        rows_of(case, "fit", 900), tradeoffs=OLD_TRADEOFFS[case], hold_out=0.3, **options
    )
    return ladder.with_promise(ladder.for_error(0.3)).with_promise(ladder.for_drop(0.05))


OLD_TRADEOFFS = {"langid": (0.5, 0.999, 0.9999, 1.0), "minilm-imdb": (0.3, 0.8, 0.9, 0.99)}
OLD_FILES: dict[str, Callable[[], Any]] = {
    "policy-line": lambda: tt.solve(line(), 0.9),
    "ladder-forest": lambda: tt.solve_ladder(forest(), (0.5, 0.9)),
    "ladder-confidence": lambda: promising("minilm-imdb", belief="markov", states=4),
    "ladder-index": lambda: promising("langid", belief="markov", order="any", states=4),
    "ladder-belief": lambda: promising("minilm-imdb", states=8),
    "ladder-belief-any": lambda: promising("langid", order="any", states=4),
    "policy-belief": lambda: promising("minilm-imdb", states=4)[1],
}


def of_file(name: str) -> Entries:
    raw = (FILES / f"{name}.ttamer").read_bytes()
    yield "inspected", tt.inspect(FILES / f"{name}.ttamer")
    policy = tt.load(FILES / f"{name}.ttamer")
    yield "kind", type(policy).__name__
    notes = tt.inspect(FILES / f"{name}.ttamer")["notes"]
    again = saved_bytes(policy, notes=notes)
    yield "saved again, without the version", without_version(again)
    yield (
        "saved again, the same but for the version",
        (without_version(again) == without_version(raw)),
    )
    if name in ("policy-line", "ladder-forest"):
        one = policy if name == "policy-line" else policy[1]
        states = np.random.default_rng(6).integers(0, 3, (300, len(one.problem.nodes)))
        for kind, fails in FAILURES.items():
            yield f"sessions, {kind}", solved_sessions(one, states, fails)
        return
    policies = policy if hasattr(policy, "rungs") else [policy]
    source = "langid" if "cld2" in policies[0].spec.names else "minilm-imdb"
    for rung, one in enumerate(policies):
        yield f"rung {rung}, replay", played(one, rows_of(source, "test", 1000))
        decisions, costs = sessions(one, rows_of(source, "test", 100))
        yield f"rung {rung}, sessions", decisions
        yield f"rung {rung}, sessions, costs", costs
    if hasattr(policy, "rungs"):
        yield "promises", [promise.to_dict() for promise in policy.promises]
        for promise in policy.promises:
            for part, value in of_mixture(policy, policy.mixture_for(promise)):
                yield f"keeping the promise of {promise.kind}, {part}", value
        for part, value in of_mixture(policy, policy.for_error(0.25)):
            yield f"another promise, {part}", value


for _name in OLD_FILES:
    GROUPS[f"file/{_name}"] = functools.partial(of_file, _name)


# The command line.


def reported(*arguments: object) -> Any:
    """Return the JSON that a command prints, and its exit code where that is 1: not certified."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*map(str, arguments), "--json"])
    if code > 1:
        raise RuntimeError(f"ttamer {arguments[0]} ended with {code}")
    return json.loads(out.getvalue()) | ({"exit code": code} if code else {})


def exported(folder: str, name: str, fit: int, test: int) -> tuple[Path, Path, Path]:
    """Write this many rows of a shipped trace, to fit on and to test on, and its cascade."""
    paths = (Path(folder, "fit.npz"), Path(folder, "test.npz"), Path(folder, "cascade.toml"))
    rows_of(name, "fit", fit).write(paths[0])
    rows_of(name, "test", test).write(paths[1])
    rows_of(name, "fit", fit).spec.to_file(paths[2])
    return paths


def flat(name: str, facts: dict[str, Any]) -> Entries:
    for key, value in facts.items():
        yield f"{name}, {key}", value


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


@group("cli/inspect")
def of_inspecting() -> Entries:
    for name in OLD_FILES:
        yield from flat(name, reported("inspect", FILES / f"{name}.ttamer"))


def listed(name: str, facts: list[dict[str, Any]]) -> Entries:
    """The facts of policies, key by key."""
    for key in facts[0]:
        yield f"{name}, {key}", [each[key] for each in facts]


@group("cli/fit, evaluate and certify")
def of_fitting() -> Entries:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("langid", "minilm-imdb"):
            fit, test, cascade = exported(folder, name, 2100, 250)
            yield f"{name}, cascade.toml", cascade.read_bytes()
            yield f"{name}, trace digests", [tt.Trace.read(path).digest for path in (fit, test)]
            for options in (
                ("--belief", "markov", "--hold-out", 0.25, "--states", 6),
                ("--order", "fixed", "--hold-out", 0.25),
                ("--belief", "markov", "--stream", "--states", 6),
            ):
                output = Path(folder, "policy.ttamer")
                which = f"{name} {' '.join(map(str, options))}"
                found = reported("fit", fit, "--cascade", cascade, "-o", output, *options)
                for key, value in flat(f"{which}, fit", found):
                    yield key, str(value).replace(folder, "") if isinstance(value, str) else value
                yield from flat(f"{which}, file", dict(of_artefact(tt.load(output))))
                facts = reported("evaluate", output, test)
                yield from listed(f"{which}, evaluate", facts["policies"])
                budget = sorted(tt.load(output).rungs.costs.tolist())[30]
                facts = reported("evaluate", output, test, "--budget", budget)
                yield from listed(f"{which}, evaluate --budget", facts["policies"])
                if "--hold-out" in options:
                    facts = reported("certify", output, "--error", 0.2)
                    yield f"{which}, certify", [facts["promises"], facts.get("exit code")]
                    facts = reported("certify", output, test, "--drop", 0.05)
                    yield (
                        f"{which}, certify on other rows",
                        [facts["promises"], facts.get("exit code")],
                    )


@group("cli/theory")
def of_theory() -> Entries:
    yield from flat("no-recall", reported("theory", "no-recall"))
    yield from flat("if-stop", reported("theory", "if-stop", "--no-figure"))


@group("cli/frontier")
def of_frontier() -> Entries:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("langid", "vgg11-cifar10"):
            fit, test, cascade = exported(folder, name, 300, 300)
            output = Path(folder, "frontier.json")
            facts = reported(
                "frontier", "--fit", fit, "--test", test, "--cascade", cascade, "-o", output,
                "--resamples", 50,
            )  # fmt: skip
            yield (
                f"{name}, what is written is what is printed",
                (json.loads(output.read_text("utf-8")) == facts),
            )
            points = facts.pop("points")
            for family, about in facts.pop("families").items():
                own = [point for point in points if point["policy"] == family]
                yield from listed(f"{name}, {family}", own)
                yield f"{name}, {family}, summary", about
            yield from flat(name, facts)


# Traces.


@group("trace")
def of_traces() -> Entries:
    for name in datasets.names():
        yield f"{name}, digest", datasets.load(name).digest
        yield f"{name}, facts", datasets.about(name)
    with tempfile.TemporaryDirectory() as folder:
        trace = rows_of("langid", "fit", 50)
        for suffix in ("npz", "csv", "parquet"):
            path = Path(folder, f"trace.{suffix}")
            trace.write(path)
            back = tt.Trace.read(path, cascade=trace.spec)
            yield f"{suffix}, the same when read back", back.digest == trace.digest
            if suffix == "csv":
                yield "csv, bytes", path.read_bytes()
