"""Factors, eigenvalues, triangular systems: libraries' calls, and kernels."""
