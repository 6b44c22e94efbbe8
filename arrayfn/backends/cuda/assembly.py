"""The base of emitters of the CUDA vocabulary: intrinsics, PTX, addresses, words.

An emitter makes the LLVM IR of one call of a device function, for NVVM. ``emits``
registers an emitter for some kinds of device functions; importing
``device_functions`` registers all emitters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.llvm_arithmetic import is_float, scalar_type
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, REAL_PART, width
from arrayfn.records import frozen

SHARED: Final = 3  # NVVM's address space
I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
F32: Final = ir.FloatType()
VOID: Final = ir.VoidType()


@frozen(slots=True)
class Call:
    """A call of a device function, and the builder ``b`` of the code around it.

    ``args`` are the arguments' LLVM values. If the call returns a pointer, ``element``
    is the LLVM type of its elements in memory, else None. ``count`` is the last
    argument of functions that take a constant there, else 0.
    """

    b: ir.IRBuilder
    function: DeviceFunction
    args: Sequence[Any]
    element: Any
    count: int

    @property
    def dtype(self) -> str:
        """The dtype in the function's name."""
        return self.function.dtype


Emitter = Callable[[Call], Any]
"""Emits a call, and returns its LLVM value; None if the call has no value."""

EMITTERS: Final[dict[str, Emitter]] = {}
"""The emitter of each kind of device functions."""


def emits(*kinds: str) -> Callable[[Emitter], Emitter]:
    """Decorate a function to register it as the emitter of ``kinds``."""

    def registered(emitter: Emitter) -> Emitter:
        """Register ``emitter``, and return it."""
        EMITTERS.update(dict.fromkeys(kinds, emitter))
        return emitter

    return registered


def emits_ptx(**texts: str) -> None:
    """Register emitters of PTX without operands.

    Keywords map kinds to PTX: ``emits_ptx(fence="fence.acq_rel.gpu;")``.
    """
    for kind, text in texts.items():
        emits(kind)(lambda c, text=text: assembly(c.b, text, "", ()))


def emits_f32(**instructions: str) -> None:
    """Register emitters of one PTX instruction with float32 operands and result.

    Keywords map kinds to instructions: ``emits_f32(approximate_divide="div.full.f32")``
    emits "div.full.f32 $0, $1, $2;".
    """

    def emit(instruction: str, c: Call) -> Any:
        """Emit ``instruction``: $0 is the result, $1, $2, ... are the arguments."""
        operands = "".join(f", ${k}" for k in range(1, len(c.args) + 1))
        constraints = "=f" + ",f" * len(c.args)
        text = f"{instruction} $0{operands};"
        return pure_assembly(c.b, text, constraints, c.args, F32)

    for kind, instruction in instructions.items():
        emits(kind)(partial(emit, instruction))


def intrinsic(
    b: ir.IRBuilder, name: str, result: Any, arguments: Sequence[Any] = ()
) -> Any:
    """Emit a call of the LLVM intrinsic ``name``, of the result type ``result``.

    The intrinsic is declared in the module at its first call.
    """
    kind = ir.FunctionType(result, [a.type for a in arguments])
    known = b.module.globals.get(name)
    return b.call(known or ir.Function(b.module, kind, name), arguments)


def assembly(
    b: ir.IRBuilder,
    text: str,
    constraints: str,
    arguments: Sequence[Any],
    result: Any = VOID,
) -> Any:
    """Emit inline PTX that the compiler neither moves nor removes.

    ``text`` refers to its operands as $0, $1, ...: first the result, unless it is VOID,
    then ``arguments``. ``constraints`` gives the register class of each operand, as
    LLVM writes it: "=r,l" is a 32-bit result and a 64-bit argument.
    """
    kind = ir.FunctionType(result, [a.type for a in arguments])
    clobbers = ",".join(filter(None, (constraints, "~{memory}")))
    return b.call(ir.InlineAsm(kind, text, clobbers, side_effect=True), arguments)


def pure_assembly(
    b: ir.IRBuilder, text: str, constraints: str, arguments: Sequence[Any], result: Any
) -> Any:
    """Emit inline PTX whose only effect is its result.

    LLVM may move it, and removes it if nothing uses the result. The parameters are
    those of ``assembly``.
    """
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return b.call(ir.InlineAsm(kind, text, constraints), arguments)


def shared_address(b: ir.IRBuilder, pointer: Any) -> Any:
    """Emit the 32-bit address in shared memory of a generic ``pointer`` into it."""
    kind = pointer.type.pointee.as_pointer(SHARED)
    return b.ptrtoint(b.addrspacecast(pointer, kind), I32)


def global_address(b: ir.IRBuilder, pointer: Any) -> Any:
    """Emit the 64-bit address in global memory of a generic ``pointer`` into it."""
    kind = pointer.type.pointee.as_pointer(1)
    return b.ptrtoint(b.addrspacecast(pointer, kind), I64)


def bytes_of(dtype: str) -> int:
    """Return the bytes of an element of ``dtype`` in memory."""
    if dtype in COMPLEXES:
        return 2 * width(REAL_PART[dtype]) // 8
    return width(dtype) // 8


def value_of_words(b: ir.IRBuilder, dtype: str, read: Callable[[int], Any]) -> Any:
    """Emit the value of ``dtype``, real or complex, that 32-bit words make up.

    ``read(k)`` returns word k, in which 32 bits of the value are.
    """
    if dtype not in COMPLEXES:
        return _real_of_words(b, dtype, read, 0)
    part = REAL_PART[dtype]
    parts = [_real_of_words(b, part, read, k * width(part) // 32) for k in range(2)]
    kind = ir.LiteralStructType([p.type for p in parts])
    with_real = b.insert_value(ir.Constant(kind, ir.Undefined), parts[0], 0)
    return b.insert_value(with_real, parts[1], 1)


def value_words(b: ir.IRBuilder, value: Any) -> list[Any]:
    """Emit the split of ``value``, real or complex, into LLVM values of 32 bits.

    The low word comes first. Narrower integers are zero-extended.
    """
    kind = value.type
    if isinstance(kind, ir.LiteralStructType):
        parts = (b.extract_value(value, k) for k in range(2))
        return [word for part in parts for word in value_words(b, part)]
    if isinstance(kind, ir.FloatType):
        return [b.bitcast(value, I32)]
    if isinstance(kind, ir.DoubleType):
        return value_words(b, b.bitcast(value, I64))
    if kind.width == 64:
        return [b.trunc(value, I32), b.trunc(b.lshr(value, I64(32)), I32)]
    return [b.zext(value, I32) if kind.width < 32 else value]


def _real_of_words(
    b: ir.IRBuilder, dtype: str, read: Callable[[int], Any], first: int
) -> Any:
    """Emit the real number of ``dtype`` that 32-bit words make up, the low one first.

    ``read(k)`` returns word k; the number begins with word ``first``.
    """
    bits = read(first)
    if width(dtype) == 64:
        high = b.shl(b.zext(read(first + 1), I64), I64(32))
        bits = b.or_(high, b.zext(bits, I64))
    if is_float(dtype):
        return b.bitcast(bits, scalar_type(dtype))
    return b.trunc(bits, scalar_type(dtype)) if width(dtype) < 32 else bits
