"""Scatters into tiles of targets: emulated, compiled to PTX, and their plans."""

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator import Pointer, launch
from arrayfn.lowering.cuda.indexing.scatter_tiles import Tiles, tile_kernel
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.options import Options
from arrayfn.transforms import trace_function

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
LIMIT, EACH = 150, 128  # targets, and those of a digit: two tiles of 64
COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
# name: function, dtype, elements that are copied at a time
CASES = {
    "added": ("add", "float32", 2),
    "added in double precision": ("add", "float64", 1),
    "multiplied": ("mul", "float32", 1),
    "least": ("min", "int32", 2),
    "greatest": ("max", "uint64", 1),
}


def in_tiles(case, keys):
    """What the kernel makes of 0, 1, ... and small numbers as updates at ``keys``."""
    function, name, lanes = CASES[case]
    tiles = Tiles(function, np.dtype(name), len(keys), 1 << 14, lanes)
    assert tiles.size == 64
    x = np.arange(LIMIT).astype(name)
    updates = (np.arange(len(keys)) % 3 + 1).astype(name)
    order = np.argsort(keys // EACH, kind="stable")
    totals = np.bincount(keys // EACH, minlength=256).astype(np.int32)
    out = np.zeros(LIMIT, name)
    text = tile_kernel(tiles)
    short = dtypes.short_name(np.dtype(name))
    types = {"keys_in": "u32", "updates_in": short, "totals_in": "i32"}
    types |= {"target_in": short, "target_out": short}
    kernel = text.kernel("tiles", types, ("limit", "targets"))
    arrays = [keys.astype(np.uint32)[order], updates[order], totals, x, out]
    integers = [LIMIT, EACH]
    launch(kernel.source, "tiles", 3, 256, [*map(Pointer, arrays), *integers])
    want = x.copy()
    inside = keys < LIMIT
    COMBINE[function].at(want, keys[inside], updates[inside])
    return out, want


@pytest.mark.parametrize("case", CASES)
def test_updates_are_combined_with_tiles_of_targets(case):
    keys = np.random.default_rng(0).integers(0, LIMIT + 9, 300)
    out, want = in_tiles(case, np.minimum(keys, LIMIT))
    np.testing.assert_array_equal(out, want)


def test_a_target_may_have_all_updates():
    keys = np.full(2100, 70)
    keys[::50] = 3
    out, want = in_tiles("added", keys)
    np.testing.assert_array_equal(out, want)


def plan_of(function, arguments, **options):
    """The Program, and what it is lowered to."""
    program = trace_function(
        function, arguments, {}, abstract=True, with_values=False
    ).program
    return program, lower(program, check=True, **options)


LARGE = np.zeros(1 << 17, np.float32), np.zeros(5000, np.int32), np.zeros(5000, "f4")


def names(compiled):
    """The names of a plan's kernels."""
    return [step.kernel.rpartition("_")[0] for step in compiled.plan.steps]


def test_targets_are_read_where_they_lie_and_not_copied_before():
    _, compiled = plan_of(lambda x, i, u: x.at[i].add(u), LARGE)
    assert names(compiled) == [
        "elementwise",
        *("count_digits", "digit_offsets", "sort_digits", "scatter_tiles"),
    ]
    _, compiled = plan_of(lambda x, i, u: (x * 2).at[i].add(u), LARGE)
    last = compiled.plan.steps[-1]
    assert names(compiled)[-1] == "scatter_tiles"
    assert len(last.writes) == 1


def test_few_updates_of_what_is_written_over_leave_the_other_targets_alone():
    x, i, u = np.zeros(1 << 19, np.float32), *LARGE[1:]
    add = lambda x, i, u: (x * 2).at[i].add(u)  # noqa: E731
    assert names(plan_of(add, (x, i, u))[1])[-1] == "segments"
    copied = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    assert names(plan_of(copied, (x, i, u))[1])[-1] == "scatter_tiles"


def test_few_targets_and_any_order_take_other_ways():
    add = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    _, compiled = plan_of(add, LARGE, options=Options(deterministic=False))
    assert names(compiled)[-1] == "elementwise"
    assert "atomic_add_f32(" in compiled.kernels[-1].source
    few = np.zeros(1 << 12, np.float32), *LARGE[1:]
    assert names(plan_of(add, few)[1])[-1] == "segments"


@needs_compiler
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("arch", [(8, 0), (9, 0)], ids="sm_{0[0]}{0[1]}".format)
def test_tiles_compile_to_ptx(arch, dtype):
    x, i, u = LARGE
    arguments = x.astype(dtype), i, u.astype(dtype)
    _, compiled = plan_of(lambda x, i, u: x.at[i].min(u), arguments)
    (kernel,) = (k for k in compiled.kernels if k.name.startswith("scatter_tiles"))
    ptx = kernel_ptx(kernel, arch)
    assert "match.any.sync.b32" in ptx
    assert "cp.async.cg.shared.global" in ptx
    assert ".local" not in ptx
