"""A call of a library's kernel over Vars, before buffers have numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Atom, Equation, Var
from arrayfn.lowering.plan import LibraryKernel, Parameter
from arrayfn.passes.reads import Reads
from arrayfn.records import frozen

ITEM_WORK = 1 << 17  # multiply-adds that are worth waking a thread for
START = 8  # the overhead of a matrix, or of an element, in multiply-adds


@frozen(slots=True)
class Pointer:
    """A pointer argument: ``offset`` elements into ``array``."""

    array: Var
    offset: int = 0


@frozen(slots=True)
class LibraryCall:
    """A call of a library kernel over work items 0 to ``items``.

    The kernel's parameters are ``reads``, ``writes``, ``scratch`` and ``integers``, in
    this order. Work items must be independent: neither their order nor the thread that
    runs one may matter to the result.

    Attributes:
        provider: the operation and dtype, as ``"gemm_f32"``.
        reads: the arrays that it reads, by parameter.
        writes: the arrays that it writes, and may read.
        integers: the integer arguments.
        grain: the smallest number of items worth giving to a thread.
        scratch: bytes of the running thread's scratch memory, by parameter.
        library: the library's name, for people.
        over: pairs ``(result, operand)`` of whole arrays: the result may be written in
            the operand's memory.
    """

    provider: str
    reads: Mapping[str, Pointer]
    writes: Mapping[str, Pointer]
    integers: Mapping[str, int]
    items: int
    grain: int = 1
    scratch: Mapping[str, int] = field(default_factory=dict)
    library: str = ""
    over: tuple[tuple[Var, Var], ...] = ()

    def kernel(self) -> LibraryKernel:
        """Return the kernel of the call: its provider and its parameters."""
        arrays = {**self.reads, **self.writes}
        parameters = [
            Parameter(name, dtypes.short_name(pointer.array.type.dtype) + "*")
            for name, pointer in arrays.items()
        ]
        parameters += [Parameter(name, "u8*") for name in self.scratch]
        parameters += [Parameter(name, "i64") for name in self.integers]
        return LibraryKernel(
            self.provider, self.provider, tuple(parameters), self.library
        )


def pointer_of(atom: Atom, reads: Reads) -> Pointer:
    """Return a pointer to an operand, which the layout pass has made row-major."""
    assert isinstance(atom, Var)
    read = reads[atom]
    base = read.base.type
    return Pointer(read.base, read.offset(base.layout.strides(base.shape)))


def numbered_call(
    kind: str, number: int, equation: Equation, reads: Reads, text: str
) -> LibraryCall:
    """Return the library call that runs entry ``number`` of a table.

    ``kind`` names the table, which the runtime has: "callback" for Python functions of
    the user, for example. The provider's name, "callback_3", names the entry. The
    operands and results are those of ``equation``; ``reads`` says where its operands
    are in memory. ``text`` describes the call in a printed plan.
    """
    return LibraryCall(
        provider=f"{kind}_{number}",
        reads={f"x{k}": pointer_of(a, reads) for k, a in enumerate(equation.inputs)},
        writes={f"y{k}": Pointer(v) for k, v in enumerate(equation.outputs)},
        integers={"number": number},
        items=1,
        library=text,
    )


def new_array(dtype: DType, *shape: int) -> Pointer:
    """Return the memory of a new array, a temporary of the plan."""
    return Pointer(Var(ArrayType(shape, dtype)))


def grain_of(work: float) -> int:
    """Return how many items are worth a thread, given the multiply-adds of one."""
    return max(1, int(ITEM_WORK / max(1.0, work)))
