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
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
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
    NO_PARAMS,
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
from arrayfn.tracing.array_value import ArrayOnDevice
from arrayfn.tracing.frames import Captured, Frame, NamedAxis, current_frame
from arrayfn.tracing.keys import WORDS, Key, check_moved
from arrayfn.tracing.methods import namespace
from arrayfn.tracing.value import Tracer

Array = np.ndarray[Any, Any]


class Immediate:
    """Computes operations whose operands are known, in a later room.

    ``module`` is its name; it is imported when it is needed (see ``Computing``).
    ``inspect`` sees what was computed, and may raise; while it is set, Programs are
    computed one equation after the other.
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
        """The results of a shard_map, or of a primitive that holds a loop."""
        ...

    def compute_on_device(
        self, primitive: Primitive, operands: Sequence[Any], params: Params, /
    ) -> Sequence[Any]:
        """The results of a primitive with operands on a device (``device_of``)."""
        ...

    def run_on_device(
        self, program: Program, operands: Sequence[Any], /
    ) -> Sequence[Any]:
        """The outputs of a Program with operands or constants on a device."""
        ...


@cache
def _computing() -> Computing:
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


@dataclass(frozen=True)
class Trace:
    """The result of tracing.

    ``program`` takes the function's arguments and then the ``captured`` values.
    ``depends_on_frames`` says whether another call may give another Program, because
    values or named axes of enclosing traces went into it. ``inlined`` names operators
    without kernels that the function calls: their bodies were traced. ``asks_platform``
    says whether it is for one platform, ``asks_mesh`` for one mesh of ``set_mesh``.
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
    """Run ``function`` on one Tracer per type; its flat results make the Program.

    Messages call it ``name``, and so does the Program if that is an identifier;
    ``hints`` are names for its inputs. With ``values`` the Tracers carry them (None
    where one is unknown), unless the frame is ``abstract``. With ``constants`` captured
    arrays become the Program's constants at top level; inside another trace they do if
    the Program is to be ``whole`` and does not depend on that trace. For each of
    ``axes``, names and extents, there is one more input, the index of a member. If they
    are axes of ``mesh``, types may say what is ``varying`` along them. ``checks`` are
    those of ``jit``; ``platform`` is the backend that it compiles for. ``types_only``
    says that the Program is never run, and ``fixed`` which inputs do not depend on
    anything that a derivative is taken by (by default none).
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
    """Add the axis ``name`` to ``frame``, and the input that is a member's index in it.

    If it is an axis of a ``mesh``, and types say what is ``varying``, the index varies
    along it.
    """
    is_typed = mesh is not None and varying
    along = frozenset((name,)) if is_typed else UNVARYING
    index = frame.builder.input(ArrayType((), dtypes.int32, varying=along), name)
    tracer = Tracer(frame, index, None, location)
    frame.axes[name] = NamedAxis(size, tracer, mesh, is_typed)


def too_deep(name: str) -> NestingError:
    """The error for a function with more nested calls than Python's stack holds.

    ``name`` is that of the outermost function.
    """
    return NestingError(
        f"{name} calls functions inside functions, jitted ones perhaps, more deeply "
        f"than Python's stack holds ({sys.getrecursionlimit()} calls). Write the "
        "nesting as a loop (arrayfn.lax.fori_loop or scan), leave out jit of what is "
        "called inside jit, or raise the limit with sys.setrecursionlimit",
        user_location(),
    )


def _refused_inside(frame: Frame, error: Exception) -> ArrayfnError | None:
    """The refused conversion that is the cause of ``error``, or None.

    Other code raised ``error``. A refused conversion is its cause if the error passed
    the line that asked for the conversion.
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
    """``array`` as a Tracer with a value; ``array`` itself outside of traces.

    A Tracer can be indexed by other Tracers, and operations on it are staged.
    """
    frame = current_frame()
    if frame is None:
        return array
    return Tracer(frame, frame.atom(array), array, user_location())


def device_of(operands: Iterable[Any]) -> str:
    """The device that computes an operation on ``operands``; empty for NumPy.

    NumPy's arrays and numbers are computed where the others are. Raises ArgumentError
    for arrays on two devices.
    """
    found = ""
    for x in operands:
        if isinstance(x, ArrayOnDevice):
            if found and x.device != found:
                raise ArgumentError(
                    f"operands are on two devices, {found!r} and {x.device!r}; move "
                    f"one with x.to_device({found!r})",
                    user_location(),
                )
            found = x.device
    return found


def is_made_of_equations(operands: Sequence[Any]) -> bool:
    """Whether a function of ``operands`` must apply primitives, not call NumPy.

    That is so if one of them is staged, on a device, or a key.
    """
    return is_staged(operands) or _is_any((ArrayOnDevice, Key), operands)


