"""The recommendation is computed: it says who wins, and says so too when it is not us."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import Frontier, Point, frontier
from ttamer.evaluation.results import RowBootstrap, measure
from ttamer.fitting.replay import Played
from ttamer.reporting.recommendation import recommend, resampled_savings
from ttamer.trace.trace import Trace

ROWS = 1000


def two_models(kind: str = "models", costs: tuple[float, float] = (1.0, 10.0)) -> Trace:
    """The small one is wrong on rows 0 to 299, the large one on rows 0 to 99."""
    row = np.arange(ROWS)
    correct = np.column_stack([row >= 300, row >= 100])
    spec = CascadeSpec.of({"small": costs[0], "large": costs[1]}, kind=kind)
    return Trace(spec, np.full((ROWS, 2), 0.5), correct=correct)


def asking_large(rows: range | list[int]) -> Played:
    """Ask the small one always, and the large one on some rows, where it answers."""
    asked = np.column_stack([np.ones(ROWS, bool), np.isin(np.arange(ROWS), rows)])
    answer = asked[:, 1].astype(np.intp)
    return Played(answer, asked, answer)


def made(trace: Trace, families: dict[str, list[range | list[int]]]) -> Frontier:
    """A frontier whose settings ask the large model on given rows."""
    points = [
        pointed(name, asking_large(rows), trace, tradeoff=0.5 + i / 100)
        for name, sets in families.items()
        for i, rows in enumerate(sets)
    ]
    base = frontier(trace, trace, families=["always-last"], resamples=0)
    return dataclasses.replace(base, points=tuple(points))


class Rule:
    """What can be served has sessions."""

    def session(self):
        """Decide for one input."""


def pointed(name: str, play: Played, trace: Trace, **knob: float) -> Point:
    return Point(name, knob, measure(play, trace, resamples=20), Rule(), play)


def advice_for(families: dict[str, list[range | list[int]]], **options):
    trace = two_models(**options)
    return recommend(made(trace, families))


AT = "At the accuracy of large alone, "
# The rows on which each family asks the large model; then outcome, sentence and notes.
SAID = {
    "ours is cheapest": (
        {"ttamer": [range(300)], "chain": [range(600)]},
        "wins",
        f"{AT}ttamer costs 60% less: use ttamer's policy at 4 per input (error 10.0%).",
        ["The next rule that can be served is chain: 30% less."],
    ),
    "a rival that saves nothing is not named": (
        {"ttamer": [range(300)], "always-last": [range(1000)]},
        "wins",
        f"{AT}ttamer costs 60% less: use ttamer's policy at 4 per input (error 10.0%).",
        [],
    ),
    "the oracle is no rival": (
        {"ttamer": [range(300)], "oracle": [range(100, 300)]},
        "wins",
        f"{AT}ttamer costs 60% less: use ttamer's policy at 4 per input (error 10.0%).",
        [],
    ),
    "ours loses": (
        {"ttamer": [range(600)], "chain": [range(300)]},
        "loses",
        f"{AT}chain costs 60% less and ttamer 30% less: use chain.",
        [],
    ),
    "the rows cannot tell them apart": (
        {"ttamer": [[*range(410)]], "chain": [[*range(300), *range(410, 515)]]},
        "ties",
        f"{AT}ttamer costs 49% less, level with chain (50% less): use ttamer's policy at 5.1 per "
        "input (error 10.0%).",
        [],
    ),
    "next to nothing is level even where it is sure": (
        {"ttamer": [range(309)], "chain": [range(300)]},
        "ties",
        f"{AT}ttamer costs 59% less, level with chain (60% less): use ttamer's policy at 4.09 per "
        "input (error 10.0%).",
        [],
    ),
    "ahead, and not surely": (
        {"ttamer": [[*range(405)]], "chain": [[*range(300), *range(410, 520)]]},
        "wins",
        f"{AT}ttamer costs 50% less: use ttamer's policy at 5.05 per input (error 10.0%).",
        [
            "The next rule that can be served is chain: 49% less; these rows cannot tell the two "
            "apart."
        ],
    ),
    "ours does not reach the reference": (
        {"ttamer": [range(200)], "chain": [range(300)]},
        "loses",
        f"{AT}chain costs 60% less and ttamer does not reach that: use chain.",
        [],
    ),
    "nothing is cheaper": (
        {"ttamer": [range(1000)], "chain": [range(1000)]},
        "nothing",
        f"{AT}nothing that can be served costs less: use large alone.",
        [],
    ),
    "nothing is cheaper, and ours does not reach it": (
        {"ttamer": [range(100)]},
        "nothing",
        f"{AT}nothing that can be served costs less: use large alone.",
        [],
    ),
    "two points more error are not worth 12% of the cost": (
        {"ttamer": [[*range(280), *range(400, 900)]]},
        "nothing",
        f"{AT}nothing that can be served costs less: use large alone.",
        [],
    ),
    "half a point is worth 60%": (
        {"ttamer": [range(296)], "chain": [range(990)]},
        "wins",
        "Within 0.5 points of the accuracy of large alone, ttamer costs 60% less: use ttamer's "
        "policy at 3.96 per input (error 10.4%).",
        ["At its full accuracy nothing that can be served costs less."],
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_the_sentence_says_who_wins_and_by_how_much(case):
    families, outcome, sentence, notes = SAID[case]
    advice = advice_for(families)
    ends = [note for note in advice.notes if note.startswith("The 95% interval of the saving: ")]
    assert len(ends) == (outcome != "nothing")
    assert (advice.outcome, advice.sentence) == (outcome, sentence)
    assert [*advice.notes] == ends + notes


def test_the_numbers_are_those_of_the_family_recommended():
    advice = advice_for({"ttamer": [range(300)], "chain": [range(600)]})
    assert advice.saving == pytest.approx(0.6)
    low, high = advice.saving_interval
    assert 0.5 < low < 0.6 < high < 0.7
    assert advice.asked == pytest.approx({"small": 1.0, "large": 0.3})
    advice = advice_for({"ttamer": [range(600)], "chain": [range(300)]})
    assert (advice.family, advice.saving) == ("chain", pytest.approx(0.6))
    advice = advice_for({"ttamer": [range(100)]})
    assert advice.saving is None
    assert advice.saving_interval == (-np.inf, -np.inf)
    assert advice_for({"ttamer": [range(296)], "chain": [range(990)]}).more_error == 0.005


def test_exits_are_compared_with_the_full_network():
    advice = advice_for({"ttamer": [range(300)]}, kind="exits")
    assert advice.sentence.startswith("At the accuracy of the full network, ttamer costs 64% less")


def test_two_settings_are_mixed_where_that_costs_less():
    front = made(two_models(), {"ttamer": [range(280), range(1000)]})
    advice = recommend(front)
    assert advice.more_error == 0.005
    assert advice.mix == (0, 1, pytest.approx(0.75))
    # The mixture costs and errs what the envelope says.
    assert advice.cost == pytest.approx(front.cost_at("ttamer", 0.005))
    assert advice.error == pytest.approx(front.reference.error + 0.005)
    assert "use ttamer's mixture of two policies at 9.2 per input (error 10.5%)." in advice.sentence
    mix = dataclasses.replace(advice, more_error=0.018).mix
    assert mix == (0, 1, pytest.approx(0.1))
    assert dataclasses.replace(advice, more_error=0.0).mix == (1, 1, 1)
    assert dataclasses.replace(advice, more_error=-0.1).mix == (1, 1, 1)  # the nearest there is


def test_one_node_has_nothing_to_choose():
    trace = Trace(CascadeSpec.of({"only": 2.0}), np.full((9, 1), 0.5), correct=np.eye(9, 1) < 1)
    play = Played(np.zeros(9, np.intp), np.ones((9, 1), bool), np.zeros(9, np.intp))
    base = frontier(trace, trace, families=["always-last"], resamples=0)
    advice = recommend(dataclasses.replace(base, points=(pointed("ttamer", play, trace),)))
    assert advice.sentence == "There is one node, only: it answers every input."
    assert (advice.outcome, advice.saving, advice.notes) == ("nothing", 0.0, ())


@pytest.mark.parametrize("small", [0.0, 1.0])
def test_where_the_reference_is_free_there_is_nothing_to_save(small):
    families = {"ttamer": [range(300)], "chain": [range(300)]}
    advice = advice_for(families, costs=(small, 0.0))
    assert advice.sentence == "Asking large costs nothing: there is nothing to save."
    assert (advice.outcome, advice.saving, advice.notes) == ("nothing", None, ())


def test_a_cheaper_rule_that_cannot_be_served_is_a_note():
    front = made(two_models(), {"ttamer": [range(600)], "chain": [range(300)]})
    measured = [dataclasses.replace(p, rule=object()) for p in front.of("chain")]
    front = dataclasses.replace(front, points=(*front.of("ttamer"), *measured))
    assert front.servable == ["ttamer"]
    advice = recommend(front)
    assert (advice.outcome, advice.family) == ("wins", "ttamer")
    assert "use ttamer's policy at 7 per input" in advice.sentence
    assert (
        advice.notes[-1] == "chain would cost 60% less; ttamer measures it and does not serve it."
    )


def test_a_frontier_without_our_policies_is_refused():
    with pytest.raises(ArgumentError, match="has none: it has chain; add the family 'ttamer'"):
        recommend(made(two_models(), {"chain": [range(300)]}))


def test_plain_values_are_plain():
    facts = advice_for({"ttamer": [range(300)]}).to_dict()
    assert (facts["against"], facts["family"], facts["budget"]) == ("large alone", "ttamer", None)
    assert (facts["cheap"], facts["expensive"]) == ({"tradeoff": 0.5}, {"tradeoff": 0.5})
    assert facts["share"] == 1.0


def test_a_policy_that_asks_one_node_is_named_as_that_node():
    trace = two_models(costs=(1.0, 10.0))
    asked = np.tile([False, True], (ROWS, 1))
    large = Played(np.ones(ROWS, np.intp), asked, np.ones(ROWS, np.intp))
    base = made(trace, {"chain": [range(1000)]})
    advice = recommend(
        dataclasses.replace(
            base,
            points=(pointed("ttamer", large, trace), *base.points),
            reference=dataclasses.replace(base.reference, cost=20.0),
        )
    )
    assert advice.sentence == (
        "At the accuracy of large alone, large alone costs 50% less: use large alone."
    )


@pytest.mark.parametrize("times", [1, 5])
def test_resampled_savings_spread_as_means_of_rows_do(times):
    # Many rows are drawn in groups: that must not change how far the means spread.
    trace = two_models()
    trace = trace.take(np.tile(np.arange(ROWS), times))
    rows = len(trace)
    assert (rows > RowBootstrap.max_blocks) == (times > 1)
    asked = np.column_stack([np.ones(rows, bool), np.tile(np.arange(ROWS) < 300, times)])
    play = Played(asked[:, 1].astype(np.intp), asked, asked[:, 1].astype(np.intp))
    base = frontier(trace, trace, families=["always-last"], resamples=0)
    front = dataclasses.replace(base, points=(pointed("ttamer", play, trace),))
    drawn = resampled_savings(front, ["ttamer"], 0.5, resamples=4000, seed=1)["ttamer"]
    expected = np.sqrt(0.3 * 0.7 / rows)  # of the share of rows on which the large one is asked
    assert drawn.mean() == pytest.approx(0.6, abs=4 * expected / np.sqrt(4000))
    assert drawn.std() == pytest.approx(expected, rel=0.1)
    assert np.isneginf(
        resampled_savings(front, ["ttamer"], -0.2, resamples=9, seed=1)["ttamer"]
    ).all()
