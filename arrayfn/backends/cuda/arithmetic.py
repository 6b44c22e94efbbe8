"""Emits formulas for NVVM, whose dialect of LLVM IR is old and narrow.

For the same bits as elsewhere, NVVM must not contract (``-fma=0``), and must divide and
take square roots exactly (its default). Some functions are instructions of sm_80.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from typing_extensions import override

from arrayfn.backends.llvm_arithmetic import I64, LLVMArithmetic, LLVMValue
from arrayfn.lowering.scalars.arithmetic import FORMATS, Formula
from arrayfn.lowering.scalars.rounding import maximum, minimum


class CudaArithmetic(LLVMArithmetic):
    """Emits the arithmetic of kernels as LLVM IR that NVVM accepts.

    It overrides what NVVM lacks or computes differently, and uses instructions of GPUs.
    """

    @override
    def guarded(
        self,
        name: str,
        rare: Formula,
        slow: Formula,
        common: LLVMValue,
        *arguments: LLVMValue,
    ) -> LLVMValue:
        """Emit ``common``, replaced by ``slow(*arguments)`` if ``rare(*arguments)``.

        Each thread branches to the slow formula only if it needs it.
        """
        b = self.builder
        start = b.block
        condition = rare(self, *arguments).value
        with b.if_then(condition, likely=False):
            result = slow(self, *arguments).value
            end = b.block
        phi = b.phi(self.type(common.dtype))
        phi.add_incoming(common.value, start)
        phi.add_incoming(result, end)
        return self.wrap(phi, common.dtype)

    @override
    def exact_fmod(self, x: LLVMValue, y: LLVMValue) -> LLVMValue:
        """Emit the exact remainder of x / y, with the sign of x."""
        # NVPTX's frem is not exact for large quotients.
        return self._libdevice("fmod", x, y)

    @override
    def negate(self, x: LLVMValue) -> LLVMValue:
        """Emit -x."""
        # NVVM's dialect has no fneg. -0.0 - x is -x for all x, zeros included.
        return self.constant(x.dtype, -0.0) - x

    @override
    def abs(self, x: LLVMValue) -> LLVMValue:
        """Emit the absolute value of a float, by clearing its sign bit."""
        f = FORMATS[x.dtype]
        return self.reinterpret(
            self.reinterpret(x, f.integer) & f.magnitude_mask, x.dtype
        )

    @override
    def rint(self, x: LLVMValue) -> LLVMValue:
        """Emit x rounded to an integer, to even if it is halfway between two."""
        # NVVM lacks the intrinsic.
        return self._libdevice("rint", x)

    @override
    def trunc(self, x: LLVMValue) -> LLVMValue:
        """Emit x rounded to an integer towards 0."""
        # Before CUDA 13.1 NVVM lacks the intrinsic.
        return self._libdevice("trunc", x)

    def _libdevice(self, name: str, *arguments: LLVMValue) -> LLVMValue:
        """Call libdevice's function ``name`` for ``arguments`` of f32 or f64.

        "exp" is __nv_expf for f32, and __nv_exp for f64.
        """
        dtype = arguments[0].dtype
        t = self.type(dtype)
        suffix = "f" if dtype == "f32" else ""
        function = self.declare(
            f"__nv_{name}{suffix}", ir.FunctionType(t, [t] * len(arguments))
        )
        return self.wrap(
            self.builder.call(function, [x.value for x in arguments]), dtype
        )

    @override
    def table_pointer(self, table: Sequence[int], space: int = 1) -> ir.Value:
        """Return a generic pointer to a constant table of 64-bit words.

        The table is in ``space``, an address space of NVVM: 1 is global memory.
        """
        pointer = super().table_pointer(table, space)
        array = ir.ArrayType(I64, len(table))
        return self.builder.addrspacecast(pointer, array.as_pointer())

    @override
    def native(self, function: str, arguments: Sequence[Any]) -> Any:
        """Emit a scalar function by a GPU's own means; None if it has a formula only.

        ``function`` is its name in the scalar vocabulary.
        """
        if function == "exp_f32":
            # A third of the formula's instructions, by the unit for powers of two;
            # CUDA's manual gives it an error of 1 ulp.
            return self._libdevice("exp", *arguments)
        if function == "convert_f32_bf16":
            kind = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
            assembly = ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f")
            return self.wrap(self.builder.call(assembly, [arguments[0].value]), "u16")
        return None

    @override
    def accumulate(self, operation: str, x: LLVMValue, y: Any) -> LLVMValue:
        """Emit a step of a reduction: ``operation`` is add, mul, max or min.

        Maximum and minimum are NaN if an operand is. For float32 they are one PTX
        instruction.
        """
        if operation == "add":
            return x + y
        if operation == "mul":
            return x * y
        if x.dtype != "f32":
            formula = {"max": maximum, "min": minimum}[operation]
            return formula(self, x, self.wrap(self.raw(y, x.dtype), x.dtype))
        t = self.type(x.dtype)
        assembly = ir.InlineAsm(
            ir.FunctionType(t, [t, t]), f"{operation}.NaN.f32 $0, $1, $2;", "=f,f,f"
        )
        return self.wrap(
            self.builder.call(assembly, [x.value, self.raw(y, x.dtype)]), x.dtype
        )
