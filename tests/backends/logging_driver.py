"""A GPU without hardware: a driver that computes nothing and logs its calls.

``LoggingGpu`` is a ``Device`` whose ``libcuda`` is ``LoggingLibrary``. Whole plans run
on it, through the call entry, the plan runner and stream capture. The log says which
work each call enqueues, and which nodes each graph holds.
"""

# ruff: noqa: N802 (the driver's names)

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace

from arrayfn.backends.cuda import context, driver

I8, I32, I64 = ctypes.c_ubyte, ctypes.c_int, ctypes.c_int64
POINTER = ctypes.POINTER(I64)
ATTRIBUTES = {16: 132, 75: 9, 76: 0, 81: 228 << 10, 111: 1 << 10}  # of an H100
CARD_BYTES = 80 << 30
QUERIES = {
    "cuCtxSetCurrent",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuStreamQuery",
    "cuPointerGetAttributes",
    "cuDeviceGetAttribute",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuGraphGetRootNodes",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeGetAttribute",
}
"""Calls that neither enqueue work nor make anything: only the whole log has them."""


class LoggingLibrary:
    """The functions of ``libcuda``: objects are numbers, in the order they are made."""

    def __init__(self):
        self.log = []
        self.functions = {}  # names of kernels, by handle
        self.values = []  # what copies to the host read, the next first
        self.graphs = {}  # for each graph its nodes, and what each depends on
        self.captures = {}  # for each stream its graph, and what comes next depends on
        self._numbers = itertools.count(1)
        self._kept = []
        self.native = {
            name: ctypes.CFUNCTYPE(I32, *kinds)(getattr(self, name))
            for name, kinds in {
                "cuCtxSetCurrent": [I64],
                "cuCtxSynchronize": [],
                "cuMemAllocFromPoolAsync": [POINTER, I64, I64, I64],
                "cuMemFreeAsync": [I64, I64],
                "cuLaunchKernelEx": [POINTER, I64, I64, I64],
                "cuLaunchCooperativeKernel": [I64, *[I32] * 7, I64, I64],
                "cuMemsetD8Async": [I64, I8, I64, I64],
                "cuGraphLaunch": [I64, I64],
                "cuGraphExecKernelNodeSetParams": [I64, I64, I64],
                "cuStreamQuery": [I64],
            }.items()
        }

    def __getattr__(self, name):
        """Any other function: it succeeds."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: self._note(name)

    def _note(self, name, *details):
        self.log.append(" ".join((name, *map(str, details))))
        return 0

    def _new(self, target, name, *details):
        """Make an object, whose handle is written to ``target``."""
        target._obj.value = handle = next(self._numbers)
        return self._note(name, *details, "->", handle)

    def _enqueue(self, stream, what):
        """Note work on ``stream``: a node, if that is being captured."""
        stream = _number(stream)
        if stream not in self.captures:
            return self._note(what, "on", stream)
        graph, needed = self.captures[stream]
        node = self._add_node(graph, what, needed)
        self.captures[stream] = graph, [node]
        return 0

    def _add_node(self, graph, what, needed):
        node = len(self.graphs[graph]) + 1000 * graph
        self.graphs[graph].append((what, needed))
        self._note(f"graph {graph}: node {node % 1000}", what, "after", [*needed])
        return node

    # Devices, contexts, memory.

    def cuDeviceGet(self, device, number):
        device._obj.value = number
        return self._note("cuDeviceGet", number)

    def cuDevicePrimaryCtxRetain(self, context, device):
        return self._new(context, "cuDevicePrimaryCtxRetain")

    def cuCtxSetCurrent(self, context):
        return self._note("cuCtxSetCurrent")

    def cuCtxSynchronize(self):
        return self._note("cuCtxSynchronize")

    def cuDeviceGetAttribute(self, result, attribute, device):
        result._obj.value = ATTRIBUTES[attribute]
        return self._note("cuDeviceGetAttribute", attribute)

    def cuStreamCreate(self, stream, flags):
        return self._new(stream, "cuStreamCreate")

    def cuEventCreate(self, event, flags):
        return self._new(event, "cuEventCreate")

    def cuEventRecord(self, event, stream):
        return self._note("cuEventRecord", _number(event), "on", _number(stream))

    def cuStreamWaitEvent(self, stream, event, flags):
        return self._note("cuStreamWaitEvent", _number(event), "on", _number(stream))

    def cuStreamQuery(self, stream):
        return self._note("cuStreamQuery")

    def cuMemPoolCreate(self, pool, properties):
        return self._new(pool, "cuMemPoolCreate")

    def cuMemGetInfo_v2(self, free, total):
        free._obj.value = total._obj.value = CARD_BYTES
        return self._note("cuMemGetInfo_v2")

    def cuMemAllocHost_v2(self, result, size):
        memory = ctypes.create_string_buffer(_number(size))
        self._kept.append(memory)
        result._obj.value = ctypes.addressof(memory)
        return self._note("cuMemAllocHost_v2")

    def cuMemAllocFromPoolAsync(self, result, size, pool, stream):
        target = result._obj if hasattr(result, "_obj") else result.contents
        target.value = next(self._numbers) << 36
        return self._note("cuMemAllocFromPoolAsync", _number(size))

    def cuMemFreeAsync(self, pointer, stream):
        return self._note("cuMemFreeAsync")

    def cuMemcpyHtoDAsync_v2(self, pointer, address, nbytes, stream):
        return self._note("cuMemcpyHtoDAsync_v2", _number(nbytes))

    def cuMemcpyDtoHAsync_v2(self, address, pointer, nbytes, stream):
        nbytes = _number(nbytes)
        value = self.values.pop(0) if self.values else 0
        ctypes.memmove(_number(address), value.to_bytes(nbytes, "little"), nbytes)
        return self._note("cuMemcpyDtoHAsync_v2", nbytes)

    def cuMemcpyDtoDAsync_v2(self, target, source, nbytes, stream):
        return self._enqueue(stream, f"copy of {_number(nbytes)} bytes")

    def cuMemsetD8Async(self, pointer, byte, nbytes, stream):
        return self._enqueue(stream, f"fill of {_number(nbytes)} bytes")

    # Kernels.

    def cuModuleLoadData(self, module, image):
        return self._new(module, "cuModuleLoadData")

    def cuModuleGetFunction(self, function, module, name):
        self._new(function, "cuModuleGetFunction", name.decode())
        self.functions[function._obj.value] = name.decode()
        return 0

    def kernel(self, name):
        """The handle of a kernel that is called ``name`` in the log."""
        handle = next(self._numbers)
        self.functions[handle] = name
        return handle

    def _launch(self, stream, function, blocks, threads):
        name = self.functions[_number(function)]
        return self._enqueue(stream, f"{name} {blocks}x{threads}")

    def cuLaunchKernel(self, function, blocks, _y, _z, threads, *rest):
        _, _, _, stream, *_ = rest
        return self._launch(stream, function, blocks, threads)

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        sizes = ctypes.cast(config, ctypes.POINTER(I32))
        return self._launch(config[4], function, sizes[0], sizes[3])

    def cuLaunchCooperativeKernel(self, function, blocks, *rest):
        _, _, threads, _, _, _, stream, _ = rest
        return self._launch(stream, function, blocks, f"{threads} at once")

    # Capture and graphs.

    def _new_graph(self):
        graph = next(self._numbers)
        self.graphs[graph] = []
        return graph

    def cuStreamBeginCapture_v2(self, stream, mode):
        graph = self._new_graph()
        self.captures[_number(stream)] = graph, []
        return self._note("cuStreamBeginCapture_v2", graph)

    def cuStreamBeginCaptureToGraph(self, stream, graph, *rest):
        self.captures[_number(stream)] = _number(graph), []
        return self._note("cuStreamBeginCaptureToGraph", _number(graph))

    def cuStreamEndCapture(self, stream, graph):
        graph._obj.value, _ = self.captures.pop(_number(stream))
        return self._note("cuStreamEndCapture", graph._obj.value)

    def cuStreamGetCaptureInfo_v3(self, stream, _state, _id, graph, nodes, _e, count):
        graph._obj.value, needed = self.captures[_number(stream)]
        table = (ctypes.c_void_p * max(1, len(needed)))(*needed)
        self._kept.append(table)
        nodes._obj.contents = ctypes.c_void_p.from_buffer(table)
        count._obj.value = len(needed)
        return self._note("cuStreamGetCaptureInfo_v3")

    def cuStreamUpdateCaptureDependencies_v2(self, stream, nodes, _data, count, _f):
        graph, _ = self.captures[_number(stream)]
        needed = [nodes[k] for k in range(count.value)]
        self.captures[_number(stream)] = graph, needed
        return self._note("cuStreamUpdateCaptureDependencies_v2", needed)

    def cuGraphConditionalHandleCreate(self, handle, *rest):
        return self._new(handle, "cuGraphConditionalHandleCreate")

    def cuGraphAddNode_v2(self, node, graph, nodes, _data, count, parameters):
        made = parameters._obj
        bodies = [self._new_graph() for _ in range(made.size)]
        table = (ctypes.c_void_p * len(bodies))(*bodies)
        self._kept.append(table)
        made.graphs = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        kind = {1: "while", 2: "switch"}[made.kind]
        needed = [nodes[k] for k in range(count.value)]
        node._obj.value = self._add_node(_number(graph), f"{kind} {bodies}", needed)
        return 0

    def cuGraphInstantiateWithFlags(self, made, graph, flags):
        return self._new(made, "cuGraphInstantiateWithFlags", _number(graph))

    def cuGraphLaunch(self, graph, stream):
        return self._enqueue(stream, f"cuGraphLaunch {graph}")

    def cuGraphExecKernelNodeSetParams(self, graph, node, parameters):
        return self._note("cuGraphExecKernelNodeSetParams", graph, node % 1000)

    def cuGraphExecDestroy(self, graph):
        return self._note("cuGraphExecDestroy", _number(graph))

    def cuGraphDestroy(self, graph):
        return self._note("cuGraphDestroy", _number(graph))

    # The nodes of a captured graph.

    def _give(self, name, found, nodes, count):
        room = count._obj.value
        nodes[:room] = [*found, *[None] * room][:room]
        count._obj.value = min(room, len(found))
        return self._note(name)

    def cuGraphGetRootNodes(self, graph, nodes, count):
        numbered = enumerate(self.graphs[_number(graph)])
        roots = [1000 * _number(graph) + k for k, (_, after) in numbered if not after]
        return self._give("cuGraphGetRootNodes", roots, nodes, count)

    def cuGraphNodeGetDependentNodes_v2(self, node, nodes, edges, count):
        graph = _number(node) // 1000
        later = [
            1000 * graph + k
            for k, (_, after) in enumerate(self.graphs[graph])
            if _number(node) in after
        ]
        return self._give("cuGraphNodeGetDependentNodes_v2", later, nodes, count)

    def cuGraphNodeGetType(self, node, kind):
        graph, number = divmod(_number(node), 1000)
        what, _ = self.graphs[graph][number]
        kind._obj.value = 2 if what.startswith("fill") else 0
        return self._note("cuGraphNodeGetType")

    def cuGraphKernelNodeGetParams_v2(self, node, parameters):
        graph, number = divmod(_number(node), 1000)
        what, _ = self.graphs[graph][number]
        name, _, shape = what.partition(" ")
        blocks, _, threads = shape.partition("x")
        made = parameters._obj
        handles = {name: handle for handle, name in self.functions.items()}
        made.function = handles[name]
        made.blocks[:], made.threads[:] = (int(blocks), 1, 1), (int(threads), 1, 1)
        return self._note("cuGraphKernelNodeGetParams_v2")


class LoggingGpu(driver.Device):
    """A GPU of the number ``number``, whose driver is ``library``."""

    def __init__(self, monkeypatch, number):
        made = LoggingLibrary()
        opened = dict.fromkeys(("PyDLL", "CDLL"), lambda name: made)
        with monkeypatch.context() as patch:
            known = SimpleNamespace(**{**vars(ctypes), **opened})
            patch.setattr(context, "ctypes", known)
            super().__init__(number)

    def address(self, name):
        return ctypes.cast(self.library.native[name], ctypes.c_void_p).value

    def loaded(self, kernels):
        """What stands for the code of ``kernels``: handles."""
        made = {k.name: self.library.kernel(k.name) for k in kernels}
        return {n: SimpleNamespace(function=handle) for n, handle in made.items()}

    def take_log(self, whole=False):
        """The calls since the last time; ``whole`` with those that only ask."""
        lines = [x for x in self.library.log if whole or x.split()[0] not in QUERIES]
        self.library.log.clear()
        return lines


def _number(x):
    return int((x if isinstance(x, int) else x.value) or 0)
