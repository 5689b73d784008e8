"""``ttamer solve`` and ``theory``: the policy of a problem, and the paper's demonstrations."""

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
from ttamer.theory import EXPERIMENTS, experiment
from ttamer.theory.optimum import Optima, impossibility, needle, optima

# To the prophet's value.
RATIOS = ("ratio", "ratio_without_recall")
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
        facts, text = _solved(solved, optima(stated, solved.tradeoff))
    else:
        steps = (ladder or 2) - 1
        solved = solve_ladder(stated, [i / steps for i in range(steps + 1)], **settings)
        keys = ("tradeoff", "value", "expected_loss", "expected_cost")
        policies = [{key: getattr(policy, key) for key in keys} for policy in solved]
        facts = {"moves": stated.moves, "recall": solved[0].recall, "policies": policies}
        text = f"{_title(stated)}, {counted(len(solved), 'tradeoff')}\n\n{cli.records(policies)}"
    if output:
        save(solved, output)
        text += f"\n\n  written to {output}"
    if draw and isinstance(solved, Policy):
        solved.plot(draw)
        text += f"\n\n  drawn in {draw}"
    cli.show(facts, text)


def _solved(policy: Policy, best: Optima) -> tuple[dict[str, Any], str]:
    """Return the policy as facts, and as text: its value, and what it does after each state."""
    problem, weight, nodes, rows, indices = policy.problem, policy.tradeoff, [], [], []
    has_indices = isinstance(policy, IndexPolicy) or (
        isinstance(policy, WalkPolicy) and policy.recall and problem.is_line
    )
    for name, chance in policy.asked.items():
        rules = policy.rules(name)
        fact = {"name": name, "asked": chance, "rules": [asdict(rule) for rule in rules]}
        nodes.append(fact)
        head = [name, f"{chance:.1%}"]
        for rule in rules[:MAX_STATES]:
            onward = " or ".join(rule.ask) or "-"
            rows.append([*head, str(rule.state), number(rule.loss), rule.stop_text, onward])
            head = ["", ""]
        if len(rules) > MAX_STATES:
            rows.append([*head, "...", f"{len(rules)} states", "all in --json", ""])
        if has_indices:
            parent = problem.parent_edge(problem.number[name]).source
            fact["index"], head = policy.index(name), [name, str(parent or "the start")]
            for state, index in enumerate(policy.index(name)[:MAX_STATES].tolist()):
                loss = number(index / weight) if weight else "inf"
                indices.append([*head, "-" if parent is None else str(state), loss])
                head = ["", ""]
    facts = {
        "moves": problem.moves,
        "recall": policy.recall,
        "tradeoff": weight,
        "value": policy.value,
        "bound": policy.value if policy.bound is None else policy.bound,
        "expected_loss": policy.expected_loss,
        "expected_cost": policy.expected_cost,
        "optima": vars(best) | {key: getattr(best, key) for key in RATIOS},
        "first": policy.session().next,
        "nodes": nodes,
    }
    cap = policy.cap if isinstance(policy, JointPolicy) else None
    title = [_title(problem), f"tradeoff {weight:g}", *["no recall"] * (not policy.recall)]
    title += [] if cap is None else [f"at most {cap.limit:g} an input"]
    paragraphs = [
        ", ".join(title),
        f"  value {number(policy.value)} = {weight:g} x loss {number(policy.expected_loss)}"
        f" + {1 - weight:g} x cost {number(policy.expected_cost)}",
        _rivals(policy, best),
        f"First ask {facts['first']}. Then, losses in their own unit:",
        table(["after", "asked", "state", "its loss", "stop if best loss <=", "else ask"], rows),
    ]
    if indices and not problem.is_line:
        paragraphs += [
            "The node of least index that may be asked is next, while the best loss is above:",
            table(["node", "after", "in state", "index"], indices),
        ]
    return facts, "\n\n".join(paragraphs)


