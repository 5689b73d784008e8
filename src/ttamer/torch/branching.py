"""CUDA graphs that branch on the device: which graph runs next is read from its memory.

The host launches once and does not wait. PyTorch captures graphs without branches; this module
joins them by the driver's *switch* nodes, of which each runs one of several graphs, or none. A
small kernel at the end of a branch sets the next switch: it reads the result of a decision and
looks the case up in a table.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["NONE", "Branch", "BranchingGraph", "replace_memsets"]

NONE = 2**31 - 1
"""The case of a switch that runs nothing."""
MIN_DRIVER = 12080
"""The first version of CUDA whose driver has switch nodes."""
THREADS = 256
"""The threads of a block that fills memory."""
MAX_BLOCKS = 1024
"""The most blocks that fill memory; each goes on where the others end."""

KERNELS = b"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void choose(
    unsigned long long handle, const long long *result, const int *cases, unsigned int unit,
    unsigned int width)
{
    unsigned int found = *result;
    cudaGraphSetConditional(handle, cases[(found / unit) * width + found % unit]);
}

extern "C" __global__ void fill(
    unsigned char *target, unsigned int value, unsigned int element, unsigned long long width,
    unsigned long long height, unsigned long long pitch)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < width * height; at += gridDim.x * (unsigned long long)blockDim.x)
        target[(at / width) * pitch + at % width] = value >> (8 * (at % width % element));
}
"""
"""The kernels that set a switch, and that fill memory with elements of 1, 2 or 4 bytes."""


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

    The graph is launched on its own: the device works on it while the host launches the steps,
    which takes longer.

    Args:
        first: The graph that runs first, and what follows it.
        steps: The branches of each step.
        result: One number on the device, which each branch writes: the next exit times ``unit``,
            plus the rows that continue.
        unit: More than the largest number of rows.

    Raises:
        ArgumentError: The driver has no switch nodes, or its Python bindings are missing.
    """

    def __init__(
        self, first: Branch, steps: Sequence[Sequence[Branch]], result: Tensor, *, unit: int
    ) -> None:
        cuda = _driver()
        _check_version()
        self._parts = (first, steps)  # their memory is used by every launch
        self._result, self._unit = result, unit
        self._kernels = _kernels(torch.cuda.current_device())
        graph = self._new_graph()
        self._put(graph, first, None)
        self._launched = [self._ready(graph)]
        if not steps:
            return
        graph = self._new_graph()
        context = _done(cuda.cuCtxGetCurrent())
        handles = [
            _done(cuda.cuGraphConditionalHandleCreate(graph, context, NONE, 1)) for _ in steps
        ]
        node = self._choose(graph, [], first, handles[0])
        for k, branches in enumerate(steps):
            params = cuda.CUgraphNodeParams()
            params.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
            params.conditional.handle = handles[k]
            params.conditional.type = cuda.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_SWITCH
            params.conditional.size = len(branches)
            params.conditional.ctx = context
            node = _done(_latest("cuGraphAddNode")(graph, [node], None, 1, params))
            following = handles[k + 1] if k + 1 < len(handles) else None
            for body, branch in zip(params.conditional.phGraph_out, branches, strict=True):
                self._put(body, branch, following)
        self._launched.append(self._ready(graph))

    def __call__(self) -> None:
        """Launch everything on the current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        for graph in self._launched:
            _done(_driver().cuGraphLaunch(graph, stream))

    def _new_graph(self) -> Any:
        """Return an empty graph, which lives as long as this."""
        graph = _done(_driver().cuGraphCreate(0))
        weakref.finalize(self, _driver().cuGraphDestroy, graph)
        return graph

    def _ready(self, graph: Any) -> Any:
        """Return a graph made ready for launches, which lives as long as this."""
        found = _done(_driver().cuGraphInstantiate(graph, 0))
        weakref.finalize(self, _driver().cuGraphExecDestroy, found)
        return found

    def _put(self, graph: Any, branch: Branch, handle: Any) -> None:
        """Add a branch to a graph, with the kernel that sets the next switch."""
        cuda = _driver()
        before: list[Any] = []
        for part in branch.graphs:
            child = cuda.CUgraph(part.raw_cuda_graph())
            before = [_done(cuda.cuGraphAddChildGraphNode(graph, before, len(before), child))]
        if handle is not None:
            self._choose(graph, before, branch, handle)

    def _choose(self, graph: Any, before: list[Any], branch: Branch, handle: Any) -> Any:
        """Add the kernel that sets a switch to the case that follows a branch."""
        cases = cast("Tensor", branch.cases)
        words = (
            (ctypes.c_uint64, int(handle)),
            (ctypes.c_void_p, self._result.data_ptr()),
            (ctypes.c_void_p, cases.data_ptr()),
            (ctypes.c_uint32, self._unit),
            (ctypes.c_uint32, cases.shape[1]),
        )
        return _kernel_node(graph, before, self._kernels["choose"], words)


