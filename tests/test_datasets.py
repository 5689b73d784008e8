"""The traces that come with the package: they load, and are what they are said to be."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from ttamer import datasets
from ttamer.cascade_spec import CascadeSpec
from ttamer.detectors import DETECTORS
from ttamer.errors import ArgumentError
from ttamer.trace import Trace

DATA = resources.files("ttamer") / "data"
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module", params=datasets.names())
def name(request):
    return request.param


@pytest.fixture(scope="module", params=["fit", "test"])
def part(request):
    return request.param


def test_each_part_has_the_rows_it_is_said_to_have(name, part):
    assert len(datasets.load(name, part)) == datasets.about(name)["rows"][part]


def test_both_parts_are_the_whole_fit_first(name):
    whole = datasets.load(name)
    first = datasets.load(name, "fit")
    assert len(whole) == sum(datasets.about(name)["rows"].values())
    np.testing.assert_array_equal(whole.confidence[: len(first)], first.confidence)
    assert [whole.classes[code] for code in whole.label[: len(first)]] == [
        first.classes[code] for code in first.label
    ]


def test_every_row_is_labelled_and_finite_and_nothing_was_left_out_in_reading(name, part):
    trace = datasets.load(name, part)
    assert not trace.left_out
    assert not trace.notes
    assert np.isfinite(trace.confidence).all()
    assert (trace.label >= 0).all()
    assert (trace.costs > 0).all()
    assert trace.cost.shape == trace.confidence.shape
    assert all(np.isfinite(values).all() for values in trace.signals.values())


def test_fit_and_test_share_no_message(name):
    fit, test = (datasets.messages(name, part) for part in ("fit", "test"))
    assert len(fit) == len(datasets.load(name, "fit"))
    assert len(test) == len(datasets.load(name, "test"))
    assert not set(fit.tolist()) & set(test.tolist())
    said = datasets.about(name)["messages"]
    assert (len(set(fit.tolist())), len(set(test.tolist()))) == (said["fit"], said["test"])


def test_the_files_are_small():
    for file in DATA.iterdir():
        assert len(file.read_bytes()) < MOST_BYTES, file.name


def test_the_cascade_beside_the_trace_is_the_one_inside_and_its_costs_are_the_means(name):
    whole = datasets.load(name)
    beside = CascadeSpec.from_toml((DATA / f"{name}-cascade.toml").read_text("utf-8"))
    assert beside == whole.spec
    np.testing.assert_allclose(whole.spec.costs, whole.costs.mean(axis=0), atol=0.06)


def test_the_trace_is_of_the_detectors_of_the_live_demonstration():
    facts = datasets.about("langid")
    assert datasets.load("langid").names == tuple(DETECTORS) == tuple(facts["nodes"])
    for node, detector in DETECTORS.items():
        assert facts["nodes"][node]["confidence"] == detector.confidence
        assert facts["nodes"][node]["licence"] == detector.licence


def test_langid_is_a_real_cascade():
    """No detector is best for all inputs: the dear one is best, and all together know more."""
    trace = datasets.load("langid")
    right = 1 - trace.wrong().mean(axis=0)
    assert len(set(trace.label.tolist())) == datasets.about("langid")["languages"] == 61
    assert right.argmax() == trace.names.index("lingua")
    assert 0.87 < right.max() < 0.91
    assert trace.costs.mean(axis=0).argmax() == trace.names.index("lingua")
    assert 1 - trace.wrong().all(axis=1).mean() > right.max() + 0.05


def test_confidence_says_something_about_being_right(part):
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


def test_describe_says_how_it_was_made(name):
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
