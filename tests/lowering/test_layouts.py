"""Layouts of operands: kernels read every view as it lies; copies are equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.jit import jit
from arrayfn.ir import ArrayType, Atom, Literal, Program, type_of
from arrayfn.lowering.plan import KernelCall
from arrayfn.passes.layout_assignment import assign_layouts
from arrayfn.primitives import (
    contraction,
    conversion,
    cumulative,
    discrete,
    dynamic_slices,
    indexing,
    reductions,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.windows import Windows
from tests.lowering.kernels import check_kernels
from tests.programs import build

Array = np.ndarray[Any, Any]
NEAR = Tolerance(1e-6, 1e-14)
ROWS_OF = Windows((1,), (0,), (0,)).params()


def strided(x: Array) -> Array:
    """``x`` as every second element, along each axis, of a larger array."""
    large = np.zeros([2 * n for n in x.shape], x.dtype)
    view = large[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def backwards(x: Array) -> Array:
    """``x`` with negative strides."""
    return np.flip(np.flip(x).copy())


def repeated(x: Array) -> Array:
    """The first row of ``x`` in the place of all, with a stride of 0."""
    return np.broadcast_to(x[:1], x.shape) if x.ndim else x


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": strided,
    "backwards": backwards,
    "repeated": repeated,
}


def everything(x: Atom, y: Atom, half: Atom, flag: Atom, i: Atom) -> list[Atom]:
    """Every kind of kernel on matrices ``x``, ``y`` and ``half`` of one shape."""
    rows, columns = x.type.shape
    both = ((1,), (1,)), ((), ())
    whole = e.select(flag, e.add(x, y), conversion.convert(half, dtypes.float32))
    spread = {"shape": (rows, 2, columns), "axes": (0, 2)}
    last = Literal(1, dtypes.int32)
    outputs = [
        whole,
        e.add(x, views.rev(y, axes=(0, 1))),
        conversion.convert(flag, dtypes.bfloat16),
        discrete.bitwise_not(flag),
        *[reductions.reduce_sum(x, axes=axes) for axes in ((0,), (1,), (0, 1))],
        reductions.reduce_max(half, axes=(0,)),
        reductions.reduce_sum(views.broadcast_in_dim(y, **spread), axes=(0, 1)),
        slicing.concatenate(x, whole, y, axis=0),
        slicing.concatenate(half, half, axis=1),
        slicing.pad(flag, False, config=((1, 0, 1), (0, 2, 0))),
        slicing.pad(half, 0.5, config=((-1, 1, 0), (2, -1, 0))),
        views.reshape(x, shape=(columns, rows)),
        views.transpose(half, permutation=(1, 0)),
        cumulative.cumsum(x, axis=0, reverse=False),
        cumulative.cummax(half, axis=1, reverse=True),
        contraction.dot_general(x, y, contract=both[0], batch=both[1]),
        contraction.dot_general(half, half, contract=((0,), (0,)), batch=both[1]),
        contraction.dot_general(i, i, contract=((1,), (1,)), batch=both[1]),
        dynamic_slices.dynamic_update_slice(x, y, last, last),
    ]
    if rows:
        params: dict[str, Any] = {**ROWS_OF, "sizes": (1, columns)}
        outputs += [
            indexing.gather(x, i, mode="fill", fill_value=-1.0, **params),
            indexing.gather(flag, i, mode="clip", fill_value=None, **params),
        ]
    if rows and columns:
        updates = views.broadcast_in_dim(
            y, shape=(i.type.shape[0], *y.type.shape), axes=(1, 2)
        )
        first = views.reshape(
            slicing.slice_(
                updates,
                start=(0, 0, 0),
                limit=(i.type.shape[0], 1, columns),
                strides=(1, 1, 1),
            ),
            shape=(i.type.shape[0], columns),
        )
        outputs += [
            reductions.argmax(x, axis=0, dtype=dtypes.int64),
            reductions.argmin(half, axis=1, dtype=dtypes.int32),
            indexing.scatter_add(
                x, i, first, mode="drop", unique_indices=False, **ROWS_OF
            ),
            dynamic_slices.dynamic_slice(half, last, last, sizes=(1, columns)),
        ]
    return outputs


def arguments(shape: tuple[int, int]) -> list[Array]:
    rng = np.random.default_rng(17)
    x, y = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    half = rng.normal(size=shape).astype(np.float16)
    indices = np.array([[1], [0], [-1], [2], [1]], np.int32)
    return [x, y, half, rng.random(shape) > 0.5, indices]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_read_every_layout(layout: str) -> None:
    inputs = [LAYOUTS[layout](x) for x in arguments((5, 3))]
    types = [type_of(x) for x in inputs]
    check_kernels(build(everything, *types), inputs, NEAR)


def test_layouts_of_the_operands_may_differ() -> None:
    views_of = [np.asfortranarray, backwards, strided, repeated, np.ascontiguousarray]
    inputs = [f(x) for f, x in zip(views_of, arguments((4, 4)), strict=True)]
    types = [type_of(x) for x in inputs]
    assert [str(t.layout) for t in types] == ["F", "S(-4,-1)", "S(16,2)", "S(0,1)", "C"]
    check_kernels(build(everything, *types), inputs, NEAR)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 1), (0, 3), (3, 0), (0, 0)])
def test_extents_of_one_and_none(shape: tuple[int, int]) -> None:
    inputs = arguments(shape)
    types = [type_of(x) for x in inputs]
    check_kernels(build(everything, *types), inputs, NEAR)


# Where copies are made.

F32 = dtypes.float32


def copies(emit: Callable[..., Any], *inputs: Array | tuple[int, ...]) -> int:
    """The relayouts that the pass puts into the Program of ``emit``."""
    types = [
        type_of(x) if isinstance(x, np.ndarray) else ArrayType(x, F32) for x in inputs
    ]
    after = assign_layouts(build(emit, *types))
    return count(after)


def count(program: Program) -> int:
    return sum(eq.primitive is views.relayout for eq in program.equations)


def product(contract: Any, batch: Any = ((), ())) -> Callable[..., Atom]:
    return lambda x, y: contraction.dot_general(x, y, contract=contract, batch=batch)


MATRIX = np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (MATRIX, MATRIX.T, 0),
        (np.zeros((4, 8), np.float32)[:, :4], MATRIX, 0),
        (np.zeros((4, 8), np.float32)[:, ::2], MATRIX, 1),
        (MATRIX[::-1], MATRIX, 1),
        (repeated(MATRIX), repeated(MATRIX).T, 2),
    ],
    ids=["transposed", "with a gap", "no unit stride", "backwards", "repeated"],
)
def test_a_product_copies_what_blas_cannot_read(
    x: Array, y: Array, wanted: int
) -> None:
    assert copies(product(((1,), (0,))), x, y) == wanted


def test_a_product_over_separate_axes_copies_once() -> None:
    # Axes 0 and 2 of the left operand are not one axis in memory, as those contracted
    # on the right are.
    shape = ((0, 2), (0, 1)), ((), ())
    assert copies(product(*shape), (2, 3, 4), (2, 4, 5)) == 1
    assert copies(product(((1, 2), (0, 1))), (2, 3, 4), (3, 4, 5)) == 0


def test_a_batch_axis_may_be_anywhere() -> None:
    assert copies(product(((2,), (0,)), ((1,), (1,))), (3, 2, 4), (4, 2, 5)) == 0


def test_a_batch_axis_may_be_repeated() -> None:
    x = np.broadcast_to(np.zeros((3, 4), np.float32), (2, 3, 4))
    assert copies(product(((2,), (1,)), ((0,), (0,))), x, (2, 4, 5)) == 0


def test_only_outputs_that_are_views_or_arguments_are_copied() -> None:
    assert copies(e.neg, (3, 4)) == 0
    assert copies(lambda x: x, (3, 4)) == 1
    assert copies(lambda x: views.transpose(e.neg(x), permutation=(1, 0)), (3, 4)) == 1

    def twice(x: Atom) -> list[Atom]:
        y = e.neg(x)
        return [y, y, slicing.slice_(y, start=(0,), limit=(2,), strides=(1,))]

    assert copies(twice, (3,)) == 2


def test_a_reshape_copies_only_what_does_not_lie_in_rows() -> None:
    def flat(x: Atom) -> Atom:
        return e.neg(views.reshape(x, shape=(x.type.size,)))

    assert copies(flat, (3, 4)) == 0
    assert copies(flat, np.zeros((3, 4), np.float32, order="F")) == 1
    assert copies(lambda x: flat(views.transpose(x, permutation=(1, 0))), (3, 4)) == 1
    spread = {"shape": (3, 4), "axes": (0,)}
    assert copies(lambda x: flat(views.broadcast_in_dim(x, **spread)), (3,)) == 1


def test_an_update_copies_an_operand_that_is_needed_otherwise() -> None:
    zero = Literal(0, dtypes.int32)

    def put(x: Atom, y: Atom) -> Atom:
        return dynamic_slices.dynamic_update_slice(x, y, zero)

    assert copies(put, (4,), (2,)) == 1
    assert copies(lambda x, y: put(e.neg(x), y), (4,), (2,)) == 0
    assert copies(lambda x, y: put(put(e.neg(x), y), e.neg(y)), (4,), (2,)) == 0
    used = copies(lambda x, y: e.add(z := e.neg(x), put(z, y)), (4,), (2,))
    assert used == 1
    assert copies(lambda x: put(z := e.neg(x), z), (4,)) == 1


@pytest.mark.parametrize(
    ("dtype", "tile"), [(np.float32, 64), (np.complex64, 64), (np.complex128, 32)]
)
def test_tiles_of_large_elements_are_smaller(dtype: type, tile: int) -> None:
    x = np.arange(130 * 140, dtype=np.float64).reshape(130, 140).astype(dtype)
    compiled = jit(lambda x: x.T + 1)
    np.testing.assert_array_equal(compiled(x), x.T + 1)
    (call,) = compiled.lower(x).plan.steps
    assert isinstance(call, KernelCall)
    assert tile in call.arguments
    assert call.scratch >= tile * tile * x.itemsize


CLOSED_OVER = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[0], x.shape),
}


@pytest.mark.parametrize("form", CLOSED_OVER)
@pytest.mark.parametrize("n", [2, 40])  # a loop that is one kernel, and one with BLAS
def test_loops_and_branches_read_what_they_close_over_as_it_lies(
    form: str, n: int
) -> None:
    rng = np.random.default_rng(5)
    m = CLOSED_OVER[form](rng.standard_normal((n, n)) / n)
    x = rng.standard_normal((n, n))

    def scanned(x: Any) -> Any:
        return lax.scan(lambda c, _: (m @ c @ m.T + m, c @ m), x, None, length=3)

    def repeated(x: Any) -> Any:
        return lax.while_loop(
            lambda s: (s[0] < 3) & (anp.sum(m[0]) < 100),
            lambda s: (s[0] + 1, m @ s[1] + m),
            (0, x),
        )

    def chosen(x: Any) -> Any:
        return lax.cond(x[0, 0] > 5, lambda y: y, lambda y: y @ m + m, x)

    for f in (scanned, repeated, chosen):
        for have, want in zip(
            af.tree.leaves(af.jit(f)(x)),
            af.tree.leaves(af.jit(f, device="reference")(x)),
            strict=True,
        ):
            np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-13)
