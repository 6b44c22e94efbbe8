"""Convolutions and windows: cuDNN's calls, and kernels beside them."""
