"""Compiles some operations outside ``jit``: long loops, and operations on a device.

A loop is interpreted at first, since compiling takes longer than a few iterations. Once
it has run more of them, in one call or in several of the same Program, it is compiled.
A ``while_loop`` continues with the carry it had reached.

An operation on an array in a device's memory is a Program of one equation, compiled
once for each of its types and params. Numbers are its operands, so another number needs
no other Program. The Program of a derivative runs as a whole.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.backends.base import Backend, Executable
from arrayfn.backends.registry import choose, get_backend
from arrayfn.caches import forgets
from arrayfn.compilation.compiled import with_faults
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Params,
    Program,
    Var,
    programs_in,
    type_of,
)
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.format import format_param
from arrayfn.ir.text import format_program, parse_program
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.passes.checks import with_checks
from arrayfn.passes.expand import expand
from arrayfn.passes.faults import Site
from arrayfn.passes.small import equation_count
from arrayfn.primitives.base import Body, Primitive, has_effect, primitive_of
from arrayfn.primitives.calls import array_of_atom
from arrayfn.primitives.control_flow import (
    cond_reference,
    limited_while,
    scan_reference,
)
from arrayfn.primitives.rules import as_list
from arrayfn.primitives.table import TABLE
from arrayfn.primitives.views import relayout
from arrayfn.records import frozen
from arrayfn.tracing import ArrayOnDevice, device_of

Array = np.ndarray[Any, Any]
Sites = tuple[Site, ...]

# Compiling an equation takes about as long as interpreting it so many times.
_PATIENCE: Final = 300
_MAX_LOOPS: Final = 1024
_MAX_OPERATIONS: Final = 4096
_MAX_NUMBERS: Final = 4096


def compute(
    primitive: Primitive, arrays: Sequence[Array], params: Params
) -> Sequence[Array]:
    """Compute a shard_map, or a primitive that holds a loop, on ``arrays``.

    ``arrays`` are the operands. A loop is interpreted until it has run as many
    equations as compiling takes time; it is then compiled, and a ``while_loop`` goes on
    from its carry.
    """
    if primitive.name == "shard_map":
        return run_on_device(
            _single_equation(primitive, map(type_of, arrays), params), arrays
        )
    operands = [np.asarray(x, order="C") for x in arrays]
    program = _single_equation(primitive, map(type_of, operands), params)
    text = format_program(program, comments=False)
    # ``_interpreted`` counts the equations that were interpreted so far, by the text.
    budget = _PATIENCE * equation_count(program) - _interpreted[text]
    if has_effect(program.equations[0]):
        budget = 0  # starting again would repeat its effects
    interpreter = _Interpreter(max(0, budget))
    try:
        return interpreter.evaluate(expand(program), operands)
    except _OutOfPatienceError:
        if primitive.name == "while_loop" and interpreter.carry is not None:
            operands = [np.asarray(x, order="C") for x in interpreter.carry]
        return _executable(text).run(program, operands)
    finally:
        if len(_interpreted) > _MAX_LOOPS:  # bounds the memory of the counter
            _interpreted.clear()
        _interpreted[text] += interpreter.done


def compute_on_device(
    primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any]:
    """Compute a primitive on the device that holds an operand.

    ``operands`` are arrays; those of the host are copied there. The compiled equation
    is cached by its types and params.
    """
    if programs_in(params):
        return run_on_device(
            _single_equation(primitive, map(type_of, operands), params), operands
        )
    device = device_of(operands)
    types = tuple([type_of(x) for x in operands])
    param_texts = tuple([(name, format_param(value)) for name, value in params.items()])
    key = (device, primitive.name, types, param_texts)
    run = _device_cache.find(
        key, device, lambda: _single_equation(primitive, types, params)
    )
    return run.function(tuple([_device_cache.put(device, x) for x in operands]))


def run_on_device(program: Program, operands: Sequence[Any]) -> Sequence[Any]:
    """Run ``program`` on the device that holds an operand or constant.

    ``operands`` are the arrays of its inputs. Its captured arrays become operands of
    the compiled Program, so that equal Programs share one.
    """
    values = (*operands, *program.constant_values)
    inputs = (*program.inputs, *program.constants)
    arrays = [
        x if isinstance(x, ArrayOnDevice) else np.asarray(x, v.type.dtype)
        for x, v in zip(values, inputs, strict=True)
    ]
    device = device_of(arrays) or "mesh"  # a shard_map of arrays of the host
    types = tuple([type_of(x) for x in arrays])
    key = (device, format_program(program, comments=False), types)
    run = _device_cache.find(key, device, lambda: _with_constant_inputs(program, types))
    return run.run(program, [_device_cache.put(device, x) for x in arrays])


@frozen
class _Compiled:
    """A compiled Program, and whether its last result is the fault of checks."""

    function: Executable
    has_checks: bool

    @classmethod
    def of(cls, program: Program, backend: Backend) -> _Compiled:
        """Compile ``program``, with the user's checks in it, for ``backend``."""
        checked, sites = _with_checks(program, backend)
        run = backend.load(backend.lower(checked, frozenset()))
        return cls(run, bool(sites))

    def run(self, program: Program, operands: Sequence[Any]) -> Sequence[Any]:
        """Run the compiled Program on the arrays ``operands``.

        Errors of checks name lines of ``program``, which is equal to the compiled one.
        """
        run = self.function
        if self.has_checks:
            _, sites = _with_checks(program, choose("cpu"))
            run = with_faults(run, sites)
        return run(tuple(operands))


def _with_checks(program: Program, backend: Backend) -> tuple[Program, Sites]:
    """Insert the code of the user's checks into ``program``; also return their sites.

    Calls that ``backend`` has a kernel for are not entered.
    """
    return with_checks(program, frozenset(), KERNELS.has_for(backend.name))


