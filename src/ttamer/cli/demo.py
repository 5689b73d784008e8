"""``ttamer demo``: fit, compare and report on a real trace that comes with the package."""

from __future__ import annotations

import argparse
from typing import Any

from ttamer.evaluation.frontiers import Frontier
from ttamer.trace.trace import Trace

# Bootstrap resamples for the intervals in the report: enough to draw them.
RESAMPLES = 200


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.datasets import names

    parser = commands.add_parser(
        "demo",
        help="fit, compare and report on a real trace, in under a minute",
        description="Fit, compare and report on a real trace that comes with the package: "
        "language detectors of very different speed, nine LLMs, or the exits of a network. "
        "It needs no network access and no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--trace", default="langid", metavar="NAME",
                        help=f"which trace: {', '.join(names())} (default langid)")  # fmt: skip
    parser.add_argument("-o", "--output", default="out", metavar="FOLDER",
                        help="the folder for the report (default out)")  # fmt: skip
    parser.set_defaults(run=run, makes_folders=True, writes_folder=True)


def run(args: argparse.Namespace) -> None:
    """Fit, compare, write the report and print the result."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    from pathlib import Path

    from ttamer import datasets
    from ttamer.cli.frontier import frontier_text
    from ttamer.cli.output import paint, progress_line
    from ttamer.evaluation.frontiers import frontier
    from ttamer.fitting.plans import fit
    from ttamer.reporting import write_report
    from ttamer.reporting.style import require_matplotlib

    require_matplotlib()
    progress = progress_line()
    fit_trace = datasets.load(args.trace, part="fit")
    test_trace = datasets.load(args.trace, part="test")
    with ProcessPoolExecutor(1, get_context("spawn")) as second:  # two cores share the work
        rest = second.submit(measure_others, args.trace)
        progress("fitting ttamer")
        ladder = fit(fit_trace, progress=progress)
        progress("measuring ttamer")
        ours = frontier(
            fit_trace, test_trace, families=["ttamer"], ladder=ladder, resamples=RESAMPLES
        )
        progress("comparing with other rules")
        result = joined(ours, rest.result())
    progress("drawing the report")
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{args.trace}.html"
    page = write_report(result, ladder, test_trace, file, png=False)[0]
    progress("")
    # The recommendation may name another family: these three numbers are always ttamer's.
    first, *others = three_numbers(result, test_trace)
    print(paint(f"With ttamer: {first}", "bold"))
    for line in others:
        print(f"  and {line}")
    facts = datasets.about(args.trace)
    print(f"\n{args.trace}: {facts['title']}")
    nodes = fit_trace.names
    print(", ".join(nodes if len(nodes) < 15 else (*nodes[:3], "...", nodes[-1])))
    print(f"cost: {facts['cost'].partition(';')[0]}")
    print(f"\n{frontier_text(result, test_trace)}")
    print("\nThe same for a log of yours: ttamer report LOG --cascade cascade.toml")
    print(f"The report, to open in a browser: {page}")


def measure_others(trace: str) -> Frontier:
    """Return the frontier of all families but ttamer, whose intervals are not shown."""
    from ttamer import datasets
    from ttamer.baselines import FAMILIES
    from ttamer.evaluation.families import OURS
    from ttamer.evaluation.frontiers import frontier

    names = [name for name in (*OURS, *FAMILIES) if name != "ttamer"]
    rows = (datasets.load(trace, part=part) for part in ("fit", "test"))
    return frontier(*rows, families=names, resamples=0)


def joined(ours: Frontier, others: Frontier) -> Frontier:
    """Return the points of two frontiers on the same rows as one."""
    import dataclasses

    return dataclasses.replace(
        others, points=ours.points + others.points, played={**ours.played, **others.played}
    )


def three_numbers(result: Frontier, test_trace: Trace) -> list[str]:
    """Return what ttamer reaches, in two or three lines.

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
    if not test_trace.spec.is_network:
        error = result.error_at("ttamer", best.cost)
        at_price = "" if error is None else f"{1 - error:.1%}"
        if at_price == f"{most:.1%}":
            return [first, f"{at_price} accuracy at most, at no more than its cost"]
        priced = [f"{at_price} accuracy at its cost"] if at_price else []
        return [first, *priced, f"{most:.1%} at most, whatever it costs"]
    if 0.0 not in shares:
        first = f"{first}: {most:.1%} at most"
    near = [f"within {points(more)} of it at {shares[more]:.1%} of its cost"
            for more in MORE_ERROR if more and more in shares][:2]  # fmt: skip
    return [first, *near]
