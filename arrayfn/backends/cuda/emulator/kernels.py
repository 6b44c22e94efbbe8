"""Emulates CUDA kernels: each thread is a Python generator, which runs on the host.

A kernel's source is parsed, and each call of a collective function (a barrier, a
shuffle) becomes a ``yield``. The threads of a block run one after the other until all
have reached such a call; then the barrier opens, or lanes exchange values. Blocks, or
clusters of them, run in order. The emulator is slow and meant for small shapes. Besides
wrong numbers it finds these errors:

* threads that reach different barriers, or none (a divergent barrier);
* shared memory that one thread writes and another accesses with no barrier between;
* two threads that write the same element of an array, accesses outside an array, and
  unaligned vector accesses;
* if a result overwrites an operand: an element that one thread writes and another
  reads with no barrier between;
* if all blocks run at once: an element that one block writes and another accesses
  with no grid barrier between.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from arrayfn.backends.cuda.emulator import matrices
from arrayfn.backends.cuda.emulator.lookback import (
    never_published,
    wait_for,
    wait_for_many,
)
from arrayfn.backends.cuda.emulator.memory import (
    Accesses,
    EmulationError,
    GlobalMemory,
    Pointer,
)
from arrayfn.backends.cuda.emulator.threads import (
    Block,
    Thread,
    Wait,
    mbarrier_of,
    phase_is_complete,
)
from arrayfn.backends.cuda.emulator.warps import exchanged
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import (
    FUNCTIONS,
    WARP,
)


class _Collectives(ast.NodeTransformer):
    """Turns calls of collective functions into yields of a ``Wait``.

    ``barrier()`` on line 7 becomes ``(yield _wait("barrier", 7, ()))``. Functions that
    the source itself defines (``parts``) are generators too, so their calls become
    ``(yield from part())``.
    """

    def __init__(self, parts: frozenset[str]) -> None:
        self.parts = parts

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the expression that replaces a call."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        if node.func.id in self.parts:
            return ast.copy_location(ast.YieldFrom(node), node)
        if node.func.id not in vocabulary.COLLECTIVE:
            return node
        wait = ast.Call(
            ast.Name("_wait", ast.Load()),
            [
                ast.Constant(node.func.id),
                ast.Constant(node.lineno),
                ast.Tuple(node.args, ast.Load()),
            ],
            [],
        )
        return ast.copy_location(ast.Yield(wait), node)


def generator_of(source: str, name: str) -> Callable[..., Generator[Wait, Any, None]]:
    """Compile the kernel ``name`` of ``source`` as a generator function.

    A generator runs one thread; it yields a ``Wait`` at each collective function.
    """
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    tree = _Collectives(frozenset(f.name for f in functions)).visit(tree)
    for function in functions:
        function.decorator_list = []
        # ``if False: yield`` makes a function without any wait a generator, too.
        nothing = ast.Expr(ast.Yield(ast.Constant(None)))
        function.body.append(ast.If(ast.Constant(False), [nothing], []))
    namespace: dict[str, Any] = {"_wait": Wait}
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
    """Run a kernel: ``grid`` blocks of ``threads`` threads, in clusters of ``cluster``.

    The kernel is the function ``name`` of ``source``. One cluster runs at a time, or
    the whole grid if the launch is ``cooperative``. Raises EmulationError where the
    behaviour on a GPU is undefined.
    """
    kernel = generator_of(source, name)
    # Accesses are recorded for each memory, if arguments may share it, and else for
    # each argument under the key (argument's number, 0).
    known: dict[tuple[int, int], Accesses] = {}
    passed: list[GlobalMemory | int] = []
    counts = Counter(_memory_of(a) for a in arguments if isinstance(a, Pointer))
    for k, a in enumerate(arguments):
        if not isinstance(a, Pointer):
            passed.append(a)
            continue
        in_place = counts[_memory_of(a)] > 1 and not cooperative
        key = _memory_of(a) if cooperative or in_place else (k, 0)
        no_accesses = Accesses(
            readers={} if cooperative else None, last_readers={} if in_place else None
        )
        accesses = known.setdefault(key, no_accesses)
        passed.append(GlobalMemory(a, f"argument {k}", accesses))
    # Grid barriers order accesses of different blocks.
    cleared_at_barriers = list(known.values()) if cooperative else []
    if cooperative:
        cluster = grid
    if grid % cluster:
        raise EmulationError(f"{grid} blocks are no whole clusters of {cluster}")
    with np.errstate(all="ignore"):
        for first in range(0, grid, cluster):
            blocks = range(first, first + cluster)
            _run_cluster(blocks, kernel, threads, passed, cleared_at_barriers)


def _memory_of(pointer: Pointer) -> tuple[int, int]:
    """Return a key for a pointer's memory: its address, and the bytes of an element."""
    return pointer.array.ctypes.data, pointer.array.itemsize


def _run_cluster(
    indices: Sequence[int],
    kernel: Callable[..., Generator[Wait, Any, None]],
    threads: int,
    arguments: Sequence[Any],
    accesses: Sequence[Accesses],
) -> None:
    """Run the blocks of a cluster to their end.

    ``indices`` are the blocks' numbers, and each block has ``threads`` threads.
    ``kernel(*arguments)`` makes the generator of one thread. The records ``accesses``
    are cleared when the cluster passes a barrier of all its blocks.
    """
    blocks = [Block(index) for index in indices]
    running: list[list[Thread]] = []
    for block in blocks:
        block.cluster = blocks
        running.append([Thread(block, index) for index in range(threads)])
        for thread in running[-1]:
            thread.body = kernel(*arguments)
            thread.resume(None)
    while any(thread.body is not None for block in running for thread in block):
        # ``any`` stops at the first block that advances. If none does, all blocks are
        # at a barrier of the cluster, or have ended.
        if not any(_advance(block) for block in running):
            for known in accesses:
                known.clear()
            _open_cluster(running)


