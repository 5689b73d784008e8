"""A stand-in for the CUDA driver: graphs are built as with the driver, and run by Python."""
# ruff: noqa: N802 - functions are named as the driver names them

import ctypes
from types import SimpleNamespace

import torch

from ttamer.torch.cuda import branching


class Graph:
    """Nodes, each of which runs after those that it depends on."""

    def __init__(self):
        self.nodes = []

    def __int__(self):
        return id(self)

    def add(self, before, run, *, memset=None):
        for node in before:
            assert any(node is known for known in self.nodes)
        node = SimpleNamespace(graph=self, before=list(before), run=run, memset=memset)
        self.nodes.append(node)
        return 0, node

    def run(self):
        done = []
        while len(done) < len(self.nodes):
            ready = [
                node
                for node in self.nodes
                if node not in done and all(each in done for each in node.before)
            ]
            assert ready, "nodes depend on each other, or on one that is gone"
            for node in ready:
                node.run()
            done += ready


class CudaDriver:
    """The functions of ``cuda.bindings.driver`` that branching graphs call."""

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=0, CU_GRAPH_NODE_TYPE_MEMSET=2)

    def __init__(self):
        self.ready = {}  # graphs that can be launched, by their numbers
        self.uploaded = set()
        self.next = None  # the graph that runs when the present one is done
        self.ran = set()  # pairs: the address of a step's graphs, and the case
        self.launches = 0

    def CUgraph(self, captured):
        return captured

    def CUDA_KERNEL_NODE_PARAMS(self):
        return SimpleNamespace()

    def cuGraphCreate(self, flags):  # noqa: ARG002
        return 0, Graph()

    def cuGraphDestroy(self, graph):  # noqa: ARG002
        return (0,)

    def cuGraphExecDestroy(self, graph):
        del self.ready[int(graph)]
        return (0,)

    def cuDriverGetVersion(self):
        return 0, 13000

    def cuGraphGetNodes(self, graph, count=0):
        return 0, graph.nodes[:count], len(graph.nodes)

    def cuGraphNodeGetType(self, node):
        kinds = self.CUgraphNodeType
        if node.memset is None:
            return 0, kinds.CU_GRAPH_NODE_TYPE_KERNEL
        return 0, kinds.CU_GRAPH_NODE_TYPE_MEMSET

    def cuGraphMemsetNodeGetParams(self, node):
        return 0, node.memset

    def cuGraphNodeGetDependencies(self, node, count=0):
        return 0, node.before[:count], None, len(node.before)

    def cuGraphNodeGetDependentNodes(self, node, count=0):
        after = [each for each in node.graph.nodes if node in each.before]
        return 0, after[:count], None, len(after)

    def cuGraphAddDependencies(self, graph, before, after, edges, count):
        assert (edges, count) == (None, len(before))
        for one, other in zip(before, after, strict=True):
            assert one in graph.nodes
            other.before.append(one)
        return (0,)

    def cuGraphDestroyNode(self, node):
        node.graph.nodes.remove(node)
        for each in node.graph.nodes:
            each.before = [one for one in each.before if one is not node]
        return (0,)

    def cuGraphAddChildGraphNode(self, graph, before, count, child):
        assert count == len(before)
        return graph.add(before, child.replay)

    def cuGraphAddKernelNode(self, graph, before, count, params):
        assert count == len(before)
        values, kinds = params.kernelParams
        words = [kind(value).value for value, kind in zip(values, kinds, strict=True)]
        return graph.add(before, lambda: params.func(self, *words))

    def cuGraphInstantiate(self, graph, flags):
        assert flags == 4
        self.ready[int(graph)] = graph
        return 0, graph

    def cuGraphUpload(self, graph, stream):
        assert stream == 0
        self.uploaded.add(int(graph))
        return (0,)

    def cuGraphLaunch(self, graph, stream):
        assert stream == 0
        self.launches += 1
        while graph is not None:
            self.next = None
            graph.run()
            graph = self.next
        return (0,)


def follow(driver, result, cases, unit, width, graphs):
    """Launch the next graph, as the kernel does."""
    due, alive = divmod(ctypes.c_int64.from_address(result).value, unit)
    case = ctypes.c_int32.from_address(cases + 4 * (due * width + alive)).value
    if case >= 0:
        driver.ran.add((graphs, case))
        number = ctypes.c_int64.from_address(graphs + 8 * case).value
        assert number in driver.uploaded
        driver.next = driver.ready[number]


def fill(driver, target, value, element, width, height, pitch):  # noqa: ARG001
    """Fill memory, as the kernel does."""
    for at in range(width * height):
        place = target + at // width * pitch + at % width
        byte = value >> 8 * (at % width % element) & 0xFF
        ctypes.c_uint8.from_address(place).value = byte


KERNELS = {"follow": follow, "fill": fill}
"""What stands for the kernels."""


def put_in_place(monkeypatch):
    """Let graphs use a new stand-in, and return it."""
    driver = CudaDriver()
    monkeypatch.setattr(branching, "driver", lambda: driver)
    monkeypatch.setattr(branching, "kernels", lambda device: KERNELS)
    monkeypatch.setattr(branching, "current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return driver
