"""Prints Programs as text, which ``text`` parses back.

program loss(w: f32[784,10], x: f32[128,784]) -> (f32[128,10]) {
  a: f32[128,10] = dot_general(x, w) {contract=((1,),(0,))}     # train.py:14
  return a
}
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Generator, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from arrayfn.dtypes import short_name

if TYPE_CHECKING:
    from arrayfn.ir import Atom, Equation, Program, Var

_COMMENT_COLUMN = 64  # where comments with source lines begin


def variable_names() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ..., without Python's keywords."""
    # Bijective base 26: the digits are a to z, and there is no zero.
    for number in count():
        name = ""
        while True:
            number, digit = divmod(number, 26)
            name = chr(ord("a") + digit) + name
            if number == 0:
                break
            number -= 1
        if name not in _RESERVED:
            yield name


# The keywords of Python and of the text form, and names that read as numbers.
_RESERVED = frozenset(
    {*keyword.kwlist, "program", "constants", "inf", "nan", "infj", "nanj"}
)


def format_program(program: Program, comments: bool = True) -> str:
    """Return the text of ``program``; ``comments`` adds each equation's source line."""
    column = _COMMENT_COLUMN if comments else None
    return "\n".join(_program_lines(program, "program ", column)) + "\n"


def format_equation(equation: Equation) -> str:
    """Return the text of ``equation`` alone, with its inputs called a, b, ..."""
    fresh = variable_names()
    names: dict[Any, str] = {}
    for atom in (*equation.inputs, *equation.outputs):
        if not hasattr(atom, "value") and atom not in names:  # no Literal
            names[atom] = next(fresh)
    lines = _equation_lines(equation, names, _COMMENT_COLUMN)
    return "\n".join(line[2:] for line in lines)


def equation_lines(program: Program) -> Iterator[tuple[int, Equation]]:
    """Yield (line number in ``format_program``, equation) for all equations.

    Lines are numbered from 1. Equations of nested Programs are included.
    """
    return _equation_lines_from(program, 1)


def _equation_lines_from(
    program: Program, head: int
) -> Generator[tuple[int, Equation], None, int]:
    """Yield (line number, equation) for all equations of ``program``, nested ones too.

    The Program's head is on line ``head``. The generator returns the number of the line
    after the Program's end.
    """
    line = head + 1
    for equation in program.equations:
        yield line, equation
        line += 1
        for value in equation.params.values():
            if _are_programs(value):
                line += 1  # the opening parenthesis
                for inner in value:
                    line = yield from _equation_lines_from(inner, line)
                line += 1
            elif type(value).__name__ == "Program":  # its module imports this one
                line = yield from _equation_lines_from(value, line)
    return line + 2  # after the lines of "return" and "}"


def name_vars(program: Program) -> dict[Var, str]:
    """Return the names that the printer gives to the Vars of ``program``.

    Inputs and constants have their hints as names, where these are identifiers and
    unique. All other Vars get a, b, c, ...
    """
    names: dict[Var, str] = {}
    taken: set[str] = set()
    fresh = (name for name in variable_names() if name not in taken)
    arguments = (*program.inputs, *program.constants)
    for var in arguments:
        # Python normalises identifiers by NFKC: names that look different can be the
        # same.
        name = unicodedata.normalize("NFKC", var.hint)
        if name.isidentifier() and name not in taken and name not in _RESERVED:
            names[var] = name
            taken.add(name)
    for var in arguments:
        if var not in names:
            names[var] = next(fresh)
    for equation in program.equations:
        for var in equation.outputs:
            names[var] = next(fresh)
    return names


def _program_lines(program: Program, keyword: str, column: int | None) -> list[str]:
    """Return the lines of a Program, with ``keyword`` before the Program's name.

    Comments of equations begin in ``column``; None leaves them out.
    """
    names = name_vars(program)
    inputs = ", ".join(f"{names[v]}: {v.type}" for v in program.inputs)
    constants = ", ".join(f"{names[v]}: {v.type}" for v in program.constants)
    results = ", ".join(str(a.type) for a in program.outputs)
    head = f"{keyword}{program.name}({inputs})"
    if constants:
        head += f" constants ({constants})"
    lines = [f"{head} -> ({results}) {{"]
    for equation in program.equations:
        lines += _equation_lines(equation, names, column)
    outputs = ", ".join(_atom(a, names) for a in program.outputs)
    lines += [f"  return {outputs}".rstrip(), "}"]
    return lines


def _equation_lines(
    equation: Equation, names: dict[Var, str], column: int | None
) -> list[str]:
    """Return the lines of an equation: one, and those of its nested Programs.

    ``names`` has the names of Vars. A comment begins in ``column``; None leaves it out.
    """
    outputs = ", ".join(f"{names[v]}: {v.type}" for v in equation.outputs)
    inputs = ", ".join(_atom(a, names) for a in equation.inputs)
    text = f"  {outputs} = {equation.primitive.name}({inputs})"
    plain, nested = [], []
    for key, value in equation.params.items():
        if type(value).__name__ == "Program" or _are_programs(value):
            nested.append((key, value))
        else:
            plain.append(f"{key}={format_param(value)}")
    if plain:
        text += " {" + ", ".join(plain) + "}"
    if column is not None and equation.source is not None:
        text = f"{text.ljust(column)}  # {equation.source}"
    lines = [text]
    for key, value in nested:
        if isinstance(value, tuple):
            lines.append(f"    {key} = (")
            for program in value:
                lines += _indented(program, "program ", indent=6, column=column)
                lines[-1] += ","
            lines.append("    )")
        else:
            head = f"{key} = program "
            lines += _indented(value, head, indent=4, column=column)
    return lines


def _indented(
    program: Program, keyword: str, indent: int, column: int | None
) -> list[str]:
    """Return a nested Program's lines, indented, with ``keyword`` before its name.

    Comments with source lines begin at ``column`` of the whole text; None omits them.
    """
    inner = None if column is None else column - indent
    return [" " * indent + line for line in _program_lines(program, keyword, inner)]


def _are_programs(value: Any) -> bool:
    """Whether ``value`` is a tuple of Programs, a class this module cannot import."""
    return isinstance(value, tuple) and type(next(iter(value), 0)).__name__ == "Program"


def _atom(atom: Atom, names: dict[Var, str]) -> str:
    """Return a Var's name, or a Literal as text, such as ``1.0:f32``."""
    if hasattr(atom, "value"):  # a Literal, whose module imports this one
        weak = "~" if atom.type.weak else ""
        value = format_param(atom.value)  # type: ignore[union-attr]
        return f"{value}:{weak}{short_name(atom.type.dtype)}"
    return names[atom]  # type: ignore[index]


def format_param(value: Any) -> str:
    """Return a parameter's value as text that ``ir.text`` parses back."""
    if isinstance(value, np.dtype):
        return short_name(value)
    if isinstance(value, tuple):
        inner = ",".join(format_param(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, np.generic):
        return repr(value.item())
    return repr(value)
