"""The reference backends: interpret a Program with the primitives' NumPy references.

``reference`` computes in the Program's dtypes. ``reference64`` is the oracle that
judges the others: all floats are float64 (float16 and bfloat16 too), complex numbers
complex128, and sums are exact before they are rounded; its results stay float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from arrayfn.backends.base import BackendInfo, Executable
from arrayfn.dtypes import DType
from arrayfn.ir import Program
from arrayfn.lowering.options import DEFAULT, Options

if TYPE_CHECKING:
    from arrayfn.lowering.compiled import CompiledProgram

# The table of primitives is imported by the first Program that is lowered or run.


class ReferenceBackend:
    """Interprets Programs with the primitives' NumPy references, one by one."""

    name = "reference"
    description = "NumPy, one primitive at a time"

    def info(self) -> BackendInfo:
        """Describe the backend, which needs only NumPy."""
        return BackendInfo(self.name, self.description, ("numpy",))

    def array_types(self) -> tuple[type, ...]:
        """Return the classes of arrays besides NumPy's: there are none."""
        return ()

    def put(self, x: Any) -> Any:
        """Copy ``x`` to a NumPy array."""
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Return ``program`` as text, without kernels and with an empty plan.

        ``load`` interprets the text. Python functions that the Program calls back are
        kept alive, because the text only names them.
        """
        from arrayfn.ir.text import format_program
        from arrayfn.lowering.compiled import CompiledProgram
        from arrayfn.lowering.plan import ExecutionPlan
        from arrayfn.primitives.callbacks import keep_callbacks

        keep_callbacks(program.equations)
        return CompiledProgram(
            name=program.name,
            target=self.name,
            text=format_program(program, comments=False),
            input_types=program.input_types,
            output_types=program.output_types,
            kernels=(),
            plan=ExecutionPlan((), ()),
            constants=program.constant_values,
        )

    def load(self, compiled: CompiledProgram) -> Executable:
        """Parse the text of ``compiled``; return a function that interprets it."""
        from arrayfn.ir.text import parse_program
        from arrayfn.primitives.calls import evaluate
        from arrayfn.primitives.table import TABLE
        from arrayfn.tracing import owned_copy

        program = parse_program(compiled.text, TABLE, compiled.constants)
        run_program = self.prepare(program)

        def run(arrays: tuple[Any, ...]) -> Sequence[Any]:
            """Interpret the Program; results share no memory with other arrays."""
            # Python numbers come as they are: convert them to the Program's dtypes.
            typed = zip(arrays, compiled.input_types, strict=True)
            operands = [self.operand(x, kind.dtype) for x, kind in typed]
            # Results that are operands themselves are copied.
            ids = {id(x) for x in operands}
            return [owned_copy(x, ids) for x in evaluate(run_program, operands)]

        return run

    def prepare(self, program: Program) -> Program:
        """Return the Program to interpret in place of ``program``: here, itself."""
        return program

    def operand(self, x: Any, dtype: DType) -> np.ndarray[Any, Any]:
        """Convert an argument to the array that the Program computes with."""
        return np.asarray(x, dtype)


class WideReferenceBackend(ReferenceBackend):
    """``ReferenceBackend`` in float64 with exact sums: the oracle of all backends."""

    name = "reference64"
    description = "NumPy in float64 with exact sums, one primitive at a time"

    @override
    def prepare(self, program: Program) -> Program:
        """Return ``program`` in double precision, with exact sums."""
        from arrayfn.backends.reference.wide import widened

        return widened(program)

    @override
    def operand(self, x: Any, dtype: DType) -> np.ndarray[Any, Any]:
        """Round an argument to the Program's ``dtype``, and widen it to float64."""
        from arrayfn.backends.reference.wide import wide_array

        return wide_array(x, dtype)
