"""Conversions of traced values to Python numbers that are not meant as such.

``float(x)`` of a traced value is a number, without a derivative; who writes it wants
that. ``a[0] = x`` into a NumPy array, and ``math.sin(x)``, ask for the same number, and
what they compute would be cut off from the derivative without a word: they are refused.
Which of them it is, is told by the instruction that the caller is at, and for a call by
its source text.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import opcode
import types
from typing import Final

from arrayfn.errors import InPlaceError, TracedConversionError, user_location

_MODULES: Final = ("math", "cmath")


def check_conversion(frame: types.FrameType) -> None:
    """Raise an error if ``frame``, which asks for a number, did not say so.

    Raises InPlaceError for an assignment to an element of an array, and
    TracedConversionError for a function of ``math`` or ``cmath``.
    """
    found = _instruction(frame.f_code, frame.f_lasti)
    if found is None:
        return
    if not found:
        raise InPlaceError(
            "a traced value is assigned to an element of an array, where it would be a "
            "plain number, without a derivative. Make the array by functions: "
            "arrayfn.numpy.stack of the elements, or "
            "arrayfn.numpy.asarray(a).at[index].set(x)",
            user_location(),
        )
    function = _value(found, frame)
    if isinstance(function, types.BuiltinFunctionType) and (
        function.__module__ in _MODULES
    ):
        raise TracedConversionError(
            f"{function.__module__}.{function.__name__} takes the plain number of a "
            "traced value, and gives one without a derivative. Use "
            f"arrayfn.numpy.{function.__name__}, or {function.__module__}."
            f"{function.__name__}(float(x)) if the number alone is meant",
            user_location(),
        )


@functools.lru_cache(maxsize=1024)
def _instruction(code: types.CodeType, place: int) -> tuple[str, ...] | None:
    """The name of the function that is called at ``place``, in parts.

    Empty for an assignment to an element, None for anything else.
    """
    name = opcode.opname[code.co_code[place]]
    if name == "STORE_SUBSCR":
        return ()
    if not name.startswith("CALL"):
        return None
    lines = linecache.getlines(code.co_filename)
    for position, where in enumerate(code.co_positions()):
        if 2 * position == place:
            return _callee(lines, *where)
    return None


def _callee(
    lines: list[str],
    first: int | None,
    last: int | None,
    begin: int | None,
    end: int | None,
) -> tuple[str, ...] | None:
    """The dotted name that a call at this place in the source has in front."""
    if first is None or last is None or begin is None or end is None:
        return None
    chosen = [line.encode() for line in lines[first - 1 : last]]
    if not chosen:
        return None
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][begin:]
    try:
        call = ast.parse(b"(" + b"".join(chosen) + b")", mode="eval").body
    except SyntaxError:
        return None
    node = call.func if isinstance(call, ast.Call) else None
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


def _value(name: tuple[str, ...], frame: types.FrameType) -> object:
    """What a dotted name stands for in ``frame``; None if that cannot be told."""
    first, *rest = name
    for scope in (frame.f_locals, frame.f_globals, vars(builtins)):
        if first in scope:
            value: object = scope[first]
            break
    else:
        return None
    for part in rest:
        value = getattr(value, part, None)
    return value
