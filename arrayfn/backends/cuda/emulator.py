"""Runs CUDA kernels without a GPU: every thread a generator, one after the other.

A kernel's source is parsed, and each call at which threads meet (a barrier, a shuffle)
becomes a ``yield``. The threads of a block run until they meet; then the barrier opens
or the values change lanes. Blocks run in order. It is slow and meant for small shapes;
what it finds besides wrong numbers is an error:

* threads that meet at different places, or not at all (a divergent barrier);
* shared memory that one thread writes and another touches with no barrier between;
* two threads that write the same element of an array, accesses outside an array, and
  vector accesses off their alignment;
* where all blocks run at once, an element that one block writes and another touches
  with no grid barrier between.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import emulated_matrices as matrices
from arrayfn.backends.cuda.emulated_boards import BOARDS, never_posted, posted
from arrayfn.backends.cuda.emulated_copies import COPIES, unread
from arrayfn.backends.cuda.emulated_memory import (
    Accesses,
    EmulationError,
    GlobalMemory,
    Memory,
    Pointer,
    SharedMemory,
    Signal,
)
from arrayfn.backends.cuda.emulated_warps import exchanged
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import (
    FUNCTIONS,
    LEAST_DIVIDEND,
    LEAST_DIVISOR,
    WARP,
    DeviceFunction,
)
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What a generator yields: where it stands, and what it brings."""

    function: str
    line: int
    arguments: tuple[Any, ...]


@dataclass
class _Block:
    index: int
    epoch: int = 0
    warps: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[str, int], SharedMemory] = field(default_factory=dict)
    signals: dict[int, Signal] = field(default_factory=dict[int, Signal])
    cluster: list[_Block] = field(default_factory=list)
    met: bool = False  # whether the cluster is known to run
    ticket: int | None = None
    launch: int = 0

    @property
    def rank(self) -> int:
        return self.cluster.index(self)


@dataclass
class _Running:
    """One thread: its generator, and what it waits at."""

    block: _Block
    index: int
    body: Generator[_Meeting, Any, None] | None = None
    waiting: _Meeting | None = None
    copies: list[list[tuple[SharedMemory, int, list[Any]]]] = field(
        default_factory=lambda: [[]]
    )

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        return _ACTIONS[function.kind](self, function, arguments)

    def resume(self, value: Any) -> None:
        vocabulary.set_current(self)
        GlobalMemory.running = self
        try:
            assert self.body is not None
            self.waiting = self.body.send(value)
        except StopIteration:
            self.body, self.waiting = None, None
        finally:
            vocabulary.set_current(None)
            GlobalMemory.running = None


_FRAMES_TO_KERNEL: Final = 3  # an action's, the thread's, the device function's


def _shared(thread: _Running, function: DeviceFunction, arguments: Any) -> SharedMemory:
    # Each place of the text has its array, also where a part comes to it again.
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    key = (function.name, line)
    block = thread.block
    if key not in block.shared:
        array = np.zeros(arguments[0], DTYPES[function.dtype])
        block.shared[key] = SharedMemory(array, function.name, block)
    return block.shared[key]


def _registers(thread: _Running, function: DeviceFunction, arguments: Any) -> Memory:
    array = np.zeros(arguments[0], DTYPES[function.dtype])
    return Memory(array, function.name)


def _send(thread: _Running, function: DeviceFunction, arguments: Any) -> None:
    array, at, value, rank, _, k = arguments
    block = thread.block
    if not block.met:
        raise EmulationError(
            f"block {block.index} sends to block {rank} of its cluster, which may not "
            "have begun to run: no cluster_wait stands before"
        )
    (key,) = (key for key, memory in block.shared.items() if memory is array)
    peer = block.cluster[int(rank)]
    if key not in peer.shared:
        peer.shared[key] = SharedMemory(np.zeros_like(array.array), function.name, peer)
    # What another block sends may be there at once: who still reads reads it.
    target = peer.shared[key]
    target.array[target.place(at)] = value
    _signal((peer.signals, k)).arriving.append((target, int(at), [value]))


