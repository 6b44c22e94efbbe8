"""float8 and int4: conversions of all values, moves, products, derivatives, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError
from arrayfn.lowering.lower import lower

Array = np.ndarray[Any, Any]

BYTES = np.arange(256, dtype=np.uint8)
STORAGE = sorted(dtypes.STORAGE, key=str)
FLOAT8 = sorted(dtypes.FLOAT8, key=str)
DEVICES = ("cpu", "reference")
E4M3 = ml_dtypes.float8_e4m3fn


def assert_same_bits(have: Array, want: Array) -> None:
    """Equal bits, except those of NaNs."""
    assert (have.shape, have.dtype) == (want.shape, want.dtype)
    if want.dtype in dtypes.DIFFERENTIABLE:
        nan = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(have.astype(np.float32)), nan)
        have, want = have[~nan], want[~nan]
    np.testing.assert_array_equal(
        np.ascontiguousarray(have).view(np.uint8),
        np.ascontiguousarray(want).view(np.uint8),
    )


def convert(x: Array, dtype: Any, device: str = "cpu") -> Array:
    return af.jit(lambda x: x.astype(dtype), device=device)(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_all_values_convert_as_those_of_ml_dtypes(dtype: DType, device: str) -> None:
    x = BYTES.view(dtype)
    for target in ("float16", "bfloat16", "float32", "float64", "int32", "bool"):
        wanted = x.astype(dtypes.canonical(target))
        assert_same_bits(convert(x, target, device), wanted)


def float32_around(dtype: DType) -> Array:
    """All bfloat16, the numbers of ``dtype``, their midpoints, and next to these."""
    x = BYTES.view(dtype).astype(np.float32)
    x = np.sort(x[np.isfinite(x)])
    x = np.concatenate([x, (x[1:] + x[:-1]) / 2])
    with np.errstate(all="ignore"):
        near = [np.nextafter(x, np.float32(way)) for way in (np.inf, -np.inf)]
        brain = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
        return np.concatenate([x, *near, brain.astype(np.float32)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_numbers_round_to_float8_as_those_of_ml_dtypes(
    dtype: DType, device: str
) -> None:
    x = float32_around(dtype)
    integers = np.arange(-70_000, 70_000, 7, dtype=np.int32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        for given in (x, x.astype(np.float64), halves, integers):
            assert_same_bits(convert(given, dtype, device), given.astype(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [dtypes.int4, dtypes.uint4], ids=str)
def test_integers_wrap_into_4_bits_and_floats_are_clamped(
    dtype: DType, device: str
) -> None:
    x = np.arange(-300, 300, dtype=np.int32)
    assert_same_bits(convert(x, dtype, device), x.astype(dtype))
    y = np.array([-np.inf, -100, -8.9, -1.5, 0.9, 7.9, 15.9, 1e9, np.inf, np.nan])
    low, high = dtypes.limits(dtype).min, dtypes.limits(dtype).max
    wanted = [low, low, max(low, -8), max(low, -1), 0, 7, min(high, 15), high, high, 0]
    np.testing.assert_array_equal(convert(y, dtype, device).astype(int), wanted)


def moves(x: Array) -> tuple[Array, ...]:
    """What reads elements in another order."""
    return (
        x.T,
        x.reshape(7, 5),
        x[1:4, ::2],
        anp.concatenate([x, x]),
        anp.broadcast_to(x, (2, 5, 7)),
        x[np.array([0, 4, -1])],
        anp.where(x.astype(np.float32) > 0, x, 0),
        anp.at(x)[0].set(x[1]),
        anp.pad(x, 1, constant_values=1),
        anp.flip(x, 0),
        lax.bitcast_convert_type(x, np.uint8),
        lax.scan(lambda carry, row: (row, carry), x[0], x)[1],
        x,
    )


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_arrays_are_moved_without_a_change_of_bits(dtype: DType) -> None:
    x = np.random.default_rng(3).integers(0, 16, 35, np.uint8).reshape(5, 7)
    x = (x * np.uint8(1 if dtype in dtypes.INT4 else 17)).view(dtype)
    by_kernels, by_numpy = (af.jit(moves, device=device)(x) for device in DEVICES)
    for have, want in zip(by_kernels, by_numpy, strict=True):
        assert_same_bits(have, want)
    assert_same_bits(by_kernels[0], x.T)
    assert_same_bits(af.jit(lambda x: x[:, 1:])(np.asfortranarray(x)), x[:, 1:])


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_float8_are_added_in_float32(device: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 300)).astype(E4M3)
    for dtype in FLOAT8:
        y = rng.standard_normal((300, 5)).astype(dtype)
        exact = x.astype(np.float64) @ y.astype(np.float64)
        sizes = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))
        for product in (
            lambda x, y: anp.matmul(x, y, preferred_element_type=np.float32),
            lambda x, y: anp.einsum("ij,jk->ik", x, y, preferred_element_type="f4"),
            lambda x, y: lax.dot_general(
                x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.float32
            ),
        ):
            have = af.jit(product, device=device)(x, y)
            assert have.dtype == np.float32
            assert np.all(np.abs(have - exact) <= 300 * 2.0**-24 * sizes)


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_int4_are_exact_in_int32(device: str) -> None:
    rng = np.random.default_rng(5)
    for first, second in (("int4", "int4"), ("uint4", "int4")):
        a = rng.integers(-8, 8, (6, 300)).astype(first)
        b = rng.integers(-8, 8, (300, 5)).astype(second)
        have = af.jit(
            lambda a, b: anp.matmul(a, b, preferred_element_type=np.int32),
            device=device,
        )(a, b)
        np.testing.assert_array_equal(have, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(
    ("dtype", "into"),
    [
        *(("float8_e5m2", into) for into in ("float16", "bfloat16", "float64")),
        *(("int4", into) for into in ("float16", "bfloat16", "int8", "int64")),
    ],
)
def test_products_into_every_dtype_are_rounded_once(dtype: str, into: str) -> None:
    wide = dtypes.canonical(into)
    rng = np.random.default_rng(6)
    x = rng.integers(-4, 4, (3, 70)).astype(dtype)
    y = rng.integers(-4, 4, (70, 5)).astype(dtype)

    def product(x: Array, y: Array) -> Array:
        return anp.matmul(x, y, preferred_element_type=wide)

    want = (x.astype(np.int64) @ y.astype(np.int64)).astype(wide)
    for device in DEVICES:
        np.testing.assert_array_equal(af.jit(product, device=device)(x, y), want)


def test_derivatives_pass_through_casts_as_in_jax() -> None:
    x = np.array([1.07, 2.3], np.float32)

    def loss(x: Array) -> Array:
        return anp.sum(x.astype(E4M3).astype(np.float32) ** 2)

    # The numbers that JAX 0.10.2 gives.
    np.testing.assert_array_equal(af.jit(af.grad(loss))(x), [2.25, 4.5])

    def of_float8(w: Array) -> Array:
        return anp.sum(w.astype(np.float32) ** 2)

    slope = af.grad(of_float8)(x.astype(E4M3))
    assert_same_bits(slope, np.array([2.25, 4.5]).astype(E4M3))


def test_cotangents_of_float8_are_added_in_float32() -> None:
    w = np.array([1.0, 2.0]).astype(E4M3)

    def loss(w: Array) -> Array:
        rows = anp.broadcast_to(w, (3, 2)).astype(np.float32)
        return anp.sum(rows**2) + anp.sum(w[np.array([0, 0, 1])].astype(np.float32))

    slope = af.jit(af.grad(loss))(w)
    assert_same_bits(slope, np.array([8.0, 13.0]).astype(E4M3))


def test_a_product_is_differentiated_in_the_products_dtype() -> None:
    rng = np.random.default_rng(6)
    x, w = (rng.integers(-2, 3, shape).astype(E4M3) for shape in ((3, 4), (4, 2)))
    slope = af.jit(
        af.grad(lambda w: anp.sum(anp.matmul(x, w, preferred_element_type="f4")))
    )(w)
    wanted = x.astype(np.float32).sum(0)[:, None] * np.ones((1, 2), np.float32)
    assert_same_bits(slope, wanted.astype(E4M3))


def test_other_arithmetic_is_refused_with_the_remedy() -> None:
    x = np.ones((2, 2)).astype(E4M3)
    for function in (
        lambda x: x + x,
        lambda x: x * 2.0,
        lambda x: x + np.float32(1),
        anp.exp,
        anp.sum,
        anp.mean,
        anp.sort,
        lambda x: x > 0,
        anp.linalg.inv,
        lambda x: x @ x.astype(np.float32),
    ):
        with pytest.raises(DTypeError, match=r"for storage; .*x\.astype\('float32'\)"):
            af.jit(function)(x)
    with pytest.raises(DTypeError, match="preferred_element_type, one of f16, bf16"):
        af.jit(lambda x: x @ x)(x)
    with pytest.raises(DTypeError, match=r"x\.astype\('int8'\)"):
        af.jit(lambda x: x + x)(np.ones(2, "int4"))


def test_a_python_function_takes_bytes() -> None:
    x = np.ones(2).astype(E4M3)
    shape = af.ShapeDtypeStruct((2,), np.uint8)

    def by_bytes(x: Array) -> Array:
        raw = lax.bitcast_convert_type(x, np.uint8)
        return lax.bitcast_convert_type(af.pure_callback(np.flip, shape, raw), E4M3)

    assert_same_bits(af.jit(by_bytes)(x), x)
    with pytest.raises(DTypeError, match="pass the bytes"):
        af.jit(lambda x: af.pure_callback(np.flip, shape, x))(x)


def test_kernels_see_bytes_and_callers_the_storage_type() -> None:
    program = af.make_program(lambda x: (x.T, x.astype(np.float32)))(
        np.ones((2, 3)).astype(E4M3)
    )
    assert str(program.input_types[0]) == "f8e4m3fn[2,3]"
    compiled = lower(program, check=True)
    assert [str(t) for t in compiled.input_types] == ["f8e4m3fn[2,3]"]
    assert [str(t) for t in compiled.output_types] == ["f8e4m3fn[3,2]", "f32[2,3]"]
    assert "f8e4m3fn" not in compiled.text


def test_a_bundle_holds_float8_and_int4(tmp_path: Any) -> None:
    weights = np.random.default_rng(7).standard_normal((4, 3)).astype(E4M3)
    table = np.arange(-8, 8).astype("int4")

    def layer(x: Array) -> tuple[Array, Array]:
        y = anp.matmul(x, weights, preferred_element_type=np.float32)
        return y, table[:3]

    x = np.ones((2, 4)).astype(E4M3)
    lowered = af.jit(layer).lower(x)
    af.save(lowered, tmp_path / "layer", arrays={"table": table})
    loaded = af.load(tmp_path / "layer")
    for have, want in zip(loaded(x), layer(x), strict=True):
        assert_same_bits(have, np.asarray(want))
    assert_same_bits(loaded.arrays["table"], table)


def test_limits_and_kinds_are_known() -> None:
    assert (anp.finfo(E4M3).max, anp.finfo("float8_e5m2").max) == (448.0, 57344.0)
    assert (anp.iinfo("int4").min, anp.iinfo(anp.uint4).max) == (-8, 15)
    assert anp.isdtype(E4M3, "real floating")
    assert anp.issubdtype(anp.int4, np.signedinteger)
    assert not anp.issubdtype(anp.int4, np.floating)
