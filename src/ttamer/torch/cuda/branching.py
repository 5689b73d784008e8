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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ttamer._checks import is_installed
from ttamer.errors import ArgumentError

# The threads of a block that fills memory.
THREADS = 256
# The most blocks that fill memory; each goes on where the others end.
MAX_BLOCKS = 1024


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


@cache
def kernels(device: int) -> dict[str, Any]:
    """Compile the kernels for a device."""
    from cuda.bindings import nvrtc

    major, minor = torch.cuda.get_device_capability(device)
    source = Path(__file__).with_name("kernels.cu").read_bytes()
    program = done(nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{major}{minor}".encode()]
    done(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, code))
    # The driver's function that launches a graph is declared after the line with the size.
    size = b".address_size 64"
    launch = b"(.param .b32 error) cudaGraphLaunch (.param .b64 graph, .param .b64 stream);"
    cuda = driver()
    module = done(cuda.cuModuleLoadData(code.replace(size, size + b"\n.extern .func " + launch)))
    names = ("follow", "fill")
    return {name: done(cuda.cuModuleGetFunction(module, name.encode())) for name in names}


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

_unused: list[Any] = []


class Branch(NamedTuple):
    """Graphs that run one after another, and what follows them."""

    graphs: tuple[torch.cuda.CUDAGraph, ...]  # graphs that PyTorch has captured and kept
    # Shape (exits + 1, rows + 1): by the next exit and the rows that continue, the branch of the
    # next step, or NONE; None in the last step.
    cases: Tensor | None


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
        version = done(driver().cuDriverGetVersion())
        if version < 12010:  # the first that launches graphs from the device beside others
            raise ArgumentError(
                f"CUDA graphs need a driver of CUDA 12.1 or later, and this one is of "
                f"{version // 1000}.{version % 1000 // 10}: update it, or use Runner"
            )
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
            ready = done(cuda.cuGraphInstantiate(graph, 4))  # to be launched from the device
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


def capture(work: Callable[[], object], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Capture work as a CUDA graph that can be replayed, or become a part of another graph.

    Graphs that never run at the same time can share a pool of memory. Nothing that work reads may
    be freed while the graph is in use.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.stream(stream), counters_of(pool):
            for _ in range(2):  # libraries choose algorithms and allocate at first
                work()
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


def captured(work: Callable[[], object], pool: Any = None) -> Callable[[], None]:
    """Capture work as :func:`capture` does, and return a function that replays it."""
    graph = capture(work, pool)
    graph.instantiate()
    return graph.replay


def release_memory(min_free: float = 0.5) -> None:
    """Release the memory of graphs that are gone, which an allocation in a capture cannot do.

    Python's part of that takes time, and is left out while this share of the device's memory is
    free.
    """
    destroy_unused()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        if free > min_free * total:
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
