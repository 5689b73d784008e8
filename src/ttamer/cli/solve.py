"""``ttamer solve``: the optimal policy of a problem."""

from __future__ import annotations

import argparse
from typing import Any

from ttamer._numbers import counted
from ttamer.policy.base import Ladder, Policy
from ttamer.problem.problem import Problem
from ttamer.theory.optimal_values import Optima

# The most states of a node that the table shows.
MAX_STATES_SHOWN = 8


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "solve",
        help="compute the optimal policy of a problem.json",
        description="Solve a problem.json: when to stop, which node to ask next, and the value.",
        allow_abbrev=False,
    )
    parser.add_argument("problem", help="a problem.json")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--tradeoff", type=float, metavar="L", help="0: only cost counts; 1: only loss counts"
    )
    which.add_argument(
        "--ladder", type=int, metavar="N", help="solve N tradeoffs from 0 to 1: the frontier"
    )
    parser.add_argument(
        "--no-recall", action="store_true", help="the last node asked must answer (a walk or line)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the policy as FILE.ttamer")
    parser.add_argument("--draw", metavar="FILE", help="draw the policy as FILE.svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Solve and print."""
    from ttamer import Problem, save, solve, solve_ladder
    from ttamer.cli.output import as_json
    from ttamer.errors import ArgumentError
    from ttamer.theory.optimal_values import optima

    if args.draw and args.ladder is not None:
        raise ArgumentError("--draw needs --tradeoff: a ladder has many policies")
    problem = Problem.from_file(args.problem)
    recall = not args.no_recall
    if args.ladder is not None:
        if args.ladder < 2:
            raise ArgumentError(f"--ladder needs at least 2 tradeoffs, not {args.ladder}")
        rungs = [i / (args.ladder - 1) for i in range(args.ladder)]
        ladder = solve_ladder(problem, rungs, recall=recall)
        print(as_json(_ladder_facts(ladder)) if args.json else _ladder_text(ladder))
        solved: Policy | Ladder = ladder
    else:
        policy = solve(problem, args.tradeoff, recall=recall)
        best = optima(problem, policy.tradeoff)
        print(as_json(_facts(policy, best)) if args.json else _text(policy, best))
        solved = policy
        if args.draw:
            policy.plot(args.draw)
            if not args.json:
                print(f"\n  drawn in {args.draw}")
    if args.output:
        save(solved, args.output)
        if not args.json:
            print(f"\n  written to {args.output}")


def _facts(policy: Policy, best: Optima) -> dict[str, Any]:
    """Return everything about the policy, as plain values."""
    policy = _tables_of(policy)
    problem = policy.problem
    names = (*problem.names, None)  # -1 is no node

    def routes(after: str | None) -> list[list[str | None]]:
        return [[names[target] for target in row] for row in policy.choice(after).tolist()]

    nodes = []
    for name, chance in policy.asked.items():
        fact: dict[str, Any] = {"name": name, "asked": chance}
        if policy.recall and (problem.is_line or problem.moves == "precedence"):
            fact["index"] = policy.index(name)
        if policy.recall:
            fact["threshold"] = policy.threshold(name)
        nodes.append({**fact, "if_stop": policy.if_stop(name), "choice": routes(name)})
    return {
        "moves": problem.moves,
        "recall": policy.recall,
        "tradeoff": policy.tradeoff,
        "value": policy.value,
        "expected_loss": policy.expected_loss,
        "expected_cost": policy.expected_cost,
        "optima": vars(best),
        "first": routes(None)[0][-1],
        "columns": problem.grid.values if policy.recall else None,
        "nodes": nodes,
    }


def _text(policy: Policy, best: Optima) -> str:
    from ttamer._numbers import number
    from ttamer.cli.output import table

    weight = policy.tradeoff
    title = _title(policy.problem)
    policy = _tables_of(policy)
    names = (*policy.problem.names, None)
    first = names[policy.choice(None)[0, -1]]
    stop = "stop if best loss <=" if policy.recall else "stop"
    against: list[tuple[str, float | None]] = [
        ("a prophet that sees every loss", best.offline),
        ("the best policy with recall" + (" (this one)" if policy.recall else ""), best.online),
        ("the best policy without" + ("" if policy.recall else " (this one)"), best.no_recall),
    ]
    rows = [[what, number(value)] for what, value in against if value is not None]
    lines = [
        f"{title}, tradeoff {weight:g}" + ("" if policy.recall else ", no recall"),
        "",
        f"  value {number(policy.value)} = {weight:g} x loss {number(policy.expected_loss)}"
        f" + {1 - weight:g} x cost {number(policy.expected_cost)}",
        "",
        table(["weighted expected loss and cost", "value"], rows),
        "",
        f"First ask {first}. Then:",
        "",
        table(["after", "asked", "state", "its loss", stop, "else ask"], _rules(policy)),
    ]
    return "\n".join(lines)


def _rules(policy: Policy) -> list[list[str]]:
    """Return one row per node and state: when to stop there, and which node to ask otherwise."""
    from ttamer._numbers import number

    rows = []
    names = policy.problem.names
    for node, (name, chance) in zip(policy.problem.nodes, policy.asked.items(), strict=True):
        choice, losses = policy.choice(name), node.losses.tolist()
        for state, loss in enumerate(losses[:MAX_STATES_SHOWN]):
            targets = sorted({target for target in choice[state].tolist() if target >= 0})
            onward = " or ".join(names[target] for target in targets) or "-"
            stop = "always" if not targets else "no"
            if policy.recall and targets:
                column = int(policy.if_stop(name)[state].sum()) - 1
                stop = number(policy.problem.grid.values[column]) if column >= 0 else "never"
            head = [name, f"{chance:.1%}"] if state == 0 else ["", ""]
            rows.append([*head, str(state), number(loss), stop, onward])
        if len(losses) > MAX_STATES_SHOWN:
            rows.append(["", "", "...", f"{len(losses)} states", "all in --json", ""])
    return rows


def _ladder_facts(ladder: Ladder) -> dict[str, Any]:
    keys = ("tradeoff", "value", "expected_loss", "expected_cost")
    return {
        "moves": ladder.problem.moves,
        "recall": ladder[0].recall,
        "policies": [{key: getattr(policy, key) for key in keys} for policy in ladder],
    }


def _ladder_text(ladder: Ladder) -> str:
    from ttamer._numbers import number
    from ttamer.cli.output import table

    rows = [
        [f"{p.tradeoff:.4g}", number(p.expected_loss), number(p.expected_cost), number(p.value)]
        for p in ladder
    ]
    head = table(["tradeoff", "expected loss", "expected cost", "value"], rows)
    return f"{_title(ladder.problem)}, {counted(len(ladder), 'tradeoff')}\n\n{head}"


def _title(problem: Problem) -> str:
    shape = "line" if problem.is_line else counted(len(problem.edges), "edge")
    return f"{counted(len(problem.nodes), 'node')}, {problem.moves}, {shape}"


def _tables_of(policy: Policy) -> Policy:
    """The policy whose tables are shown: with several parents, that over the sets asked so far."""
    from ttamer.policy import JointPolicy

    return policy.walk if isinstance(policy, JointPolicy) else policy
