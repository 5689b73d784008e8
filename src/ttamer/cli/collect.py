"""``ttamer collect``: a trace from the upstreams of a cascade, or from Python callables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._checks import counted

if TYPE_CHECKING:  # not loaded for --help
    from ttamer.cascade import CascadeSpec
    from ttamer.llm.judging import Judge
    from ttamer.llm.prompts import Prompt
    from ttamer.trace.trace import Trace

# The field of prompts that holds the reference answer, unless another is named.
DEFAULT_LABEL = "label"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "collect",
        help="make a trace by calling models: upstreams, or Python callables",
        description="Call every model on every input, and write the trace and its cascade. The "
        "models are the upstreams of a cascade.toml, or Python callables, whose calls are timed.",
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="+", metavar="CASCADE.toml | NAME=MODULE:FUNCTION",
                        help="a cascade with upstreams, or callables: input -> (prediction, "
                        "confidence)")  # fmt: skip
    parser.add_argument("-o", "--output", default="trace.parquet", metavar="FILE",
                        help="the trace to write (.parquet, .csv or .npz); its cascade is written "
                        "beside it")  # fmt: skip
    parser.add_argument("--skip-bad", action="store_true",
                        help="skip and count inputs for which a node failed")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    upstreams = parser.add_argument_group("with a cascade.toml")
    upstreams.add_argument("--prompts", metavar="FILE",
                           help="JSON lines, CSV, or text with one prompt per line")  # fmt: skip
    upstreams.add_argument("--label", default=DEFAULT_LABEL, metavar="FIELD",
                           help="the field of the reference answer (default label)")  # fmt: skip
    upstreams.add_argument("--endpoint", default="chat/completions",
                           choices=("chat/completions", "completions"),
                           help="the endpoint of the upstreams to call")  # fmt: skip
    upstreams.add_argument("--max-tokens", type=int, default=256, metavar="N",
                           help="the longest answer, in tokens (default 256)")  # fmt: skip
    upstreams.add_argument("--cache", metavar="FILE",
                           help="where responses are kept, so that none is paid for twice "
                           "(default: OUTPUT.cache)")  # fmt: skip
    upstreams.add_argument("--dry-run", action="store_true",
                           help="ask nothing: print the calls and what they would cost at "
                           "most")  # fmt: skip
    upstreams.add_argument("--judge", metavar="NODE",
                           help="a node that judges which answers are right, instead of the "
                           "comparison with labels")  # fmt: skip
    upstreams.add_argument("--rubric", metavar="FILE",
                           help="with --judge: a text that defines what is right")  # fmt: skip
    upstreams.add_argument("--graded", action="store_true",
                           help="with --judge: ask for scores, which become losses, instead of "
                           "yes and no")  # fmt: skip
    upstreams.add_argument("--pairs", metavar="FILE",
                           help='with compare = "embedding": labelled pairs, or the labels of '
                           "ttamer label, to which the threshold is fitted")  # fmt: skip
    upstreams.add_argument("--like", metavar="RULE",
                           help='with compare = "embedding": another rule of comparison; the '
                           "threshold is fitted to its verdicts on the labels")  # fmt: skip
    upstreams.add_argument("--min-agreement", type=float, default=0.0, metavar="SHARE",
                           help="refuse a judge, or a threshold of embeddings, that agrees with "
                           "fewer labels (default 0)")  # fmt: skip
    upstreams.add_argument("--forget", action="store_true",
                           help="delete prompts and answers (the cache and "
                           "OUTPUT.answers.jsonl) once the trace is written")  # fmt: skip
    callables = parser.add_argument_group("with callables")
    callables.add_argument("--inputs", metavar="FILE", help="text, one input per line")
    callables.add_argument("--labels", metavar="FILE", help="text, one correct answer per line")
    callables.add_argument("--repeat", type=int, default=1, metavar="N",
                           help="calls per input, of which the median time is taken (default "
                           "1)")  # fmt: skip
    parser.set_defaults(run=run, groups=(upstreams, callables))


def run(args: argparse.Namespace) -> None:
    """Call the models, write the trace, and print what was collected."""
    from pathlib import Path

    from ttamer.cli.output import as_json
    from ttamer.cli.traces import errors_of, node_table
    from ttamer.trace.files import beside, suffix_of

    suffix = suffix_of(args.output)  # checked before any model is called
    of_cascade = args.models[0].endswith(".toml")
    _refuse_options(args, of_cascade=of_cascade)
    if args.dry_run:
        _show_plan(args)
        return
    try:
        trace = _from_upstreams(args) if of_cascade else _from_callables(args)
    except KeyboardInterrupt:
        if of_cascade:
            print(
                f"\nstopped: the answers so far are kept in {_kept(args)[0]}, and the same command "
                "asks only for those that are missing",
                file=sys.stderr,
            )
        raise
    trace.write(args.output)
    written = [args.output]
    if of_cascade:
        paid, answers = _kept(args)
        if args.forget:
            for end in ("", "-wal", "-shm"):
                paid.with_name(paid.name + end).unlink(missing_ok=True)
            answers.unlink(missing_ok=True)
        else:
            written.append(str(answers))
    cascade = beside(args.output, ".toml")
    if not of_cascade or cascade.resolve() != Path(args.models[0]).resolve():
        trace.spec.to_file(cascade)
        written.append(str(cascade))
    costs = dict(zip(trace.names, trace.costs.mean(axis=0).tolist(), strict=True))
    if args.json:
        facts = {"rows": len(trace), "costs": costs, "left_out": dict(trace.left_out)}
        facts |= {"errors": errors_of(trace), "notes": list(trace.notes), "written": written}
        print(as_json(facts))
        return
    print(f"{counted(len(trace), 'row')}\n")
    print(node_table(trace))
    if not of_cascade:
        print("\n  cost: seconds per call, unless a callable returns its own")
    for reason, count in trace.left_out.items():
        print(f"\n  {counted(count, 'prompt' if of_cascade else 'input')} left out: {reason}")
    for note in trace.notes:
        print(f"\n  {note}")
    print(f"\n  written to {' and '.join(written)}")
    needed = f" --cascade {cascade}" if suffix in (".csv", ".csv.gz") else ""
    print(f"\nNext: ttamer fit {args.output}{needed}")


def _refuse_options(args: argparse.Namespace, *, of_cascade: bool) -> None:
    """Refuse options that are for models of the other kind, and would do nothing."""
    from ttamer.errors import ArgumentError

    upstreams, callables = args.groups
    for action in (callables if of_cascade else upstreams)._group_actions:
        if getattr(args, action.dest) != action.default:
            kind = "Python callables" if of_cascade else "the upstreams of a cascade.toml"
            raise ArgumentError(
                f"{action.option_strings[0]} is for {kind}, not for {args.models[0]}; remove it "
                "(ttamer collect --help)"
            )


def _kept(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the file of responses, and that of prompts and answers."""
    from pathlib import Path

    paid = Path(args.cache or f"{args.output}.cache")
    return paid, Path(f"{args.output}.answers.jsonl")


