"""Inputs copied to the memory of a graph, with Python in place of the kernel."""

import pytest
import torch

from support.cuda_driver import put_in_place
from ttamer.errors import ArgumentError
from ttamer.torch.cuda import memory as input_memory
from ttamer.torch.cuda.memory import InputMemory


@pytest.fixture
def driver(monkeypatch):
    """Let the kernel, run by Python, copy what lies on the CPU."""
    monkeypatch.setattr(input_memory, "_can_launch", lambda tensors: len(tensors) <= 4)
    return put_in_place(monkeypatch, input_memory)


def texts(rows, *, seed=0):
    """Return numbers of tokens, and which of them count."""
    ids = torch.arange(seed, seed + 16 * rows).reshape(rows, 16)
    return ids, ids % 3 > 0


def same(memory, value):
    """Compare the first rows of a memory with a value."""
    kept = memory.value if isinstance(memory.value, tuple) else (memory.value,)
    value = value if isinstance(value, tuple) else (value,)
    return all(torch.equal(a[: len(b)], b) for a, b in zip(kept, value, strict=True))


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_one_launch_copies_all_tensors_to_the_first_rows(driver, rows):
    memory = InputMemory(texts(5), 5)
    memory.fill(texts(5, seed=7))
    memory.fill(texts(rows, seed=40))
    assert driver.copies == 2
    assert same(memory, texts(rows, seed=40))
    assert torch.equal(memory.value[0][rows:], texts(5, seed=7)[0][rows:])


@pytest.mark.parametrize(
    "other",
    [
        lambda value: value.float(),  # another type
        lambda value: value.t().contiguous().t(),  # another order
        lambda value: torch.cat([value.reshape(-1)[:1], value.reshape(-1)])[1:].view(4, 4),
    ],
    ids=["type", "order", "alignment"],
)
def test_what_is_not_the_same_words_is_copied_by_pytorch(driver, other):
    memory = InputMemory(torch.zeros(4, 4, dtype=torch.float64), 4)
    value = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
    memory.fill(other(value))
    assert same(memory, value)
    assert driver.copies == 0


def test_images_keep_the_order_of_their_channels(driver):
    image = torch.randn(2, 4, 4, 4).to(memory_format=torch.channels_last)
    memory = InputMemory(image, 3)
    memory.fill(image)
    assert memory.value.is_contiguous(memory_format=torch.channels_last)
    assert (driver.copies, same(memory, image)) == (1, True)
    memory.fill(image.contiguous())
    assert (driver.copies, same(memory, image)) == (1, True)


OTHERS = [
    texts(2)[0],  # one tensor of two
    (torch.zeros(2, 1), torch.zeros(2, 1)),
    tuple(each[:, :8] for each in texts(4)),  # strides as in the memory
]


@pytest.mark.parametrize("value", OTHERS, ids=["fewer", "shapes", "strides"])
@pytest.mark.parametrize("launches", [False, True])
def test_inputs_of_other_shapes_are_refused(value, launches, request):
    driver = request.getfixturevalue("driver") if launches else None
    memory = InputMemory(texts(5), 5)
    with pytest.raises(ArgumentError, match=r"the example of the graphs \(5, 16\), \(5, 16\)"):
        memory.fill(value)
    assert driver is None or driver.copies == 0


def test_on_a_cpu_nothing_is_launched():
    memory = InputMemory(texts(3), 3)
    memory.fill(texts(2, seed=9))
    assert same(memory, texts(2, seed=9))
