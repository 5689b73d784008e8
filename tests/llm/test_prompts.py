"""Prompts from files, in every form."""

from __future__ import annotations

import json

import pytest

from ttamer.errors import TraceError
from ttamer.llm.confidence import question_text
from ttamer.llm.prompts import Prompt, read_prompts


def test_prompts_in_every_form(tmp_path):
    lines = [
        {"prompt": "One?", "label": 1},
        {"messages": [{"role": "user", "content": "Two?"}], "label": "2", "max_tokens": 5},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, lines)), "utf-8")
    one, two = read_prompts(tmp_path / "p.jsonl", request={"max_tokens": 9})
    assert one == Prompt({"messages": [{"role": "user", "content": "One?"}], "max_tokens": 9}, "1")
    assert two == Prompt({"messages": [{"role": "user", "content": "Two?"}], "max_tokens": 5}, "2")
    (tmp_path / "p.csv").write_text('id,prompt,answer\n7,"One,\ntwo?",B\n8,Three?,\n', "utf-8")
    one, two = read_prompts(tmp_path / "p.csv", label="answer")
    assert one == Prompt({"messages": [{"role": "user", "content": "One,\ntwo?"}]}, "B")
    assert two.label is None
    (tmp_path / "p.csv").write_text("prompt, label\nOne?,B,,\n", "utf-8")
    assert [prompt.label for prompt in read_prompts(tmp_path / "p.csv")] == ["B"]
    (tmp_path / "p.txt").write_text("One?\n\nTwo?\n", "utf-8")
    assert [question_text(p.body) for p in read_prompts(tmp_path / "p.txt")] == ["One?", "Two?"]


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (3.0, "3"),
        (True, "true"),
        ({"a": "\u00e9"}, '{"a": "\u00e9"}'),
        ([1, "one"], ("1", "one")),
        (" ", None),
    ],
)
def test_a_label_is_read_as_a_model_would_write_it(tmp_path, label, text):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "x", "label": label}), "utf-8")
    (prompt,) = read_prompts(path)
    assert prompt.label == text


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.txt"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_line_feeds_end_a_line_and_a_byte_order_mark_is_no_text(tmp_path, name, mark):
    texts = ["one\u2028line", "of\x85the\x0cfile"]
    lines = {
        "p.jsonl": [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts],
        "p.csv": ["prompt", *texts],
        "p.txt": texts,
    }[name]
    (tmp_path / name).write_text(mark + "\n".join(lines), "utf-8")
    prompts = read_prompts(tmp_path / name)
    assert [question_text(prompt.body) for prompt in prompts] == texts


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.csv", "prompt\n" + "x" * 200_000, "line 2: is not CSV .*give long texts as JSON"),
        ("p.jsonl", "", "no prompts"),
        ("p.jsonl", "{", "line 1: is not JSON"),
        ("p.jsonl", '{"prompt": "x"}\n[]', "line 2: is not an object"),
        ("p.jsonl", '{"label": "x"}', "line 1: has no prompt"),
        ("p.jsonl", '{"question": "x", "id": 1}', "other fields: 'question', 'id'"),
        ("p.jsonl", '{"prompt": 3}', "line 1: has no prompt"),
        ("p.jsonl", '{"messages": []}', "line 1: messages must be"),
        (
            "p.jsonl",
            '{"prompt": "x", "label": []}',
            r"line 1: label: \[\] is not a list of aliases",
        ),
        ("p.jsonl", '{"prompt": "x", "label": [true]}', "True. is not a list of aliases"),
        ("p.csv", "prompt,label\n2, 3 or 4?,3\n", "line 2: has 3 cells, .* names 2; put texts"),
        ("p.tsv", "prompt\tlabel\nx\t3\n", "suffix must be one of .jsonl, .ndjson, .csv, .txt"),
        ("p.csv", "question\nx\n", "line 2: has no prompt; .* its other fields: 'question'"),
        ("p.csv", "", "no prompts"),
        ("p.csv", "prompt\n", "no prompts"),
    ],
)
def test_prompts_that_cannot_be(tmp_path, name, text, said):
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(TraceError, match=said):
        read_prompts(tmp_path / name)


def test_prompts_that_cannot_be_read(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_prompts(tmp_path / "gone.jsonl")
    (tmp_path / "p.txt").write_bytes(b"\xff")
    with pytest.raises(TraceError, match="UTF-8"):
        read_prompts(tmp_path / "p.txt")
