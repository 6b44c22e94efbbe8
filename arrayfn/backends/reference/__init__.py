"""The reference backend: interprets a Program with the primitives' NumPy references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import ir_text
from arrayfn.backends.base import BackendInfo, Executable
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import ExecutionPlan
from arrayfn.primitives.callbacks import keep_callbacks
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.tracing import own


class ReferenceBackend:
    """NumPy, one primitive at a time. The oracle for every other backend."""

    name = "reference"

    def info(self) -> BackendInfo:
        """Always there."""
        return BackendInfo(self.name, "NumPy, one primitive at a time", ("numpy",))

    def array_types(self) -> tuple[type, ...]:
        """NumPy's arrays are all."""
        return ()

    def put(self, x: Any) -> Any:
        """A NumPy array."""
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """No kernels and no plan: the Program's text is what is run."""
        keep_callbacks(program.equations)
        return CompiledProgram(
            name=program.name,
            target=self.name,
            text=ir_text.format_program(program, comments=False),
            input_types=program.input_types,
            output_types=program.output_types,
            kernels=(),
            plan=ExecutionPlan((), ()),
            constants=program.constant_values,
        )

    def load(self, compiled: CompiledProgram) -> Executable:
        """Parse the Program back, and interpret it."""
        program = ir_text.parse_program(compiled.text, TABLE, compiled.constants)

        def run(arrays: tuple[Any, ...]) -> Sequence[Any]:
            # Numbers come as they were given; their types are the Program's.
            typed = zip(arrays, compiled.input_types, strict=True)
            given = [np.asarray(x, kind.dtype) for x, kind in typed]
            ids = {id(x) for x in given}
            return [own(x, ids) for x in evaluate(program, given)]

        return run