def _advance(block: Sequence[Thread]) -> bool:
    """Resume the threads of a block that can go on; return whether any can.

    First come threads whose wait for an mbarrier or a flag is over (such a thread
    "waits alone"), then warps whose lanes all stand at a function of the warp. If there
    are none, the block passes its barrier.
    """
    if _at_cluster_wait(block) or all(t.body is None for t in block):
        return False
    results = [(t, _wait_result(t)) for t in block if _waits_alone(t)]
    resumable = [(thread, value) for thread, value in results if value is not None]
    for thread, value in resumable:
        thread.resume(value)
    warps = [block[k : k + WARP] for k in range(0, len(block), WARP)]
    exchanged = [_shuffle(warp) for warp in warps if not any(map(_waits_alone, warp))]
    if resumable or any(exchanged):
        return True
    if any(map(_waits_alone, block)):
        return False
    _open_barrier(block)
    return True


def _waits_alone(thread: Thread) -> bool:
    """Whether a thread waits for an mbarrier or a flag, not for other threads."""
    waiting = thread.waiting
    return waiting is not None and waiting.function.startswith(_WAITS_ALONE)


def _wait_result(thread: Thread) -> Any:
    """Return the result of a wait for an mbarrier or a flag; None if it is not over."""
    assert thread.waiting is not None
    if thread.waiting.function == "mbarrier_wait":
        return phase_is_complete(thread) or None
    function = FUNCTIONS[thread.waiting.function]
    wait = wait_for if function.kind == "wait_for" else wait_for_many
    return wait(thread.block, function, thread.waiting.arguments)


_WAITS_ALONE = ("mbarrier_wait", "wait_for", "wait_for_many")
"""Prefixes of functions at which a thread waits for an mbarrier or a flag.

It does so on its own, while at other functions all threads of a warp or a block wait.
"""
_OF_BLOCKS = ("cluster_wait", "grid_barrier")
"""Barriers that all blocks of a cluster or of a grid reach."""


def _at_cluster_wait(block: Sequence[Thread]) -> bool:
    """Whether all threads of a block wait at a barrier of the cluster or the grid."""
    waiting = [thread.waiting for thread in block]
    return all(m is not None and m.function in _OF_BLOCKS for m in waiting)


def _open_cluster(running: Sequence[Sequence[Thread]]) -> None:
    """Let all threads pass the cluster's barrier.

    ``running`` are the threads of each block. No thread can go on otherwise, so this
    raises EmulationError if one is not at the barrier: for a wait that never ends, or
    for blocks that have ended before the barrier.
    """
    for thread in (thread for block in running for thread in block):
        if _waits_alone(thread):
            assert thread.waiting is not None
            if thread.waiting.function != "mbarrier_wait":
                function = FUNCTIONS[thread.waiting.function]
                raise never_published(thread.block, function, thread.waiting.arguments)
            mbarriers, k, _ = thread.waiting.arguments
            mbarrier = mbarrier_of(mbarriers, k)
            raise EmulationError(
                f"mbarrier {k} of block {thread.block.index} never completes: "
                f"{mbarrier.bytes} bytes arrive of {mbarrier.expected}"
            )
    if not all(_at_cluster_wait(block) for block in running):
        raise EmulationError("blocks of a cluster part: some wait for one that is done")
    for block in running:
        block[0].block.cluster_runs = True
    _open_barrier([thread for block in running for thread in block])


def _shuffle(warp: Sequence[Thread]) -> bool:
    """Execute the function of a warp at which its lanes wait, and resume the lanes.

    Returns False if all lanes are at a barrier of the block or have ended. Raises
    EmulationError if the lanes are at different functions.
    """
    waits = [thread.waiting for thread in warp]
    if all(m is None or m.function in ("barrier", *_OF_BLOCKS) for m in waits):
        return False
    if len({(m.function, m.line) if m else None for m in waits}) != 1:
        lines = sorted(
            {f"{m.function} at line {m.line}" if m else "done" for m in waits}
        )
        raise EmulationError(f"the lanes of a warp part: {', '.join(lines)}")
    (wait, *_), arguments = waits, [m.arguments for m in waits if m]
    assert wait is not None
    function = FUNCTIONS[wait.function]
    if function.kind in matrices.ACTIONS:
        if len(warp) != WARP:
            raise EmulationError(f"{wait.function} is of {WARP} lanes, not {len(warp)}")
        GlobalMemory.running = warp[0]  # accesses count as the first lane's
        matrices.ACTIONS[function.kind](function, arguments)
        for thread in warp:
            thread.resume(None)
        return True
    if function.kind == "warp_barrier":
        block, number = warp[0].block, warp[0].index // WARP
        # The number of barriers that each warp of the block has passed.
        block.warps[number] = block.warps.get(number, 0) + 1
        for thread in warp:
            thread.resume(None)
        return True
    for thread, value in zip(warp, exchanged(function, arguments), strict=True):
        thread.resume(value)
    return True


def _open_barrier(running: Sequence[Thread]) -> None:
    """Let all ``running`` threads pass a barrier.

    Raises EmulationError if they are at different barriers, or some have ended.
    """
    lines = {thread.waiting.line if thread.waiting else None for thread in running}
    if len(lines) != 1:
        stand = ", ".join(
            "done" if n is None else f"line {n}" for n in sorted(lines, key=str)
        )
        raise EmulationError(f"threads of a block part at a barrier: {stand}")
    # Each block once.
    for block in {id(thread.block): thread.block for thread in running}.values():
        block.epoch += 1
    for thread in running:
        thread.resume(None)
