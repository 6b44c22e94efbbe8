"""Formulas emitted as LLVM instructions, through llvmlite's IR builder.

Instructions carry no fast-math flags but for ``accumulate``'s ``reassoc`` (or ``nsz``),
so that results do not depend on how a loop was vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from arrayfn.lowering.scalars.arithmetic import Formula, width

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
VECTOR_BITS = (128, 256)
"""Vector widths for which a guarded function gets variants; AVX-512 hosts add one."""


def is_float(dtype: str) -> bool:
    """Return whether values of ``dtype``, such as "f32", are floats in LLVM IR."""
    return dtype in ("f32", "f64")


def is_signed(dtype: str) -> bool:
    """Return whether integer instructions treat ``dtype``, such as "i32", as signed."""
    return dtype[0] == "i"


def scalar_type(dtype: str) -> ir.Type:
    """Return the LLVM type of one value of ``dtype``, a short name such as "f32"."""
    if dtype == "f32":
        return ir.FloatType()
    return ir.DoubleType() if dtype == "f64" else ir.IntType(width(dtype))


class LLVMValue:
    """An LLVM scalar or vector with its dtype; Python's operators emit instructions.

    ``m`` is the arithmetic that emits them. The other operand of an operator may be a
    Python number.
    """

    __slots__ = ("dtype", "m", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, m: LLVMArithmetic, value: ir.Value, dtype: str) -> None:
        self.m, self.value, self.dtype = m, value, dtype

    def _binary(self, name: str, x: Any, y: Any) -> LLVMValue:
        """Emit the LLVM instruction ``name`` for ``x`` and ``y``, of this dtype.

        ``x`` or ``y`` may be a Python number. For floats the instruction's name gets
        the prefix "f".
        """
        m, dtype = self.m, self.dtype
        instruction = getattr(m.builder, ("f" if is_float(dtype) else "") + name)
        return LLVMValue(m, instruction(m.raw(x, dtype), m.raw(y, dtype)), dtype)

    def __add__(self, other: Any) -> LLVMValue:
        return self._binary("add", self, other)

    def __radd__(self, other: Any) -> LLVMValue:
        return self._binary("add", other, self)

    def __sub__(self, other: Any) -> LLVMValue:
        return self._binary("sub", self, other)

    def __rsub__(self, other: Any) -> LLVMValue:
        return self._binary("sub", other, self)

    def __mul__(self, other: Any) -> LLVMValue:
        return self._binary("mul", self, other)

    def __rmul__(self, other: Any) -> LLVMValue:
        return self._binary("mul", other, self)

    def __truediv__(self, other: Any) -> LLVMValue:
        return self._binary("div", self, other)

    def __rtruediv__(self, other: Any) -> LLVMValue:
        return self._binary("div", other, self)

    def __neg__(self) -> LLVMValue:
        return self.m.negate(self)

    def __and__(self, other: Any) -> LLVMValue:
        return self._binary("and_", self, other)

    def __or__(self, other: Any) -> LLVMValue:
        return self._binary("or_", self, other)

    def __ror__(self, other: Any) -> LLVMValue:
        return self._binary("or_", other, self)

    def __xor__(self, other: Any) -> LLVMValue:
        return self._binary("xor", self, other)

    def __invert__(self) -> LLVMValue:
        return self._binary("xor", self, 1 if self.dtype == "bool" else -1)

    def __lshift__(self, other: Any) -> LLVMValue:
        return self._binary("shl", self, other)

    def __rshift__(self, other: Any) -> LLVMValue:
        return self._binary("ashr" if is_signed(self.dtype) else "lshr", self, other)

    def _compare(self, operator: str, other: Any) -> LLVMValue:
        """Emit the comparison ``self operator other``.

        If an operand is NaN, "!=" is true and all other comparisons are false.
        """
        builder = self.m.builder
        if not is_float(self.dtype):
            signed = is_signed(self.dtype)
            function = builder.icmp_signed if signed else builder.icmp_unsigned
        else:
            unordered = operator == "!="
            function = builder.fcmp_unordered if unordered else builder.fcmp_ordered
        value = function(operator, self.value, self.m.raw(other, self.dtype))
        return LLVMValue(self.m, value, "bool")

    def __lt__(self, other: Any) -> LLVMValue:
        return self._compare("<", other)

    def __le__(self, other: Any) -> LLVMValue:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> LLVMValue:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> LLVMValue:
        return self._compare(">=", other)

    def __eq__(self, other: object) -> LLVMValue:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> LLVMValue:  # type: ignore[override]
        return self._compare("!=", other)


class LLVMArithmetic:
    """An ``Arithmetic`` that emits LLVM instructions at a builder's position.

    The methods are those of ``lowering.scalars.arithmetic.Arithmetic``, on LLVMValues.
    Values are vectors of ``length`` elements, or scalars if ``length`` is 1. Helper
    functions and tables are defined once in a module, with names that begin with
    ``scope``.
    """

    vector_bits = VECTOR_BITS

    def __init__(self, builder: Any, scope: str, length: int = 1) -> None:
        self.builder, self.scope, self.length = builder, scope, length

    @property
    def module(self) -> ir.Module:
        """The LLVM module that the builder writes to."""
        return self.builder.module

    def type(self, dtype: str) -> ir.Type:
        """Return the LLVM type of ``dtype``: a scalar, or a vector of ``length``."""
        scalar = scalar_type(dtype)
        return scalar if self.length == 1 else ir.VectorType(scalar, self.length)

    def raw(self, x: Any, dtype: str) -> ir.Value:
        """Convert ``x``, a value or a Python number, to an LLVM value of ``dtype``."""
        if isinstance(x, LLVMValue):
            return x.value
        x = float(x) if is_float(dtype) else int(x)
        if not is_float(dtype):
            # Make it non-negative, in two's complement: llvmlite prints it as it is.
            x &= (1 << width(dtype)) - 1
        scalar = ir.Constant(scalar_type(dtype), x)
        if self.length == 1:
            return scalar
        return ir.Constant(self.type(dtype), [scalar] * self.length)

    def wrap(self, value: ir.Value, dtype: str) -> LLVMValue:
        """Return an LLVM value as an LLVMValue of ``dtype``."""
        return LLVMValue(self, value, dtype)

    def negate(self, x: LLVMValue) -> LLVMValue:
        """Emit ``-x`` of a float: its sign is inverted, also that of 0 and NaN."""
        return self.wrap(self.builder.fneg(x.value), x.dtype)

    def dtype(self, x: LLVMValue) -> str:
        """Return the name of the value's dtype."""
        return x.dtype

    def constant(self, dtype: str, value: float | bool) -> LLVMValue:
        """Return the Python number ``value`` as a constant of ``dtype``."""
        return self.wrap(self.raw(value, dtype), dtype)

    def convert(self, x: LLVMValue, dtype: str) -> LLVMValue:
        """Emit the conversion of ``x`` to ``dtype``, as C converts numbers.

        Floats are rounded or truncated, integers truncated, sign- or zero-extended.
        """
        source, b, target = x.dtype, self.builder, self.type(dtype)
        if source == dtype:
            return x
        if is_float(source) and is_float(dtype):
            cast = b.fptrunc if dtype == "f32" else b.fpext
        elif is_float(source):
            cast = b.fptosi if is_signed(dtype) else b.fptoui
        elif is_float(dtype):
            cast = b.sitofp if is_signed(source) else b.uitofp
        elif width(source) == width(dtype):
            return self.wrap(x.value, dtype)
        elif width(source) > width(dtype):
            cast = b.trunc
        else:
            cast = b.sext if is_signed(source) else b.zext
        return self.wrap(cast(x.value, target), dtype)

    def _half_type(self) -> ir.Type:
        """Return LLVM's type of float16 values: a scalar, or a vector of ``length``."""
        half = ir.HalfType()
        return half if self.length == 1 else ir.VectorType(half, self.length)

    def to_half_bits(self, x: LLVMValue) -> LLVMValue:
        """Emit the rounding of an f32 to float16; the result is a u16 with its bits."""
        half = self.builder.fptrunc(x.value, self._half_type())
        return self.wrap(self.builder.bitcast(half, self.type("u16")), "u16")

    def from_half_bits(self, x: LLVMValue) -> LLVMValue:
        """Emit the conversion of a float16 to f32; ``x`` is a u16 with its bits."""
        half = self.builder.bitcast(x.value, self._half_type())
        return self.wrap(self.builder.fpext(half, self.type("f32")), "f32")

    def reinterpret(self, x: LLVMValue, dtype: str) -> LLVMValue:
        """Return the bits of ``x`` as a value of ``dtype``, which has as many bits.

        Between integers, which LLVM does not tell apart, no instruction is emitted.
        """
        if is_float(x.dtype) == is_float(dtype):
            return self.wrap(x.value, dtype)
        return self.wrap(self.builder.bitcast(x.value, self.type(dtype)), dtype)

    def select(self, condition: LLVMValue, x: Any, y: Any) -> LLVMValue:
        """Emit ``x`` where ``condition`` holds, else ``y``.

        One of ``x`` and ``y`` may be a Python number.
        """
        dtype = x.dtype if isinstance(x, LLVMValue) else y.dtype
        value = self.builder.select(
            condition.value, self.raw(x, dtype), self.raw(y, dtype)
        )
        return self.wrap(value, dtype)

    def intrinsic(
        self, name: str, x: LLVMValue, *others: Any, flags: tuple[str, ...] = ()
    ) -> LLVMValue:
        """Emit a call of the intrinsic ``llvm.<name>`` with ``x`` and ``others``.

        All arguments and the result have the dtype of ``x``. ``flags`` are fast-math
        flags of the call. LLVM's name has the type as a suffix, as "v8f32".
        """
        suffix = f"{'f' if is_float(x.dtype) else 'i'}{width(x.dtype)}"
        if self.length > 1:
            suffix = f"v{self.length}{suffix}"
        arguments = [x.value, *(self.raw(y, x.dtype) for y in others)]
        t = self.type(x.dtype)
        types = [t] * len(arguments)
        if name == "ctlz":
            # Its second argument: the result for 0 is defined.
            arguments, types = [*arguments, ir.Constant(I1, 0)], [*types, I1]
        function = self.declare(f"llvm.{name}.{suffix}", ir.FunctionType(t, types))
        value = self.builder.call(function, arguments, fastmath=flags)
        return self.wrap(value, x.dtype)

    def declare(self, name: str, function_type: ir.FunctionType) -> ir.Function:
        """Return the module's function ``name``; declare it if it is missing."""
        existing = self.module.globals.get(name)
        return existing or ir.Function(self.module, function_type, name)

    def fma(self, x: LLVMValue, y: Any, z: Any) -> LLVMValue:
        """Emit ``x * y + z`` with one rounding."""
        return self.intrinsic("fma", x, y, z)

    def sqrt(self, x: LLVMValue) -> LLVMValue:
        """Emit the square root of ``x``, correctly rounded."""
        return self.intrinsic("sqrt", x)

    def abs(self, x: LLVMValue) -> LLVMValue:
        """Emit the absolute value of a float."""
        return self.intrinsic("fabs", x)

    def rint(self, x: LLVMValue) -> LLVMValue:
        """Emit the rounding of a float to the nearest integer, ties to even."""
        return self.intrinsic("rint", x)

    def floor(self, x: LLVMValue) -> LLVMValue:
        """Emit the rounding of a float to an integer, down."""
        return self.intrinsic("floor", x)

    def ceil(self, x: LLVMValue) -> LLVMValue:
        """Emit the rounding of a float to an integer, up."""
        return self.intrinsic("ceil", x)

    def trunc(self, x: LLVMValue) -> LLVMValue:
        """Emit the rounding of a float to an integer, towards 0."""
        return self.intrinsic("trunc", x)

    def exact_fmod(self, x: LLVMValue, y: LLVMValue) -> LLVMValue:
        """Emit C's ``fmod(x, y)`` of floats, which has no rounding error."""
        return self.wrap(self.builder.frem(x.value, y.value), x.dtype)

    def popcount(self, x: LLVMValue) -> LLVMValue:
        """Emit the number of bits of an integer that are 1."""
        return self.intrinsic("ctpop", x)

    def leading_zeros(self, x: LLVMValue) -> LLVMValue:
        """Emit the number of zero bits above the highest bit of ``x`` that is 1."""
        return self.intrinsic("ctlz", x)

    def integer_quotient(self, x: LLVMValue, y: LLVMValue) -> LLVMValue:
        """Emit ``x / y`` of integers, truncated towards 0."""
        divide = self.builder.sdiv if is_signed(x.dtype) else self.builder.udiv
        return self.wrap(divide(x.value, y.value), x.dtype)

    def integer_power(self, x: LLVMValue, y: LLVMValue) -> LLVMValue:
        """Emit ``x ** y`` of integers, as a call of a helper function.

        The first call defines the function in the module.
        """
        t = self.type(x.dtype)
        function = self.declare(
            f"{self.scope}.integer_power.i{width(x.dtype)}", ir.FunctionType(t, [t, t])
        )
        if function.is_declaration:
            _define_integer_power(function)
        return self.wrap(self.builder.call(function, [x.value, y.value]), x.dtype)

    def lookup(self, table: Sequence[int], index: LLVMValue) -> LLVMValue:
        """Emit the load of element ``index`` of ``table``, constants of type u64."""
        pointer = self.builder.gep(
            self.table_pointer(table), [ir.Constant(I64, 0), index.value]
        )
        return self.wrap(self.builder.load(pointer), "u64")

    def table_pointer(self, table: Sequence[int], space: int = 0) -> ir.Value:
        """Return the address of ``table``, numbers of type u64, as a constant array.

        The module has each table once. ``space`` is the LLVM address space, such as
        that of constant memory on a GPU.
        """
        array = ir.ArrayType(I64, len(table))
        name = f"{self.scope}.table.{len(table)}.{hash(tuple(table)) & (2**63 - 1):x}"
        existing: Any = self.module.globals.get(name)
        if existing is None:
            existing = ir.GlobalVariable(self.module, array, name, addrspace=space)
            existing.linkage = "internal"
            existing.global_constant = True
            existing.initializer = ir.Constant(array, list(table))
        return existing

    def native(self, function: str, arguments: Sequence[Any]) -> Any:
        """Emit the target's own code for a scalar function, named ``function``.

        Returns its result, or None (as here) if the target has none: then the
        function's formula is emitted. Targets override this.
        """
        return None

    def accumulate(self, operation: str, x: LLVMValue, y: Any) -> LLVMValue:
        """Emit one step of a reduction: ``x`` and ``y`` combined by ``operation``.

        It is "add", "mul", "max" or "min". Fast-math flags let LLVM change the order of
        the steps: it may use several accumulators, and so vectorise the reduction.
        """
        b, other = self.builder, self.raw(y, x.dtype)
        if operation == "add":
            return self.wrap(b.fadd(x.value, other, flags=("reassoc",)), x.dtype)
        if operation == "mul":
            return self.wrap(b.fmul(x.value, other, flags=("reassoc",)), x.dtype)
        # llvm.maximum or llvm.minimum. ``nsz``: the sign of a zero does not matter.
        return self.intrinsic(f"{operation}imum", x, y, flags=("nsz",))

    def guarded(
        self,
        name: str,
        rare: Formula,
        slow: Formula,
        common: LLVMValue,
        *arguments: LLVMValue,
    ) -> LLVMValue:
        """Emit ``common``, or ``slow(*arguments)`` where ``rare(*arguments)`` holds.

        ``rare`` and ``slow`` are formulas. The choice is a call of a function ``name``,
        which the first call defines in the module, and which is not inlined. It also
        has a variant for each vector length. An attribute of the call names the
        variants to LLVM, so that loops with the call are vectorised.
        """
        name = f"{self.scope}.{name}_{common.dtype}"
        values = (*arguments, common)
        dtypes = tuple(v.dtype for v in values)
        # Elements of a vector, for each width of vectors: the widest dtype decides.
        lengths = [n // max(map(width, dtypes)) for n in self.vector_bits]
        function = self.declare(
            name,
            ir.FunctionType(
                scalar_type(common.dtype), [scalar_type(dtype) for dtype in dtypes]
            ),
        )
        if function.is_declaration:
            _mark_pure(function)
            self._define_guard(function, dtypes, rare, slow)
            variants = [
                self._define_variant(function, dtypes, rare, length)
                for length in lengths
            ]
            _keep(self.module, variants)
        call = self.builder.call(function, [v.value for v in values])
        # LLVM's names of variants: N: without a mask, the length, and a "v" for each
        # parameter that is a vector; then the scalar function and the vector function.
        kinds = "v" * len(values)
        names = ",".join(
            f"_ZGV_LLVM_N{length}{kinds}_{name}({name}.v{length})" for length in lengths
        )
        for attribute in ("nounwind", "willreturn", "memory(none)"):
            set.add(call.attributes, attribute)
        set.add(call.attributes, f'"vector-function-abi-variant"="{names}"')
        return self.wrap(call, common.dtype)

    def _define_guard(
        self, function: ir.Function, dtypes: Sequence[str], rare: Formula, slow: Formula
    ) -> None:
        """Define the scalar ``function(*arguments, common)`` of ``guarded``.

        It returns ``slow(*arguments)`` if ``rare(*arguments)`` holds, else ``common``.
        ``dtypes`` are those of its parameters.
        """
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        m = type(self)(builder, self.scope)
        *arguments, common = map(m.wrap, function.args, dtypes)
        with builder.if_then(rare(m, *arguments).value, likely=False):
            builder.ret(slow(m, *arguments).value)
        builder.ret(common.value)

    def _define_variant(
        self, guard: ir.Function, dtypes: Sequence[str], rare: Formula, length: int
    ) -> ir.Function:
        """Define the vector variant of ``guard`` for ``length`` elements.

        ``guard`` is the scalar function ``guard(*arguments, common)``, ``dtypes`` are
        those of its parameters. If ``rare`` holds for no element, the variant returns
        ``common``; otherwise it calls ``guard`` for one element after the other.
        """
        types = [ir.VectorType(scalar_type(dtype), length) for dtype in dtypes]
        function = ir.Function(
            self.module, ir.FunctionType(types[-1], types), f"{guard.name}.v{length}"
        )
        _mark_pure(function)
        entry = function.append_basic_block("entry")
        builder = ir.IRBuilder(entry)
        m = type(self)(builder, self.scope, length)
        *arguments, _ = map(m.wrap, function.args, dtypes)
        mask = ir.IntType(length)  # a vector of booleans as one integer
        any_rare = builder.icmp_unsigned(
            "!=", builder.bitcast(rare(m, *arguments).value, mask), ir.Constant(mask, 0)
        )
        loop, done = (function.append_basic_block(name) for name in ("loop", "done"))
        builder.cbranch(any_rare, loop, done)
        builder.position_at_end(loop)
        index, result = builder.phi(I32), builder.phi(types[-1])
        index.add_incoming(ir.Constant(I32, 0), entry)
        result.add_incoming(function.args[-1], entry)
        parts = [builder.extract_element(a, index) for a in function.args]
        following = builder.insert_element(result, builder.call(guard, parts), index)
        next_index = builder.add(index, ir.Constant(I32, 1))
        index.add_incoming(next_index, loop)
        result.add_incoming(following, loop)
        more = builder.icmp_unsigned("<", next_index, ir.Constant(I32, length))
        builder.cbranch(more, loop, done)
        builder.position_at_end(done)
        final = builder.phi(types[-1])
        final.add_incoming(function.args[-1], entry)
        final.add_incoming(following, loop)
        builder.ret(final)
        return function


def _mark_pure(function: ir.Function) -> None:
    """Mark ``function`` as free of side effects, internal and never inlined.

    Loops that call the function can then be vectorised. It rarely runs, so LLVM does
    not optimise it (``optnone``), which would take time.
    """
    function.linkage = "internal"
    # llvmlite checks attributes against a list that lacks some of these.
    for attribute in ("noinline", "nounwind", "willreturn", "memory(none)", "optnone"):
        set.add(function.attributes, attribute)


def _keep(module: ir.Module, functions: Sequence[ir.Function]) -> None:
    """Keep LLVM from removing ``functions``, which are not called yet.

    Only an attribute of a call names them, until the vectoriser replaces the call. They
    are appended to LLVM's array of used symbols, which gets a new type and value.
    """
    name = "llvm.compiler.used"
    used: Any = module.globals.get(name)
    if used is None:
        used = ir.GlobalVariable(module, ir.ArrayType(ir.PointerType(), 0), name)
        used.linkage, used.section = "appending", "llvm.metadata"
        used.initializer = ir.Constant(used.value_type, [])
    symbols = [*used.initializer.constant, *functions]
    used.value_type = ir.ArrayType(ir.PointerType(), len(symbols))
    used.initializer = ir.Constant(used.value_type, symbols)


def _define_integer_power(function: ir.Function) -> None:
    """Define ``function(base, exponent)``: the power of integers, by squaring.

    The exponent is unsigned. A loop over its bits squares ``power``, and multiplies
    ``result`` by ``power`` where the lowest bit of the remaining exponent is 1.
    """
    function.linkage = "internal"
    entry, loop, done = map(function.append_basic_block, ("entry", "loop", "done"))
    base, exponent = function.args
    one = ir.Constant(base.type, 1)
    zero = ir.Constant(base.type, 0)
    builder = ir.IRBuilder(entry)
    builder.cbranch(builder.icmp_unsigned("==", exponent, zero), done, loop)
    builder.position_at_end(loop)
    rest, power, result = (builder.phi(base.type) for _ in range(3))
    odd = builder.trunc(rest, I1)
    product = builder.select(odd, builder.mul(result, power), result)
    following = (builder.lshr(rest, one), builder.mul(power, power), product)
    for phi, start, after in zip(
        (rest, power, result), (exponent, base, one), following, strict=True
    ):
        phi.add_incoming(start, entry)
        phi.add_incoming(after, loop)
    builder.cbranch(builder.icmp_unsigned("==", following[0], zero), done, loop)
    builder.position_at_end(done)
    final = builder.phi(base.type)
    final.add_incoming(one, entry)
    final.add_incoming(product, loop)
    builder.ret(final)
