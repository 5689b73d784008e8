"""``ttamer replay`` and the streams that come with the package."""

from __future__ import annotations

import argparse
import json
from importlib import resources

import numpy as np
import pytest

import ttamer as tt
from support.shifting import SPEC, rows_of, stream_of
from ttamer.cli import replay as command
from ttamer.datasets import streams
from ttamer.drift import LoopSettings, serving_of
from ttamer.drift.decisions import decide
from ttamer.drift.figure import draw_replay
from ttamer.drift.replay import replay_stream
from ttamer.errors import ArgumentError, TTamerError


@pytest.fixture(scope="module")
def replayed(serving, settings, before):
    stream = stream_of(1500, 3500, seed=40)
    return replay_stream(serving, stream, settings, share=0.3, thresholds_from=before), stream


def test_the_loop_brings_the_error_back_inside_the_promise(replayed, settings):
    found, _ = replayed
    phases = found.phases()
    assert [phase["serving"] for phase in phases][:3] == [
        "the first policy", "the fallback policy", "a new policy",
    ]  # fmt: skip
    assert 1500 < phases[1]["begin"] < 2300
    assert found.audited_between(1500, phases[1]["begin"]) < 200
    last = found.between(phases[2]["begin"], len(found))
    assert last["adapted"]["error"] <= settings.at_most
    assert last["fixed"]["error"] > settings.at_most
    assert last["adapted"]["cost"] < last["fallback"]["cost"]


def test_until_the_alarm_it_is_the_policy_as_it_is(replayed, serving):
    found, stream = replayed
    end = found.phases()[0]["end"]
    plain = decide(serving.policy, stream)
    np.testing.assert_array_equal(found.arms["adapted"].lost[:end], plain.wrong[:end])
    np.testing.assert_array_equal(found.arms["fixed"].cost, plain.cost)


def test_in_its_phase_the_fallback_policy_alone_decides(replayed):
    """Also in the batch of the alarm: its rows after the alarm are not of this phase."""
    found, _ = replayed
    fallback = found.phases()[1]
    assert fallback["adapted"] == fallback["fallback"]
    alarm = next(event.number for event in found.events if event.kind == "alarm")
    assert fallback["begin"] > alarm + 1  # else this shows nothing


def test_blocks_cover_the_stream_and_agree_with_the_whole(replayed):
    found, _ = replayed
    blocks = found.blocks(700)
    assert [block["begin"] for block in blocks] == list(range(0, 5000, 700))
    assert blocks[-1]["end"] == 5000
    weights = [block["end"] - block["begin"] for block in blocks]
    assert list(found.arms) == ["adapted", "fixed", "retuned", "fallback"]
    for arm in found.arms:
        mean = np.average([block[arm]["error"] for block in blocks], weights=weights)
        assert mean == pytest.approx(found.between(0, 5000)[arm]["error"])
    with pytest.raises(ArgumentError, match="rows is 0"):
        found.blocks(0)
    for begin, end in ((5, 5), (-1, 5), (4000, 5001)):
        with pytest.raises(ArgumentError, match=f"begin is {begin} and end is {end}"):
            found.between(begin, end)
    with pytest.raises(ArgumentError, match="smooth is 0"):
        draw_replay(found, smooth=0)


def test_about_the_share_asked_for_is_audited_and_paid_for(replayed):
    found, stream = replayed
    assert found.audited.mean() == pytest.approx(0.3, abs=0.03)
    every = stream.costs.sum(axis=1).mean()
    assert 0 < found.audit_cost < 0.3 * every * 1.1


def parse(*arguments):
    parser = argparse.ArgumentParser()
    command.add_to(parser.add_subparsers())
    return parser.parse_args(["replay", *map(str, arguments)])


def run(*arguments):
    args = parse(*arguments)
    return args.run(args)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    SPEC.to_file(folder / "cascade.toml")
    rows_of(2500, seed=1).write(folder / "fit.npz")
    rows_of(800, seed=9).write(folder / "held.npz")
    stream_of(800, 1700, seed=50).write(folder / "stream.npz")
    return folder


OPTIONS = ("--error", "0.08", "--audit", "0.4", "--refit-rows", "200", "--shadow-rows", "20")


