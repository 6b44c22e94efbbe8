"""Views and rearrangements: reshape, transpose, join, pad; constants."""

from __future__ import annotations

import numpy as np

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, NotDrawnError, step


@step("shapes", 5)
def reshape(d: Draw) -> str:
    x = d.pick()
    known = d.known[x]
    shapes: list[tuple[int, ...]] = [(-1,), (known.size,)]
    if known.size:
        for n in (2, 3, 4, 5):
            if known.size % n == 0:
                shapes += [(n, -1), (-1, n), (1, n, known.size // n)]
    else:
        shapes += [(0, 5), (3, 0), (0,), (2, 0, 3)]
    shape = d.choice(shapes)
    return d.choice([f"anp.reshape({x}, {shape})", f"{x}.reshape({shape})"])


@step("shapes", 4)
def transpose(d: Draw) -> str:
    x = d.pick(low=1)
    ndim = d.known[x].ndim
    permutation = tuple(d.rng.permutation(ndim).tolist())
    return d.choice(
        [
            f"{x}.T",
            f"anp.transpose({x}, {permutation})",
            f"anp.swapaxes({x}, {d.axis(x)}, {d.axis(x)})",
            f"anp.moveaxis({x}, {d.axis(x)}, {d.axis(x)})",
        ]
    )


form(
    *("shapes", 2, "bifcs", 0),
    "anp.expand_dims({x}, {a})",
    "anp.{squeeze|ravel|atleast_2d}({x})",
    "{x}.flatten()",
    "{x}[..., None]",
)
form(
    *("shapes", 4, "bifcs", 1),
    "anp.flip({x}, {axis})",
    "anp.roll({x}, {-3..3}, {axis})",
)
form("shapes", 1, "bifcs", 2, "anp.rot90({x}, {-1..2})")


@step("shapes", 3)
def broadcast(d: Draw) -> str:
    x = d.pick()
    known = d.known[x]
    lead = d.integer(0, 4)
    shape = (lead, *known.shape)
    shape = tuple(d.integer(0, 4) if n == 1 else n for n in shape)
    if int(np.prod(shape)) > d.limit:
        raise NotDrawnError
    return f"anp.broadcast_to({x}, {shape})"


form(
    *("shapes", 3, "bifcs", 1),
    "anp.repeat({x}, {0..3}, axis={k})",
    "anp.tile({x}, {0..3})",
    "anp.tile({x}, (2, {1..2}))",
    "anp.resize({x}, ({0..4}, 3))",
)
form(
    *("shapes", 2, "bifcs", 2),
    "anp.{tril|triu}({x}, {-2..2})",
    "anp.diagonal({x}, {-1..1})",
    "anp.trace({x})",
)
form("shapes", 1, "ifs", 1, "anp.diag({x}, {-1..1})", high=2)


@step("join", 4)
def concatenate(d: Draw) -> str:
    x = d.pick(low=1)
    axis = d.axis(x)
    known = d.known[x]
    shape = list(known.shape)
    shape[axis] = d.integer(0, 4)
    y = d.of(tuple(shape), known.dtype)
    parts = [x, y] if d.chance(0.6) else [y, x, f"{x} * 2"]
    return f"anp.concatenate([{', '.join(parts)}], axis={axis})"


form(
    *("join", 2, "bifcs", 0),
    "anp.stack([{x}, {y}], axis={a})",
    "anp.{hstack|vstack|dstack|column_stack}([{x}, {y}])",
)


@step("join", 3)
def pad(d: Draw) -> str:
    x = d.pick(low=1)
    known = d.known[x]
    widths = [(d.integer(0, 2), d.integer(0, 2)) for _ in range(known.ndim)]
    mode = d.choice(["constant", "edge", "reflect", "wrap", "symmetric", "mean"])
    if mode == "constant" and d.chance(0.5):
        value = d.literal(known.dtype)
        return f"anp.pad({x}, {tuple(widths)}, constant_values={value})"
    return f"anp.pad({x}, {tuple(widths)}, mode={mode!r})"


@step("join", 2)
def lax_pad(d: Draw) -> str:
    x = d.pick("if", 1)
    known = d.known[x]
    config = tuple(
        (d.integer(-1, 2), d.integer(-1, 2), d.integer(0, 1)) for _ in known.shape
    )
    value = f"{x}.sum().astype({known.dtype!r})"
    if d.chance(0.6):
        value = f"anp.asarray({d.literal(known.dtype)}, {known.dtype!r})"
    return f"lax.pad({x}, {value}, {config})"


form(
    *("join", 2, "bifcs", 1),
    "anp.array_split({x}, 2, axis={k})",
    "anp.split({x}, [1], axis={k})",
)
form(
    *("join", 1, "ifs", 1),
    "anp.append({x}, {{x}|{literal}})",
    "anp.delete({x}, 0, axis={k})",
    "anp.insert({x}, 1, 3, axis={k})",
)


@step("join", 1)
def grid(d: Draw) -> str:
    x, y = d.pick("if", 1, 1), d.pick("if", 1, 1)
    return f"anp.{d.choice(['meshgrid', 'outer', 'kron'])}({x}, {y})"


@step("create", 2)
def created(d: Draw) -> str:
    shape = d.shape(0, 3)
    dtype = d.dtype("if")
    n = d.integer(0, 5)
    return d.choice(
        [
            f"anp.arange({n})",
            f"anp.arange({n}, -2, -1, dtype='float32')",
            f"anp.full({shape}, {d.literal(dtype)}, {dtype!r})",
            f"anp.ones({shape}, {dtype!r})",
            f"anp.linspace(0.0, 1.0, {n})",
            f"anp.eye({n}, {d.integer(1, 4)}, dtype={dtype!r})",
            f"anp.zeros({shape}, {dtype!r})",
            f"lax.iota({dtype!r}, {n})",
        ]
    )


form(
    *("create", 2, "bifcs", 0),
    "anp.full_like({x}, 2)",
    "anp.array([{0.5|2|-1|0}, 1.0])",
    "anp.full((3,), anp.sum({x}))",
    "anp.linspace(anp.sum({x}), 2.0, 4)",
)