def _is_any(cls: type | tuple[type, ...], operands: Sequence[Any]) -> bool:
    """Whether one of ``operands`` is an instance of ``cls``."""
    for x in operands:  # noqa: SIM110 - any() takes twice as long
        if isinstance(x, cls):
            return True
    return False


def apply(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Apply ``primitive`` to Tracers, arrays and scalars; the output or their tuple.

    Traces into the current frame, or computes at once: with the NumPy reference, or on
    the device where an operand is. NumPy integers and members of an ``IntEnum`` may be
    extents, axes and bounds among ``params``.
    """
    for name, value in params.items():
        if type(value) not in _PLAIN:
            params[name] = _plain(value)
    if Key in map(type, operands):
        return _applied_to_words(primitive, operands, params)
    frame = current_frame()
    # Effects keep their order.
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
    if primitive is discrete.eq:
        return parts[0] & parts[1]
    if primitive is discrete.ne:
        return parts[0] | parts[1]
    return Key(functions["stack"](parts, axis=-1))


def apply_program(
    program: Program, operands: Sequence[Any], once: bool = False
) -> list[Any]:
    """Inline ``program`` into the current trace, or compute it; returns its outputs.

    ``operands`` are Tracers and arrays. If the Program is applied only ``once``, its
    own equations may become part of the trace.
    """
    frame = current_frame() if is_staged(operands) else None
    if frame is not None and frame.abstract:
        return _inlined(frame, program, operands, once)
    is_whole = frame is None and Immediate.inspect is None
    if is_whole and device_of((*operands, *program.constant_values)):
        return list(_computing().run_on_device(program, operands))
    environment: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
    environment.update(zip(program.constants, program.constant_values, strict=True))
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
        results = result if isinstance(result, (tuple, list)) else (result,)
        environment.update(zip(equation.outputs, results, strict=True))
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
    """Emit the equations of ``program`` into ``frame``, where no value is known.

    Returns Tracers of its outputs. ``operands`` are its inputs; if it is applied only
    ``once``, its own equations become part of the trace, else copies.
    """
    values = (*operands, *program.constant_values)
    inputs = (*program.inputs, *program.constants)
    environment = {v: frame.atom(x) for v, x in zip(inputs, values, strict=True)}
    emit = frame.builder.take if once else frame.builder.replay
    for equation in program.equations:
        emit(equation, environment)
    location = user_location()
    return [
        Tracer(frame, rename(a, environment), None, location) for a in program.outputs
    ]


_PLAIN = frozenset(
    (int, bool, str, float, complex, type(None), Program, *map(type, dtypes.ALL))
)


def _plain(value: Any) -> Any:
    """The param ``value`` with plain Python numbers for NumPy's and subclasses."""
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
    """Append an equation of ``primitive`` to ``frame``; returns its Tracers.

    If all operands have values, the results are computed too.
    """
    atoms = tuple([frame.atom(x) for x in operands])
    types = primitive.result_types(atoms, params, location)
    outputs = tuple([Var(type) for type in types])
    kept = MappingProxyType(dict(params)) if params else NO_PARAMS
    equation = Equation(primitive, atoms, kept, outputs, location)
    frame.builder.equations.append(equation)
    # Side effects, also of a body, take place once: when the Program runs.
    unknown = frame.abstract or primitive.is_collective or has_effect(equation)
    known = None if unknown else _values(operands)
    if known is None:
        return tuple([Tracer(frame, var, None, location) for var in outputs])
    try:
        result = _results(primitive, known, params)
    except ArrayfnError as error:
        raise located(error, location) from None
    values = result if isinstance(result, (tuple, list)) else [result]
    return tuple(
        Tracer(frame, var, value, location)
        for var, value in zip(outputs, values, strict=True)
    )


def _lookup(atom: Atom, environment: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else environment[atom]


def _array(value: Any) -> Any:
    """Convert ``value``, an array, scalar or Literal, to an array."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, ArrayOnDevice):
        return value
    if isinstance(value, Literal):
        return np.asarray(value.value).astype(value.type.dtype)
    array = adopted(value)
    return array if isinstance(array, ArrayOnDevice) else np.asarray(array)


def _results(primitive: Primitive, arrays: Sequence[Any], params: Params) -> Any:
    """Compute the result, or results, of ``primitive`` on arrays."""
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
    """Compute ``primitive`` on arrays now; returns the result, or their tuple.

    Results do not share memory with operands.
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
    """``value`` as a row-major, writable array that nothing else refers to.

    It is a copy if its id is in ``taken``, which are arrays that others refer to.
    Arrays on a device are immutable and may be shared.
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
    """The arrays that Tracers and arrays hold; None if one is unknown."""
    values: list[Any] = []
    for x in operands:
        value = x.value if isinstance(x, Tracer) else x
        if value is None:
            return None
        values.append(_array(value))
    return values
