"""Graphs on memory of their own: what is copied there and back."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from arrayfn.backends.cuda import runner, staging
from arrayfn.backends.cuda.kernel_nodes import Graph, Kernel
from arrayfn.backends.cuda.staging import Part, Staging, copy_parts_ptx, parts_of
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

    def record(self, enqueue):
        enqueue(6)
        return 70

    def instantiate(self, graph):
        return graph + 7


class Unlaunched(Graph):
    """A graph that nothing is launched of."""

    def __init__(self, recorded):
        self._gpu, self.recorded = Card(), recorded

    def __del__(self):
        pass


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(staging, "device", lambda: made)
    monkeypatch.setattr(staging, "_kernel", lambda parts: 500 + parts)
    monkeypatch.setattr(staging, "Graph", Unlaunched)
    monkeypatch.setattr(Kernel, "capture", lambda kernel, stream: kernel.function)
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
    parts = [Part(0, 20, 0), Part(1, 300_000, 1)], [Part(2, 20, 2)]
    seen = []
    addresses = (ctypes.c_int64 * 5)(0, 0, 0, 44, 0)
    plan = runner.Plan({runner.STREAM: 6}, [], [])
    made = Staging(parts, 100)
    plan = made.capture(addresses, plan, lambda at, s: seen.append(([*at], s)))
    # Three places, what is constant, and temporaries.
    assert seen == [([1000, 2000, 3000, 44, 4000], 6)]
    words = plan.words
    assert words[runner.STREAM // 8] == 6
    count = int(words[runner.STEP_COUNT // 8])
    steps = words_at(words[runner.STEPS // 8], count * runner.STEP_WORDS)
    inwards, outwards, graph = (
        steps[k * runner.STEP_WORDS :][:4] for k in range(count)
    )
    assert graph[:2] == [runner.GRAPH, 77]
    slots = np.array(words_at(words[runner.SLOTS // 8], 9)).reshape(3, 3)
    for place, buffer, offset in slots:
        assert offset == 0
        ctypes.c_int64.from_address(int(place)).value = 90 + buffer
    for row, node, blocks, table in (
        (inwards, 502, 2 * (300_000 // staging._BLOCK_BYTES), INWARDS),
        (outwards, 501, 1, OUTWARDS),
    ):
        assert row[:3] == [runner.PARAMETERS, 77, node]
        kernel = Kernel.from_address(row[3])
        assert (*kernel.blocks, *kernel.threads) == (blocks, 1, 1, 256, 1, 1)
        at, _ = words_at(kernel.parameters, 2)
        assert words_at(at, len(table)) == table


def test_a_result_over_an_argument_shares_its_place(card):
    parts = parts_of([F32], [0], [1], buffers("input", "output", donors={0: 0}), 0)
    assert parts == ([Part(0, 20, 0)], [Part(1, 20, 0)])
    seen = []
    plan = runner.Plan({}, [], [])
    Staging(parts, 0).capture(
        (ctypes.c_int64 * 3)(), plan, lambda at, _: seen.append([*at])
    )
    assert seen == [[1000, 1000, 0]]


def test_large_arrays_and_ones_that_lie_backwards_have_no_place():
    three = buffers("input", "input", "output", nbytes=5 << 20)
    numbers = [0, 1], [2]
    assert parts_of([F32, F32], *numbers, three, 1 << 20) is not None
    assert parts_of([F32, F32], *numbers, three, 1 << 26) is None
    more = buffers("input", "input", "output", nbytes=6 << 20)
    assert parts_of([F32, F32], *numbers, more, 0) is None
    backwards = ArrayType((5,), np.dtype("float32"), layout.from_strides((5,), [-1]))
    assert parts_of([F32, backwards], *numbers, three, 0) is None


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_the_copies_assemble(tmp_path):
    source = tmp_path / "copy.ptx"
    source.write_text(copy_parts_ptx(3))
    target = str(tmp_path / "copy.cubin")
    subprocess.run(["ptxas", "-arch=sm_90", "-o", target, str(source)], check=True)
