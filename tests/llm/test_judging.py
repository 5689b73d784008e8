"""Judges: verdicts are read and kept, and their agreement with labels has an interval."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.faulty_upstream import truth
from ttamer.cascade import CascadeSpec
from ttamer.cli import main
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.compare import Comparison
from ttamer.llm.confidence import Unreadable
from ttamer.llm.judging import Judge, agreement_of, interval_of, judge_answers
from ttamer.llm.paid import Asked
from ttamer.llm.prompts import Answer, AnsweredPrompt, trace_of


def reply(text):
    return {"choices": [{"message": {"content": text}}]}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("yes", True),
        ("No.", False),
        ("**Yes**, it is", True),
        ("Verdict: no", False),
        ("<think>No, or is it?</think>Yes", True),
    ],
)
def test_the_first_yes_or_no_is_the_verdict(text, verdict):
    assert Judge("large").read(reply(text)) == verdict


@pytest.mark.parametrize("text", ["", "maybe", "nothing", "yesterday"])
def test_another_reply_is_no_verdict(text):
    with pytest.raises(Unreadable, match="neither yes nor no"):
        Judge("large").read(reply(text))


@given(st.integers(1, 60), st.data())
def test_the_interval_holds_the_share(answers, data):
    agree = data.draw(st.integers(0, answers))
    low, high = interval_of(agree, answers)
    assert 0 <= low <= agree / answers <= high <= 1
    assert (low == 0) == (agree == 0)
    assert (high == 1) == (agree == answers)


def test_a_judge_that_always_says_no_is_no_better_than_one_verdict_for_all():
    labels = [True] * 2 + [False] * 8
    no = agreement_of([(False, label) for label in labels])
    assert "no more than the same verdict for all (80%)" in no
    better = [True] * 3 + [False] * 7
    assert "same verdict" not in agreement_of([*zip(better, labels, strict=True)])
    assert "there are none" in agreement_of([])


QUESTIONS = [f"Question {number}?" for number in range(30)]


@pytest.fixture
def judge(served, tmp_path):
    """Judge answers as ``verdict(text)`` says: the trace, and what the judge was asked.

    The small model adds words to the right answer; the large one always says A.
    """
    spec = CascadeSpec.from_file(served.cascade)
    rows = [
        AnsweredPrompt(
            question,
            truth(question),
            {"small": Answer(f"{truth(question)}, I would say"), "large": Answer("A")},
        )
        for question in QUESTIONS
    ]

    def run(verdict, *options, rows=rows, **more):
        def completion(body):
            text = verdict(body["messages"][-1]["content"])
            return {"choices": [{"message": {"content": text}}]}

        large = served.upstreams["large"]
        large._completion = completion
        trace = trace_of(spec, Comparison("choice"), rows)
        paid = tmp_path / "verdicts"
        judge = Judge("large", *options)
        more = {"upstream": served.upstream} | more
        return judge_answers(trace, rows, served.cascade, judge, paid, **more), large.requests

    run.rows = rows
    return run


def says_i_would_say(text):
    return "Yes." if "I would say" in text else "no"


def test_a_judge_decides_who_is_right_and_its_agreement_is_reported(judge, served):
    reported = []
    judged, requests = judge(says_i_would_say, progress=lambda *numbers: reported.append(numbers))
    assert reported[-1] == (60, 60, 0)
    assert judged.correct.tolist() == [[True, False]] * 30
    assert judged.label is None
    note = judged.notes[-1]
    assert (
        "judged by 'large' in 60 calls that cost 750; the judge agrees with the labels on" in note
    )
    assert "95% interval" in note
    assert judge(says_i_would_say)[0].digest == judged.digest
    assert len(requests) == 60  # verdicts are kept
    served.change("cost = 12.5", "cost = 13.0")
    judge(says_i_would_say)
    assert len(requests) == 60  # at other prices too
    judge(says_i_would_say, "Only answers in French are right.")
    assert len(requests) == 120
    assert "French" in requests[-1]["messages"][0]["content"]


def test_an_answer_without_text_is_wrong_and_is_not_judged(judge):
    rows = [
        dataclasses.replace(row, answers={**row.answers, "small": Answer(" ")})
        for row in judge.rows
    ]
    judged, requests = judge(lambda _: "yes", rows=rows)
    assert judged.correct.tolist() == [[False, True]] * 30
    assert len(requests) == 30
    assert "of 30 answers" in judged.notes[-1]


def test_a_judge_sees_no_label_where_others_have_none(judge):
    rows = [*judge.rows[:10], *(dataclasses.replace(r, reference=None) for r in judge.rows[10:])]
    judged, requests = judge(lambda _: "yes", rows=rows)
    assert not judged.loss.any()
    assert re.search(r"labels on \d+ of 20 answers .* which it did not see$", judged.notes[-1])
    assert not any("reference answer" in body["messages"][1]["content"] for body in requests)
    bare = [dataclasses.replace(row, reference=None) for row in judge.rows]
    assert "there are none" in judge(lambda _: "yes", rows=bare)[0].notes[-1]


def test_a_verdict_that_is_none_leaves_its_loss_unknown(judge):
    judged, _ = judge(lambda text: "maybe" if "Question 3?" in text else "yes")
    assert np.isnan(judged.loss).all(axis=1).tolist() == [k == 3 for k in range(30)]
    assert judged.notes[-1].endswith(
        "; 2 verdicts missing (the judge returned neither yes nor no: 2)"
    )


def test_a_judge_that_only_fails_is_soon_left_alone(judge, served):
    served.change('name = "large"', 'name = "large"\nmax_concurrent = 1')
    with pytest.raises(TraceError, match=r"max_tokens = false.*the judge was not called any more"):
        judge(lambda _: "<think>Let me")
    assert served.counts[1] == Asked.max_failures


def test_a_judge_is_a_node_of_the_cascade_and_needs_its_server_alone(judge, served):
    served.change(f'cost = 1.0\nupstream = "{served.upstreams["small"].url}"', "cost = 1.0")
    with pytest.raises(ArgumentError, match="there is no node 'third'; the nodes are small, large"):
        judge_answers(judge(lambda _: "yes")[0], judge.rows, served.cascade, Judge("third"), "x")


def test_the_command_takes_a_judge_and_its_rubric(make_served, tmp_path, capsys):
    served = make_served(sockets=True)
    (tmp_path / "prompts.txt").write_text("\n".join(QUESTIONS))
    trace, rubric = tmp_path / "trace.parquet", tmp_path / "rubric.txt"
    cascade = str(served.cascade)
    prompts = ["--prompts", str(tmp_path / "prompts.txt")]
    assert main(["collect", cascade, *prompts, "-o", str(trace)]) == 0
    assert f"Next: ttamer label {trace}\n" in capsys.readouterr().out
    served.upstreams["large"].yes = lambda _: 1.0
    rubric.write_text("Right is what rhymes.")
    command = ["label", str(trace), "--rubric", str(rubric)]
    assert main(command) == 2
    assert "and --rubric with them" in capsys.readouterr().err
    assert main([*command, "--judge", "large", "--cascade", cascade]) == 0
    shown = capsys.readouterr().out
    assert "judged by 'large'" in shown
    assert f"Next: ttamer fit {tmp_path / 'trace.labelled.parquet'}" in shown
    assert "rhymes" in served.upstreams["large"].requests[-1]["messages"][0]["content"]
    assert not tt.Trace.read(tmp_path / "trace.labelled.parquet").loss.any()
