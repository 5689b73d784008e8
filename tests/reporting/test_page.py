"""The report: numbers, figures and words on one page, looked at in headless Chromium."""

import dataclasses
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from support.browser import headless
from support.traces import answering_trace, chain_trace
from ttamer import datasets
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import frontier
from ttamer.fitting.ladder import shown_error
from ttamer.reporting import recommend, report
from ttamer.reporting.figures import calibration_chart, frontier_chart
from ttamer.reporting.page import write_page

FAMILIES = ["ttamer", "threshold", "chain", "always-best", "oracle"]
FIGURES = ["answered", "calibration", "frontier"]


@pytest.fixture(scope="module")
def result():
    return frontier(answering_trace(1500), families=FAMILIES, resamples=30)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_page(result, folder / "page.html")
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "page.html").read_text("utf-8")


def test_the_page_says_what_was_computed(page, result):
    advice = recommend(result)
    text = html.unescape(page)
    assert advice.sentence in text
    for family in FAMILIES:
        assert shown_error(result.area(family), "error") in text
    assert "fetch(" not in page
    assert not re.findall(r'(?:src|href)="http', page)


def test_the_figures_are_beside_it(folder):
    files = [*(folder / "page_figures").iterdir()]
    assert {file.stem for file in files} == {*FIGURES}
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert all(file.stat().st_size > 3000 for file in files)


def test_each_mark_says_what_it_is(page, result):
    tips = [html.unescape(tip) for tip in re.findall(r'class="mark"><title>(.*?)</title>', page)]
    assert len(tips) == len(set(re.findall(r'id="(mark-[\d-]+)"', page)))
    best = min(point.result.error for point in result.of("ttamer"))
    assert any(f"{best:.2%}" in tip for tip in tips if tip.startswith("ttamer"))
    assert any("right on" in tip for tip in tips)


def test_the_policies_are_those_of_a_budget(page):
    budgets = [float(text) for text in re.findall(r"<code>budget = ([\d.]+)</code>", page)]
    assert len(budgets) >= 2
    assert budgets == sorted(budgets)


class Tags(HTMLParser):
    """Every tag that is opened."""

    def __init__(self):
        super().__init__()
        self.opened = []

    def handle_starttag(self, tag, attrs):
        self.opened.append((tag, dict(attrs)))


def test_names_from_outside_cannot_open_a_tag(tmp_path):
    trace = answering_trace(300)
    evil = dataclasses.replace(trace.spec, name="<script>alert(1)</script>")
    result = frontier(trace.with_spec(evil), families=["ttamer"], resamples=0)
    write_page(result, tmp_path / "p.html")
    tags = Tags()
    tags.feed((tmp_path / "p.html").read_text("utf-8"))
    assert [tag for tag, _ in tags.opened].count("script") == 1


def test_report_takes_one_trace(tmp_path):
    result = report(chain_trace(300), tmp_path / "r.html", families=["threshold"])
    assert result.families == ["ttamer", "threshold"]
    assert (result.fit_rows, len(result.test_trace)) == (150, 150)
    assert "the full network" in (tmp_path / "r.html").read_text("utf-8")
    with pytest.raises(ArgumentError, match="give a name that ends in") as caught:
        report(chain_trace(300), tmp_path / "r.png")
    assert caught.value.param == "path"


def test_figures_without_anything_in_them_are_left_out(tmp_path):
    trace = answering_trace(300)
    flat = dataclasses.replace(trace, confidence=np.zeros_like(trace.confidence))
    result = frontier(flat, families=["ttamer"], resamples=0)
    write_page(result, tmp_path / "page.html")
    names = {file.stem for file in (tmp_path / "page_figures").iterdir()}
    assert names <= {"frontier", "answered"}
    assert 'id="calibration"' not in (tmp_path / "page.html").read_text("utf-8")


def test_long_names_have_fewer_columns_in_the_legend():
    trace = answering_trace(300)
    names = {node.name: f"a long name of {node.name}" for node in trace.spec.nodes}
    nodes = [dataclasses.replace(node, name=names[node.name]) for node in trace.spec.nodes]
    long = dataclasses.replace(trace, spec=dataclasses.replace(trace.spec, nodes=tuple(nodes)))
    columns = [calibration_chart(rows).figure.legends[0]._ncols for rows in (trace, long)]
    assert columns == [3, 2]


def test_costs_are_logarithmic_where_most_settings_are_cheap():
    fast = datasets.load("langid", "fit").take(slice(400))
    for trace, scale in ((answering_trace(300), "linear"), (fast, "log")):
        chart = frontier_chart(frontier(trace, families=["ttamer"], resamples=0))
        assert chart.axes.get_xscale() == scale


PROBE = """<!doctype html><meta charset="utf-8"><body>%s<script>
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const mark = page.querySelector("#frontier .mark"), tip = page.getElementById("tip");
    const wanted = mark.dataset.tip, hidden = tip.hidden;
    mark.dispatchEvent(new PointerEvent("pointerenter", {clientX: 300, clientY: 300}));
    return {width: root.clientWidth, scroll: root.scrollWidth, hidden, wanted,
      shown: tip.textContent, right: tip.getBoundingClientRect().right,
      letters: Math.min(...[...page.querySelectorAll("svg text")]
        .map(text => text.getBoundingClientRect().height).filter(height => height > 0)),
      figures: [...page.querySelectorAll("figure")].map(figure => figure.id).sort()};
  });
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(seen)}));
});
</script></body>"""


@pytest.mark.browser
def test_in_a_browser_nothing_overflows_and_marks_show_their_numbers(page, tmp_path):
    chromium = headless(tmp_path / "profile", "the report")
    frame = '<iframe style="border:0;height:900px;width:%dpx" srcdoc="%s"></iframe>'
    frames = "".join(frame % (width, html.escape(page)) for width in (400, 1280))
    (tmp_path / "probe.html").write_text(PROBE % frames, encoding="utf-8")
    done = chromium((tmp_path / "probe.html").as_uri(), "--dump-dom")
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    for seen in json.loads(html.unescape(found[1])):
        assert seen["scroll"] <= seen["width"]
        assert seen["figures"] == FIGURES
        assert seen["letters"] >= 9
        assert seen["hidden"]
        assert seen["shown"] == seen["wanted"]
        assert seen["right"] <= seen["width"]
