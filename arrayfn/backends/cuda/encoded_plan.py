"""Encodes a plan for the native runner; other steps become nodes that Python runs.

``EncodedPlan.nodes`` are the plan's steps in order (see ``plan_nodes``); the walks of
``graphs.walk`` run them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import cublas, libraries, runner
from arrayfn.backends.cuda.code import OVERLAPS_FROM, loaded_kernels
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.plan_nodes import (
    Access,
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    Node,
    StepAccesses,
    buffers_written_by,
    buffers_written_in,
    slices_can_be_copied,
    unrolled_iterations,
)
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.backends.members import LOADING, Lockstep
from arrayfn.errors import BackendError
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Branch,
    BufferArgument,
    Kernel,
    KernelCall,
    LibraryKernel,
    Loop,
    Step,
)

_MAX_BLOCKS: Final = 2**31
"""A grid has fewer blocks than this."""
_SMALL_BYTES: Final = 1 << 23
"""Bytes that a GPU accesses in the time of a kernel launch, 2 us."""
# Ranges of addresses that do not exist. Steps that must not run concurrently are said
# to write such a range, so that they conflict: calls of libraries that share a handle,
# and collectives, which all members must run in the same order.
_HANDLES: Final = (-1, 0)
_COLLECTIVES: Final = (-2, -1)


class EncodedPlan:
    """A plan in the form that the native runner launches.

    ``nodes`` are the plan's steps in order; ``plan`` is the runner's plan of all native
    steps. ``has_collectives`` says whether some nodes are collectives with other
    members of a mesh. ``lockstep`` says in which calls the members of this process may
    capture graphs.

    A *native step* is a structure that the runner reads. A *slot* is a 64-bit word for
    a pointer argument, into which the runner writes the address before each run.
    """

    def __init__(self, compiled: CompiledProgram, arena: int) -> None:
        """Load the plan's kernels, and encode its steps.

        ``arena`` is the index of the arena in the array of buffers' addresses.
        """
        # Addresses by the id of a LoopNode and the number of the block of memory.
        self._loop_memory: dict[tuple[int, int], int] = {}
        plan, gpu = compiled.plan, device()
        self._gpu = gpu
        self._buffers = plan.buffers
        self._arena = arena
        self._kernels = {k.name: k for k in compiled.kernels}
        self._loaded = loaded_kernels(
            [k for k in compiled.kernels if isinstance(k, Kernel)]
        )
        # The number of the slot for each (buffer, byte offset).
        self._slots: dict[tuple[int, int], int] = {}
        self._steps: list[runner.Step] = []
        self._accesses: list[StepAccesses] = []  # of ``_steps``, by number
        self._kept: list[object] = []  # memory that ``_steps`` point to
        self._has_products = False  # whether some steps are products by cuBLASLt
        self.has_collectives = False
        # The member of a mesh that this plan is loaded for, or None.
        self._member = LOADING.member
        self.lockstep = Lockstep() if self._member is None else self._member.lockstep
        # Of each loop's slice, by its buffer: byte offset and absolute stride.
        self._slice_steps = dict(_slice_steps(plan.steps))
        # The memory of all slots. Steps hold their addresses, so it must not move: it
        # is large enough for a slot of each argument.
        self._values = np.zeros(max(1, _count_arguments(plan.steps)), np.int64)
        self.nodes = self._nodes(plan.steps)
        slots = [
            (self._address(slot), buffer, offset)
            for (buffer, offset), slot in self._slots.items()
        ]
        functions = {
            "context": gpu.context,
            "stream": gpu.stream,
            **{field: gpu.address(name) for field, name in runner.FUNCTIONS.items()},
        }
        if self._has_products:
            functions["multiply"] = cublas.library().matmul
            functions["set_attribute"] = cublas.library().set_attribute
        self.plan = Plan(functions, slots, self._steps, code=self._loaded)
        if gpu.arch >= OVERLAPS_FROM:
            self.plan.allow_early_launches()
        # For ``launch``, which selects some of the steps.
        self._partial_plan = self.plan.variant(self._steps)
        # A GPU's queue may be full until another member's thread has enqueued its part,
        # so that thread must be able to run meanwhile.
        self._run = runner.runner(with_gil=not self.has_collectives)

    @property
    def is_native(self) -> bool:
        """Whether one native call runs the whole plan."""
        return len(self.nodes) == 1 and isinstance(self.nodes[0], NativeRun)

    def launch(self, node: NativeRun, addresses: Any, stream: int) -> None:
        """Enqueue the native steps of ``node`` on ``stream``.

        ``addresses`` is a ctypes array of all buffers' addresses.
        """
        self._partial_plan.select(node.first, node.count, stream)
        self.run(self._partial_plan, addresses)

    def run(self, plan: Plan, addresses: Any) -> None:
        """Let the native runner launch ``plan`` on the buffers at ``addresses``.

        Raises BackendError, or OutOfMemoryError, if a launch fails.
        """
        status = self._run(plan.address, ctypes.addressof(addresses))
        if status:
            _raise_status(status)

    def kernels(self, nodes: Sequence[Node]) -> list[runner.Kernel] | None:
        """Return the native steps of ``nodes`` if all are ordinary kernels, else None.

        They must be one ``NativeRun`` without cooperative launches.
        """
        if len(nodes) != 1 or not isinstance(nodes[0], NativeRun):
            return None
        steps = self._steps[nodes[0].first :][: nodes[0].count]
        kernels = [step for step in steps if isinstance(step, runner.Kernel)]
        are_all = len(kernels) == len(steps)
        is_ordinary = all(step.kind == StepKind.KERNEL for step in kernels)
        return kernels if are_all and is_ordinary else None

    def accesses(
        self, node: NativeRun | HostCall, addresses: Any
    ) -> tuple[Access, ...]:
        """Return the ranges of addresses that one step accesses, with its workspace.

        ``node`` is one step; ``addresses`` has the addresses of all buffers.
        """
        step = self._accesses_of(node)
        ranges: list[Access] = []
        for numbers, written in ((step.reads, False), (step.writes, True)):
            for number in numbers:
                begin = self.address(number, addresses)
                ranges.append((begin, begin + self._buffers[number].nbytes, written))
        return (*ranges, (*step.workspace, True))

    def meet(self) -> None:
        """Wait until all enqueued work has run, on the GPUs of all local members.

        Every local member calls this equally often, and waits for the others. After it
        no collective runs while a member does something that may wait for the GPU: the
        first launch of a kernel, a capture, an allocation.
        """
        if self._member is None:
            device().synchronize()
        else:
            self._member.meet()

    def grouped(self) -> AbstractContextManager[object]:
        """Return a context manager; collectives enqueued within it run as one group."""
        return nullcontext() if self._member is None else self._member.grouped()

    def is_small(self, node: NativeRun | HostCall) -> bool:
        """Whether one step leaves room on the GPU for another one."""
        return self._accesses_of(node).small

    def duration(self, node: NativeRun | HostCall) -> int:
        """Return a lower bound of a step's time, in launch times; 0 if it is short."""
        return self._accesses_of(node).duration

    def _accesses_of(self, node: NativeRun | HostCall) -> StepAccesses:
        """Return the accesses of a node that is one step."""
        is_run = isinstance(node, NativeRun)
        return self._accesses[node.first] if is_run else node.accesses

    def address(self, buffer: int, addresses: Any) -> int:
        """Return the address of the buffer of number ``buffer``.

        ``addresses`` has those of all buffers but temporaries, which lie in the arena.
        """
        allocation = self._buffers[buffer]
        if allocation.kind == "temporary":
            return int(addresses[self._arena]) + allocation.offset
        return int(addresses[buffer])

    def copy(self, buffer: int, target: int, source: int, stream: int) -> None:
        """Enqueue a copy of the size of ``buffer``, from one address to another."""
        device().copy(target, source, self._buffers[buffer].nbytes, stream)

    def nbytes(self, buffer: int) -> int:
        """Return the size of a buffer in bytes."""
        return self._buffers[buffer].nbytes

    def loop_memory(self, node: LoopNode, number: int, nbytes: int) -> int:
        """Return the address of ``nbytes`` of memory that only the loop ``node`` uses.

        ``number`` tells blocks of the same loop apart. The memory is allocated at the
        first call for a loop and number, and freed with the plan.
        """
        key = id(node), number
        if key not in self._loop_memory:
            self._loop_memory[key] = self._gpu.allocate(nbytes)
        return self._loop_memory[key]

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for pointer in self._loop_memory.values():
                self._gpu.free(pointer)

    # Encoding.

    def _nodes(self, steps: Sequence[Step]) -> tuple[Node, ...]:
        """Make the nodes of ``steps``; consecutive native steps become one run.

        Appends the native steps to ``_steps``. Kernel calls without items are left out.
        """
        nodes: list[Node] = []
        for step in steps:
            if isinstance(step, Loop):
                nodes.append(self._loop(step))
            elif isinstance(step, Branch):
                branches = tuple(self._nodes(branch) for branch in step.branches)
                nodes.append(BranchNode(step, branches))
            elif step.items:
                encoded = self._call(step)
                if isinstance(encoded, HostCall):
                    nodes.append(encoded)
                    continue
                self._steps.append(encoded)
                self._accesses.append(self._step_accesses(step, encoded))
                last = nodes[-1] if nodes else None
                number = len(self._steps) - 1
                if isinstance(last, NativeRun) and last.first + last.count == number:
                    nodes[-1] = NativeRun(last.first, last.count + 1)
                else:
                    nodes.append(NativeRun(number, 1))
        return tuple(nodes)

    def _loop(self, loop: Loop) -> LoopNode:
        """Make the node of ``loop``, partly unrolled if it is long.

        A loop whose slices cannot be copied is unrolled completely.
        """
        body = self._nodes(loop.body)
        written = buffers_written_in(loop)
        if not slices_can_be_copied(loop, written, self._buffers):
            return LoopNode(loop, body)
        unrolled = unrolled_iterations(loop.count, body)
        return LoopNode(loop, body, unrolled=unrolled, written=written)

    def _address(self, slot: int) -> int:
        """Return the address of the slot of number ``slot``."""
        return self._values.ctypes.data + 8 * slot

    def _location(self, argument: object) -> tuple[int, int]:
        """Return (buffer number, byte offset) of a pointer argument.

        Temporaries lie in the arena, which counts as a buffer.
        """
        assert isinstance(argument, BufferArgument)
        buffer = self._buffers[argument.buffer]
        if buffer.kind == "temporary":
            return self._arena, buffer.offset + argument.offset
        return argument.buffer, argument.offset

    def _slot(self, argument: object) -> int:
        """Return the address of a pointer argument's slot, which equal ones share."""
        location = self._location(argument)
        # The next free slot, if the location has none yet.
        return self._address(self._slots.setdefault(location, len(self._slots)))

    def _call(self, step: KernelCall) -> runner.Step | HostCall:
        """Encode ``step`` for the native runner, or as a call from Python.

        Raises BackendError if it has more blocks than a grid can have.

        A kernel's parameters are an array of pointers, one to each argument: to its
        integer in ``_kept``, or to the slot of a pointer argument.
        """
        kernel = self._kernels[step.kernel]
        if isinstance(kernel, LibraryKernel):
            if kernel.provider.startswith("gemm_"):
                return self._product(step, kernel)
            return self._library(step, kernel)
        if step.items >= _MAX_BLOCKS:
            raise BackendError(
                f"{step.items:,} blocks are more than a grid has; compute it in parts"
            )
        integers = np.array([a for a in step.arguments if isinstance(a, int)], np.int64)
        self._kept.append(integers)
        pointers: list[int] = []
        next_integer = 0
        for argument in step.arguments:
            if isinstance(argument, int):
                pointers.append(integers.ctypes.data + 8 * next_integer)
                next_integer += 1
            else:
                pointers.append(self._slot(argument))
        parameters = np.array(pointers, np.int64)
        self._kept.append(parameters)
        function = self._loaded[kernel.name].function
        return runner.Kernel(
            kind=StepKind.COOPERATIVE if kernel.cooperative else StepKind.KERNEL,
            function=function,
            blocks=step.items,
            threads=kernel.threads,
            parameters=parameters.ctypes.data,
            shared=kernel.shared,
        )

    def _step_accesses(self, step: KernelCall, encoded: runner.Step) -> StepAccesses:
        """Return what ``step`` reads and writes, and if others may run beside it.

        ``encoded`` is the native step. A step is small if it takes less time than a
        launch. The time is estimated from its bytes, and for products from their
        operations too.
        """
        workspace, nbytes = (0, 0), self._bytes(step)
        duration = _duration(nbytes)
        small = not duration
        if encoded.kind == StepKind.KERNEL:
            # Fewer blocks than multiprocessors access the bytes that much slower.
            idle_factor = max(1, device().multiprocessors // step.items)
            duration = _duration(nbytes * idle_factor)
        if isinstance(encoded, runner.Product):
            workspace = encoded.workspace, encoded.workspace + encoded.workspace_bytes
            kernel = self._kernels[step.kernel]
            assert isinstance(kernel, LibraryKernel)
            _, p = self._named(step, kernel)
            work = p["batch"] * p["m"] * p["n"] * p["k"]
            small = small and work <= cublas.max_small_work(kernel.provider)
            duration = 0 if small else max(1, duration)
        return StepAccesses(
            step.reads, buffers_written_by(step), workspace, small, duration
        )

    def _bytes(self, step: KernelCall) -> int:
        """Return the bytes of all buffers that a step accesses."""
        return sum(self._buffers[k].nbytes for k in {*step.reads, *step.writes})

    def _named(
        self, step: KernelCall, kernel: LibraryKernel
    ) -> tuple[dict[str, BufferArgument], dict[str, int]]:
        """Return a library call's arrays, and its integers, by parameter name."""
        arrays: dict[str, BufferArgument] = {}
        integers: dict[str, int] = {}
        for parameter, argument in zip(kernel.parameters, step.arguments, strict=True):
            if isinstance(argument, int):
                integers[parameter.name] = argument
            elif isinstance(argument, BufferArgument):
                arrays[parameter.name] = argument
        return arrays, integers

    def _product(self, step: KernelCall, kernel: LibraryKernel) -> runner.Step:
        """Encode a matrix product c = a @ b, or a fill with zeros if k is 0.

        cuBLASLt chooses the algorithm by the alignment of the operands, so it is given
        all byte offsets from aligned memory at which they may begin.
        """
        arrays, values = self._named(step, kernel)
        if not values["k"]:
            output = self._buffers[step.writes[0]]
            slot = self._slot(arrays["c"])
            return runner.Zeros(StepKind.ZEROS, slot, output.nbytes)
        self._has_products = True
        a, b, c = (arrays[name] for name in "abc")
        added = arrays.get("added", c)
        offsets: list[int] = []
        for x in (a, b, c, added):
            # Memory is aligned where the lowest element of an array lies.
            type = self._buffers[x.buffer].type
            lowest = type.span()[0] * type.dtype.itemsize
            offsets.append(self._location(x)[1] - lowest)
            # A loop's slice begins at its offset plus multiples of its stride.
            offsets += self._slice_steps.get(x.buffer, ())
        product = cublas.library().product(kernel.provider, values, offsets)
        self._kept.append(product)
        # cuBLASLt's matrices are column-major, so it computes C^T = B^T A^T: its first
        # operand is b.
        second, first, addend, result = product.layouts
        return runner.Product(
            kind=StepKind.PRODUCT,
            handle=product.handle,
            operation=product.operation,
            alpha=product.alpha,
            a=self._slot(b),
            a_layout=second,
            b=self._slot(a),
            b_layout=first,
            beta=product.beta,
            added=self._slot(added),
            added_layout=addend,
            result=self._slot(c),
            result_layout=result,
            algorithm=product.algorithm,
            workspace=product.workspace,
            workspace_bytes=product.workspace_bytes,
            bias=self._slot(arrays["bias"]) if "bias" in arrays else 0,
            alpha_slot=self._slot(arrays["alpha"]) if "alpha" in arrays else 0,
        )

    def _library(self, step: KernelCall, kernel: LibraryKernel) -> HostCall:
        """Encode a call of a library other than cuBLASLt, to be made from Python.

        Sets ``has_collectives`` if the call is a collective.
        """
        arrays, integers = self._named(step, kernel)
        call = libraries.call(kernel.provider, integers)
        arguments = tuple(self._location(arrays[name]) for name in call.arrays)
        self.has_collectives |= call.is_collective
        duration = 0 if call.is_collective else _duration(self._bytes(step))
        accesses = StepAccesses(
            step.reads,
            buffers_written_by(step),
            # Besides its buffers, a call uses NCCL or a library's handle, so calls of
            # one kind run one after the other.
            _COLLECTIVES if call.is_collective else _HANDLES,
            small=not duration,
            duration=duration,
            is_collective=call.is_collective,
        )
        return HostCall(call.enqueue, arguments, call.capturable, accesses)


def _duration(nbytes: int) -> int:
    """Estimate the time to access ``nbytes``, in times of a kernel launch.

    It is rounded down, so it is 0 for few bytes.
    """
    return (nbytes - 1) // _SMALL_BYTES if nbytes else 0


def _raise_status(status: int) -> None:
    """Raise the error that the native runner returned as ``status``.

    ``status`` is 256 times the driver's or cuBLAS's error code, plus the stage that
    failed: 0 for setting the context, 1 + StepKind for a step.
    """
    code, stage = status >> 8, status & 255
    if stage == StepKind.PRODUCT + 1:
        cublas.library().check(code)  # raises
    what = StepKind(stage - 1).name.lower() if stage else "context"
    device().check(code, f"in {what}")


def _count_arguments(steps: Sequence[Step]) -> int:
    """Return the number of arguments of all calls in ``steps``, also nested ones."""
    total = 0
    for step in steps:
        if isinstance(step, KernelCall):
            total += len(step.arguments)
        elif isinstance(step, Loop):
            total += _count_arguments(step.body)
        else:
            total += sum(map(_count_arguments, step.branches))
    return total


def _slice_steps(steps: Sequence[Step]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield ``(buffer, (offset, abs(stride)))`` of each slice of each loop, in bytes.

    A number that divides both divides the slice's offset in every iteration:
    offset + k * stride.
    """
    for step in steps:
        if isinstance(step, Loop):
            yield from ((s.buffer, (s.offset, abs(s.stride))) for s in step.slices)
            yield from _slice_steps(step.body)
        elif isinstance(step, Branch):
            for branch in step.branches:
                yield from _slice_steps(branch)
