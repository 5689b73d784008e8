"""``ttamer theory``: the paper's demonstrations, and its Alg. 3 step by step."""

from __future__ import annotations

import argparse
from typing import Any

# The values of alpha in the table.
GROWTH = (2.0, 10.0, 100.0, 1000.0)
# The numbers of nodes in the second table.
HAYSTACKS = (10, 100, 1000)


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = commands.add_parser(
        "theory",
        help="run the paper's demonstrations",
        description="Run the paper's demonstrations.",
        allow_abbrev=False,
    )
    which = parser.add_subparsers(title="demonstrations", metavar="NAME", required=True)

    gap = which.add_parser(
        "no-recall",
        help="without recall there is no bound on the loss",
        description="The paper's two-node example: without recall the ratio to a prophet, which "
        "sees every loss beforehand, is alpha.",
        allow_abbrev=False,
    )
    gap.add_argument("--alpha", type=float, default=10.0, help="any number above 1 (default 10)")
    gap.add_argument("--json", action="store_true", help="print JSON")
    gap.set_defaults(run=run_no_recall)

    stop = which.add_parser(
        "if-stop",
        help="when fixed thresholds are optimal, and when they are not",
        description="The paper's synthetic experiments: if-stop matrices, and fixed thresholds.",
        allow_abbrev=False,
    )
    stop.add_argument(
        "-o",
        "--output",
        default="if_stop.png",
        metavar="FILE",
        help="where to draw; PNG and SVG are both written (default if_stop.png)",
    )
    stop.add_argument("--nodes", type=int, default=6, help="nodes on the line (default 6)")
    stop.add_argument("--states", type=int, default=40, help="losses per node (default 40)")
    stop.add_argument("--cost", type=float, default=0.1, help="cost per node (default 0.1)")
    stop.add_argument(
        "--tradeoff", type=float, default=0.5, help="the weight of the loss (default 0.5)"
    )
    stop.add_argument("--no-figure", action="store_true", help="numbers only")
    stop.add_argument("--json", action="store_true", help="print JSON")
    stop.set_defaults(run=run_if_stop, makes_folders=True)

    steps = which.add_parser(
        "contract",
        help="Alg. 3 step by step: subtrees become single nodes",
        description="Contract a forest as the paper's Alg. 3 does, and show each step.",
        allow_abbrev=False,
    )
    steps.add_argument("problem", help="a problem.json: a line, multi-line, tree or forest")
    steps.add_argument(
        "--tradeoff", type=float, default=0.5, help="the weight of the loss (default 0.5)"
    )
    steps.add_argument("--draw", metavar="FILE", help="draw the steps as FILE.svg")
    steps.add_argument("--json", action="store_true", help="print JSON")
    steps.set_defaults(run=run_contract)


def run_contract(args: argparse.Namespace) -> None:
    """Contract a forest and show each step."""
    from pathlib import Path

    from ttamer import Problem
    from ttamer._checks import number
    from ttamer.cli.output import as_json, table
    from ttamer.theory import contract, draw_contraction

    problem = Problem.from_file(args.problem)
    steps = contract(problem, args.tradeoff)
    if args.draw:
        Path(args.draw).write_text(draw_contraction(problem, steps), "utf-8")
    if args.json:
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
        print(as_json({"tradeoff": args.tradeoff, "steps": facts}))
        return
    rows = []
    for count, step in enumerate(steps, start=1):
        for state, (index, law) in enumerate(zip(step.index, step.laws, strict=True)):
            head = [str(count), " + ".join(step.members)] if state == 0 else ["", ""]
            rows.append([*head, str(state), number(index), number(law.mean_cost),
                         str(len(law.costs))])  # fmt: skip
    print(f"Alg. 3 on {args.problem}, tradeoff {args.tradeoff:g}: one node for each subtree.\n")
    print(table(["step", "one node for", "parent state", "index", "mean cost", "atoms"], rows))
    print("\nThe law of the one node is the law with its own index in hand. Another fallback has")
    print("another law, since other nodes are asked: one law for all fallbacks is not enough.")
    if args.draw:
        print(f"\n  drawn in {args.draw}")


