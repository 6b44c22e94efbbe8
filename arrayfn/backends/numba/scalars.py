"""The scalar vocabulary in Numba: typed by the table, lowered to its formulas.

A ``ScalarFunction`` in a kernel's globals has a Numba type of its own and is emitted
inline, without a dispatcher or an overload between. ``register`` serves each target
with its own registries.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from llvmlite import ir

from arrayfn.backends.llvm_arithmetic import LLVMArithmetic, LLVMValue
from arrayfn.backends.numba.dialect import numba_type
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, HALF_PRECISION, REAL_PART
from arrayfn.lowering.scalars.table import SCALARS, ScalarFunction


def function_type(types: ModuleType, signature: Any) -> type:
    """Make the class of the Numba types of scalar functions.

    ``types`` is the module of types and ``signature`` makes a signature: Numba's, or
    those of a fork such as numba-cuda.
    """

    class ScalarFunctionType(types.Callable, types.Opaque):
        """The Numba type of one scalar function, which has one signature."""

        def __init__(self, function: ScalarFunction) -> None:
            self.function = function
            self.signature = signature(
                numba_type(types, function.result),
                *(numba_type(types, dtype) for dtype in function.arguments),
            )
            super().__init__(f"ScalarFunction({function.name})")

        def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
            """Return the signature of a call, whatever its arguments' types are.

            Raises TypeError for a wrong number of arguments, or for keyword arguments.
            """
            if kws or len(args) != len(self.signature.args):
                raise TypeError(
                    f"{self.function.name} takes {len(self.signature.args)} positional "
                    f"arguments, not {len(args)}"
                )
            return self.signature

        def get_call_signatures(self) -> tuple[list[Any], bool]:
            """Return all signatures, and that none of them has type parameters."""
            return [self.signature], False

        def get_impl_key(self, sig: Any) -> Any:
            """Return the key by which the function's implementation is registered.

            numba-cuda also reads Numba's own registry: the class tells the
            implementations of both apart.
            """
            return type(self), self.function

    return ScalarFunctionType


def emit(
    m: LLVMArithmetic, function: ScalarFunction, arguments: tuple[ir.Value, ...]
) -> ir.Value:
    """Emit the formula of a scalar ``function`` with the operations of ``m``.

    ``arguments`` and the result are LLVM values; complex numbers are structs of two.
    A target may have its own code for the function (``m.native``), which is preferred.
    """
    b = m.builder
    values: list[Any] = []
    for dtype, value in zip(function.arguments, arguments, strict=True):
        if dtype in COMPLEXES:
            part = REAL_PART[dtype]
            values.append(
                tuple(m.wrap(b.extract_value(value, k), part) for k in range(2))
            )
        else:
            values.append(m.wrap(value, "u16" if dtype in HALF_PRECISION else dtype))
    native = m.native(function.name, values)
    result = function.formula(m, *values) if native is None else native
    if isinstance(result, LLVMValue):
        return result.value
    real, imaginary = (part.value for part in result)
    struct = ir.Constant(
        ir.LiteralStructType([real.type, imaginary.type]), ir.Undefined
    )
    return b.insert_value(b.insert_value(struct, real, 0), imaginary, 1)


def register(
    types: ModuleType,
    signature: Any,
    typeof_impl: Any,
    register_model: Any,
    opaque_model: Any,
    registry: Any,
    arithmetic: type[LLVMArithmetic] = LLVMArithmetic,
) -> dict[ScalarFunction, Any]:
    """Register the scalar vocabulary with a Numba target; return the functions' types.

    ``types``, ``signature``, ``typeof_impl``, ``register_model`` and ``opaque_model``
    are of Numba, or of a fork with its own type classes. ``registry`` is the target's
    lowering registry, and ``arithmetic`` the class that emits LLVM IR for the target.
    """
    kind = function_type(types, signature)
    register_model(kind)(opaque_model)
    known = {function: kind(function) for function in SCALARS.values()}

    @typeof_impl.register(ScalarFunction)
    def typeof_scalar_function(value: ScalarFunction, c: Any) -> Any:
        """Return the Numba type of a scalar function among a kernel's globals."""
        return known.get(value) or kind(value)

    @registry.lower_constant(kind)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        """Lower a reference to a scalar function: it has no value in LLVM IR."""
        return context.get_dummy_value()

    for function, function_kind in known.items():
        registry.lower((kind, function), *function_kind.signature.args)(
            _lowering(function, arithmetic)
        )
    return known


def _lowering(function: ScalarFunction, arithmetic: type[LLVMArithmetic]) -> Any:
    """Return the function by which Numba emits a call of the scalar ``function``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Emit the formula at the call; ``args`` are LLVM values."""
        return emit(arithmetic(builder, "arrayfn"), function, args)

    return lower
