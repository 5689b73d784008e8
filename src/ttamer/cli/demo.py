"""``ttamer demo``: the main job, on an embedded example."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="solve an embedded cascade and play it",
        description="Solve an embedded cascade of three models, walk its frontier, play two inputs.",
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", default="out", metavar="FOLDER",
                        help="where pictures go (default out)")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Show what the package does."""
    from pathlib import Path

    from ttamer.cli.show import number, table
    from ttamer.examples import three_models
    from ttamer.plot import draw_if_stop, save_figure
    from ttamer.solvers import solve_ladder
    from ttamer.theory.synthetic import if_stop_experiments

    problem = three_models()
    ladder = solve_ladder(problem, [0, 0.5, 0.8, 0.9, 0.95, 0.99, 1])
    print("Three models that can answer the same question; asking costs 0.02, 0.15 and 1.\n")
    rows = [
        [f"{p.tradeoff:g}", f"{p.expected_loss:.1%}", number(p.expected_cost),
         *(f"{chance:.0%}" for chance in p.asked.values())]
        for p in ladder
    ]  # fmt: skip
    print(table(["tradeoff", "error", "cost", *(f"asks {name}" for name in problem.names)], rows))
    policy = ladder.at(0.9)
    for states in ((0, 0, 0), (2, 1, 0)):
        print(f"\nOne input at tradeoff {policy.tradeoff:g}:")
        turn = policy.session()
        while turn.next is not None:
            state = states[problem.number[turn.next]]
            print(f"  ask {turn.next}: it is wrong with chance "
                  f"{problem.nodes[problem.number[turn.next]].losses[state]:.0%}")  # fmt: skip
            turn.observe(state)
            print(f"    {turn.explain().why}")
        print(f"  answered by {turn.answer} at cost {turn.cost:g}")
    paths = save_figure(draw_if_stop(if_stop_experiments()), Path(args.output) / "if_stop.png")
    print(f"\nWhen to stop, as pictures: {paths[0]}")
