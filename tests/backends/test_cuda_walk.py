"""Loops and branches of a plan as conditional nodes of a graph, which is run here."""

from functools import partial

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda.graphs.capture import Hazards
from arrayfn.backends.cuda.graphs.kernels import copy_ptx, set_condition_ptx
from arrayfn.backends.cuda.graphs.walk import CapturingWalk
from arrayfn.backends.cuda.plan_nodes import (
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    StepAccesses,
    buffers_written_in,
    slices_can_be_copied,
    unrolled_iterations,
)
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import (
    Branch,
    BufferAllocation,
    Carry,
    KernelCall,
    Loop,
    Slice,
)
from tests.lowered_on_gpu import lowered

X = ArrayType((8,), dtypes.float32)
CURRENT, NEXT, INITIAL, FIRST, SECOND, FLAG, WINDOW, WHOLE = range(8)


class InOrder:
    """Captures each step after the one before."""

    def add(self, accesses, step):
        step()

    def join(self):
        """They are."""

    def restart(self):
        """They go on."""


class Graph:
    """Streams are lists of what to do; memory has a number at each address."""

    def __init__(self, memory):
        self.memory = memory
        self.streams = {0: []}
        self.conditions = []

    # What an encoded plan does.

    has_collectives = False

    def accesses(self, node, addresses):
        return ()

    def is_small(self, node):
        return True

    def launch(self, node, addresses, stream):
        at = list(addresses)
        self.streams[stream].append(partial(node.first, self.memory, at))

    def address(self, buffer, addresses):
        return addresses[buffer]

    def copy(self, buffer, target, source, stream):
        def copied():
            self.memory[target] = self.memory[source]

        self.streams[stream].append(copied)

    def nbytes(self, buffer):
        return 1

    def loop_memory(self, node, number, nbytes):
        return 100_000 + 10_000 * number

    # What adds nodes.

    def captured(self, enqueue):
        stream = len(self.streams)
        self.streams[stream] = steps = []
        enqueue(stream)
        return lambda: [step() for step in steps]

    def concurrent(self, stream):
        return InOrder()

    def create_handle(self, stream):
        self.conditions.append(0)
        return len(self.conditions) - 1

    def set_condition(self, stream, handle, scalar, last):
        def done():
            value = self.memory[scalar[1]]
            self.conditions[handle] = min(max(value, 0), last)

        self.streams[stream].append(done)

    def while_node(self, stream, handle, body):
        run = self.captured(body)

        def loop():
            while self.conditions[handle]:
                run()

        self.streams[stream].append(loop)

    def counted_loop(self, stream, counter, trip_count, body):
        run = self.captured(body)

        def loop():
            for self.memory[counter] in range(trip_count):
                run()

        self.streams[stream].append(loop)

    def copy_strided(self, stream, target, source, counter, nbytes):
        def copied():
            k = self.memory[counter]
            to, begin = (x + k * stride for x, stride in (target, source))
            for offset in range(nbytes):
                if begin + offset in self.memory:
                    self.memory[to + offset] = self.memory[begin + offset]

        self.streams[stream].append(copied)

    def switch_node(self, stream, handle, branches):
        runs = [self.captured(branch) for branch in branches]

        def chosen():
            runs[self.conditions[handle]]()

        self.streams[stream].append(chosen)

    def play(self):
        for step in self.streams[0]:
            step()


def kernel(function):
    """A run of steps that calls ``function(memory, at)``."""
    return NativeRun(function, 1)


def doubled(memory, at):
    memory[at[NEXT]] = 2 * memory[at[CURRENT]]
    memory[at[FLAG]] = int(memory[at[NEXT]] < 100)


CARRY = Carry(CURRENT, NEXT, INITIAL, FIRST, SECOND, SECOND)


@pytest.mark.parametrize("start", [1, 2, 3, 60, 200])
def test_a_loop_in_a_graph_ends_where_its_value_is(start):
    """Carries are double-buffered; odd trip counts end in the other buffer."""
    memory = {10: start, 11: -1, 12: -1, 13: int(start < 100)}
    graph = Graph(memory)
    addresses = [0, 0, 10, 11, 12, 13, 0, 0]
    loop = Loop((), None, FLAG, carries=(CARRY,))
    node = LoopNode(loop, (kernel(doubled),))
    CapturingWalk(graph, addresses, graph).run((node,), 0)
    graph.play()
    want = start
    while want < 100:
        want *= 2
    assert memory[12] == want
    assert memory[10] == start
    assert addresses[CURRENT] == addresses[NEXT] == 0


def test_branches_and_counted_loops_are_inside_the_graph_s_loop():
    """Each iteration adds windows 0, 4, 8 of an array, or subtracts 1, by a number."""
    memory = {10: 3, 13: 1, 20: 5, 24: 6, 28: 7}

    def add(memory, at):
        memory[at[INITIAL]] += memory[at[WINDOW]]
        memory[at[FLAG]] = int(memory[at[INITIAL]] < 40)

    def subtract(memory, at):
        memory[at[INITIAL]] -= 1

    sweep = Loop((), 3, slices=(Slice(WINDOW, WHOLE, 0, 4),))
    branch = BranchNode(
        Branch(FLAG, ()), ((kernel(subtract),), (LoopNode(sweep, (kernel(add),)),))
    )
    outer = LoopNode(Loop((), None, FLAG), (branch, kernel(subtract)))
    graph = Graph(memory)
    CapturingWalk(graph, [0, 0, 10, 0, 0, 13, 0, 20], graph).run((outer,), 0)
    graph.play()
    assert memory[10] == 3 + 18 - 1 + 18 - 1 + 18 - 1
    assert len(graph.streams) == 4


