"""Parses the text form of Programs, which ``format`` prints.

``parse_program(format_program(p), table)`` gives a Program that prints as ``p`` does
and means the same. Text is data, and parsing runs none of it. White space and comments
only separate, but a comment ``# file:line`` on an equation's line gives its source. The
grammar:

    program  = "program" name "(" typed ")" ["constants" "(" typed ")"] "->" types body
    body     = "{" equation* "return" [operand ("," operand)*] "}"
    equation = typed "=" name "(" operands ")" ["{" params "}"] (name "=" nested)*
    nested   = program | "(" program ("," program)* ")"
    typed    = [name ":" type ("," name ":" type)*]
    type     = ["~"] dtype "[" extents "]" ["F" | "S" "(" strides ")"]
    operand  = name | number ":" ["~"] dtype
    param    = name "=" (number | string | "None" | dtype | "(" values ")")
"""

from __future__ import annotations

import ast
import difflib
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import BY_SHORT_NAME, DType, short_name
from arrayfn.errors import ArrayfnError, ProgramError, SourceLocation
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    PrimitiveRow,
    Program,
    Var,
    type_of,
)
from arrayfn.ir import layout as layouts
from arrayfn.ir.format import format_program
from arrayfn.ir.layout import Layout
from arrayfn.ir.sharding import UNVARYING, Mesh, NamedSharding, PartitionSpec
from arrayfn.records import frozen

__all__ = ["format_program", "parse_program", "tokens"]

T = TypeVar("T")

_NUMBER = r"(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?:inf|nan)(?=j|\b))"
_TOKEN: Final = re.compile(
    rf"""
      (?P<space>[ \t\n]+)
    | (?P<comment>\#[^\n]*)
    | (?P<complex>\([+-]?{_NUMBER}[+-]{_NUMBER}j\)|[+-]?{_NUMBER}j\b)
    | (?P<arrow>->)
    | (?P<number>[+-]?{_NUMBER}(?!\w))
    | (?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    | (?P<name>[^\W\d]\w*)
    | (?P<mark>[()\[\]{{}},:=~])
    """,
    re.VERBOSE,
)
_CALLS: Final = {"Mesh": Mesh, "P": PartitionSpec, "NamedSharding": NamedSharding}
_WORDS: Final[dict[str, bool | None]] = {"True": True, "False": False, "None": None}
_MAX_DEPTH = 64  # of nested Programs and tuples, well within the stack
# What a type rule raises when its params do not have the form it expects.
MISFITS: Final = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
_MAX_BYTES: Final = 2**63 - 1  # of an array


def parse_program(
    text: str,
    table: Mapping[str, PrimitiveRow],
    constants: Sequence[np.ndarray[Any, Any]] = (),
    *,
    keep_names: bool = True,
) -> Program:
    """Parse ``text`` to a Program, and check the types of its equations.

    ``table`` has the primitives by name; ``constants`` are the arrays of the Program's
    constants, in order. With ``keep_names``, the hints of the Vars are the names in the
    text; without, they are empty. Raises ProgramError, with the line, if the text is
    malformed or describes no Program.
    """
    parser = _Parser(text, table, keep_names)
    program = parser.program(tuple(constants))
    parser.expect_end()
    return program


@frozen(slots=True)
class _Token:
    """A word, number or sign of the text, with its line and its offset in the text.

    ``kind`` is the name of a group of ``_TOKEN``, or "end" after the last token.
    """

    kind: str
    text: str
    line: int
    offset: int = 0  # of its first character in the text


def tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of the text of a Program, without spaces and comments."""
    return (t for t in _tokens(text) if t.kind not in ("space", "comment"))


def _tokens(text: str) -> Iterator[_Token]:
    """Yield all tokens of ``text``, with spaces and comments.

    Raises ProgramError, with the line, for text that is no token, for control
    characters, and for names that are not in Python's normal form.
    """
    line, offset = 1, 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise ProgramError(
                f"line {line}: cannot read {text[offset : offset + 20]!r}"
            )
        kind, word = str(match.lastgroup), match.group()
        if not word.isprintable() and kind != "space":
            # If the Program is printed again, it could end a comment or a line.
            raise ProgramError(f"line {line}: a control character in {word!r}")
        if kind == "name" and word != unicodedata.normalize("NFKC", word):
            raise ProgramError(
                f"line {line}: {word} is not the normal form of the name "
                f"{unicodedata.normalize('NFKC', word)}"
            )
        yield _Token(kind, word, line, offset)
        line += word.count("\n")
        offset = match.end()


class _Parser:
    """A recursive descent parser of one text.

    Its methods parse one rule of the grammar each: they consume the rule's tokens and
    return what these describe. ``position`` is the number of the next token, ``depth``
    the nesting of Programs and tuples, and ``comments`` has comments by line.
    """

    def __init__(
        self, text: str, table: Mapping[str, PrimitiveRow], keep_names: bool = True
    ) -> None:
        """Split ``text`` into tokens; the arguments are those of ``parse_program``."""
        self.table = table
        self.keep_names = keep_names
        self.comments: dict[int, str] = {}  # by line
        self.tokens = self._tokenize(text)
        self.position = 0  # of the next token
        self.depth = 0  # of nested Programs and tuples

    def _tokenize(self, text: str) -> list[_Token]:
        """Return the tokens without spaces and comments, and a last token "end".

        Stores comments in ``comments``, by their line.
        """
        tokens: list[_Token] = []
        for token in _tokens(text):
            if token.kind == "comment":
                self.comments[token.line] = token.text
            elif token.kind != "space":
                tokens.append(token)
        line = 1 + text.count("\n")
        tokens.append(_Token("end", "the end of the text", line))
        return tokens

    # Tokens.

    @property
    def next(self) -> _Token:
        """The next token, which is not consumed."""
        return self.tokens[self.position]

    def take(self) -> _Token:
        """Consume the next token and return it; "end" is never consumed."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, text: str, ahead: int = 0) -> bool:
        """Whether the token ``ahead`` positions after the next one is ``text``.

        Only signs and words count, not strings and numbers.
        """
        position = min(self.position + ahead, len(self.tokens) - 1)
        token = self.tokens[position]
        return token.text == text and token.kind in ("mark", "arrow", "name")

    def accept(self, text: str) -> bool:
        """Consume the next token if it is ``text``; return whether it was."""
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Consume the next token, which must be ``text``."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.next.text!r}")

    def expect_end(self) -> None:
        """Fail unless all tokens have been consumed."""
        if self.next.kind != "end":
            self.fail(f"expected the end of the text, found {self.next.text!r}")

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Raise ProgramError at ``line``, by default the line of the next token."""
        raise ProgramError(
            f"line {self.next.line if line is None else line}: {message}"
        )

    def name(self, what: str) -> str:
        """Parse a name; errors call it ``what``."""
        if self.next.kind != "name":
            self.fail(f"expected {what}, found {self.next.text!r}")
        return self.take().text

    def listed(self, close: str, item: Callable[[], T]) -> list[T]:
        """Parse items separated by commas up to ``close``, which is consumed too.

        ``item()`` parses one item. A comma after the last item is allowed.
        """
        items: list[T] = []
        while not self.accept(close):
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return items

    # Types and values.

    def dtype(self) -> DType:
        """Parse a dtype by its short name, as "f32"."""
        line, name = self.next.line, self.name("a data type")
        if name not in BY_SHORT_NAME:
            self.fail(f"there is no data type {name!r}", line)
        return BY_SHORT_NAME[name]

    def integer(self) -> int:
        """Parse an integer with an optional sign."""
        token = self.take()
        if token.kind != "number" or not re.fullmatch(r"[+-]?\d+", token.text):
            self.fail(f"expected an integer, found {token.text!r}", token.line)
        return int(str(self.read_number(token)))

    def extent(self) -> int:
        """Parse an integer that is not negative."""
        line, value = self.next.line, self.integer()
        if value < 0:
            self.fail(f"an extent cannot be negative: {value}", line)
        return value

    def type(self) -> ArrayType:
        """Parse an array's type, as "~f32[2,3] F varying(x)"."""
        weak = self.accept("~")
        dtype = self.dtype()
        self.expect("[")
        line = self.next.line
        shape = tuple(self.listed("]", self.extent))
        layout = self.layout(len(shape))
        type = ArrayType(shape, dtype, layout, weak, self.varying())
        if max(shape, default=0) > _MAX_BYTES or type.nbytes > _MAX_BYTES:
            self.fail(f"no memory can hold an array of {type}", line)
        return type

    def layout(self, ndim: int) -> Layout:
        """Parse a layout, as "F" or "S(1,2)"; C if there is none."""
        if self.accept("F"):
            return layouts.F
        if not self.at("S"):
            return layouts.C
        line = self.take().line
        self.expect("(")
        steps = tuple(self.listed(")", self.integer))
        if len(steps) != ndim:
            self.fail(f"{len(steps)} strides for {ndim} axes", line)
        return layouts.Strided(steps)

    def varying(self) -> frozenset[str]:
        """Parse ``varying(data,model)``, if it is there; return the axes."""
        if not self.accept("varying"):
            return UNVARYING
        self.expect("(")
        return frozenset(self.listed(")", lambda: self.name("an axis")))

    def typed(self, scope: dict[str, Atom]) -> Var:
        """Parse ``name: type`` as a new Var in ``scope``."""
        line, name = self.next.line, self.name("the name of a value")
        self.expect(":")
        var = Var(self.type(), name if self.keep_names else "")
        if name in scope:
            self.fail(f"{name} is defined twice", line)
        scope[name] = var
        return var

    def read_number(self, token: _Token) -> complex | float | int:
        """Return the number that ``token`` stands for: an int, float or complex."""
        try:
            if token.kind == "complex":
                return complex(token.text)
            if re.fullmatch(r"[+-]?\d+", token.text):
                return int(token.text)
            return float(token.text)
        except ValueError as error:
            self.fail(str(error), token.line)

    def operand(self, scope: dict[str, Atom]) -> Atom:
        """Parse the name of a Var in ``scope``, or a Literal, as "1.0:f32"."""
        token = self.take()
        if token.kind == "name" and token.text not in ("True", "False"):
            if token.text not in scope:
                self.fail(f"{token.text} is not defined", token.line)
            return scope[token.text]
        if token.kind == "name":
            value: Any = _WORDS[token.text]
        elif token.kind in ("number", "complex"):
            value = self.read_number(token)
        else:
            self.fail(f"expected a value, found {token.text!r}", token.line)
        self.expect(":")
        weak = self.accept("~")  # marks a weak type, as in "1.0:~f32"
        dtype = self.dtype()
        if not _holds(dtype, value):
            self.fail(f"{value!r} is not a value of {short_name(dtype)}", token.line)
        return Literal(value, dtype, weak)

    def param_value(self) -> Any:
        """Parse a param's value.

        It is a number, a string, True, False, None, a dtype, a tuple of values, or a
        call of a class in ``_CALLS``, such as ``P('x')``.
        """
        token = self.take()
        if token.kind in ("number", "complex"):
            return self.read_number(token)
        if token.kind == "string":
            return self.string(token)
        if token.kind == "name" and token.text in _WORDS:
            return _WORDS[token.text]
        if token.kind == "name" and token.text in BY_SHORT_NAME:
            return BY_SHORT_NAME[token.text]
        if token.kind == "name" and token.text in _CALLS and self.accept("("):
            values = self.listed(")", self.param_value)
            try:
                return _CALLS[token.text](*values)
            except (ArrayfnError, TypeError) as error:
                self.fail(str(error), token.line)
        if token.text != "(":
            self.fail(f"expected a parameter's value, found {token.text!r}", token.line)
        self.enter()
        values = tuple(self.listed(")", self.param_value))
        self.depth -= 1
        return values

    def string(self, token: _Token) -> str:
        """Return the value of a string token; fail for escapes that Python lacks."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SyntaxWarning)
                return ast.literal_eval(token.text)
        except (SyntaxError, ValueError) as error:
            self.fail(f"not a string: {error}", token.line)

    def enter(self) -> None:
        """Increase ``depth``; fail if the nesting is too deep."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"nested more than {_MAX_DEPTH} deep")

    # Programs.

    def program(
        self, constant_values: tuple[np.ndarray[Any, Any], ...] = ()
    ) -> Program:
        """Parse a Program; ``constant_values`` are the arrays of its constants.

        Fails if the types after ``->`` are not those of the outputs.
        """
        self.enter()
        line = self.next.line
        self.expect("program")
        name = self.name("the program's name")
        scope: dict[str, Atom] = {}
        self.expect("(")
        inputs = tuple(self.listed(")", lambda: self.typed(scope)))
        constants: tuple[Var, ...] = ()
        if self.accept("constants"):
            self.expect("(")
            constants = tuple(self.listed(")", lambda: self.typed(scope)))
        self.check_constants(constants, constant_values, line)
        self.expect("->")
        self.expect("(")
        types = self.listed(")", self.type)
        self.expect("{")
        equations: list[Equation] = []
        while not self.accept("return"):
            equations.append(self.equation(scope))
        last = self.next.line
        outputs = tuple(self.listed("}", lambda: self.operand(scope)))
        if [a.type for a in outputs] != types:
            actual = ", ".join(str(a.type) for a in outputs)
            wanted = ", ".join(map(str, types))
            self.fail(f"{name} returns {actual}, not {wanted}", last)
        self.depth -= 1
        return Program(
            name, inputs, tuple(equations), outputs, constants, constant_values
        )

    def check_constants(
        self, constants: Sequence[Var], values: Sequence[Any], line: int
    ) -> None:
        """Fail unless ``values`` have the shapes and dtypes of ``constants``."""
        value_types = [type_of(value) for value in values]
        if [(v.type.shape, v.type.dtype) for v in constants] != [
            (t.shape, t.dtype) for t in value_types
        ]:
            wanted = ", ".join(str(v.type) for v in constants) or "no constants"
            actual = ", ".join(map(str, value_types)) or "none"
            self.fail(f"the program has {wanted}, but was given {actual}", line)

    def equation(self, scope: dict[str, Atom]) -> Equation:
        """Parse an equation, check its types, and add its outputs to ``scope``.

        ``scope`` maps names to the Atoms that equations may use.
        """
        line = self.next.line
        # Outputs are added to the scope last: an equation does not see its own.
        results: dict[str, Atom] = {}
        outputs = tuple(self.listed("=", lambda: self.typed(results)))
        primitive = self.primitive()
        self.expect("(")
        inputs = tuple(self.listed(")", lambda: self.operand(scope)))
        params: dict[str, Any] = {}
        if self.accept("{"):
            for key, value in self.listed("}", self.param):
                self.add_param(params, key, value, line)
        while self.next.kind == "name" and self.at("=", 1):
            key = self.name("a parameter")
            self.expect("=")
            self.add_param(params, key, self.nested(), line)
        for name in results:
            if name in scope:
                self.fail(f"{name} is defined twice", line)
        scope.update(results)
        equation = Equation(primitive, inputs, params, outputs, self.source(line))
        try:
            equation.check()
        except MISFITS as error:
            raise ProgramError(f"line {line}: {primitive.name}: {error}") from error
        return equation

    def nested(self) -> Program | tuple[Program, ...]:
        """Parse a nested Program, or a tuple of them."""
        if self.accept("("):
            return tuple(self.listed(")", self.program))
        return self.program()

    def primitive(self) -> PrimitiveRow:
        """Parse a primitive's name; return its row of the table."""
        line, name = self.next.line, self.name("a primitive")
        row = self.table.get(name)
        if row is None:
            near = difflib.get_close_matches(name, self.table, 1)
            hint = f"; is it {near[0]!r}?" if near else ""
            self.fail(f"there is no primitive {name!r}{hint}", line)
        return row

    def param(self) -> tuple[str, Any]:
        """Parse a param that is not a Program: its name and its value."""
        key = self.name("a parameter")
        self.expect("=")
        return key, self.param_value()

    def add_param(
        self, params: dict[str, Any], key: str, value: Any, line: int
    ) -> None:
        """Add a param to ``params``; fail if it is there already."""
        if key in params:
            self.fail(f"parameter {key} is given twice", line)
        params[key] = value

    def source(self, line: int) -> SourceLocation | None:
        """Return the source location in the comment ``# file:line`` of ``line``."""
        match = re.fullmatch(r"# (.+):(\d{1,9})", self.comments.get(line, "").rstrip())
        return SourceLocation(match[1], int(match[2])) if match else None


def _holds(dtype: DType, value: complex) -> bool:
    """Whether a Literal of ``dtype`` may have this Python value.

    An integer value of a float dtype must be less than 2**1024, the limit of floats.
    """
    if dtype == dtypes.bool_:
        return isinstance(value, bool)
    if dtype in dtypes.INTEGERS or dtype in dtypes.INT4:
        bounds = dtypes.limits(dtype)
        return isinstance(value, int) and bounds.min <= value <= bounds.max
    if isinstance(value, complex):
        return dtype in dtypes.COMPLEX
    return abs(value) < 2**1024 or not isinstance(value, int)
