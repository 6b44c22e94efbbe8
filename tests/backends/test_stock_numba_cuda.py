"""Printed GPU kernels are ordinary numba-cuda code, compiled here to PTX by its API.

Each function of the vocabulary, and kernels of the rows of the primitive table and of
every family, drawn by a seed. PTX is made without a GPU.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from importlib import import_module
from typing import Any, Final

import pytest

from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import (
    kernel_ptx,
    with_dependent_launch,
    with_neutral_name,
)
from arrayfn.backends.numba.functions import executed_function
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS, DeviceFunction
from arrayfn.lowering.plan import Kernel
from tests.backends.test_cuda_families import FAMILIES, kernels
from tests.backends.test_cuda_table import VALUES, together, values_of
from tests.lowering.test_cuda_persistent import RECURRENT, persistent, recurrent

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_packages()), reason=missing_packages()),
]
ARCH: Final = (9, 0)
SEED: Final = 20
KINDS: dict[str, list[DeviceFunction]] = defaultdict(list)
for device_function in FUNCTIONS.values():
    KINDS[device_function.kind].append(device_function)
# What a thread does besides its own arithmetic.
_SHARED_WORK: Final = re.compile(
    r"\b((?:bar|barrier|shfl|vote|match|mma|ldmatrix|cp|mbarrier|atom|red|fence|mapa|"
    r"griddepcontrol|st\.async|prmt)[\w.:]*)"
)


def stock_ptx(source: str, kinds: list[str]) -> str:
    """The PTX of a kernel through ``numba.cuda.compile_ptx``."""
    cuda: Any = import_module("numba.cuda")
    dialect = import_module("arrayfn.backends.cuda.vocabulary").DIALECT
    signature = cuda.types.void(*map(dialect.parameter_type, kinds))
    function = executed_function(source, "kernel")
    ptx, _ = cuda.compile_ptx(function, signature, cc=ARCH)
    return ptx


def array_ptx(source: str, kinds: list[str]) -> str:
    """The same, on arrays of one dimension instead of pointers."""
    cuda: Any = import_module("numba.cuda")
    dialect = import_module("arrayfn.backends.cuda.vocabulary").DIALECT
    types = [dialect.parameter_type(kind) for kind in kinds]
    given = [
        t.dtype[::1] if k.endswith("*") else t
        for t, k in zip(types, kinds, strict=True)
    ]
    function = executed_function(source, "kernel")
    ptx, _ = cuda.compile_ptx(function, cuda.types.void(*given), cc=ARCH)
    return ptx


def work(ptx: str) -> set[str]:
    """The kinds of instructions by which threads work together."""
    return set(_SHARED_WORK.findall(ptx))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unrolled"])
def test_numba_cuda_compiles_the_vocabulary(kind: str) -> None:
    vocabulary: Any = import_module("arrayfn.backends.cuda.vocabulary")
    functions = KINDS[kind]
    parameters: dict[str, str] = {"n": "i64"}
    body: list[str] = []

    def operand(word: str) -> str:
        if word == "bool":
            return "n > 3"
        name = word.removesuffix("*")
        parameters.setdefault(f"p_{name}", f"{name}*")
        return f"p_{name}" if word.endswith("*") else f"p_{name}[n]"

    for function in functions:
        result, *words = vocabulary.signature_words(function)
        is_pointer = [word.startswith("bool*") for word in words]
        if any(is_pointer):
            continue
        given = [
            ("2" if kind in vocabulary.LAST_IS_CONSTANT else "n")
            if w == "i64"
            else operand(w)
            for w in words
        ]
        call = f"{function.name}({', '.join(given)})"
        if result == "none":
            body.append(call)
        elif result.endswith("*"):
            body.append(f"memory_{function.name} = {call}")
            body.append(f"memory_{function.name}[n] = memory_{function.name}[n + 1]")
        elif result == "bool":
            body.append(f"if {call}:\n        {operand('i64')} = n")
        else:
            body.append(f"{operand(result)} = {call}")
    names = ", ".join(function.name for function in functions)
    source = (
        f"from arrayfn.lowering.cuda.vocabulary import {names}\n"
        f"def kernel({', '.join(parameters)}):\n    " + "\n    ".join(body) + "\n"
    )
    kinds = list(parameters.values())
    assert ".visible .entry" in stock_ptx(source, kinds)


def same_work(kernel: Kernel) -> None:
    """``kernel`` compiles with numba-cuda alone, to the same kinds of instructions."""
    ptx = stock_ptx(
        with_neutral_name(kernel).source, [p.kind for p in kernel.parameters]
    )
    ptx = with_dependent_launch(ptx)
    assert work(ptx) == work(kernel_ptx(kernel, ARCH)), kernel.name


@pytest.mark.parametrize("name", VALUES)
def test_numba_cuda_compiles_kernels_of_the_table(name: str) -> None:
    draw = random.Random(SEED)
    program, _, _ = together(name, values_of(draw.sample(VALUES[name], 1)))
    made = [k for k in lower(program, check=True).kernels if isinstance(k, Kernel)]
    for kernel in draw.sample(made, min(1, len(made))):
        same_work(kernel)


@pytest.mark.parametrize("name", random.Random(SEED).sample(list(FAMILIES), 20))
def test_numba_cuda_compiles_a_kernel_of_a_family(name: str) -> None:
    made = kernels(name, GPU)
    same_work(random.Random(SEED).choice(made))


def test_numba_cuda_compiles_a_kernel_that_calls_others() -> None:
    (kernel,) = persistent(recurrent, *RECURRENT).kernels
    assert "@device_function" in kernel.key
    same_work(kernel)


@pytest.mark.parametrize("name", ["rows of a block", "sorts of tiles"])
def test_numba_cuda_compiles_kernels_on_arrays(name: str) -> None:
    for kernel in kernels(name, GPU):
        source, kinds = (
            with_neutral_name(kernel).source,
            [p.kind for p in kernel.parameters],
        )
        ptx = with_dependent_launch(array_ptx(source, kinds))
        assert work(ptx) == work(kernel_ptx(kernel, ARCH))