def _judge(args: argparse.Namespace) -> Judge | None:
    """Return the judge, if there is one."""
    from pathlib import Path

    from ttamer.errors import ArgumentError
    from ttamer.llm.judging import Judge
    from ttamer.llm.prompts import read_text

    if args.judge is None:
        needed = [("--rubric", args.rubric), ("--graded", args.graded)]
        if args.pairs is None and args.like is None:
            needed.append(("--min-agreement", args.min_agreement))
        for flag, given in needed:
            if given:
                raise ArgumentError(f"{flag} is for a judge: give --judge NODE")
        return None
    rubric = "" if args.rubric is None else read_text(Path(args.rubric)).strip()
    return Judge(args.judge, rubric, args.graded, args.min_agreement)


def _checked(args: argparse.Namespace) -> tuple[CascadeSpec, list[Prompt]]:
    """Return the cascade and the prompts."""
    from ttamer.cascade import CascadeSpec
    from ttamer.errors import ArgumentError
    from ttamer.llm.prompts import read_prompts

    if len(args.models) > 1:
        raise ArgumentError(f"give one cascade.toml, not {' '.join(args.models)}")
    if args.prompts is None:
        raise ArgumentError("--prompts FILE is needed: the prompts to collect answers for")
    if args.max_tokens < 1:
        raise ArgumentError(f"--max-tokens is {args.max_tokens}; it must be at least 1")
    spec = CascadeSpec.from_file(args.models[0])
    request = {"temperature": 0, "max_tokens": args.max_tokens}
    prompts = read_prompts(args.prompts, label=args.label, endpoint=args.endpoint, request=request)
    if args.label != DEFAULT_LABEL and all(prompt.label is None for prompt in prompts):
        raise ArgumentError(f"--label {args.label}: no prompt of {args.prompts} has that field")
    return spec, prompts


