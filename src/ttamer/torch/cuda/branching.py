"""CUDA graphs that branch on the device: which graph runs next is read from its memory.

The host launches once and does not wait. PyTorch captures graphs without branches; each is made
ready for launches *from the device*. A small kernel at the end of a branch launches the next one:
it reads the result of a decision and looks the case up in a table. The driver's conditional nodes
could do the same, but take time also where nothing follows any more.

Kernels find out which of their programs is the last by *counters*. A kernel finds them at zero and
leaves them at zero. Work that may run at the same time must not share them: each stream has its
own, and so has each pool of memory that graphs are captured with, for graphs that share a pool
never run at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from ttamer._extras import is_installed
from ttamer.errors import ArgumentError

# The first version of CUDA whose driver launches graphs from the device beside others.
MIN_DRIVER = 12010
# The threads of a block that fills or copies memory.
THREADS = 256
# The most blocks that fill or copy memory; each goes on where the others end.
MAX_BLOCKS = 1024

# The kernels that launch the next graph beside this one, which the kernel ends (the stream that
# stands for that is a constant of CUDA), that fill memory with elements of 1, 2 or 4 bytes, and
# that copy up to four tensors in words of 16 bytes.
KERNELS = b"""
extern "C" __global__ void follow(
    const long long *result, const int *cases, unsigned int unit, unsigned int width,
    const unsigned long long *graphs)
{
    unsigned int word = *result;
    int next = cases[(word / unit) * width + word % unit];
    if (next >= 0)
        asm volatile(
            "{ .param .b64 graph; .param .b64 stream; .param .b32 error;"
            " st.param.b64 [graph], %0; st.param.b64 [stream], %1;"
            " call.uni (error), cudaGraphLaunch, (graph, stream); }"
            :: "l"(graphs[next]), "l"(0x0300000000000000ull) : "memory");
}

extern "C" __global__ void fill(
    unsigned char *target, unsigned int value, unsigned int element, unsigned long long width,
    unsigned long long height, unsigned long long pitch)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < width * height; at += gridDim.x * (unsigned long long)blockDim.x)
        target[(at / width) * pitch + at % width] = value >> (8 * (at % width % element));
}

__device__ void copy_one(const uint4 *source, uint4 *target, unsigned long long words)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < words; at += gridDim.x * (unsigned long long)blockDim.x)
        target[at] = source[at];
}

extern "C" __global__ void copy(
    const uint4 *source0, uint4 *target0, unsigned long long words0,
    const uint4 *source1, uint4 *target1, unsigned long long words1,
    const uint4 *source2, uint4 *target2, unsigned long long words2,
    const uint4 *source3, uint4 *target3, unsigned long long words3)
{
    copy_one(source0, target0, words0);
    copy_one(source1, target1, words1);
    copy_one(source2, target2, words2);
    copy_one(source3, target3, words3);
}
"""
# The line of an assembly after which functions are declared.
SIZE_LINE = b".address_size 64"
# The driver's function that launches a graph from the device.
LAUNCH = (
    b".extern .func (.param .b32 error) cudaGraphLaunch (.param .b64 graph, .param .b64 stream);"
)
# The kernels.
NAMES = ("follow", "fill", "copy")


@cache
def driver() -> Any:
    """Return the bindings of the driver."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise ArgumentError(
            "CUDA graphs need NVIDIA's bindings, which come with PyTorch for CUDA from 2.11 on: "
            "pip install cuda-bindings, or use Runner"
        ) from None
    return driver


def check_version() -> None:
    """Refuse drivers that cannot launch graphs from the device."""
    version = done(driver().cuDriverGetVersion())
    if version < MIN_DRIVER:
        raise ArgumentError(
            f"CUDA graphs need a driver of CUDA 12.1 or later, and this one is of "
            f"{version // 1000}.{version % 1000 // 10}: update it, or use Runner"
        )


