"""The passes that let other steps run beside sums over the members of a mesh."""

from __future__ import annotations

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.passes.late_uses import with_late_uses

PAIR = Mesh((2,), ("i",), platform="cuda")


WHOLE = P()


def of_one_device(f, *shapes, specs, out=WHOLE):
    """The Program of one GPU of a pair, as ``partition`` makes it, and its plan."""
    g = shard_map(f, mesh=PAIR, in_specs=specs, out_specs=out, check_vma=False)
    args = [af.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    compiled = af.jit(g).lower(*args).compiled_program
    return compiled.partitioned.program, compiled.local.plan


def names(program):
    return [e.primitive.name for e in program.equations]


def test_what_uses_a_sum_comes_last_unless_a_collective_needs_it():
    def f(x, y):
        total = lax.psum(x, "i")
        scaled = total * 2
        other = anp.sin(y)
        second = lax.psum(scaled + other, "i")
        return scaled, anp.cos(other), second

    program, _ = of_one_device(f, (8,), (8,), specs=(P("i"), P("i")), out=P("i"))
    assert names(program) == ["all_reduce", "mul", "sin", "add", "all_reduce", "cos"]
    late = with_late_uses(program)
    assert names(late) == ["all_reduce", "sin", "mul", "add", "all_reduce", "cos"]

    def g(x, y):
        return lax.psum(x, "i") * 2, anp.sin(y)

    program, _ = of_one_device(g, (8,), (8,), specs=(P("i"), P("i")), out=P("i"))
    assert names(program) == ["all_reduce", "mul", "sin"]
    assert names(with_late_uses(program)) == ["all_reduce", "sin", "mul"]


def test_effects_keep_their_places():
    def f(x):
        y = lax.psum(x, "i") + 1
        af.debug.print("{}", y)
        return y * anp.exp(x)

    program, _ = of_one_device(f, (8,), specs=(P("i"),), out=P("i"))
    late = names(with_late_uses(program))
    assert late.index("add") < late.index("debug_callback") < late.index("mul")


def test_sums_begin_at_once_and_share_no_memory_with_later_steps():
    """Each is written over its operand, which no later step has the memory of."""

    def f(x, w):
        return [lax.psum(part @ w, "i") for part in anp.split(x, 4)]

    _, plan = of_one_device(
        f, (512, 128), (128, 1024), specs=(P(None, "i"), P("i")), out=[WHOLE] * 4
    )
    kernels = [step.kernel.partition("_")[0] for step in plan.steps]
    assert kernels == ["gemm", "collective"] * 4
    sums = plan.steps[1::2]
    assert [step.reads for step in sums] == [step.writes for step in sums]
    assert len({tuple(step.reads) for step in sums}) == 4
