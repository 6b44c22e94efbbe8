"""Names of values in kernels: what is compiled has none of the user's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cpu.source import print_kernel as print_for_cpu
from arrayfn.lowering.cuda.lower import lower as lower_on_gpu
from arrayfn.lowering.cuda.printer import RESERVED
from arrayfn.lowering.cuda.source import print_kernel as print_for_gpu
from arrayfn.lowering.kernel_ir import (
    Argument,
    ArrayOperand,
    Axis,
    Compute,
    Constant,
    Load,
    Nest,
    Reduce,
    Store,
    Value,
)
from arrayfn.lowering.plan import Kernel
from arrayfn.transforms import trace_function
from tests.processes import python_path

X = np.linspace(0.25, 3.0, 24).reshape(6, 4)
WIDE = "\uff41"  # a full-width a, which Python reads as a


def chain(x: Any) -> Any:
    return anp.sin(x) * x + anp.cos(x)


def rows(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=1, keepdims=True))
    return e / anp.sum(e, axis=1, keepdims=True) * x


def columns(x: Any) -> Any:
    return anp.sum(x * x, axis=0) + x, anp.mean(anp.abs(x))


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * x[0, 0] + i, x[1, 1]), x.T * 2.5


def picked(x: Any) -> Any:
    return anp.cumsum(x * 2, axis=1)[:, [3, 0, 1]], anp.sort(x + 1, axis=0)


def names_of(kernel: Kernel) -> set[str]:
    tree = ast.parse(kernel.source)
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return found | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


def with_name(function: Any, name: str) -> Any:
    """``function`` whose parameter the user calls ``name``."""
    return lambda **arguments: function(arguments[name])


def lowered(function: Any, name: str, device: str) -> CompiledProgram:
    """``with_name(function, name)`` for ``X``."""
    named = with_name(function, name)
    if device == "cpu":
        return af.jit(named, device="cpu").lower(**{name: X}).compiled_program
    traced = trace_function(named, (), {name: X}, abstract=True, with_values=False)
    return lower_on_gpu(traced.program)


def same_up_to_names(kernel: Kernel) -> bool:
    """Whether ``source`` is ``key``, its names exchanged one for one."""
    forward: dict[str, str] = {}
    back: dict[str, str] = {}

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, ast.AST):
            if type(a) is not type(b):
                return False
            if isinstance(a, ast.FunctionDef):
                a.body = a.body[ast.get_docstring(a) is not None :]
            if isinstance(a, ast.ImportFrom):
                return True
            fields = [(f, getattr(a, f, None), getattr(b, f, None)) for f in a._fields]
            return all(
                paired(x, y) if f in ("id", "arg", "name") else same(x, y)
                for f, x, y in fields
            )
        if isinstance(a, list):
            return len(a) == len(b) and all(map(same, a, b))
        return a == b

    def paired(x: Any, y: Any) -> bool:
        return forward.setdefault(x, y) == y and back.setdefault(y, x) == x

    source, key = ast.parse(kernel.source), ast.parse(kernel.key)
    return all(map(same, source.body, key.body))


@pytest.mark.parametrize("function", [chain, rows, columns, looped, picked])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_parameter_called_as_a_kernels_own_variable(function, device):
    plain = lowered(function, "x", device)
    words = {"a", "_", "x_", WIDE, "print", "match", "int", "lambda_", "a_in"}
    for kernel in plain.kernels:
        if isinstance(kernel, Kernel):
            assert same_up_to_names(kernel), kernel.source
            words |= names_of(kernel)
    for word in sorted(words):
        given = lowered(function, word, device)
        for have, want in zip(given.kernels, plain.kernels, strict=True):
            if isinstance(have, Kernel):
                assert have.key == want.key
                assert same_up_to_names(have), f"{word}:\n{have.source}"
        if device == "cpu":
            results = run_unjitted(given, [X])
            for have, want in zip(results, run_unjitted(plain, [X]), strict=True):
                np.testing.assert_array_equal(have, want)


def sums_with_arguments(word: str, length: int) -> Nest:
    """Sums of rows of ``x``, to which two arguments are added, both called ``word``."""
    array, sums = (Var(ArrayType(shape, dtypes.int64)) for shape in ((6, length), (6,)))
    names = ("x", "more", "most", "total")
    x, more, most, total = (Value(name, dtypes.int64) for name in names)
    return Nest(
        (Axis(6, False), Axis(length, True)),
        (
            ArrayOperand(array, dtypes.int64, (length, 1), 0, False),
            ArrayOperand(sums, dtypes.int64, (1, 0), 0, True),
        ),
        (
            Load(x, 0, "element", 0),
            Compute(more, "add_i64", (x, Argument(word, 3)), "element", 0, 1),
            Compute(most, "add_i64", (more, Argument(word, 5)), "element", 0, 1),
            Reduce(total, "accumulate_add_i64", most, Constant(0, dtypes.int64), 0),
            Store(1, total, "outer", 1),
        ),
        ("reduce_sum",),
        "sums",
    )


@pytest.mark.parametrize("print_nest", [print_for_cpu, print_for_gpu])
@pytest.mark.parametrize("length", [40, 40_001])
def test_an_argument_called_as_another_name_of_its_kernel(print_nest, length):
    plain = print_nest(sums_with_arguments("plain", length), "k").kernel
    words = names_of(plain) | RESERVED | {"first", "last", "exp_f64", "x", "total"}
    for word in sorted(words - {"plain", "k"}):
        made = print_nest(sums_with_arguments(word, length), "k")
        assert {3, 5} <= {integer.value for integer in made.integers}
        for text in (made.kernel.source, made.kernel.key):
            nodes = list(ast.walk(ast.parse(text)))
            given = [n.arg for n in nodes if isinstance(n, ast.arg)]
            names = [n for n in nodes if isinstance(n, ast.Name)]
            assigned = {n.id for n in names if isinstance(n.ctx, ast.Store)}
            called = {n.func.id for n in nodes if isinstance(n, ast.Call)}
            assert len(set(given)) == len(given), text
            assert not {*given} & (assigned | called), text


def test_a_name_that_python_reads_as_another_is_printed_as_that():
    made = af.jit(with_name(chain, WIDE)).lower(**{WIDE: X})
    text = made.text()
    assert text.isascii()
    assert "(a: f64[6,4])" in text
    np.testing.assert_allclose(
        made.compile()(**{WIDE: X}), np.sin(X) * X + np.cos(X), rtol=1e-14
    )


POISON = """
import numpy as np, arrayfn as af, arrayfn.numpy as anp
x = np.linspace(0.25, 3.0, 7)
f = lambda **k: anp.sin(k[NAME]) * k[NAME] + anp.cos(k[NAME])
print(np.abs(af.jit(f)(**{NAME: x}) - (np.sin(x) * x + np.cos(x))).max())
"""


def test_no_name_changes_what_later_processes_compute(tmp_path: Path) -> None:
    environment = {
        "ARRAYFN_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": python_path(),
    }
    known: set[Path] = set()
    for name in (WIDE, "x", "begin", "sin_f64"):
        done = subprocess.run(
            [sys.executable, "-c", POISON.replace("NAME", ascii(name))],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert float(done.stdout) < 1e-14
        entries = set(tmp_path.glob("??/*.o"))
        # One kernel, whatever its argument is called: compiled once.
        assert entries == (known := known or entries)
