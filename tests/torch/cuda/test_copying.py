"""Inputs are copied to memory, and by one kernel rows of tensors, by Triton's interpreter."""

import pytest
import torch

from ttamer.errors import ArgumentError
from ttamer.torch.cuda import memory
from ttamer.torch.cuda.memory import copy_rows, fill, like

ROWS = torch.tensor([4, 7, 2, -1, -1])
POSITIONS = torch.tensor([1, 3, 4, 0, 0])


def values(seed):
    """Return tensors of five rows, as blocks of networks return them."""
    generator = torch.Generator().manual_seed(seed)

    def some(*shape):
        return torch.randn(shape, generator=generator)

    images = some(5, 3, 4, 4).to(memory_format=torch.channels_last)
    return {
        "hidden": some(5, 7, 48),
        "half": some(5, 9, 3).bfloat16(),
        "mask": some(5, 13) > 0,
        "long": some(5, 2050),
        "numbers": torch.randint(9, (5,), generator=generator),
        "shared": some(1, 6, 4).expand(5, -1, -1),
        "images": images,
        "transposed": some(5, 4, 6).transpose(1, 2),
        "empty": some(5, 0),
    }


def buffer_like(tensor):
    """Return a buffer with one row more than a value has."""
    kept = torch.zeros((6, *tensor.shape[1:]), dtype=tensor.dtype)
    images = tensor.ndim == 4
    return kept.to(memory_format=torch.channels_last) if images else kept


@pytest.mark.parametrize("positions", [POSITIONS, None], ids=["gathered", "moved"])
@pytest.mark.parametrize("name", [*values(0), "all"])
def test_rows_that_count_are_copied(name, positions):
    found = values(1)
    sources = list(found.values()) if name == "all" else [found[name]]
    targets = [buffer_like(each) for each in sources]
    listed = torch.zeros(6, dtype=torch.int64)
    copy_rows(sources, targets, ROWS, positions=positions, listed=listed)
    assert listed.tolist() == [4, 7, 2, -1, -1, 0]
    where = torch.arange(3) if positions is None else positions[:3]
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target[:3], source[where])
        assert not target[5].any()


def test_padding_is_not_copied(monkeypatch):
    found = values(2)
    launched, kernel = [], memory._copy_rows

    class Counted:
        def __getitem__(self, grid):
            launched.append(grid)
            return kernel[grid]

    monkeypatch.setattr(memory, "_copy_rows", Counted())
    names = ("hidden", "half", "mask", "shared")
    sources = [found[name] for name in names]
    targets = [buffer_like(each) for each in sources]
    copy_rows(sources, targets, ROWS, positions=POSITIONS)
    assert not any(target[3:].any() for target in targets)
    assert len(launched) == 1


def texts(rows, *, seed=0):
    """Return numbers of tokens, and which of them count."""
    ids = torch.arange(seed, seed + 16 * rows).reshape(rows, 16)
    return ids, ids % 3 > 0


def test_inputs_are_copied_to_the_first_rows():
    kept = like(texts(5), 5)
    for rows, seed in ((5, 7), (3, 40)):
        fill(kept, texts(rows, seed=seed))
    for part, wanted, before in zip(kept, texts(3, seed=40), texts(5, seed=7), strict=True):
        assert torch.equal(part, torch.cat([wanted, before[3:]]))
    images = torch.randn(2, 4, 4, 4).to(memory_format=torch.channels_last)
    kept = like(images, 3)
    for value in (images, images.contiguous(), images.double()):
        fill(kept, value)
        assert torch.equal(kept[:2], images)
    assert kept.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "value",
    [texts(2)[0], (torch.zeros(2, 1), torch.zeros(2, 1)), tuple(x[:, :8] for x in texts(4))],
    ids=["fewer", "shapes", "strides"],
)
def test_inputs_of_other_shapes_are_refused(value):
    with pytest.raises(ArgumentError, match=r"the example of the graphs \(5, 16\), \(5, 16\)"):
        fill(like(texts(5), 5), value)
