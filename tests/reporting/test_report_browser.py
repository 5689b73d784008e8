"""The report, looked at in headless Chromium."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

from support.browser import headless
from support.reports import NAMES, SOME, measured
from support.traces import answering_trace
from ttamer.reporting.recommendation import recommend
from ttamer.reporting.report import write_report
from ttamer.stats.envelope import lower_envelope

if TYPE_CHECKING:
    import subprocess


@pytest.fixture(scope="module")
def case():
    """A frontier of ten families, its ladder and its test rows."""
    return measured(answering_trace(4200, order="skip"), SOME)


@pytest.fixture(scope="module")
def written(case, tmp_path_factory):
    """The paths of a report on it."""
    return write_report(*case, tmp_path_factory.mktemp("report") / "page.html")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Run headless Chromium on some address; return its output and messages."""
    return headless(tmp_path_factory.mktemp("profile"), "the report")


PROBE = """<!doctype html><meta charset="utf-8"><body>%s<script>
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const sizes = [...page.querySelectorAll("figure")].map(figure => ({
      name: figure.id,
      shown: [...figure.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect())
        .map(box => [box.width, box.height]).filter(size => size[0] * size[1] > 0),
      label: [...figure.querySelectorAll("svg")].every(svg => svg.getAttribute("aria-label")),
      letters: Math.min(...[...figure.querySelectorAll("svg text")]
        .map(text => text.getBoundingClientRect()).filter(box => box.height > 0)
        .map(box => Math.max(box.height, 0))),
    }));
    const beyond = [...page.querySelectorAll("body *")].filter(element => {
      const box = element.getBoundingClientRect();
      return box.width > 0 && !element.closest("svg *") && box.right > root.clientWidth + 1;
    }).map(element => element.tagName);
    const points = [...page.querySelectorAll("a.point")].filter(point =>
      point.getBoundingClientRect().width > 0);
    const tip = page.getElementById("tip"), hidden = tip.hidden;
    points[0].dispatchEvent(new PointerEvent("pointerenter"));
    const box = tip.getBoundingClientRect();
    const hover = {hidden, text: tip.hidden ? "" : tip.textContent,
      left: box.left, right: box.right};
    points[0].dispatchEvent(new PointerEvent("pointerleave"));
    points[0].dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
    const picked = {tip: page.querySelector("#picked p").textContent, gone: tip.hidden,
      code: page.querySelector("#picked code").textContent, points: points.length,
      rows: page.querySelectorAll("tr.picked").length, hash: frame.contentWindow.location.hash};
    const asked = frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name);
    return {width: root.clientWidth, scroll: root.scrollWidth, sizes, beyond, asked, hover, picked,
      sentence: page.querySelector("h1").textContent};
  });
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(seen)}));
});
</script></body>"""


def looked_at(chromium, page: str, folder, widths=(400, 1280)) -> list[dict]:
    """Lay a page out at some widths and measure it."""
    frame = '<iframe style="border:0;height:900px;width:%dpx" srcdoc="%s"></iframe>'
    frames = "".join(frame % (width, html.escape(page)) for width in widths)
    (folder / "probe.html").write_text(PROBE % frames, encoding="utf-8")
    done = chromium((folder / "probe.html").as_uri(), "--dump-dom")
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1]))


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The messages on the console of a page."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_in_a_browser_every_figure_is_seen_and_nothing_overflows(chromium, case, written, tmp_path):
    page = written[0].read_text("utf-8")
    sentence = recommend(case[0], case[2]).sentence
    for seen in looked_at(chromium, page, tmp_path):
        assert seen["sentence"] == sentence
        assert seen["scroll"] <= seen["width"]
        assert seen["beyond"] == []
        assert seen["asked"] == []
        assert sorted(figure["name"] for figure in seen["sizes"]) == NAMES
        for figure in seen["sizes"]:
            assert len(figure["shown"]) == 1, figure
            width, height = figure["shown"][0]
            assert 250 < width < seen["width"]
            assert height > 100
            assert figure["label"]
            least = 12 if figure["name"] == "frontier" else 7
            assert figure["letters"] > least, figure  # the least line of text, in pixels


def test_in_a_browser_hovering_shows_numbers_and_a_click_picks_a_policy(
    chromium, case, written, tmp_path
):
    page = written[0].read_text("utf-8")
    kept = lower_envelope(*case[0].curve("ttamer")).tolist()
    errors = [f"error {case[0].of('ttamer')[point].result.error:.1%}" for point in kept]
    for seen in looked_at(chromium, page, tmp_path):
        hover, picked = seen["hover"], seen["picked"]
        assert hover["hidden"]
        assert any(error in hover["text"] for error in errors)
        assert 0 <= hover["left"] < hover["right"] <= seen["width"]
        assert picked["tip"] == hover["text"]
        assert picked["gone"]
        assert picked["code"].startswith('tt.load("policy.ttamer").for_budget(')
        assert (picked["rows"], picked["hash"]) == (1, "")
        assert 2 <= picked["points"] <= len(kept)  # those within the range shown


def test_in_a_browser_the_page_complains_of_nothing_and_looks_right(chromium, written, tmp_path):
    shot = tmp_path / "shot.png"
    address = written[0].as_uri()
    assert complaints(chromium(address, f"--screenshot={shot}", "--window-size=1280,2400")) == []
    pixels = (255 * imread(shot)[..., :3]).round().astype(int)
    assert pixels.shape[:2] == (2400, 1280)
    for colour in ((27, 127, 121), (242, 165, 65)):  # of style.py: stop and go on
        assert (np.abs(pixels - colour).max(axis=2) <= 2).sum() > 2000


def test_the_browser_checks_would_notice(chromium, written, tmp_path):
    page = re.sub(r"<meta http-equiv.*?>", "", written[0].read_text("utf-8"))
    spoilt = page.replace("</main>", '<div style="width:900px">wide</div></main>').replace(
        "<footer>", "<img src='http://nowhere.invalid/x.png'><script>console.error('!')</script>"
    )
    narrow, wide = looked_at(chromium, spoilt, tmp_path)
    assert narrow["scroll"] > narrow["width"]
    assert "DIV" in narrow["beyond"]
    assert wide["beyond"] == []
    assert narrow["asked"] == wide["asked"] == ["http://nowhere.invalid/x.png"]
    (tmp_path / "spoilt.html").write_text(spoilt, encoding="utf-8")
    assert complaints(chromium((tmp_path / "spoilt.html").as_uri(), "--dump-dom"))