def _atomic_add(thread: _Running, function: DeviceFunction, arguments: Any) -> None:
    array, at, value = arguments
    array.add(int(at), value)


def _arena(thread: _Running, function: DeviceFunction, arguments: Any) -> SharedMemory:
    offset, count = arguments
    key = (function.name, -1 - int(offset))
    block = thread.block
    if key not in block.shared:
        array = np.zeros(int(count), DTYPES[function.dtype])
        block.shared[key] = SharedMemory(array, f"{function.name} at {offset}", block)
    return block.shared[key]


def _signal_init(thread: _Running, function: DeviceFunction, arguments: Any) -> None:
    signals, k = arguments
    signals[int(k)] = Signal()


def _signal(arguments: Any) -> Signal:
    signals, k = arguments
    if int(k) not in signals:
        raise EmulationError(f"signal {k} is used before it is made")
    return signals[int(k)]


def _expect(thread: _Running, function: DeviceFunction, arguments: Any) -> None:
    signal = _signal(arguments[:2])
    if signal.expected:
        raise EmulationError(f"signal {arguments[1]} expects something already")
    signal.expected = int(arguments[2])


def _fetch(thread: _Running, function: DeviceFunction, arguments: Any) -> None:
    array, at, shared, place, count, *signal = arguments
    size = array.array.itemsize
    for what, start in ((array, at), (shared, place)):
        address = what.array.ctypes.data + what.place(start) * size
        if (what is array and address % 16) or int(start) * size % 16:
            raise EmulationError(f"a fetch at {what.name}[{start}] is not aligned")
    if int(count) * size % 16:
        raise EmulationError(f"a fetch of {count} elements is not of whole pieces")
    values = [array[int(at) + k] for k in range(int(count))]
    unread(thread, shared, int(place), int(count), "is fetched")
    _signal(signal).arriving.append((shared, int(place), values))


def _divides(thread: _Running, function: DeviceFunction, arguments: Any) -> bool:
    least, greatest, y = arguments
    small, large = LEAST_DIVIDEND, 1 / LEAST_DIVIDEND
    divisors = LEAST_DIVISOR <= abs(y) <= 1 / LEAST_DIVISOR
    return bool(least >= small and greatest <= large and divisors)


def _has_come(thread: _Running) -> bool:
    """Whether the signal that ``thread`` waits for has come, and all that it counts."""
    assert thread.waiting is not None
    signals, k, parity = thread.waiting.arguments
    signal = _signal((signals, k))
    if signal.turns % 2 != int(parity):
        return True
    if not signal.expected or signal.bytes < signal.expected:
        return False
    if signal.bytes > signal.expected:
        raise EmulationError(
            f"signal {k} counts {signal.bytes} bytes where {signal.expected} are "
            "expected: some are of its next turn"
        )
    for shared, place, values in signal.arriving:
        for n, value in enumerate(values):
            shared.array[place + n] = value
    signal.arriving, signal.expected = [], 0
    signal.turns += 1
    return True


_ACTIONS: dict[str, Callable[[_Running, DeviceFunction, Any], Any]] = {
    "block_index": lambda thread, function, arguments: thread.block.index,
    "thread_index": lambda thread, function, arguments: thread.index,
    "quotient": lambda thread, function, arguments: arguments[0] // arguments[1],
    "remainder": lambda thread, function, arguments: arguments[0] % arguments[1],
    "byte": lambda thread, function, arguments: int(arguments[0]) >> arguments[1] & 255,
    "shared": _shared,
    "registers": _registers,
    "send": _send,
    "atomic_add": _atomic_add,
    "inverse": lambda thread, function, arguments: np.float32(1) / arguments[0],
    "divide": lambda thread, function, arguments: arguments[0] / arguments[1],
    "divides": _divides,
    "cluster_arrive": lambda thread, function, arguments: None,
    "arena": _arena,
    "signals": lambda thread, function, arguments: thread.block.signals,
    "signal_init": _signal_init,
    "expect": _expect,
    "fetch": _fetch,
    **COPIES,
    **BOARDS,
    "window": lambda thread, function, arguments: arguments[0].window(arguments[1]),
}


