"""Programs for any size: a text whose numbers are polynomials of open sizes.

A function is traced for several sizes of its ``Dim``s. Where the Programs' texts differ
only in numbers, each number that differs is the value of one polynomial at all of
them. ``OpenText`` is the text with these polynomials in place of the numbers, as
``$(2*n+1)``; its ``text(sizes)`` is the Program for other sizes, which is parsed and
checked like any other. A function whose Program has another structure for some sizes
is refused, with the line where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np

from arrayfn.compilation.self_contained import self_contained
from arrayfn.dtypes import short_name
from arrayfn.errors import ArgumentError, BundleError, plural, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.ir.text import format_program, tokens
from arrayfn.records import frozen
from arrayfn.transforms import Dim, ShapeDtypeStruct, leaf_type

Sizes = Mapping[str, int]
Extents = tuple[int | str, ...]
_MOST_DIMS: Final = 3  # open sizes of a function: tracing grows with their product
_TYPICAL: Final = 67  # the first size to trace at; few other numbers equal it
_LARGE: Final = 1009  # a size at which the polynomials are checked
_OPEN: Final = re.compile(r"\$\((?:(float|reciprocal):)?([^()\s]{1,500})\)")


@frozen
class OpenText:
    """The text of a Program for any sizes of ``dims``, as a template.

    ``extents`` are those of its inputs, an open one by its name; ``example`` has sizes
    that it was traced for.
    """

    template: str
    dims: tuple[Dim, ...]
    extents: tuple[Extents, ...]
    example: Sizes

    def described(self) -> dict[str, Any]:
        """Describe all but the template as JSON, which ``open_text_from`` reads."""
        limits = {d.name: [d.minimum, d.maximum, d.multiple_of] for d in self.dims}
        extents = [list(shape) for shape in self.extents]
        return {"dims": limits, "extents": extents, "example": dict(self.example)}

    def shown(self, types: Sequence[ArrayType]) -> str:
        """Return the types of the inputs, with the names of open sizes."""
        pairs = zip(types, self.extents, strict=True)
        inside = (f"{short_name(t.dtype)}[{','.join(map(str, e))}]" for t, e in pairs)
        return f"({', '.join(inside)})"

    def text(self, sizes: Sizes) -> str:
        """Fill in the template: the Program's text for ``sizes``.

        The template has ``$(POLYNOMIAL)`` for an integer, ``$(float:POLYNOMIAL)`` for a
        float, and ``$(reciprocal:POLYNOMIAL)`` for 1 divided by it. Raises
        ArgumentError where one of the first two is no integer, or one whose reciprocal
        is wanted is 0: there is no such Program. Raises BundleError if a polynomial is
        invalid.
        """
        # Imported here because it is slow to import.
        from arrayfn.compilation.size_polynomials import evaluated, parsed

        def value(match: re.Match[str]) -> str:
            """Return the number, as text, that replaces ``$(KIND:POLYNOMIAL)``."""
            number = evaluated(parsed(match[2]), sizes)
            if match[1] == "reciprocal" and number:
                return repr(float(1 / number))
            if number.denominator != 1 or match[1] == "reciprocal":
                names = ", ".join(f"{name} = {sizes[name]}" for name in sizes)
                raise ArgumentError(
                    f"the saved function cannot be computed for {names}: {match[2]} "
                    "in its Program is not a whole number then",
                    user_location(),
                )
            return repr(float(number)) if match[1] else str(int(number))

        return _OPEN.sub(value, self.template)

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> Sizes:
        """Solve for the open sizes from inputs' ``shapes``.

        Raises ArgumentError, with the axis, if there is no solution.
        """
        sizes: dict[str, int] = {}
        dims = {dim.name: dim for dim in self.dims}
        pairs = zip(self.extents, shapes, strict=True)
        for number, (wanted, shape) in enumerate(pairs):
            if len(wanted) != len(shape):
                raise ArgumentError(
                    f"argument {number} has {plural(len(shape), 'axis')}, not "
                    f"{len(wanted)}",
                    user_location(),
                )
            for axis, (name, size) in enumerate(zip(wanted, shape, strict=True)):
                where = f"axis {axis} of argument {number}"
                if isinstance(name, int):
                    if name != size:
                        raise ArgumentError(
                            f"{where} has {plural(size, 'element')}, not {name}, "
                            "which this was lowered for",
                            user_location(),
                        )
                elif sizes.setdefault(name, size) != size:
                    raise ArgumentError(
                        f"{where} has {plural(size, 'element')}, but {name} is "
                        f"{sizes[name]} by "
                        "an argument before it; axes of one Dim have one size",
                        user_location(),
                    )
                elif not dims[name].accepts(size):
                    raise ArgumentError(
                        f"{where} has {plural(size, 'element')}, but {name} must be "
                        f"{dims[name].description}",
                        user_location(),
                    )
        return sizes


def open_text_from(template: str, description: Mapping[str, Any]) -> OpenText:
    """Read an OpenText from what ``described`` returned; BundleError if invalid.

    ``template`` is its template, which a file of the bundle has.
    """
    match description:
        case {"dims": dict(limits), "extents": [*extents], "example": dict(example)}:
            try:
                # ``three`` is [minimum, maximum, multiple_of].
                dims = tuple(Dim(name, *three) for name, three in limits.items())
            except (ArgumentError, TypeError) as error:
                raise BundleError(f"has open sizes that cannot be: {error}") from None
            shapes = [tuple(shape) for shape in extents if isinstance(shape, list)]
            used = {n for shape in shapes for n in shape if type(n) is not int}
            fits = len(shapes) == len(extents) and used == limits.keys()
            fits = fits and example.keys() == limits.keys()
            if fits and all(
                type(example[d.name]) is int and d.accepts(example[d.name])
                for d in dims
            ):
                return OpenText(template, dims, tuple(shapes), example)
        case _:
            pass
    raise BundleError("has open sizes that are not of the form of save's")


def open_text(
    trace: Callable[[Sizes], Program], leaves: Sequence[Any], backend: str
) -> OpenText:
    """Trace a function at several sizes, and make the text for any sizes.

    ``trace`` gives its Program for some sizes, and ``leaves`` are those of its
    arguments. Calls that the backend ``backend`` has a kernel for stay calls. Raises
    ArgumentError if there is no such text.
    """
    extents = [_extents(leaf) for leaf in leaves]
    dims = dims_of(extents)
    points = samples(dims)
    programs = [self_contained(trace(sizes), backend) for sizes in points]
    name, values = programs[0].name, programs[0].constant_values
    for program in programs:
        same = len(values) == len(program.constant_values) and all(
            map(np.array_equal, values, program.constant_values)
        )
        if not same:
            raise ArgumentError(
                f"{name} captures an array that depends on an open size; make it with "
                "arrayfn.numpy, so that it is part of the Program",
                user_location(),
            )
    template = template_of(name, [format_program(p) for p in programs], points)
    names = [
        tuple(n.name if isinstance(n, Dim) else n for n in shape) for shape in extents
    ]
    return OpenText(template, dims, tuple(names), points[0])


def _extents(leaf: Any) -> tuple[int | Dim, ...]:
    """Return the extents of an argument's axes, open ones as their Dims."""
    if isinstance(leaf, ShapeDtypeStruct):
        return leaf.extents
    return leaf_type(leaf).shape


