"""Networks at 224 pixels: packed weights come back, and smaller networks begin with larger ones."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDERS = [Path(__file__).parents[2] / "experiments" / part for part in ("vision", "text")]


@pytest.fixture(scope="module")
def large():
    for needed in ("torch", "PIL", "safetensors"):
        pytest.importorskip(needed)
    before = set(sys.modules)
    sys.path[:0] = map(str, FOLDERS)
    yield importlib.import_module("large")
    for folder in FOLDERS:
        sys.path.remove(str(folder))
    for name in {"large", "cifar", "packed"} - before:
        del sys.modules[name]


def test_packed_weights_answer_as_before_and_all_files_are_needed(large, tmp_path, monkeypatch):
    import torch

    torch.manual_seed(0)
    one, other = (large.vgg(11, width=8, size=32, ramps="convolutional").eval() for _ in range(2))
    count = sum(each.numel() for each in one.state_dict().values())
    monkeypatch.setattr(large, "MAX_VALUES", 0.6 * count)
    paths = large.write_packed(one, tmp_path / "vgg11-large-packed")
    assert [path.name for path in paths] == ["vgg11-large-packed.npz", "vgg11-large-packed2.npz"]
    large.load_packed(other, paths)
    inputs = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        for mine, theirs in zip(one(inputs), other(inputs), strict=True):
            assert (mine - theirs).norm() < 0.1 * mine.norm()
    with pytest.raises(SystemExit, match="give all files"):
        large.load_packed(other, paths[:1])


def test_a_smaller_network_begins_with_the_blocks_and_ramps_it_shares(large):
    import torch

    source, network = (
        large.vgg(depth, width=4, size=64, ramps="convolutional") for depth in (16, 13)
    )
    large.put_from(network, source)
    assert large.taken(10) == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11]
    for mine, theirs in zip(network.segments, large.taken(10), strict=True):
        assert torch.equal(mine[0].weight, source.segments[theirs][0].weight)
    for mine, theirs in list(zip(network.ramps(), large.taken(10), strict=False))[:5]:
        assert torch.equal(mine[-1].weight, source.exits[theirs][-1].weight)
    assert torch.equal(network.exits[-1][-1].weight, source.exits[-1][-1].weight)


def test_parts_cover_all_images_before_any_comes_again(large):
    import torch

    images = large.Images(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8))
    parts = large.Parts(images, 2, [40, 40, 48], rows=4)
    assert len(parts) == 2
    seen = [[(value.shape[-1], label) for value, label in parts] for _ in range(3)]
    assert [{size for size, _ in part} for part in seen] == [{40}, {40}, {48}]
    first = torch.cat([label for part in seen[:2] for _, label in part])
    assert first.sort().values.tolist() == list(range(8))
