"""Steps of a plan that Python does: kernels of operators, references of primitives.

A Python function is no plain data, so a plan holds the number under which
``HOST_STEPS`` has it, in the process that lowered the plan. A *reference* step, in a
plan for a GPU, computes a primitive by NumPy on the host, for which no GPU library
exists: the arrays are copied to the host and back. The plan's text names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.ir.layout import from_strides
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, numbered_call
from arrayfn.lowering.operator_kernels import OperatorKernel, static_of, with_absent
from arrayfn.passes.reads import Reads
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.numbered import NumberedTable
from arrayfn.records import frozen

Destinations = Mapping[Var, tuple[Pointer, ArrayType]]
"""Results that are written into larger arrays: their first elements and layouts."""


@frozen
class HostStep:
    """A step that the host runs: ``function(*operands)``, or an operator's ``kernel``.

    Attributes:
        name: the operator or primitive.
        operands, results: the types of the arrays.
        function: returns the results, or None if there is a ``kernel``.
        kernel: the kernel, which writes into the results.
        static: the operator's static arguments, by name.
        body: the Program that the kernel computes.
        mapped: the parameter of a mapped ``operator_call``: for each mapped axis,
            outermost first, its extent and which operands have it. The axes lead in
            these operands and in all results.
        absent: the positions of operands that were not given; the kernel gets None.
    """

    name: str
    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    function: Callable[..., Any] | None = None
    kernel: OperatorKernel | None = None
    static: tuple[tuple[str, Any], ...] = ()
    body: Program | None = None
    mapped: tuple[tuple[int, tuple[bool, ...]], ...] = ()
    absent: tuple[int, ...] = ()

    def call_of_kernel(self) -> Callable[..., Any]:
        """Return the kernel as a function of arrays only: operands, then results.

        Static arguments are bound. A prepared kernel makes the function itself, from
        the types of one call.
        """
        assert self.kernel is not None
        function, static = self.kernel.function, dict(self.static)
        if self.kernel.prepared:
            return function(*with_absent(self.types_of_call, self.absent), **static)
        if not self.absent:
            return partial(function, **static)
        return lambda *arrays: function(*with_absent(arrays, self.absent), **static)

    @property
    def types_of_call(self) -> tuple[ArrayType, ...]:
        """The types of operands and results in one call of the kernel."""
        types = (*self.operands, *self.results)
        if not self.mapped:
            return types
        assert self.kernel is not None
        call_types: list[ArrayType] = []
        for number, type in enumerate(types):
            has_axis = self._has_axes(number)
            member = type.shape[sum(has_axis) :]
            if self.kernel.vmap == "expand_dims":
                extents = [n for n, _ in self.mapped]
                leading = [
                    n if m else 1 for n, m in zip(extents, has_axis, strict=True)
                ]
                member = (*leading, *member)
            # For "sequential", the type of one member.
            call_types.append(ArrayType(member, type.dtype))
        return tuple(call_types)

    def offsets_of_calls(self) -> Iterator[tuple[int, ...]]:
        """Yield for each call of the kernel the offset of each array, in elements.

        The kernel is called once, on whole arrays, unless the operator is mapped and
        the method is "sequential": then it is called for each member.
        """
        types = self.types_of_call
        if not self.mapped or (self.kernel and self.kernel.vmap == "expand_dims"):
            yield (0,) * len(types)
            return
        axes = [self._has_axes(number) for number in range(len(types))]
        for index in product(*(range(extent) for extent, _ in self.mapped)):
            offsets: list[int] = []
            for type, has_axis in zip(types, axes, strict=True):
                member = 0  # its number, row-major over the axes that the array has
                for k, (extent, _) in enumerate(self.mapped):
                    if has_axis[k]:
                        member = member * extent + index[k]
                offsets.append(member * type.size)
            yield tuple(offsets)

    def _has_axes(self, number: int) -> list[bool]:
        """Return which of the mapped axes operand or result ``number`` has.

        Results, whose numbers follow the operands', have all of them.
        """
        count = len(self.operands)
        return [
            number >= count or operand_has_axis[number]
            for _, operand_has_axis in self.mapped
        ]


HOST_STEPS: Final = NumberedTable[HostStep]("Python step")
"""The host steps of this process\'s plans."""


def reference_call(equation: Equation, reads: Reads) -> LibraryCall:
    """Return the library call that computes ``equation`` by its NumPy reference."""
    primitive = primitive_of(equation)
    params = dict(equation.params)
    name = primitive.name
    step = HostStep(
        name,
        tuple(_type_of(atom, reads) for atom in equation.inputs),
        tuple(var.type for var in equation.outputs),
        function=lambda *arrays: primitive.reference(*arrays, **params),
    )
    text = f"NumPy's reference of {name}, on the host"
    return numbered_call("reference", HOST_STEPS.add(step), equation, reads, text)


def operator_call_of(
    equation: Equation, kernel: OperatorKernel, reads: Reads, destinations: Destinations
) -> LibraryCall:
    """Return the library call that computes an ``operator_call`` by ``kernel``.

    ``reads`` has the array behind each operand. Results in ``destinations`` are written
    into the arrays named there.
    """
    step = HostStep(
        kernel.operator,
        tuple(_type_of(atom, reads) for atom in equation.inputs),
        tuple(
            destinations[v][1] if v in destinations else v.type
            for v in equation.outputs
        ),
        kernel=kernel,
        static=tuple(static_of(equation).items()),
        body=equation.params["body"],
        mapped=equation.params.get("mapped", ()),
        absent=equation.params.get("absent", ()),
    )
    text = f"{kernel.operator} by {kernel.title}"
    call = numbered_call("operator", HOST_STEPS.add(step), equation, reads, text)
    writes = {
        f"y{k}": destinations[v][0] if v in destinations else Pointer(v)
        for k, v in enumerate(equation.outputs)
    }
    return replace(call, writes=writes)


def _type_of(atom: Atom, reads: Reads) -> ArrayType:
    """Return an operand's type, with the layout in which its array is read."""
    assert isinstance(atom, Var)
    read = reads[atom]
    base = read.base.type
    strides = read.strides(base.layout.strides(base.shape), atom.type.ndim)
    return ArrayType(
        atom.type.shape, atom.type.dtype, from_strides(atom.type.shape, strides)
    )
