"""Compiled kernels of scalar functions, applied to arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars import SCALARS
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES
from tests.kernel_code import code_of

Array = np.ndarray[Any, Any]
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
STORED = {**{t: np.dtype(t_np) for t, t_np in DTYPES.items()}, "bool": np.dtype("u1")}
STORED |= {"f16": np.dtype("u2"), "bf16": np.dtype("u2")}


def kernel_of(names: Sequence[str], argument_dtypes: Sequence[str]) -> Kernel:
    """A loop that stores each function of ``x0[i], x1[i], ...`` in its own output.

    A function takes the first arguments; all must have the dtypes given.
    """
    used = {"convert_u8_bool", "convert_bool_u8", *names}
    lines = [f"from arrayfn.lowering.scalars import {', '.join(sorted(used))}"]
    inputs = [f"x{k}" for k in range(len(argument_dtypes))]
    outputs = [f"out{k}" for k in range(len(names))]
    lines.append(f"def k({', '.join([*inputs, *outputs])}, begin, end):")
    lines.append("    for i in range(begin, end):")
    for x, dtype in zip(inputs, argument_dtypes, strict=True):
        load = f"convert_u8_bool({x}[i])" if dtype == "bool" else f"{x}[i]"
        lines.append(f"        v_{x} = {load}")
    for out, name in zip(outputs, names, strict=True):
        function = SCALARS[name]
        n = len(function.arguments)
        assert tuple(argument_dtypes[:n]) == function.arguments, name
        call = f"{name}({', '.join(f'v_{x}' for x in inputs[:n])})"
        if function.result == "bool":
            call = f"convert_bool_u8({call})"
        lines.append(f"        {out}[i] = {call}")
    source = "\n".join(lines) + "\n"
    kinds = [*argument_dtypes, *(SCALARS[name].result for name in names)]
    parameters = tuple(
        Parameter(p, kind + "*")
        for p, kind in zip([*inputs, *outputs], kinds, strict=True)
    )
    return Kernel("k", source, source, parameters)


def run_compiled(names: Sequence[str], *arguments: Array) -> dict[str, Array]:
    """Each function's results, computed by one compiled kernel."""
    by_length = max((SCALARS[name] for name in names), key=lambda f: len(f.arguments))
    dtypes = by_length.arguments
    kernel = kernel_of(names, dtypes)
    stored = [
        np.ascontiguousarray(a, STORED[t])
        for a, t in zip(arguments, dtypes, strict=True)
    ]
    results = {
        name: np.empty(stored[0].shape, STORED[SCALARS[name].result]) for name in names
    }
    pointers = [a.ctypes.data for a in (*stored, *results.values())]
    block = (ctypes.c_int64 * len(pointers))(*pointers)
    code = code_of(kernel)
    entry = ENTRY(code.address)
    entry(ctypes.addressof(block), 0, stored[0].size)
    return {
        name: out.astype(np.bool_) if SCALARS[name].result == "bool" else out
        for name, out in results.items()
    }


@pytest.fixture
def compiled() -> Callable[..., dict[str, Array]]:
    """``compiled(names, *arrays)``: a dict of each function's array of results.

    ``compiled.kernel(names, dtypes)`` is the kernel itself.
    """
    return run_compiled


@pytest.fixture
def scalar_kernel() -> Callable[..., Kernel]:
    """``scalar_kernel(names, dtypes)``: the kernel that ``compiled`` runs."""
    return kernel_of