def run_no_recall(args: argparse.Namespace) -> None:
    """Show the ratio growing without bound."""
    from ttamer._checks import number
    from ttamer.cli.output import as_json, table
    from ttamer.theory.no_recall import impossibility, needle

    main = impossibility(args.alpha)
    growth = [impossibility(alpha) for alpha in sorted({*GROWTH, args.alpha})]
    haystacks = [needle(branches) for branches in HAYSTACKS]
    if args.json:
        facts = {
            **vars(main),
            "ratio": main.ratio,
            "ratio_with_recall": main.ratio_with_recall,
            "growth": [{"alpha": e.alpha, "ratio": e.ratio} for e in growth],
            "haystacks": [{**vars(e), "ratio": e.ratio} for e in haystacks],
        }
        print(as_json(facts))
        return
    rows = [
        [f"{e.alpha:g}", number(e.no_recall), number(e.with_recall), number(e.offline),
         number(e.ratio), number(e.ratio_with_recall)]
        for e in growth
    ]  # fmt: skip
    print("Two nodes, asking is free. The first loses 1/alpha^2; the second loses 1/alpha with")
    print("probability 1/alpha, else nothing. Expected losses:\n")
    print(table(["alpha", "no recall", "recall", "prophet", "ratio", "with recall"], rows))
    print(
        f"\nWithout recall the ratio to the prophet is alpha ({number(main.ratio)} here): no bound."
    )
    print("With recall both nodes are asked, the better answer kept, and the gap is gone.\n")
    print("What recall does not change: a prophet also sees which node to ask. Many equal nodes,")
    print("each perfect with a small probability and worth exactly its cost:\n")
    hay = [
        [str(e.branches), number(e.with_recall), number(e.offline), number(e.ratio)]
        for e in haystacks
    ]
    print(table(["nodes", "recall", "prophet", "ratio"], hay))
    print("\nSo policies with recall are measured against the online optimum, and reach it.")


def run_if_stop(args: argparse.Namespace) -> None:
    """Solve the synthetic problems, draw their if-stop matrices, and compare thresholds."""
    from ttamer._checks import number
    from ttamer.cli.output import as_json, table
    from ttamer.theory.synthetic import if_stop_experiments

    experiments = if_stop_experiments(
        nodes=args.nodes, states=args.states, cost=args.cost, tradeoff=args.tradeoff
    )
    paths = []
    if not args.no_figure:
        from ttamer.reporting import draw_if_stop, save_figure

        paths = [str(path) for path in save_figure(draw_if_stop(experiments), args.output)]
    if args.json:
        facts = [
            {
                "losses": e.name,
                "optimum": e.policy.value,
                "threshold_with_recall": e.with_recall,
                "threshold_without_recall": e.without_recall,
                "excess_with_recall": e.excess_with_recall,
                "excess_without_recall": e.excess_without_recall,
                "index_range": e.index_range,
            }
            for e in experiments
        ]
        print(as_json({"experiments": facts, "figures": paths}))
        return
    rows = []
    for e in experiments:
        low, high = e.index_range
        index = number(low) if high - low < 1e-12 else f"{number(low)} to {number(high)}"
        rows.append([e.name, number(e.policy.value), index, f"{abs(e.excess_with_recall):.2%}",
                     f"{e.excess_without_recall:.2%}"])  # fmt: skip
    print(f"{args.nodes} nodes on a line, cost {args.cost:g} each, tradeoff {args.tradeoff:g}.")
    print("How far the best fixed threshold lies above the optimum:\n")
    print(table(["losses", "optimum", "index", "recall at the end", "no recall"], rows))
    print(
        "\nFor independent identical losses every index is the same number, so one threshold with"
    )
    print("recall at the end is optimal. Only correlation (or unequal nodes) makes the decision")
    print("depend on the current state.")
    if paths:
        print(f"\n  drawn in {' and '.join(paths)}")
