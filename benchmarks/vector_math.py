"""Accuracy and speed of the elementary functions; ``python -m benchmarks.vector_math``.

For each function and dtype: the greatest error found against extended precision, the
time per element compiled, NumPy's (or SciPy's), and that of the C library's scalar
function in a compiled loop; and whether the compiled loop is vectorised.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import re
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import scipy.special

from arrayfn.backends.cpu import kernel_compiler
from arrayfn.backends.cpu.code import kernel_unit
from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.native import target
from arrayfn.backends.native.code import native_units
from arrayfn.backends.native.engine import KernelCode
from arrayfn.backends.native.loading import load
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars import SCALARS
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES

Array = np.ndarray[Any, Any]
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

# The function's NumPy counterpart (also the reference, in extended precision), the C
# library's name, and the range that times are measured on.
FUNCTIONS: dict[str, tuple[Callable[..., Any], str, tuple[float, float]]] = {
    "exp": (np.exp, "exp", (-10, 10)),
    "exp2": (np.exp2, "exp2", (-10, 10)),
    "expm1": (np.expm1, "expm1", (-10, 10)),
    "log": (np.log, "log", (0.01, 100)),
    "log2": (np.log2, "log2", (0.01, 100)),
    "log10": (np.log10, "log10", (0.01, 100)),
    "log1p": (np.log1p, "log1p", (-0.9, 100)),
    "logistic": (scipy.special.expit, "", (-10, 10)),
    "sin": (np.sin, "sin", (-100, 100)),
    "cos": (np.cos, "cos", (-100, 100)),
    "tan": (np.tan, "tan", (-100, 100)),
    "asin": (np.arcsin, "asin", (-1, 1)),
    "acos": (np.arccos, "acos", (-1, 1)),
    "atan": (np.arctan, "atan", (-10, 10)),
    "sinh": (np.sinh, "sinh", (-10, 10)),
    "cosh": (np.cosh, "cosh", (-10, 10)),
    "tanh": (np.tanh, "tanh", (-3, 3)),
    "asinh": (np.arcsinh, "asinh", (-10, 10)),
    "acosh": (np.arccosh, "acosh", (1, 10)),
    "atanh": (np.arctanh, "atanh", (-1, 1)),
    "cbrt": (np.cbrt, "cbrt", (-10, 10)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), "", (0.01, 100)),
    "erf": (scipy.special.erf, "erf", (-4, 4)),
    "erfc": (scipy.special.erfc, "erfc", (-4, 8)),
    "erfinv": (scipy.special.erfinv, "", (-1, 1)),
    "lgamma": (scipy.special.gammaln, "lgamma", (0.1, 20)),
    "digamma": (scipy.special.digamma, "", (0.1, 20)),
    "pow": (np.power, "pow", (0.01, 10)),
    "atan2": (np.arctan2, "atan2", (-10, 10)),
    "hypot": (np.hypot, "hypot", (-10, 10)),
    "fmod": (np.fmod, "fmod", (-10, 10)),
}
ELEMENTS = 32_768  # in cache: what is measured is arithmetic


def loop(name: str) -> Kernel:
    """The kernel that applies a function to each element."""
    function = SCALARS[name]
    inputs = [f"x{k}" for k in range(len(function.arguments))]
    call = ", ".join(f"{x}[i]" for x in inputs)
    source = (
        f"from arrayfn.lowering.scalars import {name}\n"
        f"def k({', '.join(inputs)}, out, begin, end):\n"
        "    for i in range(begin, end):\n"
        f"        out[i] = {name}({call})\n"
    )
    kinds = (*function.arguments, function.result)
    parameters = tuple(
        Parameter(p, f"{kind}*")
        for p, kind in zip([*inputs, "out"], kinds, strict=True)
    )
    return Kernel("k", source, source, parameters)


def libm_loop(name: str, dtype: str, count: int) -> str:
    """The LLVM IR of a loop over the C library's function."""
    t = "float" if dtype == "f32" else "double"
    symbol = name + ("f" if dtype == "f32" else "")
    loads = "".join(
        f"  %a{k} = getelementptr i64, ptr %arguments, i64 {k}\n"
        f"  %p{k} = load ptr, ptr %a{k}\n"
        for k in range(count + 1)
    )
    reads = "".join(
        f"  %q{k} = getelementptr {t}, ptr %p{k}, i64 %i\n"
        f"  %v{k} = load {t}, ptr %q{k}\n"
        for k in range(count)
    )
    values = ", ".join(f"{t} %v{k}" for k in range(count))
    return f"""
declare {t} @{symbol}({", ".join([t] * count)})
define void @entry(ptr %arguments, i64 %begin, i64 %end) {{
start:
{loads}  br label %loop
loop:
  %i = phi i64 [ %begin, %start ], [ %after, %loop ]
{reads}  %r = call {t} @{symbol}({values})
  %o = getelementptr {t}, ptr %p{count}, i64 %i
  store {t} %r, ptr %o
  %after = add i64 %i, 1
  %more = icmp slt i64 %after, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


class Loop:
    """A compiled loop with its arrays bound."""

    def __init__(self, address: int, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.entry = ENTRY(address)
        pointers = [a.ctypes.data for a in arrays]
        self.block = (ctypes.c_int64 * len(pointers))(*pointers)

    def __call__(self) -> Array:
        self.entry(ctypes.addressof(self.block), 0, self.arrays[-1].size)
        return self.arrays[-1]


def nanoseconds(action: Callable[[], object], elements: int, seconds: float) -> float:
    """The least time of an element, over repeats that take ``seconds`` in all."""
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return best / elements * 1e9


def is_vectorised(kernel: Kernel) -> bool:
    """Whether the loop loads and stores vectors, and takes none of them apart."""
    text = kernel_compiler.kernel_ir(
        kernel.source, kernel.name, kernel.parameters, "entry"
    )
    machine = target.target_machine()
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    body = re.search(r"vector\.body.*?middle\.block", str(module), re.DOTALL)
    return (
        body is not None
        and re.search(r"store <\d+ x \w+>", body.group()) is not None
        and "extractelement" not in body.group()
    )


def samples(name: str, dtype: np.dtype[Any], count: int) -> Array:
    """Arguments of all magnitudes, and as many from where the function changes."""
    rng = np.random.default_rng(0)
    word = np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(word).max, count // 2, dtype=word).view(dtype)
    low, high = FUNCTIONS[name][2]
    near = rng.uniform(low, high, count - count // 2).astype(dtype)
    return rng.permutation(np.concatenate([bits, near]))


def by_mpmath(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    """A function of extended-precision arrays, by way of mpmath."""

    def of_one(x: Any) -> Any:
        with mpmath.workprec(120):
            try:
                value = function(mpmath.mpf(float(x)))
            except (OverflowError, ValueError, ZeroDivisionError):
                return np.longdouble(np.nan)
            return np.longdouble(mpmath.nstr(value, 25))

    return np.vectorize(of_one, otypes=[np.longdouble])


def inverse_erf(x: Any) -> Any:
    """mpmath's own is not accurate near 1."""
    if abs(x) < 0.5:
        return mpmath.erfinv(x)
    goal = mpmath.log1p(-abs(x))
    root = mpmath.findroot(
        lambda y: mpmath.log(mpmath.erfc(y)) - goal, 0.95 * mpmath.sqrt(-goal)
    )
    return mpmath.sign(x) * root


