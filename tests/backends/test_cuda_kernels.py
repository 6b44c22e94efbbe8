"""CUDA kernels without a GPU: emulated against NumPy, and compiled to PTX."""

import re
from dataclasses import replace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.calls import evaluate
from arrayfn.scipy.sparse.linalg import cg
from arrayfn.transforms import trace_function
from tests.common_functions import layernorm, random, softmax
from tests.lowered_on_gpu import lowered

ARCHITECTURES = ((8, 0), (9, 0))
needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


# name: function, arguments
CASES = {
    "chain": (lambda x, y: anp.exp(x * y) + 1, (random(4, 64), random(4, 64, seed=1))),
    "chain with a tail": (lambda x: anp.tanh(x) * 2, (random(131),)),
    "scalar": (lambda x: x * 3 + 1, (random(),)),
    "broadcast row": (lambda x, y: x + y, (random(5, 12), random(12))),
    "broadcast middle": (lambda x, y: x + y, (random(5, 7, 3), random(7, 1))),
    "reversed": (lambda x: x[::-1] * x, (random(50),)),
    "half": (lambda x: x * x + x, (random(3, 40, dtype=np.float16),)),
    "compare": (
        lambda x, y: anp.where(x > y, x, -y),
        (random(8, 8), random(8, 8, seed=1)),
    ),
    "booleans": (lambda x: (x > 0) & (x < 1), (random(40),)),
    "integers": (lambda x: x // 3 + x % 5, (np.arange(-30, 34, dtype=np.int32),)),
    "complex": (lambda x: x * anp.conj(x), (random(20) + 1j * random(20, seed=1),)),
    "transpose": (lambda x: anp.transpose(x) + 1, (random(40, 50),)),
    "transpose of whole tiles": (
        lambda x, y: x + y.T,
        (random(64, 32), random(32, 64, seed=1)),
    ),
    "transpose of bytes": (
        lambda x, y: x.T + y[:, None],
        (
            np.arange(136 * 132).reshape(136, 132).astype(np.int8),
            np.arange(132).astype(np.int8),
        ),
    ),
    "transpose of halves in a batch": (
        lambda x: anp.swapaxes(x, 1, 2) + x[:, :64, :64],
        (random(2, 64, 66, dtype=np.float16)[:, :, :64] + 0,),
    ),
    "transpose in a batch": (lambda x: anp.swapaxes(x, 1, 2) * 2, (random(2, 33, 9),)),
    "softmax of a row group": (softmax, (random(5, 12),)),
    "softmax of a warp": (softmax, (random(5, 256),)),
    "softmax of a block": (softmax, (random(2, 1284),)),
    "softmax of odd rows": (softmax, (random(3, 101),)),
    "softmax alone": (softmax, (random(1, 130),)),
    "softmax of columns": (lambda x: softmax(x.T), (random(37, 5),)),
    "layernorm": (layernorm, (random(5, 64), random(64, seed=1))),
    "row maximum": (lambda x: anp.max(x, axis=1), (random(9, 50),)),
    "row any": (lambda x: anp.any(x > 2, axis=1), (random(9, 50),)),
    "column sum": (lambda x: anp.sum(x, axis=0), (random(50, 40),)),
    "outer sum": (lambda x: anp.sum(x, axis=(0, 2)), (random(5, 6, 7),)),
    "full sum": (anp.sum, (random(50, 40),)),
    "sum of float64": (lambda x: anp.sum(x * x, axis=1), (random(4, 66, dtype=float),)),
    "running sum": (lambda x: anp.cumsum(x * x, axis=1), (random(3, 100),)),
    "sorted rows": (anp.sort, (random(3, 20),)),
    "order of rows": (anp.argsort, ((np.arange(30) % 7).astype(np.int32),)),
    "sum of complex": (
        lambda x: anp.sum(x, axis=1),
        (random(3, 9) + 1j * random(3, 9),),
    ),
}
cases = pytest.mark.parametrize("case", CASES)

# A GPU so small that short rows are long ones.
SMALL = GpuConfig(
    multiprocessors=20,
    max_threads=128,
    row_words=8,
    split_blocks=2,
    split_chunk=64,
    tiles=2,
    max_cluster=0,
)
COUNT = np.arange(700, dtype=np.float32)
# name: kernels of the plan, function, arguments
CUT_CASES = {
    "full sum": (2, anp.sum, (random(32, 32),)),
    "full sum with a rest": (3, anp.sum, (random(1031),)),
    "rows": (2, lambda x: anp.max(x, axis=1), (random(3, 1000),)),
    "columns": (2, lambda x: anp.sum(x, axis=0), (random(192, 40),)),
    "columns with a rest": (3, lambda x: anp.sum(x * x, axis=0) + 1, (random(211, 5),)),
    "outer and inner axis": (
        2,
        lambda x: anp.sum(x, axis=(0, 2)),
        (random(20, 3, 30),),
    ),
    "counted": (2, lambda x: anp.sum(x * COUNT), (random(700),)),
    "softmax": (3, softmax, (random(2, 264),)),
    "rows read again": (
        1,
        lambda x: x / anp.sum(x * x, axis=1, keepdims=True),
        (random(20, 700),),
    ),
    "variance": (3, lambda x: anp.var(x, axis=1), (random(2, 700),)),
    "stages that do not merge": (
        4,
        lambda x: anp.sum(anp.max(x, axis=1, keepdims=True) - x, axis=1),
        (random(2, 700),),
    ),
}


def lowered_case(case):
    function, arguments = CASES[case]
    return lowered(function, *arguments)


@cases
def test_emulated_kernels_equal_the_reference(case):
    function, arguments = CASES[case]
    (result,) = run_plan(lowered_case(case), arguments)
    expected = np.asarray(function(*arguments))
    assert result.dtype == expected.dtype
    tolerance = {"f": 1e-6, "c": 1e-6}.get(expected.dtype.kind, 0)
    if expected.dtype == np.float16:
        tolerance = 2e-3
    np.testing.assert_allclose(result, expected, rtol=4 * tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CUT_CASES)
def test_nests_with_few_long_rows_are_cut(case):
    steps, function, arguments = CUT_CASES[case]
    compiled = lowered(function, *arguments, gpu=SMALL)
    assert len(compiled.plan.steps) == steps
    (result,) = run_plan(compiled, arguments)
    np.testing.assert_allclose(result, function(*arguments), rtol=2e-5, atol=2e-6)


def test_elementwise_results_have_the_bits_of_the_reference():
    function, arguments = CASES["chain"]
    (result,) = run_plan(lowered_case("chain"), arguments)
    scalar = lowered(function, *(a[0, 0] for a in arguments))
    (one,) = run_plan(scalar, tuple(a[0, 0] for a in arguments))
    assert result[0, 0].view(np.int32) == one.view(np.int32)


def test_kernels_of_different_types_have_different_keys():
    def infix(x, y):
        return x + y

    keys = set()
    for dtype in (np.float32, np.float64, np.int32):
        x = np.ones((3, 5), dtype)
        (kernel,) = lowered(infix, x, x).kernels
        keys.add(kernel.key)
    assert len(keys) == 3


def test_float32_and_float64_of_one_program_are_two_kernels():
    def both(x, y):
        return x + x[::-1], y + y[::-1]

    arguments = random(15), random(15, dtype=float)
    compiled = lowered(both, *arguments)
    assert len({step.kernel for step in compiled.plan.steps}) == 2


def ptx_of(case, arch):
    kernels = [k for k in lowered_case(case).kernels if isinstance(k, Kernel)]
    return [kernel_ptx(kernel, arch) for kernel in kernels]


@needs_compiler
@pytest.mark.cuda
@cases
@pytest.mark.parametrize("arch", ARCHITECTURES, ids="sm_{0[0]}{0[1]}".format)
def test_kernels_compile_to_ptx(case, arch):
    for ptx in ptx_of(case, arch):
        assert f".target sm_{arch[0]}{arch[1]}" in ptx
        assert re.search(r"\.visible \.entry kernel\(", ptx)
        # Register tiles must be registers.
        assert ".local" not in ptx


@needs_compiler
@pytest.mark.cuda
def test_elementwise_accesses_are_of_128_bits():
    (ptx,) = ptx_of("chain", (9, 0))
    assert ptx.count("ld.global.v4.f32") == 2
    assert ptx.count("st.global.v4.f32") == 1


@needs_compiler
@pytest.mark.cuda
def test_a_row_is_read_once():
    (ptx,) = ptx_of("softmax of a block", (9, 0))
    assert ptx.count("ld.global.v4") == 4
    # Stored again where a product with an inverse was not exact for all of the row.
    assert ptx.count("st.global.v4") == 8


def scaled_deviations(x, scale):
    d = (x - anp.mean(x, axis=-1, keepdims=True)) * scale
    return d / anp.sqrt(anp.mean(d * d, axis=-1, keepdims=True))


@pytest.mark.parametrize("length", [1024, 1030])
@pytest.mark.parametrize("rows", [1, 2])
def test_what_all_rows_share_is_kept_for_a_later_stage(rows, length):
    arguments = random(rows, length), random(length, seed=1)
    (result,) = run_plan(lowered(scaled_deviations, *arguments), arguments)
    want = scaled_deviations(*(a.astype(np.float64) for a in arguments))
    np.testing.assert_allclose(result, want, rtol=2e-6, atol=2e-6)


def test_a_row_alone_is_a_block_s_or_a_cluster_s_or_is_cut():
    def kernels(length, mode=None):
        x = np.empty(length, np.float32)
        made = lowered(softmax, x, options=Options(mode=mode)).kernels
        return [getattr(k, "cluster", 0) for k in made]

    assert kernels(4096) == [1]
    (blocks,) = kernels(1 << 17)
    assert blocks == 8
    assert kernels(1 << 24) == [1, 1, 1]  # parts, what combines them, the elements
    assert len(kernels(4096, "persistent")) == 1
    assert len(kernels(4097, "persistent")) > 1  # both are for all of the card


@needs_compiler
@pytest.mark.cuda
def test_a_row_is_divided_by_products_and_what_is_out_of_their_range_again():
    (ptx,) = ptx_of("softmax of a block", (9, 0))
    vectors = ptx.count("st.global.v4") // 2
    assert ptx.count("rcp.approx.ftz.f32") == 1
    assert ptx.count("div.rn.f32") == 4 * vectors


@needs_compiler
@pytest.mark.cuda
def test_products_are_not_contracted():
    (ptx,) = ptx_of("scalar", (9, 0))
    assert "fma" not in ptx
    assert "mul.rn.f32" in ptx


IN_PLACE_CASES = {
    "elementwise": (lambda x: anp.exp(anp.transpose(x)) + 1, (random(12, 8),)),
    "rows": (lambda x: softmax(anp.cumsum(x, axis=0)), (random(5, 24),)),
    "odd rows": (lambda x: softmax(anp.cumsum(x, axis=0)), (random(5, 7),)),
    "columns": (
        lambda x: (y := anp.cumsum(x, axis=1)) - anp.max(y, axis=0),
        (random(9, 5),),
    ),
}


@pytest.mark.parametrize("case", IN_PLACE_CASES)
def test_results_over_operands_that_die(case):
    function, arguments = IN_PLACE_CASES[case]
    (result,) = run_plan(lowered(function, *arguments), arguments)
    np.testing.assert_allclose(result, function(*arguments), rtol=2e-5, atol=2e-6)


TEMPLATE_CASES = {
    "cumulative rows": (lambda x: anp.cumsum(x, axis=1), (random(5, 9),)),
    "cumulative columns": (lambda x: anp.cumsum(x, axis=0), (random(9, 5),)),
    "concatenate": (lambda x, y: anp.concatenate([x, y]), (random(5, 4), random(3, 4))),
    "pad": (lambda x: anp.pad(x, 2), (random(5, 4),)),
    "gather": (lambda x, i: x[i], (random(5, 4), np.array([3, 0, 3]))),
    "scatter": (lambda x, i: x.at[i].add(1), (random(5), np.array([3, 0, 3]))),
    "gradient of a solution": (
        af.grad(lambda b, a: cg(lambda x: (2 + a * a) * x, b)[0].sum()),
        (random(4), random(4)),
    ),
}


def assert_emulated_equals_reference(function, arguments):
    program = trace_function(function, arguments, {}).program
    (result,) = run_plan(lower(program, check=True), arguments)
    (expected,) = evaluate(program, arguments)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


PRODUCT_CASES = {
    "plain": (lambda x, y: x @ y, (random(5, 7), random(7, 3))),
    "transposed": (lambda x, y: x.T @ y.T, (random(7, 5), random(3, 7))),
    "batched": (lambda x, y: x @ y, (random(2, 5, 7), random(2, 7, 3))),
    "vector": (lambda x, y: x @ y, (random(5, 7), random(7))),
    "float64": (lambda x, y: x @ y, (random(4, 4, dtype=float),) * 2),
    "empty": (lambda x, y: x @ y, (random(4, 0), random(0, 3))),
    "with what follows": (
        lambda x, y, b: anp.tanh(x @ y + b),
        (random(5, 7), random(7, 3), random(3)),
    ),
}


@pytest.mark.parametrize("case", PRODUCT_CASES)
def test_products_equal_the_reference(case):
    assert_emulated_equals_reference(*PRODUCT_CASES[case])


@pytest.mark.parametrize("case", TEMPLATE_CASES)
def test_templates_equal_the_reference(case):
    function, arguments = TEMPLATE_CASES[case]
    program = trace_function(function, arguments, {}).program
    (result,) = run_plan(lower(program, check=True), arguments)
    (expected,) = evaluate(program, arguments)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


LONG_CASES = {
    "columns": (lambda x: anp.sum(x, axis=0), (random(300, 40),)),
    "columns of odd width": (lambda x: anp.sum(x * x, axis=0), (random(130, 9),)),
    "rows read again": (softmax, (random(8, 700),)),
    "rows": (lambda x: anp.sum(x, axis=1), (random(8, 3000),)),
}


@pytest.mark.parametrize("case", LONG_CASES)
def test_threads_go_on_along_what_is_long(case):
    function, arguments = LONG_CASES[case]
    gpu = replace(SMALL, multiprocessors=1)
    (result,) = run_plan(lowered(function, *arguments, gpu=gpu), arguments)
    np.testing.assert_allclose(result, function(*arguments), rtol=2e-5, atol=2e-5)


EXTREMA = {
    "float32": np.array([[1, -0.0, 3, 0], [np.nan, 0.0, 3, -0.0], [2, -np.nan, 3, 0]]),
    "float16": np.array([[-np.inf, -2, 1], [np.inf, -2, 65504], [np.inf, -1, 0]]),
    "uint32": np.array([[2**32 - 1, 0, 7], [2**31, 0, 2**31], [0, 1, 2**32 - 1]]),
    "int32": np.array([[-(2**31), 5, 2**31 - 1], [2**31 - 1, 5, -1], [0, 5, 0]]),
    "bool": np.array([[0, 1, 0], [1, 1, 0], [1, 0, 0]]),
    "int64": np.array([[-(2**63), 0, 2**62], [2**62, -1, 2**62], [0, -1, 2**62 + 1]]),
}


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", EXTREMA)
def test_the_first_extremum_or_nan_is_found(dtype, name):
    x = EXTREMA[dtype].astype(dtype)
    results = run_plan(
        lowered(
            lambda x: (getattr(anp, name)(x, axis=0), getattr(anp, name)(x, axis=1)), x
        ),
        [x],
    )
    for axis, result in enumerate(results):
        np.testing.assert_array_equal(result, getattr(np, name)(x, axis=axis))


def test_positions_in_a_column_that_is_cut_into_chunks_count_from_its_beginning():
    x = random(517, 33)
    compiled = lowered(lambda x: anp.argmax(x, axis=0), x, gpu=SMALL)
    assert len(compiled.kernels) == 3
    (result,) = run_plan(compiled, [x])
    np.testing.assert_array_equal(result, np.argmax(x, axis=0))


@pytest.mark.parametrize("shape", [(8192, 8192), (1 << 26,)])
def test_where_the_greatest_is_takes_one_reading(shape):
    abstract = af.ShapeDtypeStruct(shape, np.float32)
    first = lowered(lambda x: anp.argmax(x, axis=0), abstract).kernels[0].source
    assert len(re.findall(r"load_f32x4\(x_in|= x_in\[", first)) == 1


# A GPU so small that a thread has several vectors.
NARROW = GpuConfig(multiprocessors=1, max_threads=16, threads=32)
TABLE = random(50, 16)
PLACES = (np.arange(83, dtype=np.int32) * 37) % 59
LOOKUPS = {
    "rows": lambda x, i: x[i % 50],
    "filled": lambda x, i: x.at[i].get(mode="fill", fill_value=-1),
    "clipped": lambda x, i: x.at[i].get(mode="clip") * 2 + 1,
    "columns": lambda x, i: x.T[:, i % 50],
    "pairs": lambda x, i: x.reshape(5, 10, 16)[i % 5, i % 10],
}


@pytest.mark.parametrize("case", LOOKUPS)
def test_several_rows_are_looked_up_at_once(case):
    program = trace_function(LOOKUPS[case], (TABLE, PLACES), {}).program
    compiled = lower(program, check=True, gpu=NARROW)
    if case != "columns":
        assert any("for vector in range(2)" in k.source for k in compiled.kernels)
    (result,) = run_plan(compiled, [TABLE, PLACES])
    (expected,) = evaluate(program, [TABLE, PLACES])
    np.testing.assert_array_equal(result, expected)


HALF_PRECISION = dtypes.bfloat16
NARROW_CASES = {
    "bias": ("gemm_f32_bias", lambda x, y, b: x @ y + b, np.float32),
    "bias and relu": (
        "gemm_f32_bias_relu",
        lambda x, y, b: anp.maximum(x @ y + b, 0),
        np.float32,
    ),
    "relu": ("gemm_f32_relu", lambda x, y, b: anp.maximum(x @ y, 0), np.float32),
    "half": ("gemm_f16", lambda x, y, b: x @ y, np.float16),
    "bfloat16": ("gemm_bf16_bias", lambda x, y, b: x @ y + b, HALF_PRECISION),
    "bfloat16 summed as float32": (
        "gemm_bf16_f32",
        lambda x, y, b: lax.dot(x, y, preferred_element_type=np.float32),
        HALF_PRECISION,
    ),
    "tf32": (
        "gemm_f32_tf32",
        lambda x, y, b: anp.matmul(x, y, precision="tf32"),
        np.float32,
    ),
    "computed bias": ("gemm_f32_bias", lambda x, y, b: x @ y + anp.exp(b), np.float32),
}


@pytest.mark.parametrize("case", NARROW_CASES)
def test_products_have_the_library_do_what_follows(case):
    provider, function, dtype = NARROW_CASES[case]
    arguments = [
        random(*s, dtype=dtype, seed=k) for k, s in enumerate(((5, 7), (7, 3)))
    ]
    arguments.append(random(3, dtype=dtype, seed=2))
    program = trace_function(function, tuple(arguments), {}).program
    compiled = lower(program, check=True)
    assert compiled.plan.steps[-1].kernel == provider
    (result,) = run_plan(compiled, arguments)
    (expected,) = evaluate(program, arguments)
    assert result.dtype == expected.dtype
    tolerance = 1e-5 if dtype == np.float32 else 3e-2
    np.testing.assert_allclose(
        result.astype(float), expected.astype(float), tolerance, tolerance
    )


def test_a_product_that_is_needed_itself_is_written():
    def both(x, y, b):
        hidden = x @ y + b
        return hidden, anp.maximum(hidden, 0)

    arguments = random(4, 6), random(6, 8), random(8)
    compiled = lowered(both, *arguments)
    # The sum with the bias is what is needed.
    assert [step.kernel for step in compiled.plan.steps] == [
        "gemm_f32_bias",
        "elementwise_0",
    ]


def test_slices_of_a_loop_need_no_alignment():
    def rows(x):
        return lax.scan(lambda c, row: (c + row, anp.exp(row) * 2), x[0], x)

    x = random(3, 131)
    program = trace_function(rows, (x,), {}, abstract=True, with_values=False).program
    compiled = lower(program, check=True)
    for have, want in zip(
        run_plan(compiled, (x,)), evaluate(program, (x,)), strict=True
    ):
        np.testing.assert_allclose(have, want, 1e-5)


def test_a_product_that_is_a_number_is_multiplied_and_then_added_to():
    x = random(7)
    (result,) = run_plan(
        lowered(lambda x, y: x @ x + y, x, np.float32(2)), (x, np.float32(2))
    )
    np.testing.assert_allclose(result, x @ x + 2, 1e-5)


def test_a_small_loop_is_one_kernel():
    def powers(x):
        start = 0, x
        return lax.while_loop(
            lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] * 2), start
        )

    results = run_plan(lowered(powers, 1.5), (np.float64(1.5),))
    assert [r.item() for r in results] == [10, 1536.0]


