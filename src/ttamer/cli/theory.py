"""``ttamer theory``: the paper's demonstrations, and its Alg. 3 step by step."""

from pathlib import Path

import click

from ttamer._checks import number
from ttamer.cli.options import Command, Output, json_option
from ttamer.cli.printing import to_json
from ttamer.problem.problem import Problem
from ttamer.show.tables import table
from ttamer.theory import contract, draw_contraction, if_stop_experiments
from ttamer.theory.no_recall import impossibility, needle


@click.group("theory", no_args_is_help=False)
def theory_command() -> None:
    """Run the paper's demonstrations."""


@theory_command.command("no-recall", cls=Command)
@click.option("--alpha", type=float, default=10.0, show_default=True, help="Any number above 1.")
@json_option
def no_recall_command(alpha: float, as_json: bool) -> None:
    """Without recall there is no bound on the loss.

    The paper's two-node example: without recall the ratio to a prophet, which sees every loss
    beforehand, is alpha.
    """
    example = impossibility(alpha)
    growth = [impossibility(value) for value in sorted({2.0, 10.0, 100.0, 1000.0, alpha})]
    haystacks = [needle(branches) for branches in (10, 100, 1000)]
    if as_json:
        facts = {
            **vars(example),
            "ratio": example.ratio,
            "ratio_with_recall": example.ratio_with_recall,
            "growth": [{"alpha": e.alpha, "ratio": e.ratio} for e in growth],
            "haystacks": [{**vars(e), "ratio": e.ratio} for e in haystacks],
        }
        print(to_json(facts))
        return
    rows = [
        [f"{e.alpha:g}", number(e.no_recall), number(e.with_recall), number(e.offline),
         number(e.ratio), number(e.ratio_with_recall)]
        for e in growth
    ]  # fmt: skip
    print("Two nodes, asking is free. The first loses 1/alpha^2; the second loses 1/alpha with")
    print("probability 1/alpha, else nothing. Expected losses:\n")
    print(table(["alpha", "no recall", "recall", "prophet", "ratio", "with recall"], rows))
    ratio = number(example.ratio)
    print(f"\nWithout recall the ratio to the prophet is alpha ({ratio} here): no bound.")
    print("With recall both nodes are asked, the better answer kept, and the gap is gone.\n")
    print("What recall does not change: a prophet also sees which node to ask. Many equal nodes,")
    print("each perfect with a small probability and worth exactly its cost:\n")
    rows = [
        [str(e.branches), number(e.with_recall), number(e.offline), number(e.ratio)]
        for e in haystacks
    ]
    print(table(["nodes", "recall", "prophet", "ratio"], rows))
    print("\nSo policies with recall are measured against the online optimum, and reach it.")


@theory_command.command("if-stop", cls=Command)
@json_option
def if_stop_command(as_json: bool) -> None:
    """When fixed thresholds are optimal, and when they are not.

    The paper's synthetic experiments: the best fixed threshold against the optimum.
    """
    experiments = if_stop_experiments()  # 6 nodes, as in the paper
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
@click.option("--tradeoff", type=float, default=0.5, show_default=True,
              help="The weight of the loss.")  # fmt: skip
@click.option("--draw", type=Output(), metavar="FILE", help="Draw the steps as FILE.svg.")
@json_option
def contract_command(problem: str, tradeoff: float, draw: str | None, as_json: bool) -> None:
    """Contract a forest as the paper's Alg. 3 does: subtrees become single nodes.

    PROBLEM is a problem.json: a line, multi-line, tree or forest.
    """
    stated = Problem.from_file(problem)
    steps = contract(stated, tradeoff)
    if draw:
        Path(draw).write_text(draw_contraction(stated, steps), "utf-8")
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
    if draw:
        print(f"\n  drawn in {draw}")
