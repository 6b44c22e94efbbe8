"""Graphs on staging buffers: what is copied there and back."""

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from arrayfn.backends.cuda.graphs import staging
from arrayfn.backends.cuda.graphs.kernels import copy_parts_ptx
from arrayfn.backends.cuda.graphs.replay import CapturedGraph, KernelNodeParams
from arrayfn.backends.cuda.graphs.staging import (
    StagedBuffer,
    Staging,
    staged_buffers,
)
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.ir import ArrayType, layout
from arrayfn.lowering.plan import BufferAllocation

# Targets, sources and bytes.
INWARDS = [1000, 90, 20, 2000, 91, 300_000]
OUTWARDS = [92, 3000, 20]
F32 = ArrayType((5,), np.dtype("float32"), layout.C)


class Card:
    """Numbers its memory and graphs; kernels are called as they are."""

    def __init__(self):
        self.blocks = 0

    def block(self, nbytes):
        self.blocks += 1
        return 1000 * self.blocks, object()

    def capture(self, enqueue):
        enqueue(6)
        return 70

    def instantiate(self, graph):
        return graph + 7


class Unlaunched(CapturedGraph):
    """A graph that nothing is launched of."""

    def __init__(self, handle, code):
        self._gpu, self.handle = Card(), handle

    def __del__(self):
        pass


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(staging, "device", lambda: made)

    def kernel(text, entry):
        parts = 1 if text == copy_parts_ptx(1) else 2
        return SimpleNamespace(function=500 + parts)

    monkeypatch.setattr(staging, "loaded", kernel)
    monkeypatch.setattr(staging, "CapturedGraph", Unlaunched)
    monkeypatch.setattr(KernelNodeParams, "capture", lambda k, stream: k.function)
    return made


def buffers(*kinds, nbytes=20, donors=None):
    """Buffers of these kinds; outputs are over inputs as ``donors`` says."""
    made = []
    for kind in kinds:
        index = sum(b.kind == kind for b in made)
        donor = (donors or {}).get(index) if kind == "output" else None
        made.append(BufferAllocation(kind, index, F32, nbytes, donor=donor))
    return made


def words_at(address, count):
    return list((ctypes.c_int64 * count).from_address(int(address)))


def test_arguments_are_copied_in_and_results_out(card):
    arguments = [StagedBuffer(0, 20, 0), StagedBuffer(1, 300_000, 1)]
    results = [StagedBuffer(2, 20, 2)]
    seen = []
    addresses = (ctypes.c_int64 * 5)(0, 0, 0, 44, 0)
    plan = Plan({"stream": 6}, [], [])
    made = Staging(arguments, results, 100)
    plan = made.capture(addresses, plan, lambda at, s: seen.append(([*at], s)))
    # Three staging buffers, a constant, and temporaries.
    assert seen == [([1000, 2000, 3000, 44, 4000], 6)]
    assert plan.launches.stream == 6
    inwards, outwards, graph = plan.steps
    assert (graph.kind, graph.graph) == (StepKind.GRAPH, 77)
    assert plan.launches.slot_count == 3
    slots = np.array(words_at(plan.launches.slots, 9)).reshape(3, 3)
    for slot, buffer, offset in slots:
        assert offset == 0
        ctypes.c_int64.from_address(int(slot)).value = 90 + buffer
    for row, node, blocks, table in (
        (inwards, 502, 2 * (300_000 // staging._BLOCK_BYTES), INWARDS),
        (outwards, 501, 1, OUTWARDS),
    ):
        assert (row.kind, row.graph, row.node) == (StepKind.PARAMETERS, 77, node)
        kernel = KernelNodeParams.from_address(row.parameters)
        assert (*kernel.blocks, *kernel.threads) == (blocks, 1, 1, 256, 1, 1)
        at, _ = words_at(kernel.parameters, 2)
        assert words_at(at, len(table)) == table


def test_a_result_over_an_argument_shares_its_staging_buffer(card):
    over = buffers("input", "output", donors={0: 0})
    staged = staged_buffers([F32], [0], [1], over, 0)
    assert staged == ([StagedBuffer(0, 20, 0)], [StagedBuffer(1, 20, 0)])
    seen = []
    plan = Plan({}, [], [])
    Staging(*staged, 0).capture(
        (ctypes.c_int64 * 3)(), plan, lambda at, _: seen.append([*at])
    )
    assert seen == [[1000, 1000, 0]]


def test_large_and_backward_arrays_are_not_staged():
    three = buffers("input", "input", "output", nbytes=5 << 20)
    numbers = [0, 1], [2]
    assert staged_buffers([F32, F32], *numbers, three, 1 << 20) is not None
    assert staged_buffers([F32, F32], *numbers, three, 1 << 26) is None
    more = buffers("input", "input", "output", nbytes=6 << 20)
    assert staged_buffers([F32, F32], *numbers, more, 0) is None
    assert staged_buffers([F32, F32], *numbers, more, 0, has_collectives=True)
    backwards = ArrayType((5,), np.dtype("float32"), layout.from_strides((5,), [-1]))
    assert staged_buffers([F32, backwards], *numbers, three, 0) is None


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_the_copies_assemble(tmp_path):
    source = tmp_path / "copy.ptx"
    source.write_text(copy_parts_ptx(3))
    target = str(tmp_path / "copy.cubin")
    subprocess.run(["ptxas", "-arch=sm_90", "-o", target, str(source)], check=True)
