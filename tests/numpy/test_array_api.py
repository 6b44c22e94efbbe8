"""What the array API asks of the namespace besides functions of values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, AxisError, DTypeError
from arrayfn.tracing import Tracer
from arrayfn.transforms import trace_function

V = np.arange(3.0)


def test_the_namespace_of_traced_values_is_this_one():
    seen = []

    def f(x):
        seen.append(x.__array_namespace__(api_version="2024.12"))
        return x

    trace_function(f, (V,), {}, abstract=True)
    assert seen == [anp]
    assert anp.__array_api_version__ == "2024.12"


def test_inspection():
    info = anp.__array_namespace_info__()
    assert info.default_device() == "cpu"
    assert info.devices() == ["cpu"]
    assert info.default_dtypes()["real floating"] == np.float64
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert info.capabilities()["boolean indexing"]
    seen = []

    def f(x):
        seen.append(anp.__array_namespace_info__().capabilities())
        return x

    af.grad(f)(1.0)
    af.jit(f)(1.0)
    kinds = [[s["boolean indexing"], s["data-dependent shapes"]] for s in seen]
    assert kinds == [[True, True], [False, False]]


@pytest.mark.parametrize("transform", [af.grad, af.jit])
def test_arrays_that_a_traced_function_creates_are_of_its_namespace(transform):
    made = []

    def f(x):
        made.extend([anp.zeros(2), anp.ones_like(V), anp.full(2, 1.0), anp.eye(2)])
        made.extend([anp.arange(3), anp.linspace(0, 1, 3), anp.tri(2), anp.empty(0)])
        made.extend([anp.asarray(1.0), anp.at(anp.zeros(2))[...].set(V[:2])])
        made.extend([anp.fft.fftfreq(3), anp.arange(4.0)[anp.astype(x, int)]])
        return x

    transform(f)(1.0)
    assert {type(x) for x in made} == {Tracer}


@pytest.mark.parametrize(
    "make",
    [
        lambda device: anp.zeros(2, device=device),
        lambda device: anp.ones(2, device=device),
        lambda device: anp.empty(2, device=device),
        lambda device: anp.full(2, 1.0, device=device),
        lambda device: anp.zeros_like(V, device=device),
        lambda device: anp.ones_like(V, device=device),
        lambda device: anp.empty_like(V, device=device),
        lambda device: anp.full_like(V, 1.0, device=device),
        lambda device: anp.arange(2, device=device),
        lambda device: anp.linspace(0, 1, 3, device=device),
        lambda device: anp.eye(2, device=device),
        lambda device: anp.asarray([1.0], device=device),
        lambda device: anp.astype(V, np.float32, device=device),
        lambda device: anp.from_dlpack(V, device=device),
    ],
)
def test_arrays_are_made_on_the_cpu(make):
    np.testing.assert_array_equal(make("cpu"), make(None))
    with pytest.raises(ArgumentError, match=r"one of 'cpu', .*, not on 'tpu'"):
        make("tpu")


def test_copies_are_made_unless_they_are_refused():
    assert anp.asarray(V) is not V
    assert not np.shares_memory(anp.asarray(V, copy=True), V)
    assert anp.asarray(V, copy=False) is V
    with pytest.raises(ValueError, match="copy"):
        anp.asarray([1.0, 2.0], copy=False)
    assert anp.astype(V, V.dtype, copy=False) is V
    assert anp.astype(V, V.dtype) is not V
    assert np.shares_memory(anp.from_dlpack(V, copy=False), V)
    assert not np.shares_memory(anp.from_dlpack(V, copy=True), V)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_finfo_is_numpys_in_python_numbers(dtype):
    ours, theirs = anp.finfo(dtype), np.finfo(dtype)
    for name in ("bits", "eps", "epsneg", "max", "min", "tiny", "resolution", "nmant"):
        assert getattr(ours, name) == getattr(theirs, name), name
        assert type(getattr(ours, name)) in (int, float)
    assert ours.dtype == np.finfo(dtype).dtype
    assert anp.finfo(np.ones(2, dtype)) == ours


def test_bfloat16_is_a_data_type():
    assert anp.finfo(anp.bfloat16).eps == 2.0**-7
    assert anp.isdtype(anp.bfloat16, "real floating")
    assert anp.promote_types(anp.bfloat16, np.float16) == np.float32
    assert anp.result_type(np.ones(2, ml_dtypes.bfloat16), 1.5) == ml_dtypes.bfloat16
    assert anp.can_cast(anp.bfloat16, np.float32)
    assert not anp.can_cast(np.float32, anp.bfloat16)


def test_kinds_of_dtypes():
    assert anp.isdtype(np.int8, ("bool", "signed integer"))
    assert not anp.isdtype(np.uint8, "signed integer")
    assert anp.isscalar(1.0)
    assert anp.isscalar(np.float32(1))
    assert not anp.isscalar(V)


def test_an_axis_that_is_not_there_is_an_index_error_too():
    for error in (IndexError, ValueError, AxisError):
        with pytest.raises(error, match="axis 2 is out of bounds"):
            anp.expand_dims(np.float64(1.0), 2)


def test_integers_and_bools_have_their_own_functions():
    with pytest.raises(DTypeError, match="gcd takes integers"):
        anp.gcd(V, V)
    with pytest.raises(DTypeError, match="packbits takes integers"):
        anp.packbits(V)
    with pytest.raises(DTypeError, match="unpackbits takes uint8"):
        anp.unpackbits(np.arange(3))
