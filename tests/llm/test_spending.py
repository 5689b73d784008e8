"""Budgets: a random core first, then where the uncertainty falls most; new models join a log."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support.faulty_upstream import truth
from ttamer.cascade import CascadeSpec
from ttamer.cli import main
from ttamer.llm import Prompt, collect_prompts, prompts_of

PROMPTS = [
    Prompt({"messages": [{"role": "user", "content": f"Question {k}?"}]}, truth(f"Question {k}?"))
    for k in range(300)
]
ONE = 13.5  # what a prompt costs by both nodes


def collected(served, budget, **options):
    paid, more = served.cascade.with_name("paid"), {"upstream": served.upstream} | options
    return collect_prompts(served.cascade, PROMPTS, paid, on_error="skip", budget=budget, **more)


def test_a_budget_is_kept_over_runs_and_starts_with_a_random_core(served):
    trace = collected(served, 20 * ONE)
    assert served.counts == [20, 20]
    assert trace.answered.all()
    numbers = [int("".join(c for c in text if c.isdigit())) for text in trace.prompt]
    assert numbers != list(range(20))  # not the first ones
    assert trace.left_out == {"the budget was spent": 280}
    again = collected(served, 20 * ONE)
    assert (served.counts, again.digest) == ([20, 20], trace.digest)
    more = collected(served, 30 * ONE)
    assert served.counts == [30, 30]
    assert set(trace.prompt) < set(more.prompt)


def test_a_budget_that_pays_for_no_prompt_is_refused(served):
    with pytest.raises(tt.ArgumentError, match=r"budget is 5, and one prompt may cost 13\.5 by"):
        collected(served, 5)
    assert served.counts == [0, 0]


def test_calls_for_confidences_count_in_a_budget(make_served):
    several = {"confidence": "agreement", "samples": 4}
    served = make_served(node={"small": {"confidence": "self-report"}, "large": several})
    trace = collected(served, 600)
    small, large = served.counts
    assert 500 < small + 12.5 * large <= 600
    assert large == 4 * trace.answered[:, 1].sum()
    assert f"{small + 12.5 * large:g} of 600 spent on {len(trace)} prompts" in trace.notes


def test_a_budget_holds_where_costs_differ_from_prompt_to_prompt(make_served):
    served = make_served(node={"large": {"cost": 0.0, "cost_per_token": {"input": 1, "output": 1}}})
    large = served.upstreams["large"]
    large.answer = lambda prompt, _: ("A " * (1 + int(prompt[9:-1]) ** 2 % 61), 0.9)
    trace = collected(served, 3000)
    assert 2700 < np.nansum(trace.costs) <= 3000


def test_after_the_core_it_asks_what_lowers_the_uncertainty_and_says_what_more_is_worth(served):
    trace = collected(served, 240 * ONE)
    spent = 1.0 * served.counts[0] + 12.5 * served.counts[1]
    assert 220 * ONE < spent <= 240 * ONE
    assert served.counts[0] >= served.counts[1] > 120
    assert any("more would make that" in note for note in trace.notes)
    assert tt.fit(trace).record.complete == served.counts[1]
    again = collected(served, 240 * ONE)
    assert again.digest == trace.digest


def joined(served, log, paid, only=("large",), **options):
    """The log with the answers of other nodes."""
    upstream = {"upstream": served.upstream, "log": log, "only": only}
    return collect_prompts(served.cascade, prompts_of(log), paid, **upstream, **options)


@pytest.fixture
def log(served, tmp_path):
    """A log of the small model alone."""
    spec = CascadeSpec.from_file(served.cascade)
    alone = dataclasses.replace(spec, nodes=spec.nodes[:1])
    return collect_prompts(alone, PROMPTS[:60], tmp_path / "log.paid", upstream=served.upstream)


def test_a_new_model_joins_a_log_by_its_prompts(served, log, tmp_path):
    served.upstreams["small"].requests.clear()
    paid = tmp_path / "new.paid"
    trace = joined(served, log, paid, budget=40 * 12.5)
    assert served.upstreams["small"].requests == []
    assert trace.answered.sum(axis=0).tolist() == [60, 40]
    np.testing.assert_array_equal(trace.confidence[:, 0], log.confidence[:, 0])
    model, asked = served.upstreams["large"], trace.answered[:, 1]
    right = [model.answer(text, 0)[0] == truth(text) for text in trace.prompt[asked]]
    np.testing.assert_array_equal(trace.loss[asked, 1] == 0, right)
    assert tt.fit(trace).record.complete == 40
    for wrong, text in (
        ({"only": ["other"]}, "other"),
        ({"only": []}, "name the nodes to ask"),
        ({"only": ["small"]}, "'large' is neither in the log"),
        ({"log": dataclasses.replace(log, prompt=None)}, "no prompts"),
    ):
        with pytest.raises(tt.ArgumentError, match=text):
            joined(served, **{"log": log, "paid": paid} | wrong)
    url = served.upstreams["small"].url
    served.change(f'cost = 1.0\nupstream = "{url}"', "cost = 1.0")  # it has no server any more
    again = joined(served, log, paid, budget=40 * 12.5)
    np.testing.assert_array_equal(again.loss, trace.loss)


def test_a_log_with_labels_on_some_rows_takes_a_new_model(served, log, tmp_path):
    partly = dataclasses.replace(log, label=np.where(np.arange(60) < 20, log.label, -1))
    trace = joined(served, partly, tmp_path / "new.paid")
    assert (~np.isnan(trace.loss)).sum(axis=0).tolist() == [20, 20]
    assert trace.answered.all()


def test_where_only_verdicts_are_known_equal_answers_have_them(served, log, tmp_path):
    judged = dataclasses.replace(log, label=None, correct=(log.loss == 0))
    trace = joined(served, judged, tmp_path / "new.paid")
    same = trace.prediction[:, 0] == trace.prediction[:, 1]
    np.testing.assert_array_equal(~np.isnan(trace.loss[:, 1]), same)
    np.testing.assert_array_equal(trace.loss[same, 0], trace.loss[same, 1])


@pytest.fixture
def asked(make_served, tmp_path, capsys):
    """Run the command for a log of the small model: its status, and what it prints."""
    served = make_served(sockets=True)
    spec = CascadeSpec.from_file(served.cascade)
    alone = dataclasses.replace(spec, nodes=spec.nodes[:1])
    source = tmp_path / "log.parquet"
    collect_prompts(alone, PROMPTS[:30], tmp_path / "paid").write(source)

    def run(*arguments):
        command = ["collect", str(served.cascade), "-o", str(tmp_path / "out.parquet")]
        words = [str(source) if word == "LOG" else word for word in arguments]
        return main([*command, *words]), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "large"], "--prompts-from TRACE together with --only NODE"),
        (["--prompts-from", "LOG"], "together with --only"),
        (["--prompts-from", "LOG", "--only", "large", "--prompts", "x"], "give --prompts FILE"),
    ],
)
def test_the_command_says_which_options_go_together(asked, arguments, text):
    status, _, error = asked(*arguments)
    assert (status, text in error) == (2, True)


def test_the_command_asks_the_new_model_within_a_budget(asked, tmp_path):
    new = ("--prompts-from", "LOG", "--only", "large")
    shown = asked(*new, "--dry-run")[1]
    assert shown.startswith("large: 30 calls, about 375 at most\nin all about 375 at most; 0 resp")
    status, shown, _ = asked(*new, "--budget", "250")
    assert (status, "250 of 250 spent on 20 prompts" in shown) == (0, True)
    trace = tt.Trace.read(tmp_path / "out.parquet")
    assert trace.answered.sum(axis=0).tolist() == [30, 20]
