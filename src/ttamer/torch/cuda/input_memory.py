"""The memory that a CUDA graph reads its inputs from.

All tensors of a batch are copied there by one kernel where they lie on the same device in the same
order. PyTorch's copies are one launch for each tensor, which is part of the latency of small
batches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from ttamer.errors import ArgumentError
from ttamer.torch.cuda.driver import MAX_BLOCKS, THREADS, current_stream, done, driver, kernels
from ttamer.torch.devices import tensors_of

if TYPE_CHECKING:
    from torch import Tensor


# The largest number of tensors that one kernel copies.
MAX_TENSORS = 4
# The bytes that a thread copies at once: addresses and sizes are multiples of this.
WORD = 16


class InputMemory:
    """Memory for batches of up to a number of rows.

    Args:
        value: A batch, on the device of the graph.
        rows: The largest number of rows.
    """

    def __init__(self, value: Any, rows: int) -> None:
        self.value = like(value, rows)
        """What the graph reads."""
        self._targets = tensors_of(self.value)
        self._copy = _Copy(self._targets) if _can_launch(self._targets) else None

    def fill(self, value: Any) -> None:
        """Copy a batch, which may be on another device, to the first rows.

        Args:
            value: Inputs of the shapes of the example, with at most as many rows as there is
                memory for.

        Raises:
            ArgumentError: The inputs have other shapes, or are more or fewer tensors.
        """
        sources = tensors_of(value)
        if self._copy is not None and self._copy(sources):
            return
        if [each.shape[1:] for each in sources] != [each.shape[1:] for each in self._targets]:
            raise ArgumentError(
                f"the inputs have shapes {_shapes(sources)}, and the example of the graphs "
                f"{_shapes(self._targets)}, whose first number may be smaller: pad the inputs, or "
                "use Runner, which takes any shape"
            )
        rows = sources[0].shape[0]
        for source, target in zip(sources, self._targets, strict=True):
            (target if target.shape[0] == rows else target[:rows]).copy_(source, non_blocking=True)


class _Copy:
    """The kernel that copies up to four tensors, with its arguments in place."""

    def __init__(self, targets: Sequence[Tensor]) -> None:
        self._targets = targets
        self._device = targets[0].device
        self._words: dict[Any, int] = {}
        self._arguments = (ctypes.c_uint64 * (3 * MAX_TENSORS))()
        start, step = ctypes.addressof(self._arguments), ctypes.sizeof(ctypes.c_uint64)
        places = [start + step * k for k in range(len(self._arguments))]
        self._places = (ctypes.c_void_p * len(places))(*places)
        for k, target in enumerate(targets):
            self._arguments[3 * k + 1] = target.data_ptr()

    def __call__(self, sources: Sequence[Tensor]) -> bool:
        """Copy tensors, or return that one of them cannot be copied so."""
        if len(sources) != len(self._targets):
            return False
        most = 0
        for k, source in enumerate(sources):
            key = (k, source.shape, source.stride(), source.dtype, source.device)
            words = self._words.get(key)
            if words is None:
                words = self._words[key] = self._counted(source, self._targets[k])
            place = source.data_ptr()
            if not words or place % WORD:
                return False
            self._arguments[3 * k], self._arguments[3 * k + 2] = place, words
            most = max(most, words)
        index = self._device.index
        blocks = min(-(-most // THREADS), MAX_BLOCKS)
        done(
            driver().cuLaunchKernel(
                kernels(index)["copy"], blocks, 1, 1, THREADS, 1, 1, 0,
                current_stream(index), ctypes.addressof(self._places), 0,
            )
        )  # fmt: skip
        return True

    def _counted(self, source: Tensor, target: Tensor) -> int:
        """Return how many words are to be copied; 0 where it takes more than copying words."""
        first = target[: source.shape[0]]
        size = source.numel() * source.element_size()
        alike = (source.shape, source.stride(), source.dtype, source.device) == (
            first.shape, first.stride(), first.dtype, self._device,
        )  # fmt: skip
        return 0 if not alike or size % WORD or target.data_ptr() % WORD else size // WORD


def like(value: Any, rows: int) -> Any:
    """Return memory for some rows of a value, in its memory format."""

    def memory(tensor: Tensor) -> Tensor:
        shape = (rows, *tensor.shape[1:])
        kept = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            kept = kept.to(memory_format=torch.channels_last)
        return kept

    parts = tuple(memory(tensor) for tensor in tensors_of(value))
    return parts[0] if isinstance(value, torch.Tensor) else parts


def _can_launch(tensors: Sequence[Tensor]) -> bool:
    """Return whether one kernel can copy to these tensors."""
    return (
        0 < len(tensors) <= MAX_TENSORS
        and tensors[0].is_cuda
        and find_spec("cuda") is not None
        and find_spec("cuda.bindings") is not None
    )


def _shapes(tensors: Sequence[Tensor]) -> str:
    """Return shapes for an error message."""
    return ", ".join(str(tuple(each.shape)) for each in tensors)
