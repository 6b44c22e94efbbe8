"""What emitters of the CUDA vocabulary share: intrinsics, inline PTX, addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, REAL_PART, width

SHARED: Final = 3  # NVVM's address space
I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
F32: Final = ir.FloatType()
VOID: Final = ir.VoidType()

Emitter = Callable[[Any, DeviceFunction, Sequence[Any], Any, int], Any]


def intrinsic(b: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """A call of the LLVM intrinsic ``name``."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    known = b.module.globals.get(name)
    return b.call(known or ir.Function(b.module, kind, name), arguments)


def assembly(
    b: Any, text: str, constraints: str, arguments: Sequence[Any], result: Any = VOID
) -> Any:
    """One piece of PTX, which neither moves nor goes."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    clobbers = ",".join(filter(None, (constraints, "~{memory}")))
    return b.call(ir.InlineAsm(kind, text, clobbers, side_effect=True), arguments)


def pure_assembly(
    b: Any, text: str, constraints: str, arguments: Sequence[Any], result: Any
) -> Any:
    """One piece of PTX that is a function of its arguments alone."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return b.call(ir.InlineAsm(kind, text, constraints), arguments)


def shared_address(b: Any, pointer: Any) -> Any:
    """Where a generic pointer points to within shared memory, as 32 bits."""
    kind = pointer.type.pointee.as_pointer(SHARED)
    return b.ptrtoint(b.addrspacecast(pointer, kind), I32)


def global_address(b: Any, pointer: Any) -> Any:
    """Where a generic pointer points to within the GPU's memory."""
    kind = pointer.type.pointee.as_pointer(1)
    return b.ptrtoint(b.addrspacecast(pointer, kind), I64)


def bytes_of(dtype: str) -> int:
    """Bytes of an element of a dtype as it lies in memory."""
    if dtype in COMPLEXES:
        return 2 * width(REAL_PART[dtype]) // 8
    return width(dtype) // 8
