"""The experiments' figures and tables, on a small simulated trace."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import ttamer as tt
from support.traces import chain_trace
from ttamer.evaluation.frontiers import Reference
from ttamer.stats.envelope import lower_envelope

SCRIPT = Path(__file__).parents[2] / "experiments" / "early_exit" / "frontiers.py"
LEFT_OUT = {"margin", "entropy"}


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("early_exit_frontiers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def trace():
    """Three exits that answer, the whole of which costs 1; none says its margin."""
    drawn = chain_trace(400)
    spec = drawn.spec.with_costs({"exit1": 1 / 6, "exit2": 2 / 6, "exit3": 3 / 6})
    said = np.where(drawn.correct, 0, 1).astype(np.int32)
    label = np.zeros(len(drawn), np.int32)
    return dataclasses.replace(
        drawn, spec=spec, cost=None, correct=None, prediction=said, label=label, classes=("a", "b")
    )


@pytest.fixture(scope="module")
def played(script, trace):
    return {
        target: script.play("vgg13-cifar10", trace, target, resamples=20)
        for target in script.TARGETS
    }


@pytest.mark.parametrize("target", ["label", "backbone"])
def test_a_line_for_each_family_and_the_full_network(script, played, target):
    one = played[target]
    other = dataclasses.replace(one, trace="vgg16-cifar10")
    figure = script.draw([one, other], (("vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10"),))
    above, *_ = axes = figure.axes
    assert len(axes) == 4  # two traces, each with its differences below; no gap for the third
    assert [each.get_title(loc="left") for each in axes[:2]] == [
        "VGG-13, CIFAR-10",
        "VGG-16, CIFAR-10",
    ]
    lines = {line.get_label(): line for line in above.lines}
    families = set(script.FAMILIES) - LEFT_OUT
    assert set(one.frontier.families) == families
    assert families | {"full network"} <= set(lines)
    assert not LEFT_OUT & set(lines)
    for family in families:
        costs, errors = map(np.array, one.frontier.curve(family))
        kept = lower_envelope(costs, errors)
        np.testing.assert_array_equal(lines[family].get_xdata(), costs[kept])
        np.testing.assert_array_equal(lines[family].get_ydata(), errors[kept])
    assert lines["full network"].get_xydata().tolist() == [[1.0, one.frontier.reference.error]]
    [legend] = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == families | {"full network"}


def test_a_full_network_worse_than_its_exits_is_drawn_too(script, played):
    worse = dataclasses.replace(
        played["label"].frontier, reference=Reference("exit3", error=0.95, cost=1.0)
    )
    one = dataclasses.replace(played["label"], frontier=worse)
    above = script.draw([one], (("vgg13-cifar10",),)).axes[0]
    low, high = above.get_ylim()
    assert low < min(worse.curve("ttamer")[1])
    assert high > 0.95


def test_below_is_the_difference_to_one_threshold(script, played):
    one = played["label"]
    figure = script.draw([one], (("vgg13-cifar10",),))
    below = {line.get_label(): line for line in figure.axes[1].lines}
    assert not np.any(below["threshold"].get_ydata())
    at, gap = below["paper"].get_xdata()[200], below["paper"].get_ydata()[200]
    errors = [one.frontier.error_at(family, at) for family in ("paper", "threshold")]
    assert gap == pytest.approx(100 * (errors[0] - errors[1]))


@pytest.mark.parametrize("target", ["label", "backbone"])
def test_the_numbers_are_the_frontiers(script, played, target):
    one = played[target]
    found, best = one.frontier, one.best_threshold
    assert best in script.THRESHOLDS
    assert found.area(best) <= min(found.area(f) for f in ("threshold", "threshold-per-exit"))
    for line in one.lines():
        family = line["family"]
        assert line["latency"] == {
            "+0": found.cost_at(family),
            "+0.5": found.cost_at(family, 0.005),
            "+1": found.cost_at(family, 0.01),
            "+2": found.cost_at(family, 0.02),
        }
        assert line["lowest_error"] == min(found.curve(family)[1])
        assert line["area"] == found.area(family)
        assert line["area_to_best_threshold"] == found.area(family) / found.area(best) - 1
        if family == "ttamer":
            assert line["gain_interval"] is None
        else:
            assert line["gain_of_ours"] == 1 - found.area("ttamer") / found.area(family)
            low, high = line["gain_interval"]
            assert low <= high


def test_each_target_is_fitted_and_measured_as_such(trace, played):
    order = np.random.default_rng(0).permutation(len(trace))[len(trace) // 2 :]
    test = trace.take(order)
    assert played["label"].frontier.reference.error == test.wrong("label")[:, -1].mean()
    assert played["backbone"].frontier.reference.error == 0
    assert played["backbone"].frontier.cheapest[1] == test.wrong("last")[:, 0].mean()


def test_the_text_has_the_same(script, played):
    one = played["label"]
    text = script.said(one)
    area = next(line["area"] for line in one.lines() if line["family"] == "ttamer")
    assert f"{100 * area:.2f}%" in text
    assert f"{one.best_threshold} *" in text
    assert "without margin: no node of the trace has margin" in text
    more = one.frontier.error_at("paper", 0.45) - one.frontier.reference.error
    assert f"{100 * more:+.2f}" in script.claim("vision", [one])
    assert "the first exit is at 16.7%" in script.claim("language", [one])


def test_verdicts_are_counted_over_traces_and_targets(script, played):
    rows = {
        line[0]: line for line in map(str.split, script.counted([*played.values()]).split("\n"))
    }
    verdicts = [next(d for d in each.comparisons if d.rival == "paper").verdict for each in
                played.values()]  # fmt: skip
    assert rows["paper"][1:] == [str(verdicts.count(v)) for v in ("win", "tie", "loss")]
    assert sum(map(int, rows["best"][2:])) == len(played)


def test_the_command_from_traces_to_files(script, trace, tmp_path, capsys):
    trace.write(tmp_path / "vgg11-cifar10.npz")
    numbers = tmp_path / "numbers.json"
    places = {"--traces": tmp_path, "--out": tmp_path / "img", "--json": numbers}
    options = [word for option, path in places.items() for word in (option, str(path))]
    script.main(["vision", *options, "--resamples", "5", "--splits", "2"])
    said = capsys.readouterr().out
    assert "vgg13-cifar10: left out" in said
    assert "vgg11-cifar10, error against the backbone" in said
    for target in ("label", "backbone"):
        assert (tmp_path / "img" / f"early-exit-vision-{target}.png").read_bytes()[:4] == b"\x89PNG"
    lines = json.loads(numbers.read_text())
    assert {line["target"] for line in lines} == {"label", "backbone"}


def test_certified_settings_are_means_over_splits(script, trace):
    """The column of the threshold is the mean of what it costs on the test half of each split."""
    found = []
    for split in range(2):
        order = np.random.default_rng(split).permutation(len(trace))
        known, test = (trace.take(part) for part in np.array_split(order, 2))
        policy = tt.fit(known, belief="threshold").for_drop(script.DROP)
        found.append(tt.evaluate(policy, test, resamples=0).cost)
    last = script.promised({"here": trace}, 2).splitlines()[-1]
    assert f"{100 * np.mean(found):.1f}% ± " in last.rpartition("  ")[2]


def test_no_trace_at_all(script, tmp_path):
    with pytest.raises(SystemExit, match="nothing to draw"):
        script.main(["language", "--traces", str(tmp_path)])
