"""Confidences that cost by themselves: answers may be returned without being verified."""

from __future__ import annotations

import numpy as np
import pytest

import ttamer as tt
from ttamer import ArgumentError, Cascade, CascadeError, CascadeSpec
from ttamer.cli import main
from ttamer.llm.confidence import probability_of_yes, verifier_body

TOML = """
[[node]]
name = "small"
cost = 1.0
verify_cost = {verify}

[[node]]
name = "large"
cost = 10.0
verify_cost = 5.0
"""
SPEC = CascadeSpec.from_toml(TOML.format(verify=0.5))


def verified_trace(rows, seed=0, spec=SPEC):
    """Rows where the verifier's confidence is the chance to be right."""
    rng = np.random.default_rng(seed)
    sure = np.stack([rng.choice([0.5, 0.95], rows), rng.choice([0.9, 0.97], rows)], axis=1)
    return tt.Trace(spec, sure, correct=rng.random((rows, 2)) < sure)


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(verified_trace(4000))


def test_the_file_reads_back_and_is_split():
    assert [node.verify_cost for node in SPEC.nodes] == [0.5, 5.0]
    assert CascadeSpec.from_toml(SPEC.to_toml()) == SPEC
    split = SPEC.split_verified()
    assert split.names == ("small", "small (verified)", "large", "large (verified)")
    assert split.costs.tolist() == [1.0, 0.5, 10.0, 5.0]
    assert split.join_verified() == SPEC
    assert not split.has_verify_costs
    assert split.split_verified() is split


def test_costs_and_columns_by_row_follow():
    trace = verified_trace(5)
    cost = np.arange(1.0, 11.0).reshape(5, 2)
    extras = {"margin": trace.confidence, "latency": cost}
    split = tt.Trace(SPEC, trace.confidence, correct=~trace.wrong(), cost=cost, **extras)
    split = split.with_verification()
    np.testing.assert_array_equal(split.cost[:, [0, 2]], cost)
    np.testing.assert_array_equal(split.cost[:, [1, 3]], [[0.5, 5.0]] * 5)
    assert np.isnan(split.extras["margin"][:, [0, 2]]).all()
    assert np.isnan(split.extras["latency"][:, [1, 3]]).all()
    np.testing.assert_array_equal(split.wrong()[:, 0], split.wrong()[:, 1])


def test_looking_pays_where_it_is_cheap_and_not_where_it_is_expensive(ladder):
    new = verified_trace(20_000, seed=1)
    trade = {}
    for verify in (0.5, 8.0):
        spec = CascadeSpec.from_toml(TOML.format(verify=verify))
        policy = tt.fit(verified_trace(4000, spec=spec), tradeoffs=[0.93])[0]
        result = tt.evaluate(policy, verified_trace(20_000, 1, spec), resamples=0)
        trade[verify] = (result.asked["small (verified)"], result.asked["large (verified)"])
        objective = 0.93 * result.error + 0.07 * result.cost / 10
        # The exact policy: small is verified or not, then large is returned unseen or not asked.
        half = 0.5 * (0.93 * 0.05) + 0.5 * min(0.93 * 0.5, 0.93 * 0.065 + 0.07)
        exact = min(0.07 * (0.1 + verify / 10) + half, 0.007 + 0.93 * 0.275, 0.07 + 0.93 * 0.065)
        assert objective == pytest.approx(exact, abs=0.006)
    assert trade[0.5] == (1.0, 0.0)
    assert trade[8.0] == (0.0, 0.0)
    cheap = tt.evaluate(ladder.at(0.0), new, resamples=0)
    assert cheap.asked == {"small": 1.0, "small (verified)": 0.0, "large": 0.0,
                           "large (verified)": 0.0}  # fmt: skip


def test_with_the_gateways_verifier_the_policy_looks_only_where_it_pays(ladder):
    calls = {"small": 0, "large": 0, "verifier": 0}
    answers = {}

    def model(name):
        def ask(question):
            calls[name] += 1
            answers[name, question] = f"{name}'s answer"
            return answers[name, question], 0.0  # no confidence

        return ask

    def verify(name):
        def ask(question):
            calls["verifier"] += 1
            answer = answers[name, question]
            body = verifier_body(question, answer)
            assert answer in body["messages"][1]["content"]
            chance = 0.95 if "easy" in question else 0.5
            top = [{"token": "yes", "logprob": np.log(chance)},
                   {"token": "no", "logprob": np.log(1 - chance)}]  # fmt: skip
            reply = {
                "choices": [{"logprobs": {"content": [{"token": "yes", "top_logprobs": top}]}}]
            }
            return answer, probability_of_yes(reply)

        return ask

    nodes = {"small": model("small"), "small (verified)": verify("small"),
             "large": model("large"), "large (verified)": verify("large")}  # fmt: skip
    cascade = Cascade(ladder.at(0.93), nodes)
    easy, hard = cascade.run("an easy question"), cascade.run("a hard question")
    assert (easy.path, easy.answer) == (("small", "small (verified)"), "small's answer")
    assert (hard.path, hard.answer) == (("small", "small (verified)", "large"), "large's answer")
    assert calls == {"small": 2, "large": 1, "verifier": 2}  # large's answer is returned unseen
    assert hard.cost == 11.5


def test_files_commands_and_streams_split_alike(tmp_path, capsys, ladder):
    cascade, trace = tmp_path / "cascade.toml", tmp_path / "rows.csv"
    SPEC.to_file(cascade)
    verified_trace(2000).write(trace)
    out = tmp_path / "p.ttamer"
    assert main(["fit", str(trace), "--cascade", str(cascade), "-o", str(out)]) == 0
    loaded = tt.load(out)
    assert loaded.spec.names == ladder.spec.names
    assert loaded.spec.parents == ((), (0,), (), (2,))
    verified_trace(300, seed=1).write(trace)
    capsys.readouterr()
    assert main(["evaluate", str(out), str(trace), "--tradeoff", "0.93", "--json"]) == 0
    assert "small (verified)" in capsys.readouterr().out
    whole = verified_trace(2000)
    streamed = tt.fitting.fit_batches(
        lambda: [whole.take(slice(900)), whole.take(slice(900, 2000))]
    )
    assert streamed.spec.names == ladder.spec.names
    assert ladder.gap(tradeoff=0.93, on=verified_trace(500, seed=3)).bound > 0
    assert ladder.for_error(0.3, on=verified_trace(500, seed=3)).promise.certified
    found = tt.frontier(whole, verified_trace(200, seed=4), families=["ttamer"], resamples=0)
    assert found.families == ["ttamer"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[node]]\nname = 'a'\ncost = 1\nverify_cost = -1", "verify_cost is -1.0"),
        ("[[node]]\nname = 'a'\ncost = 1\nverify_cost = 'x'", "verify_cost must be a number"),
        (
            "[cascade]\norder = 'fixed'\n[[node]]\nname = 'a'\ncost = 1\nverify_cost = 1",
            "is for separate models",
        ),
    ],
)
def test_what_cannot_be_is_refused(text, says):
    with pytest.raises(CascadeError, match=says):
        CascadeSpec.from_toml(text)


def test_a_name_that_is_taken_and_a_trace_that_is_not_split_are_refused(ladder):
    text = "node = [{name = 'a', cost = 1, verify_cost = 1}, {name = 'a (verified)', cost = 1}]"
    with pytest.raises(CascadeError, match="which is taken"):
        CascadeSpec.from_toml(text).split_verified()
    with pytest.raises(ArgumentError, match=r"trace\.with_verification\(\)"):
        ladder[0].play(verified_trace(10))