def is_open(leaf: Any) -> bool:
    """Whether ``leaf`` has open sizes."""
    return isinstance(leaf, ShapeDtypeStruct) and any(
        isinstance(n, Dim) for n in leaf.extents
    )


def dims_of(shapes: Sequence[Sequence[int | Dim]]) -> tuple[Dim, ...]:
    """Return the Dims in ``shapes``, sorted by name.

    Raises ArgumentError if two of one name differ, or if there are too many.
    """
    dims: dict[str, Dim] = {}
    for shape in shapes:
        for dim in shape:
            if isinstance(dim, Dim) and dims.setdefault(dim.name, dim) != dim:
                raise ArgumentError(
                    f"two Dims are called {dim.name} and have other limits: "
                    f"{dims[dim.name]!r} and {dim!r}",
                    user_location(),
                )
    if len(dims) > _MOST_DIMS:
        raise ArgumentError(
            f"{len(dims)} sizes are open ({', '.join(dims)}), more than "
            f"{_MOST_DIMS}; lower the function for some of them",
            user_location(),
        )
    return tuple(dims[name] for name in sorted(dims))


def samples(dims: Sequence[Dim]) -> list[Sizes]:
    """Choose sizes to trace at: enough to fix all polynomials, and two to check them.

    Raises ArgumentError if the limits of a Dim leave too few.
    """
    from arrayfn.compilation.size_polynomials import DEGREE

    most = DEGREE + 1
    values: list[list[int]] = []
    for position, dim in enumerate(dims):
        # No two Dims have one size: what is done where sizes are equal is not general.
        typical = _accepted(dim, first=_TYPICAL + most * position, count=most)
        if len(typical) < most:
            typical = _accepted(dim, first=2, count=most)
        if len(typical) < most:
            raise ArgumentError(
                f"the Dim {dim.name} leaves {len(typical)} sizes above 1; lower the "
                "function for each, and save them in one bundle",
                user_location(),
            )
        values.append(typical)
    # The principal lattice, on which polynomials of this degree are unique.
    lattice = (k for k in product(range(most), repeat=len(dims)) if sum(k) <= DEGREE)
    points = [[row[k] for row, k in zip(values, at, strict=True)] for at in lattice]
    for first in (2, _LARGE):  # the two points that check the polynomials
        # Sizes of different Dims differ here, too. If the limits of a Dim allow no such
        # size, its largest typical size is taken.
        ends = [_accepted(d, first + 7 * p, count=1) for p, d in enumerate(dims)]
        points.append([(e or v)[-1] for e, v in zip(ends, values, strict=True)])
    names = [dim.name for dim in dims]
    return [dict(zip(names, point, strict=True)) for point in points]