def replace_memsets(captured: torch.cuda.CUDAGraph) -> None:
    """Replace the memsets of a graph by kernels: launching a graph with memsets takes longer.

    Args:
        captured: A graph that was captured with ``keep_graph=True`` and is not instantiated.
    """
    cuda = _driver()
    graph = cuda.CUgraph(captured.raw_cuda_graph())
    count = _done(cuda.cuGraphGetNodes(graph))[1]
    for node in _done(cuda.cuGraphGetNodes(graph, count))[0]:
        if _done(cuda.cuGraphNodeGetType(node)) != cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET:
            continue
        params = _done(cuda.cuGraphMemsetNodeGetParams(node))
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
        fill = _kernels(torch.cuda.current_device())["fill"]
        instead = _kernel_node(graph, before, fill, words, blocks=blocks, threads=THREADS)
        if after:
            _done(
                _latest("cuGraphAddDependencies")(
                    graph, [instead] * len(after), after, None, len(after)
                )
            )
        _done(cuda.cuGraphDestroyNode(node))


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
    cuda = _driver()
    params = cuda.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel
    params.gridDimX, params.gridDimY, params.gridDimZ = blocks, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = threads, 1, 1
    params.kernelParams = (tuple(value for _, value in words), tuple(kind for kind, _ in words))
    return _done(cuda.cuGraphAddKernelNode(graph, before, len(before), params))


def _neighbours(function: str, node: Any) -> list[Any]:
    """Return the nodes before or after a node."""
    call = getattr(_driver(), function)
    found = _done(call(node))
    count = found[-1]
    return list(_done(call(node, count))[0]) if count else []


def _latest(name: str) -> Any:
    """Return a function with edge data among its arguments: in CUDA 12 it has a suffix."""
    return getattr(_driver(), f"{name}_v2", None) or getattr(_driver(), name)


@cache
def _driver() -> Any:
    """Return the bindings of the driver."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise ArgumentError(
            "CUDA graphs need NVIDIA's bindings, which come with PyTorch for CUDA from 2.11 on: "
            "pip install cuda-bindings, or use Runner"
        ) from None
    return driver


def _check_version() -> None:
    """Refuse drivers without switch nodes."""
    version = _done(_driver().cuDriverGetVersion())
    if version < MIN_DRIVER:
        raise ArgumentError(
            f"CUDA graphs need a driver of CUDA 12.8 or later, and this one is of "
            f"{version // 1000}.{version % 1000 // 10}: update it, or use Runner"
        )


@cache
def _kernels(device: int) -> dict[str, Any]:
    """Compile the kernels for a device."""
    from cuda.bindings import nvrtc

    major, minor = torch.cuda.get_device_capability(device)
    program = _done(nvrtc.nvrtcCreateProgram(KERNELS, b"branching.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{major}{minor}".encode()]
    _done(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * _done(nvrtc.nvrtcGetPTXSize(program))
    _done(nvrtc.nvrtcGetPTX(program, code))
    cuda = _driver()
    module = _done(cuda.cuModuleLoadData(code))
    return {
        name: _done(cuda.cuModuleGetFunction(module, name.encode())) for name in ("choose", "fill")
    }


def _done(found: tuple[Any, ...]) -> Any:
    """Return what a call of the driver returned, or raise its error."""
    error, *values = found
    if int(error):
        raise RuntimeError(f"CUDA: {error.name}")
    return values[0] if len(values) == 1 else values