def test_a_library_row_without_a_library_is_computed_on_the_host_and_said_to_be():
    reasons = [
        kernel.reason for kernel in lowered(lax.linalg.schur, random(3, 3)).kernels
    ]
    assert "NumPy's reference of schur, on the host" in reasons


HOST_CASES = {
    "Hessenberg": (
        lambda x: anp.abs(lax.linalg.hessenberg(x * 2)[0]) + 1,
        (random(4, 4, dtype=float),),
    ),
    "a slice": (
        lambda x: lax.linalg.schur(x[1:, ::2])[0],
        (random(4, 6, dtype=float),),
    ),
}


@pytest.mark.parametrize("case", HOST_CASES)
def test_steps_on_the_host_equal_the_reference(case):
    function, arguments = HOST_CASES[case]
    program = trace_function(function, arguments, {}).program
    compiled = lower(program, check=True)
    assert any(k.name.startswith("reference_") for k in compiled.kernels)
    (result,) = run_plan(compiled, arguments)
    (expected,) = evaluate(program, arguments)
    np.testing.assert_allclose(result, expected, 1e-12)


def test_kernels_that_were_folded_away_are_not_in_the_plan():
    arguments = random(5, 7), random(7, 3), random(3)
    function = lambda x, y, b: x @ y + b  # noqa: E731
    compiled = lowered(function, *arguments)
    assert [kernel.name for kernel in compiled.kernels] == ["gemm_f32_bias"]