# Where NumPy has no extended precision; the range to sample besides.
EXTENDED: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), (-math.inf, math.inf)),
    "erf": (by_mpmath(mpmath.erf), (-30, 30)),
    "erfc": (by_mpmath(mpmath.erfc), (-30, 30)),
    "erfinv": (by_mpmath(inverse_erf), (-1 + 1e-7, 1 - 1e-7)),
    "lgamma": (by_mpmath(lambda x: mpmath.loggamma(x).real), (0, 1e20)),
    "digamma": (by_mpmath(mpmath.digamma), (0, 1e20)),
}


def greatest_error(name: str, t: str, run: Callable[[list[Array]], Array]) -> float:
    """The greatest error in ulp, against extended precision."""
    reference, (low, high) = EXTENDED.get(
        name, (FUNCTIONS[name][0], (-math.inf, math.inf))
    )
    dtype = DTYPES[t]
    slow = name in EXTENDED and name != "logistic"
    count = 4000 if slow else 200_000
    arguments = [samples(name, dtype, count) for _ in SCALARS[f"{name}_{t}"].arguments]
    if name == "pow":
        arguments[0] = np.abs(arguments[0])
    if len(arguments) == 2:
        arguments[1] = arguments[1][::-1].copy()
    keep = np.isfinite(arguments[0]) & (arguments[0] > low) & (arguments[0] < high)
    arguments = [a[keep] for a in arguments]
    with np.errstate(all="ignore"):
        exact = reference(*(a.astype(np.longdouble) for a in arguments))
        result, rounded = run(arguments), exact.astype(dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max))
        error = np.abs(result - exact) / unit.astype(np.longdouble)
    known = np.isfinite(exact) & np.isfinite(rounded)
    return float(np.max(error[known], initial=0.0))


