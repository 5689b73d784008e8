"""``ttamer solve`` and ``theory``: the policy of a problem, and the paper's demonstrations."""

import math
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer._checks import counted, number
from ttamer.artefact.file import save
from ttamer.errors import ArgumentError
from ttamer.policy import IndexPolicy, JointPolicy, Ladder, Policy, WalkPolicy
from ttamer.problem.problem import Problem
from ttamer.show import table
from ttamer.solvers import solve, solve_ladder
from ttamer.theory import EXPERIMENTS, contract, experiment
from ttamer.theory.optimum import Optima, impossibility, needle, optima

# The most states of a node that a table shows.
MAX_STATES = 8


@cli.command("solve")
@click.argument("problem")
@cli.number("--tradeoff", "L", "0: only cost counts; 1: only loss counts.")
@cli.option("--ladder", "N", "Solve N tradeoffs from 0 to 1.", type=click.IntRange(2))
@cli.flag("--no-recall", help="The last node asked must answer (a walk or line).")
@cli.number("--max-cost", "C", "The most that one input may cost.")
@cli.output_option("Write the policy as FILE.ttamer.", cli.POLICY)
@cli.option("--draw", "FILE", "Draw the policy as FILE.svg.", type=cli.Output(".svg"))
def solve_command(
    problem: str,
    tradeoff: float | None,
    ladder: int | None,
    no_recall: bool,
    max_cost: float | None,
    output: str | None,
    draw: str | None,
) -> None:
    """Compute the optimal policy of PROBLEM, a problem.json.

    Prints when to stop, which node to ask next, and the value; with --ladder, the frontier.
    """
    if (tradeoff is None) == (ladder is None):
        raise click.UsageError("give one of --tradeoff L, for one policy, and --ladder N")
    if draw and ladder is not None:
        raise ArgumentError("--draw needs --tradeoff: a ladder has many policies")
    stated = Problem.from_file(problem)
    if output:  # before the work
        is_walk = stated.is_line or stated.moves == "walk"
        if stated.has_joint_edges or max_cost is not None:
            raise ArgumentError(
                "a policy that depends on all that was asked (a node with several parents, or "
                "--max-cost) is in no file: leave out -o, and solve the problem where it is used"
            )
        if ladder is not None and stated.has_unseen_answers and not is_walk:
            raise ArgumentError(
                "on a forest with verify_cost each tradeoff has a problem of its own, and a file "
                "has one: leave out -o, or give --tradeoff"
            )
    settings: dict[str, Any] = {"recall": not no_recall, "max_cost": max_cost}
    solved: Policy | Ladder
    if tradeoff is not None:
        solved = solve(stated, tradeoff, **settings)
        best = optima(stated, solved.tradeoff)
        facts, text = _facts(solved, best), _text(solved, best)
    else:
        steps = (ladder or 2) - 1
        solved = solve_ladder(stated, [i / steps for i in range(steps + 1)], **settings)
        facts, text = _ladder_facts(solved), _ladder_text(solved)
    if output:
        save(solved, output)
        text += f"\n\n  written to {output}"
    if draw and isinstance(solved, Policy):
        solved.plot(draw)
        text += f"\n\n  drawn in {draw}"
    cli.show(facts, text)


def _facts(policy: Policy, best: Optima) -> dict[str, Any]:
    """Return everything about the policy, as plain values."""
    problem, nodes = policy.problem, []
    names = (*problem.names, None)  # -1 is no node
    # Where all that was asked matters, no table is of one node alone.
    is_local = not isinstance(policy, JointPolicy)
    for name, chance in policy.asked.items():
        fact: dict[str, Any] = {"name": name, "asked": chance}
        if _has_indices(policy):
            fact["index"] = policy.index(name)
        if is_local and (problem.is_line or isinstance(policy, WalkPolicy)):
            if policy.recall:
                fact["threshold"] = policy.threshold(name)
            fact["if_stop"] = policy.if_stop(name)
            routes = policy.choice(name).tolist()
            fact["choice"] = [[names[target] for target in row] for row in routes]
        fact["rules"] = [asdict(rule) for rule in policy.rules(name)]
        nodes.append(fact)
    ratios = {key: getattr(best, key) for key in ("ratio", "ratio_without_recall")}
    return {
        "moves": problem.moves,
        "recall": policy.recall,
        "tradeoff": policy.tradeoff,
        "value": policy.value,
        "bound": policy.value if policy.bound is None else policy.bound,
        "expected_loss": policy.expected_loss,
        "expected_cost": policy.expected_cost,
        "optima": vars(best) | ratios,
        "first": policy.session().next,
        "columns": problem.grid.values if policy.recall else None,
        "nodes": nodes,
    }


