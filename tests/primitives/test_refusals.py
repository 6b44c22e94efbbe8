"""What does not fit a row is refused, with an error that names what was given."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType, type_of
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.dynamic_slices import dynamic_slice, dynamic_update_slice
from arrayfn.primitives.table import ROWS, TABLE

ELEMENTWISE = [row for row in ROWS if row.family == "elementwise"]


def array(text: str) -> ArrayType:
    """``f32[2,3]`` as a type."""
    dtype, extents = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()
    shape = tuple(int(n) for n in extents.split(",") if n)
    return ArrayType(shape, dtypes.BY_SHORT_NAME[dtype])


def sample_types(row: Primitive) -> list[ArrayType]:
    sample = next(iter(row.samples()))
    return [ArrayType((2, 3), np.asarray(x).dtype) for x in sample.inputs]


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
def test_an_elementwise_row_refuses_the_dtypes_it_has_no_samples_of(
    row: Primitive,
) -> None:
    which = 1 if row.name == "select" else 0
    sampled = {np.asarray(s.inputs[which]).dtype for s in row.samples()}
    for dtype in dtypes.ALL - sampled:
        types = [ArrayType((2,), dtype)] * len(sample_types(row))
        with pytest.raises(DTypeError) as caught:
            row.types(*types)
        assert row.name in str(caught.value)
        assert dtypes.short_name(dtype) in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [row for row in ELEMENTWISE if len(sample_types(row)) > 1],
    ids=lambda row: row.name,
)
def test_an_elementwise_row_refuses_operands_that_differ(row: Primitive) -> None:
    types = sample_types(row)
    narrow = [*types[:-1], types[-1].with_shape((2, 4))]
    with pytest.raises(ShapeError) as caught:
        row.types(*narrow)
    for part in (row.name, str(narrow[0]), str(narrow[-1]), "broadcast"):
        assert part in str(caught.value)
    other = dtypes.float64 if types[-1].dtype != dtypes.float64 else dtypes.float32
    mixed = [*types[:-1], types[-1].with_dtype(other)]
    with pytest.raises(DTypeError) as caught:
        row.types(*mixed)
    for part in (row.name, str(mixed[-1]), "convert"):
        assert part in str(caught.value)


ROWS_OF = {
    "window_axes": (1,),
    "collapsed_axes": (0,),
    "indexed_axes": (0,),
    "batch": ((), ()),
}
GATHER = {**ROWS_OF, "sizes": (1, 3), "mode": "clip", "fill_value": None}
SCATTER = {**ROWS_OF, "mode": "drop", "unique_indices": False}
PLAIN = {"contract": ((1,), (0,)), "batch": ((), ())}
SAMPLE_CALL = next(iter(TABLE["operator_call"].samples())).params
CUSTOM_VJP = next(iter(TABLE["custom_vjp"].samples())).params

# Row, operands, params, error, what it says.
REFUSED: list[tuple[str, str, dict[str, Any], type, str]] = [
    ("convert", "c64[2]", {"dtype": dtypes.float32}, DTypeError, "c64[2]"),
    ("bitcast", "f32[2]", {"dtype": dtypes.int64}, DTypeError, "keeps the width"),
    ("transpose", "f32[2,3]", {"permutation": (0, 0)}, ShapeError, "f32[2,3]"),
    ("transpose", "f32[2,3]", {"permutation": (0,)}, ShapeError, "(0,)"),
    (
        "broadcast_in_dim",
        "f32[2]",
        {"shape": (3, 3), "axes": (0,)},
        ShapeError,
        "f32[2] does not broadcast to shape (3, 3)",
    ),
    (
        "broadcast_in_dim",
        "f32[2,3]",
        {"shape": (3, 2), "axes": (1, 0)},
        ShapeError,
        "axes (1, 0)",
    ),
    ("reshape", "f32[2,3]", {"shape": (4,)}, ShapeError, "6 elements"),
    ("reshape", "f32[2,3]", {"shape": (-2, -3)}, ShapeError, "(-2, -3)"),
    (
        "slice",
        "f32[4]",
        {"start": (0,), "limit": (5,), "strides": (1,)},
        ShapeError,
        "not within f32[4]",
    ),
    (
        "slice",
        "f32[4]",
        {"start": (0,), "limit": (4,), "strides": (0,)},
        ShapeError,
        "by (0,)",
    ),
    ("rev", "f32[4]", {"axes": (1,)}, ShapeError, "f32[4]"),
    ("relayout", "f32[4,4]", {"layout": "F"}, ArgumentError, "row-major"),
    ("pad", "f32[4] f64[]", {"config": ((0, 0, 0),)}, DTypeError, "f64[]"),
    ("pad", "f32[4] f32[]", {"config": ((-5, 0, 0),)}, ShapeError, "f32[4]"),
    ("pad", "f32[4] f32[]", {"config": ()}, ShapeError, "f32[4]"),
    ("concatenate", "f32[4] f64[4]", {"axis": 0}, DTypeError, "f64[4]"),
    ("concatenate", "f32[4,2] f32[4,3]", {"axis": 0}, ShapeError, "f32[4,3]"),
    ("concatenate", "f32[4]", {"axis": 1}, ShapeError, "axis 1 of f32[4]"),
    ("concatenate", "f32[]", {"axis": 0}, ShapeError, "axis 0 of f32[]"),
    (
        "iota",
        "",
        {"shape": (3,), "axis": 1, "dtype": dtypes.int32},
        ShapeError,
        "axis 1",
    ),
    (
        "iota",
        "",
        {"shape": (3,), "axis": 0, "dtype": dtypes.bool_},
        DTypeError,
        "integers or floats",
    ),
    ("reduce_sum", "f32[4]", {"axes": (1,)}, ShapeError, "axes (1,) of f32[4]"),
    ("reduce_sum", "bool[4]", {"axes": (0,)}, DTypeError, "bool[4]"),
    ("reduce_prod", "f32[4]", {"axes": (0, 0)}, ShapeError, "(0, 0)"),
    ("reduce_max", "c64[4]", {"axes": (0,)}, DTypeError, "c64[4]"),
    ("reduce_min", "c64[4]", {"axes": (0,)}, DTypeError, "c64[4]"),
    ("reduce_and", "f32[4]", {"axes": (0,)}, DTypeError, "f32[4]"),
    ("reduce_or", "f32[4]", {"axes": (0,)}, DTypeError, "f32[4]"),
    ("argmax", "c64[4]", {"axis": 0, "dtype": dtypes.int64}, DTypeError, "c64[4]"),
    ("argmin", "f32[0]", {"axis": 0, "dtype": dtypes.int64}, ShapeError, "empty"),
    ("argmin", "f32[4]", {"axis": 2, "dtype": dtypes.int64}, ShapeError, "f32[4]"),
    ("cumsum", "f32[4]", {"axis": 1, "reverse": False}, ShapeError, "axis 1"),
    ("cumsum", "bool[4]", {"axis": 0, "reverse": False}, DTypeError, "bool[4]"),
    ("cumprod", "f32[]", {"axis": 0, "reverse": False}, ShapeError, "f32[]"),
    ("cummax", "c64[4]", {"axis": 0, "reverse": False}, DTypeError, "c64[4]"),
    ("cummin", "c64[4]", {"axis": 0, "reverse": False}, DTypeError, "c64[4]"),
    ("dot_general", "f32[2,3] f32[4,5]", PLAIN, ShapeError, "extent 3"),
    ("dot_general", "f32[2,3] f64[3,5]", PLAIN, DTypeError, "f64[3,5]"),
    ("dot_general", "bool[2,3] bool[3,5]", PLAIN, DTypeError, "bool"),
    (
        "dot_general",
        "f32[2,3] f32[3,5]",
        {"contract": ((2,), (0,)), "batch": ((), ())},
        ShapeError,
        "axes (2,) of f32[2,3]",
    ),
    (
        "dot_general",
        "f32[2,3] f32[3,5]",
        {"contract": ((1,), (0,)), "batch": ((1,), (0,))},
        ShapeError,
        "f32[2,3]",
    ),
    ("gather", "f32[4,3] f32[2,1]", GATHER, DTypeError, "f32[2,1]"),
    ("gather", "f32[4,3] i32[2,2]", GATHER, ShapeError, "i32[2,2]"),
    ("gather", "f32[4,2] i32[2,1]", GATHER, ShapeError, "f32[4,2]"),
    ("gather", "f32[4] i32[2,1]", GATHER, ShapeError, "f32[4]"),
    (
        "gather",
        "f32[4,3] i32[2,1]",
        {**GATHER, "mode": "wrap"},
        ArgumentError,
        "not 'wrap'",
    ),
    (
        "gather",
        "f32[4,3] i32[2,1]",
        {**GATHER, "mode": "fill"},
        ArgumentError,
        "fill_value",
    ),
    (
        "gather",
        "f32[4,3] i32[2,1]",
        {**GATHER, "window_axes": (2,)},
        ShapeError,
        "(2,)",
    ),
    (
        "gather",
        "f32[4,3] i32[2,1]",
        {**GATHER, "batch": ((0,), (0,)), "collapsed_axes": ()},
        ShapeError,
        "not batched",
    ),
    ("scatter", "f32[4,3] i32[2,1] f64[2,3]", SCATTER, DTypeError, "f64[2,3]"),
    ("scatter", "f32[4,3] i32[2,1] f32[3,3]", SCATTER, ShapeError, "f32[3,3]"),
    ("scatter", "f32[4,3] i32[2,1] f32[2,4]", SCATTER, ShapeError, "f32[4,3]"),
    ("scatter", "f32[4,3] i32[2,1] f32[2]", SCATTER, ShapeError, "f32[2]"),
    (
        "scatter",
        "f32[4,3] i32[2,1] f32[2,3]",
        {**SCATTER, "mode": "fill"},
        ArgumentError,
        "not 'fill'",
    ),
    ("scatter_add", "bool[4,3] i32[2,1] bool[2,3]", SCATTER, DTypeError, "bool"),
    ("scatter_mul", "bool[4,3] i32[2,1] bool[2,3]", SCATTER, DTypeError, "bool"),
    ("scatter_min", "c64[4,3] i32[2,1] c64[2,3]", SCATTER, DTypeError, "c64"),
    ("scatter_max", "c64[4,3] i32[2,1] c64[2,3]", SCATTER, DTypeError, "c64"),
    ("dynamic_slice", "f32[4] f32[]", {"sizes": (2,)}, DTypeError, "f32[]"),
    ("dynamic_slice", "f32[4] i32[1]", {"sizes": (2,)}, DTypeError, "i32[1]"),
    ("dynamic_slice", "f32[4]", {"sizes": (2,)}, ShapeError, "1 starts, not 0"),
    ("dynamic_slice", "f32[4] i32[]", {"sizes": (5,)}, ShapeError, "(5,)"),
    ("dynamic_slice", "f32[4,4] i32[] i64[]", {"sizes": (2, 2)}, DTypeError, "i64"),
    ("dynamic_update_slice", "f32[4] f64[2] i32[]", {}, DTypeError, "f64[2]"),
    ("dynamic_update_slice", "f32[4] f32[5] i32[]", {}, ShapeError, "f32[4]"),
    ("operator_call", "f32[3,4]", SAMPLE_CALL, ShapeError, "double_product takes"),
    ("custom_vjp", "f32[3,4] f64[3,4]", CUSTOM_VJP, ShapeError, "f64[3,4]"),
]


@pytest.mark.parametrize(
    ("name", "operands", "params", "error", "message"),
    REFUSED,
    ids=[f"{case[0]}-{k}" for k, case in enumerate(REFUSED)],
)
def test_what_does_not_fit_is_refused(
    name: str, operands: str, params: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error) as caught:
        TABLE[name].types(*map(array, operands.split()), **params)
    assert message in str(caught.value)


LISTED = {case[0] for case in REFUSED}
# These take anything, or are made by transformations alone.
FREE = {
    *("stop_gradient", "custom_jvp", "custom_vjp_linear"),
    *("optimization_barrier", "checkpoint_name", "saveable", "all_gather"),
    *("ppermute", "pvary", "shard_map", "reshard"),
    *("io_callback", "pure_callback", "debug_callback"),
    *("check", "custom_vmap"),
}
OTHERS = [
    row
    for row in ROWS
    if row.family != "elementwise" and row.name not in {*LISTED, *FREE}
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_a_row_refuses_its_first_operand_without_axes_or_as_truth_values(
    row: Primitive,
) -> None:
    sample = next(iter(row.samples()))
    types = [type_of(np.asarray(x)) for x in sample.inputs]
    first = types[0]
    refused: list[str] = []
    for wrong in (first.with_shape(()), first.with_dtype(dtypes.bool_)):
        try:
            row.types(wrong, *types[1:], **sample.params)
        except (ShapeError, DTypeError) as error:
            refused.append(str(error))
            assert str(wrong) in refused[-1]
    assert refused
    # A checkpoint goes by the name of its function.
    name = sample.params["name"] if row.name == "checkpoint" else row.name
    assert all(name in message for message in refused)


def test_lists_name_rows() -> None:
    assert {row.name for row in ROWS} >= LISTED | FREE


def test_starts_may_have_any_integer_dtype() -> None:
    for dtype, row in itertools.product(
        dtypes.INTEGERS, (dynamic_slice, dynamic_update_slice)
    ):
        start = ArrayType((), dtype)
        x = ArrayType((4,), dtypes.float32)
        if row is dynamic_slice:
            assert row.types(x, start, sizes=(2,)).shape == (2,)
        else:
            assert row.types(x, x.with_shape((2,)), start).shape == (4,)


def test_sliding_windows_refuse_a_padding_that_is_not_in_memory() -> None:
    windows = {"axes": (0,), "sizes": (3,), "strides": (1,), "dilations": (1,)}
    row = TABLE["sliding_windows"]
    x = ArrayType((5,), dtypes.float64)
    assert row.types(x, **windows, order=(0, 1)).shape == (3, 3)
    with pytest.raises(ShapeError, match="pad the operand first"):
        row.types(x, **windows, padding=((1, 1),), order=(0, 1))