def code_of(kernel: Kernel) -> KernelCode:
    """The loaded code of ``kernel``, which is freed with the result."""
    unit = kernel_unit(kernel)
    return load([*native_units(check_signals), unit])[unit.key]


def row(name: str, t: str, seconds: float) -> str:
    """One line of the table."""
    reference, c_name, (low, high) = FUNCTIONS[name]
    dtype = DTYPES[t]
    kernel = loop(f"{name}_{t}")
    code = code_of(kernel)
    address = code.address

    def run(arguments: list[Array]) -> Array:
        return Loop(address, [*arguments, np.empty_like(arguments[0])])()

    rng = np.random.default_rng(1)
    count = len(SCALARS[f"{name}_{t}"].arguments)
    arrays = [rng.uniform(low, high, ELEMENTS).astype(dtype) for _ in range(count)]
    out = np.empty(ELEMENTS, dtype)
    ours = nanoseconds(Loop(address, [*arrays, out]), ELEMENTS, seconds)
    numpys = nanoseconds(lambda: reference(*arrays), ELEMENTS, seconds)
    c_library = ""
    if c_name:
        module = llvm.parse_assembly(libm_loop(c_name, t, count))
        engine = llvm.create_mcjit_compiler(module, target.target_machine())
        engine.finalize_object()
        scalar = Loop(engine.get_function_address("entry"), [*arrays, out])
        c_library = f"{nanoseconds(scalar, ELEMENTS, seconds):.2f}"
    error = greatest_error(name, t, run)
    vector = "yes" if is_vectorised(kernel) else "no"
    return (
        f"{name:10}{t:5}{error:9.3f}{ours:10.2f}{numpys:10.2f}{c_library:>10}"
        f"{numpys / ours:10.1f}x    {vector}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Accuracy and speed of functions.")
    parser.add_argument("functions", nargs="*", metavar="FUNCTION")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each time")
    chosen = parser.parse_args()
    if unknown := set(chosen.functions) - set(FUNCTIONS):
        parser.error(f"no function {', '.join(sorted(unknown))}")
    print(f"{target.host().cpu}; ns for each of {ELEMENTS} elements; error in ulp")
    print(
        f"{'function':10}{'':5}{'error':>9}{'compiled':>10}{'NumPy':>10}{'libm':>10}"
        f"{'NumPy /':>11}    vectorised"
    )
    for name in chosen.functions or FUNCTIONS:
        for t in ("f32", "f64"):
            print(row(name, t, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
