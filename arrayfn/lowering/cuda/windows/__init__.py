"""Convolutions and window reductions: calls of cuDNN, and handwritten kernels."""
