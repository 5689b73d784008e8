"""``ttamer frontier`` and ``ttamer report``: every family on rows it was not fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from ttamer.evaluation.frontiers import Frontier
    from ttamer.trace.trace import Trace

__all__ = ["add_to", "frontier_text"]


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    from ttamer.cli.traces import add_reading_options

    parser = commands.add_parser(
        "frontier",
        help="compare ttamer with what people do today",
        description="Fit every family on one trace, measure it on another, and compare.",
        allow_abbrev=False,
    )
    page = commands.add_parser(
        "report",
        help="the comparison as one page with pictures",
        description="Fit on one trace, measure on another, and write one HTML page to look at.",
        allow_abbrev=False,
    )
    for each in (parser, page):
        each.add_argument("--fit", required=True, metavar="TRACE", help="rows to fit on")
        each.add_argument("--test", required=True, metavar="TRACE", help="rows to measure on")
        add_reading_options(each)
        each.add_argument("--families", metavar="A,B", help="which (default: all that suit)")
        each.add_argument("--resamples", type=int, default=1000, metavar="N",
                          help="of the bootstrap intervals (default 1000)")  # fmt: skip
        each.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write frontier.json here")
    parser.set_defaults(run=run_frontier)
    page.add_argument("-o", "--output", metavar="FILE", default="report.html",
                      help="where to write the page (default report.html)")  # fmt: skip
    page.add_argument("--title", help="over the page")
    page.set_defaults(run=run_report)


def run_frontier(args: argparse.Namespace) -> None:
    """Compare and print."""
    from pathlib import Path

    from ttamer.cli.show import as_json

    result, _, test_trace = _measured(args)
    text = as_json(result.to_dict())
    if args.output:
        Path(args.output).write_text(text + "\n", "utf-8")
    if args.json:
        print(text)
    else:
        print(frontier_text(result, test_trace))
        if args.output:
            print(f"\n  written to {args.output}")


def run_report(args: argparse.Namespace) -> None:
    """Compare and draw."""
    from ttamer.cli.show import as_json
    from ttamer.fitting.plans import fit
    from ttamer.reporting.report import write_report

    result, fit_trace, test_trace = _measured(args)
    paths = write_report(result, fit(fit_trace), test_trace, args.output, title=args.title)
    if args.json:
        print(as_json({**result.to_dict(), "written": [str(path) for path in paths]}))
    else:
        print(frontier_text(result, test_trace))
        print(f"\n  written to {paths[0]}")


def _measured(args: argparse.Namespace) -> tuple[Frontier, Any, Any]:
    from ttamer.cli.progress import teller
    from ttamer.cli.traces import read
    from ttamer.evaluation.frontiers import frontier

    fit_trace, test_trace = read(args.fit, args), read(args.test, args)
    tell = teller(quiet=args.json)
    names = args.families.split(",") if args.families else None
    result = frontier(
        fit_trace, test_trace, families=names, resamples=args.resamples, progress=tell
    )
    tell("")
    return result, fit_trace, test_trace


def frontier_text(result: Frontier, test_trace: Trace) -> str:
    """Return the comparison as a table."""
    from ttamer.cli.show import number, table
    from ttamer.evaluation.frontiers import MORE_ERROR
    from ttamer.reporting.recommendation import reference_in_words

    best, alone = result.reference, reference_in_words(result, test_trace)
    head = ["family", *(f"+{100 * more:g}" if more else "its error" for more in MORE_ERROR)]
    rows = []
    for family in result.families:
        cells = []
        for more in MORE_ERROR:
            cost = result.cost_at(family, more)
            cells.append("-" if cost is None else f"{cost / best.cost:.1%}" if best.cost else "0")
        rows.append([family, *cells, f"{result.area(family):.4f}"])
    lines = [
        f"Fitted on {result.fit_rows} rows, measured on {result.test_rows} others.",
        f"Compared with {alone}: error {best.error:.2%}, cost {number(best.cost)}.",
        "",
        "Cost, as a share of its, at its error and at so many points more ('-': not reached);",
        "mean error over all costs:",
        "",
        table([*head, "mean error"], rows),
    ]
    if result.left_out:
        lines.append("")
        lines += [f"  left out: {name}: {why}" for name, why in result.left_out.items()]
    return "\n".join(lines)