def _rivals(policy: Policy, best: Optima) -> str:
    """Return a table of what the policy is measured against."""
    worse = f", at most {policy.ratio:.4g} times the best" if policy.ratio > 1 else ""
    at_most = "" if best.online_bound is None else ", at least"
    rows = [
        ("this policy" + worse, policy.value),
        ("a prophet that sees every loss", best.offline),
        ("the best policy with recall" + at_most, best.online_bound or best.online),
        ("the best policy without", best.no_recall),
    ]
    ratios = {name: best.ratio_of(value) for name, value in rows}
    return cli.records(
        [
            {"weighed loss and cost of": name, "value": value, "to the prophet": ratios[name]}
            for name, value in rows
            if value is not None
        ]
    )


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
    examples = []
    for x in sorted({2.0, 10.0, 100.0, 1000.0, alpha}):
        best = impossibility(x)
        values = {"no_recall": best.no_recall, "recall": best.online, "prophet": best.offline}
        ratios = {"ratio": best.ratio_without_recall, "ratio_with_recall": best.ratio}
        examples.append({"alpha": x, **values, **ratios})
    many = []
    for nodes in (10, 100, 1000):
        best = needle(nodes)
        values = {"recall": best.online, "prophet": best.offline, "ratio": best.ratio}
        many.append({"nodes": nodes, **values})
    tables = cli.records(examples), cli.records(many)
    cli.show(
        {"examples": examples, "many": many},
        "Two nodes, asking is free. The first loses 1/alpha^2; the second loses 1/alpha with\n"
        f"probability 1/alpha, else nothing. Expected losses:\n\n{tables[0]}\n\n"
        "Without recall the ratio to the prophet is alpha: no bound. With recall both nodes\n"
        "are asked, the better answer kept, and the gap is gone.\n\n"
        "What recall does not change: a prophet also sees which node to ask. Many equal nodes,\n"
        f"each perfect with a small probability and worth exactly its cost:\n\n{tables[1]}\n\n"
        "So policies with recall are measured against the online optimum, and reach it.",
    )


@theory_command.command("if-stop", cls=cli.Command)
def if_stop_command() -> None:
    """When fixed thresholds are optimal, and when they are not.

    The paper's synthetic experiments: the best fixed threshold against the optimum.
    """
    facts, rows = [], []
    for name in EXPERIMENTS:  # 6 nodes, as in the paper
        e = experiment(name)
        excess = {"with_recall": e.excess_with_recall, "without_recall": e.excess_without_recall}
        facts.append({"losses": name, "optimum": e.policy.value, "index_range": e.index_range})
        facts[-1] |= {f"excess_{kind}": value for kind, value in excess.items()}
        ends = " to ".join(dict.fromkeys(map(number, e.index_range)))  # equal but for rounding
        rows.append([name, number(e.policy.value), ends])
        rows[-1] += [f"{abs(value):.2%}" for value in excess.values()]
    head = ["losses", "optimum", "index", "recall at the end", "no recall"]
    cli.show(
        {"experiments": facts},
        "6 nodes on a line, cost 0.1 each, tradeoff 0.5.\n"
        f"How far the best fixed threshold lies above the optimum:\n\n{table(head, rows)}\n\n"
        "For independent identical losses every index is the same number, so one threshold\n"
        "with recall at the end is optimal. Only correlation (or unequal nodes) makes the\n"
        "decision depend on the current state. make paper draws the matrices.",
    )


@theory_command.command("figure")
@click.argument("name", metavar="NUMBER")
@cli.option("--to", "FOLDER", "Where to write it.", default="paper")
def figure_command(name: str, to: str) -> None:
    """Make figure or table NUMBER of the paper (1 to 8, t1 to t3), in a clone of the repository."""
    script = Path("experiments", "paper", "make.py")
    if not script.is_file():
        raise ArgumentError(
            "theory figure needs the data of experiments: run it in the root of a clone of the "
            "repository (make paper makes all figures)"
        )
    module = runpy.run_path(str(script))
    if name not in module["FIGURES"]:
        names = ", ".join(module["FIGURES"])
        raise ArgumentError(f"there is no figure {name!r}; there are {names}")
    module["main"](["--only", name, "--to", to])
