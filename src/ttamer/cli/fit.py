"""``ttamer fit``: from a trace to a ladder of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    from ttamer.cli.traces import add_reading_options

    parser = commands.add_parser(
        "fit",
        help="fit policies to a trace, and save them",
        description="Fit a ladder of policies to a trace (Parquet, CSV, NPZ) and save it.",
        allow_abbrev=False,
    )
    parser.add_argument("trace", help="what each node said: a Parquet, CSV or NPZ file")
    add_reading_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", default="policy.ttamer",
                        help="where to write the policies (default policy.ttamer)")  # fmt: skip
    add_fit_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_fit_options(parser: Any) -> None:
    """Add what can be chosen about a fit."""
    parser.add_argument("--belief", choices=("full", "calibrated", "none"), default="full",
                        help="what a state loses; none is the paper as written")  # fmt: skip
    parser.add_argument("--order", choices=("fixed", "skip", "any", "auto"),
                        help="overrides the cascade's")  # fmt: skip
    parser.add_argument("--states", type=int, metavar="N",
                        help="states per node (default: by cross-validation)")  # fmt: skip
    parser.add_argument("--quantise", choices=("quantile", "uniform", "kmeans"),
                        default="quantile", help="how confidences become states")  # fmt: skip
    parser.add_argument("--stream", action="store_true",
                        help="read in batches: for files larger than memory")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the cross-validation (default 0)")


def fit_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a fit as keywords."""
    names = ("belief", "order", "states", "quantise", "seed")
    return {name: getattr(args, name) for name in names}


def run(args: argparse.Namespace) -> None:
    """Fit, save, and say what was fitted."""
    from ttamer.artefact import save
    from ttamer.cli.progress import teller
    from ttamer.cli.show import as_json, number, table
    from ttamer.cli.traces import read
    from ttamer.evaluation import measure
    from ttamer.fitting import fit

    tell = teller(quiet=args.json)
    if args.stream:
        _run_stream(args, tell)
        return
    trace = read(args.trace, args)
    ladder = fit(trace, progress=tell, **fit_options(args))
    tell("")
    save(ladder, args.output)
    results = [measure(played, trace, resamples=0) for played in ladder.play_all(trace)]
    facts = {
        "output": args.output,
        "rows": len(trace),
        "plan": dict(ladder.fitted.plan),
        "policies": [
            {"tradeoff": policy.tradeoff, "error": result.error, "cost": result.cost}
            for policy, result in zip(ladder, results, strict=True)
        ],
    }
    if args.json:
        print(as_json(facts))
        return
    plan = ladder.fitted.plan
    print(f"{len(trace)} rows, {len(trace.names)} nodes: order {plan['order']}, "
          f"{plan['states']} states per node, belief {plan['belief']}\n")  # fmt: skip
    rows, seen = [], set()
    for policy, result in zip(ladder, results, strict=True):
        line = [f"{result.error:.2%}", number(result.cost), f"{result.relative_cost:.1%}"]
        if tuple(line) not in seen:
            seen.add(tuple(line))
            rows.append([f"{policy.tradeoff:.5g}", *line])
    print(table(["tradeoff", "error", "cost", "of full"], rows))
    print(f"\nOn the rows fitted to; measure on others with: ttamer evaluate {args.output} TRACE")
    print(f"  written to {args.output}")


def _run_stream(args: argparse.Namespace, tell: Any) -> None:
    from ttamer.artefact import save
    from ttamer.cli.show import as_json
    from ttamer.streaming import fit_file

    ladder = fit_file(args.trace, args.cascade, progress=tell, **fit_options(args))
    tell("")
    save(ladder, args.output)
    facts = {"output": args.output, "rows": ladder.fitted.rows, "plan": dict(ladder.fitted.plan)}
    if args.json:
        print(as_json(facts))
    else:
        print(f"{ladder}\n  written to {args.output}")
