"""The command line as people meet it: real files, and real processes where they matter."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import ttamer as tt
from support.commands import parse
from support.three_models import three_models
from support.traces import answering_trace, chain_trace
from ttamer.cli import COMMANDS, compare, main
from ttamer.fitting.points import Mix
from ttamer.fitting.replay import paid
from ttamer.reporting.recommendation import recommend


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    words, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def run_process(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "ttamer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def succeed(*arguments: object, run=run, **options) -> str:
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def refuse(*arguments: object, run=run, **options) -> str:
    done = run(*arguments, **options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, f"not one line: {done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    three_models().to_file(path)
    return path


def test_without_arguments_the_commands_are_listed_and_nothing_succeeds():
    done = run_process()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == succeed("--help", run=run_process)
    assert "To begin: ttamer demo" in done.stderr


def test_a_file_may_stand_behind_options():
    args = parse(["certify", "policy.ttamer", "--drop", "0.01", "new.parquet"])
    assert (args["policy"], args["trace"], args["drop"]) == ("policy.ttamer", "new.parquet", 0.01)


def test_help_loads_no_array_library():
    code = (
        "import sys; from ttamer.cli import main; main(['--help'])\n"
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    assert name in succeed(name, "--help")


def test_the_shell_completes_commands_and_options():
    shell = {"_TTAMER_COMPLETE": "bash_complete"}
    for words, found in (("ttamer fr", "frontier"), ("ttamer frontier --re", "--resamples")):
        env = {**os.environ, **shell, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert f"plain,{found}" in run_process(env=env).stdout


def test_costs_may_stand_on_the_command_line(trace_files):
    costs = [f"--cost={node.name}={node.cost}" for node in answering_trace(10).spec.nodes]
    out = ("-o", trace_files / "p.ttamer", "--json", "--belief", "threshold")
    facts = json.loads(succeed("fit", trace_files / "fit.csv", *costs, *out))
    with_file = ("--cascade", trace_files / "cascade.toml")
    assert json.loads(succeed("fit", trace_files / "fit.csv", *with_file, *out)) == facts


@pytest.mark.filterwarnings("default")
def test_new_prices_replace_those_in_the_log_and_other_prices_are_named(tmp_path):
    trace = answering_trace(300)
    logged = dataclasses.replace(trace, cost=trace.costs * 2.0)
    logged.write(tmp_path / "log.csv")
    costs = [f"--cost={node.name}={node.cost}" for node in trace.spec.nodes]
    command = ("fit", tmp_path / "log.csv", *costs, "-o", tmp_path / "p.ttamer", "--json")
    done = run(*command, "--belief", "threshold")
    assert done.returncode == 0, done.stderr
    assert "(the cascade's with --prices)" in done.stderr
    priced = json.loads(succeed(*command, "--belief", "threshold", "--prices"))
    both = zip(json.loads(done.stdout)["policies"], priced["policies"], strict=True)
    assert all(mine["cost"] == pytest.approx(2 * new["cost"]) for mine, new in both)


def test_evaluate_against_another_policy_says_what_changes(fitted, tmp_path):
    command = (
        "evaluate",
        fitted.policy,
        fitted.folder / "test.parquet",
        "--against",
        fitted.policy,
    )
    facts = json.loads(succeed(*command, "--json"))
    assert (facts["error"], facts["answers_differ"], facts["rows"]) == (0.0, 0.0, 300)
    assert "another node's answer on 0% of them" in succeed(*command)
    tt.save(fitted.ladder[0], tmp_path / "one.ttamer")  # in which there is nothing to choose
    other = ("--against", tmp_path / "one.ttamer", "--tradeoff", "1", "--json")
    facts = json.loads(succeed(*command[:3], *other))
    assert facts["cost"] > 0


def test_version_is_the_package_version():
    assert succeed("--version", run=run_process).strip() == f"ttamer {tt.__version__}"


def test_solve_prints_a_table_people_can_read(problem_file):
    text = succeed("solve", problem_file, "--tradeoff", "0.9")
    policy = tt.solve(three_models(), 0.9)
    assert f"value {policy.value:.4g}" in text
    for word in ("small", "middle", "large", "prophet", "stop if best loss <="):
        assert word in text


def test_solve_json_agrees_with_the_library(problem_file):
    facts = json.loads(succeed("solve", problem_file, "--tradeoff", "0.9", "--json"))
    policy = tt.solve(three_models(), 0.9)
    assert facts["value"] == policy.value
    assert facts["expected_loss"] == policy.expected_loss
    assert facts["expected_cost"] == policy.expected_cost
    assert facts["first"] == "small"
    assert {node["name"]: node["asked"] for node in facts["nodes"]} == policy.asked
    for node in facts["nodes"]:
        assert node["index"] == policy.index(node["name"]).tolist()
        assert node["rules"][-1]["ask"] == [*policy.rules(node["name"])[-1].ask]


def test_solve_without_recall(problem_file):
    facts = json.loads(succeed("solve", problem_file, "--tradeoff", "0.9", "--no-recall", "--json"))
    assert facts["recall"] is False
    assert facts["value"] == tt.solve(three_models(), 0.9, recall=False).value
    assert facts["value"] == facts["optima"]["no_recall"]
    assert "no recall" in succeed("solve", problem_file, "--tradeoff", "0.9", "--no-recall")


def test_solve_shows_few_states_and_names_the_rest(tmp_path):
    path = tmp_path / "wide.json"
    states = [i / 20 for i in range(20)]
    tt.Problem.line(states, [0.1], [[0.05] * 20]).to_file(path)
    assert "20 states" in succeed("solve", path, "--tradeoff", "0.5")


def test_solve_a_problem_that_only_sometimes_answers(tmp_path):
    path = tmp_path / "problem.json"
    router = tt.Node("router", [math.inf, math.inf])
    good = tt.Node("good", [0.1])
    edges = (
        tt.Edge(None, "router", cost=0.1, probabilities=[[0.5, 0.5]]),
        tt.Edge(None, "good", cost=1.0, probabilities=[[1.0]]),
    )
    tt.Problem("precedence", (router, good), edges).to_file(path)
    facts = json.loads(succeed("solve", path, "--tradeoff", "0.5", "--json"))
    assert facts["first"] == "good"
    assert facts["nodes"][0]["index"] == ["inf"]
    succeed("solve", path, "--tradeoff", "0.5")
    assert "walk" in refuse("solve", path, "--tradeoff", "0.5", "--no-recall")


def test_ladder_is_printed_saved_and_inspected(problem_file, tmp_path):
    artefact = tmp_path / "frontier.ttamer"
    text = succeed("solve", problem_file, "--ladder", "4", "-o", artefact)
    assert "4 tradeoffs" in text
    assert str(artefact) in text
    rows = json.loads(succeed("solve", problem_file, "--ladder", "4", "--json"))["policies"]
    assert [row["tradeoff"] for row in rows] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    facts = json.loads(succeed("inspect", artefact, "--json"))
    assert facts["kind"] == "ladder"
    shown = succeed("inspect", artefact)
    assert "ladder" in shown
    assert "expected cost  expected loss" in shown


def test_a_bug_is_one_line_too_and_a_traceback_on_request(problem_file, monkeypatch):
    def boom(_):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(tt.Problem, "from_file", boom)
    command = ["solve", str(problem_file), "--tradeoff", "0.5"]
    assert "please report" in refuse(*command)
    monkeypatch.setenv("TTAMER_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError, match="boom"):
        main(command)


def test_a_reader_that_leaves_is_no_error(problem_file):
    command = f"{sys.executable} -m ttamer solve {problem_file} --tradeoff 0.9 --json | head -c 10"
    done = subprocess.run(  # noqa: S602 - a pipe is what is tested
        command, shell=True, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.parametrize("alpha", [2, 10, 1000])
def test_no_recall_ratio_is_alpha(alpha):
    facts = json.loads(succeed("theory", "no-recall", "--alpha", alpha, "--json"))
    assert alpha in [row["alpha"] for row in facts["examples"]]
    for row in facts["examples"]:
        assert row["ratio"] == pytest.approx(row["alpha"])
        assert row["ratio_with_recall"] == pytest.approx(1)


def test_no_recall_reports_what_recall_changes_and_what_not():
    text = succeed("theory", "no-recall")
    for words in ("no bound", "the gap is gone", "What recall does not change"):
        assert words in text


def test_if_stop_compares_thresholds_with_the_optimum():
    *independent, chain = json.loads(succeed("theory", "if-stop", "--json"))["experiments"]
    assert len(independent) == 3
    for row in independent:
        assert row["excess_with_recall"] == pytest.approx(0, abs=1e-12)
        assert row["excess_without_recall"] > 0
    assert chain["excess_with_recall"] > 0
    text = succeed("theory", "if-stop")
    assert "one threshold" in text
    assert chain["losses"] in text


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return run_process("demo", "-o", folder), folder


def test_the_first_line_of_the_demo_is_the_result(demo):
    done, folder = demo
    assert done.returncode == 0, done.stderr
    advice = done.stdout.split("\n\n")[0]
    assert advice.startswith("At the accuracy of lingua alone, ttamer costs 98.")
    assert max(map(len, advice.splitlines())) <= 80
    page = folder / "langid.html"
    assert advice.replace("\n", " ").partition(". ")[0] in html.unescape(page.read_text("utf-8"))
    assert done.stdout.rstrip().endswith(str(page))
    assert page.stat().st_size > 50_000
    assert "fitting" in done.stderr  # progress


def test_the_demo_shows_ttamer_ahead_of_the_paper_and_of_every_threshold(demo):
    rows = {}
    for line in demo[0].stdout.splitlines():
        words = line.split()
        if len(words) == 7 and words[-1].endswith("%"):
            rows[words[0]] = float(words[-1].rstrip("%"))
    for rival in ("paper", "threshold", "threshold-per-exit", "calibrated", "chain", "frugalml"):
        assert rows["ttamer"] < rows[rival]


@pytest.fixture
def trace_files(tmp_path):
    for seed, name in ((0, "fit"), (1, "test")):
        answering_trace(300, seed=seed).write(tmp_path / f"{name}.csv")
    answering_trace(10).spec.to_file(tmp_path / "cascade.toml")
    return tmp_path


@pytest.fixture
def split(trace_files):
    """What frontier and report take for two logs."""
    files = [trace_files / name for name in ("fit.csv", "test.csv", "cascade.toml")]
    options = zip(("--fit", "--test", "--cascade"), files, strict=True)
    return [*(word for pair in options for word in pair), "--resamples", "20"]


def test_fit_then_evaluate(trace_files):
    policy = trace_files / "policy.ttamer"
    cascade = ("--cascade", trace_files / "cascade.toml")
    done = run_process("fit", trace_files / "fit.csv", *cascade, "-o", policy)
    assert done.returncode == 0, done.stderr
    assert "300 rows, 3 nodes" in done.stdout
    facts = json.loads(succeed("evaluate", policy, trace_files / "test.csv", "--json"))
    assert facts["rows"] == 300
    assert len(facts["policies"]) == len(tt.load(policy))
    one = succeed("evaluate", policy, trace_files / "test.csv", "--tradeoff", "0.99")
    for word in ("error", "recalled", "small", "middle", "large"):
        assert word in one
    assert json.loads(succeed("inspect", policy, "--json"))["fit"]["rows"] == 300
    shown = succeed("inspect", policy)
    table = shown.split("Expected on new rows:\n\n")[1]
    assert table.rstrip() == tt.load(policy).table()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit without costs by row, its rows and others, and what was printed."""
    folder = tmp_path_factory.mktemp("fitted")
    for seed, name in ((0, "fit"), (1, "test")):
        answering_trace(300, seed=seed).write(folder / f"{name}.parquet")
    policy = folder / "policy.ttamer"
    shown = run("fit", folder / "fit.parquet", "-o", policy).stdout
    return SimpleNamespace(folder=folder, policy=policy, ladder=tt.load(policy), shown=shown)


