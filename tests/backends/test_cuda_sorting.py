"""Sorts and scatters on a GPU, emulated: against NumPy, and the reference."""

import re
from dataclasses import replace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())

# A GPU whose blocks sort 64 elements: rows of 130 are long.
SMALL = replace(GPU, sort_threads=32, sort_row_threads=32, sort_items=2)
AWKWARD = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 1.0]


def draw(dtype, *shape, seed=0):
    """Random elements, with ties and whatever is hard to sort."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) > 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        drawn = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.3, drawn.reshape(-1)[0], drawn)
    if dtype.kind == "c":
        parts = np.empty(shape, dtype)
        parts.real, parts.imag = (draw("f4", *shape, seed=seed + k) for k in (1, 2))
        return parts
    values = rng.standard_normal(shape) * 3
    odd = rng.choice(AWKWARD, shape)
    return np.where(rng.random(shape) < 0.4, odd, values).astype(dtype)


def plan_of(function, arguments, gpu=GPU, **options):
    program = trace_function(function, arguments, {}).program
    compiled = lower(program, check=True, gpu=gpu, **options)
    assert not any(k.name.startswith("reference") for k in compiled.kernels)
    return program, compiled


def assert_as_reference(function, *arguments, gpu=GPU, rtol=0.0, **options):
    program, compiled = plan_of(function, arguments, gpu, **options)
    results = run_plan(compiled, arguments)
    for have, want in zip(results, evaluate(program, arguments), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if have.dtype == dtypes.bfloat16:
            have, want = have.astype(np.float32), want.astype(np.float32)
        np.testing.assert_allclose(have, want, rtol, rtol)
    return compiled


DTYPES = sorted(dtypes.COMPUTED, key=str)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_every_dtype_are_sorted_by_a_block_each(dtype):
    x = draw(dtype, 2, 31)

    def both(x):
        order = anp.argsort(x[1])
        few = order if dtype in dtypes.COMPLEX else lax.top_k(x[1], 7)
        return anp.sort(x[0]), order, few

    assert_as_reference(both, x, gpu=SMALL)


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_longer_rows_are_sorted_digit_by_digit(dtype):
    x = draw(dtype, 70)
    for sort in (anp.sort, anp.argsort):
        compiled = assert_as_reference(sort, x, gpu=SMALL)
        assert len(compiled.plan.steps) == 2 * np.dtype(dtype).itemsize


def test_long_rows_of_complex_numbers_are_sorted_by_their_parts():
    assert_as_reference(anp.argsort, draw("c8", 80), gpu=SMALL)


def test_few_tiles_of_a_row_add_up_their_counts_and_many_have_blocks_for_that():
    for tiles in (11, 33):
        x = draw("?", 64 * tiles + 5)
        compiled = assert_as_reference(anp.sort, x, gpu=SMALL)
        steps = [step.kernel for step in compiled.plan.steps]
        between = ["digit_offsets_0"] if tiles > 32 else []
        assert steps == ["count_digits_0", *between, "sort_digits_0"]


def test_the_greatest_few_of_a_long_row_are_those_of_its_tiles():
    x = draw("f2", 2, 300)
    compiled = assert_as_reference(lambda x: lax.top_k(x, 5), x, gpu=SMALL)
    names = [step.kernel for step in compiled.plan.steps]
    assert names == ["sort_rows_0", "sort_rows_1"]
    compiled = assert_as_reference(lambda x: lax.top_k(x, 90), x, gpu=SMALL)
    assert compiled.plan.steps[-1].kernel.startswith("sort_digits")


def test_no_elements_need_no_kernel():
    for shape in ((0,), (3, 0), (0, 5)):
        _, compiled = plan_of(anp.sort, (np.zeros(shape, np.float32),))
        assert not compiled.plan.steps


RESTING = {
    "median": anp.median,
    "percentile": lambda x: anp.percentile(x, 30.0),
    "unique": lambda x: anp.unique(x, size=20, fill_value=0),
    "nonzero": lambda x: anp.nonzero(x > 0, size=20),
    "searchsorted": lambda x: anp.searchsorted(anp.sort(x), x),
    "lexsort": lambda x: anp.lexsort((x, anp.round(x))),
    "sort of pairs": lambda x: lax.sort((anp.round(x), x), num_keys=2),
    "ranks": lambda x: anp.argsort(anp.argsort(x)),
    "permutation": lambda x: af.random.permutation(af.random.key(3), x),
    "histogram": lambda x: anp.histogram(x, bins=5, range=(-2.0, 2.0))[0],
}


@pytest.mark.parametrize("case", RESTING)
def test_what_rests_on_sorting_takes_no_step_on_the_host(case):
    x = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    assert_as_reference(RESTING[case], x, rtol=1e-6)


ROWS = draw("u1", 20, 8).astype(np.float32)
INDEX = np.random.default_rng(1).integers(-3, 23, 70)
UPDATES = np.random.default_rng(2).standard_normal((70, 8)).astype(np.float32)
COLUMN = UPDATES[:, 0].copy()
INSIDE = np.random.default_rng(3).integers(0, 8, (20, 40))
SCATTERS = {
    "rows": lambda x, i, u: x.at[i].add(u, mode="drop"),
    "clipped": lambda x, i, u: x.at[i].add(u, mode="clip"),
    "multiplied": lambda x, i, u: x.at[i].multiply(u, mode="drop"),
    "least": lambda x, i, u: x.at[i].min(u, mode="drop"),
    "greatest": lambda x, i, u: x.at[i].max(u, mode="drop"),
    "put": lambda x, i, u: x.at[i].set(u, mode="drop"),
    "columns": lambda x, i, u: x.T.at[:, i].add(u.T, mode="drop"),
    "reversed": lambda x, i, u: x[::-1].at[i].add(u[::-1, ::-1], mode="drop"),
    "halves": lambda x, i, u: x.astype("f2").at[i].max(u.astype("f2"), mode="drop"),
    "complex": lambda x, i, u: x.astype("c8").at[i].add(u.astype("c8"), mode="drop"),
    "a literal": lambda x, i, u: x.at[i].add(2.0, mode="drop"),
    "pairs": lambda x, i, u: x.at[i, i // 3].add(u[:, 0], mode="drop"),
    "vmap": lambda x, i, u: af.vmap(lambda x, i, u: x.at[i].add(u))(
        x, INSIDE, anp.tile(u[:20], (1, 5))
    ),
    "gradient of a gather": lambda x, i, u: af.grad(
        lambda x: anp.sum(anp.take_along_axis(x, INSIDE, 1) ** 2)
    )(x),
    "gradient of windows": lambda x, i, u: af.grad(
        lambda x: anp.sum(
            af.vmap(lambda k: lax.dynamic_slice(x, (k, 0), (3, 4)))(i) ** 2
        )
    )(x),
}


@pytest.mark.parametrize("case", SCATTERS)
def test_scatters_put_updates_in_the_order_of_their_targets(case):
    compiled = assert_as_reference(SCATTERS[case], ROWS, INDEX, UPDATES, rtol=2e-5)
    assert any(k.name.startswith(("segments", "put")) for k in compiled.kernels)


def test_long_runs_are_added_up_by_chunks():
    add = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    index = np.random.default_rng(4).integers(0, 3, 70)
    compiled = assert_as_reference(add, ROWS, index, UPDATES, rtol=2e-5)
    steps = [s.kernel for s in compiled.plan.steps if "segments" in s.kernel]
    assert steps == ["segments_0", "segments_1"]


def test_few_updates_and_those_that_do_not_meet_are_put_by_one_kernel():
    def few(x, i, u):
        return x.at[i[:20]].add(u[:20], mode="drop")

    def apart(x, i, u):
        return x.at[i].add(u, unique_indices=True, mode="drop")

    for function in (few, apart):
        _, compiled = plan_of(function, (ROWS, INDEX, UPDATES))
        assert not any(k.name.startswith("segments") for k in compiled.kernels)


@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_indices_that_are_said_to_ascend_are_not_sorted(mode):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def add(x, i, u):
        where = anp.reshape(i, (-1, 1))
        return lax.scatter_add(x, where, u, numbers, indices_are_sorted=True, mode=mode)

    index = np.sort(INDEX)
    compiled = assert_as_reference(add, ROWS, index, UPDATES, rtol=2e-5)
    kernels = [k.name for k in compiled.kernels if not k.name.startswith("elementwise")]
    assert kernels == ["segments_0", "segments_1"]
    batch = (np.stack([ROWS, ROWS]), np.stack([index, index - 1]), UPDATES)
    each = af.vmap(add, in_axes=(0, 0, None))
    compiled = assert_as_reference(each, *batch, rtol=2e-5)
    assert not any(k.name.startswith("sort") for k in compiled.kernels)


def test_integers_and_what_need_not_be_deterministic_are_added_at_once():
    def count(i):
        return anp.bincount(i, length=30)

    def add(x, i, u):
        return x[:, 0].at[i].add(u, mode="drop")

    any_order = Options(deterministic=False)
    many = np.random.default_rng(5).integers(-2, 32, 4100)
    for function, arguments, options, kernel in (
        (count, (abs(INDEX),), {}, "elementwise"),
        (count, (many,), {}, "add_in_bins"),
        (add, (ROWS, INDEX, COLUMN), {"options": any_order}, "elementwise"),
    ):
        compiled = assert_as_reference(function, *arguments, rtol=2e-5, **options)
        last = compiled.plan.steps[-1].kernel
        assert last.startswith(kernel)
        (source,) = (k.source for k in compiled.kernels if k.name == last)
        assert "atomic_add_" in source


@needs_compiler
@pytest.mark.parametrize("arch", [(8, 0), (9, 0)])
def test_kernels_of_sorts_and_scatters_keep_tiles_in_registers(arch):
    kernel_ptx = pytest.importorskip("arrayfn.backends.cuda.code").kernel_ptx

    def both(x, i, u):
        order, few = anp.argsort(x), anp.argsort(x[:20_000])
        return order, few, (u[:50] * 0).at[i].add(u)

    arguments = (
        np.zeros(200_000, np.float32),
        np.zeros(9_000, np.int32),
        np.zeros((9_000, 64), np.float32),
    )
    seen = set()
    for kernel in lowered(both, *arguments).kernels:
        assert isinstance(kernel, Kernel)
        stem = re.sub(r"_\d+$", "", kernel.name)
        summed = [p.name for p in kernel.parameters].count("totals_in")
        if (stem, summed) in seen or stem == "elementwise":
            continue
        seen.add((stem, summed))
        ptx = kernel_ptx(kernel, arch)
        assert ".local" not in ptx
    assert {("sort_digits", 0), ("sort_digits", 1)} <= seen
    stems = {stem for stem, _ in seen}
    assert {"count_digits", "digit_offsets", "sort_digits", "segments"} <= stems


FAR = {
    "gather": lambda x, i, u: anp.take(x, i, axis=0, mode="clip"),
    "gather with a filler": lambda x, i, u: anp.take(x, i, axis=0, mode="fill"),
    "put apart": lambda x, i, u: x.at[i].set(u, mode="drop", unique_indices=True),
    "added apart": lambda x, i, u: x.at[i].add(u, mode="drop", unique_indices=True),
    "slice": lambda x, i, u: lax.dynamic_slice(x, (i[0], 0), (4, 64)),
    "slice put": lambda x, i, u: lax.dynamic_update_slice(x, u, (i[0], 0)),
}


@pytest.mark.parametrize("case", FAR)
def test_windows_at_computed_places_are_moved_by_vectors(case):
    x, u = (draw("i4", n, 64, seed=n).astype(np.float32) for n in (20, 9))
    index = np.random.default_rng(6).permutation(24)[:9]
    compiled = assert_as_reference(FAR[case], x, index, u)
    text = compiled.kernels[-1].source
    assert re.search(r"(load|store)_f32x4\(\w+, first \+ \w+ \* ", text)
