"""A log of answers in free text becomes the trace that collecting them would have given."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ttamer.cli import main
from ttamer.errors import TraceError
from ttamer.llm import Judge, import_answers, judge_answers
from ttamer.llm.prompts import read_answers
from ttamer.trace import CascadeSpec, Trace

CITIES = ("Paris", "Rome", "Oslo")
CASCADE = """
[serve]
compare = "contains"

[[node]]
name = "small"
cost_per_token = {input = 0.1, output = 0.4}

[[node]]
name = "large"
cost = 30.0
"""


def spec(compare: str = "contains") -> CascadeSpec:
    return CascadeSpec.from_toml(CASCADE.replace("contains", compare))


def row(**changes):
    reply = {"small.answer": "It is Paris.", "small.input_tokens": 20, "small.output_tokens": 5}
    return {**reply, "large.answer": "Paris", "large.confidence": 0.9, "label": "Paris", **changes}


@pytest.fixture
def written(tmp_path):
    def write(*rows, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
        return path

    return write


def test_answers_and_labels_may_be_json(written):
    answers = {"small.answer": {"city": "Paris"}, "large.answer": '{"city": "Rome"}'}
    log = written(row(**answers, label={"city": "Paris"}))
    assert import_answers(log, spec("json")).loss.tolist() == [[False, True]]


def test_a_comma_that_is_not_quoted_is_refused(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("small.answer,small.cost,large.answer,label\nParis, I think,1,Paris,Paris\n")
    with pytest.raises(TraceError, match=r"log.csv: line 2: has 5 cells, .* in double quotes"):
        import_answers(log, spec())


def test_reasoning_is_no_part_of_an_answer(written):
    log = written(row(**{"small.answer": "<think>Paris? No.</think>Rome"}), row())
    assert import_answers(log, spec()).loss.tolist() == [[True, False], [False, False]]


def test_answers_are_compared_by_the_cascade_s_rule_and_tokens_are_priced(written):
    log = written(
        row(),
        row(**{"small.answer": "Rome!", "label": ["Paris", "City of Light"]}),
        row(**{"small.answer": ""}),
    )
    trace = import_answers(log, spec())
    assert trace.loss.tolist() == [[False, False], [True, False], [True, False]]
    assert trace.prediction[0, 0] == trace.prediction[0, 1]
    assert trace.prediction[1, 0] != trace.prediction[1, 1]
    assert trace.prediction[2, 0] == -1
    assert trace.notes[-1].startswith("1 of 3 answers of 'small' has no content under compare")
    np.testing.assert_allclose(trace.costs, [[4.0, 30.0]] * 3)
    assert trace.confidence.tolist() == [[0.0, 0.9]] * 3


def test_an_answer_that_is_missing_is_a_gap(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("small.answer,small.cost,large.answer,label\n,1,B,B\nB,1,,B\n,1,A,\n")
    trace = import_answers(log, spec())
    assert trace.answered.tolist() == [[False, True], [True, False], [False, True]]
    np.testing.assert_array_equal(trace.loss, [[np.nan, 0], [0, np.nan], [np.nan, np.nan]])
    assert "1 of 3 rows without a label" in trace.notes


def test_a_node_without_confidences_is_served_without(written):
    trace = import_answers(written(row(), row()), spec())
    assert [node.options.get("confidence") for node in trace.spec.nodes] == ["none", None]
    (note,) = trace.notes
    assert note.startswith("no confidence of 'small' (a column")


def test_labels_under_a_rule_that_gives_classes(written):
    log = written(*(row(**{"small.answer": f"(B) {city}", "label": "B"}) for city in CITIES))
    trace = import_answers(log, spec("choice"))
    assert trace.loss[:, 0].tolist() == [False] * 3
    assert trace.label is not None


def test_the_last_node_may_be_the_label(written):
    log = written(*({**row(), "label": None} for _ in range(3)))
    last = CascadeSpec.from_toml('[cascade]\ntarget = "last"\n' + CASCADE)
    assert import_answers(log, last).loss.tolist() == [[False, False]] * 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"small.answer": None, "large.answer": None}, "has no answer of any node"),
        ({"large.answer": ["a"]}, "large.answer is a list; it must be text"),
        ({"label": "..."}, "the label '...' has no content under"),
        ({"large.confidence": None}, "large.confidence is None; it must be a finite number"),
        ({"large.confidence": True}, "large.confidence is True"),
        ({"small.input_tokens": -1}, "small.input_tokens is -1; it must be a number from 0"),
        ({"small.output_tokens": "many"}, "small.output_tokens is 'many'"),
    ],
)
def test_rows_that_cannot_be_used_are_named_or_skipped(written, change, said):
    log = written(row(), row(**change), row())
    with pytest.raises(TraceError, match=rf"log.jsonl: line 2: {said}"):
        import_answers(log, spec())
    trace = import_answers(log, spec(), on_bad="skip")
    assert (len(trace), sum(trace.left_out.values())) == (2, 1)


@pytest.mark.parametrize(
    ("rows", "compare", "said"),
    [
        ([{"large.answer": "x"}], "exact", "'small.answer' is missing; there are large.answer"),
        ([row(label="Bern")], "contains", "no answer equals any label under"),
        ([row(label="Bern")], "exact", "the first label is 'Bern' and the first answer"),
        ([row(label=["a", None])], "contains", "None. is not a list of aliases; write texts"),
        ([row(label="no letter")], "choice", "has no content under"),
        ([{"small.answer": "a", "large.answer": "b"}], "exact", "prices the tokens of 'small'"),
        ([row(**{"large.confidence": "x"})], "exact", "line 1: large.confidence is 'x'"),
        ([[1]], "exact", "line 1: is not an object"),
        ([], "exact", "holds no rows"),
    ],
)
def test_logs_that_cannot_be_used(written, rows, compare, said):
    with pytest.raises(TraceError, match=said):
        import_answers(written(*rows), spec(compare))


def test_files_that_cannot_be_used(tmp_path, written):
    with pytest.raises(TraceError, match="cannot be read"):
        import_answers(tmp_path / "none.jsonl", spec())
    with pytest.raises(TraceError, match="the suffix must be one of"):
        import_answers(written(row(), name="log.json"), spec())
    (tmp_path / "bad.jsonl").write_text("{", "utf-8")
    with pytest.raises(TraceError, match="line 1: is not JSON"):
        import_answers(tmp_path / "bad.jsonl", spec())
    (tmp_path / "bad.csv").write_bytes(b"\xff")
    with pytest.raises(TraceError, match="UTF-8"):
        import_answers(tmp_path / "bad.csv", spec())
    with pytest.raises(TraceError, match="all of its rows were left out"):
        import_answers(written(row(**{"large.confidence": "x"})), spec(), on_bad="skip")


def test_the_command_writes_what_a_fit_reads(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = ["small.answer,small.cost,large.answer,label"]
    for _ in range(120):
        city, other = rng.choice(CITIES, 2)
        answer = city if rng.random() < 0.7 else other
        lines.append(f'"It is {answer}, I think",0.5,{city},{city}')
    (tmp_path / "log.csv").write_text("\r\n".join(lines), "utf-8-sig")
    (tmp_path / "cascade.toml").write_text(CASCADE, "utf-8")
    trace, cascade = str(tmp_path / "trace.parquet"), str(tmp_path / "cascade.toml")
    command = ["import", "answers", str(tmp_path / "log.csv"), "--cascade", cascade, "-o", trace]
    assert main(command) == 0
    shown = capsys.readouterr().out
    wrong = Trace.read(trace).loss.mean(axis=0)
    assert 0.1 < wrong[0] < 0.4
    assert all(f"{1 - share:.1%}" in shown for share in wrong)
    assert shown.endswith(f"Next: ttamer fit {trace}\n")  # its cascade, not the user's, is right
    assert main(["fit", trace, "-o", str(tmp_path / "policy.ttamer"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 120
    command[-1] = trace.replace(".parquet", ".jsonl")  # keeps no cascade
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(f"{command[-1]} --cascade {trace.replace('.parquet', '.toml')}\n")


def test_the_command_says_what_a_fit_needs_where_there_are_no_labels(written, tmp_path, capsys):
    log = written(*({**row(), "label": None} for _ in range(3)))
    cascade = tmp_path / "cascade.toml"
    cascade.write_text(CASCADE, "utf-8")
    command = ["import", "answers", str(log), "--cascade", str(cascade)]
    assert main([*command, "-o", str(tmp_path / "trace.parquet")]) == 0
    shown = capsys.readouterr().out
    assert f'Next: ttamer label {tmp_path / "trace.parquet"}\n  or target = "last"' in shown


@pytest.mark.parametrize(
    ("field", "small", "large", "losses"),
    [
        ("correct", True, False, [0.0, 1.0]),
        ("thumbs", "up", "down", [0.0, 1.0]),
        ("score", 0.25, 1.0, [0.75, 0.0]),
    ],
)
def test_what_is_right_may_be_stated(written, field, small, large, losses):
    stated = row(**{f"small.{field}": small, f"large.{field}": large, "label": None})
    trace = import_answers(written(stated), spec())
    assert (trace.loss * trace.unit).tolist() == [losses]
    partly = row(**{f"small.{field}": False if field == "correct" else "0"})
    trace = import_answers(written(partly, row(**{f"small.{field}": None})), spec())
    np.testing.assert_array_equal(trace.loss * trace.unit, [[1, 0], [0, 0]])  # else by the label
    with pytest.raises(TraceError, match=rf"small.{field} is 'maybe'; "):
        import_answers(written({**stated, f"small.{field}": "maybe"}), spec())


def test_columns_that_are_not_read_are_named(written):
    trace = import_answers(written(row(user="me", **{"small.latency": 3})), spec())
    assert "not read: 'user', 'small.latency'" in trace.notes


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
def test_what_is_known_of_an_input_is_read(written, name):
    facts = {"prompt": "Capital of France?", "input.turns": 3, "input.user": "free"}
    path = written(row(**facts), row(**facts | {"input.turns": 4}), name=name)
    if name == "log.csv":
        lines = [row(**facts), row(**facts | {"input.turns": 4})]
        path.write_text(
            "\n".join(
                ",".join(map(str, line)) for line in (lines[0], *(line.values() for line in lines))
            )
        )
    trace = import_answers(path, spec())
    assert trace.prompt.tolist() == ["Capital of France?"] * 2
    assert trace.inputs["turns"].tolist() == [3.0, 4.0]
    assert trace.inputs["user"].tolist() == ["free"] * 2


def test_prompts_are_kept_for_labels(written, tmp_path):
    answers = tmp_path / "answers.jsonl"
    import_answers(written(row(prompt="Capital of France?")), spec(), answers=answers)
    (kept,) = read_answers(answers, ["small", "large"])
    assert kept.prompt == "Capital of France?"
    assert kept.answers["small"].text == "It is Paris."
    assert answers.stat().st_mode & 0o777 == 0o600


def completion(text, model, logprob=None):
    choice = {"message": {"role": "assistant", "content": text}}
    if logprob is not None:
        choice["logprobs"] = {"content": [{"token": text, "logprob": logprob}]}
    usage = {"prompt_tokens": 20, "completion_tokens": 5}
    return {"model": model, "choices": [choice], "usage": usage}


NAMED = CASCADE.replace('name = "small"', 'name = "small"\nmodel = "gpt-small"')


def test_spend_logs_of_litellm_are_put_together_by_prompt(written):
    messages = [{"role": "user", "content": "Capital of France?"}]
    calls = [
        {"model": "openai/gpt-small", "spend": 0.5, "response": completion("Paris.", "x", -0.1)},
        {
            "model": "azure/y",
            "model_group": "large",
            "spend": 4.0,
            "response": json.dumps(completion("It is Paris", "y", -0.2)),
        },
    ]
    other = [{"role": "user", "content": "Capital of Italy?"}]
    log = written(
        *({"request_id": n, "messages": messages, **call} for n, call in enumerate(calls)),
        *({"messages": json.dumps(other), **call} for call in calls),
        {"messages": other, **calls[0], "model": "gpt-other"},
        {"messages": other, **calls[0], "spend": 0.0, "response": {}},  # it failed
    )
    trace = import_answers(log, CascadeSpec.from_toml('[cascade]\ntarget = "last"\n' + NAMED))
    assert len(trace) == 2
    assert trace.costs.tolist() == [[0.5, 4.0]] * 2
    assert trace.confidence[0].tolist() == pytest.approx([np.exp(-0.1), np.exp(-0.2)])
    assert not trace.loss.any()
    assert "not read: 1 call of gpt-other" in trace.notes


def test_a_spend_log_without_messages_says_where_they_are_kept(written):
    messages = [{"role": "user", "content": "Capital of France?"}]
    cascade = CascadeSpec.from_toml('[cascade]\ntarget = "last"\n' + NAMED)
    calls = [
        {"model": model, "spend": 1, "messages": {}, "response": completion("Paris", "x")}
        for model in ("gpt-small", "large")
    ]
    with pytest.raises(TraceError, match=r"no call has its messages, .* store_prompts_in_spend"):
        import_answers(written(*calls), cascade)
    logged = [
        {**call, "proxy_server_request": json.dumps({"messages": messages})} for call in calls
    ]
    trace = import_answers(written(*logged, calls[0]), cascade)
    assert trace.prompt.tolist() == ["Capital of France?"]
    assert "not read: 1 call of a prompt that the log does not have" in trace.notes


def test_batches_of_openai_are_put_together_by_their_id(written):
    request = {"model": "gpt-small", "messages": [{"role": "user", "content": "Capital?"}]}
    log = written(
        {"custom_id": "a", "method": "POST", "body": request, "label": "Paris"},
        *(
            {"custom_id": "a", "response": {"status_code": 200, "body": completion(text, model)}}
            for text, model in (("Paris", "gpt-small-2026-01-02"), ("Rome", "large"))
        ),
    )
    trace = import_answers(log, CascadeSpec.from_toml(NAMED))
    assert trace.loss.tolist() == [[False, True]]
    assert trace.costs.tolist() == [[20 * 0.1 + 5 * 0.4, 30.0]]
    lines = log.read_text().splitlines()  # ids of each model's own, as within one batch
    again = [json.loads(line) | {"custom_id": "b"} for line in (lines[0], lines[2])]
    log.write_text("\n".join([*lines[:2], *map(json.dumps, again)]))
    assert import_answers(log, CascadeSpec.from_toml(NAMED)).loss.tolist() == [[False, True]]
    log.write_text("\n".join(lines))
    failed = {"custom_id": "b", "label": "x", "response": {"status_code": 500, "body": {}}}
    log.write_text(log.read_text() + "\n" + json.dumps(failed))
    with pytest.raises(TraceError, match=r"line 4: has no answer of any node, as after failed"):
        import_answers(log, CascadeSpec.from_toml(NAMED))
    with pytest.raises(
        TraceError, match=r"no call of 'small' .* are 'gpt-small-2026-01-02': write"
    ):
        import_answers(log, CascadeSpec.from_toml(CASCADE))


def test_what_was_imported_can_be_judged(written, served, tmp_path):
    answers = [{"small.answer": "A", "large.answer": "AB"[k % 2]} for k in range(6)]
    log = written(*({"prompt": f"{k}?", "label": "A", **line} for k, line in enumerate(answers)))
    path = tmp_path / "answers.jsonl"
    trace = import_answers(log, served.cascade, answers=path)
    served.upstreams["large"].yes = lambda prompt: 0.9 if "A" in prompt.split("answer")[-1] else 0.1
    rows, paid = read_answers(path, trace.names), tmp_path / "verdicts"
    options = {"upstream": served.upstream}
    judged = judge_answers(trace, rows, served.cascade, Judge("large"), paid, **options)
    assert served.counts[1] == 9  # one for each different answer
    assert not np.isnan(judged.loss).any()
    assert "judged by 'large' in 9 calls that cost 112.5" in judged.notes[-1]
