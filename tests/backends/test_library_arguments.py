"""Libraries' routines read their arguments by the names that the lowering gives."""

import ctypes

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu.libraries import provider_of, provider_words
from arrayfn.backends.native.structures import field_types, is_inline, value_type

X = np.zeros((4, 30, 30, 8), np.float32)
W = np.zeros((3, 3, 8, 5), np.float32)
ROW = np.zeros((3, 1 << 17), np.float32)
NAMES = ("NHWC", "HWIO", "NHWC")


def convolve(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NAMES)


def members(x, w):
    return anp.einsum("nij,nkij->nk", x, w)


PROGRAMS = {
    "gemm": (anp.matmul, ROW[:, :300], ROW[:, :300].T),
    "windows": (convolve, X, W),
    "window_sums": (af.grad(lambda w, x: convolve(x, w).sum()), W, X),
    "windows_right": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID"),
        X.transpose(0, 3, 1, 2).copy(),
        W.transpose(3, 2, 0, 1).copy(),
    ),
    "rfft": (anp.fft.rfft, ROW[:, :6]),
    "sort": (anp.sort, ROW[:, :300]),
    "sort_codes": (anp.sort, ROW[:1]),
    "merge": (anp.argsort, ROW[:1]),
    "argsort": (anp.argsort, ROW[:, :300]),
    "top_k": (lambda x: lax.top_k(x, 5), ROW[:, :300]),
}


def words_of(kind, prefix=""):
    """The names of a structure's words: those of parts after a dot."""
    names = []
    for name, type in field_types(kind).items():
        value = value_type(type)
        if is_inline(type) and hasattr(value, "_fields_"):
            names += [f"{name}.{part}" for part in words_of(value)]
        else:
            count = ctypes.sizeof(dict(kind._fields_)[name]) // 8
            names += [name] * count
    return names


@pytest.mark.parametrize("name", PROGRAMS)
def test_fields_are_the_parameters_of_the_lowering(name):
    function, *arguments = PROGRAMS[name]
    kernels = af.jit(function).lower(*arguments).kernels
    (kernel,) = {
        k.name: k for k in kernels if k.name.rpartition("_")[0] == name
    }.values()
    (kind, *_), _ = provider_of(kernel.provider).routine.types()
    names = words_of(kind)
    parameters = [p.name for p in kernel.parameters]
    words = len(provider_words(kernel.provider))
    assert len(names) == words + len(parameters)
    for field, parameter in zip(names[words:], parameters, strict=True):
        assert field == parameter or field.startswith("dimensions")
