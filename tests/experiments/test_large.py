"""Networks at 224 pixels: how they begin, are trained by the clock, are packed and come back."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDERS = [Path(__file__).parents[2] / "experiments" / part for part in ("vision", "text")]
MODULES = ("large", "large_packed", "large_begin", "large_train")


@pytest.fixture(scope="module")
def large():
    for needed in ("torch", "PIL", "safetensors"):
        pytest.importorskip(needed)
    before = set(sys.modules)
    sys.path[:0] = map(str, FOLDERS)
    found = [importlib.import_module(name) for name in MODULES]
    yield SimpleNamespace(base=found[0], packed=found[1], begin=found[2], train=found[3])
    for folder in FOLDERS:
        sys.path.remove(str(folder))
    for name in {*MODULES, "cifar", "packed"} - before:
        del sys.modules[name]


@pytest.fixture
def network(large):
    import torch

    torch.manual_seed(0)
    return large.base.vgg(11, width=8, size=32, ramps="convolutional").eval()


@pytest.fixture
def images(large):
    import torch

    labels = torch.arange(10)
    return large.base.Images(torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8), labels)


def test_packed_weights_answer_as_before_and_all_files_are_needed(
    large, network, tmp_path, monkeypatch
):
    import torch

    other = large.base.vgg(11, width=8, size=32, ramps="convolutional").eval()
    count = sum(each.numel() for each in network.state_dict().values())
    monkeypatch.setattr(large.packed, "MAX_VALUES", 0.6 * count)
    paths = large.packed.write_packed(network, tmp_path / "vgg11-large-packed")
    assert [path.name for path in paths] == ["vgg11-large-packed.npz", "vgg11-large-packed2.npz"]
    assert large.packed.files_of("vgg11", tmp_path) == paths
    large.packed.load_packed(other, paths)
    inputs = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        for mine, theirs in zip(network(inputs), other(inputs), strict=True):
            assert (mine - theirs).norm() < 0.1 * mine.norm()
    with pytest.raises(SystemExit, match="give all files"):
        large.packed.load_packed(other, paths[:1])


def test_a_smaller_network_begins_with_the_blocks_and_ramps_it_shares(large):
    import torch

    source, network = (
        large.base.vgg(depth, width=4, size=64, ramps="convolutional") for depth in (16, 13)
    )
    large.begin.put_from(network, source)
    assert large.begin.taken(10) == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11]
    for mine, theirs in zip(network.segments, large.begin.taken(10), strict=True):
        assert torch.equal(mine[0].weight, source.segments[theirs][0].weight)
    for mine, theirs in list(zip(network.ramps(), large.begin.taken(10), strict=False))[:5]:
        assert torch.equal(mine[-1].weight, source.exits[theirs][-1].weight)
    assert torch.equal(network.exits[-1][-1].weight, source.exits[-1][-1].weight)


def test_shuffled_images_all_come_before_any_comes_again(large, images):
    import torch

    stream = large.base.Shuffled(images, 2)
    drawn = [stream.draw(size) for size in (40, 40, 40, 48, 48)]
    assert [value.shape[-1] for value, _ in drawn] == [40, 40, 40, 48, 48]
    assert torch.cat([label for _, label in drawn]).sort().values.tolist() == list(range(10))


def test_a_step_trains_the_head_and_some_ramps_and_the_backbone_by_a_share(large, network):
    import torch

    value, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    learner = large.train.Learner(network, large.train.Plan(rate=0.1, ramps=2))
    learner.step(value, labels, 0.0)
    asked = [ramp for ramp in network.ramps() if ramp[-1].weight.grad is not None]
    assert len(asked) == 2
    assert network.exits[-1][-1].weight.grad is not None
    first, ramp = network.segments[0], network.exits[0]
    whole, part = (
        torch.autograd.grad(logits.sum(), first[0].weight)[0]
        for logits in (ramp(first(value)), large.train._apart(ramp, first(value), 0.25))
    )
    torch.testing.assert_close(part, 0.25 * whole)


def test_the_clock_decides_sizes_and_the_end_and_a_checkpoint_goes_on(
    large, network, images, tmp_path, monkeypatch
):
    seconds = iter(range(10**6))
    monkeypatch.setattr(large.train.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(large.train, "CHECKED", 1)
    monkeypatch.setattr(large.train, "SAVED", 5)
    plan = large.train.Plan(rate=0.01, batch=5, sizes=((0.5, 32), (1.0, 48)))
    path, said = tmp_path / "a.ckpt", []

    def learner():
        return large.train.Learner(network, plan)

    one = learner()
    seen = large.train.learn(one, images, 224, 40, checkpoint=path, say=said.append)
    assert {each["side"] for each in seen} == {32, 48}
    assert len(said) == len(seen)
    assert 0 < one.steps <= 20  # the clock is read twice a step
    resumed = learner()
    resumed.resume(path)
    assert 30 < resumed.spent <= one.spent
    assert 0 < resumed.steps <= one.steps
    before = resumed.steps
    large.train.learn(resumed, images, 224, 60, checkpoint=path, say=said.append)
    assert resumed.steps > before
    before, stopped = resumed.steps, iter([False, True])
    large.train.learn(
        resumed, images, 224, 10**4, checkpoint=path, say=said.append, stopped=lambda: next(stopped)
    )
    assert resumed.steps <= before + 2
    assert said[-1].startswith("stopped at")
    other = large.train.Learner(network, large.train.Plan(rate=0.02))
    with pytest.raises(SystemExit, match="another plan"):
        other.resume(path)


def test_ramps_that_are_right_less_often_go_back(large, network, images, monkeypatch):
    import torch

    found = iter(
        [dict.fromkeys(network.names, 0.5), {**dict.fromkeys(network.names, 0.4), "conv2": 0.6}]
    )
    seconds = iter(range(10**6))
    monkeypatch.setattr(large.train.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(large.train, "accuracies", lambda *_: next(found))
    before = [ramp[-1].weight.detach().clone() for ramp in network.ramps()]
    held = large.base.Batches(images, 32)
    large.train.learn_ramps(network, images, held, large.train.Plan(rate=0.1), 3)
    pairs = zip(network.ramps(), before, strict=True)
    kept = [torch.equal(ramp[-1].weight, old) for ramp, old in pairs]
    assert kept == [True, False, *[True] * (len(kept) - 2)]
