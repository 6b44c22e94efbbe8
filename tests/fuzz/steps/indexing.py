"""Indexing of every kind: slices, arrays, masks, updates, takes, dynamic slices."""

from __future__ import annotations

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, NotDrawnError, step

MODES = ("clip", "wrap", "fill")


def slice_of(d: Draw, n: int) -> str:
    if d.chance(0.15):
        return ":"
    if d.chance(0.12):
        start = d.integer(0, n)
        return f"{start}:{start}"
    start = d.choice(["", str(d.integer(0, max(n, 1))), str(-d.integer(1, max(n, 1)))])
    stop = d.choice(["", "", str(d.integer(0, max(n, 1))), "-1"])
    step_ = d.choice(["", "", ":2", ":-1", ":3", ":-2"])
    return f"{start}:{stop}{step_}"


def places_of(d: Draw, n: int, count: int | None = None) -> str:
    """Index literals within an axis of extent n."""
    if not n:
        raise NotDrawnError
    count = d.integer(1, 5) if count is None else count
    return str([d.integer(-n, n - 1) for _ in range(count)])


def index_array(d: Draw, n: int) -> str:
    """An array of places of an axis: a constant, or computed."""
    if not n:
        raise NotDrawnError
    forms = [
        f"anp.array({places_of(d, n)})",
        f"np.array({places_of(d, n)})",
        f"anp.arange({n - 1}, -1, -{d.integer(1, 3)})",
        f"anp.arange(0, {n}, {d.integer(1, 3)})",
    ]
    there = [
        x for x in d.order if d.known[x].dtype in ("int32", "int64", "uint8", "int8")
    ]
    if there and d.chance(0.4):
        return f"{d.choice(there)} % {n}"
    if d.chance(0.1):
        return f"anp.array([[0, {n - 1}], [{n // 2}, -1]])"
    return d.choice(forms)


def item(d: Draw, n: int) -> str:
    kind = d.choice(["slice", "int", "list"], (6, 2, 1))
    if kind == "slice":
        return slice_of(d, n)
    if not n:
        return ":"
    return str(d.integer(-n, n - 1)) if kind == "int" else places_of(d, n)


def basic(d: Draw, x: str) -> str:
    shape = d.known[x].shape
    items = [item(d, n) for n in shape[: d.integer(1, max(len(shape), 1))]]
    if d.chance(0.15):
        items.insert(d.integer(0, len(items)), "None")
    if d.chance(0.15) and len(items) < len(shape):
        items.insert(0, "...")
        items = ["...", *[item(d, n) for n in shape[len(shape) - len(items) + 1 :]]]
    return ", ".join(items)


@step("index", 6)
def slices(d: Draw) -> str:
    x = d.pick(low=1)
    return f"{x}[{basic(d, x)}]"


@step("index", 3)
def by_array(d: Draw) -> str:
    x = d.pick(low=1)
    shape = d.known[x].shape
    index = index_array(d, shape[0])
    if len(shape) > 1 and d.chance(0.5):
        return f"{x}[:, {index_array(d, shape[1])}]"
    if len(shape) > 1 and d.chance(0.3):
        return f"{x}[{places_of(d, shape[0], 2)}, {places_of(d, shape[1], 2)}]"
    return f"{x}[{index}]"


@step("index", 2)
def computed_then_indexed(d: Draw) -> str:
    """Of what the same kernel computes."""
    x = d.pick(low=1)
    shape = d.known[x].shape
    inner = d.choice([f"({x} * 2)", f"({x} + 1)", f"({x} + {d.companion(x)})"])
    axis = d.integer(0, len(shape) - 1)
    lead = ":, " * axis
    if d.chance(0.5):
        return f"{inner}[{lead}{slice_of(d, shape[axis])}]"
    return f"{inner}[{lead}{index_array(d, shape[axis])}]"


form(
    *("index", 1, "if", 1),
    "anp.nonzero({x} > 0, size=3)[0]",
    "anp.where({x} > 0, size=2, fill_value=-1)[0]",
    "anp.compress(np.array([True, False]), {x}, axis=0)",
    "anp.extract({x} > 0, {x}, size=3)",
    "anp.flatnonzero({x}, size=4)",
)


@step("index", 1)
def traced_place(d: Draw) -> str:
    x = d.pick(low=1)
    place = d.pick("i", 0, 0, fits=lambda t: True)
    return f"{x}[{place}]"


