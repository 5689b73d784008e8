"""An answer that is returned whatever it is: over kinds of fits, against every answer tried."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import ttamer as tt
from ttamer.drift.fallback import AskLast
from ttamer.errors import ObservationError
from ttamer.stats.logistic import sigmoid

UNSEEN = "a class that the fit has not seen"


def column_trace(rows: int = 1500) -> tt.Trace:
    """Three models; margins say what confidences do not, and nothing shows where the last errs."""
    generator = np.random.default_rng(3)
    skill = generator.normal([0.0, 0.5, 2.5], size=(rows, 3))
    wrong = generator.random((rows, 3)) < sigmoid(-2.0 * skill)
    wrong[:, 2] = generator.random(rows) < 0.05
    label = generator.integers(0, 3, rows)
    other = (label[:, np.newaxis] + generator.integers(1, 3, (rows, 3))) % 3
    return tt.Trace(
        tt.CascadeSpec.of({"small": 1.0, "middle": 3.0, "large": 9.0}, order="any"),
        np.round(sigmoid(2 * skill + generator.normal(size=skill.shape)), 1),
        prediction=np.where(wrong, other, label[:, np.newaxis]).astype(np.int32),
        label=label.astype(np.int32),
        classes=("x", "y", "z"),
        margin=skill + 0.5 * generator.normal(size=skill.shape),
    )


COLUMNS = column_trace()
PLAIN = dataclasses.replace(COLUMNS, margin=None, entropy=None, latency=None)
FITS = {
    "full": (PLAIN, {"belief": "full"}),
    "columns": (COLUMNS, {"belief": "full"}),
    "last": (
        PLAIN.with_spec(dataclasses.replace(PLAIN.spec, target="last")),
        {"belief": "full"},
    ),
    "calibrated": (PLAIN, {"belief": "calibrated", "states": 6, "order": "skip"}),
}


def told(policy, answers):
    """Return a session that has these answers."""
    turn = policy.session()
    for confidence, prediction, margin in answers:
        turn.observe(confidence=confidence, prediction=prediction, margin=margin)
    return turn


def is_returned(policy, answers, new) -> bool:
    """Whether a new answer, or an equal one, is the best after it."""
    turn = told(policy, [*answers, new])
    by = turn.asked.index(turn.answer)
    equal = by < len(answers) and new[1] is not None and answers[by][1] == new[1]
    return by == len(answers) or equal


@pytest.mark.parametrize("kind", FITS)
def test_no_answer_changes_what_is_preferred_for_certain(kind):
    trace, options = FITS[kind]
    ladder = tt.fit(trace, tradeoffs=[0.97, 1.0], **options)
    assert bool(ladder.fitted.reads) == (kind == "columns")
    generator = np.random.default_rng(0)
    texts = [*trace.classes, UNSEEN, None]
    certain = []
    for policy, _ in itertools.product(ladder, range(25)):
        row = int(generator.integers(len(trace)))
        turn, answers = policy.session(), []
        while (name := turn.next) is not None:
            v = trace.spec.index_of(name)
            if answers:
                certain.append(turn.prefers_next())
                if certain[-1]:
                    confidences = [*generator.choice(trace.confidence[:, v], 4), -9.0, 9.0, np.nan]
                    margins = [np.nan, -9.0, 9.0, *generator.normal(size=2)]
                    for new in itertools.product(confidences, texts, margins):
                        assert is_returned(policy, answers, new)
            else:
                assert turn.prefers_next()
            code = int(trace.prediction[row, v])
            margin = trace.extras["margin"][row, v] if "margin" in trace.extras else np.nan
            answers.append((float(trace.confidence[row, v]), trace.classes[code], float(margin)))
            turn = told(policy, answers)
        with pytest.raises(ObservationError):
            turn.prefers_next()
    assert len(certain) > 10
    assert set(certain) == {True, False}


def test_after_failures_the_only_answer_is_preferred_and_a_cap_changes_nothing():
    ladder = tt.fit(PLAIN, tradeoffs=[1.0], belief="full")
    turn = ladder[0].session(max_cost=100.0)
    turn.fail()
    assert turn.prefers_next()
    last = AskLast(ladder.spec).session()
    assert last.prefers_next()
    last.observe(confidence=0.5)
    assert not last.prefers_next()


def test_the_range_of_log_odds_is_that_of_all_answers():
    fitted = tt.fit(COLUMNS, tradeoffs=[1.0], belief="full").fitted
    scorer, belief = fitted.scorer, fitted.belief
    assert belief.extras
    for v, own in belief.extras.items():
        sure = [-9.0, *belief.bounds[v]]
        columns = list(itertools.product(*([-99.0, *bounds] for bounds in own.bounds)))
        found = [scorer.odds(v, each, column) for each in sure for column in columns]
        found += [scorer.odds(v, each) for each in sure]
        low, high = scorer.range_of(v)
        assert low <= min(found)
        assert high >= max(found)
