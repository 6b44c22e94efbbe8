"""The score function of attention as lines of a kernel, for each logit in registers.

A Program of scalars comes in as text (see ``arrayfn.nn.score_programs``): its inputs
are a score, the indices of batch, head, query and key, and captured arrays, which it
reads at computed indices. Lines come out, sorted by what they depend on, so that a
kernel computes what depends only on the head once for each tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import lru_cache
from typing import Final

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.ir.format import name_vars
from arrayfn.ir.program import NO_PARAMS
from arrayfn.ir.text import parse_program
from arrayfn.lowering.build import build_nest
from arrayfn.lowering.cuda.attention.ranges import Range, folded
from arrayfn.lowering.fusion import FusedGroup
from arrayfn.lowering.kernel_ir import (
    Compute,
    Constant,
    IndexTerm,
    Load,
    Nest,
    Scalar,
    Store,
    Value,
    constant_of,
    uses,
)
from arrayfn.lowering.kernel_printer import KernelPrinter
from arrayfn.lowering.templates.indexing import Geometry, zero_outside
from arrayfn.lowering.templates.nest_builder import NestBuilder, StridedArray
from arrayfn.passes.pipeline import PIPELINE, run_passes
from arrayfn.passes.reads import affine_view, resolve_reads
from arrayfn.primitives.base import Convert, View, primitive_of
from arrayfn.primitives.base import Scalar as ScalarForm
from arrayfn.primitives.table import TABLE
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen, record

PLACES: Final = ("batch", "member", "query", "key")
"""What the indices of a score are called, in the order of the Program's inputs."""
SCORE: Final = "s_score"
"""The variable of a logit that the lines begin with."""
_WITHOUT_SOURCE: Final = Equation(TABLE["neg"], (), NO_PARAMS, ())
"""Stands for the equations of a Program that was text, which have no source line."""
_SCALARS: Final = [((), dtypes.float32), *[((), dtypes.int32)] * len(PLACES)]
"""Shapes and dtypes of the Program's first inputs: the score, and indices of places."""
_OF_HEAD: Final = frozenset({"batch", "member"})
"""The places that are the same for all logits of a tile."""


@frozen
class Line:
    """A line of the score function, and which of ``PLACES`` and the score it needs."""

    text: str
    needs: frozenset[str]


@frozen
class ScoreLines:
    """The lines of a score function, in order.

    Attributes:
        constants: lines that define constants.
        lines: the lines that compute the score. The variables of places are ``s_batch``
            and so on, the variable of the logit is ``SCORE``.
        value: the expression of the score.
        slope: the expression of the score's derivative by the logit; empty if it is 1
            or not computed.
        integers: the integer parameters that the lines name, with their arguments.
    """

    constants: tuple[str, ...]
    lines: tuple[Line, ...]
    value: str
    slope: str
    integers: tuple[tuple[str, int], ...]

    def in_loops(self, place: str) -> tuple[list[str], list[str], list[str]]:
        """Return the lines by the loops over a tile of logits that they belong into.

        The first depend only on batch and head, the second also on the row of the tile,
        and the third differ for each logit of a row. ``place`` is what rows are:
        ``"query"`` or ``"key"``.
        """
        of_head, of_row, of_each = list[str](), list[str](), list[str]()
        for line in self.lines:
            needs = line.needs - _OF_HEAD
            lines = of_each if needs - {place} else of_row if needs else of_head
            lines.append(line.text)
        return of_head, of_row, of_each


@lru_cache(maxsize=256)
def score_lines(
    text: str,
    extents: tuple[int, int, int, int],
    captured: tuple[ArrayType, ...],
    strides: tuple[tuple[int, ...], ...],
) -> ScoreLines | None:
    """Return the lines of the Program ``text``; None if kernels cannot compute it so.

    The Program must be elementwise, and read captured arrays at one element each.

    Args:
        text: the Program's text. It has one result, the score; for gradients a second,
            the score's derivative.
        extents: how many batches, heads of queries, queries and keys there are.
        captured: the types of the captured arrays, which must be the Program's.
        strides: the strides of each captured array.
    """
    # The text may come from a file: its names do not get into the kernel.
    program = parse_program(text, TABLE, keep_names=False)
    types = [(t.shape, t.dtype) for t in program.input_types]
    if types != [*_SCALARS, *((t.shape, t.dtype) for t in captured)]:
        return None
    # A result of these scalars is in a register, so it needs no layout of its own.
    program = run_passes(program, passes=PIPELINE[:-1])
    statements = _Statements(program, strides)
    if not statements.collect():
        return None
    ranges = {
        f"s_{name}": Range(0, max(n, 1) - 1)
        for name, n in zip(PLACES, extents, strict=True)
    }
    results = [statements.scalar(atom) for atom in program.outputs]
    kept, results = folded(statements.b.statements, results, ranges)
    nest = Nest(
        axes=(),
        operands=tuple(statements.b.operands),
        statements=tuple(kept),
        primitives=(),
        reason="",
    )
    pointers = {var: captured_name(k) for k, var in enumerate(statements.captured)}
    # The lines are not indented.
    printer = _Printer(nest=nest, name="scores", pointers=pointers, depth=0)
    return printer.score_lines(results)


