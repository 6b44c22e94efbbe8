"""Tracing: running a Python function on Tracers, to get its Program.

A Tracer stands for a value of the Program being traced (its *frame*, see ``frames``).
Under ``jit`` it is abstract and has only a type. Outside ``jit``, ``grad`` and other
transformations trace with values: the Tracer has its concrete array, too, so that
``print(x)``, ``float(x)`` and ``if x > 0:`` work. Captured values of the function
become inputs of its Program (see ``Trace.captured``).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol, cast

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    NestingError,
    SourceLocation,
    located,
    user_location,
)
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    Mesh,
    Params,
    Program,
    Var,
    programs_in,
    type_of,
)
from arrayfn.ir.builder import rename
from arrayfn.ir.sharding import UNVARYING
from arrayfn.primitives import discrete
from arrayfn.primitives.base import Primitive, has_effect, primitive_of
from arrayfn.primitives.rules import as_list
from arrayfn.records import frozen
from arrayfn.tracing.array_value import ArrayOnDevice
from arrayfn.tracing.frames import Captured, Frame, NamedAxis, current_frame
from arrayfn.tracing.keys import WORDS, Key, check_moved
from arrayfn.tracing.methods import namespace
from arrayfn.tracing.value import Tracer

Array = np.ndarray[Any, Any]


class Immediate:
    """Settings for operations that are computed at once, because operands are known.

    Attributes:
        module: the name of the module that computes what NumPy's references cannot (see
            ``Computing``). It imports this package, so it is imported when needed.
        inspect: is called with primitive, operands, params and results of each
            operation, and may raise. While it is set, Programs are computed one
            equation after the other.
    """

    module: ClassVar[str]
    inspect: ClassVar[
        Callable[[Primitive, Sequence[Any], Params, Any], None] | None
    ] = None


class Computing(Protocol):
    """The functions of the module ``Immediate.module``."""

    def compute(
        self, primitive: Primitive, arrays: Sequence[Array], params: Params, /
    ) -> Sequence[Array]:
        """Return the results of a shard_map, or of a primitive that holds a loop."""
        ...

    def compute_on_device(
        self, primitive: Primitive, operands: Sequence[Any], params: Params, /
    ) -> Sequence[Any]:
        """Return the results of a primitive with operands on a device."""
        ...

    def run_on_device(
        self, program: Program, operands: Sequence[Any], /
    ) -> Sequence[Any]:
        """Return the outputs of a Program with operands or constants on a device."""
        ...


@cache
def _computing() -> Computing:
    """Import the module ``Immediate.module``."""
    return cast(Any, import_module(Immediate.module))


_LOOPS: Final = ("scan", "while_loop", "while_linear")


def _has_loop(primitive: Primitive, params: Params) -> bool:
    """Whether ``primitive`` is a loop, or a Program in it has one."""
    if primitive.name in _LOOPS:
        return True
    inner = programs_in(params)
    return bool(inner) and any(
        _has_loop(primitive_of(equation), equation.params)
        for program in inner
        for equation in program.equations
    )


_FROM_REFUSALS: Final = TypeError, ValueError, IndexError, SystemError, AttributeError
"""What other code makes of a refused conversion.