@step("take", 3)
def take(d: Draw) -> str:
    x = d.pick(low=1)
    axis = d.axis(x)
    n = d.known[x].shape[axis]
    mode = f", mode={d.choice(MODES)!r}" if d.chance(0.4) else ""
    return f"anp.take({x}, {index_array(d, n)}, axis={axis}{mode})"


form(
    *("take", 2, "if", 1),
    "anp.take_along_axis({x}, anp.argsort({x}, axis={k}), axis={k})",
)


@step("take", 1)
def take_flat(d: Draw) -> str:
    x = d.pick()
    n = d.known[x].size
    return f"anp.take({x}, {index_array(d, n)})"


@step("take", 1)
def gather_at(d: Draw) -> str:
    x = d.pick(low=1)
    n = d.known[x].shape[0]
    mode = d.choice(["fill", "clip", "drop", "wrap", "promise_in_bounds"])
    index = index_array(d, n)
    if mode in ("fill", "clip") and d.chance(0.4):
        index = f"anp.array([0, {n + 2}, -1, {-n - 3}])"
    fill = ", fill_value=7" if mode == "fill" and d.chance(0.5) else ""
    return f"anp.asarray({x}).at[{index}].get(mode={mode!r}{fill})"


UPDATES = ("set", "add", "multiply", "max", "min", "set", "add", "subtract", "divide")


@step("update", 5)
def updated(d: Draw) -> str:
    x = d.pick(low=1)
    known = d.known[x]
    how = d.choice(UPDATES)
    n = known.shape[0]
    kind = d.integer(0, 4)
    if kind == 0:
        index = slice_of(d, n)
    elif kind == 1:
        index = index_array(d, n)
    elif kind == 2:
        index = basic(d, x)
    elif kind == 3:
        index = f"{x} > 0"
    else:
        index = f"anp.array([0, {n + 1}, 0])"
    value = d.literal(known.dtype)
    if d.chance(0.3) and kind == 0:
        value = f"{x}[{index}] * 2"
    elif d.chance(0.3):
        value = f"anp.sum({x}).astype({known.dtype!r})"
    return f"anp.asarray({x}).at[{index}].{how}({value})"


@step("update", 2)
def powered(d: Draw) -> str:
    x = d.pick("f", 1)
    index = slice_of(d, d.known[x].shape[0])
    return f"anp.asarray({x}).at[{index}].{d.choice(['power(2)', 'apply(anp.sin)'])}"


@step("update", 2)
def segments(d: Draw) -> str:
    x = d.pick("if", 1)
    n = d.known[x].shape[0]
    index = f"anp.arange({n}) % 3"
    name = d.choice(["sum", "max", "min", "prod"])
    return f"af.ops.segment_{name}({x}, {index}, num_segments={d.integer(1, 4)})"


@step("slices", 3)
def dynamic_slice(d: Draw) -> str:
    x = d.pick(low=1)
    shape = d.known[x].shape
    sizes = tuple(d.integer(0, n) if d.chance(0.7) else n for n in shape)
    starts = [str(d.integer(-1, n)) for n in shape]
    scalars = [
        v for v in d.order if d.known[v].shape == () and d.known[v].dtype == "int32"
    ]
    if scalars:
        starts = [d.choice(scalars) if d.chance(0.5) else "0" for _ in starts]
        starts = [s if s in scalars else f"anp.int32({s})" for s in starts]
    return f"lax.dynamic_slice({x}, ({', '.join(starts)},), {sizes})"


@step("slices", 2)
def dynamic_update(d: Draw) -> str:
    x = d.pick(low=1)
    known = d.known[x]
    sizes = tuple(d.integer(0, n) for n in known.shape)
    y = d.of(sizes, known.dtype)
    starts = tuple(d.integer(-1, n) for n in known.shape)
    return f"lax.dynamic_update_slice({x}, {y}, {starts})"


@step("slices", 2)
def in_dim(d: Draw) -> str:
    x = d.pick(low=1)
    axis = d.axis(x) % d.known[x].ndim
    n = d.known[x].shape[axis]
    at = d.integer(0, max(n - 1, 0))
    return d.choice(
        [
            f"lax.dynamic_index_in_dim({x}, {at}, {axis}, keepdims=False)",
            f"lax.slice_in_dim({x}, {at}, {n}, axis={axis})",
            f"lax.dynamic_slice_in_dim({x}, {at}, {d.integer(0, n)}, axis={axis})",
            f"lax.rev({x}, ({axis},))",
        ]
    )
