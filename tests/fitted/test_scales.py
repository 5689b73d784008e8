"""Confidences on another scale than in the fit are warned of, and others are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support import experiment_traces
from support.traces import answering_trace
from ttamer import datasets
from ttamer.cli import main
from ttamer.errors import TraceWarning
from ttamer.fitted.quantiser import Quantiser

SCALES = {
    "percent": lambda confidence: 100 * confidence,
    "logits": lambda confidence: 3 * np.log((confidence + 1e-4) / (1 - confidence + 1e-4)),
    "log probabilities": lambda confidence: 20 * np.log(confidence + 1e-4),
}


def on_scale(trace: tt.Trace, scale: str) -> tt.Trace:
    return dataclasses.replace(trace, confidence=SCALES[scale](trace.confidence))


@pytest.fixture(scope="module", params=["full", "calibrated"])
def ladder(request):
    return tt.fit(answering_trace(400), belief=request.param, tradeoffs=[0.5, 0.9], hold_out=0.2)


@pytest.fixture(scope="module")
def new():
    return answering_trace(300, seed=1)


@pytest.mark.parametrize("scale", SCALES)
def test_a_replay_on_another_scale_warns(ladder, new, scale):
    with pytest.warns(TraceWarning, match="confidences are on another scale than in the fit"):
        tt.evaluate(ladder.at(0.9), on_scale(new, scale), resamples=0)


def test_the_warning_names_the_node_both_ranges_and_what_to_do(ladder, new):
    confidence = new.confidence.copy()
    confidence[:, 1] *= 100
    with pytest.warns(TraceWarning) as caught:
        ladder.for_budget(15.0).play(dataclasses.replace(new, confidence=confidence))
    [text] = [str(each.message) for each in caught]
    values = confidence[:, 1]
    assert f"('middle': {values.min():.4g} to {values.max():.4g}, in the fit about 0." in text
    assert "small" not in text
    assert text.endswith("on the scale of the fit, or fit again to rows like these")


def test_the_warning_shows_the_ranges_of_two_nodes_at_most(ladder, new):
    with pytest.warns(TraceWarning, match=r"'small': .*; 'middle': [^;]*; and 1 more\)"):
        ladder.at(0.9).play(on_scale(new, "percent"))


def test_promises_and_gaps_on_another_scale_warn(ladder, new):
    percent = on_scale(new, "percent")
    for test in (
        lambda: ladder.for_error(0.5, on=percent),
        lambda: ladder.for_drop(0.5, on=percent),
        lambda: ladder.with_holdout(percent),
    ):
        with pytest.warns(TraceWarning, match="another scale"):
            test()


def test_a_gap_on_another_scale_warns(new):
    ladder = tt.fit(answering_trace(400), tradeoffs=[0.5, 0.9])
    with pytest.warns(TraceWarning, match="another scale"):
        ladder.gap(tradeoff=0.9, on=on_scale(new, "percent"))


def test_probabilities_are_warned_of_where_the_fit_had_percent(new):
    trace = answering_trace(400)
    high = dataclasses.replace(trace, confidence=50 + 50 * trace.confidence)
    ladder = tt.fit(high, belief="calibrated", tradeoffs=[0.5])
    with pytest.warns(TraceWarning, match="'small': 0.* to .*, in the fit about"):
        ladder.at(0.5).play(new)


def test_commands_print_the_warning_once(ladder, new, tmp_path, capsys):
    policy, log = str(tmp_path / "policy.ttamer"), str(tmp_path / "log.npz")
    tt.save(ladder, policy)
    on_scale(new, "percent").write(log)
    for command in (["evaluate", policy, log], ["certify", policy, log, "--error", "0.6"]):
        main(command)
        assert capsys.readouterr().err.count("another scale") == 1


@pytest.mark.parametrize("name", datasets.names())
@pytest.mark.parametrize("states", [2, 4, 128])
def test_the_parts_of_the_shipped_traces_are_on_one_scale(name, states):
    one, other = (datasets.load(name, part).confidence for part in ("fit", "test"))
    for method in ("quantile", "kmeans", "uniform"):
        few = Quantiser.fit(one[:300], states=states, method=method)
        assert few.rescaled(other) == []


@pytest.mark.parametrize("name", ["minilm-imdb-to-amazon", "vgg16-to-noise"])
def test_a_stream_that_drifts_stays_on_its_scale(name):
    stream = experiment_traces.stream(name)
    quantiser = Quantiser.fit(stream.fit.confidence, states=128, method="quantile")
    assert quantiser.rescaled(stream.rows.confidence[stream.shift :]) == []


def test_constant_confidences_and_no_rows_are_on_any_scale():
    constant = Quantiser.fit(np.full((50, 1), 0.5), states=8, method="quantile")
    assert constant.rescaled(np.full((50, 1), 70.0)) == []
    high = Quantiser.fit(np.linspace(0.9, 0.99, 50)[:, np.newaxis], states=8, method="quantile")
    assert high.rescaled(np.zeros((50, 1))) == []
    assert high.rescaled(np.empty((0, 1))) == []


def test_scores_without_bounds_may_be_larger_than_in_the_fit():
    scores = np.random.default_rng(0).normal(size=(2000, 1))
    for states, method in ((128, "quantile"), (4, "kmeans"), (2, "quantile")):
        quantiser = Quantiser.fit(scores[:1000], states=states, method=method)
        assert quantiser.rescaled(1.5 * scores[1000:] + 0.5) == []
