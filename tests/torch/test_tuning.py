"""Which policy to run: predictions from measured parts, then timings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.exit_networks import adding_network, evidence
from ttamer.errors import ArgumentError
from ttamer.torch import tuning
from ttamer.torch.profiling import Profile
from ttamer.torch.runner import Runner
from ttamer.torch.tracing import trace_of
from ttamer.torch.tuning import Tuning, predicted, recommend, search
from ttamer.trace.losses import complete_losses


def made(asking, *, batch=4, segment=1.0):
    """A profile in which a segment takes as long for any number of rows, or in proportion."""
    groups = tuple(sorted({1, 2, batch}))
    times = tuple(segment * size / batch for size in groups)
    return Profile(
        names=("exit1", "exit2", "exit3", "full"),
        sizes=(batch,),
        groups=groups,
        segments=(times,) * 4,
        asking=((asking,),) * 3 + ((0.0,),),
        per_call=(0.0,),
        device="a test",
        precision="fp32",
        graphs=False,
    )


@pytest.fixture(scope="module")
def trace():
    return trace_of(adding_network(), [evidence(1000, seed=0)])


@pytest.fixture(scope="module")
def own(trace):
    """The error of the network itself."""
    return float(trace.loss[:, -1].mean())


@pytest.fixture(scope="module")
def cheap(trace, own):
    """What is found with ramps that cost little, for two points more error."""
    return search(trace, made(0.01), 4, max_error=own + 0.02)


def test_what_a_batch_takes_is_predicted_by_hand():
    asked = np.array([[True, False, False, False], [True, False, False, True]])
    last = np.array([0, 3])
    # One input: the first segment and its ramp, and with chance 1/2 the three others.
    assert predicted(asked, last, made(0.5, batch=1), 1) == pytest.approx(1 + 0.5 + 0.5 * 3)
    # Four: two are left on average, but none with chance 1/16.
    some = 1 - 0.5**4
    group = 0.5 * 4 / some  # 2.13 rows, for which a group of 4 is needed
    assert group > 2
    assert predicted(asked, last, made(0.5), 4) == pytest.approx(1 + 0.5 + some * 3)
    # What a call adds once counts whatever is asked.
    more = replace(made(0.5, batch=1), per_call=(0.25,))
    assert predicted(asked, last, more, 1) == pytest.approx(0.25 + 1 + 0.5 + 0.5 * 3)


def test_cheap_ramps_are_used_and_expensive_ones_are_not(trace, own, cheap):
    assert cheap[0].seconds < 4.0
    assert cheap[0].ramps
    assert cheap == sorted(cheap, key=lambda each: each.seconds)
    assert all(each.error <= own + 0.02 for each in cheap)
    assert all(each.error == each.policy.error for each in cheap)  # by cross-fitting
    assert len({each.ramps for each in cheap}) == len(cheap)
    assert search(trace, made(0.01), 4, max_error=-1.0) == []
    expensive = search(trace, made(50.0), 4, max_error=own)
    assert all(each.seconds > 4.0 or not each.ramps for each in expensive)


def test_all_ramps_are_tried_together_too(trace, own, monkeypatch):
    monkeypatch.setattr(tuning, "MAX_RAMPS", 1)
    lines = []
    found = search(trace, made(0.01), 4, max_error=own + 0.02, progress=lines.append)
    assert lines[-1] == "ramps exit1, exit2, exit3"
    assert max(len(each.ramps) for each in found) > 1
    monkeypatch.setattr(tuning, "MANY_RAMPS", 2)
    search(trace, made(0.01), 4, max_error=own + 0.02, progress=lines.append)
    assert "ramps exit2, exit3" in lines  # of many, some spread evenly


def test_a_cautious_search_keeps_standard_errors_to_spare(trace, own, cheap):
    cautious = search(trace, made(0.01), 4, max_error=own + 0.02, caution=1)
    assert cautious[0].seconds >= cheap[0].seconds
    assert all(each.error + each.spread <= own + 0.02 for each in cautious)
    some = next(each for each in cheap if each.ramps)
    fewer = trace.with_spec(made(0.01).costs(4).spec())
    fewer = fewer.restrict(some.policy.spec.names)
    wrong = fewer.loss.astype(float)
    more = wrong[np.arange(len(wrong)), some.policy.play(fewer).answer] - wrong[:, -1]
    assert some.spread == pytest.approx(more.std() / len(more) ** 0.5)


def test_policies_are_also_fitted_to_the_answers_of_the_network(trace):
    measured, ramps = made(0.01), (0, 1, 2)
    own, agreeing = (
        tuning.fitted_for(trace, measured, 4, ramps, target=target) for target in (None, "last")
    )
    full = trace.with_spec(measured.costs(4).spec())
    right = full.loss[:, -1].mean()
    for each in agreeing:
        played = each.policy.play(full)
        error = full.loss[np.arange(len(full)), played.answer].mean()
        changed = complete_losses(full, "last")[np.arange(len(full)), played.answer].mean()
        assert each.error == pytest.approx(error + each.policy.error - changed)
    best = min(x.seconds for x in own + agreeing if x.error + 2 * x.spread <= right)
    assert search(trace, measured, 4, max_error=float(right), caution=2)[0].seconds <= best
    policy, network, some = (
        agreeing[len(agreeing) // 2].policy,
        adding_network(),
        evidence(50, seed=3),
    )
    answers = Runner(network, policy)(some[0])
    replay = policy.play(trace_of(network, [some]).with_spec(full.spec))
    assert answers.exit.tolist() == replay.answer.tolist()
    assert answers.asked.tolist() == replay.asked.tolist()


@pytest.fixture
def slow(monkeypatch):
    """Replace the clock: seconds per batch, by what is run."""
    times = {}

    def fake(runs, batches, **_):
        for run in runs:
            run(batches[0])
        kinds = ["ours" if isinstance(run, Runner) else "full" for run in runs]
        return np.array([np.broadcast_to(times[kind], 40) for kind in kinds])

    monkeypatch.setattr(tuning, "time_each_batch", fake)
    return times


def test_the_fastest_policy_is_recommended(trace, slow):
    network, (inputs, labels) = adding_network(), evidence(64, seed=3)
    network.input_names = ("inputs",)
    slow |= {"ours": 1.0, "full": 2.0}
    lines = []
    found = recommend(
        network,
        trace,
        {"inputs": inputs},
        batch=4,
        more_error=0.05,
        measured=made(0.01),
        progress=lines.append,
    )
    assert found.speed_up == 2.0
    assert found.runner is not None
    assert found.error <= found.full_error + 0.05
    logits = found.run({"inputs": inputs[:4]})
    assert torch.equal(logits, found.runner(inputs[:4]).logits)
    wrong = (torch.cat([found.run(part) for part in inputs.split(4)]).argmax(1) != labels).float()
    assert wrong.mean() <= found.full_error + 0.15
    assert any("ramps exit" in line for line in lines)
    assert repr(found).startswith(f"Tuning({', '.join(found.runner.reached)}: 2.00 times")


NOISE = np.random.default_rng(0).normal(0, 0.6, 40)
NOISE -= NOISE.mean()


@pytest.mark.parametrize("ours", [1.99, 1.85 + NOISE, 2.2], ids=["share", "noise", "slower"])
def test_the_network_itself_is_recommended_where_nothing_clearly_beats_it(
    trace, cheap, slow, ours, monkeypatch
):
    monkeypatch.setattr(tuning, "search", lambda *_, **__: cheap)
    network, (inputs, _) = adding_network().eval(), evidence(16, seed=3)
    slow |= {"ours": ours, "full": 2.0}
    found = recommend(network, trace, inputs, batch=4, more_error=0.05, measured=made(0.01))
    assert found.runner is None
    assert found.policy is None
    assert found.speed_up == 1.0
    assert found.error == found.full_error
    assert torch.equal(found.run(inputs), network.full(inputs))


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (3, {}, "inputs has 3 rows to time on"),
        (4, {"batch": 0}, "batch is 0; it must be a whole number"),
        (4, {"more_error": float("nan")}, "more_error is nan; it must be a finite number"),
        (4, {"caution": float("inf")}, "caution is inf; it must be a finite number"),
    ],
)
def test_what_cannot_be_recommended_for_is_refused(trace, rows, options, text):
    with pytest.raises(ArgumentError, match=text):
        recommend(adding_network(), trace, evidence(rows, seed=3)[0], **{"batch": 4, **options})


def test_it_profiles_by_itself(trace):
    inputs = evidence(16, seed=4)[0]
    found = recommend(adding_network(), trace, inputs, batch=8, more_error=0.05)
    assert len(found.seconds) == len(found.full_seconds) == 6
    assert found.seconds.min() > 0


def test_the_slowest_hundredth_is_left_out_of_the_mean():
    times, twice = np.array([*[1.0] * 198, 9.0, 9.0]), np.full(200, 2.0)
    assert Tuning(lambda x: x, None, None, 0.0, 0.0, times, twice).speed_up == 2.0


def test_noise_that_all_runs_share_does_not_count():
    its = 2.0 + NOISE
    assert tuning.clearly_faster(0.9 * its, its)
    assert not tuning.clearly_faster(0.9 * its[::-1], its)
    one_slow = np.where(np.arange(40) == 7, 500.0, 1.0)
    assert tuning.clearly_faster(one_slow, np.full(40, 2.0))


def test_each_batch_is_run_by_all_before_the_next():
    ran = []
    runs = [lambda batch: len(batch), lambda batch: -len(batch)]
    seconds = tuning.time_each_batch(
        [lambda batch, run=run: ran.append(run(batch)) for run in runs],
        [torch.zeros(3), torch.zeros(2)],
        repeats=2,
    )
    assert ran[-8:] == [3, -3, 2, -2] * 2
    assert seconds.shape == (2, 4)
