"""The live demonstration: with callables of the same contract, and with the real detectors.

A real detector that is not installed must say so by name, so each test below asserts something
wherever it runs; py3langid comes with the dev extra.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "langid"))
import detectors
import live
from detectors import DETECTORS

from ttamer import datasets
from ttamer.errors import ArgumentError, MissingExtra
from ttamer.evaluation import results as evaluation
from ttamer.fitting import plans as fitting
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace


class Replayed:
    """A detector that says what the shipped trace says about shipped strings."""

    def __init__(self, node):
        trace = datasets.load("langid", "test")
        column = trace.spec.index_of(node)
        self.said = {}
        for each in datasets.strings("langid"):
            code = trace.prediction[each.row, column]
            said = None if code < 0 else trace.classes[code]
            self.said[each.text] = (said, float(trace.confidence[each.row, column]))
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return self.said.get(text, ("en", 0.5))


@pytest.fixture(scope="module")
def models():
    return {name: Replayed(name) for name in ("cld2", "langid")}


@pytest.fixture(scope="module", params=[{}, {"states": 8, "order": "fixed"}], ids=["full", "line"])
def ready(models, request):
    return live.prepare(models, **request.param)


def test_asking_again_finds_the_answers_of_the_trace(ready):
    assert [each.node for each in ready.again] == ["cld2", "langid"]
    for each in ready.again:
        assert each.same == each.asked == len(datasets.strings("langid"))
        assert each.microseconds > 0
        assert each.slower > 0


def test_asking_again_counts_changed_answers(models):
    def other(text):
        said, confidence = models["cld2"](text)
        return "xx" if said == "fr" else said, confidence

    fresh = live.ask_again({"cld2": other})[0]
    trace = datasets.load("langid", "test")
    rows = [each.row for each in datasets.strings("langid")]
    french = (trace.prediction[rows, 0] == trace.classes.index("fr")).sum()
    assert french > 0
    assert fresh.same == fresh.asked - french


def test_the_policy_uses_only_the_detectors_installed_at_their_speed(ready):
    assert ready.policy.fitted.spec.names == ("cld2", "langid")
    slower = {each.node: each.slower for each in ready.again}
    shipped = datasets.load("langid", "fit").spec
    for node in ready.policy.fitted.spec.nodes:
        before = shipped.nodes[shipped.index_of(node.name)].cost
        assert node.cost == pytest.approx(before * slower[node.name])


def test_an_answer_lists_the_nodes_asked_their_answers_and_why(ready):
    text = datasets.strings("langid")[3].text
    found = ready.answer(text)
    asked = [step.node for step in found.steps]
    assert asked == list(dict.fromkeys(asked))
    assert found.by in asked
    for step in found.steps:
        assert (step.language, step.confidence) == ready.detectors[step.node].said[text]
        assert step.microseconds > 0
        assert step.why
    assert found.language == next(step.language for step in found.steps if step.node == found.by)
    assert found.microseconds == sum(step.microseconds for step in found.steps)
    assert found.why == found.steps[-1].why
    plain = found.to_dict()
    assert plain["by"] == found.by
    assert [step["node"] for step in plain["steps"]] == asked


def test_live_answers_are_those_of_the_replay(ready):
    """What the policy does with a text it does with its row: the same table, the same states."""
    sample = datasets.strings("langid")
    rows = datasets.load("langid", "test").take([s.row for s in sample]).restrict(ready.detectors)
    played = ready.policy.play(rows)
    for i, each in enumerate(sample):
        found = ready.answer(each.text)
        assert found.by == rows.names[played.answer[i]]
        assert len(found.steps) == played.asked[i].sum()


def test_only_those_nodes_are_asked_that_the_policy_asks(models, ready):
    text = datasets.strings("langid")[5].text
    before = {name: len(model.asked) for name, model in models.items()}
    found = ready.answer(text)
    asked = {name for name, model in models.items() if len(model.asked) > before[name]}
    assert asked == {step.node for step in found.steps}


def test_control_characters_and_broken_text_reach_no_detector(models, ready):
    found = ready.answer("good\x00 morn\x1bing \ud800 to\nyou")
    assert found.text == "good morn ing to you"
    for step in found.steps:
        assert models[step.node].asked[-1] == found.text


@pytest.mark.parametrize("text", ["", "  ", "12345 ?!", "\x07"])
def test_a_text_without_letters_is_refused(ready, text):
    with pytest.raises(ArgumentError, match="no letters"):
        ready.answer(text)


def test_a_tradeoff_chooses_the_policy(models):
    cheap = live.prepare(models, tradeoff=0.0, states=4, order="fixed")
    best = live.prepare(models, tradeoff=1.0, states=4, order="fixed")
    assert cheap.policy.tradeoff == 0.0
    assert best.policy.tradeoff == 1.0
    assert cheap.held_out.cost <= best.held_out.cost


def test_by_default_the_policy_errs_least_at_a_quarter_of_the_most_expensive(monkeypatch, models):
    again = tuple(live.Again(name, 1, 1, 1.0, 1.0) for name in models)  # as fast as in the trace
    monkeypatch.setattr(live, "ask_again", lambda *_, **__: again)
    ready = live.prepare(models, states=8, order="fixed")
    fit = dataclasses.replace(datasets.load("langid", "fit").restrict(models), signals={})
    limit = fit.costs.mean(axis=0).max() / 4
    ladder = fitting.fit(fit, states=8, order="fixed")
    results = [evaluation.measure(played, fit, resamples=0) for played in ladder.play_all(fit)]
    mine = evaluation.evaluate(ready.policy, fit, resamples=0)
    assert mine.cost <= limit
    assert mine.error == min(result.error for result in results if result.cost <= limit)


def test_run_live_writes_what_happened_and_goes_on_after_a_bad_line(models):
    written = []
    good = datasets.strings("langid")[0].text
    live.run_live(
        [good + "\n", "\n", "!!!\n", good], written.append, models=models, states=4, order="fixed"
    )
    text = "\n".join(written)
    assert text.count("  says ") == 2
    assert text.count("no letters") == 1
    assert "cld2: 244 of 244 answers as in the shipped trace" in text
    assert "lingua: not here (pip install 'ttamer[lingua]')" in text
    assert "held-out strings" in text
    assert "type a sentence" in text


def test_a_model_unknown_to_the_trace_is_refused_by_name():
    with pytest.raises(ArgumentError, match="no node 'mine'; the nodes are cld2, cld3"):
        live.prepare({"mine": lambda text: (text, 1.0)})


def test_an_unknown_detector_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"no detector 'cld4'.*cld2, cld3, fasttext"):
        live.prepare(["cld4"])


def test_without_any_detector_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setattr(detectors.importlib.util, "find_spec", lambda _: None)
    assert detectors.available() == ()
    with pytest.raises(MissingExtra, match=r"ttamer\[demo\]"):
        live.prepare()
    with pytest.raises(MissingExtra, match=r"lingua-language-detector.*ttamer\[lingua\]"):
        detectors.build(["lingua"])


EASY = {
    "en": "The weather is lovely today and we are going for a walk in the park.",
    "de": "Das Wetter ist heute schön und wir gehen im Park spazieren.",
    "fi": "Tänään on kaunis sää ja menemme kävelylle puistoon.",
    "zh": "今天天气很好我们要去公园散步",
    "el": "Σήμερα έχει ωραίο καιρό και πάμε βόλτα στο πάρκο.",
}


@pytest.mark.parametrize("name", [n for n, d in DETECTORS.items() if not d.slow_to_load])
def test_a_real_detector_answers_or_reports_that_it_is_missing(name):
    detector = DETECTORS[name]
    if not detector.installed:
        with pytest.raises(MissingExtra, match=f"{detector.package}.*{detector.extra}"):
            detectors.build([name])
        return
    detect = detectors.build([name])[name]
    for language, text in EASY.items():
        said, confidence = detect(text)
        assert said == language
        assert 0 < confidence <= 1 + 1e-6
    again = live.ask_again({name: detect})[0]
    assert again.same >= 0.98 * again.asked  # another version may differ on a string or two


def test_lingua_answers_or_reports_that_it_is_missing(monkeypatch):
    """Without its 1.4 GB of models: those of six languages."""
    if not DETECTORS["lingua"].installed:
        with pytest.raises(MissingExtra, match=r"lingua-language-detector.*ttamer\[lingua\]"):
            detectors.build(["lingua"])
        return
    import lingua

    codes = ["EN", "DE", "FI", "NB", "ZH", "EL"]
    few = lingua.LanguageDetectorBuilder.from_iso_codes_639_1(
        *(getattr(lingua.IsoCode639_1, code) for code in codes)
    )
    builder = type("Builder", (), {"from_all_languages": staticmethod(lambda: few)})
    monkeypatch.setattr(lingua, "LanguageDetectorBuilder", builder)
    detect = detectors.build(["lingua"])["lingua"]
    assert {language: detect(text)[0] for language, text in EASY.items()} == {x: x for x in EASY}
    assert detect("Hva heter du, og hvor kommer du fra?")[0] == "no"
    assert detect("123") == (None, 0.0)


def test_codes_of_the_detectors_become_codes_of_the_trace():
    assert {detectors.language(code) for code in ("nb", "nn", "no")} == {"no"}
    assert {detectors.language(code) for code in ("zh", "zh-Hant", "yue", "wuu")} == {"zh"}
    assert detectors.language("iw") == "he"
    assert detectors.language("un") is None
    # Kept apart, though they are easily confused.
    assert len({detectors.language(code) for code in ("hr", "bs", "sr", "ms", "id")}) == 5


def trace_of_three(**fields):
    spec = CascadeSpec.of({"a": 1.0, "b": 2.0, "c": 3.0}, **fields)
    return Trace.from_arrays(
        spec,
        [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
        prediction=[["x", "y", "x"], ["y", None, "x"]],
        label=["x", "x"],
        cost=[[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]],
        extras={"margin": [[float("nan"), 0.1, 0.2], [float("nan"), 0.3, 0.4]]},
        signals={"letters": [3.0, 4.0]},
    )


def test_restricting_keeps_the_order_and_every_kind_of_column():
    fewer = trace_of_three().restrict(["c", "b"])
    assert fewer.names == ("b", "c")
    assert fewer.confidence.tolist() == [[0.2, 0.3], [0.5, 0.6]]
    assert fewer.cost.tolist() == [[2.0, 3.0], [2.5, 3.5]]
    assert fewer.extras["margin"].tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert fewer.signals["letters"].tolist() == [3.0, 4.0]
    assert fewer.wrong().tolist() == [[True, False], [True, False]]


def test_restricting_to_all_changes_nothing():
    trace = trace_of_three()
    assert trace.restrict(trace.names).digest == trace.digest


def test_restricting_refuses_what_would_change_the_meaning():
    with pytest.raises(ArgumentError, match="at least one node"):
        trace_of_three().restrict([])
    with pytest.raises(ArgumentError, match="no node 'd'"):
        trace_of_three().restrict(["a", "d"])
    with pytest.raises(ArgumentError, match="'c' is right"):
        trace_of_three(target="last").restrict(["a", "b"])
    assert trace_of_three(target="last").restrict(["a", "c"]).names == ("a", "c")
    toml = "node = [{name='a', cost=1}, {name='b', cost=1, after='a'}]"
    tree = Trace(CascadeSpec.from_toml(toml), [[0.1, 0.2]])
    with pytest.raises(ArgumentError, match="'b' comes after 'a'"):
        tree.restrict(["b"])


def test_the_shipped_trace_is_of_these_detectors():
    facts = datasets.about("langid")
    assert datasets.load("langid").names == tuple(DETECTORS) == tuple(facts["nodes"])
    for node, detector in DETECTORS.items():
        assert facts["nodes"][node]["confidence"] == detector.confidence
        assert facts["nodes"][node]["licence"] == detector.licence
