"""A mistake in a log is found in memory as in files."""

from __future__ import annotations

import dataclasses
import re
import warnings

import numpy as np
import pytest

from support.traces import answering_trace, read_batches
from ttamer import CascadeSpec, Trace, TraceError, TraceWarning, collect, fit
from ttamer.cascade import CascadeNode
from ttamer.evaluation import frontier
from ttamer.trace.checks import check_for_fit

SPEC = CascadeSpec.of({"a": 1.0, "b": 2.0})


def arrays(label, prediction=("spam", "ham"), rows=4):
    return Trace.from_arrays(
        SPEC,
        np.linspace(0, 1, 2 * rows).reshape(rows, 2),
        prediction=[list(prediction)] * rows,
        label=[label] * rows,
    )


NO_MATCH = "no label is ever predicted by any node: labels are '1', predictions are 'spam', 'ham'"


def test_labels_that_no_prediction_matches_are_refused_in_memory():
    with pytest.raises(TraceError, match=f"the arrays: {NO_MATCH}"):
        arrays(1)
    with pytest.raises(TraceError, match="the replies: no label is ever predicted"):
        collect([0, 1], {"n": lambda _: ("spam", 1)}, labels=[1, 0], costs={"n": 1})
    coded = Trace(
        SPEC,
        np.ones((20, 2)),
        prediction=np.zeros((20, 2), np.int32),
        label=np.ones(20, np.int32),
        classes=("spam", "1"),
    )
    with pytest.raises(TraceError, match="the trace: no label is ever predicted"):
        fit(coded)


def test_one_shared_class_is_enough_and_correct_is_believed():
    assert len(arrays("spam")) == 4
    right = np.ones((1, 2), bool)
    assert len(Trace.from_arrays(SPEC, [[1, 1]], prediction=[["x", "x"]], label=[1], correct=right))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_classes_that_differ_in_white_space_are_warned_of(kind, tmp_path):
    message = "the classes 'ham ' and 'ham' differ only in white space, and count as two"
    with pytest.warns(TraceWarning, match=f"the arrays: {message}"):
        trace = arrays("ham", ("ham ", "ham"))
    with pytest.warns(TraceWarning, match=f"the replies: {message}"):
        collect([0], {"n": lambda _: ("ham", 1), "m": lambda _: ("ham ", 1)})
    path = tmp_path / f"log.{kind}"
    trace.write(path)
    with pytest.warns(TraceWarning, match=f"log.{kind}: {message}"):
        Trace.read(path)
    with pytest.warns(TraceWarning, match=message):
        list(read_batches(path, rows=2))


def test_one_class_with_white_space_or_a_point_is_no_mistake():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays(" ham", (" ham", "spam"))
        arrays("3.0", ("3.0", "3.5"))


def test_whole_numbers_with_a_point_in_some_columns_are_warned_of(tmp_path):
    path = tmp_path / "log.csv"  # as pandas writes a column of whole numbers with a missing one
    path.write_text(
        "a.confidence,a.prediction,b.confidence,b.prediction,label\n0.5,3.0,0.5,3,3\n0.5,,0.5,2,2\n"
    )
    message = "log.csv: the classes '3.0' and '3' are the same number, and count as two"
    with pytest.warns(TraceWarning, match=message):
        Trace.read(path, {"a": 1.0, "b": 2.0})


def logged(rows=200, *, confidence=None, cost=None, spec=SPEC, other="ham"):
    confidence = np.linspace(0.2, 1, rows) if confidence is None else confidence
    return Trace.from_arrays(
        spec,
        np.column_stack([confidence, confidence]),
        prediction=[["spam", "ham"], ["ham", other]] * (rows // 2),
        label=["spam", "ham"] * (rows // 2),
        cost=None if cost is None else np.tile(cost, (rows, 1)),
    )


TWO_SCALES = np.concatenate([np.linspace(0.1, 0.9, 100), np.linspace(20, 95, 100)])
TOKENS = CascadeSpec((CascadeNode("a", 1.0, options={"cost_per_token": 1.0}), SPEC.nodes[1]))


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (lambda: logged(other="Ham"), "the classes 'Ham' and 'ham' differ only in capitals"),
        (
            lambda: logged(cost=[1.0, 6.5]),
            "'b' have mean 6.5, .* is 2; correct the one that is out",
        ),
        (lambda: logged(cost=[1.0, 80.0]), "'b' have mean 80, .* is 2; write both in one unit"),
        (lambda: logged(cost=[1.0, 2.9]), None),
        (lambda: logged(40, cost=[1.0, 6.5]), "the trace has 40 rows; below 100"),
        (lambda: logged(cost=[9.0, 2.0], spec=TOKENS), None),
        (
            lambda: logged(confidence=TWO_SCALES),
            "'a' are on two scales: 100 from 0 to 1, and 100 a",
        ),
        (lambda: logged(confidence=np.linspace(1, 100, 200)), None),
        (lambda: logged(confidence=np.linspace(0.1, 9, 200)), None),
        (
            lambda: logged(spec=dataclasses.replace(SPEC, mistakes={"Spam": {"*": 2.0}})),
            "table of mistakes has 'Spam', which no row has",
        ),
    ],
)
def test_what_a_fit_warns_of(trace, says):
    texts = warned(trace)
    assert bool(texts) == bool(says)
    assert says is None or re.search(says, texts[0])


