"""The kernels of attention, and their calls, for an ``operator_call``.

Operands are q, k, v, then the optional ones (bias, mask, lengths) in the order of their
names, and for the gradient the result, its logarithms and its cotangent; see
``arrayfn.nn.fused_attention``. Letters are those of that module: B batches, T queries
and S keys of N and K heads with H elements. ``reads`` says where operands lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import ArrayType, Equation
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.cuda.attention import bias as biases
from arrayfn.lowering.cuda.attention import gradient as gradients
from arrayfn.lowering.cuda.attention.forward import forward, shared_bytes, tiles_of
from arrayfn.lowering.cuda.attention.scores import score_lines
from arrayfn.lowering.cuda.attention.tiles import LONGEST_HEAD, UNLIMITED, Form
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall
from arrayfn.lowering.libraries.calls import Pointer, new_array, pointer_of
from arrayfn.lowering.operator_kernels import static_of
from arrayfn.lowering.templates.nest_builder import array_of
from arrayfn.passes.reads import Reads
from arrayfn.records import frozen

_AXES = ("batch", "head", "row", "column")
"""The axes of a bias or a mask, as the kernels' integers name them."""
_TOKEN_AXES = ("batch", "token", "head")
"""The axes of queries, keys and values; the last stride, along a head, is 1."""


def takes(q_shape: Sequence[int], k_shape: Sequence[int]) -> bool:
    """Whether the kernels compute attention of queries and keys of these shapes.

    ``q_shape`` is [B, T, N, H]: batches, tokens, heads, elements. ``k_shape`` is [B, S,
    K, H], where ``K`` divides ``N``.
    """
    B, T, N, H = q_shape
    sizes = (B * N * T, *k_shape)
    return 0 < H <= LONGEST_HEAD and min(sizes) > 0 and max(sizes) < UNLIMITED


def takes_score(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    score: str,
    terms: Mapping[str, ArrayType],
) -> bool:
    """Return whether the kernels compute the score function ``score``.

    ``score`` is the text of a Program, or empty. The shapes are those of queries and
    keys, ``terms`` are the optional operands by name.
    """
    captured = captured_types(terms)
    strides = tuple(RowMajor().strides(t.shape) for t in captured)
    extents = extents_of(q_shape, k_shape)
    return not score or score_lines(score, extents, captured, strides) is not None