@frozen
class _Window:
    """Where the elements that a gather reads lie: memory, and computed index terms.

    ``array`` is the memory with its strides, and ``terms`` are added to indices into
    it. If there is a value ``inside`` and it is False, the elements are ``fill``
    instead.
    """

    array: StridedArray
    terms: tuple[IndexTerm, ...] = ()
    inside: Value | None = None
    fill: Constant | None = None


class _Statements:
    """Collects the statements that compute the results of a Program of scalars.

    Attributes:
        program: the Program. Its inputs are the score, the places, and captured arrays.
        reads: where each Var is read from.
        definitions: the equation of each Var.
        vars: the Vars by their names in the kernel; ``names`` is the reverse.
        places: the inputs that are in registers: the score and the places.
        windows: where the elements of captured arrays, and of gathers' results, lie.
        captured: the captured arrays.
        gathers: the gather that makes each Var that one makes.
        values: the value of each scalar that statements compute.
    """

    def __init__(self, program: Program, strides: Sequence[tuple[int, ...]]) -> None:
        """Name the values of ``program``.

        ``strides`` are those of each captured array, in elements.
        """
        self.program = program
        self.reads = resolve_reads(program)
        self.definitions = program.definitions()
        self.names = {var: f"s_{name}" for var, name in name_vars(program).items()}
        # The first inputs, the score and the places, have the names that the kernels of
        # attention give them. Captured arrays follow.
        given = (SCORE, *(f"s_{name}" for name in PLACES))
        self.names.update(zip(program.inputs, given, strict=False))
        self.vars = {name: var for var, name in self.names.items()}
        count = len(given)
        self.places = program.inputs[:count]
        self.windows = {
            var: _Window(StridedArray(var, var.type.dtype, steps))
            for var, steps in zip(program.inputs[count:], strides, strict=True)
        }
        self.captured = tuple(self.windows)
        self.gathers: dict[Var, Equation] = {}
        self.values: dict[Var, Value] = {}

    def collect(self) -> bool:
        """Collect the statements of the Program in ``b``; return False if impossible.

        Equations must be functions of scalars, gathers of one element, views, or
        vectors of gathers' indices. The statements of gathers, which are loads, are
        added where a scalar reads their result.
        """
        scalars: list[Equation] = []
        for equation in self.program.equations:
            if equation.primitive.name == "gather":
                if not self.is_read(equation):
                    return False
                self.gathers[equation.outputs[0]] = equation
            elif _is_scalar(equation):
                scalars.append(equation)
            elif not (
                affine_view(equation) is not None
                or equation.primitive.name == "concatenate"
                or _is_vector_of_literal(equation)
            ):
                return False
        if not all(self.is_known(a) for eq in scalars for a in eq.inputs) or not all(
            self.is_known(a) for a in self.program.outputs
        ):
            return False
        # Build the statements of the scalar equations as fusion builds a nest without
        # axes.
        group = FusedGroup(
            equations=tuple(scalars),
            extents=(),
            reduced=frozenset(),
            domain_axes={var: () for eq in scalars for var in eq.outputs},
            operands={},
            outputs=(),
            reason="",
        )
        self.b = NestBuilder(_WITHOUT_SOURCE, self.names)
        self.b.used_names |= {*self.names.values()}
        nest = build_nest(group, self.reads, self.names)
        for statement in nest.statements:
            if isinstance(statement, Load):
                var = self.vars[statement.result.name]
                if self.reads[var].base not in self.places:
                    self.load(var, statement.result)
            else:
                self.b.statements.append(statement)
                assert not isinstance(statement, Store)
                var = self.vars.get(statement.result.name)
                if var is not None:  # None: a number before it is rounded
                    self.values[var] = statement.result
        return True

    def is_known(self, atom: Atom) -> bool:
        """Return whether ``atom`` is a scalar that the statements have.

        It is a literal, a place or the score, an element of an array, or a computed
        scalar.
        """
        if isinstance(atom, Literal):
            return True
        base = self.reads[atom].base
        equation = self.definitions.get(base)
        return not atom.type.ndim and (
            base in self.places
            or base in self.windows
            or base in self.gathers
            or (equation is not None and _is_scalar(equation))
        )

    def is_read(self, equation: Equation) -> bool:
        """Return whether a gather reads one window of a captured array, or of a window.

        A window of a window is what a gather reads of another gather's result.
        """
        x, indices = equation.inputs
        if isinstance(x, Literal) or not isinstance(indices, Var):
            return False
        base = self.reads[x].base
        from_array = base in self.windows or base in self.gathers
        is_one = indices.type.ndim == 1 and not equation.params["batch"][0]
        return from_array and is_one and self.positions(indices) is not None

    def positions(self, indices: Var) -> Sequence[Atom] | None:
        """Return the scalars that the vector ``indices`` consists of.

        None if it is not made of scalars by broadcasting and concatenation.
        """
        read = self.reads[indices]
        base, maker = read.base, self.definitions.get(read.base)
        if not base.type.ndim:
            return [base] * indices.type.size
        if maker is None or not read.is_identity:
            return None
        if _is_vector_of_literal(maker):
            return [maker.inputs[0]] * indices.type.size
        if maker.primitive.name != "concatenate":
            return None
        all_scalars: list[Atom] = []
        for part in maker.inputs:
            scalars = self.positions(part) if isinstance(part, Var) else None
            if scalars is None:
                return None
            all_scalars += scalars
        return all_scalars

    def scalar(self, atom: Atom) -> Scalar:
        """Return the scalar of ``atom``; append its load if it is in an array."""
        if isinstance(atom, Literal):
            return constant_of(atom)
        base = self.reads[atom].base
        if base in self.places:
            return Value(self.names[base], dtypes.compute_dtype(base.type.dtype))
        if base not in self.values and atom not in self.values:
            value = Value(self.names[atom], dtypes.compute_dtype(atom.type.dtype))
            self.load(atom, value)  # records it as the value of ``atom``
        return self.values[base if base in self.values else atom]

    def window(self, var: Var) -> _Window:
        """Return where the elements of ``var`` lie: a captured array or a part of one.

        The window of a gather is computed once, by new statements.
        """
        read = self.reads[var]
        base_window = self.windows.get(read.base)
        if base_window is None:
            base_window = self.windows[read.base] = self.gathered(
                self.gathers[read.base]
            )
        array = base_window.array
        strides = read.strides(array.strides, var.type.ndim)
        offset = array.offset + read.offset(array.strides)
        return replace(
            base_window, array=replace(array, strides=strides, offset=offset)
        )

    def gathered(self, equation: Equation) -> _Window:
        """Return where the elements of a gather's result lie.

        The statements that compute its indices are appended. Indices are clamped, or
        with the mode ``"fill"`` replaced by 0 outside of the array.
        """
        x, indices = equation.inputs
        assert isinstance(x, Var)
        assert isinstance(indices, Var)
        params = dict(equation.params)
        sizes, mode = params.pop("sizes"), params.pop("mode")
        fill = params.pop("fill_value")
        params.pop("unique_indices", None)
        source = self.window(x)
        ndim = equation.outputs[0].type.ndim
        # The parameters that are left are the fields of ``Windows``.
        geometry = Geometry(Windows(**params), x.type.shape, sizes, ndim)
        starts = [self.start(a) for a in self.positions(indices) or ()]
        inside = source.inside
        if mode != "fill":
            starts = geometry.clamped(self.b, starts)
        elif (test := geometry.inside(self.b, starts)) is not None:
            starts = zero_outside(self.b, starts, test)
            inside = test if inside is None else self.both(inside, test)
        dtype = dtypes.compute_dtype(x.type.dtype)
        return _Window(
            geometry.windows_of(source.array),
            (*source.terms, *geometry.index_terms(starts, source.array)),
            inside,
            Constant(fill, dtype) if mode == "fill" else source.fill,
        )

    def start(self, atom: Atom) -> Value:
        """Append the conversion of the index ``atom`` to int64; return its result."""
        dtype, i64 = atom.type.dtype, dtypes.int64
        if isinstance(atom, Literal):
            place = Constant(int(atom.value.real), i64)
            return self.b.compute("s_at", "identity", place, dtype=i64, of=i64)
        return self.b.index(self.scalar(atom), dtype)

    def both(self, first: Value, second: Value) -> Value:
        """Append the ``and`` of two bools; return its result."""
        bool_ = dtypes.bool_
        return self.b.compute("s_in", "and", first, second, dtype=bool_, of=bool_)

    def load(self, var: Var, result: Value) -> None:
        """Append statements that define ``result`` as the one element of ``var``.

        The element is loaded into a scalar of its own. Where an index lies outside of
        the array, and the gather has a fill value, that value is selected instead.
        ``values`` gets the loaded or selected scalar. The last statement, an identity,
        copies it to ``result``, which other statements of the Program read.
        """
        window = self.window(var)
        # The nest has no axes: the offset and the computed terms give the index.
        operand = self.b.operand(replace(window.array, strides=()))
        value: Scalar = self.b.load(f"{result.name}_read", operand, window.terms)
        if window.inside is not None:
            assert window.fill is not None
            arguments = window.inside, value, window.fill
            dtype = result.dtype
            value = self.b.compute(
                f"{result.name}_or_fill", "select", *arguments, dtype=dtype, of=dtype
            )
        assert isinstance(value, Value)
        self.values[var] = value
        identity = f"identity_{short_name(result.dtype)}"
        self.b.statements.append(
            Compute(result, identity, (value,), "element", stage=0, cost=0)
        )


