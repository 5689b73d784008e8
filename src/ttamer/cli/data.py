"""``ttamer collect``, ``label`` and ``import``: traces from models, from people, from other logs.

Language models are imported where they are asked: callables and logs by call need no client.
"""

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import click

from ttamer._checks import counted
from ttamer._files import lines_of
from ttamer.cascade import CascadeSpec
from ttamer.cli.options import (
    Command,
    Function,
    Output,
    command,
    errors_of,
    json_option,
    load_function,
    node_table,
    output_option,
    print_notes,
    skip_option,
)
from ttamer.cli.printing import progress_line, to_json
from ttamer.errors import ArgumentError
from ttamer.runtime.collecting import collect
from ttamer.trace.io import beside, suffix_of
from ttamer.trace.trace import OnBad, Trace

# Options that only callables have, and only upstreams.
CALLABLES = ("inputs", "labels", "repeat")
UPSTREAMS = ("prompts", "prompts_from", "only", "budget", "label", "max_tokens",
             "cache", "dry_run", "judge", "rubric", "graded", "pairs", "min_agreement",
             "forget")  # fmt: skip


@command("collect")
@click.argument("models", nargs=-1, required=True, metavar="CASCADE.toml | NAME=MODULE:FUNCTION...")
@output_option("trace.parquet", text="The trace to write (.parquet, .csv or .npz); its cascade is "
               "written beside it.")  # fmt: skip
@skip_option
@json_option
@click.option("--prompts", metavar="FILE", help="Upstreams: JSON lines, CSV, or text with one "
              "prompt per line.")  # fmt: skip
@click.option("--prompts-from", metavar="TRACE", help="Upstreams: a log whose prompts are asked; "
              "the trace has its answers too.")  # fmt: skip
@click.option("--only", multiple=True, metavar="NODE", help="With --prompts-from: the node to ask, "
              "such as a new one; may be repeated.")  # fmt: skip
@click.option("--budget", type=float, metavar="C", help="Upstreams: the most that all answers may "
              "cost, in the cascade's units; a random part of the prompts is asked.")  # fmt: skip
@click.option("--label", default="label", metavar="FIELD",
              help="Upstreams: the field of the reference answer (default label).")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), default=256, metavar="N",
              help="Upstreams: the longest answer, in tokens (default 256).")  # fmt: skip
@click.option("--cache", metavar="FILE", help="Upstreams: where responses are kept, so that none "
              "is paid for twice (default OUTPUT.cache).")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Upstreams: ask nothing; print the calls and what "
              "they would cost at most.")  # fmt: skip
@click.option("--judge", metavar="NODE", help="Upstreams: a node that judges which answers are "
              "right, instead of the comparison with labels.")  # fmt: skip
@click.option("--rubric", metavar="FILE",
              help="With --judge: a text that defines what is right.")  # fmt: skip
@click.option("--graded", is_flag=True,
              help="With --judge: ask for scores, which become losses.")  # fmt: skip
@click.option("--pairs", metavar="FILE", help='With compare = "embedding": labelled pairs, to '
              "which the threshold is fitted in place of labels.")  # fmt: skip
@click.option("--min-agreement", type=float, default=0.0, metavar="SHARE",
              help="With --judge: refuse one that agrees with fewer labels.")  # fmt: skip
@click.option("--forget", is_flag=True, help="Upstreams: delete prompts and answers (the cache "
              "and OUTPUT.answers.jsonl) once the trace is written.")  # fmt: skip
@click.option("--inputs", metavar="FILE", help="Callables: text, one input per line.")
@click.option("--labels", metavar="FILE", help="Callables: text, one right answer per line.")
@click.option("--repeat", type=int, default=1, metavar="N", help="Callables: calls per input, of "
              "which the median time is taken (default 1).")  # fmt: skip
