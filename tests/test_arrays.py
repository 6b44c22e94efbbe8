"""``Array``, ``typeof``, ``disable_jit`` and ``check_grads``."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError
from arrayfn.test_util import check_grads, check_jvp, check_vjp


def test_arrays_are_numpys_and_traced_ones():
    assert isinstance(np.ones(2), af.Array)
    assert not isinstance([1.0], af.Array)
    assert not isinstance(np.float64(1.0), af.Array)
    seen = []

    def f(x):
        seen.append((isinstance(x, af.Array), isinstance(x, anp.ndarray)))
        return x

    af.jit(f)(np.ones(2))
    af.grad(f)(1.0)
    af.vmap(f)(np.ones(2))
    assert seen == [(True, True)] * 3
    with pytest.raises(TypeError, match="cannot be called to make an array"):
        af.Array()


def test_typeof_tells_shape_and_dtype_of_traced_values_too():
    types = []
    af.jit(lambda x: types.append(af.typeof(x)) or x)(np.ones((2, 3), np.float32))
    assert [str(t) for t in types] == ["f32[2,3]"]
    assert str(af.typeof(2)) == "~i64[]"
    with pytest.raises(ArgumentError, match="typeof: x is str"):
        af.typeof("a")


def test_jit_is_disabled_in_a_block_and_in_one_thread():
    calls = []

    @af.jit
    def f(x):
        calls.append(type(x))
        return x + 1.0

    assert f(np.ones(2)).tolist() == [2.0, 2.0]
    with af.disable_jit():
        assert f(np.ones(2)).tolist() == [2.0, 2.0]
        with af.disable_jit(False):
            f(np.ones(2))
        other = threading.Thread(target=f, args=(np.ones(2),))
        other.start()
        other.join()
    f(np.ones(2))
    # Traced once; the block's call alone runs as Python.
    assert [t is np.ndarray for t in calls] == [False, True]


def test_methods_and_errors_of_disabled_jit_are_pythons():
    class Model:
        @af.jit
        def double(self, x):
            raise KeyError(x)

    with af.disable_jit(), pytest.raises(KeyError):
        Model().double(1.0)


def test_named_scopes_change_nothing():
    @af.jit
    @af.named_scope("outer")
    def f(x):
        with af.named_scope("inner"):
            return x * 2

    assert f(np.ones(1)).tolist() == [2.0]
    assert af.named_call(f, name="doubled")(np.ones(1)).tolist() == [2.0]
    assert af.named_call(f).__name__ == "f"


@af.custom_jvp
def wrong(x):
    return x * x


@wrong.defjvp
def wrong_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return wrong(x), 3.0 * x * t


def test_check_grads_passes_right_derivatives():
    check_grads(lambda x, y: {"a": anp.sin(x) * y["b"]}, (0.3, {"b": 2.0}), order=3)
    x = np.linspace(0.5, 1.5, 3, dtype=np.float32)
    check_grads(lambda x, k: anp.exp(x)[k], (x, 1), order=2)
    check_grads(lambda z: z * anp.conj(z), (np.array([1 + 2j]),), 1, modes=("fwd",))


@pytest.mark.parametrize(("mode", "what"), [("fwd", "jvp"), ("rev", "vjp")])
def test_check_grads_shows_wrong_derivatives(mode, what):
    with pytest.raises(AssertionError, match=f"{what} of wrong: .* is not"):
        check_grads(wrong, (2.0,), order=1, modes=(mode,))


@af.custom_jvp
def sine(x):
    return anp.sin(x)


@sine.defjvp
def sine_jvp(primals, tangents):
    return sine(*primals), af.lax.stop_gradient(anp.cos(*primals)) * tangents[0]


@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_check_grads_checks_derivatives_of_derivatives(mode):
    check_grads(sine, (0.5,), order=1, modes=(mode,))
    what = {"fwd": "jvp of jvp", "rev": "vjp of vjp"}[mode]
    with pytest.raises(AssertionError, match=f"{what} of sine"):
        check_grads(sine, (0.5,), order=2, modes=(mode,))


def test_rules_are_checked_by_themselves():
    check_jvp(np.square, lambda p, t: (p[0] ** 2, 2 * p[0] * t[0]), (3.0,))
    with pytest.raises(AssertionError, match="value in jvp of square"):
        check_jvp(np.square, lambda p, t: (p[0], 2 * p[0] * t[0]), (3.0,))
    with pytest.raises(AssertionError, match="by hand"):
        check_vjp(
            np.square, lambda x: (x**2, lambda ct: (ct * x,)), (3.0,), err_msg="by hand"
        )