def test_the_command_prints_and_writes_all_it_announces(files, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    run(files / "stream.npz", "--fit", files / "fit.npz", "--cascade", files / "cascade.toml",
        *OPTIONS, "--plot", tmp_path / "p.png", "--events", tmp_path / "e.jsonl")  # fmt: skip
    out = capsys.readouterr().out
    for text in ("with loop", "without", "re-tuned", "phases of the loop", "the fallback policy",
                 "0 to 500", "certified", "events"):  # fmt: skip
        assert text in out
    assert (tmp_path / "p.png").stat().st_size > 10_000
    lines = (tmp_path / "e.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines][:2] == ["alarm", "fallback"]


def test_the_command_gives_json_and_takes_a_policy(files, capsys, tmp_path):
    policy = tmp_path / "policy.ttamer"
    tt.save(tt.fit(tt.Trace.read(files / "fit.npz", SPEC)), policy)
    run(files / "stream.npz", "--policy", policy, "--reference", files / "held.npz", *OPTIONS,
        "--json", "--block", 1000)  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2500
    assert len(found["blocks"]) == 3
    assert found["promise"]["certified"] is True
    assert {"adapted", "fixed", "fallback"} < set(found["whole"])
    assert found["events"][0]["kind"] == "alarm"
    with pytest.raises(ArgumentError, match=r"--target is 'label', and .* was fitted for 'last'"):
        run(files / "stream.npz", "--policy", policy, "--reference", files / "held.npz",
            "--target", "label")  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give a stream"),
        (("--example", "nothing"), "the streams are"),
        (("--example", "vgg16-to-noise", "--fit", "x"), "has its own rows"),
        (("--example", "vgg16-to-noise", "--cascade", "x"), "remove --fit"),
        (("stream.npz",), "give --fit"),
        (("stream.npz", "--fit", "fit.npz", "--block", "0"), "--block is 0"),
        (("stream.npz", "--policy", "fit.npz"), "is a trace, and a policy is needed"),
        (("stream.npz", "--policy", "p.ttamer", "--cascade", "c.toml"), "remove --cascade"),
        (
            ("stream.npz", "--shadow-rows", "0"),
            "shadow_rows is 0; it must be a whole number from 1",
        ),
        (("stream.npz", "--policy", "missing.ttamer"), "missing.ttamer"),
    ],
)
def test_what_is_missing_is_reported(files, monkeypatch, arguments, text):
    monkeypatch.chdir(files)
    with pytest.raises((TTamerError, OSError)) as error:
        run(*arguments)
    assert text in str(error.value)


def test_a_refit_may_wait_for_more_rows_than_are_kept_by_default(files, capsys):
    run(files / "stream.npz", "--fit", files / "fit.npz", "--refit-rows", "20000", "--json")
    assert json.loads(capsys.readouterr().out)["rows"] == 2500


def test_the_command_lists_the_streams(capsys):
    run("--example", "list")
    assert capsys.readouterr().out.split() == list(streams.names())


@pytest.mark.parametrize("name", streams.names())
def test_streams_have_the_stated_change(name):
    facts, found = streams.about(name), streams.load(name)
    assert len(found.fit) == facts["rows"]["fit"]
    assert found.shift == facts["rows"]["quiet"]
    assert len(found.rows) == found.shift + facts["rows"]["changed"]
    wrong = found.rows.wrong("label")[:, -1]
    assert wrong[found.shift :].mean() > wrong[: found.shift].mean() + 0.03  # a real shift
    assert facts["accuracy"]["after"][found.rows.names[-1]] == pytest.approx(
        1 - wrong[found.shift :].mean(), abs=1e-4
    )
    assert "in the package" in facts["source"]
    folder = resources.files("ttamer.datasets") / "data" / "streams"
    with resources.as_file(folder / f"{name}.parquet") as path:
        assert path.stat().st_size < 2_000_000
    assert streams.load(name, target="last").rows.spec.target == "last"


def graded(rows: int, seed: int) -> tt.Trace:
    """Return rows of two nodes with losses from 0 to 10."""
    generator = np.random.default_rng(seed)
    sure = generator.random((rows, 2))
    loss = np.array([8.0, 2.0]) * (1 - sure) + generator.random((rows, 2))
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 5.0}, order="fixed", max_loss=10.0)
    return tt.Trace(spec, sure, loss=loss)


def test_mean_losses_are_in_the_unit_of_the_losses():
    settings = LoopSettings(at_most=3.0)
    fitted = tt.fit(graded(600, 0), belief="calibrated", states=6)
    serving = serving_of(fitted, graded(400, 1), settings)
    stream = graded(500, 2)
    found = replay_stream(serving, stream, settings)
    plain = tt.evaluate(serving.policy, stream, resamples=0)
    assert found.arms["fixed"].lost.mean() == pytest.approx(plain.error)
    assert found.arms["fallback"].lost.mean() == pytest.approx(stream.losses()[:, -1].mean())
    assert found.to_dict(block=250)["measure"] == "mean loss"


def test_the_command_shows_mean_losses_without_percent(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, rows in (("fit", graded(1000, 0)), ("stream", graded(500, 2))):
        rows.write(tmp_path / f"{name}.npz")
    run(tmp_path / "stream.npz", "--fit", tmp_path / "fit.npz", "--error", "3",
        "--plot", tmp_path / "p.svg")  # fmt: skip
    out = capsys.readouterr().out
    assert "promised mean loss at most 3" in out
    assert "%" not in out
    assert (tmp_path / "p.svg").stat().st_size > 5_000
