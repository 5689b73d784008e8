"""The experiment on promises, with few splits of a small trace."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ttamer import datasets
from ttamer.evaluation.results import measure
from ttamer.fitted.promise import STEPS, HeldOut, make_promise
from ttamer.stats.bounds import binomial_p

FOLDER = Path(__file__).parents[2] / "experiments" / "promises"
NAME = "minilm-amazon"
SPLITS = 20
MORE = (0.01, 0.02, 0.05)


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("pyarrow")
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("promise_splits", FOLDER / "splits.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    for name in (spec.name, "risk_control", "budgets"):
        del sys.modules[name]
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def rules(script):
    return sys.modules[script.Sample.__module__]


@pytest.fixture(scope="module")
def population(script):
    return script.Population.of(NAME, datasets.load(NAME))


@pytest.fixture(scope="module")
def outcomes(script, population):
    return script.measure_promises(population, SPLITS)


# Rows and settings.


def test_rows_are_counted_as_the_ladder_counts_them(script, population):
    [rows] = script.Draws.of("drawn", len(population.trace), 1).rows
    theirs = HeldOut.of(population.ladder, population.trace.take(rows))
    ours = population.held(rows, theirs.trace_digest)
    assert (ours.rows, ours.against, ours.pairs) == (theirs.rows, theirs.against, theirs.pairs)
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    asked = population.ladder.with_holdout(population.trace.take(rows)).for_error(0.12).promise
    assert make_promise(ours, "error", 0.12, 0.95) == asked


def test_settings_do_what_they_do_when_played(population):
    for place, rung in enumerate(population.rungs):
        result = measure(population.ladder[rung].play(population.trace), population.trace)
        assert population.corners.wrong[:, place].mean() == pytest.approx(result.error)
        assert population.corners.cost[place] == pytest.approx(result.relative_cost)
    last = population.last
    np.testing.assert_array_equal(population.threshold.wrong[:, 0], last)  # never stops early
    np.testing.assert_array_equal(population.last_first.wrong[:, 0], last)
    np.testing.assert_array_equal(population.last_first.wrong[:, 1:], population.corners.wrong)
    assert population.threshold.cost[0] == population.last_first.cost[0] == pytest.approx(1.0)
    assert (np.diff(population.threshold.cost) <= 0).all()
    mixes = population.held(np.arange(9), "any").mixes(STEPS)
    assert population.threshold.wrong.shape[1] == len(mixes)


def test_draws(script):
    drawn, split = (script.Draws.of(kind, 3000, 3) for kind in ("drawn", "split"))
    assert drawn.rows.shape == split.rows.shape == (3, 1000)
    assert drawn.rest is None
    assert all(len(np.unique(rows)) < 1000 for rows in drawn.rows)
    for rows, rest in zip(split.rows, split.rest, strict=True):
        assert sorted([*rows, *rest]) == list(range(3000))


def test_one_walk_finds_what_the_ladder_promises(script, population):
    wishes = [(kind, population.at_most(kind, more)) for kind in script.KINDS for more in MORE]
    draws, certified = script.Draws.of("drawn", len(population.trace), 8), []
    for split, rows in enumerate(draws.rows):
        held = population.held(rows, f"any {split}")
        ladder = dataclasses.replace(population.ladder, held=held)
        found = script.promised(held, wishes)
        for (kind, at_most), each in zip(wishes, found, strict=True):
            ask = ladder.for_error if kind == "error" else ladder.for_drop
            promise = ask(at_most, confidence=0.95).promise
            assert each == (promise.certified, promise.mix)
            certified.append(promise.certified)
    assert 0 < sum(certified) < len(certified)


def test_a_mixture_is_judged_as_it_serves(script, population):
    draws = script.Draws.of("split", len(population.trace), 2)
    shares = set()
    for found in script.promise_ours(population, draws):
        for split, rest in enumerate(draws.rest):
            held = population.held(draws.rows[split], f"{NAME} split {split}")
            promise = make_promise(held, found.kind, found.at_most, 0.95)
            policy, test = population.ladder.mixture_for(promise), population.trace.take(rest)
            result = measure(policy.play(test), test, resamples=0)
            base = test.wrong()[:, -1].mean() if found.kind == "drop" else 0.0
            assert found.risk[split] == pytest.approx(result.error - base)
            assert found.certified[split] == promise.certified
            shares.add(policy.share)
    assert shares - {0.0, 1.0}, "no mixture was served: the test tests nothing"


# Rules.


def sample_of(rules, losses, level, splits=200, rows=500, seed=0):
    drawn = np.random.default_rng(seed).integers(0, len(losses), (splits, rows))
    sums = np.stack([losses[each].sum(axis=0) for each in drawn])
    return rules.Sample(losses, drawn, sums, level)


@pytest.fixture(scope="module")
def losses():
    """Settings that lose 5%, 10%, 15%, 20% of 1,000 rows."""
    return np.stack([np.arange(1000) % 20 < lost for lost in (1, 2, 3, 4)], axis=1).astype(float)


@pytest.mark.parametrize("test", ["exact", "betting"])
def test_a_test_passes_what_holds_and_seldom_what_does_not(rules, losses, test):
    passes, every = getattr(rules, test), np.arange(200)
    sample = sample_of(rules, losses, level=0.15)
    shares = [passes(sample, setting, every, 0.05).mean() for setting in range(4)]
    assert shares[0] == 1.0
    assert shares[1] > 0.7
    assert shares[2] <= 0.1  # 5% is allowed; 10% of 200 has a chance of 0.2% then
    assert shares[3] == 0.0


def test_the_exact_test_is_the_library_s(rules, losses):
    sample = sample_of(rules, losses, level=0.12)
    passed = rules.exact(sample, 1, np.arange(200), 0.05)
    expected = [binomial_p(int(wrong), 500, 0.12) <= 0.05 for wrong in sample.sums[:, 1]]
    assert 0 < sum(expected) < 200
    assert passed.tolist() == expected


def test_sequences_stop_at_the_first_failure_and_corrections_do_not(rules, losses):
    crossed = losses[:, [0, 3, 1]]  # a bad setting stands before a good one
    sample = sample_of(rules, crossed, level=0.15)
    assert set(rules.in_sequence(sample, rules.exact, 0.05)) == {0}
    assert 2 in rules.corrected(sample, rules.exact, 0.05)
    assert 1 not in rules.corrected(sample, rules.exact, 0.05)
    assert set(rules.in_sequence(sample_of(rules, crossed, 0.01), rules.exact, 0.05)) == {-1}


def test_conformal_risk_control_counts_one_row_more(rules, losses):
    one_row = rules.Sample(losses, np.zeros((1, 9), int), np.array([[0.0, 1.0, 2.0]]), 0.2)
    assert rules.crc(one_row).tolist() == [1]  # 2 of 10 are at most 0.2, 3 of 10 are not
    strict = rules.Sample(one_row.losses, one_row.rows, one_row.sums, 0.09)
    assert rules.crc(strict).tolist() == [-1]


# What comes of it.


def cost(outcomes, kind, rule, settings):
    return np.array([
        each.certified_cost
        for each in outcomes
        if (each.kind, each.rule, each.settings, each.design) == (kind, rule, settings, "drawn")
    ])  # fmt: skip


def test_ours_keeps_its_promises_and_promises_something(script, outcomes):
    mine = [each for each in outcomes if each.rule == script.OURS]
    assert len(mine) == 12  # two kinds, three sizes, two designs
    for each in mine:
        assert each.broken <= 5, each.line()  # of 20 at 5% each: more has a chance of 0.03%
    drawn = [each.broken for each in mine if each.design == "drawn"]
    most = 0.05 + 3 * (0.05 * 0.95 / (len(drawn) * SPLITS)) ** 0.5
    assert sum(drawn) / (len(drawn) * SPLITS) <= most
    for kind in script.KINDS:
        wide = [each for each in mine if (each.kind, each.more) == (kind, 0.05)]
        assert all(each.certified.mean() > 0.9 for each in wide)
        assert all(each.cost.mean() < 0.5 for each in wide)


@pytest.mark.parametrize("settings", ["threshold", "corners of ours"])
def test_what_promises_less_costs_less(outcomes, settings):
    averages, sequence, bonferroni = (
        cost(outcomes, "error", rule, settings)
        for rule in ("CRC", "LTT, in sequence", "LTT, Bonferroni")
    )
    assert len(averages) == 3
    assert (averages < sequence).all()
    assert (sequence < bonferroni).all()
    broken = {
        rule: sum(e.broken for e in outcomes if (e.rule, e.settings) == (rule, settings))
        for rule in ("CRC", "LTT, Bonferroni")
    }
    assert broken["CRC"] > 10 * max(broken["LTT, Bonferroni"], 1)


def test_mixes_certify_no_less_than_the_corners_between_which_they_lie(outcomes):
    mixes = cost(outcomes, "error", "ttamer", "mixes of ours")
    corners = cost(outcomes, "error", "LTT, in sequence", "corners of ours")
    assert mixes.mean() < corners.mean()


def test_the_last_node_drops_by_nothing(outcomes):
    found = [each for each in outcomes if each.settings == "last, then corners"]
    assert {each.kind for each in found} == {"drop"}
    sequence = [each for each in found if each.rule.startswith("UCB")]
    assert sequence
    assert all(each.certified.all() for each in sequence)


def test_intervals(script):
    assert script.interval(0, 1000) == pytest.approx((0.0, 0.003682), abs=1e-6)
    assert script.interval(50, 1000) == pytest.approx((0.037335, 0.065391), abs=1e-5)


# Budgets.


def test_budgets_come_close_and_noise_is_named(script):
    spent = script.measure_budgets("minilm-imdb", datasets.load("minilm-imdb"), 0.4, fits=1)
    assert len(spent) == 10
    assert all(0 < each.noise < 0.02 for each in spent[1:])
    assert spent[0].off == pytest.approx(0.0, abs=1e-9)  # the first exit always costs the same
    assert max(abs(each.off) for each in spent) < 0.05
    assert spent[0].budget < spent[-1].budget < 1


def test_the_command_prints_and_writes(script, capsys, tmp_path):
    script.main(
        ["--traces", NAME, "--splits", "2", "--fits", "1", "--json", str(tmp_path / "all.json")]
    )
    text = capsys.readouterr().out
    assert text.count("error at most") == 3
    assert text.count("drop at most") == 3
    assert "means over 3 promises" in text
    lines = json.loads((tmp_path / "all.json").read_text("utf-8"))
    assert {line["design"] for line in lines["promises"]} == {"drawn", "split"}
    assert {line["rule"] for line in lines["promises"]} > {"ttamer", "CRC", "UCB"}
    assert {line["trace"] for line in lines["budgets"]} == {NAME}
