"""``ttamer solve`` and ``theory``: the policy of a problem, and the paper's demonstrations."""

import math
import runpy
from pathlib import Path
from typing import Any

import click

from ttamer._checks import counted, number
from ttamer.artefact.file import save
from ttamer.cli.options import (
    Command,
    Output,
    command,
    json_option,
    option,
    output_option,
    to_json,
)
from ttamer.errors import ArgumentError
from ttamer.policy import IndexPolicy, JointPolicy, Ladder, Policy, WalkPolicy
from ttamer.problem.problem import Problem
from ttamer.show import table
from ttamer.solvers import solve, solve_ladder
from ttamer.theory import EXPERIMENTS, contract, experiment
from ttamer.theory.optimum import Optima, impossibility, needle, optima

# The most states of a node that the table shows.
MAX_STATES_SHOWN = 8


@command("solve")
@click.argument("problem")
@option("--tradeoff", "L", "0: only cost counts; 1: only loss counts.", type=float)
@option("--ladder", "N", "Solve N tradeoffs from 0 to 1.", type=int)
@click.option("--no-recall", is_flag=True,
              help="The last node asked must answer (a walk or line).")  # fmt: skip
@option("--max-cost", "C", "The most that one input may cost.", type=float)
@output_option(text="Write the policy as FILE.ttamer.")
@option("--draw", "FILE", "Draw the policy as FILE.svg.", type=Output())
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
    weight, cap = policy.tradeoff, policy.cap if isinstance(policy, JointPolicy) else None
    lines = [
        f"{_title(policy.problem)}, tradeoff {weight:g}"
        + ("" if policy.recall else ", no recall")
        + ("" if cap is None else f", at most {cap.limit:g} an input"),
        "",
        f"  value {number(policy.value)} = {weight:g} x loss {number(policy.expected_loss)}"
        f" + {1 - weight:g} x cost {number(policy.expected_cost)}",
        "",
        table(["weighted expected loss and cost", "value", "to the prophet"],
              [[what, number(value), "-" if (ratio := best.ratio_of(value)) is None else
                f"{ratio:.4g}"] for what, value in _against(policy, best) if value is not None]),
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


def _against(policy: Policy, best: Optima) -> list[tuple[str, float | None]]:
    """Return what the policy is measured against, in words, and its value."""
    is_capped, at_most = isinstance(policy, JointPolicy) and policy.cap is not None, ""
    mark = "" if policy.ratio > 1 or is_capped else " (this one)"
    online = [("the best policy with recall" + mark * policy.recall, best.online)]
    if policy.ratio > 1:
        at_most = f"at most {policy.ratio:.4g} times "
    if best.online_bound is not None and not is_capped:
        online = [("no policy with recall is below", best.online_bound),
                  (f"this policy, {at_most}the best", best.online)]  # fmt: skip
    capped = [(f"this policy, {at_most}the best under the cap", policy.value)] if is_capped else []
    without = "the best policy without" + mark * (not policy.recall)
    prophet = "a prophet that sees every loss"
    return [(prophet, best.offline), *online, (without, best.no_recall), *capped]


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
            head = [name, f"{chance:.1%}"] if rule.state == 0 else ["", ""]
            rows.append([*head, str(rule.state), number(rule.loss), rule.stop_text, onward])
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


@click.group("theory", no_args_is_help=False)
def theory_command() -> None:
    """Run the paper's demonstrations."""


@theory_command.command("no-recall", cls=Command)
@option("--alpha", "A", "Any number above 1.", type=float, default=10.0)
@json_option
def no_recall_command(alpha: float, as_json: bool) -> None:
    """Without recall there is no bound on the loss.

    The paper's two-node example: without recall the ratio to a prophet, which sees every loss
    beforehand, is alpha.
    """
    example = impossibility(alpha)
    growth = {x: impossibility(x) for x in sorted({2.0, 10.0, 100.0, 1000.0, alpha})}
    haystacks = {branches: needle(branches) for branches in (10, 100, 1000)}
    if as_json:
        facts = {
            "alpha": alpha,
            "no_recall": example.no_recall,
            "with_recall": example.online,
            "offline": example.offline,
            "ratio": example.ratio_without_recall,
            "ratio_with_recall": example.ratio,
            "growth": [{"alpha": x, "ratio": e.ratio_without_recall} for x, e in growth.items()],
            "haystacks": [
                {"branches": m, "with_recall": e.online, "offline": e.offline, "ratio": e.ratio}
                for m, e in haystacks.items()
            ],
        }
        print(to_json(facts))
        return
    rows = [
        [f"{x:g}", *map(_number, (e.no_recall, e.online, e.offline, e.ratio_without_recall,
                                  e.ratio))]
        for x, e in growth.items()
    ]  # fmt: skip
    print("Two nodes, asking is free. The first loses 1/alpha^2; the second loses 1/alpha with")
    print("probability 1/alpha, else nothing. Expected losses:\n")
    print(table(["alpha", "no recall", "recall", "prophet", "ratio", "with recall"], rows))
    ratio = _number(example.ratio_without_recall)
    print(f"\nWithout recall the ratio to the prophet is alpha ({ratio} here): no bound.")
    print("With recall both nodes are asked, the better answer kept, and the gap is gone.\n")
    print("What recall does not change: a prophet also sees which node to ask. Many equal nodes,")
    print("each perfect with a small probability and worth exactly its cost:\n")
    rows = [[str(m), *map(_number, (e.online, e.offline, e.ratio))] for m, e in haystacks.items()]
    print(table(["nodes", "recall", "prophet", "ratio"], rows))
    print("\nSo policies with recall are measured against the online optimum, and reach it.")


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


@theory_command.command("if-stop", cls=Command)
@json_option
def if_stop_command(as_json: bool) -> None:
    """When fixed thresholds are optimal, and when they are not.

    The paper's synthetic experiments: the best fixed threshold against the optimum.
    """
    experiments = [experiment(name) for name in EXPERIMENTS]  # 6 nodes, as in the paper
    if as_json:
        keys = {"losses": "name", "threshold_with_recall": "with_recall",
                "threshold_without_recall": "without_recall"}  # fmt: skip
        same = ("excess_with_recall", "excess_without_recall", "index_range")
        facts = [
            {"optimum": e.policy.value}
            | {key: getattr(e, keys.get(key, key)) for key in (*keys, *same)}
            for e in experiments
        ]
        print(to_json({"experiments": facts}))
        return
    rows = []
    for e in experiments:
        low, high = e.index_range
        index = number(low) if high - low < 1e-12 else f"{number(low)} to {number(high)}"
        rows.append([e.name, number(e.policy.value), index, f"{abs(e.excess_with_recall):.2%}",
                     f"{e.excess_without_recall:.2%}"])  # fmt: skip
    print("6 nodes on a line, cost 0.1 each, tradeoff 0.5.")
    print("How far the best fixed threshold lies above the optimum:\n")
    print(table(["losses", "optimum", "index", "recall at the end", "no recall"], rows))
    print(
        "\nFor independent identical losses every index is the same number, so one threshold with"
    )
    print("recall at the end is optimal. Only correlation (or unequal nodes) makes the decision")
    print("depend on the current state. make paper draws the matrices.")


@theory_command.command("contract", cls=Command)
@click.argument("problem")
@option("--tradeoff", "L", "The weight of the loss.", type=float, default=0.5)
@json_option
def contract_command(problem: str, tradeoff: float, as_json: bool) -> None:
    """Contract a forest as the paper's Alg. 3 does: subtrees become single nodes.

    PROBLEM is a problem.json: a line, multi-line, tree or forest.
    """
    stated = Problem.from_file(problem)
    steps = contract(stated, tradeoff)
    if as_json:
        facts = [
            {
                "node": step.node,
                "members": step.members,
                "index": step.index,
                "laws": [
                    {"losses": law.losses, "costs": law.costs, "probabilities": law.probabilities}
                    for law in step.laws
                ],
            }
            for step in steps
        ]
        print(to_json({"tradeoff": tradeoff, "steps": facts}))
        return
    rows = []
    for count, step in enumerate(steps, start=1):
        for state, (index, law) in enumerate(zip(step.index, step.laws, strict=True)):
            head = [str(count), " + ".join(step.members)] if state == 0 else ["", ""]
            rows.append([*head, str(state), number(index), number(law.mean_cost),
                         str(len(law.costs))])  # fmt: skip
    print(f"Alg. 3 on {problem}, tradeoff {tradeoff:g}: one node for each subtree.\n")
    print(table(["step", "one node for", "parent state", "index", "mean cost", "atoms"], rows))
    print("\nThe law of the one node is the law with its own index in hand. Another fallback has")
    print("another law, since other nodes are asked: one law for all fallbacks is not enough.")


@theory_command.command("figure", cls=Command)
@click.argument("number")
@option("--to", "FOLDER", "Where to write it.", default="paper")
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
