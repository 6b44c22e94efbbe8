"""Plans what each stage of a nest computes, and which values later stages reuse.

A softmax has three stages: the maximum, the sum of exponentials, the quotients. Its
second stage computes the exponentials and keeps them in registers for the third.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from arrayfn.lowering.cuda.merges import Merge
from arrayfn.lowering.cuda.schedule import can_copy, is_vector
from arrayfn.lowering.kernel_ir import (
    Compute,
    Count,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    is_element_store,
    uses,
)
from arrayfn.records import frozen

KEEP_COST: Final = 4
"""The most additions that a value may cost to be computed again, not kept."""
HALF_EXP_COST: Final = 2
"""Cost of a half-precision exponential: a product and a special-function instruction.
"""


@frozen
class StagePlan:
    """Which element statements each stage has, and which values are kept between them.

    Args:
        bodies: The statements of each stage, in order.
        kept: Names of the values that stay in registers for a later stage.
        first_stage: The stage in which a value is computed, by name.
        last_stage: The stage in which a kept value is last read, by name.
    """

    bodies: tuple[tuple[Statement, ...], ...]
    kept: frozenset[str]
    first_stage: dict[str, int]
    last_stage: dict[str, int]

    def kept_statements(self, nest: Nest) -> list[Load | Compute | Count]:
        """Return the statements of ``nest`` that compute the kept values, in order."""
        return [
            s
            for s in nest.statements
            if isinstance(s, (Load, Compute, Count)) and s.result.name in self.kept
        ]


def plan_stages(
    nest: Nest,
    keep: bool,
    merges: Sequence[Merge] = (),
    *,
    keep_half_exp: bool = False,
) -> StagePlan:
    """Plan the stages of a nest of rows or columns.

    A stage's statements are its reductions and stores of elements, and what these need.

    Args:
        nest: The nest.
        keep: Whether registers hold the whole row: loads and expensive values are then
            computed once, in the first stage that needs them. Otherwise every stage
            computes all that it needs.
        merges: Pairs of stages that share an exchange. Values that a part computes
            relative to its own shift are kept if a factor rescales them later; others
            are computed again.
        keep_half_exp: Whether half-precision exponentials also count as expensive.
    """
    definitions = {
        s.result.name: s for s in nest.statements if not isinstance(s, Store)
    }
    # Values with a part's own shift, by name and the stage that computes them: later
    # stages compute them again, with the row's shift.
    recomputed = {
        (name, m.stage + 1) for m in merges for name in m.provisional - set(m.scaled)
    }
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    bodies: list[tuple[Statement, ...]] = []
    for stage in range(nest.stages):
        roots = [s for s in nest.statements if _is_result_of_stage(s, stage)]
        needed: set[str] = set()
        pending = [v for s in roots for v in names_of(s)]
        while pending:
            name = pending.pop()
            s = definitions[name]
            if name in needed or isinstance(s, Reduce) or s.level != "element":
                continue
            needed.add(name)
            can_keep = keep and is_expensive(definitions, name, keep_half_exp)
            if (name, first.get(name)) in recomputed:
                first[name] = stage
            elif name in first and can_keep:
                last[name] = stage
                continue  # it is read from registers, so its operands are not needed
            first.setdefault(name, stage)
            pending += names_of(s)
        bodies.append(
            tuple(
                s
                for s in nest.statements
                if s in roots or (not isinstance(s, Store) and s.result.name in needed)
            )
        )
    # Values with a last stage that reads them from registers are kept.
    return StagePlan(tuple(bodies), frozenset(last), first, last)


def _is_result_of_stage(s: Statement, stage: int) -> bool:
    """Whether ``s`` is a reduction or a store of elements that belongs to ``stage``.

    Stores of level "outer" are done once a row, outside of the stage's loop.
    """
    if isinstance(s, Store) and s.level == "outer":
        return False
    return isinstance(s, (Reduce, Store)) and s.stage == stage


def is_expensive(
    definitions: Mapping[str, Statement], name: str, keep_half_exp: bool
) -> bool:
    """Return whether later stages read the value ``name`` from registers.

    They do, instead of computing it again, if the value is loaded, or if it costs more
    than ``KEEP_COST`` operations to compute it from loaded values and row scalars.

    Args:
        definitions: The statement that computes each value, by the value's name.
        name: An element value: one that differs along the row.
        keep_half_exp: Whether a half-precision exponential has the cost of any other.
            If not, its cost is ``HALF_EXP_COST``.
    """
    if isinstance(definitions[name], Load):
        return True
    seen: set[str] = set()
    pending, cost = [name], 0
    while pending:
        current = pending.pop()
        s = definitions[current]
        if current in seen or not isinstance(s, Compute) or s.level != "element":
            continue
        seen.add(current)
        cost += HALF_EXP_COST if is_half_exp(s) and not keep_half_exp else s.cost
        pending += names_of(s)
    return cost > KEEP_COST


def is_half_exp(s: Statement) -> bool:
    """Return whether ``s`` is an exponential whose result is rounded to 16 bits.

    One instruction, ``ex2.approx``, is more exact than fp16 and bf16.
    """
    return isinstance(s, Compute) and s.function == "exp_f32" and s.result.half


def names_of(s: Statement) -> list[str]:
    """Return the names of the values that ``s`` reads."""
    return [value.name for value in uses(s)]


def kept_words(nest: Nest, lanes: int, *, keep_half_exp: bool = False) -> int:
    """Return the 32-bit registers that a row's values take up between stages.

    They are for ``lanes`` elements: the maximum over all pairs of successive stages,
    and at least 1. Vectors stay as in memory: two 16-bit values share a register.
    ``keep_half_exp`` is as in ``plan_stages``.
    """
    plan = plan_stages(nest, keep=True, keep_half_exp=keep_half_exp)

    def words(s: Load | Compute | Count) -> int:
        """Return the registers for ``lanes`` elements of what ``s`` computes.

        ``nest`` and ``lanes`` are those of the enclosing function.
        """
        if isinstance(s, Load) and is_vector(nest.operands[s.operand], lanes):
            # Loaded vectors are kept in their memory dtype, and are not converted.
            return -(-nest.operands[s.operand].dtype.itemsize * lanes // 4)
        return -(-s.result.dtype.itemsize // 4) * lanes

    needed = 1
    for stage in range(1, nest.stages):
        live = [
            words(s)
            for s in plan.kept_statements(nest)
            if plan.first_stage[s.result.name] < stage <= plan.last_stage[s.result.name]
        ]
        needed = max(needed, sum(live))
    return needed


def has_single_stage_loads(nest: Nest) -> bool:
    """Whether only one stage of ``nest`` reads some elements, such as weights."""
    kept = plan_stages(nest, keep=True).kept
    return any(
        isinstance(s, Load) and s.level == "element" and s.result.name not in kept
        for s in nest.statements
    )


def late_broadcast_loads(nest: Nest, plan: StagePlan, stage: int) -> list[Load]:
    """Return the loads of operands that all rows share and only ``stage`` reads.

    Weights are an example. They can be loaded or prefetched late. Empty in the first
    stage, which loads everything at once. ``plan`` is the plan of ``nest``.
    """
    return [
        s
        for s in plan.bodies[stage]
        if isinstance(s, Load)
        and s.level == "element"
        and stage
        and plan.first_stage[s.result.name] == stage
        and s.result.name not in plan.kept
        and not nest.operands[s.operand].written
        and not any(row_strides(nest, s.operand))
    ]


def can_split_row(nest: Nest, lanes: int) -> bool:
    """Whether some vectors of each row can be in shared memory between the stages.

    The nest must keep one row, which ``cp.async`` can copy by vectors of ``lanes``
    elements; values that are computed from it and kept must have its dtype, as they
    overwrite it; and the nest must store results of elements.
    """
    plan = plan_stages(nest, keep=True)
    kept = plan.kept_statements(nest)
    stored = any(is_element_store(s) for s in nest.statements)
    rows = {s.operand for s in kept if isinstance(s, Load)}
    if not stored or len(rows) != 1 or not keeps_one_word(nest):
        return False
    (row,) = (nest.operands[k] for k in rows)
    return can_copy(row, lanes) and all(
        isinstance(s, Load) or s.result.dtype == row.dtype for s in kept
    )


def keeps_one_word(nest: Nest) -> bool:
    """Whether ``nest`` has one row operand and keeps one register for each element.

    Then the number of registers that a thread needs can be estimated well enough to
    limit it (see ``Rows.blocks_per_multiprocessor``).
    """
    rows = {
        s.operand
        for s in nest.statements
        if isinstance(s, Load) and s.level == "element"
        if any(row_strides(nest, s.operand))
    }
    return len(rows) == 1 and kept_words(nest, 1) == 1


def row_strides(nest: Nest, operand: int) -> list[int]:
    """Return the strides of an operand from row to row, or column to column.

    There is one for each kept axis of more than one index. All are 0 for an operand
    such as weights, which is the same for all rows. ``operand`` is the operand's
    number.
    """
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced and a.extent > 1]
    return [nest.operands[operand].strides[k] for k in kept]
