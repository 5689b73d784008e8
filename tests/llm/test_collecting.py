"""From prompts to a trace: what is asked, what is paid for once, and what is kept."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import ttamer as tt
from support.faulty_upstream import truth
from ttamer.cli import main
from ttamer.errors import TraceError
from ttamer.llm import Prompt, collect_prompts, plan_collection
from ttamer.llm.client import UpstreamFailed
from ttamer.llm.paid import Asked
from ttamer.llm.prompts import read_answers
from ttamer.llm.settings import NodeSettings

QUESTIONS = [f"Question {number}?" for number in range(30)]
LABELLED = [Prompt({"messages": [{"role": "user", "content": q}]}, truth(q)) for q in QUESTIONS]


def collected(served, prompts=LABELLED, **options):
    paid = served.cascade.with_name("paid")
    return collect_prompts(served.cascade, prompts, paid, upstream=served.upstream, **options)


def test_every_node_is_asked_about_every_prompt(served):
    trace = collected(served)
    assert trace.names == ("small", "large")
    assert len(trace) == 30
    for column, upstream in enumerate(served.upstreams.values()):
        said = [upstream.answer(question, 0) for question in QUESTIONS]
        assert [trace.classes[code] for code in trace.prediction[:, column]] == [a for a, _ in said]
        assert trace.confidence[:, column].tolist() == pytest.approx([sure for _, sure in said])
    assert [trace.classes[code] for code in trace.label] == [truth(q) for q in QUESTIONS]
    assert trace.cost is None
    assert trace.spec.costs.tolist() == [1.0, 12.5]
    assert trace.prompt.tolist() == QUESTIONS


def test_what_was_answered_is_not_asked_again(served):
    first = collected(served)
    assert served.counts == [30, 30]
    again = collected(served)
    assert served.counts == [30, 30]
    assert again.digest == first.digest
    more = [*LABELLED, Prompt({"messages": [{"role": "user", "content": "New?"}]}, truth("New?"))]
    assert len(collected(served, more)) == 31
    assert served.counts == [31, 31]


def test_equal_prompts_are_asked_once(served):
    reported = []
    trace = collected(
        served, [*LABELLED, *LABELLED[:5]], progress=lambda *numbers: reported.append(numbers)
    )
    assert served.counts == [30, 30]
    assert reported[-1] == (60, 60, 0)
    assert trace.prediction[30:].tolist() == trace.prediction[:5].tolist()


def test_equal_prompts_without_an_answer_are_all_counted(make_served):
    served = make_served(node={"small": {"max_concurrent": 1}})
    served.upstreams["small"].plan = ["garbage"]
    trace = collected(served, [*LABELLED, LABELLED[0]], on_error="skip")
    assert trace.notes == ("2 prompts with a gap: small returned no JSON object",)


def test_a_node_that_changes_is_asked_again_and_the_others_are_not(served):
    collected(served)
    text = served.cascade.read_text("utf-8")
    served.cascade.write_text(
        text.replace("cost = 1.0", "cost = 1.0\nmodel = 'newer'\ntimeout = 9")
    )
    collected(served)
    assert served.counts == [60, 30]
    served.cascade.write_text(
        text.replace("cost = 1.0", "cost = 1.0\nmodel = 'newer'\nretries = 3")
    )
    collected(served)
    assert served.counts == [60, 30]


def test_other_prices_ask_nothing_again(make_served):
    served = make_served(node={"large": {"confidence": "agreement", "samples": 2}})
    trace = collected(served)
    assert (set(trace.cost[:, 1]), trace.spec.costs.tolist()) == ({25.0}, [1.0, 12.5])
    assert served.counts == [30, 60]
    served.change("cost = 1.0", "cost = 2.0")
    assert collected(served).costs.mean(axis=0).tolist() == [2.0, 25.0]
    served.change("cost = 2.0", "cost_per_token = {input = 0.5, output = 1}")
    assert collected(served).costs.mean(axis=0).tolist() == [2 * 0.5 + 1, 25.0]
    served.change("cost = 12.5", "cost = 13.0")
    assert collected(served).costs.mean(axis=0).tolist() == [2.0, 26.0]
    assert served.counts == [30, 60]


def test_answers_without_usage_cannot_be_priced_by_tokens(make_served):
    served = make_served()
    small = served.upstreams["small"]
    small.states_usage = False
    collected(served)
    served.change("cost = 1.0", "cost_per_token = {input = 0.5, output = 1}")
    with pytest.raises(TraceError, match=r"small returned no usage, .*: give the node a cost"):
        collected(served)
    small.states_usage = True
    paid = served.cascade.with_name("again")  # a file of responses that have it
    trace = collect_prompts(served.cascade, LABELLED, paid, upstream=served.upstream)
    assert trace.costs[:, 0].tolist() == [2.0] * 30


def test_another_confidence_of_the_same_tokens_asks_nothing_again(make_served):
    served = make_served(serve={"compare": "normalised"})
    small = served.upstreams["small"]
    small.answer = lambda *_: ("B it is", 0.5)
    assert collected(served).confidence[:, 0].tolist() == pytest.approx([0.5] * 30)
    text = served.cascade.read_text("utf-8")
    for source, confidence in (("product", 0.125), ("logprobs", 0.5)):
        served.cascade.write_text(
            text.replace("cost = 1.0", f'cost = 1.0\nconfidence = "{source}"')
        )
        trace = collected(served)
        assert trace.confidence[:, 0].tolist() == pytest.approx([confidence] * 30)
    assert served.counts == [30, 30]
    served.cascade.write_text(text.replace("cost = 1.0", 'cost = 1.0\nconfidence = "none"'))
    collected(served)
    assert served.counts == [60, 30]


def test_failures_are_refused_and_asked_alone_the_next_time(served):
    served.upstreams["small"].plan = ["garbage", "ok", "garbage"]
    with pytest.raises(TraceError, match=r"2 of 30 prompts lack an answer \(small returned no"):
        collected(served)
    assert served.counts == [30, 30]
    assert len(collected(served)) == 30
    assert served.counts == [32, 30]


def test_failures_may_be_gaps_and_prompts_without_any_answer_left_out(make_served, tmp_path):
    served = make_served(node={name: {"max_concurrent": 1} for name in ("small", "large")})
    served.upstreams["small"].plan = ["garbage", "ok", "error"]
    served.upstreams["large"].plan = ["ok", "ok", "garbage"]
    trace = collected(served, on_error="skip", answers=tmp_path / "answers.jsonl")
    assert len(trace) == 29
    assert trace.left_out == {"small returned status 500: out of order": 1}
    assert trace.notes == ("1 prompt with a gap: small returned no JSON object",)
    assert np.isnan(trace.confidence[0]).tolist() == [True, False]
    assert np.isnan(trace.loss).sum() == 1
    assert trace.answered[1:].all()
    assert read_answers(tmp_path / "answers.jsonl", trace.names)[0].answers["small"] is None


def test_a_node_that_cannot_take_a_prompt_has_a_gap_there(make_served):
    served = make_served(node={"small": {"context": 12, "max_concurrent": 1}})
    texts = [f"{question} {'x' * 60}" for question in QUESTIONS[:15]]
    long = [Prompt({"messages": [{"role": "user", "content": t}]}, truth(t)) for t in texts]
    trace = collected(served, [*long, *LABELLED])
    assert trace.answered.sum(axis=0).tolist() == [30, 45]
    assert trace.notes[0].startswith("15 prompts with a gap: small has a context of 12 tokens")


def test_nodes_that_only_fail_are_soon_left_alone_and_all_listed(make_served):
    served = make_served(node={name: {"max_concurrent": 1} for name in ("small", "large")})
    for upstream, status in zip(served.upstreams.values(), (401, 404), strict=True):
        upstream.mode, upstream.status = "error", status
    for on_error in ("refuse", "skip"):
        with pytest.raises(TraceError, match=r"30 of 30 .*small.*401.*: 10;.*large.*404.*: 10"):
            collected(served, on_error=on_error)
    assert served.counts == [2 * Asked.max_failures] * 2


def test_labels_that_no_answer_equals_are_refused_with_what_was_compared(make_served):
    served = make_served(serve={"compare": "normalised"})
    prompts = [Prompt({"prompt": text}, f"it is {text * 60}") for text in "xyz"]
    with pytest.raises(TraceError, match=r"normalised.*'it is x{54}\.\.\.' and .*--judge"):
        collected(served, prompts)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("busy", "a lower max_concurrent"), ("connect", "upstream = 'http://h/v1'"), ("cut", "")],
)
def test_a_failure_says_what_may_help(kind, hint):
    async def call(_question):
        raise UpstreamFailed("a", kind, "failed")

    asked = Asked(NodeSettings(name="a", cost=1.0, upstream="http://h/v1"))
    asyncio.run(asked.ask({"key": "?"}, call, lambda: None))
    (missing,) = asked.missing.values()
    assert missing.why.startswith("failed")
    assert hint in missing.why
    assert bool(hint) == ("(" in missing.why)


def test_a_node_that_answers_now_and_then_is_asked_to_the_end(make_served):
    served = make_served(node={"small": {"max_concurrent": 1}})
    served.upstreams["small"].plan = ([*["garbage"] * (Asked.max_failures - 1), "ok"]) * 2
    assert collected(served, on_error="skip").answered.sum(axis=0).tolist() == [12, 30]
    assert served.counts == [30, 30]


def test_without_labels_nothing_is_known_or_the_last_node_is_right(served):
    unlabelled = [Prompt(prompt.body) for prompt in LABELLED]
    with pytest.raises(TraceError):
        collected(served, unlabelled).loss  # noqa: B018 - it is computed
    text = served.cascade.read_text("utf-8")
    served.cascade.write_text('[cascade]\ntarget = "last"\n' + text)
    trace = collected(served, unlabelled)
    assert trace.label is None
    assert not trace.loss[:, 1].any()


def test_a_label_that_is_none_under_the_rule_is_reported_before_anything_is_asked(served):
    prompts = [*LABELLED, Prompt(LABELLED[0].body, "Paris")]
    with pytest.raises(TraceError, match=r"prompt 30 .*'Paris' has no content under compare"):
        collected(served, prompts)
    assert served.counts == [0, 0]


def labelled(labels):
    """Prompts with other labels."""
    return [Prompt(prompt.body, label) for prompt, label in zip(LABELLED, labels, strict=True)]


def test_a_label_is_contained_in_answers(make_served):
    served = make_served(serve={"compare": "contains"})
    small, large = served.upstreams.values()
    small.answer = lambda prompt, _: (f"It must be {truth(prompt)}x" + "." * len(prompt), 0.5)
    large.answer = lambda prompt, _: (f"The answer is: {truth(prompt)}, of course.", 0.9)
    trace = collected(served, labelled([("Z z", truth(q)) for q in QUESTIONS]))
    assert trace.label is None
    assert trace.correct[:, 0].tolist() == [False] * 30
    assert trace.correct[:, 1].tolist() == [True] * 30
    assert trace.loss.mean(axis=0).tolist() == [1.0, 0.0]


def test_numbers_within_the_tolerance_are_one_prediction(make_served):
    served = make_served(serve={"compare": {"kind": "numeric", "tolerance": 0.5}})
    small, large = served.upstreams.values()
    small.answer = lambda *_: ("about 12.3", 0.5)
    large.answer = lambda *_: ("12.7", 0.9)
    trace = collected(served, labelled(["13"] * 30))
    assert {trace.classes[code] for code in trace.prediction.ravel()} == {"12.3"}
    assert trace.correct.tolist() == [[False, True]] * 30


def test_of_several_labels_any_is_right_under_every_rule(served):
    trace = collected(served, labelled([(truth(q), "none: Z") for q in QUESTIONS]))
    assert trace.label is None
    plain = collected(served)
    np.testing.assert_array_equal(trace.loss, plain.loss)


def test_another_comparison_asks_nothing_again(make_served):
    served = make_served(serve={"compare": "exact"})
    for upstream in served.upstreams.values():
        upstream.answer = lambda prompt, _: (f"The answer is {truth(prompt)}.", 0.5)
    prompts = labelled([f"The answer is {truth(q)}." for q in QUESTIONS])
    assert not collected(served, prompts).loss.any()
    assert served.counts == [30, 30]
    served.change('"exact"', '"contains"')
    trace = collected(served, labelled([(truth(q), "nothing") for q in QUESTIONS]))
    assert not trace.loss.any()
    served.change('"contains"', '"json"')
    with pytest.raises(TraceError, match=r'compare = "json": .* first answer \'The answer is'):
        collected(served, labelled([json.dumps(truth(q)) for q in QUESTIONS]))
    assert served.counts == [30, 30]
    served.change('"json"', '"choice"')  # its confidence is that of the letter
    collected(served)
    assert served.counts == [30, 30]


def test_prompts_and_answers_are_kept_for_their_owner(served, tmp_path):
    path = tmp_path / "answers.jsonl"
    collected(served, answers=path)
    assert path.stat().st_mode & 0o777 == 0o600
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == 30
    small = served.upstreams["small"]
    assert rows[3]["prompt"] == QUESTIONS[3]
    assert rows[3]["label"] == truth(QUESTIONS[3])
    assert rows[3]["answers"]["small"] == small.answer(QUESTIONS[3], 0)[0]


def test_answers_without_content_are_counted(make_served):
    served = make_served(serve={"compare": "choice"})
    small = served.upstreams["small"]
    texts = {QUESTIONS[0]: "", QUESTIONS[1]: "<think>A or", QUESTIONS[2]: "I do not know"}
    real = small.answer
    small.answer = lambda prompt, n: (texts[prompt], 0.9) if prompt in texts else real(prompt, n)
    (note,) = collected(served).notes
    assert note == (
        "3 of 30 answers of 'small' have no content under compare = \"choice\", such as 'I do not "
        "know', 2 of them no text: "
        "a model that reasons needs more max_tokens"
    )


@pytest.mark.parametrize(("report", "count"), [("", 1), ("70", 0)])
def test_self_reports_that_never_hold_a_number_are_noted(make_served, report, count):
    served = make_served(node={"small": {"confidence": "self-report"}})
    small = served.upstreams["small"]
    real = small.answer
    small.answer = lambda prompt, n: (report, 0.9) if "How likely" in prompt else real(prompt, n)
    notes = collected(served).notes
    assert len(notes) == count
    assert all("no self-report of 'small' holds a number" in note for note in notes)


def test_a_plan_says_what_would_be_asked_and_paid(make_served):
    price = {"input": 0.5, "output": 2.0}
    served = make_served(node={"large": {"cost_per_token": price, "confidence": "agreement"}})
    limit = [Prompt({**p.body, "max_tokens": 8}, p.label) for p in LABELLED]
    paid = served.cascade.with_name("paid")
    plan = plan_collection(served.cascade, limit, paid)
    assert plan.calls == {"small": 30, "large": 150}
    assert plan.cost["small"] == 30
    within = str(plan_collection(served.cascade, limit, paid, budget=9.5))
    assert "no more is asked than the budget of 9.5 pays for; 0 responses are kept" in within
    served.change("cost = 1.0", 'cost = 1.0\nconfidence = "self-report"')
    assert plan_collection(served.cascade, limit, paid).calls == {"small": 60, "large": 150}
    served.change('confidence = "self-report"', "")
    assert served.counts == [0, 0]
    spent = collected(served, limit).costs.sum(axis=0)
    assert (plan.cost["large"], plan.cost["small"]) >= tuple(spent[::-1])
    plan = plan_collection(served.cascade, [*limit, LABELLED[0]], paid)
    assert plan.calls == {"small": 1, "large": 5}
    assert plan.kept == 180
    assert str(plan).endswith("180 responses are kept")


def test_answers_that_are_paid_for_are_on_a_local_disk_and_for_their_owner(
    served, tmp_path, monkeypatch
):
    collected(served)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("paid*")} == {0o600}
    (tmp_path / "paid").write_text("no database " * 100)
    with pytest.raises(TraceError, match="paid: cannot be used as a database"):
        collected(served)
    monkeypatch.setattr("ttamer._files._file_system", lambda _: "nfs4")
    with pytest.raises(TraceError, match=r"is on a network disk \(nfs4\); give a path on a local"):
        collected(served)


# The command


@pytest.fixture
def commanded(make_served):
    return make_served(sockets=True)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": q, "label": truth(q)} for q in QUESTIONS]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


@pytest.fixture
def collect(commanded, prompts, tmp_path, capsys):
    """Run the command: its status, and what it prints to both streams."""

    def run(*arguments, cascade=commanded.cascade, output="trace.parquet"):
        command = ["collect", str(cascade), "--prompts", prompts, "-o", str(tmp_path / output)]
        return main([*command, *map(str, arguments)]), *capsys.readouterr()

    return run


def test_what_the_command_writes_goes_straight_through_fit(collect, commanded, tmp_path, capsys):
    status, shown, _ = collect()
    assert status == 0
    trace, policy = str(tmp_path / "trace.parquet"), str(tmp_path / "fitted.ttamer")
    assert "30 rows" in shown
    assert f"Next: ttamer fit {trace}" in shown
    wrong = tt.Trace.read(trace).loss.mean(axis=0)
    assert all(f"{1 - share:.1%}" in shown for share in wrong)
    assert commanded.upstreams["small"].requests[0]["max_tokens"] == 256
    assert commanded.upstreams["small"].requests[0]["temperature"] == 0
    beside = tmp_path / "trace.toml"
    for cascade in (commanded.cascade, beside):
        assert main(["fit", trace, "--cascade", str(cascade), "-o", policy, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == 30
    turn = tt.load(policy).at(0.9).session()
    while turn.next is not None:
        turn.observe(confidence=0.9, prediction="A")
    assert turn.answer in ("small", "large")
    served = tt.CascadeSpec.from_file(commanded.cascade).serve
    assert tt.CascadeSpec.from_file(beside).serve == served


def test_the_users_cascade_is_not_written_over(collect, commanded, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("# my notes\n" + commanded.cascade.read_text("utf-8"), "utf-8")
    status, shown, _ = collect("--json", cascade=mine, output="mine.csv")
    written = [str(tmp_path / name) for name in ("mine.csv", "mine.csv.answers.jsonl")]
    assert (status, json.loads(shown)["written"]) == (0, written)
    assert mine.read_text("utf-8").startswith("# my notes")


def test_a_field_of_labels_that_no_prompt_has_is_refused(collect, commanded, prompts):
    status, _, error = collect("--label", "answer")
    assert status == 2
    assert f"--label answer: no prompt of {prompts} has that field" in error
    assert commanded.upstreams["small"].requests == []


def test_a_command_that_is_stopped_reports_what_is_kept(collect, tmp_path, monkeypatch):
    def stopped(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ttamer.cli.data.collect_prompts", stopped)
    status, _, error = collect()
    assert status == 130
    assert f"the answers so far are kept in {tmp_path / 'trace.parquet'}.cache" in error


def test_failures_in_the_command(collect, commanded):
    commanded.upstreams["small"].plan = ["garbage"]
    status, shown, _ = collect("--skip-bad")
    assert status == 0
    assert "1 prompt with a gap: small returned no JSON object" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cascade.toml"], "--prompts FILE"),
        (["cascade.toml", "other.toml", "--prompts", "p.txt"], "Got unexpected extra argument"),
        (["cascade.toml", "--prompts", "p.txt", "-o", "trace.xls"], "suffix must be one of"),
        (["gone.toml", "--prompts", "p.txt"], "gone.toml: cannot be read"),
    ],
)
def test_a_command_that_cannot_be(arguments, said, capsys):
    assert main(["collect", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_killed_goes_on_where_it_stopped(make_served, prompts, tmp_path):
    one = {"max_concurrent": 1}
    served = make_served(node={"small": one, "large": one}, sockets=True)
    for upstream in served.upstreams.values():
        upstream.plan, upstream.mode = ["ok"] * 7, "slow"
    command = [sys.executable, "-m", "ttamer", "collect", str(served.cascade), "--json"]
    command += ["--prompts", prompts, "-o", str(tmp_path / "trace.parquet")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for upstream in served.upstreams.values():
        upstream.wait_for(8)  # whoever is asked the eighth time has kept seven answers
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    for upstream in served.upstreams.values():
        upstream.mode = "ok"
        upstream.release()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert served.counts == [31, 31]  # the eighth was asked twice, as its answer never came
    assert len(tt.Trace.read(tmp_path / "trace.parquet")) == 30
