"""Launching a Triton kernel again without Triton's look at its arguments.

At every launch Triton inspects all arguments, to find the kernel that is compiled for their types,
values and alignments. With dozens of arguments that takes longer than the launch itself, and where
the host's launches are what takes the time, it is part of the latency. A :class:`Launcher`
remembers the compiled kernel by a key that the caller gives, and passes plain addresses.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

# Triton compiles for addresses that are multiples of this many bytes, and for others.
ALIGNMENT = 16


def block_for(count: int, at_least: int = 1) -> int:
    """Return the size of a block of numbers in a kernel: a power of two.

    Triton's own function for this takes microseconds, which count at every launch.

    >>> [block_for(count) for count in (1, 2, 3, 768)], block_for(3, at_least=128)
    ([1, 2, 4, 1024], 128)
    """
    return max(1 << (count - 1).bit_length(), at_least)


class Launcher:
    """Launches one kernel, directly where it was launched with the same key before."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Any] = {}
        self._direct = True

    def __call__(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[Any],
        constants: Sequence[Any],
        key: Hashable,
    ) -> None:
        """Launch the kernel on the current stream.

        ``constants`` are the last arguments, those that are compiled into the kernel. ``key``
        covers them, the types of the tensors, and numbers that the kernel is specialised to.
        """
        places, bits = [], 0
        for each in arguments:
            place = each
            if isinstance(each, Tensor):
                place = each.data_ptr()
                bits |= place
            places.append(place)
        compiled = None if bits % ALIGNMENT else self._compiled.get(key)
        if compiled is not None:
            try:
                compiled[grid](*places, *constants)
            except TypeError:  # before Triton 3.3 compiled kernels take other arguments
                self._direct = False
                self._compiled.clear()
            else:
                return
        found = self._kernel[grid](*arguments, *constants)
        if found is not None and self._direct and not bits % ALIGNMENT:
            self._compiled[key] = found