@pytest.mark.parametrize("count", [8, 9, 11, 12])
@pytest.mark.parametrize("direction", [1, -1])
def test_a_long_loop_repeats_a_window_of_its_iterations(count, direction):
    """A running sum: windows of an array are copied in, those of results copied out."""
    given, results = 1000, 2000
    memory = {10: 5, 11: -1, 12: -1}
    values = {k: 7 * k % 5 + 1 for k in range(count)}
    for k in range(count):
        memory[given + 4 * k], memory[results + 4 * k] = values[k], -1
    begin = 0 if direction > 0 else 4 * (count - 1)
    sums_at, written = 8, 9
    slices = (
        Slice(WINDOW, WHOLE, begin, 4 * direction),
        Slice(written, sums_at, begin, 4 * direction),
    )

    def add(memory, at):
        memory[at[NEXT]] = memory[at[CURRENT]] + memory[at[WINDOW]]
        memory[at[written]] = memory[at[NEXT]]

    carry = Carry(CURRENT, NEXT, INITIAL, FIRST, SECOND, (SECOND, FIRST)[count % 2])
    loop = Loop((), count, slices=slices, carries=(carry,))
    node = LoopNode(loop, (kernel(add),), 4, frozenset({written}))
    graph = Graph(memory)
    addresses = [0, 0, 10, 11, 12, 0, 0, given, results, 0]
    CapturingWalk(graph, addresses, graph).run((node,), 0)
    graph.play()
    order = range(count)[::direction]
    sums = dict(zip(order, 5 + np.cumsum([values[k] for k in order]), strict=True))
    assert [memory[results + 4 * k] for k in range(count)] == [
        sums[k] for k in range(count)
    ]
    assert memory[11 + (count + 1) % 2] == sums[order[-1]]
    assert len(graph.streams[0]) == 2 + count % 4


def test_long_loops_have_windows_unless_a_library_enqueues():
    run, host = NativeRun(0, 2), HostCall(print, (), True, StepAccesses((), ()))
    assert unrolled_iterations(1000, (run,)) == 64
    assert unrolled_iterations(200, (run,)) == 0
    assert unrolled_iterations(None, (run,)) == 0
    assert unrolled_iterations(1000, (run, host)) == 0
    assert (
        unrolled_iterations(1000, (BranchNode(Branch(0, ()), ((run,), (host,))),)) == 0
    )


def test_what_a_window_may_slice():
    """Arrays that are only read, and results that nothing else touches."""

    def buffer(number, donor=None):
        return BufferAllocation("input", number, X, X.nbytes, donor=donor)

    def fits(reads, writes, slices, donors=()):
        buffers = [buffer(k) for k in range(6)]
        for number, donor in donors:
            buffers[number] = buffer(number, donor)
        step = KernelCall("step", (), 1, reads=reads, writes=writes)
        loop = Loop((step,), 9, slices=[Slice(*pair, 0, 4) for pair in slices])
        return slices_can_be_copied(loop, buffers_written_in(loop), buffers)

    of_input, of_output = (4, 0), (5, 1)
    assert fits((4,), (5,), (of_input, of_output))
    assert fits((4, 0), (5,), (of_input, of_output))
    assert not fits((4, 1), (5,), (of_input, of_output))
    assert not fits((4,), (5, 0), (of_input, of_output))
    assert not fits((4,), (5,), (of_input, (5, 0)))
    assert not fits((4,), (5,), (of_input, of_output), donors=((1, 0),))


def test_the_plan_names_the_step_for_which_the_host_reads_a_predicate():
    def plan_of(step):
        run = lambda x: lax.while_loop(lambda x: anp.sum(x) < 1000, step, x)  # noqa: E731
        x = np.ones((30, 30), np.float32)
        return str(lowered(run, x).plan)

    host = plan_of(lambda x: af.pure_callback(lambda x: 2 * x, x, x))
    assert "read by the host for" in host
    assert "read by the host for getrf" in plan_of(lambda x: anp.linalg.inv(x @ x))
    assert "read by the host" not in plan_of(lambda x: x @ x)


def test_conditions_are_set_from_numbers_of_their_kind():
    assert "ld.global.u8" in set_condition_ptx("u8")
    assert "ld.global.s32" in set_condition_ptx("i32")


def test_windows_are_copied_in_the_widest_words_that_fit():
    assert "ld.global.v4.u32" in copy_ptx(16)
    assert "mad.lo.u64 %t, %i, 4, %t" in copy_ptx(4)
    assert "st.global.u8" in copy_ptx(1)


def test_a_step_waits_for_those_whose_memory_it_shares_and_no_others():
    """A chain; a step beside it; one that reads both; one that writes over an input."""
    hazards = Hazards()
    read, written = False, True
    steps = [
        [(0, 8, read), (8, 16, written)],
        [(8, 16, read), (16, 24, written)],
        [(0, 8, read), (32, 40, written)],
        [(20, 36, read), (40, 48, written)],
        [(0, 8, written)],
        [(0, 8, read), (40, 48, read)],
    ]
    assert [hazards.add(step) for step in steps] == [
        [],
        [0],
        [],
        [2, 1],
        [2, 0],
        [4, 3],
    ]