def test_a_registered_kernel_stands_for_its_operator_alone():
    @af.operator(name="test_doubled")
    def doubled(x):
        return x * 2

    @doubled.kernel("cuda", when=lambda x: x.ndim == 1)
    def doubled_rows(x, out):
        """Never called here."""

    def names(function, *arguments):
        return [k.reason for k in lowered(function, *arguments).kernels]

    vector = random(4)
    assert names(doubled, vector) == ["test_doubled by doubled_rows"]
    for other in (lambda x: doubled(anp.outer(x, x)), af.vmap(doubled)):
        assert all("doubled_rows" not in text for text in names(other, vector))


def test_a_vector_of_rows_of_two_axes_is_stored_where_it_begins():
    def both(x):
        y = x[:, ::2]
        return y + 0, anp.sum(y)

    x = random(3, 7)
    compiled = lowered(both, x)
    have, total = run_plan(compiled, (x,))
    np.testing.assert_array_equal(have, x[:, ::2])
    np.testing.assert_allclose(total, x[:, ::2].sum(), 1e-6)


def test_positions_of_extrema_are_found_beside_what_has_no_operands():
    def position(x):
        return anp.argmax(x, axis=0) + anp.arange(3)

    x = random(40, 3)
    (have,) = run_plan(lowered(position, x), (x,))
    np.testing.assert_array_equal(have, position(x))