The last two are Python's own: compiled code went on with the error set.
"""


@frozen
class Trace:
    """The result of tracing.

    Attributes:
        program: takes the function's arguments, then the ``captured`` values.
        captured: values that the function uses from outside of it.
        depends_on_frames: whether another call may give another Program, because
            values or named axes of enclosing traces are part of it.
        inlined: the names of operators that the function calls and whose bodies were
            traced, because they have no kernels.
        asks_platform: whether the Program is for one platform.
        asks_mesh: whether the Program is for one mesh of ``set_mesh``.
    """

    program: Program
    captured: tuple[Captured, ...]
    depends_on_frames: bool = False
    inlined: frozenset[str] = frozenset()
    asks_platform: bool = False
    asks_mesh: bool = False


def trace(
    function: Callable[..., Sequence[Any]],
    types: Sequence[ArrayType],
    *,
    name: str,
    hints: Sequence[str] | None = None,
    values: Sequence[Any] | None = None,
    abstract: bool = True,
    axes: Mapping[str, int] | None = None,
    constants: bool = True,
    checks: frozenset[str] = frozenset(),
    whole: bool = False,
    mesh: Mesh | None = None,
    varying: bool = True,
    platform: str = "",
    types_only: bool = False,
    fixed: Sequence[bool] = (),
) -> Trace:
    """Run ``function`` on Tracers, and return the Program of what it does.

    Args:
        function: takes one Tracer for each of ``types``, and returns a flat list of
            results, the outputs of the Program.
        types: the types of the inputs.
        name: the function's name in messages, and of the Program if it is an
            identifier.
        hints: names for the inputs.
        values: the inputs' arrays, which the Tracers carry; None where one is unknown.
            They are ignored if the frame is abstract.
        abstract: whether every operation is staged, and values are unknown.
        axes: the extents of named axes that the function is mapped along. For each
            there is one more input, the index of a member.
        constants: whether captured arrays become constants of the Program, if nothing
            of an enclosing trace is captured. Inside another trace they do only if the
            Program is ``whole``.
        checks: the checks of ``jit``.
        whole: whether the Program is used by itself, and not inlined into an enclosing
            trace.
        mesh: the mesh that ``axes`` are axes of, or None.
        varying: whether types say what varies along axes of ``mesh``.
        platform: the backend that the function is compiled for.
        types_only: whether the Program is never run.
        fixed: for each input, whether it does not depend on anything that a derivative
            is taken by; by default none is fixed.

    Raises the errors of the function. If other code replaced the error of a refused
    conversion of a traced value by its own, that error is raised instead.
    """
    parent = current_frame()
    frame = Frame(name, abstract, parent, checks, platform, types_only)
    location = user_location()
    tracers = [
        Tracer(
            frame,
            frame.builder.input(type, hints[position] if hints else ""),
            None if values is None or frame.abstract else values[position],
            location,
        )
        for position, type in enumerate(types)
    ]
    frame.fixed.update(itertools.compress((x.atom for x in tracers), fixed))
    for axis, size in (axes or {}).items():
        _add_named_axis(frame, axis, size, mesh, varying, location)
    with frame.entered():
        try:
            results = function(*tracers)
        except _FROM_REFUSALS as error:
            refused = _refused_inside(frame, error)
            if refused is None:
                raise
            raise refused from error
        except RecursionError as error:
            if parent is not None or isinstance(error, ArrayfnError):
                raise
            raise too_deep(name) from error
        outputs = [frame.atom(x) for x in results]
    captured = frame.captured
    depends = frame.uses_outer_axis or any(isinstance(v, Tracer) for v, _ in captured)
    if constants and not depends and (parent is None or whole):
        for value, var in captured:
            frame.builder.adopt_constant(var, value)
        captured = []
    frame.builder.inputs += [var for _, var in captured]
    return Trace(
        frame.builder.build(outputs),
        tuple(value for value, _ in captured),
        depends_on_frames=depends,
        inlined=frozenset(frame.inlined),
        asks_platform=frame.asks_platform,
        asks_mesh=frame.asks_mesh,
    )


def _add_named_axis(
    frame: Frame,
    name: str,
    size: int,
    mesh: Mesh | None,
    varying: bool,
    location: SourceLocation | None,
) -> None:
    """Add the axis ``name`` to ``frame``, and an input for a member's index along it.

    If it is an axis of a ``mesh``, and types say what is ``varying``, the index varies
    along the axis.
    """
    is_typed = mesh is not None and varying
    along = frozenset((name,)) if is_typed else UNVARYING
    index = frame.builder.input(ArrayType((), dtypes.int32, varying=along), name)
    tracer = Tracer(frame, index, value=None, location=location)
    frame.axes[name] = NamedAxis(size, tracer, mesh, is_typed)


def too_deep(name: str) -> NestingError:
    """Return the error for a function with more nested calls than Python's stack holds.

    ``name`` is the name of the outermost function.
    """
    return NestingError(
        f"{name} calls functions inside functions, jitted ones perhaps, more deeply "
        f"than Python's stack holds ({sys.getrecursionlimit()} calls). Write the "
        "nesting as a loop (arrayfn.lax.fori_loop or scan), leave out jit of what is "
        "called inside jit, or raise the limit with sys.setrecursionlimit",
        user_location(),
    )


def _refused_inside(frame: Frame, error: Exception) -> ArrayfnError | None:
    """Return the error of a refused conversion that caused ``error``, or None.

    NumPy and other C code may catch our error and raise another one, ``error``. The
    refused conversion is its cause if the traceback of ``error`` contains the line that
    asked for the conversion.
    """
    refused, place = frame.refused, error.__traceback__
    if refused is None or isinstance(error, ArrayfnError):
        return None
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        if (file, place.tb_lineno) == (refused.file, refused.line):
            return refused.error
        place = place.tb_next
    return None


def is_staged(operands: Sequence[Any]) -> bool:
    """Whether an operation on ``operands`` is traced, rather than computed at once."""
    frame = current_frame()
    if frame is None:
        return False
    if not frame.abstract:
        return _is_any(Tracer, operands)
    return True


def constant(array: Array) -> Any:
    """Return ``array`` as a Tracer with a value, or ``array`` outside of traces.

    Unlike a NumPy array, a Tracer can be indexed by other Tracers, and operations on it
    are staged.
    """
    frame = current_frame()
    if frame is None:
        return array
    return Tracer(frame, frame.atom(array), array, user_location())


def device_of(operands: Iterable[Any]) -> str:
    """Return the device that computes an operation on ``operands``; empty for NumPy.

    It is the device of the arrays that are on one; NumPy arrays and numbers may be
    among them. Raises ArgumentError for arrays on two devices.
    """
    device = ""
    for x in operands:
        if isinstance(x, ArrayOnDevice):
            if device and x.device != device:
                raise ArgumentError(
                    f"operands are on two devices, {device!r} and {x.device!r}; move "
                    f"one with x.to_device({device!r})",
                    user_location(),
                )
            device = x.device
    return device


def is_made_of_equations(operands: Sequence[Any]) -> bool:
    """Whether a function of ``operands`` must apply primitives, not call NumPy.

    It must if the operation is staged, or if an operand is on a device, a key or a
    Tracer. Outside of traces, a Tracer is one that was stored: the primitive raises
    TracerLeakError.
    """
    return is_staged(operands) or _is_any((ArrayOnDevice, Key, Tracer), operands)


def _is_any(cls: type | tuple[type, ...], operands: Sequence[Any]) -> bool:
    """Whether one of ``operands`` is an instance of ``cls``."""
    for x in operands:  # noqa: SIM110 - any() takes twice as long
        if isinstance(x, cls):
            return True
    return False


def apply(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Apply ``primitive`` to Tracers, arrays and scalars; return its output or outputs.

    Stages an equation in the current frame, or computes at once: by the NumPy
    reference, or on the device where an operand is. Params may contain NumPy integers
    and members of an ``IntEnum``, which become ints. Keys are handled word by word.
    """
    for name, value in params.items():
        if type(value) not in _PLAIN:
            params[name] = _plain(value)
    if Key in map(type, operands):
        return _applied_to_words(primitive, operands, params)
    frame = current_frame()
    # Effects are staged even without traced operands, so that they keep their order.
    if frame is None or not (
        primitive.effect or primitive.is_collective or is_staged(operands)
    ):
        return _compute(primitive, operands, params)
    tracers = _stage(frame, primitive, operands, params, user_location())
    return tracers[0] if len(tracers) == 1 else tracers


