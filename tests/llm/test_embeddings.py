"""Answers compared by embeddings: where the threshold comes from, and what is embedded once."""

from __future__ import annotations

import contextlib
import json

import pytest

from support.faulty_upstream import FaultyUpstream
from ttamer.cli import main
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm import Prompt, collect_prompts

LABEL = "alpha beta gamma"
RIGHT, WRONG = "alpha beta gamma zeta", "alpha delta epsilon"  # cosines 0.87 and 0.33
PROMPTS = [Prompt({"messages": [{"role": "user", "content": f"{n}?"}]}, LABEL) for n in range(16)]
THRESHOLD = {"kind": "embedding", "threshold": 0.6}


def is_right(name, prompt):
    return name == "large" or int(prompt.removesuffix("?")) % 2 == 0


@pytest.fixture
def make_embedded(make_served):
    """A cascade whose answers are compared by embeddings: ``make_embedded(compare)``."""
    with contextlib.ExitStack() as stack:

        def make(compare="embedding", *, sockets=False, **serve):
            embeddings = stack.enter_context(FaultyUpstream("embeddings"))
            serve = {"compare": compare, "embeddings": {"upstream": embeddings.url}} | serve
            served = make_served(serve=serve, sockets=sockets)
            for name, model in served.upstreams.items():
                model.answer = lambda prompt, _, name=name: (
                    RIGHT if is_right(name, prompt) else WRONG,
                    0.9 if name == "large" else 0.3,
                )
            served.upstreams["embeddings"] = embeddings
            return served

        yield make


def collected(served, prompts=PROMPTS):
    paid = served.cascade.with_name("paid")
    return collect_prompts(served.cascade, prompts, paid, upstream=served.upstream)


def check(trace):
    """The right answers are the right ones, and equal ones are one prediction."""
    expected = [[is_right(name, f"{n}?") for name in trace.names] for n in range(16)]
    assert trace.correct.tolist() == expected
    equal = trace.prediction[:, 0] == trace.prediction[:, 1]
    assert equal.tolist() == [row[0] for row in expected]


def test_a_threshold_is_fitted_to_answers_that_contain_their_label(make_embedded):
    served = make_embedded()
    trace = collected(served)
    check(trace)
    compare = trace.spec.serve["compare"]
    assert compare == {"kind": "embedding", "threshold": pytest.approx(0.6, abs=0.01)}
    assert (
        "agrees with the labels on 24 of 24 pairs (100%, 95% interval 86% to 100%)"
        in (trace.notes[0])
    )
    assert "threshold = " in trace.notes[1]
    assert served.counts == [16, 16, 1]
    # Another threshold needs no further call of any upstream.
    served.change('"embedding"', "{kind = 'embedding', threshold = 0.95}")
    with pytest.raises(TraceError, match="no answer equals any label"):
        collected(served)
    assert served.counts == [16, 16, 1]


def test_a_threshold_that_is_given_is_taken(make_embedded):
    trace = collected(make_embedded(THRESHOLD))
    check(trace)
    assert not trace.notes


def test_of_several_aliases_the_nearest_one_counts(make_embedded):
    prompts = [Prompt(prompt.body, (LABEL, "omega psi")) for prompt in PROMPTS]
    trace = collected(make_embedded(), prompts)
    check(trace)
    assert "24 of 24 pairs" in trace.notes[0]  # one for each answer, not for each alias


def test_what_is_missing_is_refused_before_anything_is_asked(make_embedded, make_served):
    bare = [Prompt(prompt.body) for prompt in PROMPTS]
    for make, prompts, message in (
        (make_embedded, bare, "has no threshold: write"),
        (lambda: make_served(serve={"compare": "embedding"}), PROMPTS, "needs the table"),
    ):
        served = make()
        with pytest.raises(ArgumentError, match=message):
            collected(served, prompts)
        assert not any(served.counts)
    served = make_embedded()
    served.change("cost = 1.0", 'cost = 1.0\nconfidence = "agreement"')
    with pytest.raises(ArgumentError, match="has no threshold yet; write one"):
        collected(served)


def test_an_upstream_that_fails_leaves_the_answers_paid_for(make_embedded):
    served = make_embedded()
    served.upstreams["embeddings"].mode = "garbage"
    with pytest.raises(TraceError, match="texts cannot be embedded"):
        collected(served)
    served.upstreams["embeddings"].mode = "ok"
    check(collected(served))
    assert served.counts[:2] == [16, 16]


def test_the_command_prints_the_threshold(make_embedded, tmp_path, capsys):
    served = make_embedded(sockets=True)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{n}?", "label": LABEL} for n in range(16)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = [
        "collect",
        str(served.cascade),
        "--prompts",
        str(prompts),
        "-o",
        str(tmp_path / "trace.parquet"),
    ]
    assert main(command) == 0
    assert "24 of 24 pairs" in capsys.readouterr().out
    assert "threshold = 0." in (tmp_path / "trace.toml").read_text()
