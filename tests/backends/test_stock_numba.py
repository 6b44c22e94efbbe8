"""Printed kernels are ordinary Numba code: ``numba.njit`` compiles them as they stand.

Each function of the vocabulary, and kernels of each row of the primitive table.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
import pytest

from arrayfn.backends.cpu import (
    unjitted,
    vocabulary,  # noqa: F401  # pyright: ignore[reportUnusedImport]  # it registers
)
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.numba.functions import executed_function
from arrayfn.backends.registry import BACKENDS
from arrayfn.lowering.scalars import SCALARS, ScalarFunction
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES
from arrayfn.primitives.calls import evaluate
from tests.backends.test_cuda_table import (
    BY_NAME,
    VALUES,
    differences,
    together,
    values_of,
)

Function = Callable[..., Any]
COUNT: Final = 20
SEED: Final = 20
FUNCTIONS: dict[tuple[str, ...], list[ScalarFunction]] = defaultdict(list)
for scalar in SCALARS.values():
    FUNCTIONS[scalar.arguments].append(scalar)


def stock(function: Function) -> Function:
    """``function`` by ``numba.njit``, called with arrays in place of pointers."""
    compiled = numba.njit(error_model="numpy")(function)

    def call(*arguments: Any) -> None:
        compiled(
            *(a.memory[a.begin :] if isinstance(a, Pointer) else a for a in arguments)
        )

    return call


def element(dtype: str) -> np.dtype[Any]:
    """The dtype of an array of a dtype's elements, as kernels see them."""
    if dtype == "bool":
        return np.dtype(np.uint8)
    return np.dtype(np.uint16) if dtype in HALF_PRECISION else DTYPES[dtype]


def samples(dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(SEED)
    if dtype == "bool":
        return rng.integers(0, 2, COUNT).astype(np.uint8)
    if dtype in HALF_PRECISION:  # 1 to 4, in both
        return rng.integers(0x3F80, 0x4080, COUNT).astype(np.uint16)
    kind = element(dtype)
    if kind.kind == "u":
        return rng.integers(0, 100, COUNT).astype(kind)
    if kind.kind == "i":
        return rng.integers(-100, 100, COUNT).astype(kind)
    values = rng.uniform(0, 60, COUNT)
    return (values + 1j * values[::-1] if kind.kind == "c" else values).astype(kind)


@pytest.mark.parametrize("arguments", FUNCTIONS, ids=",".join)
def test_njit_compiles_the_vocabulary(arguments: tuple[str, ...]) -> None:
    functions = FUNCTIONS[arguments]
    names = [f"x{k}" for k in range(len(arguments))]
    outputs = [f"y{k}" for k in range(len(functions))]
    given = [
        f"ne_u8({name}[i], u8(0))" if dtype == "bool" else f"{name}[i]"
        for name, dtype in zip(names, arguments, strict=True)
    ]
    lines = [
        f"from arrayfn.lowering.scalars import {', '.join(f.name for f in functions)}",
        "from arrayfn.lowering.scalars import convert_bool_u8, ne_u8, u8",
        f"def k({', '.join([*names, *outputs])}, begin, end):",
        "    for i in range(begin, end):",
    ]
    for output, function in zip(outputs, functions, strict=True):
        value = f"{function.name}({', '.join(given)})"
        if function.result == "bool":
            value = f"convert_bool_u8({value})"
        lines.append(f"        {output}[i] = {value}")
    kernel = executed_function("\n".join(lines) + "\n", "k")
    inputs = [samples(dtype) for dtype in arguments]
    results = [np.zeros(COUNT, element(f.result)) for f in functions]
    stock(kernel)(*inputs, *results, 0, COUNT)
    for function, result in zip(functions, results, strict=True):
        wanted = function(*inputs)
        np.testing.assert_array_equal(result, wanted, function.name)


# ``rev`` reads before its pointer: an array begins where it begins.
@pytest.mark.parametrize("name", [name for name in VALUES if name != "rev"])
def test_njit_compiles_kernels_of_the_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = random.Random(SEED).sample(VALUES[name], 1)
    program, inputs, labels = together(name, values_of(cases))
    compiled = BACKENDS["cpu"].lower(program, frozenset())
    plain = unjitted.function_of
    monkeypatch.setattr(unjitted, "function_of", lambda kernel: stock(plain(kernel)))
    results = unjitted.run_unjitted(compiled, inputs)
    wanted = [np.asarray(x) for x in evaluate(program, inputs)]
    assert not differences(BY_NAME[name], labels, results, wanted)
