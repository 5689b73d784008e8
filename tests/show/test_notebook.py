"""What notebooks show of an object: escaped HTML in the colours of the page, and drawings."""

from __future__ import annotations

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET  # our own drawings

import numpy as np
import pytest

import ttamer as tt
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
        "policy": ladder[20],
        "mixture": policy,
        "session": turn,
        "explanation": turn.explain(),
        "outcome": outcome,
        "batch outcome": tt.Cascade(policy, many).run_batch(["<b>"] * 3),
        "frontier": tt.frontier(trace, trace, families=families, ladder=None, resamples=0),
        "result": tt.evaluate(policy, trace, resamples=10),
        "solved policy": tt.solve(solved, 0.5),
        "solved ladder": tt.solve_ladder(solved, [0, 0.5, 1]),
    }


KINDS = ("trace", "cascade", "ladder", "policy", "mixture", "session", "explanation", "outcome")
KINDS += ("batch outcome", "frontier", "result", "solved policy", "solved ladder")
DRAWN = ("trace", "ladder", "session", "outcome", "frontier", "solved policy", "solved ladder")


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


def test_the_table_of_a_cascade_has_what_its_nodes_have():
    plain = tt.CascadeSpec.of({"a": 1.0, "b": 2.5})._repr_html_()
    assert ">2.5<" in plain
    assert "after" not in plain
    exits = tt.CascadeSpec.of({"a": 1.0, "b": 2.5}, kind="exits", reach={"a": 0.75})
    assert ">0.75<" in exits._repr_html_()
    assert "costs in ms" in tt.CascadeSpec.of({"a": 1.0}, unit="ms")._repr_html_()
    text = "[[node]]\nname = 'a'\ncost = 1\n[[node]]\nname = 'b'\ncost = 2\nafter = 'a'"
    assert ">after<" in tt.CascadeSpec.from_toml(text)._repr_html_()


def test_the_plot_of_a_ladder_has_each_node_alone(ladder):
    assert "large &amp; slow alone" in ladder.plot()


def test_names_of_marks_that_are_close_do_not_cover_each_other():
    marks = {f"node {k}": (5.0 + 0.01 * k, 0.2) for k in range(4)}
    drawing = draw_curves({"ours": ([1.0, 9.0], [0.3, 0.1])}, "cost", "error", marks=marks)
    named = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">node', drawing)
    places = [(float(x), float(y)) for x, y in named]
    assert len(places) == 4
    for (x, y), (other, below) in itertools.combinations(places, 2):
        assert abs(y - below) > 13 or abs(x - other) > 40


def test_ticks_that_differ_have_labels_that_differ():
    drawing = draw_curves({"ours": ([1.0, 2.0], [0.104, 0.13])}, "cost", "error")
    labels = re.findall(r'text-anchor="end">([^<]*%)</text>', drawing)
    assert len(labels) > 3
    assert len(set(labels)) == len(labels)


def test_a_plot_without_points_is_empty():
    from ttamer.show.curves import draw_curves

    assert draw_curves({}, "x", "y").startswith("<svg")
    assert "circle" in draw_curves({"one": ([5.0], [0.2])}, "x", "y")
    assert ">1,000<" in draw_curves({"wide": ([1.0, 5000.0], [0.2, 0.1])}, "x", "y")


def test_losses_are_shown_where_answers_have_them(trace):
    lost = np.random.default_rng(1).random((400, 2)) * 3
    graded = tt.Trace(trace.spec, trace.confidence, raw_loss=lost)
    assert "mean loss" in graded._repr_html_()
    assert "mean loss" in graded.plot()
    ladder = tt.fit(graded, belief="markov", states=4)
    assert "mean loss" in ladder.plot()
    families = ["threshold", "always-best"]
    found = tt.frontier(graded, graded, families=families, resamples=0)._repr_html_()
    assert "mean loss, all costs" in found
    assert "mean loss of" in found


def test_a_result_shows_its_error_and_cost_with_intervals(shown):
    result = shown["result"]
    page = result._repr_html_()
    low, high = result.error_interval
    assert f"error {result.error:.2%}, 95% interval {low:.2%} to {high:.2%}" in page
    timed = dataclasses.replace(result, latency=2.0, latency_p95=5.0)
    assert "latency 2 in the mean, 95% within 5" in timed._repr_html_()
