"""From no log to a policy in service: shadow, fit, prove, serve, feedback, swap; all in one log."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ttamer as tt
from support.fake_models import truth
from ttamer.cli import main
from ttamer.fitting.inputs import hashed_prompt, hashed_words, prompt_numbers
from ttamer.reporting.savings import savings
from ttamer.serve.records import forget
from ttamer.trace.decisions import read_decisions


async def traffic(served, client, prompts, *, feedback=True):
    """Ask, and say afterwards what was right."""
    for prompt in prompts:
        response = await client.chat(prompt)
        await served.settle()
        if feedback:
            said = {"request": response.headers["x-request-id"], "label": truth(prompt)}
            assert (await client.post("/feedback", json=said)).status_code == 200


@pytest.fixture
def story(serve, tmp_path):
    """Serve with a log; the same one in shadow mode and with a policy."""

    def make(*, policy=False, **tables):
        table = {"log": str(tmp_path / "decisions.jsonl"), "audit": {"share": 1.0}}
        table |= {"tradeoff": None} if policy else {"tradeoff": None, "mode": "shadow"}
        served = serve(2, serve=table | tables, policy=policy)
        served.log = tmp_path / "decisions.jsonl"
        return served

    return make


def test_a_log_of_shadow_mode_is_proved_fitted_and_forgotten(story, tmp_path, capsys):
    # Shadow: clients get the incumbent's answers.
    served = story()
    prompts = [f"question {number}" for number in range(240)]
    served.run(lambda client: traffic(served, client, prompts))
    log, policy = str(served.log), str(tmp_path / "policy.ttamer")

    # The log is a trace: of all answers, and of what is right, without a text.
    trace = tt.Trace.read(log)
    assert trace.names == ("small", "large")
    assert trace.answered.all()
    assert trace.chance.min() == trace.chance.max() == 1.0
    right = [[served.models[n].answer(p)[0] == truth(p) for n in trace.names] for p in prompts]
    np.testing.assert_array_equal(trace.loss == 0, right)
    assert all(text.startswith("#ttamer-prompt:") for text in trace.prompt)

    # Prove it, then fit.
    assert main(["report", log, "--against", "large", "--resamples", "200"]) == 0
    said = capsys.readouterr().out
    assert "a policy would have cost" in said
    assert "dealt at random" in said
    assert main(["fit", log, "-o", policy]) == 0
    assert tt.load(policy).spec.names == trace.names

    request = read_decisions(log).requests[-1]
    assert main(["forget", log, request]) == 0
    assert "deleted 2 lines and 0 audited rows" in capsys.readouterr().out


def test_the_story_of_the_tutorial_runs_with_recorded_answers():
    script = Path(__file__).parents[2] / "examples" / "serving" / "story.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for text in (
        "180 requests, 5.00 each",  # in shadow mode the incumbent answers
        "160 requests, 2.75 each",
        "watching after 80 audited rows; towards an alarm: calibration 0%, promise 0%",
        "a policy would have cost",
        "dealt at random",
        "estimated change at row",
        "replaced: ",
    ):
        assert text in done.stdout


def test_thumbs_are_of_the_answer_that_was_returned_and_of_equal_ones(story):
    served = story()

    async def scenario(client):
        requests = []
        for prompt in ("one", "two", "three"):
            requests.append((await client.chat(prompt)).headers["x-request-id"])
            await served.settle()
        for request, score in zip(requests, (1, 0, 0.5), strict=True):
            await client.post("/feedback", json={"request": request, "score": score})
        bad = await client.post("/feedback", json={"request": requests[0], "score": 7})
        assert bad.status_code == 400

    served.run(scenario)
    trace = tt.Trace.read(served.log)
    same = trace.prediction[:, 0] == trace.prediction[:, 1]
    known = ~np.isnan(trace.loss)
    assert known[:, 1].all()
    np.testing.assert_array_equal(known[:, 0], same)
    assert trace.loss[:, 1].tolist() == [0.0, 1.0, 0.5]


def test_a_judge_says_what_is_right_and_its_cost_counts(story):
    served = story(audit={"share": 1.0, "judge": "large"}, compare="exact")
    served.models["large"].text = "Yes"
    served.run(lambda client: traffic(served, client, ["a", "b"], feedback=False))
    decisions = read_decisions(served.log)
    assert (decisions.trace.loss == 0).all()
    # Each different answer is judged: by the large model, at 12.5 a call.
    assert decisions.audit_cost.tolist() == [1.0 + 25.0, 1.0 + 25.0]


def test_without_labels_a_report_is_about_agreement_and_says_so(story):
    served = story()
    prompts = [f"question {number}" for number in range(80)]
    served.run(lambda client: traffic(served, client, prompts, feedback=False))
    trace = tt.Trace.read(served.log)
    assert "disagreement with 'large'" in str(savings(trace, "large", resamples=50))
    with pytest.raises(tt.ArgumentError, match="10 requests"):
        savings(trace.take(slice(10)), "large")


def test_what_is_worth_nothing_is_not_recommended():
    """Confidences and prompts that say nothing: the policy is no better than chance."""
    rng = np.random.default_rng(0)
    right = rng.random((400, 2)) < [0.7, 0.8]
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 9.0})
    trace = tt.Trace(spec, rng.random((400, 2)), correct=right)
    result = savings(trace, "large", allowed=0.05)
    assert not result.is_better
    assert "do not adopt" in str(result)


def test_requests_are_forgotten_on_demand_while_the_server_writes(story):
    served = story(audit={"share": 1.0})

    async def scenario(client):
        response = await client.chat("secret")
        await served.settle()
        request = response.headers["x-request-id"]
        await client.post("/feedback", json={"request": request, "label": "A"})
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(forget, served.log, [request]) == 2
        await client.chat("another")
        await served.settle()

    served.run(scenario)
    assert len(tt.Trace.read(served.log)) == 1


def test_a_torn_line_is_counted_and_older_files_are_read_too(story):
    served = story()
    served.run(lambda client: traffic(served, client, ["a", "b"], feedback=False))
    served.log.rename(f"{served.log}.1")
    with Path(f"{served.log}.1").open("ab") as file:
        file.write(b'{"v": 1, "requ')
    served.run(lambda client: traffic(served, client, ["c"], feedback=False))
    trace = tt.Trace.read(served.log)
    assert len(trace) == 3
    assert trace.left_out == {"lines that are not JSON": 1}


@pytest.mark.parametrize(
    "text", ["What is 12 + 55?\n" * 20, "", "ÄÖ £ 7", "#ttamer-prompt: bad; 5"]
)
def test_a_hashed_prompt_has_the_features_of_the_prompt(text):
    hashed = hashed_prompt(text)
    assert not set(text.split()) & set(hashed.split()) or text.startswith("#") or not text
    assert prompt_numbers(hashed) == prompt_numbers(text)
    for size in (64, 1024):
        np.testing.assert_array_equal(hashed_words(hashed, size), hashed_words(text, size))


def test_a_policy_of_digests_decides_as_it_was_fitted(story, tmp_path):
    """The log has digests of answers; who serves what was fitted to them makes the same."""
    served = story()
    prompts = [f"question {number}" for number in range(120)]
    served.run(lambda client: traffic(served, client, prompts))
    trace = tt.Trace.read(served.log)
    ladder = tt.fit(trace)
    tt.save(ladder, tmp_path / "policy.ttamer")
    serving = story(policy=True, tradeoff=0.9)
    serving.service.policies.path = str(tmp_path / "policy.ttamer")
    serving.service.policies.active = serving.service.policies.load()
    played = ladder.at(0.9).play(dataclasses.replace(trace))

    async def scenario(client):
        return [await client.chat(prompt) for prompt in prompts]

    responses = serving.run(scenario)
    answered = [response.headers["x-ttamer-answered-by"] for response in responses]
    assert answered == [trace.names[node] for node in played.answer]
