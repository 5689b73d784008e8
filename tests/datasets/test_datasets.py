"""The traces that come with the package: they load, and are what they are said to be."""

import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from ttamer import datasets
from ttamer.errors import ArgumentError
from ttamer.trace.trace import Trace

DATA = resources.files("ttamer.datasets") / "data"


@pytest.fixture(scope="module", params=datasets.names())
def name(request):
    return request.param


def test_detectors_llms_and_a_network_in_two_megabytes():
    assert datasets.names() == (
        "langid",
        "llm-mmlu",
        "llm-triviaqa",
        "minilm-imdb",
        "routerbench",
    )
    assert sum(len(file.read_bytes()) for file in DATA.iterdir()) < 2_400_000


def test_both_parts_are_the_whole_fit_first(name):
    whole = datasets.load(name)
    parts = [datasets.load(name, part) for part in ("fit", "test")]
    assert [len(part) for part in parts] == list(datasets.about(name)["rows"].values())
    np.testing.assert_array_equal(
        whole.confidence, np.concatenate([part.confidence for part in parts])
    )
    assert whole.digest == Trace.concat(parts).digest


def test_every_row_is_judged_and_finite_and_nothing_was_left_out_in_reading(name):
    trace = datasets.load(name)
    assert (trace.left_out, trace.notes) == ({}, ())
    assert np.isfinite(trace.confidence).all()
    assert (trace.costs > 0).all()
    assert (
        trace.loss[:, -1].mean() < trace.loss[:, 0].mean()
    )  # more money or more layers, fewer mistakes
    about = datasets.about(name)
    assert {"title", "rows", "licence", "cost", "source"} <= about.keys()
    facts = about["nodes"]
    assert trace.names == tuple(facts)
    if name != "langid":
        right = [fact["accuracy"] for fact in facts.values()]
        np.testing.assert_allclose(1 - trace.loss.mean(axis=0), right, atol=6e-5)


@pytest.mark.parametrize("call", [datasets.load, datasets.about])
def test_an_unknown_name_is_answered_with_the_names_there_are(call):
    with pytest.raises(ArgumentError, match=r"'langdi'.*the traces are langid") as caught:
        call("langdi")
    assert caught.value.param == "name"


def test_an_unknown_part_is_answered_with_the_parts_there_are():
    with pytest.raises(ArgumentError, match=r"'train'.*'fit' or 'test'"):
        datasets.load("langid", "train")


def test_reading_needs_numpy_alone():
    code = (
        "import sys; from ttamer import datasets; [datasets.load(n) for n in datasets.names()]"
        "; print([m for m in ('pyarrow', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