def _text(policy: Policy, best: Optima) -> str:
    """Return the value, what it is measured against, and what is done after each state."""
    weight, cap = policy.tradeoff, policy.cap if isinstance(policy, JointPolicy) else None
    title = [_title(policy.problem), f"tradeoff {weight:g}", *["no recall"] * (not policy.recall)]
    title += [] if cap is None else [f"at most {cap.limit:g} an input"]
    rivals = []
    for name, value in _rivals(policy, best):
        ratio = best.ratio_of(value)
        rivals.append([name, number(value), "-" if ratio is None else f"{ratio:.4g}"])
    paragraphs = [
        ", ".join(title),
        f"  value {number(policy.value)} = {weight:g} x loss {number(policy.expected_loss)}"
        f" + {1 - weight:g} x cost {number(policy.expected_cost)}",
        table(["weighted expected loss and cost", "value", "to the prophet"], rivals),
        f"First ask {policy.session().next}. Then, losses in their own unit:",
        table(
            ["after", "asked", "state", "its loss", "stop if best loss <=", "else ask"],
            _rules(policy),
        ),
    ]
    if _has_indices(policy) and not policy.problem.is_line:
        paragraphs += [
            "The node of least index that may be asked is next, while the best loss is above:",
            table(["node", "after", "in state", "index"], _indices(policy)),
        ]
    return "\n\n".join(paragraphs)


def _rivals(policy: Policy, best: Optima) -> list[tuple[str, float]]:
    """Return what the policy is measured against, in words, and its value."""
    is_capped = isinstance(policy, JointPolicy) and policy.cap is not None
    worse = f"at most {policy.ratio:.4g} times " if policy.ratio > 1 else ""
    mark = "" if worse or is_capped else " (this one)"
    rows = [("a prophet that sees every loss", best.offline)]
    if best.online_bound is None or is_capped:
        rows.append(("the best policy with recall" + mark * policy.recall, best.online))
    else:
        rows.append(("no policy with recall is below", best.online_bound))
        rows.append((f"this policy, {worse}the best", best.online))
    if is_capped:
        rows.append((f"this policy, {worse}the best under the cap", policy.value))
    rows.append(("the best policy without" + mark * (not policy.recall), best.no_recall))
    return [(name, value) for name, value in rows if value is not None]


def _has_indices(policy: Policy) -> bool:
    """Return whether nodes have indices of their own."""
    if isinstance(policy, WalkPolicy):
        return policy.recall and policy.problem.is_line
    return isinstance(policy, IndexPolicy)


def _rules(policy: Policy) -> list[list[str]]:
    """Return one row per node and state: when to stop there, and which node to ask otherwise."""
    rows = []
    for name, chance in policy.asked.items():
        head, rules = [name, f"{chance:.1%}"], policy.rules(name)
        for rule in rules[:MAX_STATES]:
            onward = " or ".join(rule.ask) or "-"
            rows.append([*head, str(rule.state), number(rule.loss), rule.stop_text, onward])
            head = ["", ""]
        if len(rules) > MAX_STATES:
            rows.append([*head, "...", f"{len(rules)} states", "all in --json", ""])
    return rows


def _indices(policy: Policy) -> list[list[str]]:
    """Return one row per node and state of its parent, in units of loss."""
    problem, rows = policy.problem, []
    for name in problem.names:
        parent = problem.parent_edge(problem.number[name]).source
        head = [name, str(parent or "the start")]
        for state, index in enumerate(policy.index(name)[:MAX_STATES].tolist()):
            loss = index / policy.tradeoff if policy.tradeoff else math.inf
            rows.append([*head, "-" if parent is None else str(state), number(loss)])
            head = ["", ""]
    return rows


def _ladder_facts(ladder: Ladder) -> dict[str, Any]:
    keys = ("tradeoff", "value", "expected_loss", "expected_cost")
    policies = [{key: getattr(policy, key) for key in keys} for policy in ladder]
    return {"moves": ladder.problem.moves, "recall": ladder[0].recall, "policies": policies}


def _ladder_text(ladder: Ladder) -> str:
    rows = [[p.tradeoff, p.expected_loss, p.expected_cost, p.value] for p in ladder]
    frontier = _numbers(["tradeoff", "expected loss", "expected cost", "value"], rows)
    return f"{_title(ladder.problem)}, {counted(len(ladder), 'tradeoff')}\n\n{frontier}"


