"""A stand-in for the CUDA driver: graphs are built as with the driver, and run by Python."""
# ruff: noqa: N802, N815 - functions are named as the driver names them

import ctypes
from types import SimpleNamespace

import torch


class Graph:
    """Nodes in the order they run in; what they depend on comes before them."""

    def __init__(self):
        self.nodes = []

    def add(self, before, run):
        for node in before:
            assert any(node is known for known in self.nodes)
        node = SimpleNamespace(run=run)
        self.nodes.append(node)
        return 0, node

    def run(self):
        for node in list(self.nodes):
            node.run()


class CudaDriver:
    """The functions of ``cuda.bindings.driver`` that branching graphs call."""

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=13)
    CUgraphConditionalNodeType = SimpleNamespace(CU_GRAPH_COND_TYPE_SWITCH=2)

    def __init__(self):
        self.values = []  # by handle
        self.ran = set()  # pairs of handle and case
        self.launches = 0

    def CUgraph(self, captured):
        return captured

    def CUgraphNodeParams(self):
        return SimpleNamespace(conditional=SimpleNamespace())

    def CUDA_KERNEL_NODE_PARAMS(self):
        return SimpleNamespace()

    def cuCtxGetCurrent(self):
        return 0, "context"

    def cuGraphCreate(self, flags):  # noqa: ARG002
        return 0, Graph()

    def cuGraphDestroy(self, graph):  # noqa: ARG002
        return (0,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphConditionalHandleCreate(self, graph, context, default, flags):
        assert (context, flags) == ("context", 1)
        handle = len(self.values)
        self.values.append(default)
        # A handle has its default value at every launch.
        graph.nodes.append(SimpleNamespace(run=lambda: self.values.__setitem__(handle, default)))
        return 0, handle

    def cuGraphAddNode(self, graph, before, edges, count, params):
        assert (edges, count) == (None, len(before))
        bodies = [Graph() for _ in range(params.conditional.size)]
        params.conditional.phGraph_out = bodies
        handle = params.conditional.handle

        def switch():
            case = self.values[handle]
            if case < len(bodies):
                self.ran.add((handle, case))
                bodies[case].run()

        return graph.add(before, switch)

    def cuGraphAddChildGraphNode(self, graph, before, count, child):
        assert count == len(before)
        return graph.add(before, child.replay)

    def cuGraphAddKernelNode(self, graph, before, count, params):
        assert count == len(before)
        values, kinds = params.kernelParams
        words = [kind(value).value for value, kind in zip(values, kinds, strict=True)]
        return graph.add(before, lambda: params.func(self, *words))

    def cuGraphInstantiate(self, graph, flags):
        assert flags == 0
        return 0, graph

    def cuGraphLaunch(self, graph, stream):
        assert stream == 0
        self.launches += 1
        graph.run()
        return (0,)


def choose(driver, handle, result, cases, unit, width):
    """Set a switch, as the kernel does."""
    due, alive = divmod(ctypes.c_int64.from_address(result).value, unit)
    table = (ctypes.c_int32 * ((due + 1) * width)).from_address(cases)
    driver.values[handle] = table[due * width + alive]


def put_in_place(monkeypatch, branching):
    """Let branching graphs use a new stand-in, and return it."""
    driver = CudaDriver()
    monkeypatch.setattr(branching, "_driver", lambda: driver)
    monkeypatch.setattr(branching, "_kernels", lambda device: {"choose": choose})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return driver
