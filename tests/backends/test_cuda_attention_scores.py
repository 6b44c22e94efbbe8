"""Score functions in attention's kernels: emulated against float64, and compiled."""

import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, nn
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.cuda.attention.scores import score_lines
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.plan import Kernel
from arrayfn.nn.score_programs import traced_scores, with_slope

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
BF16 = dtypes.bfloat16


def random(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(B, T, S, N, K, H, dtype=np.float16):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    return tuple(random(*s, seed=k, dtype=dtype) for k, s in enumerate(shapes))


SLOPES = np.array([0.5, 0.25], np.float32)
TABLE = random(2, 128, seed=7, dtype=np.float32)
DOCUMENTS = np.sort(np.random.default_rng(1).integers(0, 3, (2, 70)))


def alibi(score, b, h, q, k):
    return score - anp.asarray(SLOPES)[h] * (q - k).astype(np.float32)


def alibi_in_float64(score, b, h, q, k):
    return score - anp.asarray(SLOPES)[h] * abs(q - k)


def relative(score, b, h, q, k):
    return score + anp.asarray(TABLE)[h, q - k + 80]


def softcap(score, b, h, q, k):
    return 2 * anp.tanh(score / 2)


def same_document(b, h, q, k):
    documents = anp.asarray(DOCUMENTS)
    return documents[b, q] == documents[b, k]


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (k - q < 40) & (k - q > 25)


def window_of_head(b, h, q, k):
    return (k - q - 9 * h < 10) & (k - q - 9 * h > 2) & (q > 8)


def never(b, h, q, k):
    return q > 1000


def mask_of(mask_mod, T, S, block, heads=None, batches=None):
    return nn.create_block_mask(mask_mod, batches, heads, T, S, block)


def compiled_for_gpu(function, *arguments):
    return af.jit(function, device="cuda").lower(*arguments)


def reasons(lowered):
    return [k.reason for k in lowered.kernels if "attention" in k.reason]


def both(options, weights):
    """Attention, and the gradient of its sum with these weights."""

    def loss(q, k, v):
        result = nn.dot_product_attention(q, k, v, **options)
        return anp.sum(anp.multiply(result.astype(np.float32), weights)), result

    return af.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


def compare(options, arguments):
    """The kernels' result and gradients beside those of the formula in float64."""
    weights = random(*arguments[0].shape, seed=9, dtype=np.float32)
    function = both(options, weights)
    lowered = compiled_for_gpu(function, *arguments)
    assert [name for name in reasons(lowered) if "tiles" in name] == [
        "attention by tiles of queries",
        "dq of attention by tiles",
        "dk and dv of attention by tiles",
    ]
    _, *have = run_plan(lowered.compiled_program, arguments)
    (_, result), gradients = function(*(x.astype(np.float64) for x in arguments))
    bound = 2e-3 if arguments[0].dtype == np.float16 else 1.2e-2
    for x, y in zip(have, (result, *gradients), strict=True):
        assert x.dtype == arguments[0].dtype
        error = np.linalg.norm(x.astype(float) - y)
        assert error <= bound * np.linalg.norm(y)


# name: q, k and v; options
CASES = {
    "slopes of heads, causal": (
        inputs(2, 17, 33, 2, 1, 20),
        {"score_mod": alibi, "block_mask": mask_of(causal, 17, 33, 8)},
    ),
    "slopes in float64": (inputs(1, 9, 18, 2, 2, 7), {"score_mod": alibi_in_float64}),
    "a table of distances, a window": (
        inputs(1, 37, 70, 2, 1, 20),
        {"score_mod": relative, "block_mask": mask_of(window, 37, 70, (16, 8))},
    ),
    "capped scores": (inputs(1, 17, 33, 2, 1, 20), {"score_mod": softcap}),
    "capped scores, masks of heads": (
        inputs(1, 37, 70, 2, 1, 8),
        {
            "score_mod": softcap,
            "block_mask": mask_of(window_of_head, 37, 70, (8, 16), heads=2),
        },
    ),
    "documents": (
        inputs(2, 24, 40, 1, 1, 16, BF16),
        {"block_mask": mask_of(same_document, 24, 40, (128, 12), batches=2)},
    ),
    "capped scores with a bias, lengths and a mask": (
        inputs(2, 9, 20, 1, 1, 12, BF16),
        {
            "score_mod": softcap,
            "bias": random(9, 20, seed=5, dtype=np.float32),
            "mask": np.random.default_rng(3).random((9, 20)) < 0.8,
            "key_value_seq_lengths": np.array([20, 3]),
            "is_causal": True,
            "scale": -0.3,
        },
    ),
    "heads of 64": (
        inputs(1, 9, 20, 1, 1, 64, BF16),
        {"score_mod": softcap, "block_mask": mask_of(causal, 9, 20, 16)},
    ),
    "heads of 128": (inputs(1, 9, 20, 1, 1, 128), {"score_mod": softcap}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_attention_with_a_score_function(case):
    arguments, options = CASES[case]
    compare(options, arguments)


def test_long_heads_have_a_kernel_each_for_keys_and_values():
    arguments = inputs(1, 5, 9, 1, 1, 130)
    weights = random(*arguments[0].shape, seed=9, dtype=np.float32)
    function = both({"score_mod": softcap}, weights)
    lowered = compiled_for_gpu(function, *arguments)
    assert len([name for name in reasons(lowered) if "tiles" in name]) == 4
    _, *have = run_plan(lowered.compiled_program, arguments)
    (_, result), gradients = function(*(x.astype(np.float64) for x in arguments))
    for x, y in zip(have, (result, *gradients), strict=True):
        assert np.linalg.norm(x.astype(float) - y) < 2e-3 * np.linalg.norm(y)


def test_queries_without_a_key_give_zeros_and_zero_gradients():
    arguments = inputs(1, 9, 20, 1, 1, 8)
    weights = np.ones(arguments[0].shape, np.float32)
    # The derivative of sqrt is infinite at the zeros behind the end of the keys.
    options = {
        "score_mod": lambda score, b, h, q, k: anp.sqrt(abs(score)),
        "block_mask": mask_of(never, 9, 20, 8),
    }
    lowered = compiled_for_gpu(both(options, weights), *arguments)
    for x in run_plan(lowered.compiled_program, arguments):
        np.testing.assert_array_equal(x, np.zeros_like(x))


def test_blocks_that_are_left_out_are_not_read():
    """They hold NaN, which no sum could hide."""
    q, k, v = inputs(1, 16, 208, 1, 1, 8)

    def middle(b, h, q, k):
        return (k >= 80) & (k < 112)

    def two_blocks(b, h, q, k):
        return (k < 16) | (k >= 192)

    for mask_mod, live in ((middle, [80]), (two_blocks, [0, 192])):
        keys, values = (np.full_like(x, np.nan) for x in (k, v))
        for begin in live:
            to = begin + 64  # a tile of keys, from the first kept one on
            keys[:, begin:to], values[:, begin:to] = k[:, begin:to], v[:, begin:to]
        options = {"score_mod": softcap, "block_mask": mask_of(mask_mod, 16, 208, 16)}
        weights = random(*q.shape, seed=9, dtype=np.float32)
        lowered = compiled_for_gpu(both(options, weights), q, keys, values)
        _, *have = run_plan(lowered.compiled_program, (q, keys, values))
        wide = (x.astype(np.float64) for x in (q, k, v))
        (_, result), gradients = both(options, weights)(*wide)
        for x, y in zip(have[:2], (result, gradients[0]), strict=True):
            assert np.linalg.norm(x.astype(float) - y) < 2e-3 * np.linalg.norm(y)


def test_blocks_of_queries_that_are_left_out_are_not_read():
    q, k, v = inputs(1, 208, 16, 2, 1, 8)

    def two_blocks(b, h, q, k):
        return ((q < 16) & (h == 0)) | ((q >= 192) & (h == 1))

    mask = mask_of(two_blocks, 208, 16, 16, heads=2)
    weights = random(*q.shape, seed=9, dtype=np.float32)
    queries = np.full_like(q, np.nan)
    queries[:, :64, 0], queries[:, 192:, 1] = q[:, :64, 0], q[:, 192:, 1]
    options = {"score_mod": softcap, "block_mask": mask}
    lowered = compiled_for_gpu(both(options, weights), queries, k, v)
    _, *have = run_plan(lowered.compiled_program, (queries, k, v))
    wide = (x.astype(np.float64) for x in (q, k, v))
    _, gradients = both(options, weights)(*wide)
    for x, y in zip(have[2:], gradients[1:], strict=True):
        assert np.linalg.norm(x.astype(float) - y) < 2e-3 * np.linalg.norm(y)


def test_the_gradient_by_a_captured_array_is_the_formula():
    arguments = inputs(2, 9, 12, 2, 1, 8)

    def loss(slopes, counts, q, k, v):
        def score_mod(score, b, h, q_idx, k_idx):
            slope = anp.exp(slopes)[h] * anp.asarray(counts)[b]
            return anp.tanh(score) + slope * (q_idx - k_idx)

        result = nn.dot_product_attention(q, k, v, score_mod=score_mod)
        return anp.sum(anp.multiply(result.astype(np.float32), result))

    counts = np.array([1, 2], np.int32)
    gradient = af.grad(loss, argnums=(0, 2))
    lowered = compiled_for_gpu(gradient, SLOPES, counts, *arguments)
    have = run_plan(lowered.compiled_program, (SLOPES, counts, *arguments))
    wide = [x.astype(np.float64) for x in (SLOPES, *arguments)]
    want = gradient(wide[0], counts, *wide[1:])
    assert "dq of attention by tiles" in reasons(lowered)
    for x, y in zip(have, want, strict=True):
        np.testing.assert_allclose(x.astype(float), y, rtol=2e-2, atol=2e-3)


def test_the_gradient_by_a_bias_goes_through_the_score_function():
    arguments = inputs(1, 9, 20, 2, 2, 8)
    bias = random(2, 9, 20, seed=4, dtype=np.float32)
    weights = random(*arguments[0].shape, seed=9, dtype=np.float32)

    def loss(bias, q, k, v):
        result = nn.dot_product_attention(q, k, v, bias, score_mod=softcap)
        return anp.sum(anp.multiply(result.astype(np.float32), weights))

    lowered = compiled_for_gpu(af.grad(loss), bias, *arguments)
    assert "the bias's cotangent of attention by tiles" in reasons(lowered)
    (have,) = run_plan(lowered.compiled_program, (bias, *arguments))
    want = af.grad(loss)(*(x.astype(np.float64) for x in (bias, *arguments)))
    assert np.linalg.norm(have - want) < 2e-3 * np.linalg.norm(want)


def test_mapped_attention_has_the_same_results():
    q, k, v = (np.stack([x, x[:, ::-1]]) for x in inputs(1, 9, 12, 2, 1, 8))
    mask = mask_of(causal, 9, 12, 4)

    def attend(q, k, v):
        return nn.dot_product_attention(q, k, v, score_mod=relative, block_mask=mask)

    mapped = af.vmap(attend)
    lowered = compiled_for_gpu(mapped, q, k, v)
    (have,) = run_plan(lowered.compiled_program, (q, k, v))
    want = mapped(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(have.astype(float), want, rtol=2e-3, atol=2e-3)


def test_a_derivative_of_second_order_is_that_of_the_body():
    q, k, v = inputs(1, 4, 5, 1, 1, 8, BF16)

    def slope(q, k, v):
        def loss(q):
            result = nn.dot_product_attention(q, k, v, score_mod=softcap)
            return anp.sum(result.astype(np.float32) ** 2)

        return anp.sum(af.grad(loss)(q).astype(np.float32) ** 2)

    lowered = compiled_for_gpu(af.grad(slope), q, k, v)
    (have,) = run_plan(lowered.compiled_program, (q, k, v))
    want = af.grad(slope)(*(x.astype(np.float64) for x in (q, k, v)))
    assert np.linalg.norm(have.astype(float) - want) < 5e-2 * np.linalg.norm(want)


@af.custom_jvp
def straight_through(x):
    return anp.round(x)


straight_through.defjvp(lambda primals, tangents: (anp.round(*primals), *tangents))
WITHOUT_KERNEL = {
    "a derivative rule": lambda score, b, h, q, k: straight_through(score),
    "a sum at each score": lambda score, b, h, q, k: (
        score + anp.sum(anp.asarray(TABLE)[h])
    ),
    "a loop": lambda score, b, h, q, k: af.lax.fori_loop(
        0, h, lambda _, x: anp.sin(x), score
    ),
}


@pytest.mark.parametrize("case", WITHOUT_KERNEL)
def test_what_no_line_can_say_runs_on_all_logits(case):
    arguments = inputs(1, 5, 9, 2, 1, 8)

    def attend(q, k, v):
        return nn.dot_product_attention(q, k, v, score_mod=WITHOUT_KERNEL[case])

    lowered = compiled_for_gpu(attend, *arguments)
    assert reasons(lowered) == []
    (have,) = run_plan(lowered.compiled_program, arguments)
    want = attend(*(x.astype(np.float64) for x in arguments))
    np.testing.assert_allclose(have.astype(float), want, rtol=1e-2, atol=1e-2)


def test_a_cpu_has_no_such_kernel():
    arguments = inputs(1, 5, 9, 2, 1, 8)
    f = af.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, score_mod=softcap))
    assert "nn.attention" not in f.lower(*arguments).as_text()
    _, tangent = af.jvp(f, arguments, arguments)  # forward mode, too
    assert tangent.dtype == np.float16


def lines_of(score_mod, extents=(2, 2, 80, 80), slope=False):
    traced = traced_scores(score_mod, None)
    strides = [RowMajor().strides(x.shape) for x in traced.captured]
    text = with_slope(traced.text) if slope else traced.text
    captured = tuple(ArrayType(x.shape, x.dtype) for x in traced.captured)
    return score_lines(text, extents, captured, tuple(strides))


def test_kernels_take_no_functions_of_arrays_of_other_shapes():
    """As a text in a file may say, which would be read outside of the arrays."""
    traced = traced_scores(alibi, None)
    types = [ArrayType(shape, BF16) for shape in [(1, 8, 2, 16)] * 3]
    score = {"score": traced.text, "given": ("captured_000",)}
    static = {"scale": 1.0, "window": (None, None), "block": None, **score}
    for length, chosen in ((2, "generated_attention"), (1, None)):
        operands = [*types, ArrayType((length,), np.float32)]
        found = KERNELS.find("nn.attention", "cuda", operands, static)
        assert chosen == (found and found.function.__name__)


def test_kernels_take_no_block_masks_of_other_shapes():
    types = [ArrayType(shape, BF16) for shape in [(1, 8, 2, 16)] * 3]
    names = {"given": ("next_keys", "next_queries")}
    static = {"scale": 1.0, "window": (None, None), "score": "", **names}
    blocks = [ArrayType((1, 2, 2, 3), np.int32)] * 2
    for size, chosen in ((4, "generated_attention"), (2, None)):
        options = {**static, "block": (size, size)}
        found = KERNELS.find("nn.attention", "cuda", [*types, *blocks], options)
        assert chosen == (found and found.function.__name__)


def test_indices_that_are_known_to_be_inside_are_not_tested():
    of_head, *_ = lines_of(alibi).in_loops("query")
    assert of_head == [
        "s_i_index = convert_i32_i64(s_member)",
        "s_k_read = captured_000[s_i_index]",
    ]
    inside, across = (lines_of(relative, (2, 2, n, n)).lines for n in (40, 80))
    assert not any("select" in line.text for line in inside)
    assert any("select_f32" in line.text for line in across)


def test_elements_outside_of_a_captured_array_are_nan():
    arguments = inputs(1, 5, 9, 2, 1, 8)

    def attend(q, k, v):
        def score_mod(score, b, h, q_idx, k_idx):
            return score + anp.asarray(TABLE)[h, q_idx + 125]

        return nn.dot_product_attention(q, k, v, score_mod=score_mod)

    lowered = compiled_for_gpu(attend, *arguments)
    assert reasons(lowered) == ["attention by tiles of queries"]
    (have,) = run_plan(lowered.compiled_program, arguments)
    np.testing.assert_array_equal(np.isnan(have).any((0, 2, 3)), [0, 0, 0, 1, 1])


def test_a_slope_of_one_multiplies_nothing():
    found = lines_of(alibi, slope=True)
    assert found.slope == ""
    assert lines_of(softcap, slope=True).slope != ""


HALVES = random(2, seed=3)
FLAGS = np.random.default_rng(4).random((2, 20)) < 0.7
OF_DOCUMENTS = random(3, seed=5, dtype=np.float32)
FLOAT8 = random(2, 9, seed=6, dtype=np.float32).astype(dtypes.float8_e4m3fn)
NOTHING = np.zeros(0, np.float32)
# name: the score function; whether a kernel computes it
READS = {
    "halves, rounded": (
        lambda s, b, h, q, k: s.astype(BF16) * anp.asarray(HALVES)[h].astype(BF16),
        True,
    ),
    "bools": (
        lambda s, b, h, q, k: anp.where(anp.asarray(FLAGS)[h, k], s, s / 2),
        True,
    ),
    "at an index that is read": (
        lambda s, b, h, q, k: (
            s + anp.asarray(OF_DOCUMENTS)[anp.asarray(DOCUMENTS)[b, q]]
        ),
        True,
    ),
    "at the nearest index": (
        lambda s, b, h, q, k: s + anp.take(OF_DOCUMENTS, q - k, mode="clip"),
        True,
    ),
    "of a slice, backwards": (
        lambda s, b, h, q, k: (
            s + anp.asarray(TABLE)[h, 3:9][k % 6] + anp.asarray(TABLE)[:, ::-1][h, q]
        ),
        True,
    ),
    "numbers alone": (
        lambda s, b, h, q, k: s * anp.asarray(OF_DOCUMENTS)[1],
        True,
    ),
    "no elements": (
        lambda s, b, h, q, k: anp.where(q < 0, anp.asarray(NOTHING)[q], s),
        True,
    ),
    "float8": (
        lambda s, b, h, q, k: s + anp.asarray(FLOAT8)[h, q].astype(np.float32),
        False,
    ),
}


@pytest.mark.parametrize("case", READS)
def test_score_functions_read_captured_arrays(case):
    score_mod, has_kernel = READS[case]
    arguments = inputs(1, 9, 20, 2, 1, 8)

    def attend(q, k, v):
        return nn.dot_product_attention(q, k, v, score_mod=score_mod)

    lowered = compiled_for_gpu(attend, *arguments)
    assert bool(reasons(lowered)) == has_kernel
    (have,) = run_plan(lowered.compiled_program, arguments)
    want = af.jit(attend)(*(x.astype(np.float32) for x in arguments))
    bound = 2e-2 if "halves" in case else 1e-3
    np.testing.assert_allclose(have.astype(float), want, rtol=bound, atol=bound)


def test_windows_of_windows_are_read_at_one_element():
    def nested(score, b, h, q, k):
        table = anp.asarray(TABLE)
        return score + table[h][q] + table[1, k] + table.T[k][h]

    arguments = inputs(1, 5, 9, 2, 1, 8)
    compare({"score_mod": nested}, arguments)


@needs_compiler
@pytest.mark.parametrize("arch", [(8, 0), (9, 0)])
def test_scores_stay_in_registers(arch):
    mask = mask_of(causal, 256, 256, 128)

    def loss(q, k, v):
        options = {"score_mod": softcap, "block_mask": mask}
        return anp.sum(nn.dot_product_attention(q, k, v, **options).astype(np.float32))

    arguments = inputs(1, 256, 256, 2, 1, 64, BF16)
    gradient = af.value_and_grad(loss, argnums=(0, 1, 2))
    kernels = [
        k for k in compiled_for_gpu(gradient, *arguments).kernels if "tiles" in k.reason
    ]
    assert len(kernels) == 3
    for kernel in kernels:
        assert isinstance(kernel, Kernel)
        ptx = kernel_ptx(kernel, arch)
        assert re.search(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16", ptx)
        assert ".local" not in ptx
