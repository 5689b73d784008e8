"""Answers compared by embeddings: where the threshold comes from, and what is embedded once."""

from __future__ import annotations

import contextlib
import json

import pytest

from llm.conftest import COSTS
from support.faulty_upstream import FaultyUpstream
from ttamer.cli import main
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm import Likeness, Prompt, collect_prompts
from ttamer.llm.paid import Store
from ttamer.llm.prompts import AnsweredPrompt

LABEL = "alpha beta gamma"
RIGHT, WRONG = "alpha beta gamma zeta", "alpha delta epsilon"  # cosines 0.87 and 0.33
PROMPTS = [Prompt({"messages": [{"role": "user", "content": f"{n}?"}]}, LABEL) for n in range(16)]
THRESHOLD = {"kind": "embedding", "threshold": 0.6}


def is_right(name, prompt):
    return name == "large" or int(prompt.removesuffix("?")) % 2 == 0


@pytest.fixture
def served(make_served):
    """A cascade whose answers are compared by embeddings; ``served(compare)``."""

    with contextlib.ExitStack() as stack:

        def make(compare="embedding", *, sockets=False):
            embeddings = stack.enter_context(FaultyUpstream("embeddings"))
            table = {"upstream": embeddings.url}
            found = make_served(serve={"compare": compare, "embeddings": table}, sockets=sockets)
            for name, each in found.upstreams.items():
                each.answer = lambda prompt, _, name=name: (
                    RIGHT if is_right(name, prompt) else WRONG, 0.9 if name == "large" else 0.3
                )  # fmt: skip
            found.upstreams["embeddings"] = embeddings
            return found

        yield make


def collected(served, **options):
    paid = served.cascade.with_name("paid")
    return collect_prompts(served.cascade, PROMPTS, paid, upstream=served.upstream, **options)


def check(trace):
    """The right answers are the right ones, and equal ones are one prediction."""
    expected = [[is_right(name, f"{n}?") for name in trace.names] for n in range(16)]
    assert trace.correct.tolist() == expected
    equal = trace.prediction[:, 0] == trace.prediction[:, 1]
    assert equal.tolist() == [row[0] for row in expected]


def test_a_threshold_is_fitted_to_another_rule_on_the_labels(served):
    found = served()
    trace = collected(found, likeness=Likeness(like="contains"))
    check(trace)
    compare = trace.spec.serve["compare"]
    assert compare == {"kind": "embedding", "threshold": pytest.approx(0.6, abs=0.01)}
    assert (
        "agrees with the labels on 24 of 24 pairs (100%, 95% interval 86% to 100%)"
        in (trace.notes[0])
    )
    assert "threshold = " in trace.notes[1]
    assert found.counts == [16, 16, 1]
    # Another threshold needs no further call of any upstream.
    text = found.cascade.read_text()
    found.cascade.write_text(text.replace('"embedding"', "{kind = 'embedding', threshold = 0.95}"))
    with pytest.raises(TraceError, match="no answer equals any label"):
        collected(found)
    assert found.counts == [16, 16, 1]


def test_a_threshold_is_fitted_to_given_pairs_and_must_agree(served, tmp_path):
    found, file = served(), tmp_path / "pairs.jsonl"
    pairs = [(LABEL, RIGHT, True), (LABEL, WRONG, False)] * 12
    lines = [json.dumps({"one": a, "two": b, "equal": equal}) for a, b, equal in pairs]
    file.write_text("\n".join(lines))
    check(collected(found, likeness=Likeness(pairs=file)))
    lines = [line.replace("true", "false" if n % 4 else "true") for n, line in enumerate(lines)]
    file.write_text("\n".join([*lines, *lines[:1]]))
    with pytest.raises(TraceError, match=r"threshold .* and at least 99% is needed"):
        collected(found, likeness=Likeness(pairs=file, min_agreement=0.99))
    file.write_text("{}")
    with pytest.raises(TraceError, match="line 1 is not a labelled pair"):
        collected(found, likeness=Likeness(pairs=file))
    file.write_text(json.dumps({"one": "a", "two": "b", "equal": True}))
    with pytest.raises(TraceError, match="at least 20 labelled pairs"):
        collected(found, likeness=Likeness(pairs=file))


def test_a_threshold_is_fitted_to_the_labels_of_a_person(served, tmp_path):
    found = served()
    with Store(tmp_path / "labels") as labels:
        for n in range(16):
            texts = {name: RIGHT if is_right(name, f"{n}?") else WRONG for name in COSTS}
            right = [name for name in texts if is_right(name, f"{n}?")]
            labels.add({AnsweredPrompt(f"{n}?", LABEL, texts).key: json.dumps(right).encode()})
        labels.add({"other": b"[]", AnsweredPrompt("skipped", None, {}).key: b"null"})
    likeness = Likeness(pairs=tmp_path / "labels", like="contains")  # 16 pairs are too few
    trace = collected(found, likeness=likeness)
    check(trace)
    assert "40 of 40 pairs" in trace.notes[0]


def test_of_several_aliases_the_nearest_one_counts(served):
    found = served(THRESHOLD)
    prompts = [Prompt(each.body, (LABEL, "omega psi")) for each in PROMPTS]
    trace = collect_prompts(
        found.cascade, prompts, found.cascade.with_name("paid"),
        likeness=Likeness(like="contains"), upstream=found.upstream,
    )  # fmt: skip
    check(trace)
    assert "24 of 24 pairs" in trace.notes[0]  # one for each answer, not for each alias


def test_a_threshold_that_is_given_is_measured(served):
    trace = collected(served(THRESHOLD), likeness=Likeness(like="contains"))
    assert trace.notes[0].endswith("as it is written; 16 of them are equal")
    assert "24 of 24" in trace.notes[0]


def test_a_local_model_embeds_texts(served):
    found = served()
    asked = []

    def embed(texts):
        asked.extend(texts)
        return [[float(text.count("m")), float(text.count("d")), 1e-3] for text in texts]

    trace = collected(found, likeness=Likeness(like="contains", embed=embed))
    check(trace)
    assert sorted(asked) == sorted([LABEL, RIGHT, WRONG])
    assert found.counts[2] == 0
    with pytest.raises(TraceError, match="raised"):
        collected(found, likeness=Likeness(like="contains", embed=lambda texts: 1 / 0))


def test_what_is_missing_is_refused_before_anything_is_asked(served):
    found = served()
    with pytest.raises(ArgumentError, match="has no threshold"):
        collected(found)
    with pytest.raises(ArgumentError, match="another rule"):
        Likeness(like="embedding")
    plain = served("normalised")
    with pytest.raises(ArgumentError, match="are for compare"):
        collected(plain, likeness=Likeness(like="contains"))
    assert plain.counts == [0, 0, 0]


def test_the_command_prints_the_threshold(served, tmp_path, capsys):
    found = served(sockets=True)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{n}?", "label": LABEL} for n in range(16)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = ["collect", str(found.cascade), "--prompts", str(prompts), "--like", "contains",
               "-o", str(tmp_path / "trace.parquet")]  # fmt: skip
    assert main([*command, "--min-agreement", "0.5"]) == 0
    assert "24 of 24 pairs" in capsys.readouterr().out
    assert "threshold = 0." in (tmp_path / "trace.toml").read_text()
