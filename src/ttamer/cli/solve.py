"""``ttamer solve``: the optimal policy of a problem."""

import math
from typing import Any

import click

from ttamer._checks import counted, number
from ttamer.artefact.file import save
from ttamer.cli.options import Output, command, json_option, output_option
from ttamer.cli.printing import to_json
from ttamer.errors import ArgumentError
from ttamer.policy import IndexPolicy, JointPolicy, Ladder, Policy, WalkPolicy
from ttamer.problem.problem import Problem
from ttamer.show.tables import table
from ttamer.solvers import solve, solve_ladder
from ttamer.theory.optimal_values import Optima, optima

# The most states of a node that the table shows.
MAX_STATES_SHOWN = 8


@command("solve")
@click.argument("problem")
@click.option("--tradeoff", type=float, metavar="L",
              help="0: only cost counts; 1: only loss counts.")  # fmt: skip
@click.option("--ladder", type=int, metavar="N", help="Solve N tradeoffs from 0 to 1.")
@click.option("--no-recall", is_flag=True,
              help="The last node asked must answer (a walk or line).")  # fmt: skip
@click.option("--max-cost", type=float, metavar="C", help="The most that one input may cost.")
@output_option(text="Write the policy as FILE.ttamer.")
@click.option("--draw", type=Output(), metavar="FILE", help="Draw the policy as FILE.svg.")
@json_option
def solve_command(
    problem: str,
    tradeoff: float | None,
    ladder: int | None,
    no_recall: bool,
    max_cost: float | None,
    output: str | None,
    draw: str | None,
    as_json: bool,
) -> None:
    """Compute the optimal policy of PROBLEM, a problem.json.

    Prints when to stop, which node to ask next, and the value; with --ladder, the frontier.
    """
    if (tradeoff is None) == (ladder is None):
        raise click.UsageError("give one of --tradeoff L, for one policy, and --ladder N")
    if draw and ladder is not None:
        raise ArgumentError("--draw needs --tradeoff: a ladder has many policies")
    stated, recall = Problem.from_file(problem), not no_recall
    if output:
        _check_file(stated, is_ladder=ladder is not None, is_capped=max_cost is not None)
    solved: Policy | Ladder
    if tradeoff is not None:
        solved = solve(stated, tradeoff, recall=recall, max_cost=max_cost)
        best = optima(stated, solved.tradeoff)
        print(to_json(_facts(solved, best)) if as_json else _text(solved, best))
        if draw:
            solved.plot(draw)
    else:
        if ladder is None or ladder < 2:
            raise ArgumentError(f"--ladder needs at least 2 tradeoffs, not {ladder}")
        tradeoffs = [i / (ladder - 1) for i in range(ladder)]
        solved = solve_ladder(stated, tradeoffs, recall=recall, max_cost=max_cost)
        print(to_json(_ladder_facts(solved)) if as_json else _ladder_text(solved))
    if output:
        save(solved, output)
    for verb, path in (("drawn in", draw), ("written to", output)):
        if path and not as_json:
            print(f"\n  {verb} {path}")


def _check_file(problem: Problem, *, is_ladder: bool, is_capped: bool) -> None:
    """Refuse, before the work, what a file does not hold."""
    reason = None
    if problem.has_joint_edges:
        reason = "whose nodes have several parents"
    elif is_capped:
        reason = "under a cap"
    elif is_ladder and problem.has_unseen_answers and problem.moves != "walk":
        reason = "of several tradeoffs with verify_cost on a forest"
    if reason is not None:
        raise ArgumentError(f"policies {reason} cannot be saved: leave out -o", param="output")


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
    mark = "" if policy.ratio > 1 or is_capped else " (this one)"
    against: list[tuple[str, float | None]] = [
        ("a prophet that sees every loss", best.offline),
        ("the best policy with recall" + mark * policy.recall, best.online),
        ("the best policy without" + ("" if policy.recall else mark), best.no_recall),
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
        sentence = (
            "The node of least index that may be asked is next, while the best loss is above:"
        )
        head = ["node", "after", "in state", "index"]
        lines += ["", sentence, "", table(head, _indices(policy))]
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