def _numbers(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table of numbers; None where one is not defined."""
    return table(head, [["-" if x is None else number(x) for x in row] for row in rows])


def _title(problem: Problem) -> str:
    shape = "line" if problem.is_line else counted(len(problem.edges), "edge")
    return f"{counted(len(problem.nodes), 'node')}, {problem.moves}, {shape}"


@click.group("theory", no_args_is_help=False)
def theory_command() -> None:
    """Run the paper's demonstrations."""


@theory_command.command("no-recall", cls=cli.Command)
@cli.option("--alpha", "A", "Any number above 1.", default=10.0)
def no_recall_command(alpha: float) -> None:
    """Without recall there is no bound on the loss.

    The paper's two-node example: without recall the ratio to a prophet, which sees every loss
    beforehand, is alpha.
    """
    examples = {x: impossibility(x) for x in sorted({2.0, 10.0, 100.0, 1000.0, alpha})}
    example, haystacks = examples[alpha], {count: needle(count) for count in (10, 100, 1000)}
    facts = {
        "alpha": alpha,
        "no_recall": example.no_recall,
        "with_recall": example.online,
        "offline": example.offline,
        "ratio": example.ratio_without_recall,
        "ratio_with_recall": example.ratio,
        "growth": [{"alpha": x, "ratio": e.ratio_without_recall} for x, e in examples.items()],
        "haystacks": [
            {"branches": count, "with_recall": e.online, "offline": e.offline, "ratio": e.ratio}
            for count, e in haystacks.items()
        ],
    }
    rows = [
        [x, e.no_recall, e.online, e.offline, e.ratio_without_recall, e.ratio]
        for x, e in examples.items()
    ]
    head = ["alpha", "no recall", "recall", "prophet", "ratio", "with recall"]
    needles = [[count, e.online, e.offline, e.ratio] for count, e in haystacks.items()]
    cli.show(
        facts,
        "Two nodes, asking is free. The first loses 1/alpha^2; the second loses 1/alpha with\n"
        f"probability 1/alpha, else nothing. Expected losses:\n\n{_numbers(head, rows)}\n\n"
        "Without recall the ratio to the prophet is alpha: no bound. With recall both nodes\n"
        "are asked, the better answer kept, and the gap is gone.\n\n"
        "What recall does not change: a prophet also sees which node to ask. Many equal nodes,\n"
        "each perfect with a small probability and worth exactly its cost:\n\n"
        f"{_numbers(['nodes', 'recall', 'prophet', 'ratio'], needles)}\n\n"
        "So policies with recall are measured against the online optimum, and reach it.",
    )


@theory_command.command("if-stop", cls=cli.Command)
def if_stop_command() -> None:
    """When fixed thresholds are optimal, and when they are not.

    The paper's synthetic experiments: the best fixed threshold against the optimum.
    """
    experiments = [experiment(name) for name in EXPERIMENTS]  # 6 nodes, as in the paper
    facts = [
        {
            "optimum": e.policy.value,
            "losses": e.name,
            "threshold_with_recall": e.with_recall,
            "threshold_without_recall": e.without_recall,
            "excess_with_recall": e.excess_with_recall,
            "excess_without_recall": e.excess_without_recall,
            "index_range": e.index_range,
        }
        for e in experiments
    ]
    rows = []
    for e in experiments:
        ends = " to ".join(dict.fromkeys(map(number, e.index_range)))  # equal but for rounding
        excess = [f"{abs(x):.2%}" for x in (e.excess_with_recall, e.excess_without_recall)]
        rows.append([e.name, number(e.policy.value), ends, *excess])
    head = ["losses", "optimum", "index", "recall at the end", "no recall"]
    cli.show(
        {"experiments": facts},
        "6 nodes on a line, cost 0.1 each, tradeoff 0.5.\n"
        f"How far the best fixed threshold lies above the optimum:\n\n{table(head, rows)}\n\n"
        "For independent identical losses every index is the same number, so one threshold\n"
        "with recall at the end is optimal. Only correlation (or unequal nodes) makes the\n"
        "decision depend on the current state. make paper draws the matrices.",
    )


@theory_command.command("contract", cls=cli.Command)
@click.argument("problem")
@cli.option("--tradeoff", "L", "The weight of the loss.", default=0.5)
def contract_command(problem: str, tradeoff: float) -> None:
    """Contract subtrees of a forest to single nodes, as the paper's Alg. 3 does.

    PROBLEM is a problem.json: a line, multi-line, tree or forest.
    """
    steps = contract(Problem.from_file(problem), tradeoff)
    facts = [vars(step) | {"laws": [vars(law) for law in step.laws]} for step in steps]
    rows = []
    for count, step in enumerate(steps, start=1):
        head = [str(count), " + ".join(step.members)]
        for state, (index, law) in enumerate(zip(step.index.tolist(), step.laws, strict=True)):
            numbers = [str(state), number(index), number(law.mean_cost), str(len(law.costs))]
            rows.append([*head, *numbers])
            head = ["", ""]
    head = ["step", "one node for", "parent state", "index", "mean cost", "atoms"]
    cli.show(
        {"tradeoff": tradeoff, "steps": facts},
        f"Alg. 3 on {problem}, tradeoff {tradeoff:g}: one node for each subtree.\n\n"
        f"{table(head, rows)}\n\n"
        "The law of the one node is the law with its own index in hand. Another fallback has\n"
        "another law, since other nodes are asked: one law for all fallbacks is not enough.",
    )


@theory_command.command("figure")
@click.argument("number")
@cli.option("--to", "FOLDER", "Where to write it.", default="paper")
def figure_command(number: str, to: str) -> None:
    """Make figure or table NUMBER of the paper (1 to 8, t1 to t3), in a clone of the repository."""
    script = Path("experiments", "paper", "make.py")
    if not script.is_file():
        raise ArgumentError(
            "theory figure needs the data of experiments: run it in the root of a clone of the "
            "repository (make paper makes all figures)"
        )
    module = runpy.run_path(str(script))
    if number not in module["FIGURES"]:
        names = ", ".join(module["FIGURES"])
        raise ArgumentError(f"there is no figure {number!r}; there are {names}")
    module["main"](["--only", number, "--to", to])
