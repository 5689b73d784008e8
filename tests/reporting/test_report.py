"""The report, number by number against the frontier; test_report_browser looks at it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from matplotlib.colors import to_hex

import ttamer as tt
from support.reports import NAMES, SOME, measured
from support.traces import answering_trace, chain_trace
from ttamer import datasets
from ttamer.cli import main
from ttamer.cli.frontier import frontier_text
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import frontier
from ttamer.fitting.plans import fit
from ttamer.policy.index import IndexPolicy
from ttamer.reporting.frontier_figure import draw_frontier
from ttamer.reporting.policy_figures import (
    draw_answered,
    draw_index_bars,
    draw_step_bars,
    draw_stop_panels,
    reached_steps,
    reliability,
)
from ttamer.reporting.recommendation import recommend
from ttamer.reporting.report import write_report
from ttamer.reporting.style import GO_COLOUR, HURT_COLOUR, STOP_COLOUR, printable, save_figure
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace


@pytest.fixture(scope="module")
def case():
    """The default fit on separate models, with ten families."""
    return measured(answering_trace(4200, order="skip"), SOME)


@pytest.fixture(scope="module")
def written(case, tmp_path_factory):
    """The paths of a report on it."""
    return write_report(*case, tmp_path_factory.mktemp("report") / "page.html", title="A & B")


def test_labels_of_the_cost_axis_do_not_repeat(case):
    front, _, trace = case
    point = front.points[0]
    costs = [121.0, 121.6, 122.0, 122.4, 122.4, 122.4]
    rungs = [
        dataclasses.replace(point, result=dataclasses.replace(point.result, cost=cost))
        for cost in costs
    ]
    axes = draw_answered(rungs, trace.names, rungs[:1], 100.0).axes[0]
    labels = [each.get_text() for each in axes.get_xticklabels()]
    assert labels == ["121.0%", "121.6%", "122.0%", "122.4%"]
    assert axes.get_xticks().tolist() == [0, 1, 2, 3]


def test_a_report_without_costs_says_that_there_is_nothing_to_save(tmp_path):
    trace = answering_trace(600)
    free = CascadeSpec.of(dict.fromkeys(trace.names, 0.0), order="any")
    front, ladder, test_rows = measured(trace.with_spec(free))
    advice = recommend(front, test_rows)
    page = write_report(front, ladder, test_rows, tmp_path / "page.html", png=False)[0]
    text = html.unescape(page.read_text("utf-8"))
    assert advice.sentence in text
    assert f"{advice.against} costs nothing" in text
    assert "falls short" not in text


class Reader(HTMLParser):
    """What a page says: rows of numbers by family, tiles, and the tags it uses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: dict[str, list[float | None]] = {}
        self.tiles: list[float] = []
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.tags.add(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") and v]
        if tag == "tr" and "data-family" in known:
            self.row = self.rows.setdefault(known["data-family"], [])
        if tag == "tr" and known.get("id", "").startswith("policy-"):
            self.row = []
        if tag == "td":
            value = known.get("data-value")
            self.row.append(None if value is None else float(value))
        if tag == "p" and known.get("class") == "number":
            self.tiles.append(float(known["data-value"]))

    def handle_data(self, data):
        self.text.append(data)


def test_numbers_on_the_page_are_the_frontiers(case, written):
    front, _, test_rows = case
    page = Reader(written[0].read_text("utf-8"))
    families = front.to_dict()["families"]
    assert set(page.rows) == set(families)
    for name, numbers in page.rows.items():
        costs = families[name]["cost_at_error"].values()
        shares = [None if cost is None else cost / front.reference.cost for cost in costs]
        expected = [*shares, families[name]["area"]]
        assert numbers == expected
    advice = recommend(front, test_rows)
    saving, accuracy, share = page.tiles
    assert saving == advice.saving
    reference = front.to_dict()["reference"]
    at = advice.more_error
    cost = front.cost_at(advice.family, at)
    assert saving == 1 - cost / reference["cost"]
    assert accuracy == 1 - families[advice.family]["error_at_reference_cost"]
    assert share == advice.reference_unasked
    assert advice.sentence in "".join(page.text)


def test_points_of_the_frontier_lead_to_how_to_deploy_them(case, written):
    front, ladder, _ = case
    page = html.unescape(written[0].read_text("utf-8"))
    kept = lower_envelope(*front.curve("ttamer")).tolist()
    links = re.findall(r'<a href="#(policy-\w+)" class="point">', page)
    assert links == [f"policy-setting{place}" for place in kept] * 2  # wide and narrow
    for place in kept:
        point = front.of("ttamer")[place]
        [row] = re.findall(rf'<tr id="policy-setting{place}".*?</tr>', page)
        assert f"error {point.result.error:.1%}" in row
        [budget] = re.findall(r"for_budget\(([\d.]+)\)", row)
        mixture = ladder.for_budget(float(budget))
        assert mixture.cost == pytest.approx(float(budget), rel=1e-5)
        assert f"[serve] budget = {budget}" in row


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_have_enough_contrast_in_both_themes():
    css = (resources.files("ttamer.reporting") / "page.css").read_text("utf-8")
    themes = [
        dict(re.findall(r"--(\w+): (#\w+)", block))
        for block in re.findall(r":root \{.*?\}", css, re.S)
    ]
    assert len(themes) == 3  # light, dark, printed
    for theme in themes:
        for paper in (theme["bg"], theme["card"]):
            for text in ("ink", "muted", "accent"):
                assert contrast(theme[text], paper) >= 4.5, (text, paper)
            assert contrast(theme["background"], paper) >= 3, paper
        assert contrast(theme["muted"], theme["blank"]) >= 4.5
    for colour in (STOP_COLOUR, "#3d6fa5", HURT_COLOUR, "#8e5572"):
        assert contrast(colour, "#ffffff") >= 3
    assert contrast("#77716a", "#f1efec") < 4.5  # the check can fail


def test_text_of_the_narrow_figure_is_12_pixels_on_a_screen_of_400(case):
    figure = draw_frontier(case[0], narrow=True)
    figure.draw_without_rendering()
    shown = 400 - 2 * 16 * (0.9 + 0.8) - 2  # the page's padding, the card's, and its border
    pixels = shown / (72 * figure.get_size_inches()[0])
    sizes = [text.get_fontsize() for text in figure.legends[0].get_texts()]
    sizes += [text.get_fontsize() for text in figure.axes[0].get_xticklabels()]
    assert min(sizes) * pixels >= 12


def test_left_out_families_and_provenance_are_reported(case, written):
    front, ladder, test_rows = case
    said = "".join(Reader(written[0].read_text("utf-8")).text)
    assert set(front.left_out) == {"entropy"}
    assert front.left_out["entropy"] in said
    for fact in ("2,100 rows", ladder.fitted.trace_digest[:12], test_rows.digest[:12], "skip"):
        assert fact in said
    assert "A & B" in said


def test_every_figure_is_written_as_png_and_svg(written):
    folder = written[0].with_name("page_figures")
    assert sorted(written[1:]) == sorted(folder.iterdir())
    assert sorted(path.name for path in written[1:]) == sorted(
        f"{name}.{suffix}" for name in NAMES for suffix in ("png", "svg")
    )
    for path in written[1:]:
        start = path.read_bytes()[:8]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


def test_the_page_stands_alone_and_runs_only_its_own_script(written):
    page = written[0].read_text("utf-8")
    reader = Reader(page)
    assert not reader.tags & {"link", "iframe", "object", "embed", "img", "base", "form"}
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page
    assert not re.search(r"fetch|XMLHttp|import|eval|innerHTML|http", script)
    assert all(link.startswith("#") for link in reader.links)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert len(page) < 400_000


def test_the_same_input_gives_the_same_files(case, written, tmp_path):
    again = write_report(*case, tmp_path / "page.html", title="A & B")
    for one, other in zip(written, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


HOSTILE = ("<script>alert(1)</script>", "$\\frac{", "_名前\"'&")


def test_names_from_outside_are_only_ever_text(tmp_path):
    plain = answering_trace(800, order="any")
    spec = CascadeSpec.of(dict(zip(HOSTILE, plain.spec.costs.tolist(), strict=True)), order="any")
    trace = Trace(
        spec, plain.confidence, prediction=plain.prediction, label=plain.label,
        classes=("<img src=x onerror=alert(2)>", "$", "c", "d"), notes=("<u>note</u>",),
    )  # fmt: skip
    case = measured(trace, ("ttamer", "always-last", "frugalml"))
    page, *figures = write_report(*case, tmp_path / "x.html", title="</title><script>\x00\n")
    text = page.read_text("utf-8")
    assert not Reader(text).tags & {"img", "u"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "&lt;u&gt;note&lt;/u&gt;" in text
    assert text.count("<script") == 1  # the page's own
    assert "\x00" not in text
    assert all(b"<script" not in path.read_bytes() for path in figures if path.suffix == ".svg")


def test_names_are_cut_and_never_hidden():
    assert printable("x" * 99) == "x" * 23 + "…"
    assert printable("_a") == " _a"  # a label that starts with _ would be left out of legends


def test_one_node(tmp_path):
    plain = chain_trace(200, nodes=1)
    page, *figures = write_report(*measured(plain), tmp_path / "one.html")
    text = page.read_text("utf-8")
    assert "There is one node, exit1: it answers every input." in text
    assert "exit1 always answers" in text
    assert {path.stem for path in figures} == set(NAMES) - {"stop"}


@pytest.mark.parametrize("order", ["any", "fixed", "skip"])
@pytest.mark.parametrize("belief", ["none", "full"])
def test_every_kind_of_policy_has_a_picture_of_when_to_stop(order, belief, tmp_path):
    family, rows = ("paper", 400) if belief == "none" else ("ttamer", 800)
    case = measured(answering_trace(rows, order=order), (family, "always-last"), belief)
    page, *figures = write_report(*case, tmp_path / "page.html", png=False)
    assert tmp_path / "page_figures" / "stop.svg" in figures
    text = html.unescape(page.read_text("utf-8"))
    indices = isinstance(case[1][0].policy, IndexPolicy)
    assert ("above its index" in text) == indices
    assert indices or (order, belief) != ("any", "none")
    assert recommend(case[0], case[2], family=family).sentence in text


def test_a_tree_has_one_bar_per_state_of_the_parent(tmp_path):
    plain = answering_trace(400)
    nodes = list(plain.spec.nodes)
    tree = CascadeSpec((nodes[0], *(type(n)(n.name, n.cost, nodes[0].name) for n in nodes[1:])))
    trace = Trace(
        tree, plain.confidence, prediction=plain.prediction, label=plain.label,
        classes=plain.classes,
    )  # fmt: skip
    case = measured(trace, ("paper", "always-last"), "none")
    page, *_ = write_report(*case, tmp_path / "page.html", png=False)
    assert "above its index" in page.read_text("utf-8")
    bars = draw_index_bars(case[1][-2].policy).axes[0].patches
    states = len(case[1][0].policy.problem.nodes[0].losses)
    assert len(bars) == 2 * (1 + 2 * states)


def test_matrices_show_what_the_policy_does():
    # Of each state: stop up to a column of the grid, go on up to its own loss, nothing above.
    policy = fit(chain_trace(400), belief="none").at(0.97).policy
    problem, stops = policy.problem, policy.if_stop("exit2")
    axes = draw_stop_panels(policy).axes[1]
    states = len(problem.nodes[1].losses)
    blank, low, high = (axes.patches[i * states : (i + 1) * states] for i in range(3))
    for place, state in enumerate(np.argsort(problem.nodes[1].losses, kind="stable")):
        own = problem.grid.positions[1][state]
        assert blank[place].get_height() == len(problem.grid) - 1
        assert low[place].get_height() == stops[state, : own + 1].sum()
        assert low[place].get_height() + high[place].get_height() == own + 1


def test_bars_of_steps_show_what_the_policy_does():
    ladder = fit(answering_trace(2400, order="any"))
    policy, names = ladder.at(0.9).policy, ladder.fitted.spec.names
    assert not policy.recall
    axes = draw_step_bars(policy, [[names[n] for n in s] for s in ladder.fitted.steps]).axes[0]
    first = reached_steps(policy)[0]
    choice = policy.choice(policy.problem.names[first])[:, 0]
    amber = [p for p in axes.patches if p.get_y() == 0 and to_hex(p.get_facecolor()) == GO_COLOUR]
    assert len(amber) == (choice >= 0).sum()
    assert policy.asked[policy.problem.names[first]] == pytest.approx(1.0)


def test_a_step_at_which_no_node_has_been_asked_is_named():
    ladder = fit(datasets.load("langid", "fit").take(slice(600)))  # it has a signal
    policy, names = ladder.at(0.5).policy, ladder.fitted.spec.names
    axes = draw_step_bars(policy, [[names[n] for n in s] for s in ladder.fitted.steps]).axes[0]
    assert axes.texts[0].get_text() == "at the start  (100%)"


def test_a_trace_without_predictions_or_probabilities(tmp_path):
    plain = chain_trace(4200)
    trace = Trace(plain.spec, 40 * plain.confidence - 7, correct=plain.correct)
    case = measured(trace)
    page, *figures = write_report(*case, tmp_path / "page.html")
    assert len(figures) == 2 * len(NAMES)
    assert recommend(*case[::2]).sentence in html.unescape(page.read_text("utf-8"))


def test_reliability_keeps_equal_confidences_together():
    confidence = np.repeat([0.1, 0.5, 0.9], [50, 900, 50])
    right = np.random.default_rng(0).random(1000) < confidence
    mean, share, rows = reliability(confidence, right)
    assert mean == pytest.approx([0.1, 0.5, 0.9])
    assert rows.tolist() == [50, 900, 50]
    assert share == pytest.approx([right[confidence == c].mean() for c in (0.1, 0.5, 0.9)])


def test_many_nodes_are_shown_in_part_and_that_is_reported(tmp_path):
    case = measured(chain_trace(300, nodes=15), ("paper", "always-last"), "none")
    page, *_ = write_report(*case, tmp_path / "page.html", png=False)
    text = page.read_text("utf-8")
    assert "right. 12 of 15 are shown." in text
    assert "The first 12 of 14 are shown." in text


def test_agreement_with_the_last_node_and_costs_per_row(tmp_path):
    plain = answering_trace(800)
    cost = np.random.default_rng(0).uniform(0.5, 1.5, plain.confidence.shape) * plain.spec.costs
    spec = CascadeSpec.of(dict(zip(plain.names, plain.spec.costs.tolist(), strict=True)),
                          order="fixed", target="last")  # fmt: skip
    trace = Trace(spec, plain.confidence, prediction=plain.prediction, cost=cost,
                  classes=plain.classes)  # fmt: skip
    page, *_ = write_report(*measured(trace), tmp_path / "page.html", png=False)
    assert "full network" in page.read_text("utf-8")


def test_the_papers_own_ladder_is_known_as_such(tmp_path):
    case = measured(chain_trace(400), ("ttamer", "paper", "always-last"), "none")
    page, *_ = write_report(*case, tmp_path / "page.html", png=False)
    assert "Whose answer paper returns" in page.read_text("utf-8")


def test_it_is_reported_when_our_family_falls_short(tmp_path):
    # On the rows fitted to the last exit is always wrong; on the others it is always right.
    spec = CascadeSpec.of({"early": 1.0, "late": 1.0}, order="fixed")
    sure = np.full((2000, 2), 0.5)
    misled = Trace(spec, sure, correct=np.tile([True, False], (2000, 1)))
    right = np.column_stack([np.arange(2000) % 2 == 0, np.ones(2000, bool)])
    tested = Trace(spec, sure, correct=right)
    front = frontier(misled, tested, families=["ttamer", "always-last"], resamples=20)
    page, *_ = write_report(front, fit(misled), tested, tmp_path / "page.html", png=False)
    text = page.read_text("utf-8")
    assert "nothing measured here costs less: use the full network." in text
    assert "ttamer falls short of the accuracy of the full network" in text
    assert "The best ttamer reaches is 50 points more error." in text


def test_what_does_not_belong_together_is_refused(tmp_path):
    front, ladder, test_rows = measured(chain_trace(4200))
    with pytest.raises(ArgumentError, match="measured on 2100 rows, and the trace has 199"):
        write_report(front, ladder, test_rows.take(slice(199)), tmp_path / "page.html")
    other = fit(chain_trace(4200, seed=9))
    with pytest.raises(ArgumentError, match="the ladder is none of the frontier's families"):
        write_report(front, other, test_rows, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_the_frontier_alone_makes_a_picture(case, tmp_path):
    paths = save_figure(draw_frontier(case[0]), tmp_path / "frontier.png")
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert paths[0].stat().st_size > 20_000
    drawing = paths[1].read_text("utf-8")
    assert "fill: #1b7f79" in drawing or "stroke: #1b7f79" in drawing


def test_a_legend_of_many_families_at_the_reference_is_not_cut_off():
    one = chain_trace(600, nodes=1)
    figure = draw_frontier(frontier(one, one, resamples=0))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.bbox.width


def test_costs_far_below_the_reference_are_drawn_on_a_logarithmic_scale(case):
    front = case[0]
    costs, errors = front.curve("ttamer")
    near = dataclasses.replace(front.reference, error=float(np.median(errors)))
    axes = draw_frontier(dataclasses.replace(front, reference=near)).axes[0]
    assert axes.get_xscale() == "linear"
    dear = dataclasses.replace(near, cost=100 * near.cost)
    axes = draw_frontier(dataclasses.replace(front, reference=dear)).axes[0]
    assert axes.get_xscale() == "log"
    line = next(line for line in axes.lines if line.get_label() == "ttamer")
    for x, y in line.get_xydata():
        # On every drawn point a mixture of settings costs and errs as drawn.
        assert front.error_at("ttamer", x * dear.cost) == pytest.approx(y, abs=1e-9)
    assert min(line.get_xdata()) * dear.cost == pytest.approx(min(costs))
    assert min(line.get_ydata()) == pytest.approx(min(errors))


def test_a_report_on_losses_is_in_mean_loss(tmp_path, capsys):
    trace = answering_trace(700)
    losses = np.where(trace.wrong(), np.random.default_rng(0).uniform(20, 90, (700, 3)), 0.0)
    graded = dataclasses.replace(trace, label=None, raw_loss=losses)
    fitted, test = graded.split(0.5, 0)
    ladder = fit(fitted, belief="calibrated", states=4, order="fixed")
    found = frontier(fitted, test, families=["ttamer", "threshold"], ladder=ladder, resamples=20)
    text = frontier_text(found, test)
    assert "+1%" in text
    assert "mean loss" in text
    assert "error" not in text
    output, file = tmp_path / "report.html", tmp_path / "fit.ttamer"
    write_report(found, ladder, test, output, png=False)
    page = output.read_text("utf-8")
    assert "mean loss of large alone" in page
    assert "accuracy" not in page
    tt.save(ladder, file)
    test.write(tmp_path / "trace.npz")
    for command in (["evaluate", str(file), str(tmp_path / "trace.npz")], ["inspect", str(file)]):
        main(command)
        assert "mean loss" in capsys.readouterr().out


def test_verified_answers_are_nodes_of_the_report(tmp_path):
    trace = answering_trace(200)
    first, *others = trace.spec.nodes
    nodes = (dataclasses.replace(first, verify_cost=0.5), *others)
    front, ladder, rows = measured(
        trace.with_spec(dataclasses.replace(trace.spec, nodes=nodes)), ["ttamer", "always-best"]
    )
    page, *_ = write_report(front, ladder, rows, tmp_path / "report.html", png=False)
    assert f"{trace.names[0]} (verified)" in page.read_text()


def test_where_all_is_free_there_is_nothing_to_save():
    trace = answering_trace(200)
    front, *_ = measured(trace.with_spec(trace.spec.with_costs(dict.fromkeys(trace.names, 0.0))))
    assert draw_frontier(front, arrow="ttamer").axes
