"""``ttamer solve``: the optimal policy of a problem."""

from __future__ import annotations

import argparse
import math
from typing import Any

from ttamer._checks import counted, number
from ttamer.cli.tables import as_json, table
from ttamer.errors import ArgumentError
from ttamer.policy import IndexPolicy, JointPolicy, Ladder, Policy, WalkPolicy
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
    parser.add_argument(
        "--max-cost", type=float, metavar="C", help="the most that one input may cost: exact"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the policy as FILE.ttamer")
    parser.add_argument("--draw", metavar="FILE", help="draw the policy as FILE.svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Solve and print."""
    from ttamer import save, solve, solve_ladder
    from ttamer.theory.optimal_values import optima

    if args.draw and args.ladder is not None:
        raise ArgumentError("--draw needs --tradeoff: a ladder has many policies")
    problem = Problem.from_file(args.problem)
    recall = not args.no_recall
    if args.output:
        _check_file(problem, args)
    if args.ladder is not None:
        if args.ladder < 2:
            raise ArgumentError(f"--ladder needs at least 2 tradeoffs, not {args.ladder}")
        rungs = [i / (args.ladder - 1) for i in range(args.ladder)]
        ladder = solve_ladder(problem, rungs, recall=recall, max_cost=args.max_cost)
        print(as_json(_ladder_facts(ladder)) if args.json else _ladder_text(ladder))
        solved: Policy | Ladder = ladder
    else:
        policy = solve(problem, args.tradeoff, recall=recall, max_cost=args.max_cost)
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


def _check_file(problem: Problem, args: argparse.Namespace) -> None:
    """Refuse, before the work, what a file does not hold."""
    why = None
    if problem.has_joint_edges:
        why = "whose nodes have several parents"
    elif args.max_cost is not None:
        why = "under a cap"
    elif args.ladder is not None and problem.has_unseen_answers and problem.moves != "walk":
        why = "of several tradeoffs with verify_cost on a forest"
    if why is not None:
        raise ArgumentError(f"policies {why} cannot be saved: leave out -o", param="output")


def _facts(policy: Policy, best: Optima) -> dict[str, Any]:
    """Return everything about the policy, as plain values."""
    problem, nodes = policy.problem, []
    names = (*problem.names, None)  # -1 is no node
    for name, chance in policy.asked.items():
        fact: dict[str, Any] = {"name": name, "asked": chance}
        if _has_indices(policy):
            fact["index"] = policy.index(name)
        if isinstance(policy, WalkPolicy) or problem.is_line:
            if policy.recall:
                fact["threshold"] = policy.threshold(name)
            fact["if_stop"] = policy.if_stop(name)
            routes = policy.choice(name).tolist()
            fact["choice"] = [[names[target] for target in row] for row in routes]
        fact["rules"] = [
            {"state": r.state, "loss": r.loss, "stop": r.stop, "ask": r.ask}
            for r in policy.rules(name)
        ]
        nodes.append(fact)
    return {
        "moves": problem.moves,
        "recall": policy.recall,
        "tradeoff": policy.tradeoff,
        "value": policy.value,
        "bound": policy.value if policy.bound is None else policy.bound,
        "expected_loss": policy.expected_loss,
        "expected_cost": policy.expected_cost,
        "optima": {
            **vars(best),
            "ratio": best.ratio,
            "ratio_without_recall": best.ratio_without_recall,
        },
        "first": policy.session().next,
        "columns": problem.grid.values if policy.recall else None,
        "nodes": nodes,
    }


def _text(policy: Policy, best: Optima) -> str:
    weight, is_capped = policy.tradeoff, isinstance(policy, JointPolicy) and policy.cap is not None
    this = "" if policy.ratio > 1 or is_capped else " (this one)"
    against: list[tuple[str, float | None]] = [
        ("a prophet that sees every loss", best.offline),
        ("the best policy with recall" + this * policy.recall, best.online),
        ("the best policy without" + ("" if policy.recall else this), best.no_recall),
    ]
    if best.online_bound is not None and not is_capped:
        against[1] = (f"this policy, at most {policy.ratio:.4g} times the best", best.online)
        against.insert(1, ("no policy with recall is below", best.online_bound))
    if is_capped:
        what = "this policy, the best under the cap"
        if policy.ratio > 1:
            what = f"this policy, at most {policy.ratio:.4g} times the best under the cap"
        against.append((what, policy.value))
    to_prophet = Optima(best.offline, 0.0, None)
    rows = [
        [what, number(value), "-" if (r := to_prophet._ratio(value)) is None else f"{r:.4g}"]
        for what, value in against
        if value is not None
    ]
    lines = [
        f"{_title(policy.problem)}, tradeoff {weight:g}"
        + ("" if policy.recall else ", no recall")
        + (f", at most {policy.cap.most:g} an input" if is_capped else ""),  # type: ignore[attr-defined]
        "",
        f"  value {number(policy.value)} = {weight:g} x loss {number(policy.expected_loss)}"
        f" + {1 - weight:g} x cost {number(policy.expected_cost)}",
        "",
        table(["weighted expected loss and cost", "value", "to the prophet"], rows),
        "",
        f"First ask {policy.session().next}. Then, losses in their own unit:",
        "",
        table(["after", "asked", "state", "its loss", "stop if best loss <=", "else ask"],
              _rules(policy)),
    ]  # fmt: skip
    if _has_indices(policy) and not policy.problem.is_line:
        said = "The node of least index that may be asked is next, while the best loss is above:"
        head = ["node", "after", "in state", "index"]
        lines += ["", said, "", table(head, _indices(policy))]
    return "\n".join(lines)


def _has_indices(policy: Policy) -> bool:
    """Return whether nodes have indices of their own."""
    if isinstance(policy, WalkPolicy):
        return policy.recall and policy.problem.is_line
    return isinstance(policy, IndexPolicy)


def _rules(policy: Policy) -> list[list[str]]:
    """Return one row per node and state: when to stop there, and which node to ask otherwise."""
    rows = []
    for name, chance in policy.asked.items():
        rules = policy.rules(name)
        for rule in rules[:MAX_STATES_SHOWN]:
            onward = " or ".join(rule.ask) or "-"
            stop = rule.stop_text
            if rule.stop is not None:
                stop = {-math.inf: "never"}.get(rule.stop[1], stop) if rule.ask else "always"
            head = [name, f"{chance:.1%}"] if rule.state == 0 else ["", ""]
            rows.append([*head, str(rule.state), number(rule.loss), stop, onward])
        if len(rules) > MAX_STATES_SHOWN:
            rows.append(["", "", "...", f"{len(rules)} states", "all in --json", ""])
    return rows


def _indices(policy: Policy) -> list[list[str]]:
    """Return one row per node and state of its parent, in units of loss."""
    problem, rows = policy.problem, []
    for name in problem.names:
        parent = problem.parent_edge(problem.number[name]).source
        for state, index in enumerate(policy.index(name)[:MAX_STATES_SHOWN].tolist()):
            head = [name, str(parent or "the start")] if state == 0 else ["", ""]
            shown = index / policy.tradeoff if policy.tradeoff else math.inf
            rows.append([*head, "-" if parent is None else str(state), number(shown)])
    return rows


def _ladder_facts(ladder: Ladder) -> dict[str, Any]:
    keys = ("tradeoff", "value", "expected_loss", "expected_cost")
    return {
        "moves": ladder.problem.moves,
        "recall": ladder[0].recall,
        "policies": [{key: getattr(policy, key) for key in keys} for policy in ladder],
    }


def _ladder_text(ladder: Ladder) -> str:
    rows = [
        [f"{p.tradeoff:.4g}", number(p.expected_loss), number(p.expected_cost), number(p.value)]
        for p in ladder
    ]
    head = table(["tradeoff", "expected loss", "expected cost", "value"], rows)
    return f"{_title(ladder.problem)}, {counted(len(ladder), 'tradeoff')}\n\n{head}"


def _title(problem: Problem) -> str:
    shape = "line" if problem.is_line else counted(len(problem.edges), "edge")
    return f"{counted(len(problem.nodes), 'node')}, {problem.moves}, {shape}"