def test_the_best_exit_has_its_name_where_one_threshold_is_fitted_too(tmp_path):
    chain_trace(300).write(tmp_path / "t.parquet")
    command = ("fit", tmp_path / "t.parquet", "-o", tmp_path / "p.ttamer", "--belief", "threshold")
    assert "Best single model, exit3: cost 6 per input" in run(*command).stdout


def test_fit_says_which_drop_the_default_allows(tmp_path, capsys):
    trace = answering_trace(300, seed=0)
    spec = dataclasses.replace(trace.spec, target="last")
    fields = {"prediction": trace.prediction, "classes": trace.classes}
    tt.Trace(spec, trace.confidence, **fields).write(tmp_path / "t.parquet")
    assert main(["fit", str(tmp_path / "t.parquet"), "-o", str(tmp_path / "p.ttamer")]) == 0
    assert f"At most 1 point worse than {trace.names[-1]}: cost" in capsys.readouterr().out


def test_fit_and_evaluate_name_the_best_model_and_show_the_same_policies(fitted, capsys):
    trace = answering_trace(300, seed=0)
    errors = trace.loss.mean(axis=0)
    best = trace.names[int(errors.argmin())]
    cost = dict(zip(trace.names, trace.costs.mean(axis=0), strict=True))[best]
    assert f"Best single model, {best}: cost {cost:.4g} per input, error {errors.min():.2%}" in (
        fitted.shown
    )
    default = fitted.ladder.default()
    share = f"{default.described}, {default.cost / cost:.1%} of its cost"
    assert f"As accurate as {best}: {share} (the default of serving)" in fitted.shown
    assert main(["evaluate", str(fitted.policy), str(fitted.folder / "test.parquet")]) == 0
    shown = capsys.readouterr().out
    tradeoffs = [
        re.findall(r"^ .*% .* ([\d.]+)$", text.split("\nof full")[0], re.MULTILINE)
        for text in (fitted.shown.split("What to expect")[0], shown)
    ]
    assert len(tradeoffs[0]) > 2
    assert set(tradeoffs[1]) <= set(tradeoffs[0])
    test = answering_trace(300, seed=1)
    result = tt.evaluate(fitted.ladder.default(), test)
    default = rf"^  {result.cost:.4g} .* {result.error:.2%} .* the default of serving$"
    assert re.search(default, shown, re.MULTILINE)
    for name, wrong in zip(test.names, test.loss.mean(axis=0), strict=True):
        assert re.search(rf"^  {name} .* {wrong:.2%}$", shown, re.MULTILINE)


