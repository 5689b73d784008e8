"""CUDA graphs that branch on the device: which graph runs next is read from its memory.

The host launches once and does not wait. PyTorch captures graphs without branches; each is made
ready for launches *from the device*. A small kernel at the end of a branch launches the next one:
it reads the result of a decision and looks the case up in a table. The driver's conditional nodes
could do the same, but take time also where nothing follows any more.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from ttamer.errors import ArgumentError
from ttamer.torch.cuda.driver import (
    MAX_BLOCKS,
    THREADS,
    check_version,
    current_stream,
    done,
    driver,
    kernels,
)

if TYPE_CHECKING:
    from torch import Tensor


# The case in which nothing follows.
NONE = -1
# The driver's flag of graphs that are launched from the device.
FROM_DEVICE = 4

_unused: list[Any] = []


@dataclass(frozen=True, eq=False)
class Branch:
    """Graphs that run one after another, and what follows them."""

    graphs: tuple[torch.cuda.CUDAGraph, ...]
    """Graphs that PyTorch has captured and kept."""
    cases: Tensor | None
    """Shape (exits + 1, rows + 1): by the next exit and the rows that continue, the branch of the
    next step, or ``NONE``; ``None`` in the last step."""


class BranchingGraph:
    """A graph, and steps of which each runs one branch that is chosen on the device.

    Args:
        first: The graph that runs first, and what follows it.
        steps: The branches of each step.
        result: One number on the device, which each branch writes: the next exit times ``unit``,
            plus the rows that continue.
        unit: More than the largest number of rows.

    Raises:
        ArgumentError: The driver is too old, its Python bindings are missing, or a branch has parts
            that cannot be launched from the device.
    """

    def __init__(
        self, first: Branch, steps: Sequence[Sequence[Branch]], result: Tensor, *, unit: int
    ) -> None:
        check_version()
        self._result, self._unit = result, unit
        self._kept: list[Any] = [first, steps]  # their memory is used by every launch
        self._ready_graphs: list[Any] = []
        following: Tensor | None = None
        for branches in reversed([[first], *steps]):
            graphs = [self._ready(branch, following) for branch in branches]
            addresses = [int(graph) for graph in graphs]
            following = torch.tensor(addresses, dtype=torch.int64, device=result.device)
            self._kept.append(following)
        self._first = graphs[0]
        weakref.finalize(self, _unused.extend, self._ready_graphs).atexit = False

    def __call__(self) -> None:
        """Launch everything on the current stream."""
        done(driver().cuGraphLaunch(self._first, current_stream(self._result.device.index)))

    def _ready(self, branch: Branch, following: Tensor | None) -> Any:
        """Return a branch made ready for launches, with the kernel that launches the next one."""
        cuda = driver()
        graph = done(cuda.cuGraphCreate(0))
        before: list[Any] = []
        for part in branch.graphs:
            child = cuda.CUgraph(part.raw_cuda_graph())
            before = [done(cuda.cuGraphAddChildGraphNode(graph, before, len(before), child))]
        if following is not None:
            cases = cast("Tensor", branch.cases)
            words = (
                (ctypes.c_void_p, self._result.data_ptr()),
                (ctypes.c_void_p, cases.data_ptr()),
                (ctypes.c_uint32, self._unit),
                (ctypes.c_uint32, cases.shape[1]),
                (ctypes.c_void_p, following.data_ptr()),
            )
            follow = kernels(torch.cuda.current_device())["follow"]
            _kernel_node(graph, before, follow, words)
        try:
            found = done(cuda.cuGraphInstantiate(graph, FROM_DEVICE))
        except RuntimeError as error:
            raise ArgumentError(
                f"the network cannot be launched from the device ({error}): its graphs may hold "
                "kernels and copies on one GPU only; use Runner"
            ) from error
        finally:
            cuda.cuGraphDestroy(graph)
        self._ready_graphs.append(found)
        done(cuda.cuGraphUpload(found, current_stream(self._result.device.index)))
        return found


def destroy_unused() -> None:
    """Wait for the device, and destroy graphs whose objects are gone; it may still run them."""
    if _unused:
        torch.cuda.synchronize()
    while _unused:
        done(driver().cuGraphExecDestroy(_unused.pop()))


def replace_memsets(captured: torch.cuda.CUDAGraph) -> None:
    """Replace the memsets of a graph by kernels: launching a graph with memsets takes longer.

    Args:
        captured: A graph that was captured with ``keep_graph=True`` and is not instantiated.
    """
    cuda = driver()
    graph = cuda.CUgraph(captured.raw_cuda_graph())
    count = done(cuda.cuGraphGetNodes(graph))[1]
    for node in done(cuda.cuGraphGetNodes(graph, count))[0]:
        if done(cuda.cuGraphNodeGetType(node)) != cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET:
            continue
        params = done(cuda.cuGraphMemsetNodeGetParams(node))
        before = _neighbours("cuGraphNodeGetDependencies", node)
        after = _neighbours("cuGraphNodeGetDependentNodes", node)
        width = params.width * params.elementSize
        height = max(params.height, 1)
        words = (
            (ctypes.c_void_p, int(params.dst)),
            (ctypes.c_uint32, params.value),
            (ctypes.c_uint32, params.elementSize),
            (ctypes.c_uint64, width),
            (ctypes.c_uint64, height),
            (ctypes.c_uint64, params.pitch),
        )
        blocks = min(-(-width * height // THREADS), MAX_BLOCKS)
        fill = kernels(torch.cuda.current_device())["fill"]
        instead = _kernel_node(graph, before, fill, words, blocks=blocks, threads=THREADS)
        if after:
            # With edge data among its arguments: in CUDA 12 it has a suffix.
            add = getattr(cuda, "cuGraphAddDependencies_v2", None) or cuda.cuGraphAddDependencies
            done(add(graph, [instead] * len(after), after, None, len(after)))
        done(cuda.cuGraphDestroyNode(node))


def _kernel_node(
    graph: Any,
    before: list[Any],
    kernel: Any,
    words: tuple[tuple[Any, int], ...],
    *,
    blocks: int = 1,
    threads: int = 1,
) -> Any:
    """Add a kernel to a graph, with its arguments as pairs of type and value."""
    cuda = driver()
    params = cuda.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel
    params.gridDimX, params.gridDimY, params.gridDimZ = blocks, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = threads, 1, 1
    params.kernelParams = (tuple(value for _, value in words), tuple(kind for kind, _ in words))
    return done(cuda.cuGraphAddKernelNode(graph, before, len(before), params))


def _neighbours(function: str, node: Any) -> list[Any]:
    """Return the nodes before or after a node."""
    call = getattr(driver(), function)
    found = done(call(node))
    count = found[-1]
    return list(done(call(node, count))[0]) if count else []
