"""CUDA: the schedule and the source text of kernels for NVIDIA GPUs."""