def takes_blocks(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    block: tuple[int, int] | None,
    terms: Mapping[str, ArrayType],
) -> bool:
    """Return whether the arrays of a block mask have a number for each of its blocks.

    They are ``next_queries`` [B, N, key blocks, query blocks + 1] and ``next_keys`` [B,
    N, query blocks, key blocks + 1] of int32, where B and N may be 1. Without a block
    mask, neither may be there. The arguments are as for ``takes_score``; ``block`` has
    the numbers of queries and keys of a block.
    """
    arrays = "next_queries", "next_keys"
    if block is None or min(block) < 1 or not terms.keys() >= {*arrays}:
        return terms.keys().isdisjoint(arrays)
    B, N, *lengths = extents_of(q_shape, k_shape)
    down, across = (-(-n // size) for n, size in zip(lengths, block, strict=True))
    ends = (across, down + 1), (down, across + 1)
    return all(
        terms[name].dtype == dtypes.int32
        and terms[name].shape[2:] == end
        and all(
            n in (1, most) for n, most in zip(terms[name].shape, (B, N), strict=False)
        )
        for name, end in zip(arrays, ends, strict=True)
    )


def captured_types(terms: Mapping[str, ArrayType]) -> tuple[ArrayType, ...]:
    """Return the types of the arrays among ``terms`` that a score function captures."""
    return tuple(t for name, t in terms.items() if name.startswith("captured"))


def extents_of(
    q_shape: Sequence[int], k_shape: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return the numbers of batches, heads of queries, queries and keys."""
    return q_shape[0], q_shape[2], q_shape[1], k_shape[1]


def reads_layout(type: ArrayType, offset: int) -> bool:
    """Return whether the kernels read an array of this layout without a copy.

    ``type`` has the layout: four axes, a contiguous head, and strides that are
    multiples of the pieces in which a head is copied. ``offset`` is the index of the
    first element in its memory.
    """
    if type.ndim != 4:
        return False
    *strides, last = type.layout.strides(type.shape)
    piece = math.gcd(type.shape[-1], 8)
    steps = (offset, *strides)
    return last == 1 and all(step >= 0 and step % piece == 0 for step in steps)


def attention(equation: Equation, reads: Reads) -> Iterator[HandwrittenCall]:
    """Yield the call that computes an ``attention``."""
    call = _Call.of(equation, reads)
    form = call.form
    (B, T, N, _), (_, S, *_) = (x.type.shape for x in equation.inputs[:2])
    tiles = tiles_of(form, T, S)
    out, logarithms = equation.outputs
    text = Handwritten(
        "attention",
        forward(form, tiles),
        tiles.threads,
        "Attention: a tile of queries a block.",
        "attention by tiles of queries",
        shared=shared_bytes(form, tiles),
        blocks_per_multiprocessor=tiles.blocks_per_multiprocessor,
    )
    writes = {"out": Pointer(out), "logarithms_out": Pointer(logarithms)}
    integers = {**call.integers(), **call.steps("q", "k", "v")}
    blocks = B * N * -(-T // tiles.rows)
    yield HandwrittenCall(
        text, reads=call.arrays(), writes=writes, integers=integers, blocks=blocks
    )


def attention_gradient(equation: Equation, reads: Reads) -> Iterator[HandwrittenCall]:
    """Yield the calls that compute an ``attention_gradient``.

    The first computes statistics of the queries, the second dq, and the third dk and
    dv. For heads of more than 128 elements, dk and dv have a kernel each: the
    accumulators of both would not fit into registers.
    """
    call = _Call.of(equation, reads)
    form = call.form
    (B, T, N, _), (_, S, K, _) = (x.type.shape for x in equation.inputs[:2])
    statistics, lse_and_delta = call.statistics()
    yield statistics
    dq, dk, dv = equation.outputs
    parts = [{"dk": dk, "dv": dv}]
    if form.padded > 128:
        parts = [{"dv": dv}, {"dk": dk}]
    for results in ({"dq": dq}, *parts):
        if "dq" in results:
            tiles = gradients.queries_tiles(form, T, S)
            blocks = B * N * -(-T // tiles.rows)
        else:
            tiles = gradients.keys_tiles(form, T, S)
            blocks = B * K * -(-S // tiles.rows)
        # Only the kernel of dv does without the cotangents of weights.
        with_dp = [*results] != ["dv"]
        arrays = ("q", "k", "v", "cotangent") if with_dp else ("q", "k", "cotangent")
        read = {**call.arrays(), "cotangent": call.cotangent, **lse_and_delta}
        if not with_dp:
            del read["v"], read["delta"]
        names = " and ".join(results)
        text = Handwritten(
            "attention_gradient",
            gradients.gradient(form, tiles, tuple(results)),
            tiles.threads,
            f"Cotangents {names} of attention: a tile of rows a block.",
            f"{names} of attention by tiles",
            shared=gradients.shared_bytes(form, tiles, with_dp),
            blocks_per_multiprocessor=tiles.blocks_per_multiprocessor,
        )
        writes = {f"{name}_out": Pointer(array) for name, array in results.items()}
        integers = {**call.integers(), **call.steps(*arrays)}
        yield HandwrittenCall(
            text, reads=read, writes=writes, integers=integers, blocks=blocks
        )


def attention_bias_gradient(
    equation: Equation, reads: Reads
) -> Iterator[HandwrittenCall]:
    """Yield the calls that compute an ``attention_bias_gradient``.

    The first computes statistics of the queries, the second the bias's cotangent.
    """
    call = _Call.of(equation, reads)
    form = call.form
    (B, T, N, _), (_, S, *_) = (x.type.shape for x in equation.inputs[:2])
    (bias_cotangent,) = equation.outputs
    batches, heads, rows, _ = bias_cotangent.type.shape
    statistics, lse_and_delta = call.statistics()
    yield statistics
    tiles = biases.bias_tiles(form, T, S)
    one_row = rows < T
    # How the bias is broadcast: how many batches, heads and tiles of rows share a tile.
    shared_by = {
        "bias_rows": rows,
        "bias_heads": heads,
        "batches_each": B // batches,
        "heads_each": N // heads,
        "rows_each": -(-T // tiles.rows) if one_row else 1,
    }
    yield HandwrittenCall(
        Handwritten(
            "attention_gradient",
            biases.bias_gradient(form, tiles, one_row=one_row),
            tiles.threads,
            "The cotangent of attention's bias: a tile of it a block.",
            "the bias's cotangent of attention by tiles",
            shared=biases.shared_bytes(form, tiles),
            blocks_per_multiprocessor=tiles.blocks_per_multiprocessor,
        ),
        reads={**call.arrays(), "cotangent": call.cotangent, **lse_and_delta},
        writes={"bias_out": Pointer(bias_cotangent)},
        integers={
            **call.integers(),
            **shared_by,
            **call.steps("q", "k", "v", "cotangent"),
        },
        blocks=batches * heads * -(-rows // tiles.rows) * -(-S // tiles.columns),
    )


@frozen
class _Call:
    """An ``operator_call`` of attention: its arrays, and what its kernels depend on.

    Args:
        equation: The call.
        pointers: Where the operands lie.
        strides: The operands' strides in their own layouts, in elements.
        form: What the kernels' texts depend on.
        window: How many keys before and after its own position a query attends to.
    """

    equation: Equation
    pointers: tuple[Pointer, ...]
    strides: tuple[tuple[int, ...], ...]
    form: Form
    window: tuple[int, int]

    @classmethod
    def of(cls, equation: Equation, reads: Reads) -> _Call:
        """Return the _Call of ``equation``."""
        static = static_of(equation)
        q, k, *_ = equation.inputs
        # Names, arrays and strides of the optional operands. They follow q, k and v;
        # gradients have further operands.
        terms: tuple[str, ...] = static["given"]
        atoms_of_terms = dict(zip(terms, equation.inputs[3:], strict=False))
        strides = tuple(array_of(atom, reads).strides for atom in equation.inputs)
        steps = dict(zip(terms, strides[3:], strict=False))
        # Bias and mask are read by pairs if pairs are aligned: keys are contiguous, not
        # broadcast, and all distances are even.
        pairs = {
            name
            for name in ("bias", "mask")
            if name in terms
            and atoms_of_terms[name].type.shape[-1] == k.type.shape[1]
            and steps[name][-1] == 1
            and not any(step % 2 for step in (k.type.shape[1], *steps[name][:-1]))
        }
        head = q.type.shape[-1]
        form = Form(
            head=head,
            dtype=short_name(q.type.dtype),
            piece=math.gcd(head, 8),
            scale=static["scale"],
            bias=short_name(atoms_of_terms["bias"].type.dtype)
            if "bias" in atoms_of_terms
            else "",
            mask="mask" in atoms_of_terms,
            paired=tuple(sorted(pairs)),
            query_lengths="query_lengths" in atoms_of_terms,
            key_lengths="key_lengths" in atoms_of_terms,
            score=score_lines(
                static["score"],
                extents_of(q.type.shape, k.type.shape),
                captured_types(
                    {name: atom.type for name, atom in atoms_of_terms.items()}
                ),
                tuple(s for name, s in steps.items() if name.startswith("captured")),
            )
            if static["score"]
            else None,
            blocks="next_keys" in atoms_of_terms,
        )
        left, right = (
            UNLIMITED if reach is None else max(-UNLIMITED, min(reach, UNLIMITED))
            for reach in static["window"]
        )
        pointers = tuple(pointer_of(atom, reads) for atom in equation.inputs)
        return cls(equation, pointers, strides, form, (left, right))

    @property
    def cotangent(self) -> Pointer:
        """The cotangent of the result."""
        return self.pointers[self.names.index("cotangent")]

    def statistics(self) -> tuple[HandwrittenCall, dict[str, Pointer]]:
        """Return the call that computes ``lse`` and ``delta``, and these by name.

        Both are new arrays of float32, [B, N, T]. ``lse`` is the logarithm of the sum
        of the query's weights, and ``delta`` the sum of the products of its result and
        the result's cotangent: see ``gradient``.
        """
        B, T, N, _ = self.equation.inputs[0].type.shape
        read = ("result", "logarithms", "cotangent")
        results = {
            name: new_array(dtypes.float32, B, N, T) for name in ("lse", "delta")
        }
        rows, warps = B * T * N, gradients.STATISTICS_WARPS
        sizes = {"queries": T, "heads": N, "rows": rows}
        call = HandwrittenCall(
            Handwritten(
                "attention_means",
                gradients.query_statistics(self.form),
                32 * warps,
                "Bounds of the weights, and means of the cotangents of attention.",
                "means of the cotangents of attention",
            ),
            reads={name: self.pointers[self.names.index(name)] for name in read},
            writes={f"{name}_out": array for name, array in results.items()},
            integers={**sizes, **self.steps("result", "cotangent")},
            blocks=-(-rows // warps),
        )
        return call, results

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the optional operands that the call has."""
        return static_of(self.equation)["given"]

    def arrays(self) -> dict[str, Pointer]:
        """Return queries, keys, values and optional operands, by their kernel names."""
        return dict(zip(self.names[: 3 + len(self.given)], self.pointers, strict=False))

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names of all operands, in order."""
        return ("q", "k", "v", *self.given, "result", "logarithms", "cotangent")

    def steps(self, *names: str) -> dict[str, int]:
        """Return the strides of the arrays ``names`` along batches, tokens and heads.

        Keys are the names that kernels give them: ``q_batch``, ``q_token``, ``q_head``.
        """
        return {
            f"{name}_{axis}": step
            for name in names
            for axis, step in zip(_TOKEN_AXES, self._strides_of(name), strict=False)
        }

    def _broadcast_steps(self, name: str, axes: Sequence[str]) -> dict[str, int]:
        """Return the strides of the array ``name`` along its first axes, by name.

        The ``axes`` name them; a stride is 0 along an axis that is broadcast.
        """
        shape = self.equation.inputs[self.names.index(name)].type.shape
        steps = zip(axes, shape, self._strides_of(name), strict=False)
        return {f"{name}_{axis}": 0 if n == 1 else step for axis, n, step in steps}

    def _strides_of(self, name: str) -> tuple[int, ...]:
        """Return the strides of the operand that kernels call ``name``."""
        return self.strides[self.names.index(name)]

    def integers(self) -> dict[str, int]:
        """Return the kernels' integers by name: extents, window, and strides.

        The strides are those of bias and mask; a stride is 0 along an axis that is
        broadcast. Integers of the score function and of a block mask are added if there
        are any.
        """
        (_, T, N, _), (_, S, K, _) = (x.type.shape for x in self.equation.inputs[:2])
        left, right = self.window
        integers_by_name = {
            "queries": T,
            "keys": S,
            "heads": N,
            "group": N // K,  # heads of queries for each head of keys
            "left": left,
            "right": right,
        }
        if self.form.score is not None:
            integers_by_name |= dict(self.form.score.integers)
        if self.form.blocks:
            integers_by_name |= self._block_integers()
        for name in ("bias", "mask"):
            if name in self.given:
                integers_by_name |= self._broadcast_steps(name, _AXES)
        return integers_by_name

    def _block_integers(self) -> dict[str, int]:
        """Return the kernels' integers of a block mask by name: sizes, counts, strides.

        ``query_block`` is the number of queries of a block, and ``query_blocks`` the
        number of such blocks.
        """
        integers_by_name: dict[str, int] = {}
        sizes: tuple[int, int] = static_of(self.equation)["block"]
        arrays = ("next_queries", "next_keys")
        for axis, size, name in zip(("query", "key"), sizes, arrays, strict=True):
            *_, ends = self.equation.inputs[self.names.index(name)].type.shape
            integers_by_name[f"{axis}_block"] = size
            # Along the last axis, the end of the last kept block follows the blocks.
            integers_by_name[f"{axis}_blocks"] = ends - 1
            integers_by_name |= self._broadcast_steps(name, ("batch", "head"))
        return integers_by_name
