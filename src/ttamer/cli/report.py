"""``ttamer report``: the comparison of ``ttamer frontier`` as one page with figures."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.cli.frontier import add_comparison_options

    parser = commands.add_parser(
        "report",
        help="write the comparison as one page with figures",
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
    from ttamer.cli.frontier import frontier_text, named_families, two_traces
    from ttamer.cli.output import as_json, progress_line
    from ttamer.evaluation.frontiers import frontier
    from ttamer.fitting.plans import fit
    from ttamer.reporting import write_report
    from ttamer.reporting.report import require_page
    from ttamer.reporting.style import require_matplotlib

    require_page(args.output)
    require_matplotlib()
    names = named_families(args)
    if names is not None:
        names = list(dict.fromkeys(["ttamer", *names]))  # the page is about its policies
    fit_trace, test_trace = two_traces(args)
    progress = progress_line(quiet=args.json)
    ladder = fit(fit_trace, progress=progress)
    result = frontier(
        fit_trace, test_trace, families=names, ladder=ladder, resamples=args.resamples,
        progress=progress,
    )  # fmt: skip
    progress("")
    paths = write_report(result, ladder, test_trace, args.output, title=args.title)
    if args.json:
        print(as_json({**result.to_dict(), "written": [str(path) for path in paths]}))
    else:
        print(frontier_text(result, test_trace, args, ladder))
        print(f"\n  written to {paths[0]}")