class _Meetings(ast.NodeTransformer):
    """Turns calls of collective functions into yields of a ``_Meeting``.

    The functions of the source itself are parts of the kernel, which meet likewise.
    """

    def __init__(self, parts: frozenset[str]) -> None:
        self.parts = parts

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        if node.func.id in self.parts:
            return ast.copy_location(ast.YieldFrom(node), node)
        if node.func.id not in vocabulary.COLLECTIVE:
            return node
        meeting = ast.Call(
            ast.Name("_meeting", ast.Load()),
            [
                ast.Constant(node.func.id),
                ast.Constant(node.lineno),
                ast.Tuple(node.args, ast.Load()),
            ],
            [],
        )
        return ast.copy_location(ast.Yield(meeting), node)


def generator_of(
    source: str, name: str
) -> Callable[..., Generator[_Meeting, Any, None]]:
    """The kernel ``name`` of ``source`` as a generator function."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    tree = _Meetings(frozenset(f.name for f in functions)).visit(tree)
    for function in functions:
        # One without any meeting is a generator too.
        nothing = ast.Expr(ast.Yield(ast.Constant(None)))
        function.body.append(ast.If(ast.Constant(False), [nothing], []))
    namespace: dict[str, Any] = {"_meeting": _Meeting}
    exec(compile(ast.fix_missing_locations(tree), f"<{name}>", "exec"), namespace)
    return namespace[name]


def launch(
    source: str,
    name: str,
    grid: int,
    threads: int,
    arguments: Sequence[Pointer | int],
    cluster: int = 1,
    *,
    cooperative: bool = False,
) -> None:
    """Run ``grid`` blocks of ``threads`` threads of the kernel ``name`` of ``source``.

    ``cluster`` blocks run at a time, or all if they are ``cooperative``. Raises
    EmulationError where the kernel does what is undefined on a GPU.
    """
    kernel = generator_of(source, name)
    known: dict[tuple[int, int], Accesses] = {}
    passed: list[GlobalMemory | int] = []
    for k, a in enumerate(arguments):
        if not isinstance(a, Pointer):
            passed.append(a)
            continue
        key = (a.array.ctypes.data, a.array.itemsize) if cooperative else (k, 0)
        accesses = known.setdefault(key, Accesses(readers={} if cooperative else None))
        passed.append(GlobalMemory(a, f"argument {k}", accesses))
    together = list(known.values()) if cooperative else []
    if cooperative:
        cluster = grid
    if grid % cluster:
        raise EmulationError(f"{grid} blocks are no whole clusters of {cluster}")
    with np.errstate(all="ignore"):
        for first in range(0, grid, cluster):
            blocks = range(first, first + cluster)
            _run_cluster(blocks, kernel, threads, passed, together)


def _run_cluster(
    indices: Sequence[int],
    kernel: Callable[..., Generator[_Meeting, Any, None]],
    threads: int,
    arguments: Sequence[Any],
    accesses: Sequence[Accesses],
) -> None:
    blocks = [_Block(index) for index in indices]
    running: list[list[_Running]] = []
    for block in blocks:
        block.cluster = blocks
        running.append([_Running(block, index) for index in range(threads)])
        for thread in running[-1]:
            thread.body = kernel(*arguments)
            thread.resume(None)
    while any(thread.body is not None for block in running for thread in block):
        # Blocks go on until all of them stand at the cluster's barrier, or are done.
        if not any(_go_on(block) for block in running):
            for known in accesses:
                known.forget()
            _open_cluster(running)


def _go_on(block: Sequence[_Running]) -> bool:
    """Let the threads of a block do what they can: whether they could do anything."""
    if _at_cluster_wait(block) or all(t.body is None for t in block):
        return False
    found = ((thread, _come(thread)) for thread in block if _awaits(thread))
    come = [pair for pair in found if pair[1] is not None]
    for thread, value in come:
        thread.resume(value)
    warps = [block[k : k + WARP] for k in range(0, len(block), WARP)]
    exchanged = [_shuffle(warp) for warp in warps if not any(map(_awaits, warp))]
    if come or any(exchanged):
        return True
    if any(map(_awaits, block)):
        return False
    _open_barrier(block)
    return True


def _awaits(thread: _Running) -> bool:
    """Whether a thread waits by itself, for a signal or for what is posted."""
    waiting = thread.waiting
    return waiting is not None and waiting.function.startswith(("await", "posted"))


def _come(thread: _Running) -> Any:
    """What a thread that waits by itself goes on with; None if it has to wait."""
    assert thread.waiting is not None
    if thread.waiting.function == "await_signal":
        return _has_come(thread) or None
    function = FUNCTIONS[thread.waiting.function]
    return posted(thread.block, function, thread.waiting.arguments)


_OF_BLOCKS = ("cluster_wait", "grid_barrier")
"""Where blocks meet."""


def _at_cluster_wait(block: Sequence[_Running]) -> bool:
    waiting = [thread.waiting for thread in block]
    return all(m is not None and m.function in _OF_BLOCKS for m in waiting)


def _open_cluster(running: Sequence[Sequence[_Running]]) -> None:
    for thread in (thread for block in running for thread in block):
        if _awaits(thread):
            assert thread.waiting is not None
            if thread.waiting.function != "await_signal":
                board, at = thread.waiting.arguments
                raise never_posted(thread.block, board, at)
            signals, k, _ = thread.waiting.arguments
            signal = _signal((signals, k))
            raise EmulationError(
                f"signal {k} never comes to block {thread.block.index}: "
                f"{signal.bytes} bytes arrive of {signal.expected}"
            )
    if not all(_at_cluster_wait(block) for block in running):
        raise EmulationError("blocks of a cluster part: some wait for one that is done")
    for block in running:
        block[0].block.met = True
    _open_barrier([thread for block in running for thread in block])


def _shuffle(warp: Sequence[_Running]) -> bool:
    """Exchange values among the lanes if they all stand at a shuffle."""
    meetings = [thread.waiting for thread in warp]
    if all(m is None or m.function in ("barrier", *_OF_BLOCKS) for m in meetings):
        return False
    if len({(m.function, m.line) if m else None for m in meetings}) != 1:
        places = sorted(
            {f"{m.function} at line {m.line}" if m else "done" for m in meetings}
        )
        raise EmulationError(f"the lanes of a warp part: {', '.join(places)}")
    (met, *_), arguments = meetings, [m.arguments for m in meetings if m]
    assert met is not None
    function = FUNCTIONS[met.function]
    if function.kind in matrices.ACTIONS:
        if len(warp) != WARP:
            raise EmulationError(f"{met.function} is of {WARP} lanes, not {len(warp)}")
        GlobalMemory.running = warp[0]  # what a warp does together its first lane does
        matrices.ACTIONS[function.kind](function, arguments)
        for thread in warp:
            thread.resume(None)
        return True
    if function.kind == "warp_barrier":
        block, number = warp[0].block, warp[0].index // WARP
        block.warps[number] = block.warps.get(number, 0) + 1
        for thread in warp:
            thread.resume(None)
        return True
    for thread, value in zip(warp, exchanged(function, arguments), strict=True):
        thread.resume(value)
    return True


def _open_barrier(running: Sequence[_Running]) -> None:
    lines = {thread.waiting.line if thread.waiting else None for thread in running}
    if len(lines) != 1:
        stand = ", ".join(
            "done" if n is None else f"line {n}" for n in sorted(lines, key=str)
        )
        raise EmulationError(f"threads of a block part at a barrier: {stand}")
    for block in {id(thread.block): thread.block for thread in running}.values():
        block.epoch += 1
    for thread in running:
        thread.resume(None)
