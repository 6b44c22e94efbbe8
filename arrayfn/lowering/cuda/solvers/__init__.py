"""Factorizations, eigenvalues, triangular systems: library calls and kernels."""
