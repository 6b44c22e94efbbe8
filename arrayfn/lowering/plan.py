"""What a compiled program is: kernels, buffers, and the steps that run over them.

Plain data. Everything a runtime needs is here, and nothing of the tracer: a plan can be
printed, saved, and run by any backend that can compile its kernels' sources.

A *kernel* has the uniform entry ``(arguments..., begin, end)``: its arguments are
pointers and 64-bit integers, and it does the work items ``begin`` to ``end`` of
``KernelCall.items``. Work items are independent, so a runtime may split the range over
threads as it likes: the bits of the result do not depend on the split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arrayfn.ir import ArrayType

BufferKind = Literal["input", "output", "constant", "temporary"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: ``kind`` is ``"i64"`` or a pointer, ``"f32*"``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as source text, with the signature its entry has.

    ``name`` is the function's name in ``source`` (unique within a program). ``key`` is
    the source with neutral names and no comments: kernels with equal keys compute the
    same and are compiled once. ``parameters`` are those before ``begin, end``.
    ``reason`` says what was fused, and why. ``threads`` are those of a block, on a GPU:
    there an item is a block, and blocks may come in clusters of ``cluster``.
    """

    name: str
    source: str
    key: str
    parameters: tuple[Parameter, ...]
    reason: str = ""
    threads: int = 0
    cluster: int = 1

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """A kernel that a library has (a GEMM): its provider and its parameters."""

    name: str
    provider: str
    parameters: tuple[Parameter, ...]
    reason: str = ""

    @property
    def source(self) -> str:
        """A comment: the library has the code."""
        return f"# {self.name}: {self.reason}\n"

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """One buffer of a plan.

    ``index`` counts within ``kind``: the n-th input, output or constant. Temporaries
    lie at byte ``offset`` of the arena; ``first`` and ``last`` are the steps between
    which they live. An output with a ``donor`` is written over that input.
    """

    kind: BufferKind
    index: int
    type: ArrayType
    nbytes: int
    offset: int = 0
    first: int = 0
    last: int = 0
    donor: int | None = None

    @property
    def label(self) -> str:
        """What the plan's text calls it."""
        return f"{self.kind} {self.index}"


@dataclass(frozen=True, slots=True)
class BufferArgument:
    """A pointer: ``offset`` bytes into buffer number ``buffer`` of the plan."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ScratchArgument:
    """A pointer to the running thread's own scratch memory, ``offset`` bytes in."""

    offset: int = 0


Argument = BufferArgument | ScratchArgument | int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run ``kernel`` over work items 0 to ``items``.

    ``grain`` is the least number of items worth giving to a thread (a runtime runs
    ``items <= grain`` serially); ``scratch`` is the bytes of scratch memory that each
    thread needs. ``writes`` and ``reads`` are buffer numbers.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    items: int
    grain: int = 1
    scratch: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Buffers and steps, in order. ``arena`` and ``scratch`` are sizes in bytes."""

    buffers: tuple[BufferAllocation, ...]
    steps: tuple[KernelCall, ...]
    arena: int = 0
    scratch: int = 0
    work_threshold_ns: int = 0

    def __str__(self) -> str:
        """Buffers and steps, a line each."""
        sizes = f"arena {self.arena} bytes, scratch {self.scratch} bytes a thread"
        lines = [f"plan: {len(self.steps)} steps, {sizes}"]
        for buffer in self.buffers:
            text = f"  {buffer.label}: {buffer.type}, {buffer.nbytes} bytes"
            if buffer.kind == "temporary":
                text += f" at {buffer.offset}, steps {buffer.first} to {buffer.last}"
            if buffer.donor is not None:
                text += f", over input {buffer.donor}"
            lines.append(text)
        for number, step in enumerate(self.steps):
            reads = ", ".join(self.buffers[k].label for k in step.reads)
            writes = ", ".join(self.buffers[k].label for k in step.writes)
            lines.append(
                f"  step {number}: {step.kernel}({reads}) -> {writes}, "
                f"{step.items} items"
            )
        return "\n".join(lines) + "\n"
