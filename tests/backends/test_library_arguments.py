"""Libraries' routines read their arguments by the names that the lowering gives."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu.libraries import provider_arguments, provider_of
from arrayfn.backends.cpu.libraries.foreign import parameters_of
from arrayfn.scipy.linalg import hessenberg, lu_factor, qr, schur, solve_triangular

X = np.zeros((4, 30, 30, 8), np.float32)
W = np.zeros((3, 3, 8, 5), np.float32)
ROW = np.zeros((3, 1 << 17), np.float32)
SQUARE = np.eye(40)
FEW = np.zeros((2, 3, 3))
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
    "argsort_packed": (anp.argsort, ROW[:, :300]),
    "argsort": (anp.argsort, ROW[:, :300].astype(np.float64)),
    "argsort_complex": (anp.argsort, ROW[:, :300].astype(np.complex64)),
    "top_k": (lambda x: lax.top_k(x, 5), ROW[:, :300]),
    "top_k_wide": (lambda x: lax.top_k(x, 5), ROW[:, :300].astype(np.float64)),
    "trsm": (solve_triangular, SQUARE, SQUARE[0]),
    "potrf": (af.linalg.cholesky, SQUARE),
    "getrf": (lu_factor, SQUARE),
    "gelqf": (af.linalg.qr, SQUARE),
    "geqp3": (lambda x: qr(x, pivoting=True), SQUARE),
    "syevd": (af.linalg.eigh, SQUARE),
    "stedc": (af.linalg.eigh, np.eye(256)),
    "ormtr": (af.linalg.eigh, np.eye(256)),
    "syevd_values": (af.linalg.eigvalsh, SQUARE),
    "geev": (af.linalg.eig, SQUARE),
    "geev_values": (af.linalg.eigvals, SQUARE),
    "gesdd": (af.linalg.svd, SQUARE),
    "gesdd_values": (af.linalg.svdvals, SQUARE),
    "gees": (schur, SQUARE),
    "gehrd": (hessenberg, SQUARE),
    "small_triangular_solve": (solve_triangular, FEW, FEW),
    "small_cholesky": (af.linalg.cholesky, FEW),
    "small_lu": (lu_factor, FEW),
    "small_qr": (af.linalg.qr, FEW),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_parameters_of_kernels_are_those_of_the_lowering(name):
    function, *arguments = PROGRAMS[name]
    kernels = af.jit(function).lower(*arguments).kernels
    (kernel,) = {
        k.name: k for k in kernels if k.name.rpartition("_")[0] == name
    }.values()
    own = provider_of(kernel.provider).kernel
    parameters = parameters_of(own, kernel.provider.rpartition("_")[2])
    names = [p.name for p in parameters if p.kind != "constant"]
    names = names[len(provider_arguments(kernel.provider)) :]
    given = [p.name for p in kernel.parameters]
    if "dimensions" in names:  # all that follow
        given = [*given[: len(names) - 1], "dimensions"]
    assert given == names
