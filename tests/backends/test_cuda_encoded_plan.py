"""A plan of a GPU as the native runner's steps, with a device that has only names."""

import ctypes
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from arrayfn.backends.cuda import encoded_plan, runner
from arrayfn.backends.cuda.code import OVERLAPS_FROM
from arrayfn.backends.cuda.plan_nodes import NativeRun
from arrayfn.backends.cuda.runner import StepKind
from arrayfn.ir import ArrayType, layout
from arrayfn.lowering.plan import (
    BufferAllocation,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    Parameter,
)

F32 = ArrayType((4, 4), np.dtype("float32"), layout.C)
KERNEL = Kernel("k", "", "k", (), threads=64, shared=32)
TOGETHER = Kernel("t", "", "t", (), threads=96, cooperative=True)
SIZES = ("m", "n", "k", "batch")
GEMM = LibraryKernel(
    "gemm",
    "gemm_f32",
    tuple(Parameter(x, "f32*") for x in ("a", "b", "c", "bias"))
    + tuple(Parameter(x, "i64") for x in SIZES),
)
PRODUCT = SimpleNamespace(
    handle=1,
    operation=2,
    alpha=3,
    layouts=(4, 5, 6, 7),
    beta=8,
    algorithm=9,
    workspace=1000,
    workspace_bytes=24,
)


@pytest.fixture(params=[OVERLAPS_FROM, (8, 0)], ids=["overlaps", "does not"])
def encode(request, monkeypatch):
    """The encoded of steps on four buffers: two inputs, an output, a temporary."""
    gpu = SimpleNamespace(
        context=5, stream=6, arch=request.param, address=address, multiprocessors=2
    )
    library = SimpleNamespace(product=lambda *_: PRODUCT, matmul=70, set_attribute=71)
    monkeypatch.setattr(encoded_plan, "device", lambda: gpu)
    loaded = {"k": SimpleNamespace(function=100), "t": SimpleNamespace(function=101)}
    monkeypatch.setattr(encoded_plan, "loaded_kernels", lambda kernels: loaded)
    monkeypatch.setattr(encoded_plan.cublas, "library", lambda: library)
    monkeypatch.setattr(encoded_plan.cublas, "max_small_work", lambda provider: 1)
    kinds = (("input", 0), ("input", 1), ("output", 0), ("temporary", 0))
    buffers = tuple(BufferAllocation(*kind, F32, F32.nbytes, 256) for kind in kinds)

    def make(*steps):
        plan = ExecutionPlan(buffers, steps)
        compiled = SimpleNamespace(plan=plan, kernels=[KERNEL, TOGETHER, GEMM])
        return gpu, encoded_plan.EncodedPlan(compiled, arena=4)

    return make


def address(name):
    return zlib.crc32(name.encode())


def at(*buffers):
    return tuple(map(BufferArgument, buffers))


def words_at(address, count):
    return list((ctypes.c_int64 * count).from_address(address))


def test_steps_of_a_plan_are_the_runners(encode):
    rest = {"reads": (0,), "writes": (2,)}
    gpu, encoded = encode(
        KernelCall("k", (*at(0), 77, *at(3)), 10, **rest),
        KernelCall("t", at(2), 3, **rest),
        KernelCall("gemm", (*at(0, 1, 2, 3), 4, 4, 4, 1), 1, **rest),
        KernelCall("gemm", (*at(0, 1, 2, 3), 4, 4, 0, 1), 1, **rest),
    )
    kernel, together, product, zeros = encoded.plan.steps
    launches = encoded.plan.launches
    assert (launches.context, launches.stream) == (5, 6)
    assert launches.launch_graph == address("cuGraphLaunch")
    assert (launches.multiply, launches.set_attribute) == (70, 71)
    overlaps = gpu.arch >= OVERLAPS_FROM
    assert (launches.attribute_count, launches.attribute.value[0]) == (overlaps,) * 2

    slots = (runner.Slot * launches.slot_count).from_address(launches.slots)
    places = {slot.address: (slot.buffer, slot.offset) for slot in slots}
    sizes = (kernel.function, kernel.blocks, kernel.threads, kernel.shared)
    assert (kernel.kind, *sizes) == (StepKind.KERNEL, 100, 10, 64, 32)
    x, number, temporary = words_at(kernel.parameters, 3)
    assert (places[x], places[temporary]) == ((0, 0), (4, 256))
    assert words_at(number, 1) == [77]
    sizes = (together.function, together.blocks, together.threads)
    assert (together.kind, *sizes) == (StepKind.COOPERATIVE, 101, 3, 96)

    assert product.kind == StepKind.PRODUCT
    # cuBLAS is column-major: C^T = B^T A^T.
    operands = (product.a, product.b, product.added, product.result)
    assert [places[p][0] for p in operands] == [1, 0, 2, 2]
    assert (product.a_layout, product.b_layout) == (4, 5)
    assert (product.added_layout, product.result_layout) == (6, 7)
    assert places[product.bias] == (4, 256)
    assert not product.alpha_slot
    assert (product.workspace, product.workspace_bytes) == (1000, 24)
    assert (zeros.kind, zeros.nbytes) == (StepKind.ZEROS, F32.nbytes)
    assert places[zeros.target] == (2, 0)
    assert encoded.nodes == (NativeRun(0, 4),)


def test_only_ordinary_kernels_are_told_addresses(encode):
    call = KernelCall("k", at(0), 10)
    _, encoded = encode(call, call, KernelCall("t", at(2), 3))
    first, second, _ = encoded.plan.steps
    assert encoded.kernels([NativeRun(0, 2)]) == [first, second]
    assert encoded.kernels([NativeRun(0, 3)]) is None
    assert encoded.kernels([NativeRun(0, 1), NativeRun(1, 1)]) is None


def test_a_part_of_a_plan_runs_on_another_stream(encode):
    call = KernelCall("k", at(0), 10)
    _, encoded = encode(*[call] * 3)
    plan = encoded.plan.variant(encoded.plan.steps)
    plan.select(1, 2, 9)
    launches = plan.launches
    assert (launches.stream, launches.step_count) == (9, 2)
    steps = [ctypes.addressof(step) for step in plan.steps[1:]]
    assert words_at(launches.steps, 2) == steps
    assert launches.attribute_count == encoded.plan.launches.attribute_count