def test_inspect_shows_the_models_the_default_and_policies_of_the_fit(fitted, capsys):
    assert main(["inspect", str(fitted.policy)]) == 0
    shown = capsys.readouterr().out
    best = next(line for line in fitted.shown.splitlines() if line.startswith("Best single"))
    assert best.removeprefix("Best single model, ") in shown
    assert f"default          {fitted.ladder.default().described}" in shown
    assert not re.search(r"^  (recall|edges|values) ", shown, re.MULTILINE)
    assert fitted.ladder.table() in shown
    assert fitted.ladder.table() in fitted.shown


def test_evaluate_in_json_has_the_default_and_each_node_alone(fitted, capsys):
    trace = str(fitted.folder / "test.parquet")
    assert main(["evaluate", str(fitted.policy), trace, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    test = answering_trace(300, seed=1)
    result = tt.evaluate(fitted.ladder.default(), test)
    assert (facts["default"]["cost"], facts["default"]["error"]) == (result.cost, result.error)
    assert [each["error"] for each in facts["alone"].values()] == test.loss.mean(axis=0).tolist()


def test_evaluate_warns_of_the_rows_that_were_fitted_to(fitted, capsys):
    for rows, is_warned in (("fit", True), ("test", False)):
        assert main(["evaluate", str(fitted.policy), str(fitted.folder / f"{rows}.parquet")]) == 0
        assert ("fitted to these rows" in capsys.readouterr().err) == is_warned
    policy = str(fitted.folder / "held-out.ttamer")
    rows = str(fitted.folder / "fit.parquet")
    assert main(["fit", rows, "--hold-out", "0.25", "-o", policy]) == 0
    assert main(["evaluate", policy, rows]) == 0
    fitted_to = round(0.75 * len(tt.Trace.read(rows)))
    assert f"fitted to {fitted_to} of these rows" in capsys.readouterr().err


def test_fit_warns_where_every_node_is_free(tmp_path, capsys):
    trace = answering_trace(200)
    free = tt.CascadeSpec.of(dict.fromkeys(trace.names, 0.0))
    rows = tt.Trace.from_arrays(free, trace.confidence, correct=(trace.loss == 0))
    rows.write(tmp_path / "free.parquet")
    output = str(tmp_path / "free.ttamer")
    assert main(["fit", str(tmp_path / "free.parquet"), "-o", output]) == 0
    assert "Every node costs 0, so that there is nothing to save" in capsys.readouterr().out


def test_fit_as_the_paper_has_it_and_to_a_sample(trace_files):
    cascade = ("--cascade", trace_files / "cascade.toml", "--json")
    out = ("-o", trace_files / "p.ttamer")
    command = ("fit", trace_files / "fit.csv", *cascade, *out)
    paper = json.loads(succeed(*command, "--belief", "markov"))
    assert paper["record"]["belief"] == "markov"
    done = run(*command, "--sample", 200)
    record = json.loads(done.stdout)["record"]
    assert (record["rows"], record["sampled"]) == (300, 200)
    assert "a uniform sample of 200 of 300 rows" in done.stderr
    lines = (trace_files / "fit.csv").read_text().splitlines()
    torn = trace_files / "torn.csv"
    torn.write_text("\n".join([*lines, "inf" + "," * lines[0].count(",")]))
    command = ("fit", torn, *cascade, *out, "--sample", 900, "--belief", "threshold")
    assert "--skip-bad" in refuse(*command)
    done = run(*command, "--skip-bad")
    assert json.loads(done.stdout)["rows"] == 300
    assert "1 row left out" in done.stderr


def test_a_cascade_kept_in_the_file_is_used(trace_files):
    answering_trace(300, seed=0).write(trace_files / "fit.parquet")
    out = ("-o", trace_files / "p.ttamer", "--json")
    for more in ((), ("--sample", 900)):
        facts = json.loads(succeed("fit", trace_files / "fit.parquet", *out, *more))
        assert facts["rows"] == 300
        assert tt.load(trace_files / "p.ttamer").spec == answering_trace(10).spec
        assert "give --cascade" in refuse("fit", trace_files / "fit.csv", *out, *more)
    answering_trace(10).write(trace_files / "fit.csv.gz")
    assert "give --cascade" in refuse("fit", trace_files / "fit.csv.gz", *out)


def test_frontier_writes_the_json_it_promises(trace_files, split):
    families = ["ttamer", "paper", "threshold", "frugalml"]
    command = ("frontier", *split, "--families", ",".join(families))
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "large alone" in done.stdout
    fitting = f"Next: ttamer fit {trace_files / 'fit.csv'} --cascade {trace_files / 'cascade.toml'}"
    assert fitting in done.stdout.splitlines()
    assert re.search(r"for_budget\(([\d.]+)\) in Python, budget = \1 in \[serve\]", done.stdout)
    facts = json.loads(succeed(*command, "--json"))
    assert {point["policy"] for point in facts["points"]} == {*families}
    said = re.search("What to use: (.*?)\n\n", done.stdout, re.DOTALL)[1].replace("\n", " ")
    advice = facts["recommendation"]
    assert " ".join([advice["sentence"], *advice["notes"]]) == said


def test_the_recommended_policy_is_written_whatever_its_family(fitted, tmp_path, monkeypatch):
    fit, test = fitted.folder / "fit.parquet", fitted.folder / "test.parquet"
    output = tmp_path / "use.ttamer"
    command = ("frontier", "--fit", fit, "--test", test, "--resamples", "5", "-o", output)
    said = run(*command, "--families", "ttamer,chain").stdout
    assert f"written to {output}, fitted to 300 rows" in said
    priced = re.search(r"use ttamer's \w.* at ([\d.]+) per\s+input", said)
    assert tt.evaluate(tt.load(output), tt.Trace.read(test)).cost == pytest.approx(
        float(priced[1]), rel=0.1
    )

    def rival(result):
        advice = recommend(result, resamples=5)
        advice = dataclasses.replace(
            advice, outcome="loses", family="chain", rival="chain", savings={"chain": 0.5}
        )
        advice.__dict__["mix"] = Mix.of(len(result.of("chain")) - 1)
        return advice

    monkeypatch.setattr(compare, "recommend", rival)
    run(*command, "--families", "ttamer,chain")
    said = run(*command[:-2], "--families", "ttamer,chain").stdout
    assert f"Next: ttamer frontier --fit {fit} --test {test} -o policy.ttamer" in said
    chain = tt.frontier(tt.Trace.read(fit), tt.Trace.read(test), families=["chain"], resamples=0)
    played = tt.load(output).play(tt.Trace.read(test))
    assert (played.answer == chain.points[-1].played.answer).all()


def test_a_policy_without_a_node_is_measured_on_logs_that_have_it(fitted, tmp_path):
    output = tmp_path / "fewer.ttamer"
    assert (
        run("fit", fitted.folder / "fit.parquet", "--without", "small", "-o", output).returncode
        == 0
    )
    done = run("evaluate", output, fitted.folder / "test.parquet", "--json")
    assert done.stderr.splitlines()[0] == "test.parquet: the policy has no node small: left out"
    alone = json.loads(done.stdout)["alone"]
    test = answering_trace(300, seed=1)
    assert [node["error"] for node in alone.values()] == test.loss.mean(axis=0).tolist()[1:]


def test_report_writes_one_page(trace_files, split):
    page = trace_files / "report.html"
    done = run("report", *split, "-o", page, "--families", "paper, threshold")
    assert done.returncode == 0, done.stderr
    assert "<code>budget = " in page.read_text()


def test_one_trace_is_halved_to_fit_and_to_measure(trace_files):
    options = ("--cascade", trace_files / "cascade.toml", "--families", "ttamer", "--json")
    halved = json.loads(succeed("frontier", trace_files / "fit.csv", *options, "--resamples", "0"))
    assert (halved["fit_rows"], halved["test_rows"]) == (150, 150)


def test_warnings_are_one_line_each(trace_files):
    answering_trace(40).write(trace_files / "short.parquet")
    done = run_process(
        "fit", trace_files / "short.parquet", "-o", trace_files / "p.ttamer", "--json"
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("Warning: the trace has 40 rows; below 100")


def test_certify_writes_the_certificate_and_names_its_policy(fitted, tmp_path, capsys):
    policy, rows = str(fitted.policy), str(fitted.folder / "test.parquet")
    promised = str(tmp_path / "promised.ttamer")
    assert main(["certify", policy, rows, "--drop", "0.3", "-o", promised]) == 0
    lines = capsys.readouterr().out.splitlines()
    ladder = tt.load(promised)
    assert lines[0] == str(ladder.promises[0])
    expected = ladder.mixed(ladder.promises[0].mix).described
    assert lines[1] == f"  its policy, as the fit expects: {expected}"
    assert lines[2:] == [f"  written to {promised}"]


def test_a_budget_that_few_inputs_exceed_is_certified(fitted):
    command = ("certify", fitted.policy, fitted.folder / "test.parquet", "--budget", "10.5")
    facts = json.loads(succeed(*command, "--exceeded-at-most", "0.5", "--json"))
    (promise,) = facts["promises"]
    assert (promise["kind"], promise["certified"]) == ("budget", True)
    ladder, rows = fitted.ladder, answering_trace(300, seed=1)
    costs = paid(ladder.for_budget(10.5, exceeded_at_most=0.5, on=rows).play(rows).asked, rows)
    assert (costs > 10.5).mean() <= 0.5


@pytest.mark.parametrize(
    "command",
    [
        ["demo", "-o", "out"],
        ["report", "log.csv", "-o", "report.html"],
    ],
)
def test_what_draws_needs_matplotlib_before_the_work(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(command) == 2
    message = "this needs matplotlib, which is not installed: pip install 'ttamer[report]'"
    assert capsys.readouterr().err == f"ttamer: error: {message}\n"


def test_a_log_with_all_costs_needs_no_cascade(tmp_path):
    trace = answering_trace(200)
    priced = trace.to_frame().assign(**{f"{name}.cost": 2.0 for name in trace.names})
    priced.to_parquet(tmp_path / "log.parquet")
    assert run("fit", tmp_path / "log.parquet", "-o", tmp_path / "p.ttamer").returncode == 0


def test_characters_that_an_output_does_not_have_are_replaced(problem_file):
    renamed = problem_file.read_text().replace('"small"', '"模型"')
    problem_file.write_text(renamed, "utf-8")
    command = ("solve", problem_file, "--tradeoff", "0.9")
    done = run_process(*command, env={**os.environ, "PYTHONIOENCODING": "cp1252"})
    assert done.returncode == 0, done.stderr
    assert "First ask ??" in done.stdout


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_removes_the_line_of_progress_from_a_terminal(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    assert main(["inspect", "none.ttamer"]) == 2
    clear = "\r\x1b[K" if is_terminal else ""
    assert capsys.readouterr().err.startswith(f"{clear}ttamer: error: none.ttamer")
