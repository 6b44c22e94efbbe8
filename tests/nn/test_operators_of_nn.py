"""The public functions that are operators: nothing changes without a kernel."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.errors import ArgumentError, DroppedKernelWarning, KernelMismatchError
from arrayfn.ir.text import format_program, parse_program
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.primitives.table import TABLE

X = np.random.default_rng(0).normal(size=(3, 4))
ROW = np.array([1.0, -2.0, 0.5, 3.0])
HEADS = np.random.default_rng(1).normal(size=(2, 3, 2, 4))
IMAGE = np.random.default_rng(2).normal(size=(1, 2, 5, 5))
FILTERS = np.random.default_rng(3).normal(size=(3, 2, 3, 3))

CALLS = {
    "nn.softmax": lambda: (nn.softmax, (X,), {"axis": 0}),
    "nn.log_softmax": lambda: (nn.log_softmax, (X,), {"axis": [1]}),
    "nn.layer_norm": lambda: (nn.layer_norm, (X, ROW), {}),
    "nn.rms_norm": lambda: (nn.rms_norm, (X, ROW), {}),
    "nn.gelu": lambda: (nn.gelu, (X,), {"approximate": False}),
    "nn.rope": lambda: (nn.rope, (HEADS,), {"base": 100.0}),
    "nn.dot_product_attention": lambda: (
        nn.dot_product_attention,
        (HEADS, HEADS, HEADS),
        {"is_causal": True, "implementation": "xla"},
    ),
    "nn.cross_entropy": lambda: (nn.cross_entropy, (X, np.array([0, 3, 1])), {}),
    "nn.embedding": lambda: (nn.embedding, (X, np.array([2, 0])), {}),
    "numpy.matmul": lambda: (anp.matmul, (X, X.T), {}),
    "lax.conv_general_dilated": lambda: (
        lax.conv_general_dilated,
        (IMAGE, FILTERS),
        {"window_strides": [1, 1], "padding": "SAME"},
    ),
}


@pytest.fixture(params=CALLS)
def call(request):
    """An operator, operands and static arguments; kernels are removed at the end."""
    operator, args, static = CALLS[request.param]()
    assert operator.name == request.param
    yield operator, args, static
    for kernel in operator.kernels:
        operator.remove(kernel)


def body_of(operator, operands, static):
    """What the operator's function gives for what a kernel is given."""
    names = inspect.signature(operator.function).parameters
    given = iter(operands)
    named = {
        k: static[k] if k in static else next(given)
        for k in names
        if k != "implementation"
    }
    first = [named.pop(k) for k, p in names.items() if p.kind is p.POSITIONAL_ONLY]
    return np.asarray(operator.function(*first, **named))


def by_body(operator, seen):
    """A kernel that computes the body on NumPy arrays."""

    def kernel(*arguments, **static):
        *operands, out = arguments
        seen.append([x is None for x in operands])
        out[...] = body_of(operator, operands, static)

    return kernel


def test_a_program_without_kernels_is_that_of_the_function(call):
    operator, args, static = call
    plain, own = (
        af.make_program(lambda *x, f=f: f(*x, **static))(*args)
        for f in (operator.function, operator)
    )
    assert format_program(plain) == format_program(own)
    assert "operator_call" not in format_program(own).replace("'nn.attention'", "")


def test_a_kernel_is_called_with_operands_and_static_arguments(call):
    operator, args, static = call
    f = af.jit(lambda *x: operator(*x, **static))
    before, seen = f(*args), []
    operator.kernel("cpu")(by_body(operator, seen))
    np.testing.assert_allclose(f(*args), before, rtol=1e-12, atol=1e-14)
    assert len(seen) == 3  # compared twice, then run
    optional = len(seen[0]) - len(args)
    assert seen[0] == [False] * len(args) + [True] * optional
    program = af.make_program(lambda *x: operator(*x, **static))(*args)
    assert program.equations[-1].params["name"] == operator.name
    text = format_program(program)
    assert format_program(parse_program(text, TABLE)) == text
    operator.remove("kernel")
    np.testing.assert_array_equal(f(*args), before)
    assert len(seen) == 3


