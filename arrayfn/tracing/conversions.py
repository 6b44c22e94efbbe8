"""Refuses implicit conversions of traced values to Python numbers.

``float(x)`` of a traced value gives a number without a derivative, as its author wants.
``a[0] = x`` into a NumPy array, ``math.sin(x)``, ``a.fill(x)`` and other C functions
ask for the same number, and their results would lose the derivative silently. They are
refused. C functions have no Python frame, so the frame that called them asks. Its
current instruction tells what it called. ``float(x)`` in the code of an installed
package is refused too: the user who differentiates through it cannot see it.
"""

from __future__ import annotations

import dis
import functools
import os
import sysconfig
import types
from pathlib import Path
from typing import Any, Final

from arrayfn.errors import (
    ArrayfnError,
    InPlaceError,
    TracedConversionError,
    user_location,
)
from arrayfn.records import frozen
from arrayfn.tracing.methods import namespace

_OWN: Final = str(Path(__file__).parents[1]) + os.sep
_STANDARD: Final = sysconfig.get_path("stdlib") + os.sep
_MODULES: Final = ("math", "cmath")
_OTHER_NAMES: Final = {
    "dist": "arrayfn.numpy.linalg.norm",
    "erf": "arrayfn.scipy.special.erf",
    "erfc": "arrayfn.scipy.special.erfc",
    "fabs": "arrayfn.numpy.abs",
    "fsum": "arrayfn.numpy.sum",
    "gamma": "arrayfn.scipy.special.gamma",
    "lgamma": "arrayfn.scipy.special.gammaln",
    "phase": "arrayfn.numpy.angle",
    "sumprod": "arrayfn.numpy.vdot",
}
"""Functions of ``math`` and ``cmath`` that arrayfn has under another name."""
_NO_COUNTERPART: Final = ("remainder",)  # NumPy's is another function


def refused_conversion(frame: types.FrameType) -> ArrayfnError | None:
    """Return the error for a line that converts a traced value to a number implicitly.

    ``frame`` is the Python frame that asks for the number; its current instruction
    tells why. Returns None for explicit conversions, which are allowed: calls of
    ``int``, ``float``, ``complex`` or a subclass (of the latter two only outside of
    installed packages), ``x.__float__()``, and ``"%f" % x``. An assignment to an
    element of an array gives an InPlaceError, all else a TracedConversionError.
    """
    at = _instruction(frame.f_code, frame.f_lasti)
    if at.is_formatting:
        return None
    if at.is_assignment:
        return InPlaceError(
            "a traced value is assigned to an element of an array, where it would be a "
            "plain number, without a derivative. Make the array by functions: "
            "arrayfn.numpy.stack of the elements, or "
            "arrayfn.numpy.asarray(a).at[index].set(x)",
            user_location(),
        )
    called = _value(at.callee, frame)
    if isinstance(called, type) and issubclass(called, (int, float, complex)):
        # An integer changes by steps, so its derivative is 0, and nothing is lost.
        if issubclass(called, int) or not _is_installed(frame.f_code.co_filename):
            return None
        return TracedConversionError(_hidden(called.__name__, frame), user_location())
    if at.callee[-1:] in (("__float__",), ("__complex__",)):
        return None
    return TracedConversionError(_refusal(at.callee, called), user_location())


def _refusal(callee: tuple[str, ...], called: object) -> str:
    """Explain why a conversion is refused, and what to write instead.

    ``called`` is the function to which the traced value was passed, or None if it is
    not known. ``callee`` is the function's dotted name in the caller's text, split at
    the dots; empty if it is not known.
    """
    module = getattr(called, "__module__", None)
    if isinstance(called, types.BuiltinFunctionType) and module in _MODULES:
        who = f"{module}.{called.__name__}"
        instead = _counterpart(called.__name__)
        use = f"Use {instead}, or " if instead else "Use "
        use += f"{who}(float(x)) if the number alone is meant"
    else:
        who = f"{'.'.join(callee)}, or what it calls," if callee else "what is called"
        use = (
            "Use functions of arrayfn.numpy, which take traced values, or write "
            "float(x) where the number alone is meant"
        )
    return (
        f"{who} takes the plain number of a traced value, and what it makes of that "
        f"has no derivative. {use}"
    )


@functools.lru_cache(maxsize=1024)
def _is_installed(file: str) -> bool:
    """Whether ``file`` is part of an installed package or of Python itself.

    arrayfn's own files are not: in ``jit(float)``, arrayfn calls ``float`` for the
    user.
    """
    if file.startswith(_OWN):
        return False
    return "-packages" + os.sep in file or file.startswith(_STANDARD)


def _hidden(kind: str, frame: types.FrameType) -> str:
    """Explain why a conversion inside an installed package is refused.

    ``kind`` is what the traced value was converted to, as "float"; ``frame`` is the
    package's function that did it.
    """
    return (
        f"{kind}(x) in {frame.f_code.co_qualname} ({frame.f_code.co_filename}, line "
        f"{frame.f_lineno}) takes the plain number of a traced value, and what is made "
        "of that has no derivative. Write the function with arrayfn.numpy, or pass it "
        "x.value if the number alone is meant"
    )


