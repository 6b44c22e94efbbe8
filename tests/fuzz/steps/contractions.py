"""Products of matrices, convolutions, windows."""

from __future__ import annotations

from typing import Final

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, step


@step("contract", 5)
def matmul(d: Draw) -> str:
    x = d.pick("fci" if d.chance(0.3) else "f", 1)
    known = d.known[x]
    n = known.shape[-1]
    m = d.integer(0, 5)
    shapes = [(n,), (n, m), (n, m)]
    if known.ndim == 3:
        shapes.append((known.shape[0], n, m))
    y = d.of(d.choice(shapes), known.dtype)
    return d.choice([f"{x} @ {y}", f"anp.dot({x}, {y})", f"anp.matmul({x}, {y})"])


SCALE: Final = "{|0.5 * |-|1 - |2 + }"
form(
    *("contract", 1, "f", 1),
    SCALE + "({x} @ {x})",
    SCALE + "anp.{vdot|inner|outer}({x}, {x})",
    SCALE + "anp.einsum('i,i->', {x}, {x})",
    high=1,
)
form(
    *("contract", 2, "f", 2),
    SCALE + "anp.einsum('...ij,...ij->...', {x}, {x})",
    SCALE + "({x} @ anp.swapaxes({x}, -1, -2))",
    SCALE + "(anp.swapaxes({x}, -1, -2) @ {x})",
    SCALE + "anp.einsum('...ij->...ji', {x})",
    high=3,
)


@step("contract", 2)
def tensordot(d: Draw) -> str:
    x = d.pick("f", 1, 3)
    known = d.known[x]
    axis = d.integer(0, known.ndim - 1)
    n = known.shape[axis]
    y = d.of((n, d.integer(0, 4)), known.dtype)
    return d.choice(
        [
            f"anp.tensordot({x}, {y}, (({axis},), (0,)))",
            f"anp.tensordot({y}, {x}, ((0,), ({axis},)))",
            f"lax.dot_general({x}, {y}, ((({axis},), (0,)), ((), ())))",
        ]
    )


@step("contract", 1)
def quadratic(d: Draw) -> str:
    x = d.pick("f", 1, 1)
    n = d.known[x].shape[0]
    a = d.of((n, n), d.known[x].dtype)
    return d.choice(
        [f"{x} @ {a} @ {x} / 2", f"1 - {x} @ {a}", f"anp.mean(({a} @ {x}) ** 2)"]
    )


@step("contract", 1)
def batched(d: Draw) -> str:
    x = d.pick("f", 3, 3)
    b, _, m = d.known[x].shape
    y = d.of((b, m, d.integer(1, 4)), d.known[x].dtype)
    return d.choice(
        [f"anp.einsum('bij,bjk->bik', {x}, {y})", f"lax.batch_matmul({x}, {y})"]
    )


form("contract", 1, "f", 1, "anp.{vecdot|inner}({x}, {y})")


@step("windows", 2)
def convolve(d: Draw) -> str:
    x = d.pick("f", 1, 1)
    y = d.of((d.integer(1, 4),), d.known[x].dtype)
    name = d.choice(["convolve", "correlate"])
    return f"anp.{name}({x}, {y}, {d.choice(['full', 'same', 'valid'])!r})"


@step("windows", 2)
def convolution(d: Draw) -> str:
    dtype = d.choice(["float32", "float32", "float64", "float16"])
    n, c, o, k = d.integer(1, 2), d.integer(1, 3), d.integer(1, 3), d.integer(1, 3)
    x = d.of((n, c, d.integer(k, 6), d.integer(k, 6)), dtype)
    w = d.of((o, c, k, k), dtype)
    padding = d.choice(["SAME", "VALID"])
    stride = d.choice([(1, 1), (2, 1), (2, 2)])
    return f"lax.conv({x}, {w}, {stride}, {padding!r})"


@step("windows", 2)
def pool(d: Draw) -> str:
    x = d.pick("f", 3, 4)
    name = d.choice(["max_pool", "avg_pool", "min_pool"])
    window = d.choice([(2, 2), (3, 1), (1, 2)])[: d.known[x].ndim - 2]
    return f"nn.{name}({x}, {window}, strides={window})"


@step("windows", 1)
def reduce_window(d: Draw) -> str:
    x = d.pick("f", 1, 3)
    ndim = d.known[x].ndim
    name, start = d.choice([("add", "0"), ("max", "-anp.inf"), ("min", "anp.inf")])
    dtype = d.known[x].dtype
    window = tuple(d.integer(1, 3) for _ in range(ndim))
    first = f"anp.asarray({start}, {dtype!r})"
    more = f"{window}, {(1,) * ndim}, {d.choice(['SAME', 'VALID'])!r}"
    return f"lax.reduce_window({x}, {first}, lax.{name}, {more})"
