"""Lowering: from Programs to kernels and plans. Knows no runtime."""