def warned(make, enough=100):
    """What a fit warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_for_fit(make(), enough)
    return [str(warning.message) for warning in caught]


def trace_of(rows, *, agreeing=0, right=1, target="label"):
    """Answers of two nodes that agree on some rows, and are right on some."""
    large = [f"large {row}" for row in range(rows)]
    small = [large[row] if row < agreeing else f"small {row}" for row in range(rows)]
    return Trace.from_arrays(
        dataclasses.replace(SPEC, target=target),
        np.random.default_rng(0).random((rows, 2)),
        prediction=list(zip(small, large, strict=True)),
        label=[large[row] if row < right else f"label {row}" for row in range(rows)],
    )


EMPTY = dataclasses.replace(SPEC, target="last"), np.ones((30, 2))


NO_TWO = "^no two nodes give the same answer on more than"


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (lambda: trace_of(100, agreeing=19, right=60), NO_TWO + r" 19.0% .*\('a' and 'b'\)[^|]*$"),
        (lambda: trace_of(100, agreeing=20, right=60), "^$"),
        (
            lambda: trace_of(100, agreeing=2, target="last"),
            NO_TWO + r".*compare in \[serve\][^|]*$",
        ),
        (
            lambda: trace_of(100, agreeing=50, right=49),
            "^every node is wrong .* 'a', on 51.0%[^|]*$",
        ),
        (lambda: trace_of(100, agreeing=50, right=50), "^$"),
        (lambda: trace_of(19), "^$"),
        (lambda: answering_trace(200), "^$"),
        (lambda: Trace(SPEC, np.ones((50, 2))), "^$"),
        # No answer agrees with no answer.
        (
            lambda: Trace.from_arrays(*EMPTY, prediction=[[None, None]] * 30),
            NO_TWO + " 0.0% of rows",
        ),
        (lambda: named(["chat", "chien"] * 20), "no answer of 'a' is the label .* 'chat', 'chien'"),
        (lambda: named(["chat", "dog"] * 20), "^$"),
        (lambda: named([None] * 40), NO_TWO + "[^|]*$"),
        (lambda: named(["chat", "chien"] * 20, correct=np.ones((40, 2), bool)), NO_TWO + "[^|]*$"),
    ],
)
def test_a_fit_warns_of_answers_that_hardly_ever_match(trace, says):
    assert re.search(says, " | ".join(text.partition(": ")[2] for text in warned(trace, 0)))


def named(answers, **fields):
    """One node answers with these classes, and the other is right."""
    label = ["cat", "dog"] * 20
    prediction = list(zip(answers, label, strict=True))
    return Trace.from_arrays(SPEC, np.ones((40, 2)), prediction=prediction, label=label, **fields)


def test_a_fit_to_few_rows_warns():
    rng = np.random.default_rng(0)

    def rows(count):
        return Trace(SPEC, rng.random((count, 2)), correct=rng.random((count, 2)) < 0.5)

    with pytest.warns(
        TraceWarning, match="the trace has 99 rows; below 100 the error and cost"
    ) as found:
        fit(rows(99), belief="markov")
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(rows(100), belief="markov")


def test_a_frontier_on_the_rows_fitted_to_is_reported():
    rng = np.random.default_rng(0)
    trace = Trace(SPEC, rng.random((40, 2)), correct=rng.random((40, 2)) < 0.5)
    families = ["threshold", "always-best"]
    same = frontier(trace, trace.take(slice(None)), families=families, resamples=0)
    assert same.same_rows
    assert same.to_dict()["same_rows"]
    other = frontier(*trace.split(0.5, 0), families=families, resamples=0)
    assert not other.same_rows
    assert "same_rows" not in other.to_dict()
