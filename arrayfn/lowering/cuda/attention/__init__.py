"""Attention: kernels on tensor cores, for its value and its cotangents."""
