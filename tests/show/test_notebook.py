"""What notebooks show of an object: escaped HTML in the colours of the page, and drawings."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET  # our own drawings

import numpy as np
import pytest

import ttamer as tt
import ttamer.reporting
from ttamer.runtime import batched
from ttamer.show.curves import draw_curves

SMALL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def trace():
    generator = np.random.default_rng(0)
    sure = generator.random((400, 2))
    right = generator.random((400, 2)) < 0.5 + 0.5 * sure
    spec = tt.CascadeSpec.of({SMALL: 1.0, "large & slow": 9.0})
    label = generator.integers(0, 3, 400)
    other = (label[:, None] + 1) % 3
    return tt.Trace(
        spec,
        sure,
        prediction=np.where(right, label[:, None], other),
        label=label,
        classes=("a", "<b>", "c"),
    )


@pytest.fixture(scope="module")
def ladder(trace):
    return tt.fit(trace, belief="markov", states=4)


@pytest.fixture(scope="module")
def shown(trace, ladder):
    policy = ladder.for_budget(5.0)
    turn = policy.session()
    turn.observe(confidence=0.3, prediction="<b>")
    nodes = dict.fromkeys(trace.names, lambda text: (text, 0.5))
    outcome = tt.Cascade(policy, nodes).run("<b>")
    many = {name: batched(lambda texts: [(t, 0.5) for t in texts]) for name in trace.names}
    families = ["threshold", "always-best", "always-last"]
    solved = tt.Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]], names=[SMALL])
    return {
        "trace": trace,
        "cascade": trace.spec,
        "ladder": ladder,
        "session": turn,
        "outcome": outcome,
        "batch outcome": tt.Cascade(policy, many).run_batch(["<b>"] * 3),
        "frontier": tt.frontier(trace, trace, families=families, resamples=0),
        "result": tt.evaluate(policy, trace, resamples=10),
        "solved policy": tt.solve(solved, 0.5),
        "solved ladder": tt.solve_ladder(solved, [0, 0.5, 1]),
    }


KINDS = ("trace", "ladder", "session", "outcome")
KINDS += ("batch outcome", "frontier", "result", "solved policy", "solved ladder")
DRAWN = ("session", "outcome", "solved policy")
CURVES = ("ladder", "frontier")


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_shown_as_escaped_html_in_the_colours_of_the_page(shown, kind):
    page = shown[kind]._repr_html_()
    assert "<script" not in page
    assert "<b>" not in page
    root = ET.fromstring(page)  # noqa: S314 - our own
    assert root.tag.endswith(("div", "svg"))
    for each in root.iter("td"):
        assert "color" not in each.get("style", "").replace("border-color", "")


@pytest.mark.parametrize("kind", DRAWN)
def test_a_drawing_is_svg_and_is_written_to_a_file(shown, kind, tmp_path):
    drawing = shown[kind].plot(tmp_path / "drawing.svg")
    assert (tmp_path / "drawing.svg").read_text("utf-8") == drawing
    assert ET.fromstring(drawing).tag.endswith("svg")  # noqa: S314 - our own
    assert drawing._repr_html_() == drawing
    assert "<script" not in drawing


def test_the_table_of_a_trace_has_what_is_known(trace):
    page = trace._repr_html_()
    right = 1 - trace.loss[:, 1].mean()
    assert f"{right:.1%}" in page
    unlabelled = tt.Trace(trace.spec, trace.confidence)
    assert "mean confidence" in unlabelled._repr_html_()
    assert tt.Trace(trace.spec, np.empty((0, 2)))._repr_html_()


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("kind", CURVES)
def test_curves_are_a_figure_of_matplotlib_and_are_written_to_a_file(shown, kind, tmp_path):
    figure = shown[kind].plot(tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text("utf-8")
    assert "<script" not in (tmp_path / "curves.svg").read_text("utf-8")
    assert len(figure.axes[0].lines) == len(legend(figure)) > 0


def test_the_plot_of_a_ladder_has_each_node_alone(ladder):
    assert legend(ladder.plot()) == ["policies", SMALL, "large & slow"]


def test_names_are_drawn_as_they_stand_and_wide_costs_are_logarithmic():
    marks = {"_$x^2$": (5.0, 0.2)}
    figure = draw_curves({"wide": ([5000.0, 1.0], [0.1, 0.2])}, "cost", "error", marks=marks)
    assert legend(figure) == ["wide", " _$x^2$"]
    assert figure.axes[0].get_xscale() == "log"
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1.0, 5000.0]
    assert draw_curves({}, "x", "y").axes[0].get_xscale() == "linear"


def test_losses_are_shown_where_answers_have_them(trace):
    lost = np.random.default_rng(1).random((400, 2)) * 3
    graded = tt.Trace(trace.spec, trace.confidence, raw_loss=lost)
    assert "mean loss" in graded._repr_html_()
    ladder = tt.fit(graded, belief="markov", states=4)
    assert ladder.plot().axes[0].get_ylabel() == "mean loss"
    families = ["threshold", "always-best"]
    found = tt.frontier(graded, graded, families=families, resamples=0)._repr_html_()
    assert "its mean loss" in found
    assert "mean loss over all costs" in found


def test_a_result_shows_its_error_and_cost_with_intervals(shown):
    result = shown["result"]
    page = result._repr_html_()
    low, high = result.error_interval
    assert f"error {result.error:.2%}, 95% interval {low:.2%} to {high:.2%}" in page
    timed = dataclasses.replace(result, latency=2.0, latency_p95=5.0)
    assert "latency 2 in the mean, 95% within 5" in timed._repr_html_()


def test_the_repr_of_an_object_is_short(shown, trace):
    front = tt.frontier(trace, trace, families=["ttamer"], resamples=0)
    many = tt.CascadeSpec.of({f"a model with a name {k}": 1.0 for k in range(40)})
    advice = tt.reporting.recommend(front, resamples=10)
    for item in (*shown.values(), many, advice):
        assert len(repr(item)) < 400
