"""Values and their rows, wherever they live."""

import pytest
import torch
from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch import EarlyExit
from ttamer.torch.devices import check_current, inputs_and_labels, take, to_device

NETWORK = EarlyExit([nn.Identity()], [], nn.Linear(4, 3), input_names=["ids", "mask"])

ROWS = torch.tensor([4, 0, 2])


def read(batch):
    return inputs_and_labels(batch, torch.device("cpu"), NETWORK.input_names)


@pytest.mark.parametrize(
    "shape", [(6,), (6, 3), (6, 3, 4), (6, 3, 4, 5), (6, 1, 1, 1), (6, 2, 1, 1)]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_are_taken_in_the_order_given_and_stay_laid_out_as_they_are(shape, layout):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if len(shape) == 4:
        value = value.contiguous(memory_format=layout)
    taken = take(value, ROWS)
    assert torch.equal(taken, value[ROWS])
    if len(shape) == 4:
        assert taken.is_contiguous(memory_format=layout)


def test_values_are_tensors_or_tuples_of_them():
    moved = to_device([torch.zeros(2), torch.ones(2)], torch.device("meta"))
    assert isinstance(moved, tuple)
    assert {tensor.device.type for tensor in moved} == {"meta"}
    for bad, name in (
        ({"a": torch.zeros(1)}, "dict"),
        ((torch.zeros(1), 3), "tuple"),
        (None, "None"),
    ):
        with pytest.raises(ArgumentError, match=f"a tuple of tensors, not {name}"):
            to_device(bad, torch.device("cpu"))


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"ids": torch.zeros(1), "targets": torch.zeros(1)}, "a dict of ids, targets"),
        ((torch.zeros(1),) * 3, "a tuple of Tensor, Tensor, Tensor"),
        ([torch.zeros(1), [0]], "a list of Tensor, list"),
        (torch.zeros(2, 3), "not a Tensor"),
    ],
)
def test_a_batch_of_a_loader_is_inputs_and_labels(batch, found):
    with pytest.raises(ArgumentError, match=rf"must be \(inputs, labels\).*{found}"):
        read(batch)
    inputs, labels = read([(torch.zeros(1), torch.zeros(1)), torch.ones(1).int()])
    assert (len(inputs), labels.tolist(), labels.dtype) == (2, [1], torch.int64)


def test_a_mapping_is_taken_by_the_names_of_the_network():
    ids, mask, labels = torch.arange(2), torch.ones(2), torch.tensor([1, 0])
    batch = {"mask": mask, "labels": labels, "other": labels, "ids": ids}
    for given in (batch, (batch, labels)):
        inputs, found = read(given)
        assert [ids is inputs[0], mask is inputs[1], found.tolist()] == [True, True, [1, 0]]
    assert to_device({"ids": ids}, torch.device("cpu"), ["ids"]) is ids  # one tensor, no tuple
    with pytest.raises(ArgumentError, match="inputs are ids, and the network also takes mask"):
        to_device({"ids": ids}, torch.device("cpu"), NETWORK.input_names)
    with pytest.raises(ArgumentError, match="or a mapping with ids, mask, not None"):
        to_device(None, torch.device("cpu"), NETWORK.input_names)


@pytest.mark.parametrize("labels", [torch.zeros(3, dtype=torch.int64), torch.zeros(2)])
def test_labels_are_one_class_number_for_each_input(labels):
    with pytest.raises(ArgumentError, match=r"2 inputs, and its labels are .*one class number"):
        read((torch.zeros(2, 4), labels))
    table = torch.full((2, 5), 0.2)  # probabilities of classes
    assert read((torch.zeros(2, 4), table))[1] is table


def test_a_gpu_that_is_not_the_current_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    check_current(torch.device("cuda", 0))
    check_current(torch.device("cpu"))
    with pytest.raises(ArgumentError, match=r"on cuda:1, .* call torch\.cuda\.set_device\(1\)"):
        check_current(torch.device("cuda", 1))
