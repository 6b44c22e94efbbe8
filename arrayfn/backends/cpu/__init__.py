"""The CPU backend: Numba-compiled kernels, run over threads by a resident plan runner."""