def collect_command(
    models: tuple[str, ...],
    output: str,
    skip_bad: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Call every model on every input, and write the trace and its cascade.

    The models are the upstreams of a CASCADE.toml, or Python callables (input -> (prediction,
    confidence)), whose calls are timed.
    """
    suffix, ctx = suffix_of(output), click.get_current_context()  # before any model is called
    of_cascade = models[0].endswith(".toml")
    for name in CALLABLES if of_cascade else UPSTREAMS:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            kind = "Python callables" if of_cascade else "the upstreams of a cascade.toml"
            raise ArgumentError(
                f"--{name.replace('_', '-')} is for {kind}, not for {models[0]}; remove it"
            )
    progress = progress_line(quiet=as_json)
    on_error: OnBad = "skip" if skip_bad else "refuse"
    if of_cascade:
        collection = _Prompts(models, output, **options)
        if options["dry_run"]:
            collection.show_plan(as_json=as_json)
            return
        trace = collection.collect(on_error, progress)
        written = [output, *collection.kept()]
    else:
        trace = _call(models, progress, on_error, **{name: options[name] for name in CALLABLES})
        written = [output]
    progress("")
    trace.write(output)
    cascade = beside(output, ".toml")
    if not of_cascade or cascade.resolve() != Path(models[0]).resolve():
        trace.spec.to_file(cascade)
        written.append(str(cascade))
    if as_json:
        costs = dict(zip(trace.names, trace.costs.mean(axis=0).tolist(), strict=True))
        facts = {"rows": len(trace), "costs": costs, "left_out": dict(trace.left_out)}
        print(to_json({**facts, "errors": errors_of(trace), "notes": list(trace.notes),
                       "written": written}))  # fmt: skip
        return
    print(f"{counted(len(trace), 'row')}\n\n{node_table(trace)}")
    if not of_cascade:
        print("\n  cost: seconds per call, unless a callable returns its own")
    for reason, count in trace.left_out.items():
        print(f"\n  {counted(count, 'prompt' if of_cascade else 'input')} left out: {reason}")
    for note in trace.notes:
        print(f"\n  {note}")
    print(f"\n  written to {' and '.join(written)}")
    print(f"\nNext: ttamer fit {output}{_cascade_words(suffix, cascade)}")


class _Prompts:
    """Prompts to ask the upstreams of a cascade about, and the options of asking."""

    def __init__(self, models: tuple[str, ...], output: str, **options: Any) -> None:
        from ttamer.llm.judging import Judge
        from ttamer.llm.prompts import read_prompts, read_text

        if len(models) > 1:
            raise ArgumentError(f"give one cascade.toml, not {' '.join(models)}")
        self.judge, self.options = None, options
        if options["judge"] is not None:
            rubric = "" if options["rubric"] is None else read_text(Path(options["rubric"])).strip()
            self.judge = Judge(
                options["judge"], rubric, options["graded"], options["min_agreement"]
            )
        else:
            for name in ("rubric", "graded", "min_agreement"):
                if options[name]:
                    flag = f"--{name.replace('_', '-')}"
                    raise ArgumentError(f"{flag} is for a judge: give --judge NODE")
        self.paid = Path(options["cache"] or f"{output}.cache")
        self.answers = Path(f"{output}.answers.jsonl")
        self.request = {"temperature": 0, "max_tokens": options["max_tokens"]}
        if bool(options["only"]) != (options["prompts_from"] is not None):
            raise ArgumentError("--only NODE and --prompts-from TRACE go together: give both")
        if (options["prompts"] is None) == (options["prompts_from"] is None):
            raise ArgumentError(
                "--prompts FILE is needed: the prompts to collect answers for; or --prompts-from "
                "TRACE with --only NODE"
            )
        self.spec = CascadeSpec.from_file(models[0])
        if options["prompts"] is None:
            return
        self.prompts = read_prompts(
            options["prompts"], label=options["label"], request=self.request
        )
        if options["label"] != "label" and all(p.label is None for p in self.prompts):
            raise ArgumentError(
                f"--label {options['label']}: no prompt of {options['prompts']} has that field"
            )

    def show_plan(self, *, as_json: bool) -> None:
        """Print what would be asked, and what it would cost at most."""
        from ttamer.llm.collecting import plan_collection

        if self.options["prompts"] is None:
            raise ArgumentError("--dry-run is for --prompts: with --prompts-from give a --budget")

        plan = plan_collection(self.spec, self.prompts, self.paid, judge=self.judge)
        print(to_json(dataclasses.asdict(plan)) if as_json else plan)

    def collect(self, on_error: OnBad, progress: Callable[[str], None]) -> Trace:
        """Ask, and return the trace."""
        from ttamer.llm.collecting import collect_more, collect_prompts

        options = self.options
        asked = "answers" if self.judge is None else "answers and verdicts"

        def report(done: int, total: int, failed: int) -> None:
            progress(f"{done} of {total} {asked}" + (f", {failed} failed" if failed else ""))

        more = {"progress": report, "budget": options["budget"]}
        try:
            if options["only"]:
                log = Trace.read(options["prompts_from"])
                return collect_more(
                    self.spec, log, options["only"], self.paid, request=self.request, **more
                )
            return collect_prompts(
                self.spec,
                self.prompts,
                self.paid,
                answers=None if options["forget"] else self.answers,
                judge=self.judge,
                pairs=options["pairs"],
                on_error=on_error,
                **more,
            )
        except KeyboardInterrupt:
            print(
                f"\nstopped: the answers so far are kept in {self.paid}, and the same command asks "
                "only for those that are missing",
                file=sys.stderr,
            )
            raise

    def kept(self) -> list[str]:
        """Return the file of answers; with --forget it is deleted, and what was paid for too."""
        if not self.options["forget"]:
            return [str(self.answers)] if self.answers.exists() else []
        for ending in ("", "-wal", "-shm"):
            self.paid.with_name(self.paid.name + ending).unlink(missing_ok=True)
        self.answers.unlink(missing_ok=True)
        return []


def _call(
    models: tuple[str, ...],
    progress: Callable[[str], None],
    on_error: OnBad,
    *,
    inputs: str | None,
    labels: str | None,
    repeat: int,
) -> Trace:
    """Call the callables on the lines of a file."""
    nodes: dict[str, Function] = {}
    for text in models:
        name, _, reference = text.partition("=")
        if not (name and all(reference.partition(":"))):
            raise ArgumentError(f"a model is written NAME=MODULE:FUNCTION, not {text!r}")
        if name in nodes:
            raise ArgumentError(f"two models are called {name!r}; give each a name of its own")
        nodes[name] = load_function(reference)
    if inputs is None:
        raise ArgumentError("--inputs FILE is needed: the inputs to call the models on")
    texts, answers = _lines(inputs), None if labels is None else _lines(labels)
    if answers is not None and len(answers) != len(texts):
        raise ArgumentError(
            f"{labels} has {len(answers)} lines and {inputs} {len(texts)}; there must be one label "
            "for each input"
        )
    return collect(
        texts,
        nodes,
        labels=answers,
        repeat=repeat,
        on_error=on_error,
        progress=lambda done, total: progress(f"{done} of {total} inputs"),
    )


def _lines(path: str) -> list[str]:
    try:
        return lines_of(Path(path).read_text("utf-8-sig"))
    except UnicodeDecodeError:
        raise ArgumentError(f"{path}: is not text in UTF-8") from None


def _cascade_words(suffix: str, cascade: Path) -> str:
    """Return the option that a trace needs; only CSV keeps no cascade inside."""
    return f" --cascade {cascade}" if suffix in (".csv", ".csv.gz") else ""


@command("label")
@click.argument("trace")
@output_option(text="The labelled trace (default: TRACE with .labelled before its suffix).")
@click.option("--within", type=float, default=0.02, metavar="X", help="Label until differences in "
              "error are known to X (default 0.02).")  # fmt: skip
@click.option("--uniform", is_flag=True, help="All rows are equally likely to come next, as a "
              "certificate needs.")  # fmt: skip
@click.option("--port", type=int, default=0, metavar="N",
              help="The local port of the page (default: any free one).")  # fmt: skip
@click.option("--no-page", is_flag=True, help="Do not open the page: write the trace from the "
              "labels so far.")  # fmt: skip
@click.option("--judge", metavar="NODE", help="In place of a person: a node of --cascade decides.")
@click.option("--cascade", metavar="FILE", help="With --judge: a cascade.toml with its upstream.")
@click.option("--graded", is_flag=True, help="With --judge: ask for scores, which become losses.")
@json_option
def label_command(
    trace: str,
    output: str | None,
    within: float,
    uniform: bool,
    port: int,
    no_page: bool,
    judge: str | None,
    cascade: str | None,
    graded: bool,
    as_json: bool,
) -> None:
    """Label the answers of TRACE, made by ttamer collect or import, on a local page.

    Rows on which nodes differ come first. Labels are saved one by one: the same command continues
    where it stopped. The labelled trace is for ttamer fit.
    """
    from ttamer.llm.judging import Judge, judge_answers
    from ttamer.llm.labelling import Labelling, LabelPlan
    from ttamer.llm.prompts import read_answers

    source = Path(trace)
    suffix = suffix_of(source)
    target = Path(output or beside(source, f".labelled{suffix}"))
    written_cascade = beside(target, ".toml")
    if target.resolve() == source.resolve():
        raise ArgumentError(f"--output is {output!r}, the trace itself; choose another file")
    source_cascade = beside(source, ".toml") if _cascade_words(suffix, written_cascade) else None
    if source_cascade is not None and source.exists() and not source_cascade.exists():
        raise ArgumentError(
            f"{source}: keeps no cascade, and {source_cascade}, which ttamer collect writes beside "
            "it, is missing; run ttamer collect again, which asks no model again"
        )
    if (judge is None) != (cascade is None) or (graded and judge is None):
        raise ArgumentError("--judge NODE and --cascade FILE go together, and --graded with them")
    if judge is not None:
        trace_to_judge = Trace.read(source, source_cascade)
        rows = read_answers(f"{source}.answers.jsonl", trace_to_judge.names)
        judged = judge_answers(
            trace_to_judge, rows, cascade or "", Judge(judge, graded=graded), f"{source}.verdicts"
        )
        judged.write(target)
        judged.spec.to_file(written_cascade)
        text = f"{judged.notes[-1]}\n\n  written to {target}\n\nNext: ttamer fit {target}"
        facts = {"notes": judged.notes, "written": [str(target)]}
        print(to_json(facts) if as_json else text)
        return
    plan = LabelPlan(Trace.read(source, source_cascade), within=within, uniform=uniform)
    rows = read_answers(f"{source}.answers.jsonl", plan.trace.names)
    labels = Path(f"{source}.labels")
    written, notes = [str(labels)], []
    with Labelling(plan, rows, labels) as labelling:
        if not no_page:
            _serve_labelling(labelling, port, quiet=as_json)
        estimate = plan.estimate(labelling.right)
        if labelling.right:
            labelled = labelling.trace()
            labelled.write(target)
            labelled.spec.to_file(written_cascade)
            written = [str(target), str(written_cascade), *written]
            notes = list(labelled.notes[-1:])
    if as_json:
        print(to_json({"labels": len(labelling.right), "skipped": len(labelling.skipped),
                       "more": estimate.more, "unknown": labelling.unknown, "notes": notes,
                       "written": written}))  # fmt: skip
        return
    print(estimate)
    if labelling.unknown:
        unknown = counted(labelling.unknown, "label")
        notes.append(f"{unknown} of other prompts or answers: not counted")
    for note in [*notes, f"written to {' and '.join(written)}"]:
        print(f"\n  {note}")
    if labelling.right:
        print(f"\nNext: ttamer fit {target}{_cascade_words(suffix, written_cascade)}")
        if plan.trace.spec.target == "last":
            print('  and remove target = "last" from the cascade.toml that serves it')


def _serve_labelling(labelling: Any, port: int, *, quiet: bool) -> None:
    """Serve the page until the person is done, or the command is interrupted."""
    from ttamer.llm.labelling import LabelPage

    def ready(url: str) -> None:
        stream = sys.stderr if quiet else sys.stdout
        print(f"open {url}\n(Ctrl-C or the page's Finish ends it)", file=stream, flush=True)

    with suppress(KeyboardInterrupt):
        try:
            asyncio.run(LabelPage(labelling).serve(port, ready))
        except (OSError, OverflowError) as error:
            raise ArgumentError(f"--port is {port}, which cannot be used: {error}") from None


@click.group("import", no_args_is_help=False)
def import_command() -> None:
    """Write a log of another form as a trace, and its cascade.toml beside it."""


def _importer(function: Function) -> Function:
    """Add the options of both formats."""
    for option in (
        json_option,
        skip_option,
        click.option("-o", "--output", type=Output(), required=True, metavar="FILE",
                     help="The trace to write (.parquet, .csv or .npz)."),
        click.argument("log"),
    ):  # fmt: skip
        function = option(function)
    return function


@import_command.command("answers", cls=Command)
@click.option("--cascade", metavar="FILE", required=True, help="A cascade.toml: names and costs of "
              "the nodes, and under [serve] how answers are compared.")  # fmt: skip
@_importer
def import_answers_command(**options: Any) -> None:
    """Import answers in free text.

    A log has <node>.answer, label, and costs or tokens, as JSON lines or CSV; the spend logs of
    LiteLLM and the batch files of OpenAI are read too.
    """
    _import("answers", **options)


@import_command.command("calls", cls=Command)
@click.option("--cascade", metavar="FILE", help="A cascade.toml: names and costs of the exits.")
@_importer
def import_calls_command(**options: Any) -> None:
    """Import one line per call: id, node, confidence and more, as JSON lines, CSV or Parquet."""
    _import("calls", **options)


def _import(
    form: Literal["answers", "calls"],
    *,
    log: str,
    cascade: str | None,
    output: str,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Read, write, and print the command that comes next."""
    suffix = suffix_of(output)  # checked before the log is read
    on_bad: OnBad = "skip" if skip_bad else "refuse"
    if form == "answers":
        from ttamer.llm.importing import import_answers

        trace = import_answers(log, cascade or "", on_bad=on_bad, answers=f"{output}.answers.jsonl")
    else:
        trace = Trace.read(log, cascade, on_bad=on_bad)
    print_notes(trace, log)
    trace.write(output)
    written = beside(output, ".toml")
    if cascade is None or written.resolve() != Path(cascade).resolve():
        trace.spec.to_file(written)
    if as_json:
        facts = {"rows": len(trace), "written": [output, str(written)]}
        print(to_json({**facts, "notes": list(trace.notes)}))
        return
    if form == "answers":
        print(f"{node_table(trace)}\n")
    print(f"  {output}: {counted(len(trace), 'row')} of {', '.join(trace.names)}")
    print(f"  {written}: names and costs; edit the costs where the log has none")
    # Answers have costs, which are kept inside with the cascade; the costs of calls may be edited.
    option = f" --cascade {written}" if form == "calls" else _cascade_words(suffix, written)
    if form == "answers" and not errors_of(trace):
        print(
            "\nNo answer is known to be right, which a fit needs: add a label to every row, or "
            f'write target = "last" under [cascade] in {cascade}, and import again'
        )
    else:
        print(f"\nNext: ttamer frontier {output}{option}")