def _show_plan(args: argparse.Namespace) -> None:
    """Print what would be asked, and what it would cost at most."""
    from ttamer.cli.output import as_json
    from ttamer.llm.collecting import plan_collection

    plan = plan_collection(*_checked(args), _kept(args)[0], endpoint=args.endpoint)
    if args.json:
        print(as_json({"calls": plan.calls, "cost": plan.cost, "kept": plan.kept}))
        return
    print(plan)
    if args.judge is not None:
        print(f"and up to one call of {args.judge} for each different answer")


def _from_upstreams(args: argparse.Namespace) -> Trace:
    from ttamer.cli.output import progress_line
    from ttamer.llm.collecting import collect_prompts
    from ttamer.llm.likeness import Likeness

    spec, prompts = _checked(args)
    progress = progress_line(quiet=args.json)
    counts = "answers" if args.judge is None else "answers and verdicts"
    paid, answers = _kept(args)
    trace = collect_prompts(
        spec,
        prompts,
        paid,
        answers=None if args.forget else answers,
        judge=_judge(args),
        likeness=Likeness(args.pairs, args.like, args.min_agreement),
        endpoint=args.endpoint,
        on_error="skip" if args.skip_bad else "refuse",
        progress=lambda done, total, failed: progress(
            f"{done} of {total} {counts}" + (f", {failed} failed" if failed else "")
        ),
    )
    progress("")
    return trace


def _from_callables(args: argparse.Namespace) -> Trace:
    from ttamer.cli.output import progress_line
    from ttamer.errors import ArgumentError
    from ttamer.runtime.collecting import collect

    named = [_model(text) for text in args.models]
    models = dict(named)
    if len(models) < len(named):
        names = [name for name, _ in named]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"two models are called {repeated!r}; give each a name of its own")
    if args.inputs is None:
        raise ArgumentError("--inputs FILE is needed: the inputs to call the models on")
    inputs = _lines(args.inputs)
    labels = _lines(args.labels) if args.labels else None
    if labels is not None and len(labels) != len(inputs):
        raise ArgumentError(
            f"{args.labels} has {len(labels)} lines and {args.inputs} {len(inputs)}; there must be "
            "one label for each input"
        )
    progress = progress_line(quiet=args.json)
    trace = collect(
        inputs,
        models,
        labels=labels,
        repeat=args.repeat,
        on_error="skip" if args.skip_bad else "refuse",
        progress=lambda done, total: progress(f"{done} of {total} inputs"),
    )
    progress("")
    return trace


def _lines(path: str) -> list[str]:
    """Return the lines of a text file."""
    from pathlib import Path

    from ttamer._files import lines_of
    from ttamer.errors import ArgumentError

    try:
        return lines_of(Path(path).read_text("utf-8-sig"))
    except UnicodeDecodeError:
        raise ArgumentError(f"{path}: is not text in UTF-8") from None


def _model(text: str) -> tuple[str, Callable[[Any], Any]]:
    """Return the name and the function of ``NAME=MODULE:FUNCTION``."""
    from ttamer.cli.modules import load_function
    from ttamer.errors import ArgumentError

    name, _, place = text.partition("=")
    if not (name and all(place.partition(":"))):
        raise ArgumentError(f"a model is written NAME=MODULE:FUNCTION, not {text!r}")
    return name, load_function(place)
