"""``ttamer report``: the comparison of ``ttamer frontier`` as one page with figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.cli.frontier import add_comparison_options

    parser = commands.add_parser(
        "report",
        help="the comparison as one page with figures",
        description="Fit on some rows, measure on others (one trace, halved at random, or "
        "--fit and --test), and write one HTML page that opens offline; its figures are written "
        "beside it as PNG and SVG.",
        allow_abbrev=False,
    )
    add_comparison_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html",
                        help="where to write the page (default report.html)")  # fmt: skip
    parser.add_argument("--title", help="the title of the page")
    parser.set_defaults(run=run, makes_folders=True)


def run(args: argparse.Namespace) -> None:
    """Compare and draw."""
    from ttamer.cli.frontier import compare, frontier_text
    from ttamer.cli.output import as_json
    from ttamer.reporting import write_report

    result, ladder, test_trace = compare(args)
    paths = write_report(result, ladder, test_trace, args.output, title=args.title)
    if args.json:
        print(as_json({**result.to_dict(), "written": [str(path) for path in paths]}))
    else:
        print(frontier_text(result, test_trace))
        print(f"\n  written to {paths[0]}")