class _DeviceCache:
    """A cache of compiled single operations, and of scalars copied to a device.

    All of one kind are dropped when there are too many of them.
    """

    def __init__(self) -> None:
        self._executables: dict[Any, _Compiled] = {}
        self._numbers: dict[Any, Any] = {}  # copies of scalars: see ``put``

    def find(self, key: Any, device: str, program: Callable[[], Program]) -> _Compiled:
        """Return the executable under ``key``; if there is none, compile one.

        ``program()`` is compiled for the backend called ``device``.
        """
        executable = self._executables.get(key)
        if executable is None:
            if len(self._executables) >= _MAX_OPERATIONS:
                self._executables.clear()
            executable = _Compiled.of(program(), get_backend(device))
            self._executables[key] = executable
        return executable

    def forget(self) -> None:
        """Drop all executables and scalars."""
        self._executables.clear()
        self._numbers.clear()

    def put(self, device: str, x: Any) -> Any:
        """Copy a scalar ``x`` to ``device``, once; other values stay."""
        if isinstance(x, ArrayOnDevice) or x.shape:
            return x
        key = (device, x.dtype, x.tobytes())
        copy = self._numbers.get(key)
        if copy is None:
            if len(self._numbers) >= _MAX_NUMBERS:
                self._numbers.clear()
            copy = self._numbers[key] = get_backend(device).put(x)
        return copy


_device_cache = _DeviceCache()


def _with_constant_inputs(program: Program, types: Sequence[ArrayType]) -> Program:
    """Rebuild ``program`` with inputs of ``types``, and with constants as inputs.

    ``types`` are those of the inputs, then of the constants. Where a layout differs
    from that of the Program, the input is copied by a relayout.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        operands: list[Atom] = []
        for var, type in zip((*program.inputs, *program.constants), types, strict=True):
            operand = builder.input(type, var.hint)
            has_layout = type.layout == var.type.layout
            operands.append(operand if has_layout else relayout(operand, layout="C"))
        inputs = (*program.inputs, *program.constants)
        closed = Program(program.name, inputs, program.equations, program.outputs)
        return builder.build(builder.inline(closed, operands))


class _OutOfPatienceError(Exception):
    """A loop has been interpreted for longer than compiling takes."""


class _Interpreter:
    """Evaluates Programs as the reference does, for at most ``limit`` equations.

    ``done`` counts the equations, and ``depth`` the nested Programs. ``carry`` has the
    operands with which the outermost while_loop continues.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.done = 0
        self.carry: list[Any] | None = None
        self.depth = 0

    def evaluate(self, program: Program, operands: Sequence[Any]) -> list[Any]:
        """Interpret ``program`` on the arrays ``operands``; return its outputs.

        Raises _OutOfPatienceError after ``limit`` equations.
        """
        values: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
        self.depth += 1
        for equation in program.equations:
            self.done += 1
            if self.done > self.limit:
                raise _OutOfPatienceError
            arguments = [array_of_atom(a, values) for a in equation.inputs]
            results = self.results(equation, arguments)
            values.update(zip(equation.outputs, results, strict=True))
        self.depth -= 1
        return [array_of_atom(a, values) for a in program.outputs]

    def results(self, equation: Equation, arguments: list[Any]) -> Sequence[Any]:
        """Return the results of one equation.

        ``arguments`` are the arrays of its inputs.
        """
        primitive, params = primitive_of(equation), equation.params
        if primitive.name == "while_loop":
            return self.while_loop(params, arguments)
        if primitive.name == "scan":
            return scan_reference(*arguments, **params, run=self.evaluate)
        if primitive.name == "cond":
            return cond_reference(*arguments, **params, run=self.evaluate)
        if isinstance(primitive.kernel, Body) and "body" in params:
            return self.evaluate(params["body"], arguments)
        return as_list(primitive.reference(*arguments, **params))

    def while_loop(self, params: Params, arguments: list[Any]) -> Sequence[Any]:
        """Interpret a while_loop; return the last carry.

        The carry of the outermost loop is stored in ``carry`` after each iteration.
        ``arguments`` are the arrays of the inputs: those that the condition reads,
        those that the body reads, the carry.
        """
        is_outermost = self.depth == 1
        consts = arguments[: params["cond_consts"] + params["body_consts"]]

        def keep(carry: list[Any]) -> None:
            """Store the operands with which the outermost loop continues."""
            if is_outermost:
                self.carry = [*consts, *carry]

        carry, _ = limited_while(*arguments, **params, run=self.evaluate, watch=keep)
        return carry


_interpreted: Counter[str] = Counter()
"""How many equations have been interpreted of each loop, by its Program's text."""


def _single_equation(
    primitive: Primitive, types: Iterable[ArrayType], params: Params
) -> Program:
    """Return the Program of one equation of ``primitive``, on operands of ``types``."""
    builder = ProgramBuilder(primitive.name)
    inputs = [builder.input(type) for type in types]
    return builder.build(builder.emit(primitive, inputs, params))


@functools.lru_cache(maxsize=_MAX_LOOPS)
def _executable(text: str) -> _Compiled:
    """Compile the Program with this text for the CPU; cached."""
    return _Compiled.of(parse_program(text, TABLE), choose("cpu"))


@KERNELS.on_change
def _forget_kernels(operator: str) -> None:
    """Drop what was compiled with the former kernels of ``operator``."""
    _device_cache.forget()


@forgets
def _forget() -> None:
    """Drop what was compiled for single operations and loops outside ``jit``."""
    _device_cache.forget()
    _interpreted.clear()
    _executable.cache_clear()
