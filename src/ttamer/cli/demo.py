"""``ttamer demo``: fit, compare and report on a real trace that comes with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from ttamer.evaluation.frontiers import Frontier
    from ttamer.trace.trace import Trace

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.datasets.facts import names

    parser = commands.add_parser(
        "demo",
        help="fit, compare and report on a real trace, in a minute",
        description="Fit, compare and report on a real trace that comes with the package: "
        "language detectors of very different speed, or the exits of a network (extra [io]). "
        "It needs no network access and no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--trace", default="langid", metavar="NAME",
                        help=f"which trace: {', '.join(names())} (default langid)")  # fmt: skip
    parser.add_argument("-o", "--output", default="out", metavar="FOLDER",
                        help="where the report goes (default out)")  # fmt: skip
    parser.set_defaults(run=run, makes_folders=True, writes_folder=True)


def run(args: argparse.Namespace) -> None:
    """Fit, compare, write the report and print the result."""
    from pathlib import Path

    from ttamer import datasets
    from ttamer.cli.frontier import frontier_text
    from ttamer.cli.output import progress_line
    from ttamer.evaluation.frontiers import frontier
    from ttamer.fitting.plans import fit
    from ttamer.reporting import write_report

    fit_trace = datasets.load(args.trace, part="fit")
    test_trace = datasets.load(args.trace, part="test")
    print(f"{args.trace}: {datasets.about(args.trace)['title']}")
    nodes = fit_trace.names
    print(", ".join(nodes if len(nodes) < 15 else (*nodes[:3], "...", nodes[-1])))
    print(f"{len(fit_trace)} rows to fit, {len(test_trace)} others to measure on\n", flush=True)
    progress = progress_line()
    result = frontier(fit_trace, test_trace, progress=progress)
    progress("drawing the report")
    ladder = fit(fit_trace)
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    page = write_report(result, ladder, test_trace, folder / f"{args.trace}.html")[0]
    progress("")
    print(frontier_text(result, test_trace))
    # The recommendation may name another family: these three numbers are always ttamer's.
    print("\nThe three numbers that matter, with ttamer:")
    for line in three_numbers(result, test_trace):
        print(f"  {line}")
    print(f"\nThe report, to open in a browser: {page}")


def three_numbers(result: Frontier, test_trace: Trace) -> list[str]:
    """Return what ttamer reaches, in three lines.

    Separate models together may be more accurate than the best of them: the lines say by how much.
    The exits of one network rarely are: there the lines say what giving up some accuracy saves.
    """
    from ttamer.evaluation.frontiers import MORE_ERROR
    from ttamer.reporting.recommendation import reference_in_words
    from ttamer.reporting.style import points

    best = result.reference
    most = 1 - min(point.result.error for point in result.of("ttamer"))
    shares = {
        more: cost / best.cost
        for more in MORE_ERROR
        if best.cost and (cost := result.cost_at("ttamer", more)) is not None
    }
    same = f"at {shares[0.0]:.1%} of its cost" if 0.0 in shares else "is not reached"
    first = (
        f"the accuracy of {reference_in_words(result, test_trace)} ({1 - best.error:.1%}) {same}"
    )
    at_most = f"{most:.1%} at most, whatever it costs"
    if not test_trace.spec.is_network:
        error = result.error_at("ttamer", best.cost)
        at_price = [] if error is None else [f"{1 - error:.1%} accuracy at its cost"]
        return [first, *at_price, at_most]
    if 0.0 not in shares:
        first = f"{first}: {most:.1%} at most"
    near = [f"within {points(more)} of it at {shares[more]:.1%} of its cost"
            for more in MORE_ERROR if more and more in shares][:2]  # fmt: skip
    return [first, *near]
