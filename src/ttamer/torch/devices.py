"""Values on devices: moving them, taking rows of them, and the precision and mode of a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch

from ttamer._numbers import counted
from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from ttamer.torch.early_exit import EarlyExit, Inputs, Value


# What a network computes in: single precision, or PyTorch's mixed precision with bfloat16.
Precision = Literal["fp32", "bf16"]

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


def check_precision(precision: Precision) -> None:
    """Refuse another precision."""
    if precision not in get_args(Precision):
        raise ArgumentError(f'precision must be "fp32" or "bf16", not {precision!r}')


def autocast(
    device: torch.device, precision: Precision, *, cached: bool = True
) -> contextlib.AbstractContextManager[object]:
    """Return the context that computes in a precision; weights are not converted.

    ``cached``: keep converted copies of the weights until the context ends, which a CUDA graph
    would outlive.
    """
    check_precision(precision)
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cached)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run in evaluation mode, so that running means stay, and restore the modes afterwards."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training


def to_device(value: Inputs, device: torch.device, names: Sequence[str] | None = None) -> Value:
    """Return a value on a device; that of a mapping is in the order of the names."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    found = by_position(value, names)
    if isinstance(found, torch.Tensor):
        return found.to(device, non_blocking=True)
    return tuple(tensor.to(device, non_blocking=True) for tensor in found)


def by_position(inputs: Inputs, names: Sequence[str] | None) -> Value:
    """Return inputs as a value, those of a mapping in the order of the names; refuse others."""
    if isinstance(inputs, torch.Tensor):
        return inputs
    found: Any = inputs
    if isinstance(inputs, Mapping) and names is not None:
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ArgumentError(
                f"inputs are {', '.join(map(str, inputs)) or 'empty'}, and the network also takes "
                f"{', '.join(missing)}: give all of {', '.join(names)}"
            )
        found = tuple(inputs[name] for name in names)
    if not isinstance(found, tuple | list) or not all(isinstance(t, torch.Tensor) for t in found):
        by_name = "" if names is None else f", or a mapping with {', '.join(names)}"
        raise ArgumentError(
            f"inputs must be a tensor, or a tuple of tensors{by_name}, not {type(inputs).__name__}"
        )
    return found[0] if isinstance(inputs, Mapping) and len(found) == 1 else tuple(found)


def inputs_and_labels(batch: object, network: EarlyExit) -> tuple[Value, torch.Tensor]:
    """Return the inputs of a loader's batch on the network's device, and its labels as they are."""
    if isinstance(batch, Mapping):
        label = next((name for name in LABEL_NAMES if name in batch), None)
        if label is not None:
            batch = (batch, batch[label])
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], torch.Tensor):
        value = to_device(batch[0], device_of(network), network.input_names)
        return value, _class_numbers(batch[1], rows_of(value))
    found = type(batch).__name__
    if isinstance(batch, tuple | list):
        found = f"a {found} of {', '.join(type(part).__name__ for part in batch)}"
    elif isinstance(batch, Mapping):
        found = f"a {found} of {', '.join(map(str, batch))}"
    raise ArgumentError(
        "a batch of a loader must be (inputs, labels), such as ((ids, mask), labels), or a mapping "
        f"that has labels, all of them tensors, not {found}"
    )


def _class_numbers(labels: torch.Tensor, rows: int) -> torch.Tensor:
    """Return labels as PyTorch's losses take them; a table of probabilities stays as it is."""
    if labels.ndim == 0:
        raise ArgumentError("a batch has one label and no rows: give a DataLoader, not a Dataset")
    if len(labels) != rows or (labels.ndim == 1 and labels.is_floating_point()):
        raise ArgumentError(
            f"a batch has {counted(rows, 'input')}, and its labels are {labels.dtype} of shape "
            f"{tuple(labels.shape)}; give one class number, a whole number, for each input"
        )
    return labels.long() if labels.ndim == 1 else labels


def wait(device: torch.device | None = None) -> None:
    """Wait until a GPU is done: the device given, or the current one if there is any."""
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        torch.cuda.synchronize(device)


def rows_of(value: Value) -> int:
    """Return how many rows a value holds."""
    first = value if isinstance(value, torch.Tensor) else value[0]
    return first.shape[0]


def tensors_of(value: Value) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a value."""
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def take(value: Value, rows: torch.Tensor) -> Value:
    """Return some rows of a value, in the order given; the memory format of images is kept."""
    if isinstance(value, torch.Tensor):
        return _taken(value, rows)
    return cast("Value", tuple(_taken(tensor, rows) for tensor in value))


def _taken(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows of a tensor."""
    ordered = in_memory_order(tensor)
    taken = ordered.index_select(0, rows)
    return taken if ordered is tensor else taken.permute(0, 3, 1, 2)


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return images whose channels come last in memory as a view with them last; others as is.

    Rows selected in another order would be converted back by the next convolution.
    """
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1)
    return tensor
