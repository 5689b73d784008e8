"""Values on devices: moving them, taking rows of them, and the precision and mode of a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ttamer._checks import counted
from ttamer.errors import ArgumentError

# What a network computes in: single precision, or PyTorch's mixed precision with bfloat16.
Precision = Literal["fp32", "bf16"]
# What blocks pass on: the batch is the first dimension of every tensor in it.
Value = Tensor | tuple[Tensor, ...]
# What a network takes: a value, or a mapping from the names of its inputs to tensors.
Inputs = Value | Mapping[str, Tensor]
# What a loader gives: inputs and labels, or a mapping that holds both by their names.
Batch = tuple[Inputs, Tensor] | Mapping[str, Tensor]
# The names of labels in the batches of transformers.
LABEL_NAMES = ("labels", "label", "label_ids")


def device_of(network: nn.Module) -> torch.device:
    """Return the device of a network's first parameter; the CPU where it has none."""
    parameter = next(network.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def check_current(device: torch.device) -> None:
    """Refuse a GPU that is not the current one: kernels and graphs are for that."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise ArgumentError(
            f"the network is on {device}, and the current device is "
            f"cuda:{torch.cuda.current_device()}: call torch.cuda.set_device({device.index}) before"
        )


def autocast(
    device: torch.device, precision: Precision, *, cached: bool = True
) -> contextlib.AbstractContextManager[object]:
    """Return the context that computes in a precision; weights are not converted.

    ``cached``: keep converted copies of the weights until the context ends, which a CUDA graph
    would outlive.
    """
    if precision not in get_args(Precision):
        raise ArgumentError(f'precision must be "fp32" or "bf16", not {precision!r}')
    if precision == "fp32":  # not autocast switched off, which would undo a caller's own
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cached)


def to_device(value: Inputs, device: torch.device, names: Sequence[str] | None = None) -> Value:
    """Return a value on a device; that of a mapping is in the order of the names."""
    return changed(by_position(value, names), lambda tensor: tensor.to(device, non_blocking=True))


def by_position(inputs: Inputs, names: Sequence[str] | None) -> Value:
    """Return inputs as a value, those of a mapping in the order of the names; refuse others."""
    if isinstance(inputs, Tensor):
        return inputs
    tensors: Any = inputs
    if isinstance(inputs, Mapping) and names is not None:
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ArgumentError(
                f"inputs are {', '.join(map(str, inputs)) or 'empty'}, and the network also takes "
                f"{', '.join(missing)}: give all of {', '.join(names)}",
                param="inputs",
            )
        tensors = tuple(inputs[name] for name in names)
    if not isinstance(tensors, tuple | list) or not all(isinstance(t, Tensor) for t in tensors):
        by_name = "" if names is None else f", or a mapping with {', '.join(names)}"
        raise ArgumentError(
            f"inputs must be a tensor, or a tuple of tensors{by_name}, not {type(inputs).__name__}",
            param="inputs",
        )
    return tensors[0] if isinstance(inputs, Mapping) and len(tensors) == 1 else tuple(tensors)


def inputs_and_labels(
    batch: object, device: torch.device, names: Sequence[str] | None
) -> tuple[Value, Tensor]:
    """Return the inputs of a loader's batch on a device, and its labels where they are."""
    if isinstance(batch, Mapping):
        label = next((name for name in LABEL_NAMES if name in batch), None)
        if label is not None:
            batch = (batch, batch[label])
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        value = to_device(batch[0], device, names)
        return value, _class_numbers(batch[1], rows_of(value))
    is_several = isinstance(batch, tuple | list)
    kinds = [type(part).__name__ for part in batch] if is_several else batch  # type: ignore[attr-defined]
    parts = f" of {', '.join(map(str, kinds))}" if isinstance(kinds, list | Mapping) else ""
    raise ArgumentError(
        "a batch of a loader must be (inputs, labels), such as ((ids, mask), labels), or a mapping "
        f"that has labels, all of them tensors, not a {type(batch).__name__}{parts}",
        param="loader",
    )


def _class_numbers(labels: Tensor, rows: int) -> Tensor:
    """Return labels as PyTorch's losses take them; a table of probabilities stays as it is."""
    if labels.ndim == 0:
        raise ArgumentError(
            "a batch has one label and no rows: give a DataLoader, not a Dataset", param="loader"
        )
    if len(labels) != rows or (labels.ndim == 1 and labels.is_floating_point()):
        raise ArgumentError(
            f"a batch has {counted(rows, 'input')}, and its labels are {labels.dtype} of shape "
            f"{tuple(labels.shape)}; give one class number, a whole number, for each input",
            param="loader",
        )
    return labels.long() if labels.ndim == 1 else labels


def wait(device: torch.device | None = None) -> None:
    """Wait until a GPU is done: the device given, or the current one if there is any."""
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        torch.cuda.synchronize(device)


def rows_of(value: Value) -> int:
    """Return how many rows a value holds."""
    return tensors_of(value)[0].shape[0]


def tensors_of(value: Value) -> tuple[Tensor, ...]:
    """Return the tensors of a value."""
    return (value,) if isinstance(value, Tensor) else tuple(value)


def changed(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Return a value with each of its tensors changed."""
    return change(value) if isinstance(value, Tensor) else tuple(map(change, value))


def take(value: Value, rows: Tensor) -> Value:
    """Return some rows of a value in their order; the memory format of images does not change."""

    def selected(tensor: Tensor) -> Tensor:
        ordered = in_memory_order(tensor)
        some = ordered.index_select(0, rows)
        return some if ordered is tensor else some.permute(0, 3, 1, 2)

    return changed(value, selected)


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return images whose channels come last in memory as a view with them last; others as is.

    Rows selected in another order would be converted back by the next convolution.
    """
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1)
    return tensor