def _is_scalar(equation: Equation) -> bool:
    """Return whether ``equation`` is a function of scalars."""
    kernel = primitive_of(equation).kernel
    is_function = isinstance(kernel, ScalarForm | Convert)
    is_function = is_function or equation.primitive.name == "bitcast"
    # Affine views are read through; of the others, only the broadcast of a scalar to a
    # scalar is a function.
    if isinstance(kernel, View) and affine_view(equation) is None:
        is_function = equation.primitive.name == "broadcast_in_dim"
    atoms = (*equation.inputs, *equation.outputs)
    return is_function and not any(atom.type.ndim for atom in atoms)


def _is_vector_of_literal(equation: Equation) -> bool:
    """Return whether ``equation`` broadcasts a literal to a vector.

    Such a vector may be an index of a gather.
    """
    return equation.primitive.name == "broadcast_in_dim" and isinstance(
        equation.inputs[0], Literal
    )


@record
class _Printer(KernelPrinter):
    """Prints the statements of a score function; kernels have the loops around them."""

    _: KW_ONLY
    pointers: Mapping[Var, str] = field(default_factory=dict[Var, str])
    """The kernel's name of each captured array."""

    def score_lines(self, results: Sequence[Scalar]) -> ScoreLines:
        """Print the nest; return the lines that compute ``results``.

        These are the score and, for gradients, its slope. Each line needs the places
        and the score that its operands need.
        """
        # By a value's name, the places (and the score) that it is computed from.
        needs = {f"s_{place}": frozenset({place}) for place in PLACES}
        needs[SCORE] = frozenset({SCORE})
        lines: list[Line] = []
        for s in self.nest.statements:
            assert not isinstance(s, Store)
            read = [needs[value.name] for value in uses(s)]
            needs[s.result.name] = frozenset[str]().union(*read)
            before = len(self.lines)
            self.emit(s, {})
            lines += [Line(text, needs[s.result.name]) for text in self.lines[before:]]
        texts = [self.scalar(result) for result in results]
        slope = results[1] if len(results) > 1 else None
        is_one = slope is None or (isinstance(slope, Constant) and slope.value == 1)
        return ScoreLines(
            constants=tuple(line.strip() for line in self.constant_lines),
            lines=tuple(lines),
            value=texts[0],
            slope="" if is_one else texts[1],
            integers=tuple((i.name, i.value) for i in self.integers.values()),
        )

    @override
    def body(self) -> None:
        """Print nothing: the kernels of attention print the loops."""

    @override
    def pointer(self, operand: int) -> str:
        """Return the kernel's name of the captured array that is this operand."""
        return self.pointers[self.nest.operands[operand].array]

    @override
    def index(self, operand: int, variables: dict[int, str]) -> str:
        """Return the constant part of an index, 0 or a parameter: there are no axes."""
        offset = self.nest.operands[operand].offset
        return self.integer(f"s_from_{operand}", offset) if offset else "0"

    @override
    def index_term(self, operand: int, number: int, term: IndexTerm) -> str:
        """Return the expression of a computed part of an index.

        For example ``s_at * s_step_0_1``, for term 1 of operand 0.
        """
        index = self.name_of(term.index)
        if term.stride == 1:
            return index
        return f"{index} * {self.integer(f's_step_{operand}_{number}', term.stride)}"


def captured_name(number: int) -> str:
    """Return the name of captured array ``number``: ``captured_007``."""
    return f"captured_{number:03}"