def _accepted(dim: Dim, first: int, count: int) -> list[int]:
    """Return the first sizes, at most ``count``, from ``first`` on that fit ``dim``."""
    step = dim.multiple_of
    begin = -(-max(dim.minimum, first) // step) * step
    sizes = range(begin, begin + count * step, step)
    return [size for size in sizes if dim.accepts(size)]


def template_of(name: str, texts: Sequence[str], points: Sequence[Sizes]) -> str:
    """Find the template that gives the ``texts`` of a Program at the sizes ``points``.

    Where the texts have different numbers it has a polynomial, as ``$(2*n+1)``. Raises
    ArgumentError for the function ``name`` if there is no such template.
    """
    from arrayfn.compilation.size_polynomials import Fit

    # Comments of a text may contain "$(", which begins a polynomial in a template.
    texts = [text.replace("$(", "$ (") for text in texts]
    rows = [list(tokens(text)) for text in texts]
    first = rows[0]
    for row, sizes in zip(rows, points, strict=True):
        _refuse_structure(name, first, row, texts[0], (points[0], sizes))
    fit = Fit(points, list(points[0]))
    parts: list[str] = []
    end = 0
    for column in zip(*rows, strict=True):
        words = [token.text for token in column]
        if len(set(words)) == 1:
            continue
        formula = fit.formula_of(words)
        if formula is None:
            raise ArgumentError(
                f"{name} has a number in its Program that is not a polynomial of its "
                f"open sizes: {', '.join(words[:4])} for {_listed(points[:4])}, in "
                f"{_line(texts[0], column[0].line)!r}; lower it for each size",
                user_location(),
            )
        offset = column[0].offset
        parts += [texts[0][end:offset], formula]
        end = offset + len(column[0].text)
    return "".join(parts) + texts[0][end:]


def _refuse_structure(
    name: str, first: Any, row: Any, text: str, sizes: tuple[Sizes, Sizes]
) -> None:
    """Raise ArgumentError unless two texts differ only in numbers.

    The texts are Programs of the function ``name``, traced at the two ``sizes``.
    ``first`` and ``row`` are the texts' tokens, and ``text`` is the first text.
    """
    for one, other in zip(first, row, strict=False):
        is_number = one.kind == other.kind == "number"
        if one.text != other.text and not is_number:
            break
    else:
        if len(first) == len(row):
            return
        one = first[min(len(first), len(row)) - 1]  # one text ends here
    raise ArgumentError(
        f"{name} has another Program for {_listed(sizes[1:])} than for "
        f"{_listed(sizes[:1])}, from {_line(text, one.line)!r} on. Write loops over a "
        "size with arrayfn.lax, limit the Dim, or lower the function for each size",
        user_location(),
    )


def _listed(points: Sequence[Sizes]) -> str:
    """Return the sizes of these points in words: ``n = 2; n = 3``."""
    return "; ".join(
        ", ".join(f"{name} = {size}" for name, size in sizes.items())
        for sizes in points
    )


def _line(text: str, number: int) -> str:
    """Return the line ``number`` of ``text``, from 1, with single spaces."""
    return " ".join(text.splitlines()[number - 1].split())