def _applied_to_words(
    primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]
) -> Any:
    """Apply a primitive that moves or compares random keys to each of their words.

    The result is an array of keys, or for ``eq`` and ``ne`` an array of bools.
    """
    check_moved(primitive, operands)
    functions = namespace().functions
    parts: list[Any] = []
    for k in range(WORDS):
        words = [
            functions["getitem"](x.data, (..., k)) if isinstance(x, Key) else x
            for x in operands
        ]
        parts.append(apply(primitive, *words, **params))
    # Keys are equal if both of their words are.
    if primitive is discrete.eq:
        return parts[0] & parts[1]
    if primitive is discrete.ne:
        return parts[0] | parts[1]
    return Key(functions["stack"](parts, axis=-1))


def apply_program(
    program: Program, operands: Sequence[Any], once: bool = False
) -> list[Any]:
    """Inline ``program`` into the current trace, or compute it; return its outputs.

    ``operands`` are Tracers and arrays. If the Program is applied only ``once``, its
    own Equation objects may become part of the trace, else copies do. Computed outputs
    share no memory with operands and constants.
    """
    frame = current_frame() if is_staged(operands) else None
    if frame is not None and frame.abstract:
        return _inlined(frame, program, operands, once)
    is_whole = frame is None and Immediate.inspect is None
    if is_whole and device_of((*operands, *program.constant_values)):
        return list(_computing().run_on_device(program, operands))
    environment: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
    environment.update(program.constant_pairs())
    for equation in program.equations:
        arguments = [_lookup(a, environment) for a in equation.inputs]
        primitive = primitive_of(equation)
        if frame is None:
            arrays = [_array(x) for x in arguments]
            try:
                result = _results(primitive, arrays, equation.params)
            except ArrayfnError as error:
                raise located(error, equation.source) from None
        else:
            result = _stage(
                frame, primitive, arguments, equation.params, equation.source
            )
        environment.update(zip(equation.outputs, as_list(result), strict=True))
    outputs = [_lookup(a, environment) for a in program.outputs]
    if frame is not None:
        return [_array(x) if isinstance(x, Literal) else x for x in outputs]
    taken = {id(x) for x in (*operands, *program.constant_values)}
    owned: list[Any] = []
    for output in outputs:
        array = owned_copy(_array(output), taken)
        taken.add(id(array))
        owned.append(array)
    return owned


