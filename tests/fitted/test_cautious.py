"""Cautious policies of a network's exits: what they decide, and what ``for_drop`` gains by them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import ttamer as tt
from ttamer import datasets
from ttamer.artefact.container import pack, write
from ttamer.artefact.files import _describe
from ttamer.fitted.promise import HeldOut, check_promise


@pytest.fixture(scope="module")
def rows():
    """Return rows to fit, rows to promise on, and rows to measure on."""
    trace = datasets.load("minilm-imdb")
    return trace.take(slice(1000)), trace.take(slice(1000, 2000)), trace.take(slice(2000, 5000))


@pytest.fixture(scope="module")
def ladder(rows):
    options = {"states": 16, "tradeoffs": [0.0, 0.5, 0.8, 0.9, 0.95, 0.98]}
    return tt.fit(rows[0], order="fixed", **options).with_holdout(rows[1])


def answers(policy, trace):
    played = policy.play(trace)
    return played.answer.tolist(), played.asked.tolist()


def test_the_last_one_returns_the_last_exit_and_the_others_cost_less(ladder, rows):
    cautious = ladder.cautious
    assert cautious.tradeoffs[-1] == 1
    assert not cautious.cuts[-1].any()
    played = ladder.rung(len(ladder) + len(cautious) - 1).play(rows[2])
    assert (played.answer == len(rows[2].names) - 1).all()
    assert played.asked.all()
    assert (np.diff(cautious.costs) > 0).all()
    wrong = rows[0].wrong()
    assert cautious.errors[-1] == wrong[:, -1].mean()


def test_what_is_counted_is_what_is_played(ladder, rows):
    wrong, each = rows[1].wrong(), np.arange(len(rows[1]))
    counted = ladder.held.cautious
    for number, (cheap, _) in enumerate(counted.pairs):
        played = ladder.rung(cheap).play(rows[1])
        errors = np.bincount(wrong[each, played.answer], minlength=2)
        assert counted.counts[number].sum(axis=(1, 2)).tolist() == errors.tolist()
        cost = tt.evaluate(ladder.rung(cheap), rows[0], resamples=0).cost
        assert ladder.cautious.costs[number] == pytest.approx(cost)


def test_once_asked_the_last_exit_answers(ladder, rows):
    last = len(rows[2].names) - 1
    played = ladder.rung(len(ladder) + 2).play(rows[2])
    reached = played.asked[:, last]
    assert 0 < reached.sum() < len(reached)
    assert (played.answer[reached] == last).all()


def test_sessions_and_files_decide_as_it_is_played(ladder, rows, tmp_path):
    policy, trace = ladder.for_drop(0.012), rows[2].take(slice(60))
    assert policy.promise.mix.cheap >= len(ladder)
    answer, asked = answers(policy, trace)
    for row in range(len(trace)):
        turn = policy.session(key=row)
        while (node := turn.next) is not None:
            column = trace.spec.index_of(node)
            text = trace.classes[trace.prediction[row, column]]
            turn.observe(confidence=trace.confidence[row, column], prediction=text)
        assert turn.answer == trace.names[answer[row]]
        assert len(turn.asked) == sum(asked[row])
    for number, saved in enumerate((policy, policy.cheap, ladder.with_promise(policy))):
        tt.save(saved, tmp_path / f"{number}.ttamer")
    mixture, one, again = (tt.load(tmp_path / f"{number}.ttamer") for number in range(3))
    assert answers(mixture, trace) == answers(policy, trace)
    assert answers(one, trace) == answers(policy.cheap, trace)
    assert again.for_drop(0.012).promise == policy.promise
    assert answers(again.mixture_for(again.promises[0]), trace) == answers(policy, trace)
    assert check_promise(policy.promise, HeldOut.of(again, rows[1])) == policy.promise


def test_no_explanation_contradicts_its_decision(ladder, rows):
    words = []
    for row in range(150):
        turn = ladder.rung(len(ladder) + 3).session()
        while (node := turn.next) is not None:
            column = rows[2].spec.index_of(node)
            text = rows[2].classes[rows[2].prediction[row, column]]
            turn.observe(confidence=rows[2].confidence[row, column], prediction=text)
            words.append(turn.explain().why)
    assert not [each for each in words if "saves -" in each or "costs -" in each]
    assert any("asking on" in each for each in words)


def test_a_drop_is_promised_more_cheaply_than_by_policies_that_recall(ladder, rows):
    without = dataclasses.replace(ladder, cautious=None).with_holdout(rows[1])
    for at_most in (0.01, 0.012):
        cautious, plain = ladder.for_drop(at_most), without.for_drop(at_most)
        assert cautious.promise.certified
        assert not plain.promise.certified or cautious.cost < plain.cost


def test_against_another_exit_the_policies_of_the_ladder_are_tested(ladder):
    promise = ladder.for_drop(0.05, against="layer3").promise
    assert promise.against == "layer3"
    assert promise.mix.expensive < len(ladder)
    assert ladder.for_error(0.3).promise.mix.expensive < len(ladder)


def test_a_number_that_no_policy_has_is_refused(ladder):
    with pytest.raises(tt.ArgumentError, match="no policy of number"):
        ladder.rung(len(ladder) + len(ladder.cautious))


def test_separate_models_and_the_target_last_have_none(rows):
    few = rows[0].take(slice(400))
    spec = dataclasses.replace(few.spec, target="last")
    assert tt.fit(few.with_spec(spec), belief="full", states=4, tradeoffs=[0.9]).cautious is None
    separate = datasets.load("langid", "fit").take(slice(300))
    assert tt.fit(separate, tradeoffs=[0.9]).cautious is None


FORGERIES = {
    "no thresholds": ("numbers and thresholds", lambda a: a.pop("record_cautious_cuts")),
    "no numbers": ("numbers and thresholds", lambda a: a.pop("record_cautious")),
    "a policy too few": (
        "three numbers",
        lambda a: a.update(record_cautious=a["record_cautious"][:, 1:].copy()),
    ),
    "a cost below 0": ("finite, from 0 up", lambda a: a["record_cautious"].__setitem__((2, 0), -1)),
    "half a state": ("must be whole", lambda a: a["record_cautious_cuts"].__setitem__((0, 0), 0.5)),
    "too many states": (
        "must be whole",
        lambda a: a["record_cautious_cuts"].__setitem__((0, 0), 99),
    ),
    "a last one that stops": (
        "must be whole",
        lambda a: a["record_cautious_cuts"].__setitem__((-1, 0), 1),
    ),
    "no counts": ("eight counts", lambda a: a.pop("record_held_cautious")),
    "a row too many": (
        "add up to the rows",
        lambda a: a["record_held_cautious"].__setitem__((0, 0), 1e6),
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused(ladder, name, tmp_path):
    says, change = FORGERIES[name]
    header, arrays = _describe(ladder, {})
    arrays = {key: array.copy() for key, array in arrays.items()}
    change(arrays)
    write(tmp_path / "forged.ttamer", pack(json.loads(json.dumps(header)), arrays))
    with pytest.raises(tt.ArtefactDamaged, match=says):
        tt.load(tmp_path / "forged.ttamer")