def test_a_wrong_kernel_is_found(call):
    operator, args, static = call

    def doubled(*arguments, **options):
        *operands, out = arguments
        out[...] = 2 * body_of(operator, operands, options)

    operator.kernel("cpu")(doubled)
    with pytest.raises(KernelMismatchError, match=f"operator {operator.name} differs"):
        af.jit(lambda *x: operator(*x, **static))(*args)


def test_derivatives_and_maps_of_a_replaced_function_use_the_body(call):
    operator, args, static = call

    def loss(x):
        return anp.sum(operator(x, *args[1:], **static) ** 2)

    def mapped(x):
        return af.vmap(lambda y: operator(y, *args[1:], **static))(x)

    batch = np.stack([args[0], 2 * args[0]])
    wanted = af.jit(af.grad(loss))(args[0]), af.jit(mapped)(batch)
    operator.kernel("cpu")(by_body(operator, []))
    with pytest.warns(DroppedKernelWarning, match=f"of operator {operator.name}"):
        have = af.jit(af.grad(loss))(args[0]), af.jit(mapped)(batch)
    for one, other in zip(have, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_functions_that_call_the_operator_are_compiled_again():
    f = af.jit(lambda x: lax.fori_loop(0, 2, lambda k, y: nn.gelu(y), x))
    outer = af.jit(lambda x: f(x) + 1)
    other = af.jit(lambda x: x + 1)
    for function in (f, outer, other):
        function(ROW)
    nn.gelu.kernel("cpu", check=False)(by_body(nn.gelu, []))
    assert [len(g.signatures()) for g in (f, outer, other)] == [0, 0, 1]
    f(ROW)
    nn.gelu.remove("kernel")
    assert not f.signatures()


def test_optional_operands_stay_in_their_places():
    def scaled(x, scale, bias, out, axis, epsilon):
        out[...] = nn.layer_norm.function(x, scale, bias, axis, epsilon)
        given.append((scale is not None, bias is not None))

    given = []
    nn.layer_norm.kernel("cpu", when=lambda x, scale, bias, axis, epsilon: axis == -1)(
        scaled
    )
    try:
        for operands in ((X, ROW), (X, None, ROW), (X,)):
            have = af.jit(nn.layer_norm)(*operands)
            np.testing.assert_array_equal(have, nn.layer_norm.function(*operands))
    finally:
        nn.layer_norm.remove("scaled")
    assert given == [(True, False)] * 3 + [(False, True)] * 3 + [(False, False)] * 3


def test_arguments_that_no_kernel_can_be_given_use_the_body():
    nn.layer_norm.kernel("cpu")(lambda *arguments, **static: None)
    try:
        have = af.jit(lambda x, e: nn.layer_norm(x, epsilon=e))(X, 1e-3)
    finally:
        nn.layer_norm.remove("<lambda>")
    np.testing.assert_array_equal(
        have, af.jit(lambda x: nn.layer_norm(x, epsilon=1e-3))(X)
    )


def test_operators_pickle_by_name():
    assert pickle.loads(pickle.dumps(nn.softmax)) is nn.softmax
    assert copy.deepcopy(anp.matmul) is anp.matmul


# Listing, choosing, replacing.


def one(x, out):
    np.multiply(x, 3, out=out)


def other(x, out):
    np.add(x, 2 * x, out=out)


@pytest.fixture
def tripled():
    @af.operator
    def tripled(x):
        return x * 3

    tripled.kernel("cpu", when=lambda x: x.ndim == 1)(one)

    def matrices(x):
        """Matrices with more rows than columns."""
        return x.ndim == 2 and x.shape[0] > x.shape[1]

    tripled.kernel("cpu", when=matrices, vmap="sequential", check=False)(other)
    return tripled


LISTED = """\
implementation  backend    operator  applies to                            options
other           cpu        tripled   Matrices with more rows than columns  unchecked, v\
map=sequential
one             cpu        tripled   x.ndim == 1
body            cpu        tripled   everywhere                            inlined
body            cuda       tripled   everywhere                            inlined
body            reference  tripled   everywhere                            interpreted\
"""


def test_kernels_lists_each_with_what_it_applies_to(tripled):
    assert str(af.kernels(tripled)) == LISTED
    assert "<table" in af.kernels(tripled)._repr_html_()


def test_kernels_says_what_computes_operands(tripled):
    rows = af.kernels(tripled, np.ones(3))
    assert [(r.name, r.backend) for r in rows if r.taken] == [
        ("one", "cpu"),
        ("body", "cuda"),
        ("body", "reference"),
    ]
    assert rows[3].options == "elementwise_0"
    assert [af.get_kernel("cpu", tripled, np.ones(s)) for s in (3, (3, 2), ())] == [
        tripled.find_kernel("one"),
        tripled.find_kernel("other"),
        None,
    ]


def test_parts_of_an_operator_are_listed():
    rows = af.kernels(nn.dot_product_attention, *[HEADS.astype(np.float16)] * 3)
    taken = [(row.name, row.operator) for row in rows if row.taken]
    assert ("generated_attention", "nn.attention") in taken
    assert "nn.attention_gradient" not in {name for _, name in taken}


def test_prefer_replace_and_remove(tripled):
    def titles():
        return [kernel.title for kernel in tripled.kernels]

    def third(x, out):
        out[...] = 3 * x

    assert af.get_kernel("cpu", tripled).title == "other"
    tripled.prefer("one")
    assert titles() == ["one", "other"]
    tripled.kernel("cpu", replaces="other")(third)
    assert titles() == ["one", "third"]
    tripled.remove(tripled.kernels[0])
    assert titles() == ["third"]
    with pytest.raises(
        ArgumentError, match="no kernels 'one'; there are third for cpu"
    ):
        tripled.remove("one")


def test_what_is_no_operator_has_no_kernels():
    with pytest.raises(
        ArgumentError, match=r"logsumexp is not an operator.*af\.operator"
    ):
        af.kernels(nn.logsumexp)


def test_scalar_operands_are_given_to_kernels():
    @af.operator
    def scaled(x, by):
        return x * by

    scaled.kernel("cpu")(lambda x, by, out: np.multiply(x, by, out=out))
    np.testing.assert_array_equal(af.jit(lambda x: scaled(x, 2.0))(ROW), 2 * ROW)


def test_cross_entropy_of_classes_and_of_probabilities():
    labels = np.array([0, 3, 1])
    wanted = -np.log(np.exp(X) / np.exp(X).sum(1, keepdims=True))
    loss = nn.cross_entropy(X, labels)
    np.testing.assert_allclose(loss, wanted[np.arange(3), labels], rtol=1e-12)
    np.testing.assert_allclose(
        nn.cross_entropy(X.T, np.eye(4)[labels].T, axis=0), loss, rtol=1e-12
    )
    where = np.array([True, False, True])
    np.testing.assert_array_equal(nn.cross_entropy(X, labels, where=where)[1], 0)
    gradient = af.jit(af.grad(lambda x: anp.sum(nn.cross_entropy(x, labels))))(X)
    np.testing.assert_allclose(
        gradient, np.exp(-wanted) - np.eye(4)[labels], rtol=1e-12, atol=1e-15
    )
    with pytest.raises(
        af.errors.ShapeError, match=r"classes of shape \(3,\) for logits"
    ):
        nn.cross_entropy(X, labels[:2])


def test_embedding_adds_up_cotangents_of_equal_rows():
    index = np.array([1, 1, 2])
    gradient = af.grad(lambda t: anp.sum(nn.embedding(t, index) * X[:3]))(
        np.ones((3, 4))
    )
    np.testing.assert_allclose(gradient, [0 * X[0], X[0] + X[1], X[2]], rtol=1e-15)


def test_an_operator_of_a_user_takes_no_name_of_the_library():
    before = KERNELS.of("nn.attention", "cuda")
    assert before

    @af.operator
    def attention(x):
        return x * 2

    @af.operator(name="softmax")
    def other_softmax(x):
        return x * 3

    other_softmax.kernel("cpu", check=False)(one)
    try:
        assert KERNELS.of("nn.attention", "cuda") == before
        assert not nn.softmax.kernels
    finally:
        other_softmax.remove("one")


def test_a_kernel_for_a_cpu_changes_no_kernel_of_a_gpu(call):
    operator, args, static = call
    args = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in args]

    def sources():
        lowered = af.jit(lambda *x: operator(*x, **static), device="cuda").lower(*args)
        return [kernel.source for kernel in lowered.kernels]

    before = sources()
    operator.kernel("cpu")(by_body(operator, []))
    assert sources() == before
