"""``ttamer demo``: the main job, on a real trace that comes with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="fit, compare and report on a real trace, in a minute",
        description="Fit, compare and report on a real trace that comes with the package: "
        "language detectors of very different speed. No network, no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--trace", default="langid", metavar="NAME",
                        help="another trace of the package (default langid)")  # fmt: skip
    parser.add_argument("-o", "--output", default="out", metavar="FOLDER",
                        help="where the report goes (default out)")  # fmt: skip
    parser.add_argument("--live", action="store_true",
                        help="ask real detectors about what you type (extra [live])")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Show what the package does."""
    if args.live:
        _run_live()
        return
    from pathlib import Path

    from ttamer import datasets
    from ttamer.cli.frontier import frontier_text
    from ttamer.cli.progress import teller
    from ttamer.fitting import fit
    from ttamer.frontier import frontier
    from ttamer.report import write_report

    fit_trace = datasets.load(args.trace, part="fit")
    test_trace = datasets.load(args.trace, part="test")
    print(f"{args.trace}: {', '.join(fit_trace.names)}")
    print(f"{len(fit_trace)} rows to fit, {len(test_trace)} others to measure on\n", flush=True)
    tell = teller()
    result = frontier(fit_trace, test_trace, progress=tell)
    tell("drawing the report")
    ladder = fit(fit_trace)
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    page = write_report(result, ladder, test_trace, folder / f"{args.trace}.html")[0]
    tell("")
    print(frontier_text(result))
    best, cost = result.reference, result.cost_at("ttamer")
    error = result.error_at("ttamer", best.cost)
    reached = min(point.result.error for point in result.of("ttamer"))
    same = "is not reached"
    if cost is not None and best.cost:
        same = f"at {cost / best.cost:.1%} of its cost"
    print("\nThe three numbers that matter:")
    print(f"  the accuracy of {best.node} alone ({1 - best.error:.1%}) {same}")
    if error is not None:
        print(f"  {1 - error:.1%} accuracy at its cost")
    print(f"  {1 - reached:.1%} at most, whatever it costs")
    print(f"\nThe report, to open in a browser: {page}")


def _run_live() -> None:
    import sys

    from ttamer.live import run_live

    run_live(sys.stdin, print)