def _counterpart(name: str) -> str:
    """Return arrayfn's name for the function ``name`` of ``math`` or ``cmath``.

    The name is empty if arrayfn has no such function.
    """
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    if name not in _NO_COUNTERPART and hasattr(namespace().module, name):
        return f"arrayfn.numpy.{name}"
    return ""


def is_discarded(frame: types.FrameType) -> bool:
    """Whether ``frame`` discards the result of the function that it is calling.

    The bytecode then pops the result off the stack.
    """
    return _follows(frame.f_code, frame.f_lasti) == "POP_TOP"


@functools.lru_cache(maxsize=1024)
def _follows(code: types.CodeType, offset: int) -> str:
    """Return the name of the instruction that follows the one at byte ``offset``."""
    rest = (at for at in dis.get_instructions(code) if at.offset > offset)
    return next(rest).opname


@frozen(slots=True)
class _Instruction:
    """What a Python frame is executing.

    Attributes:
        callee: the dotted name of the function that it calls, split at the dots; empty
            if it calls none, or something that is no name.
        is_assignment: whether it assigns to ``a[i]``.
        is_formatting: whether it computes ``text % values``.
    """

    callee: tuple[str, ...] = ()
    is_assignment: bool = False
    is_formatting: bool = False


@functools.lru_cache(maxsize=1024)
def _instruction(code: types.CodeType, offset: int) -> _Instruction:
    """Describe the instruction of ``code`` at byte ``offset``."""
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        before.append(instruction)
    at = before.pop()
    if at.opname == "STORE_SUBSCR":
        return _Instruction(is_assignment=True)
    if at.opname == "BINARY_OP":
        return _Instruction(is_formatting=at.argrepr in ("%", "%="))
    if at.opname.startswith(("CALL", "PRECALL")):
        return _Instruction(callee=_callee(code, at, before))
    return _Instruction()


def _callee(
    code: types.CodeType, call: dis.Instruction, before: list[dis.Instruction]
) -> tuple[str, ...]:
    """Return the dotted name that ``call`` calls, split at the dots.

    ``before`` are the instructions before the call, in order. The text of a call begins
    with the name. So of the instructions inside the call's text, those that begin first
    in the text load the name: for ``np.sin(x)``, the loads of ``np`` and of ``np.sin``.
    Parts of a dotted name that are on lines of their own begin there.

    The result is empty if something else than a name is called.
    """
    begin, end = _begin(call), _end(call)
    if begin is None or end is None:
        # No positions (python -X no_debug_ranges): allow the conversion, as a call of
        # ``float``, if the code has such a name.
        return ("float",) if {"float", "complex"} & {*code.co_names} else ()
    loads = [at for at in before if at.opname not in _SKIPPED]
    inside = {
        k: where
        for k, at in enumerate(loads)
        if (where := _begin(at)) and (until := _end(at))
        if begin <= where and until <= end and (where, until) != (begin, end)
    }
    # The instruction that begins first in the text, and of several the last one. This
    # also chooses the last copy of a loop's condition, which is compiled twice: the
    # last one runs.
    last = max(inside, key=lambda k: ((-inside[k][0], -inside[k][1]), k), default=None)
    if last is None:
        return ()
    # Extend to all parts of the dotted name: the load of a name, then of attributes.
    first = last
    while last + 1 < len(loads) and loads[last + 1].opname in _ATTRIBUTES:
        last += 1
    while first and loads[first].opname in _ATTRIBUTES:
        first -= 1
    name, *parts = loads[first : last + 1]
    if not name.opname.startswith(_NAMES):
        return ()
    return (str(name.argval), *(str(part.argval) for part in parts))


_SKIPPED: Final = ("PUSH_NULL", "EXTENDED_ARG", "CACHE")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_NAMES: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


def _begin(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return (line, column) where an instruction's source begins; None if unknown."""
    where = instruction.positions
    if where is None or where.lineno is None or where.col_offset is None:
        return None
    return where.lineno, where.col_offset


def _end(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return (line, column) where an instruction's source ends; None if unknown."""
    where = instruction.positions
    if where is None or where.end_lineno is None or where.end_col_offset is None:
        return None
    return where.end_lineno, where.end_col_offset


def _value(name: tuple[str, ...], frame: types.FrameType) -> object:
    """Return the value of a dotted name in ``frame``; None if it cannot be found.

    ``name`` is split at the dots. Looks in local, global and built-in names.
    """
    if not name:
        return None
    first, *rest = name
    scopes: tuple[dict[str, Any], ...] = (
        frame.f_locals,
        frame.f_globals,
        frame.f_builtins,
    )
    for scope in scopes:
        if first in scope:
            value: object = scope[first]
            break
    else:
        return None
    for part in rest:
        value = getattr(value, part, None)
    return value