@cache
def kernels(device: int) -> dict[str, Any]:
    """Compile the kernels for a device."""
    from cuda.bindings import nvrtc

    major, minor = torch.cuda.get_device_capability(device)
    program = done(nvrtc.nvrtcCreateProgram(KERNELS, b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{major}{minor}".encode()]
    done(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, code))
    cuda = driver()
    module = done(cuda.cuModuleLoadData(code.replace(SIZE_LINE, SIZE_LINE + b"\n" + LAUNCH)))
    return {name: done(cuda.cuModuleGetFunction(module, name.encode())) for name in NAMES}


def current_stream(device: int) -> int:
    """Return the address of a device's current stream, which PyTorch's public function is slow at.

    That takes 5 us, this one 0.2.
    """
    return int(torch._C._cuda_getCurrentRawStream(device))


def done(returned: tuple[Any, ...]) -> Any:
    """Return what a call of the driver returned, or raise its error."""
    error, *values = returned
    if int(error):
        raise RuntimeError(f"CUDA: {error.name}")
    return values[0] if len(values) == 1 else values


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
        self._memory: list[Any] = [first, steps]  # every launch reads or writes it
        self._ready_graphs: list[Any] = []
        following: Tensor | None = None
        for branches in reversed([[first], *steps]):
            graphs = [self._ready(branch, following) for branch in branches]
            addresses = [int(graph) for graph in graphs]
            following = torch.tensor(addresses, dtype=torch.int64, device=result.device)
            self._memory.append(following)
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
            ready = done(cuda.cuGraphInstantiate(graph, FROM_DEVICE))
        except RuntimeError as error:
            raise ArgumentError(
                f"the network cannot be launched from the device ({error}): its graphs may hold "
                "kernels and copies on one GPU only; use Runner"
            ) from error
        finally:
            cuda.cuGraphDestroy(graph)
        self._ready_graphs.append(ready)
        done(cuda.cuGraphUpload(ready, current_stream(self._result.device.index)))
        return ready


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
    count = done(call(node))[-1]
    return list(done(call(node, count))[0]) if count else []


# How often work runs before it is captured.
WARM_UPS = 2
# The share of a device's memory below which that of graphs that are gone is released.
MIN_FREE = 0.5


def capture(
    work: Callable[[], object], pool: Any = None, *, warm_up: Callable[[], object] | None = None
) -> torch.cuda.CUDAGraph:
    """Capture work as a CUDA graph that can be replayed, or become a part of another graph.

    Graphs that never run at the same time can share a pool of memory. Nothing that work reads may
    be freed while the graph is in use. ``warm_up`` runs before in place of work that must not.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.stream(stream), counters_of(pool):
            for _ in range(WARM_UPS):
                (warm_up or work)()
            torch.cuda.synchronize()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    finally:
        torch.cuda.current_stream().wait_stream(stream)
    if is_installed("cuda.bindings"):
        replace_memsets(graph)
    return graph


def captured(
    work: Callable[[], object], pool: Any = None, *, warm_up: Callable[[], object] | None = None
) -> Callable[[], None]:
    """Capture work as :func:`capture` does, and return a function that replays it."""
    graph = capture(work, pool, warm_up=warm_up)
    graph.instantiate()
    return graph.replay


def release_memory() -> None:
    """Release the memory of graphs that are gone, which an allocation in a capture cannot do.

    Python's part of that takes time, and is left out while much of the device's memory is free.
    """
    destroy_unused()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        if free > MIN_FREE * total:
            return
    gc.collect()
    destroy_unused()
    torch.cuda.empty_cache()


@cache
def _stream(device: int) -> Any:
    """Return the stream of a device that work is captured on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


# The largest number of counters that a kernel can use.
MAX_COUNTERS = 1024
_owner: ContextVar[Hashable | None] = ContextVar("owner", default=None)
_counters: dict[Hashable, Tensor] = {}


@contextlib.contextmanager
def counters_of(owner: Hashable) -> Iterator[None]:
    """Let kernels that are launched meanwhile use the counters of an owner."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def counters(count: int, device: torch.device) -> Tensor | None:
    """Return at least ``count`` counters; ``None`` where there are too few, or none to own.

    >>> counters(3, torch.device("cpu"))[:3].tolist(), counters(9999, torch.device("cpu"))
    ([0, 0, 0], None)
    """
    if count > MAX_COUNTERS:
        return None
    owner = _owner.get()
    if owner is None and device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():  # by others: nothing is known of its replays
            return None
        owner = torch.cuda.current_stream(device).cuda_stream
    key = (device, owner)
    if key not in _counters:
        _counters[key] = torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)
    return _counters[key]


def block_for(count: int, at_least: int = 1) -> int:
    """Return the size of a block of numbers in a kernel: a power of two.

    >>> [block_for(count) for count in (1, 2, 3, 768)], block_for(3, at_least=128)
    ([1, 2, 4, 1024], 128)
    """
    return max(1 << (count - 1).bit_length(), at_least)
