"""The traces that come with the package: they load, and are what they are said to be."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from ttamer import datasets
from ttamer.datasets import facts as dataset_facts
from ttamer.errors import ArgumentError, MissingExtra
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

DATA = resources.files("ttamer.datasets") / "data"
MAX_BYTES = 2_000_000
NETWORKS = tuple(name for name in datasets.names() if dataset_facts.is_network(name))


@pytest.fixture(scope="module", params=datasets.names())
def name(request):
    return request.param


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    return request.param


@pytest.fixture(scope="module", params=["fit", "test"])
def part(request):
    return request.param


def test_there_are_separate_models_and_networks_for_images_and_text():
    assert datasets.names()[0] == "langid"
    assert {"vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10"} < set(NETWORKS)
    assert {"minilm-imdb", "mpnet-amazon", "smollm2-imdb"} < set(NETWORKS)


def test_each_part_has_the_rows_it_should_have(name, part):
    assert len(datasets.load(name, part)) == datasets.about(name)["rows"][part]


def test_both_parts_are_the_whole_fit_first(name):
    whole = datasets.load(name)
    first, second = datasets.load(name, "fit"), datasets.load(name, "test")
    assert len(whole) == sum(datasets.about(name)["rows"].values())
    np.testing.assert_array_equal(whole.confidence[: len(first)], first.confidence)
    np.testing.assert_array_equal(whole.confidence[len(first) :], second.confidence)
    np.testing.assert_array_equal(whole.wrong()[: len(first)], first.wrong())
    assert [whole.classes[code] for code in whole.prediction[: len(first), 0]] == [
        first.classes[code] for code in first.prediction[:, 0]
    ]


def test_every_row_is_labelled_and_finite_and_nothing_was_left_out_in_reading(name, part):
    trace = datasets.load(name, part)
    assert not trace.left_out
    assert not trace.notes
    assert np.isfinite(trace.confidence).all()
    assert trace.correct is not None or (trace.label >= 0).all()
    assert (trace.costs > 0).all()
    assert all(np.isfinite(values).all() for values in trace.signals.values())


def test_fit_and_test_share_no_message():
    fit, test = (datasets.messages("langid", part) for part in ("fit", "test"))
    assert len(fit) == len(datasets.load("langid", "fit"))
    assert len(test) == len(datasets.load("langid", "test"))
    assert not set(fit.tolist()) & set(test.tolist())
    said = datasets.about("langid")["messages"]
    assert (len(set(fit.tolist())), len(set(test.tolist()))) == (said["fit"], said["test"])


def test_other_traces_have_neither_messages_nor_strings(name):
    if name == "langid":
        return
    with pytest.raises(ArgumentError, match=f"{name} has no messages.*langid has them"):
        datasets.messages(name)
    with pytest.raises(ArgumentError, match=f"{name} has no strings.*langid has them"):
        datasets.strings(name)


@pytest.mark.parametrize("benchmark", ["llm-mmlu", "llm-triviaqa"])
def test_nine_llms_of_different_accuracy_cost_and_latency(benchmark):
    trace, facts = datasets.load(benchmark), datasets.about(benchmark)
    assert trace.names == tuple(facts["nodes"])
    assert len(trace.names) == 9
    right = 1 - trace.wrong().mean(axis=0)
    accuracy = [each["accuracy"] for each in facts["nodes"].values()]
    np.testing.assert_allclose(right, accuracy, atol=6e-5)
    assert right.max() > right.min() + 0.2
    np.testing.assert_allclose(trace.spec.costs, trace.costs.mean(axis=0))
    assert trace.costs.mean(axis=0).max() > 20 * trace.costs.mean(axis=0).min()
    assert (trace.extras["latency"] > 0).all()
    assert 1 - trace.wrong().all(axis=1).mean() > right.max() + 0.02  # together they know more
    confidence, wrong = trace.confidence, trace.wrong()
    means = [
        (confidence[wrong[:, v], v].mean(), confidence[~wrong[:, v], v].mean()) for v in range(9)
    ]
    informed = [where_right > where_wrong for where_wrong, where_right in means]
    assert sum(informed) >= 8  # the smallest model is more confident where it is wrong


@pytest.mark.parametrize("benchmark", ["llm-mmlu", "llm-triviaqa"])
def test_the_answers_of_llms_are_letters_or_numbers(benchmark):
    classes = set(datasets.load(benchmark).classes)
    if benchmark == "llm-mmlu":
        assert classes <= {"", "A", "B", "C", "D"}
    else:
        assert all(each.isdecimal() for each in classes)


def test_a_network_is_in_fixed_order_under_its_own_name_and_is_as_the_facts_say(network):
    trace, facts = datasets.load(network), datasets.about(network)
    assert (trace.spec.order, trace.spec.target, trace.spec.name) == ("fixed", "label", network)
    assert trace.names[-1] == "full"
    assert sorted(trace.classes) == facts["classes"]
    assert trace.names == tuple(facts["nodes"])
    said = [(each["cost"], each["accuracy"]) for each in facts["nodes"].values()]
    right = 1 - trace.wrong().mean(axis=0)
    np.testing.assert_allclose(said, np.stack([trace.spec.costs, right], axis=1), atol=6e-5)
    assert 1 < trace.spec.costs.sum() < 1.01  # the network without ramps, and the ramps


def test_the_halves_of_a_network_are_alike(network):
    """Its rows were shuffled: a stored order that went by class would show at once."""
    halves = [datasets.load(network, part) for part in ("fit", "test")]
    shares = [np.bincount(h.label, minlength=len(h.classes)) / len(h) for h in halves]
    np.testing.assert_allclose(*shares, atol=0.03)
    right = [1 - h.wrong().mean(axis=0) for h in halves]
    np.testing.assert_allclose(*right, atol=0.035)


def test_a_network_has_learned_and_is_surer_where_it_is_right(network):
    trace = datasets.load(network)
    wrong = trace.wrong()
    assert 1 - wrong[:, -1].mean() > 0.7
    learned = np.flatnonzero(wrong.mean(axis=0) < 0.3)  # a decoder's first layers have not
    assert len(learned) > len(trace.names) / 2
    for exit_ in learned:
        name = trace.names[exit_]
        sure = trace.confidence[:, exit_] > np.median(trace.confidence[:, exit_])
        assert wrong[sure, exit_].mean() < 0.7 * wrong[~sure, exit_].mean(), name


def test_text_networks_are_pretrained_and_reported_as_such():
    for name in NETWORKS:
        text = not name.startswith("vgg")
        assert (", pretrained," in datasets.about(name)["network"]) == text


def test_sources_are_cited_and_the_licence_is_ours(network):
    facts = datasets.about(network)
    assert any(author in facts["source"] for author in ("Krizhevsky", "Maas", "Blitzer"))
    assert "Apache-2.0" in facts["licence"]
    assert "shuffled" in facts["split"]
    assert "NVIDIA H200" in facts["made"]


def test_the_files_are_small():
    for file in (*DATA.iterdir(), *(DATA / "streams").iterdir()):
        if file.is_dir():
            continue
        assert len(file.read_bytes()) < MAX_BYTES, file.name


def test_every_file_of_a_network_has_its_other():
    stems = {kind: {file.name.removesuffix(kind) for file in DATA.iterdir()
                    if file.name.endswith(kind)} for kind in (".parquet", ".json")}  # fmt: skip
    assert stems[".json"] == {
        *stems[".parquet"], "langid", "langid-strings", "llm-mmlu", "llm-triviaqa"
    }  # fmt: skip


def test_the_cascade_beside_the_trace_is_the_one_inside_and_its_costs_are_the_means():
    whole = datasets.load("langid")
    beside = CascadeSpec.from_toml((DATA / "langid-cascade.toml").read_text("utf-8"))
    assert whole.cost.shape == whole.confidence.shape
    assert beside == whole.spec
    np.testing.assert_allclose(whole.spec.costs, whole.costs.mean(axis=0), atol=0.06)


def test_langid_is_a_real_cascade():
    """No detector is best for all inputs: the expensive one is best, and all together know more."""
    trace = datasets.load("langid")
    right = 1 - trace.wrong().mean(axis=0)
    assert len(set(trace.label.tolist())) == datasets.about("langid")["languages"] == 61
    assert right.argmax() == trace.names.index("lingua")
    assert 0.87 < right.max() < 0.91
    assert trace.costs.mean(axis=0).argmax() == trace.names.index("lingua")
    assert 1 - trace.wrong().all(axis=1).mean() > right.max() + 0.05


def test_confidence_is_informative_about_being_right(part):
    trace = datasets.load("langid", part)
    wrong = trace.wrong()
    for node in range(len(trace.names)):
        sure = trace.confidence[:, node] > np.median(trace.confidence[:, node])
        assert wrong[sure, node].mean() < 0.7 * wrong[~sure, node].mean(), trace.names[node]


def test_strings_are_rows_of_the_test_part_four_for_each_language():
    trace = datasets.load("langid", "test")
    sample = datasets.strings("langid")
    rows = [each.row for each in sample]
    assert rows == sorted(set(rows))
    _, counts = np.unique(trace.label[rows], return_counts=True)
    assert counts.tolist() == [4] * 61
    assert all(any(map(str.isalpha, each.text)) for each in sample)


def test_strings_come_with_their_licence():
    assert "Django Software Foundation" in (DATA / "DJANGO-LICENSE.txt").read_text("utf-8")
    assert "DJANGO-LICENSE.txt" in datasets.about("langid")["licence"]


def test_describe_reports_how_it_was_made(name):
    text = datasets.describe(name)
    for node in datasets.load(name).names:
        assert f"  {node}: " in text
    for word in ("rows:", "licence:", "cost:", "source:", "experiments/"):
        assert word in text


def test_exported_files_are_read_by_the_commands(name, tmp_path):
    fit, test, cascade = datasets.export(name, tmp_path / "new")
    assert Trace.read(fit, cascade).digest == datasets.load(name, "fit").digest
    assert Trace.read(test, cascade).digest == datasets.load(name, "test").digest


@pytest.mark.parametrize(
    "call",
    [
        lambda: datasets.load("langdi"),
        lambda: datasets.about("langdi"),
        lambda: datasets.describe("langdi"),
        lambda: datasets.messages("langdi"),
        lambda: datasets.strings("langdi"),
        lambda: datasets.export("langdi", "nowhere"),
    ],
)
def test_an_unknown_name_is_answered_with_the_names_there_are(call):
    with pytest.raises(ArgumentError, match=r"'langdi'.*the traces are langid"):
        call()


def test_an_unknown_part_is_answered_with_the_parts_there_are():
    with pytest.raises(ArgumentError, match=r"'train'.*'fit' or 'test'"):
        datasets.load("langid", "train")


def test_reading_needs_numpy_alone():
    code = (
        "import sys; from ttamer import datasets; datasets.load('langid'); datasets.about('langid')"
        "; print([m for m in ('pyarrow', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_network_needs_pyarrow_and_what_is_known_of_it_does_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"ttamer\[io\]"):
        datasets.load("minilm-amazon", "fit")
    assert "6 exits" in datasets.describe("minilm-amazon")
    assert "minilm-amazon" in datasets.names()
    assert len(datasets.load("langid", "fit")) == 16337


def test_the_names_are_known_without_numpy():
    code = "import sys, ttamer.datasets.facts as d; print(*d.names(), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*datasets.names(), "False"]
