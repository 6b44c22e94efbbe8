"""Products of bytes are padded to whole words for the library: the same integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.passes.expand import expand
from arrayfn.passes.matrices import WORD
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function

BYTES = frozenset({(dtypes.int8, dtypes.int32)})


@pytest.mark.parametrize(
    ("left", "right", "axes"),
    [
        ((5, 3, 2), (3, 2, 7), ((1, 2), (0, 1))),
        ((5, 2, 3), (7, 2, 3), ((1, 2), (1, 2))),
        ((3, 5, 2), (2, 3, 7), ((0, 2), (1, 0))),
        ((4, 8), (8, 4), ((1,), (0,))),
        ((3, 5), (5, 1, 2), ((1,), (0,))),
    ],
)
def test_products_of_bytes_are_padded_to_whole_words(left, right, axes) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (left, right))

    def product(x, y):
        return anp.tensordot(x.astype(np.int32), y.astype(np.int32), axes)

    def of_bytes(x, y):
        return anp.tensordot(x, y, axes)

    before = trace_function(of_bytes, (x, y), {}, abstract=True).program
    after = expand(before, BYTES)
    after.check()
    (have,) = evaluate(after, [x, y])
    np.testing.assert_array_equal(have, product(x, y).astype(have.dtype))
    (dot,) = [e for e in after.equations if e.primitive.name == "dot_general"]
    contract = dot.params["contract"]
    for operand, own in zip(dot.inputs, contract, strict=True):
        shape = operand.type.shape
        free = [n for axis, n in enumerate(shape) if axis not in own]
        assert math.prod(shape[axis] for axis in own) % WORD == 0
        assert math.prod(free) % WORD == 0
