"""Kernels that were launched before are launched directly, where that is the same kernel."""

import pytest
import torch

from ttamer.torch.cuda.launching import Launcher

GRID = (2, 1, 1)
CONSTANTS = (5, True)


class Kernel:
    """Stands for a kernel of Triton; notes how it is launched."""

    def __init__(self, *, compiles=True, old=False):
        self.launches = []
        self.old = old
        self.compiled = self if compiles else None

    def __getitem__(self, grid):
        def launch(*arguments):
            direct = not any(isinstance(each, torch.Tensor) for each in arguments)
            if direct and self.old:
                raise TypeError("function takes exactly 3 arguments")
            self.launches.append((direct, grid, arguments))
            return self.compiled

        return launch

    @property
    def ways(self):
        return [direct for direct, *_ in self.launches]


def test_a_kernel_launched_before_gets_addresses():
    kernel = Kernel()
    launch = Launcher(kernel)
    one, two = torch.zeros(4), torch.zeros(4)
    launch(GRID, (one, 3), CONSTANTS, "key")
    launch(GRID, (two, 4), CONSTANTS, "key")
    assert kernel.launches == [(False, GRID, (one, 3, 5, True)),
                               (True, GRID, (two.data_ptr(), 4, 5, True))]  # fmt: skip


def test_another_key_is_another_kernel():
    kernel = Kernel()
    launch = Launcher(kernel)
    for key in ("one", "two", "one", "two"):
        launch(GRID, (torch.zeros(4),), CONSTANTS, key)
    assert kernel.ways == [False, False, True, True]


def test_addresses_that_are_aligned_otherwise_are_left_to_triton():
    kernel = Kernel()
    launch = Launcher(kernel)
    values = torch.zeros(8)
    for part in (values[1:], values[1:], values, values, values[1:]):
        launch(GRID, (part,), CONSTANTS, "key")
    assert kernel.ways == [False, False, False, True, False]


@pytest.mark.parametrize(
    "kernel", [Kernel(compiles=False), Kernel(old=True)], ids=["interpreted", "other arguments"]
)
def test_kernels_that_cannot_be_launched_directly_are_left_to_triton(kernel):
    launch = Launcher(kernel)
    for _ in range(3):
        launch(GRID, (torch.zeros(4),), CONSTANTS, "key")
    assert kernel.ways == [False] * 3
