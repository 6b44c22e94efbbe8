"""Formulas for NVVM, with the instructions that sm_80 brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from arrayfn.backends.llvm_arithmetic import LLVMValue
from arrayfn.backends.nvvm_arithmetic import NvvmArithmetic


class CudaArithmetic(NvvmArithmetic):
    """Formulas for NVVM, with the instructions that sm_80 brought."""

    def native(self, function: str, arguments: Sequence[Any]) -> Any:
        if function == "exp_f32":
            # A third of the formula's instructions, by the unit for powers of two;
            # CUDA's manual gives it an error of 1 ulp.
            return self._libdevice("exp", *arguments)
        if function == "convert_f32_bf16":
            kind = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
            assembly = ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f")
            return self.wrap(self.builder.call(assembly, [arguments[0].value]), "u16")
        return None

    def accumulate(self, operation: str, x: LLVMValue, y: Any) -> LLVMValue:
        if operation not in ("max", "min") or x.dtype != "f32":
            return super().accumulate(operation, x, y)
        t = self.type(x.dtype)
        assembly = ir.InlineAsm(
            ir.FunctionType(t, [t, t]), f"{operation}.NaN.f32 $0, $1, $2;", "=f,f,f"
        )
        return self.wrap(
            self.builder.call(assembly, [x.value, self.raw(y, x.dtype)]), x.dtype
        )
