"""Graphs on memory of their own: what is copied there and back."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from arrayfn import layout
from arrayfn.backends.cuda import runner, staging
from arrayfn.backends.cuda.staging import Part, Staging, copy_parts_ptx, parts_of
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation

F32 = ArrayType((5,), np.dtype("float32"), layout.C)


class Card:
    """Numbers its memory and graphs; kernels are called as they are."""

    def __init__(self):
        self.blocks = 0
        self.forgotten = []

    def block(self, nbytes):
        self.blocks += 1
        return 1000 * self.blocks, object()

    def capture(self, enqueue):
        enqueue(6)
        return 77

    def forget(self, graph):
        self.forgotten.append(graph)


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(staging, "device", lambda: made)
    monkeypatch.setattr(staging, "_kernel", lambda parts: 500 + parts)
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
    header = np.zeros(runner.HEADER_BYTES // 8, np.int64)
    made = Staging(parts, 100)
    words = made.capture(addresses, header, lambda at, s: seen.append(([*at], s)))
    # Three places, what is constant, and temporaries.
    assert seen == [([1000, 2000, 3000, 44, 4000], 6)]
    count = words[runner.STEP_COUNT // 8]
    steps = words_at(words[runner.STEPS // 8], count * runner.STEP_WORDS)
    rows = [steps[k : k + runner.STEP_WORDS] for k in range(0, len(steps), 18)]
    inwards, graph, outwards = rows
    assert graph[:2] == [runner.GRAPH, 77]
    blocks = 300_000 // staging._BLOCK_BYTES
    assert inwards[:4] == [runner.KERNEL, 502, 2 * blocks, 256]
    assert outwards[:4] == [runner.KERNEL, 501, 1, 256]
    slots = np.array(words_at(words[runner.SLOTS // 8], 9)).reshape(3, 3)
    for place, buffer, offset in slots:
        assert offset == 0
        ctypes.c_int64.from_address(int(place)).value = 90 + buffer
    table, _ = words_at(inwards[4], 2)
    assert words_at(table, 6) == [1000, 90, 20, 2000, 91, 300_000]
    table, _ = words_at(outwards[4], 2)
    assert words_at(table, 3) == [92, 3000, 20]
    assert not header.any()
    del made
    assert card.forgotten == [77]


def test_a_result_over_an_argument_shares_its_place(card):
    parts = parts_of([F32], [0], [1], buffers("input", "output", donors={0: 0}), 0)
    assert parts == ([Part(0, 20, 0)], [Part(1, 20, 0)])
    seen = []
    header = np.zeros(runner.HEADER_BYTES // 8, np.int64)
    Staging(parts, 0).capture(
        (ctypes.c_int64 * 3)(), header, lambda at, _: seen.append([*at])
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
