"""Bad input: each error says what was given, where, and what to write instead.

The line that an error names is the one marked in this file with its tag.
"""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.compilation.jit import jit
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    ArrayfnError,
    DifferentiationError,
    DTypeError,
    InPlaceError,
    ShapeError,
    TracerLeakError,
    is_users,
)
from arrayfn.transforms import grad, jvp, trace_function, value_and_grad, vjp, vmap

X = np.arange(3.0)


def line(tag: str) -> int:
    """The line of this file that ends with ``# tag``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [k for k, text in enumerate(lines, 1) if text.endswith(f"# {tag}")]
    return found


def assert_says(caught, tag: str, *parts: str) -> None:
    """The error names the line with ``tag`` and says each of ``parts``."""
    message = str(caught.value)
    assert message.startswith(f"{__file__}:{line(tag)}: "), message
    for part in parts:
        assert part in message, message


# Shapes and dtypes.


def add_a_longer_one(x):
    y = x * 2
    return (y + np.ones(4)).sum()  # adds


@pytest.mark.parametrize("transform", [grad, jit, lambda f: jit(grad(f))])
def test_shapes_that_do_not_broadcast(transform):
    with pytest.raises(ShapeError) as caught:
        transform(add_a_longer_one)(X)
    assert_says(caught, "adds", "shapes (3,), (4,) do not broadcast together")


def test_an_array_that_belongs_to_the_axes_in_front_is_told_what_to_write():
    with pytest.raises(ShapeError) as caught:
        jit(lambda x, y: x + y)(np.ones((3, 4)), X)
    text = "(3,) do not broadcast together; x[:, None] makes (3, 1) of (3,), which does"
    assert text in str(caught.value)


def test_a_shape_error_of_a_primitive_names_the_users_line():
    def f(x):
        return lax.add(x, np.ones(4)).sum()  # lax-add

    with pytest.raises(ShapeError) as caught:
        grad(f)(X)
    assert_says(
        caught, "lax-add", "add takes operands of one shape, but was given f64[3]"
    )


def test_a_dtype_error_of_a_primitive_names_the_users_line():
    def f(x):
        return lax.mul(x, np.ones(3, np.float32)).sum()  # lax-mul

    with pytest.raises(DTypeError) as caught:
        jit(f)(X)
    assert_says(caught, "lax-mul", "one dtype, but was given f64[3], f32[3]; convert")


def test_outside_a_trace_too():
    with pytest.raises(DTypeError) as caught:
        anp.cbrt(np.array([1j]))  # cbrt
    assert_says(caught, "cbrt", "cbrt is not defined for c128; it takes f16")


def test_a_matrix_product_that_does_not_fit():
    with pytest.raises(ShapeError) as caught:
        grad(lambda x: (x @ np.ones((4, 2))).sum())(X)  # matmul
    assert_says(
        caught, "matmul", "axis 0 of f64[3] has extent 3, but axis 0 of f64[4,2]"
    )


def test_shape_errors_are_value_errors_as_numpys_are():
    with pytest.raises(ValueError, match="do not broadcast"):
        anp.add(np.ones(3), np.ones(4))


# Arguments that are no arrays.


def test_arguments_that_are_no_arrays():
    with pytest.raises(ArgumentError) as caught:
        vmap(lambda x, y: x * y["k"][1])(X, {"k": [X, "z"]})  # no-array
    assert_says(caught, "no-array", "is str ('z'), not an array or number; convert it")


def test_the_argument_is_named_with_its_place():
    def scaled(x, y=1.0):
        return (x * y).sum()

    with pytest.raises(
        ArgumentError, match=r"scaled: argument 0\['a'\]\[1\] is object"
    ):
        grad(scaled)({"a": [X, object()]})
    with pytest.raises(
        ArgumentError, match=r"scaled: keyword argument 'y'\[0\] is set"
    ):
        jit(scaled)(X, y=[{1}])


def test_operands_that_are_no_arrays():
    with pytest.raises(ArgumentError) as caught:
        grad(lambda x, y: (x * y["k"]).sum())(X, {"k": "z"})  # no-operand
    assert_says(caught, "no-operand", "takes arrays and numbers, not str")


def test_data_types_that_arrayfn_does_not_have():
    with pytest.raises(ArgumentError, match="argument 0 is an array of <U1, which"):
        grad(lambda x: x.sum())(np.array(["a"]))
    with pytest.raises(ArgumentError, match="multiply: arrayfn has no data type"):
        grad(lambda x: (x * np.array(["a"])).sum())(X)


def test_results_that_are_no_arrays():
    def f(x):
        return {"loss": x.sum(), "name": "f"}

    with pytest.raises(ArgumentError, match=r"f returned a str \('f'\)"):
        trace_function(f, (X,), {})


@pytest.mark.parametrize("operation", ["x * [1, 2, 3]", "[1, 2, 3] - x", "(1, 2) @ x"])
def test_sequences_are_no_operands(operation):
    with pytest.raises(
        ArgumentError, match=r"takes arrays and numbers, not (list|tuple)"
    ):
        grad(lambda x: eval(operation).sum())(X)


def test_other_operands_are_left_to_python():
    with pytest.raises(
        TypeError, match=r"unsupported operand .* 'Tracer' and 'NoneType'"
    ):
        grad(lambda x: (x * None).sum())(X)


# Values that are not known.


def absolute(x):
    if x > 0:  # if
        return x
    return -x


def test_if_on_an_abstract_value():
    with pytest.raises(AbstractValueError) as caught:
        jit(absolute)(1.0)
    assert_says(
        caught,
        "if",
        "a truth value (of if, while, and, or, not) needs the value of an array that "
        "is only known as ~bool[] while 'absolute' is traced",
        "It was made at test_errors.py",
        "Write arrayfn.numpy.where(condition, x, y)",
    )


def test_if_on_a_mapped_value():
    with pytest.raises(AbstractValueError) as caught:
        vmap(absolute)(X)
    assert_says(caught, "if", "only known as bool[] while 'absolute' is traced")


def test_if_on_a_value_that_is_known_takes_the_path():
    assert grad(absolute)(3.0) == 1
    assert grad(absolute)(-3.0) == -1


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: anp.zeros(x.astype(int)), "an index or a shape"),
        (float, "float()"),
        (int, "int()"),
        (complex, "complex()"),
        (lambda x: x.item(), "item()"),
        (lambda x: x.tolist(), "tolist()"),
        (lambda x: np.nonzero(x)[0], "nonzero(), whose result's shape depends on it,"),
    ],
)
def test_other_uses_of_a_value_that_is_not_known(function, what):
    with pytest.raises(AbstractValueError) as caught:
        jit(function)(2.0)
    assert f"{what} needs the value of an array that is only known as" in str(
        caught.value
    )


def test_conversion_to_a_numpy_array_would_lose_the_derivative():
    def f(x):
        return np.array([x[0], x[1]]).sum()  # np.array

    with pytest.raises(ArgumentError) as caught:
        grad(f)(X)
    assert_says(caught, "np.array", "would not be traced", "arrayfn.numpy (asarray and")


def test_hashing_a_traced_value():
    with pytest.raises(
        ArgumentError, match=r"f64\[3\]\) is not hashable: it cannot be a key"
    ):
        grad(lambda x: {x: 1})(X)


# Changes in place.


def test_assignment_to_elements():
    def f(x):
        x[0] = 1.0  # setitem
        return x.sum()

    with pytest.raises(InPlaceError) as caught:
        grad(f)(X)
    assert_says(caught, "setitem", "immutable; write x = x.at[index].set(y)")


def test_methods_that_change_in_place():
    with pytest.raises(InPlaceError, match=r"x.sort\(...\) would .*numpy.sort\(x\)"):
        grad(lambda x: x.sort())(X)


def test_out_arguments():
    with pytest.raises(InPlaceError, match=r"numpy\.add would change an array while"):
        grad(lambda x: np.add(x, 1.0, out=np.zeros(3)).sum())(X)


def test_updates_in_place_of_a_numpy_array_by_a_traced_value():
    with pytest.raises(InPlaceError, match=r"numpy\.add\.at would change an array"):
        grad(lambda x: np.add.at(np.zeros(3), [0], x[0]))(X)


# Traced values that outlive their trace.


def test_a_leaked_value_names_its_function_and_line():
    kept = []

    def leak(x):
        kept.append(x * 2)  # leak
        return x.sum()

    grad(leak)(X)
    with pytest.raises(TracerLeakError) as caught:
        kept[0] + 1  # use
    assert_says(
        caught,
        "use",
        "a traced value (f64[3]) is used after 'leak', the function it belongs to, has",
        f"It was made at test_errors.py:{line('leak')}",
        "Return it from the function instead",
    )
    with pytest.raises(TracerLeakError):
        grad(lambda y: (y * kept[0]).sum())(X)
    with pytest.raises(TracerLeakError):
        trace_function(lambda y: kept[0], (X,), {})


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[0],
        lambda x: x[anp.arange(2)],
        lambda x: X[x.astype(int)],
        lambda x: x.at[0].set(1.0),
        list,
        lambda x: anp.broadcast_to(x, (2, 3)),
    ],
)
def test_a_leaked_value_is_found_by_whatever_reads_it(use):
    kept = []
    af.jit(lambda x: kept.append(x * 2))(X)
    with pytest.raises(TracerLeakError, match="has returned"):
        use(kept[0])


def test_a_value_traced_in_one_thread_is_a_leak_in_another():
    caught = []

    def elsewhere(x):
        try:
            anp.exp(x)
        except TracerLeakError as error:
            caught.append(error)

    def f(x):
        thread = threading.Thread(target=elsewhere, args=(x,))
        thread.start()
        thread.join()
        return x.sum()

    grad(f)(X)
    assert len(caught) == 1


# Functions that cannot be traced, or not with these arguments.


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (np.isnat, "numpy.isnat cannot be traced: arrayfn.numpy has no such function"),
        (
            lambda x: np.may_share_memory(x, x),
            "numpy.may_share_memory cannot be traced: arrayfn.numpy has no such",
        ),
        (
            lambda x: np.exp(x, where=x > 0),
            "numpy.exp cannot be traced with these arguments: got an unexpected",
        ),
        (
            lambda x: np.sum(x, out=X),
            "sum returns a new array and cannot write into out",
        ),
    ],
)
def test_numpy_functions_that_cannot_be_traced(function, message):
    with pytest.raises(ArgumentError) as caught:
        grad(lambda x: function(x).sum())(X)
    assert message in str(caught.value)


# Derivatives that do not exist.


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (
            lambda x: x * 2,
            X,
            "returns a scalar, but <lambda> ... returned f64[3]; sum it",
        ),
        (
            lambda x: (x, x),
            1.0,
            "returns one scalar, but <lambda> ... returned 2 arrays",
        ),
        (lambda x: None, 1.0, "returns one scalar, but <lambda> ... returned 0 arrays"),
        (
            lambda x: x.sum(),
            np.arange(3),
            "by argument 0, which is i64[3]: only floating",
        ),
        (lambda x: x, 3, "by argument 0, which is ~i64[]: only floating"),
        (
            lambda x: x > 0,
            3.0,
            "returns a real scalar, but <lambda> ... returned ~bool[]",
        ),
        (
            lambda x: x * 1j,
            3.0,
            "returns a real scalar, but <lambda> ... returned ~c128[]",
        ),
        (
            lambda x: x.astype(int),
            3.0,
            "returns a real scalar, but <lambda> ... returned i64",
        ),
    ],
)
def test_gradients_that_do_not_exist(function, argument, message):
    for transform in (grad, value_and_grad):
        with pytest.raises(DifferentiationError) as caught:
            transform(function)(argument)  # no-grad
        assert_says(caught, "no-grad", *message.split(" ... "))


def test_a_primitive_without_a_derivative_names_the_line_that_used_it():
    def f(x):
        y = np.nextafter(x, 1.0)  # nextafter
        return y.sum()

    with pytest.raises(DifferentiationError) as caught:
        grad(f)(X)
    assert_says(caught, "nextafter", "nextafter has no derivative: nextafter steps")


def test_argnums_that_do_not_exist():
    for argnums in (2, -3, (0, 5)):
        with pytest.raises(
            ArgumentError, match="was called with 2 positional arguments"
        ):
            grad(lambda x, y: x * y, argnums=argnums)(1.0, 2.0)


def test_has_aux_without_a_pair():
    with pytest.raises(
        DifferentiationError, match=r"must return a pair \(value, aux\)"
    ):
        grad(lambda x: x, has_aux=True)(1.0)


def test_tangents_and_cotangents_that_do_not_fit():
    with pytest.raises(
        ShapeError, match=r"tangent 0 is f64\[4\], but the value .* f64\[3\]"
    ):
        jvp(np.sin, (X,), (np.ones(4),))
    with pytest.raises(
        ShapeError, match=r"tangent 0 is f32\[3\], but the value .* f64\[3\]"
    ):
        jvp(np.sin, (X,), (np.ones(3, np.float32),))
    with pytest.raises(ArgumentError, match="jvp: tangents have the structure"):
        jvp(np.sin, (X,), (X, X))
    _, pull_back = vjp(np.sin, X)
    with pytest.raises(ShapeError, match=r"cotangent 0 is f64\[2\], but the value"):
        pull_back(np.ones(2))
    with pytest.raises(ArgumentError, match="vjp: cotangents have the structure"):
        pull_back((X,))


# Mapping.


@pytest.mark.parametrize(
    ("mapped", "message"),
    [
        (
            lambda: vmap(np.add)(X, np.ones(4)),
            "the mapped extents differ: f64[3] along",
        ),
        (lambda: vmap(np.add, in_axes=None)(X, X), "nothing is mapped: f64[3] along"),
        (
            lambda: vmap(np.add, in_axes=(0,))(X, X),
            "in_axes has 1 entry, but add was",
        ),
        (
            lambda: vmap(np.sin, in_axes=1)(X),
            "axis 1 of f64[3] does not exist; give None",
        ),
        (lambda: vmap(np.sin)(1.0), "axis 0 of ~f64[] does not exist; give None"),
        (
            lambda: vmap(np.sin, in_axes=((0, 0),))(X),
            "in_axes[0] = (0, 0) is not a prefix",
        ),
        (
            lambda: vmap(np.sin, out_axes=(0, 0))(X),
            "out_axes (0, 0) is not a prefix of the",
        ),
        (
            lambda: vmap(np.sin, out_axes=2)(X),
            "at 2, but an output of sin is f64[], so",
        ),
        (
            lambda: vmap(np.sin, out_axes=None)(X),
            "output 0 (f64[]) is the same for all,",
        ),
    ],
)
def test_mappings_that_do_not_fit(mapped, message):
    with pytest.raises(ArrayfnError) as caught:
        mapped()
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[0, 0], "too many indices for array"),
        (lambda x: x[..., ...], "an index can only have a single ellipsis"),
        (lambda x: x[np.array([0.5])], "arrays used as indices must be of integer"),
    ],
)
def test_wrong_indices_name_the_line(function, message):
    with pytest.raises(IndexError, match=rf"test_errors.py:\d+: {message}"):
        jit(function)(np.ones(3))


def test_lines_of_libraries_are_not_the_users_wherever_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library can be in any folder: ``pip install --target``, a checkout."""
    library = types.ModuleType("pandas")
    library.__file__ = str(tmp_path / "pandas" / "__init__.py")
    monkeypatch.setitem(sys.modules, "pandas", library)
    assert not is_users(str(tmp_path / "pandas" / "core" / "frame.py"))
    assert is_users(str(tmp_path / "pandas_of_mine.py"))
    assert is_users(str(tmp_path / "program.py"))


@pytest.mark.parametrize(
    ("namespace", "name", "says"),
    [
        (af, "exp", "there is arrayfn.numpy.exp"),
        (af.lax, "zeros", "there is arrayfn.numpy.zeros"),
        (anp, "erf", "there is arrayfn.lax.erf"),
        (af.nn, "matmul", "there is arrayfn.numpy.matmul"),
        (anp, "zeross", "has no attribute 'zeross'"),
    ],
)
def test_a_name_that_a_namespace_lacks_is_found_elsewhere(namespace, name, says):
    assert not hasattr(namespace, name)
    with pytest.raises(AttributeError, match=f"{says}$"):
        getattr(namespace, name)
