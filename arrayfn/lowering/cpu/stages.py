"""Kernels of several stages, which keep values for later stages or recompute them."""

from __future__ import annotations

from dataclasses import field

from arrayfn import dtypes
from arrayfn.dtypes import compute_dtype, short_name
from arrayfn.lowering.cpu.schedule import CPU
from arrayfn.lowering.cpu.sums import total_dtype, widening
from arrayfn.lowering.kernel_ir import (
    Compute,
    Constant,
    Count,
    Load,
    Reduce,
    Statement,
    Store,
    Value,
    is_element_store,
    uses,
)
from arrayfn.lowering.kernel_printer import KernelPrinter, ScratchRow
from arrayfn.lowering.kernel_text import Partial
from arrayfn.records import record


@record
class StagedPrinter(KernelPrinter):
    """The base of printers of reductions, which keep element values between stages.

    Attributes:
        stored_in: where a value that costs much to recompute is stored for later
            stages: the name of a scratch array, or the number of an operand; "" until
            ``choose_storage`` chooses.
        first_stage: the first stage that computes each value.
        stage_bodies: the statements that each stage runs for each element.
    """

    stored_in: dict[str, str | int] = field(default_factory=dict[str, str | int])
    first_stage: dict[str, int] = field(default_factory=dict)
    stage_bodies: list[list[Statement]] = field(default_factory=list)

    def plan_stages(self, keep: bool = True) -> None:
        """Decide which statements each stage runs: fill in the attributes.

        A stage runs its reductions and stores, and all that they need. A value that an
        earlier stage has computed is computed again if that is cheap, else stored by
        the first stage and loaded. With ``keep`` false, every value is computed again.
        """
        nest = self.nest
        for stage in range(nest.stages):
            needed: set[str] = set()
            pending = [
                value.name
                for s in nest.statements
                if s.stage == stage and (isinstance(s, Reduce) or is_element_store(s))
                for value in uses(s)
            ]
            # Follow the operands of reductions and stores back to loads.
            while pending:
                name = pending.pop()
                s = self.producers[name]
                if name in needed or not _is_element(s):
                    continue
                needed.add(name)
                first = self.first_stage.setdefault(name, stage)
                if isinstance(s, Compute):
                    costs_much = self.recompute_cost(name) > CPU.keep_cost
                    if keep and first < stage and costs_much:
                        # It is loaded: its operands are not needed.
                        self.stored_in.setdefault(name, "")
                        continue
                pending += [value.name for value in uses(s)]
            body = [
                s
                for s in nest.statements
                if (isinstance(s, (Load, Compute, Count)) and s.result.name in needed)
                or (isinstance(s, Reduce) and s.stage == stage)
                or (is_element_store(s) and s.stage == stage)
            ]
            self.stage_bodies.append(body)

    def recompute_cost(self, name: str) -> int:
        """Return the cost of computing the value ``name`` again, with its operands.

        Operands that are loads, or stored between stages, cost nothing.
        """
        seen: set[str] = set()
        pending, total = [name], 0
        while pending:
            current = pending.pop()
            s = self.producers[current]
            if current in seen or not isinstance(s, Compute) or s.level != "element":
                continue
            seen.add(current)
            if current != name and current in self.stored_in:
                continue
            total += s.cost
            pending += [a.name for a in s.arguments if isinstance(a, Value)]
        return total

    def choose_storage(self, elements: int) -> None:
        """Choose where the values of ``stored_in`` are stored between stages.

        That is an output to which the nest stores the same value in the same dtype,
        else a new scratch array of ``elements`` elements.
        """
        for name in self.stored_in:
            s = self.producers[name]
            assert isinstance(s, Compute)
            stored = next(
                (
                    t.operand
                    for t in self.nest.statements
                    if isinstance(t, Store)
                    and isinstance(t.value, Value)
                    and t.value.name == name
                    and self.nest.operands[t.operand].dtype
                    == compute_dtype(s.result.dtype)
                    and s.result.dtype != dtypes.bool_
                ),
                None,
            )
            if stored is not None:
                self.stored_in[name] = stored
            else:
                scratch_array = f"{self.name_of(s.result)}_row"
                self.stored_in[name] = scratch_array
                self.scratch.append(ScratchRow(scratch_array, s.result.dtype, elements))

    # Sums: totals of blocks.

    def total_of(self, s: Reduce) -> str:
        """Return the variable with the total of the blocks of sum ``s``."""
        return f"{self.name_of(s.result)}_total"

    def total_identity(self, s: Reduce) -> str:
        """Return the text of the identity of sum ``s`` in the dtype of totals."""
        return self.constant(Constant(s.identity.value, total_dtype(s)))

    def plus(self, s: Reduce, total: str, term: str) -> str:
        """Return the expression ``total + term``, in the dtype of totals.

        ``term`` has the dtype of the sum ``s`` and is converted.
        """
        functions = widening(s)
        converted = f"{self.use(functions[0])}({term})" if functions else term
        suffix = short_name(total_dtype(s))
        return self.expression(f"add_{suffix}", [total, converted])

    def from_total(self, s: Reduce, total: str) -> str:
        """Return the expression ``total``, converted to the dtype of the sum ``s``."""
        functions = widening(s)
        return f"{self.use(functions[1])}({total})" if functions else total

    def narrow_partial(self, partial: Partial, text: str) -> str:
        """Return the text of a partial result as it is stored: a bool as a byte."""
        is_bool = partial.reduce.result.dtype == dtypes.bool_
        return self.narrow(dtypes.bool_, text) if is_bool else text

    def widen_partial(self, partial: Partial, text: str) -> str:
        """Return the text of a stored partial result as a value: a byte as a bool."""
        is_bool = partial.reduce.result.dtype == dtypes.bool_
        return self.widen(dtypes.bool_, text) if is_bool else text

    def add_to_partial(self, k: int, s: Reduce, element: str) -> None:
        """Print the addition of a term of ``s`` to partial result ``k`` in memory.

        ``element`` is the text of the element that holds the partial result.
        """
        partial = self.partials[k]
        before = self.widen_partial(partial, element)
        total = f"{self.use(s.function)}({before}, {self.scalar(s.argument)})"
        self.line(f"{element} = {self.narrow_partial(partial, total)}", s.source)

    def row_index(self) -> str:
        """Return the text of an element's row-major index over the reduced axes.

        For two axes it is ``(i1) * n2 + i2``.
        """
        text = ""
        for axis in self.reduced_axes:
            i = f"i{axis}"
            text = f"({text}) * {self.extent(axis)} + {i}" if text else i
        return text or "0"

    def stage_loop_body(
        self, stage: int, variables: dict[int, str], row_index: str
    ) -> None:
        """Print the statements of ``stage`` inside its innermost loop.

        ``variables`` has the text of the index along each axis; ``row_index`` is the
        text of the element's index in scratch arrays.
        """
        for s in self.stage_bodies[stage]:
            if isinstance(s, Reduce):
                self.accumulate(s)
            elif isinstance(s, Compute) and s.result.name in self.stored_in:
                self.compute_or_fetch(s, stage, variables, row_index)
            else:
                self.emit(s, variables)

    def compute_or_fetch(
        self, s: Compute, stage: int, variables: dict[int, str], row_index: str
    ) -> None:
        """Print a value that is stored between stages: its computation, or its load.

        In its first stage, this prints ``d = exp_f32(c)`` and ``d_row[i1] = d``; in
        later stages ``d = d_row[i1]``. A value that an output holds is stored by the
        output's own store. The parameters are those of ``stage_loop_body``.
        """
        location, name = self.stored_in[s.result.name], self.name_of(s.result)
        is_in_scratch = isinstance(location, str)
        if isinstance(location, str):
            element = f"{location}[{row_index}]"
        else:
            element = self.element_at(location, variables)
        is_bool = s.result.dtype == dtypes.bool_
        if self.first_stage[s.result.name] < stage:
            value = self.widen(s.result.dtype, element) if is_bool else element
            self.line(f"{name} = {value}")
            return
        self.compute(s)
        if is_in_scratch:
            value = self.narrow(s.result.dtype, name) if is_bool else name
            self.line(f"{element} = {value}")


def _is_element(s: Statement) -> bool:
    """Return whether ``s`` computes or stores a value for each element.

    A reduction does not.
    """
    return not isinstance(s, Reduce) and s.level == "element"
