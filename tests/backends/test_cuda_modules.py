"""Which modules of a GPU stay loaded, and when others are unloaded; without a GPU."""

import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

import arrayfn as af
from arrayfn.backends.cuda import code, missing_here, modules
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.graphs import replay
from arrayfn.backends.cuda.runner import Plan
from arrayfn.lowering.plan import Kernel

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())


class Card:
    """A driver that numbers the modules that it loads, and notes what it does."""

    arch = (8, 0)

    def __init__(self):
        self.loaded = 0
        self.done = []
        self.capture_lock = threading.Lock()
        self.library = SimpleNamespace(
            cuModuleLoadData=self._load,
            cuModuleGetFunction=self._function,
            cuFuncLoad=lambda function: 0,
            cuModuleUnload=lambda module: self.done.append(f"unload {module.value}"),
            cuGraphDestroy=lambda graph: self.done.append(f"destroy {graph.value}"),
        )

    def make_current(self):
        pass

    def check(self, status, what=""):
        assert not status

    def synchronize(self):
        self.done.append("wait")

    def _load(self, module, cubin):
        self.loaded += 1
        module._obj.value = self.loaded
        return 0

    def _function(self, function, module, name):
        function._obj.value = 100 + module.value
        return 0


@pytest.fixture
def card(monkeypatch):
    made = Card()
    for module in (modules, code, replay):
        monkeypatch.setattr(module, "device", lambda: made)
    monkeypatch.setattr(code, "_toolchain", lambda: "")
    monkeypatch.setattr(code, "object_codes", lambda units: dict.fromkeys(units, b""))
    # No module of this card may come to be unloaded by a real driver, nor vice versa.
    monkeypatch.setattr(modules, "_unused", deque())
    code._recent.clear()
    yield made
    code._recent.clear()


def kernel_of(number):
    text = f"def kernel():\n    x = {number}\n"
    return Kernel("k", text, text, (), threads=32)


def functions_of(*numbers):
    """The loaded kernels of these numbers, which nobody else holds."""
    loaded = [code.loaded_kernels([kernel_of(n)])["k"] for n in numbers]
    code._recent.clear()
    return loaded


def test_a_dropped_kernel_is_unloaded_after_a_wait(card):
    one, two = functions_of(1, 2)
    assert (one.function, two.function) == (101, 102)
    del one
    assert card.done == []
    modules.unload_unused()
    assert card.done == ["wait", "unload 1"]
    modules.unload_unused()
    assert card.done == ["wait", "unload 1"]


def test_equal_kernels_share_a_module_that_the_last_of_them_unloads(card):
    one, two = functions_of(1, 1)
    assert one is two
    del one
    modules.unload_unused()
    assert card.done == []
    del two
    modules.unload_unused()
    assert card.done == ["wait", "unload 1"]
    (again,) = functions_of(1)
    assert again.function == 102


def test_the_kernels_loaded_last_stay(card):
    for _ in range(3):
        code.loaded_kernels([kernel_of(1)])
    assert card.loaded == 1
    for number in range(2, 300):
        code.loaded_kernels([kernel_of(number)])
    # Unused modules are unloaded many at a time: each time waits for the GPU.
    assert (card.loaded, card.done.count("wait")) == (299, 0)
    for number in range(300, 400):
        code.loaded_kernels([kernel_of(number)])
    assert card.done.count("wait") == 2
    assert card.done[1] == "unload 1"


def test_nothing_is_unloaded_while_a_graph_is_captured(card):
    functions_of(1).clear()
    with card.capture_lock:
        modules.unload_unused()
        assert card.done == []
    modules.unload_unused()
    assert card.done == ["wait", "unload 1"]


def test_a_plan_and_its_graphs_hold_their_kernels(card):
    plan = Plan({}, [], [], code=functions_of(1))
    graph = replay.CapturedGraph(70, plan.code)
    variant = plan.variant([], kept=graph)
    del plan, graph
    modules.unload_unused()
    assert card.done == []
    del variant
    modules.unload_unused()
    assert card.done == ["destroy 70", "wait", "unload 1"]


def test_clear_caches_unloads_what_nobody_holds(card):
    held = code.loaded_kernels([kernel_of(1)])
    code.loaded_kernels([kernel_of(2)])
    af.clear_caches()
    assert card.done == ["wait", "unload 2"]
    assert held["k"].function == 101


@pytest.mark.cuda
@needs_gpu
def test_functions_that_are_dropped_while_they_run_give_their_results():
    """Their modules are unloaded, also those in graphs, and others run on."""
    x = device_put(np.arange(1 << 20, dtype=np.float32))
    kept = af.jit(lambda x: x * 2 + 1, device="cuda")
    wanted = np.asarray(kept(x))
    results = []
    for number in range(5):
        function = af.jit(lambda x, n=number: (x + n) * (x - n), device="cuda")
        for _ in range(20):  # direct launches, then graphs
            result = function(x)
        results.append(result)
        del function
        af.clear_caches()
    host = np.asarray(x)
    for number, result in enumerate(results):
        n = np.float32(number)
        np.testing.assert_array_equal(np.asarray(result), (host + n) * (host - n))
    assert not modules._unused
    np.testing.assert_array_equal(np.asarray(kept(x)), wanted)