def _inlined(
    frame: Frame, program: Program, operands: Sequence[Any], once: bool
) -> list[Any]:
    """Emit the equations of ``program`` on ``operands`` into an abstract ``frame``.

    Returns Tracers of the outputs. If the Program is applied only ``once``, its own
    Equation objects become part of the trace, else copies do.
    """
    values = (*operands, *program.constant_values)
    inputs = (*program.inputs, *program.constants)
    environment = {v: frame.atom(x) for v, x in zip(inputs, values, strict=True)}
    emit = frame.builder.take if once else frame.builder.replay
    for equation in program.equations:
        emit(equation, environment)
    location = user_location()
    return [
        Tracer(frame, rename(a, environment), value=None, location=location)
        for a in program.outputs
    ]


_PLAIN = frozenset(
    (int, bool, str, float, complex, type(None), Program, *map(type, dtypes.ALL))
)


def _plain(value: Any) -> Any:
    """Replace NumPy scalars and subclasses of numbers in a param by Python numbers.

    Also replaces them inside tuples, at any depth.
    """
    if type(value) is tuple:
        for entry in value:
            if type(entry) not in _PLAIN:
                return tuple([x if type(x) in _PLAIN else _plain(x) for x in value])
        return value
    if isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim):
        return value.item()
    return dtypes.plain_scalar(value) if dtypes.is_python_scalar(value) else value


def _stage(
    frame: Frame,
    primitive: Primitive,
    operands: Sequence[Any],
    params: Any,
    location: SourceLocation | None,
) -> tuple[Any, ...]:
    """Append an equation of ``primitive`` to ``frame``; return Tracers of its outputs.

    If the frame is not abstract and all operands have values, the values of the outputs
    are computed too, except of collectives and of equations with side effects.
    """
    atoms = tuple([frame.atom(x) for x in operands])
    equation = Equation.infer(primitive, atoms, params, location)
    outputs = equation.outputs
    frame.builder.equations.append(equation)
    # Side effects, also of a body, take place once: when the Program runs.
    unknown = frame.abstract or primitive.is_collective or has_effect(equation)
    known = None if unknown else _values(operands)
    if known is None:
        return tuple(
            [Tracer(frame, var, value=None, location=location) for var in outputs]
        )
    try:
        result = _results(primitive, known, params)
    except ArrayfnError as error:
        raise located(error, location) from None
    return tuple(
        Tracer(frame, var, value, location)
        for var, value in zip(outputs, as_list(result), strict=True)
    )


