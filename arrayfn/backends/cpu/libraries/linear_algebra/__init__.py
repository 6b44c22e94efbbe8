"""Factors, eigenvalues and singular values: LAPACK's, and routines around it."""