def _lookup(atom: Atom, environment: dict[Var, Any]) -> Any:
    """Return the value of a Var in ``environment``, and a Literal itself."""
    return atom if isinstance(atom, Literal) else environment[atom]


def _array(value: Any) -> Any:
    """Convert ``value``, an array, scalar or Literal, to a NumPy array.

    Arrays on a device, also of other libraries, are not copied to the host. The NumPy
    array has the native byte order.
    """
    if type(value) is np.ndarray:
        if value.dtype.isnative:
            return value
        return value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, ArrayOnDevice):
        return value
    if isinstance(value, Literal):
        return np.asarray(value.value).astype(value.type.dtype)
    array = adopted(value)
    return array if isinstance(array, ArrayOnDevice) else np.asarray(array)


def _results(primitive: Primitive, arrays: Sequence[Any], params: Params) -> Any:
    """Compute the result of ``primitive`` on arrays; a tuple of several.

    Arrays on a device are computed there, loops and shard_maps by
    ``Immediate.module``, and all else by the NumPy reference. Calls
    ``Immediate.inspect`` with the results.
    """
    if _is_any(ArrayOnDevice, arrays):
        outputs = _computing().compute_on_device(primitive, arrays, params)
        results = outputs[0] if len(outputs) == 1 else tuple(outputs)
    # Loops hold their Programs in params.
    elif params and (primitive.name == "shard_map" or _has_loop(primitive, params)):
        results = tuple(_computing().compute(primitive, arrays, params))
    else:
        results = primitive.reference(*arrays, **params)
    if Immediate.inspect is not None:
        Immediate.inspect(primitive, arrays, params, results)
    return results


def _compute(primitive: Primitive, operands: Sequence[Any], params: Any) -> Any:
    """Compute ``primitive`` on arrays at once; return the result or a tuple of several.

    Results do not share memory with operands. Errors of the type rule and of the
    reference get the user's line. Raises TracerLeakError if an operand is a Tracer of a
    function that has returned.
    """
    for operand in operands:
        if isinstance(operand, Tracer):
            operand.check_alive(None)
    arrays = [_array(x) for x in operands]
    types = [type_of(a) for a in arrays]
    try:
        primitive.types(*types, **params)
    except ArrayfnError as error:
        if error.location is None:
            raise type(error)(str(error), user_location()) from None
        raise
    try:
        result = _results(primitive, arrays, params)
    except ArrayfnError as error:
        raise located(error, user_location()) from None
    taken = {id(a) for a in arrays}
    if isinstance(result, (tuple, list)):
        return tuple(owned_copy(x, taken) for x in result)
    return owned_copy(result, taken)


def owned_copy(value: Any, taken: Container[int] = ()) -> Any:
    """Return ``value`` as a row-major, writable array that owns its memory.

    Copies ``value`` if it is not so, or if its id is in ``taken``, the ids of arrays
    that something else refers to. Arrays on a device are immutable, so they are
    returned as they are.
    """
    if isinstance(value, ArrayOnDevice):
        return value
    array = np.asarray(value)
    flags = array.flags
    free = array.base is None and id(array) not in taken
    if free and flags.c_contiguous and flags.writeable:
        return array
    return np.array(array, order="C")


def _values(operands: Sequence[Any]) -> list[Any] | None:
    """Return the arrays of ``operands``, Tracers and arrays; None if one is unknown."""
    values: list[Any] = []
    for x in operands:
        value = x.value if isinstance(x, Tracer) else x
        if value is None:
            return None
        values.append(_array(value))
    return values
